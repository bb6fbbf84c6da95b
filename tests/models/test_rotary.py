"""Rotary tables against their formulas, far positions and the faults' numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

from gradejax.models.rotary import (
    Rope,
    attention_scaling,
    inverse_frequencies,
    rope_tables,
    rotate,
    speeds,
)

LLAMA3 = Rope(theta=500000.0, kind="llama3", factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_positions=8192)  # fmt: skip


@pytest.mark.parametrize("position", [0, 10, 8191, 8193, 100_000])
@pytest.mark.parametrize("rope", [Rope(), Rope(theta=1e6), LLAMA3], ids=lambda r: str(r.theta))
def test_tables_at_far_positions(position, rope):
    """Against float64; the angle position · speed is rounded once to float32, as in HF."""
    cos, sin = rope_tables(jnp.full((1, 1), position), rope, 14)
    angle = position * inverse_frequencies(rope, 14)
    tolerance = 1e-6 + 2e-7 * position
    np.testing.assert_allclose(cos[0, 0, 0, 0, :7], np.cos(angle), atol=tolerance, rtol=0)
    np.testing.assert_allclose(sin[0, 0, 0, 0, 7:], np.sin(angle), atol=tolerance, rtol=0)


def test_theta_is_not_left_at_its_default():
    """D10: base 1e6 read as 1e4 turns by another angle at position 1000."""
    right = rope_tables(jnp.full((1, 1), 1000), Rope(theta=1e6), 14)[0][0, 0, 0, 0, 3]
    wrong = rope_tables(jnp.full((1, 1), 1000), Rope(theta=1e4), 14)[0][0, 0, 0, 0, 3]
    np.testing.assert_allclose(right, np.cos(1000 * 1e6 ** (-6 / 14)), atol=1e-4)
    assert abs(right - wrong) > 0.1


def test_llama3_bands():
    """Wave lengths under 2048 stay, over 8192 are divided by 8, between they blend."""
    plain = inverse_frequencies(Rope(theta=500000.0), 64)
    scaled = inverse_frequencies(LLAMA3, 64)
    length = 2 * np.pi / plain
    short, long = length < 2048, length > 8192
    np.testing.assert_array_equal(scaled[short], plain[short])
    np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-12)
    mid = ~short & ~long
    assert mid.any() and short.any() and long.any()
    share = (8192 / length[mid] - 1) / 3
    np.testing.assert_allclose(scaled[mid], plain[mid] * (share + (1 - share) / 8), rtol=1e-12)


def test_linear_scaling_divides():
    np.testing.assert_allclose(
        inverse_frequencies(Rope(kind="linear", factor=4.0), 10),
        inverse_frequencies(Rope(), 10) / 4,
    )


def test_pairs_are_half_split():
    """D03: pairs (i, i + H/2); interleaved pairs turn [1, 0, 0, 0] into [cos, sin, 0, 0]."""
    x = jnp.zeros((1, 1, 1, 1, 4)).at[..., 0].set(1.0)
    out = rotate(x, rope_tables(jnp.ones((1, 1), jnp.int32), Rope(), 4))[0, 0, 0, 0]
    np.testing.assert_allclose(out, [np.cos(1.0), 0, np.sin(1.0), 0], atol=1e-6)


def test_scores_depend_on_distance_alone():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 1, 10)), jnp.float32) for _ in range(2))
    at = lambda x, p: rotate(x, rope_tables(jnp.full((1, 1), p), Rope(), 10))[0, 0, 0, 0]  # noqa: E731
    near, far = at(q, 5) @ at(k, 2), at(q, 105) @ at(k, 102)
    np.testing.assert_allclose(near, far, atol=1e-4)
    assert abs(near - at(q, 5) @ at(k, 3)) > 1e-3


def test_dynamic_scaling_grows_the_base_with_the_length():
    """Within the original 16 nothing changes; at 32 tokens and factor 4 the base grows by
    (4 · 32/16 - 3)^(10/8) = 5^1.25 = 7.477; a base that does not grow keeps speed 1/theta^(i/H)."""
    rope = Rope(theta=500.0, kind="dynamic", factor=4.0, original_max_positions=16)
    got = speeds(rope, 10, jnp.asarray([7, 16, 32]))
    plain = 500.0 ** (-np.arange(0, 10, 2) / 10)
    np.testing.assert_allclose(got[:2], [plain, plain], rtol=1e-5)
    np.testing.assert_allclose(got[2], (500.0 * 5**1.25) ** (-np.arange(0, 10, 2) / 10), rtol=1e-5)
    # 1e9 - (1e9 - 1) is 0 in float32, which made the speeds infinite.
    wide = Rope(theta=500.0, kind="dynamic", factor=1e9, original_max_positions=16)
    np.testing.assert_allclose(speeds(wide, 10, jnp.asarray([16]))[0], plain, rtol=1e-5)


def test_longrope_turns_to_its_long_factors_past_the_original_context():
    """T17: 16 tokens are short, 17 are long; cos and sin carry sqrt(1 + ln 4 / ln 16) = 1.2247."""
    rope = Rope(theta=500.0, kind="longrope", factor=4.0, original_max_positions=16, partial=0.75,
                short_factor=(1.0, 1.3, 1.7), long_factor=(1.0, 3.0, 6.0))  # fmt: skip
    got = speeds(rope, 8, jnp.asarray([16, 17]))
    plain = 500.0 ** (-np.arange(0, 6, 2) / 6)
    np.testing.assert_allclose(got[0], plain / [1.0, 1.3, 1.7], rtol=1e-5)
    np.testing.assert_allclose(got[1], plain / [1.0, 3.0, 6.0], rtol=1e-5)
    cos, _ = rope_tables(jnp.zeros((1, 1), jnp.int32), rope, 8, jnp.asarray([3]))
    np.testing.assert_allclose(cos, 1.5**0.5, rtol=1e-6)
    assert cos.shape[-1] == 6  # 0.75 · 8 entries of a head turn
    x = jnp.arange(8.0).reshape(1, 1, 1, 1, 8)
    np.testing.assert_array_equal(rotate(x, (cos, cos))[..., 6:], x[..., 6:])


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_sharpens():
    """gpt_oss's numbers: pairs under 8.1 keep their speed, those over 17.4 are divided by 32."""
    rope = Rope(theta=150_000.0, kind="yarn", factor=32.0, truncate=False,
                original_max_positions=4096)  # fmt: skip
    plain, got = inverse_frequencies(Rope(theta=150_000.0), 64), inverse_frequencies(rope, 64)
    np.testing.assert_array_equal(got[:9], plain[:9])
    np.testing.assert_allclose(got[18:], plain[18:] / 32, rtol=1e-12)
    # Pair i makes 4096 · speed / 2π turns; the ramp runs between 32 turns and one.
    low, high = (32 * np.log(4096 / (n * 2 * np.pi)) / np.log(150_000.0) for n in (32, 1))
    share = (12 - low) / (high - low)
    np.testing.assert_allclose(got[12], plain[12] * (1 - share + share / 32), rtol=1e-12)
    np.testing.assert_allclose(attention_scaling(rope), 0.1 * np.log(32) + 1)
    assert attention_scaling(Rope(kind="llama3", factor=8.0)) == 1.0
    parts = Rope(kind="yarn", factor=8.0, mscale=1.0, mscale_all_dim=0.5)
    ratio = (0.1 * np.log(8) + 1) / (0.05 * np.log(8) + 1)
    np.testing.assert_allclose(attention_scaling(parts), ratio)
