"""Encoding of a snapshot's messages by protobuf (upb), in the fastest way from Python.

The messages of a segment are created once and reused for every segment, and their fields are set by a loop in C, which
is the fastest variant. The input is Python integers, and bitmaps as bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from google.protobuf.internal import api_implementation

from benchmarks.measure import Missing
from bookstand.delivery.tracker.bucket.snapshot.codec import SegmentMetadata, Snapshot, decode_metadata
from bookstand.proto.delayed_bucket_metadata_pb2 import SnapshotMetadata
from bookstand.proto.delayed_bucket_segment_pb2 import DelayedIndex, SnapshotSegment


class Segment(NamedTuple):
    timestamps: list[int]
    ledger_ids: list[int]
    entry_ids: list[int]


class SnapshotMessages:
    """The contents of a snapshot, and their encoder."""

    def __init__(self, snapshot: Snapshot) -> None:
        if api_implementation.Type() != "upb":
            raise Missing(f"protobuf's backend is {api_implementation.Type()}, not upb")
        self.segments = [
            Segment(*(column.tolist() for column in snapshot.segment(number + 1)))
            for number in range(snapshot.segment_count)
        ]
        self.metadata: Sequence[SegmentMetadata] = decode_metadata(snapshot.entries[0]).metadata_list
        self._segment = SnapshotSegment()
        self._indexes: list[DelayedIndex] = []
        # Prepared messages for serialize_made().
        self._made = [SnapshotSegment.FromString(data) for data in snapshot.entries[1:]]

    def encode_segments(self) -> list[bytes]:
        return [self._encode_segment(segment) for segment in self.segments]

    def _encode_segment(self, segment: Segment) -> bytes:
        indexes, count = self._indexes, len(segment.timestamps)
        while len(indexes) < count:
            indexes.append(self._segment.indexes.add())
        if len(indexes) > count:
            del indexes[count:], self._segment.indexes[count:]
        for name, values in zip(segment._fields, segment, strict=True):
            field = name.removesuffix("s")
            deque(map(setattr, indexes, repeat(field), values), maxlen=0)
        return self._segment.SerializeToString()

    def encode(self) -> list[bytes]:
        """Encode all entries."""
        message = SnapshotMetadata()
        for segment in self.metadata:
            one = message.metadata_list.add()
            one.max_schedule_timestamp = segment.max_schedule_timestamp
            one.min_schedule_timestamp = segment.min_schedule_timestamp
            one.delayed_index_bit_map.update(segment.delayed_index_bit_map)
        return [message.SerializeToString(), *self.encode_segments()]

    def serialize_made(self) -> list[bytes]:
        """Serialize prepared messages: only the last step, as a lower bound."""
        return [message.SerializeToString() for message in self._made]
