"""A limit on what a run may spend behind APIs: tokens, money, time.

What a call may cost at most is put aside before it is made, and replaced by what it did cost when
the server has said so. So calls under way together never exceed the limit.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Cost(NamedTuple):
    """Tokens (prompt, thinking and reply together) and money of a call."""

    tokens: float
    money: float


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one start of a program may spend; None is no limit. Replies read from the feature store
    cost nothing again.

    Attributes:
      tokens: prompt and reply tokens.
      money: in the currency of the prices.
      seconds: no call begins later than this after the first one.

    Raises: ValueError for a limit that is not a number above 0.
    """

    tokens: float | None = None
    money: float | None = None
    seconds: float | None = None

    def __post_init__(self):
        for field in ("tokens", "money", "seconds"):
            value = getattr(self, field)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and value > 0):
                raise ValueError(f"budget: {field} must be a number above 0, or None for no limit; "
                                 f"got {value!r}")


class Budget:
    """Counts what is spent and says when to stop. Safe to use from several threads.

    Args:
      limits: what may be spent.
      clock: seconds; tests bring their own.
    """

    def __init__(self, limits: Limits = Limits(), *, clock: Callable[[], float] = time.monotonic):
        self.limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._begin: float | None = None
        self._reserved, self._under_way = Cost(0.0, 0.0), 0
        self.spent = Cost(0.0, 0.0)
        self.calls = 0
        self._over: str | None = None

    @property
    def over(self) -> str | None:
        """Why nothing more is asked; None while something may be."""
        return self._over

    def reserve(self, most: Cost) -> bool | None:
        """Put aside what a call may cost at most.

        Returns: True when it fits. None when it would fit if calls under way turn out cheaper than
          put aside: try again when one has ended. False when it does not; `over` says why, and
          nothing is asked from then on, not even a cheaper call, so that where asking stopped does
          not depend on the order of the questions.
        """
        with self._lock:
            if self._over is not None:
                return False
            now = self._clock()
            self._begin = now if self._begin is None else self._begin
            limit = self.limits.seconds
            if limit is not None and now - self._begin >= limit:
                self._over = f"the time of {limit:g} s is used up"
                return False
            for name in ("tokens", "money"):
                limit = getattr(self.limits, name)
                limit = math.inf if limit is None else limit
                used, held = getattr(self.spent, name), getattr(self._reserved, name)
                wanted = getattr(most, name)
                if used + wanted > limit:
                    self._over = (f"{name}: {used:g} of {limit:g} are spent and the next call may "
                                  f"take {wanted:g}")
                    return False
                if used + held + wanted > limit:
                    return None
            self._reserved = _add(self._reserved, most)
            self._under_way += 1
            self.calls += 1
            return True

    def settle(self, most: Cost, actual: Cost) -> None:
        """Replace what was put aside for a call by what it cost."""
        with self._lock:
            self._under_way -= 1
            # Exactly 0 when nothing is under way: a rest of rounding would be waited for.
            self._reserved = Cost(0.0, 0.0) if not self._under_way else Cost(
                self._reserved.tokens - most.tokens, self._reserved.money - most.money)
            self.spent = _add(self.spent, actual)


def _add(a: Cost, b: Cost) -> Cost:
    return Cost(a.tokens + b.tokens, a.money + b.money)
