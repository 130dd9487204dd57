"""Deleted ledgers leave nothing behind, whoever deletes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.ledger.client import COLLECTION_GRACE_MILLIS, MAX_COLLECTED_LEDGERS
from bookstand.storage.format import schema
from bookstand.testing import Faults, VirtualClock

GRACE = COLLECTION_GRACE_MILLIS / 1_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_700_000_000_000)


def left(store: Any) -> int:
    """How many deleted ledgers have something left."""
    return len(list(store.storage.meta_keys(schema.META_DELETED)))


def some_ledgers(store: Any, count: int) -> list[int]:
    ids = []
    for _ in range(count):
        with store.create_ledger() as writer:
            writer.append_many([b"x"] * 3)
            ids.append(writer.id)
    return ids


def delete_alone(store: Any, ledger_id: int) -> None:
    store.delete_ledger(ledger_id)


def delete_together(store: Any, ledger_id: int) -> None:
    with store.transaction() as transaction:
        transaction.delete_ledger(ledger_id)


@pytest.mark.parametrize("delete", [delete_alone, delete_together])
def test_the_next_deletion_after_a_while_collects(
    open_store: Callable[..., Any], clock: VirtualClock, delete: Callable[[Any, int], None]
) -> None:
    store = open_store(clock=clock)
    first, second, third = some_ledgers(store, 3)
    reader = store.open_ledger(first)
    delete(store, first)
    clock.advance(GRACE - 1)
    delete(store, second)
    assert left(store) == 2
    assert len(list(reader)) == 3
    clock.advance(1)
    delete(store, third)
    assert left(store) == 2
    assert store.storage.first_entry_from(first, 0, schema.MAX_ENTRY_ID) is None


def test_transactions_collect_more_than_they_delete_and_not_all_at_once(
    open_store: Callable[..., Any], clock: VirtualClock
) -> None:
    store = open_store(clock=clock)
    many = MAX_COLLECTED_LEDGERS * 2 + 1
    *ids, one, other, last = some_ledgers(store, many + 3)
    for ledger_id in ids:
        delete_together(store, ledger_id)
    assert left(store) == many
    clock.advance(2 * GRACE)
    for number, ledger_id in enumerate((one, other, last), 1):
        delete_together(store, ledger_id)
        assert left(store) == max(many - number * MAX_COLLECTED_LEDGERS, 0) + number


def test_a_topic_that_is_consumed_takes_no_more_and_more_space(
    open_store: Callable[..., Any], clock: VirtualClock, store_path: Path
) -> None:
    store = open_store(clock=clock)
    topic = store.topic("t", bookstand.TopicConfig(max_entries_per_ledger=50, trim_consumed=False))
    subscription = topic.subscription("s")
    entries = []
    for _ in range(60):
        topic.publish_many([b"x" * 100] * 200)
        while messages := subscription.receive(100, timeout=0):
            subscription.ack_many(messages).result()
        topic.trim()
        clock.advance(GRACE / 10)
        entries.append(sum(1 for _ in store.storage.keys_of(schema.ENTRIES)))
    assert max(entries[30:]) <= max(entries[:30]) + 500
    assert left(store) < 100


def test_what_cannot_be_collected_now_is_no_business_of_the_transaction(
    open_store: Callable[..., Any], clock: VirtualClock
) -> None:
    faults = Faults()
    store = open_store(clock=clock, hooks=faults)
    first, second, third = some_ledgers(store, 3)
    delete_together(store, first)
    clock.advance(2 * GRACE)
    faults.fail("commit", nth=2)
    delete_together(store, second)
    assert left(store) == 2
    delete_together(store, third)
    assert left(store) == 2
    assert list(store.list_ledgers()) == []
