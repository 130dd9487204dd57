"""Buffer of unordered messages that are sealed when it is full."""

from __future__ import annotations

import numpy as np

from bookstand.delivery.time_index.rows import Column, Rows, singles


class Staging:
    """Columns that grow to a fixed capacity. They may contain duplicates.

    The columns are reused, because the system would have to map new pages each time.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns = np.empty((3, 0), dtype=np.int64)
        self.count = 0
        self.next_key: int | None = None

    @property
    def nbytes(self) -> int:
        return self._columns.nbytes

    @property
    def full(self) -> bool:
        return self.count == self._capacity

    def add(self, keys: Column, ledgers: Column, entries: Column) -> int:
        """Add as many rows as fit, and return their number."""
        start, stop = self.count, min(self.count + len(keys), self._capacity)
        if stop > self._columns.shape[1]:
            self._grow(stop)
        added = stop - start
        for own, column in zip(self._columns, (keys, ledgers, entries), strict=True):
            own[start:stop] = column[:added]
        smallest = int(keys[:added].min())
        self.next_key = smallest if self.next_key is None else min(self.next_key, smallest)
        self.count = stop
        return added

    def _grow(self, length: int) -> None:
        columns = np.empty((3, min(self._capacity, 2 * length)), dtype=np.int64)
        columns[:, : self.count] = self._columns[:, : self.count]
        self._columns = columns

    def rows(self) -> Rows:
        """Return all rows, as views that are valid until rows are added."""
        return singles(*self._columns[:, : self.count])

    def empty(self) -> None:
        self.count = 0
        self.next_key = None

    def free(self) -> None:
        """Release the memory of the columns."""
        self.empty()
        self._columns = np.empty((3, 0), dtype=np.int64)
