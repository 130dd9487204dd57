"""The buckets that there are: in order, side by side, and how many messages wait in each, whatever way these came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST
from bookstand.delivery.tracker.bucket.bucket_list import Bucket, Buckets
from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.storage.format.position import Position
from tests.delivery.bucket_kit import BucketBench, config_of, positions, seq

Desk = Callable[..., BucketBench]


def bucket(first: int, last: int, *times: int, loaded: int = 0) -> Bucket:
    return Bucket(BucketKey(first, last), first, list(times), list(times), 100, loaded=loaded)


# -- the collection --------------------------------------------------------------------------------------------------

# Where ranges and the gaps between them end.
cuts = st.lists(st.integers(0, 60), unique=True, max_size=16).map(sorted)


@settings(deadline=None, derandomize=True)
@given(cuts=cuts, order=st.randoms(use_true_random=False))
def test_the_bucket_of_a_ledger(cuts: list[int], order: Any) -> None:
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    shuffled = list(ranges)
    order.shuffle(shuffled)
    buckets = Buckets()
    for first, last in shuffled:
        buckets.add(bucket(first, last, 1))
    assert [tuple(one.key) for one in buckets] == ranges
    ledgers = np.arange(62)
    wanted = [next((n for n, (first, last) in enumerate(ranges) if first <= one <= last), -1) for one in range(62)]
    assert buckets.places(ledgers).tolist() == wanted
    for ledger, place in enumerate(wanted):
        assert buckets.covering(ledger) is (None if place < 0 else buckets[place])
        below = [one for one in ranges if one[1] < ledger]
        assert [tuple(one.key) for one in buckets.below(ledger)] == below
    uncovered = [ledger for ledger, place in enumerate(wanted) if place < 0]
    for one in uncovered:
        later = [other for other in uncovered if other > one]
        between = [any(one < first < other for first, _ in ranges) for other in later]
        assert [buckets.has_bucket_between(one, other) for other in later] == between
        assert (
            buckets.have_bucket_between(np.full(len(later), one), np.array(later, dtype=np.int64)).tolist() == between
        )


@settings(deadline=None, derandomize=True)
@given(data=st.data())
def test_the_next_to_load(data: st.DataObject) -> None:
    buckets = Buckets()
    for number in range(4):
        times = sorted(data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=3)))
        buckets.add(bucket(10 * number, 10 * number + 9, *times, loaded=data.draw(st.integers(0, len(times)))))
    while True:
        rest = [one.first_times[one.loaded] for one in buckets if one.loaded < one.segments]
        chosen = buckets.next_to_load
        if not rest:
            assert chosen is None
            return
        assert chosen is not None
        assert chosen.next_time == min(rest)
        if data.draw(st.booleans()):
            buckets.loaded(chosen)
        else:
            buckets.remove(chosen)


def test_in_which_nothing_waits() -> None:
    buckets = Buckets()
    one, other = bucket(1, 5, 10), bucket(6, 9, 10)
    for each in (other, one):
        buckets.add(each)
    buckets.add_messages(np.array([1, 5, 5, 6, 20]))
    assert (one.waiting, other.waiting) == (3, 1)
    assert buckets.maybe_empty() == []
    buckets.remove_messages(np.array([1, 6, 20]))
    assert buckets.maybe_empty() == [other]
    buckets.record_removed(one, 2)
    assert buckets.maybe_empty() == [one, other]
    buckets.remove(other)
    assert buckets.maybe_empty() == [one]
    buckets.clear()
    assert len(buckets) == 0
    assert buckets.maybe_empty() == []


# -- how many wait, whatever way they came ---------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made: list[BucketBench] = []

    def make(*figures: int, **settings: Any) -> BucketBench:
        made.append(BucketBench(tmp_path / f"store{len(made)}", config_of(*figures, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.check_stored()
        one.end()


def test_due_before_it_was_sealed(desk: Desk) -> None:
    """They are in memory already when their ledger is sealed, and are not in the snapshot's count twice, or never."""
    b = desk(2)
    b.add((1, 0, 10), (1, 1, 11), (1, 2, 12), (1, 3, 13), (1, 4, 100), (1, 5, 200))
    b.go_to(20)
    assert b.tracker.pop_due(1) == [(1, 0)]
    b.add((2, 0, 900))
    assert b.ranges == [(1, 1)]
    assert b.tracker.pop_due() == [(1, 1), (1, 2), (1, 3)]
    assert b.ranges == [(1, 1)]
    b.go_to(300)
    assert b.drain() == [(1, 4), (1, 5)]
    assert b.ranges == []


def test_late_before_it_was_sealed(desk: Desk) -> None:
    b = desk(4)
    b.add((5, 0, 100), (6, 0, 200), (6, 1, 300), (6, 2, 400))
    b.add((5, 1, 10), (5, 2, 11), (5, 3, 12), (5, 4, 13))
    b.add((7, 0, 900))
    assert b.ranges == [(5, 6)]
    b.go_to(50)
    assert b.drain() == [(5, 1), (5, 2), (5, 3), (5, 4)]
    assert b.ranges == [(5, 6)]
    b.go_to(400)
    assert b.drain() == [(5, 0), (6, 0), (6, 1), (6, 2)]
    assert b.ranges == []


@pytest.mark.parametrize("policy", [LEAST_WRITES, TWO_SMALLEST])
def test_between_two_that_were_merged(desk: Desk, policy: str) -> None:
    b = desk(3, 10, -1, 1, policy=policy)
    b.add((1, 0, 100), (1, 1, 200), (1, 2, 300), (9, 0, 110), (9, 1, 210), (9, 2, 310))
    assert b.ranges == [(1, 1)]
    b.add((5, 0, 20), (5, 1, 21), (6, 0, 22))
    b.add((10, 0, 900))
    assert b.ranges == [(1, 9)]
    assert b.tracker.buckets[0].waiting == 9
    b.go_to(50)
    assert b.drain() == [(5, 0), (5, 1), (6, 0)]
    assert b.ranges == [(1, 9)]
    b.go_to(400)
    assert len(b.drain()) == 6
    assert b.ranges == []


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("minimum", "ranges"), [(2, [(3, 3), (6, 10), (14, 15)]), (4, [(6, 10)])])
def test_ranges_stay_apart(desk: Desk, many: bool, minimum: int, ranges: list[tuple[int, int]]) -> None:
    """What is read again may be of ledgers before a bucket, and go on behind it."""
    b = desk(minimum)
    b.write_bucket(6, 10, seq(10, 6))
    b.restart()
    messages = [(3, 0, 500), (3, 1, 500), *seq(10, 6), (14, 0, 600), (14, 1, 700), (15, 0, 800), (20, 0, 50)]
    if many:
        b.tracker.add_many([message[:2] for message in messages], [message[2] for message in messages])
    else:
        b.add(*messages)
    assert b.ranges[:2] == ranges[:2]
    assert all(one[1] < other[0] for one in b.ranges for other in b.ranges if one < other)
    assert b.tracker.count == 11
    b.go_to(1000)
    assert sorted(b.drain()) == sorted([(3, 0), (3, 1), *positions(6, 10), (14, 0), (14, 1), (15, 0), (20, 0)])
    assert b.ranges == []


def test_sealed_between_two(desk: Desk) -> None:
    """And merged with those beside it."""
    b = desk(2, 10, -1, 2)
    b.write_bucket(1, 5, seq(5))
    b.write_bucket(11, 15, seq(15, 11))
    b.restart()
    b.add((7, 0, 400), (7, 1, 500), (20, 0, 600))
    assert len(b.ranges) <= 2
    assert b.tracker.count == 13
    b.restart()
    assert b.tracker.count == 12
    b.go_to(1000)
    assert b.drain() == sorted([*positions(1, 5), (7, 0), (7, 1), *positions(11, 15)])


def test_late_messages_are_merged_as_well(desk: Desk) -> None:
    b = desk(3, 10, -1, 2, policy=TWO_SMALLEST)
    for ledger in (1, 2):
        b.add(*((ledger, entry, 1000 * (entry + 1)) for entry in range(3)))
    b.add((3, 0, 5000))
    # Something waits in the first two that is in no snapshot, and nothing else.
    b.add((1, 9, 90), (2, 9, 90))
    for ledger in (1, 2):
        for entry in range(3):
            assert b.tracker.cancel(Position(ledger, entry))
    assert len(b.ranges) == 2
    b.add((3, 1, 6000), (3, 2, 7000), (4, 0, 8000))
    assert b.ranges == [(1, 2), (3, 3)]
    assert b.segments() == [[(1, 9, 90), (2, 9, 90)]]
    b.restart()
    b.go_to(90)
    assert b.drain() == [(1, 9), (2, 9)]
    assert b.ranges == [(3, 3)]


def test_delivered_delayed_again_and_merged(desk: Desk) -> None:
    """The snapshot that it is read from tells its first time."""
    b = desk(3, 1000, 2, 1)
    b.add((1, 0, 10), (1, 1, 50), (1, 2, 600), (2, 0, 700), (2, 1, 800), (2, 2, 900))
    assert b.ranges == [(1, 1)]
    b.go_to(10)
    assert b.tracker.pop_due() == [(1, 0)]
    assert b.add((1, 0, 750), (1, 9, 650)) == [True, True]
    b.add((3, 0, 5000))
    assert b.ranges == [(1, 2)]
    waiting = {(1, 0): 750, (1, 1): 50, (1, 2): 600, (1, 9): 650, (2, 0): 700, (2, 1): 800, (2, 2): 900}
    assert b.waiting() == waiting | {(3, 0): 5000}
    assert [time for segment in b.times() for time in segment] == sorted(waiting.values())
    b.go_to(749)
    assert sorted(b.drain()) == [(1, 1), (1, 2), (1, 9), (2, 0)]
    b.go_to(900)
    assert b.drain() == [(1, 0), (2, 1), (2, 2)]
    assert b.ranges == []


def test_cancelled_added_again_for_the_same_time_and_merged(desk: Desk) -> None:
    """It stands in two places, and is stored and delivered once."""
    b = desk(3, 10, 1, 1)
    b.add((1, 0, 500), (1, 1, 600), (1, 2, 700), (2, 0, 800), (2, 1, 900), (2, 2, 950))
    assert b.tracker.cancel(Position(1, 2))
    assert b.add((1, 2, 700)) == [True]
    assert len(b.waiting()) == b.tracker.count == 6
    b.add((3, 0, 5000))
    assert b.ranges == [(1, 2)]
    assert b.times() == [[500], [600], [700], [800], [900], [950]]
    b.go_to(1000)
    assert len(b.drain(2)) == 6
    assert b.tracker.count == 1
