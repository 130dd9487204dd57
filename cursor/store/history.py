"""Earlier states of a cursor, and differences between two states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from bookstand.cursor.store import recovery
from bookstand.cursor.store.cursor_ledger import CursorLedger, extensions_of
from bookstand.errors import LedgerError, StoreDamagedError
from bookstand.managed_ledger.records import LedgerInfo
from bookstand.proto.wire_format import read_varint
from bookstand.storage.format.position import Position


class HistoryEntry(NamedTuple):
    """A stored state. ``acked`` is the number of acknowledged entries after the mark-delete position."""

    marker: Position
    generation: int
    time_ms: int
    mark_delete: Position
    ledgers: int
    acked: int
    size: int


class CursorDiff(NamedTuple):
    """Difference between two states: entries of each ledger that became acknowledged, and unacknowledged."""

    mark_delete: tuple[Position, Position]
    acked: dict[int, BitMap64]
    unacked: dict[int, BitMap64]


class AllAcked(NamedTuple):
    """All acknowledged entries in one state of a cursor, of the ledgers that the topic still has."""

    mark_delete: Position
    entries: dict[int, BitMap64]


def history_of(cursor: str, log: CursorLedger) -> list[HistoryEntry]:
    found = []
    for entries in _ledgers(log):
        for at, marker in recovery.markers(cursor, entries):
            ledgers, place = read_varint(marker.root, 0, len(marker.root))
            acked, _ = read_varint(marker.root, place, len(marker.root))
            position = Position(entries.ledger_id, at)
            found.append(
                HistoryEntry(
                    position, marker.generation, marker.time_ms, marker.mark_delete, ledgers, acked, marker.state_size
                )
            )
    return found


def _ledgers(log: CursorLedger) -> Iterator[recovery.CursorLedgerEntries]:
    """Yield the current ledger and then the former ones, newest first."""
    assert log.info is not None
    writer = log.writer
    for ledger_id in (log.info.cursor_ledger_id, *reversed(extensions_of(log.info).former)):
        if writer is not None and writer.id == ledger_id:
            yield recovery.CursorLedgerEntries(writer, writer.last_add_confirmed, None)
        elif ledger_id >= 0:
            try:
                yield log.entries_of(ledger_id, False)
            except (LedgerError, StoreDamagedError):
                continue


def diff_of(before: AllAcked, after: AllAcked) -> CursorDiff:
    acked: dict[int, BitMap64] = {}
    unacked: dict[int, BitMap64] = {}
    for ledger_id in sorted(before.entries.keys() | after.entries.keys()):
        then, now = before.entries.get(ledger_id, BitMap64()), after.entries.get(ledger_id, BitMap64())
        if now - then:
            acked[ledger_id] = now - then
        if then - now:
            unacked[ledger_id] = then - now
    return CursorDiff((before.mark_delete, after.mark_delete), acked, unacked)


def all_acked(mark_delete: Position, beyond: dict[int, BitMap64], ledgers: Iterable[LedgerInfo]) -> AllAcked:
    """Add the entries up to ``mark_delete``, in the topic's ``ledgers``, to ``beyond``, the acknowledged entries after
    it."""
    for ledger in ledgers:
        if ledger.ledger_id > mark_delete.ledger_id:
            break
        whole = ledger.ledger_id < mark_delete.ledger_id
        consumed = ledger.entries if whole else min(mark_delete.entry_id + 1, ledger.entries)
        if consumed > 0:
            beyond.setdefault(ledger.ledger_id, BitMap64()).add_range(0, consumed)
    return AllAcked(mark_delete, beyond)
