"""Rotary positions: how fast each pair of a head turns, and the turning itself.

Scalings follow transformers' definitions, which follow the releases they serve: ``linear``
(positions divided by a factor), ``dynamic`` (a base that grows with the length), ``llama3`` (three
bands of wave lengths), ``yarn`` (arXiv 2309.00071), ``longrope`` (arXiv 2402.13753).

Letters: B rows, T tokens, N heads, H head_dim, D rotary width, the part of a head that turns.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "longrope", "yarn")
BY_LENGTH = ("dynamic", "longrope")  # the speed depends on how long a row is


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary embedding: base, kind of scaling, and the scaling's numbers.

    Attributes:
      theta: the base.
      kind: one of ROPE_TYPES.
      factor: how many times longer the context was made.
      low_freq_factor, high_freq_factor: llama3's band ends, as shares of the original context.
      original_max_positions: context before scaling.
      partial: share of each head that turns; the rest passes through.
      attention_factor: yarn and longrope multiply cos and sin by it; None has their own formula.
      beta_fast, beta_slow: yarn's ramp between kept and divided pairs, in turns per context.
      truncate: whether yarn rounds the ramp's ends to whole pairs.
      mscale, mscale_all_dim: yarn's attention factor in two parts (deepseek); 0 leaves them out.
      short_factor, long_factor: longrope's divisors of each pair, within and past the original
        context.
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    partial: float = 1.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def width(self, head_dim: int) -> int:
        """D, the entries of a head that turn."""
        return int(head_dim * self.partial)

    def check_width(self, head_dim: int) -> None:
        """Refuse heads that this embedding cannot turn.

        Raises:
          ValueError: an odd or empty part of the head, or too small a one; or longrope's divisors
            are not one for each pair.
        """
        width, least = self.width(head_dim), 4 if self.kind == "dynamic" else 2
        part = "" if self.partial == 1.0 else f" times partial_rotary_factor={self.partial}"
        if width % 2 or width < least:
            raise ValueError(
                f"head_dim{part} must be even for rotary embeddings ({self.kind!r}: at least "
                f"{least}), got {head_dim}{part and f' times {self.partial}'}"
            )
        for name in ("short_factor", "long_factor"):
            table = getattr(self, name)
            if self.kind == "longrope" and len(table) != width // 2:
                raise ValueError(
                    f"{name} must list {width // 2} numbers, one for each rotary pair of head_dim="
                    f"{head_dim}{part}, got {len(table)}"
                )

    @property
    def by_length(self) -> bool:
        return self.kind in BY_LENGTH


def _plain(theta, width: int) -> np.ndarray:
    return theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def _llama3(rope: Rope, speed: np.ndarray) -> np.ndarray:
    length = 2 * np.pi / speed
    old = rope.original_max_positions
    low, high = old / rope.low_freq_factor, old / rope.high_freq_factor
    blend = (old / length - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    mixed = (1 - blend) * speed / rope.factor + blend * speed
    return np.where(length > low, speed / rope.factor, np.where(length < high, speed, mixed))


def _yarn(rope: Rope, speed: np.ndarray) -> np.ndarray:
    """Pairs that turn often keep their speed, slow ones are divided, a linear ramp between."""
    width = 2 * len(speed)

    def pair_of(turns: float) -> float:
        """The pair that makes this many turns over the original context."""
        old = rope.original_max_positions
        return width * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(len(speed)) - low) / (high - low), 0, 1)
    return speed / rope.factor * ramp + speed * (1 - ramp)


def inverse_frequencies(rope: Rope, head_dim: int) -> np.ndarray:
    """Angular speed of each rotary pair, [D/2] float64, after scalings that no length changes."""
    speed = _plain(rope.theta, rope.width(head_dim))
    return {
        "linear": lambda: speed / rope.factor,
        "llama3": lambda: _llama3(rope, speed),
        "yarn": lambda: _yarn(rope, speed),
    }.get(rope.kind, lambda: speed)()


def speeds(rope: Rope, head_dim: int, lengths=None):
    """Angular speeds, float32: [D/2], or [..., D/2] of rows of ``lengths`` [...] tokens.

    Args:
      rope: what scaling.
      head_dim: H.
      lengths: int32; read by ``dynamic`` and ``longrope`` only, which need it.
    """
    speed = inverse_frequencies(rope, head_dim)
    if not rope.by_length:
        return jnp.asarray(speed, jnp.float32)
    old, width = rope.original_max_positions, rope.width(head_dim)
    lengths = jnp.asarray(lengths)[..., None]
    lead = (1,) * (lengths.ndim - 1) + (-1,)
    if rope.kind == "longrope":
        short, long = (jnp.asarray(speed / np.asarray(f), jnp.float32).reshape(lead)
                       for f in (rope.short_factor, rope.long_factor))  # fmt: skip
        return jnp.where(lengths > old, long, short)
    # NTK-aware: the base grows so that the slowest pair just covers the length.
    over = jnp.maximum(lengths.astype(jnp.float32), old)
    # transformers' factor * over / old - (factor - 1), where a large factor cancels in float32.
    growth = (1 + rope.factor * (over / old - 1)) ** (width / (width - 2))
    powers = jnp.asarray(-np.arange(0, width, 2) / width, jnp.float32).reshape(lead)
    return (rope.theta * growth) ** powers


def attention_scaling(rope: Rope) -> float:
    """What cos and sin are multiplied by (yarn and longrope sharpen attention so)."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind == "longrope":
        old = rope.original_max_positions
        return 1.0 if rope.factor <= 1 else math.sqrt(1 + math.log(rope.factor) / math.log(old))
    scale = lambda m: 1.0 if rope.factor <= 1 else 0.1 * m * math.log(rope.factor) + 1.0  # noqa: E731
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


def rope_tables(positions, rope: Rope, head_dim: int, lengths=None):
    """cos and sin of every position's angles, [B, T, 1, 1, D] float32 (half-split layout, D03).

    Angles are taken in float32 whatever the model's dtype: bfloat16 rounds 257 to 256.

    Args:
      positions: [B, T] int32.
      rope: what scaling.
      head_dim: H.
      lengths: [B] or [B, T] int32, tokens of each row (or of each token's sequence), for scalings
        that depend on it.
    """
    speed = speeds(rope, head_dim, lengths)
    if speed.ndim == 2:
        speed = speed[:, None, :]
    elif speed.ndim == 1:
        speed = speed[None, None, :]
    angles = positions[..., None].astype(jnp.float32) * speed
    angles = jnp.concatenate([angles, angles], axis=-1)[:, :, None, None, :]
    scale = attention_scaling(rope)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if scale == 1.0 else (cos * scale, sin * scale)


def rotate(x, tables):
    """Turn [B, T, *, *, H] by its positions; pairs are (i, i + D/2) as in Hugging Face weights."""
    cos, sin = tables
    width = cos.shape[-1]
    wide = x[..., :width].astype(jnp.float32)
    first, second = jnp.split(wide, 2, axis=-1)
    turned = wide * cos + jnp.concatenate([-second, first], axis=-1) * sin
    turned = turned.astype(x.dtype)
    return turned if width == x.shape[-1] else jnp.concatenate([turned, x[..., width:]], axis=-1)
