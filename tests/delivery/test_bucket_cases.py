"""The cases of the reference page for delayed delivery that are about the tracker on buckets. Those about failures of
the store, 36 and 39 to 44, are in ``test_bucket_faults.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest

from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST
from bookstand.delivery.tracker.bucket import metrics
from bookstand.delivery.tracker.bucket.merge_policy import MergeCandidate, least_writes, two_smallest
from bookstand.delivery.tracker.bucket.metrics import OperationMetrics
from bookstand.storage.format.position import Position
from tests.delivery.bucket_kit import BucketBench, config_of, positions, seq

WAIVED = {
    4: "An alarm that is canceled while it fires must not wake the dispatcher. Here it wakes the dispatcher without "
    "effect; a test shows that the newer alarm stays set.",
    26: "The subscription handles a tracker that fails to start. A tracker on buckets starts regardless of the state "
    "of its snapshots, as cases 24 and 25 show.",
    34: "A create is one commit and is never pending, so the case's intermediate state with six buckets does not "
    "occur; a test shows the outcome.",
    31: "Limits are exact: buckets of one segment are merged like others, which a test shows.",
    35: "The case requires that at most four buckets are accessed. Here buckets of one segment are merged, and are "
    "deleted for that purpose. A test shows that a bucket which the cursor has passed in part is retained.",
    37: "The case requires a count of 4. Here all messages that the cursor has passed are skipped, including those in "
    "segments that are not loaded.",
    44: "A merge or a create does not suspend other operations, because it is one commit under the tracker's lock. A "
    "test shows that a failed load wakes the dispatcher.",
    46: "Trimming is one commit under the lock, so a clear cannot run during it. A test shows a clear after a failed "
    "trim.",
    47: "Lengths are known when a snapshot is created and are not queried, so no length arrives late. A test shows "
    "that the total is the sum of the live snapshots.",
    51: "The case concerns rounding in the in-memory tracker; buckets store milliseconds. A test shows that nothing "
    "is rounded.",
    54: "The case concerns the pause for fixed delays in the in-memory tracker. A test shows that the tracker on "
    "buckets does not pause.",
}
"""Requirements of cases that do not apply here, and the reasons."""

Desk = Callable[..., BucketBench]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made: list[BucketBench] = []

    def make(*figures: int, start: int = 0, **settings: Any) -> BucketBench:
        one = BucketBench(tmp_path / f"store{len(made)}", config_of(*figures, **settings), start)
        made.append(one)
        return one

    yield make
    for one in made:
        one.check_stored()
        one.end()


# -- what is due -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minimum", [1, 2, 100])
def test_case_1_the_earliest_first(desk: Desk, minimum: int) -> None:
    b = desk(minimum, strict=False)
    t = b.tracker
    assert b.add((1, 2, 20), (2, 1, 10), (3, 3, 30), (4, 5, 50), (5, 4, 40)) == [True] * 5
    assert t.pop_due(100) == []
    b.go_to(15)
    assert b.add((6, 6, 10)) == [False]
    assert t.pop_due(10) == [(2, 1)]
    b.go_to(60)
    assert t.pop_due(1) == [(1, 2)]
    assert len(t.pop_due(3)) == 3
    assert t.count == 0


def test_case_2_within_one_tick_is_due(desk: Desk) -> None:
    b = desk(tick=100, strict=False)
    assert b.add((1, 1, 10), (2, 2, 99), (3, 3, 100), (4, 4, 101), (5, 5, 200)) == [False, False, False, True, True]
    assert b.tracker.count == 2


def test_case_3_strict_the_cutoff_is_now(desk: Desk) -> None:
    b = desk(tick=100, start=10)
    assert b.add((1, 1, 9), (2, 2, 10), (3, 3, 11)) == [False, False, True]
    assert not b.tracker.has_message_available()


@pytest.mark.parametrize("minimum", [1, 100])
def test_case_4_one_alarm_for_the_earliest(desk: Desk, minimum: int) -> None:
    b = desk(minimum)
    b.add((1, 1, 20))
    assert b.timer.armed == [20]
    b.add((2, 1, 10))
    assert b.timer.armed == [10]
    b.add((3, 1, 30))
    assert b.timer.armed == [10]
    b.go_to(10)
    assert b.fire() == 1


def test_case_5_no_more_than_one_wake_in_a_tick(desk: Desk) -> None:
    b = desk(tick=1000, start=9000)
    b.add((1, 1, 10_000))
    b.run_to(10_000)
    assert b.woken == [10_000]
    assert b.tracker.pop_due() == [(1, 1)]
    b.add((1, 2, 10_001))
    b.run_to(10_600)
    assert b.woken == [10_000]
    b.run_to(11_000)
    assert b.woken == [10_000, 11_000]


@pytest.mark.parametrize("sealed", [False, True])
def test_case_6_added_again_when_due_it_is_not_tracked_any_more(desk: Desk, sealed: bool) -> None:
    b = desk(1 if sealed else 100, start=1000)
    b.add((1, 1, 2000), (2, 1, 5000))
    b.go_to(2500)
    assert b.add((1, 1, 2000)) == [False]
    assert b.tracker.count == 1
    assert not b.tracker.contains_message(Position(1, 1))
    assert b.tracker.pop_due() == []
    assert not b.tracker.has_message_available()


@pytest.mark.parametrize("sealed", [False, True])
def test_case_7_the_same_position_again_counts_once(desk: Desk, sealed: bool) -> None:
    b = desk(1 if sealed else 100)
    b.add((1, 1, 1000), (2, 1, 1000))
    assert b.add((1, 1, 1000), (1, 1, 1000)) == [True, True]
    assert b.tracker.count == 2
    assert b.tracker.cancel(Position(1, 1)) is True
    assert b.tracker.cancel(Position(1, 1)) is False
    assert b.tracker.count == 1
    b.go_to(1000)
    assert b.drain() == [(2, 1)]


def test_case_17_by_time_and_told_by_position(desk: Desk) -> None:
    b = desk(2, 1)
    b.add((1, 0, 30), (1, 1, 10), (2, 0, 20), (2, 1, 5), (3, 0, 100))
    assert b.ranges == [(1, 1), (2, 2)]
    b.go_to(40)
    assert b.tracker.pop_due(3) == [(1, 1), (2, 0), (2, 1)]
    assert b.tracker.pop_due(3) == [(1, 0)]
    assert b.tracker.pop_due(3) == []


def test_case_51_nothing_is_rounded(desk: Desk) -> None:
    b = desk(1, tick=1000, start=59_000)
    b.add((1, 1, 60_400), (2, 1, 61_000))
    assert b.timer.armed == [60_400]
    for time in (60_000, 60_399):
        b.run_to(time)
        assert b.woken == []
        assert b.tracker.pop_due() == []
    b.run_to(60_400)
    assert b.tracker.pop_due() == [(1, 1)]
    b.run_to(61_400)
    assert b.woken == [60_400, 61_400]
    assert b.tracker.pop_due() == [(2, 1)]


def test_case_52_a_tick_early_and_not_more(desk: Desk) -> None:
    b = desk(tick=1000, strict=False)
    b.add((1, 1, 60_400))
    for time in (59_000, 59_399):
        b.run_to(time)
        for _ in range(10):
            assert b.tracker.pop_due() == []
            assert not b.tracker.has_message_available()
    b.run_to(60_400)
    assert b.tracker.pop_due() == [(1, 1)]
    assert b.tracker.pop_due() == []
    assert len(b.woken) == 1
    assert b.add((1, 1, 60_400)) == [False]
    assert b.tracker.count == 0


@pytest.mark.parametrize("minimum", [1, 100])
def test_case_53_drained_by_ledger_and_entry(desk: Desk, minimum: int) -> None:
    b = desk(minimum)
    b.add(*((2, entry, 10) for entry in (4, 3, 2, 1, 0)), (1, 1, 10), (1, 0, 10))
    b.add((3, 0, 500))
    b.go_to(10)
    assert b.tracker.pop_due(4) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert b.tracker.pop_due(2) == [(2, 2), (2, 3)]
    assert b.tracker.pop_due(2) == [(2, 4)]


def test_case_54_nothing_is_paused(desk: Desk) -> None:
    b = desk(10)
    b.add(*seq(100))
    assert not b.tracker.should_pause_all_deliveries()


def test_case_55_a_stale_alarm_leaves_the_newer_one(desk: Desk) -> None:
    b = desk(1)
    b.add((1, 1, 100), (2, 1, 50))
    b.go_to(20)
    assert b.timer.fire_stale()
    assert b.timer.armed == [50]
    b.go_to(50)
    assert b.fire() == 1
    assert b.fire() == 0


# -- sealing ---------------------------------------------------------------------------------------------------------


def test_case_8_a_ledger_that_is_past(desk: Desk) -> None:
    b = desk(100)
    assert b.add((100, 0, 10), (100, 1, 20), (101, 0, 30), (101, 1, 40), (100, 2, 50)) == [True] * 5
    assert (b.tracker.mutable_count, b.tracker.loaded_count) == (4, 1)
    b.go_to(50)
    assert b.tracker.pop_due() == [(100, 0), (100, 1), (100, 2), (101, 0), (101, 1)]


def test_case_9_segments_end_after_so_many(desk: Desk) -> None:
    b = desk(20, 3_600_000, 5, 100)
    b.add(*seq(101))
    assert b.ranges == [(1, 20), (21, 40), (41, 60), (61, 80), (81, 100)]
    assert [bucket.segments for bucket in b.tracker.buckets] == [4] * 5
    assert b.tracker.mutable_count == 1
    assert b.times(1) == [[10 * n for n in range(first, first + 5)] for first in (21, 26, 31, 36)]


def test_case_10_segments_end_after_some_time(desk: Desk) -> None:
    b = desk(1000, 100, -1, 50)
    b.add(*seq(1001))
    assert b.ranges == [(1, 1000)]
    assert b.tracker.buckets[0].segments == 100
    assert b.times() == [[10 * n for n in range(first, first + 10)] for first in range(1, 1001, 10)]
    # The first segment begins at once, and nothing but it is in memory.
    assert b.tracker.loaded_count == 10
    assert b.tracker.mutable_count == 1


@pytest.mark.parametrize(
    ("figures", "times", "segments"),
    [
        pytest.param((10, -1), [100, 109, 110, 111, 120, 121], [[100, 109], [110, 111], [120, 121]], id="11"),
        pytest.param((10, 2), [100, 101, 102, 115], [[100, 101], [102], [115]], id="12"),
        pytest.param((1, -1), [5, 5, 5, 6], [[5, 5, 5], [6]], id="13"),
    ],
)
def test_cases_11_to_13_where_segments_end(
    desk: Desk, figures: tuple[int, int], times: list[int], segments: list[list[int]]
) -> None:
    b = desk(len(times), *figures)
    order = np.random.default_rng(1).permutation(len(times))
    b.add(*((1, int(n), times[n]) for n in order), (2, 0, 1000))
    assert b.times() == segments


def test_case_14_so_many_and_no_more(desk: Desk) -> None:
    b = desk(12_000, 1_000_000, 5000)
    b.tracker.add_many((np.ones(12_000, dtype=np.int64), np.arange(12_000)), np.arange(1, 12_001))
    assert b.ranges == []
    b.add((2, 0, 50_000))
    assert b.times() == [list(range(1, 5001)), list(range(5001, 10_001)), list(range(10_001, 12_001))]


def test_case_15_a_ledger_is_never_split(desk: Desk) -> None:
    b = desk(5)
    b.add(*((7, entry, 100 + entry) for entry in range(20)))
    assert b.ranges == []
    b.add((8, 0, 100))
    assert b.ranges == [(7, 7)]
    assert (b.tracker.mutable_count, b.tracker.count) == (1, 21)


def test_case_16_too_late_to_be_sealed(desk: Desk) -> None:
    b = desk()
    b.add(*seq(6))
    loaded = b.tracker.loaded_count
    assert b.add((3, 99, 70)) == [True]
    assert b.tracker.contains_message(Position(3, 99))
    assert b.tracker.loaded_count == loaded + 1
    b.restart()
    assert not b.tracker.contains_message(Position(3, 99))
    assert b.tracker.contains_message(Position(3, 3))
    assert b.tracker.count == 5


# -- starting again --------------------------------------------------------------------------------------------------


def test_case_18_what_has_expired_is_not_recovered(desk: Desk) -> None:
    b = desk(5, 10, -1, 50)
    b.add(*seq(100))
    b.go_to(10)
    assert b.tracker.pop_due(100) == [(1, 1)]
    b.add((101, 101, 1010))
    assert len(b.ranges) == 20
    b.go_to(300)
    b.restart()
    assert b.tracker.count == 70
    assert not b.tracker.contains_message(Position(101, 101))
    assert b.ranges == [(first, first + 4) for first in range(31, 100, 5)]
    b.check_stored()
    assert b.tracker.pop_due() == []
    b.go_to(1000)
    assert b.drain(7) == positions(31, 100)
    assert b.ranges == []


def test_case_19_segments_that_have_expired(desk: Desk) -> None:
    b = desk()
    b.add(*seq(6))
    assert b.tracker.buckets[0].segments == 5
    b.go_to(30)
    b.restart()
    assert b.tracker.count == 2
    assert b.tracker.contains_message(Position(4, 4))
    assert not b.tracker.contains_message(Position(3, 3))
    b.go_to(50)
    assert b.drain() == [(4, 4), (5, 5)]
    assert (b.ranges, b.properties, b.snapshots) == ([], {}, [])


def test_case_20_a_segment_that_has_not(desk: Desk) -> None:
    b = desk(5, 1000)
    b.add(*seq(6))
    b.go_to(30)
    b.restart()
    assert b.tracker.count == 5
    assert b.tracker.has_message_available()
    assert b.drain() == [(1, 1), (2, 2), (3, 3)]
    assert b.tracker.count == 2


def test_case_21_a_bucket_that_has_expired_goes(desk: Desk) -> None:
    b = desk()
    b.add(*seq(6))
    assert len(b.snapshots) == len(b.properties) == 1
    b.go_to(50)
    b.restart()
    assert (b.ranges, b.properties, b.snapshots) == ([], {}, [])
    assert b.tracker.count == 0


def test_case_22_recovered_and_due_when_added_again(desk: Desk) -> None:
    b = desk()
    b.add(*seq(6))
    b.restart()
    b.go_to(10_000)
    assert b.add((1, 1, 1000)) == [False]
    assert not b.tracker.contains_message(Position(1, 1))
    assert b.drain() == positions(2, 5)
    assert b.tracker.count == 0


@pytest.mark.parametrize("policy", [LEAST_WRITES, TWO_SMALLEST])
def test_case_23_merged_and_whole(desk: Desk, policy: str) -> None:
    b = desk(5, 10, -1, 10, policy=policy)
    b.add(*seq(56))
    assert len(b.ranges) <= 10
    assert b.ranges[0][0] == 1
    assert b.ranges[-1][1] == 55
    b.restart()
    assert b.tracker.count == 55
    b.go_to(1000)
    assert b.drain() == positions(1, 55)


@pytest.mark.parametrize("order", list(permutations([(1, 5), (6, 10), (1, 20)])))
def test_case_24_a_range_that_encloses_others(desk: Desk, order: list[tuple[int, int]]) -> None:
    b = desk()
    ids = {}
    for first, last in order:
        ids[first, last] = b.write_bucket(first, last, [(n, n, 10 * n) for n in range(first, last + 1)])
    b.restart()
    assert b.ranges == [(1, 20)]
    assert b.snapshots == [ids[1, 20]]
    assert b.properties == {(1, 20): ids[1, 20]}
    assert len(b.tracker.problems) == 2
    assert b.tracker.count == 20
    b.go_to(1000)
    assert b.drain() == positions(1, 20)


def test_case_25_a_snapshot_that_is_not_there(desk: Desk) -> None:
    b = desk()
    b.add(*seq(16))
    assert b.ranges == [(1, 5), (6, 10), (11, 15)]
    lost = b.tracker.buckets[1]
    b.storage.delete(lost.bucket_id)
    b.restart()
    (problem,) = b.tracker.problems
    assert lost.name in problem
    assert b.rebuilt == [(6, 10)]
    assert b.ranges == [(1, 5), (6, 10), (11, 15)]
    assert lost.bucket_id not in b.snapshots
    assert b.tracker.count == 15
    b.go_to(1000)
    assert b.drain() == positions(1, 15)


@pytest.mark.parametrize("policy", [LEAST_WRITES, TWO_SMALLEST])
def test_case_27_merged_again_and_again(desk: Desk, policy: str) -> None:
    b = desk(5, 10, -1, 10, policy=policy)
    b.add(*seq(110))
    assert len(b.ranges) <= 10
    b.restart()
    b.add(*seq(110))
    assert b.tracker.count == 110
    assert len(b.ranges) <= 10
    b.go_to(1100)
    assert b.drain(8) == positions(1, 110)
    assert b.tracker.count == 0


@pytest.mark.parametrize("policy", [LEAST_WRITES, TWO_SMALLEST])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_case_28_few_buckets(desk: Desk, most: int, policy: str) -> None:
    b = desk(5, 10, -1, most, policy=policy)
    count = 5 * (most + 1) + 1
    b.add(*((n, n, 10 if n % 5 else 20) for n in range(1, count + 1)))
    assert len(b.ranges) <= most
    b.go_to(20)
    assert sorted(b.drain(3)) == positions(1, count)
    assert b.tracker.count == 0


# -- which buckets are merged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("choose", [two_smallest, least_writes])
def test_case_29_two_are_both(choose: Callable[[list[MergeCandidate]], tuple[int, int] | None]) -> None:
    assert choose([MergeCandidate(5, 100, 0), MergeCandidate(7, 50, 0)]) == (0, 2)


def test_case_30_of_equal_ones_those_that_come_first() -> None:
    runs = [MergeCandidate(10, time, 0) for time in (100, 100, 50)]
    assert two_smallest(runs) == (1, 3)


@pytest.mark.parametrize("policy", [LEAST_WRITES, TWO_SMALLEST])
def test_case_31_buckets_of_one_segment_are_merged_as_well(desk: Desk, policy: str) -> None:
    b = desk(5, 1000, -1, 2, policy=policy)
    # The only segment of each bucket is loaded at once.
    for ledger in range(1, 8):
        b.add(*((ledger, entry, 3) for entry in range(5)))
        assert len(b.ranges) <= 2
    assert [bucket.segments for bucket in b.tracker.buckets] == [1] * len(b.ranges)
    assert (b.ranges[0][0], b.ranges[-1][1]) == (1, 6)
    b.go_to(3)
    assert b.drain() == [(ledger, entry) for ledger in range(1, 8) for entry in range(5)]
    assert b.ranges == []


def test_case_32_merged_in_order(desk: Desk) -> None:
    # The bucket of ledger 2 has a segment of which nothing waits any more.
    b = desk(18, 20, -1, 2)
    parts = {
        1: [5 * n + 1000 for n in range(20)],
        2: [7 * n + 1000 for n in range(18)] + [2000, 2001],
        3: [3 * n + 1500 for n in range(20)],
    }
    for ledger, times in parts.items():
        b.add(*((ledger, entry, time) for entry, time in enumerate(times)))
    for entry in (18, 19):
        assert b.tracker.cancel(Position(2, entry))
    b.add((4, 0, 5000))
    assert len(b.ranges) <= 2
    merged = max(range(len(b.ranges)), key=lambda place: b.tracker.buckets[place].waiting)
    found = [message for segment in b.segments(merged) for message in segment]
    first, last = b.ranges[merged]
    wanted = [
        (ledger, entry, time) for ledger in parts for entry, time in enumerate(parts[ledger]) if first <= ledger <= last
    ]
    wanted = [one for one in wanted if one[:2] not in ((2, 18), (2, 19))]
    assert found == sorted(wanted, key=lambda one: (one[2], one[0], one[1]))
    b.go_to(3000)
    assert len(b.drain(9)) == 58
    assert b.tracker.count == 1


# -- what the cursor has passed --------------------------------------------------------------------------------------


def test_case_33_what_the_cursor_has_passed_is_trimmed(desk: Desk) -> None:
    b = desk(5, 10, -1, 5)
    b.stand(31)
    b.add(*seq(36))
    assert b.ranges == [(31, 35)]
    assert b.tracker.count == 6
    assert sorted(b.waiting()) == positions(31, 36)
    assert not b.tracker.contains_message(Position(30, 30))


def test_case_34_all_of_it_is_trimmed(desk: Desk) -> None:
    b = desk(5, 10, -1, 5)
    b.stand(50)
    b.add(*seq(31))
    assert b.ranges == []
    b.check_stored()
    assert b.tracker.count == 1


def test_case_35_a_bucket_in_part_passed_stays(desk: Desk) -> None:
    b = desk(5, 1000, -1, 5)
    b.stand(3)
    for ledger in range(1, 27):
        b.add((ledger, ledger, 3))
    assert b.ranges == [(first, first + 4) for first in (1, 6, 11, 16, 21)]
    operations = operations_of(b)
    assert operations["succeed", "delete"] == 0
    assert (b.ranges[0], len(b.snapshots)) == ((1, 5), 5)


def test_case_37_all_below_the_cursor_is_passed_over(desk: Desk) -> None:
    b = desk()
    b.stand(50)
    b.add(*((1, entry, 100 * entry) for entry in range(1, 6)), (2, 1, 600))
    b.go_to(700)
    assert b.tracker.pop_due() == []
    assert b.tracker.count == 0
    assert not b.tracker.has_message_available()
    assert b.tracker.next_delivery() is None


@pytest.mark.parametrize("again", [False, True])
def test_case_38_passing_over_some_does_not_stop_the_rest(desk: Desk, again: bool) -> None:
    b = desk()
    b.stand(3)
    b.add((1, 0, 100), (2, 1, 200), (3, 2, 300), (3, 3, 400), (4, 4, 500), (5, 9, 600))
    if again:
        b.restart()
        b.add((5, 9, 600))
    b.go_to(1000)
    assert b.drain() == [(3, 2), (3, 3), (4, 4), (5, 9)]
    assert b.tracker.count == 0


# -- clearing, figures -----------------------------------------------------------------------------------------------


def samples_of(b: BucketBench) -> dict[tuple[str, ...], float]:
    """Name without the prefix, then the labels that are not about the place."""
    found = {}
    for sample in b.tracker.samples():
        labels = {
            name: value for name, value in sample.labels.items() if name not in ("namespace", "topic", "subscription")
        }
        found[sample.name.removeprefix("pulsar_delayed_message_index_"), *labels.values()] = sample.value
    return found


def operations_of(b: BucketBench) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for (name, *labels), value in samples_of(b).items():
        if name == "bucket_op_count_total":
            counts[labels[0], labels[1]] = int(value)
    return counts


@pytest.mark.parametrize("last", [1001, 1000])
def test_case_45_cleared(desk: Desk, last: int) -> None:
    b = desk(1000, 100)
    b.add(*seq(last))
    b.tracker.clear()
    t = b.tracker
    assert (t.count, t.buckets, t.mutable_count, t.loaded_count) == (0, [], 0, 0)
    assert (b.snapshots, b.properties, b.timer.armed) == ([], {}, [])
    assert t.next_delivery() is None
    b.restart()
    assert b.tracker.count == 0
    b.go_to(20_000)
    assert b.drain() == []


def test_case_47_the_total_is_that_of_what_is_there(desk: Desk) -> None:
    b = desk(5, 10, -1, 5)

    def stored() -> float:
        return float(sum(b.storage.read_length(bucket.bucket_id) for bucket in b.tracker.buckets))

    b.add(*seq(16))
    assert samples_of(b)["bucket_snapshot_size_bytes",] == stored() > 0
    b.add(*seq(60))
    assert samples_of(b)["bucket_snapshot_size_bytes",] == stored() > 0
    b.restart()
    assert samples_of(b)["bucket_snapshot_size_bytes",] == stored() > 0
    b.tracker.clear()
    assert samples_of(b)["bucket_snapshot_size_bytes",] == 0


def test_case_48_figures_are_cumulative() -> None:
    operations = OperationMetrics()

    def scraped() -> dict[tuple[str, ...], float]:
        return {
            (one.name.removeprefix("pulsar_delayed_message_index_"), *one.labels.values()): one.value
            for one in operations.samples({})
        }

    for millis in (200, 300):
        operations.record_start(metrics.CREATE)
        operations.record_success(metrics.CREATE, millis)
    wanted = {
        ("bucket_op_count_total", "all", "create"): 2,
        ("bucket_op_count_total", "succeed", "create"): 2,
        **{("bucket_op_latency_ms_bucket", "create", f"{bound}.0"): 0 for bound in (50, 100)},
        **{("bucket_op_latency_ms_bucket", "create", f"{bound}.0"): 2 for bound in (500, 1000, 5000, 30_000, 60_000)},
        ("bucket_op_latency_ms_bucket", "create", "+Inf"): 2,
        ("bucket_op_latency_ms_count", "create"): 2,
        ("bucket_op_latency_ms_sum", "create"): 500,
    }
    first = scraped()
    assert {one: value for one, value in first.items() if one in wanted} == wanted
    assert not any(value for one, value in first.items() if one not in wanted)
    assert scraped() == first
    operations.record_start(metrics.CREATE)
    operations.record_success(metrics.CREATE, 100)
    assert scraped()["bucket_op_latency_ms_count", "create"] == 3
    assert scraped()["bucket_op_latency_ms_sum", "create"] == 600
    assert scraped()["bucket_op_latency_ms_bucket", "create", "50.0"] == 0
    assert scraped()["bucket_op_latency_ms_bucket", "create", "100.0"] == 1


def test_case_49_buckets_are_counted_with_the_mutable_one(desk: Desk) -> None:
    one, other = desk(50), desk(50)
    for b in (one, other):
        b.add(*((1 + n // 50, n % 50, 100_000 + n) for n in range(101)))
    totals = [samples_of(b)["bucket_total",] for b in (one, other)]
    assert totals == [3, 3]
    assert sum(totals) == 6


# -- threads ---------------------------------------------------------------------------------------------------------


def test_case_50_readers_and_writers_at_once(desk: Desk) -> None:
    b = desk(200, 1000, 50, 4)
    t = b.tracker
    threads, each = 6, 200
    begin = Barrier(2 * threads)
    errors: list[BaseException] = []
    given: list[list[tuple[int, int]]] = [[] for _ in range(threads)]

    def guarded(work: Callable[[int], None]) -> Callable[[int], None]:
        def run(number: int) -> None:
            begin.wait()
            try:
                work(number)
            except BaseException as error:
                errors.append(error)

        return run

    def write(number: int) -> None:
        for n in range(each):
            ledger = 1 + n // 10
            assert t.add(Position(ledger, n % 10 * threads + number), 1000 + 17 * n % 400)
            if n % 40 == 0:
                entries = np.arange(10_000 + 100 * number, 10_000 + 100 * number + 20)
                assert t.add_many((np.full(20, ledger), entries), 1200).all()

    def read(number: int) -> None:
        for n in range(each):
            t.contains_message(Position(n % 20, n))
            t.contains_many(np.full(4, n % 20), np.arange(4))
            assert t.count >= 0
            t.next_delivery()
            t.has_message_available()
            given[number].extend(map(tuple, t.pop_due(5)))

    works = [Thread(target=guarded(work), args=(number,)) for number in range(threads) for work in (write, read)]
    for thread in works:
        thread.start()
    for thread in works:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    # Nothing was due.
    assert given == [[]] * threads
    written = [(1 + n // 10, n % 10 * threads + number) for n in range(each) for number in range(threads)]
    written += [
        (1 + n // 10, 10_000 + 100 * number + entry)
        for n in range(0, each, 40)
        for number in range(threads)
        for entry in range(20)
    ]
    assert t.count == len(set(written)) == len(written)
    b.go_to(2000)

    def take(number: int) -> None:
        while batch := t.pop_due(7):
            given[number].extend(map(tuple, batch))

    begin = Barrier(threads)
    takers = [Thread(target=guarded(take), args=(number,)) for number in range(threads)]
    for thread in takers:
        thread.start()
    for thread in takers:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    assert sorted(one for part in given for one in part) == sorted(written)
    assert t.count == 0
