"""What the in-memory tracker alone does. Cases are those of the reference page for delayed delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bookstand.delivery.timer import ThreadTimer
from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from bookstand.testing import VirtualClock
from tests.delivery.kit import Bench

LARGEST = (1 << 63) - 1


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**settings: Any) -> Bench:
        made.append(Bench(**settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


# -- buckets ---------------------------------------------------------------------------------------------------------


def test_case_51_strict_buckets_are_rounded_up(bench):
    b = bench(tick_time_millis=1000, strict=True)
    b.add((1, 1, 60_400))
    assert b.timer.armed == [60_416]
    assert b.tracker.next_wake == b.tracker.next_delivery() == 60_416
    b.add((1, 2, 61_000))
    b.go_to(60_000)
    assert b.tracker.pop_due() == []
    b.go_to(60_416)
    assert b.fire() == 1
    assert b.tracker.pop_due() == [(1, 1)]
    assert b.timer.armed == [61_440]


def test_case_52_not_strict_buckets_are_rounded_down(bench):
    b = bench(tick_time_millis=1000)
    assert b.add((1, 1, 60_400)) == [True]
    assert b.tracker.next_delivery() == 59_904
    b.go_to(59_000)
    for _ in range(10):
        assert not b.tracker.has_message_available()
        assert b.tracker.pop_due() == []
    b.go_to(59_414)
    assert b.tracker.pop_due() == []
    b.go_to(59_415)
    assert b.tracker.has_message_available()
    assert b.tracker.pop_due() == [(1, 1)]
    assert b.add((1, 1, 60_400)) == [False]


def test_case_53_a_bucket_is_emptied_piece_by_piece(bench):
    b = bench(tick_time_millis=1, strict=True)
    b.add(*((1, entry, 10) for entry in range(2)), *((2, entry, 10) for entry in range(5)))
    b.go_to(10)
    assert b.tracker.pop_due(4) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert b.tracker.pop_due(2) == [(2, 2), (2, 3)]
    assert b.tracker.pop_due(10) == [(2, 4)]
    assert b.tracker.pop_due(10) == []


@pytest.mark.parametrize(
    ("tick", "width"), [(1, 1), (2, 2), (3, 2), (100, 64), (1000, 512), (1024, 1024), (60_000, 32_768)]
)
@pytest.mark.parametrize("strict", [True, False])
def test_each_subscription_has_buckets_of_its_own_length(bench, tick, width, strict):
    b = bench(tick_time_millis=tick, strict=strict)
    base = 10 * width * tick
    b.tracker.add_many([(1, entry) for entry in range(2 * width)], np.arange(base, base + 2 * width))
    keys = set()
    while b.tracker:
        key = b.tracker.next_delivery()
        assert key % width == 0
        keys.add(key)
        b.go_to(max(b.now, key if strict else key - tick + width - 1))
        assert b.tracker.pop_due()
    rounded = [-(-time // width) if strict else time // width for time in range(base, base + 2 * width)]
    assert keys == {width * number for number in rounded}


def test_what_waits_in_one_bucket_comes_at_once(bench):
    b = bench(tick_time_millis=1024)
    b.tracker.add_many([(1, entry) for entry in range(1000)], np.arange(20_480, 21_480))
    b.go_to(20_479)
    assert len(b.tracker.pop_due()) == 1000


def test_times_at_the_end_of_time(bench):
    b = bench(tick_time_millis=1000)
    b.add((1, 3, LARGEST), (1, 4, 1 << 62))
    assert b.tracker.next_delivery() == 1 << 62
    b.go_to(1 << 62)
    assert b.tracker.pop_due(10) == [(1, 4)]
    assert b.tracker.next_delivery() == LARGEST - 511
    b.go_to(LARGEST - 1000)
    assert b.tracker.pop_due() == [(1, 3)]
    assert b.add((1, 5, LARGEST)) == [False]


def test_strict_times_at_the_end_of_time(bench):
    b = bench(tick_time_millis=1000, strict=True)
    b.add((1, 3, LARGEST))
    assert b.tracker.next_delivery() > LARGEST - 1000
    b.go_to(LARGEST)
    assert b.tracker.pop_due() == [(1, 3)]


def test_ids_of_64_bits(bench):
    b = bench(tick_time_millis=1, strict=True)
    entries = [5, (1 << 32) - 1, 1 << 32, (1 << 32) + 5, 1 << 40, LARGEST]
    for ledger in (0, 1, LARGEST):
        for entry in entries:
            assert b.add((ledger, entry, 100)) == [True]
    assert b.tracker.count == 18
    assert all(b.tracker.contains_message(Position(1, entry)) for entry in entries)
    assert not any(
        b.tracker.contains_message(Position(1, entry)) for entry in (6, (1 << 31) + 5, (1 << 32) + 6, (1 << 40) - 1)
    )
    assert b.tracker.contains_many(np.full(6, 1), np.array(entries)).all()
    assert b.tracker.cancel(Position(1, 1 << 32))
    assert b.tracker.contains_message(Position(1, (1 << 32) + 5))
    b.go_to(100)
    assert b.tracker.pop_due(8) == [(0, entry) for entry in entries] + [(1, 5), (1, (1 << 32) - 1)]
    assert len(b.tracker.pop_due()) == 9


def test_ids_of_64_bits_in_columns(bench):
    b = bench(tick_time_millis=1, strict=True)
    entries = np.arange((1 << 32) - 500, (1 << 32) + 500)
    ledgers = np.full(1000, LARGEST)
    assert b.tracker.add_many((ledgers, entries), 100).all()
    assert b.tracker.count == 1000
    assert b.tracker.contains_many(ledgers, entries).all()
    assert b.tracker.contains_many(ledgers, entries + 500).tolist() == [True] * 500 + [False] * 500
    b.go_to(100)
    assert b.tracker.pop_due() == [(LARGEST, entry) for entry in entries.tolist()]


# -- all with the same delay -----------------------------------------------------------------------------------------


def ten_apart(b: Bench) -> None:
    assert b.tracker.add_many([(1, entry) for entry in range(2, 102)], [10 * entry for entry in range(2, 102)]).all()


def test_case_54_the_same_delay_for_all(bench):
    b = bench(tick_time_millis=8, fixed_delay_detection_lookahead=100)
    ten_apart(b)
    assert b.tracker.should_pause_all_deliveries()
    b.go_to(20)
    assert not b.tracker.should_pause_all_deliveries()
    assert len(b.tracker.pop_due(1)) == 1
    assert not b.tracker.should_pause_all_deliveries()


@pytest.mark.parametrize("breaking", [5, -1])
@pytest.mark.parametrize("many", [False, True])
def test_case_54_one_that_is_due_breaks_it(bench, breaking, many):
    b = bench(tick_time_millis=8, fixed_delay_detection_lookahead=100)
    ten_apart(b)
    if many:
        b.tracker.add_many([(2, 1), (2, 2)], [breaking, 5000])
    else:
        b.add((2, 1, breaking))
    assert not b.tracker.should_pause_all_deliveries()


@pytest.mark.parametrize("many", [False, True])
def test_case_54_so_does_one_that_is_earlier_than_the_one_before(bench, many):
    b = bench(tick_time_millis=8, strict=True, fixed_delay_detection_lookahead=3)
    add = (lambda *rows: b.tracker.add_many([row[:2] for row in rows], [row[2] for row in rows])) if many else b.add
    add((1, 0, 1000), (1, 1, 1010), (1, 2, 1002), (1, 3, 1020))
    assert b.tracker.should_pause_all_deliveries()
    add((1, 4, 1011), (1, 5, 1100))
    assert not b.tracker.should_pause_all_deliveries()
    b.tracker.clear()
    add((2, 0, 1000), (2, 1, 1010), (2, 2, 1020))
    assert not b.tracker.should_pause_all_deliveries()
    b.go_to(5000)
    assert len(b.tracker.pop_due()) == 3
    assert not b.tracker.should_pause_all_deliveries()
    add((3, 0, 6000), (3, 1, 6010), (3, 2, 6020))
    assert b.tracker.should_pause_all_deliveries()


def test_without_lookahead_there_is_no_pause(bench):
    b = bench(tick_time_millis=8, fixed_delay_detection_lookahead=0)
    ten_apart(b)
    assert not b.tracker.should_pause_all_deliveries()
    b = bench(tick_time_millis=8, fixed_delay_detection_lookahead=101)
    ten_apart(b)
    assert not b.tracker.should_pause_all_deliveries()


# -- another tick ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_the_alarm_is_set_anew_when_the_earliest_message_is_added_again_as_due(bench, many):
    b = bench(tick_time_millis=1, strict=True)
    b.add((1, 1, 60_400))
    b.add((1, 2, 61_000))
    assert b.timer.armed == [60_400]
    if many:
        assert b.tracker.add_many([(1, 3), (1, 1)], [62_000, 0]).tolist() == [True, False]
    else:
        assert not b.tracker.add((1, 1), 0)
    assert b.timer.armed == [61_000]


def test_a_smaller_tick_does_not_stall(bench):
    """Width and cutoff follow from the same tick: when the alarm rings there is something to give."""
    b = bench(tick_time_millis=1000)
    b.add((1, 1, 60_400))
    b.tracker.reset_tick(100)
    (armed,) = b.timer.armed
    assert armed <= 60_400
    b.go_to(armed)
    assert b.fire() == 1
    assert b.tracker.has_message_available()
    assert b.tracker.pop_due() == [(1, 1)]


def test_a_new_tick_is_that_of_what_comes(bench):
    b = bench(tick_time_millis=1000)
    b.tracker.reset_tick(100)
    b.add((1, 1, 60_400))
    assert b.tracker.next_delivery() == 60_352
    assert b.add((1, 2, 100)) == [False]
    assert b.add((1, 3, 101)) == [True]


@pytest.mark.parametrize("strict", [True, False])
def test_a_larger_tick_takes_buckets_together(bench, strict):
    b = bench(tick_time_millis=1, strict=strict)
    b.tracker.add_many([(1, entry) for entry in range(1000)], np.arange(10_300, 11_300))
    b.tracker.reset_tick(1024)
    assert b.tracker.next_delivery() == (11_264 if strict else 10_240)
    assert b.tracker.count == 1000
    assert b.tracker.contains_many(np.full(1000, 1), np.arange(1000)).all()
    b.go_to(12_288)
    assert len(b.tracker.pop_due()) == 1000


def test_cancelled_before_a_new_tick(bench):
    b = bench(tick_time_millis=1, strict=True)
    b.add((1, 1, 1000), (1, 2, 1000), (1, 3, 2000))
    assert b.tracker.cancel(Position(1, 1))
    b.tracker.reset_tick(512)
    assert b.add((1, 1, 5000)) == [True]
    b.go_to(2048)
    assert b.tracker.pop_due() == [(1, 2), (1, 3)]
    b.go_to(5120)
    assert b.tracker.pop_due() == [(1, 1)]


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_cancelling_most_gives_their_memory_back(bench):
    b = bench(tick_time_millis=1, strict=True)
    random = np.random.default_rng(3)
    ledgers, entries = np.repeat(np.arange(4), 10_000), np.tile(np.arange(10_000), 4)
    b.tracker.add_many((ledgers, entries), random.integers(10**6, 10**8, 40_000))
    full = b.tracker.memory_bytes
    for ledger, entry in zip(ledgers[:39_000].tolist(), entries[:39_000].tolist(), strict=True):
        assert b.tracker.cancel((ledger, entry))
    assert b.tracker.count == 1000
    assert b.tracker.memory_bytes < full / 2
    assert b.tracker.next_delivery() is not None
    b.go_to(10**8)
    assert b.tracker.pop_due() == [(3, entry) for entry in range(9000, 10_000)]


def test_cancelling_the_last_leaves_nothing(bench):
    b = bench(tick_time_millis=1, strict=True)
    b.add((1, 1, 100), (1, 2, 200))
    b.tracker.cancel(Position(1, 2))
    b.tracker.cancel(Position(1, 1))
    assert b.tracker.next_delivery() is None
    assert b.timer.armed == []
    b.add((1, 2, 300))
    assert b.tracker.next_delivery() == 300


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("time", [100, 50, 400])
def test_cancelled_and_added_again(bench, time, many):
    b = bench(tick_time_millis=1, strict=True)
    b.add((1, 1, 100), (1, 2, 500))
    b.tracker.cancel(Position(1, 1))
    assert b.tracker.add_many([(1, 1)], time).all() if many else b.add((1, 1, time)) == [True]
    assert b.tracker.next_delivery() == time
    given = []
    for now in (50, 100, 400, 500):
        b.go_to(now)
        given += [(now, position) for position in b.tracker.pop_due()]
    assert given == sorted([(time, (1, 1)), (500, (1, 2))])


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_of_many_in_order(bench):
    b = bench(tick_time_millis=1000)
    count = 200_000
    for start in range(0, count, 20_000):
        rows = np.arange(start, start + 20_000)
        b.tracker.add_many((rows // 50_000, rows % 50_000), 10_000 + rows // 10)
    assert b.tracker.count == count
    # A bit in each of the two, and what their containers need.
    assert b.tracker.memory_bytes / count < 2
    b.go_to(10**6)
    assert len(b.tracker.pop_due()) == count
    assert b.tracker.memory_bytes < 100_000


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tick", [0, -1, 1.5, "1000", None, True])
def test_wrong_ticks(bench, tick):
    with pytest.raises(IncorrectParameterError, match="tick_time_millis"):
        InMemoryDelayedTracker(print, tick_time_millis=tick)
    b = bench()
    with pytest.raises(IncorrectParameterError, match="tick_time_millis"):
        b.tracker.reset_tick(tick)


@pytest.mark.parametrize("lookahead", [1.5, "1", None, True])
def test_wrong_lookahead(lookahead):
    with pytest.raises(IncorrectParameterError, match="lookahead"):
        InMemoryDelayedTracker(print, fixed_delay_detection_lookahead=lookahead)


@pytest.mark.parametrize("lookahead", [0, -1])
def test_no_lookahead(bench, lookahead):
    b = bench(fixed_delay_detection_lookahead=lookahead)
    b.tracker.add_many([(1, entry) for entry in range(100)], 1000)
    assert not b.tracker.should_pause_all_deliveries()


def test_on_a_virtual_clock_it_needs_no_timer():
    clock = VirtualClock(1000)
    woken: list[int] = []
    tracker = InMemoryDelayedTracker(lambda: woken.append(clock.now()), strict=True, tick_time_millis=1, clock=clock)
    tracker.add(Position(1, 1), 2000)
    tracker.add(Position(1, 2), 1500)
    clock.advance(0.499)
    assert woken == []
    clock.advance(10)
    # What is due is announced once; who does not come for it is not told of more.
    assert woken == [1500]
    assert tracker.pop_due() == [(1, 1), (1, 2)]
    tracker.close()


def test_in_the_machines_time():
    from threading import Event

    woken = Event()
    tracker = InMemoryDelayedTracker(woken.set, strict=True, tick_time_millis=1)
    now = tracker._clock.now()
    assert tracker.add(Position(1, 1), now + 20)
    assert woken.wait(30)
    assert tracker._clock.now() >= now + 20
    assert tracker.pop_due() == [(1, 1)]
    tracker.close()
    assert isinstance(tracker._own_timer, ThreadTimer)
    tracker._own_timer.join()


def test_a_timer_that_was_given_stays_open(bench):
    b = bench()
    b.tracker.close()
    rung: list[Any] = []
    b.timer.arm(10, rung.append)
    b.go_to(10)
    b.timer.fire()
    assert len(rung) == 1


def test_it_says_what_it_is(bench):
    b = bench()
    b.add((1, 1, 5000))
    assert repr(b.tracker) == "<InMemoryDelayedTracker: 1 delayed>"
    b.tracker.close()
    assert repr(b.tracker) == "<InMemoryDelayedTracker: 0 delayed, closed>"


# -- the cases of the reference page for the time index --------------------------------------------------------------


def test_index_case_17_order_and_what_is_due(bench):
    b = bench(tick_time_millis=1, strict=True)
    b.add(*((1, time, time) for time in (20, 10, 30, 50, 40)))
    b.go_to(15)
    assert b.tracker.pop_due() == [(1, 10)]
    assert b.add((1, 60, 10)) == [False]


def test_index_case_18_what_is_within_a_tick_is_refused(bench):
    b = bench(tick_time_millis=100)
    assert b.add(*((1, time, time) for time in (10, 99, 100, 101, 200))) == [False, False, False, True, True]


def test_index_case_19_strict_keys_and_alarms(bench):
    b = bench(tick_time_millis=1000, strict=True)
    b.add((1, 1, 60_400))
    assert (b.tracker.next_delivery(), b.timer.armed) == (60_416, [60_416])
    b.tracker.cancel(Position(1, 1))
    b.add((1, 2, 61_000))
    assert (b.tracker.next_delivery(), b.timer.armed) == (61_440, [61_440])


def test_index_case_20_not_strict(bench):
    b = bench(tick_time_millis=1000)
    b.add((1, 1, 60_400))
    assert b.tracker.next_delivery() == 59_904
    b.go_to(59_000)
    assert not b.tracker.has_message_available()
    b.go_to(59_415)
    assert b.tracker.has_message_available()


def test_index_case_21_one_bucket_in_pieces(bench):
    b = bench(tick_time_millis=1, strict=True)
    b.tracker.add_many([(1, 0), (1, 1), *((2, entry) for entry in range(5))], 10)
    b.go_to(10)
    pieces = [b.tracker.pop_due(limit) for limit in (4, 2, 10)]
    assert pieces == [[(1, 0), (1, 1), (2, 0), (2, 1)], [(2, 2), (2, 3)], [(2, 4)]]


def test_index_case_22_added_three_times(bench):
    b = bench(tick_time_millis=1, strict=True)
    assert b.add((1, 1, 10), (1, 1, 10), (1, 1, 10)) == [True] * 3
    assert b.tracker.count == 1


def test_index_case_23_ledgers_ascend(bench):
    b = bench(tick_time_millis=1, strict=True)
    b.add(*((ledger, 0, 10) for ledger in (4, 2, 5, 1, 3)))
    b.go_to(10)
    assert [b.tracker.pop_due(1) for _ in range(5)] == [[(ledger, 0)] for ledger in range(1, 6)]


def test_index_case_24_a_cancelled_alarm_rings_all_the_same(bench):
    b = bench(tick_time_millis=1, strict=True)
    b.add((1, 1, 100), (1, 2, 50))
    assert b.timer.fire_stale()
    assert b.timer.armed == [b.tracker.next_wake] == [50]


def test_the_first_of_many_that_were_cancelled(bench):
    """Looked for some at a time, not one after the other, and found."""
    at = bench()
    tracker = at.tracker
    waiting = np.arange(20_000)
    tracker.add_many((np.ones_like(waiting), waiting * 2), 10_000 + waiting // 4 * 1_000)
    for entry in range(19_990):
        assert tracker.cancel((1, 2 * entry))
    assert tracker.count == 10
    assert tracker.next_delivery() == tracker._scheduled._index.key(10_000 + 19_990 // 4 * 1_000)


def test_cancelled_and_added_again_scattered(bench):
    """The next delivery is that of what waits, and somebody is woken for it."""
    at = bench()
    tracker = at.tracker
    scattered = np.random.default_rng(1).permutation(3000) * 2
    ones = np.ones_like(scattered)
    tracker.add_many((ones, scattered), 10_000)
    for entry in scattered[200:].tolist():
        assert tracker.cancel((1, entry))
    tracker.add_many((ones, scattered), 90_000)
    assert tracker.count == 3000
    at.clock.advance(20)
    assert len(tracker.pop_due()) == 200
    assert tracker.next_delivery() > 80_000
    assert not tracker.has_message_available()
    assert tracker.pop_due() == []
    assert tracker.next_wake is not None


def test_numbers_of_numpy_are_numbers(bench):
    at = bench()
    tracker = at.tracker
    assert tracker.add((np.int64(1 << 33), np.int64(1)), 50_000)
    assert tracker.contains_message((1 << 33, 1))
    assert not tracker.contains_message((0, 1))
    assert tracker.add((0, 1), 50_000)
    assert tracker.count == 2
