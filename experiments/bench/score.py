"""How fast log-probabilities and adapter gradients come, and in what memory: one JSON line.

    python -m experiments.bench score --peer transformers --peer-python PY
    python -m experiments.bench score --prompts 2 --samples 4 --memory

The SmolLM2-135M shape (random float32 weights, or ``--model DIR``), completions of 32 tokens to
prompts of 256, the sum of the completions' log-probabilities and its gradient by adapters of rank 8
on all products. Ours reads a prompt once for its samples (``--whole`` as whole rows, like the
peer); tokens a second count a row's 288 tokens for both. ``--memory`` compiles [64, 288] as whole
rows, one at a time, and the head alone, and says what temporary memory they ask for.
"""

import argparse
import json
import pathlib
import resource
import statistics
import sys
import tempfile

import numpy as np

from experiments.bench.decode import FIRST, _save_random, smollm2_config, vocabulary
from experiments.bench.pairs import Worker, interleave, serve

HERE = pathlib.Path(__file__).parent
RANK = 8


def adapter_shapes(config) -> dict[str, tuple[int, int]]:
    """(in, out) of the seven products."""
    e, f = config.width, config.mlp_width
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {"q": (e, q), "k": (e, kv), "v": (e, kv), "o": (q, e), "gate": (e, f), "up": (e, f),
            "down": (f, e)}  # fmt: skip


def adapter_tree(config, make):
    """A tree of one adapter on everything; ``make(shape, zero)`` makes an array."""
    return {
        f"layers_{i}": {
            t: {"a": make((1, a, RANK), False), "b": make((1, RANK, b), True)}
            for t, (a, b) in adapter_shapes(config).items()
        }
        for i in range(config.num_layers)
    }


def loss_of(model, params, scored: int, groups: bool):
    """(tree, batch) -> (sum of the completions' log-probabilities, None)."""
    import jax.numpy as jnp

    from gradejax.generation.score import score, score_groups
    from gradejax.models.lora import Lora

    def loss(tree, batch):
        tokens = batch["tokens"]  # [P, G, T], the prompt the same in a group
        lora = Lora(tree, jnp.ones((tokens.shape[0], 1)), jnp.ones(1))
        if groups:
            prompts, completions = tokens[:, 0, :-scored], tokens[:, :, -scored:]
            out = score_groups(model, params, prompts, jnp.ones(prompts.shape, bool), completions,
                               jnp.ones(completions.shape, bool), lora=lora)  # fmt: skip
        else:
            rows = tokens.reshape(-1, tokens.shape[-1])
            lora = lora.replace(weights=jnp.ones((rows.shape[0], 1)))
            out = score(model, params, rows, jnp.ones(rows.shape, bool), lora=lora)[:, -scored:]
        return out.sum(), None

    return loss


def memory() -> dict[str, float]:
    """Temporary memory of [64, 288] in MB, and a row's work against the plain form's."""
    import jax
    import jax.numpy as jnp

    from gradejax.generation.head import token_logprobs
    from gradejax.generation.microbatch import value_and_grad_by_rows
    from gradejax.models.decoder import Decoder
    from gradejax.models.lora import Lora

    config = smollm2_config()
    model = Decoder(config)
    kind = lambda shape, t=jnp.float32: jax.ShapeDtypeStruct(shape, t)  # noqa: E731
    params = jax.eval_shape(model.init, jax.random.key(0), kind((1, 2), jnp.int32))
    tree = adapter_tree(config, lambda shape, _: kind(shape))

    def run(tree, tokens, params):
        loss = loss_of(model, params, 287, groups=False)
        return value_and_grad_by_rows(loss, 1)(tree, {"tokens": tokens})

    def plain(tree, tokens, params):
        def loss(tree):
            lora = Lora(tree, jnp.ones((tokens.shape[0], 1)), jnp.ones(1))
            table = jax.nn.log_softmax(model.apply(params, tokens, lora=lora).logits[:, :-1])
            return jnp.take_along_axis(table, tokens[:, 1:, None], axis=2).sum()

        return jax.value_and_grad(loss)(tree)

    def head(hidden, params, tokens):
        return token_logprobs(model, params, hidden, tokens).sum()

    rows = jax.jit(run).lower(tree, kind((64, 1, 288), jnp.int32), params).compile()
    row = jax.jit(plain).lower(tree, kind((1, 288), jnp.int32), params).compile()
    states = kind((64 * 288, config.width))
    ids = kind((64 * 288,), jnp.int32)
    alone = jax.jit(jax.value_and_grad(head)).lower(states, params, ids).compile()
    mb = lambda x: round(x.memory_analysis().temp_size_in_bytes / 1e6, 1)  # noqa: E731
    # A loop's body is counted once: of our rows one, of its head one chunk of 128 of 287 tokens.
    chunk = 2 * 2 * 128 * config.width * config.vocab_size
    ours = rows.cost_analysis()["flops"] - chunk + chunk * 287 / 128
    return {"temp_mb": mb(rows), "head_temp_mb": mb(alone),
            "flops_of_plain": round(ours / row.cost_analysis()["flops"], 3)}  # fmt: skip


def ours(args) -> None:
    """Our worker."""
    import jax

    from gradejax.generation.microbatch import value_and_grad_by_rows
    from gradejax.models.decoder import Decoder
    from gradejax.models.hf_weights import load_checkpoint

    loaded = load_checkpoint(args.model)
    model, params = Decoder(loaded.config), loaded.params
    rng = np.random.default_rng(1)
    tree = adapter_tree(
        loaded.config, lambda shape, zero: np.zeros(shape, np.float32) if zero
        else rng.standard_normal(shape, np.float32) / shape[1] ** 0.5,
    )  # fmt: skip
    rows = np.asarray(json.loads(pathlib.Path(args.rows).read_text(encoding="utf-8")), np.int32)
    groups = rows.reshape(args.prompts, args.samples, -1)
    batch = {"tokens": groups.reshape(-1, 1, groups.shape[-1]) if args.whole else groups}

    @jax.jit
    def run(tree, batch, params):
        loss = loss_of(model, params, args.scored, not args.whole)
        return value_and_grad_by_rows(loss, args.at_once if args.whole else 1)(tree, batch)

    def call(_):
        (value, _), _ = jax.block_until_ready(run(tree, batch, params))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return {"tokens": rows.size, "value": float(value), "peak_mb": peak}

    call(0)
    serve({"jax": jax.__version__}, call)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench score", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--peer", choices=["transformers", "none"], default="none")
    parser.add_argument("--peer-python", help="a Python that has the peer")
    parser.add_argument("--prompts", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--samples", type=int, default=4, help="of a prompt (%(default)s)")
    parser.add_argument("--prompt", type=int, default=256, help="its tokens (%(default)s)")
    parser.add_argument("--scored", type=int, default=32,
                        help="tokens of a completion (%(default)s)")
    parser.add_argument("--at-once", type=int, default=2,
                        help="whole rows at once (%(default)s)")
    parser.add_argument("--whole", action="store_true", help="ours as whole rows too")
    parser.add_argument("--model",
                        help="folder, .gguf file or hub id; by default SmolLM2's shape, random")
    parser.add_argument("--pairs", type=int, default=5, help="of timings (%(default)s)")
    parser.add_argument("--memory", action="store_true", help="compile, and say the memory")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        ours(args)
        return
    if args.peer != "none" and not args.peer_python:
        parser.error(f"--peer {args.peer} needs --peer-python, a Python that has it")
    out = {"bench": "score", "peer": args.peer, "prompts": args.prompts, "samples": args.samples,
           "prompt": args.prompt, "scored": args.scored, "whole": args.whole}  # fmt: skip
    vocab = vocabulary(args.model, args.prompt + args.scored)
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        prompts = rng.integers(FIRST, vocab, (args.prompts, args.prompt))
        prompts = np.repeat(prompts, args.samples, 0)
        ends = rng.integers(FIRST, vocab, (args.prompts * args.samples, args.scored))
        path = pathlib.Path(folder) / "rows.json"
        path.write_text(json.dumps(np.concatenate([prompts, ends], 1).tolist()), encoding="utf-8")
        if args.model is None:
            args.model = str(pathlib.Path(folder) / "model")
            _save_random(args.model)
        common = ["--rows", str(path), "--scored", str(args.scored), "--model", args.model,
                  "--at-once", str(args.at_once)]  # fmt: skip
        worker = Worker([
            sys.executable, "-m", "experiments.bench.score", "--worker", "--prompts",
            str(args.prompts), "--samples", str(args.samples), *common,
            *(["--whole"] if args.whole else []),
        ])  # fmt: skip
        if args.peer == "none":
            calls = [worker.call(i) for i in range(args.pairs + 1)][1:]
            out["ours_tokens_per_s"] = round(
                statistics.median(x["tokens"] / x["seconds"] for x in calls), 1
            )
            out["last"] = calls[-1]
        else:
            peer = Worker([args.peer_python, str(HERE / f"peer_{args.peer}_score.py"), *common],
                          {"PYTHONPATH": ""})  # fmt: skip
            found = interleave(worker, peer, args.pairs)
            values = [x["value"] for x in found["last"]]
            out |= found | {"value_differs_by": abs(values[0] / values[1] - 1)}
            peer.close()
        worker.close()
    if args.memory:
        out |= memory()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
