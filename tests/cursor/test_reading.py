"""Who reads on is given each entry once, whatever is acknowledged meanwhile; who is sent elsewhere goes on there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from bookstand.cursor.reader import EntryFilter
from tests.cursor.desk import Desk

PER_LEDGER = 10


@pytest.fixture
def at(desk: Callable[..., Desk], form: str) -> Desk:
    return desk(form, entries=30, per_ledger=PER_LEDGER)


def while_reading(happens: Callable[[], Any]) -> EntryFilter:
    """All entries are wanted; and what happens, happens when the first of them were chosen."""
    steps = iter([happens])

    def wanted(ledger_id: int, first: int, last: int) -> Iterable[int]:
        for step in steps:
            step()
        return range(first, last + 1)

    return wanted


def read(at: Desk, count: int, wanted: EntryFilter | None = None) -> list[int]:
    return [at.p.index(entry.position) for entry in at.cursor.read(count, wanted=wanted)]


def test_what_another_acknowledges_brings_nothing_twice(at: Desk) -> None:
    """The mark-delete position passes by where reading began, to within what is being read."""
    at.ack([1, 2, 3])
    assert read(at, 100, while_reading(lambda: at.ack([0]))) == [0, *range(4, 30)]
    assert read(at, 100) == []


def test_what_another_acknowledges_is_not_read_afterwards(at: Desk) -> None:
    """The mark-delete position passes by all that is being read."""
    assert read(at, 3, while_reading(lambda: at.ack(range(15)))) == [0, 1, 2]
    assert read(at, 3) == [15, 16, 17]


@pytest.mark.parametrize("where", [0, 2, 5, 20])
def test_who_is_sent_elsewhere_goes_on_there(at: Desk, where: int) -> None:
    for go in (at.cursor.seek, at.cursor.reset):
        at.cursor.rewind()
        first = at.p.index(at.cursor.read_position)
        expected = list(range(first, first + 3))
        assert read(at, 3, while_reading(lambda go=go: go(at.p[where]))) == expected  # type: ignore[misc]
        assert read(at, 3) == [where, where + 1, where + 2]


def test_who_is_sent_back_begins_again(at: Desk) -> None:
    assert read(at, 3, while_reading(at.cursor.rewind)) == [0, 1, 2]
    assert read(at, 3) == [0, 1, 2]


def test_no_entry_behind_a_bound_is_read_or_passed_over(desk):
    """Entries that are not wanted are passed over, but only up to the bound."""
    at = desk(per_ledger=3, entries=10)
    at.cursor.ack([at.p[1], at.p[4]])
    bound = at.p[5]
    runs = at.cursor.read_runs(100, upto=bound)
    assert [entry.position for run in runs for entry in run.entries()] == [at.p[0], at.p[2], at.p[3], at.p[5]]
    assert at.cursor.read_runs(100, upto=bound) == []
    assert at.cursor.read_runs(100, lambda *_: [], at.p[7]) == []
    assert [entry.position for entry in at.cursor.read(100)] == at.p[8:]
