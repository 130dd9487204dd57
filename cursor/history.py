"""Earlier states of a cursor: which there are, and what changed between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyroaring import BitMap64

from bookstand.cursor import recovery
from bookstand.cursor.log import known_of
from bookstand.errors import LedgerError
from bookstand.proto.wire import read_varint
from bookstand.storage.position import Position

if TYPE_CHECKING:
    from bookstand.cursor.cursor import Cursor


class HistoryEntry(NamedTuple):
    """A marker. ``acked`` is the number of entries acknowledged beyond the mark-delete position."""

    marker: Position
    generation: int
    time_ms: int
    mark_delete: Position
    ledgers: int
    acked: int
    size: int


class CursorDiff(NamedTuple):
    """From one state to another: entries of each ledger that have become acknowledged, and that no longer are."""

    mark_delete: tuple[Position, Position]
    acked: dict[int, BitMap64]
    unacked: dict[int, BitMap64]


def history_of(cursor: Cursor) -> list[HistoryEntry]:
    found = []
    for entries in _ledgers(cursor):
        for at, marker in recovery.markers(cursor.name, entries):
            ledgers, place = read_varint(marker.root, 0, len(marker.root))
            acked, _ = read_varint(marker.root, place, len(marker.root))
            where = Position(entries.ledger_id, at)
            found.append(
                HistoryEntry(
                    where, marker.generation, marker.time_ms, marker.mark_delete, ledgers, acked, marker.state_size
                )
            )
    return found


def _ledgers(cursor: Cursor) -> Iterator[recovery.Entries]:
    """The ledger that is written to, and then the former ones, newest first."""
    log = cursor._log
    handle = log.handle
    if handle is not None:
        yield recovery.Entries(handle, handle.last_add_confirmed, None)
    assert log.info is not None
    for ledger_id in reversed(known_of(log.info).former):
        try:
            yield log.entries_of(ledger_id, False)
        except LedgerError:
            continue


def diff_of(cursor: Cursor, one: Position | None, other: Position | None) -> CursorDiff:
    before, after = _acked(cursor, one), _acked(cursor, other)
    acked: dict[int, BitMap64] = {}
    unacked: dict[int, BitMap64] = {}
    for ledger_id in sorted(before[1].keys() | after[1].keys()):
        then, now = before[1].get(ledger_id, BitMap64()), after[1].get(ledger_id, BitMap64())
        if now - then:
            acked[ledger_id] = now - then
        if then - now:
            unacked[ledger_id] = then - now
    return CursorDiff((before[0], after[0]), acked, unacked)


def _acked(cursor: Cursor, marker: Position | None) -> tuple[Position, dict[int, BitMap64]]:
    """The mark-delete position, and all acknowledged entries of each ledger that the topic still has."""
    if marker is None:
        return _all_of(cursor)
    earlier = type(cursor).open(cursor.topic, cursor.name, cursor.config, create=False, at_marker=marker)
    with earlier:
        return _all_of(earlier)


def _all_of(cursor: Cursor) -> tuple[Position, dict[int, BitMap64]]:
    mark_delete = cursor.mark_delete_position
    acked = {page.ledger_id: page.acked for page in cursor._pages()}
    for ledger in cursor.topic.ledgers:
        if ledger.ledger_id > mark_delete.ledger_id:
            break
        whole = ledger.ledger_id < mark_delete.ledger_id
        consumed = ledger.entries if whole else min(mark_delete.entry_id + 1, ledger.entries)
        if consumed > 0:
            acked.setdefault(ledger.ledger_id, BitMap64()).add_range(0, consumed)
    return mark_delete, acked
