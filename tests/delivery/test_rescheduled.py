"""Messages that are given another time than they say, and keep it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookstand.delivery.tracker import reschedule_log
from bookstand.delivery.tracker.reschedule_log import PROPERTY
from bookstand.errors import IncorrectParameterError
from bookstand.testing import Faults
from tests.delivery.bucket_kit import BucketBench, config_of, seq


@pytest.fixture
def bench(store_path: Path) -> Iterator[BucketBench]:
    bench = BucketBench(store_path)
    yield bench
    bench.end()


def ledger_of(bench: BucketBench) -> int | None:
    stored = bench.cursor.cursor_properties.get(PROPERTY)
    return None if stored is None else int(stored)


def ledgers_of_buckets(bench: BucketBench) -> list[int]:
    """And of what was rescheduled: all that are neither the topic's nor where the cursor keeps its state."""
    store, topic = bench.store, [ledger.ledger_id for ledger in bench.topic.ledgers]
    state = [one for one in store.list_ledgers() if "pulsar/cursor" in store.ledger_metadata(one).custom_metadata]
    return [one for one in store.list_ledgers() if one not in topic + state]


MUTABLE, LOADED, ON_DISK = (12, 12), (6, 6), (9, 9)
"""Of 12 messages, ten milliseconds apart and five to a bucket with a segment each: where each of them is."""


@pytest.mark.parametrize("position", [MUTABLE, LOADED, ON_DISK])
@pytest.mark.parametrize("time", [33, 500])
@pytest.mark.parametrize("restart", ["none", "close", "crash"])
def test_it_is_delivered_at_that_time_and_at_no_other(
    bench: BucketBench, position: tuple[int, int], time: int, restart: str
) -> None:
    bench.add(*seq(12))
    assert bench.tracker.reschedule(position, time)
    assert bench.tracker.count == 12
    if restart != "none":
        bench.restart() if restart == "close" else bench.crash()
        # What was in memory alone, the topic tells again, with the times that it knows.
        assert all(bench.add(*seq(12)))
    assert bench.tracker.count == 12
    assert bench.waiting()[position] == time
    given: dict[tuple[int, int], int] = {}
    moments = {10 * number for number in range(1, 13)} | {time}
    for now in sorted(moments | {moment - 1 for moment in moments}):
        bench.clock.advance((now - bench.now) / 1000)
        for one in bench.drain():
            assert tuple(one) not in given
            given[tuple(one)] = now
    assert given == {(number, number): 10 * number for number in range(1, 13)} | {position: time}
    assert bench.tracker.count == 0
    # With the last of them goes the ledger.
    assert ledger_of(bench) is None
    assert bench.snapshots == []
    assert ledgers_of_buckets(bench) == []


def test_what_is_not_tracked_has_no_time(bench: BucketBench) -> None:
    assert not bench.tracker.reschedule((1, 1), 50)
    bench.add((1, 1, 50))
    assert bench.tracker.cancel((1, 1))
    assert not bench.tracker.reschedule((1, 1), 50)
    assert ledger_of(bench) is None
    for wrong in [((1, -1), 5), ((1,), 5), ((1, 1), "soon")]:
        with pytest.raises(IncorrectParameterError):
            bench.tracker.reschedule(*wrong)


def test_a_time_that_has_come_is_due_at_once(bench: BucketBench) -> None:
    bench.add((1, 1, 500), (1, 2, 600))
    bench.tracker.reschedule((1, 2), -1)
    assert bench.tracker.has_message_available()
    assert bench.drain() == [(1, 2)]
    assert bench.drain() == []


def test_the_last_time_counts_and_the_alarm_follows(bench: BucketBench) -> None:
    bench.add((1, 1, 500))
    for time in (300, 700, 200):
        assert bench.tracker.reschedule((1, 1), time)
        assert bench.tracker.next_delivery() == time
        assert bench.timer.armed == [time]
    bench.crash()
    assert bench.waiting() == {(1, 1): 200}


def test_one_that_is_cancelled_stays_so_after_a_crash(bench: BucketBench) -> None:
    bench.add((1, 1, 500), (1, 2, 500))
    bench.tracker.reschedule((1, 1), 600)
    bench.tracker.reschedule((1, 2), 600)
    assert bench.tracker.cancel((1, 1))
    assert bench.tracker.cancel((1, 2))
    assert ledger_of(bench) is None
    bench.crash()
    assert bench.tracker.count == 0


def test_it_is_read_again_from_the_topic_when_it_is_due(bench: BucketBench) -> None:
    """Given an earlier time that passed while nobody was there: it must not wait for the time that it says."""
    bench.add((1, 1, 500))
    bench.tracker.reschedule((1, 1), 100)
    bench.clock.advance(0.2)
    bench.crash()
    assert bench.drain() == [(1, 1)]


def test_what_the_cursor_has_passed_does_not_come_back(bench: BucketBench) -> None:
    bench.add((1, 1, 500), (2, 1, 500))
    bench.tracker.reschedule((1, 1), 600)
    bench.tracker.reschedule((2, 1), 600)
    bench.stand(2, 0)
    bench.crash()
    assert bench.waiting() == {(2, 1): 600}


def test_clearing_takes_all_of_it(bench: BucketBench) -> None:
    bench.add((1, 1, 500))
    bench.tracker.reschedule((1, 1), 600)
    assert ledger_of(bench) is not None
    bench.tracker.clear()
    assert ledger_of(bench) is None
    bench.crash()
    assert bench.tracker.count == 0
    assert bench.add((1, 1, 500)) == [True]
    assert bench.waiting() == {(1, 1): 500}


def test_the_ledger_does_not_grow_with_the_number_of_changes(
    bench: BucketBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reschedule_log, "_MIN_OBSOLETE", 100)
    bench.add((1, 1, 5000), (1, 2, 5000))
    ledgers = set()
    for time in range(300):
        bench.tracker.reschedule((1, time % 2 + 1), 6000 + time)
        ledgers.add(ledger_of(bench))
    assert 1 < len(ledgers) < 5
    assert set(bench.store.list_ledgers()) & ledgers == {ledger_of(bench)}
    bench.crash()
    assert bench.waiting() == {(1, 1): 6298, (1, 2): 6299}


def test_times_that_cannot_be_read_are_told(bench: BucketBench) -> None:
    bench.add(*seq(6))
    bench.tracker.reschedule((3, 3), 700)
    lost = ledger_of(bench)
    assert lost is not None
    bench.store.delete_ledger(lost)
    bench.crash()
    assert "times of rescheduled messages are lost" in bench.tracker.problems[0]
    assert bench.waiting()[3, 3] == 30
    # And it works again.
    assert bench.tracker.reschedule((3, 3), 800)
    bench.crash()
    assert not bench.tracker.problems
    assert bench.waiting()[3, 3] == 800


def test_one_that_cannot_be_written_keeps_its_time(store_path: Path) -> None:
    faults = Faults()
    bench = BucketBench(store_path, hooks=faults)
    bench.add((1, 1, 500))
    faults.disk_full()
    with pytest.raises(Exception, match=r"full|space|bookie"):
        bench.tracker.reschedule((1, 1), 600)
    assert bench.waiting() == {(1, 1): 500}
    faults.free_space()
    assert bench.tracker.reschedule((1, 1), 600)
    bench.end()


@pytest.mark.parametrize("seed", range(12))
def test_against_a_plain_dictionary(store_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    bench = BucketBench(store_path, config_of(4, 20, 3, 3))
    waiting: dict[tuple[int, int], int] = {}
    given = []
    ledger = 0
    for _ in range(250):
        kind = chance.choice(["add", "add", "add", "time", "time", "reschedule", "reschedule", "cancel", "restart"])
        if kind == "add":
            ledger += chance.random() < 0.6
            position, time = (ledger, len(bench.messages)), bench.now + chance.randrange(1, 200)
            assert bench.add((*position, time)) == [True]
            waiting[position] = time
        elif kind == "time":
            bench.clock.advance(chance.randrange(40) / 1000)
            due = sorted(one for one, time in waiting.items() if time <= bench.now)
            assert sorted(bench.drain()) == due
            for one in due:
                del waiting[one]
            given += due
        elif kind == "reschedule" and waiting:
            position = chance.choice(sorted(waiting))
            waiting[position] = bench.now + chance.randrange(1, 300)
            assert bench.tracker.reschedule(position, waiting[position])
        elif kind == "cancel" and waiting:
            position = chance.choice(sorted(waiting))
            del waiting[position]
            assert bench.tracker.cancel(position)
        elif kind == "restart" and chance.random() < 0.5:
            chance.choice([bench.restart, bench.crash])()
            # The topic tells of what is not acknowledged: here of what waits, with the times it said at first.
            bench.add(*((*one, bench.messages[one]) for one in waiting if bench.messages[one] > bench.now))
            for one in set(bench.waiting()) - set(waiting):
                # Delivered or cancelled, and in a snapshot still: the cursor knows that it is acknowledged.
                bench.tracker.cancel(one)
            for one in set(waiting) - set(bench.waiting()):
                # Due by what the topic says, while it had been given a later time: it has that.
                raise AssertionError(f"{one} is lost")
        assert bench.waiting() == waiting
    bench.end()
