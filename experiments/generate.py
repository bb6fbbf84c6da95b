"""Try a model in one line; the reply is printed as it is drawn.

    python -m experiments.generate --model checkpoints/arithmetic --prompt "Calculate 5 - 3 + 6."

The prompt is a user's message under the model's chat template; ``--raw`` gives it as it stands.
"""

import argparse
import sys
import time

import gradejax


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
    args = parse(argv)
    text = sys.stdin.read() if args.prompt == "-" else args.prompt
    if not text.strip():
        print("error: the prompt is empty; expected a text", file=sys.stderr)
        return 1
    prompt = text
    if not args.raw:
        prompt = [{"role": "user", "content": text}]
        if args.system:
            prompt.insert(0, {"role": "system", "content": args.system})
    try:
        model = gradejax.load_lm(args.model, dtype=args.dtype, revision=args.revision,
                                 int8=args.int8, adapter=args.adapter)  # fmt: skip
        start, pieces, piece = time.perf_counter(), 0, ""
        for piece in model.stream(
            prompt, max_new_tokens=args.max_new_tokens, temperature=args.temperature,
            top_k=args.top_k, top_p=args.top_p, seed=args.seed,
        ):  # fmt: skip
            print(piece, end="", flush=True)
            pieces += 1
        if not piece.endswith("\n"):
            print(flush=True)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    seconds = time.perf_counter() - start
    print(f"[{model!r}: {pieces} pieces in {seconds:.1f} s, compilation included]",
          file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
