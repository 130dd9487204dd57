"""Buffer of messages in memory, sorted by time lazily.

New rows are buffered until a query includes their earliest time. Then they become a *run*, sorted by time, ledger and
entry. A pop takes from the earliest run the rows that precede all other runs. If those are few, the due prefixes of all
runs are first merged into one run. So each message is sorted once when it enters a run and once before it is popped,
for any number of runs and any limit.

Compared with the time index (``time_index/index.py``), which packs messages and supports lookups, this buffer takes 24
bytes per message and is several times as fast. It holds messages on their way to or from disk.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import count

import numpy as np

from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, Numbers, concatenate
from bookstand.delivery.tracker.bucket.snapshot.rows import sorted_rows

_NONE = Indexes(*(np.empty(0, dtype=np.int64) for _ in range(3)))
_MESSAGE_BYTES = 24
# Overhead of a run, and size of a message that was added on its own.
_RUN_BYTES, _SINGLE_BYTES = 600, 200
# Approximate size of a merged prefix, and minimum rows to take from one run.
_MERGED_PREFIX = 1 << 15
_MIN_TAKE = 64
# Runs below this size are merged with each other, so that they stay few.
_SMALL_RUN = 1 << 12
# Up to this many spent runs do not justify a cleanup.
_MIN_SPENT = 64


class _Run:
    """Sorted rows from ``start``. Single times are read through a memoryview, which is faster than through an array."""

    __slots__ = ("rows", "start", "times")

    def __init__(self, rows: Indexes) -> None:
        self.rows = rows
        self.times = memoryview(np.ascontiguousarray(rows.timestamps).data)
        self.start = 0

    def __len__(self) -> int:
        return len(self.times) - self.start

    @property
    def head(self) -> int:
        return int(self.times[self.start])

    def end(self, until: int) -> int:
        """Index of the first row after ``until``."""
        return bisect_right(self.times, until, self.start)

    def take(self, end: int) -> Indexes:
        start, self.start = self.start, end
        return self.rows.part(start, end)

    @property
    def rest(self) -> Indexes:
        return self.rows.part(self.start, len(self.times))


class TimeSortedBuffer:
    """Buffer of rows with non-negative ids, possibly repeated. Not thread-safe: callers hold a lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Run]] = []
        self._sequence = count()
        self._small: list[_Run] = []
        # Number of runs pushed since the last cleanup of spent runs.
        self._pushed = 0
        self._singles: list[tuple[int, int, int]] = []
        self._buffered: list[Indexes] = []
        # Earliest time of the rows that are in no run yet.
        self._earliest_buffered: int | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, time: int, ledger_id: int, entry_id: int) -> None:
        self._singles.append((time, ledger_id, entry_id))
        self._count += 1
        if self._earliest_buffered is None or time < self._earliest_buffered:
            self._earliest_buffered = time

    def add_many(self, timestamps: Numbers, ledger_ids: Numbers, entry_ids: Numbers) -> None:
        """Add columns, which the caller must not change afterwards."""
        if len(timestamps):
            self._buffered.append(Indexes(timestamps, ledger_ids, entry_ids))
            self._count += len(timestamps)
            earliest = int(timestamps.min())
            if self._earliest_buffered is None or earliest < self._earliest_buffered:
                self._earliest_buffered = earliest

    def add_sorted(self, rows: Indexes) -> None:
        """Add rows that are sorted by time."""
        if rows.size:
            self._count += rows.size
            self._push(_Run(rows))

    def _push(self, run: _Run) -> None:
        if run:
            heapq.heappush(self._heap, (run.head, next(self._sequence), run))

    def _flush(self) -> None:
        if self._earliest_buffered is None:
            return
        if self._singles:
            self._buffered.append(Indexes(*np.array(self._singles, dtype=np.int64).T))
            self._singles = []
        parts, self._buffered = self._buffered, []
        self._earliest_buffered = None
        size = sum(part.size for part in parts)
        # Like the digits of a counter: each small run is at least twice as large as the next.
        self._small = [run for run in self._small if run]
        while self._small and len(self._small[-1]) <= 2 * size:
            run = self._small.pop()
            size += len(run)
            parts.append(run.take(len(run.times)))
        run = _Run(Indexes(*sorted_rows(*concatenate(parts))))
        if size < _SMALL_RUN:
            self._small.append(run)
        self._push(run)
        self._remove_spent()

    def _remove_spent(self) -> None:
        """Remove spent runs from the heap if they are many; otherwise they are popped at the front."""
        self._pushed += 1
        if self._pushed > _MIN_SPENT and self._pushed > len(self._heap) // 2:
            self._heap = [one for one in self._heap if one[2]]
            heapq.heapify(self._heap)
            self._pushed = 0

    def next_time(self) -> int | None:
        """The earliest time; None if the buffer is empty."""
        self._pop_spent()
        if not self._heap:
            return self._earliest_buffered
        head = self._heap[0][0]
        return head if self._earliest_buffered is None else min(head, self._earliest_buffered)

    def first(self) -> Indexes:
        """The first row; the buffer must not be empty."""
        self._flush()
        self._pop_spent()
        run = self._heap[0][2]
        return run.rows.part(run.start, run.start + 1)

    def lowest_ledger_of_first_time(self) -> int:
        """Lowest ledger among the rows with the earliest time; the buffer must not be empty."""
        self._flush()
        self._pop_spent()
        heap = self._heap
        first = heap[0][0]
        found: list[int] = []
        # Search only the subtrees of the heap whose root has this time.
        places = [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] == first:
                run = heap[place][2]
                if run:
                    # Rows of equal time are sorted by ledger within a run.
                    found.append(int(run.rows.ledger_ids[run.start]))
                places += (2 * place + 1, 2 * place + 2)
        return min(found)

    def drop_first(self) -> None:
        """Remove the row that :meth:`first` just returned."""
        run = heapq.heappop(self._heap)[2]
        run.start += 1
        self._count -= 1
        self._push(run)

    def has_at_least(self, until: int, amount: int) -> bool:
        if self._earliest_buffered is not None and self._earliest_buffered <= until:
            self._flush()
        for _, _, run in self._heap:
            if amount <= 0:
                break
            amount -= run.end(until) - run.start
        return amount <= 0

    def pop_due(self, until: int, limit: int | None = None) -> Indexes:
        """Remove up to ``limit`` rows with times up to ``until``, sorted by time; without a limit unsorted."""
        if self._earliest_buffered is not None and self._earliest_buffered <= until:
            self._flush()
        found = self._all_until(until) if limit is None else self._first_until(until, limit)
        rows = found[0] if len(found) == 1 else concatenate(found) if found else _NONE
        self._count -= rows.size
        return rows

    def _all_until(self, until: int) -> list[Indexes]:
        runs = self._pop_runs(until)
        found = [run.take(run.end(until)) for run in runs]
        for run in runs:
            self._push(run)
        return found

    def _first_until(self, until: int, limit: int) -> list[Indexes]:
        found: list[Indexes] = []
        while limit > 0:
            self._pop_spent()
            heap = self._heap
            if not heap or heap[0][0] > until:
                break
            run = heap[0][2]
            # Up to this time no other run has rows.
            others = heap[1:3]
            run_until = min(others)[0] - 1 if others else until
            end = min(run.end(min(run_until, until)), run.start + limit)
            if end - run.start < min(limit, _MIN_TAKE) and run_until < until:
                self._merge_prefixes(until)
                continue
            rows = run.take(end)
            limit -= rows.size
            found.append(rows)
            if run:
                heapq.heapreplace(heap, (run.head, next(self._sequence), run))
            else:
                heapq.heappop(heap)
        return found

    def _merge_prefixes(self, until: int) -> None:
        """Merge prefixes of all due runs into one run, up to the time at which the shortest prefix ends."""
        runs = self._pop_runs(until)
        target = max(_MIN_TAKE, _MERGED_PREFIX // len(runs))
        last = min((run.times[run.start + target - 1] for run in runs if len(run) > target), default=until)
        last = min(last, until)
        front = [run.take(run.end(last)) for run in runs]
        for run in (_Run(Indexes(*sorted_rows(*concatenate(front)))), *runs):
            self._push(run)

    def _pop_runs(self, until: int) -> list[_Run]:
        runs = []
        while self._heap and self._heap[0][0] <= until:
            run = heapq.heappop(self._heap)[2]
            if run:
                runs.append(run)
        return runs

    def _pop_spent(self) -> None:
        """Pop spent runs, whose rows were merged into other runs, from the front of the heap."""
        while self._heap and not self._heap[0][2]:
            heapq.heappop(self._heap)

    def all_rows(self) -> Indexes:
        """All rows, in any order."""
        self._flush()
        rest = [run.rest for _, _, run in self._heap]
        return rest[0] if len(rest) == 1 else concatenate([_NONE, *rest])

    def clear(self) -> None:
        self._heap.clear()
        self._small.clear()
        self._singles.clear()
        self._buffered.clear()
        self._earliest_buffered = None
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        rows = sum(part.size for part in self._buffered) + sum(len(run.times) for _, _, run in self._heap)
        return (
            _MESSAGE_BYTES * rows
            + _RUN_BYTES * (len(self._buffered) + len(self._heap))
            + _SINGLE_BYTES * len(self._singles)
        )
