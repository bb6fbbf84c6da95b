"""Loading is strict: whatever does not fit its config.json is an error that names it."""

import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from flax.traverse_util import unflatten_dict
from hf_folders import BY_LENGTH, NAMES, ROOT, checkpoint, expected
from safetensors.numpy import load_file, save_file

from gradejax.models.hf_weights import load_checkpoint, save_checkpoint

KEY = "model.layers.1.self_attn.k_proj.weight"


@pytest.fixture
def folder(tmp_path):
    """A llama folder to spoil."""
    shutil.copytree(ROOT / "llama", tmp_path / "llama")
    return tmp_path / "llama"


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def set_config(folder, **entries):
    raw = json.loads((folder / "config.json").read_text())
    raw = {k: v for k, v in (raw | entries).items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(raw))


def test_no_tokenizer_is_needed_and_facts_are_right(folder):
    assert not list(folder.glob("tokenizer*"))
    ckpt = load_checkpoint(folder)
    weights = load_file(folder / "model.safetensors")
    assert ckpt.n_params == sum(w.size for w in weights.values())
    assert ckpt.generation_stop_ids == (2, 6, 32)  # config.json's 2, generation_config's list (B03)
    assert ckpt.path == str(folder)


def test_digest_is_of_the_weights(folder):
    before = load_checkpoint(folder).digest
    assert before == checkpoint("llama").digest  # not of the place
    rewrite(folder, lambda t: t[KEY].__setitem__((0, 0), t[KEY][0, 0] + 1))
    assert load_checkpoint(folder).digest != before


def test_missing_tensor(folder):
    rewrite(folder, lambda t: t.pop(KEY))
    with pytest.raises(ValueError, match=f"missing tensors: {KEY}"):
        load_checkpoint(folder)


def test_extra_tensor(folder):
    """A bias that the config does not speak of is not dropped (D05)."""
    rewrite(folder, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(60)}))
    with pytest.raises(ValueError, match=r"no parameter wants: model.layers.0.self_attn.q_proj.b"):
        load_checkpoint(folder)


def test_qwen2_biases_are_required(tmp_path):
    """qwen2's config has no attention_bias key: its q, k and v biases are always there (D05)."""
    folder = shutil.copytree(ROOT / "qwen2", tmp_path / "qwen2")
    rewrite(folder, lambda t: t.pop("model.layers.0.self_attn.v_proj.bias"))
    with pytest.raises(ValueError, match=r"missing tensors: model.layers.0.self_attn.v_proj.bias"):
        load_checkpoint(folder)


def test_old_rotary_buffers_are_known(folder):
    rewrite(
        folder,
        lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(5, "f4")}),
    )
    assert load_checkpoint(folder).n_params == checkpoint("llama").n_params


def test_misshaped_tensor_names_both_shapes(folder):
    """k has as many rows as key heads times head_dim: 2 · 10, not q's 60."""
    rewrite(folder, lambda t: t.update({KEY: np.zeros((60, 36), np.float32)}))
    with pytest.raises(ValueError, match=rf"{KEY}.*\(60, 36\).*\(20, 36\)"):
        load_checkpoint(folder)


def test_transposed_tensor_is_misshaped(folder):
    rewrite(folder, lambda t: t.update({KEY: np.ascontiguousarray(t[KEY].T)}))
    with pytest.raises(ValueError, match=rf"{KEY}.*\(36, 20\).*\(20, 36\)"):
        load_checkpoint(folder)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.005, 0.5, 0.999])
def test_torn_safetensors(folder, share):
    """Cut before, in and after the header, and in the last tensor."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match=r"model\.safetensors is torn or not a safetensors file"):
        load_checkpoint(folder)


def flax_folder(folder, extra=None):
    """The same model as Hugging Face's Flax classes would write it."""
    flat = {}
    for name, value in load_file(folder / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if name == "model.embed_tokens.weight":
            flat[f"{stem}.embedding"] = value
        elif "norm" in name:
            flat[name] = value
        else:
            flat[f"{stem}.kernel"] = np.ascontiguousarray(value.T)
    (folder / "model.safetensors").unlink()
    file = folder / "flax_model.msgpack"
    file.write_bytes(msgpack_serialize(unflatten_dict(flat | (extra or {}), sep=".")))
    return file


def test_flax_msgpack_holds_the_same_model(folder):
    flax_folder(folder)
    jax.tree.map(
        np.testing.assert_array_equal, load_checkpoint(folder).params, checkpoint("llama").params
    )


@pytest.mark.parametrize("share", [0.0, 0.001, 0.4, 0.9999])
def test_torn_msgpack(folder, share):
    file = flax_folder(folder)
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match=r"flax_model\.msgpack is torn or not a Flax checkpoint"):
        load_checkpoint(folder)


def test_doubled_in_msgpack(folder):
    flax_folder(folder, {"model.norm.scale": np.ones(36, np.float32)})
    with pytest.raises(ValueError, match=r"'model.norm.weight' stands in .* twice"):
        load_checkpoint(folder)


@pytest.fixture
def shards(tmp_path):
    return shutil.copytree(ROOT / "llama_sharded", tmp_path / "sharded")


def test_doubled_in_two_shards(shards):
    first, second = sorted(shards.glob("*.safetensors"))[:2]
    tensors, other = load_file(first), load_file(second)
    name = sorted(tensors)[0]
    save_file(other | {name: tensors[name]}, second)
    with pytest.raises(ValueError, match=f"'{name}' stands in two files"):
        load_checkpoint(shards)


def test_missing_shard(shards):
    lost = sorted(shards.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(FileNotFoundError, match=lost.name):
        load_checkpoint(shards)


def test_index_lists_what_no_shard_holds(shards):
    index = shards / "model.safetensors.index.json"
    raw = json.loads(index.read_text())
    raw["weight_map"]["model.lost.weight"] = sorted(raw["weight_map"].values())[0]
    index.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=r"no file holds: model\.lost\.weight"):
        load_checkpoint(shards)


def test_torn_index(shards):
    index = shards / "model.safetensors.index.json"
    index.write_text(index.read_text()[:200])
    with pytest.raises(ValueError, match=r"index\.json is not valid JSON"):
        load_checkpoint(shards)


def test_tied_head_that_equals_the_embedding_is_one_array():
    ckpt = checkpoint("llama_sharded")
    assert ckpt.config.tied
    assert "head" not in ckpt.params["params"]
    assert (ROOT / "llama_sharded" / "model.safetensors.index.json").exists()


def test_tied_head_that_differs_is_an_error(shards):
    file = next(f for f in shards.glob("*.safetensors") if "lm_head.weight" in load_file(f))
    tensors = load_file(file)
    tensors["lm_head.weight"][5, 3] += 1e-3
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"tie_word_embeddings, yet its lm_head\.weight differs"):
        load_checkpoint(shards)


def test_untied_without_head_names_it(folder):
    """D04, second case; the default of an omitted flag is untied."""
    rewrite(folder, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(ValueError, match=r"missing tensors: lm_head\.weight"):
        load_checkpoint(folder)
    set_config(folder, tie_word_embeddings=...)
    with pytest.raises(ValueError, match=r"missing tensors: lm_head\.weight"):
        load_checkpoint(folder)


def test_unsupported_model_type_lists_the_supported(folder):
    set_config(folder, model_type="mamba")
    with pytest.raises(ValueError, match=r"'mamba'; supported: gemma, .*phi3, qwen2, qwen3"):
        load_checkpoint(folder)


def test_quantised_weights_are_refused(tmp_path):
    """MXFP4 blocks of gpt_oss are no numbers yet: the message names the format."""
    folder = shutil.copytree(ROOT / "gpt_oss", tmp_path / "oss")
    set_config(folder, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(ValueError, match=r"\(mxfp4\) are not supported; use a float32, bfloat16"):
        load_checkpoint(folder)


def test_files_of_gpt2s_trunk_alone(tmp_path):
    """The first gpt2 files lack the prefix and hold causal masks, which are known buffers."""
    folder = shutil.copytree(ROOT / "gpt2", tmp_path / "gpt2")
    file = folder / "model.safetensors"
    bare = {k.removeprefix("transformer."): v for k, v in load_file(file).items()}
    save_file(bare | {"h.0.attn.bias": np.tril(np.ones((1, 1, 64, 64), "f4"))}, file)
    again = load_checkpoint(folder)
    jax.tree.map(np.testing.assert_array_equal, again.params, checkpoint("gpt2").params)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("num_attention_heads", 0, "a whole number of at least 1, got 0"),
        ("num_attention_heads", "four", "a whole number of at least 1, got 'four'"),
        ("num_key_value_heads", 0, "a whole number of at least 1, got 0"),
        ("num_hidden_layers", -2, "a whole number of at least 1, got -2"),
        ("hidden_size", 64.5, "a whole number of at least 1, got 64.5"),
        ("vocab_size", True, "a whole number of at least 1, got True"),
        ("intermediate_size", [8], r"a whole number of at least 1, got \[8\]"),
        ("max_position_embeddings", 0, "a whole number of at least 1, got 0"),
        ("rms_norm_eps", "small", "a finite number > 0, got 'small'"),
        ("rope_theta", 0, "a finite number > 0, got 0"),
        ("rope_scaling", "linear", "a JSON object, got 'linear'"),
        ("tie_word_embeddings", "no", "true or false, got 'no'"),
        ("eos_token_id", ["</s>"], "a token id or a list of them"),
        ("model_type", 3, "a string, got 3"),
    ],
)
def test_entries_of_a_config_are_looked_at(folder, key, value, expected):
    set_config(folder, **{key: value})
    with pytest.raises(ValueError, match=rf"config\.json: {key} must be {expected}"):
        load_checkpoint(folder)


@pytest.mark.parametrize("text", ["[]", "3", "null", "[" * 100_000])
def test_a_config_that_is_no_object(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_checkpoint(folder)


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_tensor_with_values_that_are_not_finite(folder, kind, value):
    def change(tensors):
        for name in tensors:
            tensors[name] = tensors[name].astype(kind)
        tensors[KEY][1, 2] = value

    rewrite(folder, change)
    with pytest.raises(ValueError, match=rf"'{KEY}' of .*llama holds 1 values that are not finit"):
        load_checkpoint(folder)


@pytest.mark.parametrize("kind", ["int8", "int32", "uint8", "bool"])
def test_a_tensor_that_holds_no_floats(folder, kind):
    rewrite(folder, lambda t: t.update({KEY: t[KEY].astype(kind)}))
    with pytest.raises(ValueError, match=f"'{KEY}' of .*llama holds {kind}; expected a floating"):
        load_checkpoint(folder)


def test_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_checkpoint(tmp_path)
    shutil.copy(ROOT / "llama" / "config.json", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no weights; expected model\.safetensors"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", NAMES + BY_LENGTH)
def test_save_then_load_is_equal(name, tmp_path):
    ckpt = checkpoint(name)
    save_checkpoint(tmp_path, ckpt.config, ckpt.params)
    again = load_checkpoint(tmp_path)
    assert again.config == ckpt.config
    assert jax.tree.structure(again.params) == jax.tree.structure(ckpt.params)
    jax.tree.map(np.testing.assert_array_equal, again.params, ckpt.params)


@pytest.mark.parametrize(
    "name", [n for n in NAMES + BY_LENGTH if n != "llama_sharded"]
)
def test_saved_tensors_are_torchs(name, tmp_path):
    """Same names, shapes and values as the file that torch wrote."""
    save_checkpoint(tmp_path, checkpoint(name).config, checkpoint(name).params)
    ours, theirs = (load_file(p / "model.safetensors") for p in (tmp_path, ROOT / name))
    assert ours.keys() == theirs.keys()
    for key in ours:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


@pytest.mark.parametrize("dtype, kind", [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_half_precision_files_load_as_float32(dtype, kind, tmp_path):
    """The stored numbers are the rounded ones, and reading them back rounds no further."""
    ckpt = checkpoint("qwen2")
    save_checkpoint(tmp_path, ckpt.config, ckpt.params, dtype=dtype)
    again = load_checkpoint(tmp_path)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(
            a, np.asarray(b).astype(kind).astype(np.float32)
        ),
        again.params, ckpt.params,
    )  # fmt: skip
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == dtype


def test_the_fixtures_cover_what_they_claim():
    for name in NAMES + BY_LENGTH:
        size = sum(f.stat().st_size for f in (ROOT / name).iterdir())
        assert size < 300_000
    for name in ("llama", "phi3", "qwen2"):
        assert not (expected(name)["free"] == 2).any()  # config.json's own end id is never drawn
    assert any(f.name.startswith("model-00003") for f in (ROOT / "llama_sharded").iterdir())
    biases = [v for k, v in load_file(ROOT / "qwen2" / "model.safetensors").items() if "bias" in k]
    assert len(biases) == 6 and min(abs(b).max() for b in biases) > 0.5


@pytest.mark.parametrize("ids", ["12", [2.9], [True], 2.7, [2, "a"], 10**12, [-1], {"a": 1}])
def test_stop_ids_are_token_ids(folder, ids):
    """The characters of "12" would be the stop ids 1 and 2."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(ValueError, match="generation_config.json: eos_token_id: expected a token"):
        load_checkpoint(folder)


def test_a_sharded_folder_is_not_written_over(shards):
    """Its index would be read in place of what was written, and the old weights with it."""
    ckpt = load_checkpoint(shards)
    before = sorted(f.name for f in shards.iterdir())
    with pytest.raises(ValueError, match="choose another folder, or remove the index"):
        save_checkpoint(shards, ckpt.config, ckpt.params)
    assert sorted(f.name for f in shards.iterdir()) == before
    shutil.copy(ROOT / "llama" / "model.safetensors", shards / "model.safetensors")
    with pytest.raises(ValueError, match="holds both model.safetensors and an index"):
        load_checkpoint(shards)


@pytest.mark.parametrize("file", [None, 3, ""])
def test_an_index_names_files(shards, file):
    index = json.loads((shards / "model.safetensors.index.json").read_text())
    index["weight_map"][next(iter(index["weight_map"]))] = file
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="must map tensors to names of files"):
        load_checkpoint(shards)
