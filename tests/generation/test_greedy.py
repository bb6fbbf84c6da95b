import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.generation.greedy import BLOCK, most_probable


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("vocab", [1, 5, BLOCK, 3 * BLOCK, 3 * BLOCK + 1, 5 * BLOCK - 1])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_token_and_its_log_probability(rows, vocab, first):
    logits = np.random.default_rng(vocab).normal(size=(rows, vocab)).astype(np.float32) * 4
    tokens, logprobs = most_probable(jnp.asarray(logits.T if first else logits), first=first)
    assert tokens.dtype == jnp.int32 and tokens.tolist() == logits.argmax(-1).tolist()
    wide = logits.astype(np.float64)
    right = wide.max(-1) - np.log(np.exp(wide).sum(-1))
    np.testing.assert_allclose(logprobs, right, atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "ties, want",
    [
        ((3, 2 * BLOCK + 1), 3),  # the last would be 257
        ((2 * BLOCK + 8, 2 * BLOCK + 9), 2 * BLOCK + 8),  # both in the short last block
        ((2 * BLOCK - 1, 2 * BLOCK + 5), 2 * BLOCK - 1),  # the last block's search begins before
        (range(2 * BLOCK + 10), 0),
    ],
)
def test_of_equal_logits_the_lowest_id(ties, want, first):
    logits = np.full((2, 2 * BLOCK + 10), -1.0, np.float32)
    logits[:, list(ties)] = 2.0
    tokens, logprobs = most_probable(jnp.asarray(logits.T if first else logits), first=first)
    assert tokens.tolist() == [want] * 2
    others = logits.shape[1] - len(ties)
    right = -np.log(len(ties) + others * np.exp(-3.0))
    np.testing.assert_allclose(logprobs, right, atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
def test_ids_beyond_the_tokenizer(first):
    """B10: id 200 has the highest logit; counted, the log-probability would be -9.5."""
    logits = np.zeros((1, 300), np.float32)
    logits[0, 40], logits[0, 200] = 0.5, 10.0
    turned = jnp.asarray(logits.T if first else logits)
    tokens, logprobs = most_probable(turned, first=first, vocab=200)
    assert tokens.tolist() == [40]
    np.testing.assert_allclose(logprobs, 0.5 - np.log(199 + np.exp(0.5)), atol=1e-5)
    assert most_probable(turned, first=first, vocab=999)[0].tolist() == [200]


def test_half_precision_and_infinite_logits():
    logits = jnp.asarray([[1.0, -jnp.inf, 3.0], [-jnp.inf, -jnp.inf, 0.0]], jnp.bfloat16)
    tokens, logprobs = most_probable(logits)
    assert tokens.tolist() == [2, 2] and logprobs.dtype == jnp.float32
    np.testing.assert_allclose(logprobs, [-np.log1p(np.exp(-2.0)), 0.0], atol=1e-6)
    broken, of_broken = jax.jit(most_probable)(jnp.full((1, 300), jnp.nan))
    assert 0 <= broken[0] < 300 and np.isnan(of_broken[0])
