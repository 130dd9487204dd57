"""Delivery of sealed buckets: loads segments shortly before they are due, and pops due messages in order of time.

A segment that cannot be loaded is tried again by the next call, and an alarm is set for a retry.
"""

from __future__ import annotations

import numpy as np

from bookstand.delivery.retry import TRANSIENT_ERRORS
from bookstand.delivery.tracker.bucket.bucket_list import Bucket
from bookstand.delivery.tracker.bucket.immutable import SealedBuckets
from bookstand.delivery.tracker.bucket.membership import WaitingSet
from bookstand.delivery.tracker.bucket.registry import BucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate
from bookstand.delivery.tracker.due_cutoff import DueCutoff
from bookstand.delivery.tracker.protocol import LARGEST
from bookstand.storage.logger import logger

# A segment that begins within this many ticks is loaded ahead, one per call.
_LOAD_AHEAD_TICKS = 5


class SegmentLoader:
    """Loader of sealed buckets. Not thread-safe: callers hold the tracker's lock."""

    def __init__(self, registry: BucketRegistry, cutoff: DueCutoff, tracked: WaitingSet, sealed: SealedBuckets) -> None:
        self._registry = registry
        self._cutoff = cutoff
        self._tracked = tracked
        self._sealed = sealed
        self.retry_at: int | None = None
        """Time to retry the load of a due segment; None if no load failed."""

    def pop(self, cutoff: int, limit: int | None) -> Indexes:
        """Remove up to ``limit`` due messages, the earliest first; without a limit all, in any order."""
        sealed = self._sealed
        horizon = self._registry.mark_delete().ledger_id
        found: list[Indexes] = []
        remaining = limit
        load_failed = False
        while remaining is None or remaining > 0:
            load_failed = not self._load_due(cutoff, remaining)
            bucket = sealed.buckets.next_to_load
            # Segments on disk come before later messages in memory.
            next_time = None if bucket is None else bucket.next_time
            until = cutoff if next_time is None else min(cutoff, next_time - 1)
            due = sealed.loaded.pop_due(until, remaining)
            if not due.size:
                break
            valid = self._untrack(due)
            before_horizon = valid.ledger_ids < horizon
            if np.count_nonzero(before_horizon):
                valid = Indexes(*(column[~before_horizon] for column in valid))
            found.append(valid)
            # After a failed load, return the messages found so far instead of retrying immediately.
            if remaining is None or load_failed:
                break
            remaining -= valid.size
        sealed.remove_empty()
        if not load_failed:
            self._load_ahead(cutoff)
            if remaining != 0 and self._drop_passed(horizon):
                sealed.remove_empty()
        if not found:
            return Indexes.of((), (), ())
        # Copy even a single part, because the columns in memory must not be shared.
        return concatenate(found)

    def _untrack(self, due: Indexes) -> Indexes:
        """Stop tracking due messages that were removed from memory; return the valid rows."""
        valid = self._tracked.take(due)
        self._sealed.buckets.remove_messages(valid.ledger_ids)
        return valid

    def _drop_passed(self, horizon: int) -> bool:
        """Drop the next messages, even if not due, while their ledger is before ``horizon``; return True if any."""
        bucket = self._sealed.buckets.next_to_load
        loaded = self._sealed.loaded
        until = LARGEST if bucket is None or bucket.next_time is None else bucket.next_time
        dropped = False
        while (time := loaded.next_time()) is not None and time <= until:
            if loaded.lowest_ledger_of_first_time() >= horizon:
                break
            first = loaded.pop_due(time)
            before_horizon = first.ledger_ids < horizon
            self._untrack(Indexes(*(column[before_horizon] for column in first)))
            loaded.add_many(*(column[~before_horizon] for column in first))
            dropped = True
        return dropped

    def load_next(self, bucket: Bucket) -> bool:
        """Load the next segment; return False on a transient error."""
        try:
            self._sealed.load_next(bucket)
        except TRANSIENT_ERRORS as error:
            logger().warning("bucket %s could not be loaded: %s", bucket.name, error)
            if bucket.next_time is not None and bucket.next_time <= self._cutoff.time:
                self.retry_at = self._cutoff.now + self._cutoff.tick
            return False
        self.retry_at = None
        return True

    def _load_due(self, cutoff: int, amount: int | None) -> bool:
        """Load the segments that may contain the first due messages; return False on a transient error."""
        while (bucket := self._sealed.buckets.next_to_load) is not None:
            next_time = bucket.next_time
            if next_time is None or next_time > cutoff:
                break
            if amount is not None and self._sealed.loaded.has_at_least(next_time - 1, amount):
                break
            if not self.load_next(bucket):
                return False
        return True

    def _load_ahead(self, cutoff: int) -> None:
        bucket = self._sealed.buckets.next_to_load
        ahead = cutoff + _LOAD_AHEAD_TICKS * self._cutoff.tick
        # Due segments are loaded when messages are requested.
        if bucket is not None and bucket.next_time is not None and cutoff < bucket.next_time <= ahead:
            self.load_next(bucket)
