"""Adapters as PEFT writes them (tests/fixtures/make_peft_fixtures.py), read, run and written."""

import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_folders import checkpoint
from hf_folders import expected as base_expected
from safetensors.numpy import load_file, save_file

from gradejax.models.config import DecoderConfig
from gradejax.models.lora import init_lora, stack
from gradejax.models.lora_merge import merge
from gradejax.models.peft import adapter_modules, load_peft, save_peft

ROOT = pathlib.Path(__file__).parents[1] / "fixtures" / "peft"
NAMES = ("phi3_all", "phi3_qkv", "qwen2_layer", "qwen2_patterns", "qwen2_regex")
TOLERANCE = 1e-4


@functools.cache
def adapter(name):
    """(checkpoint, its adapter, PEFT's logits, what of them is real)."""
    with np.load(ROOT / name / "expected.npz") as want:
        base, logits = str(want["base"]), want["logits"]
    ckpt = checkpoint(base)
    return ckpt, load_peft(ROOT / name, ckpt.config), logits, base_expected(base)


def logits_with(ckpt, lora, want):
    rows = len(want["tokens"])
    return jax.jit(lambda p, x: ckpt.model.apply(p, want["tokens"], want["mask"], lora=x).logits)(
        ckpt.params, lora.for_rows([0] * rows)
    )


@pytest.mark.parametrize("name", NAMES)
def test_logits_match_peft(name):
    ckpt, lora, logits, want = adapter(name)
    got, real = logits_with(ckpt, lora, want), want["mask"]
    np.testing.assert_allclose(got[real], logits[real], atol=TOLERANCE, rtol=0)
    assert np.abs(logits - want["logits"])[real].max() > 3  # what the adapter changes


@pytest.mark.parametrize("name", NAMES)
def test_merged_logits_match_peft(name):
    ckpt, lora, logits, want = adapter(name)
    got = jax.jit(ckpt.model.apply)(
        merge(ckpt.params, lora, jnp.ones(1)), want["tokens"], want["mask"]
    )
    np.testing.assert_allclose(
        got.logits[want["mask"]], logits[want["mask"]], atol=TOLERANCE, rtol=0
    )


def flat(lora):
    """Scaled A·B of every matrix: what two adapters that compute the same share."""
    return {
        (layer, t): np.asarray(lora.scale[0] * e["a"][0] @ e["b"][0])
        for layer, entries in lora.tree.items() for t, e in entries.items()
    }  # fmt: skip


def assert_same(one, other):
    one, other = flat(one), flat(other)
    assert one.keys() == other.keys()
    for where, delta in one.items():
        np.testing.assert_allclose(other[where], delta, atol=1e-6, err_msg=str(where))


@pytest.mark.parametrize("name", NAMES)
def test_written_adapter_reads_the_same(name, tmp_path):
    """PEFT's own reading of written folders is the fixture script's ``check``."""
    ckpt, lora, _, _ = adapter(name)
    save_peft(tmp_path / name, ckpt.config, lora, base="some/base")
    assert_same(lora, load_peft(tmp_path / name, ckpt.config))
    before, after = (load_file(f / name / "adapter_model.safetensors") for f in (ROOT, tmp_path))
    assert before.keys() == after.keys()  # the family's names, fused where it fuses (T19)
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    raw = json.loads((tmp_path / name / "adapter_config.json").read_text())
    assert raw["base_model_name_or_path"] == "some/base"
    read = json.loads((ROOT / name / "adapter_config.json").read_text())
    if not read["rank_pattern"] and not read["use_rslora"]:
        assert (raw["r"], raw["lora_alpha"]) == (read["r"], read["lora_alpha"])


def test_fused_modules_share_one_a():
    """T19: phi3's qkv_proj has one A for q, k and v, and B's rows in that order."""
    ckpt, lora, _, _ = adapter("phi3_all")
    tensors = load_file(ROOT / "phi3_all" / "adapter_model.safetensors")
    stem = "base_model.model.model.layers.1.self_attn.qkv_proj.lora_"
    entries = lora.tree["layers_1"]
    for target, rows in (("q", slice(0, 36)), ("k", slice(36, 48)), ("v", slice(48, 60))):
        np.testing.assert_array_equal(entries[target]["a"][0].T, tensors[f"{stem}A.weight"])
        np.testing.assert_array_equal(entries[target]["b"][0].T, tensors[f"{stem}B.weight"][rows])


def test_parted_a_is_written_block_by_block(tmp_path):
    """q, k and v trained apart no longer share A: rank 3·2 then, zeros off the blocks, exact."""
    config = checkpoint("phi3").config
    lora = with_b(init_lora(config, jax.random.key(0), 2, alpha=3, targets=("q", "k", "v", "up")))
    save_peft(tmp_path, config, lora)
    again = load_peft(tmp_path, config)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    stem = "base_model.model.model.layers.0."
    assert tensors[f"{stem}self_attn.qkv_proj.lora_A.weight"].shape == (6, 36)
    assert tensors[f"{stem}mlp.gate_up_proj.lora_A.weight"].shape == (2, 36)
    b = tensors[f"{stem}self_attn.qkv_proj.lora_B.weight"]
    assert not b[:36, 2:].any() and not b[36:48, :2].any() and b[36:48, 2:4].all()
    got, want = flat(again), flat(lora)
    assert not got.pop(("layers_0", "gate")).any() and not got.pop(("layers_1", "gate")).any()
    for where, delta in want.items():
        np.testing.assert_allclose(got[where], delta, atol=1e-6)
    assert float(again.scale[0]) == 1.5


def with_b(lora, seed=8):
    keys = iter(jax.random.split(jax.random.key(seed), 99))
    fill = lambda e: e | {"b": 0.3 * jax.random.normal(next(keys), e["b"].shape)}  # noqa: E731
    return lora.replace(
        tree={k: {t: fill(e) for t, e in v.items()} for k, v in lora.tree.items()}
    )


def test_one_of_several_is_written_without_its_padding(tmp_path):
    config = checkpoint("qwen2").config
    one = with_b(init_lora(config, jax.random.key(0), 2, alpha=3, targets=("q", "down")))
    two = with_b(init_lora(config, jax.random.key(1), 5, targets=("q",), layers=[1]), 9)
    both = stack([one, two])
    for which, lora, rank in ((0, one, 2), (1, two, 5)):
        save_peft(tmp_path / str(which), config, both, which)
        assert_same(lora, load_peft(tmp_path / str(which), config))
        raw = json.loads((tmp_path / str(which) / "adapter_config.json").read_text())
        assert raw["r"] == rank and raw["rank_pattern"] == {}
    assert raw["layers_to_transform"] == [1] and raw["target_modules"] == ["q_proj"]
    with pytest.raises(ValueError, match="no adapter 2; choose from 0 to 1"):
        save_peft(tmp_path, config, both, 2)
    with pytest.raises(ValueError, match="nothing but zeros"):
        save_peft(tmp_path, config, jax.tree.map(jnp.zeros_like, one))


@pytest.mark.parametrize("alpha", [0.0123456789, 3.14159e-6, 1e-5, -2, 7, 12345.678, 3e7])
@pytest.mark.parametrize("rank", [3, 4])
def test_the_scale_comes_back_exactly(tmp_path, alpha, rank):
    """Rounded to five decimals .0123456789 was .01235, and 3.14e-6 was 0, which nothing reads."""
    config = checkpoint("qwen2").config
    lora = with_b(init_lora(config, jax.random.key(0), rank, alpha=alpha, targets=("q",)))
    save_peft(tmp_path, config, lora)
    np.testing.assert_array_equal(load_peft(tmp_path, config).scale, lora.scale)
    written = json.loads((tmp_path / "adapter_config.json").read_text())["lora_alpha"]
    assert written == pytest.approx(alpha, rel=1e-6)
    assert isinstance(written, int) == float(alpha).is_integer()


def test_what_the_decoder_lacks_is_not_left_out_of_a_file(tmp_path):
    config = checkpoint("qwen2").config
    lora = with_b(init_lora(config, jax.random.key(0), 2, targets=("gate",)))
    more = lora.replace(tree={**lora.tree, "layers_9": lora.tree["layers_0"]})
    with pytest.raises(ValueError, match="adapters of 'layers_9', which this qwen2 decoder lacks"):
        save_peft(tmp_path, config, more)
    with pytest.raises(ValueError, match="on the experts of a mixture"):
        save_peft(tmp_path, checkpoint("mixtral").config, lora)
    assert not any(tmp_path.iterdir())


def test_gpt2_modules():
    """c_proj stands for two modules there, so names are told apart by their parents."""
    config = DecoderConfig(
        family="gpt2", vocab_size=31, width=12, num_layers=1, num_heads=2, num_kv_heads=2,
        head_dim=6, mlp_width=48, max_positions=32, gated=False, rope=None,
        learned_positions=True, norm="layer", activation="gelu_new",
    )  # fmt: skip
    assert {k: t for k, (_, t) in adapter_modules(config).items()} == {
        "transformer.h.0.attn.c_attn": ("q", "k", "v"), "transformer.h.0.attn.c_proj": ("o",),
        "transformer.h.0.mlp.c_fc": ("up",), "transformer.h.0.mlp.c_proj": ("down",),
    }  # fmt: skip


def changed(tmp_path, name="qwen2_layer", tensors=None, drop=(), **settings):
    """A fixture's folder with other settings, and tensors put in or left out."""
    folder = tmp_path / "adapter"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / name, folder)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    if tensors or drop:
        held = load_file(folder / "adapter_model.safetensors") | (tensors or {})
        held = {k: v for k, v in held.items() if not any(d in k for d in drop)}
        save_file(held, folder / "adapter_model.safetensors")
    return folder


STEM = "base_model.model.model."


@pytest.mark.parametrize(
    "change, message",
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported; only 'LORA'"),
        ({"bias": "all"}, "bias='all' is not supported; only 'none'"),
        ({"use_dora": True}, "DoRA \\(use_dora\\) is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=\\['lm_head'\\] is not supported"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4' also changes the base's weights"),
        ({"lora_bias": True, "use_qalora": True}, "does not have: lora_bias, use_qalora"),
        ({"trainable_token_indices": [3]}, "does not have: trainable_token_indices"),
        ({"target_modules": None}, "has no target_modules"),
        ({"layers_to_transform": [0]}, "without tensors: .*layers.0.* not targeted: .*layers.1"),
        ({"r": 3}, "rank 3 and this qwen2 decoder ask for \\(3, 36\\) and \\(.*, 3\\)"),
        ({"drop": ("k_proj",)}, "without tensors: model.layers.1.self_attn.k_proj; not.*none"),
        ({"drop": ("k_proj.lora_A",)}, "only one of lora_A and lora_B of .*k_proj"),
        ({"drop": ("lora",)}, "holds no tensors"),
        ({"tensors": {f"{STEM}layers.1.mlp.up_proj.lora_magnitude_vector": np.ones(3)}}, "DoRA"),
        ({"tensors": {f"{STEM}embed_tokens.lora_embedding_A": np.ones(3)}}, "of embeddings"),
        ({"tensors": {f"{STEM}lm_head.weight": np.ones(3)}}, "tensors other than.*lm_head.weight"),
        ({"tensors": {"base_model.model.lm_head.lora_A.weight": np.ones((2, 36)),
                      "base_model.model.lm_head.lora_B.weight": np.ones((113, 2))}},
         "lacks or keeps frozen: lm_head; it has down_proj, gate_proj, k_proj"),
    ],
)  # fmt: skip
def test_what_is_not_plain_lora_is_refused(tmp_path, change, message):
    """T15 among them: nothing adapts a head, or an embedding tied to it."""
    with pytest.raises(ValueError, match=message):
        load_peft(changed(tmp_path, **change), checkpoint("qwen2").config)


WHOLE, NUMBER = "must be a whole number of at least 1, got", "must be a finite number other than 0"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"r": 0}, f"r {WHOLE} 0"), ({"r": -2}, f"r {WHOLE} -2"), ({"r": 2.0}, f"r {WHOLE} 2.0"),
        ({"r": True}, f"r {WHOLE} True"), ({"r": "8"}, f"r {WHOLE} '8'"),
        ({"lora_alpha": "7"}, f"lora_alpha {NUMBER}, got '7'"),
        ({"lora_alpha": float("nan")}, f"lora_alpha {NUMBER}, got nan"),
        ({"lora_alpha": float("inf")}, f"lora_alpha {NUMBER}, got inf"),
        ({"lora_alpha": 10**400}, f"lora_alpha {NUMBER}, got 1000"),
        ({"lora_alpha": 0}, f"lora_alpha {NUMBER}, got 0"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern must be an object of regular expressions"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern must .* at least 1, got {'q_proj': 0}"),
        ({"rank_pattern": {"(": 4}}, "rank_pattern must be an object of regular expressions"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern must be .* and finite numbers"),
        ({"alpha_pattern": 4}, "alpha_pattern must be an object"),
        ({"target_modules": "("}, "target_modules must be .* regular expression, got '\\('"),
        ({"target_modules": 5}, "target_modules must be a list of names .* got 5"),
        ({"target_modules": ["q_proj", 3]}, "target_modules must be a list of names"),
        ({"exclude_modules": "["}, "exclude_modules must be a list of names .* got '\\['"),
        ({"exclude_modules": {"a": 1}}, "exclude_modules must be a list of names"),
        ({"layers_to_transform": "1"}, "layers_to_transform must be a layer's number.* got '1'"),
        ({"layers_to_transform": [True]}, "layers_to_transform must be a layer's number"),
        ({"layers_to_transform": [-1]}, "layers_to_transform must be a layer's number"),
        ({"target_modules": ".*q_proj"}, "layers_to_transform=.1. goes with a list"),
        ({"use_rslora": "false"}, "use_rslora must be true or false, got 'false'"),
        ({"use_dora": 1}, "use_dora must be true or false, got 1"),
        ({"fan_in_fan_out": "no"}, "fan_in_fan_out must be true or false, got 'no'"),
        ({"bias": "lora_only"}, "bias='lora_only' is not supported"),
    ],
)  # fmt: skip
def test_settings_of_another_type_or_range(tmp_path, change, message):
    """ "false" is true in Python, an r of 0 divides by it, and a string of digits is no number."""
    with pytest.raises(ValueError, match=message):
        load_peft(changed(tmp_path, **change), checkpoint("qwen2").config)


def test_what_peft_writes_beside_is_passed_over(tmp_path):
    """A config as PEFT 0.19 writes it, and nulls for defaults."""
    ckpt, lora, _, _ = adapter("qwen2_layer")
    settings = {"alora_invocation_tokens": None, "arrow_config": None, "ensure_weight_tying": True,
                "lora_bias": False, "target_parameters": None, "use_qalora": False,
                "qalora_group_size": 16, "fan_in_fan_out": None, "trainable_token_indices": None,
                "layer_replication": None, "megatron_core": "megatron.core",
                "rank_pattern": None, "init_lora_weights": "gaussian"}  # fmt: skip
    assert_same(lora, load_peft(changed(tmp_path, **settings), ckpt.config))


UP = f"{STEM}layers.1.mlp.up_proj.lora_"


@pytest.mark.parametrize(
    "letter, kind, value, dtype, message",
    [
        ("A", "float32", np.nan, "float32", "1 values that are not finite"),
        ("B", "float16", np.inf, "float32", "1 values that are not finite"),
        ("B", "float32", 7e4, "float16", "up to 70000, which float16 would"),
        ("A", "int32", 3, "float32", "holds int32; expected a floating"),
    ],
)
def test_values_that_are_no_weights(tmp_path, letter, kind, value, dtype, message):
    file = ROOT / "qwen2_layer" / "adapter_model.safetensors"
    array = np.array(load_file(file)[f"{UP}{letter}.weight"]).astype(kind)
    array[1, 1] = value
    folder = changed(tmp_path, tensors={f"{UP}{letter}.weight": array})
    with pytest.raises(ValueError, match=f"layers.1.mlp.up_proj.lora_{letter}' of .*{message}"):
        load_peft(folder, checkpoint("qwen2").config, dtype)


def test_an_adapter_of_another_size_is_named(tmp_path):
    """Of more layers, and of wider ones."""
    one = {f"{STEM}layers.2.mlp.up_proj.lora_{c}.weight": np.ones(s, "f4")
           for c, s in (("A", (2, 36)), ("B", (56, 2)))}  # fmt: skip
    with pytest.raises(ValueError, match="lacks or keeps frozen: model.layers.2.mlp.up_proj"):
        load_peft(changed(tmp_path, tensors=one), checkpoint("qwen2").config)
    wide = {f"{UP}A.weight": np.ones((2, 40), "f4")}
    with pytest.raises(ValueError, match=r"up_proj has A \(2, 40\) .* ask for \(2, 36\)"):
        load_peft(changed(tmp_path, tensors=wide), checkpoint("qwen2").config)


def test_missing_and_torn_files_are_named(tmp_path):
    config = checkpoint("qwen2").config
    with pytest.raises(FileNotFoundError, match="adapter_config.json does not exist"):
        load_peft(tmp_path, config)
    (tmp_path / "one.safetensors").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match="expected the folder of a PEFT adapter, with adap"):
        load_peft(tmp_path / "one.safetensors", config)
    folder = changed(tmp_path)
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:99])
    with pytest.raises(ValueError, match="adapter_model.safetensors is torn"):
        load_peft(folder, config)
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match="adapter_model.bin is not read"):
        load_peft(folder, config)


def test_adapter_of_another_family_is_refused():
    with pytest.raises(ValueError, match="this qwen2 decoder lacks or keeps frozen: .*qkv_proj"):
        load_peft(ROOT / "phi3_qkv", checkpoint("qwen2").config)


def test_all_linear_and_rows_named_by_default(tmp_path):
    """PEFT before it lists the modules, and the key names of its older files."""
    folder = changed(tmp_path, "phi3_all", target_modules="all-linear")
    held = load_file(folder / "adapter_model.safetensors")
    save_file({k.replace("lora_A.w", "lora_A.default.w"): v for k, v in held.items()},
              folder / "adapter_model.safetensors")  # fmt: skip
    ckpt, lora, _, _ = adapter("phi3_all")
    assert_same(lora, load_peft(folder, ckpt.config))
