"""Positions that wait, each under one time, with the answer to whether one does.

A time index finds what is under a time, not under which time something is, and does not mind a position under two.
So beside it stands one bit for each position that waits. What is removed leaves its entry in the index behind, *dead*,
with a bit that says so: it is dropped when its turn comes, or when it is at the head and somebody asks for the head,
or when there are more dead than living.
"""

from __future__ import annotations

import numpy as np

from bookstand.delivery.message.position_set import Column, Mask, PositionSet
from bookstand.delivery.time_index.index import TimeIndex
from bookstand.delivery.time_index.precision import Precision

_LATEST = (1 << 63) - 1
# So many dead ones are not worth a new index.
_FEW_DEAD = 4096


class ScheduledPositions:
    """Not thread-safe: callers hold a lock. ``round_up``: keys are times rounded up, else down. A ``precision`` rounds
    in place of both, when a position is added."""

    def __init__(self, precision_bits: int, round_up: bool, precision: Precision | None = None) -> None:
        self._bits = precision_bits
        self._round_up = round_up
        self._precision = precision
        self._index = self._new_index()
        self._alive = PositionSet()
        self._dead = PositionSet()
        # Not above the earliest key, and that key itself if it is exact: asking the index after every addition costs
        # more than the addition.
        self._next: int | None = None
        self._next_is_exact = True

    def _new_index(self) -> TimeIndex:
        if self._precision is not None:
            # It may depend on the moment, and what is rounded stays as it is.
            return TimeIndex()
        return TimeIndex(self._bits, round_up=self._round_up)

    def __len__(self) -> int:
        return len(self._alive)

    def add(self, time: int, ledger_id: int, entry_id: int) -> None:
        """A position that waits already keeps its time."""
        if not self._alive.add(ledger_id, entry_id):
            return
        if self._precision is not None:
            time = self._precision.key(time)
        if not (self._dead and self._dead.discard(ledger_id, entry_id) and self._revived(time, ledger_id, entry_id)):
            self._index.add(time, ledger_id, entry_id)
        self._comes(time)

    def add_many(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """The same in their order: of a position that is there twice, the first time counts."""
        rows = np.flatnonzero(~self._alive.contains_many(ledger_ids, entry_ids))
        rows = rows[first_of_each(ledger_ids[rows], entry_ids[rows])]
        if not len(rows):
            return
        times, ledger_ids, entry_ids = times[rows], ledger_ids[rows], entry_ids[rows]
        if self._precision is not None:
            times = self._precision.keys(times)
        if self._dead and self._dead.contains_many(ledger_ids, entry_ids).any():
            # They may be under other times. Without the dead there is nothing to look for, one after the other.
            self._bury()
        self._alive.add_many(ledger_ids, entry_ids)
        self._index.add_many(times, ledger_ids, entry_ids)
        self._comes(int(times.min()))

    def _revived(self, time: int, ledger_id: int, entry_id: int) -> bool:
        """One that was dead waits again: whether it is under this time already. If not, it is no longer under the
        other, which has to be looked for; a message has one time, so that hardly anybody pays for that."""
        if self._index.contains(time, ledger_id, entry_id):
            return True
        keys, ledger_ids, entry_ids = self._index.peek().columns()
        for row in np.flatnonzero((ledger_ids == ledger_id) & (entry_ids == entry_id)).tolist():
            self._index.discard(int(keys[row]), ledger_id, entry_id)
        return False

    def _comes(self, time: int) -> None:
        if self._next is None or time < self._next:
            key = self._index.key(time)
            self._next = key if self._next is None else min(key, self._next)

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was there."""
        if not self._alive.discard(ledger_id, entry_id):
            return False
        self._dead.add(ledger_id, entry_id)
        self._next_is_exact = False
        if not self._alive:
            self.clear()
        elif len(self._dead) > max(len(self._alive), _FEW_DEAD):
            self._bury()
        return True

    def _bury(self) -> None:
        keys, ledger_ids, entry_ids = self._index.peek().columns()
        alive = ~self._dead.contains_many(ledger_ids, entry_ids)
        self._begin(self._bits, keys[alive], ledger_ids[alive], entry_ids[alive])
        self._dead.clear()

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        return self._alive.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        return self._alive.contains_many(ledger_ids, entry_ids)

    def next_key(self) -> int | None:
        """The earliest time that something waits under, rounded."""
        if self._next_is_exact:
            return self._next
        looked_at = 16
        while self._dead:
            _, ledger_ids, entry_ids = self._index.peek(limit=looked_at).columns()
            dead = self._dead.contains_many(ledger_ids, entry_ids)
            in_front = len(dead) if dead.all() else int(dead.argmin())
            if in_front:
                self._index.pop_due(_LATEST, in_front)
                self._dead.discard_many(ledger_ids[:in_front], entry_ids[:in_front])
            if in_front < len(dead):
                break
            looked_at = min(4 * looked_at, 1 << 16)
        self._next = self._index.next_time()
        self._next_is_exact = True
        return self._next

    @property
    def no_key_before(self) -> int | None:
        """The same or earlier, for less."""
        return self._next

    def pop(self, until: int, limit: int | None) -> tuple[Column, Column]:
        """Remove what waits under keys up to ``until``, the earliest first, at most ``limit``."""
        until = min(until, _LATEST)
        self._next_is_exact = False
        parts: list[tuple[Column, Column]] = []
        missing = limit
        while missing is None or missing > 0:
            _, ledger_ids, entry_ids = self._index.pop_due(until, missing).columns()
            popped = len(ledger_ids)
            if self._dead:
                dead = self._dead.contains_many(ledger_ids, entry_ids)
                self._dead.discard_many(ledger_ids[dead], entry_ids[dead])
                ledger_ids, entry_ids = ledger_ids[~dead], entry_ids[~dead]
            self._alive.discard_many(ledger_ids, entry_ids)
            parts.append((ledger_ids, entry_ids))
            if missing is None or len(ledger_ids) == popped:
                break
            missing -= len(ledger_ids)
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, dtype=np.int64)
        return (
            np.concatenate([empty, *(ledger_ids for ledger_ids, _ in parts)]),
            np.concatenate([empty, *(entry_ids for _, entry_ids in parts)]),
        )

    def peek(self, first: int | None, last: int | None) -> tuple[Column, Column, Column]:
        """Key, ledger and entry of what waits under keys from the first to the last, in their order."""
        columns = self._index.peek(first, last).columns()
        if not self._dead:
            return columns
        keys, ledger_ids, entry_ids = columns
        alive = ~self._dead.contains_many(ledger_ids, entry_ids)
        return keys[alive], ledger_ids[alive], entry_ids[alive]

    def rekey(self, precision_bits: int) -> None:
        """Keys of another width from now on. Those that are there are rounded on, in the same direction: exact times
        are not kept, so with a smaller width they stay as they are."""
        if precision_bits == self._bits or self._precision is not None:
            self._bits = precision_bits
            return
        self._begin(precision_bits, *self._index.peek().columns())

    def _begin(self, precision_bits: int, keys: Column, ledger_ids: Column, entry_ids: Column) -> None:
        self._bits = precision_bits
        self._index = self._new_index()
        self._index.add_many(keys, ledger_ids, entry_ids)
        self._next = self._index.next_time()
        self._next_is_exact = not self._dead

    def clear(self) -> None:
        for part in (self._index, self._alive, self._dead):
            part.clear()
        self._next = None
        self._next_is_exact = True

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes + self._alive.memory_bytes + self._dead.memory_bytes


def first_of_each(ledger_ids: Column, entry_ids: Column) -> Column:
    """The rows where a position is for the first time, ascending."""
    if (ledger_ids[1:] == ledger_ids[:-1]).all() and (entry_ids[1:] > entry_ids[:-1]).all():
        return np.arange(len(ledger_ids))
    order = np.lexsort((entry_ids, ledger_ids))
    ledger_ids, entry_ids = ledger_ids[order], entry_ids[order]
    again = np.zeros(len(order), dtype=np.bool_)
    again[1:] = (ledger_ids[1:] == ledger_ids[:-1]) & (entry_ids[1:] == entry_ids[:-1])
    # The sort is stable: of equal ones the first stays the first.
    return np.sort(order[~again])
