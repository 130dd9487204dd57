"""How long a message that keeps failing is kept back. Cases are those of the reference page for the time index."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.delivery.subscription.backoff import MultiplierRedeliveryBackoff
from bookstand.errors import IncorrectParameterError


def test_case_5_doubling():
    backoff = MultiplierRedeliveryBackoff(1000, 600_000, 2)
    assert [backoff.next(count) for count in (-1, 0, 1, 4, 100)] == [1000, 1000, 2000, 16_000, 600_000]


def test_case_6_times_five():
    backoff = MultiplierRedeliveryBackoff(2000, 6_000_000, 5)
    assert [backoff.next(count) for count in (2, 4)] == [50_000, 1_250_000]


@pytest.mark.parametrize(
    "arguments",
    [
        (1000, 600_000, 1),
        (1000, 600_000, 0.5),
        (1000, 600_000, -2),
        (1000, 600_000, inf),
        (1000, 600_000, nan),
        (1000, 600_000, True),
        (1000, 600_000, "2"),
        (1000, 999, 2),
        (-1, 10, 2),
        (1.5, 10, 2),
        (1, 10.5, 2),
        (1, 1 << 63, 2),
    ],
)
def test_case_7_what_makes_no_sense_is_refused(arguments):
    with pytest.raises(IncorrectParameterError, match=r"^(min|max|multiplier) must be"):
        MultiplierRedeliveryBackoff(*arguments)


def test_down_to_the_whole_millisecond():
    backoff = MultiplierRedeliveryBackoff(1, 1_000_000, 1.1)
    assert [backoff.next(count) for count in (7, 8, 12, 20, 50, 100)] == [1, 2, 3, 6, 117, 13_780]


def test_extremes():
    assert MultiplierRedeliveryBackoff(0, 0, 2).next(1 << 31) == 0
    assert MultiplierRedeliveryBackoff(0, 100, 2).next(50) == 0
    assert MultiplierRedeliveryBackoff(1, 10**15, 1.1).next((1 << 31) - 1) == 10**15
    assert MultiplierRedeliveryBackoff(1, (1 << 63) - 1, 2).next(62) == 1 << 62
    assert MultiplierRedeliveryBackoff(1, (1 << 63) - 1, 2).next(63) == (1 << 63) - 1


@given(st.integers(0, 10**6), st.integers(0, 10**9), st.floats(1.01, 100), st.integers(-5, 200))
def test_it_never_shrinks_and_stays_in_its_limits(least, more, multiplier, count):
    backoff = MultiplierRedeliveryBackoff(least, least + more, multiplier)
    assert least <= backoff.next(count) <= backoff.next(count + 1) <= least + more
