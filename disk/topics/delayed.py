"""Delayed index of a subscription: its unacknowledged messages that are not due yet.

Part of it is in buckets, which are snapshots in ledgers that the cursor's properties name. The rest is only in the
topic, as messages with a delivery time in their metadata. Messages of a missing or damaged bucket are found in the
topic, too. A rescheduled message is due only at the time in the ledger of rescheduled messages, which another property
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap64

from bookstand.delivery.tracker.bucket.key import BucketKey, read_labels, read_properties
from bookstand.delivery.tracker.bucket.rebuild import deliver_at_time
from bookstand.delivery.tracker.bucket.snapshot.codec import (
    SegmentMetadata,
    SnapshotDamagedError,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
)
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.reschedule_log import PROPERTY
from bookstand.disk.topics.cursors import DiskCursor, cursors
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import MalformedMessageError
from bookstand.managed_ledger.topic_name import RESCHEDULED_CURSOR_LABEL, RESCHEDULED_TOPIC_LABEL
from bookstand.storage.format.position import Position

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks, StoredEntry

# Maximum number of rows in a block from the topic.
_ROWS = 8192
_NOWHERE = -1
NO_ROWS = Indexes.of([], [], [])
_OWNER_LABELS = (RESCHEDULED_TOPIC_LABEL, RESCHEDULED_CURSOR_LABEL)
BROKERS_OWN = ("pulsar.", "__compaction")
"""Name prefixes of the broker's internal cursors, which do not deliver messages."""


class _NoEntryError(SnapshotDamagedError):
    """An entry of a bucket is missing, or its copies are damaged."""

    def __init__(self, what: str, entry_id: int) -> None:
        super().__init__(f"{what}: entry {entry_id} is missing or damaged")
        self.entry_id = entry_id


class DiskSegment(NamedTuple):
    """A segment of a bucket: its entry id, its times and bitmaps in the metadata, and its rows."""

    entry: int
    min_time: int
    max_time: int
    bitmaps: dict[int, BitMap64]
    indexes: Indexes


class DiskBucket:
    """A bucket that a cursor's property names."""

    def __init__(self, topic: DiskTopic, cursor: str, key: BucketKey, ledger_id: int) -> None:
        self.topic = topic
        self.cursor = cursor
        self.key = key
        self.ledger_id = ledger_id

    def __repr__(self) -> str:
        return f"<DiskBucket {self.key} in ledger {self.ledger_id}>"

    @property
    def property_name(self) -> str:
        """Name of the cursor's property."""
        return str(self.key)

    def segments(self) -> Iterator[DiskSegment]:
        """Yield the readable segments; damage is reported."""
        entries = self._entries()
        try:
            metadata = self._metadata(entries)
        except _NoEntryError as error:
            self.report(str(error), error.entry_id)
            return
        except SnapshotDamagedError as error:
            self.report(str(error))
            return
        for number, segment in enumerate(metadata.metadata_list, 1):
            try:
                yield self._segment(entries, metadata, number, segment)
            except SnapshotDamagedError as error:
                self.report(str(error), number)

    def _segment(
        self, entries: _Entries, metadata: SnapshotMetadata, number: int, segment: SegmentMetadata
    ) -> DiskSegment:
        bitmaps = SnapshotMetadata([segment], metadata.what).bitmaps()
        indexes = decode_segment(entries.read(number), f"{self._what}, entry {number}")
        held = positions_of(indexes)
        if held != bitmaps:
            self.report("a segment has other entries than the bucket's metadata says", number)
        return DiskSegment(number, segment.min_schedule_timestamp, segment.max_schedule_timestamp, bitmaps, indexes)

    def metadata(self) -> SnapshotMetadata:
        return self._metadata(self._entries())

    def _metadata(self, entries: _Entries) -> SnapshotMetadata:
        """Decode entry 0, and the entries after the last segment that continue it, if any."""
        what = f"{self._what}, entry 0"
        first = decode_metadata(entries.read(0), what)
        segments = list(first.metadata_list)
        if first.segment_count is not None:
            number = first.segment_count + 1
            while len(segments) < first.segment_count:
                more = decode_metadata(entries.read(number), f"{self._what}, entry {number}").metadata_list
                if not more:
                    raise SnapshotDamagedError(f"{self._what}, entry {number} does not continue the metadata")
                segments += more
                number += 1
            if len(segments) > first.segment_count:
                raise SnapshotDamagedError(f"{what} tells of {first.segment_count} segments, there are more")
        return SnapshotMetadata(segments, what)

    def _entries(self) -> _Entries:
        return _Entries(self)

    @property
    def _what(self) -> str:
        return f"bucket {self.key} of cursor {self.cursor!r}"

    def report(self, what: str, entry_id: int = -1) -> None:
        self.topic.report(what if self._what in what else f"{self._what}: {what}", self.ledger_id, entry_id)


class _Entries:
    """Entries of a bucket's ledger."""

    def __init__(self, bucket: DiskBucket) -> None:
        self._what = bucket._what
        self._place = _NOWHERE
        self._stream: Iterator[StoredEntry] = iter(())
        self._ledger = bucket.topic.ledger(bucket.ledger_id)
        if self._ledger is not None and self._ledger.metadata is not None:
            labels = read_labels(self._ledger.metadata.custom_metadata)
            names = {bucket.topic.name, bucket.topic.managed_ledger}
            # Properties copied from another cursor name a ledger of that cursor.
            if labels is not None and (
                labels.key != str(bucket.key) or labels.topic not in names or labels.cursor != bucket.cursor
            ):
                self._ledger = None
                bucket.report(f"its ledger says that it is {labels.key} of {labels.topic}, cursor {labels.cursor!r}")

    def read(self, entry_id: int) -> bytes:
        """Read an entry; sequential reads are cheap."""
        if self._ledger is None:
            raise SnapshotDamagedError(f"{self._what}: its ledger is unavailable")
        if entry_id != self._place:
            self._stream = self._ledger.entries(entry_id)
        self._place = entry_id + 1
        entry = next(self._stream, None)
        if entry is not None and entry.entry_id == entry_id:
            return entry.payload
        self._place = _NOWHERE
        raise _NoEntryError(self._what, entry_id)


class DelayedIndex:
    """Messages of a subscription that are delayed at time ``now`` (ms), None for the last change of the metadata before
    the dump. With 0, all unacknowledged messages with a delivery time are included, due or not.

    These are the messages that the subscription would delay if it were opened at that time: unacknowledged, and due
    after ``now``, by their rescheduled time or else their own.
    """

    def __init__(self, cursor: DiskCursor, now: int | None = None) -> None:
        self.cursor = cursor
        self.topic = cursor.topic
        self.now = time_of(cursor.topic.disks) if now is None else now
        self.buckets = buckets_of(self.topic, cursor.name, cursor.cursor_properties)

    def rows(self) -> Iterator[Indexes]:
        """Yield all rows in blocks: bucket by bucket, each in order of time, then rescheduled messages, then messages
        that are only in the topic. A position is repeated only if two segments contain it."""
        held: dict[int, BitMap64] = {}
        for bucket in self.buckets:
            for segment in self.segments_of(bucket):
                add(held, positions_of(segment.indexes))
                yield self.delayed_of(segment.indexes)
        yield self.rescheduled()
        yield from self.rows_of_topic(held)

    def segments_of(self, bucket: DiskBucket) -> Iterator[DiskSegment]:
        """Return the segments of a bucket with messages that are due after ``now``."""
        return (segment for segment in bucket.segments() if segment.max_time > self.now)

    @cached_property
    def given_times(self) -> Indexes:
        """Rescheduled messages and their new times, acknowledged or not."""
        return rescheduled_of(self.topic, self.cursor.name, self.cursor.cursor_properties)

    @cached_property
    def _given(self) -> dict[int, BitMap64]:
        return positions_of(self.given_times)

    def delayed_of(self, rows: Indexes) -> Indexes:
        """Filter rows of a bucket for delayed messages that were not rescheduled."""
        return self.in_force(waiting(self.cursor, rows, self.now))

    def in_force(self, rows: Indexes) -> Indexes:
        """Remove the rows of rescheduled messages."""
        if not self._given:
            return rows
        kept = np.ones(rows.size, dtype=np.bool_)
        for ledger_id, given in self._given.items():
            here = np.flatnonzero(rows.ledger_ids == ledger_id)
            kept[here] = [entry_id not in given for entry_id in rows.entry_ids[here].tolist()]
        return rows if kept.all() else Indexes(*(column[kept] for column in rows))

    def rescheduled(self) -> Indexes:
        """Return the rescheduled messages that are delayed, in order of time."""
        return waiting(self.cursor, self.given_times, self.now)

    def positions(self) -> dict[int, BitMap64]:
        """Return the delayed entries by ledger."""
        found: dict[int, BitMap64] = {}
        for rows in self.rows():
            add(found, positions_of(rows))
        return {ledger_id: found[ledger_id] for ledger_id in sorted(found)}

    def count(self) -> int:
        """Number of delayed messages."""
        return sum(map(len, self.positions().values()))

    def rows_of_topic(self, held: dict[int, BitMap64]) -> Iterator[Indexes]:
        """Yield delayed messages that are only in the topic: neither in ``held`` nor rescheduled."""
        times: list[int] = []
        ledger_ids: list[int] = []
        entry_ids: list[int] = []
        for entry in self.topic.entries(self.cursor.next):
            ledger_id, entry_id = entry.ledger_id, entry.entry_id
            if self.cursor.is_acked(Position(ledger_id, entry_id)) or entry_id in held.get(ledger_id, ()):
                continue
            if entry_id in self._given.get(ledger_id, ()):
                continue
            try:
                time = deliver_at_time(entry.payload)
            except MalformedMessageError as error:
                self.topic.report(f"it is treated as a message without delay: {error}", ledger_id, entry_id)
                continue
            if time is None or time <= self.now:
                continue
            times.append(time)
            ledger_ids.append(ledger_id)
            entry_ids.append(entry_id)
            if len(times) == _ROWS:
                yield Indexes.of(times, ledger_ids, entry_ids)
                times, ledger_ids, entry_ids = [], [], []
        if times:
            yield Indexes.of(times, ledger_ids, entry_ids)


def buckets_of(topic: DiskTopic, cursor: str, properties: Mapping[str, str]) -> list[DiskBucket]:
    """Return the buckets that a cursor's properties name, sorted by key."""
    found = read_properties(properties.items())
    for error in found.malformed.values():
        topic.report(f"cursor {cursor!r}: {error}")
    return [DiskBucket(topic, cursor, key, ledger_id) for key, ledger_id in sorted(found.buckets.items())]


def rescheduled_of(topic: DiskTopic, cursor: str, properties: Mapping[str, str]) -> Indexes:
    """Return the messages for which a cursor has other delivery times, sorted by these. If they are unreadable, which
    is reported, the messages' own times apply, as in the tracker."""
    stored = properties.get(PROPERTY)
    if stored is None:
        return NO_ROWS
    what = f"the rescheduled messages of cursor {cursor!r}"
    if not stored.isascii() or not stored.isdecimal():
        topic.report(f"{what}: property {PROPERTY} is a ledger's id, not {stored!r}")
        return NO_ROWS
    ledger = topic.ledger(int(stored))
    if ledger is None:
        topic.report(f"{what}: their ledger is missing", int(stored))
        return NO_ROWS
    labels = {} if ledger.metadata is None else ledger.metadata.custom_metadata
    owner = tuple(labels.get(one, b"").decode(errors="replace") for one in _OWNER_LABELS)
    if all(owner) and owner not in ((topic.name, cursor), (topic.managed_ledger, cursor)):
        topic.report(f"{what}: their ledger says that it belongs to topic {owner[0]}, cursor {owner[1]!r}", ledger.id)
        return NO_ROWS
    times: dict[tuple[int, int], int] = {}
    try:
        for number, entry in enumerate(ledger.entries(0)):
            if entry.entry_id != number:
                raise SnapshotDamagedError(f"{what}: entry {number} is missing or damaged")
            for time, *position in decode_segment(entry.payload, f"{what}, entry {number}").indexes:
                # A later entry replaces an earlier one.
                times[position[0], position[1]] = time
    except SnapshotDamagedError as error:
        topic.report(str(error), int(stored))
        return NO_ROWS
    if not times:
        return NO_ROWS
    return Indexes.of(*zip(*sorted((time, *position) for position, time in times.items()), strict=True))


def waiting(cursor: DiskCursor, rows: Indexes, due_by: int) -> Indexes:
    """Filter rows for messages that the cursor has not acknowledged and that are due after ``due_by``."""
    mark = cursor.state.mark_delete
    ledgers, entries = rows.ledger_ids, rows.entry_ids
    kept = (ledgers > mark.ledger_id) | ((ledgers == mark.ledger_id) & (entries > mark.entry_id))
    kept &= rows.timestamps > due_by
    for ledger_id in np.unique(ledgers).tolist():
        acked = cursor.state.acked.get(ledger_id)
        if acked is not None:
            here = np.flatnonzero(ledgers == ledger_id)
            gone = np.array((BitMap64(entries[here].tolist()) & acked).to_array(), dtype=np.uint64).view(np.int64)
            kept[here[np.isin(entries[here], gone)]] = False
    return rows if kept.all() else Indexes(*(column[kept] for column in rows))


def time_of(disks: Disks) -> int:
    """Return the time of the last change of the metadata before the dump, in ms; 0 without metadata."""
    return 0 if disks.dump is None else max((node.mtime for node in disks.dump.nodes.values()), default=0)


def delayed(topic: DiskTopic, now: int | None = None) -> Iterator[DelayedIndex]:
    """Yield the delayed index of each subscription of a topic, including empty ones."""
    if now is None:
        now = time_of(topic.disks)
    for cursor in cursors(topic):
        if not cursor.name.startswith(BROKERS_OWN):
            yield DelayedIndex(cursor, now)


def positions_of(indexes: Indexes) -> dict[int, BitMap64]:
    """Return the entries of these rows by ledger."""
    if not indexes.size:
        return {}
    order = np.argsort(indexes.ledger_ids, kind="stable")
    ledger_ids, entry_ids = indexes.ledger_ids[order], indexes.entry_ids[order]
    starts = np.flatnonzero(np.diff(ledger_ids, prepend=ledger_ids[0] - 1))
    parts = np.split(entry_ids, starts[1:])
    return {int(ledger_ids[start]): BitMap64(part.tolist()) for start, part in zip(starts, parts, strict=True)}


def add(found: dict[int, BitMap64], more: dict[int, BitMap64]) -> None:
    """Add the entries of ``more`` to ``found``."""
    for ledger_id, bitmap in more.items():
        if ledger_id in found:
            found[ledger_id] |= bitmap
        else:
            found[ledger_id] = bitmap
