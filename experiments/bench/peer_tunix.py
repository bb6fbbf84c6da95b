"""A worker of ``experiments.bench.decode``: google-tunix's sampler on a random small Qwen2.

Run by a Python that has google-tunix; it needs nothing of this package. A group is its prompt
given once a sample, which is how the sampler takes one.
"""

import argparse
import json
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", required=True, help="JSON file with lists of ids")
    parser.add_argument("--length", type=int, required=True, help="prompts are padded to it")
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--new", type=int, required=True)
    args = parser.parse_args()
    import importlib.metadata

    import jax
    from flax import nnx
    from tunix.generate import sampler
    from tunix.models.qwen2 import model as qwen2

    class Ids:
        """Ids as words: what is measured is the sampler, not a tokenizer."""

        def encode(self, text, **_):
            return [int(x) for x in text.split()]

        def decode(self, ids, **_):
            return " ".join(str(int(i)) for i in ids)

        def bos_id(self):
            return 1

        def eos_id(self):
            return 2

        def pad_id(self):
            return 0

    with open(args.prompts, encoding="utf-8") as file:
        prompts = json.load(file)
    # The tokenizer's BOS comes first, as the sampler adds it.
    texts = [" ".join(map(str, p[1:])) for p in prompts for _ in range(args.samples)]
    config = qwen2.ModelConfig(
        num_layers=4, vocab_size=1024, embed_dim=256, hidden_dim=1024, num_heads=8, head_dim=32,
        num_kv_heads=2, rope_theta=1_000_000, norm_eps=1e-6, use_tied_embedding=True,
    )  # fmt: skip
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), mesh:
        model = qwen2.Qwen2(config, rngs=nnx.Rngs(0))
        run = sampler.Sampler(model, Ids(), sampler.CacheConfig(
            cache_size=args.length + args.new + 8, num_layers=4, num_kv_heads=2, head_dim=32,
        ))  # fmt: skip
        facts = {"tunix": importlib.metadata.version("google-tunix"), "jax": jax.__version__}
        print(json.dumps({"ready": True} | facts), flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            out = run(texts, max_generation_steps=args.new, max_prompt_length=args.length,
                      temperature=1.0, top_p=1.0, top_k=None, seed=int(line), return_logprobs=True,
                      eos_tokens=[2])  # fmt: skip
            seconds = time.perf_counter() - start
            tokens = sum(len(x) for x in out.tokens)
            print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
