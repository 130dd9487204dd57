"""Storage of bucket snapshots: commits with the properties that name them, retries, and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bookstand.delivery.retry import TRANSIENT_ERRORS, with_retries
from bookstand.delivery.tracker.bucket import recovery
from bookstand.delivery.tracker.bucket.bucket_list import Bucket
from bookstand.delivery.tracker.bucket.key import BucketKey, BucketLabels
from bookstand.delivery.tracker.bucket.metrics import CREATE, DELETE, LOAD, MERGE, OperationMetrics
from bookstand.delivery.tracker.bucket.recovery import Recovered
from bookstand.delivery.tracker.bucket.registry import BucketRegistry, Change
from bookstand.delivery.tracker.bucket.snapshot.codec import Snapshot
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.storage.logger import logger

if TYPE_CHECKING:
    from bookstand.ledger.transaction import Transaction

Deletions = Mapping[str, int | None]
"""Properties to delete, and the snapshots to delete with them."""


class BucketStore:
    """Store of snapshots that retries transient errors. Not thread-safe: callers hold the tracker's lock."""

    def __init__(self, registry: BucketRegistry, storage: BucketSnapshotStorage) -> None:
        self._registry = registry
        self._storage = storage
        self.operations = OperationMetrics()
        # Snapshots that are no longer buckets but could not be deleted; the next commit deletes them.
        self.pending_deletions: dict[str, int | None] = {}

    @property
    def entry_limit(self) -> int:
        return self._storage.entry_limit

    def recover(self, cutoff: int) -> Recovered:
        registry = self._registry
        return with_retries(
            lambda: recovery.recover(self._storage, registry.topic, registry.cursor, registry.properties(), cutoff)
        )

    def read(self, bucket: Bucket, first: int, last: int) -> list[Indexes]:
        return with_retries(lambda: self._storage.read_segments(bucket.bucket_id, first, last))

    def load(self, bucket: Bucket, number: int) -> Indexes:
        """Read one segment, counted as a load in the metrics."""
        with self._measured(LOAD, 1):
            (indexes,) = self.read(bucket, number, number)
        return indexes

    def replace(
        self, deletions: Deletions, created: Sequence[NewBucket], *, merging: bool = False, delete_orphans: bool = False
    ) -> list[int]:
        """Delete buckets and create others in one commit; return the ids of the new ones."""
        writers: list[LedgerWriter] = []

        def change(transaction: Transaction, properties: dict[str, str]) -> None:
            writers.clear()
            self._delete_in(transaction, properties, deletions, orphans)
            for bucket in created:
                labels = BucketLabels(str(bucket.key), self._registry.topic, self._registry.cursor)
                writer = self._storage.create_in(transaction, bucket.snapshot.entries, labels)
                properties[labels.key] = str(writer.id)
                writers.append(writer)

        deleted = 0 if merging else len(deletions)
        with self._measured(CREATE, len(created)), self._measured(MERGE, int(merging)), self._measured(DELETE, deleted):
            orphans = self._orphans() if delete_orphans else []
            self._commit(change)
            self._storage.finish(writers)
        return [writer.id for writer in writers]

    def delete(self, deletions: Deletions, also: Change | None = None, *, delete_orphans: bool = False) -> None:
        """Delete buckets in one commit with ``also``, and on request orphaned snapshots of this cursor."""

        def change(transaction: Transaction, properties: dict[str, str]) -> None:
            self._delete_in(transaction, properties, deletions, orphans)
            if also is not None:
                also(transaction, properties)

        with self._measured(DELETE, len(deletions)):
            orphans = self._orphans() if delete_orphans else []
            self._commit(change)

    def _orphans(self) -> list[int]:
        """Snapshots of this cursor; those that no property names are orphans."""
        return self._storage.list_snapshots(self._registry.topic, self._registry.cursor)

    def try_delete(self, deletions: Deletions, *, delete_orphans: bool = False) -> bool:
        """Delete buckets; return False on a transient error."""
        try:
            self.delete(deletions, delete_orphans=delete_orphans)
        except TRANSIENT_ERRORS as error:
            logger().warning("buckets %s could not be deleted: %s", ", ".join(deletions), error)
            return False
        return True

    def delete_or_defer(self, deletions: Deletions, *, delete_orphans: bool = False) -> None:
        if not self.try_delete(deletions, delete_orphans=delete_orphans):
            self.pending_deletions.update(deletions)

    def _delete_in(
        self, transaction: Transaction, properties: dict[str, str], deletions: Deletions, snapshots: Sequence[int]
    ) -> None:
        """Delete buckets and pending deletions, and the snapshots that no property names then."""
        deleted = {**self.pending_deletions, **deletions}
        for name, bucket_id in deleted.items():
            properties.pop(name, None)
            if bucket_id is not None:
                self._storage.delete_in(transaction, bucket_id)
        named = {*properties.values(), *map(str, deleted.values())}
        for bucket_id in snapshots:
            if str(bucket_id) not in named:
                self._storage.delete_in(transaction, bucket_id)

    def _commit(self, change: Change) -> None:
        with_retries(lambda: self._registry.change(change))
        self.pending_deletions.clear()

    @contextmanager
    def _measured(self, kind: str, count: int) -> Iterator[None]:
        self.operations.record_start(kind, count)
        started = monotonic()
        try:
            yield
        except BaseException:
            self.operations.record_failure(kind, count)
            raise
        self.operations.record_success(kind, (monotonic() - started) * 1000, count)


class NewBucket(NamedTuple):
    key: BucketKey
    snapshot: Snapshot
    generation: int

    @property
    def waiting(self) -> int:
        """Number of its delayed messages."""
        return self.snapshot.indexes.size

    @property
    def _first_times(self) -> list[int]:
        starts = [0, *self.snapshot.ends[:-1]]
        return [int(time) for time in self.snapshot.indexes.timestamps[starts]]

    @property
    def next_time(self) -> int | None:
        """Start of its second segment, because the first is loaded initially."""
        first_times = self._first_times
        return first_times[1] if len(first_times) > 1 else None

    def bucket(self, bucket_id: int, *, loaded: int, waiting: int) -> Bucket:
        ends = np.array(self.snapshot.ends) - 1
        last_times = self.snapshot.indexes.timestamps[ends].tolist()
        return Bucket(
            self.key,
            bucket_id,
            self._first_times,
            last_times,
            self.snapshot.length,
            loaded=loaded,
            waiting=waiting,
            generation=self.generation,
        )
