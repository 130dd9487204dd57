"""Sets of messages and redelivery counts against plain sets and dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.message.message_id import BatchMessageId, MessageId
from bookstand.delivery.message.message_set import (
    WIDTHS,
    MessageSet,
    RedeliveryCounts,
    code_of,
    codes_by_width,
    entries_and_indexes,
    message_of,
)
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position

INDEXES = st.one_of(st.integers(-1, 20), st.sampled_from([1_023, 1_024, 70_000, (1 << 25) - 1]))
ENTRIES = st.one_of(st.integers(0, 5), st.sampled_from([65_535, 65_536, (1 << 38) - 1]))
MESSAGES = st.builds(message_of, st.integers(0, 3), ENTRIES, INDEXES)


@settings(max_examples=25)
@given(st.lists(MESSAGES, max_size=40))
def test_every_message_has_one_code(messages: list[MessageId]) -> None:
    found = set()
    for width, ledger_ids, codes in codes_by_width(messages):
        entry_ids, batch_indexes = entries_and_indexes(width, codes)
        found.update(map(message_of, ledger_ids.tolist(), entry_ids.tolist(), batch_indexes.tolist()))
    assert found == set(messages)
    assert len(set(map(code_of, messages))) == len(set(messages))


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (BatchMessageId(1, 1, 1 << 25), "batch index must be below 33554432"),
        (BatchMessageId(1, 1 << 38, 5_000), "entry id of a batch"),
    ],
)
def test_messages_without_a_code_are_rejected(message: BatchMessageId, named: str) -> None:
    with pytest.raises(IncorrectParameterError, match=named):
        code_of(message)


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "discard", "many", "before"]), MESSAGES, st.lists(MESSAGES)), max_size=30
    )
)
def test_a_set_of_messages(steps: list[tuple[str, MessageId, list[MessageId]]]) -> None:
    ours, plain = MessageSet(), set[MessageId]()
    for step, message, more in steps:
        if step == "add":
            assert ours.add(code_of(message)) == (message not in plain)
            plain.add(message)
        elif step == "discard":
            assert ours.discard(code_of(message)) == (message in plain)
            plain.discard(message)
        elif step == "before":
            ours.discard_before(message.ledger_id)
            plain = {one for one in plain if one.ledger_id >= message.ledger_id}
        else:
            for width, ledger_ids, codes in codes_by_width(more):
                ours.add_many(width, ledger_ids, codes)
            plain.update(more)
            for width, ledger_ids, codes in codes_by_width([message]):
                ours.discard_many(width, ledger_ids, codes)
            plain.discard(message)
        assert len(ours) == len(plain)
        assert bool(ours) == bool(plain)
        assert (message in ours) == (message in plain)
        assert all(one in ours for one in plain)
        position = Position(*message[:2])
        members = {one for one in plain if len(one) > 2 and one[:2] == position}
        assert set(ours.members_of(position)) == members
        assert ours.has_members == any(len(one) > 2 for one in plain)
        assert ours.has_entries == any(len(one) == 2 for one in plain)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["increment", "restore", "before"]), MESSAGES, st.integers(0, 9)), max_size=20),
    st.lists(MESSAGES, max_size=10),
)
def test_redelivery_counts(steps: list[tuple[str, MessageId, int]], others: list[MessageId]) -> None:
    ours, own = RedeliveryCounts(), dict[MessageId, int]()

    def count_of(message: MessageId) -> int:
        count = own.get(message, 0)
        return count + own.get(Position(*message[:2]), 0) if len(message) > 2 else count

    for step, message, number in steps:
        if step == "increment":
            for _ in range(number):
                ours.increment(message)
            own[message] = own.get(message, 0) + number
        elif step == "before":
            ours.discard_before(message.ledger_id)
            own = {one: count for one, count in own.items() if one.ledger_id >= message.ledger_id}
        else:
            for width, ledger_ids, codes in codes_by_width([message]):
                ours.restore(width, ledger_ids, codes, number)
            if len(message) > 2:
                number = max(number - own.get(Position(*message[:2]), 0), 0)
            own[message] = number
        everything = [*own, *others]
        assert ours.of_each(everything) == list(map(count_of, everything))
        for width, ledger_ids, codes in codes_by_width(everything):
            entry_ids, batch_indexes = entries_and_indexes(width, codes)
            messages = map(message_of, ledger_ids.tolist(), entry_ids.tolist(), batch_indexes.tolist())
            assert ours.of_columns(width, ledger_ids, codes).tolist() == list(map(count_of, messages))


def test_a_message_that_is_redelivered_for_ever_takes_a_digit_for_each_doubling() -> None:
    counts = RedeliveryCounts()
    message = BatchMessageId(7, 1, 3)
    for _ in range(10_000):
        counts.increment(message)
    assert counts.of(message) == 10_000
    assert counts.memory_bytes < 20_000


def test_messages_of_batches_take_a_few_bits() -> None:
    messages = MessageSet()
    for width, members in ((WIDTHS[0], 10), (WIDTHS[1], 1_000)):
        entry_ids = np.repeat(np.arange(100_000 // members), members)
        codes = entry_ids << width | np.tile(np.arange(members), 100_000 // members)
        messages.add_many(width, np.ones(100_000, dtype=np.int64), codes)
    assert messages.memory_bytes < 100_000
