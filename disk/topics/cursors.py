"""Cursors of topics: the acknowledgments of a subscription on the disks and in its record in the metadata.

The state is the one that opening the cursor recovers (``cursor/store/recovery.py``): the newest in the cursor's ledger
or in former ones, in Pulsar's form or in pages and a marker; if these are missing, empty or damaged, the one in the
record. It also includes batch indexes in the record, which a broker of Pulsar 4.2.4 ignores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from bookstand.cursor.format import position_info, record
from bookstand.cursor.format.chunked_snapshot import CODEC_PROPERTY
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.state.bitmap_runs import Ids, runs
from bookstand.cursor.state.page_cache import PageCache
from bookstand.cursor.store import cursor_ledger, recovery
from bookstand.cursor.store.recovery import RecoveredFrom
from bookstand.disk.bookies.ledger_end import DELETED
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import IncorrectParameterError, MalformedAckStateError, NoSuchEntryError, NoSuchLedgerError
from bookstand.managed_ledger.records import CursorInfo
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.position import Position

if TYPE_CHECKING:
    from bookstand.disk.disks import DiskLedger
    from bookstand.ledger.handles.handle import LedgerHandle

NO_LEDGER = -1
# The page cache must hold all pages of a marker.
_NO_LIMIT = 1 << 62


class DiskCursor(NamedTuple):
    """A cursor. ``source`` describes the origin of its state, and newer states that were skipped."""

    topic: DiskTopic
    name: str
    info: CursorInfo
    state: AckSnapshot
    source: RecoveredFrom
    ledger_id: int
    cursor_properties: dict[str, str]

    @property
    def skipped(self) -> tuple[str, ...]:
        """Descriptions of everything that was skipped, replaced or dropped."""
        return self.source.reports

    def is_acked(self, position: Position) -> bool:
        """Return True if all messages of an entry are acknowledged."""
        acked = self.state.acked.get(position.ledger_id)
        return position <= self.state.mark_delete or (acked is not None and position.entry_id in acked)

    @property
    def next(self) -> Position:
        """First entry after the mark-delete position, by which such positions are compared."""
        return self.topic.behind(self.state.mark_delete)

    @property
    def backlog(self) -> int:
        """Number of the topic's entries that are not completely acknowledged."""
        first = self.next
        left = 0
        for ledger_id, count in self.topic.entry_counts.items():
            start = 0 if ledger_id > first.ledger_id else first.entry_id if ledger_id == first.ledger_id else count
            if start >= count:
                continue
            acked = self.state.acked.get(ledger_id)
            left += count - start - (0 if acked is None else acked.range_cardinality(start, count))
        return left

    def holes(self) -> Iterator[tuple[int, Ids, Ids]]:
        """Yield each ledger with the first and last entries of its acknowledged runs after mark-delete."""
        ledger_id, entry_id = self.state.mark_delete
        for acked_ledger in sorted(self.state.acked):
            if acked_ledger < ledger_id:
                continue
            firsts, lasts = runs(self.state.acked[acked_ledger])
            if acked_ledger == ledger_id:
                behind = lasts > entry_id
                firsts, lasts = np.maximum(firsts[behind], entry_id + 1), lasts[behind]
            if len(firsts):
                yield acked_ledger, firsts, lasts


def cursors(topic: DiskTopic) -> Iterator[DiskCursor]:
    """Yield the cursors of a topic."""
    for name in names_of(topic):
        yield cursor(topic, name)


def names_of(topic: DiskTopic) -> list[str]:
    """Return the names of a topic's cursors, including those with unreadable records, which the dump reports."""
    dump = topic.disks.dump
    return [] if dump is None else sorted((*topic.cursors(), *dump.unreadable_cursors(topic.name)))


def cursor(topic: DiskTopic, name: str) -> DiskCursor:
    dump = topic.disks.dump
    if dump is None:
        raise IncorrectParameterError("without metadata the names of cursors are unknown")
    if name in dump.unreadable_cursors(topic.name):
        topic.report(f"cursor {name!r}: its record cannot be read; the labels of its ledgers are used")
    return of_record(topic, name, info_of(topic, name))


def info_of(topic: DiskTopic, cursor: str) -> CursorInfo:
    """Return the record of a cursor; if it is unreadable, derive one from the labels of ledgers."""
    dump = topic.disks.dump
    assert dump is not None
    if cursor not in dump.unreadable_cursors(topic.name):
        return dump.cursor_info(topic.name, cursor)
    ledgers = ((ledger_id, topic.ledger(ledger_id)) for ledger_id in topic.disks.ledger_ids)
    labels = [
        (ledger_id, None if ledger.metadata is None else ledger.metadata.custom_metadata)
        for ledger_id, ledger in ledgers
        if ledger is not None
    ]
    return cursor_ledger.info_from_labels(labels, topic.name, cursor)


def of_record(topic: DiskTopic, name: str, info: CursorInfo) -> DiskCursor:
    """Recover the cursor with this record."""
    found = _recovered(name, cursor_ledger.source_of(info, partial(_open, topic)), topic.entry_counts)
    if isinstance(found, LedgerState):
        for what in found.source.reports:
            topic.report(f"cursor {name!r}: {what}", info.cursor_ledger_id)
        return DiskCursor(topic, name, info, found.state, found.source, info.cursor_ledger_id, _properties(info))
    for what in found:
        topic.report(f"cursor {name!r}: {what}; its record is used", info.cursor_ledger_id)
    state, more = _in_record(topic, info)
    for what in more:
        topic.report(f"cursor {name!r}: its record: {what}")
    source = RecoveredFrom(recovery.RECORD, NO_LEDGER, -1, (*found, *more))
    return DiskCursor(topic, name, info, state, source, info.cursor_ledger_id, _properties(info))


def _in_record(topic: DiskTopic, info: CursorInfo) -> tuple[AckSnapshot, tuple[str, ...]]:
    """Return the state in a record, and descriptions of its unusable parts."""
    mark_delete = info.mark_delete or Position(next(iter(topic.ledgers()), NO_LEDGER), -1)
    properties = dict(info.properties)
    try:
        read = position_info.from_parts(
            mark_delete, info.ranges, info.batches, properties, topic.entry_counts, topic.limits
        )
    except MalformedAckStateError as error:
        return AckSnapshot(mark_delete, {}, {}, properties), (f"no single acknowledgment can be read: {error}",)
    return read.state, tuple(
        f"a range has ends in ledger {ledger}, which is unknown" for ledger in sorted(read.unsplit)
    )


def _properties(info: CursorInfo) -> dict[str, str]:
    return dict(info.cursor_properties)


# -- a cursor's ledger -----------------------------------------------------------------------------------------------


class LedgerState(NamedTuple):
    state: AckSnapshot
    source: RecoveredFrom


def in_ledger(
    ledger: DiskLedger,
    topic_entries: dict[int, int],
    name: str | None = None,
    limits: ExpansionLimits = DEFAULT,
) -> LedgerState | tuple[str, ...]:
    """Recover the newest intact state in a cursor's ledger; without one, return the reasons. ``topic_entries`` is the
    number of entries in each of the topic's ledgers. Without ``name``, the name in pages and markers is trusted."""
    if name is None:
        name = _name_in(ledger, ledger.extent.last_entry)
    # The labels of a ledger name its topic and cursor, like the record.
    labels = {} if ledger.metadata is None else ledger.metadata.custom_metadata
    source = recovery.Source(
        [ledger.id], lambda _: _entries_of(ledger, limits), cursor_ledger.since_of(ledger.id, labels)
    )
    return _recovered(name, source, topic_entries)


def _recovered(name: str, source: recovery.Source, topic_entries: dict[int, int]) -> LedgerState | tuple[str, ...]:
    resident = PageCache(_NO_LIMIT)
    found = recovery.recover(name, source, topic_entries, resident)
    if not isinstance(found, recovery.RecoveredState):
        return found
    pages = {page.ledger_id: page for page in (*resident, *found.unstored)}
    acked = {ledger_id: pages[ledger_id].acked for ledger_id in sorted(pages) if pages[ledger_id].acked}
    batches = {
        Position(ledger_id, entry_id): unacked
        for ledger_id in sorted(pages)
        for entry_id, unacked in sorted(pages[ledger_id].partial.items())
    }
    return LedgerState(AckSnapshot(found.mark_delete, acked, batches, dict(found.properties)), found.source)


def _name_in(ledger: DiskLedger, last: int) -> str:
    """Return the cursor's name in the last intact page or marker, or an empty string."""
    for entry_id in range(last, -1, -1):
        for entry in ledger.entries(entry_id, entry_id):
            if not record.is_ours(entry.payload):
                return ""
            try:
                return record.identify(entry.payload).cursor
            except record.RecordError:
                break
    return ""


def _open(topic: DiskTopic, ledger_id: int) -> recovery.CursorLedgerEntries:
    ledger = topic.ledger(ledger_id)
    if ledger is None:
        raise NoSuchLedgerError("it is neither on the disks nor in the metadata")
    if ledger.extent.state == DELETED:
        raise NoSuchLedgerError("it was deleted")
    return _entries_of(ledger, topic.limits)


def _entries_of(ledger: DiskLedger, limits: ExpansionLimits) -> recovery.CursorLedgerEntries:
    codec = None
    if ledger.metadata is not None and CODEC_PROPERTY in ledger.metadata.custom_metadata:
        codec = ledger.metadata.custom_metadata[CODEC_PROPERTY].decode(errors="replace")
    # Recovery uses nothing else of a handle.
    return recovery.CursorLedgerEntries(
        cast("LedgerHandle", _Handle(ledger)), ledger.extent.last_entry, codec, limits=limits
    )


class _Entry(NamedTuple):
    entry_id: int
    data: bytes


class _Handle:
    """Ledger handle on a disk ledger, with the methods that recovery uses."""

    def __init__(self, ledger: DiskLedger) -> None:
        self._ledger = ledger

    @property
    def id(self) -> int:
        return self._ledger.id

    def read_unconfirmed(self, first: int, last: int) -> list[_Entry]:
        found = [_Entry(entry.entry_id, entry.payload) for entry in self._ledger.entries(first, last)]
        for expected, entry in enumerate(found, first):
            if entry.entry_id != expected:
                raise NoSuchEntryError(f"entry {self.id}:{expected} is missing or damaged")
        if len(found) != last - first + 1:
            raise NoSuchEntryError(f"entry {self.id}:{first + len(found)} is missing or damaged")
        return found


# -- deduplication ---------------------------------------------------------------------------------------------------


def replayed(cursor: DiskCursor) -> AckSnapshot:
    """Return a broker's deduplication state after it has loaded a topic: the state of the deduplication cursor, updated
    with the highest sequence id of each producer in later messages."""
    topic = cursor.topic
    properties = dict(cursor.state.properties)
    for message in topic.messages(cursor.next):
        metadata = message.metadata
        if metadata is not None:
            highest = metadata.sequence_id if metadata.highest_sequence_id is None else metadata.highest_sequence_id
            name = metadata.producer_name
            properties[name] = max(properties.get(name, highest), highest)
    return cursor.state._replace(mark_delete=topic.end.previous, properties=properties)
