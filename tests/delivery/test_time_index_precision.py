"""Precision that depends on how long there is to wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.time_index.index import TimeIndex
from bookstand.delivery.time_index.precision import relative
from bookstand.errors import IncorrectParameterError
from bookstand.testing.clock import VirtualClock

MAX = (1 << 63) - 1
SECOND, MINUTE, DAY = 1000, 60_000, 86_400_000


def test_a_second_is_exact_and_a_day_a_minute_coarse() -> None:
    clock = VirtualClock(1_700_000_000_000)
    index = TimeIndex(precision=relative(0.01, clock=clock))
    now = clock.now()
    assert index.key(now + SECOND + 1) == now + SECOND + 1
    assert 0 <= now + MINUTE + 777 - index.key(now + MINUTE + 777) < 600
    steps = {index.key(now + DAY + late) for late in range(0, 10 * MINUTE, 100)}
    assert 10 <= len(steps) <= 20, "a bucket is no longer than a minute, and about as long"
    assert index.key(now - DAY) == now - DAY


@settings(deadline=None)
@given(
    now=st.integers(-(10**13), 10**13),
    fraction=st.floats(0.0001, 0.9),
    finest=st.integers(1, 5000),
    delays=st.lists(st.one_of(st.integers(-1000, 10**9), st.integers(0, 5000)), min_size=1, max_size=50),
)
def test_never_late_and_early_by_no_more_than_stated(now: int, fraction: float, finest: int, delays: list[int]) -> None:
    index = TimeIndex(precision=relative(fraction, finest=finest, clock=VirtualClock(now)))
    times = [now + delay for delay in delays]
    index.add_many(times, 1, range(len(times)))
    single = TimeIndex(precision=relative(fraction, finest=finest, clock=VirtualClock(now)))
    for entry, time in enumerate(times):
        key = index.key(time)
        assert key <= time
        assert key == time or time - key < min(fraction * (time - now), 60_000)
        assert key == time or time - now >= finest / fraction * 0.999999
        assert index.contains(time, 1, entry)
        single.add(time, 1, entry)
    expected = sorted((index.key(time), 1, entry) for entry, time in enumerate(times))
    assert index.peek().triples() == single.peek().triples() == expected


def test_times_at_both_ends() -> None:
    index = TimeIndex(precision=relative(0.01, clock=VirtualClock(10**12)))
    times = [-MAX - 1, MAX, MAX - 1]
    index.add_many(times, 1, [1, 2, 3])
    assert index.peek().triples() == sorted((index.key(time), 1, entry + 1) for entry, time in enumerate(times))


def test_what_was_added_early_is_found_late() -> None:
    clock = VirtualClock(0)
    index = TimeIndex(precision=relative(0.01, clock=clock))
    index.add(DAY + 12_345, 1, 1)
    index.add_many([DAY + 12_345, DAY + 12_346], 1, [2, 3])
    clock.advance(86_400)
    index.add(DAY + 12_345, 1, 4)
    assert index.contains(DAY + 12_345, 1, 2)
    for entry in (1, 2, 4):
        assert index.discard(DAY + 12_345, 1, entry)
        assert not index.contains(DAY + 12_345, 1, entry)
    assert len(index) == 1


@pytest.mark.parametrize(
    "options", [{"fraction": 0}, {"fraction": 1}, {"finest": 0}, {"finest": 9, "coarsest": 8}, {"coarsest": 1 << 50}]
)
def test_wrong_precision(options: dict[str, Any]) -> None:
    with pytest.raises(IncorrectParameterError):
        relative(**{"fraction": 0.01, **options})


def test_bits_or_an_object() -> None:
    precision = relative(0.01, clock=VirtualClock(0))
    with pytest.raises(IncorrectParameterError):
        TimeIndex(8, precision=precision)
    with pytest.raises(IncorrectParameterError):
        TimeIndex(round_up=True, precision=precision)


def test_keys_of_columns_and_of_single_times_agree_at_every_step() -> None:
    precision = relative(0.01, clock=VirtualClock(0))
    edges = [100 * (1 << n) + near for n in range(17) for near in (-1, 0, 1)]
    times = np.array([edge * 7 // 7 for edge in edges])
    assert precision.keys(times).tolist() == [precision.key(time) for time in times.tolist()]


def test_the_last_times_there_are_stay_as_exact_as_others() -> None:
    clock = VirtualClock((1 << 63) - 1001)
    precision = relative(0.01, clock=clock)
    latest = (1 << 63) - 1
    assert precision.keys(np.array([latest])).tolist() == [precision.key(latest)] == [latest]


def test_a_fraction_however_small() -> None:
    precision = relative(1e-15, clock=VirtualClock(0))
    assert precision.keys(np.array([1 << 40])).tolist() == [1 << 40]
