"""Simple acknowledgment state in memory: a set or sorted ranges for each ledger.

Both are thread-safe with one lock, without storage and checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from benchmarks.measure import Missing

Ack = Callable[[tuple[int, int]], None]


class Sets:
    """A set of entry ids for each ledger."""

    def __init__(self, ledger_ids: Iterable[int]) -> None:
        self.sets: dict[int, set[int]] = {ledger_id: set() for ledger_id in ledger_ids}
        self.ack = self._ack()

    def _ack(self) -> Ack:
        """Return a closure that acknowledges an entry; it is 50 % faster than a method with attribute lookups.

        Tried and slower: bound `add` methods for each ledger, `acquire` and `release`, `position[0]` and `position[1]`.
        """
        lock, sets = Lock(), self.sets

        def ack(position: tuple[int, int]) -> None:
            ledger_id, entry_id = position
            with lock:
                sets[ledger_id].add(entry_id)

        return ack

    def __len__(self) -> int:
        return sum(map(len, self.sets.values()))


class SortedRanges:
    """A SortedDict of ranges for each ledger, from first to last entry."""

    def __init__(self, ledger_ids: Iterable[int]) -> None:
        try:
            from sortedcontainers import SortedDict
        except ImportError as error:
            raise Missing("sortedcontainers is not installed") from error
        self.ranges: dict[int, Any] = {ledger_id: SortedDict() for ledger_id in ledger_ids}
        self._lock = Lock()

    def ack_many(self, ledger_id: int, entry_ids: list[int]) -> None:
        """Acknowledge entries of one ledger, sorted first, so that neighbors are added as one range.

        Tried and slower: entry by entry without sorting; a new SortedDict of all ranges, old and new.
        """
        with self._lock:
            ranges = self.ranges[ledger_id]
            starts = ranges.keys()
            entry_ids = sorted(entry_ids)
            first = last = entry_ids[0]
            for entry_id in entry_ids[1:]:
                if entry_id > last + 1:
                    _add(ranges, starts, first, last)
                    first = entry_id
                last = entry_id
            _add(ranges, starts, first, last)

    def ack(self, positions: Iterable[tuple[int, int]]) -> None:
        """Acknowledge entries of any ledgers."""
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, entry_id in positions:
            if ledger_id in by_ledger:
                by_ledger[ledger_id].append(entry_id)
            else:
                by_ledger[ledger_id] = [entry_id]
        for ledger_id, entry_ids in by_ledger.items():
            self.ack_many(ledger_id, entry_ids)

    def __len__(self) -> int:
        return sum(last - first + 1 for ranges in self.ranges.values() for first, last in ranges.items())


def _add(ranges: Any, starts: Any, first: int, last: int) -> None:
    """Add a range, and merge it with adjacent ranges."""
    place = ranges.bisect_right(first)
    if place:
        before = starts[place - 1]
        end = ranges[before]
        if end >= first - 1:
            if end >= last:
                return
            first = before
            place -= 1
    count = len(ranges)
    while True:
        following = place + 1 if place < count and starts[place] == first else place
        if following >= count or starts[following] > last + 1:
            break
        start = starts[following]
        last = max(last, ranges.pop(start))
        count -= 1
    ranges[first] = last
