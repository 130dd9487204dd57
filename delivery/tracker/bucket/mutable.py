"""The bucket that what comes in goes to, as long as it is of the newest ledgers. It is in memory alone.

Once it has enough, and a message of a newer ledger comes, it is sealed. What is of a ledger that was sealed, or is out
of order, goes to the sealed ones instead.
"""

from __future__ import annotations

import numpy as np

from bookstand.delivery.retry import TRANSIENT_ERRORS
from bookstand.delivery.tracker.bucket.immutable import SealedBuckets
from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.delivery.tracker.bucket.membership import WaitingSet
from bookstand.delivery.tracker.bucket.registry import BucketRegistry
from bookstand.delivery.tracker.bucket.time_sorted import TimeSortedBuffer
from bookstand.delivery.tracker.protocol import Column
from bookstand.delivery.tracker.scheduled import first_of_each
from bookstand.storage.logger import logger


class MutableBucket:
    """Not safe between threads: its tracker has a lock. ``least``: so many are enough for a snapshot."""

    def __init__(self, home: BucketRegistry, least: int, tracked: WaitingSet, sealed: SealedBuckets) -> None:
        self._home = home
        self._least = least
        self._tracked = tracked
        self._sealed = sealed
        self.runs = TimeSortedBuffer()
        # The first ledger and the highest of what came since it was sealed last; None: nothing came.
        self._ledgers: tuple[int, int] | None = None
        self._seal_from = least

    def change_least(self, least: int) -> None:
        """Seal from this many messages on."""
        self._least = self._seal_from = least

    def __len__(self) -> int:
        return len(self.runs)

    # -- what comes in -----------------------------------------------------------------------------------------------

    def add(self, time: int, ledger_id: int, entry_id: int) -> None:
        """A message that does not wait yet."""
        buckets = self._sealed.buckets
        bucket = buckets.covering(ledger_id)
        if bucket is None and self._make_way_for(ledger_id):
            # One that was merged may reach beyond it.
            bucket = buckets.covering(ledger_id)
        self._tracked.add(ledger_id, entry_id, time)
        if bucket is None and (self._ledgers is None or ledger_id >= self._ledgers[1]):
            first = ledger_id if self._ledgers is None else self._ledgers[0]
            self._ledgers = first, ledger_id
            self.runs.add(time, ledger_id, entry_id)
        else:
            # Of a ledger that was sealed, or out of order.
            self._sealed.add_one_late(time, ledger_id, entry_id)

    def _make_way_for(self, ledger_id: int) -> bool:
        """Before a message comes of a ledger in no bucket. Whether that is a newer ledger: then the mutable bucket may
        have ended with those that it had.

        Where a sealed bucket follows it, it does, however small it is: ranges of ledgers do not overlap.
        """
        if self._ledgers is None or ledger_id <= self._ledgers[1]:
            return False
        if len(self.runs) >= self._seal_from:
            self._seal()
        if self._ledgers is not None and self._sealed.buckets.lies_between(self._ledgers[1], ledger_id):
            self._sealed.loaded.add_many(*self.runs.everything())
            # In memory is not sealed.
            self.clear()
        return True

    def add_many(self, times: Column, ledger_ids: Column, entry_ids: Column) -> int | None:
        """Messages in the order in which they come, some of which may wait already; returns the earliest time of the
        others."""
        if not len(times):
            return None
        if self._add_at_end(times, ledger_ids, entry_ids):
            return int(times.min())
        fresh = np.flatnonzero(~self._tracked.present.contains_many(ledger_ids, entry_ids))
        fresh = fresh[first_of_each(ledger_ids[fresh], entry_ids[fresh])]
        times, ledger_ids, entry_ids = times[fresh], ledger_ids[fresh], entry_ids[fresh]
        earliest = int(times.min()) if len(times) else None
        self._tracked.remember(times, ledger_ids, entry_ids)
        while len(times):
            taken = self._add_until_sealed(times, ledger_ids, entry_ids)
            times, ledger_ids, entry_ids = times[taken:], ledger_ids[taken:], entry_ids[taken:]
        return earliest

    def _add_at_end(self, times: Column, ledger_ids: Column, entry_ids: Column) -> bool:
        """Add what comes in the order of the topic and has nothing sealed for it, which nearly all does; False, and
        nothing is added, if it is not of that kind."""
        first, last = int(ledger_ids[0]), int(ledger_ids[-1])
        begin, highest = self._ledgers or (first, first)
        if self._tracked.any_forgotten or first < highest or first <= self._sealed.buckets.last_ledger:
            return False
        if last > highest and len(self.runs) + len(times) > self._seal_from:
            return False
        next_ledgers, ledger_ids_before = ledger_ids[1:], ledger_ids[:-1]
        ascends = (next_ledgers == ledger_ids_before) & (entry_ids[1:] > entry_ids[:-1])
        ascends |= next_ledgers > ledger_ids_before
        if not ascends.all() or not self._tracked.present.add_new(ledger_ids, entry_ids):
            return False
        self._ledgers = begin, last
        # They are the caller's.
        self.runs.add_many(times.copy(), ledger_ids.copy(), entry_ids.copy())
        return True

    def _add_until_sealed(self, times: Column, ledger_ids: Column, entry_ids: Column) -> int:
        """Add messages in their order up to where a bucket is to be sealed first; returns how many."""
        buckets = self._sealed.buckets
        if buckets.covering(int(ledger_ids[0])) is None:
            self._make_way_for(int(ledger_ids[0]))
        covered = buckets.places(ledger_ids) >= 0
        first, last = self._ledgers or (-1, -1)
        # The highest ledger of the mutable bucket when each of them comes.
        highest = np.maximum.accumulate(np.where(covered, last, ledger_ids))
        before = np.maximum(np.concatenate(([last], highest[:-1])), last)
        newest = ~covered & (ledger_ids >= before)
        in_mutable = len(self.runs) + np.concatenate(([0], np.cumsum(newest)[:-1]))
        complete = (in_mutable >= self._seal_from) | buckets.lie_between(before, ledger_ids)
        ends = np.flatnonzero(newest & (ledger_ids > before) & (before >= 0) & complete)
        count = int(ends[0]) if len(ends) else len(times)
        # Where the first is to be sealed for and was not, for lack of space, it goes to the bucket that there is.
        count = max(count, 1)
        mutable = newest[:count]
        self._tracked.present.add_many(ledger_ids[:count], entry_ids[:count])
        columns = times[:count], ledger_ids[:count], entry_ids[:count]
        if mutable.any():
            self.runs.add_many(*(column[mutable] for column in columns))
            ledgers = ledger_ids[:count][mutable]
            self._ledgers = first if first >= 0 else int(ledgers[0]), int(ledgers[-1])
        if not mutable.all():
            self._sealed.add_late(*(column[~mutable] for column in columns))
        return count

    # -- what goes ---------------------------------------------------------------------------------------------------

    def move_due(self, cutoff: int) -> None:
        """What is due is not sealed any more: it is about to be delivered."""
        self._sealed.loaded.add_many(*self.runs.pop_due(cutoff))

    def _seal(self) -> None:
        """Make it a snapshot. Where that fails all stays as it is, and is tried again once there is twice as much."""
        assert self._ledgers is not None
        key = BucketKey(*self._ledgers)
        self._sealed.trim()
        indexes = self.runs.everything()
        if self._tracked.may_be_dead:
            indexes = self._tracked.still_waiting(indexes)
        if not indexes.size or key.last_ledger < self._home.mark_delete().ledger_id:
            self._tracked.present.discard_many(indexes.ledger_ids, indexes.entry_ids)
            self._sealed.sealed_up_to = key.last_ledger
            self.clear()
            return
        try:
            added = self._sealed.add(key, indexes)
        except TRANSIENT_ERRORS as error:
            self._seal_from = 2 * len(self.runs)
            logger().warning("bucket %s could not be sealed: %s", key, error)
            return
        if added:
            self._sealed.sealed_up_to = key.last_ledger
            self.clear()
        else:
            self._seal()

    def clear(self) -> None:
        self.runs.clear()
        self._ledgers = None
        self._seal_from = self._least
