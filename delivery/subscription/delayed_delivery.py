"""What of a subscription waits for its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.tracker.factory import Tracker
from bookstand.delivery.tracker.protocol import columns_of, positions_of
from bookstand.delivery.tracker.reschedulable import ReschedulableTracker
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.storage.format.position import EARLIEST, Position

# So few are asked about one by one.
_FEW = 32
# Entries that are asked about at a time.
_MANY = 1 << 16


class DelayedDelivery:
    """Its owner has a lock. ``given_times``: when messages are to be delivered instead of the time that they say. From
    then on they age, delivered or not, until they are acknowledged."""

    def __init__(self, open_tracker: Callable[[], Tracker]) -> None:
        self._open_tracker = open_tracker
        self.tracker = open_tracker()
        self.rescheduled_times: dict[Position, int] = {}
        # Nothing is tracked up to here.
        self._passed = EARLIEST
        self._load_rescheduled_times()

    def _load_rescheduled_times(self) -> None:
        self.rescheduled_times = {Position(*position): time for position, time in self.tracker.given_times.items()}

    def track(self, entries: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Have wait what is delayed; returns what is to be delivered now."""
        delayed = [(entry.position, entry.deliver_at) for entry in entries if entry.deliver_at is not None]
        if not delayed:
            return entries
        tracked = self.tracker.add_many([position for position, _ in delayed], [time for _, time in delayed])
        kept = iter(tracked.tolist())
        return [entry for entry in entries if entry.deliver_at is None or not next(kept)]

    def not_delayed(self, ledger_id: int, first: int, last: int) -> Iterable[int]:
        """Of a run of entries those that do not wait."""
        if last - first < _FEW:
            contains = self.tracker.contains_message
            return [one for one in range(first, last + 1) if not contains((ledger_id, one))]
        column = np.arange(first, last + 1)
        not_delayed: list[int] = column[~self.tracker.contains_many(np.full(len(column), ledger_id), column)].tolist()
        return not_delayed

    def consume_rewind_request(self) -> bool:
        """Whether the cursor is to read again from its mark-delete position, which is told once."""
        return isinstance(self.tracker, ReschedulableTracker) and self.tracker.consume_rewind_request()

    def reschedule(self, position: Position, time: int) -> bool:
        """Whether it waits, and from now on for this time."""
        moved = self.tracker.reschedule(position, time)
        if moved:
            self.rescheduled_times[position] = time
        return moved

    def forget_rescheduled(self, passed: Position) -> None:
        """All is acknowledged up to there."""
        for position in [position for position in self.rescheduled_times if position <= passed]:
            del self.rescheduled_times[position]

    def cancel(self, positions: Sequence[Position]) -> None:
        """Messages were acknowledged: those of them that are delayed are not delivered."""
        if found := self.delayed_among(positions):
            self.tracker.cancel_many(found)

    def delayed_among(self, positions: Sequence[Position]) -> list[Position]:
        """Filter positions for the delayed ones. Safe without the owner's lock."""
        tracker = self.tracker
        if not tracker.count:
            return []
        if len(positions) < _FEW:
            return [position for position in positions if tracker.contains_message(position)]
        ledger_ids, entry_ids = columns_of(positions)
        found = tracker.contains_many(ledger_ids, entry_ids)
        return positions_of(ledger_ids[found], entry_ids[found])

    def cancel_up_to(self, topic: ManagedLedger, passed: Position) -> None:
        """The mark-delete position may have moved, by acknowledgments or otherwise: what is delayed up to there is not
        delivered."""
        start, self._passed = self._passed, passed
        if passed <= start or not self.tracker.count:
            return
        extent = topic.extent
        for ledger_id in extent.ledger_ids:
            if start.ledger_id <= ledger_id <= passed.ledger_id:
                first = start.entry_id + 1 if ledger_id == start.ledger_id else 0
                last = passed.entry_id if ledger_id == passed.ledger_id else (extent.entries(ledger_id) or 0) - 1
                for at in range(first, last + 1, _MANY):
                    entry_ids = np.arange(at, min(at + _MANY, last + 1))
                    ledger_ids = np.full(len(entry_ids), ledger_id)
                    found = self.tracker.contains_many(ledger_ids, entry_ids)
                    if found.any():
                        self.tracker.cancel_many(positions_of(ledger_ids[found], entry_ids[found]))

    def reset(self, passed: Position, shared: bool) -> None:
        """The cursor stands somewhere else now; what waits behind it waits on. ``shared``: the tracker is a share of an
        index, and what it was given of that is from another place of the topic."""
        self._passed = passed
        if shared:
            self.tracker.close()
            self.tracker = self._open_tracker()
        else:
            for _, ledger_id, entry_id in self.tracker.peek().indexes:
                if (ledger_id, entry_id) <= passed:
                    self.tracker.cancel((ledger_id, entry_id))
        self._load_rescheduled_times()
