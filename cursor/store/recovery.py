"""The newest state of a cursor that can be read: searched in its ledger from the last entry backwards, and then in the
former ledgers that the record still names.

A state is a marker with its index and pages, each node and page checked; or a full snapshot in Pulsar's form. A marker
that cannot be used, or a node of its index, makes the marker before it count; where no marker of the ledger has a whole
index, pages are found by what they say of themselves. A damaged page costs no more than itself:
the marker stays, and the page is replaced by the newest older one of the same user ledger that is intact, whose
acknowledgments are a subset, for no ledger reaches back behind a reset (``log.py``). Without one the individual
acknowledgments of that user ledger are dropped, and its messages delivered again. The answer names everything that was
skipped or replaced, and why. Where no ledger has a state, the position in the cursor's record is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bookstand.cursor.format import chunked_snapshot, position_info, record
from bookstand.cursor.format.ack_page import check_page, decode_page, ref_of
from bookstand.cursor.format.checkpoint import Marker, decode_marker, node_loader
from bookstand.cursor.format.page_index import PageIndex
from bookstand.cursor.format.page_ref import PageRef
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
"""Errors after which a second attempt finds the same: what was to be read is damaged or gone."""

PAGE_LOST_ERRORS = (*DAMAGED, LedgerRecoveryError, ReadError)
"""Errors after which opening a cursor takes what was to be read for lost. Any other error is raised."""

_UNUSABLE = (*PAGE_LOST_ERRORS, MalformedAckStateError, record.RecordError)

# Enough to read them quickly, few enough to hold beside the cache.
_PAGES_AT_ONCE = 16

MARKER, SNAPSHOT, RECORD, NEW = "marker", "snapshot", "record", "new"
_UNFINISHED, _EMPTY = "is of a flush that was not finished", "has no entry"


class DamagedPage(NamedTuple):
    """A page that could not be read: that of the ledger ``user_ledger`` of the topic, which begins in the entry
    ``place`` of a cursor ledger. ``replacement`` is where the page begins that is used instead, None if there is none.
    ``acked`` entries, and ``partial`` that are acknowledged in part, are delivered again because of it."""

    user_ledger: int
    place: Position
    reason: str
    replacement: Position | None
    acked: int
    partial: int

    def __str__(self) -> str:
        cost = f"{self.acked} acknowledged entries and {self.partial} partly acknowledged ones"
        if self.replacement is None:
            what = f"without an older one: the acknowledgments of {cost} are dropped"
        else:
            what = f"replaced by the page in entry {self.replacement}, which lacks {cost}"
        return f"page of ledger {self.user_ledger} in entry {self.place}: {self.reason}; {what}"


class RecoveredFrom(NamedTuple):
    """The source of a cursor's state: a ``marker`` or a ``snapshot`` in ``entry`` of a cursor ledger, its ``record`` in
    the metadata store, or none, for the cursor is ``new``. ``skipped`` names newer states that could not be used, and
    the reasons; ``pages`` the pages that were replaced or dropped."""

    how: str
    ledger_id: int
    entry: int
    skipped: tuple[str, ...] = ()
    pages: tuple[DamagedPage, ...] = ()

    @property
    def reports(self) -> tuple[str, ...]:
        """Everything that was skipped, replaced or dropped, in words."""
        return (*self.skipped, *map(str, self.pages))

    @property
    def damage(self) -> tuple[str, ...]:
        """Reports of damage alone: an interrupted flush is none, nor is a ledger that was never written to."""
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
    """A state that was found. ``unstored`` are pages that no marker refers to: they are to be written. ``pages`` refers
    to entries of the ledger of ``handle``."""

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
        """True if the newest marker holds exactly this, and nothing damaged has to be passed on the way to it."""
        return self.marker_entry is not None and not self.source.damage and not self.unstored


class CursorLedgerEntries(NamedTuple):
    """A cursor's ledger as recovery reads it: up to the entry ``last``."""

    handle: LedgerHandle
    last: int
    codec: str | None
    damage: str | None = None
    """Damage of the ledger itself, of which the entries are read all the same."""
    limits: ExpansionLimits = DEFAULT

    @property
    def ledger_id(self) -> int:
        return self.handle.id

    def read(self, entry_id: int) -> bytes:
        return self.handle.read_unconfirmed(entry_id, entry_id)[0].data


class Found(NamedTuple):
    """A page, and where it begins."""

    place: Position
    page: LedgerAcks


class Source(NamedTuple):
    """The ledgers of a cursor. ``ledger_ids``: those to search, newest first; ``open`` gives their entries. Pages are
    replaced from ledgers from ``since`` on; None: from none, for a reset may lie between. ``floor`` and ``properties``
    are those of the record: no state in a former ledger is behind that position."""

    ledger_ids: Sequence[int]
    open: Callable[[int], CursorLedgerEntries]
    since: int | None = None
    floor: Position | None = None
    properties: tuple[tuple[str, int], ...] = ()

    def older(self, entries: CursorLedgerEntries, below: int) -> Iterator[OlderEntries]:
        """Entries to search for a replacement of a page: in front of the entry ``below``, then in former ledgers."""
        if self.since is None or entries.ledger_id < self.since:
            return
        yield OlderEntries(entries, below - 1, True)
        ledger_ids = list(self.ledger_ids)
        behind = ledger_ids.index(entries.ledger_id) + 1 if entries.ledger_id in ledger_ids else 0
        for ledger_id in ledger_ids[behind:]:
            if ledger_id < self.since:
                return
            try:
                former = self.open(ledger_id)
            except PAGE_LOST_ERRORS:
                continue
            yield OlderEntries(former, former.last, False)


class OlderEntries(NamedTuple):
    """The entries of a cursor's ledger up to ``last``. ``marked``: a marker behind them counts."""

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
    """The newest state, in the first ledger up to the entry ``upto`` (None: any); the reasons, where there is none.
    Pages are put into ``resident`` from the last user ledger backwards, as long as there is room."""
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
                return found if number == 0 else self._from_floor_on(found)
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
                self._skipped.append(_named(f"entry {entries.ledger_id}:{at}", error))
        return None if newest is None else self._without_index(entries, *newest)

    def _without_index(self, entries: CursorLedgerEntries, at: int, marker: Marker) -> RecoveredState | None:
        """Recover without a whole index in any marker: use the newest marker and the newest pages in front of it, which
        are those that the index referred to."""
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
                damaged.append(report_of(entries.ledger_id, ledger_id, ref, reason, replacement))
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
        return from_old_state(source, state, len(found.data))._replace(handle=entries.handle)

    def _from_floor_on(self, found: RecoveredState) -> RecoveredState:
        """A state of a former ledger, and the position in the record: everything up to that was acknowledged when the
        record was pointed at the ledger behind."""
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


def _named(what: str, error: Exception) -> str:
    """Describe damage; many errors already name the object."""
    said = str(error)
    return said if said.startswith(what) else f"{what}: {said}"


def drop_consumed(page: LedgerAcks, mark_delete: Position) -> None:
    """Drop from an older page what the mark-delete position has passed since."""
    if page.ledger_id < mark_delete.ledger_id:
        page.drop_up_to(MAX_ENTRY_ID)
    elif page.ledger_id == mark_delete.ledger_id:
        page.drop_up_to(mark_delete.entry_id)


def report_of(cursor_ledger: int, user_ledger: int, ref: PageRef, reason: str, found: Found | None) -> DamagedPage:
    """A damaged page, and the difference between it and the one that is used instead."""
    acked, partial = (0, 0) if found is None else (len(found.page.acked), len(found.page.partial))
    place = Position(cursor_ledger, ref.entry_id)
    # An entry acknowledged in part before may be acknowledged as a whole in the damaged page.
    return DamagedPage(
        user_ledger,
        place,
        reason,
        None if found is None else found.place,
        max(0, ref.acked - acked),
        max(0, ref.partial - partial),
    )


def replacements(
    cursor: str, older: Iterable[OlderEntries], wanted: set[int] | None, topic_entries: Mapping[int, int]
) -> dict[int, Found]:
    """For each of the user ledgers (None: all) the newest page that is intact. Only pages in front of a marker count:
    those of a flush that was never finished may have acknowledgments that were never confirmed."""
    found: dict[int, Found] = {}
    for entries, last, marked in older:
        for at in range(last, -1, -1):
            if wanted is not None and wanted <= found.keys():
                return found
            try:
                stored = entries.read(at)
                if not record.is_ours(stored):
                    # A snapshot is a whole state: what is older has no more.
                    for page in _pages_of_snapshot(entries, at, topic_entries):
                        if wanted is None or page.ledger_id in wanted:
                            found.setdefault(page.ledger_id, Found(Position(entries.ledger_id, at), page))
                    return found
                identity = record.identify(stored)
                if identity.kind == record.MARKER:
                    decode_marker(cursor, at, stored)
                    marked = True
                elif (
                    marked
                    and identity.kind == record.PAGE
                    and identity.user_ledger not in found
                    and (wanted is None or identity.user_ledger in wanted)
                    and identity.part + 1 == identity.parts <= at + 1
                ):
                    first = at - identity.part
                    parts = [entry.data for entry in entries.handle.read_unconfirmed(first, at)]
                    ref = ref_of(first, parts)
                    page = load_page(cursor, identity.user_ledger, ref, parts, entries.limits)
                    found[identity.user_ledger] = Found(Position(entries.ledger_id, first), page)
            except _UNUSABLE:
                continue
    return found


def _pages_of_snapshot(entries: CursorLedgerEntries, at: int, topic_entries: Mapping[int, int]) -> list[LedgerAcks]:
    found = chunked_snapshot.stored_at(entries.read, at, entries.codec, entries.limits)
    return _pages_of(position_info.read(found.data, topic_entries, found.expansion).state)


def _check_pages(
    cursor: str, entries: CursorLedgerEntries, index: PageIndex, resident: PageCache
) -> dict[int, tuple[PageRef, str]]:
    """Check every page; cache the last ones, up to the limit. Returns the pages that cannot be used, by
    their user ledgers, and the reasons."""
    pages = list(index.items())
    kept: list[LedgerAcks] = []
    unreadable: dict[int, tuple[PageRef, str]] = {}
    room = resident.limit
    for end in range(len(pages), 0, -_PAGES_AT_ONCE):
        some = pages[max(0, end - _PAGES_AT_ONCE) : end]
        try:
            stored = _read_many(entries.handle, [ref for _, ref in some])
        except PAGE_LOST_ERRORS:
            # Each page alone shows which of them is damaged.
            stored = None
        for ledger_id, ref in reversed(some):
            try:
                if stored is None:
                    parts = read_parts(entries.handle, ref)
                else:
                    parts = [stored[entry_id] for entry_id in range(ref.entry_id, ref.entry_id + ref.parts)]
                if room <= 0:
                    check_page(cursor, ledger_id, ref, parts)
                    continue
                # Loading checks also the first one that there is no room for.
                page = load_page(cursor, ledger_id, ref, parts, entries.limits)
            except PAGE_LOST_ERRORS as error:
                unreadable[ledger_id] = ref, str(error)
                continue
            room -= page.memory
            if room >= 0 or not kept:
                kept.append(page)
    # The last one is the one that was used last.
    for page in reversed(kept):
        resident.install(page)
    return unreadable


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


def load_page(
    cursor: str, ledger_id: int, ref: PageRef, parts: list[bytes], limits: ExpansionLimits = DEFAULT
) -> LedgerAcks:
    page = decode_page(cursor, ledger_id, ref, parts, limits)
    return LedgerAcks(ledger_id, page.acked, page.partial)


def from_old_state(source: RecoveredFrom, state: AckSnapshot, size: int) -> RecoveredState:
    """A state in Pulsar's form, as pages that are not stored yet."""
    # A reserved name in a state that another program has written would make every flush fail.
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
    """The markers of a cursor's ledger that can be read, newest first: (entry, marker)."""
    for at in range(entries.last, -1, -1):
        try:
            stored = entries.read(at)
            if record.is_ours(stored) and record.identify(stored).kind == record.MARKER:
                yield at, decode_marker(cursor, at, stored)
        except (BookstandError, record.RecordError):
            continue
