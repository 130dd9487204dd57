"""Set of tracked messages, which decides which rows in memory and on disk are valid.

Only tracked messages are delivered. Rows of other messages are *stale*: the message was cancelled, or added again when
it was due. If a message was *moved*, to a rescheduled time or by adding it again, only the row with that time is valid.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bookstand.delivery.message.position_set import PositionSet
from bookstand.delivery.retry import TRANSIENT_ERRORS
from bookstand.delivery.tracker.bucket.registry import BucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.time_sorted import TimeSortedBuffer
from bookstand.delivery.tracker.protocol import Column, Mask
from bookstand.delivery.tracker.reschedule_log import RescheduleLog
from bookstand.storage.logger import logger


class WaitingSet:
    """Tracked messages, and the validity of their rows. Not thread-safe: callers hold the tracker's lock."""

    def __init__(self, registry: BucketRegistry) -> None:
        self._topic = registry.topic
        self.present = PositionSet()
        self.rescheduled = RescheduleLog(registry)
        """Durable times of rescheduled messages."""
        # Untracked positions that may have stale rows. When one of them is added again, ``_moved`` records its only
        # valid time.
        self._stale = PositionSet()
        self._moved: dict[tuple[int, int], int] = {}
        self.may_have_stale_rows = False
        """True if rows in memory may have been cancelled, trimmed, moved, or added again when they were due."""
        self.may_have_duplicate_rows = False
        """True if rows in memory may be duplicated, which only this tracker's own snapshots rule out."""

    def add(self, ledger_id: int, entry_id: int, time: int) -> None:
        self.present.add(ledger_id, entry_id)
        if self._stale and self._stale.discard(ledger_id, entry_id):
            self._moved[ledger_id, entry_id] = time

    @property
    def has_stale(self) -> bool:
        """True if new messages may have stale rows."""
        return bool(self._stale)

    def mark_added_again(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """Record the only valid times of stale messages that are about to be added again."""
        if self._stale:
            for row in np.flatnonzero(self._stale.contains_many(ledger_ids, entry_ids)).tolist():
                position = int(ledger_ids[row]), int(entry_ids[row])
                self._stale.discard(*position)
                self._moved[position] = int(times[row])

    def move(self, position: tuple[int, int], time: int) -> bool:
        """Track a message for this time only; return True if it was not tracked."""
        added = self.present.add(*position)
        self._stale.discard(*position)
        self._moved[position] = time
        self.may_have_stale_rows = True
        return added

    def untrack(self, ledger_id: int, entry_id: int) -> bool:
        """Stop tracking a message, whose rows become stale; return False if it was not tracked."""
        if not self.present.discard(ledger_id, entry_id):
            return False
        self.may_have_stale_rows = True
        if self._moved.pop((ledger_id, entry_id), None) is not None:
            self._remove_from_log([(ledger_id, entry_id)])
        self._stale.add(ledger_id, entry_id)
        return True

    def take(self, due: Indexes) -> Indexes:
        """Stop tracking due messages whose rows were removed; return the valid rows."""
        if self._moved:
            due = self.filter_valid(due)
        if self.may_have_stale_rows or self.may_have_duplicate_rows:
            valid = self.present.take_many(due.ledger_ids, due.entry_ids)
            if valid is not None:
                due = Indexes(*(column[valid] for column in due))
        else:
            self.present.take_known(due.ledger_ids, due.entry_ids)
        if self._moved:
            self._drop_moved(due.ledger_ids, due.entry_ids)
        return due

    def _drop_moved(self, ledger_ids: Column, entry_ids: Column) -> None:
        """Mark other rows of delivered messages as stale."""
        moved = [
            position
            for position in zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)
            if self._moved.pop(position, None) is not None
        ]
        for position in moved:
            self._stale.add(*position)
        self._remove_from_log(moved)

    def _remove_from_log(self, positions: Iterable[tuple[int, int]]) -> None:
        """Remove messages from the log. If that fails, a restart delivers them again."""
        try:
            self.rescheduled.remove(positions)
        except TRANSIENT_ERRORS as error:
            logger().warning("topic %s: times of rescheduled messages could not be removed: %s", self._topic, error)

    def clear(self) -> None:
        self.present.clear()
        self._stale.clear()
        self._moved.clear()
        self.rescheduled.reset()
        self.may_have_stale_rows = self.may_have_duplicate_rows = False

    def valid_mask(self, indexes: Indexes) -> Mask:
        valid = self.present.contains_many(indexes.ledger_ids, indexes.entry_ids)
        if self._moved:
            columns = zip(np.flatnonzero(valid).tolist(), *(column[valid].tolist() for column in indexes), strict=True)
            for row, time, *position in columns:
                if self._moved.get(tuple(position), time) != time:
                    valid[row] = False
        return valid

    def filter_valid(self, indexes: Indexes) -> Indexes:
        valid = self.valid_mask(indexes)
        return indexes if valid.all() else Indexes(*(column[valid] for column in indexes))

    def next_time(self, buffer: TimeSortedBuffer) -> int | None:
        """Time of the first valid row. Drops stale rows before it."""
        while True:
            time = buffer.next_time()
            if time is None or not self.may_have_stale_rows or self.valid_mask(buffer.first())[0]:
                return time
            buffer.drop_first()
