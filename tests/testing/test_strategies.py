"""What the strategies draw is valid, and they reach the shapes that make trouble."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.errors import IncorrectParameterError
from bookstand.testing import every_crash, strategies
from bookstand.testing.workloads import (
    Append,
    BatchIndexes,
    Compact,
    Create,
    Cumulative,
    Delete,
    Individual,
    Position,
    PutNode,
    Recover,
    Reopen,
    check_survivors,
    perform,
)

NOW = 1_700_000_000_000
TOPIC = ((3, 100), (4, 0), (7, 30))
ENTRIES = {Position(ledger_id, entry_id) for ledger_id, size in TOPIC for entry_id in range(size)}
STEADY = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
FINDING = settings(STEADY, max_examples=2000, phases=[Phase.generate])


def reached(strategy: st.SearchStrategy[Any], condition: Callable[[Any], bool]) -> Any:
    return find(strategy, condition, settings=FINDING)


# -- validity --------------------------------------------------------------------------------------------------------


@STEADY
@given(strategies.topics())
def test_topics_ascend_and_have_an_entry(topic: tuple[tuple[int, int], ...]) -> None:
    ids = [ledger_id for ledger_id, _ in topic]
    assert ids == sorted(set(ids))
    assert ids[0] >= 0
    assert sum(size for _, size in topic) >= 1


@STEADY
@given(strategies.positions(), strategies.positions(TOPIC))
def test_positions_are_those_of_the_topic_or_any_that_can_be(anywhere: Position, inside: Position) -> None:
    assert 0 <= anywhere.ledger_id < 1 << 63
    assert 0 <= anywhere.entry_id < 1 << 63
    assert inside in ENTRIES


@STEADY
@given(strategies.acknowledgments(TOPIC))
def test_acknowledgments_are_of_entries_that_are_there(acks: list[Any]) -> None:
    assert {ack.position for ack in acks} <= ENTRIES
    individual = Counter(ack.position for ack in acks if isinstance(ack, Individual))
    assert not individual or max(individual.values()) == 1
    for ack in acks:
        if isinstance(ack, BatchIndexes):
            assert ack.indexes
            assert list(ack.indexes) == sorted(set(ack.indexes))
            assert 0 <= ack.indexes[0] <= ack.indexes[-1] < ack.batch_size


@STEADY
@given(strategies.acknowledgments(TOPIC, cumulative=False, batches=False))
def test_kinds_that_are_not_wanted_do_not_come(acks: list[Any]) -> None:
    assert all(isinstance(ack, Individual) for ack in acks)


@STEADY
@given(strategies.delayed_workloads(TOPIC, NOW))
def test_delays_come_in_the_order_of_publishing(messages: list[Any]) -> None:
    positions = [message.position for message in messages]
    assert positions == sorted(set(positions))
    assert set(positions) <= ENTRIES
    assert messages
    assert all(0 <= message.deliver_at < 1 << 63 for message in messages)


@settings(STEADY, max_examples=40)
@given(strategies.operations())
def test_every_sequence_of_operations_can_be_carried_out(operations: list[Any]) -> None:
    folder = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        acknowledged: list[Any] = []
        perform(operations, os.path.join(folder, "store"), acknowledged.append)
        assert len(acknowledged) == len(operations)
        with bookstand.open(os.path.join(folder, "store"), create=False) as store:
            check_survivors(store, operations, acknowledged)
            assert store.verify().ok
    finally:
        shutil.rmtree(folder)


# -- the shapes that make trouble ------------------------------------------------------------------------------------


def test_topics_with_an_empty_ledger_between_others_and_with_large_ids_are_reached() -> None:
    reached(strategies.topics(), lambda topic: any(size == 0 for _, size in topic[1:-1]))
    reached(strategies.topics(), lambda topic: topic[0][0] > 1 << 32 and len(topic) > 1)
    reached(strategies.topics(), lambda topic: sum(size for _, size in topic) > 300)


def test_the_limits_of_positions_are_reached() -> None:
    reached(strategies.positions(), lambda position: position == (0, (1 << 63) - 1))
    reached(strategies.positions(TOPIC), lambda position: position == (7, 29))


def density(acks: list[Any], ledger_id: int = 3) -> int:
    """How many of the hundred entries of the first ledger are acknowledged one by one."""
    return sum(isinstance(ack, Individual) and ack.position.ledger_id == ledger_id for ack in acks)


@pytest.mark.parametrize(
    ("pattern", "condition"),
    [
        ("sparse", lambda acks: 1 <= density(acks) <= 8),
        ("holes", lambda acks: 92 <= density(acks) <= 99),
        ("runs", lambda acks: 30 <= density(acks) <= 70),
        ("everything", lambda acks: density(acks) == 100),
        ("nothing", lambda acks: density(acks) == 0 and len(acks) > 0),
    ],
)
def test_each_density_is_reached_by_its_name_and_without_it(pattern: str, condition: Callable[[Any], bool]) -> None:
    reached(strategies.acknowledgments(TOPIC, pattern), condition)
    reached(strategies.acknowledgments(TOPIC), condition)


@STEADY
@given(strategies.acknowledgments(TOPIC, "holes"))
def test_a_pattern_keeps_to_its_density(acks: list[Any]) -> None:
    assert density(acks) >= 92


def test_acknowledgments_of_all_kinds_and_orders_are_reached() -> None:
    acks = strategies.acknowledgments(TOPIC)

    def cumulative_behind_an_individual_one(found: list[Any]) -> bool:
        done = set()
        for ack in found:
            if isinstance(ack, Cumulative) and any(position > ack.position for position in done):
                return True
            if isinstance(ack, Individual):
                done.add(ack.position)
        return False

    def entry_after_its_batch_indexes(found: list[Any]) -> bool:
        batches = {ack.position for ack in found if isinstance(ack, BatchIndexes)}
        return any(isinstance(ack, Individual) and ack.position in batches for ack in found)

    def descending(found: list[Any]) -> bool:
        positions = [ack.position for ack in found if isinstance(ack, Individual)]
        return len(positions) > 20 and positions == sorted(positions, reverse=True)

    reached(acks, cumulative_behind_an_individual_one)
    reached(acks, entry_after_its_batch_indexes)
    reached(acks, descending)
    reached(acks, lambda found: any(isinstance(a, BatchIndexes) and len(a.indexes) == a.batch_size - 1 for a in found))
    reached(acks, lambda found: any(isinstance(a, BatchIndexes) and a.batch_size == 64 for a in found))


def test_delays_with_ties_past_and_far_future_are_reached() -> None:
    messages = strategies.delayed_workloads(TOPIC, NOW)
    reached(messages, lambda found: max(Counter(m.deliver_at for m in found).values()) >= 30)
    reached(messages, lambda found: any(m.deliver_at < NOW for m in found) and any(m.deliver_at > NOW for m in found))
    reached(messages, lambda found: any(m.deliver_at == NOW for m in found))
    reached(messages, lambda found: any(m.deliver_at > NOW + 100 * 365 * 86_400_000 for m in found))
    reached(messages, lambda found: len(found) > 1 and all(a.deliver_at > b.deliver_at for a, b in pairwise(found)))


def test_operations_that_meet_each_other_are_reached() -> None:
    operations = strategies.operations()

    def kinds(found: list[Any]) -> list[type]:
        return [type(operation) for operation in found]

    def follows(first: type, then: type) -> Callable[[Any], bool]:
        return lambda found: first in kinds(found) and then in kinds(found)[kinds(found).index(first) + 1 :]

    for first, then in [(Append, Recover), (Reopen, Recover), (Delete, Compact), (Delete, Create), (Recover, Delete)]:
        reached(operations, follows(first, then))
    reached(operations, lambda found: sum(isinstance(operation, Append) for operation in found) >= 6)
    reached(operations, lambda found: any(isinstance(op, Append) and op.how == "many" for op in found))
    reached(operations, lambda found: any(isinstance(op, Create) and op.deferred for op in found))


def test_a_small_example_shrinks_to_what_matters() -> None:
    shrinking = settings(STEADY, max_examples=200)
    found = find(strategies.operations(), lambda found: any(isinstance(op, Append) for op in found), settings=shrinking)
    assert [type(operation) for operation in found] == [Create, Append]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: strategies.topics(min_ledgers=0),
        lambda: strategies.topics(min_ledgers=3, max_ledgers=2),
        lambda: strategies.acknowledgments(TOPIC, "most"),
        lambda: strategies.acknowledgments(((1, 0),)),
        lambda: strategies.delayed_workloads(TOPIC, kind="late"),
        lambda: strategies.operations(min_size=5, max_size=2),
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[], st.SearchStrategy[Any]]) -> None:
    with pytest.raises(IncorrectParameterError):
        find(wrong(), lambda value: True, settings=FINDING)


# -- sequences and crashes -------------------------------------------------------------------------------------------

SEQUENCE = [
    Create(0),
    Append(0, (b"a", b"b", b"c"), "many"),
    PutNode("/a", b"1"),
    Create(1, "crc32", b"secret", True),
    Append(1, (b"x", b"y")),
    Recover(0),
    PutNode("/a", b"2"),
    Delete(0),
    Compact(),
]


def crash(operations: list[Any], **options: Any) -> Any:
    return every_crash(
        lambda path, acknowledge: perform(operations, path, acknowledge),
        lambda store, acknowledged: check_survivors(store, operations, acknowledged),
        **options,
    )


def test_a_sequence_survives_its_crashes() -> None:
    assert crash(SEQUENCE, limit=150).states == 150
    assert crash(SEQUENCE, mode="simulated").states >= len(SEQUENCE)


@settings(STEADY, max_examples=5)
@given(strategies.operations(min_size=5, max_size=10))
def test_drawn_sequences_survive_their_crashes(operations: list[Any]) -> None:
    assert crash(operations, limit=40).states > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda store, ledger_id: store.delete_ledger(ledger_id),
        lambda store, ledger_id: store.open_ledger(ledger_id, password=b"p").close(),
        lambda store, ledger_id: store.nodes.put("/a", b"2"),
        lambda store, ledger_id: store.nodes.delete("/a"),
    ],
)
def test_what_nobody_asked_for_is_seen(store: bookstand.Store, change: Callable[[Any, int], object]) -> None:
    operations = [Create(0, password=b"p"), Append(0, (b"a", b"b")), PutNode("/a", b"1")]
    writer = store.create_ledger(password=b"p")
    writer.append_many([b"a", b"b"])
    store.nodes.put("/a", b"1")
    acknowledged = [writer.id, writer.id, None]
    check_survivors(store, operations, acknowledged)
    change(store, writer.id)
    with pytest.raises(AssertionError):
        check_survivors(store, operations, acknowledged)


def test_entries_that_are_missing_or_other_ones_are_seen(store: bookstand.Store) -> None:
    writer = store.create_ledger()
    writer.append_many([b"a", b"b"])
    for payloads in ((b"a", b"b", b"c"), (b"a", b"x"), (b"a",)):
        with pytest.raises(AssertionError):
            check_survivors(store, [Create(0), Append(0, payloads)], [writer.id, writer.id])
    # Under way, they may be there.
    check_survivors(store, [Create(0), Append(0, (b"a", b"b"))], [writer.id])
    check_survivors(store, [Create(0), Append(0, (b"a", b"b", b"c"))], [writer.id])
