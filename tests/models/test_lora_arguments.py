"""What a caller says of adapters: which values are taken, and which are refused and how."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.models.config import DecoderConfig
from gradejax.models.lora import init_lora

CONFIG = DecoderConfig(
    family="llama", vocab_size=53, width=22, num_layers=3, num_heads=6, num_kv_heads=2,
    head_dim=10, mlp_width=29, max_positions=64,
)  # fmt: skip


def start(ranks=(4, 4), **options):
    return init_lora(CONFIG, jax.random.key(0), ranks, **{"targets": ("q",)} | options)


@pytest.mark.parametrize("alpha", [np.asarray, jnp.asarray, tuple, iter, list])
def test_each_adapter_has_its_own_alpha(alpha):
    """Scales .5 and 1; an array of JAX taken for one value made them [[.5, 1], [.5, 1]]."""
    lora = start((2, 2), alpha=alpha([1.0, 2.0]))
    assert lora.scale.tolist() == [0.5, 1.0] and lora.count == 2


@pytest.mark.parametrize("alpha", [8, 8.0, np.float32(8), np.int64(8), jnp.asarray(8.0)])
def test_one_alpha_is_every_adapters(alpha):
    assert start((2, 4), alpha=alpha).scale.tolist() == [4.0, 2.0]


@pytest.mark.parametrize(
    "ranks, count",
    [(4, 1), (np.int64(4), 1), (jnp.asarray(4), 1), (np.asarray(4), 1), (jnp.asarray([2, 4]), 2),
     (np.asarray([2, 4]), 2), (iter([2, 4]), 2), ((r for r in (2, 4)), 2), ([jnp.int32(4)], 1)],
)  # fmt: skip
def test_ranks_of_any_whole_kind(ranks, count):
    lora = start(ranks)
    assert lora.count == count and lora.entry(0)["q"]["a"].shape == (count, 22, 4)


@pytest.mark.parametrize(
    "options, layers",
    [({"layers": x}, [0, 2]) for x in ([2, 0], iter([0, 2]), {0, 2}, (i for i in (0, 2, 2)),
                                       np.asarray([0, 2]), jnp.asarray([2, 0]), range(0, 3, 2))]
    + [({"last_n": x}, [1, 2]) for x in (2, np.int64(2), jnp.asarray(2))],
)  # fmt: skip
def test_layers_of_any_whole_kind(options, layers):
    assert sorted(start(**options).tree) == [f"layers_{i}" for i in layers]


def test_targets_of_any_kind():
    for targets in ("q v", ["v", "q"], iter(["q", "v"]), {"q", "v"}, {"q": 1, "v": 1},
                    np.asarray(["q", "v"])):  # fmt: skip
        assert list(start(targets=targets).entry(0)) == ["q", "v"]
    assert start(2, n=np.int64(3)).count == 3


@pytest.mark.parametrize(
    "rows", [[1, -1, 0], (1, -1, 0), iter([1, -1, 0]), np.asarray([1, -1, 0], np.int8),
             jnp.asarray([1, -1, 0]), [np.int64(1), jnp.int32(-1), 0]],
)  # fmt: skip
def test_rows_of_any_whole_kind(rows):
    assert start().for_rows(rows).weights.tolist() == [[0, 1], [0, 0], [1, 0]]


@pytest.mark.parametrize(
    "rows", [[0, 2], [-2], [], [[0]], [0.5], [1.0], [0, True], [np.bool_(True)], ["0"], [None],
             [10**400], 0, None, "01", {0, 1}, {0: 1}, jnp.asarray([1.0]), np.asarray([True]),
             [float("nan")], jnp.zeros((1, 1), int)],
)  # fmt: skip
def test_rows_that_name_no_adapter(rows):
    """[0.5] was silently the base, [True] the second adapter."""
    with pytest.raises(ValueError, match="adapters 0 to 1, or -1 for the base, by whole numbers"):
        start().for_rows(rows)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"targets": ("q", "lm_head")}, "unknown LoRA target 'lm_head' for llama; choose from q"),
        ({"targets": ()}, "no LoRA target given; choose from q, k, v, o, gate, up, down"),
        ({"layers": [1, 3]}, "no layer 3; choose from 0 to 2"),
        ({"layers": []}, "no layer to adapt"),
        ({"last_n": 4}, "last_n must lie in 1 to 3, the decoder's layers; got 4"),
        ({"layers": [0], "last_n": 1}, "not both"),
        ({"init": "zeros"}, "unknown init 'zeros'; choose from kaiming, normal"),
        ({"alpha": (1.0, 2.0, 3.0)}, "alpha has 3 entries for 2 adapters"),
        ({"ranks": (4, 0)}, "ranks must be whole, at least 1, got 0"),
        ({"ranks": (4, 4), "n": 3}, "ranks has 2 entries for 3 adapters"),
        *[({"ranks": r}, "ranks must be whole, at least 1, got")
          for r in (2.7, 4.0, (2, 2.7), (2, True), True, np.bool_(True), jnp.asarray([2.0, 3.0]),
                    [[2, 3]], float("nan"), -1)],
        *[({"ranks": r}, "expected ranks to be a whole number, or a list of one for each adapter")
          for r in ("44", None, {4, 8}, {4: 1})],
        ({"ranks": []}, "at least one adapter is needed"),
        *[({"ranks": 2, "n": n}, "n must be whole, at least 1") for n in (0, True, 2.0, "2")],
        *[({"alpha": x}, "alpha must be a finite number other than 0")
          for x in (np.nan, np.inf, (1, -np.inf), [2, np.nan], 0, True, (1, "2"), (1, None), 1e39,
                    10**400, jnp.asarray([1.0, np.nan]), 1j, [[1.0, 2.0]] * 2)],
        *[({"alpha": x}, "expected alpha to be a number, or a list of one for each adapter")
          for x in ("16", {1.0, 2.0})],
        ({"alpha": jnp.ones(3)}, "alpha has 3 entries for 2 adapters"),
        *[({"layers": x}, "choose from 0 to 2")
          for x in ([True], [0.5], [0, 1.0], jnp.asarray([1.0]), ["1"], [-1], iter([3]), [[0]])],
        *[({"layers": x}, "expected layers to be a list of whole numbers from 0 to 2")
          for x in (1, "01", 2.0)],
        *[({"last_n": x}, "last_n must lie in 1 to 3") for x in (True, 1.5, "2", 0)],
        ({"targets": 3}, "expected targets to be a list of names, got 3"),
        ({"targets": [["q"]]}, "unknown LoRA target"),
        ({"rank_stabilised": "no"}, "rank_stabilised must be true or false, got 'no'"),
        ({"dtype": jnp.int32}, "dtype of adapters must be a float type"),
    ],
)  # fmt: skip
def test_wrong_arguments_name_the_choices(arguments, message):
    arguments = {"ranks": (4, 4)} | arguments
    with pytest.raises(ValueError, match=message):
        init_lora(CONFIG, jax.random.key(0), **arguments)
