"""What adapters cost in generation: the base alone against 7 adapters mixed in the batch.

    python -m experiments.bench.lora

SmolLM2-135M's shape with random float32 weights, 64 prompts of 44 tokens that have nothing in
common, 64 new tokens, greedy; adapters of rank 8 on all seven matrices of every layer, row b with
adapter b mod 7. Base and adapters are called in turn in one process; one JSON line with the medians
of tokens a second, their ratio (adapters / base), and the least that the products alone allow.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from gradejax.generation.decode import generate
from gradejax.generation.sampling import GREEDY
from gradejax.models.config import DecoderConfig
from gradejax.models.decoder import Decoder
from gradejax.models.lora import init_lora, packed, target_sizes


def shape(layers: int, vocab: int) -> DecoderConfig:
    """SmolLM2-135M's, or one with fewer layers and a smaller vocabulary."""
    return DecoderConfig(
        family="llama", vocab_size=vocab, width=576, num_layers=layers, num_heads=9,
        num_kv_heads=3, head_dim=64, mlp_width=1536, max_positions=8192, norm_eps=1e-5, tied=True,
    )  # fmt: skip


def random_tree(tree, seed: int):
    """The same tree with matrices of N(0, 0.05²); vectors (norms) stay."""
    leaves, structure = jax.tree.flatten(tree)
    rng = np.random.default_rng(seed)
    draw = lambda x: 0.05 * rng.standard_normal(x.shape, np.float32)  # noqa: E731
    made = [np.ones(x.shape, np.float32) if len(x.shape) == 1 else draw(x) for x in leaves]
    return jax.device_put(jax.tree.unflatten(structure, made))


def share_of_products(config: DecoderConfig, adapters: int, rank: int, prompt: int, new: int):
    """Multiplications of a base run over those of a run with adapters; the head at new tokens."""
    sizes = target_sizes(config).values()
    layer = sum(i * o for i, o in sizes)
    low = adapters * rank * sum(i + o for i, o in sizes)
    tokens = prompt + new - 1
    base = tokens * config.num_layers * layer + new * config.vocab_size * config.width
    return base / (base + tokens * config.num_layers * low)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench lora", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--batch", type=int, default=64, help="prompts (%(default)s)")
    parser.add_argument("--prompt", type=int, default=44, help="its tokens (%(default)s)")
    parser.add_argument("--new", type=int, default=64, help="tokens of a reply (%(default)s)")
    parser.add_argument("--adapters", type=int, default=7, help="in a batch (%(default)s)")
    parser.add_argument("--rank", type=int, default=8, help="of each (%(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="of timings (%(default)s)")
    parser.add_argument("--layers", type=int, default=30, help="(%(default)s)")
    parser.add_argument("--vocab", type=int, default=49152, help="(%(default)s)")
    parser.add_argument("--unpacked", action="store_true", help="lay A out anew in every step")
    args = parser.parse_args(argv)
    config = shape(args.layers, args.vocab)
    model = Decoder(config)
    params = random_tree(
        jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 2), jnp.int32)), 0
    )
    lora = init_lora(config, jax.random.key(1), args.rank, n=args.adapters)
    lora = lora.replace(tree=random_tree(lora.tree, 1))
    lora = lora.for_rows([i % args.adapters for i in range(args.batch)])
    lora = lora if args.unpacked else packed(lora)
    rng = np.random.default_rng(2)
    prompts = rng.integers(3, args.vocab, (args.batch, args.prompt)).tolist()

    def call(adapters) -> float:
        start = time.perf_counter()
        out = generate(
            model, params, prompts, max_new_tokens=args.new, stop_ids=(), sampling=GREEDY,
            seeds=range(args.batch), pooling=None, batch_size=args.batch, lora=adapters,
        )  # fmt: skip
        return sum(r.length for r in out) / (time.perf_counter() - start)

    call(None), call(lora)
    pairs = [(call(None), call(lora)) for _ in range(args.pairs)]
    base, mixed = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(json.dumps({
        "bench": "lora", "batch": args.batch, "prompt": args.prompt, "new": args.new,
        "adapters": args.adapters, "rank": args.rank, "pairs": args.pairs,
        "base_tokens_per_s": round(base, 1), "mixed_tokens_per_s": round(mixed, 1),
        "ratio": round(mixed / base, 3),
        "ratios": [round(y / x, 3) for x, y in pairs],
        "products_allow": round(
            share_of_products(config, args.adapters, args.rank, args.prompt, args.new), 3),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
