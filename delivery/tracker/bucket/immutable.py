"""The buckets that were sealed: on the disk as snapshots, and in memory as far as they were loaded.

A snapshot is in a ledger of its own, cut into segments by time. A bucket comes and goes with the cursor's property that
names it, in one commit; where there would be too many, adjacent ones become one. What came too late to be in a bucket
of its ledger, or was given another time, stands among what was loaded.
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
from bookstand.delivery.tracker.bucket.store import BucketStore, Doomed, NewBucket
from bookstand.delivery.tracker.bucket.time_sorted import TimeSortedBuffer
from bookstand.delivery.tracker.protocol import Column
from bookstand.errors import MalformedRecordError
from bookstand.storage.logger import logger


class SealedBuckets:
    """Not safe between threads: its tracker has a lock. What waits of a bucket stands in ``loaded``, or in one of its
    segments that is not loaded, and only there; ``rebuild`` reads from the topic what a damaged one should have told.

    Errors of kinds that may pass are raised, and then all is as it was, unless it says otherwise.
    """

    def __init__(
        self,
        home: BucketRegistry,
        ledgers: BucketStore,
        config: DelayedDeliveryConfig,
        tracked: WaitingSet,
        rebuild: Reader | None,
    ) -> None:
        self._home = home
        self.config = config
        self._tracked = tracked
        self._rebuild = rebuild
        # Snapshots that took the place of damaged ones.
        self._rebuilt: set[int] = set()
        self.ledgers = ledgers
        self.buckets = Buckets()
        self.loaded = TimeSortedBuffer()
        self.problems: list[str] = []
        self.sealed_up_to: int | None = None
        """The last ledger whose messages need not be read again after a restart."""

    # -- beginning ---------------------------------------------------------------------------------------------------

    def recover(self, cutoff: int) -> None:
        """What is stored. Of what is damaged the topic tells; of that, what is due by now is not tracked any more."""
        found = self.ledgers.recover(cutoff)
        for bucket, bitmaps in found.buckets:
            bucket.waiting = 0
            for ledger_id, bitmap in bitmaps.items():
                left = self._unacknowledged(ledger_id, bitmap)
                # The segments have the acknowledged messages still.
                self._tracked.may_be_dead |= len(left) < len(bitmap)
                self._tracked.present.add_bitmap(ledger_id, left)
                bucket.waiting += len(left)
            self.buckets.add(bucket)
            # All of its messages may be acknowledged.
            self.buckets.left(bucket, 0)
            self.sealed_up_to = bucket.key.last_ledger
        if found.problems:
            self._report(*found.problems)
        lost: list[BucketKey] = []
        for key in found.lost:
            for indexes in self._told_by_topic(key):
                later = indexes.timestamps > cutoff
                self._add_untracked(*(column[later] for column in indexes))
            lost += subtract_ranges(key, [*(bucket.key for bucket in self.buckets), *lost])
        self._take_over_rescheduled()
        if found.doomed:
            self._seal_told(lost, found.doomed, sweep=bool(found.problems))
        self.trim()
        self.remove_emptied()

    def _unacknowledged(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """Entries that may still be delivered; all, if the acknowledgments of the ledger cannot be read."""
        try:
            return self._home.unacknowledged(ledger_id, entry_ids)
        except GONE as error:
            self._report(f"acknowledgments of ledger {ledger_id} cannot be read, its messages stay delayed: {error}")
            return entry_ids

    def _take_over_rescheduled(self) -> None:
        """What was given another time before."""
        rescheduled = self._tracked.rescheduled
        try:
            with_retries(rescheduled.load)
        except (*GONE, MalformedRecordError) as error:
            self._report(f"the times that messages were given are lost, those that they say are taken: {error}")
            return
        passed = self._home.mark_delete()
        for position, time in rescheduled.times.items():
            ledger_id, entry_id = position
            if position > passed and self._unacknowledged(ledger_id, BitMap64([entry_id])):
                self.put(position, time)

    def _report(self, *problems: str) -> None:
        self.problems += problems
        for problem in problems:
            logger().warning("topic %s, cursor %s: %s", self._home.topic, self._home.cursor, problem)

    def _told_by_topic(self, key: BucketKey) -> list[Indexes]:
        """The delayed messages of a range of ledgers."""
        return with_retries(lambda: self._read_topic(key))

    def _read_topic(self, key: BucketKey) -> list[Indexes]:
        """What cannot be read, now or later, is passed over."""
        found: list[Indexes] = []
        try:
            found.extend(() if self._rebuild is None else self._rebuild(*key))
        except GONE as error:
            self._report(f"the topic does not tell all of ledgers {key.first_ledger} to {key.last_ledger}: {error}")
        return found

    def _add_untracked(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """Have in memory what is not tracked yet."""
        present = self._tracked.present
        self._tracked.may_be_twice = True
        fresh = ~present.contains_many(ledger_ids, entry_ids)
        for ledger_id in np.unique(ledger_ids).tolist():
            here = np.flatnonzero(ledger_ids == ledger_id)
            left = self._unacknowledged(ledger_id, BitMap64(entry_ids[here].tolist()))
            fresh[here] &= [entry_id in left for entry_id in entry_ids[here].tolist()]
        times, ledger_ids, entry_ids = times[fresh], ledger_ids[fresh], entry_ids[fresh]
        present.add_many(ledger_ids, entry_ids)
        self.add_late(times, ledger_ids, entry_ids)

    # -- messages that come and go -----------------------------------------------------------------------------------

    def add_late(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """Tracked messages that are in no snapshot, of ledgers with a bucket or without."""
        self.buckets.join(ledger_ids)
        self.loaded.add_many(times, ledger_ids, entry_ids)

    def add_one_late(self, time: int, ledger_id: int, entry_id: int) -> None:
        """The same for one."""
        self._joined(ledger_id)
        self.loaded.add(time, ledger_id, entry_id)

    def put(self, position: tuple[int, int], time: int) -> None:
        """A message waits for this time, and for no other that it stands under."""
        ledger_id, entry_id = position
        if self._tracked.move(position, time):
            self._joined(ledger_id)
        self.loaded.add(time, ledger_id, entry_id)

    def _joined(self, ledger_id: int) -> None:
        bucket = self.buckets.covering(ledger_id)
        if bucket is not None:
            bucket.waiting += 1

    def forgotten(self, ledger_id: int) -> None:
        """A message of this ledger waits no more."""
        bucket = self.buckets.covering(ledger_id)
        if bucket is not None:
            self.buckets.left(bucket, 1)

    # -- sealing and merging -----------------------------------------------------------------------------------------

    def add(self, key: BucketKey, indexes: Indexes) -> bool:
        """Seal a bucket, and merge others so that the limit holds: one commit, preceded by one for each further block
        where several have to be merged. Return False if a bucket to be merged cannot be read: it has been given up,
        and the caller tries again."""
        new = self._sealed(key, indexes, 0)
        blocks = self._blocks_to_merge(new)
        # The last block is merged in the commit of the seal; the new bucket cannot be in an earlier one.
        blocks.sort(key=lambda block: new in block)
        for block in blocks[:-1]:
            if not self._store(None, block):
                return False
        return self._store(new, blocks[-1] if blocks else [])

    def _sealed(self, key: BucketKey, indexes: Indexes, generation: int) -> NewBucket:
        config = self.config
        snapshot = seal(indexes, config.time_step_millis, config.most_in_segment, self.ledgers.entry_limit)
        return NewBucket(key, snapshot, generation)

    def _blocks_to_merge(self, new: NewBucket) -> list[list[Bucket | NewBucket]]:
        """Blocks of adjacent buckets that are to become one bucket each, so that the new one does not exceed the
        limit."""
        most = self.config.delayed_delivery_max_num_buckets
        if not 0 < most <= len(self.buckets):
            return []
        places: list[Bucket | NewBucket] = sorted([*self.buckets, new], key=lambda bucket: bucket.key)
        runs = [MergeCandidate(bucket.waiting, bucket.next_time, bucket.generation) for bucket in places]
        blocks = blocks_to_merge(runs, most, self.config.delayed_delivery_merge_policy)
        return [places[start:end] for start, end in blocks]

    def _read_block(self, block: Sequence[Bucket | NewBucket]) -> Indexes | None:
        """Delayed messages in the buckets of a block; None if one of them cannot be read and has been given up.

        Segments that are not loaded are on the disk; the rest is in memory, with what came late. A message that was
        loaded and delivered may be delayed again, until another time than the snapshot has."""
        found: list[Indexes] = []
        complete = True
        for bucket in block:
            if isinstance(bucket, NewBucket):
                found.append(bucket.snapshot.indexes)
                continue
            # The snapshots of another writer may have a position twice.
            self._tracked.may_be_twice |= not bucket.own
            try:
                if bucket.next_time is not None:
                    found += self.ledgers.read(bucket, bucket.loaded + 1, bucket.segments)
            except GONE as error:
                self._give_up(bucket, f"bucket {bucket.name} cannot be read: {error}")
                complete = False
        if not complete:
            return None
        keys = [bucket.key for bucket in block if isinstance(bucket, Bucket)]
        found.append(self._loaded_within(*keys))
        return distinct(self._tracked.still_waiting(concatenate(found)))

    def _loaded_within(self, *keys: BucketKey) -> Indexes:
        """Delayed messages in memory that are of these ranges of ledgers."""
        loaded = self._tracked.still_waiting(self.loaded.everything())
        within = np.zeros(loaded.size, dtype=np.bool_)
        for key in keys:
            within |= (loaded.ledger_ids >= key.first_ledger) & (loaded.ledger_ids <= key.last_ledger)
        return Indexes(*(column[within] for column in loaded))

    def _store(self, new: NewBucket | None, block: Sequence[Bucket | NewBucket]) -> bool:
        """Create the new bucket, beside the others or as a part of the merged one, and delete what was merged. Return
        False, having stored nothing, if a bucket of the block cannot be read."""
        doomed = [bucket for bucket in block if isinstance(bucket, Bucket)]
        created = [] if new is None or new in block else [new]
        merged: Indexes | None = None
        if block:
            merged = self._read_block(block)
            if merged is None:
                return False
        # If every message to be merged is cancelled, nothing is left to store.
        if merged is not None and merged.size:
            key = BucketKey(block[0].key.first_ledger, block[-1].key.last_ledger)
            created.append(self._sealed(key, merged, max(bucket.generation for bucket in block) + 1))
        gone = {bucket.name: bucket.bucket_id for bucket in doomed}
        ids = self.ledgers.replace(gone, created, merging=merged is not None)
        for bucket in doomed:
            self.buckets.remove(bucket)
        if merged is not None:
            self._unload(merged)
        for one, bucket_id in zip(created, ids, strict=True):
            self._begin_with(one, bucket_id, loaded=int(one is new))
        return True

    def _unload(self, indexes: Indexes) -> None:
        """What is in a snapshot that is to be loaded is not in memory as well."""
        sealed = PositionSet()
        sealed.add_many(indexes.ledger_ids, indexes.entry_ids)
        loaded = self.loaded.everything()
        kept = ~sealed.contains_many(loaded.ledger_ids, loaded.entry_ids)
        if not kept.all():
            self.loaded.clear()
            self.loaded.add_many(*(column[kept] for column in loaded))

    def _begin_with(self, new: NewBucket, bucket_id: int, loaded: int) -> None:
        """A bucket was stored; its first segment is loaded, or none."""
        # Of the ledgers something may be in memory that came too late to be sealed.
        waiting = self._tracked.present.count_ledgers(*new.key)
        bucket = new.bucket(bucket_id, loaded=loaded, waiting=waiting)
        bucket.own = True
        self.buckets.add(bucket)
        if loaded:
            # By itself: a part of all columns would keep all of them.
            self.loaded.add_sorted(Indexes(*(column.copy() for column in new.snapshot.segment(1))))
        self.sealed_up_to = max(new.key.last_ledger, self.sealed_up_to or 0)

    # -- loading -----------------------------------------------------------------------------------------------------

    def load_next(self, bucket: Bucket) -> None:
        """Load the next segment of a bucket. Of one that is lost the topic tells."""
        number = bucket.loaded + 1
        try:
            indexes = self.ledgers.load(bucket, number)
        except GONE as error:
            self._give_up(bucket, f"segment {number} of bucket {bucket.name} cannot be read: {error}")
            return
        self.buckets.loaded(bucket)
        # What this tracker sealed waits until it is loaded, unless somebody said otherwise.
        sure = bucket.own and not self._tracked.may_be_dead
        self._tracked.may_be_twice |= not bucket.own
        waiting = indexes if sure else self._tracked.still_waiting(indexes)
        # Somebody else may have written them in any order.
        ordered = bucket.own or bool((waiting.timestamps[1:] >= waiting.timestamps[:-1]).all())
        if ordered:
            self.loaded.add_sorted(waiting)
        else:
            self.loaded.add_many(*waiting)

    def read_unloaded(self, first: int | None, last: int | None) -> list[Indexes]:
        """Read segments that are not loaded and have times from ``first`` to ``last``, without loading them. A bucket
        with a damaged segment is given up, and its messages are loaded instead."""
        found: list[Indexes] = []
        for bucket in self.buckets:
            try:
                found += self._read_unloaded(bucket, first, last)
            except GONE as error:
                self._give_up(bucket, f"bucket {bucket.name} cannot be read: {error}")
                # The bucket that replaces it is not given up a second time, but loaded into memory.
                return self.read_unloaded(first, last)
        return found

    def _read_unloaded(self, bucket: Bucket, first: int | None, last: int | None) -> list[Indexes]:
        return [
            indexes
            for number in range(bucket.loaded, bucket.segments)
            if (last is None or bucket.first_times[number] <= last)
            and (first is None or bucket.last_times[number] >= first)
            for indexes in self.ledgers.read(bucket, number + 1, number + 1)
        ]

    # -- what is lost ------------------------------------------------------------------------------------------------

    def _give_up(self, bucket: Bucket, problem: str) -> None:
        """What waits of a bucket that cannot be read is that of which the topic tells. It is sealed again; but what was
        so before, and cannot be read either, is in memory from now on."""
        told = self._told_by_topic(bucket.key)
        self._tracked.may_be_twice = True
        self._report(problem)
        self.buckets.remove(bucket)
        for indexes in told:
            self.loaded.add_many(*self._tracked.still_waiting(indexes))
        # Of the rest nobody knows when it was due.
        known = self._loaded_within(bucket.key)
        self._tracked.present.discard_ledgers(*bucket.key)
        self._tracked.present.add_many(known.ledger_ids, known.entry_ids)
        doomed = {bucket.name: bucket.bucket_id}
        if bucket.bucket_id in self._rebuilt:
            self.ledgers.remove_at_some_time(doomed)
        else:
            self._seal_told([bucket.key], doomed)

    def _seal_told(self, keys: Iterable[BucketKey], doomed: Doomed, *, sweep: bool = False) -> None:
        """What is in memory of these ranges is sealed, in the commit in which those go that should have told of it.
        Where that cannot be done now it stays in memory, and they go some time; and it stays there where there is no
        topic to tell all of it."""
        told = [] if self._rebuild is None else [(key, distinct(self._loaded_within(key))) for key in keys]
        created = [self._sealed(key, indexes, 0) for key, indexes in told if indexes.size]
        try:
            ids = self.ledgers.replace(doomed, created, sweep=sweep)
        except TRANSIENT_ERRORS as error:
            logger().warning("buckets %s could not be replaced: %s", ", ".join(doomed), error)
            self.ledgers.left_over.update(doomed)
            return
        for new, bucket_id in zip(created, ids, strict=True):
            self._rebuilt.add(bucket_id)
            self._unload(new.snapshot.indexes)
            self._begin_with(new, bucket_id, loaded=1)

    # -- removing ----------------------------------------------------------------------------------------------------

    def trim(self) -> None:
        """Remove the buckets that the mark-delete position has passed, if that can be done now."""
        passed = self.buckets.below(self._home.mark_delete().ledger_id)
        if passed and self._remove(passed):
            self._tracked.may_be_dead = True
            for bucket in passed:
                self._tracked.present.discard_ledgers(*bucket.key)

    def remove_emptied(self) -> None:
        """The same of those in which nothing waits."""
        emptied = [bucket for bucket in self.buckets.maybe_emptied() if bucket.waiting <= 0]
        if emptied:
            self._remove(emptied)

    def _remove(self, buckets: Sequence[Bucket]) -> bool:
        if not self.ledgers.remove({bucket.name: bucket.bucket_id for bucket in buckets}):
            return False
        for bucket in buckets:
            self.buckets.remove(bucket)
        return True

    def delete_all(self) -> None:
        """Delete all snapshots, and the times that messages were given: in one commit. In memory all is as it was."""
        doomed = {bucket.name: bucket.bucket_id for bucket in self.buckets}
        rescheduled = self._tracked.rescheduled
        if doomed or self.ledgers.left_over or rescheduled.is_stored:
            self.ledgers.delete(doomed, rescheduled.delete_in)

    def clear(self) -> None:
        """In memory; what is on the disk stays there."""
        self.loaded.clear()
        self.buckets.clear()
