"""Earlier states of a cursor: which there are, and what changed between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap64

from bookstand.cursor.store import recovery
from bookstand.cursor.store.cursor_ledger import CursorLedger, known_of
from bookstand.errors import LedgerError, StoreDamagedError
from bookstand.managed_ledger.records import LedgerInfo
from bookstand.proto.wire_format import read_varint
from bookstand.storage.format.position import Position


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


class AllAcked(NamedTuple):
    """One state of a cursor: what is acknowledged, in every ledger that the topic still has."""

    mark_delete: Position
    entries: dict[int, BitMap64]


def history_of(cursor: str, log: CursorLedger) -> list[HistoryEntry]:
    found = []
    for entries in _ledgers(log):
        for at, marker in recovery.markers(cursor, entries):
            ledgers, place = read_varint(marker.root, 0, len(marker.root))
            acked, _ = read_varint(marker.root, place, len(marker.root))
            where = Position(entries.ledger_id, at)
            found.append(
                HistoryEntry(
                    where, marker.generation, marker.time_ms, marker.mark_delete, ledgers, acked, marker.state_size
                )
            )
    return found


def _ledgers(log: CursorLedger) -> Iterator[recovery.CursorLedgerEntries]:
    """The ledger that the record points to, and then the former ones, newest first."""
    assert log.info is not None
    writer = log.writer
    for ledger_id in (log.info.cursor_ledger_id, *reversed(known_of(log.info).former)):
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
    """``beyond`` is what is acknowledged beyond the mark-delete position; it is added to. ``ledgers``: the topic's."""
    for ledger in ledgers:
        if ledger.ledger_id > mark_delete.ledger_id:
            break
        whole = ledger.ledger_id < mark_delete.ledger_id
        consumed = ledger.entries if whole else min(mark_delete.entry_id + 1, ledger.entries)
        if consumed > 0:
            beyond.setdefault(ledger.ledger_id, BitMap64()).add_range(0, consumed)
    return AllAcked(mark_delete, beyond)
