"""Delayed indexes: delivery times of messages, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bookstand.delivery.tracker.bucket.snapshot.rows import sorted_rows
from bookstand.errors import IncorrectParameterError

Numbers = NDArray[np.int64]


class DelayedIndex(NamedTuple):
    timestamp: int  # delivery time, in ms since 1970
    ledger_id: int
    entry_id: int


class Indexes(NamedTuple):
    """Delayed indexes as columns of equal length; the content of a segment."""

    timestamps: Numbers
    ledger_ids: Numbers
    entry_ids: Numbers

    @classmethod
    def of(cls, timestamps: ArrayLike, ledger_ids: ArrayLike, entry_ids: ArrayLike) -> Indexes:
        columns = [_as_column(column) for column in (timestamps, ledger_ids, entry_ids)]
        if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
            raise IncorrectParameterError("delayed indexes must be three columns of one length")
        return cls(*columns)

    @property
    def size(self) -> int:
        return len(self.timestamps)

    @property
    def indexes(self) -> list[DelayedIndex]:
        """The indexes as tuples."""
        return list(map(DelayedIndex, *(column.tolist() for column in self)))

    def part(self, start: int, end: int) -> Indexes:
        return Indexes(self.timestamps[start:end], self.ledger_ids[start:end], self.entry_ids[start:end])


def _as_column(values: ArrayLike) -> Numbers:
    column = np.asarray(values)
    if column.size and (column.dtype.kind not in "iu" or (column.dtype.kind == "u" and column.max() >= 1 << 63)):
        raise IncorrectParameterError("columns of delayed indexes must contain int64 values")
    return np.ascontiguousarray(column, dtype=np.int64)


def concatenate(parts: Sequence[Indexes]) -> Indexes:
    return Indexes(*map(np.concatenate, zip(*parts, strict=True)))


def distinct(indexes: Indexes) -> Indexes:
    """Sort by time, ledger and entry, and drop repeated rows of messages that were cancelled and added again."""
    ordered = sorted_rows(*indexes)
    repeated = np.zeros(indexes.size, dtype=np.bool_)
    repeated[1:] = np.logical_and.reduce([column[1:] == column[:-1] for column in ordered])
    return Indexes(*(column[~repeated] for column in ordered))
