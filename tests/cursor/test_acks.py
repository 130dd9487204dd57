"""One ledger's acknowledgments, against plain sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand import errors
from bookstand.cursor.state.ledger_acks import LedgerAcks, bits_of, indexes_of

ENTRIES = st.integers(0, 40)
BATCH = 8


@given(
    st.lists(
        st.tuples(st.just("ack"), ENTRIES)
        | st.tuples(st.just("part"), ENTRIES, st.sets(st.integers(0, BATCH - 1), min_size=1))
        | st.tuples(st.just("up to"), ENTRIES, st.integers(0, BATCH - 1))
        | st.tuples(st.just("many"), st.sets(ENTRIES))
        | st.tuples(st.just("drop"), st.integers(-1, 20)),
        max_size=40,
    )
)
def test_against_sets(steps):
    acks = LedgerAcks(7)
    whole: set[int] = set()
    parts: dict[int, set[int]] = {}
    for kind, subject, *more in steps:
        before = acks.changes
        known = set(whole), {entry: set(left) for entry, left in parts.items()}
        if kind == "ack":
            acks.ack(subject)
            whole.add(subject)
            parts.pop(subject, None)
        elif kind == "many":
            acks.ack_all(subject)
            whole |= subject
            parts = {entry: left for entry, left in parts.items() if entry not in subject}
        elif kind == "drop":
            acks.drop_up_to(subject)
            whole = {entry for entry in whole if entry > subject}
            parts = {entry: left for entry, left in parts.items() if entry > subject}
        else:
            indexes = set(range(more[0] + 1)) if kind == "up to" else more[0]
            given_bits = bits_of(indexes, BATCH)
            part = acks.ack_part_up_to if kind == "up to" else acks.ack_part
            complete = part(subject, given_bits)
            if subject not in whole:
                left = parts.get(subject, set(range(BATCH))) - indexes
                parts[subject] = left
                if not left:
                    del parts[subject]
                    whole.add(subject)
            assert complete == (subject in whole)
        if (whole, parts) != known:
            assert acks.changes > before
        assert set(acks.acked) == whole
        assert {entry: set(indexes_of(left)) for entry, left in acks.partial.items()} == parts
        assert bool(acks) == bool(whole or parts)
        for entry in range(42):
            following = next(other for other in range(entry, 99) if other not in whole)
            assert acks.next_unacked(entry) == following
        assert acks.memory > 0
        copied = acks.copy()
        copied.ack(99)
        assert 99 not in acks.acked


@pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 70_000])
def test_long_runs(length):
    acks = LedgerAcks(0)
    acks.ack_all(range(5, 5 + length))
    acks.ack_all(range(6 + length, 9 + length))
    for start in {5, 5 + length // 2, 4 + length}:
        assert acks.run_end(start) == 4 + length
        assert acks.next_unacked(start) == 5 + length
    assert acks.next_unacked(3) == 3


@given(st.integers(0, 1 << 200))
def test_indexes(bits):
    assert sum(1 << index for index in indexes_of(bits)) == bits


@pytest.mark.parametrize(("indexes", "size"), [([3], 3), ([-1], 3), (["0"], 3), ([0], 0), ([0], "3"), ([True], 3)])
def test_bad_indexes(indexes, size):
    with pytest.raises(errors.IncorrectParameterError):
        bits_of(indexes, size)
