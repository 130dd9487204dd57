"""Recovery of the newest readable state of a cursor: a backward scan of the current cursor ledger, then of the former
ledgers that the record references.

A state is a marker with its index and pages, or a full snapshot in Pulsar's form. Every node and page is verified. If a
marker or a node of its index is unusable, the previous marker is used. If no marker of a ledger has an intact index,
pages are located by the identity that each of them stores.

A damaged page affects only its user ledger. It is replaced by the newest intact older page of that ledger, whose
acknowledgments are a subset, because no cursor ledger contains states from before a reset (``cursor_ledger.py``).
Without such a page the individual acknowledgments of the user ledger are dropped, and its messages are redelivered. The
result reports everything that was skipped or replaced, and the reasons. If no ledger has a state, the position in the
cursor's record is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bookstand.cursor.format import chunked_snapshot, position_info, record
from bookstand.cursor.format.ack_page import PageRef, check_page, decode_page, ref_of
from bookstand.cursor.format.checkpoint import Marker, decode_marker, node_loader
from bookstand.cursor.format.page_index import PageIndex
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.state.page_cache import PageCache
from bookstand.errors import (
    BookstandError,
    DigestMismatchError,
    LedgerRecoveryError,
    MalformedAckStateError,
    MetadataSerializationError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    ReadError,
    StoreDamagedError,
)
from bookstand.ledger.handles.handle import LedgerHandle
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.position import Position
from bookstand.storage.format.schema import MAX_ENTRY_ID

DAMAGED = (
    DigestMismatchError,
    MetadataSerializationError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    StoreDamagedError,
)
"""Permanent errors: the data is damaged or missing, so that a retry fails again."""

PAGE_LOST_ERRORS = (*DAMAGED, LedgerRecoveryError, ReadError)
"""Errors for which opening a cursor treats the data as lost. Other errors are raised."""

_UNUSABLE = (*PAGE_LOST_ERRORS, MalformedAckStateError, record.RecordError)

# Large enough for efficient reads, small enough to hold in addition to the cache.
_PAGES_PER_READ = 16

MARKER, SNAPSHOT, RECORD, NEW = "marker", "snapshot", "record", "new"
_UNFINISHED, _EMPTY = "belongs to an unfinished flush", "has no entry"


class DamagedPage(NamedTuple):
    """An unreadable page of the topic's ledger ``user_ledger``, whose first entry in a cursor ledger is ``place``.

    ``replacement`` is the first entry of the page that is used instead, or None. Because of the damage ``acked``
    acknowledged and ``partial`` partially acknowledged entries are redelivered.
    """

    user_ledger: int
    place: Position
    reason: str
    replacement: Position | None
    acked: int
    partial: int

    def __str__(self) -> str:
        loss = f"{self.acked} acknowledged entries and {self.partial} partially acknowledged ones"
        if self.replacement is None:
            outcome = f"no older page exists: the acknowledgments of {loss} are dropped"
        else:
            outcome = f"replaced by the page in entry {self.replacement}, which lacks {loss}"
        return f"page of ledger {self.user_ledger} in entry {self.place}: {self.reason}; {outcome}"


class RecoveredFrom(NamedTuple):
    """Source of a recovered state. ``how`` is ``"marker"`` or ``"snapshot"`` for an entry of a cursor ledger,
    ``"record"`` for the record in the metadata store, or ``"new"``. ``skipped`` lists newer states that were unusable,
    with the reasons, and ``pages`` the pages that were replaced or dropped."""

    how: str
    ledger_id: int
    entry: int
    skipped: tuple[str, ...] = ()
    pages: tuple[DamagedPage, ...] = ()

    @property
    def reports(self) -> tuple[str, ...]:
        """Messages about everything that was skipped, replaced or dropped."""
        return (*self.skipped, *map(str, self.pages))

    @property
    def damage(self) -> tuple[str, ...]:
        """Messages about damage, which an interrupted flush and an empty ledger are not."""
        return tuple(one for one in self.reports if not one.endswith((_UNFINISHED, _EMPTY)))

    def __str__(self) -> str:
        at = f" in entry {self.ledger_id}:{self.entry}" if self.how in (MARKER, SNAPSHOT) else ""
        skipped = f", past {len(self.skipped)} newer entries" if self.skipped else ""
        replaced = sum(1 for page in self.pages if page.replacement is not None)
        dropped = len(self.pages) - replaced
        return (
            f"{self.how}{at}{skipped}"
            + (f", {replaced} damaged pages replaced" if replaced else "")
            + (f", {dropped} damaged pages dropped" if dropped else "")
        )


class RecoveredState(NamedTuple):
    """A recovered state. ``pages`` refers to entries of the ledger ``handle``. ``unstored`` are pages that no marker
    refers to, so that the next flush must write them."""

    source: RecoveredFrom
    mark_delete: Position
    properties: dict[str, int]
    pages: PageIndex
    unstored: list[LedgerAcks]
    generation: int
    marker_entry: int | None
    size: int
    handle: LedgerHandle | None = None

    @property
    def is_stored(self) -> bool:
        """True if the newest marker contains exactly this state, and recovery met no damage."""
        return self.marker_entry is not None and not self.source.damage and not self.unstored


class CursorLedgerEntries(NamedTuple):
    """The entries of a cursor ledger up to ``last``, as recovery reads them."""

    handle: LedgerHandle
    last: int
    codec: str | None
    damage: str | None = None
    """Damage of the ledger itself; its entries are read anyway."""
    limits: ExpansionLimits = DEFAULT

    @property
    def ledger_id(self) -> int:
        return self.handle.id

    def read(self, entry_id: int) -> bytes:
        return self.handle.read_unconfirmed(entry_id, entry_id)[0].data


class LocatedPage(NamedTuple):
    """A page and the position of its first entry."""

    place: Position
    page: LedgerAcks


class Source(NamedTuple):
    """The ledgers of a cursor. ``ledger_ids`` are the ledgers to search, newest first, and ``open`` returns their
    entries. Replacements of damaged pages come only from ledgers from ``since`` on; None means from no ledger, because
    of a possible reset. ``floor`` and ``properties`` come from the record: the mark-delete position is at least
    ``floor``."""

    ledger_ids: Sequence[int]
    open: Callable[[int], CursorLedgerEntries]
    since: int | None = None
    floor: Position | None = None
    properties: tuple[tuple[str, int], ...] = ()

    def older(self, entries: CursorLedgerEntries, below: int) -> Iterator[OlderEntries]:
        """Yield the entries to search for replacement pages: those before the entry ``below``, then former ledgers."""
        if self.since is None or entries.ledger_id < self.since:
            return
        yield OlderEntries(entries, below - 1, True)
        ledger_ids = list(self.ledger_ids)
        first_older = ledger_ids.index(entries.ledger_id) + 1 if entries.ledger_id in ledger_ids else 0
        for ledger_id in ledger_ids[first_older:]:
            if ledger_id < self.since:
                return
            try:
                former = self.open(ledger_id)
            except PAGE_LOST_ERRORS:
                continue
            yield OlderEntries(former, former.last, False)


class OlderEntries(NamedTuple):
    """The entries of a cursor ledger up to ``last``. ``marked``: an intact marker follows them."""

    entries: CursorLedgerEntries
    last: int
    marked: bool


def recover(
    cursor: str,
    source: Source,
    topic_entries: Mapping[int, int],
    resident: PageCache,
    upto: int | None = None,
) -> RecoveredState | tuple[str, ...]:
    """Recover the newest state, in the first ledger not after the entry ``upto``. Returns the reasons if there is none.
    The pages of the highest user ledgers are cached in ``resident``, up to its limit."""
    return _Search(cursor, source, topic_entries, resident).run(upto)


class _Search:
    def __init__(self, cursor: str, source: Source, topic_entries: Mapping[int, int], resident: PageCache) -> None:
        self._cursor = cursor
        self._source = source
        self._limits = DEFAULT
        self._topic_entries = topic_entries
        self._resident = resident
        self._skipped: list[str] = []

    def run(self, upto: int | None) -> RecoveredState | tuple[str, ...]:
        for number, ledger_id in enumerate(self._source.ledger_ids):
            try:
                entries = self._source.open(ledger_id)
                self._limits = entries.limits
            except PAGE_LOST_ERRORS as error:
                self._skipped.append(f"ledger {ledger_id} cannot be read: {error}")
                continue
            if entries.damage is not None:
                self._skipped.append(entries.damage)
            found = self._in_ledger(entries, entries.last if upto is None or number else min(upto, entries.last))
            if found is not None:
                return found if number == 0 else self._apply_floor(found)
        return tuple(self._skipped)

    def _in_ledger(self, entries: CursorLedgerEntries, last: int) -> RecoveredState | None:
        if last < 0:
            self._skipped.append(f"ledger {entries.ledger_id} {_EMPTY}")
        newest: tuple[int, Marker] | None = None
        for at in range(last, -1, -1):
            try:
                stored = entries.read(at)
                if not record.is_ours(stored):
                    return self._from_snapshot(entries, at)
                if record.identify(stored).kind == record.MARKER:
                    marker = decode_marker(self._cursor, at, stored)
                    newest = newest or (at, marker)
                    return self._from_marker(entries, at, marker)
                self._skipped.append(f"entry {entries.ledger_id}:{at} {_UNFINISHED}")
            except _UNUSABLE as error:
                self._skipped.append(_describe(f"entry {entries.ledger_id}:{at}", error))
        return None if newest is None else self._without_index(entries, *newest)

    def _without_index(self, entries: CursorLedgerEntries, at: int, marker: Marker) -> RecoveredState | None:
        """Recover from a ledger in which no marker has an intact index: use the newest marker and the newest pages
        before it, which are the pages that its index referred to."""
        since = self._source.since
        if since is None or entries.ledger_id < since:
            return None
        found = replacements(self._cursor, [OlderEntries(entries, at - 1, True)], None, self._topic_entries)
        pages = [one.page for _, one in sorted(found.items())]
        for page in pages:
            drop_consumed(page, marker.mark_delete)
        self._skipped.append(f"index of entry {entries.ledger_id}:{at}: {len(pages)} pages are used without it")
        source = RecoveredFrom(MARKER, entries.ledger_id, at, tuple(self._skipped))
        return RecoveredState(
            source,
            marker.mark_delete,
            marker.properties,
            PageIndex(),
            [page for page in pages if page],
            marker.generation,
            None,
            marker.state_size,
            entries.handle,
        )

    def _from_marker(self, entries: CursorLedgerEntries, at: int, marker: Marker) -> RecoveredState:
        index = PageIndex.read(marker.root, node_loader(self._cursor, entries.read), cursor=self._cursor)
        unreadable = _check_pages(self._cursor, entries, index, self._resident)
        unstored: list[LedgerAcks] = []
        damaged: list[DamagedPage] = []
        if unreadable:
            older = self._source.older(entries, at)
            found = replacements(self._cursor, older, set(unreadable), self._topic_entries)
            for ledger_id, (ref, reason) in sorted(unreadable.items()):
                index.remove(ledger_id)
                replacement = found.get(ledger_id)
                if replacement is not None:
                    drop_consumed(replacement.page, marker.mark_delete)
                    unstored.append(replacement.page)
                damaged.append(damage_report(entries.ledger_id, ledger_id, ref, reason, replacement))
        source = RecoveredFrom(MARKER, entries.ledger_id, at, tuple(self._skipped), tuple(damaged))
        return RecoveredState(
            source,
            marker.mark_delete,
            marker.properties,
            index,
            unstored,
            marker.generation,
            at,
            marker.state_size,
            entries.handle,
        )

    def _from_snapshot(self, entries: CursorLedgerEntries, at: int) -> RecoveredState:
        found = chunked_snapshot.stored_at(entries.read, at, entries.codec, entries.limits)
        state = position_info.read(found.data, self._topic_entries, found.expansion).state
        source = RecoveredFrom(SNAPSHOT, entries.ledger_id, at, tuple(self._skipped))
        return from_ack_snapshot(source, state, len(found.data))._replace(handle=entries.handle)

    def _apply_floor(self, found: RecoveredState) -> RecoveredState:
        """Advance a state of a former ledger to the mark-delete position that the record stored when the next ledger
        became current."""
        floor = self._source.floor
        if floor is None or floor <= found.mark_delete:
            return found
        unstored = list(found.unstored)
        ref = found.pages.get(floor.ledger_id)
        if ref is not None:
            assert found.handle is not None
            parts = read_parts(found.handle, ref)
            unstored.append(load_page(self._cursor, floor.ledger_id, ref, parts, self._limits))
            found.pages.remove(floor.ledger_id)
        found.pages.remove_below(floor.ledger_id)
        for ledger_id in self._resident.ledger_ids():
            if ledger_id <= floor.ledger_id:
                self._resident.drop(ledger_id)
        for page in unstored:
            drop_consumed(page, floor)
        properties = dict(self._source.properties)
        return found._replace(mark_delete=floor, properties=properties, unstored=[page for page in unstored if page])


def _describe(what: str, error: Exception) -> str:
    """Prefix an error with the damaged object, unless its message already does."""
    message = str(error)
    return message if message.startswith(what) else f"{what}: {message}"


def drop_consumed(page: LedgerAcks, mark_delete: Position) -> None:
    if page.ledger_id < mark_delete.ledger_id:
        page.drop_up_to(MAX_ENTRY_ID)
    elif page.ledger_id == mark_delete.ledger_id:
        page.drop_up_to(mark_delete.entry_id)


def damage_report(
    cursor_ledger: int, user_ledger: int, ref: PageRef, reason: str, found: LocatedPage | None
) -> DamagedPage:
    acked, partial = (0, 0) if found is None else (len(found.page.acked), len(found.page.partial))
    place = Position(cursor_ledger, ref.entry_id)
    # Entries that are partially acknowledged in the older page may be complete in the damaged one.
    return DamagedPage(
        user_ledger,
        place,
        reason,
        None if found is None else found.place,
        max(0, ref.acked - acked),
        max(0, ref.partial - partial),
    )


def replacements(
    cursor: str, older: Iterable[OlderEntries], user_ledgers: set[int] | None, topic_entries: Mapping[int, int]
) -> dict[int, LocatedPage]:
    """Find the newest intact page of each of the user ledgers (None: all). Only pages before a marker are used: pages
    of an unfinished flush may contain acknowledgments that were never confirmed."""
    found: dict[int, LocatedPage] = {}
    for entries, last, marked in older:
        for at in range(last, -1, -1):
            if user_ledgers is not None and user_ledgers <= found.keys():
                return found
            try:
                stored = entries.read(at)
                if not record.is_ours(stored):
                    # A snapshot is a complete state, so no older entry contains more.
                    for page in _pages_of_snapshot(entries, at, topic_entries):
                        if user_ledgers is None or page.ledger_id in user_ledgers:
                            found.setdefault(page.ledger_id, LocatedPage(Position(entries.ledger_id, at), page))
                    return found
                identity = record.identify(stored)
                if identity.kind == record.MARKER:
                    decode_marker(cursor, at, stored)
                    marked = True
                elif (
                    marked
                    and identity.kind == record.PAGE
                    and identity.user_ledger not in found
                    and (user_ledgers is None or identity.user_ledger in user_ledgers)
                    and identity.part + 1 == identity.parts <= at + 1
                ):
                    first = at - identity.part
                    parts = [entry.data for entry in entries.handle.read_unconfirmed(first, at)]
                    ref = ref_of(first, parts)
                    page = load_page(cursor, identity.user_ledger, ref, parts, entries.limits)
                    found[identity.user_ledger] = LocatedPage(Position(entries.ledger_id, first), page)
            except _UNUSABLE:
                continue
    return found


def _pages_of_snapshot(entries: CursorLedgerEntries, at: int, topic_entries: Mapping[int, int]) -> list[LedgerAcks]:
    found = chunked_snapshot.stored_at(entries.read, at, entries.codec, entries.limits)
    return _pages_of(position_info.read(found.data, topic_entries, found.expansion).state)


def _check_pages(
    cursor: str, entries: CursorLedgerEntries, index: PageIndex, resident: PageCache
) -> dict[int, tuple[PageRef, str]]:
    """Verify all pages, and cache the pages of the highest user ledgers. Returns the unusable pages by user ledger,
    with the reasons."""
    pages = list(index.items())
    resident_pages: list[LedgerAcks] = []
    unreadable: dict[int, tuple[PageRef, str]] = {}
    room = resident.limit
    for end in range(len(pages), 0, -_PAGES_PER_READ):
        group = pages[max(0, end - _PAGES_PER_READ) : end]
        try:
            stored = _read_many(entries.handle, [ref for _, ref in group])
        except PAGE_LOST_ERRORS:
            # Read each page on its own to find the damaged one.
            stored = None
        for ledger_id, ref in reversed(group):
            try:
                if stored is None:
                    parts = read_parts(entries.handle, ref)
                else:
                    parts = [stored[entry_id] for entry_id in range(ref.entry_id, ref.entry_id + ref.parts)]
                if room <= 0:
                    check_page(cursor, ledger_id, ref, parts)
                    continue
                # Loading verifies the page, also the first one that exceeds the limit.
                page = load_page(cursor, ledger_id, ref, parts, entries.limits)
            except PAGE_LOST_ERRORS as error:
                unreadable[ledger_id] = ref, str(error)
                continue
            room -= page.memory
            if room >= 0 or not resident_pages:
                resident_pages.append(page)
    # Install ascending, so that the highest user ledger is the most recently used.
    for page in reversed(resident_pages):
        resident.install(page)
    return unreadable


def _read_many(handle: LedgerHandle, refs: list[PageRef]) -> dict[int, bytes]:
    """Read the entries of many pages, adjacent entries in one read."""
    user_ledgers = sorted(entry_id for ref in refs for entry_id in range(ref.entry_id, ref.entry_id + ref.parts))
    stored: dict[int, bytes] = {}
    first = 0
    for place, entry_id in enumerate(user_ledgers):
        if place + 1 == len(user_ledgers) or user_ledgers[place + 1] != entry_id + 1:
            for entry in handle.read_unconfirmed(user_ledgers[first], entry_id):
                stored[entry.entry_id] = entry.data
            first = place + 1
    return stored


def read_parts(handle: LedgerHandle, ref: PageRef) -> list[bytes]:
    return [entry.data for entry in handle.read_unconfirmed(ref.entry_id, ref.entry_id + ref.parts - 1)]


def load_page(
    cursor: str, ledger_id: int, ref: PageRef, parts: list[bytes], limits: ExpansionLimits = DEFAULT
) -> LedgerAcks:
    page = decode_page(cursor, ledger_id, ref, parts, limits)
    return LedgerAcks(ledger_id, page.acked, page.partial)


def from_ack_snapshot(source: RecoveredFrom, state: AckSnapshot, size: int) -> RecoveredState:
    """Convert a state in Pulsar's form to pages, which are not stored yet."""
    # Every flush would fail on a reserved name, which a state of another program may contain.
    properties = {name: value for name, value in state.properties.items() if name not in record.RESERVED_NAMES}
    return RecoveredState(source, state.mark_delete, properties, PageIndex(), _pages_of(state), 0, None, size)


def _pages_of(state: AckSnapshot) -> list[LedgerAcks]:
    partial: dict[int, dict[int, int]] = {}
    for position, not_acked in state.batches.items():
        partial.setdefault(position.ledger_id, {})[position.entry_id] = not_acked
    return [
        LedgerAcks(ledger_id, state.acked.get(ledger_id), partial.get(ledger_id))
        for ledger_id in dict.fromkeys((*state.acked, *partial))
    ]


def markers(cursor: str, entries: CursorLedgerEntries) -> Iterator[tuple[int, Marker]]:
    """Yield the readable markers of a cursor ledger with their entry ids, newest first."""
    for at in range(entries.last, -1, -1):
        try:
            stored = entries.read(at)
            if record.is_ours(stored) and record.identify(stored).kind == record.MARKER:
                yield at, decode_marker(cursor, at, stored)
        except (BookstandError, record.RecordError):
            continue
