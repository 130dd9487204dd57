"""What goes when the mark-delete position has passed a ledger: what was remembered of it, and perhaps itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.subscription.delayed_delivery import DelayedDelivery
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.storage.format.position import Position


class MarkDeleteWatcher:
    """``lock`` guards what is remembered, and is taken only when there is something to forget. ``trim_soon``: the topic
    may have ledgers that nobody needs any more."""

    def __init__(
        self,
        cursor: Cursor,
        where: MessageStates,
        delayed: DelayedDelivery,
        lock: RLock,
        trim_soon: Callable[[], object],
    ) -> None:
        self._cursor = cursor
        self._where = where
        self._delayed = delayed
        self._lock = lock
        self._trim_soon = trim_soon
        self._ledger = cursor.mark_delete_position.ledger_id

    def acknowledged(self, positions: Sequence[Position]) -> None:
        """Entries were acknowledged that were not out: those of them that are delayed are not delivered."""
        if self._delayed.tracked_among(positions):
            with self._lock:
                self._delayed.forget(positions)

    def look(self) -> None:
        """The mark-delete position may have moved."""
        passed = self._cursor.mark_delete_position
        if passed.ledger_id != self._ledger:
            self._ledger = passed.ledger_id
            with self._lock:
                self._where.forget_up_to(passed)
                self._delayed.forget_up_to(passed)
            self._trim_soon()
