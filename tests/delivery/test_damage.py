"""Damaged records of subscriptions, one bit each: the topic opens, and what is lost is reported and redelivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.delivery.topic import Topic
from bookstand.delivery.topic_config import SubscriptionConfig, TopicConfig
from bookstand.errors import NoSuchNodeError, StoreDamagedError
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
from bookstand.store import Store
from bookstand.testing import VirtualClock
from tests.delivery.subscription_kit import START, SUBSCRIPTION, TOPIC, Desk, subscription_config, topic_config
from tests.kit import change_entry, raw

BUILDER = "bookstand.delayed-index"
Damage = Callable[[Path, dict[str, list[int]]], None]


def flip(path: Path, database: bytes, key: bytes) -> None:
    """The last bit of a stored value."""
    with raw(path, write=True) as databases:
        records = databases(database)
        records[key] = records[key][:-1] + bytes([records[key][-1] ^ 1])


def flip_node(path: Path, node: str) -> None:
    flip(path, b"nodes", node.encode())


def flip_entry(path: Path, ledger_id: int, entry_id: int) -> None:
    change_entry(path, ledger_id, entry_id, lambda stored: stored[:-1] + bytes([stored[-1] ^ 1]))


def ledgers_of(store: Store) -> dict[str, list[int]]:
    """Ledgers by the component that their labels name; of cursors, by the cursor."""
    found: dict[str, list[int]] = {}
    for ledger_id in store.list_ledgers():
        labels = store.ledger_metadata(ledger_id).custom_metadata
        name = labels.get("pulsar/cursor", labels["component"]).decode()
        found.setdefault(name, []).append(ledger_id)
    return found


def entries_in(path: Path, ledger_id: int) -> int:
    with raw(path) as databases:
        return sum(key[:8] == ledger_id.to_bytes(8, "big") for key, _ in databases(b"entries").items())


def flip_record(path: Path, ledgers: dict[str, list[int]]) -> None:
    flip_node(path, cursor_node_of(TOPIC, SUBSCRIPTION))


def flip_all_states(path: Path, ledgers: dict[str, list[int]]) -> None:
    for ledger_id in ledgers[SUBSCRIPTION]:
        for entry_id in range(entries_in(path, ledger_id)):
            flip_entry(path, ledger_id, entry_id)


def flip_metadata(path: Path, ledgers: dict[str, list[int]]) -> None:
    for ledger_id in ledgers[SUBSCRIPTION]:
        flip(path, b"ledgers", ledger_id.to_bytes(8, "big"))


def flip_state(path: Path, ledgers: dict[str, list[int]]) -> None:
    for ledger_id in ledgers[SUBSCRIPTION]:
        flip(path, b"state", ledger_id.to_bytes(8, "big"))


def flip_snapshots(path: Path, ledgers: dict[str, list[int]]) -> None:
    for ledger_id in ledgers["delayed-index-bucket"]:
        for entry_id in range(entries_in(path, ledger_id)):
            flip_entry(path, ledger_id, entry_id)


def flip_metadata_of_snapshots(path: Path, ledgers: dict[str, list[int]]) -> None:
    for ledger_id in ledgers["delayed-index-bucket"]:
        flip(path, b"ledgers", ledger_id.to_bytes(8, "big"))


def flip_rescheduled(path: Path, ledgers: dict[str, list[int]]) -> None:
    flip_entry(path, ledgers["delayed-index-rescheduled"][0], 0)


def flip_nacks(path: Path, ledgers: dict[str, list[int]]) -> None:
    flip_entry(path, ledgers["negative-acks"][0], 0)


def flip_node_of_nacks(path: Path, ledgers: dict[str, list[int]]) -> None:
    with raw(path) as databases:
        (node,) = [key for key, _ in databases(b"nodes").items() if key.startswith(b"/negative-acks/")]
    flip(path, b"nodes", node)


DAMAGE: list[Damage] = [
    flip_record,
    flip_all_states,
    flip_metadata,
    flip_state,
    flip_snapshots,
    flip_metadata_of_snapshots,
    flip_rescheduled,
    flip_nacks,
    flip_node_of_nacks,
]
DURABLE = subscription_config(durable_nacks=True)


def fill(path: Path, mode: str = "buckets") -> dict[str, list[int]]:
    """A closed store: messages acknowledged, delayed, rescheduled and nacked. Its ledgers, by their owners."""
    with Desk(path, topic_config(mode), DURABLE, durability="none") as desk:
        for number in range(20):
            desk.topic.publish(b"later %d" % number, deliver_after=1000 + 100 * number)
        desk.publish("acked", "nacked", "new")
        by_payload = {message.payload: message for message in desk.drain()}
        desk.sub.ack(by_payload[b"acked"])
        desk.sub.nack(by_payload[b"nacked"], delay=5000)
        desk.sub.reschedule(desk.sub.peek_delayed()[3][1], deliver_after=50_000)
    with bookstand.open(path, read_only=True) as store:
        return ledgers_of(store)


@contextmanager
def opened(path: Path, mode: str = "buckets", at: int = 0) -> Iterator[tuple[Store, Topic, VirtualClock]]:
    clock = VirtualClock(START + at)
    with bookstand.open(path, clock=clock, durability="none") as store:
        yield store, store.topic(TOPIC, topic_config(mode)), clock


def payloads(topic: Topic, clock: VirtualClock, wait: float = 0) -> set[bytes]:
    """Everything that the subscription delivers within so many seconds; nothing of it is acknowledged."""
    sub = topic.subscription(SUBSCRIPTION, DURABLE)
    found: set[bytes] = set()
    for step in (0, *[wait / 10] * 10):
        clock.advance(step)
        while messages := sub.receive(100, 0):
            found.update(message.payload for message in messages)
    return found


ALL = {b"nacked", b"new", *(b"later %d" % number for number in range(20))}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_subscription_opens_and_delivers_and_reports(store_path: Path, damage: Damage) -> None:
    damage(store_path, fill(store_path))
    for reported in (True, False):
        with opened(store_path) as (_, topic, clock):
            assert payloads(topic, clock, wait=100) >= ALL
            sub = topic.subscription(SUBSCRIPTION)
            # What was damaged has been replaced, unless nothing had to be written.
            assert bool(sub.damage) or not reported
            sub.ack_many(list(sub.receive(1, 0)))


@pytest.mark.parametrize("mode", ["buckets", "shared index"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_unsubscribing_needs_no_readable_state(store_path: Path, damage: Damage, mode: str) -> None:
    damage(store_path, fill(store_path, mode))
    with opened(store_path, mode) as (store, topic, clock):
        topic.unsubscribe(SUBSCRIPTION)
        assert topic.subscriptions() == []
        left = ledgers_of(store)
        assert SUBSCRIPTION not in left
        assert "negative-acks" not in left
        assert "delayed-index-rescheduled" not in left
        assert mode == "shared index" or set(left) == {"managed-ledger"}
        # The name is free, and what was acknowledged by it forgotten.
        assert {b"acked", *ALL} <= payloads(topic, clock, wait=100)
        assert topic.subscription(SUBSCRIPTION).cursor.recovered_from.damage == ()
        with pytest.raises(NoSuchNodeError):
            topic.unsubscribe("other")


@pytest.mark.parametrize("mode", ["buckets", "shared index"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_deleting_a_topic_needs_no_readable_state(store_path: Path, damage: Damage, mode: str) -> None:
    damage(store_path, fill(store_path, mode))
    with opened(store_path, mode) as (store, topic, _):
        topic.delete()
        assert list(store.list_ledgers()) == []
        assert list(store.storage.node_paths("/")) == []
        store.storage.collect_deleted(2 * START)
        assert store.verify().ok


def test_a_damaged_record_costs_nothing_while_its_ledgers_can_be_read(store_path: Path) -> None:
    fill(store_path)
    flip_node(store_path, cursor_node_of(TOPIC, SUBSCRIPTION))
    with opened(store_path) as (store, topic, clock):
        sub = topic.subscription(SUBSCRIPTION, DURABLE)
        assert "labels" in sub.damage[0]
        times = [time for time, _ in sub.peek_delayed()]
        assert (len(times), times.count(START + 50_000)) == (20, 1)
        assert payloads(topic, clock) == {b"new"}
        assert store.verify().ok
    with opened(store_path) as (_, topic, _):
        assert topic.subscription(SUBSCRIPTION, DURABLE).damage == []


@pytest.mark.parametrize("initial", ["earliest", "latest"])
def test_a_record_with_all_of_the_state_is_lost_to_the_first_message_never_to_the_last(
    store_path: Path, initial: str
) -> None:
    config = SubscriptionConfig(cursor=CursorConfig(enable_lru_cache_max_unacked_ranges=False))
    with Desk(store_path, durability="none") as desk:
        desk.publish("one", "two")
        other = desk.topic.subscription("other", config, initial=initial)
        desk.publish("three")
        other.ack(other.receive(1, 0)[0]).result()
        desk.sub.ack(desk.sub.receive(1, 0)[0]).result()
    flip_node(store_path, cursor_node_of(TOPIC, "other"))
    for reported in (True, False):
        with opened(store_path, "in memory") as (_, topic, _):
            other = topic.subscription("other", config, initial="latest")
            assert [message.payload for message in other.receive(10, 0)] == [b"one", b"two", b"three"]
            assert bool(other.damage) == reported
            # The others of the topic are not affected.
            assert topic.subscription(SUBSCRIPTION).backlog == 2
            assert topic.subscription(SUBSCRIPTION).damage == []


def test_the_topics_own_record_is_needed(store_path: Path) -> None:
    fill(store_path)
    flip_node(store_path, node_of(TOPIC))
    with pytest.raises(StoreDamagedError, match=f"node '{node_of(TOPIC)}'"), opened(store_path):
        pass


# -- the shared index ------------------------------------------------------------------------------------------------


def flip_builder(path: Path, ledgers: dict[str, list[int]]) -> None:
    flip_node(path, cursor_node_of(TOPIC, BUILDER))


def flip_states_of_builder(path: Path, ledgers: dict[str, list[int]]) -> None:
    flip_all_states(path, {SUBSCRIPTION: ledgers[BUILDER]})


def lose_builder(path: Path, ledgers: dict[str, list[int]]) -> None:
    """A record that has its seal, and says nothing."""
    with bookstand.open(path, durability="none") as store:
        store.nodes.put(cursor_node_of(TOPIC, BUILDER), b"\xff\xff")


@pytest.mark.parametrize(
    "damage", [flip_builder, flip_states_of_builder, lose_builder, flip_snapshots, flip_metadata_of_snapshots]
)
@pytest.mark.parametrize("after", ["shared index", "buckets", "in memory"])
def test_a_damaged_shared_index_is_rebuilt_from_the_topic(
    store_path: Path, damage: Damage, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(store_path, fill(store_path, "shared index"))
    with opened(store_path, after) as (store, topic, clock):
        sub = topic.subscription(SUBSCRIPTION, DURABLE)
        assert len(sub.peek_delayed()) == 20
        assert payloads(topic, clock) == {b"new"}
        if after == "shared index":
            assert sub.damage
            assert caplog.records
        else:
            assert BUILDER not in ledgers_of(store)
            assert BUILDER not in topic.ledger.cursor_names()
        assert payloads(topic, clock, wait=100) == ALL - {b"new"}


# -- what goes on ----------------------------------------------------------------------------------------------------


def test_ledgers_are_trimmed_when_a_damaged_subscription_has_acknowledged_everything(store_path: Path) -> None:
    flip_all_states(store_path, fill(store_path))
    with opened(store_path) as (_, topic, clock):
        sub = topic.subscription(SUBSCRIPTION, DURABLE)
        before = len(topic.ledger.ledgers)
        for _ in range(12):
            clock.advance(10)
            sub.ack_many(sub.receive(100, 0))
        assert sub.backlog == 0
        assert len(topic.trim()) >= before - 2


def test_the_times_of_rescheduled_messages_that_are_lost_are_their_own(store_path: Path) -> None:
    flip_rescheduled(store_path, fill(store_path, "in memory"))
    with opened(store_path, "in memory") as (_, topic, clock):
        sub = topic.subscription(SUBSCRIPTION, DURABLE)
        assert any("rescheduled" in problem for problem in sub.damage)
        assert payloads(topic, clock) == {b"new"}
        assert payloads(topic, clock, wait=4) == ALL - {b"new", b"nacked"}


@pytest.mark.parametrize("damage", [flip_nacks, flip_node_of_nacks])
def test_nacked_messages_of_which_the_log_is_damaged_are_redelivered(store_path: Path, damage: Damage) -> None:
    damage(store_path, fill(store_path, "in memory"))
    with opened(store_path, "in memory") as (store, topic, clock):
        sub = topic.subscription(SUBSCRIPTION, DURABLE)
        assert any("negative" in problem for problem in sub.damage)
        # The node is found again by the labels of the ledger; what an entry had is delivered at once.
        assert payloads(topic, clock) == ({b"new"} if damage is flip_node_of_nacks else {b"new", b"nacked"})
        assert len(ledgers_of(store)["negative-acks"]) == 1
        assert (b"nacked" in payloads(topic, clock, wait=6)) == (damage is flip_node_of_nacks)


def test_a_store_that_is_only_read_has_the_same_state(store_path: Path) -> None:
    fill(store_path)
    flip_node(store_path, cursor_node_of(TOPIC, SUBSCRIPTION))
    with bookstand.open(store_path, read_only=True) as store:
        cursor = store.topic(TOPIC, TopicConfig()).cursor(SUBSCRIPTION)
        backlog, damage = cursor.backlog, cursor.recovered_from.damage
        assert damage
    with opened(store_path) as (_, topic, _):
        assert topic.subscription(SUBSCRIPTION, replace(DURABLE)).backlog == backlog
