"""Mutable bucket: the unsealed messages of the newest ledgers, in memory only.

It is sealed when it is large enough and a message of a later ledger arrives. Messages that are out of order, or of a
ledger in a sealed bucket, are added to the sealed buckets.
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
    """Bucket that is sealed at ``min_size`` messages or more. Not thread-safe: callers hold the tracker's lock."""

    def __init__(self, registry: BucketRegistry, min_size: int, tracked: WaitingSet, sealed: SealedBuckets) -> None:
        self._registry = registry
        self._min_size = min_size
        self._tracked = tracked
        self._sealed = sealed
        self.rows = TimeSortedBuffer()
        # First and last ledger of the messages since the last seal; None if there are none.
        self._ledgers: tuple[int, int] | None = None
        self._seal_size = min_size

    def set_min_size(self, min_size: int) -> None:
        self._min_size = self._seal_size = min_size

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, time: int, ledger_id: int, entry_id: int) -> None:
        """Add a message that is not tracked yet."""
        buckets = self._sealed.buckets
        bucket = buckets.covering(ledger_id)
        if bucket is None and self._prepare_for(ledger_id):
            # A merge may have created a bucket that covers the ledger.
            bucket = buckets.covering(ledger_id)
        self._tracked.add(ledger_id, entry_id, time)
        if bucket is None and (self._ledgers is None or ledger_id >= self._ledgers[1]):
            first = ledger_id if self._ledgers is None else self._ledgers[0]
            self._ledgers = first, ledger_id
            self.rows.add(time, ledger_id, entry_id)
        else:
            # The ledger was sealed, or the message is out of order.
            self._sealed.add_one_unsealed(time, ledger_id, entry_id)

    def _prepare_for(self, ledger_id: int) -> bool:
        """Prepare for a message of a ledger that no bucket covers; return True if the ledger is the newest.

        Before a newer ledger, the mutable bucket is sealed if it is large enough. If a sealed bucket is between the
        ledgers, it is emptied in any case, because ledger ranges must not overlap.
        """
        if self._ledgers is None or ledger_id <= self._ledgers[1]:
            return False
        if len(self.rows) >= self._seal_size:
            self._seal()
        if self._ledgers is not None and self._sealed.buckets.has_bucket_between(self._ledgers[1], ledger_id):
            self._sealed.loaded.add_many(*self.rows.all_rows())
            # Messages in memory are not sealed, so ``sealed_up_to`` does not change.
            self.clear()
        return True

    def add_many(self, times: Column, ledger_ids: Column, entry_ids: Column) -> int | None:
        """Add messages in order, skipping tracked ones; return the earliest time added, or None."""
        if not len(times):
            return None
        if self._add_at_end(times, ledger_ids, entry_ids):
            return int(times.min())
        new_rows = np.flatnonzero(~self._tracked.present.contains_many(ledger_ids, entry_ids))
        new_rows = new_rows[first_of_each(ledger_ids[new_rows], entry_ids[new_rows])]
        times, ledger_ids, entry_ids = times[new_rows], ledger_ids[new_rows], entry_ids[new_rows]
        earliest = int(times.min()) if len(times) else None
        self._tracked.mark_added_again(times, ledger_ids, entry_ids)
        while len(times):
            added = self._add_until_sealed(times, ledger_ids, entry_ids)
            times, ledger_ids, entry_ids = times[added:], ledger_ids[added:], entry_ids[added:]
        return earliest

    def _add_at_end(self, times: Column, ledger_ids: Column, entry_ids: Column) -> bool:
        """Fast path: add new messages in topic order after all sealed ledgers; otherwise return False."""
        first, last = int(ledger_ids[0]), int(ledger_ids[-1])
        first_ledger, highest = self._ledgers or (first, first)
        if self._tracked.has_stale or first < highest or first <= self._sealed.buckets.last_ledger:
            return False
        if last > highest and len(self.rows) + len(times) > self._seal_size:
            return False
        next_ledgers, ledger_ids_before = ledger_ids[1:], ledger_ids[:-1]
        ascends = (next_ledgers == ledger_ids_before) & (entry_ids[1:] > entry_ids[:-1])
        ascends |= next_ledgers > ledger_ids_before
        if not ascends.all() or not self._tracked.present.add_new(ledger_ids, entry_ids):
            return False
        self._ledgers = first_ledger, last
        # Copy, because the caller owns the columns.
        self.rows.add_many(times.copy(), ledger_ids.copy(), entry_ids.copy())
        return True

    def _add_until_sealed(self, times: Column, ledger_ids: Column, entry_ids: Column) -> int:
        """Add messages up to the first one that requires a seal before it; return their number."""
        buckets = self._sealed.buckets
        if buckets.covering(int(ledger_ids[0])) is None:
            self._prepare_for(int(ledger_ids[0]))
        covered = buckets.places(ledger_ids) >= 0
        first, last = self._ledgers or (-1, -1)
        # Last ledger of the mutable bucket when each message is added.
        highest = np.maximum.accumulate(np.where(covered, last, ledger_ids))
        before = np.maximum(np.concatenate(([last], highest[:-1])), last)
        newest = ~covered & (ledger_ids >= before)
        in_mutable = len(self.rows) + np.concatenate(([0], np.cumsum(newest)[:-1]))
        seal_before = (in_mutable >= self._seal_size) | buckets.have_bucket_between(before, ledger_ids)
        ends = np.flatnonzero(newest & (ledger_ids > before) & (before >= 0) & seal_before)
        count = int(ends[0]) if len(ends) else len(times)
        # If the seal before the first message failed, that message is added to the unsealed bucket.
        count = max(count, 1)
        mutable = newest[:count]
        self._tracked.present.add_many(ledger_ids[:count], entry_ids[:count])
        columns = times[:count], ledger_ids[:count], entry_ids[:count]
        if mutable.any():
            self.rows.add_many(*(column[mutable] for column in columns))
            ledgers = ledger_ids[:count][mutable]
            self._ledgers = first if first >= 0 else int(ledgers[0]), int(ledgers[-1])
        if not mutable.all():
            self._sealed.add_unsealed(*(column[~mutable] for column in columns))
        return count

    def move_due(self, cutoff: int) -> None:
        """Move due messages to the loaded ones, so that they are not sealed shortly before delivery."""
        self._sealed.loaded.add_many(*self.rows.pop_due(cutoff))

    def _seal(self) -> None:
        """Seal the bucket. If that fails, try again when it has twice as many messages."""
        assert self._ledgers is not None
        key = BucketKey(*self._ledgers)
        self._sealed.trim()
        indexes = self.rows.all_rows()
        if self._tracked.may_have_stale_rows:
            indexes = self._tracked.filter_valid(indexes)
        if not indexes.size or key.last_ledger < self._registry.mark_delete().ledger_id:
            self._tracked.present.discard_many(indexes.ledger_ids, indexes.entry_ids)
            self._sealed.sealed_up_to = key.last_ledger
            self.clear()
            return
        try:
            added = self._sealed.add(key, indexes)
        except TRANSIENT_ERRORS as error:
            self._seal_size = 2 * len(self.rows)
            logger().warning("bucket %s could not be sealed: %s", key, error)
            return
        if added:
            self._sealed.sealed_up_to = key.last_ledger
            self.clear()
        else:
            self._seal()

    def clear(self) -> None:
        self.rows.clear()
        self._ledgers = None
        self._seal_size = self._min_size
