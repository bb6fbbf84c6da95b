"""Adapters of another decoder are refused before a product is taken."""

import jax
import jax.numpy as jnp
import pytest
from hf_folders import checkpoint

from gradejax.generation.decode import generate
from gradejax.generation.sampling import Sampling
from gradejax.models.lora import init_lora, packed
from gradejax.models.lora_check import check_fits

CONFIG = checkpoint("qwen2").config


def renamed(lora, layer):
    return lora.replace(tree={layer: lora.tree["layers_0"]})


def of(name, **options):
    return init_lora(checkpoint(name).config, jax.random.key(0), (2, 3), **options)


MISFITS = [
    (lambda: of("qwen2"), "does not say which rows use it"),
    # The decoder would never look at it: the frozen base in the adapter's name.
    (lambda: renamed(of("qwen2"), "layers_2").for_rows([0]),
     "'layers_2', which this qwen2 decoder lacks; it has layers_0 to layers_1"),
    (lambda: renamed(of("qwen2"), "block_0").for_rows([0]), "'block_0', which this qwen2"),
    (lambda: of("llama", targets=("q",)).for_rows([0]),
     r"layers_0/q have A .2, 36, 3. and B .2, 3, 60.; this qwen2 decoder asks for "
     r".2, 36, 3. and .2, 3, 36."),
    (lambda: packed(of("llama", targets=("q",))).for_rows([0]),
     r"have A .6, 36. and B .60, 6.; .* asks for .6, 36. and .36, 6."),
]  # fmt: skip


@pytest.mark.parametrize("pack", [lambda x: x, packed], ids=["plain", "packed"])
@pytest.mark.parametrize("name", ["qwen2", "phi3", "mixtral", "gpt2"])
def test_a_decoder_s_own_adapters_fit(name, pack):
    check_fits(pack(of(name).for_rows([0, -1])), checkpoint(name).config)


@pytest.mark.parametrize("make, message", MISFITS)
def test_misfits_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        check_fits(make(), CONFIG)


@pytest.mark.parametrize("make, message", MISFITS[:2])
def test_the_decoder_and_its_replies_ask(make, message):
    ckpt = checkpoint("qwen2")
    with pytest.raises(ValueError, match=message):
        ckpt.model.apply(ckpt.params, jnp.ones((1, 3), jnp.int32), lora=make())
    with pytest.raises(ValueError, match=message):
        generate(ckpt.model, ckpt.params, [[1, 2]], max_new_tokens=2, lora=make(), stop_ids=[2],
                 sampling=Sampling(), seeds=[0])  # fmt: skip


def test_a_matrix_that_a_family_lacks():
    lora = of("qwen2", targets=("gate",)).for_rows([0])
    with pytest.raises(ValueError, match="layers_0/gate, which this gpt2 decoder lacks; choose fr"):
        check_fits(lora, checkpoint("gpt2").config)
