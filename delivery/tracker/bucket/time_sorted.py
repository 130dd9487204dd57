"""Messages in memory in the order of their times: sorted columns, of which few are looked at at a time.

What comes in waits until somebody asks for as early a time as its earliest. Then it becomes a *run*, sorted by time,
ledger and entry. Runs give out what is due from their fronts: of the earliest run what is before every other one, and
where that is little, the fronts of all that are due become a run of their own first. So a message is sorted once when
it comes and once before it goes, however many runs there are and however few messages are asked for at a time.

Beside the time index (``time_index.py``): that one packs messages, and finds each of them; this one has 24 bytes for a
message, and gives and takes thousands at a fraction of the time. It is for what is on its way from or to the disk.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import count

import numpy as np

from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, Numbers, concatenate
from bookstand.delivery.tracker.bucket.snapshot.rows import sorted_rows

_NONE = Indexes(*(np.empty(0, dtype=np.int64) for _ in range(3)))
_BYTES_OF_MESSAGE = 24
# Of a run, and of a message that came by itself.
_BYTES_OF_RUN, _BYTES_OF_SINGLE = 600, 200
# About so many messages become a run together before they go, and of one run so many at least, unless it ends before.
_FRONT = 1 << 15
_LEAST = 64
# A run that is less than this is joined to others of its kind, so that there are not many of them.
_SMALL = 1 << 12
# So few spent ones are not worth looking for.
_FEW_SPENT = 64


class _Run:
    """Sorted messages from ``start`` on. The times are looked up one by one, which arrays are slow at."""

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
        """Where what is later begins."""
        return bisect_right(self.times, until, self.start)

    def take(self, end: int) -> Indexes:
        start, self.start = self.start, end
        return self.rows.part(start, end)

    @property
    def rest(self) -> Indexes:
        return self.rows.part(self.start, len(self.times))


class TimeSortedBuffer:
    """Not safe between threads: its owner has a lock. Ids are from 0 up; what is added twice is there twice."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Run]] = []
        self._numbers = count()
        self._small: list[_Run] = []
        # How many runs have come since those that are spent were looked for.
        self._joined = 0
        self._singles: list[tuple[int, int, int]] = []
        self._arrived: list[Indexes] = []
        # The earliest time of what has come and is in no run.
        self._least: int | None = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # -- in ----------------------------------------------------------------------------------------------------------

    def add(self, time: int, ledger_id: int, entry_id: int) -> None:
        self._singles.append((time, ledger_id, entry_id))
        self._count += 1
        if self._least is None or time < self._least:
            self._least = time

    def add_many(self, timestamps: Numbers, ledger_ids: Numbers, entry_ids: Numbers) -> None:
        """Columns, which the caller does not change any more."""
        if len(timestamps):
            self._arrived.append(Indexes(timestamps, ledger_ids, entry_ids))
            self._count += len(timestamps)
            least = int(timestamps.min())
            if self._least is None or least < self._least:
                self._least = least

    def add_sorted(self, rows: Indexes) -> None:
        """The same for what is in the order of times already."""
        if rows.size:
            self._count += rows.size
            self._push(_Run(rows))

    def _push(self, run: _Run) -> None:
        if run:
            heapq.heappush(self._heap, (run.head, next(self._numbers), run))

    def _settle(self) -> None:
        """Whatever has come becomes a run."""
        if self._least is None:
            return
        if self._singles:
            self._arrived.append(Indexes(*np.array(self._singles, dtype=np.int64).T))
            self._singles = []
        parts, self._arrived = self._arrived, []
        self._least = None
        size = sum(part.size for part in parts)
        # As one counts with digits: each small run is twice as large as the next one at least.
        self._small = [run for run in self._small if run]
        while self._small and len(self._small[-1]) <= 2 * size:
            run = self._small.pop()
            size += len(run)
            parts.append(run.take(len(run.times)))
        run = _Run(Indexes(*sorted_rows(*concatenate(parts))))
        if size < _SMALL:
            self._small.append(run)
        self._push(run)
        self._bury_spent()

    def _bury_spent(self) -> None:
        """What was joined to another run stays in its place until it comes to the front, unless it is too much."""
        self._joined += 1
        if self._joined > _FEW_SPENT and self._joined > len(self._heap) // 2:
            self._heap = [one for one in self._heap if one[2]]
            heapq.heapify(self._heap)
            self._joined = 0

    # -- out ---------------------------------------------------------------------------------------------------------

    def next_time(self) -> int | None:
        """The earliest; None if there is nothing."""
        self._drop_spent()
        if not self._heap:
            return self._least
        head = self._heap[0][0]
        return head if self._least is None else min(head, self._least)

    def first(self) -> Indexes:
        """A message of the earliest time; there is one."""
        self._settle()
        self._drop_spent()
        run = self._heap[0][2]
        return run.rows.part(run.start, run.start + 1)

    def lowest_of_first_time(self) -> int:
        """The lowest ledger of which there is a message of the earliest time; there is one."""
        self._settle()
        self._drop_spent()
        heap = self._heap
        first = heap[0][0]
        found: list[int] = []
        # Only those parts of the heap that have this time: none is earlier than the one above it.
        places = [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] == first:
                run = heap[place][2]
                if run:
                    # A run has the messages of a time in the order of their ledgers.
                    found.append(int(run.rows.ledger_ids[run.start]))
                places += (2 * place + 1, 2 * place + 2)
        return min(found)

    def drop_first(self) -> None:
        """Remove what :meth:`first` has just told."""
        run = heapq.heappop(self._heap)[2]
        run.start += 1
        self._count -= 1
        self._push(run)

    def has(self, until: int, amount: int) -> bool:
        """Whether there are as many of times up to this one."""
        if self._least is not None and self._least <= until:
            self._settle()
        for _, _, run in self._heap:
            if amount <= 0:
                break
            amount -= run.end(until) - run.start
        return amount <= 0

    def pop_due(self, until: int, limit: int | None = None) -> Indexes:
        """Remove and return what has times up to this one; at most ``limit`` messages, the earliest, in the order of
        their times. Without a limit in any order."""
        if self._least is not None and self._least <= until:
            self._settle()
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
            self._drop_spent()
            heap = self._heap
            if not heap or heap[0][0] > until:
                break
            run = heap[0][2]
            # Up to here nothing but this run has something.
            others = heap[1:3]
            alone = min(others)[0] - 1 if others else until
            end = min(run.end(min(alone, until)), run.start + limit)
            if end - run.start < min(limit, _LEAST) and alone < until:
                self._make_front(until)
                continue
            rows = run.take(end)
            limit -= rows.size
            found.append(rows)
            if run:
                heapq.heapreplace(heap, (run.head, next(self._numbers), run))
            else:
                heapq.heappop(heap)
        return found

    def _make_front(self, until: int) -> None:
        """The fronts of what is due become one run: of each run about as much, and whatever the others have until the
        first of these ends."""
        runs = self._pop_runs(until)
        most = max(_LEAST, _FRONT // len(runs))
        last = min((run.times[run.start + most - 1] for run in runs if len(run) > most), default=until)
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

    def _drop_spent(self) -> None:
        """Runs that were joined to others are left in the heap."""
        while self._heap and not self._heap[0][2]:
            heapq.heappop(self._heap)

    # -- looking -----------------------------------------------------------------------------------------------------

    def everything(self) -> Indexes:
        """In any order."""
        self._settle()
        rest = [run.rest for _, _, run in self._heap]
        return rest[0] if len(rest) == 1 else concatenate([_NONE, *rest])

    def clear(self) -> None:
        self._heap.clear()
        self._small.clear()
        self._singles.clear()
        self._arrived.clear()
        self._least = None
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        rows = sum(part.size for part in self._arrived) + sum(len(run.times) for _, _, run in self._heap)
        return (
            _BYTES_OF_MESSAGE * rows
            + _BYTES_OF_RUN * (len(self._arrived) + len(self._heap))
            + _BYTES_OF_SINGLE * len(self._singles)
        )
