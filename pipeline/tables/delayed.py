"""Tables of delayed messages: the buckets of cursors, and the delayed messages in them.

Segments of buckets are read directly, several in each part. Delayed messages that are in no bucket yet are in the topic
only. Finding them requires reading the topic, so they are included on request only (``unsealed``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from pyroaring import BitMap64

from bookstand.delivery.tracker.bucket.snapshot.codec import (
    SnapshotDamagedError,
    SnapshotMetadata,
    decode_segment,
    decode_segments,
)
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate
from bookstand.delivery.tracker.reschedule_log import PROPERTY
from bookstand.disk.damage import Damage
from bookstand.disk.topics.cursors import cursor as cursor_of
from bookstand.disk.topics.cursors import info_of, names_of
from bookstand.disk.topics.delayed import BROKERS_OWN, DelayedIndex, DiskBucket, add, buckets_of, positions_of
from bookstand.disk.topics.topics import DiskTopic
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.pipeline.tables import cursors
from bookstand.pipeline.tables.arrow import pa
from bookstand.pipeline.tables.cursors import Topics
from bookstand.pipeline.tables.entries import EntryColumns, parts_of, runs
from bookstand.pipeline.tables.partitioning import PlanDamage, Range, ReadPart
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.record_batches import Row, damage_text, from_columns, from_damage, from_rows
from bookstand.pipeline.tables.snapshot import SnapshotPins, pinned, pins_of_topics
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks

# Size of a row in a segment, in bytes.
_INDEX_BYTES = 20
_BATCH_ROWS = 200_000


class SegmentWork(NamedTuple):
    """Work item: segments of buckets, as ranges of entries. ``names`` maps the ledgers of buckets to topic and cursor.
    ``pins`` is a snapshot of these cursors."""

    ranges: tuple[Range, ...]
    names: dict[int, tuple[str, str]]
    pins: SnapshotPins | None


class UnsealedWork(NamedTuple):
    """Work item: rescheduled messages of topics and, if requested by the query, messages in no bucket. ``buckets`` adds
    the messages in buckets."""

    topics: Topics
    buckets: bool


# -- buckets -----------------------------------------------------------------------------------------------------------


def read_buckets(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    """Read rows of buckets. Parts are planned by :func:`bookstand.pipeline.tables.cursors.plan`."""
    if isinstance(part.work, PlanDamage):
        return from_damage(query, part.place, part.work.damage)
    return from_rows(query, part.place, _bucket_rows(part, query), 256)


def _bucket_rows(part: ReadPart, query: Query) -> Iterator[Row]:
    with pinned(part.place, query.passwords, part.work.pins) as source:
        for topic, cursor, bucket in _buckets(source, part.work.topics, query):
            if not query.wanted.has("ledger_id", bucket.ledger_id):
                continue
            seen = len(source.damage)
            metadata = _metadata_of(bucket)
            row: Row = {
                "topic": topic,
                "cursor": cursor,
                "bucket": bucket.property_name,
                "ledger_id": bucket.ledger_id,
                "first_ledger_id": bucket.key.first_ledger,
                "last_ledger_id": bucket.key.last_ledger,
            }
            if metadata is not None:
                times = metadata.metadata_list
                row |= {
                    "segments": len(times),
                    "first_due_ms": min((segment.min_schedule_timestamp for segment in times), default=None),
                    "last_due_ms": max((segment.max_schedule_timestamp for segment in times), default=None),
                }
                try:
                    row["messages"] = sum(map(len, metadata.bitmaps().values()))
                except SnapshotDamagedError as error:
                    bucket.report(str(error))
            if len(source.damage) > seen:
                row["error"] = "\n".join(map(damage_text, source.damage[seen:]))
            yield row


def _buckets(source: Disks, topics: Sequence[str], query: Query) -> Iterator[tuple[str, str, DiskBucket]]:
    """Buckets of the selected cursors. Acknowledgments are not read."""
    for topic, cursor, properties in _cursors(source, topics, query):
        for bucket in buckets_of(topic, cursor, properties):
            yield topic.name, cursor, bucket


def _cursors(source: Disks, topics: Sequence[str], query: Query) -> Iterator[tuple[DiskTopic, str, dict[str, str]]]:
    """Selected cursors with their properties, except the broker's internal cursors."""
    for name in topics:
        topic = topic_of(source, name)
        for cursor in names_of(topic):
            if query.wanted.has("cursor", cursor) and not cursor.startswith(BROKERS_OWN):
                yield topic, cursor, dict(info_of(topic, cursor).cursor_properties)


def _metadata_of(bucket: DiskBucket) -> SnapshotMetadata | None:
    try:
        return bucket.metadata()
    except SnapshotDamagedError as error:
        bucket.report(str(error))
        return None


# -- indexes: planning -------------------------------------------------------------------------------------------------


def plan_index(place: DataSource, query: Query) -> list[ReadPart]:
    """Plan a read of delayed messages: in stores by segments that may have selected rows; disks in one part."""
    if place.kind != STORE:
        return [
            part if isinstance(part.work, PlanDamage) else part._replace(work=UnsealedWork(part.work, True))
            for part in cursors.plan(place, query)
        ]
    parts, rescheduled = _plan_segments(place, query)
    if query.unsealed or rescheduled:
        parts += [
            part._replace(work=UnsealedWork(part.work, False))
            for part in cursors.plan(place, query)
            if not isinstance(part.work, PlanDamage)
        ]
    return parts


def _plan_segments(place: DataSource, query: Query) -> tuple[list[ReadPart], bool]:
    """Plan the read of segments. The second value is True if a cursor has rescheduled messages."""
    ranges: list[Range] = []
    names: dict[int, tuple[str, str]] = {}
    with open_source(place, query.passwords) as source:
        assert source.dump is not None
        topics = [name for name in source.dump.topics if query.wanted.has("topic", name)]
        rescheduled = any(PROPERTY in properties for _, _, properties in _cursors(source, topics, query))
        for topic, cursor, bucket in _buckets(source, topics, query):
            names[bucket.ledger_id] = topic, cursor
            if query.wanted.has("bucket_ledger_id", bucket.ledger_id):
                metadata = _metadata_of(bucket)
                if metadata is not None:
                    ranges += _wanted_segments(bucket.ledger_id, metadata, query)
        damage = tuple(source.damage)
        pins = pins_of_topics(source, {names[one.ledger_id][0] for one in ranges}) if ranges else None
    found = [
        part._replace(work=SegmentWork(part.work, {one.ledger_id: names[one.ledger_id] for one in part.work}, pins))
        for part in parts_of(place, query, ranges)
    ]
    return [*found, ReadPart(place, PlanDamage(damage))] if damage else found, rescheduled


def _wanted_segments(bucket: int, metadata: SnapshotMetadata, query: Query) -> Iterator[Range]:
    """Selected segments of a bucket; adjacent segments are merged into one range."""
    first = last = weight = 0
    for number, segment in enumerate(metadata.metadata_list, 1):
        if segment.max_schedule_timestamp <= query.now_ms:
            continue
        if not query.wanted.overlaps("deliver_at_ms", segment.min_schedule_timestamp, segment.max_schedule_timestamp):
            continue
        bitmaps = {**segment.delayed_index_bit_map, **segment.delayed_index_bit_map_64}
        if not any(query.wanted.has("ledger_id", ledger_id) for ledger_id in bitmaps):
            continue
        if first and number == last + 1:
            last = number
        else:
            if first:
                yield Range(bucket, first, last, weight)
            first, last, weight = number, number, 0
        # Estimate the number of rows from the size of the bitmaps, which use up to two bytes for each entry.
        weight += _INDEX_BYTES * sum(map(len, bitmaps.values())) // 2
    if first:
        yield Range(bucket, first, last, weight)


# -- indexes: reading --------------------------------------------------------------------------------------------------


def read_index(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    work = part.work
    if isinstance(work, PlanDamage):
        yield from from_rows(query, part.place, (_damaged(one, (None, None)) for one in work.damage))
    elif isinstance(work, UnsealedWork):
        yield from _read_waiting(part, work, query)
    else:
        yield from _read_segments(part, work, query)


def _read_segments(part: ReadPart, work: SegmentWork, query: Query) -> Iterator[pa.RecordBatch]:
    gathered = _Gathered(query, part.place)
    indexes_of = _Indexes(part.place, work.pins, query)
    for run in runs(part._replace(work=work.ranges), query):
        if not isinstance(run, EntryColumns):
            yield from from_rows(
                query, part.place, (_damaged(one, work.names.get(one.ledger_id, (None, None))) for one in run)
            )
            continue
        bucket = cast("int", run.ledger_ids)
        found, damage = _decoded(run.pieces(), run.entry_ids.tolist(), part.place, bucket)
        for number, indexes in found:
            rows = indexes_of(work.names[bucket]).delayed_of(indexes)
            if not rows.size:
                continue
            if gathered.has_enough_before(work.names[bucket]):
                yield gathered.batch()
            gathered.add(work.names[bucket], bucket, number, rows)
        yield from from_rows(query, part.place, (_damaged(one, work.names[bucket]) for one in damage))
    if gathered.size:
        yield gathered.batch()


class _Indexes:
    """Cache of the delayed indexes of cursors, with acknowledgments and rescheduled messages at planning time."""

    def __init__(self, place: DataSource, pins: SnapshotPins | None, query: Query) -> None:
        self._place = place
        self._pins = pins
        self._query = query
        self._found: dict[tuple[str, str], DelayedIndex] = {}

    def __call__(self, names: tuple[str, str]) -> DelayedIndex:
        index = self._found.get(names)
        if index is None:
            topic, cursor = names
            with pinned(self._place, self._query.passwords, self._pins) as source:
                index = DelayedIndex(cursor_of(topic_of(source, topic), cursor), self._query.now_ms)
                # Load the rescheduled messages while the store is open.
                _ = index.given_times
            self._found[names] = index
        return index


class _Gathered:
    """Buffer of rows of one cursor that form the next batch."""

    def __init__(self, query: Query, place: DataSource) -> None:
        self._query = query
        self._place = place
        self._names: tuple[str, str] = ("", "")
        self._parts: list[tuple[int, int, Indexes]] = []
        self.size = 0

    def has_enough_before(self, names: tuple[str, str]) -> bool:
        return self.size > 0 and (self.size >= _BATCH_ROWS or names != self._names)

    def add(self, names: tuple[str, str], bucket: int, segment: int, rows: Indexes) -> None:
        self._names = names
        self._parts.append((bucket, segment, rows))
        self.size += rows.size

    def batch(self) -> pa.RecordBatch:
        buckets, segments, parts = zip(*self._parts, strict=True)
        sizes = [one.size for one in parts]
        self._parts, self.size = [], 0
        return _batch(
            self._query,
            self._place,
            concatenate(parts),
            self._names,
            lambda: np.repeat(np.array(buckets, np.int64), sizes),
            lambda: np.repeat(np.array(segments, np.int64), sizes),
        )


def _decoded(
    payloads: Sequence[bytes], numbers: Sequence[int], place: DataSource, bucket: int
) -> tuple[list[tuple[int, Indexes]], list[Damage]]:
    names = [f"segment {number}" for number in numbers]
    try:
        return list(zip(numbers, decode_segments(payloads, names), strict=True)), []
    except SnapshotDamagedError:
        found, damage = [], []
        for number, name, payload in zip(numbers, names, payloads, strict=True):
            try:
                found.append((number, decode_segment(payload, name)))
            except SnapshotDamagedError as error:
                damage.append(Damage(place.name, -1, str(error), bucket, number))
        return found, damage


def _batch(
    query: Query, place: DataSource, rows: Indexes, names: tuple[str, str], bucket: Any, segments: Any
) -> pa.RecordBatch:
    return from_columns(
        query,
        place,
        rows.size,
        {
            "topic": names[0],
            "cursor": names[1],
            "bucket_ledger_id": bucket,
            "segment": segments,
            "deliver_at_ms": rows.timestamps,
            "ledger_id": rows.ledger_ids,
            "entry_id": rows.entry_ids,
        },
    )


def _damaged(damage: Damage, names: tuple[str | None, str | None]) -> Row:
    """Row for damage in the ledger of a bucket. Its messages are unknown."""
    row: Row = {"topic": names[0], "cursor": names[1], "error": damage_text(damage)}
    if damage.ledger_id >= 0:
        row["bucket_ledger_id"] = damage.ledger_id
    if damage.entry_id > 0:
        row["segment"] = damage.entry_id
    return row


def _read_waiting(part: ReadPart, work: UnsealedWork, query: Query) -> Iterator[pa.RecordBatch]:
    place = part.place
    for one in cursors.found(part._replace(work=work.topics), query):
        if one.name.startswith(BROKERS_OWN):
            continue
        names = one.topic, one.name
        damage = one.cursor.topic.disks.damage
        seen = len(damage)
        index = DelayedIndex(one.cursor, query.now_ms)
        held: dict[int, BitMap64] = {}
        for bucket in index.buckets if work.buckets or query.unsealed else ():
            for segment in index.segments_of(bucket):
                add(held, positions_of(segment.indexes))
                if work.buckets:
                    rows = index.delayed_of(segment.indexes)
                    yield _batch(query, place, rows, names, bucket.ledger_id, segment.entry)
        yield _batch(query, place, index.rescheduled(), names, None, None)
        if query.unsealed:
            for rows in index.rows_of_topic(held):
                yield _batch(query, place, rows, names, None, None)
        reported = damage[seen:] if work.buckets else ()
        yield from from_rows(query, place, (_damaged(told_of, names) for told_of in (*one.damage, *reported)))
