"""Recovery of buckets from the properties of a cursor.

Only the metadata of snapshots is read: times and bitmaps. Messages of segments that are entirely due are not tracked:
the cursor finds them due in the topic. Missing, damaged and overlapping buckets are replaced: their ranges are read
from the topic and sealed again, in the commit that deletes their properties. Their ledgers are deleted only if their
labels identify them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyroaring import BitMap64

from bookstand.delivery.tracker.bucket.bucket_list import Bucket
from bookstand.delivery.tracker.bucket.key import BucketKey, BucketLabels, read_properties
from bookstand.delivery.tracker.bucket.snapshot.codec import SnapshotDamagedError
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.errors import (
    DigestMismatchError,
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    StoreDamagedError,
)

GONE = (
    DigestMismatchError,
    LedgerRecoveryError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    SnapshotDamagedError,
    StoreDamagedError,
)
"""Permanent errors of reading a snapshot."""


class Recovered(NamedTuple):
    """Recovered buckets, properties and snapshots to delete, lost ranges to read from the topic, and damage."""

    buckets: list[tuple[Bucket, Mapping[int, BitMap64]]]
    to_delete: dict[str, int | None]
    lost: list[BucketKey]
    problems: list[str]


def recover(
    storage: BucketSnapshotStorage, topic: str, cursor: str, properties: Mapping[str, str], cutoff: int
) -> Recovered:
    found = read_properties(properties.items())
    recovered = Recovered([], {}, [], [])
    for name, error in found.malformed.items():
        recovered.problems.append(str(error))
        recovered.to_delete[name] = None

    def is_labelled(key: BucketKey) -> bool:
        try:
            return storage.read_labels(found.buckets[key]) == (str(key), topic, cursor)
        except (NoSuchLedgerError, SnapshotDamagedError):
            return False
        except StoreDamagedError:
            # The labels cannot be read, so trust the property that names the ledger.
            return True

    disjoint, enclosed, overlapping = _partition(found.buckets)
    for key in [*enclosed, *overlapping]:
        recovered.problems.append(f"ledgers of bucket {key} overlap those of another bucket")
        recovered.to_delete[str(key)] = found.buckets[key] if is_labelled(key) else None
    recovered.lost.extend(overlapping)
    for key in disjoint:
        bucket_id = found.buckets[key]
        try:
            _check_labels(storage.read_labels(bucket_id), key, topic, cursor)
            opened = _open(storage, key, bucket_id, cutoff)
        except GONE as error:
            recovered.problems.append(f"bucket {key} cannot be read: {error}")
            # A ledger that is not labelled as this bucket may belong to another user of the store.
            recovered.to_delete[str(key)] = bucket_id if is_labelled(key) else None
            recovered.lost.append(key)
            continue
        if opened is None:
            recovered.to_delete[str(key)] = bucket_id
        else:
            recovered.buckets.append(opened)
    return recovered


def _partition(keys: Iterable[BucketKey]) -> tuple[list[BucketKey], list[BucketKey], list[BucketKey]]:
    """Partition sorted ranges into disjoint ones, those within one of these, and those that cross the end of one."""
    disjoint: list[BucketKey] = []
    enclosed: list[BucketKey] = []
    overlapping: list[BucketKey] = []
    # Sort an enclosing range before those within it.
    for key in sorted(keys, key=lambda key: (key.first_ledger, -key.last_ledger)):
        if not disjoint or key.first_ledger > disjoint[-1].last_ledger:
            disjoint.append(key)
        elif key.last_ledger <= disjoint[-1].last_ledger:
            enclosed.append(key)
        else:
            overlapping.append(key)
    return disjoint, enclosed, overlapping


def subtract_ranges(key: BucketKey, others: Iterable[BucketKey]) -> list[BucketKey]:
    """The parts of a range that are in none of the others, which must be disjoint."""
    parts = []
    first = key.first_ledger
    for other in sorted(others):
        if first <= other.last_ledger and other.first_ledger <= key.last_ledger:
            if first < other.first_ledger:
                parts.append(BucketKey(first, other.first_ledger - 1))
            first = other.last_ledger + 1
    if first <= key.last_ledger:
        parts.append(BucketKey(first, key.last_ledger))
    return parts


def _check_labels(labels: BucketLabels | None, key: BucketKey, topic: str, cursor: str) -> None:
    """Check that the ledger is this bucket, because properties may have been copied."""
    if labels is not None and labels != (str(key), topic, cursor):
        raise SnapshotDamagedError(f"the ledger is bucket {labels.key} of topic {labels.topic}, cursor {labels.cursor}")


def _open(
    storage: BucketSnapshotStorage, key: BucketKey, bucket_id: int, cutoff: int
) -> tuple[Bucket, Mapping[int, BitMap64]] | None:
    """Return the bucket and the bitmaps of its tracked messages; None if all are due."""
    metadata = storage.read_metadata(bucket_id)
    segments = metadata.metadata_list
    first_times = [segment.min_schedule_timestamp for segment in segments]
    last_times = [segment.max_schedule_timestamp for segment in segments]
    expired = next((n for n, last in enumerate(last_times) if last > cutoff), len(segments))
    if expired == len(segments):
        return None
    bitmaps = metadata.bitmaps(expired + 1)
    waiting = sum(map(len, bitmaps.values()))
    bucket = Bucket(
        key,
        bucket_id,
        first_times,
        last_times,
        storage.read_length(bucket_id),
        loaded=expired,
        waiting=waiting,
        generation=0,
    )
    return bucket, bitmaps
