"""What leaves the mutable bucket and memory without being asked for: what is due when the alarm rings, and what the
cursor has passed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery.bucket_kit import BucketBench, config_of, positions, seq


@pytest.fixture
def b(tmp_path: Path) -> Iterator[BucketBench]:
    bench = BucketBench(tmp_path / "store", config_of(5, 1000))
    yield bench
    bench.end()


def test_what_is_due_when_the_alarm_rings_is_not_sealed(b: BucketBench) -> None:
    """It is about to be delivered, and does not count for what is enough to be sealed."""
    b.add(*seq(5))
    b.go_to(10)
    b.timer.fire()
    assert (b.tracker.mutable_count, b.tracker.loaded_count) == (4, 1)
    b.add((6, 6, 600))
    assert b.ranges == []
    b.add((7, 7, 700))
    assert b.ranges == [(1, 6)]
    assert [one[:2] for segment in b.segments() for one in segment] == positions(2, 6)
    assert b.tracker.count == 7
    b.go_to(1000)
    assert b.drain() == positions(1, 7)


def test_what_the_cursor_has_passed_goes_before_it_is_due(b: BucketBench) -> None:
    """As far as nothing comes before it that the cursor has not passed."""
    b.add((1, 0, 300), (2, 0, 400), (3, 0, 500), (4, 0, 600), (5, 0, 700), (6, 0, 800))
    b.stand(3)
    assert b.drain() == []
    assert b.tracker.count == 4
    assert not b.tracker.contains_message((2, 0))
    b.stand(5)
    # With a limit that is reached at once nothing is looked at.
    assert b.tracker.pop_due(0) == []
    assert b.tracker.count == 4
    assert b.drain() == []
    assert b.tracker.count == 2
    b.go_to(1000)
    assert b.drain() == [(5, 0), (6, 0)]
    assert b.tracker.count == 0


def test_of_one_time_what_the_cursor_has_passed_comes_first(b: BucketBench) -> None:
    """Also of what came late for what was sealed."""
    b.add(*((ledger, 0, 300) for ledger in range(5, 11)), (2, 0, 300), (3, 0, 301))
    b.stand(4)
    assert b.tracker.loaded_count == 7
    assert b.drain() == []
    assert not b.tracker.contains_message((2, 0))
    assert b.tracker.contains_message((3, 0))
    assert b.tracker.count == 7
    b.go_to(300)
    assert b.drain() == [(ledger, 0) for ledger in range(5, 11)]
    assert b.tracker.count == 0


def test_what_the_cursor_has_passed_waits_behind_what_it_has_not(b: BucketBench) -> None:
    b.add((1, 0, 500), (2, 0, 300), (3, 0, 600), (4, 0, 700), (5, 0, 800), (6, 0, 900))
    b.stand(2)
    assert b.drain() == []
    assert b.tracker.count == 6
    b.go_to(300)
    assert b.drain() == [(2, 0)]
    assert b.tracker.count == 4
