"""Tracker of delayed messages in buckets (PIP-195).

New messages go to the *mutable* bucket. When it is large enough, and a message of a later ledger arrives, it is sealed:
it becomes a snapshot in its own ledger, cut into segments by time. The first segment is loaded; the others stay on disk
until shortly before they are due. When there are too many buckets, adjacent ones are merged.

Three structures describe a message:

- ``membership.py``: one bit per tracked message. Only tracked messages are delivered; rows of others are stale.
- ``mutable.py`` and the loaded part of the sealed buckets: messages in memory, by time.
- ``immutable.py``: messages on disk, and how far they are loaded; ``segment_loader.py`` loads them.

A bucket is created and deleted in one commit with the cursor property that names it. The mutable bucket, and messages
added late for sealed ledgers, are in memory only. They are in the topic after the cursor's mark-delete position, so
they are read and added again after a restart. Closing therefore does not seal a bucket, which would be small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.retry import with_retries
from bookstand.delivery.timer import Timer, timer_for
from bookstand.delivery.tracker.bucket import metrics
from bookstand.delivery.tracker.bucket.bucket_list import Bucket
from bookstand.delivery.tracker.bucket.immutable import SealedBuckets
from bookstand.delivery.tracker.bucket.membership import WaitingSet
from bookstand.delivery.tracker.bucket.metrics import Gauges
from bookstand.delivery.tracker.bucket.mutable import MutableBucket
from bookstand.delivery.tracker.bucket.rebuild import Reader
from bookstand.delivery.tracker.bucket.registry import BucketRegistry
from bookstand.delivery.tracker.bucket.segment_loader import SegmentLoader
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate, distinct
from bookstand.delivery.tracker.bucket.snapshot.rows import sorted_rows
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.store import BucketStore
from bookstand.delivery.tracker.due_cutoff import DueCutoff
from bookstand.delivery.tracker.protocol import (
    LARGEST,
    Column,
    Mask,
    Positions,
    TrackerClosedError,
    as_ids,
    check_millis,
    check_position,
    check_time,
    columns_of,
    positions_of,
    times_of,
)
from bookstand.delivery.tracker.scheduled import order_matters
from bookstand.delivery.tracker.wakeup import Wakeup
from bookstand.errors import IncorrectParameterError
from bookstand.storage.clock import SystemClock
from bookstand.storage.format.position import Position
from bookstand.storage.metrics import Sample
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock


class BucketDelayedTracker(ProcessBound):
    """A DelayedTracker on buckets. A message on disk takes about one bit of memory.

    ``rebuild`` reads the messages of a damaged snapshot from the topic. Without a ``timer`` the tracker creates one,
    which :meth:`close` closes.
    """

    def __init__(
        self,
        wake: Callable[[], object],
        registry: BucketRegistry,
        config: DelayedDeliveryConfig | None = None,
        *,
        rebuild: Reader | None = None,
        storage: BucketSnapshotStorage | None = None,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.config = DelayedDeliveryConfig() if config is None else config
        clock = SystemClock() if clock is None else clock
        tick = self.config.delayed_delivery_tick_time_millis
        self._cutoff = DueCutoff(clock, tick, self.config.is_delayed_delivery_deliver_at_time_strict)
        self._own_timer = timer_for(clock) if timer is None else None
        timer = self._own_timer if timer is None else timer
        assert timer is not None
        self._lock = RLock()
        self._closed = False
        self._registry = registry
        store = BucketStore(registry, BucketSnapshotStorage(registry.client) if storage is None else storage)
        self._tracked = WaitingSet(registry)
        self._sealed = SealedBuckets(registry, store, self.config, self._tracked, rebuild)
        self._mutable = MutableBucket(registry, self.config.least_in_bucket, self._tracked, self._sealed)
        self._loader = SegmentLoader(registry, self._cutoff, self._tracked, self._sealed)
        # Lower bound of the earliest time of a tracked message.
        self._earliest: int | None = None
        self._wakeup = Wakeup(wake, self._lock, clock, timer, tick, before=self._move_due)
        self._sealed.recover(self._cutoff.time)
        self._update_alarm()
        registry.client.add_metrics(self)

    @property
    def problems(self) -> list[str]:
        """Damage of snapshots, all of it repaired."""
        return self._sealed.problems

    @property
    def sealed_up_to(self) -> int | None:
        """The last ledger whose messages need not be read again after a restart."""
        return self._sealed.sealed_up_to

    # -- alarm --------------------------------------------------------------------------------------------------------

    def _next_time(self) -> int | None:
        """Time of the next message. Drops stale rows from the head of the buffers."""
        times = [self._tracked.next_time(self._mutable.rows), self._tracked.next_time(self._sealed.loaded)]
        if (bucket := self._sealed.buckets.next_to_load) is not None:
            times.append(bucket.next_time)
        return min([time for time in times if time is not None], default=None)

    def _update_alarm(self) -> None:
        self._earliest = self._next_time()
        self._arm()

    def _lower_earliest(self, time: int) -> None:
        if self._earliest is None or time < self._earliest:
            self._earliest = time

    def _arm(self) -> None:
        at = self._earliest
        retry_at = self._loader.retry_at
        if retry_at is not None and at is not None and at <= self._cutoff.now:
            at = retry_at
        self._wakeup.update(at)

    # -- adding -------------------------------------------------------------------------------------------------------

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            tracked = self._add(ledger_id, entry_id, deliver_at)
            if tracked:
                self._arm()
            return tracked

    def _add(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        deliver_at = self._tracked.rescheduled.times.get((ledger_id, entry_id), deliver_at)
        if deliver_at < 0 or deliver_at <= self._cutoff.time:
            self._untrack(ledger_id, entry_id)
            return False
        if not self._tracked.present.contains(ledger_id, entry_id):
            self._mutable.add(deliver_at, ledger_id, entry_id)
            self._lower_earliest(deliver_at)
        return True

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        with self._lock:
            self._check_open()
            times = self._tracked.rescheduled.override(times, ledger_ids, entry_ids)
            delayed: Mask = (times >= 0) & (times > self._cutoff.time)
            if delayed.all():
                self._add_delayed(times, ledger_ids, entry_ids)
            elif order_matters(self._tracked.present, ~delayed, ledger_ids, entry_ids):
                rows = zip(ledger_ids.tolist(), entry_ids.tolist(), times.tolist(), strict=True)
                delayed = np.fromiter((self._add(*row) for row in rows), dtype=np.bool_, count=len(times))
            else:
                self._add_delayed(times[delayed], ledger_ids[delayed], entry_ids[delayed])
            if delayed.any():
                self._arm()
            return delayed

    def _add_delayed(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        earliest = self._mutable.add_many(times, ledger_ids, entry_ids)
        if earliest is not None:
            self._lower_earliest(earliest)

    # -- removing -----------------------------------------------------------------------------------------------------

    def pop_due(self, limit: int | None = None) -> list[Position]:
        _, ledger_ids, entry_ids = self.take_due(limit)
        return positions_of(*sorted_rows(ledger_ids, entry_ids))

    def take_due(self, limit: int | None = None) -> Indexes:
        """Remove and return due messages as columns, sorted by time if there is a limit."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"limit must be a non-negative integer or None, not {limit!r}")
        with self._lock:
            self._check_open()
            cutoff = self._cutoff.time
            self._mutable.move_due(cutoff)
            due = self._loader.pop(cutoff, limit)
            self._update_alarm()
            return due

    def _move_due(self) -> None:
        self._mutable.move_due(self._cutoff.time)

    def cancel(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            removed = self._untrack(ledger_id, entry_id)
            if removed:
                self._sealed.remove_empty()
                self._update_alarm()
            return removed

    def cancel_many(self, positions: Sequence[tuple[int, int]]) -> None:
        """Cancel the messages that are tracked."""
        with self._lock:
            untracked = [position for position in positions if self._untrack(*position)]
            if untracked:
                self._sealed.remove_empty()
                self._update_alarm()

    def reschedule(self, position: tuple[int, int], deliver_at: int) -> bool:
        """Durably change the delivery time of a message, to now if it is past; return False if it is not tracked."""
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            if not self._tracked.present.contains(ledger_id, entry_id):
                return False
            with_retries(lambda: self._tracked.rescheduled.append({(ledger_id, entry_id): deliver_at}))
            self._sealed.insert((ledger_id, entry_id), deliver_at)
            self._update_alarm()
            return True

    @property
    def given_times(self) -> Mapping[tuple[int, int], int]:
        """Times of the rescheduled messages that are still delayed."""
        return self._tracked.rescheduled.times

    def _untrack(self, ledger_id: int, entry_id: int) -> bool:
        untracked = self._tracked.untrack(ledger_id, entry_id)
        if untracked:
            self._sealed.record_untracked(ledger_id)
        return untracked

    def clear(self) -> None:
        """Stop tracking every message and delete all snapshots, in one commit."""
        with self._lock:
            self._check_open()
            self._sealed.delete_all()
            self._reset()
            self._wakeup.update(None)

    def _reset(self) -> None:
        self._tracked.clear()
        self._sealed.clear()
        # Discarded messages were not sealed, so ``sealed_up_to`` does not change.
        self._mutable.clear()
        self._loader.retry_at = None
        self._earliest = None

    # -- queries ------------------------------------------------------------------------------------------------------

    def has_message_available(self) -> bool:
        with self._lock:
            available = self._is_available()
            if not available:
                self._update_alarm()
            return available

    def _is_available(self) -> bool:
        cutoff = self._cutoff.time
        while True:
            self._earliest = self._next_time()
            if self._earliest is None or self._earliest > cutoff:
                return False
            bucket = self._sealed.buckets.next_to_load
            if bucket is None or bucket.next_time != self._earliest:
                return True
            # Rows on disk may be stale, so load them to find out. If they cannot be read now, none is available.
            if not self._loader.load_next(bucket):
                return False

    def should_pause_all_deliveries(self) -> bool:
        """Return False: reading ahead fills buckets, not memory."""
        return False

    def contains_message(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            return self._tracked.present.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        ledger_ids, entry_ids = columns_of((as_ids("ledger ids", ledger_ids), entry_ids))
        with self._lock:
            return self._tracked.present.contains_many(ledger_ids, entry_ids)

    def next_delivery(self) -> int | None:
        """Lower bound of the earliest time, because the first rows on disk may be stale."""
        with self._lock:
            self._earliest = self._next_time()
            return self._earliest

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """Messages with times from ``first`` to ``last``, by time, ledger and entry; nothing is removed. Segments on
        disk with such times are read, but not loaded."""
        with self._lock:
            parts = self._sealed.peek_segments(first, last)
            parts += [self._mutable.rows.all_rows(), self._sealed.loaded.all_rows()]
            found = self._tracked.filter_valid(concatenate(parts))
        times = found.timestamps
        within = (times >= (-LARGEST if first is None else first)) & (times <= (LARGEST if last is None else last))
        found = Indexes(*(column[within] for column in found))
        found = distinct(found)
        return found.part(0, found.size if limit is None else limit)

    @property
    def next_wake(self) -> int | None:
        """Time of the pending alarm."""
        with self._lock:
            return self._wakeup.armed

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._tracked.present)

    def count_behind(self, position: Position) -> int:
        """Number of tracked messages after a position."""
        ledger_id, entry_id = position
        with self._lock:
            present = self._tracked.present
            entry_ids = np.arange(entry_id + 1)
            up_to = present.contains_many(np.full(len(entry_ids), max(ledger_id, 0)), entry_ids)
            return len(present) - present.count_ledgers(0, ledger_id - 1) - int(np.count_nonzero(up_to))

    @property
    def delayed_count(self) -> int:
        """Number of messages that are delayed, or due and not popped yet."""
        return self.count

    def __len__(self) -> int:
        return self.count

    @property
    def buckets(self) -> list[Bucket]:
        with self._lock:
            return list(self._sealed.buckets)

    @property
    def mutable_count(self) -> int:
        with self._lock:
            return len(self._mutable)

    @property
    def loaded_count(self) -> int:
        """Number of messages in memory outside the mutable bucket."""
        with self._lock:
            return len(self._sealed.loaded)

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            parts = (self._tracked.present, self._mutable.rows, self._sealed.loaded)
            return sum(part.memory_bytes for part in parts)

    def samples(self) -> Iterator[Sample]:
        """Metrics; none after the tracker was closed."""
        with self._lock:
            if self._closed:
                return iter(())
            sealed, registry = self._sealed, self._registry
            loaded = len(sealed.loaded) + len(self._mutable)
            gauges = Gauges(len(sealed.buckets) + 1, loaded, sum(bucket.length for bucket in sealed.buckets))
            return iter(list(metrics.samples(gauges, sealed.store.operations, registry.topic, registry.cursor)))

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    def reset_tick(self, tick_time_millis: int) -> None:
        tick = check_millis("tick_time_millis", tick_time_millis, 1)
        with self._lock:
            self._cutoff.tick = self._wakeup.tick = tick
            self._update_alarm()

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Apply the tick, and bucket sizes to later seals and merges; other settings are fixed while open."""
        with self._lock:
            self.config = config
            self._sealed.config = config
            self._mutable.set_min_size(config.least_in_bucket)
            self.reset_tick(config.delayed_delivery_tick_time_millis)

    def close(self) -> None:
        """Close the tracker. Snapshots remain for the next one; the cursor reads unsealed messages again."""
        with self._lock:
            self._closed = True
            self._wakeup.close()
            self._reset()
        if self._own_timer is not None:
            self._own_timer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TrackerClosedError("the tracker is closed")

    def __repr__(self) -> str:
        return f"<BucketDelayedTracker: {len(self)} delayed, {len(self._sealed.buckets)} buckets>"
