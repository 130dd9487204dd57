"""Positions of a topic's entries, against a plain list of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookstand.managed_ledger.topic_extent import TopicExtent
from bookstand.storage.format.position import EARLIEST, LATEST, Position

SERIES = st.dictionaries(st.integers(0, 30), st.integers(0, 4), max_size=8).map(lambda made: sorted(made.items()))
POSITIONS = st.builds(Position, st.integers(-1, 31), st.integers(-1, 6)) | st.sampled_from([EARLIEST, LATEST])


def entries_of(series: list[tuple[int, int]]) -> list[Position]:
    return [Position(ledger_id, entry_id) for ledger_id, count in series for entry_id in range(count)]


@given(SERIES, POSITIONS, POSITIONS)
def test_against_a_list(series, one, other):
    extent = TopicExtent(series)
    entries = entries_of(series)
    assert extent.total == len(entries)
    assert extent.ledger_ids == [ledger_id for ledger_id, _ in series]
    assert extent.entries(one.ledger_id) == dict(series).get(one.ledger_id)
    assert extent.has(one) == (one in entries)
    assert extent.rank(one) == sum(entry <= one for entry in entries)
    assert extent.between(one, other) == sum(one < entry <= other for entry in entries)
    assert extent.following(one) == next((entry for entry in entries if entry > one), None)
    assert extent.preceding(one) == next((entry for entry in reversed(entries) if entry < one), None)
    assert [extent.at(rank) for rank in range(len(entries) + 2)] == [None, *entries, None]
    assert (extent.first, extent.last) == ((entries[0], entries[-1]) if entries else (None, None))


@given(SERIES, st.lists(st.integers(0, 5), max_size=4))
def test_growing(series, more):
    extent = TopicExtent(series)
    grown = list(series)
    for number, count in enumerate(more):
        extent.append(40 + number)
        extent.resize_last(count)
        grown.append((40 + number, count))
    entries = entries_of(grown)
    assert [extent.at(rank) for rank in range(1, len(entries) + 1)] == entries
    assert extent.ledger_ids == [ledger_id for ledger_id, _ in grown]


def test_a_position_speaks():
    assert str(Position(3, -1)) == "3:-1"
    assert Position(3, 4).next == Position(3, 5)
    assert Position(3, 4).previous == Position(3, 3)
    assert EARLIEST < Position(0, 0) < Position(0, 1) < Position(1, -1) < LATEST
