"""What a tracker finds when it begins: the buckets that a cursor's properties name, as far as they can be used.

Nothing is loaded but what the snapshots say of themselves: times and bitmaps. What has been due for a whole segment is
not tracked any more, for the cursor meets it in the topic and finds it due. A bucket that is missing or damaged, and
one that overlaps another, is given up: its range is read from the topic again and sealed anew, and in that commit its
property goes; the ledger goes too, if it says that it is that snapshot.
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
"""What says that a snapshot cannot be read, now or later."""


class Recovered(NamedTuple):
    """``doomed`` are to be removed, property and ledger; of ``lost`` ranges the topic tells; ``problems`` is what was
    wrong, in words."""

    buckets: list[tuple[Bucket, Mapping[int, BitMap64]]]
    doomed: dict[str, int | None]
    lost: list[BucketKey]
    problems: list[str]


def recover(
    storage: BucketSnapshotStorage, topic: str, cursor: str, properties: Mapping[str, str], cutoff: int
) -> Recovered:
    found = read_properties(properties.items())
    recovered = Recovered([], {}, [], [])
    for name, error in found.malformed.items():
        recovered.problems.append(str(error))
        recovered.doomed[name] = None

    def is_labelled(key: BucketKey) -> bool:
        try:
            return storage.read_labels(found.buckets[key]) == (str(key), topic, cursor)
        except (NoSuchLedgerError, SnapshotDamagedError):
            return False
        except StoreDamagedError:
            # Nothing but the property that names the ledger says what it is.
            return True

    kept, enclosed, overlapping = _apart(found.buckets)
    for key in [*enclosed, *overlapping]:
        recovered.problems.append(f"bucket {key} is about ledgers that another one is about as well")
        recovered.doomed[str(key)] = found.buckets[key] if is_labelled(key) else None
    recovered.lost.extend(overlapping)
    for key in kept:
        bucket_id = found.buckets[key]
        try:
            _check_labels(storage.read_labels(bucket_id), key, topic, cursor)
            opened = _open(storage, key, bucket_id, cutoff)
        except GONE as error:
            recovered.problems.append(f"bucket {key} cannot be read: {error}")
            # What is not a snapshot of this cursor is somebody's.
            recovered.doomed[str(key)] = bucket_id if is_labelled(key) else None
            recovered.lost.append(key)
            continue
        if opened is None:
            recovered.doomed[str(key)] = bucket_id
        else:
            recovered.buckets.append(opened)
    return recovered


def _apart(keys: Iterable[BucketKey]) -> tuple[list[BucketKey], list[BucketKey], list[BucketKey]]:
    """Those that are kept, in order; those that lie within one of them; and those that lie across one."""
    kept: list[BucketKey] = []
    enclosed: list[BucketKey] = []
    overlapping: list[BucketKey] = []
    # An enclosing one comes before what it encloses.
    for key in sorted(keys, key=lambda key: (key.first_ledger, -key.last_ledger)):
        if not kept or key.first_ledger > kept[-1].last_ledger:
            kept.append(key)
        elif key.last_ledger <= kept[-1].last_ledger:
            enclosed.append(key)
        else:
            overlapping.append(key)
    return kept, enclosed, overlapping


def subtract_ranges(key: BucketKey, others: Iterable[BucketKey]) -> list[BucketKey]:
    """The parts of a range that are in none of the others. These do not overlap one another."""
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
    """Properties may have been copied. The oldest format of metadata has no room for labels."""
    if labels is not None and labels != (str(key), topic, cursor):
        raise SnapshotDamagedError(f"the ledger is bucket {labels.key} of topic {labels.topic}, cursor {labels.cursor}")


def _open(
    storage: BucketSnapshotStorage, key: BucketKey, bucket_id: int, cutoff: int
) -> tuple[Bucket, Mapping[int, BitMap64]] | None:
    """The bucket with what waits in it; None if nothing does."""
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
