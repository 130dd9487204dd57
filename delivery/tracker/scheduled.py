"""Set of delayed positions with one time each.

A time index finds positions by time, but not the time of a position, and accepts a position under two times. Therefore
one bit per tracked position is stored beside the index. A removed position leaves a *dead* entry in the index, with a
bit in the dead set. Dead entries are dropped when they become due, when the head of the index is queried, or when they
outnumber the live ones.
"""

from __future__ import annotations

import numpy as np

from bookstand.delivery.message.position_set import Column, Mask, PositionSet
from bookstand.delivery.time_index.index import TimeIndex
from bookstand.delivery.time_index.precision import Precision

_LATEST = (1 << 63) - 1
# Up to this many dead entries do not justify rebuilding the index.
_MIN_DEAD = 4096


class ScheduledPositions:
    """Delayed positions by time, rounded up if ``round_up``, else down, or by ``precision``. Not thread-safe."""

    def __init__(self, precision_bits: int, round_up: bool, precision: Precision | None = None) -> None:
        self._bits = precision_bits
        self._round_up = round_up
        self._precision = precision
        self._index = self._new_index()
        self._live = PositionSet()
        self._dead = PositionSet()
        # Lower bound of the earliest key, equal to it if exact. Querying the index after every addition would cost more
        # than the addition.
        self._next: int | None = None
        self._next_is_exact = True

    def _new_index(self) -> TimeIndex:
        if self._precision is not None:
            # Times are rounded when they are added, because the precision may depend on the clock.
            return TimeIndex()
        return TimeIndex(self._bits, round_up=self._round_up)

    def __len__(self) -> int:
        return len(self._live)

    def add(self, time: int, ledger_id: int, entry_id: int) -> None:
        """Add a position; if it is already present it keeps its time."""
        if not self._live.add(ledger_id, entry_id):
            return
        if self._precision is not None:
            time = self._precision.key(time)
        if not (self._dead and self._dead.discard(ledger_id, entry_id) and self._revive(time, ledger_id, entry_id)):
            self._index.add(time, ledger_id, entry_id)
        self._lower_next(time)

    def add_many(self, times: Column, ledger_ids: Column, entry_ids: Column) -> None:
        """Add positions in order; the first time of a repeated position counts."""
        rows = np.flatnonzero(~self._live.contains_many(ledger_ids, entry_ids))
        rows = rows[first_of_each(ledger_ids[rows], entry_ids[rows])]
        if not len(rows):
            return
        times, ledger_ids, entry_ids = times[rows], ledger_ids[rows], entry_ids[rows]
        if self._precision is not None:
            times = self._precision.keys(times)
        if self._dead and self._dead.contains_many(ledger_ids, entry_ids).any():
            # They may be dead under other times. Dropping all dead entries avoids a search for each.
            self._drop_dead()
        self._live.add_many(ledger_ids, entry_ids)
        self._index.add_many(times, ledger_ids, entry_ids)
        self._lower_next(int(times.min()))

    def _revive(self, time: int, ledger_id: int, entry_id: int) -> bool:
        """Return True if a dead position is in the index under this time; otherwise drop its dead entries.

        The search for other times is slow but rare, because a message normally has one time.
        """
        if self._index.contains(time, ledger_id, entry_id):
            return True
        keys, ledger_ids, entry_ids = self._index.peek().columns()
        for row in np.flatnonzero((ledger_ids == ledger_id) & (entry_ids == entry_id)).tolist():
            self._index.discard(int(keys[row]), ledger_id, entry_id)
        return False

    def _lower_next(self, time: int) -> None:
        if self._next is None or time < self._next:
            key = self._index.key(time)
            self._next = key if self._next is None else min(key, self._next)

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """Remove a position; return False if it is missing."""
        if not self._live.discard(ledger_id, entry_id):
            return False
        self._dead.add(ledger_id, entry_id)
        self._next_is_exact = False
        if not self._live:
            self.clear()
        elif len(self._dead) > max(len(self._live), _MIN_DEAD):
            self._drop_dead()
        return True

    def _drop_dead(self) -> None:
        keys, ledger_ids, entry_ids = self._index.peek().columns()
        live = ~self._dead.contains_many(ledger_ids, entry_ids)
        self._rebuild(self._bits, keys[live], ledger_ids[live], entry_ids[live])
        self._dead.clear()

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        return self._live.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        return self._live.contains_many(ledger_ids, entry_ids)

    def next_key(self) -> int | None:
        """The earliest key of a live position."""
        if self._next_is_exact:
            return self._next
        batch = 16
        while self._dead:
            _, ledger_ids, entry_ids = self._index.peek(limit=batch).columns()
            dead = self._dead.contains_many(ledger_ids, entry_ids)
            dead_prefix = len(dead) if dead.all() else int(dead.argmin())
            if dead_prefix:
                self._index.pop_due(_LATEST, dead_prefix)
                self._dead.discard_many(ledger_ids[:dead_prefix], entry_ids[:dead_prefix])
            if dead_prefix < len(dead):
                break
            batch = min(4 * batch, 1 << 16)
        self._next = self._index.next_time()
        self._next_is_exact = True
        return self._next

    @property
    def earliest_key_bound(self) -> int | None:
        """Lower bound of the earliest key, cheaper than :meth:`next_key`."""
        return self._next

    def pop(self, until: int, limit: int | None) -> tuple[Column, Column]:
        """Remove up to ``limit`` positions with keys up to ``until``, the earliest first."""
        until = min(until, _LATEST)
        self._next_is_exact = False
        parts: list[tuple[Column, Column]] = []
        remaining = limit
        while remaining is None or remaining > 0:
            _, ledger_ids, entry_ids = self._index.pop_due(until, remaining).columns()
            popped = len(ledger_ids)
            if self._dead:
                dead = self._dead.contains_many(ledger_ids, entry_ids)
                self._dead.discard_many(ledger_ids[dead], entry_ids[dead])
                ledger_ids, entry_ids = ledger_ids[~dead], entry_ids[~dead]
            self._live.discard_many(ledger_ids, entry_ids)
            parts.append((ledger_ids, entry_ids))
            if remaining is None or len(ledger_ids) == popped:
                break
            remaining -= len(ledger_ids)
        if len(parts) == 1:
            return parts[0]
        empty = np.empty(0, dtype=np.int64)
        return (
            np.concatenate([empty, *(ledger_ids for ledger_ids, _ in parts)]),
            np.concatenate([empty, *(entry_ids for _, entry_ids in parts)]),
        )

    def peek(self, first: int | None, last: int | None) -> tuple[Column, Column, Column]:
        """Key, ledger and entry of positions with keys from ``first`` to ``last``, in order."""
        columns = self._index.peek(first, last).columns()
        if not self._dead:
            return columns
        keys, ledger_ids, entry_ids = columns
        live = ~self._dead.contains_many(ledger_ids, entry_ids)
        return keys[live], ledger_ids[live], entry_ids[live]

    def rekey(self, precision_bits: int) -> None:
        """Change the bucket width. Keys are rounded further; a smaller width does not restore exact times."""
        if precision_bits == self._bits or self._precision is not None:
            self._bits = precision_bits
            return
        self._rebuild(precision_bits, *self._index.peek().columns())

    def _rebuild(self, precision_bits: int, keys: Column, ledger_ids: Column, entry_ids: Column) -> None:
        self._bits = precision_bits
        self._index = self._new_index()
        self._index.add_many(keys, ledger_ids, entry_ids)
        self._next = self._index.next_time()
        self._next_is_exact = not self._dead

    def clear(self) -> None:
        for part in (self._index, self._live, self._dead):
            part.clear()
        self._next = None
        self._next_is_exact = True

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes + self._live.memory_bytes + self._dead.memory_bytes


def first_of_each(ledger_ids: Column, entry_ids: Column) -> Column:
    """Ascending indexes of the rows where a position occurs first."""
    if (ledger_ids[1:] == ledger_ids[:-1]).all() and (entry_ids[1:] > entry_ids[:-1]).all():
        return np.arange(len(ledger_ids))
    order = np.lexsort((entry_ids, ledger_ids))
    ledger_ids, entry_ids = ledger_ids[order], entry_ids[order]
    repeated = np.zeros(len(order), dtype=np.bool_)
    repeated[1:] = (ledger_ids[1:] == ledger_ids[:-1]) & (entry_ids[1:] == entry_ids[:-1])
    # The sort is stable, so the first of equal rows comes first.
    return np.sort(order[~repeated])


def order_matters(tracked: ScheduledPositions | PositionSet, due: Mask, ledger_ids: Column, entry_ids: Column) -> bool:
    """Return True if a due message is already tracked, or the batch contains a position twice."""
    if tracked.contains_many(ledger_ids[due], entry_ids[due]).any():
        return True
    return len(first_of_each(ledger_ids, entry_ids)) < len(ledger_ids)
