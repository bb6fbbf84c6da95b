"""Cutting, drawing and the log-probability of what was drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.generation.sampling import GREEDY, Sampling, cut, sample

P = np.array([0.1, 0.5, 0.15, 0.25])


def kept(p, **options):
    return np.flatnonzero(np.isfinite(np.asarray(cut(jnp.log(jnp.asarray(p)), **options)))).tolist()


@pytest.mark.parametrize(
    "top_p, right",
    [
        (0.9, [1, 2, 3]),  # .5 + .25 + .15 reaches .9; the faulty rule keeps it by luck only
        (0.8, [1, 2, 3]),  # crossing token kept; "mass with itself <= top_p" gives [1, 3]
        (0.6, [1, 3]),  # the fault gives [1]
        (0.4, [1]),  # at least one; the fault gives none
        (0.75, [1, 3]),  # reached exactly: not one more
        (1e-9, [1]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_is_the_smallest_set_that_reaches_it(top_p, right):
    """B07."""
    assert kept(P, top_p=top_p) == right


def test_exact_equality_adds_none_in_float32():
    """B07: .3 + .3 + .2 is .79999995 or .8000001 in float32; the set has reached .8 either way."""
    for p in ([0.5, 0.3, 0.2], [0.3, 0.3, 0.2, 0.2], [0.1] * 10):
        for top_p in np.unique(np.cumsum(p)[:-1].round(6)):
            n = next(i + 1 for i, mass in enumerate(np.cumsum(p)) if mass > top_p - 1e-9)
            assert kept(np.float32(p), top_p=float(top_p)) == list(range(n)), (p, top_p)


def test_ties_at_the_edge_of_top_p_are_not_all_kept():
    """Four equal tokens reach one half with two; "every logit at least the edge's" keeps four."""
    assert kept([0.25] * 4, top_p=0.5) == [0, 1]


def test_top_k_then_top_p_renormalises():
    """B07: k = 2 keeps [.5, .25], so the first has mass 2/3 >= .6; unnormalised, .5 keeps two."""
    assert kept(P, top_k=2) == [1, 3]
    assert kept(P, top_k=2, top_p=0.6) == [1]
    assert kept(P, top_k=7) == [0, 1, 2, 3]
    assert kept(P, top_k=1, top_p=0.01) == [1]


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.7}, {"top_k": 5, "top_p": 0.8}])
def test_cut_against_a_loop(options):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 11)).astype("f4") * 2
    out = np.asarray(cut(jnp.asarray(logits), **options))
    for row, got in zip(logits, out, strict=True):
        order = np.argsort(-row)[: options.get("top_k", 11)]
        p = np.exp(row[order] - row.max())
        p /= p.sum()
        n = np.searchsorted(np.cumsum(p), options.get("top_p", 1.0)) + 1
        right = np.full(11, -np.inf, np.float32)
        right[order[:n]] = row[order[:n]]
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("size", [700, 5000])
@pytest.mark.parametrize("spread", [6.0, 0.05, 0.0])
def test_top_p_of_large_vocabularies(size, spread):
    """Peaked rows (found among the first 64), flat ones (found by bisection) and ties only."""
    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(3, size)) * spread - 2).astype("f4")
    logits[:, 7] = -np.inf
    out = np.asarray(cut(jnp.asarray(logits), top_p=0.6))
    for row, got in zip(logits.astype("f8"), out, strict=True):
        order = np.argsort(-row, kind="stable")
        p = np.exp(row[order] - row.max())
        n = np.searchsorted(np.cumsum(p / p.sum()), 0.6 * (1 - 1e-6)) + 1
        chosen = np.flatnonzero(np.isfinite(got))
        # float32 sums of thousands of terms may put the edge a token or two elsewhere
        assert abs(len(chosen) - n) <= (0 if spread == 6.0 else 2)
        assert set(chosen) == set(order[: len(chosen)].tolist())


def draw(logits, seeds, place=0, temperature=1.0, **options):
    logits = jnp.asarray(logits, jnp.float32)
    return sample(logits, jnp.asarray(seeds, jnp.uint32), jnp.int32(place),
                  jnp.full(len(logits), temperature, jnp.float32), **options)  # fmt: skip


def test_drawn_shares_are_the_softmax_at_the_temperature():
    """20,000 rows; temperature 2 flattens [.1 .5 .15 .25] to its normalised square roots."""
    n = 20_000
    for temperature, right in ((1.0, P), (2.0, np.sqrt(P) / np.sqrt(P).sum())):
        tokens, logprobs = draw(np.tile(np.log(P), (n, 1)), np.arange(n), temperature=temperature)
        shares = np.bincount(tokens, minlength=4) / n
        np.testing.assert_allclose(shares, right, atol=4 * 0.5 / np.sqrt(n))
        np.testing.assert_allclose(logprobs, np.log(right)[np.asarray(tokens)], atol=1e-5)


def test_logprob_is_of_the_renormalised_kept_set():
    """A05: with k = 2 the kept mass is .75; the plain softmax would give log .5 and log .25."""
    tokens, logprobs = draw(np.tile(np.log(P), (99, 1)), np.arange(99), top_k=2)
    assert set(np.asarray(tokens).tolist()) == {1, 3}
    np.testing.assert_allclose(logprobs, np.log(P / 0.75)[np.asarray(tokens)], atol=1e-6)


def test_greedy_takes_no_key():
    logits = np.random.default_rng(1).normal(size=(7, 13))
    for seeds in (np.arange(7), np.arange(7) + 1000):
        tokens, logprobs = draw(logits, seeds, temperature=0.0)
        assert tokens.tolist() == logits.argmax(-1).tolist()
        plain = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32), -1)
        np.testing.assert_allclose(logprobs, np.asarray(plain).max(-1), atol=1e-6)


def test_fresh_noise_each_place():
    """B09: one key for all steps would give the same token five times."""
    flat = np.zeros((1, 1000))
    drawn = [int(draw(flat, [3], place)[0][0]) for place in range(5)]
    assert len(set(drawn)) == 5
    assert drawn == [int(draw(flat, [3], place)[0][0]) for place in range(5)]


def test_noise_is_of_the_seed_and_place_alone():
    """T25: the same row in another batch, at another index, draws the same token."""
    logits = np.random.default_rng(2).normal(size=(5, 101))
    alone = [int(draw(logits[[i]], [40 + i])[0][0]) for i in range(5)]
    turned = draw(logits[::-1], [44, 43, 42, 41, 40])[0][::-1]
    assert turned.tolist() == alone


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_beyond_the_tokenizer_are_never_drawn(temperature):
    """B10: rows 3 and 4 have the highest logits and probability exactly 0."""
    logits = np.tile([0.0, 1.0, 0.5, 9.0, 9.0], (200, 1))
    tokens, logprobs = draw(logits, np.arange(200), temperature=temperature, vocab=3)
    assert np.asarray(tokens).max() < 3
    right = np.asarray(jax.nn.log_softmax(jnp.asarray([0.0, 1.0, 0.5])))
    np.testing.assert_allclose(logprobs, right[np.asarray(tokens)], atol=1e-6)


def test_half_precision_logits_are_raised_first():
    """T7: log-probabilities of bfloat16 logits are exact for those logits."""
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(3, 17)) * 5, jnp.bfloat16)
    tokens, logprobs = sample(logits, jnp.arange(3, dtype=jnp.uint32), jnp.int32(0),
                              jnp.ones(3, jnp.float32))  # fmt: skip
    wide = np.asarray(logits, np.float64)
    right = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    assert logprobs.dtype == jnp.float32
    np.testing.assert_allclose(logprobs, right[np.arange(3), np.asarray(tokens)], atol=1e-5)


@pytest.mark.parametrize(
    "options, words",
    [
        *(({"temperature": t}, "temperature must be a number >= 0 .*, got ")
          for t in (-0.1, np.nan, np.inf, None, "1", True, False, [1.0], 10**400)),
        # float32 would divide by 0, or make infinite numbers of the logits
        *(({"temperature": t}, "others from 1e-30 to") for t in (1e-45, 1e-38, 1e39)),
        *(({"top_k": k}, "top_k .* must be a whole number of at least 0, got ")
          for k in (-1, 1.5, None, True, "3", np.asarray([3]))),
        *(({"top_p": p}, r"top_p must be a number in \(0, 1\], got ")
          for p in (0.0, -0.5, 1.1, np.nan, None, "1", True)),
    ],
)
def test_sampling_out_of_range(options, words):
    with pytest.raises(ValueError, match=words):
        Sampling(**options)
    assert GREEDY.temperature == 0.0


def test_numbers_of_numpy_become_python_s():
    """They are part of what a program is compiled for and of what a store's keys are made of."""
    got = Sampling(np.float32(0.5), np.int64(3), np.asarray(0.5))
    assert got == Sampling(0.5, 3, 0.5)
    assert {type(x) for x in (got.temperature, got.top_p)} == {float} and type(got.top_k) is int


@pytest.mark.parametrize("size", [6, 5000])
def test_both_zeros_are_one_tie(size):
    """Ids 1 to 4 have logit 0 and share e^0 alike; half of them is 1 and 2, the lowest ids.

    By their bits, and in XLA's top-k, +0 stands above -0: the small vocabulary kept 2 and 4, the
    large one all up to 4.
    """
    logits = np.full(size, -40.0, np.float32)
    logits[1:5] = [-0.0, 0.0, -0.0, 0.0]
    for zeros in (logits, np.where(logits == 0, np.float32(0), logits)):
        out = cut(jnp.asarray(zeros), top_p=0.5)
        assert np.flatnonzero(np.isfinite(out)).tolist() == [1, 2]
        # ties at the k-th place are all kept
        out = cut(jnp.asarray(zeros), top_k=2)
        assert np.flatnonzero(np.isfinite(out)).tolist() == [1, 2, 3, 4]


def test_a_tiny_top_p_keeps_the_best_token():
    """1e-50 is 0 in float32, and a set of no mass empty: every log-probability was NaN, or, of a
    large vocabulary, 64 tokens were kept."""
    for size in (4, 5000):
        logits = jnp.arange(size, dtype=jnp.float32)
        assert np.flatnonzero(np.isfinite(cut(logits, top_p=1e-50))).tolist() == [size - 1]


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 4}, {"top_k": 4, "top_p": 0.6}])
def test_cutting_after_the_vocabulary(options):
    """Ids 3 and 4 have no text; k = 4 of the three that are left, and the mass is theirs alone."""
    logits = np.tile([0.0, -np.inf, 1.0, 9.0, 9.0], (300, 1))
    tokens, logprobs = draw(logits, np.arange(300), vocab=3, **options)
    p = np.exp([0, 1]) / np.exp([0, 1]).sum()  # .27, .73
    right = {0: np.log(p[0]), 2: np.log(p[1])} if options.get("top_p") != 0.6 else {2: 0.0}
    assert {*np.asarray(tokens).tolist()} == {*right}
    np.testing.assert_allclose(logprobs, [right[int(t)] for t in tokens], atol=1e-6)
