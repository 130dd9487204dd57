"""Who reads on gets what was read along with what he asked for before, and never anything else than what is there."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.errors import ClientClosedError, LedgerError
from bookstand.managed_ledger.managed_ledger import UnreadableEntryError
from bookstand.storage.format import schema
from bookstand.testing import Faults
from tests.kit import raw

PER_LEDGER = 10


def opened(store: Any, entries: int) -> tuple[Any, Cursor]:
    topic = store.managed_ledger("orders", max_entries_per_ledger=PER_LEDGER)
    topic.append_entries([b"%d" % number for number in range(entries)])
    return topic, Cursor.open(topic, "audit")


def read(cursor: Cursor, count: int) -> list[int]:
    return [int(entry.data) for entry in cursor.read(count)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is asked of topics: the first and the last entry each time."""
    from bookstand.managed_ledger.managed_ledger import ManagedLedger

    seen: list[tuple[int, int]] = []
    real = ManagedLedger.read_run

    def read_run(self: ManagedLedger, ledger_id: int, first: int, last: int) -> Any:
        seen.append((first, last))
        return real(self, ledger_id, first, last)

    monkeypatch.setattr(ManagedLedger, "read_run", read_run)
    return seen


def test_who_goes_on_has_twice_as_many_read_each_time(store: Any, asked: list[tuple[int, int]]) -> None:
    _, cursor = opened(store, 15)
    assert [read(cursor, 1) for _ in range(16)] == [*([number] for number in range(15)), []]
    # The next ledger begins anew.
    assert asked == [(0, 0), (1, 2), (3, 6), (7, 9), (0, 0), (1, 2), (3, 4)]


def test_who_is_sent_elsewhere_has_no_more_read_than_he_asks_for(store: Any, asked: list[tuple[int, int]]) -> None:
    topic, cursor = opened(store, 10)
    assert [read(cursor, 1) for _ in range(2)] == [[0], [1]]
    position = topic.last_confirmed
    for entry_id in (8, 5, 2):
        cursor.seek(position._replace(entry_id=entry_id))
        assert read(cursor, 1) == [entry_id]
    # The last of them was read along already.
    assert asked == [(0, 0), (1, 2), (8, 8), (5, 5)]


def test_what_is_added_is_read_behind_what_was_read_along(store: Any) -> None:
    topic, cursor = opened(store, 4)
    assert read(cursor, 1) + read(cursor, 1) == [0, 1]
    topic.append_entries([b"4", b"5"])
    assert read(cursor, 10) == [2, 3, 4, 5]


def test_what_is_acknowledged_meanwhile_is_not_read(store: Any) -> None:
    topic, cursor = opened(store, 10)
    assert read(cursor, 1) + read(cursor, 1) + read(cursor, 1) == [0, 1, 2]
    last = topic.last_confirmed
    cursor.ack([last._replace(entry_id=entry_id) for entry_id in (4, 5)])
    assert read(cursor, 3) == [3, 6, 7]


@pytest.mark.damaged
def test_damage_behind_what_is_asked_for_is_told_when_it_is_asked_for(store_path: Path) -> None:
    with bookstand.open(store_path) as store:
        topic, _ = opened(store, 8)
        last = topic.last_confirmed
        topic.close()
    with raw(store_path, write=True) as database:
        entries, key = database(schema.ENTRIES), schema.ENTRY_KEY.pack(last.ledger_id, 5)
        entries[key] = entries[key][:-1] + b"?"
    with bookstand.open(store_path) as store:
        cursor = Cursor.open(store.managed_ledger("orders"), "audit")
        assert [read(cursor, 2), read(cursor, 2)] == [[0, 1], [2, 3]]
        assert read(cursor, 1) == [4]
        for _ in range(2):
            with pytest.raises(UnreadableEntryError, match=f"{last.ledger_id}:5"):
                cursor.read(1)
        cursor.seek(last._replace(entry_id=6))
        assert read(cursor, 5) == [6, 7]


def test_a_store_that_is_closed_gives_nothing_that_was_read_along(store_path: Path) -> None:
    store = bookstand.open(store_path)
    _, cursor = opened(store, 10)
    assert read(cursor, 2) + read(cursor, 1) == [0, 1, 2]
    store.close()
    with pytest.raises(ClientClosedError):
        cursor.read(1)


def test_a_fault_meets_who_asks_for_the_entry(store_path: Path) -> None:
    faults = Faults()
    with bookstand.open(store_path, hooks=faults) as store:
        topic, cursor = opened(store, 8)
        rule = faults.fail("read", -1, ledger=topic.last_confirmed.ledger_id, entry=5)
        assert [read(cursor, 1) for _ in range(5)] == [[number] for number in range(5)]
        assert faults.unfired() == [rule]
        with pytest.raises(LedgerError):
            cursor.read(1)
        assert read(cursor, 3) == [5, 6, 7]


@given(
    first=st.integers(0, 25),
    steps=st.lists(st.tuples(st.sampled_from(["read", "seek", "add"]), st.integers(0, 12)), max_size=20),
)
def test_whatever_is_read_is_what_is_there(first: int, steps: list[tuple[str, int]]) -> None:
    with bookstand.temporary() as store:
        topic, cursor = opened(store, first)
        positions = list(dict.fromkeys(entry.position for entry in topic.read((0, 0), 100)))
        at = 0
        for step, number in steps:
            if step == "add":
                positions += topic.append_entries([b"%d" % (len(positions) + one) for one in range(number)])
            elif step == "seek" and positions:
                at = min(number, len(positions) - 1)
                cursor.seek(positions[at])
            elif step == "read" and number:
                expected = list(range(at, min(at + number, len(positions))))
                assert read(cursor, number) == expected
                at += len(expected)
        assert all(one < other for one, other in pairwise(positions))
