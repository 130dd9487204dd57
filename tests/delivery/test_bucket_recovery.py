"""What a tracker on buckets begins with: properties and snapshots, sound or not. What is lost the topic tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.tracker.bucket.key import PREFIX, BucketKey, BucketLabels, bucket_key
from bookstand.delivery.tracker.bucket.rebuild import topic_rebuilder
from bookstand.delivery.tracker.bucket.recovery import subtract_ranges
from bookstand.delivery.tracker.bucket.registry import CursorBucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.errors import (
    BookieHandleNotAvailableError,
    DigestMismatchError,
    NoSuchEntryError,
    ReadError,
    StoreDamagedError,
)
from bookstand.storage.format.position import Position
from bookstand.testing import Faults
from tests.delivery.bucket_kit import CURSOR, TOPIC, BucketBench, config_of, positions, seq

Desk = Callable[..., BucketBench]


@pytest.fixture
def faults() -> Iterator[Faults]:
    with Faults() as one:
        yield one


@pytest.fixture
def desk(tmp_path: Path, faults: Faults) -> Iterator[Desk]:
    made: list[BucketBench] = []

    def make(*figures: int, rebuild: bool = True, **settings: Any) -> BucketBench:
        path = tmp_path / f"store{len(made)}"
        made.append(BucketBench(path, config_of(*figures, **settings), rebuild=rebuild, hooks=faults))
        return made[-1]

    yield make
    for one in made:
        one.check_stored()
        one.end()


# -- properties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_1", "_1_2_3", "_9_6", "_a_b", "_-1_5", "", "_01_5", "_6_9999999999999999999"])
def test_a_name_that_is_no_range(desk: Desk, name: str) -> None:
    b = desk()
    b.add(*seq(6))
    b.set_property(PREFIX + name, "7")
    b.restart()
    assert b.ranges == [(1, 5)]
    assert b.tracker.count == 5
    (problem,) = b.tracker.problems
    assert PREFIX + name in problem
    assert list(b.cursor.cursor_properties) == [bucket_key(1, 5)]


@pytest.mark.parametrize("value", ["x", "-1", "", "9223372036854775808", "1.0", "٣"])
def test_a_value_that_is_no_ledger(desk: Desk, value: str) -> None:
    """The snapshot, of which nobody tells any more, goes."""
    b = desk()
    b.add(*seq(11))
    b.set_property(bucket_key(1, 5), value)
    assert len(b.snapshots) == 2
    b.restart()
    assert b.ranges == [(6, 10)]
    assert bucket_key(1, 5) in b.tracker.problems[0]
    b.check_stored()
    b.add(*seq(11))
    assert b.tracker.count == 11


def test_other_properties_stay(desk: Desk) -> None:
    b = desk()
    b.set_property("mine", "x")
    b.set_property("#pulsar.internal.other", "y")
    b.set_property(PREFIX + "_x", "z")
    b.restart()
    assert b.cursor.cursor_properties == {"mine": "x", "#pulsar.internal.other": "y"}


@pytest.mark.parametrize("order", list(permutations([(1, 10), (6, 15), (12, 20)])))
def test_ranges_that_lie_across_one_another(desk: Desk, order: list[tuple[int, int]]) -> None:
    b = desk()
    b.messages = {message[:2]: message[2] for message in seq(20)}
    for first, last in order:
        b.write_bucket(first, last, [(n, n, 10 * n) for n in range(first, last + 1)])
    b.restart()
    assert (1, 10) in b.ranges
    assert all(one[1] < other[0] for one in b.ranges for other in b.ranges if one < other)
    assert b.tracker.count == 20
    assert b.tracker.problems
    b.check_stored()
    b.go_to(1000)
    assert b.drain(3) == positions(1, 20)


ranges = st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1]))


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(found=st.lists(ranges, max_size=6, unique=True), lost=st.sets(st.integers(0, 5)), now=st.integers(0, 150))
def test_whatever_the_ranges_are(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[int, int]], lost: set[int], now: int
) -> None:
    b = BucketBench(tmp_path_factory.mktemp("store") / "s", config_of())
    b.messages = {(n, n): 10 * n for n in range(20)}
    for number, (first, last) in enumerate(found):
        bucket_id = b.write_bucket(first, last, [(n, n, 10 * n) for n in range(first, last + 1)])
        if number in lost:
            b.storage.delete(bucket_id)
    b.go_to(now)
    b.restart()
    b.check_stored()
    told = {n for first, last in found for n in range(first, last + 1) if 10 * n > now}
    tracked = {ledger for ledger, _ in b.waiting()}
    assert told <= tracked
    assert b.tracker.count == len(tracked)
    b.go_to(1000)
    assert b.drain() == [(n, n) for n in sorted(tracked)]
    assert b.snapshots == []
    b.end()


# -- whose ledger it is ----------------------------------------------------------------------------------------------


def test_the_ledger_of_a_topic_is_not_deleted(desk: Desk) -> None:
    b = desk()
    data = b.topic.framed(b"precious")
    position = b.topic.append_entry(data)
    b.set_property(bucket_key(1, 5), str(position.ledger_id))
    b.restart()
    assert len(b.tracker.problems) == 1
    assert b.properties == {}
    assert [entry.data for entry in b.topic.read(position, 1)] == [data]


def test_a_ledger_of_somebody_is_not_deleted(desk: Desk) -> None:
    b = desk()
    with b.store.create_ledger(1, 1, 1, digest="crc32c", password=b"") as writer:
        writer.append(b"precious")
    b.set_property(bucket_key(1, 5), str(writer.id))
    b.restart()
    assert len(b.tracker.problems) == 1
    assert b.properties == {}
    assert b.store.open_ledger(writer.id).read(0, 0)[0].data == b"precious"


@pytest.mark.parametrize("enclosed", [False, True])
def test_a_snapshot_of_another_cursor_is_neither_used_nor_deleted(desk: Desk, enclosed: bool) -> None:
    """As when properties are copied."""
    b = desk()
    sealed = seal(Indexes.of([990], [3], [3]), 10)
    theirs = b.storage.create(sealed.entries, BucketLabels(bucket_key(1, 5), TOPIC, "another"))
    b.set_property(bucket_key(1, 5), str(theirs))
    if enclosed:
        b.write_bucket(1, 6, seq(6))
    b.restart()
    assert len(b.tracker.problems) == 1
    assert b.ranges == ([(1, 6)] if enclosed else [])
    assert not b.tracker.contains_message(Position(3, 3)) or enclosed
    b.tracker.clear()
    assert b.storage.read_metadata(theirs)


# -- damage ----------------------------------------------------------------------------------------------------------


def truncated(b: BucketBench, first: int, last: int) -> None:
    """A snapshot that is cut short."""
    sealed = seal(Indexes.of(*zip(*((10 * n, n, n) for n in range(first, last + 1)), strict=True)), 10)
    key = bucket_key(first, last)
    b.set_property(key, str(b.storage.create(sealed.entries[:1], BucketLabels(key, b.home.topic, b.home.cursor))))


def scrambled(b: BucketBench, first: int, last: int) -> None:
    """Whole entries that are no snapshot."""
    key = bucket_key(first, last)
    labels = BucketLabels(key, b.home.topic, b.home.cursor)
    b.set_property(key, str(b.storage.create([b"\xff" * 9, b"\x00"], labels)))


def empty(b: BucketBench, first: int, last: int) -> None:
    key = bucket_key(first, last)
    b.set_property(key, str(b.storage.create([], BucketLabels(key, b.home.topic, b.home.cursor))))


@pytest.mark.parametrize("damage", [scrambled, empty])
def test_metadata_that_is_damaged(desk: Desk, damage: Callable[[BucketBench, int, int], None]) -> None:
    b = desk()
    b.add(*seq(5))
    damage(b, 6, 10)
    b.messages.update({message[:2]: message[2] for message in seq(10, 6)})
    b.write_bucket(11, 15, seq(15, 11))
    b.restart()
    assert len(b.tracker.problems) == 1
    assert b.rebuilt == [(6, 10)]
    assert sorted(b.waiting()) == positions(6, 15)
    b.check_stored()
    b.go_to(1000)
    assert b.drain() == positions(6, 15)


def test_segments_that_are_damaged(desk: Desk) -> None:
    """It shows when they are due: what waits is delivered, and only that."""
    b = desk()
    b.write_bucket(6, 10, seq(10, 6))
    b.messages.update({message[:2]: message[2] for message in seq(10, 6)})
    truncated(b, 1, 5)
    b.messages.update({message[:2]: message[2] for message in seq(5)})
    # Of what the snapshot does not tell nothing is known.
    b.messages[3, 99] = 40
    b.restart()
    assert b.tracker.count == 10
    assert b.tracker.problems == []
    assert b.tracker.cancel(Position(2, 2))
    b.go_to(30)
    assert b.drain() == [(1, 1), (3, 3)]
    assert len(b.tracker.problems) == 1
    assert b.rebuilt == [(1, 5)]
    assert b.tracker.count == 7
    assert sorted(b.waiting()) == [(4, 4), (5, 5), *positions(6, 10)]
    b.check_stored()
    b.go_to(100)
    assert b.drain() == positions(4, 10)
    assert b.tracker.count == 0


@pytest.mark.parametrize("error", [DigestMismatchError, NoSuchEntryError, StoreDamagedError])
def test_an_entry_that_cannot_be_read(desk: Desk, faults: Faults, error: type[Exception]) -> None:
    b = desk()
    b.add(*seq(11))
    b.restart()
    bucket = b.tracker.buckets[0]
    damage = faults.fail("read", error=error, ledger=bucket.bucket_id, entry=2, times=None)
    b.go_to(20)
    # What is due is late by nothing, though its segment is lost.
    assert b.drain() == [(1, 1), (2, 2)]
    assert b.ranges == [(1, 5), (6, 10)]
    assert bucket.bucket_id not in b.snapshots
    assert b.times() == [[10], [20], [30], [40], [50]]
    assert b.tracker.count == 8
    assert len(b.tracker.problems) == 1
    faults.remove(damage)
    b.go_to(100)
    assert b.drain() == positions(3, 10)


def test_damage_that_shows_when_buckets_are_merged(desk: Desk, faults: Faults) -> None:
    b = desk(5, 10, -1, 2)
    b.add(*seq(11))
    lost = b.tracker.buckets[0].bucket_id
    damage = faults.fail("read", error=DigestMismatchError, ledger=lost, times=None)
    b.add(*seq(21, 12))
    faults.remove(damage)
    assert len(b.tracker.problems) == 1
    assert len(b.ranges) <= 2
    assert sorted(b.waiting()) == positions(1, 21)
    assert lost not in b.snapshots
    b.go_to(1000)
    assert b.drain() == positions(1, 21)


def missing(b: BucketBench, first: int, last: int) -> None:
    b.storage.delete(b.write_bucket(first, last, [(n, n, 10 * n) for n in range(first, last + 1)]))


@pytest.mark.parametrize("damage", [missing, scrambled, empty, truncated])
def test_what_was_rebuilt_is_not_rebuilt_again(desk: Desk, damage: Callable[[BucketBench, int, int], None]) -> None:
    b = desk()
    b.add(*seq(5))
    b.messages.update({message[:2]: message[2] for message in seq(15, 6)})
    damage(b, 6, 10)
    b.write_bucket(11, 15, seq(15, 11))
    b.restart()
    b.go_to(60)
    # A snapshot that is short shows it here, the others from the start.
    given = b.drain()
    assert given == [(6, 6)]
    assert len(b.tracker.problems) == 1
    assert b.rebuilt == [(6, 10)]
    assert b.ranges == [(6, 10), (11, 15)]
    b.check_stored()
    waiting = b.waiting()
    assert sorted(waiting) == positions(7, 15)
    for begin in (b.restart, b.crash):
        begin()
        assert b.tracker.problems == []
        assert b.rebuilt == [(6, 10)]
        assert b.waiting() == waiting
    b.go_to(1000)
    assert b.drain() == positions(7, 15)


def test_what_is_rebuilt_has_the_times_that_were_given(desk: Desk) -> None:
    """And has not what was cancelled, as long as that is known."""
    b = desk()
    b.add(*seq(11))
    assert b.tracker.reschedule(Position(4, 4), 300)
    assert b.tracker.cancel(Position(3, 3))
    b.storage.delete(b.tracker.buckets[0].bucket_id)
    b.go_to(20)
    assert b.drain() == positions(1, 2)
    assert b.ranges == [(1, 5), (6, 10)]
    assert b.segments() == [[(1, 1, 10)], [(2, 2, 20)], [(5, 5, 50)], [(4, 4, 300)]]
    b.restart()
    assert b.tracker.problems == []
    b.go_to(200)
    assert b.drain() == positions(5, 10)
    b.go_to(300)
    assert b.drain() == [(4, 4)]


def test_what_lies_across_is_sealed_where_no_other_is(desk: Desk) -> None:
    b = desk()
    b.messages = {message[:2]: message[2] for message in seq(40)}
    for first, last in ((1, 10), (6, 30), (15, 20), (28, 40)):
        b.write_bucket(first, last, [(n, n, 10 * n) for n in range(first, last + 1)])
    b.restart()
    assert b.tracker.problems
    assert b.ranges == [(1, 10), (11, 14), (15, 20), (21, 27), (28, 40)]
    b.check_stored()
    b.restart()
    assert b.tracker.problems == []
    assert b.waiting() == b.messages
    b.go_to(1000)
    assert b.drain() == positions(1, 40)


@pytest.mark.parametrize("others", [[], [(1, 3)], [(4, 9)], [(6, 7)], [(1, 5), (7, 7), (9, 20)], [(1, 20)], [(11, 12)]])
def test_parts_of_a_range(others: list[tuple[int, int]]) -> None:
    parts = subtract_ranges(BucketKey(4, 10), [BucketKey(*one) for one in reversed(others)])
    free = [n for n in range(4, 11) if not any(first <= n <= last for first, last in others)]
    assert [n for first, last in parts for n in range(first, last + 1)] == free
    assert all(one.last_ledger + 1 < other.first_ledger for one, other in pairwise(parts))


def test_where_nothing_can_be_read_it_is_not_sealed_for_ever(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add(*seq(11))
    b.restart()
    b.add(*seq(11))
    damage = faults.fail("read", error=DigestMismatchError, times=None)
    b.go_to(1000)
    assert b.drain() == positions(1, 11)
    faults.remove(damage)
    assert len(b.tracker.problems) == 4
    assert (b.tracker.count, b.ranges) == (0, [])


def test_what_cannot_be_sealed_again_now_is_at_the_next_start(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add(*seq(11))
    b.storage.delete(b.tracker.buckets[0].bucket_id)
    failures = []
    b.before_tracker = lambda: failures.append(faults.fail("commit", error=BookieHandleNotAvailableError, times=None))
    b.restart()
    faults.remove(failures[0])
    assert b.ranges == [(6, 10)]
    assert sorted(b.waiting()) == positions(1, 10)
    b.before_tracker = lambda: None
    b.restart()
    assert b.rebuilt == [(1, 5), (1, 5)]
    assert b.ranges == [(1, 5), (6, 10)]
    b.restart()
    assert b.rebuilt == [(1, 5), (1, 5)]
    assert b.tracker.count == 10


def test_what_the_topic_does_not_tell_either_is_not_tracked(desk: Desk) -> None:
    """So that nothing is passed over for ever as if it were to come."""
    b = desk(rebuild=False)
    truncated(b, 1, 5)
    b.write_bucket(6, 10, seq(10, 6))
    b.restart()
    b.add((3, 99, 45), (8, 99, 45))
    assert b.tracker.count == 12
    b.go_to(40)
    assert b.drain() == []
    assert b.ranges == [(6, 10)]
    b.go_to(50)
    assert b.drain() == [(3, 99), (8, 99)]
    assert b.tracker.count == 5
    assert not b.tracker.contains_message(Position(2, 2))
    assert b.add((2, 2, 500)) == [True]
    b.go_to(500)
    assert b.drain() == [(2, 2), *positions(6, 10)]


def test_a_topic_that_cannot_be_read_now(desk: Desk) -> None:
    b = desk()
    truncated(b, 1, 5)
    b.messages.update({message[:2]: message[2] for message in seq(5)})
    b.restart()
    refusals = iter(range(4))
    tell = b.read_topic

    def refuse(first: int, last: int) -> Iterator[Indexes]:
        for _ in refusals:
            raise ReadError("not now")
        yield from tell(first, last)

    b.tracker.close()
    b._rebuild = refuse
    b.restart()
    b.go_to(50)
    assert b.tracker.pop_due() == []
    assert b.tracker.count == 5
    assert b.timer.armed == [51]
    b.run_to(51)
    assert b.woken == [51]
    assert b.drain() == positions(1, 5)


def test_a_topic_that_is_damaged_too(desk: Desk) -> None:
    b = desk()
    truncated(b, 1, 5)

    def tell(first: int, last: int) -> Iterator[Indexes]:
        yield Indexes.of([10], [1], [1])
        raise StoreDamagedError("half of it is gone")

    b._rebuild = tell
    b.restart()
    b.go_to(50)
    assert b.drain() == [(1, 1)]
    assert len(b.tracker.problems) == 2
    assert b.tracker.count == 0


# -- failures that pass ----------------------------------------------------------------------------------------------


def test_a_start_at_which_reading_fails_at_first(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add(*seq(16))
    faults.fail("read", error=BookieHandleNotAvailableError, times=3, nth=2)
    b.restart()
    assert b.tracker.problems == []
    assert b.tracker.count == 15
    assert b.ranges == [(1, 5), (6, 10), (11, 15)]


def test_a_start_at_which_reading_fails_is_none(desk: Desk, faults: Faults) -> None:
    """Nothing is taken for lost that may be there later."""
    b = desk()
    b.add(*seq(16))
    failure = faults.fail("read", error=BookieHandleNotAvailableError, times=None)
    with pytest.raises(BookieHandleNotAvailableError):
        b.restart()
    faults.remove(failure)
    b.cursor.close()
    b.tracker = b._begin()
    assert b.tracker.problems == []
    assert b.tracker.count == 15


def test_what_could_not_be_removed_goes_later(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add(*seq(11))
    b.go_to(50)
    failures = []
    b.before_tracker = lambda: failures.append(faults.fail("commit", error=BookieHandleNotAvailableError, times=None))
    b.restart()
    faults.remove(failures[0])
    assert b.ranges == [(6, 10)]
    assert len(b.snapshots) == 2
    # The same range again: it takes the place of what is left over.
    b.add(*((n, 50 + n, 500) for n in range(1, 6)), (20, 0, 500))
    b.check_stored()
    b.go_to(1000)
    assert len(b.drain()) == 11


# -- from a topic ----------------------------------------------------------------------------------------------------


def test_rebuilt_from_the_messages_of_a_topic(tmp_path: Path) -> None:
    b = BucketBench(tmp_path / "s", config_of(4, 10, -1, -1), max_entry_bytes=1 << 20)
    topic = b.store.managed_ledger("persistent://public/default/other", max_entries_per_ledger=3)
    placed = {topic.append(b"x", time): time for time in range(100, 400, 10)}
    topic.append(b"at once")
    topic.append_entry(b"no message")
    cursor = Cursor.open(topic, "sub", CURSOR)

    def begin() -> BucketDelayedTracker:
        home = CursorBucketRegistry(cursor)
        return BucketDelayedTracker(
            b.wake, home, b.config, rebuild=topic_rebuilder(topic), clock=b.clock, timer=b.timer
        )

    tracker = begin()
    tracker.add_many(list(placed), list(placed.values()))
    buckets = tracker.buckets
    assert len(buckets) > 3
    tracker.close()
    b.storage.delete(buckets[1].bucket_id)
    tracker = begin()
    assert len(tracker.problems) == 1
    sealed = {one for one in placed if one.ledger_id <= buckets[-1].key.last_ledger}
    assert tracker.count == len(sealed)
    tracker.add_many(list(placed), list(placed.values()))
    b.go_to(250)
    assert tracker.pop_due() == [one for one, time in placed.items() if time <= 250]
    b.go_to(1000)
    assert tracker.pop_due() == [one for one, time in placed.items() if time > 250]
    tracker.close()
    b.end()
