"""Padding, common prefixes and seeds of a group."""

import pytest
from hf_folders import checkpoint

from gradejax.generation.prompts import (
    BUCKETS,
    COMMON_BUCKETS,
    bucket,
    check_prompts,
    common_bucket,
    common_prefix,
    left_pad,
    sample_seed,
)


def test_bucket():
    assert [bucket(n, 10**6) for n in (1, 32, 33, 200, 4096, 4097)] == [
        32, 32, 64, 256, 4096, 5120,
    ]  # fmt: skip
    assert bucket(33, 50) == 50
    assert list(BUCKETS) == sorted(BUCKETS)
    assert [common_bucket(n) for n in (16, 32, 33, 2048, 2049)] == [32, 32, 128, 2048, 4096]
    assert list(COMMON_BUCKETS) == sorted(COMMON_BUCKETS)


def test_left_pad():
    tokens, mask = left_pad([[5], [], [6, 7, 8]], 4, 3)
    assert tokens.tolist() == [[0, 0, 5], [0, 0, 0], [6, 7, 8], [0, 0, 0]]
    assert mask.sum(1).tolist() == [1, 0, 3, 0] and mask[0].tolist() == [False, False, True]


def test_common_prefix():
    """Over all prompts, one token short of the shortest, and only where it is worth it."""
    system = list(range(20))
    assert common_prefix([[*system, 1, 2], [*system, 3], [*system, 1, 4, 4]]) == 20
    assert common_prefix([[*system, 1], system]) == 19  # the second keeps its last token
    assert common_prefix([system] * 3) == 19
    assert common_prefix([system, [9, *system]]) == 0
    assert common_prefix([system[:16], system]) == 0  # 15 are not worth a part of their own
    assert common_prefix([[*system, 1]]) == 0  # nobody to share with
    assert common_prefix([[*system, 1], (*system, 2)]) == 20  # any sequence of ids
    assert common_prefix([]) == 0


def test_sample_seeds():
    """Sample 0 is the prompt's own; others are new, and neighbouring seeds share none (T25)."""
    assert [sample_seed(7, 0), sample_seed(2**32 + 7, 0)] == [7, 7]
    seeds = {sample_seed(seed, g) for seed in range(50) for g in range(64)}
    assert len(seeds) == 50 * 64 and all(0 <= s < 2**32 for s in seeds)
    # MurmurHash3's finaliser of 0x9E3779B9 (seed 0, sample 1), worked out by hand in integers.
    assert sample_seed(0, 1) == 0x92CA2F0E


@pytest.mark.parametrize(
    "prompts, new, extra, words",
    [
        ([[4], []], 1, 0, "prompt 1 is empty"),
        ([[4, 113]], 1, 0, "ids 4 to 113; the model knows 0 to 112"),
        ([[-1, 4]], 1, 0, "ids -1 to 4"),
        ([[4]], 0, 0, "max_new_tokens must be a whole number of at least 1, got 0"),
        ([[5] * 239, [5] * 240], 17, 0, r"prompt 1 has 240 tokens; with 17 new .* context of 256"),
        ([[5] * 230], 17, 10, "230 tokens, a soft prefix of 10; with 17 new"),
    ],
)
def test_bad_prompts(prompts, new, extra, words):
    with pytest.raises(ValueError, match=words):
        check_prompts(checkpoint("llama").model, prompts, new, extra)


def test_the_longest_prompt_that_fits():
    check_prompts(checkpoint("llama").model, [[5] * 239], 17)
    check_prompts(checkpoint("llama").model, [[5] * 229], 17, 10)


def test_a_reply_across_the_original_context_of_longrope_is_refused():
    """T17: original context 16; 10 + 6 fit under it, 17 lie beyond it, 10 + 7 would cross."""
    model = checkpoint("phi3_longrope").model
    check_prompts(model, [[5] * 10, [5] * 17], 6)
    with pytest.raises(ValueError, match="prompt 0 has 10 tokens; within 7 .* at most 6 new"):
        check_prompts(model, [[5] * 10], 7)
    with pytest.raises(ValueError, match="prompt 0 has 16 tokens; within 1 .* at most 0 new"):
        check_prompts(model, [[5] * 12], 1, 4)
