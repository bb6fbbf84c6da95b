import datetime
import email.utils

import pytest

from gradejax.experts import retry

# F04's case: base 1 s, cap 30 s, deadline 120 s.
NOW = email.utils.parsedate_to_datetime("Wed, 21 Oct 2026 07:27:30 GMT").timestamp()


def test_bounds_double_up_to_the_cap():
    assert [retry.backoff_bound(n, 1, 30) for n in range(6)] == [1, 2, 4, 8, 16, 30]
    assert retry.backoff_bound(5000, 1, 30) == 30  # no overflow


def test_only_transient_statuses_are_tried_again():
    statuses = [400, 401, 404, 408, 429, 500, 503]
    assert [retry.retryable(s) for s in statuses] == [False, False, False, True, True, True, True]


@pytest.mark.parametrize(("text", "seconds"), [
    ("7", 7.0), ("0.5", 0.5), ("Wed, 21 Oct 2026 07:28:00 GMT", 30.0),
    ("Wed, 21 Oct 2026 07:28:00 -0000", 30.0), ("Wed, 21 Oct 2026 09:28:00 +0200", 30.0),
    ("600", 600.0), ("soon", None), ("", None), ("-3", 0.0), ("nan", None), ("inf", None),
    ("Wed, 21 Oct 2020 07:28:00 GMT", 0.0), ("Wed, 99 Oct 2026 07:28:00 GMT", None),
])  # fmt: skip
def test_retry_after_in_seconds_or_as_a_date(text, seconds):
    assert retry.retry_after({"retry-after": text}, NOW) == seconds


def test_milliseconds_are_finer_and_an_absent_header_says_nothing():
    assert retry.retry_after({"retry-after-ms": "250", "retry-after": "1"}, NOW) == 0.25
    assert retry.retry_after({"retry-after-ms": "x", "retry-after": "2"}, NOW) == 2
    assert retry.retry_after({}, NOW) is None


def waits(asked, n=0, left=120.0):
    return [retry.wait(n, asked, base=1, cap=30, left=left, draw=d) for d in (0.0, 0.5, 1 - 1e-9)]


def test_full_jitter_and_never_below_what_the_server_asks():
    assert waits(None, n=3) == pytest.approx([0, 4, 8])  # unjittered it would be 8, 8, 8
    # 7 to 8 and 30 to 31: the jitter is on top, or workers would come back together or too early.
    assert waits(7.0) == pytest.approx([7, 7.5, 8])
    assert waits(30.0, n=5) == pytest.approx([30, 30.5, 31])


def test_a_wait_beyond_the_deadline_gives_up_at_once():
    assert waits(600.0) == [None, None, None]
    assert waits(119.5) == [119.5, None, None]
    assert waits(None, n=9, left=10.0) == [0.0, None, None]


def test_dates_round_trip_through_the_library():
    when = datetime.datetime.fromtimestamp(NOW + 12, datetime.UTC)
    assert retry.retry_after({"retry-after": email.utils.format_datetime(when)}, NOW) == 12
