"""The tracker of delayed messages that keeps them in buckets (PIP-195).

What comes in goes to the *mutable* bucket. Once that has enough, and a message of a newer ledger comes, it is sealed:
it becomes a snapshot in a ledger of its own, cut into segments by time, of which the first is loaded and the others
wait on the disk until they are nearly due. Where there would be too many buckets, adjacent ones become one.

Three things tell where a message is, and each tells something else:

- ``_present``, one bit for each position that waits: the truth. What has no bit is not delivered, wherever it stands.
- ``_mutable`` and ``_loaded``, what is in memory by its time.
- ``_buckets``: what is on the disk, and how much of it has been loaded.

A bucket comes and goes with the cursor's property that names it, in one commit. The mutable bucket and what came for
ledgers that had been sealed are in memory alone, and are in the topic behind the cursor's mark-delete position: who
reads that again after a restart adds them again. So closing seals nothing: it would leave a small bucket each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from bookstand.delivery import bucket_metrics
from bookstand.delivery.bucket_home import Home
from bookstand.delivery.bucket_key import BucketKey
from bookstand.delivery.bucket_ledgers import BucketLedgers, Doomed, NewBucket
from bookstand.delivery.bucket_metrics import Gauges
from bookstand.delivery.bucket_recovery import GONE, apart_from
from bookstand.delivery.buckets import Bucket, Buckets
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.indexes import Indexes, distinct, together
from bookstand.delivery.merging import CHOICES, Run
from bookstand.delivery.presence import Presence
from bookstand.delivery.rebuilding import Reader
from bookstand.delivery.rescheduled import Rescheduled
from bookstand.delivery.snapshot import seal
from bookstand.delivery.snapshot_rows import sorted_rows
from bookstand.delivery.snapshot_storage import BucketSnapshotStorage
from bookstand.delivery.time_runs import TimeRuns
from bookstand.delivery.timer import Timer, timer_for
from bookstand.delivery.tracker import (
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
from bookstand.delivery.trying_again import PASSING, persistently
from bookstand.delivery.waiting import first_of_each
from bookstand.delivery.wakeup import Wakeup
from bookstand.errors import IncorrectParameterError, MalformedRecordError
from bookstand.storage.clock import SystemClock
from bookstand.storage.log import logger
from bookstand.storage.metrics import Sample
from bookstand.storage.position import Position

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock

# A segment that begins within so many ticks is loaded before it is due, one with each call.
_AHEAD_TICKS = 5


class BucketDelayedTracker:
    """A :class:`~bookstand.delivery.tracker.DelayedTracker`. What is on the disk costs about a bit of memory a message.

    ``rebuild`` reads from the topic what a damaged snapshot should have told. Without a ``timer`` the tracker has one
    of its own, which it closes.
    """

    def __init__(
        self,
        wake: Callable[[], object],
        home: Home,
        config: DelayedDeliveryConfig | None = None,
        *,
        rebuild: Reader | None = None,
        storage: BucketSnapshotStorage | None = None,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        self.config = DelayedDeliveryConfig() if config is None else config
        self.problems: list[str] = []
        """What was wrong with snapshots, and was put right."""
        self._home = home
        self._rebuild = rebuild
        self._ledgers = BucketLedgers(home, BucketSnapshotStorage(home.client) if storage is None else storage)
        self._tick = self.config.delayed_delivery_tick_time_millis
        self._strict = self.config.is_delayed_delivery_deliver_at_time_strict
        self._clock = SystemClock() if clock is None else clock
        self._own_timer = timer_for(self._clock) if timer is None else None
        timer = self._own_timer if timer is None else timer
        assert timer is not None
        self._lock = RLock()
        self._closed = False
        self._present = Presence()
        self._mutable = TimeRuns()
        self._mutable_ledgers: tuple[int, int] | None = None
        self._seal_from = self.config.least_in_bucket
        self._loaded = TimeRuns()
        self._buckets = Buckets()
        self.sealed_up_to: int | None = None
        """The last ledger whose messages need not be read again after a restart."""
        # Not above the earliest time that something waits for.
        self._earliest: int | None = None
        # Positions that were cancelled, or added when they were due: they may stand somewhere still. One of them that
        # was added again waits for this time, and for no other that it stands under.
        self._forgotten = Presence()
        self._moved: dict[tuple[int, int], int] = {}
        self._rescheduled = Rescheduled(home)
        # Whether something in memory may have been cancelled, trimmed or added again when it was due.
        self._may_be_dead = False
        # Whether what is in memory may be there twice, as nobody but this tracker prevents.
        self._may_be_twice = False
        # Snapshots that took the place of damaged ones.
        self._rebuilt: set[int] = set()
        # When to try again to load what is due and could not be; None: there is no such thing.
        self._try_again_at: int | None = None
        self._wakeup = Wakeup(wake, self._lock, self._clock, timer, self._tick, before=self._move_due)
        self._recover()
        home.client.add_metrics(self)

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        found = self._ledgers.recover(self._cutoff())
        for bucket, bitmaps in found.buckets:
            for ledger_id, bitmap in bitmaps.items():
                self._present.add_bitmap(ledger_id, bitmap)
            self._buckets.add(bucket)
            self.sealed_up_to = bucket.key.last_ledger
        if found.problems:
            self._report(*found.problems)
        lost: list[BucketKey] = []
        for key in found.lost:
            for indexes in self._told_by_topic(key):
                later = indexes.timestamps > self._cutoff()
                self._track_loaded(*(column[later] for column in indexes))
            lost += apart_from(key, [*(bucket.key for bucket in self._buckets), *lost])
        self._take_over_rescheduled()
        if found.doomed:
            self._seal_told(lost, found.doomed, sweep=bool(found.problems))
        self._trim()
        self._update_alarm()

    def _take_over_rescheduled(self) -> None:
        """What was given another time before."""
        try:
            persistently(self._rescheduled.load)
        except (*GONE, MalformedRecordError) as error:
            self._report(f"the times that messages were given are lost, those that they say are taken: {error}")
            return
        passed = self._home.mark_delete()
        for position, time in self._rescheduled.times.items():
            if position > passed:
                self._put_at(position, time)

    def _put_at(self, position: tuple[int, int], time: int) -> None:
        """A message waits for this time, and for no other that it stands under."""
        ledger_id, entry_id = position
        if self._present.add(ledger_id, entry_id):
            bucket = self._buckets.covering(ledger_id)
            if bucket is not None:
                bucket.waiting += 1
        self._forgotten.discard(ledger_id, entry_id)
        self._moved[position] = time
        self._may_be_dead = True
        self._loaded.add(time, ledger_id, entry_id)

    def _report(self, *problems: str) -> None:
        self.problems += problems
        for problem in problems:
            logger().warning("topic %s, cursor %s: %s", self._home.topic, self._home.cursor, problem)

    def _told_by_topic(self, key: BucketKey) -> list[Indexes]:
        """The delayed messages of a range of ledgers."""
        return persistently(lambda: self._read_topic(key))

    def _read_topic(self, key: BucketKey) -> list[Indexes]:
        """What cannot be read, now or later, is passed over."""
        found: list[Indexes] = []
        try:
            found.extend(() if self._rebuild is None else self._rebuild(*key))
        except GONE as error:
            self._report(f"the topic does not tell all of ledgers {key.first_ledger} to {key.last_ledger}: {error}")
        return found

    # -- what is due -------------------------------------------------------------------------------------------------

    def are_due(self, times: Column) -> Mask:
        due: Mask = (times < 0) | (times <= self._cutoff())
        return due

    def _cutoff(self) -> int:
        """Times up to here are due."""
        now = self._clock.now()
        return min(now if self._strict else now + self._tick, LARGEST)

    def _next_time(self) -> int | None:
        """When the next message is due. What is in memory and does not wait any more is dropped on the way."""
        times = [self._head(self._mutable), self._head(self._loaded)]
        if (bucket := self._buckets.next_to_load) is not None:
            times.append(bucket.next_time)
        return min([time for time in times if time is not None], default=None)

    def _head(self, runs: TimeRuns) -> int | None:
        while True:
            time = runs.next_time()
            if time is None or not self._may_be_dead or self._waits(runs.first())[0]:
                return time
            runs.drop_first()

    def _update_alarm(self) -> None:
        self._earliest = self._next_time()
        self._arm()

    def _came(self, time: int) -> None:
        """Something waits for a time from now on; the alarm is to be set."""
        if self._earliest is None or time < self._earliest:
            self._earliest = time

    def _arm(self) -> None:
        at = self._earliest
        if self._try_again_at is not None and at is not None and at <= self._clock.now():
            at = self._try_again_at
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
        deliver_at = self._rescheduled.times.get((ledger_id, entry_id), deliver_at)
        if deliver_at < 0 or deliver_at <= self._cutoff():
            self._forget(ledger_id, entry_id)
            return False
        if self._present.contains(ledger_id, entry_id):
            return True
        if self._buckets.covering(ledger_id) is None:
            self._make_way_for(ledger_id)
        bucket = self._buckets.covering(ledger_id)
        self._present.add(ledger_id, entry_id)
        if self._forgotten and self._forgotten.discard(ledger_id, entry_id):
            self._moved[ledger_id, entry_id] = deliver_at
        if bucket is None and (self._mutable_ledgers is None or ledger_id >= self._mutable_ledgers[1]):
            first = ledger_id if self._mutable_ledgers is None else self._mutable_ledgers[0]
            self._mutable_ledgers = first, ledger_id
            self._mutable.add(deliver_at, ledger_id, entry_id)
        else:
            # Of a ledger that was sealed, or out of order.
            if bucket is not None:
                bucket.waiting += 1
            self._loaded.add(deliver_at, ledger_id, entry_id)
        self._came(deliver_at)
        return True

    def _make_way_for(self, ledger_id: int) -> None:
        """Before a message comes of a ledger in no bucket: the mutable bucket may end with the ledgers that it has.

        Where a sealed bucket follows it, it does, however small it is: ranges of ledgers do not overlap.
        """
        if self._mutable_ledgers is None or ledger_id <= self._mutable_ledgers[1]:
            return
        if len(self._mutable) >= self._seal_from:
            self._seal()
        if self._mutable_ledgers is not None and self._buckets.lies_between(self._mutable_ledgers[1], ledger_id):
            self._loaded.add_many(*self._mutable.everything())
            # In memory is not sealed.
            self._mutable_ledgers = None
            self._empty_mutable()

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        with self._lock:
            self._check_open()
            times = self._rescheduled.instead_of(times, ledger_ids, entry_ids)
            delayed: Mask = (times >= 0) & (times > self._cutoff())
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
        if self._present.contains_many(ledger_ids[due], entry_ids[due]).any():
            return True
        return len(first_of_each(ledger_ids, entry_ids)) < len(ledger_ids)

    def _add_delayed(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        if len(times) and self._add_at_end(times, ledger_ids, entry_ids):
            self._came(int(times.min()))
            return
        fresh = np.flatnonzero(~self._present.contains_many(ledger_ids, entry_ids))
        fresh = fresh[first_of_each(ledger_ids[fresh], entry_ids[fresh])]
        if self._forgotten:
            for row in fresh[self._forgotten.contains_many(ledger_ids[fresh], entry_ids[fresh])].tolist():
                position = int(ledger_ids[row]), int(entry_ids[row])
                self._forgotten.discard(*position)
                self._moved[position] = int(times[row])
        if len(fresh):
            self._came(int(times[fresh].min()))
        while len(fresh):
            taken = self._add_until_sealed(times[fresh], ledger_ids[fresh], entry_ids[fresh])
            fresh = fresh[taken:]

    def _add_at_end(self, times: Column, ledger_ids: Column, entry_ids: Column) -> bool:
        """Add what comes in the order of the topic and has nothing sealed for it, which nearly all does; False, and
        nothing is added, if it is not of that kind."""
        first, last = int(ledger_ids[0]), int(ledger_ids[-1])
        begin, highest = self._mutable_ledgers or (first, first)
        if self._forgotten or first < highest or first <= self._buckets.last_ledger:
            return False
        if last > highest and len(self._mutable) + len(times) > self._seal_from:
            return False
        next_ledgers, ledger_ids_before = ledger_ids[1:], ledger_ids[:-1]
        ascends = (next_ledgers == ledger_ids_before) & (entry_ids[1:] > entry_ids[:-1])
        ascends |= next_ledgers > ledger_ids_before
        if not ascends.all() or not self._present.add_new(ledger_ids, entry_ids):
            return False
        self._mutable_ledgers = begin, last
        # They are the caller's.
        self._mutable.add_many(times.copy(), ledger_ids.copy(), entry_ids.copy())
        return True

    def _add_until_sealed(self, times: Column, ledger_ids: Column, entry_ids: Column) -> int:
        """Add messages in their order up to where a bucket is to be sealed first; returns how many."""
        if self._buckets.covering(int(ledger_ids[0])) is None:
            self._make_way_for(int(ledger_ids[0]))
        covered = self._buckets.places(ledger_ids) >= 0
        first, last = self._mutable_ledgers or (-1, -1)
        # The highest ledger of the mutable bucket when each of them comes.
        highest = np.maximum.accumulate(np.where(covered, last, ledger_ids))
        before = np.maximum(np.concatenate(([last], highest[:-1])), last)
        newest = ~covered & (ledger_ids >= before)
        in_mutable = len(self._mutable) + np.concatenate(([0], np.cumsum(newest)[:-1]))
        complete = (in_mutable >= self._seal_from) | self._buckets.lie_between(before, ledger_ids)
        ends = np.flatnonzero(newest & (ledger_ids > before) & (before >= 0) & complete)
        count = int(ends[0]) if len(ends) else len(times)
        # Where the first is to be sealed for and was not, for lack of space, it goes to the bucket that there is.
        count = max(count, 1)
        mutable = newest[:count]
        self._present.add_many(ledger_ids[:count], entry_ids[:count])
        columns = times[:count], ledger_ids[:count], entry_ids[:count]
        if mutable.any():
            self._mutable.add_many(*(column[mutable] for column in columns))
            ledgers = ledger_ids[:count][mutable]
            self._mutable_ledgers = first if first >= 0 else int(ledgers[0]), int(ledgers[-1])
        if not mutable.all():
            late = [column[~mutable] for column in columns]
            self._buckets.join(late[1])
            self._loaded.add_many(*late)
        return count

    def _track_loaded(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """Have in memory what is not tracked yet."""
        self._may_be_twice = True
        fresh = ~self._present.contains_many(ledger_ids, entry_ids)
        times, ledger_ids, entry_ids = times[fresh], ledger_ids[fresh], entry_ids[fresh]
        self._present.add_many(ledger_ids, entry_ids)
        self._buckets.join(ledger_ids)
        self._loaded.add_many(times, ledger_ids, entry_ids)

    # -- out ---------------------------------------------------------------------------------------------------------

    def pop_due(self, limit: int | None = None) -> list[Position]:
        ledger_ids, entry_ids = self.take_due(limit)
        return positions_of(*sorted_rows(ledger_ids, entry_ids))

    def take_due(self, limit: int | None = None) -> tuple[Column, Column]:
        """The same as columns; with a limit in the order of their times."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"a limit is a number from 0 up or None, not {limit!r}")
        with self._lock:
            self._check_open()
            return self._pop(self._cutoff(), limit)

    def _pop(self, cutoff: int, limit: int | None) -> tuple[Column, Column]:
        horizon = self._home.mark_delete().ledger_id
        self._move_due()
        found: list[tuple[Column, Column]] = []
        missing = limit
        stuck = False
        while missing is None or missing > 0:
            stuck = not self._load_due(cutoff, missing)
            bucket = self._buckets.next_to_load
            # What is on the disk comes before what is in memory and later.
            next_time = None if bucket is None else bucket.next_time
            until = cutoff if next_time is None else min(cutoff, next_time - 1)
            due = self._loaded.pop_due(until, missing)
            if not due.size:
                break
            ledger_ids, entry_ids = self._taken(due)
            passed = ledger_ids < horizon
            if np.count_nonzero(passed):
                ledger_ids, entry_ids = ledger_ids[~passed], entry_ids[~passed]
            found.append((ledger_ids, entry_ids))
            # What could not be loaded is not tried again at once.
            if missing is None or stuck:
                break
            missing -= len(ledger_ids)
        self._remove_emptied()
        if not stuck:
            self._load_ahead(cutoff)
            if missing != 0 and self._drop_passed(horizon):
                self._remove_emptied()
        self._update_alarm()
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # Of what one of them is alone, a copy: columns in memory are nobody else's.
        return np.concatenate([one for one, _ in found]), np.concatenate([other for _, other in found])

    def _move_due(self) -> None:
        """What is due is not sealed any more: it is about to be delivered."""
        self._loaded.add_many(*self._mutable.pop_due(self._cutoff()))

    def _drop_passed(self, horizon: int) -> bool:
        """What comes next, and is of a ledger that the cursor has passed, needs not be due to go; of what comes at the
        same time it is the first. Whether there was some."""
        bucket = self._buckets.next_to_load
        until = LARGEST if bucket is None or bucket.next_time is None else bucket.next_time
        dropped = False
        while (time := self._loaded.next_time()) is not None and time <= until:
            if self._loaded.lowest_of_first_time() >= horizon:
                break
            first = self._loaded.pop_due(time)
            passed = first.ledger_ids < horizon
            self._taken(Indexes(*(column[passed] for column in first)))
            self._loaded.add_many(*(column[~passed] for column in first))
            dropped = True
        return dropped

    def _load_due(self, cutoff: int, amount: int | None) -> bool:
        """Load what may be among the first that are due; False if that cannot be done now."""
        while (bucket := self._buckets.next_to_load) is not None:
            next_time = bucket.next_time
            if next_time is None or next_time > cutoff:
                break
            if amount is not None and self._loaded.has(next_time - 1, amount):
                break
            if not self._load_next(bucket):
                return False
        return True

    def _taken(self, due: Indexes) -> tuple[Column, Column]:
        """Those of what left memory that waited, and do not any more."""
        if self._moved:
            due = self._still_waiting(due)
        _, ledger_ids, entry_ids = due
        if self._may_be_dead or self._may_be_twice:
            waited = self._present.take_many(ledger_ids, entry_ids)
            if waited is not None:
                ledger_ids, entry_ids = ledger_ids[waited], entry_ids[waited]
        else:
            self._present.take_known(ledger_ids, entry_ids)
        self._settle_moved(ledger_ids, entry_ids)
        self._buckets.leave(ledger_ids)
        return ledger_ids, entry_ids

    def _load_ahead(self, cutoff: int) -> None:
        bucket = self._buckets.next_to_load
        ahead = cutoff + _AHEAD_TICKS * self._tick
        # What is due by now is loaded when there is room for it among what is asked for.
        if bucket is not None and bucket.next_time is not None and cutoff < bucket.next_time <= ahead:
            self._load_next(bucket)

    def _load_next(self, bucket: Bucket) -> bool:
        """Load the next segment; False if that cannot be done now. Of one that is lost the topic tells.

        Who asks next tries again; and somebody is told to, if it is due.
        """
        try:
            self._load(bucket, bucket.loaded + 1)
        except PASSING as error:
            logger().warning("bucket %s could not be loaded: %s", bucket.name, error)
            if bucket.next_time is not None and bucket.next_time <= self._cutoff():
                self._try_again_at = self._clock.now() + self._tick
            return False
        self._try_again_at = None
        return True

    def _load(self, bucket: Bucket, number: int) -> None:
        try:
            indexes = self._ledgers.load(bucket, number)
        except GONE as error:
            self._give_up(bucket, f"segment {number} of bucket {bucket.name} cannot be read: {error}")
            return
        self._buckets.loaded(bucket)
        # What this tracker sealed waits until it is loaded, unless somebody said otherwise.
        sure = bucket.own and not self._may_be_dead
        self._may_be_twice |= not bucket.own
        waiting = indexes if sure else self._still_waiting(indexes)
        # Somebody else may have written them in any order.
        ordered = bucket.own or bool((waiting.timestamps[1:] >= waiting.timestamps[:-1]).all())
        if ordered:
            self._loaded.add_sorted(waiting)
        else:
            self._loaded.add_many(*waiting)

    def _settle_moved(self, ledger_ids: Column, entry_ids: Column) -> None:
        """Messages were delivered: what else stands of them is of one that does not wait."""
        if self._moved:
            moved = [
                position
                for position in zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)
                if self._moved.pop(position, None) is not None
            ]
            for position in moved:
                self._forgotten.add(*position)
            self._settle_rescheduled(moved)

    def _settle_rescheduled(self, positions: Iterable[tuple[int, int]]) -> None:
        """They wait no more. Where that cannot be written now, the next restart delivers them again."""
        try:
            self._rescheduled.settled(positions)
        except PASSING as error:
            logger().warning("topic %s: what was rescheduled is still written down: %s", self._home.topic, error)

    def _give_up(self, bucket: Bucket, problem: str) -> None:
        """What waits of a bucket that cannot be read is that of which the topic tells. It is sealed again; but what was
        so before, and cannot be read either, is in memory from now on."""
        told = self._told_by_topic(bucket.key)
        self._may_be_twice = True
        self._report(problem)
        self._buckets.remove(bucket)
        for indexes in told:
            self._loaded.add_many(*self._still_waiting(indexes))
        # Of the rest nobody knows when it was due.
        known = self._loaded_within(bucket.key)
        self._present.discard_ledgers(*bucket.key)
        self._present.add_many(known.ledger_ids, known.entry_ids)
        doomed = {bucket.name: bucket.bucket_id}
        if bucket.bucket_id in self._rebuilt:
            self._ledgers.remove_at_some_time(doomed)
        else:
            self._seal_told([bucket.key], doomed)

    def _seal_told(self, keys: Iterable[BucketKey], doomed: Doomed, *, sweep: bool = False) -> None:
        """What is in memory of these ranges is sealed, in the commit in which those go that should have told of it.
        Where that cannot be done now it stays in memory, and they go some time; and it stays there where there is no
        topic to tell all of it."""
        told = [] if self._rebuild is None else [(key, distinct(self._loaded_within(key))) for key in keys]
        created = [self._sealed(key, indexes, 0) for key, indexes in told if indexes.size]
        try:
            ids = self._ledgers.replace(doomed, created, sweep=sweep)
        except PASSING as error:
            logger().warning("buckets %s could not be replaced: %s", ", ".join(doomed), error)
            self._ledgers.left_over.update(doomed)
            return
        for new, bucket_id in zip(created, ids, strict=True):
            self._rebuilt.add(bucket_id)
            self._unload(new.snapshot.indexes)
            self._begin_with(new, bucket_id, loaded=1)

    def _begin_with(self, new: NewBucket, bucket_id: int, loaded: int) -> None:
        """A bucket was stored; its first segment is loaded, or none."""
        # Of the ledgers something may be in memory that came too late to be sealed.
        waiting = self._present.count_ledgers(*new.key)
        bucket = new.bucket(bucket_id, loaded=loaded, waiting=waiting)
        bucket.own = True
        self._buckets.add(bucket)
        if loaded:
            # By itself: a part of all columns would keep all of them.
            self._loaded.add_sorted(Indexes(*(column.copy() for column in new.snapshot.segment(1))))
        self.sealed_up_to = max(new.key.last_ledger, self.sealed_up_to or 0)

    def cancel(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            removed = self._forget(ledger_id, entry_id)
            if removed:
                self._remove_emptied()
                self._update_alarm()
            return removed

    def reschedule(self, position: tuple[int, int], deliver_at: int) -> bool:
        """Deliver a message at another time, durably on return; False if it is not tracked. A time that has come is
        due at once."""
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            if not self._present.contains(ledger_id, entry_id):
                return False
            persistently(lambda: self._rescheduled.note({(ledger_id, entry_id): deliver_at}))
            self._put_at((ledger_id, entry_id), deliver_at)
            self._update_alarm()
            return True

    @property
    def given_times(self) -> Mapping[tuple[int, int], int]:
        """What messages that wait were given instead of their own times."""
        return self._rescheduled.times

    def _forget(self, ledger_id: int, entry_id: int) -> bool:
        if not self._present.discard(ledger_id, entry_id):
            return False
        self._may_be_dead = True
        if self._moved.pop((ledger_id, entry_id), None) is not None:
            self._settle_rescheduled([(ledger_id, entry_id)])
        self._forgotten.add(ledger_id, entry_id)
        bucket = self._buckets.covering(ledger_id)
        if bucket is not None:
            self._buckets.left(bucket, 1)
        return True

    # -- sealing and merging -----------------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Make the mutable bucket a snapshot, and room for it among the others: one commit.

        Where that fails all stays as it is, and is tried again once there is twice as much.
        """
        assert self._mutable_ledgers is not None
        key = BucketKey(*self._mutable_ledgers)
        self._trim()
        indexes = self._mutable.everything()
        if self._may_be_dead:
            indexes = self._still_waiting(indexes)
        if not indexes.size or key.last_ledger < self._home.mark_delete().ledger_id:
            self._present.discard_many(indexes.ledger_ids, indexes.entry_ids)
            self._empty_mutable()
            return None
        new = self._sealed(key, indexes, 0)
        try:
            block = self._choose_merge(new)
            sources = self._read_sources(block, new)
            if len(sources) < len(block):
                # One of them was lost, and is in memory instead.
                return self._seal()
            self._store(new, block, sources)
        except PASSING as error:
            self._seal_from = 2 * len(self._mutable)
            logger().warning("bucket %s could not be sealed: %s", key, error)

    def _still_waiting(self, indexes: Indexes) -> Indexes:
        waiting = self._waits(indexes)
        return indexes if waiting.all() else Indexes(*(column[waiting] for column in indexes))

    def _waits(self, indexes: Indexes) -> Mask:
        """For each index whether its message waits, and for that time."""
        waiting = self._present.contains_many(indexes.ledger_ids, indexes.entry_ids)
        if self._moved:
            columns = zip(
                np.flatnonzero(waiting).tolist(), *(column[waiting].tolist() for column in indexes), strict=True
            )
            for row, time, *position in columns:
                if self._moved.get(tuple(position), time) != time:
                    waiting[row] = False
        return waiting

    def _empty_mutable(self) -> None:
        if self._mutable_ledgers is not None:
            self.sealed_up_to = self._mutable_ledgers[1]
        self._mutable.clear()
        self._mutable_ledgers = None
        self._seal_from = self.config.least_in_bucket

    def _sealed(self, key: BucketKey, indexes: Indexes, generation: int) -> NewBucket:
        config = self.config
        most = config.most_in_segment
        return NewBucket(key, seal(indexes, config.time_step_millis, most, self._ledgers.entry_limit), generation)

    def _choose_merge(self, new: NewBucket) -> list[Bucket | None]:
        """The buckets that are to be one, so that there is room for the new one; None is the new one itself."""
        most = self.config.delayed_delivery_max_num_buckets
        if not 0 < most <= len(self._buckets):
            return []
        places: list[Bucket | None] = list(self._buckets)
        places.insert(sum(bucket.key < new.key for bucket in self._buckets), None)
        runs = [
            Run(new.size, new.next_time, 0)
            if bucket is None
            else Run(bucket.waiting, bucket.next_time, bucket.generation)
            for bucket in places
        ]
        chosen = CHOICES[self.config.delayed_delivery_merge_policy](runs)
        return [] if chosen is None else places[slice(*chosen)]

    def _read_sources(self, block: Sequence[Bucket | None], new: NewBucket) -> list[Indexes]:
        """What waits still in the buckets that are to be merged; one that is lost is given up, and is not there."""
        found: list[Indexes] = []
        for bucket in block:
            if bucket is None:
                found.append(new.snapshot.indexes)
                continue
            try:
                found.append(self._read_all(bucket))
            except GONE as error:
                self._give_up(bucket, f"bucket {bucket.name} cannot be read: {error}")
        return found

    def _read_all(self, bucket: Bucket) -> Indexes:
        """What waits of a bucket: on the disk what is not loaded, and the rest, with what came late, in memory. What
        was loaded and delivered may wait again, for another time than the snapshot tells."""
        parts = [self._loaded_within(bucket.key)]
        # Others' snapshots may have a position twice.
        self._may_be_twice |= not bucket.own
        if bucket.next_time is not None:
            parts += self._ledgers.read(bucket, bucket.loaded + 1, bucket.segments)
        return self._still_waiting(together(parts))

    def _loaded_within(self, key: BucketKey) -> Indexes:
        loaded = self._still_waiting(self._loaded.everything())
        within = (loaded.ledger_ids >= key.first_ledger) & (loaded.ledger_ids <= key.last_ledger)
        return Indexes(*(column[within] for column in loaded))

    def _store(self, new: NewBucket, block: Sequence[Bucket | None], sources: Sequence[Indexes]) -> None:
        """Create the new bucket, beside the others or as a part of the merged one, and delete what was merged."""
        doomed = [bucket for bucket in block if bucket is not None]
        created = [] if None in block else [new]
        merged = distinct(together(sources)) if sources else None
        # Of what is only cancelled there is nothing to be merged.
        if merged is not None and merged.size:
            keys = [new.key if bucket is None else bucket.key for bucket in block]
            key = BucketKey(keys[0].first_ledger, keys[-1].last_ledger)
            created.append(self._sealed(key, merged, max(bucket.generation for bucket in doomed) + 1))
        gone = {bucket.name: bucket.bucket_id for bucket in doomed}
        ids = self._ledgers.replace(gone, created, merging=merged is not None)
        for bucket in doomed:
            self._buckets.remove(bucket)
        if merged is not None:
            self._unload(merged)
        for one, bucket_id in zip(created, ids, strict=True):
            self._begin_with(one, bucket_id, loaded=int(one is new))
        self._empty_mutable()

    def _unload(self, indexes: Indexes) -> None:
        """What is in a snapshot that is to be loaded is not in memory as well."""
        sealed = Presence()
        sealed.add_many(indexes.ledger_ids, indexes.entry_ids)
        loaded = self._loaded.everything()
        kept = ~sealed.contains_many(loaded.ledger_ids, loaded.entry_ids)
        if not kept.all():
            self._loaded.clear()
            self._loaded.add_many(*(column[kept] for column in loaded))

    # -- removing ----------------------------------------------------------------------------------------------------

    def _trim(self) -> None:
        """Remove the buckets that the mark-delete position has passed."""
        passed = self._buckets.below(self._home.mark_delete().ledger_id)
        if passed and self._remove_buckets(passed):
            self._may_be_dead = True
            for bucket in passed:
                self._present.discard_ledgers(*bucket.key)

    def _remove_emptied(self) -> None:
        emptied = [bucket for bucket in self._buckets.maybe_emptied() if bucket.waiting <= 0]
        if emptied:
            self._remove_buckets(emptied)

    def _remove_buckets(self, buckets: Sequence[Bucket]) -> bool:
        if not self._ledgers.remove({bucket.name: bucket.bucket_id for bucket in buckets}):
            return False
        for bucket in buckets:
            self._buckets.remove(bucket)
        return True

    def clear(self) -> None:
        """Forget everything, and delete all snapshots: in one commit, or nothing."""
        with self._lock:
            self._check_open()
            doomed = {bucket.name: bucket.bucket_id for bucket in self._buckets}
            if doomed or self._ledgers.left_over or self._rescheduled.is_stored:
                self._ledgers.delete(doomed, self._rescheduled.delete_in)
            self._forget_all()
            self._wakeup.update(None)

    def _forget_all(self) -> None:
        for part in (self._present, self._loaded, self._buckets, self._forgotten, self._moved):
            part.clear()
        self._rescheduled.forget()
        self._may_be_dead = self._may_be_twice = False
        self._try_again_at = None
        # Forgotten is not sealed.
        self._mutable_ledgers = None
        self._empty_mutable()
        self._earliest = None

    # -- questions ---------------------------------------------------------------------------------------------------

    def has_message_available(self) -> bool:
        with self._lock:
            available = self._is_available()
            if not available:
                self._update_alarm()
            return available

    def _is_available(self) -> bool:
        cutoff = self._cutoff()
        while True:
            self._earliest = self._next_time()
            if self._earliest is None or self._earliest > cutoff:
                return False
            bucket = self._buckets.next_to_load
            if bucket is None or bucket.next_time != self._earliest:
                return True
            # What is on the disk may have been cancelled. What cannot be read now is not there now.
            if not self._load_next(bucket):
                return False

    def should_pause_all_deliveries(self) -> bool:
        """Never: reading on fills buckets, not memory."""
        return False

    def contains_message(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            return self._present.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        ledger_ids, entry_ids = columns_of((as_ids("ledger ids", ledger_ids), entry_ids))
        with self._lock:
            return self._present.contains_many(ledger_ids, entry_ids)

    def next_delivery(self) -> int | None:
        """Not later than the earliest: of what is on the disk, the first may have been cancelled."""
        with self._lock:
            self._earliest = self._next_time()
            return self._earliest

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """What waits for times from the first to the last, in the order of time, ledger and entry; nothing is removed.
        Segments on the disk that have such times are read, and not kept."""
        with self._lock:
            parts = [self._mutable.everything(), self._loaded.everything()]
            for bucket in self._buckets:
                for number in range(bucket.loaded, bucket.segments):
                    if (last is None or bucket.first_times[number] <= last) and (
                        first is None or bucket.last_times[number] >= first
                    ):
                        parts += self._ledgers.read(bucket, number + 1, number + 1)
            found = self._still_waiting(together(parts))
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
            return len(self._present)

    def __len__(self) -> int:
        return self.count

    @property
    def buckets(self) -> list[Bucket]:
        with self._lock:
            return list(self._buckets)

    @property
    def mutable_count(self) -> int:
        with self._lock:
            return len(self._mutable)

    @property
    def loaded_count(self) -> int:
        """How many are in memory of those that were sealed, or came too late to be."""
        with self._lock:
            return len(self._loaded)

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return self._present.memory_bytes + self._mutable.memory_bytes + self._loaded.memory_bytes

    def samples(self) -> Iterator[Sample]:
        """Figures for metrics, as long as the tracker is open."""
        with self._lock:
            if self._closed:
                return iter(())
            loaded = len(self._loaded) + len(self._mutable)
            gauges = Gauges(len(self._buckets) + 1, loaded, sum(bucket.length for bucket in self._buckets))
            return iter(
                list(bucket_metrics.samples(gauges, self._ledgers.operations, self._home.topic, self._home.cursor))
            )

    # -- life --------------------------------------------------------------------------------------------------------

    def reset_tick(self, tick_time_millis: int) -> None:
        tick = check_millis("tick_time_millis", tick_time_millis, 1)
        with self._lock:
            self._tick = self._wakeup.tick = tick
            self._update_alarm()

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
        return f"<BucketDelayedTracker: {len(self)} waiting, {len(self._buckets)} buckets>"
