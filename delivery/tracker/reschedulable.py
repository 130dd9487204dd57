"""A tracker in which messages can be given another time, durably, whatever tracker is below.

Those that were have a tracker of their own, beside the one that has all others; the times that they were given are
written down by the cursor, in the same place and form for every tracker, so that one takes them over from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock

import numpy as np
from pyroaring import BitMap64

from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.retry import TRANSIENT_ERRORS, with_retries
from bookstand.delivery.tracker.bucket.recovery import GONE
from bookstand.delivery.tracker.bucket.registry import BucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate, distinct
from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from bookstand.delivery.tracker.protocol import (
    Column,
    Mask,
    Positions,
    check_position,
    check_time,
    columns_of,
    positions_of,
    times_of,
)
from bookstand.delivery.tracker.reschedule_log import RescheduleLog
from bookstand.delivery.tracker.shared_index import SubscriptionView
from bookstand.errors import MalformedRecordError
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound

# So few that are delivered are not worth looking for.
_FEW = 1_000


class ReschedulableTracker(ProcessBound):
    """A :class:`~bookstand.delivery.tracker.protocol.DelayedTracker` of ``others`` and of ``given``, both of which it
    closes."""

    def __init__(
        self, others: InMemoryDelayedTracker | SubscriptionView, given: InMemoryDelayedTracker, home: BucketRegistry
    ) -> None:
        self.others = others
        self._given = given
        self._lock = RLock()
        self._home = home
        self._rescheduled = RescheduleLog(home)
        self.problems: list[str] = []
        """Damage found when the tracker was opened."""
        try:
            with_retries(self._rescheduled.load)
        except (*GONE, MalformedRecordError) as error:
            self.problems.append(f"the times of rescheduled messages are lost, and their own times apply: {error}")
            logger().warning("topic %s, cursor %s: %s", home.topic, home.cursor, self.problems[0])
        self._settle([position for position in self._rescheduled.times if not self._is_unacknowledged(position)])
        for position, time in self._rescheduled.times.items():
            given.put(position, time)
        # What was given a time since this was opened or before: others may have it under another, and a shared index
        # has, for others' sake.
        self._moved = set(self._rescheduled.times)

    def _is_unacknowledged(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = position
        try:
            return position > self._home.mark_delete() and bool(
                self._home.unacknowledged(ledger_id, BitMap64([entry_id]))
            )
        except GONE:
            # The acknowledgments of the ledger cannot be read: the message may be delivered again.
            return True

    @property
    def given_times(self) -> Mapping[tuple[int, int], int]:
        """What messages that wait were given instead of their own times."""
        return self._rescheduled.times

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        if self._moved:
            return bool(self.add_many([check_position(position)], deliver_at)[0])
        return self.others.add(position, deliver_at)

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        if not self._moved:
            return self.others.add_many(positions, deliver_at)
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        with self._lock:
            tracked = self._given.contains_many(ledger_ids, entry_ids)
            rest = ~tracked
            # Those of which the given time has come are met again: from now on it is their own that counts.
            self._moved.difference_update(zip(ledger_ids[rest].tolist(), entry_ids[rest].tolist(), strict=True))
            tracked[rest] = self.others.add_many((ledger_ids[rest], entry_ids[rest]), times[rest])
            return tracked

    def _are_moved(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        positions = zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)
        return np.fromiter((position in self._moved for position in positions), dtype=np.bool_, count=len(ledger_ids))

    def reschedule(self, position: tuple[int, int], deliver_at: int) -> bool:
        """Deliver a message at another time, durably on return; False if it is not tracked. A time that has come is
        due at once."""
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            position = Position(ledger_id, entry_id)
            if not self.contains_message(position):
                return False
            with_retries(lambda: self._rescheduled.note({position: deliver_at}))
            self._moved.add(position)
            if len(self._moved) > 2 * self._given.count + _FEW:
                passed = self._home.mark_delete()
                self._moved = {one for one in self._moved if one > passed}
            self.others.cancel(position)
            self._given.put(position, deliver_at)
            return True

    # -- out ---------------------------------------------------------------------------------------------------------

    def pop_due(self, limit: int | None = None) -> list[Position]:
        with self._lock:
            found = self._given.pop_due(limit)
            if found:
                self._settle(found)
            while limit is None or len(found) < limit:
                more = self.others.pop_due(None if limit is None else limit - len(found))
                found += [position for position in more if position not in self._moved]
                if limit is None or not more:
                    break
            return sorted(found)

    def cancel(self, position: tuple[int, int]) -> bool:
        with self._lock:
            if self._given.cancel(position):
                self._settle([Position(*position)])
                return True
            return self.others.cancel(position)

    def cancel_many(self, positions: Sequence[tuple[int, int]]) -> None:
        """Cancel those of the messages that are tracked."""
        with self._lock:
            given = [position for position in positions if self._given.cancel(position)]
            if given:
                self._settle(given)
            for position in positions:
                self.others.cancel(position)

    def _settle(self, positions: Sequence[tuple[int, int]]) -> None:
        """They wait no more. What stays written down of them is dropped some time."""
        try:
            self._rescheduled.settled(positions)
        except TRANSIENT_ERRORS as error:
            logger().warning("topic %s: what was rescheduled is still written down: %s", self._home.topic, error)

    # -- questions ---------------------------------------------------------------------------------------------------

    def has_message_available(self) -> bool:
        return self._given.has_message_available() or self.others.has_message_available()

    def takes_rewind(self) -> bool:
        """Whether the subscription is to read again from its mark-delete position, which it is told once."""
        view = self.others
        rewinds = isinstance(view, SubscriptionView) and view.must_rewind
        if rewinds:
            view.must_rewind = False  # type: ignore[union-attr]
        return rewinds

    def should_pause_all_deliveries(self) -> bool:
        return self.others.should_pause_all_deliveries() and not self._given.has_message_available()

    def contains_message(self, position: tuple[int, int]) -> bool:
        if self._moved and tuple(position) in self._moved:
            return self._given.contains_message(position)
        return self.others.contains_message(position)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        found = self.others.contains_many(ledger_ids, entry_ids)
        if self._moved:
            moved = self._are_moved(ledger_ids, entry_ids)
            found[moved] = self._given.contains_many(ledger_ids[moved], entry_ids[moved])
        return found

    def next_delivery(self) -> int | None:
        times = (self._given.next_delivery(), self.others.next_delivery())
        return min((time for time in times if time is not None), default=None)

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """What waits for times from the first to the last, in the order of time, ledger and entry."""
        with self._lock:
            others = self.others.peek(first, last)
            if self._moved:
                rest = ~self._are_moved(others.ledger_ids, others.entry_ids)
                others = Indexes(*(column[rest] for column in others))
            found = distinct(concatenate([others, self._given.peek(first, last)]))
        return found.part(0, found.size if limit is None else limit)

    @property
    def delayed_count(self) -> int:
        """Number of messages that are delayed, or due and not taken yet."""
        with self._lock:
            if self._moved:
                ledger_ids, entry_ids = columns_of(list(self._moved))
                tracked_twice = self.others.contains_many(ledger_ids, entry_ids)
                for position in positions_of(ledger_ids[tracked_twice], entry_ids[tracked_twice]):
                    self.others.cancel(position)
            others = self.others.delayed_count if isinstance(self.others, SubscriptionView) else self.others.count
            return self._given.count + others

    @property
    def count(self) -> int:
        return self._given.count + self.others.count

    def __len__(self) -> int:
        return self.count

    @property
    def memory_bytes(self) -> int:
        return self._given.memory_bytes + self.others.memory_bytes

    # -- life --------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        with self._lock:
            if self._rescheduled.is_stored:
                self._home.change(self._rescheduled.delete_in)
            self._rescheduled.forget()
            self._moved.clear()
            self._given.clear()
            self.others.clear()

    def reset_tick(self, tick_time_millis: int) -> None:
        self._given.reset_tick(tick_time_millis)
        self.others.reset_tick(tick_time_millis)

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Use another tick, and what else of the settings can be changed while the trackers are open."""
        self._given.change_config(config)
        self.others.change_config(config)

    def close(self) -> None:
        self._given.close()
        self.others.close()
