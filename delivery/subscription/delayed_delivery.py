"""Delayed messages of a subscription."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.tracker.factory import Tracker
from bookstand.delivery.tracker.protocol import columns_of, positions_of
from bookstand.delivery.tracker.reschedulable import ReschedulableTracker
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.storage.format.position import EARLIEST, Position

# Up to this many positions are looked up one by one.
_SCALAR_LIMIT = 32
# Number of entries of one vectorized lookup.
_LOOKUP_CHUNK = 1 << 16


class DelayedDelivery:
    """Not thread-safe, except for :meth:`delayed_among`; callers hold the subscription's lock.

    ``rescheduled_times`` replace the delivery times in the messages. They are retained until the messages are
    acknowledged, because the age of a message starts at its delivery time.
    """

    def __init__(self, open_tracker: Callable[[], Tracker]) -> None:
        self._open_tracker = open_tracker
        self.tracker = open_tracker()
        self.rescheduled_times: dict[Position, int] = {}
        # No message up to this position is delayed.
        self._passed = EARLIEST
        self._load_rescheduled_times()

    def _load_rescheduled_times(self) -> None:
        self.rescheduled_times = {Position(*position): time for position, time in self.tracker.given_times.items()}

    def track(self, entries: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Add delayed messages to the tracker and return the others."""
        delayed = [(entry.position, entry.deliver_at) for entry in entries if entry.deliver_at is not None]
        if not delayed:
            return entries
        tracked = self.tracker.add_many([position for position, _ in delayed], [time for _, time in delayed])
        delayed_flags = iter(tracked.tolist())
        return [entry for entry in entries if entry.deliver_at is None or not next(delayed_flags)]

    def not_delayed(self, ledger_id: int, first: int, last: int) -> Iterable[int]:
        """Entry ids of a run that are not delayed."""
        if last - first < _SCALAR_LIMIT:
            contains = self.tracker.contains_message
            return [one for one in range(first, last + 1) if not contains((ledger_id, one))]
        column = np.arange(first, last + 1)
        not_delayed: list[int] = column[~self.tracker.contains_many(np.full(len(column), ledger_id), column)].tolist()
        return not_delayed

    def consume_rewind_request(self) -> bool:
        """Return True once after the tracker asks the cursor to rewind to its mark-delete position."""
        return isinstance(self.tracker, ReschedulableTracker) and self.tracker.consume_rewind_request()

    def reschedule(self, position: Position, time: int) -> bool:
        """Change the delivery time of a message; return False if it is not delayed."""
        moved = self.tracker.reschedule(position, time)
        if moved:
            self.rescheduled_times[position] = time
        return moved

    def forget_rescheduled(self, passed: Position) -> None:
        """Drop the rescheduled times of messages up to the mark-delete position."""
        for position in [position for position in self.rescheduled_times if position <= passed]:
            del self.rescheduled_times[position]

    def cancel(self, positions: Sequence[Position]) -> None:
        """Remove the delayed messages among these from the tracker."""
        if found := self.delayed_among(positions):
            self.tracker.cancel_many(found)

    def delayed_among(self, positions: Sequence[Position]) -> list[Position]:
        """Return the positions of delayed messages. Thread-safe."""
        tracker = self.tracker
        if not tracker.count:
            return []
        if len(positions) < _SCALAR_LIMIT:
            return [position for position in positions if tracker.contains_message(position)]
        ledger_ids, entry_ids = columns_of(positions)
        found = tracker.contains_many(ledger_ids, entry_ids)
        return positions_of(ledger_ids[found], entry_ids[found])

    def cancel_up_to(self, topic: ManagedLedger, passed: Position) -> None:
        """Remove delayed messages up to the mark-delete position from the tracker."""
        start, self._passed = self._passed, passed
        if passed <= start or not self.tracker.count:
            return
        extent = topic.extent
        for ledger_id in extent.ledger_ids:
            if start.ledger_id <= ledger_id <= passed.ledger_id:
                first = start.entry_id + 1 if ledger_id == start.ledger_id else 0
                last = passed.entry_id if ledger_id == passed.ledger_id else (extent.entries(ledger_id) or 0) - 1
                for at in range(first, last + 1, _LOOKUP_CHUNK):
                    entry_ids = np.arange(at, min(at + _LOOKUP_CHUNK, last + 1))
                    ledger_ids = np.full(len(entry_ids), ledger_id)
                    found = self.tracker.contains_many(ledger_ids, entry_ids)
                    if found.any():
                        self.tracker.cancel_many(positions_of(ledger_ids[found], entry_ids[found]))

    def reset(self, passed: Position, shared: bool) -> None:
        """Adapt to a new mark-delete position; messages above it stay delayed. ``shared``: the tracker is a view of a
        shared index and must be opened again, because its state belongs to the old position."""
        self._passed = passed
        if shared:
            self.tracker.close()
            self.tracker = self._open_tracker()
        else:
            for _, ledger_id, entry_id in self.tracker.peek().indexes:
                if (ledger_id, entry_id) <= passed:
                    self.tracker.cancel((ledger_id, entry_id))
        self._load_rescheduled_times()
