"""How much host memory loading a model takes, and how long: one JSON line.

    python -m experiments.bench load [--format safetensors|sharded|msgpack|gguf]
                                     [--dtype float32|bfloat16|float16] [--untied]
                                     [--megabytes 500] [--folder DIR]

A random model of the SmolLM2-135M shape (layers by --megabytes of float32) is written to a scratch
folder, and loaded in a process of its own, which reads its peak resident memory (VmHWM) before and
after. ``ratio`` is the growth over the size of the parameters as loaded; wanted at most 1.2. With
--folder a model that exists (a folder or .gguf file) is loaded instead.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

WANTED = 1.2
SMALL = 100  # MB; the interpreter's own growth decides about smaller models
FORMATS = ("safetensors", "sharded", "msgpack", "gguf")
SHAPE = {"model_type": "llama", "vocab_size": 49152, "hidden_size": 576,
         "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
         "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "eos_token_id": 2}  # fmt: skip


def peak_kb() -> int:
    """Peak resident memory of this process so far (Linux)."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise RuntimeError("/proc/self/status has no VmHWM; this measurement needs Linux")


def measure(path: str, dtype: str) -> dict:
    """Load in this process; everything that loading imports or starts is warm before."""
    import jax
    import jax.numpy as jnp

    from gradejax.models.hf_weights import load_checkpoint

    jax.device_put(np.zeros(8)).block_until_ready()
    if path.endswith(".gguf"):
        import gguf  # noqa: F401
    before, start = peak_kb(), time.perf_counter()
    checkpoint = load_checkpoint(path, jnp.dtype(dtype))
    jax.block_until_ready(checkpoint.params)
    seconds, grown = time.perf_counter() - start, peak_kb() - before
    size = sum(x.nbytes for x in jax.tree.leaves(checkpoint.params))
    return {
        "model_mb": round(size / 2**20, 1), "peak_growth_mb": round(grown / 2**10, 1),
        "ratio": round(grown * 1024 / size, 3), "seconds": round(seconds, 2),
    }  # fmt: skip


def write_model(folder: pathlib.Path, kind: str, megabytes: int, tied: bool) -> pathlib.Path:
    """A random model, tensor by tensor; returns the path to load."""
    from gradejax.models.config import decoder_config
    from gradejax.models.weight_names import weight_table

    raw = SHAPE | {"num_hidden_layers": 1, "tie_word_embeddings": tied}
    size = lambda c: sum(int(np.prod(e.shape)) * 4 for e in weight_table(decoder_config(c)))  # noqa: E731
    one, two = size(raw), size(raw | {"num_hidden_layers": 2})
    layers = 1 + max(0, round((megabytes * 2**20 - one) / (two - one)))
    raw |= {"num_hidden_layers": layers}
    rng = np.random.default_rng(0)
    tensors = {
        e.name: rng.standard_normal(e.shape, np.float32) for e in weight_table(decoder_config(raw))
    }
    (folder / "config.json").write_text(json.dumps(raw))
    writers = {"safetensors": _safetensors, "sharded": _sharded, "msgpack": _msgpack, "gguf": _gguf}
    return writers[kind](folder, raw, tensors)


def _safetensors(folder, raw, tensors):
    from safetensors.numpy import save_file

    save_file(tensors, folder / "model.safetensors")
    return folder


def _sharded(folder, raw, tensors):
    from safetensors.numpy import save_file

    where = {name: f"model-{i % 3 + 1:05d}-of-00003.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        save_file({n: t for n, t in tensors.items() if where[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def _msgpack(folder, raw, tensors):
    from flax.serialization import msgpack_serialize
    from flax.traverse_util import unflatten_dict

    flat = {}
    for name, array in tensors.items():
        stem = name.removesuffix(".weight")
        if "norm" in name:
            flat[name] = array
        elif "embed" in name:
            flat[f"{stem}.embedding"] = array
        else:
            flat[f"{stem}.kernel"] = np.ascontiguousarray(array.T)
    (folder / "flax_model.msgpack").write_bytes(msgpack_serialize(unflatten_dict(flat, sep=".")))
    return folder


def _gguf(folder, raw, tensors):
    import gguf

    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(raw["num_hidden_layers"])
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_feed_forward_length(raw["intermediate_size"])
    writer.add_head_count(raw["num_attention_heads"])
    writer.add_head_count_kv(raw["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, raw["num_hidden_layers"])
    for name, array in tensors.items():
        stem, _, leaf = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{leaf}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


def main(argv: list[str] | None = None) -> None:
    """Measure and print one JSON line; status 1 when the ratio is above the wanted one."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench load", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default="safetensors")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--untied", action="store_true", help="a head of its own")
    parser.add_argument("--folder", help="load this folder or .gguf file instead")
    parser.add_argument("--measure", metavar="PATH", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        try:
            print(json.dumps(measure(args.measure, args.dtype)), flush=True)
        except (ValueError, OSError) as error:
            sys.exit(f"error: {error}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = args.folder or write_model(
            pathlib.Path(scratch), args.format, args.megabytes, not args.untied
        )
        found = subprocess.run(
            [sys.executable, "-m", "experiments.bench.load", "--measure", str(path),
             "--dtype", args.dtype],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    if found.returncode:
        sys.exit(found.returncode)  # it has said why
    made = {"format": args.format, "tied": not args.untied}
    what = {"folder": args.folder} if args.folder else made
    result = {"bench": "load", **what, "dtype": args.dtype, **json.loads(found.stdout)}
    print(json.dumps(result | {"wanted": WANTED}), flush=True)
    if result["ratio"] > WANTED:
        why = f"memory grew by {result['ratio']} times the model's size, above the wanted {WANTED}"
        if result["model_mb"] < SMALL:
            why += f"; below {SMALL} MB what loading itself needs outweighs the model"
        print(f"load: {why}", file=sys.stderr)
    sys.exit(int(result["ratio"] > WANTED))


if __name__ == "__main__":
    main()
