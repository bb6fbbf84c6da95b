""".gguf files of the committed checkpoints, written here, give the checkpoints back."""

import dataclasses
import json

import gguf
import gguf_files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import ROOT, checkpoint, expected
from safetensors.numpy import load_file

from gradejax.models.config import decoder_config
from gradejax.models.gguf import open_gguf, read_gguf
from gradejax.models.hf_weights import load_checkpoint
from gradejax.models.rotary import attention_scaling, speeds
from gradejax.models.weight_names import weight_table

# What a family's file says beside the entries that all have.
EXTRA = {
    "llama_linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0},
    "phi3_longrope": {"rope.scaling.original_context_length": 16, "rope.dimension_count": 6},
    "gemma3": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0,
               "rope.freq_base_swa": 50.0,
               "attention.sliding_window_pattern": [True, False, True]},
}  # fmt: skip
# Fixtures' scales that no file can state: gemma's follow from the size.
UNSTATED = {"gemma2": "attn_scale", "gemma3": "attn_scale"}


def fixture(name):
    """(config with transformers 4's rope names, tensors) of a committed checkpoint."""
    raw = json.loads((ROOT / name / "config.json").read_text())
    rope = raw.pop("rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    if name != "gpt2":
        raw["rope_theta"] = float(rope.get("rope_theta", 10000.0))
    raw["rope"] = rope
    tensors = {}
    for file in sorted((ROOT / name).glob("*.safetensors")):
        tensors |= load_file(file)
    if raw.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)  # as llama.cpp writes tied models
    return raw, tensors


def written(name, path, *, change=None, **options):
    raw, tensors = fixture(name)
    file = gguf_files.converted(tensors, raw)
    if raw["rope"].get("rope_type") == "llama3":
        file["rope_freqs.weight"] = gguf_files.llama3_divisors(raw["rope"], raw["head_dim"])
    for word in ("short", "long"):
        if f"{word}_factor" in raw["rope"]:
            file[f"rope_factors_{word}.weight"] = np.array(raw["rope"][f"{word}_factor"])
    if change is not None:
        change(file)
    return gguf_files.write(path / f"{name}.gguf", raw, file, extra=EXTRA.get(name), **options)


FILES = ("gemma", "gemma2", "gemma3", "gpt2", "llama", "llama_linear", "llama_sharded", "phi3",
         "phi3_longrope", "qwen2", "qwen3")  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_the_checkpoint_back(name, tmp_path):
    """Every parameter (gemma's 1 + w loses its last bits) and the config."""
    ours, want = load_checkpoint(written(name, tmp_path)), checkpoint(name)
    assert jax.tree.structure(ours.params) == jax.tree.structure(want.params)
    rounding = 2e-7 if name.startswith("gemma") else 0
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=rounding, rtol=0),
        ours.params, want.params,
    )  # fmt: skip
    assert ours.n_params == want.n_params and ours.generation_stop_ids == (2,)
    assert ours.path.endswith(".gguf") and ours.commit is None
    config = ours.config
    if field := UNSTATED.get(name):
        config = dataclasses.replace(config, **{field: getattr(want.config, field)})
    if name in ("llama", "phi3_longrope"):
        # The rope is stated otherwise; what it computes is the same.
        ropes = (config.rope, want.config.rope)
        for length in (5, 40):
            ours_speed, speed = (np.asarray(speeds(r, want.config.head_dim, length)) for r in ropes)
            np.testing.assert_allclose(ours_speed.ravel(), speed.ravel(), rtol=1e-6)
        assert attention_scaling(ropes[0]) == pytest.approx(attention_scaling(ropes[1]), rel=1e-6)
        config = dataclasses.replace(config, rope=want.config.rope)
    assert config == want.config


def test_mistral_is_written_as_llama(tmp_path):
    """llama.cpp leaves its window out: replies agree up to its length. A file that states it is
    read as mistral."""
    raw, tensors = fixture("mistral")
    stated = gguf_files.write(tmp_path / "stated.gguf", raw, gguf_files.converted(tensors, raw))
    want, theirs = expected("mistral"), checkpoint("mistral")
    assert load_checkpoint(stated).config == theirs.config
    del raw["sliding_window"]
    path = gguf_files.write(tmp_path / "mistral.gguf", raw, gguf_files.converted(tensors, raw))
    ours = load_checkpoint(path)
    assert ours.config.family == "llama" and theirs.config.sliding_window == 7
    jax.tree.map(np.testing.assert_array_equal, ours.params, theirs.params)
    row = want["tokens"][:1, :7]
    assert want["mask"][0].all()
    logits = ours.model.apply(ours.params, jnp.asarray(row), np.ones_like(row, bool)).logits
    np.testing.assert_allclose(logits[0], want["logits"][0, :7], atol=3e-5, rtol=0)


def logits_of(params, config, name):
    model = checkpoint(name).model.clone(config=config)
    want = expected(name)
    out = jax.jit(model.apply)(params, jnp.asarray(want["tokens"]), want["mask"])
    return np.asarray(out.logits)


def test_rotary_order_of_llama_is_undone(tmp_path):
    """D03. The bug, rows left as they stand, is exact at position 0 and off from then on."""
    name = "llama_sharded"
    path, want = written(name, tmp_path), expected(name)
    ours = load_checkpoint(path)
    real = want["mask"]
    gap = np.abs(logits_of(ours.params, ours.config, name) - want["logits"]).max(axis=2)
    assert gap[real].max() < 3e-5
    # A file whose q and k were never interleaved, read the same way, is the bug's mirror image.
    raw, tensors = fixture(name)
    plain = gguf_files.converted(tensors, raw | {"model_type": "qwen2"})
    wrong = load_checkpoint(gguf_files.write(tmp_path / "wrong.gguf", raw, plain))
    gap = np.abs(logits_of(wrong.params, wrong.config, name) - want["logits"]).max(axis=2)
    first = real.argmax(axis=1)
    assert gap[np.arange(3), first].max() < 3e-5
    assert gap[0, 2:].min() > 0.01


BLOCKS = {
    # d = 2, bytes 1..32 are q: d · q, q signed; the second block's -1 is byte 255.
    "Q8_0": (np.float16([2.0]).tobytes() + np.arange(1, 33, dtype=np.int8).tobytes(),
             2.0 * np.arange(1, 33)),
    # d = 0.5, nibbles 0..15: low halves are elements 0-15, high ones 16-31; d · (q - 8).
    "Q4_0": (np.float16([0.5]).tobytes() + bytes(0x10 * (15 - i) + i for i in range(16)),
             np.concatenate([0.5 * (np.arange(16) - 8), 0.5 * (7 - np.arange(16))])),
    # d = 0.5, m = -3: d · q + m.
    "Q4_1": (np.float16([0.5, -3.0]).tobytes() + bytes(0x10 * (15 - i) + i for i in range(16)),
             np.concatenate([0.5 * np.arange(16) - 3, 0.5 * (15 - np.arange(16)) - 3])),
    "F16": (np.float16(np.arange(32) / 3).tobytes(), np.float16(np.arange(32) / 3)),
    # bfloat16 is the upper half of a float32.
    "BF16": ((np.float32(np.arange(32)).view(np.uint32) >> 16).astype(np.uint16).tobytes(),
             np.arange(32)),
    "F32": (np.float32(np.arange(32) / 3).tobytes(), np.float32(np.arange(32) / 3)),
}  # fmt: skip


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_of_each_kind_by_hand(kind, tmp_path):
    """Three rows of one block of 32; a stretch of rows reads those rows."""
    block, want = BLOCKS[kind]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    number = gguf.GGMLQuantizationType[kind]
    stored = np.frombuffer(block * 3, np.uint8).reshape(3, -1)
    writer.add_tensor("t", stored, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = open_gguf(tmp_path / "x.gguf").tensors["t"]
    assert tensor.shape == (3, 32)
    got = tensor()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.stack([np.float32(want)] * 3))
    np.testing.assert_array_equal(tensor.read(1, 2), got[:1])
    assert tensor.read(2, 2).shape == (0, 32)


def wide_llama(seed=0):
    """A random llama whose rows are whole blocks: (config, Hugging Face tensors)."""
    raw = {"model_type": "llama", "vocab_size": 70, "hidden_size": 64, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
           "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
           "eos_token_id": 2}  # fmt: skip
    rng = np.random.default_rng(seed)
    table = weight_table(decoder_config(raw))
    return raw, {e.name: rng.normal(size=e.shape).astype(np.float32) for e in table}


@pytest.mark.parametrize("kind, steps", [("Q8_0", 127), ("Q4_0", 8), ("Q4_1", 15), ("F16", None)])
def test_a_quantised_model_loads_as_its_rounded_numbers(kind, steps, tmp_path):
    """Norms stay F32. Each weight is within a step of its block's scale of the original."""
    raw, tensors = wide_llama()
    file = gguf_files.converted(tensors, raw)
    kinds = {n: kind for n, a in file.items() if a.ndim == 2}
    path = gguf_files.write(tmp_path / "q.gguf", raw, file, kinds=kinds)
    config, found = read_gguf(path)
    assert found.keys() == tensors.keys() and not config["tie_word_embeddings"]
    for name, want in tensors.items():
        got = found[name]()
        if want.ndim == 1:
            np.testing.assert_array_equal(got, want)
            continue
        scale = np.abs(want).reshape(len(want), -1, 32)
        # Q4_1 spans min to max in 15 steps, Q4_0 the largest in 8, Q8_0 in 127; F16 has 11 bits.
        bound = scale.max(-1) * (2**-11 if steps is None else (2 if kind == "Q4_1" else 1) / steps)
        gap = np.abs(got - want).reshape(scale.shape).max(-1)
        assert (gap <= bound * 1.01).all() and gap.max() > 0, name
    assert load_checkpoint(path, jnp.bfloat16).model.dtype == jnp.bfloat16


@pytest.mark.parametrize("share", [0.0, 0.0002, 0.01, 0.3, 0.9, 0.999])
def test_torn_file(share, tmp_path):
    path = written("llama_sharded", tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match=r"\.gguf is torn or not a GGUF file"):
        load_checkpoint(path)


def test_foreign_file(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"safetensors, say" * 100)
    with pytest.raises(ValueError, match="torn or not a GGUF file"):
        load_checkpoint(tmp_path / "x.gguf")
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"expected a model folder or a \.gguf file"):
        load_checkpoint(tmp_path / "x.bin")
    with pytest.raises(FileNotFoundError, match=r"'.*y\.gguf' does not exist"):
        load_checkpoint(tmp_path / "y.gguf")


def test_missing_extra_and_misshaped_tensors(tmp_path):
    def load(change):
        return load_checkpoint(written("qwen2", tmp_path, change=change))

    with pytest.raises(ValueError, match="missing tensors: model.layers.1.self_attn.v_proj.bias"):
        load(lambda file: file.pop("blk.1.attn_v.bias"))
    # A name that no rule knows is reported as the file calls it.
    with pytest.raises(ValueError, match=r"no parameter wants: blk\.0\.ffn_gate_inp\.weight"):
        load(lambda file: file.update({"blk.0.ffn_gate_inp.weight": np.zeros((4, 36))}))
    with pytest.raises(ValueError, match=r"k_proj.weight.*\(36, 36\).*\(18, 36\)"):
        load(lambda file: file.update({"blk.0.attn_k.weight": np.zeros((36, 36))}))
    with pytest.raises(ValueError, match=r"no tensor token_embd\.weight"):
        load(lambda file: file.pop("token_embd.weight"))


def test_misshaped_q_of_llama(tmp_path):
    """The reordering does not hide the shape."""
    odd = {"blk.0.attn_q.weight": np.zeros((12, 30))}
    path = written("llama_sharded", tmp_path, change=lambda file: file.update(odd))
    with pytest.raises(ValueError, match=r"q_proj.weight.*\(12, 30\).*\(36, 30\)"):
        load_checkpoint(path)


def test_an_undecodable_type_names_those_that_can_be(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("t", np.zeros((2, 4), np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match=r"'t' .* type I8, .*cannot dequantise; it can F32, F16"):
        open_gguf(tmp_path / "x.gguf")


def test_without_the_package(tmp_path, monkeypatch):
    import builtins

    path, real = written("qwen2", tmp_path), builtins.__import__

    def refuse(name, *rest, **options):
        if name == "gguf":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match="pip install gguf"):
        load_checkpoint(path)
