"""When the store below fails a tracker on buckets: what passes is tried again and not seen, and what does not costs
memory, time or a snapshot, but no message. With the cases of the reference page that are about failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST
from bookstand.errors import (
    BookieHandleNotAvailableError,
    BookstandError,
    OperationTimeoutError,
    OutcomeUnknownError,
    ReadError,
    TooManyRequestsError,
    UnexpectedConditionError,
    WriteError,
)
from bookstand.storage.format.position import Position
from bookstand.testing import Faults
from tests.delivery.bucket_kit import BucketBench, config_of, positions, seq
from tests.kit import fill

Desk = Callable[..., BucketBench]
PASSING = [BookieHandleNotAvailableError, OperationTimeoutError, ReadError, TooManyRequestsError, WriteError]


@pytest.fixture
def faults() -> Iterator[Faults]:
    """Every failure that a test asks for has to happen."""
    with Faults() as one:
        yield one


@pytest.fixture
def desk(tmp_path: Path, faults: Faults) -> Iterator[Desk]:
    made: list[BucketBench] = []

    def make(*figures: int, **settings: Any) -> BucketBench:
        made.append(BucketBench(tmp_path / f"store{len(made)}", config_of(*figures, **settings), hooks=faults))
        return made[-1]

    yield make
    for one in made:
        one.check_stored()
        one.end()


def commits(b: BucketBench, faults: Faults, work: Callable[[], Any]) -> int:
    """How often one is tried."""
    before = faults.passed["commit.before_write"]
    work()
    return faults.passed["commit.before_write"] - before


# -- deleting --------------------------------------------------------------------------------------------------------


def test_case_36_buckets_that_cannot_be_deleted_stay(desk: Desk, faults: Faults) -> None:
    b = desk(5, 10, -1, 10)
    b.add(*seq(30))
    before = b.ranges
    assert len(before) == 5
    b.stand(26)
    faults.fail("commit", times=4)
    b.add((31, 31, 310))
    assert b.ranges == [*before, (26, 30)]
    assert len(b.snapshots) == 6
    assert b.tracker.count == 31
    # The next time they can.
    b.add(*seq(36, 32))
    assert b.ranges == [(26, 30), (31, 35)]
    assert b.tracker.count == 11


def test_case_46_cleared_after_trimming_failed(desk: Desk, faults: Faults) -> None:
    b = desk(5, 10, -1, 5)
    b.add(*seq(30))
    b.stand(50)
    faults.fail("commit", times=4)
    b.add((31, 31, 310))
    b.tracker.clear()
    t = b.tracker
    assert (t.count, t.buckets, t.mutable_count, t.loaded_count) == (0, [], 0, 0)
    assert b.snapshots == []


def test_cleared_altogether_or_not_at_all(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add(*seq(21))
    faults.fail("commit", times=4)
    with pytest.raises(BookstandError):
        b.tracker.clear()
    assert b.tracker.count == 21
    b.check_stored()
    b.tracker.clear()
    assert b.tracker.count == 0
    b.restart()
    assert b.tracker.count == 0


def test_an_emptied_bucket_that_cannot_be_deleted(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add(*seq(6))
    b.go_to(50)
    faults.fail("commit", times=4)
    assert b.tracker.pop_due() == positions(1, 5)
    assert b.ranges == [(1, 5)]
    assert b.tracker.pop_due() == []
    assert b.ranges == []
    assert b.snapshots == []


# -- once ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("times", [1, 3])
def test_case_39_what_fails_is_tried_again(desk: Desk, faults: Faults, error: type[BookstandError], times: int) -> None:
    b = desk()
    b.add(*seq(5))
    faults.fail("commit", error=error, times=times)
    b.add((6, 6, 60))
    assert b.ranges == [(1, 5)]
    b.go_to(20)
    assert b.drain() == positions(1, 2)
    faults.fail("read", error=error, times=times)
    b.restart()
    assert b.tracker.problems == []
    assert b.tracker.count == 3
    b.add((6, 6, 60))
    faults.fail("read", error=error, times=times)
    faults.fail("commit", error=error, times=times)
    b.go_to(60)
    assert b.tracker.pop_due() == positions(3, 6)
    assert b.ranges == []


# -- creating --------------------------------------------------------------------------------------------------------


def test_case_40_what_cannot_be_sealed_stays_in_memory(desk: Desk, faults: Faults) -> None:
    b = desk(5, 10, -1, 10)
    b.add(*seq(5))
    faults.fail("commit", times=4)
    assert b.add((6, 6, 60)) == [True]
    assert b.ranges == []
    assert b.tracker.count == 6
    b.go_to(50)
    assert b.tracker.pop_due() == positions(1, 5)


def test_it_is_sealed_when_there_is_twice_as_much(desk: Desk, faults: Faults) -> None:
    b = desk(5, 10, -1, 10)
    b.add(*seq(5))
    faults.fail("commit", times=4)
    tried = commits(b, faults, lambda: b.add(*seq(10, 6)))
    assert tried == 4
    assert b.ranges == []
    b.add((11, 11, 110))
    assert b.ranges == [(1, 10)]
    b.add(*seq(16, 12))
    # And from then on as before.
    assert b.ranges == [(1, 10), (11, 15)]
    b.go_to(1000)
    assert b.drain() == positions(1, 16)


@pytest.mark.parametrize("many", [False, True])
def test_case_42_what_does_not_pass_is_not_tried_again(desk: Desk, faults: Faults, many: bool) -> None:
    """Who adds is told, and adds again."""
    b = desk()
    b.add(*seq(5))
    faults.fail("commit", error=UnexpectedConditionError)

    def add() -> None:
        with pytest.raises(UnexpectedConditionError):
            b.tracker.add_many([(6, 6)], 60) if many else b.add((6, 6, 60))

    assert commits(b, faults, add) == 1
    assert b.tracker.count == 5
    assert b.ranges == []
    assert b.add((6, 6, 60)) == [True]
    assert b.ranges == [(1, 5)]
    b.go_to(100)
    assert b.drain() == positions(1, 6)


@pytest.mark.parametrize("policy", [LEAST_WRITES, TWO_SMALLEST])
def test_case_43_what_cannot_be_merged_stays(desk: Desk, faults: Faults, policy: str) -> None:
    b = desk(5, 10, -1, 2, policy=policy)
    b.add(*seq(15))
    before, snapshots = b.ranges, b.snapshots
    assert len(before) == 2
    faults.fail("commit", times=4)
    b.add((16, 16, 160))
    assert (b.ranges, b.snapshots) == (before, snapshots)
    assert b.tracker.count == 16
    b.restart()
    assert b.tracker.count == 10
    b.add(*seq(16))
    b.go_to(1000)
    assert b.drain() == positions(1, 16)


def test_merging_that_cannot_read(desk: Desk, faults: Faults) -> None:
    b = desk(5, 10, -1, 2)
    b.add(*seq(15))
    before = b.snapshots
    faults.fail("read", times=4)
    b.add((16, 16, 160))
    assert b.snapshots == before
    assert b.tracker.mutable_count == 6
    b.add(*seq(30, 17))
    assert len(b.ranges) <= 2
    b.go_to(1000)
    assert b.drain() == positions(1, 30)


# -- loading ---------------------------------------------------------------------------------------------------------


def test_case_41_what_cannot_be_loaded_comes_later(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add(*seq(6))
    b.restart()
    b.go_to(50)
    faults.fail("read", times=4)
    assert b.tracker.pop_due() == []
    assert b.tracker.count == 5
    assert b.tracker.pop_due() == positions(1, 5)


@pytest.mark.parametrize("ask", ["add", "next_delivery", "has_message_available", "cancel", "reset_tick", None])
def test_case_44_after_a_failure_somebody_is_woken(desk: Desk, faults: Faults, ask: str | None) -> None:
    b = desk(tick=5)
    b.add(*seq(6))
    b.restart()
    failure = faults.fail("read", times=None)
    b.go_to(50)
    assert b.tracker.pop_due() == []
    if ask == "add":
        b.add((6, 6, 60), (7, 7, 500))
    elif ask == "cancel":
        b.tracker.cancel(Position(5, 5))
    elif ask == "reset_tick":
        b.tracker.reset_tick(5)
    elif ask:
        getattr(b.tracker, ask)()
    assert b.timer.armed == [55]
    given: list[Any] = []
    b.on_wake = lambda: given.extend(b.tracker.pop_due())
    b.run_to(58)
    assert b.woken == [55]
    assert given == []
    faults.remove(failure)
    b.run_to(60)
    assert sorted(given)[:4] == positions(1, 4)
    assert b.woken == [55, 60]
    # And not any more than that.
    b.run_to(400)
    assert len(b.woken) == 2


def test_who_asks_whether_there_is_something_is_not_kept_busy(desk: Desk, faults: Faults) -> None:
    b = desk(tick=5)
    b.add(*seq(6))
    b.restart()
    failure = faults.fail("read", times=None)
    b.on_wake = lambda: b.tracker.has_message_available()
    b.go_to(20)
    assert not b.tracker.has_message_available()
    assert b.timer.armed == [25]
    b.run_to(34)
    assert b.woken == [25, 30]
    faults.remove(failure)
    assert b.tracker.has_message_available()
    assert b.tracker.pop_due() == positions(1, 3)
    assert b.timer.armed == [40]


def test_a_segment_that_cannot_be_loaded_ahead_is_loaded_when_due(desk: Desk, faults: Faults) -> None:
    b = desk(tick=5)
    b.add(*seq(6), (7, 0, 22))
    b.restart()
    b.add((7, 0, 22))
    b.go_to(10)
    assert b.tracker.pop_due(0) == []
    failure = faults.fail("read", nth=2, times=None)
    assert b.tracker.pop_due() == [(1, 1)]
    assert b.timer.armed == [20]
    faults.remove(failure)
    given: list[Any] = []
    b.on_wake = lambda: given.extend(b.tracker.pop_due())
    b.run_to(20)
    assert given == [(2, 2)]
    b.run_to(60)
    assert sorted(given) == [*positions(2, 5), (7, 0)]
    assert b.woken == [20, 25, 30, 40, 50]


def test_what_is_due_before_comes_all_the_same(desk: Desk, faults: Faults) -> None:
    b = desk()
    b.add((1, 1, 10), (1, 2, 20), (1, 3, 300), (1, 4, 400), (1, 5, 500), (6, 6, 250), (6, 7, 350))
    failure = faults.fail("read", times=None)
    b.go_to(450)
    assert b.tracker.pop_due() == [(1, 1)]
    faults.remove(failure)
    assert b.tracker.pop_due() == [(1, 2), (1, 3), (1, 4), (6, 6), (6, 7)]


# -- outcomes that nobody knows, a disk that is full -----------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2])
def test_a_commit_of_which_nobody_knows(desk: Desk, faults: Faults, nth: int) -> None:
    """It happened: who adds is told that nobody knows, and who begins again finds it. Nothing is made twice."""
    b = desk()
    b.add(*seq(5))
    faults.lose_ack("commit", nth=nth)
    with pytest.raises(OutcomeUnknownError):
        b.add((6, 6, 60))
    assert b.tracker.count == 5
    b.restart()
    assert b.ranges == ([] if nth == 1 else [(1, 5)])
    b.check_stored()
    b.add(*seq(6))
    assert b.ranges == [(1, 5)]
    assert b.tracker.count == 6
    b.go_to(1000)
    assert b.drain() == positions(1, 6)


def test_a_disk_that_is_full(desk: Desk, faults: Faults) -> None:
    b = desk(5, 10, -1, 3)
    b.add(*seq(16))
    full = b.ranges
    faults.disk_full()
    assert b.add(*seq(40, 17)) == [True] * 24
    assert b.tracker.count == 40
    assert b.ranges == full
    b.go_to(60)
    assert b.drain() == positions(1, 6)
    faults.free_space()
    b.add(*seq(60, 41))
    assert len(b.ranges) <= 3
    assert b.tracker.mutable_count < 20
    b.check_stored()
    b.go_to(1000)
    assert b.drain() == positions(7, 60)
    assert b.ranges == []


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    b = BucketBench(small_disk / "store", config_of(50, 10, -1, 4))
    filler = b.store.create_ledger(1, 1, 1, digest="crc32c", password=b"")
    fill(filler)
    messages = [(1 + n // 10, n % 10, 1000 + n) for n in range(600)]
    assert all(b.add(*messages))
    assert b.tracker.count == 600
    ballast.unlink()
    b.add(*((100 + n, 0, 5000) for n in range(1200)))
    assert b.ranges
    b.check_stored()
    b.go_to(6000)
    assert len(b.drain(100)) == 1800
    b.end()
