"""``delayed_delivery_max_num_buckets`` limits the buckets, whatever they hold; merging loses and repeats nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.config import LEAST_WRITES, MERGE_POLICIES, TWO_SMALLEST
from bookstand.delivery.topic_config import TopicConfig
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.delivery.tracker.shared_index import SharedDelayedIndex
from bookstand.errors import BookieHandleNotAvailableError
from bookstand.storage.format.position import Position
from bookstand.testing import Faults
from tests.delivery.bucket_kit import BucketBench, config_of
from tests.delivery.subscription_kit import MEMORY, Desk, topic_config

DAY = 86_400_000
POLICIES = pytest.mark.parametrize("policy", MERGE_POLICIES)


def tracker_of(desk: Desk) -> BucketDelayedTracker:
    index = desk.topic.shared_index
    if isinstance(index, SharedDelayedIndex):
        return index.tracker
    assert isinstance(desk.sub.tracker, BucketDelayedTracker)
    return desk.sub.tracker


@pytest.mark.parametrize("segments", ["one", "several"])
def test_of_five_buckets_with_5_3_2_4_3_messages_the_second_and_the_third_are_merged(
    store_path: Path, segments: str
) -> None:
    bench = BucketBench(store_path, config_of(2, 10, -1, 5, policy=TWO_SMALLEST))
    apart = 0 if segments == "one" else 10
    sizes = [5, 3, 2, 4, 3, 6]
    for ledger, size in enumerate(sizes, 10):
        bench.add(*((ledger, entry, 1000 + apart * entry) for entry in range(size)))
    assert [bucket.waiting for bucket in bench.tracker.buckets] == [5, 3, 2, 4, 3]
    # The sixth bucket is sealed at the first message of the next ledger.
    bench.add((16, 0, 5000))
    assert bench.ranges == [(10, 10), (11, 12), (13, 13), (14, 14), (15, 15)]
    assert [bucket.waiting for bucket in bench.tracker.buckets] == [5, 5, 4, 3, 6]
    bench.check_stored()
    bench.go_to(2000)
    assert sorted(bench.drain()) == [(ledger, entry) for ledger, size in enumerate(sizes, 10) for entry in range(size)]
    bench.end()


@pytest.mark.parametrize(("mode", "policy"), [("buckets", LEAST_WRITES), ("shared index", TWO_SMALLEST)])
def test_forty_ledgers_of_messages_delayed_by_a_day_stay_within_five_buckets(
    store_path: Path, policy: str, mode: str
) -> None:
    config = topic_config(
        mode,
        delayed_delivery_max_num_buckets=5,
        delayed_delivery_merge_policy=policy,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=5000,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=300,
    )
    with Desk(store_path, config) as desk:
        published = []
        for _ in range(40):
            published += desk.topic.publish_many([b"."] * 5, deliver_after=DAY)
            desk.pass_time(10)
            assert desk.sub.receive(10, timeout=0) == []
            assert 0 < len(tracker_of(desk).buckets) <= 5 or len(published) == 5
        desk.restart()
        assert desk.sub.receive(10, timeout=0) == []
        assert len(tracker_of(desk).buckets) <= 5
        desk.pass_time(DAY)
        received: list[Position] = []
        while messages := desk.sub.receive(1000, timeout=0):
            received += [message.position for message in messages]
        assert sorted(received) == published


@POLICIES
def test_a_lowered_limit_holds_from_the_next_seal(store_path: Path, policy: str) -> None:
    bench = BucketBench(store_path, config_of(2, 10, -1, 12, policy=policy))
    messages = [(ledger, entry, 1000 + 10 * entry) for ledger in range(13) for entry in range(2)]
    bench.add(*messages)
    assert len(bench.ranges) == 12
    bench.config = config_of(2, 10, -1, 3, policy=policy)
    bench.restart()
    assert len(bench.ranges) == 12
    bench.add(*messages, (13, 0, 1000))
    assert len(bench.ranges) <= 3
    bench.check_stored()
    bench.restart()
    bench.add(*messages, (13, 0, 1000))
    bench.go_to(2000)
    assert sorted(bench.drain()) == [(ledger, entry) for ledger, entry, _ in messages] + [(13, 0)]
    bench.end()


@POLICIES
@pytest.mark.parametrize("most", [1, 3])
def test_while_a_merge_fails_the_seal_waits_and_the_limit_holds(store_path: Path, most: int, policy: str) -> None:
    faults = Faults()
    bench = BucketBench(store_path, config_of(2, 1000, -1, most, policy=policy), hooks=faults)
    messages = [(ledger, entry, 5000) for ledger in range(20) for entry in range(2)]
    bench.add(*messages[:10])
    failure = faults.fail("commit", error=BookieHandleNotAvailableError, times=1000)
    bench.add(*messages[10:30])
    assert len(bench.ranges) <= most
    assert bench.tracker.mutable_count >= 20
    faults.remove(failure)
    bench.add(*messages[30:])
    assert len(bench.ranges) <= most
    bench.check_stored()
    bench.go_to(5000)
    assert sorted(bench.drain()) == [one[:2] for one in messages]
    bench.end()


def test_without_a_limit_nothing_is_merged(store_path: Path) -> None:
    for number, most in enumerate((-1, 0)):
        bench = BucketBench(store_path / str(number), config_of(2, 1000, -1, most))
        bench.add(*((ledger, entry, 5000) for ledger in range(11) for entry in range(2)))
        assert len(bench.ranges) == 10
        bench.end()


# -- whatever happens ------------------------------------------------------------------------------------------------

delays = st.one_of(st.none(), st.integers(1, 300), st.sampled_from([100, 1000, DAY]))
steps = st.one_of(
    st.tuples(st.just("publish"), st.lists(delays, min_size=1, max_size=12)),
    st.tuples(st.just("pass"), st.integers(1, 400)),
    st.tuples(st.sampled_from(["restart", "crash"]), st.integers(1, 4)),
)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    mode=st.sampled_from(["buckets", "shared index"]),
    policy=st.sampled_from(MERGE_POLICIES),
    most=st.integers(1, 4),
    in_segment=st.sampled_from([1, 2, 5000]),
    work=st.lists(steps, min_size=3, max_size=14),
)
def test_the_limit_holds_and_every_message_is_delivered_once_and_not_early(
    mode: str, policy: str, most: int, in_segment: int, work: list[tuple[str, Any]]
) -> None:
    def config(limit: int) -> TopicConfig:
        return topic_config(
            mode,
            delayed_delivery_max_num_buckets=limit,
            delayed_delivery_merge_policy=policy,
            delayed_delivery_min_index_count_per_bucket=2,
            delayed_delivery_max_indexes_per_bucket_snapshot_segment=in_segment,
            max_entries_per_ledger=3,
        )

    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, Desk(Path(folder) / "store", config(most)) as desk:
        due: dict[Position, int] = {}
        received: list[Position] = []
        limit, at_start = most, 0

        def receive() -> None:
            while messages := desk.sub.receive(5, timeout=0):
                desk.sub.ack_many(messages).result()
                for message in messages:
                    assert due[message.position] <= desk.now
                    received.append(message.position)

        for what, value in work:
            if what == "publish":
                positions = desk.topic.publish_many([b"."] * len(value), deliver_after=value)
                due |= {one: desk.now + (delay or 0) for one, delay in zip(positions, value, strict=True)}
            elif what == "pass":
                desk.pass_time(value)
            else:
                limit = value
                getattr(desk, what)(config(limit))
                at_start = len(tracker_of(desk).buckets)
            before = {bucket.bucket_id for bucket in tracker_of(desk).buckets}
            receive()
            after = {bucket.bucket_id for bucket in tracker_of(desk).buckets}
            if after - before:
                at_start = 0
            assert len(after) <= max(limit, at_start)
        desk.pass_time(2 * DAY)
        receive()
        assert sorted(received) == sorted(due)


def test_the_default_policy_is_not_the_rule_of_the_pip() -> None:
    assert config_of().delayed_delivery_merge_policy == LEAST_WRITES
