"""Where messages without order wait until there are enough of them to be sealed."""

from __future__ import annotations

import numpy as np

from bookstand.delivery.time_index.rows import Column, Rows, singles


class Staging:
    """Columns that grow up to a fixed length; nothing in them is looked at for being twice.

    They are used again and again: new ones would have to be brought into memory by the system each time.
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
        """Take as many rows as there is room for, and say how many."""
        start, stop = self.count, min(self.count + len(keys), self._capacity)
        if stop > self._columns.shape[1]:
            self._grow(stop)
        taken = stop - start
        for own, column in zip(self._columns, (keys, ledgers, entries), strict=True):
            own[start:stop] = column[:taken]
        least = int(keys[:taken].min())
        self.next_key = least if self.next_key is None else min(self.next_key, least)
        self.count = stop
        return taken

    def _grow(self, length: int) -> None:
        columns = np.empty((3, min(self._capacity, 2 * length)), dtype=np.int64)
        columns[:, : self.count] = self._columns[:, : self.count]
        self._columns = columns

    def rows(self) -> Rows:
        """Everything; the columns are good until something is added."""
        return singles(*self._columns[:, : self.count])

    def empty(self) -> None:
        self.count = 0
        self.next_key = None

    def free(self) -> None:
        """Give the columns back."""
        self.empty()
        self._columns = np.empty((3, 0), dtype=np.int64)
