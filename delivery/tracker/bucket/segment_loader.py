"""What is due of the sealed buckets: their segments are loaded when they are nearly due, and given out in time's order.

A segment that cannot be loaded now stays where it is; who asks next tries again, and somebody is told to.
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

# A segment that begins within so many ticks is loaded before it is due, one with each call.
_AHEAD_TICKS = 5


class SegmentLoader:
    """Not safe between threads: its tracker has a lock."""

    def __init__(self, home: BucketRegistry, cutoff: DueCutoff, tracked: WaitingSet, sealed: SealedBuckets) -> None:
        self._home = home
        self._cutoff = cutoff
        self._tracked = tracked
        self._sealed = sealed
        self.try_again_at: int | None = None
        """When to try again to load what is due and could not be; None: there is no such thing."""

    def pop(self, cutoff: int, limit: int | None) -> Indexes:
        """Remove up to ``limit`` due messages, the earliest first; without a limit all, in any order."""
        sealed = self._sealed
        horizon = self._home.mark_delete().ledger_id
        found: list[Indexes] = []
        missing = limit
        stuck = False
        while missing is None or missing > 0:
            stuck = not self._load_due(cutoff, missing)
            bucket = sealed.buckets.next_to_load
            # What is on the disk comes before what is in memory and later.
            next_time = None if bucket is None else bucket.next_time
            until = cutoff if next_time is None else min(cutoff, next_time - 1)
            due = sealed.loaded.pop_due(until, missing)
            if not due.size:
                break
            taken = self._taken(due)
            passed = taken.ledger_ids < horizon
            if np.count_nonzero(passed):
                taken = Indexes(*(column[~passed] for column in taken))
            found.append(taken)
            # What could not be loaded is not tried again at once.
            if missing is None or stuck:
                break
            missing -= taken.size
        sealed.remove_emptied()
        if not stuck:
            self._load_ahead(cutoff)
            if missing != 0 and self._drop_passed(horizon):
                sealed.remove_emptied()
        if not found:
            return Indexes.of((), (), ())
        # A copy even of a single part: the columns in memory must not be shared.
        return concatenate(found)

    def _taken(self, due: Indexes) -> Indexes:
        """Stop tracking what left memory because it is due; returns the part of it that was tracked."""
        taken = self._tracked.take(due)
        self._sealed.buckets.leave(taken.ledger_ids)
        return taken

    def _drop_passed(self, horizon: int) -> bool:
        """What comes next, and is of a ledger that the cursor has passed, needs not be due to go; of what comes at the
        same time it is the first. Whether there was some."""
        bucket = self._sealed.buckets.next_to_load
        loaded = self._sealed.loaded
        until = LARGEST if bucket is None or bucket.next_time is None else bucket.next_time
        dropped = False
        while (time := loaded.next_time()) is not None and time <= until:
            if loaded.lowest_of_first_time() >= horizon:
                break
            first = loaded.pop_due(time)
            passed = first.ledger_ids < horizon
            self._taken(Indexes(*(column[passed] for column in first)))
            loaded.add_many(*(column[~passed] for column in first))
            dropped = True
        return dropped

    # -- loading -----------------------------------------------------------------------------------------------------

    def load_next(self, bucket: Bucket) -> bool:
        """Load the next segment; False if that cannot be done now."""
        try:
            self._sealed.load_next(bucket)
        except TRANSIENT_ERRORS as error:
            logger().warning("bucket %s could not be loaded: %s", bucket.name, error)
            if bucket.next_time is not None and bucket.next_time <= self._cutoff.time:
                self.try_again_at = self._cutoff.now + self._cutoff.tick
            return False
        self.try_again_at = None
        return True

    def _load_due(self, cutoff: int, amount: int | None) -> bool:
        """Load what may be among the first that are due; False if that cannot be done now."""
        while (bucket := self._sealed.buckets.next_to_load) is not None:
            next_time = bucket.next_time
            if next_time is None or next_time > cutoff:
                break
            if amount is not None and self._sealed.loaded.has(next_time - 1, amount):
                break
            if not self.load_next(bucket):
                return False
        return True

    def _load_ahead(self, cutoff: int) -> None:
        bucket = self._sealed.buckets.next_to_load
        ahead = cutoff + _AHEAD_TICKS * self._cutoff.tick
        # What is due by now is loaded when there is room for it among what is asked for.
        if bucket is not None and bucket.next_time is not None and cutoff < bucket.next_time <= ahead:
            self.load_next(bucket)
