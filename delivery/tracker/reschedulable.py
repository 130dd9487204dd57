"""Tracker that supports durable rescheduling of messages on top of any other tracker.

Rescheduled messages are tracked separately from all others. Their times are stored in a ledger of the cursor, in the
same place and format for every kind of tracker, so that kinds can be exchanged.
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

# Up to this many passed positions do not justify a cleanup.
_MIN_PASSED = 1_000


class ReschedulableTracker(ProcessBound):
    """A DelayedTracker that combines ``inner`` with a tracker of the ``rescheduled`` messages, and closes both."""

    def __init__(
        self,
        inner: InMemoryDelayedTracker | SubscriptionView,
        rescheduled: InMemoryDelayedTracker,
        registry: BucketRegistry,
    ) -> None:
        self.inner = inner
        self._rescheduled = rescheduled
        self._lock = RLock()
        self._registry = registry
        self._log = RescheduleLog(registry)
        self.problems: list[str] = []
        """Damage found when the tracker was opened."""
        try:
            with_retries(self._log.load)
        except (*GONE, MalformedRecordError) as error:
            self.problems.append(f"the times of rescheduled messages are lost, so their original times apply: {error}")
            logger().warning("topic %s, cursor %s: %s", registry.topic, registry.cursor, self.problems[0])
        self._remove_from_log([position for position in self._log.times if not self._is_unacknowledged(position)])
        for position, time in self._log.times.items():
            rescheduled.put(position, time)
        # Rescheduled positions, even if popped since. The inner tracker may have them under another time; a shared
        # index does, because other subscriptions need it.
        self._positions = set(self._log.times)

    def _is_unacknowledged(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = position
        try:
            return position > self._registry.mark_delete() and bool(
                self._registry.unacknowledged(ledger_id, BitMap64([entry_id]))
            )
        except GONE:
            # The acknowledgments of the ledger cannot be read: redeliver the message rather than lose it.
            return True

    @property
    def given_times(self) -> Mapping[tuple[int, int], int]:
        """Times of the rescheduled messages that are still delayed."""
        return self._log.times

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        if self._positions:
            return bool(self.add_many([check_position(position)], deliver_at)[0])
        return self.inner.add(position, deliver_at)

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        if not self._positions:
            return self.inner.add_many(positions, deliver_at)
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        with self._lock:
            tracked = self._rescheduled.contains_many(ledger_ids, entry_ids)
            rest = ~tracked
            # A rescheduled message that was popped is read again: its original time counts from now on.
            self._positions.difference_update(zip(ledger_ids[rest].tolist(), entry_ids[rest].tolist(), strict=True))
            tracked[rest] = self.inner.add_many((ledger_ids[rest], entry_ids[rest]), times[rest])
            return tracked

    def _are_rescheduled(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        positions = zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)
        return np.fromiter(
            (position in self._positions for position in positions), dtype=np.bool_, count=len(ledger_ids)
        )

    def reschedule(self, position: tuple[int, int], deliver_at: int) -> bool:
        """Durably change the delivery time of a message, to now if it is past; return False if it is not tracked."""
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            position = Position(ledger_id, entry_id)
            if not self.contains_message(position):
                return False
            with_retries(lambda: self._log.append({position: deliver_at}))
            self._positions.add(position)
            if len(self._positions) > 2 * self._rescheduled.count + _MIN_PASSED:
                mark_delete = self._registry.mark_delete()
                self._positions = {other for other in self._positions if other > mark_delete}
            self.inner.cancel(position)
            self._rescheduled.put(position, deliver_at)
            return True

    def pop_due(self, limit: int | None = None) -> list[Position]:
        with self._lock:
            found = self._rescheduled.pop_due(limit)
            if found:
                self._remove_from_log(found)
            while limit is None or len(found) < limit:
                more = self.inner.pop_due(None if limit is None else limit - len(found))
                found += [position for position in more if position not in self._positions]
                if limit is None or not more:
                    break
            return sorted(found)

    def cancel(self, position: tuple[int, int]) -> bool:
        with self._lock:
            if self._rescheduled.cancel(position):
                self._remove_from_log([Position(*position)])
                return True
            return self.inner.cancel(position)

    def cancel_many(self, positions: Sequence[tuple[int, int]]) -> None:
        """Cancel the messages that are tracked."""
        with self._lock:
            rescheduled = [position for position in positions if self._rescheduled.cancel(position)]
            if rescheduled:
                self._remove_from_log(rescheduled)
            for position in positions:
                self.inner.cancel(position)

    def _remove_from_log(self, positions: Sequence[tuple[int, int]]) -> None:
        try:
            self._log.remove(positions)
        except TRANSIENT_ERRORS as error:
            logger().warning(
                "topic %s: times of rescheduled messages could not be removed: %s", self._registry.topic, error
            )

    def has_message_available(self) -> bool:
        return self._rescheduled.has_message_available() or self.inner.has_message_available()

    def consume_rewind_request(self) -> bool:
        """Return True, once, if the subscription must read again from its mark-delete position."""
        view = self.inner
        rewinds = isinstance(view, SubscriptionView) and view.must_rewind
        if rewinds:
            view.must_rewind = False  # type: ignore[union-attr]
        return rewinds

    def should_pause_all_deliveries(self) -> bool:
        return self.inner.should_pause_all_deliveries() and not self._rescheduled.has_message_available()

    def contains_message(self, position: tuple[int, int]) -> bool:
        if self._positions and tuple(position) in self._positions:
            return self._rescheduled.contains_message(position)
        return self.inner.contains_message(position)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        found = self.inner.contains_many(ledger_ids, entry_ids)
        if self._positions:
            mask = self._are_rescheduled(ledger_ids, entry_ids)
            found[mask] = self._rescheduled.contains_many(ledger_ids[mask], entry_ids[mask])
        return found

    def next_delivery(self) -> int | None:
        times = (self._rescheduled.next_delivery(), self.inner.next_delivery())
        return min((time for time in times if time is not None), default=None)

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """Messages with times from ``first`` to ``last``, by time, ledger and entry."""
        with self._lock:
            inner = self.inner.peek(first, last)
            if self._positions:
                rest = ~self._are_rescheduled(inner.ledger_ids, inner.entry_ids)
                inner = Indexes(*(column[rest] for column in inner))
            found = distinct(concatenate([inner, self._rescheduled.peek(first, last)]))
        return found.part(0, found.size if limit is None else limit)

    @property
    def delayed_count(self) -> int:
        """Number of messages that are delayed, or due and not popped yet."""
        with self._lock:
            if self._positions:
                ledger_ids, entry_ids = columns_of(list(self._positions))
                tracked_twice = self.inner.contains_many(ledger_ids, entry_ids)
                for position in positions_of(ledger_ids[tracked_twice], entry_ids[tracked_twice]):
                    self.inner.cancel(position)
            inner = self.inner.delayed_count if isinstance(self.inner, SubscriptionView) else self.inner.count
            return self._rescheduled.count + inner

    @property
    def count(self) -> int:
        return self._rescheduled.count + self.inner.count

    def __len__(self) -> int:
        return self.count

    @property
    def memory_bytes(self) -> int:
        return self._rescheduled.memory_bytes + self.inner.memory_bytes

    def clear(self) -> None:
        with self._lock:
            if self._log.is_stored:
                self._registry.change(self._log.delete_in)
            self._log.reset()
            self._positions.clear()
            self._rescheduled.clear()
            self.inner.clear()

    def reset_tick(self, tick_time_millis: int) -> None:
        self._rescheduled.reset_tick(tick_time_millis)
        self.inner.reset_tick(tick_time_millis)

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Apply the tick and the other settings that can change while the trackers are open."""
        self._rescheduled.change_config(config)
        self.inner.change_config(config)

    def close(self) -> None:
        self._rescheduled.close()
        self.inner.close()
