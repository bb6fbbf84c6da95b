"""Decoding, prefill and memory of the paper's pool on one GPU: one JSON line.

    python -m experiments.bench gpu            # under 8 minutes; without a GPU it says so

Qwen2.5-7B's shape with random bfloat16 weights: prompts of 512 tokens, 128 new ones, batches of 1,
16 and 64; tokens a second, what share of the measured copy bandwidth reading the weights once a
step comes to, what share of the measured rate of a large product prefill comes to, and the peak of
memory. Then GRADE's four models resident together, in bfloat16 and in 8 bits (the paper: 52 GB).
``--tiny`` runs the same code with small shapes on whatever device there is, to try the command.
"""

import argparse
import dataclasses
import json
import statistics
import time

import numpy as np

PROMPT, NEW, BATCHES = 512, 128, (1, 16, 64)
WANTED = {"decode_share": 0.7, "prefill_share": 0.5, "pool_gb": 34, "pool_int8_gb": 19}


def shapes(tiny: bool):
    """The four models' configs by name."""
    from experiments.configs.grade_paper import MODEL_CONFIGS
    from gradejax.models.config import decoder_config

    configs = {name: decoder_config(raw) for name, raw in MODEL_CONFIGS.items()}
    if not tiny:
        return configs
    return {
        name: dataclasses.replace(
            c, vocab_size=512, num_layers=2, mlp_width=256, width=64 * 2, num_heads=4,
            num_kv_heads=2, head_dim=32,
        )
        for name, c in configs.items()
    }  # fmt: skip


def random_params(config, dtype):
    """A tree of N(0, 0.02) on the device, leaf by leaf: never a float32 copy of the whole."""
    import jax
    import jax.numpy as jnp

    from gradejax.models.decoder import Decoder

    model = Decoder(config, dtype=dtype)
    tree = jax.eval_shape(model.init, jax.random.key(0), np.ones((1, 2), np.int32))
    leaves, form = jax.tree.flatten(tree)
    draw = jax.jit(
        lambda key, shape: 0.02 * jax.random.normal(key, shape, dtype), static_argnums=1
    )
    made = [
        jnp.ones(x.shape, dtype) if len(x.shape) == 1 else draw(jax.random.key(i), x.shape)
        for i, x in enumerate(leaves)
    ]
    return model, jax.block_until_ready(jax.tree.unflatten(form, made))


def peak_gb() -> float | None:
    """Peak of the device's memory so far; None where the backend does not say."""
    import jax

    stats = jax.local_devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    return None if peak is None else round(peak / 1e9, 2)


def seconds(call, repeats: int = 5) -> float:
    """Median of ``repeats`` calls after one that compiles."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def machine(tiny: bool) -> dict[str, float]:
    """Copy bandwidth (read and write counted) in GB/s and TFLOP/s of a large bfloat16 product."""
    import jax
    import jax.numpy as jnp

    size = 2**22 if tiny else 2**30
    side = 512 if tiny else 8192
    source = jnp.ones((size,), jnp.bfloat16)
    square = jnp.ones((side, side), jnp.bfloat16)
    copy, product = jax.jit(lambda x: x + 1), jax.jit(lambda a: a @ a)
    copied = seconds(lambda: jax.block_until_ready(copy(source)))
    multiplied = seconds(lambda: jax.block_until_ready(product(square)))
    return {
        "copy_gb_s": round(2 * source.nbytes / copied / 1e9, 1),
        "product_tflop_s": round(2 * side**3 / multiplied / 1e12, 2),
    }


def decoding(model, params, facts, *, prompt: int, new: int, batch: int) -> dict[str, float]:
    """Prefill and decoding of one batch; time of ``new`` tokens less that of one is decoding's."""
    import jax

    from gradejax.generation.decode import generate
    from gradejax.generation.sampling import GREEDY

    rng = np.random.default_rng(0)
    prompts = rng.integers(3, model.config.vocab_size, (batch, prompt)).tolist()

    def run(count: int):
        replies = generate(
            model, params, prompts, max_new_tokens=count, stop_ids=(), sampling=GREEDY,
            seeds=[0] * batch, pooling=None, batch_size=batch,
        )  # fmt: skip
        assert all(r.length == count for r in replies)

    first, whole = seconds(lambda: run(1), 3), seconds(lambda: run(new), 3)
    step = (whole - first) / (new - 1)
    weights = sum(x.size for x in jax.tree.leaves(params["params"]))
    table = model.config.vocab_size * model.config.width
    # The embedding is looked up, not read; a tied one is read as the head.
    read = 2 * (weights - (0 if model.config.tied else table))
    products = 2 * (weights - table) * batch * prompt
    return {
        "batch": batch,
        "tokens_per_s": round(batch * (new - 1) / (whole - first), 1),
        "decode_share": round(read / step / 1e9 / facts["copy_gb_s"], 3),
        "prefill_share": round(products / first / 1e12 / facts["product_tflop_s"], 3),
        "peak_gb": peak_gb(),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench gpu", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="small shapes, on any device")
    args = parser.parse_args(argv)
    import jax
    import jax.numpy as jnp

    from gradejax.models.quantize import quantize, tree_bytes

    device = jax.local_devices()[0]
    if device.platform != "gpu" and not args.tiny:
        print(json.dumps({"bench": "gpu", "skipped": f"no GPU here, only {device.platform}"}))
        return 0
    out = {"bench": "gpu", "device": device.device_kind, "jax": jax.__version__, "wanted": WANTED}
    out |= machine(args.tiny)
    configs = shapes(args.tiny)
    prompt, new = (16, 8) if args.tiny else (PROMPT, NEW)
    model, params = random_params(configs["Qwen2.5-7B-Instruct"], jnp.bfloat16)
    out["qwen2.5-7b"] = [
        decoding(model, params, out, prompt=prompt, new=new, batch=batch) for batch in BATCHES
    ]
    del model, params
    pool = {name: random_params(c, jnp.bfloat16)[1] for name, c in configs.items()}
    out["pool_gb"] = round(sum(map(tree_bytes, pool.values())) / 1e9, 2)
    out["pool_peak_gb"] = peak_gb()
    for name in configs:  # one by one: the float tree is dropped before the next is rounded
        pool[name] = jax.block_until_ready(quantize(pool[name]))
    out["pool_int8_gb"] = round(sum(map(tree_bytes, pool.values())) / 1e9, 2)
    live = device.memory_stats() or {}
    out["pool_int8_in_use_gb"] = round(live.get("bytes_in_use", 0) / 1e9, 2)
    print(json.dumps(out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
