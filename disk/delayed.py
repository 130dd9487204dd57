"""The delayed index of a subscription: which of its messages wait for their time.

Part of it is in buckets, snapshots in ledgers that the cursor's properties name; the rest is in nothing but the topic,
as messages that are not acknowledged and say when they are to be delivered. What a bucket should have and cannot tell,
because it is missing or damaged, is found in the topic again as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import dropwhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap64

from bookstand.delivery.bucket_key import BucketKey, read_labels, read_properties
from bookstand.delivery.indexes import Indexes
from bookstand.delivery.rebuilding import deliver_at_time
from bookstand.delivery.snapshot import (
    SegmentMetadata,
    SnapshotDamagedError,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
)
from bookstand.disk.cursors import DiskCursor, cursors
from bookstand.disk.topics import DiskTopic
from bookstand.errors import MalformedMessageError
from bookstand.storage.position import Position

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks, StoredEntry

# Rows of the topic that are given at a time.
_ROWS = 8192
_NOWHERE = -1
BROKERS_OWN = ("pulsar.", "__compaction")
"""Cursors with such names are the broker's own; nobody is delivered to by them."""


class _NoEntryError(SnapshotDamagedError):
    """An entry of a bucket is missing, or its copies are damaged."""

    def __init__(self, what: str, entry_id: int) -> None:
        super().__init__(f"{what}: entry {entry_id} is missing or damaged")
        self.entry_id = entry_id


class DiskSegment(NamedTuple):
    """One segment of a bucket: in which entry it is, its times and bitmaps as the metadata has them, and its rows."""

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
        """The name of the cursor's property."""
        return str(self.key)

    def segments(self) -> Iterator[DiskSegment]:
        """What can be read of it; what cannot is reported."""
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
        """Entry 0, and those behind the last segment that continue it, if there are any."""
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
    """The entries of a bucket's ledger."""

    def __init__(self, bucket: DiskBucket) -> None:
        self._what = bucket._what
        self._place = _NOWHERE
        self._stream: Iterator[StoredEntry] = iter(())
        self._ledger = bucket.topic.ledger(bucket.ledger_id)
        if self._ledger is not None and self._ledger.metadata is not None:
            labels = read_labels(self._ledger.metadata.custom_metadata)
            names = {bucket.topic.name, bucket.topic.managed_ledger}
            # What was copied from elsewhere with its properties is somebody else's.
            if labels is not None and (
                labels.key != str(bucket.key) or labels.topic not in names or labels.cursor != bucket.cursor
            ):
                self._ledger = None
                bucket.report(f"its ledger says that it is {labels.key} of {labels.topic}, cursor {labels.cursor!r}")

    def read(self, entry_id: int) -> bytes:
        """Cheap where entries are wanted in their order."""
        if self._ledger is None:
            raise SnapshotDamagedError(f"{self._what}: its ledger is not to be had")
        if entry_id != self._place:
            self._stream = self._ledger.entries(entry_id)
        self._place = entry_id + 1
        entry = next(self._stream, None)
        if entry is not None and entry.entry_id == entry_id:
            return entry.payload
        self._place = _NOWHERE
        raise _NoEntryError(self._what, entry_id)


class DelayedIndex:
    """What waits for a subscription at a time ``now`` (ms). None: when the metadata last changed before it was dumped;
    0: whatever has ever waited, and is in a bucket still or not acknowledged.

    As for the broker, what a bucket's segment holds is part of it until the last of the segment is due; of the messages
    that are in the topic alone, those that are due are not.
    """

    def __init__(self, cursor: DiskCursor, now: int | None = None) -> None:
        self.cursor = cursor
        self.topic = cursor.topic
        self.now = time_of(cursor.topic.disks) if now is None else now
        self.buckets = buckets_of(self.topic, cursor.name, cursor.cursor_properties)

    def rows(self) -> Iterator[Indexes]:
        """All rows, some at a time: bucket by bucket in the order of time, then what is in the topic alone. No position
        comes twice but where two segments have it."""
        held: dict[int, BitMap64] = {}
        for bucket in self.buckets:
            for segment in dropwhile(lambda one: one.max_time <= self.now, bucket.segments()):
                add(held, positions_of(segment.indexes))
                yield segment.indexes
        yield from self.rows_of_topic(held)

    def positions(self) -> dict[int, BitMap64]:
        """By ledger, the entries that wait."""
        found: dict[int, BitMap64] = {}
        for rows in self.rows():
            add(found, positions_of(rows))
        return {ledger_id: found[ledger_id] for ledger_id in sorted(found)}

    def count(self) -> int:
        """What the broker's tracker counts."""
        return sum(map(len, self.positions().values()))

    def rows_of_topic(self, held: dict[int, BitMap64]) -> Iterator[Indexes]:
        """What is in the topic alone: not among those ``held``."""
        times: list[int] = []
        ledger_ids: list[int] = []
        entry_ids: list[int] = []
        for entry in self.topic.entries(self.cursor.next):
            ledger_id, entry_id = entry.ledger_id, entry.entry_id
            if self.cursor.is_acked(Position(ledger_id, entry_id)) or entry_id in held.get(ledger_id, ()):
                continue
            try:
                time = deliver_at_time(entry.payload)
            except MalformedMessageError as error:
                self.topic.report(f"it is taken for a message without delay: {error}", ledger_id, entry_id)
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
    """The buckets that a cursor's properties name, by their ledgers."""
    found = read_properties(properties.items())
    for error in found.malformed.values():
        topic.report(f"cursor {cursor!r}: {error}")
    return [DiskBucket(topic, cursor, key, ledger_id) for key, ledger_id in sorted(found.buckets.items())]


def time_of(disks: Disks) -> int:
    """When the metadata last changed before it was dumped, in ms; 0 without metadata."""
    return 0 if disks.dump is None else max((node.mtime for node in disks.dump.nodes.values()), default=0)


def delayed(topic: DiskTopic, now: int | None = None) -> Iterator[DelayedIndex]:
    """The delayed index of each subscription of a topic, empty ones too."""
    if now is None:
        now = time_of(topic.disks)
    for cursor in cursors(topic):
        if not cursor.name.startswith(BROKERS_OWN):
            yield DelayedIndex(cursor, now)


def positions_of(indexes: Indexes) -> dict[int, BitMap64]:
    """By ledger, the entries of these rows."""
    if not indexes.size:
        return {}
    order = np.argsort(indexes.ledger_ids, kind="stable")
    ledger_ids, entry_ids = indexes.ledger_ids[order], indexes.entry_ids[order]
    starts = np.flatnonzero(np.diff(ledger_ids, prepend=ledger_ids[0] - 1))
    parts = np.split(entry_ids, starts[1:])
    return {int(ledger_ids[start]): BitMap64(part.tolist()) for start, part in zip(starts, parts, strict=True)}


def add(found: dict[int, BitMap64], more: dict[int, BitMap64]) -> None:
    """To the one what is in the other."""
    for ledger_id, bitmap in more.items():
        if ledger_id in found:
            found[ledger_id] |= bitmap
        else:
            found[ledger_id] = bitmap
