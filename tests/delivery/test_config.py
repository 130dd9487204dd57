"""Settings, and what those mean that are no sensible number: the same as with Pulsar, which takes most of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.errors import IncorrectParameterError
from tests.delivery.bucket_kit import BucketBench, config_of, positions, seq

Desk = Callable[..., BucketBench]

WHOLE = [
    "delayed_delivery_tick_time_millis",
    "delayed_delivery_fixed_delay_detection_lookahead",
    "delayed_delivery_min_index_count_per_bucket",
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment",
    "delayed_delivery_max_num_buckets",
]
STEP = "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds"
LEAST = -(1 << 63)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made: list[BucketBench] = []

    def make(*figures: int) -> BucketBench:
        made.append(BucketBench(tmp_path / f"store{len(made)}", config_of(*figures)))
        return made[-1]

    yield make
    for one in made:
        one.check_stored()
        waiting = sorted(one.waiting())
        one.go_to(1000)
        assert one.drain() == waiting
        one.end()


@pytest.mark.parametrize("least", [1, 0, -1, LEAST])
def test_of_none_that_are_wanted_a_bucket_has_one(desk: Desk, least: int) -> None:
    b = desk(least)
    b.add(*seq(4))
    assert b.ranges == [(1, 1), (2, 2), (3, 3)]
    # What is gone is not sealed.
    b.go_to(40)
    assert b.drain() == positions(1, 4)
    b.add((5, 5, 500))
    assert b.ranges == []
    assert b.tracker.mutable_count == 1


@pytest.mark.parametrize("most", [1, 0, -2, LEAST])
def test_a_segment_has_one_at_least(desk: Desk, most: int) -> None:
    b = desk(5, 1000, most)
    b.add(*seq(6))
    assert b.times() == [[10], [20], [30], [40], [50]]
    assert b.tracker.count == 6


@pytest.mark.parametrize("step", [0, -1, -1000])
def test_no_time_to_a_segment(desk: Desk, step: int) -> None:
    b = desk(5, step)
    b.add((1, 1, 10), (2, 2, 20), (3, 3, 20), (4, 4, 20), (5, 5, 30), (6, 6, 60))
    assert b.times() == [[10], [20], [20], [20], [30]]


@pytest.mark.parametrize("most", [0, -1, -5, LEAST])
def test_any_number_of_buckets(desk: Desk, most: int) -> None:
    b = desk(2, 10, -1, most)
    b.add(*seq(12))
    assert b.ranges == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]


def test_all_of_it_in_memory_and_out(desk: Desk) -> None:
    b = desk(0, 0, 0, 0)
    b.add(*seq(4), *((5, entry, 70) for entry in range(3)), (6, 0, 80))
    assert b.ranges == [(n, n) for n in range(1, 6)]
    assert b.times(4) == [[70], [70], [70]]
    b.restart()
    assert b.tracker.count == 7
    b.add((6, 0, 80))


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [1.0, "1", None, True, 1 << 63, LEAST - 1])
def test_wrong_numbers(name: str, value: Any) -> None:
    with pytest.raises(IncorrectParameterError, match=name):
        DelayedDeliveryConfig(**{name: value})


@pytest.mark.parametrize("value", ["1", None, True, float("nan"), float("inf"), float("-inf"), 1 << 40])
def test_wrong_steps(value: Any) -> None:
    with pytest.raises(IncorrectParameterError, match=STEP):
        DelayedDeliveryConfig(**{STEP: value})


@pytest.mark.parametrize("tick", [0, -1])
def test_a_tick_is_some_time(tick: int) -> None:
    """The original's timer takes no other either."""
    with pytest.raises(IncorrectParameterError, match="tick_time_millis must be an integer of 1 or more"):
        DelayedDeliveryConfig(delayed_delivery_tick_time_millis=tick)


@pytest.mark.parametrize("name", ["delayed_delivery_tracker", "delayed_delivery_merge_policy"])
@pytest.mark.parametrize("value", ["", "other", None])
def test_wrong_choices(name: str, value: Any) -> None:
    with pytest.raises(IncorrectParameterError, match=name):
        DelayedDeliveryConfig(**{name: value})
