"""How snapshots come and go: with the properties that name them, in one commit; tried again, and counted."""

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

Doomed = Mapping[str, int | None]
"""Properties that go, and the snapshots that go with them."""


class BucketStore:
    """Not safe between threads: its tracker has a lock. Errors are those of the last attempt."""

    def __init__(self, home: BucketRegistry, storage: BucketSnapshotStorage) -> None:
        self._home = home
        self._storage = storage
        self.operations = OperationMetrics()
        # Snapshots that are no bucket any more, and could not be removed: they go with the next change.
        self.left_over: dict[str, int | None] = {}

    @property
    def entry_limit(self) -> int:
        return self._storage.entry_limit

    # -- reading -----------------------------------------------------------------------------------------------------

    def recover(self, cutoff: int) -> Recovered:
        home = self._home
        return with_retries(lambda: recovery.recover(self._storage, home.topic, home.cursor, home.properties(), cutoff))

    def read(self, bucket: Bucket, first: int, last: int) -> list[Indexes]:
        """Segments from one to another, the last one included."""
        return with_retries(lambda: self._storage.read_segments(bucket.bucket_id, first, last))

    def load(self, bucket: Bucket, number: int) -> Indexes:
        """One segment, to be kept."""
        with self._counted(LOAD, 1):
            (indexes,) = self.read(bucket, number, number)
        return indexes

    # -- changing ----------------------------------------------------------------------------------------------------

    def replace(
        self, doomed: Doomed, created: Sequence[NewBucket], *, merging: bool = False, sweep: bool = False
    ) -> list[int]:
        """Delete some and create others; returns the ids of these. ``sweep``: as with :meth:`delete`."""
        writers: list[LedgerWriter] = []

        def change(transaction: Transaction, properties: dict[str, str]) -> None:
            writers.clear()
            self._delete_in(transaction, properties, doomed, orphans)
            for one in created:
                labels = BucketLabels(str(one.key), self._home.topic, self._home.cursor)
                writer = self._storage.create_in(transaction, one.snapshot.entries, labels)
                properties[labels.key] = str(writer.id)
                writers.append(writer)

        deleted = 0 if merging else len(doomed)
        with (
            self._counted(CREATE, len(created)),
            self._counted(MERGE, int(merging)),
            self._counted(DELETE, deleted),
        ):
            orphans = self._orphans() if sweep else []
            self._commit(change)
            self._storage.finish(writers)
        return [writer.id for writer in writers]

    def delete(self, doomed: Doomed, also: Change | None = None, *, sweep: bool = False) -> None:
        """Delete snapshots, and what goes with them. ``sweep``: and those of this cursor that no property names."""

        def change(transaction: Transaction, properties: dict[str, str]) -> None:
            self._delete_in(transaction, properties, doomed, orphans)
            if also is not None:
                also(transaction, properties)

        with self._counted(DELETE, len(doomed)):
            orphans = self._orphans() if sweep else []
            self._commit(change)

    def _orphans(self) -> list[int]:
        """Snapshots of this cursor; those are left over that no property names."""
        return self._storage.list_snapshots(self._home.topic, self._home.cursor)

    def remove(self, doomed: Doomed, *, sweep: bool = False) -> bool:
        """The same; False if that cannot be done now."""
        try:
            self.delete(doomed, sweep=sweep)
        except TRANSIENT_ERRORS as error:
            logger().warning("buckets %s could not be deleted: %s", ", ".join(doomed), error)
            return False
        return True

    def remove_at_some_time(self, doomed: Doomed, *, sweep: bool = False) -> None:
        if not self.remove(doomed, sweep=sweep):
            self.left_over.update(doomed)

    def _delete_in(
        self, transaction: Transaction, properties: dict[str, str], doomed: Doomed, snapshots: Sequence[int]
    ) -> None:
        """What is doomed, and those of the snapshots that no property names then."""
        leaving = {**self.left_over, **doomed}
        for name, bucket_id in leaving.items():
            properties.pop(name, None)
            if bucket_id is not None:
                self._storage.delete_in(transaction, bucket_id)
        named = {*properties.values(), *map(str, leaving.values())}
        for bucket_id in snapshots:
            if str(bucket_id) not in named:
                self._storage.delete_in(transaction, bucket_id)

    def _commit(self, change: Change) -> None:
        with_retries(lambda: self._home.change(change))
        self.left_over.clear()

    @contextmanager
    def _counted(self, kind: str, count: int) -> Iterator[None]:
        """Count what is done to so many snapshots."""
        self.operations.began(kind, count)
        started = monotonic()
        try:
            yield
        except BaseException:
            self.operations.failed(kind, count)
            raise
        self.operations.succeeded(kind, (monotonic() - started) * 1000, count)


class NewBucket(NamedTuple):
    """A bucket that is about to be stored."""

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
        """When its second segment begins; the first is loaded from the start."""
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
