"""What is taken as a count, a number, ids or a list, and what is not."""

import fractions

import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.generation.checks import listed, number, one_of, stop_tokens, text, token_ids, whole


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.asarray(3), jnp.int32(3)])
def test_whole_numbers_of_any_make(value):
    got = whole("n", value, 1, 3)
    assert got == 3 and type(got) is int


@pytest.mark.parametrize("value", [None, "3", 3.0, 2.5, True, np.True_, np.float32(3), [3], b"3",
                                   np.asarray([3]), 0, -1, 4, 2**70])  # fmt: skip
def test_what_is_no_whole_number(value):
    with pytest.raises(ValueError, match="n must be a whole number from 1 to 3, got "):
        whole("n", value, 1, 3)


@pytest.mark.parametrize("value", [1, 0.5, np.float16(0.5), np.int32(1), np.asarray(0.5),
                                   jnp.float32(0.5), jnp.bfloat16(0.5),
                                   fractions.Fraction(1, 2)])  # fmt: skip
def test_numbers_of_any_make(value):
    got = number("x", value, "a number in (0, 1]", 0, 1, above=True)
    assert got == value and type(got) in (int, float)


@pytest.mark.parametrize("value", [0, 1.5, np.nan, -np.inf, None, "1", True, np.True_, [0.5], 1j,
                                   10**400, np.asarray([0.5])])  # fmt: skip
def test_what_is_no_such_number(value):
    with pytest.raises(ValueError, match=r"x must be a number in \(0, 1\], got "):
        number("x", value, "a number in (0, 1]", 0, 1, above=True)


@pytest.mark.filterwarnings("error")
def test_float32_is_compared_with_ends_it_cannot_hold():
    assert number("x", np.float32(1), "a number > 0", 0, above=True) == 1
    assert number("x", jnp.float32(1), "a number > 0", 0, above=True) == 1


def test_infinity_is_no_number():
    with pytest.raises(ValueError, match="x must be a number >= 0, got inf"):
        number("x", np.inf, "a number >= 0", 0)


def test_one_of_the_choices():
    assert one_of("pool", None, ("last", None)) is None
    for bad in ("Last", 5, [], np.zeros(2), True):
        with pytest.raises(ValueError, match="unknown pool .*; choose from last, None"):
            one_of("pool", bad, ("last", None))


def test_lists_are_ordered_and_no_single_value():
    for good in ([1, 2], (1, 2), np.asarray([1, 2]), range(1, 3), iter([1, 2])):
        assert listed("numbers", good) == [1, 2]
    for bad in (None, 5, "12", b"12", {1: 2}, {1, 2}, np.asarray(5)):
        with pytest.raises(ValueError, match="expected numbers, got "):
            listed("numbers", bad)


def test_ids_and_stop_ids():
    for good in ([1, 2], np.asarray([1, 2], np.uint8), jnp.asarray([1, 2]), (np.int64(1), 2)):
        assert token_ids("ids", good, 3) == [1, 2] and type(token_ids("ids", good)[0]) is int
    assert token_ids("ids", np.zeros(0)) == [] and token_ids("ids", [-5]) == [-5]
    for bad in ([1.0], [True], ["1"], np.ones((2, 2), int), [None], np.asarray([0.5])):
        with pytest.raises(ValueError, match="ids must be token ids .whole numbers., got "):
            token_ids("ids", bad)
    with pytest.raises(ValueError, match="ids must be token ids .* from 0 to 2, got 1 to 3"):
        token_ids("ids", [1, 3], 3)
    assert stop_tokens({7, 3}) == stop_tokens([7, 3, 3]) == (3, 7) and stop_tokens(()) == ()
    with pytest.raises(ValueError, match="stop_ids .* from 0 to 2147483647"):
        stop_tokens([2**31])


def test_texts():
    assert text("it", "é \U0001f600") == "é \U0001f600"
    with pytest.raises(ValueError, match=r"it holds the lone surrogate U\+D83D at place 1"):
        text("it", "a\ud83d")
    for bad in (None, 5, b"a", ["a"]):
        with pytest.raises(ValueError, match="it must be a text, got "):
            text("it", bad)
