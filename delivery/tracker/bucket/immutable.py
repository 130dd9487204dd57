"""Sealed buckets: immutable snapshots on disk, loaded into memory segment by segment.

A snapshot is in its own ledger, cut into segments by time. A bucket is created and deleted in one commit with the
cursor property that names it. When there are too many buckets, adjacent ones are merged. Messages that were added too
late for the bucket of their ledger, or were rescheduled, are in memory with the loaded ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from pyroaring import BitMap64

from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.message.position_set import PositionSet
from bookstand.delivery.retry import TRANSIENT_ERRORS, with_retries
from bookstand.delivery.tracker.bucket.bucket_list import Bucket, Buckets
from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.delivery.tracker.bucket.membership import WaitingSet
from bookstand.delivery.tracker.bucket.merge_policy import MergeCandidate, blocks_to_merge
from bookstand.delivery.tracker.bucket.rebuild import Reader
from bookstand.delivery.tracker.bucket.recovery import GONE, subtract_ranges
from bookstand.delivery.tracker.bucket.registry import BucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate, distinct
from bookstand.delivery.tracker.bucket.store import BucketStore, Deletions, NewBucket
from bookstand.delivery.tracker.bucket.time_sorted import TimeSortedBuffer
from bookstand.delivery.tracker.protocol import Column
from bookstand.errors import MalformedRecordError
from bookstand.storage.logger import logger


class SealedBuckets:
    """Sealed buckets of a tracker. Not thread-safe: callers hold the tracker's lock.

    A message of a bucket is either in ``loaded`` or in a segment that is not loaded, never in both. ``rebuild`` reads
    the messages of a damaged snapshot from the topic. Transient errors are raised, and leave the state unchanged unless
    a method states otherwise.
    """

    def __init__(
        self,
        registry: BucketRegistry,
        store: BucketStore,
        config: DelayedDeliveryConfig,
        tracked: WaitingSet,
        rebuild: Reader | None,
    ) -> None:
        self._registry = registry
        self.config = config
        self._tracked = tracked
        self._rebuild = rebuild
        # Ledger ids of snapshots that replaced damaged ones.
        self._rebuilt: set[int] = set()
        self.store = store
        self.buckets = Buckets()
        self.loaded = TimeSortedBuffer()
        self.problems: list[str] = []
        self.sealed_up_to: int | None = None
        """The last ledger whose messages need not be read again after a restart."""

    # -- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, cutoff: int) -> None:
        """Load the stored state. Messages of damaged buckets that are due after ``cutoff`` are read from the topic."""
        found = self.store.recover(cutoff)
        for bucket, bitmaps in found.buckets:
            bucket.waiting = 0
            for ledger_id, bitmap in bitmaps.items():
                unacknowledged = self._unacknowledged(ledger_id, bitmap)
                # The segments still contain the acknowledged messages.
                self._tracked.may_have_stale_rows |= len(unacknowledged) < len(bitmap)
                self._tracked.present.add_bitmap(ledger_id, unacknowledged)
                bucket.waiting += len(unacknowledged)
            self.buckets.add(bucket)
            # All messages of the bucket may be acknowledged.
            self.buckets.record_removed(bucket, 0)
            self.sealed_up_to = bucket.key.last_ledger
        if found.problems:
            self._report(*found.problems)
        lost: list[BucketKey] = []
        for key in found.lost:
            for indexes in self._read_topic_with_retries(key):
                later = indexes.timestamps > cutoff
                self._add_untracked(*(column[later] for column in indexes))
            lost += subtract_ranges(key, [*(bucket.key for bucket in self.buckets), *lost])
        self._load_rescheduled()
        if found.to_delete:
            self._replace_lost(lost, found.to_delete, delete_orphans=bool(found.problems))
        self.trim()
        self.remove_empty()

    def _unacknowledged(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """Entries that may still be delivered; all entries if the acknowledgments of the ledger cannot be read."""
        try:
            return self._registry.unacknowledged(ledger_id, entry_ids)
        except GONE as error:
            self._report(f"acknowledgments of ledger {ledger_id} cannot be read, its messages stay delayed: {error}")
            return entry_ids

    def _load_rescheduled(self) -> None:
        rescheduled = self._tracked.rescheduled
        try:
            with_retries(rescheduled.load)
        except (*GONE, MalformedRecordError) as error:
            self._report(f"the times of rescheduled messages are lost, so their original times apply: {error}")
            return
        passed = self._registry.mark_delete()
        for position, time in rescheduled.times.items():
            ledger_id, entry_id = position
            if position > passed and self._unacknowledged(ledger_id, BitMap64([entry_id])):
                self.insert(position, time)

    def _report(self, *problems: str) -> None:
        self.problems += problems
        for problem in problems:
            logger().warning("topic %s, cursor %s: %s", self._registry.topic, self._registry.cursor, problem)

    def _read_topic_with_retries(self, key: BucketKey) -> list[Indexes]:
        return with_retries(lambda: self._read_topic(key))

    def _read_topic(self, key: BucketKey) -> list[Indexes]:
        """Read the delayed messages of a range of ledgers, except permanently unreadable ones."""
        found: list[Indexes] = []
        try:
            found.extend(() if self._rebuild is None else self._rebuild(*key))
        except GONE as error:
            self._report(f"ledgers {key.first_ledger} to {key.last_ledger} cannot be read completely: {error}")
        return found

    def _add_untracked(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """Track the messages that are neither tracked nor acknowledged, in memory."""
        present = self._tracked.present
        self._tracked.may_have_duplicate_rows = True
        is_new = ~present.contains_many(ledger_ids, entry_ids)
        for ledger_id in np.unique(ledger_ids).tolist():
            rows = np.flatnonzero(ledger_ids == ledger_id)
            unacknowledged = self._unacknowledged(ledger_id, BitMap64(entry_ids[rows].tolist()))
            is_new[rows] &= [entry_id in unacknowledged for entry_id in entry_ids[rows].tolist()]
        times, ledger_ids, entry_ids = times[is_new], ledger_ids[is_new], entry_ids[is_new]
        present.add_many(ledger_ids, entry_ids)
        self.add_unsealed(times, ledger_ids, entry_ids)

    # -- messages -----------------------------------------------------------------------------------------------------

    def add_unsealed(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """Add tracked messages that are in no snapshot; a bucket may cover their ledgers."""
        self.buckets.add_messages(ledger_ids)
        self.loaded.add_many(times, ledger_ids, entry_ids)

    def add_one_unsealed(self, time: int, ledger_id: int, entry_id: int) -> None:
        self._record_added(ledger_id)
        self.loaded.add(time, ledger_id, entry_id)

    def insert(self, position: tuple[int, int], time: int) -> None:
        """Track a message for this time only; its other rows become stale."""
        ledger_id, entry_id = position
        if self._tracked.move(position, time):
            self._record_added(ledger_id)
        self.loaded.add(time, ledger_id, entry_id)

    def _record_added(self, ledger_id: int) -> None:
        bucket = self.buckets.covering(ledger_id)
        if bucket is not None:
            bucket.waiting += 1

    def record_untracked(self, ledger_id: int) -> None:
        """Record that a message of this ledger is no longer tracked."""
        bucket = self.buckets.covering(ledger_id)
        if bucket is not None:
            self.buckets.record_removed(bucket, 1)

    # -- sealing and merging ------------------------------------------------------------------------------------------

    def add(self, key: BucketKey, indexes: Indexes) -> bool:
        """Seal a bucket, and merge others to respect the limit; return False if a bucket to merge was unreadable.

        The seal and the last merge are one commit; each further merge is a commit before it. An unreadable bucket is
        rebuilt from the topic, and the caller tries again.
        """
        new = self._sealed(key, indexes, 0)
        blocks = self._blocks_to_merge(new)
        # The last block is merged in the commit of the seal, so a block with the new bucket must be the last.
        blocks.sort(key=lambda block: new in block)
        for block in blocks[:-1]:
            if not self._store(None, block):
                return False
        return self._store(new, blocks[-1] if blocks else [])

    def _sealed(self, key: BucketKey, indexes: Indexes, generation: int) -> NewBucket:
        config = self.config
        snapshot = seal(indexes, config.time_step_millis, config.most_in_segment, self.store.entry_limit)
        return NewBucket(key, snapshot, generation)

    def _blocks_to_merge(self, new: NewBucket) -> list[list[Bucket | NewBucket]]:
        """Blocks of adjacent buckets to merge into one bucket each, so that the new one does not exceed the limit."""
        limit = self.config.delayed_delivery_max_num_buckets
        if not 0 < limit <= len(self.buckets):
            return []
        adjacent: list[Bucket | NewBucket] = sorted([*self.buckets, new], key=lambda bucket: bucket.key)
        candidates = [MergeCandidate(bucket.waiting, bucket.next_time, bucket.generation) for bucket in adjacent]
        blocks = blocks_to_merge(candidates, limit, self.config.delayed_delivery_merge_policy)
        return [adjacent[start:end] for start, end in blocks]

    def _read_block(self, block: Sequence[Bucket | NewBucket]) -> Indexes | None:
        """Read the tracked messages of the buckets in a block; rebuild unreadable ones and return None.

        Unloaded segments are read from disk; other messages are in memory. Stale rows are dropped: a message that was
        delivered and added again may have another time than in the snapshot.
        """
        found: list[Indexes] = []
        complete = True
        for bucket in block:
            if isinstance(bucket, NewBucket):
                found.append(bucket.snapshot.indexes)
                continue
            # Snapshots of another writer may contain a position twice.
            self._tracked.may_have_duplicate_rows |= not bucket.own
            try:
                if bucket.next_time is not None:
                    found += self.store.read(bucket, bucket.loaded + 1, bucket.segments)
            except GONE as error:
                self._rebuild_damaged(bucket, f"bucket {bucket.name} cannot be read: {error}")
                complete = False
        if not complete:
            return None
        keys = [bucket.key for bucket in block if isinstance(bucket, Bucket)]
        found.append(self._loaded_within(*keys))
        return distinct(self._tracked.filter_valid(concatenate(found)))

    def _loaded_within(self, *keys: BucketKey) -> Indexes:
        loaded = self._tracked.filter_valid(self.loaded.all_rows())
        within = np.zeros(loaded.size, dtype=np.bool_)
        for key in keys:
            within |= (loaded.ledger_ids >= key.first_ledger) & (loaded.ledger_ids <= key.last_ledger)
        return Indexes(*(column[within] for column in loaded))

    def _store(self, new: NewBucket | None, block: Sequence[Bucket | NewBucket]) -> bool:
        """Commit a new bucket and a merged block; return False, with nothing stored, if a bucket was unreadable.

        The new bucket is stored on its own, or as a part of the merged one if the block contains it.
        """
        to_delete = [bucket for bucket in block if isinstance(bucket, Bucket)]
        created = [] if new is None or new in block else [new]
        merged: Indexes | None = None
        if block:
            merged = self._read_block(block)
            if merged is None:
                return False
        # If every message to merge was cancelled, there is nothing to store.
        if merged is not None and merged.size:
            key = BucketKey(block[0].key.first_ledger, block[-1].key.last_ledger)
            created.append(self._sealed(key, merged, max(bucket.generation for bucket in block) + 1))
        deletions = {bucket.name: bucket.bucket_id for bucket in to_delete}
        ids = self.store.replace(deletions, created, merging=merged is not None)
        for bucket in to_delete:
            self.buckets.remove(bucket)
        if merged is not None:
            self._unload(merged)
        for new_bucket, bucket_id in zip(created, ids, strict=True):
            self._register(new_bucket, bucket_id, loaded=int(new_bucket is new))
        return True

    def _unload(self, indexes: Indexes) -> None:
        sealed = PositionSet()
        sealed.add_many(indexes.ledger_ids, indexes.entry_ids)
        loaded = self.loaded.all_rows()
        is_retained = ~sealed.contains_many(loaded.ledger_ids, loaded.entry_ids)
        if not is_retained.all():
            self.loaded.clear()
            self.loaded.add_many(*(column[is_retained] for column in loaded))

    def _register(self, new: NewBucket, bucket_id: int, loaded: int) -> None:
        """Register a stored bucket, with its first segment loaded or none."""
        # Memory may contain unsealed messages of these ledgers.
        waiting = self._tracked.present.count_ledgers(*new.key)
        bucket = new.bucket(bucket_id, loaded=loaded, waiting=waiting)
        bucket.own = True
        self.buckets.add(bucket)
        if loaded:
            # Copy, because a slice would keep the complete columns alive.
            self.loaded.add_sorted(Indexes(*(column.copy() for column in new.snapshot.segment(1))))
        self.sealed_up_to = max(new.key.last_ledger, self.sealed_up_to or 0)

    # -- loading ------------------------------------------------------------------------------------------------------

    def load_next(self, bucket: Bucket) -> None:
        """Load the next segment of a bucket; rebuild the bucket from the topic if it is unreadable."""
        number = bucket.loaded + 1
        try:
            indexes = self.store.load(bucket, number)
        except GONE as error:
            self._rebuild_damaged(bucket, f"segment {number} of bucket {bucket.name} cannot be read: {error}")
            return
        self.buckets.loaded(bucket)
        # A snapshot of this tracker contains no stale rows unless messages were cancelled or moved since.
        all_valid = bucket.own and not self._tracked.may_have_stale_rows
        self._tracked.may_have_duplicate_rows |= not bucket.own
        valid = indexes if all_valid else self._tracked.filter_valid(indexes)
        # Snapshots of another writer may be in any order.
        ordered = bucket.own or bool((valid.timestamps[1:] >= valid.timestamps[:-1]).all())
        if ordered:
            self.loaded.add_sorted(valid)
        else:
            self.loaded.add_many(*valid)

    def peek_segments(self, first: int | None, last: int | None) -> list[Indexes]:
        """Read unloaded segments with times from ``first`` to ``last``, without loading them.

        A damaged bucket is rebuilt from the topic, and then read.
        """
        found: list[Indexes] = []
        for bucket in self.buckets:
            try:
                found += self._peek_segments(bucket, first, last)
            except GONE as error:
                self._rebuild_damaged(bucket, f"bucket {bucket.name} cannot be read: {error}")
                # The replacement is not rebuilt a second time, but loaded into memory.
                return self.peek_segments(first, last)
        return found

    def _peek_segments(self, bucket: Bucket, first: int | None, last: int | None) -> list[Indexes]:
        return [
            indexes
            for number in range(bucket.loaded, bucket.segments)
            if (last is None or bucket.first_times[number] <= last)
            and (first is None or bucket.last_times[number] >= first)
            for indexes in self.store.read(bucket, number + 1, number + 1)
        ]

    # -- damage -------------------------------------------------------------------------------------------------------

    def _rebuild_damaged(self, bucket: Bucket, problem: str) -> None:
        """Rebuild a damaged bucket from the topic and seal it, or load it if it was rebuilt before."""
        found = self._read_topic_with_retries(bucket.key)
        self._tracked.may_have_duplicate_rows = True
        self._report(problem)
        self.buckets.remove(bucket)
        for indexes in found:
            self.loaded.add_many(*self._tracked.filter_valid(indexes))
        # The times of messages that the topic no longer contains are lost.
        known = self._loaded_within(bucket.key)
        self._tracked.present.discard_ledgers(*bucket.key)
        self._tracked.present.add_many(known.ledger_ids, known.entry_ids)
        to_delete = {bucket.name: bucket.bucket_id}
        if bucket.bucket_id in self._rebuilt:
            self.store.delete_or_defer(to_delete)
        else:
            self._replace_lost([bucket.key], to_delete)

    def _replace_lost(self, keys: Iterable[BucketKey], to_delete: Deletions, *, delete_orphans: bool = False) -> None:
        """Seal the loaded messages of lost buckets, and delete those buckets in the same commit.

        If that fails, the messages stay in memory and the deletion is pending. Without ``rebuild`` they also stay in
        memory, because the topic cannot confirm that they are complete.
        """
        found = [] if self._rebuild is None else [(key, distinct(self._loaded_within(key))) for key in keys]
        created = [self._sealed(key, indexes, 0) for key, indexes in found if indexes.size]
        try:
            ids = self.store.replace(to_delete, created, delete_orphans=delete_orphans)
        except TRANSIENT_ERRORS as error:
            logger().warning("buckets %s could not be replaced: %s", ", ".join(to_delete), error)
            self.store.pending_deletions.update(to_delete)
            return
        for new, bucket_id in zip(created, ids, strict=True):
            self._rebuilt.add(bucket_id)
            self._unload(new.snapshot.indexes)
            self._register(new, bucket_id, loaded=1)

    # -- deletion -----------------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Delete the buckets before the mark-delete position; log transient errors."""
        passed = self.buckets.below(self._registry.mark_delete().ledger_id)
        if passed and self._remove(passed):
            self._tracked.may_have_stale_rows = True
            for bucket in passed:
                self._tracked.present.discard_ledgers(*bucket.key)

    def remove_empty(self) -> None:
        """Delete the buckets without tracked messages; log transient errors."""
        empty = [bucket for bucket in self.buckets.maybe_empty() if bucket.waiting <= 0]
        if empty:
            self._remove(empty)

    def _remove(self, buckets: Sequence[Bucket]) -> bool:
        if not self.store.try_delete({bucket.name: bucket.bucket_id for bucket in buckets}):
            return False
        for bucket in buckets:
            self.buckets.remove(bucket)
        return True

    def delete_all(self) -> None:
        """Delete all snapshots and times of rescheduled messages in one commit, but not the state in memory."""
        to_delete = {bucket.name: bucket.bucket_id for bucket in self.buckets}
        rescheduled = self._tracked.rescheduled
        if to_delete or self.store.pending_deletions or rescheduled.is_stored:
            self.store.delete(to_delete, rescheduled.delete_in)

    def clear(self) -> None:
        self.loaded.clear()
        self.buckets.clear()
