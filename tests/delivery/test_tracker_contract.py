"""What every tracker of delayed messages does. Cases are those of the reference page for delayed delivery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

from bookstand.delivery.tracker.protocol import DelayedTracker, TrackerClosedError
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from tests.delivery.bucket_kit import in_buckets
from tests.delivery.kit import TRACKERS, Bench
from tests.delivery.shared_kit import in_shared_index

FAR = 10_000
LARGEST = (1 << 63) - 1


MAKERS = {**TRACKERS, "in buckets": in_buckets, "in a shared index": in_shared_index}
# Whoever shares an index leaves to the others what it does not want itself.
of_its_own = pytest.mark.parametrize("bench", [*TRACKERS, "in buckets"], indirect=True)


@pytest.fixture(params=list(MAKERS))
def bench(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(start: int = 0, tick_time_millis: int = 1, strict: bool = True, **settings: Any) -> Bench:
        one = Bench(MAKERS[request.param], start, tick_time_millis=tick_time_millis, strict=strict, **settings)
        made.append(one)
        return one

    yield make
    for one in made:
        one.end()


def conforms(tracker: DelayedTracker) -> DelayedTracker:
    """For the type checker."""
    return tracker


# -- what is due -----------------------------------------------------------------------------------------------------


def test_case_1_the_earliest_first(bench):
    b = bench(strict=False)
    t = b.tracker
    assert not t.has_message_available()
    assert b.add((1, 2, 20), (2, 1, 10), (3, 3, 30), (4, 5, 50), (5, 4, 40)) == [True] * 5
    assert not t.has_message_available()
    assert t.pop_due(10) == []
    assert t.next_delivery() == 10
    b.go_to(15)
    assert b.add((6, 6, 10)) == [False]
    assert t.has_message_available()
    assert t.pop_due(10) == [(2, 1)]
    b.go_to(60)
    assert t.pop_due(1) == [(1, 2)]
    assert t.pop_due(3) == [(3, 3), (4, 5), (5, 4)]
    assert t.count == len(t) == 0
    assert not t.has_message_available()
    assert t.next_delivery() is None


def test_case_2_within_one_tick_is_due(bench):
    b = bench(tick_time_millis=100, strict=False)
    messages = [(1, 1, 10), (2, 2, 99), (3, 3, 100), (4, 4, 101), (5, 5, 200)]
    assert b.add(*messages) == [False, False, False, True, True]
    assert b.tracker.count == 2


def test_case_3_strict_the_cutoff_is_now(bench):
    b = bench(tick_time_millis=100)
    b.go_to(10)
    assert b.add((1, 1, 9), (2, 2, 10), (3, 3, 11)) == [False, False, True]
    assert not b.tracker.has_message_available()
    assert b.tracker.pop_due(5) == []


def test_case_6_added_again_when_due_it_is_not_tracked_any_more(bench):
    b = bench(start=1000)
    assert b.add((1, 1, 2000)) == [True]
    b.go_to(2500)
    assert b.add((1, 1, 2000)) == [False]
    if b.own:
        assert b.tracker.count == 0
    assert not b.tracker.contains_message(Position(1, 1))
    assert b.tracker.pop_due(5) == []


@pytest.mark.parametrize("many", [False, True])
def test_case_6_also_with_another_time(bench, many):
    b = bench(start=1000)
    b.add((1, 1, 2000), (1, 2, 3000))
    if many:
        assert b.tracker.add_many([(1, 1), (1, 3)], 1000).tolist() == [False, False]
    else:
        assert b.add((1, 1, 1000)) == [False]
    if b.own:
        assert b.tracker.count == 1
        assert b.tracker.next_delivery() == 3000
    b.go_to(4000)
    assert b.tracker.pop_due() == [(1, 2)]


def test_case_7_the_same_position_again_counts_once(bench):
    b = bench()
    assert b.add((1, 1, 100), (1, 1, 100), (1, 1, 100)) == [True] * 3
    assert b.tracker.count == 1
    assert b.tracker.cancel(Position(1, 1)) is True
    assert b.tracker.cancel(Position(1, 1)) is False
    if b.own:
        assert b.tracker.count == 0
    b.go_to(100)
    assert b.tracker.pop_due() == []


@pytest.mark.parametrize("many", [False, True])
def test_under_two_times_a_position_keeps_the_first(bench, many):
    b = bench()
    if many:
        assert b.tracker.add_many([(1, 1), (1, 1), (1, 1)], [300, 100, 500]).all()
    else:
        b.add((1, 1, 300), (1, 1, 100), (1, 1, 500))
    assert b.tracker.count == 1
    assert b.tracker.next_delivery() == 300
    b.go_to(200)
    assert b.tracker.pop_due() == []
    b.go_to(600)
    assert b.tracker.pop_due() == [(1, 1)]
    assert b.tracker.pop_due() == []


def test_negative_times_are_due(bench):
    b = bench()
    assert b.add((1, 1, -1), (1, 2, -LARGEST)) == [False, False]
    assert b.tracker.add_many([(1, 1), (1, 2)], [-1, 50]).tolist() == [False, True]


def test_positions_come_in_their_order_whatever_their_times(bench):
    b = bench()
    b.add((3, 1, 10), (2, 9, 20), (2, 1, 30), (1, 5, 40))
    b.go_to(50)
    assert b.tracker.pop_due(3) == [(2, 1), (2, 9), (3, 1)]
    assert b.tracker.pop_due(0) == []
    assert b.tracker.pop_due(3) == [(1, 5)]


def test_what_comes_out_are_positions(bench):
    b = bench()
    b.add((1, 1, 10))
    b.go_to(10)
    (position,) = b.tracker.pop_due()
    assert isinstance(position, Position)
    assert [type(number) for number in position] == [int, int]


# -- many ------------------------------------------------------------------------------------------------------------


def test_columns_and_positions_are_the_same(bench):
    one, other = bench(), bench()
    positions = [(1, 5), (2, 7), (1, 6), (3, 1)]
    times = [100, 0, 300, 200]
    ledgers, entries = np.array(positions).T
    answers = one.tracker.add_many(positions, times)
    assert answers.dtype == np.bool_
    assert answers.tolist() == [True, False, True, True]
    assert other.tracker.add_many((ledgers, entries), np.array(times)).tolist() == answers.tolist()
    for b in (one, other):
        assert b.tracker.contains_many(ledgers, entries).tolist() == [True, False, True, True]
        assert b.tracker.next_delivery() == 100
        b.go_to(250)
        assert b.tracker.pop_due() == [(1, 5), (3, 1)]
        assert b.tracker.contains_many(ledgers, entries).tolist() == [False, False, True, False]
        assert b.tracker.count == 1


def test_one_time_for_all(bench):
    b = bench()
    assert b.tracker.add_many([(1, entry) for entry in range(1000)], 500).all()
    assert b.tracker.count == 1000
    b.go_to(500)
    assert b.tracker.pop_due(10) == [(1, entry) for entry in range(10)]
    assert len(b.tracker.pop_due()) == 990


def test_none_of_them(bench):
    b = bench()
    assert b.tracker.add_many([], []).tolist() == []
    assert b.tracker.add_many([], 5).tolist() == []
    empty = np.empty(0, dtype=np.int64)
    assert b.tracker.contains_many(empty, empty).tolist() == []
    assert b.tracker.count == 0


def test_contains_and_count_over_many_ledgers(bench):
    b = bench()
    ledgers = np.repeat(np.arange(40), 100)
    entries = np.tile(np.arange(0, 200, 2), 40)
    b.tracker.add_many((ledgers, entries), FAR)
    assert b.tracker.count == 4000
    assert b.tracker.contains_many(ledgers, entries).all()
    assert not b.tracker.contains_many(ledgers, entries + 1).any()
    assert not b.tracker.contains_many(ledgers + 40, entries).any()
    order = np.random.default_rng(1).permutation(4000)
    mixed = np.where(order % 2 == 0, entries, entries + 1)[order]
    assert b.tracker.contains_many(ledgers[order], mixed).tolist() == (order % 2 == 0)[order].tolist()
    assert b.tracker.contains_message(Position(39, 198))
    assert not b.tracker.contains_message(Position(39, 199))


# -- cancelling, clearing, closing -------------------------------------------------------------------------------------


def test_cancelled_it_is_not_delivered_and_may_come_back(bench):
    b = bench()
    b.add((1, 1, 100), (1, 2, 100), (1, 3, 300))
    assert b.tracker.cancel(Position(1, 1))
    assert not b.tracker.cancel(Position(9, 9))
    if b.own:
        assert b.tracker.count == 2
    assert not b.tracker.contains_message(Position(1, 1))
    assert b.tracker.cancel(Position(1, 2))
    if b.own:
        assert b.tracker.next_delivery() == 300
    b.go_to(200)
    if b.own:
        assert not b.tracker.has_message_available()
    assert b.tracker.pop_due() == []
    assert b.add((1, 1, 400)) == [True]
    assert b.tracker.count == 2
    b.go_to(350)
    assert b.tracker.pop_due() == [(1, 3)]
    b.go_to(400)
    assert b.tracker.pop_due() == [(1, 1)]


def test_a_limit_counts_only_what_comes_out(bench):
    b = bench()
    b.tracker.add_many([(1, entry) for entry in range(100)], 100)
    for entry in range(0, 100, 3):
        assert b.tracker.cancel(Position(1, entry))
    b.go_to(100)
    kept = [(1, entry) for entry in range(100) if entry % 3]
    assert b.tracker.pop_due(20) == kept[:20]
    assert b.tracker.pop_due(1000) == kept[20:]


@of_its_own
def test_clear(bench):
    b = bench()
    b.add((1, 1, 100), (2, 2, 200))
    b.tracker.clear()
    assert b.tracker.count == 0
    assert b.tracker.next_delivery() is None
    assert not b.tracker.contains_message(Position(1, 1))
    assert b.timer.armed == []
    b.add((1, 1, 300))
    b.go_to(250)
    assert b.tracker.pop_due() == []
    b.go_to(300)
    assert b.tracker.pop_due() == [(1, 1)]


@of_its_own
def test_closed_it_takes_nothing_and_wakes_nobody(bench):
    b = bench()
    b.add((1, 1, 100))
    b.tracker.close()
    b.tracker.close()
    assert b.timer.armed == []
    b.go_to(200)
    b.timer.fire_stale()
    assert b.woken == []
    with pytest.raises(TrackerClosedError, match="closed"):
        b.add((1, 2, 300))
    with pytest.raises(TrackerClosedError, match="closed"):
        b.tracker.add_many([(1, 2)], 300)


# -- timers ----------------------------------------------------------------------------------------------------------


def test_case_4_one_alarm_for_the_earliest(bench):
    b = bench()
    b.add((2, 2, 20))
    assert b.timer.armed == [20]
    b.add((1, 1, 10))
    assert b.timer.armed == [10]
    b.add((3, 3, 30))
    assert b.timer.armed == [10]
    b.go_to(10)
    assert b.fire() == 1
    assert b.timer.armed == []
    assert b.tracker.pop_due() == [(1, 1)]
    assert b.timer.armed == [20]


def test_case_5_no_more_than_one_wake_in_a_tick(bench):
    b = bench(start=9000, tick_time_millis=1000)
    b.add((1, 1, 9500))
    b.run_to(10_500)
    (ran,) = b.woken
    assert b.tracker.pop_due() == [(1, 1)]
    b.add((2, 2, b.now + 1))
    (armed,) = b.timer.armed
    assert armed >= ran + 1000
    b.go_to(max(b.now, ran + 600))
    assert b.fire() == 0
    b.go_to(armed)
    assert b.fire() == 1
    assert b.tracker.pop_due() == [(2, 2)]


def test_case_55_a_stale_alarm_leaves_the_newer_one(bench):
    b = bench()
    b.add((1, 1, 100), (2, 2, 50))
    assert b.timer.armed == [50]
    b.go_to(20)
    assert b.timer.fire_stale()
    assert b.timer.armed == [50]
    b.go_to(50)
    assert b.fire() == 1
    assert b.tracker.pop_due(5) == [(2, 2)]
    b.go_to(100)
    assert b.fire() == 1
    assert b.tracker.pop_due(5) == [(1, 1)]
    assert b.tracker.count == 0


@of_its_own
def test_what_is_taken_out_takes_its_alarm_along(bench):
    b = bench()
    b.add((1, 1, 100))
    b.go_to(150)
    assert b.tracker.pop_due() == [(1, 1)]
    assert b.timer.armed == []
    b.add((1, 2, 300))
    b.tracker.cancel(Position(1, 2))
    assert b.timer.armed == []


@of_its_own
def test_the_alarm_of_one_that_was_cancelled_is_set_anew(bench):
    b = bench()
    b.add((1, 1, 100), (1, 2, 300))
    b.tracker.cancel(Position(1, 1))
    b.run_to(100)
    assert not b.tracker.has_message_available()
    assert b.timer.armed == [300]
    assert b.tracker.next_delivery() == 300


def test_wake_is_called_without_a_lock(bench):
    b = bench()
    seen: list[int] = []

    def ask() -> None:
        # In another thread, which would wait for a lock of this one.
        asking = Thread(target=lambda: seen.append(b.tracker.count))
        asking.start()
        asking.join(20)

    b.on_wake = ask
    b.add((1, 1, 10))
    b.run_to(10)
    assert seen == [1]


def test_wake_may_use_the_tracker(bench):
    b = bench()
    given: list[Position] = []

    def serve() -> None:
        given.extend(b.tracker.pop_due())
        if len(given) < 5:
            b.add((1, len(given), b.now + 10))

    b.on_wake = serve
    b.add((1, 0, 10))
    b.run_to(1000)
    assert given == [(1, entry) for entry in range(5)]
    assert b.woken == [10, 20, 30, 40, 50]


# -- arguments -------------------------------------------------------------------------------------------------------

WRONG_POSITIONS = [(-1, 0), (0, -1), (1 << 63, 0), (0, 1 << 63), (1.5, 2), ("1", 2), (1,), (1, 2, 3), None, 7]


@pytest.mark.parametrize("position", WRONG_POSITIONS)
def test_wrong_positions(bench, position):
    t = bench().tracker
    for call in (lambda: t.add(position, FAR), lambda: t.contains_message(position), lambda: t.cancel(position)):
        with pytest.raises(IncorrectParameterError, match="position"):
            call()
    with pytest.raises(IncorrectParameterError):
        t.add_many([position], FAR)
    with pytest.raises(IncorrectParameterError):
        t.add_many([(1, 1), position], FAR)
    assert t.count == 0
    assert t.next_delivery() is None


@pytest.mark.parametrize("time", [1.5, "1", None, 1 << 63, -(1 << 63) - 1, True])
def test_wrong_times(bench, time):
    t = bench().tracker
    with pytest.raises(IncorrectParameterError):
        t.add(Position(1, 1), time)
    with pytest.raises(IncorrectParameterError):
        t.add_many([(1, 1)], [time])
    assert t.count == 0


def test_wrong_columns(bench):
    t = bench().tracker
    column = np.arange(3)
    for positions, times in [
        ((column, column[:2]), FAR),
        ((column, column), [1, 2]),
        ((column - 1, column), FAR),
        ((column.astype(float), column), FAR),
        ((column.astype(np.uint64) + np.uint64(1 << 63), column), FAR),
        (7, FAR),
    ]:
        with pytest.raises(IncorrectParameterError):
            t.add_many(positions, times)
    with pytest.raises(IncorrectParameterError):
        t.contains_many(column, column[:2])
    assert t.count == 0


@pytest.mark.parametrize("limit", [-1, 1.5, "1"])
def test_wrong_limits(bench, limit):
    with pytest.raises(IncorrectParameterError, match="limit"):
        bench().tracker.pop_due(limit)


# -- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_case_50_eight_readers_and_eight_writers(bench, counts):
    """Every position that was accepted comes out once, whoever takes it out."""
    b = bench(start=1000)
    t = b.tracker
    each, due = 300, 1100
    accepted: list[Position] = []
    out: list[Position] = []
    errors: list[BaseException] = []
    writing = list(range(8))

    def guarded(work: Callable[[int], None], number: int) -> Thread:
        def run() -> None:
            try:
                work(number)
            except BaseException as error:
                errors.append(error)

        return Thread(target=run)

    def write(number: int) -> None:
        for entry in range(0, each, 3):
            if t.add(Position(number, entry), due + entry % 50):
                accepted.append(Position(number, entry))
            others = [Position(number, entry + 1), Position(number, entry + 2)]
            mask = t.add_many(others, due + 50)
            accepted.extend(one for one, taken in zip(others, mask, strict=True) if taken)
        writing.remove(number)

    def read(number: int) -> None:
        while writing:
            out.extend(t.pop_due(20))
            assert t.count >= 0
            t.contains_message(Position(number, 5))
            t.contains_many(np.full(10, number), np.arange(10))
            t.next_delivery()
            t.has_message_available()

    threads = [guarded(work, number) for number in range(8) for work in (write, read)]
    for thread in threads:
        thread.start()
    # Meanwhile time passes with the work, and more and more is due.
    while writing:
        b.go_to(max(b.now, due - 50 + 90 * len(accepted) // (8 * each)))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors
    b.go_to(due + 100)
    out += t.pop_due()
    assert len(out) == len(accepted)
    assert sorted(out) == sorted(accepted)
    assert t.count == 0
    counts.add("delayed_messages_between_threads", len(out))
