"""Clean-up of a subscription's in-memory state as its mark-delete position advances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.subscription.delayed_delivery import DelayedDelivery
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.storage.format.position import Position


class MarkDeleteWatcher:
    """Thread-safe. It takes ``lock``, the subscription's, only when there is state to drop, so that most
    acknowledgments do not wait for it. ``schedule_trim`` is called when ledgers may have become deletable."""

    def __init__(
        self,
        cursor: Cursor,
        states: MessageStates,
        delayed: DelayedDelivery,
        lock: RLock,
        schedule_trim: Callable[[], object],
    ) -> None:
        self._cursor = cursor
        self._states = states
        self._delayed = delayed
        self._lock = lock
        self._schedule_trim = schedule_trim
        self._ledger = cursor.mark_delete_position.ledger_id

    def cancel_delayed(self, positions: Sequence[Position]) -> None:
        """Cancel the delayed messages among acknowledged entries."""
        if self._delayed.delayed_among(positions):
            with self._lock:
                self._delayed.cancel(positions)

    def check(self) -> None:
        """Drop the state of ledgers that the mark-delete position has passed."""
        passed = self._cursor.mark_delete_position
        if passed.ledger_id != self._ledger:
            self._ledger = passed.ledger_id
            with self._lock:
                self._states.redelivery_counts.discard_before(passed.ledger_id)
                self._delayed.forget_rescheduled(passed)
            self._schedule_trim()
