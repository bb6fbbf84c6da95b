"""Which layers have a window, from every family's entries."""

import pytest
from hf_folders import raw

from gradejax.models.config import decoder_config, huggingface_config


def test_windows():
    """qwen2 carries a window that only its flag turns on; phi3's is always on."""
    assert decoder_config(raw("qwen2", sliding_window=5)).sliding_window is None
    on = raw("qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=0,
             layer_types=["sliding_attention"] * 2)  # fmt: skip
    assert decoder_config(on).sliding_window == 5
    assert decoder_config(raw("phi3")).sliding_window == 7
    mixed = decoder_config(on | {"layer_types": ["sliding_attention", "full_attention"]})
    assert [mixed.window(i) for i in range(2)] == [5, None]
    late = {k: v for k, v in on.items() if k != "layer_types"} | {"max_window_layers": 1}
    assert [decoder_config(late).window(i) for i in range(2)] == [None, 5]
    assert decoder_config(on | {"layer_types": ["full_attention"] * 2}).sliding_window is None
    with pytest.raises(ValueError, match=r"layer_types \['chunked_attention'\]; supported"):
        decoder_config(on | {"layer_types": ["chunked_attention"] * 2})
    with pytest.raises(ValueError, match="lists 3 layers, the model has 2"):
        decoder_config(on | {"layer_types": [*on["layer_types"], "full_attention"]})


def test_alternating_windows_by_default():
    """gemma2 and gpt_oss begin with a window in every other layer, gemma3 has five of six."""
    without = {"layer_types": ..., "num_hidden_layers": 7}
    at = lambda name: [decoder_config(raw(name, **without)).window(i) == 7 for i in range(7)]  # noqa: E731
    assert at("gemma2") == at("gpt_oss") == [True, False] * 3 + [True]
    assert at("gemma3") == [True] * 5 + [False, True]


SLIDING = ["sliding_attention"] * 2


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_the_flag_alone_brings_transformers_window(name):
    """4096 keys from layer 28 on; read as no window, the last two layers would see everything."""
    on = {"use_sliding_window": True, "sliding_window": ..., "layer_types": ...}
    config = decoder_config(raw(name, max_window_layers=..., num_hidden_layers=30, **on))
    assert [config.window(i) for i in (0, 27, 28, 29)] == [None, None, 4096, 4096]
    listed = decoder_config(raw(name, **on | {"layer_types": SLIDING}))
    assert listed.window(0) == 4096
    off = raw(name, **on | {"sliding_window": None, "max_window_layers": 0})
    assert decoder_config(off).sliding_window is None


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
@pytest.mark.parametrize("flag", [True, False])
def test_layer_types_are_as_many_as_the_layers(name, kind, flag):
    """Equal entries too, which collapse to one answer for all layers."""
    extra = {"use_sliding_window": flag} if name.startswith("qwen") else {}
    layers = raw(name)["num_hidden_layers"]
    for count in (0, 1, layers + 1):
        with pytest.raises(ValueError, match=f"lists {count} layers, the model has {layers}"):
            decoder_config(raw(name, layer_types=[kind] * count, sliding_window=7, **extra))


@pytest.mark.parametrize("value", ["sliding_attention", [None, None], [{}, {}], [1, 2], {}, 3])
def test_layer_types_are_a_list_of_strings(value):
    with pytest.raises(ValueError, match="layer_types must be a list of strings, got"):
        decoder_config(raw("gpt_oss", layer_types=value))


@pytest.mark.parametrize(
    "name, entries",
    [
        ("gpt_oss", {"sliding_window": None}),
        ("gemma2", {"sliding_window": None, "layer_types": ...}),
        ("gemma3", {"sliding_window": None}),
        ("qwen2", {"layer_types": SLIDING, "sliding_window": 5}),
        ("qwen3", {"layer_types": SLIDING, "sliding_window": None, "use_sliding_window": True}),
    ],
)
def test_a_layer_with_a_window_needs_its_width(name, entries):
    """transformers stops in its forward pass; without a window the layer would see everything."""
    with pytest.raises(ValueError, match="gives layer 0 sliding_attention, but sliding_window is"):
        decoder_config(raw(name, **entries))


def test_gemma2_alternates_whatever_a_pattern_says():
    """transformers reads sliding_window_pattern in gemma 3 only."""
    with pytest.raises(ValueError, match="sliding_window_pattern=3 of a gemma2 .*supported: 2"):
        decoder_config(raw("gemma2", sliding_window_pattern=3, layer_types=...))
    third = raw("gemma3", sliding_window_pattern=3, layer_types=..., num_hidden_layers=6)
    assert [decoder_config(third).window(i) for i in range(6)] == [7, 7, None] * 2


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "gpt_oss", "qwen2"])
def test_no_window_is_written_as_one_that_no_layer_uses(name):
    """transformers refuses these families without a width."""
    full = ["full_attention"] * raw(name)["num_hidden_layers"]
    config = decoder_config(raw(name, layer_types=full))
    written = huggingface_config(config)
    assert written["sliding_window"] and decoder_config(written) == config
