"""Where one message must not be in the way of others, and what happens in the middle of something else."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import bookstand
from bookstand import SubscriptionConfig, TopicConfig
from bookstand.cursor.config import CursorConfig
from bookstand.delivery.nacks.log import nack_name
from bookstand.delivery.subscription.dead_letters import BROKEN_PAYLOAD
from bookstand.delivery.subscription.subscription import Subscription
from bookstand.delivery.topic import Topic
from bookstand.delivery.tracker.bucket.time_sorted import TimeSortedBuffer
from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from bookstand.errors import MalformedMessageError, ReadError
from bookstand.managed_ledger.message.format import assemble
from bookstand.managed_ledger.message.metadata import MessageMetadata
from bookstand.store import Store
from bookstand.testing import Faults, VirtualClock

START = 1_700_000_000_000
HOUR = 3_600_000
ZLIB = 2


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def store(clock: VirtualClock, faults: Faults) -> Iterator[Store]:
    with bookstand.temporary(clock=clock, hooks=faults) as opened:
        yield opened


def subscribed(store: Store, tracker: str = "in_memory", **settings: Any) -> tuple[Topic, Subscription]:
    topic = store.topic("t", TopicConfig(delayed_delivery_tracker=tracker))
    return topic, topic.subscription("s", SubscriptionConfig(**settings))


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]


@pytest.mark.parametrize("tracker", ["in_memory", "bucket"])
def test_what_was_given_a_later_time_ages_from_then(store: Store, clock: VirtualClock, tracker: str) -> None:
    topic, sub = subscribed(store, tracker, time_to_live=600_000)
    position = topic.publish(b"x", deliver_after=HOUR)
    assert sub.reschedule(position, deliver_after=5 * HOUR)
    clock.advance(5 * 3_600)
    assert payloads(sub.receive(5, timeout=0)) == [b"x"]
    assert sub.stats.expired == 0


def test_a_broken_payload_is_no_obstacle(store: Store, clock: VirtualClock) -> None:
    topic, sub = subscribed(store, max_redeliveries=0, nack_delay=1_000)
    broken = assemble(MessageMetadata("p", 0, START, compression=ZLIB, uncompressed_size=10), b"this is no zlib")
    topic.ledger.append_entry(broken)
    (message,) = sub.receive(5, timeout=0)
    with pytest.raises(MalformedMessageError, match=str(message.position)):
        _ = message.payload
    sub.nack(message)
    topic.publish(b"good")
    clock.advance(2)
    assert payloads(sub.receive(5, timeout=0)) == [b"good"]
    assert sub.stats.dead_lettered == 1
    (letter,) = store.topic("t-s-DLQ").subscription("undertaker").receive(5, timeout=0)
    assert letter.payload == broken
    assert BROKEN_PAYLOAD in letter.properties


def test_what_cannot_be_read_now_keeps_nothing_else_back(store: Store, faults: Faults) -> None:
    topic, sub = subscribed(store)
    topic.publish_many([b"a", b"b", b"c"])
    received = sub.receive(3, timeout=0)
    sub.redeliver_all()
    bad = faults.fail("read", entry=received[1].position.entry_id, times=None, error=ReadError("no"))
    topic.publish(b"d")
    found = payloads(sub.receive(10, timeout=0))
    while len(found) < 3:
        found += payloads(sub.receive(10, timeout=0))
    assert sorted(found) == [b"a", b"c", b"d"]
    with pytest.raises(ReadError):
        sub.receive(10, timeout=0)
    faults.remove(bad)
    assert payloads(sub.receive(10, timeout=0)) == [b"b"]


def test_what_is_left_of_a_batch_goes_out_although_the_rest_fails(store: Store, faults: Faults) -> None:
    topic, sub = subscribed(store)
    topic.publish_batch([b"a", b"b", b"c"])
    topic.publish(b"d")
    assert payloads(sub.receive(1, timeout=0)) == [b"a"]
    faults.fail("read", error=ReadError("no"))
    assert payloads(sub.receive(10, timeout=0)) == [b"b", b"c"]
    assert payloads(sub.receive(10, timeout=0)) == [b"d"]


def test_a_member_is_held_from_when_it_was_given_out(store: Store, clock: VirtualClock) -> None:
    topic, sub = subscribed(store, ack_deadline=30_000, max_redeliveries=0)
    topic.publish_batch([b"a", b"b"])
    (first,) = sub.receive(1, timeout=0)
    clock.advance(20)
    (second,) = sub.receive(1, timeout=0)
    sub.ack(first)
    clock.advance(20)
    sub.ack(second).result()
    clock.advance(100)
    assert sub.receive(5, timeout=0) == []
    assert sub.stats.dead_lettered == sub.stats.redelivered == sub.stats.backlog == 0


def test_one_does_not_hoard_batches(store: Store) -> None:
    topic, sub = subscribed(store, max_unacked_messages=20)
    for number in range(10):
        topic.publish_batch([b"%d" % number] * 10)
    one, other = sub.consumer(), sub.consumer()
    assert len(one.receive(10, timeout=0)) == 10
    assert len(other.receive(10, timeout=0)) == 10
    assert other.receive(10, timeout=0) == []
    sub.redeliver_all()
    found = []
    while part := one.receive(10, timeout=0):
        found += payloads(part)
        sub.ack_many(part)
    assert found == [b"%d" % number for number in range(10) for _ in range(10)]


def test_batches_that_are_out_are_passed_at_once(store: Store, clock: VirtualClock) -> None:
    topic, sub = subscribed(store, "bucket")
    for _ in range(50):
        topic.publish_batch([b"x", b"y"], deliver_after=5_000)
    assert len(sub.peek_delayed()) == 50
    topic.publish(b"new")
    clock.advance(6)
    found = payloads(sub.receive(100, timeout=0))
    found += payloads(sub.receive(100, timeout=0))
    assert (found.count(b"x"), found.count(b"y"), found.count(b"new")) == (50, 50, 1)


def test_names_with_slashes_are_kept_apart() -> None:
    assert nack_name("a", "b/c") != nack_name("a/b", "c")


def test_what_is_due_by_any_measure_waits_for_nothing(clock: VirtualClock) -> None:
    tracker = InMemoryDelayedTracker(lambda: None, strict=True, clock=clock)
    for number, time in enumerate([-(1 << 63), 0, START - 1, START]):
        tracker.put((1, number), time)
    assert [position.entry_id for position in tracker.pop_due()] == [0, 1, 2, 3]
    tracker.close()


def test_runs_that_were_joined_are_not_kept() -> None:
    runs = TimeSortedBuffer()
    for number in range(3_000):
        runs.add(1_000_000 + number, 1, number)
        runs.first()
    assert runs.memory_bytes < 100 * 3_000
    assert len(runs) == 3_000


def test_deadlines_far_away_keep_nothing_that_is_acknowledged(store: Store) -> None:
    topic, sub = subscribed(store, ack_deadline=24 * HOUR)
    for _ in range(40):
        topic.publish_many([b"x"] * 100)
        sub.ack_many(sub.receive(100, timeout=0))
    assert sum(len(handout.messages) for _, _, handout in sub._states.unacked._by_deadline) <= 2_000


@pytest.mark.parametrize("tracker", ["in_memory", "bucket"])
def test_what_was_passed_with_its_given_time_has_its_own_when_it_is_met_again(
    store: Store, clock: VirtualClock, tracker: str
) -> None:
    topic, sub = subscribed(store, tracker)
    first = topic.publish(b"first")
    delayed = topic.publish(b"delayed", deliver_after=HOUR)
    last = topic.publish(b"last")
    assert sub.reschedule(delayed, deliver_after=2 * HOUR)
    sub.reset(last)
    sub.reset(first)
    assert payloads(sub.receive(5, timeout=0)) == [b"first", b"last"]
    clock.advance(3_600)
    assert payloads(sub.receive(5, timeout=0)) == [b"delayed"]


def test_a_nack_of_a_whole_batch_takes_nothing_away_that_returned_before(store: Store, clock: VirtualClock) -> None:
    topic, sub = subscribed(store, durable_nacks=True)
    topic.publish_batch([b"a", b"b"])
    one, _ = sub.receive(5, timeout=0)
    sub.nack(one.position, delay=60_000)
    sub.nack(one, delay=1_000)
    sub.close()
    sub = topic.subscription("s", SubscriptionConfig(durable_nacks=True))
    clock.advance(2)
    assert payloads(sub.receive(5, timeout=1)) == [b"a"]
    clock.advance(60)
    assert payloads(sub.receive(5, timeout=1)) == [b"b"]
    assert sub.receive(5, timeout=0) == []
    assert sub.stats.out == 2


def test_what_was_read_ahead_and_is_nacked_comes_once(store: Store, clock: VirtualClock) -> None:
    """A program may give back what it remembers from before."""
    topic, sub = subscribed(store)
    topic.publish(b"later", deliver_after=HOUR)
    positions = topic.publish_many([b"a", b"b", b"c"])
    one, other = sub.consumer(), sub.consumer()
    assert payloads(one.receive(1, timeout=0)) == [b"a"]
    sub.nack(positions[1], delay=0)
    clock.advance(1)
    assert payloads(one.receive(1, timeout=1)) == [b"b"]
    assert payloads(other.receive(5, timeout=0)) == [b"c"]
    assert sub.stats.out == 3


def test_what_is_nacked_before_it_came_waits(store: Store, clock: VirtualClock) -> None:
    topic, sub = subscribed(store)
    position = topic.publish(b"a")
    batch = topic.publish_batch([b"b", b"c"])
    topic.publish(b"d")
    sub.nack_many([position, batch], delay=60_000)
    assert payloads(sub.receive(5, timeout=0)) == [b"d"]
    clock.advance(60)
    assert payloads(sub.receive(5, timeout=1)) == [b"a", b"b", b"c"]
    assert sub.stats.out == 4


def test_what_is_due_and_waits_for_something_else_goes_on_waiting(
    store: Store, clock: VirtualClock, faults: Faults
) -> None:
    """Although what is due with it cannot be read."""
    topic, sub = subscribed(store)
    nacked, broken = topic.publish_many([b"a", b"b"], deliver_after=10_000)
    assert sub.receive(5, timeout=0) == []
    sub.nack(nacked, delay=60_000)
    clock.advance(10)
    faults.fail("read", entry=broken.entry_id, error=ReadError("no"))
    with pytest.raises(ReadError):
        sub.receive(5, timeout=0)
    assert payloads(sub.receive(5, timeout=0)) == [b"b"]
    clock.advance(60)
    assert payloads(sub.receive(5, timeout=1)) == [b"a"]


def test_whichever_read_fails_everything_comes_once() -> None:
    """Also one of the cursor's own, of which little is in memory."""
    cursor = CursorConfig(max_individual_ack_cache_bytes=1, flush_interval=HOUR)
    for nth in itertools.count(1):
        faults = Faults()
        with bookstand.temporary(clock=VirtualClock(START), hooks=faults) as store:
            topic = store.topic("t", TopicConfig(max_entries_per_ledger=4))
            sub = topic.subscription("s", SubscriptionConfig(cursor=cursor))
            topic.publish(b"later", deliver_after=HOUR)
            for ledger in range(3):
                topic.publish_batch([b"%d.0" % ledger, b"%d.1" % ledger])
                acked = topic.publish(b"acked")
                topic.publish_many([b"%d.2" % ledger, b"%d.3" % ledger])
                sub.ack(acked).result()
            fault = faults.fail("read", nth=nth, error=ReadError("no"))
            found: list[bytes] = []
            failed = 0
            while True:
                try:
                    part = sub.receive(2, timeout=0)
                except ReadError:
                    failed += 1
                    continue
                if not part:
                    break
                found += payloads(part)
            assert sorted(found) == [b"%d.%d" % (ledger, n) for ledger in range(3) for n in range(4)], nth
            if fault in faults.unfired():
                break
            assert failed <= 1
    # More was read than the topic has.
    assert nth > 13
