"""Which messages wait, and for which time: the truth about what stands in memory and on the disk.

A message that waits has a bit here. What has none is not delivered, wherever it stands: it was cancelled, or added
again when it was due, and whoever comes to what is left of it passes it over. And of a message that was *moved*, to a
time that it was given or with which it was added again, nothing counts but what stands under that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    """Not safe between threads: its tracker has a lock."""

    def __init__(self, home: BucketRegistry) -> None:
        self._topic = home.topic
        self.present = PositionSet()
        self.rescheduled = RescheduleLog(home)
        """The times that messages were given, durably."""
        # Positions that were cancelled, or added when they were due: they may stand somewhere still. One of them that
        # was added again waits for this time, and for no other that it stands under.
        self._forgotten = PositionSet()
        self._moved: dict[tuple[int, int], int] = {}
        self.may_be_dead = False
        """Whether something in memory may have been cancelled, trimmed or added again when it was due."""
        self.may_be_twice = False
        """Whether what is in memory may be there twice, as nobody but the tracker prevents."""

    @property
    def given_times(self) -> Mapping[tuple[int, int], int]:
        """What messages that wait were given instead of their own times."""
        return self.rescheduled.times

    # -- who comes ---------------------------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_id: int, time: int) -> None:
        """It waits from now on, and did not before."""
        self.present.add(ledger_id, entry_id)
        if self._forgotten and self._forgotten.discard(ledger_id, entry_id):
            self._moved[ledger_id, entry_id] = time

    @property
    def any_forgotten(self) -> bool:
        """Whether messages that come may have been here before, so that they stand somewhere still."""
        return bool(self._forgotten)

    def remember(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """These are about to be added, and wait for these times and no others."""
        if self._forgotten:
            for row in np.flatnonzero(self._forgotten.contains_many(ledger_ids, entry_ids)).tolist():
                position = int(ledger_ids[row]), int(entry_ids[row])
                self._forgotten.discard(*position)
                self._moved[position] = int(times[row])

    def move(self, position: tuple[int, int], time: int) -> bool:
        """It waits for this time, and for no other that it stands under. Whether it did not wait before."""
        came = self.present.add(*position)
        self._forgotten.discard(*position)
        self._moved[position] = time
        self.may_be_dead = True
        return came

    # -- who goes ----------------------------------------------------------------------------------------------------

    def forget(self, ledger_id: int, entry_id: int) -> bool:
        """It waits no more, and may stand somewhere still. Whether it waited."""
        if not self.present.discard(ledger_id, entry_id):
            return False
        self.may_be_dead = True
        if self._moved.pop((ledger_id, entry_id), None) is not None:
            self._settle([(ledger_id, entry_id)])
        self._forgotten.add(ledger_id, entry_id)
        return True

    def take(self, due: Indexes) -> Indexes:
        """Stop tracking what left memory because it is due; returns the part of it that was tracked."""
        if self._moved:
            due = self.still_waiting(due)
        if self.may_be_dead or self.may_be_twice:
            waited = self.present.take_many(due.ledger_ids, due.entry_ids)
            if waited is not None:
                due = Indexes(*(column[waited] for column in due))
        else:
            self.present.take_known(due.ledger_ids, due.entry_ids)
        if self._moved:
            self._settle_moved(due.ledger_ids, due.entry_ids)
        return due

    def _settle_moved(self, ledger_ids: Column, entry_ids: Column) -> None:
        """Messages were delivered: what else stands of them is of one that does not wait."""
        moved = [
            position
            for position in zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)
            if self._moved.pop(position, None) is not None
        ]
        for position in moved:
            self._forgotten.add(*position)
        self._settle(moved)

    def _settle(self, positions: Iterable[tuple[int, int]]) -> None:
        """What they were given is not needed any more. Where that cannot be written now, the next restart delivers them
        again."""
        try:
            self.rescheduled.settled(positions)
        except TRANSIENT_ERRORS as error:
            logger().warning("topic %s: what was rescheduled is still written down: %s", self._topic, error)

    def clear(self) -> None:
        self.present.clear()
        self._forgotten.clear()
        self._moved.clear()
        self.rescheduled.forget()
        self.may_be_dead = self.may_be_twice = False

    # -- who waits ---------------------------------------------------------------------------------------------------

    def waits(self, indexes: Indexes) -> Mask:
        """For each index whether its message waits, and for that time."""
        waiting = self.present.contains_many(indexes.ledger_ids, indexes.entry_ids)
        if self._moved:
            columns = zip(
                np.flatnonzero(waiting).tolist(), *(column[waiting].tolist() for column in indexes), strict=True
            )
            for row, time, *position in columns:
                if self._moved.get(tuple(position), time) != time:
                    waiting[row] = False
        return waiting

    def still_waiting(self, indexes: Indexes) -> Indexes:
        waiting = self.waits(indexes)
        return indexes if waiting.all() else Indexes(*(column[waiting] for column in indexes))

    def next_time(self, runs: TimeSortedBuffer) -> int | None:
        """When the first of them is due. What does not wait any more is dropped on the way."""
        while True:
            time = runs.next_time()
            if time is None or not self.may_be_dead or self.waits(runs.first())[0]:
                return time
            runs.drop_first()
