"""When a failed call is tried again, and after how long.

Full jitter: a wait is drawn from [0, min(cap, base · 2ⁿ)], so that workers which failed together do
not come back together. What a server asks for by Retry-After is a floor, with jitter on top of it.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Mapping
from datetime import UTC, datetime

# The rest is permanent: asking again would give the same (a bad key, a bad request).
RETRIED = frozenset({408, 429, *range(500, 600)})


def retryable(status: int) -> bool:
    """Whether another try may help after this HTTP status."""
    return status in RETRIED


def backoff_bound(n: int, base: float, cap: float) -> float:
    """Longest wait in seconds before try n + 2: min(cap, base · 2ⁿ), n from 0."""
    return min(cap, base * 2.0 ** min(n, 62))  # beyond, 2ⁿ would overflow


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait, at least 0; None when it does not say, or not legibly.

    Args:
      headers: of the response, names in lower case or case-insensitive.
      now: seconds since 1970, for the date form.
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)  # "-0000": by the standard, universal time
    return max((date - datetime.fromtimestamp(now, UTC)).total_seconds(), 0.0)


def wait(n: int, asked: float | None, *, base: float, cap: float, left: float, draw: float
         ) -> float | None:
    """Seconds to wait before the next try; None to give up.

    Args:
      n: failures before this one.
      asked: what the server asked for (`retry_after`).
      base, cap: of the backoff, in seconds.
      left: seconds until the question's deadline; a wait beyond it gives up at once.
      draw: uniform in [0, 1).
    """
    if asked is None:
        seconds = draw * backoff_bound(n, base, cap)
    else:
        seconds = asked + draw * min(base, cap)
    return seconds if seconds < left else None
