"""The tracker of delayed messages that keeps them in buckets (PIP-195).

What comes in goes to the *mutable* bucket. Once that has enough, and a message of a newer ledger comes, it is sealed:
it becomes a snapshot in a ledger of its own, cut into segments by time, of which the first is loaded and the others
wait on the disk until they are nearly due. Where there would be too many buckets, adjacent ones become one.

Three things tell where a message is, and each tells something else:

- ``tracked.py``, one bit for each position that waits: the truth. What has no bit is not delivered, wherever it stands.
- ``mutable_bucket.py`` and what is loaded of the sealed ones: what is in memory by its time.
- ``sealed_buckets.py``: what is on the disk, and how much of it has been loaded; ``loading.py`` has it loaded.

A bucket comes and goes with the cursor's property that names it, in one commit. The mutable bucket and what came for
ledgers that had been sealed are in memory alone, and are in the topic behind the cursor's mark-delete position: who
reads that again after a restart adds them again. So closing seals nothing: it would leave a small bucket each time.
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
from bookstand.delivery.tracker.scheduled import first_of_each
from bookstand.delivery.tracker.wakeup import Wakeup
from bookstand.errors import IncorrectParameterError
from bookstand.storage.clock import SystemClock
from bookstand.storage.format.position import Position
from bookstand.storage.metrics import Sample
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock


class BucketDelayedTracker(ProcessBound):
    """A :class:`~bookstand.delivery.tracker.protocol.DelayedTracker`. What is on the disk costs about a bit of memory
    a message.

    ``rebuild`` reads from the topic what a damaged snapshot should have told. Without a ``timer`` the tracker has one
    of its own, which it closes.
    """

    def __init__(
        self,
        wake: Callable[[], object],
        home: BucketRegistry,
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
        self._home = home
        ledgers = BucketStore(home, BucketSnapshotStorage(home.client) if storage is None else storage)
        self._tracked = WaitingSet(home)
        self._sealed = SealedBuckets(home, ledgers, self.config, self._tracked, rebuild)
        self._mutable = MutableBucket(home, self.config.least_in_bucket, self._tracked, self._sealed)
        self._loading = SegmentLoader(home, self._cutoff, self._tracked, self._sealed)
        # Not above the earliest time that something waits for.
        self._earliest: int | None = None
        self._wakeup = Wakeup(wake, self._lock, clock, timer, tick, before=self._move_due)
        self._sealed.recover(self._cutoff.time)
        self._update_alarm()
        home.client.add_metrics(self)

    @property
    def problems(self) -> list[str]:
        """What was wrong with snapshots, and was put right."""
        return self._sealed.problems

    @property
    def sealed_up_to(self) -> int | None:
        """The last ledger whose messages need not be read again after a restart."""
        return self._sealed.sealed_up_to

    # -- what is due -------------------------------------------------------------------------------------------------

    def _next_time(self) -> int | None:
        """When the next message is due. What is in memory and does not wait any more is dropped on the way."""
        times = [self._tracked.next_time(self._mutable.runs), self._tracked.next_time(self._sealed.loaded)]
        if (bucket := self._sealed.buckets.next_to_load) is not None:
            times.append(bucket.next_time)
        return min([time for time in times if time is not None], default=None)

    def _update_alarm(self) -> None:
        self._earliest = self._next_time()
        self._arm()

    def _came(self, time: int) -> None:
        """Something waits for a time from now on; the alarm is to be set."""
        if self._earliest is None or time < self._earliest:
            self._earliest = time

    def _arm(self) -> None:
        at = self._earliest
        try_again_at = self._loading.try_again_at
        if try_again_at is not None and at is not None and at <= self._cutoff.now:
            at = try_again_at
        self._wakeup.update(at)

    # -- in ----------------------------------------------------------------------------------------------------------

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
            self._forget(ledger_id, entry_id)
            return False
        if not self._tracked.present.contains(ledger_id, entry_id):
            self._mutable.add(deliver_at, ledger_id, entry_id)
            self._came(deliver_at)
        return True

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        with self._lock:
            self._check_open()
            times = self._tracked.rescheduled.instead_of(times, ledger_ids, entry_ids)
            delayed: Mask = (times >= 0) & (times > self._cutoff.time)
            if delayed.all():
                self._add_delayed(times, ledger_ids, entry_ids)
            elif self._order_matters(~delayed, ledger_ids, entry_ids):
                rows = zip(ledger_ids.tolist(), entry_ids.tolist(), times.tolist(), strict=True)
                delayed = np.fromiter((self._add(*row) for row in rows), dtype=np.bool_, count=len(times))
            else:
                self._add_delayed(times[delayed], ledger_ids[delayed], entry_ids[delayed])
            if delayed.any():
                self._arm()
            return delayed

    def _order_matters(self, due: Mask, ledger_ids: Column, entry_ids: Column) -> bool:
        """Whether one that is due waits already, or will from elsewhere in the batch."""
        if self._tracked.present.contains_many(ledger_ids[due], entry_ids[due]).any():
            return True
        return len(first_of_each(ledger_ids, entry_ids)) < len(ledger_ids)

    def _add_delayed(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        earliest = self._mutable.add_many(times, ledger_ids, entry_ids)
        if earliest is not None:
            self._came(earliest)

    # -- out ---------------------------------------------------------------------------------------------------------

    def pop_due(self, limit: int | None = None) -> list[Position]:
        _, ledger_ids, entry_ids = self.take_due(limit)
        return positions_of(*sorted_rows(ledger_ids, entry_ids))

    def take_due(self, limit: int | None = None) -> Indexes:
        """The same as columns; with a limit in the order of their times."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"a limit is a number from 0 up or None, not {limit!r}")
        with self._lock:
            self._check_open()
            cutoff = self._cutoff.time
            self._mutable.move_due(cutoff)
            taken = self._loading.pop(cutoff, limit)
            self._update_alarm()
            return taken

    def _move_due(self) -> None:
        self._mutable.move_due(self._cutoff.time)

    def cancel(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            removed = self._forget(ledger_id, entry_id)
            if removed:
                self._sealed.remove_emptied()
                self._update_alarm()
            return removed

    def cancel_many(self, positions: Sequence[tuple[int, int]]) -> None:
        """Cancel those of the messages that are tracked."""
        with self._lock:
            forgotten = [position for position in positions if self._forget(*position)]
            if forgotten:
                self._sealed.remove_emptied()
                self._update_alarm()

    def reschedule(self, position: tuple[int, int], deliver_at: int) -> bool:
        """Deliver a message at another time, durably on return; False if it is not tracked. A time that has come is
        due at once."""
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            if not self._tracked.present.contains(ledger_id, entry_id):
                return False
            with_retries(lambda: self._tracked.rescheduled.note({(ledger_id, entry_id): deliver_at}))
            self._sealed.put((ledger_id, entry_id), deliver_at)
            self._update_alarm()
            return True

    @property
    def given_times(self) -> Mapping[tuple[int, int], int]:
        """What messages that wait were given instead of their own times."""
        return self._tracked.given_times

    def _forget(self, ledger_id: int, entry_id: int) -> bool:
        forgotten = self._tracked.forget(ledger_id, entry_id)
        if forgotten:
            self._sealed.forgotten(ledger_id)
        return forgotten

    def clear(self) -> None:
        """Forget everything, and delete all snapshots: in one commit, or nothing."""
        with self._lock:
            self._check_open()
            self._sealed.delete_all()
            self._forget_all()
            self._wakeup.update(None)

    def _forget_all(self) -> None:
        self._tracked.clear()
        self._sealed.clear()
        # Forgotten is not sealed.
        self._mutable.clear()
        self._loading.try_again_at = None
        self._earliest = None

    # -- questions ---------------------------------------------------------------------------------------------------

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
            # What is on the disk may have been cancelled. What cannot be read now is not there now.
            if not self._loading.load_next(bucket):
                return False

    def should_pause_all_deliveries(self) -> bool:
        """Never: reading on fills buckets, not memory."""
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
        """Not later than the earliest: of what is on the disk, the first may have been cancelled."""
        with self._lock:
            self._earliest = self._next_time()
            return self._earliest

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """What waits for times from the first to the last, in the order of time, ledger and entry; nothing is removed.
        Segments on the disk that have such times are read, and not kept."""
        with self._lock:
            parts = self._sealed.read_unloaded(first, last)
            parts += [self._mutable.runs.everything(), self._sealed.loaded.everything()]
            found = self._tracked.still_waiting(concatenate(parts))
        times = found.timestamps
        within = (times >= (-LARGEST if first is None else first)) & (times <= (LARGEST if last is None else last))
        found = Indexes(*(column[within] for column in found))
        found = distinct(found)
        return found.part(0, found.size if limit is None else limit)

    @property
    def next_wake(self) -> int | None:
        """When the alarm is to ring."""
        with self._lock:
            return self._wakeup.armed

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._tracked.present)

    def count_behind(self, position: Position) -> int:
        """Number of tracked messages behind a position."""
        ledger_id, entry_id = position
        with self._lock:
            present = self._tracked.present
            entry_ids = np.arange(entry_id + 1)
            up_to = present.contains_many(np.full(len(entry_ids), max(ledger_id, 0)), entry_ids)
            return len(present) - present.count_ledgers(0, ledger_id - 1) - int(np.count_nonzero(up_to))

    @property
    def delayed_count(self) -> int:
        """Number of messages that are delayed, or due and not taken yet."""
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
        """How many are in memory of those that were sealed, or came too late to be."""
        with self._lock:
            return len(self._sealed.loaded)

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            parts = (self._tracked.present, self._mutable.runs, self._sealed.loaded)
            return sum(part.memory_bytes for part in parts)

    def samples(self) -> Iterator[Sample]:
        """Figures for metrics, as long as the tracker is open."""
        with self._lock:
            if self._closed:
                return iter(())
            sealed, home = self._sealed, self._home
            loaded = len(sealed.loaded) + len(self._mutable)
            gauges = Gauges(len(sealed.buckets) + 1, loaded, sum(bucket.length for bucket in sealed.buckets))
            return iter(list(metrics.samples(gauges, sealed.ledgers.operations, home.topic, home.cursor)))

    # -- life --------------------------------------------------------------------------------------------------------

    def reset_tick(self, tick_time_millis: int) -> None:
        tick = check_millis("tick_time_millis", tick_time_millis, 1)
        with self._lock:
            self._cutoff.tick = self._wakeup.tick = tick
            self._update_alarm()

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Use another tick, and other sizes for the buckets that are sealed or merged from now on. The other settings
        are fixed while the tracker is open."""
        with self._lock:
            self.config = config
            self._sealed.config = config
            self._mutable.change_least(config.least_in_bucket)
            self.reset_tick(config.delayed_delivery_tick_time_millis)

    def close(self) -> None:
        """Snapshots stay; the next tracker begins with them. What is in memory alone, the cursor reads again."""
        with self._lock:
            self._closed = True
            self._wakeup.close()
            self._forget_all()
        if self._own_timer is not None:
            self._own_timer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TrackerClosedError("the tracker was closed")

    def __repr__(self) -> str:
        return f"<BucketDelayedTracker: {len(self)} waiting, {len(self._sealed.buckets)} buckets>"
