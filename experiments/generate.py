"""Try a model in one line; the reply is printed as it is drawn.

    python -m experiments.generate --model checkpoints/arithmetic --prompt "Calculate 5 - 3 + 6."

The prompt is a user's message under the model's chat template; ``--raw`` gives it as it stands.
"""

import argparse
import dataclasses
import sys
import time

import gradejax
from experiments import command


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.generate", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--model", required=True, help="folder, .gguf file or hub id")
    parser.add_argument("--prompt", required=True, help="text; - reads it from standard input")
    parser.add_argument("--system", help="a system message before it")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--adapter", help="folder of a PEFT LoRA adapter")
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument("--ignore", action="append", default=[], metavar="NAME",
                        help="an unknown setting of the model that changes nothing; repeat it")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--int8", action="store_true", help="weights in 8 bits")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.raw and args.system:
        parser.error("--system needs the chat template; leave --raw out")
    return args


def main(argv: list[str] | None = None) -> int:
    """Print a reply; the exit status is 0, or as ``command.run`` says."""
    args = parse(argv)
    return command.run(lambda: _reply(args))


def _reply(args: argparse.Namespace) -> int:
    # Here, so that Ctrl-C while jax is imported is no traceback either.
    from gradejax.generation.checks import SEEDS, text, whole
    from gradejax.generation.sampling import Sampling

    # Before a model is loaded, which may take a while.
    options = {
        "max_new_tokens": whole("--max-new-tokens", args.max_new_tokens),
        "seed": whole("--seed", args.seed, 0, SEEDS - 1),
        **dataclasses.asdict(Sampling(args.temperature, args.top_k, args.top_p)),
    }
    prompt = given = text("the prompt", sys.stdin.read() if args.prompt == "-" else args.prompt)
    if not given.strip():
        raise ValueError("the prompt is empty; expected a text")
    if not args.raw:
        prompt = [{"role": "user", "content": given}]
        if args.system:
            prompt.insert(0, {"role": "system", "content": args.system})
    model = gradejax.load_lm(args.model, dtype=args.dtype, revision=args.revision, int8=args.int8,
                             adapter=args.adapter, ignore=args.ignore)  # fmt: skip
    start, pieces, piece = time.perf_counter(), 0, ""
    reply = model.stream(prompt, **options)
    try:
        for piece in reply:
            print(piece, end="", flush=True)
            pieces += 1
    except KeyboardInterrupt:
        print(flush=True)  # what comes next begins a line
        raise
    if not piece.endswith("\n"):
        print(flush=True)
    seconds = time.perf_counter() - start
    print(f"[{model!r}: {pieces} pieces in {seconds:.1f} s, compilation included]",
          file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
