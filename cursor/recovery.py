"""Finding the newest whole state in a cursor's ledger: from its last entry backwards.

A state is a marker with all that it refers to, each page checked and none kept that does not fit; or a full snapshot in
Pulsar's form. What is passed over on the way, and why, is part of the answer. Where nothing in the ledger can be read,
the position in the cursor's record is what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bookstand.cursor import chunks, legacy, record
from bookstand.cursor.acks import LedgerAcks
from bookstand.cursor.index import Index
from bookstand.cursor.marker import Marker, decode_marker, node_loader
from bookstand.cursor.page import check_page, decode_page
from bookstand.cursor.page_ref import PageRef
from bookstand.cursor.pages import ResidentPages
from bookstand.cursor.state import AckState
from bookstand.errors import (
    BookstandError,
    LedgerRecoveryError,
    MalformedAckStateError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    ReadError,
    StoreDamagedError,
)
from bookstand.ledger.handle import LedgerHandle
from bookstand.storage.position import Position

LOST = (
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    ReadError,
    StoreDamagedError,
)
"""What says that a state is gone. Any other error says nothing of that, and is the caller's."""

# Enough to read them quickly, few enough to hold beside the cache.
_PAGES_AT_ONCE = 16

MARKER, SNAPSHOT, RECORD, NEW = "marker", "snapshot", "record", "new"
_UNFINISHED, _EMPTY = "is of a flush that was not finished", "has no entry"


class RecoveredFrom(NamedTuple):
    """Where a cursor's state came from: a ``marker`` or a ``snapshot`` in ``entry`` of its ledger, its ``record`` in
    the metadata store, or nowhere, for it is ``new``. ``skipped`` says what is newer and could not be used, and why."""

    how: str
    ledger_id: int
    entry: int
    skipped: tuple[str, ...] = ()

    @property
    def damage(self) -> tuple[str, ...]:
        """What of ``skipped`` is damage: a flush that was cut short is none, nor a ledger that nobody wrote to."""
        return tuple(one for one in self.skipped if not one.endswith((_UNFINISHED, _EMPTY)))

    def __str__(self) -> str:
        at = f" in entry {self.ledger_id}:{self.entry}" if self.how in (MARKER, SNAPSHOT) else ""
        passed = f", past {len(self.skipped)} newer entries" if self.skipped else ""
        return f"{self.how}{at}{passed}"


class State(NamedTuple):
    """What was found. ``unstored`` are pages that no marker refers to: they are to be written."""

    source: RecoveredFrom
    mark_delete: Position
    properties: dict[str, int]
    pages: Index
    unstored: list[LedgerAcks]
    generation: int
    marker_entry: int | None
    size: int


class Entries(NamedTuple):
    """A cursor's ledger as recovery reads it: up to the entry ``last``."""

    handle: LedgerHandle
    last: int
    codec: str | None

    @property
    def ledger_id(self) -> int:
        return self.handle.id

    def read(self, entry_id: int) -> bytes:
        return self.handle.read_unconfirmed(entry_id, entry_id)[0].data


def recover(
    cursor: str, entries: Entries, topic_entries: Mapping[int, int], resident: ResidentPages, upto: int | None = None
) -> State | tuple[str, ...]:
    """The newest state up to the entry ``upto`` (None: of all); the reasons, where there is none. Pages are put into
    ``resident`` from the last ledger backwards, as long as there is room."""
    skipped: list[str] = []
    at = entries.last if upto is None else min(upto, entries.last)
    while at >= 0:
        try:
            stored = entries.read(at)
            if record.is_ours(stored):
                if record.identify(stored).kind == record.MARKER:
                    return _from_marker(cursor, entries, at, stored, resident, skipped)
                skipped.append(f"entry {entries.ledger_id}:{at} {_UNFINISHED}")
            else:
                return _from_snapshot(cursor, entries, at, topic_entries, skipped)
        except (*LOST, MalformedAckStateError, record.RecordError) as error:
            skipped.append(f"entry {entries.ledger_id}:{at}: {error}")
        at -= 1
    return tuple(skipped) or (f"ledger {entries.ledger_id} {_EMPTY}",)


def _from_marker(
    cursor: str, entries: Entries, at: int, stored: bytes, resident: ResidentPages, skipped: list[str]
) -> State:
    marker = decode_marker(cursor, at, stored)
    index = Index.read(marker.root, node_loader(cursor, entries.read), cursor=cursor)
    _check_pages(cursor, entries, index, resident)
    source = RecoveredFrom(MARKER, entries.ledger_id, at, tuple(skipped))
    return State(source, marker.mark_delete, marker.properties, index, [], marker.generation, at, marker.state_size)


def _check_pages(cursor: str, entries: Entries, index: Index, resident: ResidentPages) -> None:
    """Every page is there and whole; the last ones are kept, as many as there is room for."""
    pages = list(index.items())
    kept: list[LedgerAcks] = []
    room = resident.limit
    for end in range(len(pages), 0, -_PAGES_AT_ONCE):
        some = pages[max(0, end - _PAGES_AT_ONCE) : end]
        stored = _read_many(entries.handle, [ref for _, ref in some])
        for ledger_id, ref in reversed(some):
            parts = [stored[entry_id] for entry_id in range(ref.entry_id, ref.entry_id + ref.parts)]
            if room <= 0:
                check_page(cursor, ledger_id, ref, parts)
                continue
            # The one that there is no room for any more is checked by this.
            page = load_page(cursor, ledger_id, ref, parts)
            room -= page.memory
            if room >= 0 or not kept:
                kept.append(page)
    # The last one is the one that was used last.
    for page in reversed(kept):
        resident.install(page)


def _read_many(handle: LedgerHandle, refs: list[PageRef]) -> dict[int, bytes]:
    """The entries of many pages: those that stand together are read together."""
    wanted = sorted(entry_id for ref in refs for entry_id in range(ref.entry_id, ref.entry_id + ref.parts))
    stored: dict[int, bytes] = {}
    first = 0
    for place, entry_id in enumerate(wanted):
        if place + 1 == len(wanted) or wanted[place + 1] != entry_id + 1:
            for entry in handle.read_unconfirmed(wanted[first], entry_id):
                stored[entry.entry_id] = entry.data
            first = place + 1
    return stored


def read_parts(handle: LedgerHandle, ref: PageRef) -> list[bytes]:
    """The entries of a page."""
    return [entry.data for entry in handle.read_unconfirmed(ref.entry_id, ref.entry_id + ref.parts - 1)]


def load_page(cursor: str, ledger_id: int, ref: PageRef, parts: list[bytes]) -> LedgerAcks:
    page = decode_page(cursor, ledger_id, ref, parts)
    return LedgerAcks(ledger_id, page.acked, page.partial)


def _from_snapshot(
    cursor: str, entries: Entries, at: int, topic_entries: Mapping[int, int], skipped: list[str]
) -> State:
    found = chunks.stored_at(entries.read, at, entries.codec)
    state = legacy.read(found.data, topic_entries).state
    source = RecoveredFrom(SNAPSHOT, entries.ledger_id, at, tuple(skipped))
    return from_old_state(source, state, len(found.data))


def from_old_state(source: RecoveredFrom, state: AckState, size: int) -> State:
    """A state in Pulsar's form, as pages that are not stored yet."""
    partial: dict[int, dict[int, int]] = {}
    for position, not_acked in state.batches.items():
        partial.setdefault(position.ledger_id, {})[position.entry_id] = not_acked
    pages = [
        LedgerAcks(ledger_id, state.acked.get(ledger_id), partial.get(ledger_id))
        for ledger_id in dict.fromkeys((*state.acked, *partial))
    ]
    # A reserved name in a state that another program has written would make every flush fail.
    properties = {name: value for name, value in state.properties.items() if name not in record.RESERVED_NAMES}
    return State(source, state.mark_delete, properties, Index(), pages, 0, None, size)


def markers(cursor: str, entries: Entries) -> Iterator[tuple[int, Marker]]:
    """The markers of a cursor's ledger that can be read, newest first: (entry, marker)."""
    for at in range(entries.last, -1, -1):
        try:
            stored = entries.read(at)
            if record.is_ours(stored) and record.identify(stored).kind == record.MARKER:
                yield at, decode_marker(cursor, at, stored)
        except (BookstandError, record.RecordError):
            continue
