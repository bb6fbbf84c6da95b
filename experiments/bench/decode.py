"""How fast replies are generated, against a peer in the same run: one JSON line.

    python -m experiments.bench decode --peer transformers --peer-python PY --batch 16
    python -m experiments.bench decode --peer tunix --peer-python PY --prompt 256

transformers: the SmolLM2-135M shape with random float32 weights (or ``--model DIR``), prompts of 38
to 50 tokens that begin with the same 27 (a chat template's system prompt), 64 new tokens, greedy.
tunix: a random Qwen2 of 4 layers of 256, vocabulary 1,024, 8 prompts of 8 samples, 32 new tokens at
temperature 1. PY is a Python that has the peer. Without a peer, ours alone is timed.

``bound`` says what the machine gives: weights read once a step at the measured bandwidth, and a
step's products at the measured rate of a large product; ``step_ms`` is what a step takes.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np

from experiments.bench.pairs import Worker, interleave, serve

HERE = pathlib.Path(__file__).parent
FIRST = 3  # ids below are often special
SYSTEM = 27  # tokens that all chat prompts begin with


def vocabulary(model: str | None, longest: int) -> int:
    """How many ids prompts are drawn from: the model's, or those of SmolLM2's shape.

    Args:
      model: folder, .gguf file or hub id; None for the random one.
      longest: tokens of the longest row, prompt and reply.

    Raises:
      ValueError: the model has no ids to draw, or its context is shorter than the rows.
    """
    from gradejax.models.hf_weights import read_config

    config = smollm2_config() if model is None else read_config(model)
    if config.vocab_size <= FIRST or config.max_positions < longest:
        raise ValueError(
            f"{model} has {config.vocab_size} ids and a context of {config.max_positions} tokens; "
            f"this bench needs more than {FIRST} ids and rows of {longest} tokens"
        )
    return config.vocab_size


def chat_prompts(count: int, vocab: int) -> list[list[int]]:
    """Random ids in the form of a chat template: a common beginning, 11 to 23 of their own."""
    rng = np.random.default_rng(0)
    system = rng.integers(FIRST, vocab, SYSTEM).tolist()
    return [system + rng.integers(FIRST, vocab, 11 + i % 13).tolist() for i in range(count)]


def group_prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    """BOS and random ids, half to the whole of ``length`` tokens."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(length // 2, length, count)
    return [[1, *rng.integers(FIRST, vocab, n - 1).tolist()] for n in sizes]


def smollm2_config():
    """SmolLM2-135M's shape."""
    from gradejax.models.config import DecoderConfig

    return DecoderConfig(
        family="llama", vocab_size=49152, width=576, num_layers=30, num_heads=9, num_kv_heads=3,
        head_dim=64, mlp_width=1536, max_positions=8192, norm_eps=1e-5, tied=True,
    )  # fmt: skip


def qwen2_config():
    """The peer's random Qwen2."""
    from gradejax.models.config import DecoderConfig, Rope

    return DecoderConfig(
        family="qwen2", vocab_size=1024, width=256, num_layers=4, num_heads=8, num_kv_heads=2,
        head_dim=32, mlp_width=1024, max_positions=4096, qkv_bias=True, tied=True,
        rope=Rope(theta=1e6),
    )  # fmt: skip


def random_params(model):
    """Weights of a fixed key, N(0, 0.05): texts of such a model do not stand still."""
    import jax

    shapes = jax.eval_shape(model.init, jax.random.key(0), np.ones((1, 2), np.int32))
    leaves, tree = jax.tree.flatten(shapes)
    rng = np.random.default_rng(0)
    made = [
        np.ones(x.shape, np.float32) if len(x.shape) == 1
        else 0.05 * rng.standard_normal(x.shape, np.float32)
        for x in leaves
    ]  # fmt: skip
    return jax.tree.unflatten(tree, made)


def machine(rows: int, width: int) -> dict[str, float]:
    """GB/s of reading a large array, GFLOP/s of a large product and of one of these rows."""
    import jax
    import jax.numpy as jnp

    def best(f, *args):
        times = []
        for _ in range(6):
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            times.append(time.perf_counter() - start)
        return min(times)

    large = jnp.ones((64, 2**20), jnp.float32)
    square = jnp.ones((2048, 2048), jnp.float32)
    few = jnp.ones((rows, width), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    return {
        "read_gb_s": round(large.nbytes / best(jax.jit(jnp.sum), large) / 1e9, 1),
        "gflop_s": round(2 * 2048**3 / best(product, square, square) / 1e9, 1),
        "gflop_s_at_batch": round(
            2 * rows * width * 2048 / best(product, few, square[:width]) / 1e9, 1
        ),
    }


def ours(args) -> None:
    """Our worker."""
    import jax

    from gradejax.generation import decode, loop
    from gradejax.generation.sampling import GREEDY, Sampling
    from gradejax.models.decoder import Decoder
    from gradejax.models.hf_weights import load_checkpoint

    prompts = json.loads(pathlib.Path(args.prompts).read_text(encoding="utf-8"))
    if args.peer == "tunix":
        model = Decoder(qwen2_config())
        params, samples = random_params(model), args.samples
        options = {"sampling": Sampling(temperature=1.0), "stop_ids": (2,)}
    else:
        loaded = load_checkpoint(args.model)
        model, params, samples = Decoder(loaded.config), loaded.params, 1
        options = {"sampling": GREEDY, "stop_ids": ()}
    params = jax.device_put(params)
    rows = len(prompts) * samples

    def call(number: int, new: int = args.new):
        seeds = [number * 1000 + i for i in range(len(prompts))]
        out = decode.generate(
            model, params, prompts, max_new_tokens=new, seeds=seeds, samples=samples,
            batch_size=rows, pooling=None, share_prefix=not args.no_share, **options,
        )  # fmt: skip
        return {"tokens": sum(g.length for g in out), "first": out[0].tokens}

    call(0)
    steps, plain = [], loop.run

    def timed(*a, **k):
        jax.block_until_ready(a[2])
        start = time.perf_counter()
        out = jax.block_until_ready(plain(*a, **k))
        steps.append(1e3 * (time.perf_counter() - start) / max(int(out.place.max()), 1))
        return out

    start = time.perf_counter()
    loop.run = timed
    call(0)
    loop.run = plain
    whole = time.perf_counter() - start
    leaves = jax.tree.leaves(params)
    weights = sum(x.size for x in leaves if x.ndim > 1)
    facts = machine(rows, model.config.width) | {"rows": rows}
    facts["step_ms"] = round(steps[0], 3)
    facts["rest_s"] = round(whole - steps[0] * (args.new - 1) / 1e3, 4)
    facts["bound"] = {
        "read_ms": round(4e3 * weights / facts["read_gb_s"] / 1e9, 3),
        "products_ms": round(2e3 * rows * weights / facts["gflop_s"] / 1e9, 3),
    }
    serve({"jax": jax.__version__} | facts, call)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench decode", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--peer", choices=["transformers", "tunix", "none"], default="none")
    parser.add_argument("--peer-python", help="a Python that has the peer")
    parser.add_argument("--batch", type=int, default=16, help="prompts (transformers)")
    parser.add_argument("--prompt", type=int, default=32, help="longest prompt (tunix)")
    parser.add_argument("--new", type=int, help="tokens of a reply: 64, with tunix 32")
    parser.add_argument("--samples", type=int, default=8, help="of a prompt (tunix)")
    parser.add_argument("--model",
                        help="folder, .gguf file or hub id; by default SmolLM2's shape, random")
    parser.add_argument("--pairs", type=int, default=5, help="of timings (%(default)s)")
    parser.add_argument("--no-share", action="store_true", help="read every prompt whole")
    parser.add_argument("--prompts", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    args.new = args.new or (32 if args.peer == "tunix" else 64)
    if args.worker:
        ours(args)
        return
    if args.peer != "none" and not args.peer_python:
        parser.error(f"--peer {args.peer} needs --peer-python, a Python that has it")
    tunix = args.peer == "tunix"
    if tunix:
        prompts = group_prompts(8, args.prompt, 1024)
    else:
        prompts = chat_prompts(args.batch, vocabulary(args.model, SYSTEM + 23 + args.new))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "prompts.json"
        path.write_text(json.dumps(prompts), encoding="utf-8")
        if not tunix and args.model is None:
            args.model = str(pathlib.Path(folder) / "model")
            _save_random(args.model)
        mine = [sys.executable, "-m", "experiments.bench.decode", "--worker", "--peer", args.peer,
                "--new", str(args.new), "--prompts", str(path), "--samples", str(args.samples),
                *(["--model", args.model] if args.model else []),
                *(["--no-share"] if args.no_share else [])]  # fmt: skip
        theirs = [args.peer_python, str(HERE / f"peer_{args.peer}.py"), "--prompts", str(path),
                  "--new", str(args.new)]  # fmt: skip
        theirs += (["--length", str(args.prompt), "--samples", str(args.samples)] if tunix
                   else ["--model", str(args.model)])  # fmt: skip
        worker = Worker(mine)
        out = {"bench": "decode", "peer": args.peer, "prompts": len(prompts), "new": args.new,
               "tokens_of_prompts": sum(map(len, prompts)), "ours": worker.facts}  # fmt: skip
        if args.peer == "none":
            seconds = [worker.call(i) for i in range(args.pairs + 1)][1:]
            out["ours_tokens_per_s"] = round(
                statistics.median(x["tokens"] / x["seconds"] for x in seconds), 1
            )
        else:
            peer = Worker(theirs, {"PYTHONPATH": ""})
            found = interleave(worker, peer, args.pairs)
            first = [x.pop("first", None) for x in found.pop("last")]
            if first[1] is not None:
                out["same_text"] = first[0] == first[1]
            out |= {"theirs": peer.facts} | found
            peer.close()
        worker.close()
    print(json.dumps(out))


def _save_random(folder: str) -> None:
    from gradejax.models.decoder import Decoder
    from gradejax.models.hf_weights import save_checkpoint

    config = smollm2_config()
    save_checkpoint(folder, config, random_params(Decoder(config)))


if __name__ == "__main__":
    main()
