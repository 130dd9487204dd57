"""Snapshots of delayed indexes: the entries of a bucket's ledger in Pulsar's format (PIP-195).

::

    entry 0      SnapshotMetadata: for each segment its first and last time, and a bitmap of entry ids per ledger
    entry 1 … n  SnapshotSegment: delayed indexes, sorted by time, ledger id, entry id

``proto/delayed_bucket_metadata.proto`` and ``proto/delayed_bucket_segment.proto`` define the messages. Indexes are
encoded as columns, in batches of up to hundreds of thousands. Snapshots whose bytes differ from Pulsar's layout are
decoded by protobuf.

Extensions, in fields that Pulsar's readers skip:

- Pulsar's bitmaps have 32 bits. Larger entry ids are in the segments as usual, and in additional 64-bit bitmaps. A
  reader without this extension delivers such a message correctly, but treats it as missing from the snapshot when it
  reads the topic again.
- Entry 0 reaches the size limit of an entry at about 2.4 million indexes. The metadata of further segments is in
  entries after the last segment, and entry 0 contains the number of segments. A reader without this extension sees a
  shorter snapshot, and finds the other messages in the topic again.
- A segment larger than an entry is cut as if the number of indexes were limited. Every reader supports this.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from bookstand.delivery.tracker.bucket.snapshot import uniform_rows
from bookstand.delivery.tracker.bucket.snapshot.bitmap import (
    MAX_32,
    MalformedBitmapError,
    read_bitmap,
    read_bitmap_64,
    write_bitmap_64,
    write_bitmaps,
)
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import DelayedIndex, Indexes, Numbers
from bookstand.delivery.tracker.bucket.snapshot.java_hash_order import hash_map_order
from bookstand.delivery.tracker.bucket.snapshot.rows import Rows, sorted_rows
from bookstand.errors import EntryTooLargeError, IncorrectParameterError, MalformedError, StoreDamagedError
from bookstand.proto import varints
from bookstand.proto.wire_format import BYTES, VARINT, int64, tag, write_bytes_field, write_varint, write_varint_field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from google.protobuf.message import Message

# SnapshotSegment and DelayedIndex
_INDEX = 1
_INDEX_FIELDS = (1, 2, 3)
# SnapshotMetadata
_SEGMENT_METADATA = 1
_SEGMENT_COUNT = 1000
# SnapshotSegmentMetadata
_BITMAP = 1
_MAX_TIME = 2
_MIN_TIME = 3
_BITMAP_64 = 1000
# An entry of a map
_KEY = 1
_VALUE = 2

UNLIMITED = -1

MIN_INDEX_BYTES = 8
"""Minimum bytes of an index in its segment: four tags, a length, and three one-byte numbers."""
MAX_INDEX_BYTES = 64
"""Maximum bytes of an index: 35 in its segment, or 48 in the metadata if it is the only one of its ledger."""

# Indexes per batch, so that the arrays stay in the CPU cache and reuse their pages. An index takes about 20 bytes in
# segment arrays, and 8 in metadata arrays.
_SEGMENT_BATCH = 13_000
_METADATA_BATCH = 26_000
# Pairs of segment and ledger are grouped by counting instead of sorting if there are at most this many possible pairs
# per row.
_PAIRS_PER_ROW = 4


class SnapshotDamagedError(MalformedError, StoreDamagedError):
    """An entry of a snapshot is missing or malformed."""


class SnapshotTooLargeError(EntryTooLargeError):
    """A part of a snapshot exceeds the size limit of an entry."""


class SegmentMetadata(NamedTuple):
    """Metadata of one segment. Bitmaps are serialized, by ledger id."""

    delayed_index_bit_map: Mapping[int, bytes]
    max_schedule_timestamp: int
    min_schedule_timestamp: int
    delayed_index_bit_map_64: Mapping[int, bytes] = MappingProxyType({})


class SnapshotMetadata(NamedTuple):
    """Metadata of all segments, from entry 0 and its continuations. ``what`` identifies it in errors."""

    metadata_list: Sequence[SegmentMetadata]
    what: str = "the snapshot's metadata"
    stored_bytes: int | None = None
    """Bytes of all entries if known; they limit the number of ids in bitmaps."""

    def bitmaps(self, first_segment: int = 1) -> dict[int, BitMap64]:
        """Return the entry ids of the segments from ``first_segment``, numbered from 1, by ledger id."""
        found: dict[int, BitMap64] = {}
        count = 0
        for number, segment in enumerate(self.metadata_list[first_segment - 1 :], first_segment):
            for ledger_id, bitmap in self._bitmaps_of(number, segment):
                count += len(bitmap)
                if self.stored_bytes is not None and count * MIN_INDEX_BYTES > self.stored_bytes:
                    raise SnapshotDamagedError(
                        f"{self.what}: its bitmaps have {count} ids or more, for which {self.stored_bytes} bytes of "
                        "segments are too small"
                    )
                if ledger_id in found:
                    found[ledger_id] |= bitmap
                else:
                    found[ledger_id] = bitmap
        return found

    def _bitmaps_of(self, number: int, segment: SegmentMetadata) -> Iterator[tuple[int, BitMap64]]:
        for read, stored in (
            (read_bitmap, segment.delayed_index_bit_map),
            (read_bitmap_64, segment.delayed_index_bit_map_64),
        ):
            for ledger_id, data in stored.items():
                try:
                    yield ledger_id, read(data)
                except MalformedBitmapError as error:
                    raise SnapshotDamagedError(
                        f"{self.what}: segment {number}, bitmap of ledger {ledger_id}: {error}"
                    ) from None


class Snapshot(NamedTuple):
    """A sealed bucket: sorted indexes, the end of each segment, and the entries to store."""

    indexes: Indexes
    ends: list[int]
    entries: list[bytes]

    @property
    def segment_count(self) -> int:
        return len(self.ends)

    @property
    def length(self) -> int:
        return sum(map(len, self.entries))

    def segment(self, number: int) -> Indexes:
        """Return the indexes of a segment, numbered from 1."""
        return self.indexes.part(self.ends[number - 2] if number > 1 else 0, self.ends[number - 1])


# -- sealing ----------------------------------------------------------------------------------------------------------


def seal(
    indexes: Indexes, time_step_millis: int, max_indexes_per_segment: int = UNLIMITED, entry_limit: int | None = None
) -> Snapshot:
    """Sort the indexes, cut them into segments, and encode the segments and their metadata.

    ``entry_limit`` is the maximum size of an entry in bytes; None means unlimited.
    """
    for name, column in (("ledger", indexes.ledger_ids), ("entry", indexes.entry_ids)):
        if len(column) and column.min() < 0:
            raise IncorrectParameterError(f"{name} ids must be non-negative, not {column.min()}")
    if not _are_in_order(indexes):
        indexes = Indexes(*sorted_rows(*indexes))
    ends = cut(indexes.timestamps, time_step_millis, max_indexes_per_segment)
    segments, fields = encode_segments(indexes, ends), _metadata_fields(indexes, ends)
    if entry_limit is not None and any(len(part) > entry_limit for part in (*segments, *fields)):
        fewer = max(1, entry_limit // MAX_INDEX_BYTES - 1)
        if max_indexes_per_segment != UNLIMITED:
            fewer = min(fewer, max_indexes_per_segment)
        ends = cut(indexes.timestamps, time_step_millis, fewer)
        segments, fields = encode_segments(indexes, ends), _metadata_fields(indexes, ends)
    first, *others = encode_metadata(fields, entry_limit)
    return Snapshot(indexes, ends, [first, *segments, *others])


def _are_in_order(indexes: Indexes) -> bool:
    """Return True if the indexes are sorted already, as they are after a merge."""
    times = indexes.timestamps
    if (times[1:] < times[:-1]).any():
        return False
    equal = np.flatnonzero(times[1:] == times[:-1])
    previous = [column[equal] for column in indexes[1:]]
    following = [column[equal + 1] for column in indexes[1:]]
    newer_ledger = following[0] > previous[0]
    same_ledger = following[0] == previous[0]
    return bool((newer_ledger | (same_ledger & (following[1] >= previous[1]))).all())


def cut(timestamps: Numbers, time_step_millis: int, max_indexes: int = UNLIMITED) -> list[int]:
    """Return the end of each segment: one step after its first time, or at the maximum number of indexes.

    The end time of a segment is computed like a Java long, so it wraps around.
    """
    if max_indexes < UNLIMITED:
        raise IncorrectParameterError(
            f"indexes per segment must be -1 (unlimited) or a positive limit, not {max_indexes}"
        )
    times = memoryview(np.ascontiguousarray(timestamps, dtype=np.int64).data)
    count = len(times)
    limit = count if max_indexes == UNLIMITED else max(1, max_indexes)
    ends = []
    at = 0
    while at < count:
        upper = int64((times[at] + time_step_millis - 1) % (1 << 64))
        at = bisect_right(times, upper, at + 1, min(count, at + limit))
        ends.append(at)
    return ends


# -- segments ---------------------------------------------------------------------------------------------------------


def encode_segments(indexes: Indexes, ends: Sequence[int]) -> list[bytes]:
    """Encode the segments that end at ``ends``."""
    entries = []
    for start, batch in _batches(ends, _SEGMENT_BATCH):
        part = indexes.part(start, batch[-1])
        body = Rows(part.size)
        for field, column in zip(_INDEX_FIELDS, part, strict=True):
            body.constant(bytes((tag(field, VARINT),))).varint(column)
        lengths = body.lengths
        rows = body.prepend(Rows(part.size).constant(bytes((tag(_INDEX, BYTES),))).varint(lengths))
        data = rows.join()
        # Rows are below 128 bytes, so their length takes one byte.
        places = np.cumsum(lengths + 2)[np.array(batch) - start - 1].tolist()
        entries += [data[first:end] for first, end in pairwise([0, *places])]
    return entries


def _batches(ends: Sequence[int], size: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Group segments into batches of about ``size`` indexes: the start of each batch, and the ends of its segments."""
    start = first = 0
    while first < len(ends):
        last = max(first + 1, bisect_right(ends, start + size, first))
        yield start, ends[first:last]
        start, first = ends[last - 1], last


def encode_segment(indexes: Indexes) -> bytes:
    return encode_segments(indexes, [indexes.size])[0] if indexes.size else b""


# A row in the usual layout consists of these varints, lengths included.
_ROW = 8
_ROW_TAGS = ((0, tag(_INDEX, BYTES)), *((2 * field, tag(field, VARINT)) for field in _INDEX_FIELDS))
_ROW_NUMBERS = [3, 5, 7]
_ROW_TAGGED = [2, 4, 6]
_ROW_BYTES = (1, 4, 6)


def decode_segment(data: bytes, what: str = "the segment") -> Indexes:
    """Decode a segment; ``what`` identifies it in errors."""
    return decode_segments([data], [what])[0]


def decode_segments(entries: Sequence[bytes], names: Sequence[str]) -> list[Indexes]:
    """Decode several segments at a time, which is faster for small ones."""
    data = entries[0] if len(entries) == 1 else b"".join(entries)
    decoded = uniform_rows.decode(data) or _decode_rows(data)
    if decoded is not None:
        found, row_ends = decoded
        if len(entries) == 1:
            return [found]
        entry_ends = np.cumsum([len(entry) for entry in entries])
        rows = np.searchsorted(row_ends, entry_ends, side="right")
        if (np.concatenate(([0], row_ends))[rows] == entry_ends).all():
            return [found.part(start, end) for start, end in pairwise([0, *rows.tolist()])]
    return [_decode_any_segment(data, what) for data, what in zip(entries, names, strict=True)]


def _decode_rows(data: bytes) -> tuple[Indexes, Numbers] | None:
    """Return the indexes and the end of each row; None if the rows do not have the usual layout."""
    view = np.frombuffer(data, dtype=np.uint8)
    # Reshape the ends of all varints to one column per field; each varint starts after the one before.
    ends = varints.end_offsets(view)
    count, rest = divmod(len(ends), _ROW)
    if not rest and count:
        columns = ends.reshape(count, _ROW).T.copy()
        row_ends = columns[-1] + 1
        # Tags and the length take one byte each, and rows are contiguous.
        is_usual = columns[2] == np.concatenate(([0], row_ends[:-1])) + 2
        for column in _ROW_BYTES:
            is_usual &= columns[column] == columns[column - 1] + 1
        for column, key in _ROW_TAGS:
            is_usual &= view[columns[column]] == key
        is_usual &= view[columns[1]] == columns[-1] - columns[1]
        starts, lengths = columns[_ROW_TAGGED] + 1, columns[_ROW_NUMBERS] - columns[_ROW_TAGGED]
        if is_usual.all() and int(lengths.max()) <= varints.LONGEST:
            found = Indexes(
                *(varints.decode_all(view, *one).view(np.int64) for one in zip(starts, lengths, strict=True))
            )
            return found, row_ends
    return None


def _decode_any_segment(data: bytes, what: str) -> Indexes:
    from google.protobuf.message import DecodeError

    from bookstand.proto.delayed_bucket_segment_pb2 import SnapshotSegment

    try:
        segment = SnapshotSegment.FromString(data)
    except DecodeError as error:
        raise SnapshotDamagedError(f"{what} is not a segment of delayed indexes: {error}") from None
    _check_complete(segment, what)
    indexes = segment.indexes
    columns = ([getattr(index, field) for index in indexes] for field in DelayedIndex._fields)
    return Indexes(*(np.array(column, dtype=np.uint64).view(np.int64) for column in columns))


def _check_complete(message: Message, what: str) -> None:
    if not message.IsInitialized():
        raise SnapshotDamagedError(f"{what} lacks a required field")


# -- metadata ---------------------------------------------------------------------------------------------------------


def encode_metadata(fields: Sequence[bytes], entry_limit: int | None = None) -> list[bytes]:
    """Encode the metadata of all segments as entry 0 and, if it does not fit, further entries."""
    joined = b"".join(fields)
    if entry_limit is None or len(joined) <= entry_limit:
        return [joined]
    count = bytearray()
    write_varint_field(count, _SEGMENT_COUNT, len(fields))
    entries: list[bytearray] = [bytearray()]
    room = entry_limit - len(count)
    for number, field in enumerate(fields, 1):
        if len(entries[-1]) + len(field) > room:
            room = entry_limit
            entries.append(bytearray())
        if len(field) > room:
            raise SnapshotTooLargeError(
                f"the metadata of segment {number} takes {len(field)} bytes and an entry {entry_limit}: cut segments "
                "of fewer indexes"
            )
        entries[-1] += field
    entries[0] += count
    return list(map(bytes, entries))


def encode_segment_metadata(segment: SegmentMetadata) -> bytes:
    """Encode the metadata of one segment as a field of entry 0."""
    body = bytearray()
    for ledger_id, bitmap in segment.delayed_index_bit_map.items():
        write_bytes_field(body, _BITMAP, _map_entry(ledger_id, bitmap))
    write_varint_field(body, _MAX_TIME, segment.max_schedule_timestamp)
    write_varint_field(body, _MIN_TIME, segment.min_schedule_timestamp)
    for ledger_id, bitmap in segment.delayed_index_bit_map_64.items():
        write_bytes_field(body, _BITMAP_64, _map_entry(ledger_id, bitmap))
    field = bytearray()
    write_bytes_field(field, _SEGMENT_METADATA, body)
    return bytes(field)


def _map_entry(ledger_id: int, bitmap: bytes) -> bytearray:
    out = bytearray()
    write_varint_field(out, _KEY, ledger_id)
    write_bytes_field(out, _VALUE, bitmap)
    return out


class MetadataEntry(NamedTuple):
    """Decoded metadata of one entry; ``segment_count`` is set only if further entries follow."""

    metadata_list: list[SegmentMetadata]
    segment_count: int | None


def decode_metadata(data: bytes, what: str = "the snapshot's metadata") -> MetadataEntry:
    """Decode entry 0, or an entry that continues it."""
    from google.protobuf.message import DecodeError

    from bookstand.proto import delayed_bucket_metadata_pb2

    try:
        message = delayed_bucket_metadata_pb2.SnapshotMetadata.FromString(data)
    except DecodeError as error:
        raise SnapshotDamagedError(f"{what} is not snapshot metadata: {error}") from None
    segments = []
    _check_complete(message, what)
    segments = [
        SegmentMetadata(
            _by_ledger(segment.delayed_index_bit_map),
            int64(segment.max_schedule_timestamp),
            int64(segment.min_schedule_timestamp),
            _by_ledger(segment.delayed_index_bit_map_64),
        )
        for segment in message.metadata_list
    ]
    return MetadataEntry(segments, message.segment_count if message.HasField("segment_count") else None)


def _by_ledger(bitmaps: Mapping[int, bytes]) -> dict[int, bytes]:
    return {int64(ledger_id): bitmap for ledger_id, bitmap in bitmaps.items()}


# -- metadata of columns ----------------------------------------------------------------------------------------------


def _metadata_fields(indexes: Indexes, ends: Sequence[int]) -> list[bytes]:
    if not ends:
        return []
    stops = np.array(ends)
    starts = np.concatenate(([0], stops[:-1]))
    maps = _maps(indexes, ends)
    maps_64 = _maps_64(indexes, stops)
    times = Rows(len(stops)).constant(bytes((tag(_MAX_TIME, VARINT),))).varint(indexes.timestamps[stops - 1])
    times.constant(bytes((tag(_MIN_TIME, VARINT),))).varint(indexes.timestamps[starts])
    fields = []
    for number, (map_entries, between) in enumerate(zip(maps, times.split(), strict=True)):
        body = [*map_entries, between, *maps_64.get(number, ())]
        head = bytearray((tag(_SEGMENT_METADATA, BYTES),))
        write_varint(head, sum(map(len, body)))
        fields.append(b"".join((head, *body)))
    return fields


class _Pairs(NamedTuple):
    """Pairs of segment and ledger: the first row of each pair, and its entry in the map of the segment."""

    segments: Numbers
    ledger_ids: Numbers
    firsts: Numbers
    entries: list[bytes]


def _maps(indexes: Indexes, ends: Sequence[int]) -> list[list[bytes]]:
    """Entries of each segment's map of bitmaps, in the order in which Pulsar lists them."""
    parts = []
    first_segment = 0
    for start, batch in _batches(ends, _METADATA_BATCH):
        rows = np.arange(start, batch[-1])
        segments = np.repeat(np.arange(first_segment, first_segment + len(batch)), np.diff(batch, prepend=start))
        ledger_ids, entry_ids = indexes.ledger_ids[start : batch[-1]], indexes.entry_ids[start : batch[-1]]
        low = entry_ids <= MAX_32
        if not low.all():
            segments, ledger_ids, entry_ids, rows = segments[low], ledger_ids[low], entry_ids[low], rows[low]
        if len(rows):
            parts.append(_pairs(segments, ledger_ids, entry_ids, rows))
        first_segment += len(batch)
    if not parts:
        return [[] for _ in ends]
    segments, ledger_ids, firsts = (np.concatenate(column) for column in list(zip(*parts, strict=True))[:3])
    entries = [entry for part in parts for entry in part.entries]
    order = hash_map_order(segments, ledger_ids, firsts, np.array(ends))
    ordered = iter([entries[number] for number in order.tolist()])
    return [list(islice(ordered, count)) for count in np.bincount(segments, minlength=len(ends)).tolist()]


def _pairs(segments: Numbers, ledger_ids: Numbers, entry_ids: Numbers, rows: Numbers) -> _Pairs:
    first_segment, lowest = int(segments[0]), int(ledger_ids.min())
    ledgers = int(ledger_ids.max()) - lowest + 1
    places = (int(segments[-1]) - first_segment + 1) * ledgers
    if places <= _PAIRS_PER_ROW * len(rows):
        # Combine each pair into one number, which indexes a table.
        numbers = segments - first_segment
        numbers *= ledgers
        numbers += ledger_ids
        numbers -= lowest
        first_rows = np.empty(places, dtype=np.int64)
        # Of several assignments to one element the last wins. Drop repeated neighbors, which are common.
        changes = np.flatnonzero(_changes(numbers))[::-1]
        first_rows[numbers[changes]] = rows[changes]
        numbers, entry_ids = sorted_rows(numbers, entry_ids)
        new_pair = _changes(numbers)
        starts = np.flatnonzero(new_pair)
        numbers = numbers[starts]
        firsts = first_rows[numbers]
        segments, ledger_ids = numbers // ledgers + first_segment, numbers % ledgers + lowest
    else:
        segments, ledger_ids, entry_ids, rows = sorted_rows(segments, ledger_ids, entry_ids, rows)
        new_pair = _changes(segments, ledger_ids)
        starts = np.flatnonzero(new_pair)
        firsts = np.minimum.reduceat(rows, starts)
        segments, ledger_ids = segments[starts], ledger_ids[starts]
    # A position may occur with several times.
    once = new_pair | _changes(entry_ids)
    bitmaps = write_bitmaps(entry_ids[once], _ends(new_pair[once]))
    sizes = np.fromiter(map(len, bitmaps), dtype=np.int64, count=len(bitmaps))
    values = Rows(len(bitmaps)).constant(bytes((tag(_KEY, VARINT),))).varint(ledger_ids)
    values.constant(bytes((tag(_VALUE, BYTES),))).varint(sizes)
    heads = values.prepend(Rows(len(bitmaps)).constant(bytes((tag(_BITMAP, BYTES),))).varint(values.lengths + sizes))
    entries = [head + bitmap for head, bitmap in zip(heads.split(), bitmaps, strict=True)]
    return _Pairs(segments, ledger_ids, firsts, entries)


def _maps_64(indexes: Indexes, ends: Numbers) -> dict[int, list[bytes]]:
    """Map entries of entry ids above 32 bits, by segment number from 0. Pulsar has none."""
    found: dict[int, list[bytes]] = {}
    high = np.flatnonzero(indexes.entry_ids > MAX_32)
    if len(high):
        segments, ledger_ids, entry_ids = sorted_rows(
            np.searchsorted(ends, high, side="right"), indexes.ledger_ids[high], indexes.entry_ids[high]
        )
        new_pair = _changes(segments, ledger_ids)
        starts = np.flatnonzero(new_pair)
        for start, end in zip(starts.tolist(), _ends(new_pair).tolist(), strict=True):
            field = bytearray()
            write_bytes_field(
                field, _BITMAP_64, _map_entry(int(ledger_ids[start]), write_bitmap_64(entry_ids[start:end]))
            )
            found.setdefault(int(segments[start]), []).append(bytes(field))
    return found


def _changes(*columns: Numbers) -> NDArray[np.bool_]:
    """Mask of the rows that differ from the row before, including the first row."""
    changes = np.zeros(len(columns[0]), dtype=np.bool_)
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    changes[:1] = True
    return changes


def _ends(starts: NDArray[np.bool_]) -> Numbers:
    """Ends of the groups that start at the masked rows."""
    return np.append(np.flatnonzero(starts)[1:], len(starts))
