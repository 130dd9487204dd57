"""Messages that a time index returns, ordered by bucket, ledger and entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bookstand.delivery.time_index.rows import Column, Rows
from bookstand.storage.format.position import Position


class Segment(NamedTuple):
    """The messages of one ledger in one bucket."""

    key: int
    ledger_id: int
    entry_ids: Column


class DueBatch:
    """Iterable of :class:`Segment`; ``len()`` is the number of messages.

    ``rows`` must be sorted and distinct. Columns are computed once, on first use.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._count = rows.total
        self._columns: tuple[Column, Column, Column] | None = None

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Segment]:
        keys, ledgers = self._rows.keys, self._rows.ledgers
        if not len(keys):
            return
        entries = self._rows.entries() if self._columns is None else self._columns[2]
        changes = np.flatnonzero((keys[1:] != keys[:-1]) | (ledgers[1:] != ledgers[:-1]))
        starts = np.concatenate(([0], changes + 1))
        ends = np.cumsum(self._rows.counts)[np.append(changes, len(keys) - 1)]
        at = 0
        for key, ledger, end in zip(keys[starts].tolist(), ledgers[starts].tolist(), ends.tolist(), strict=True):
            yield Segment(key, ledger, entries[at:end])
            at = end

    def columns(self) -> tuple[Column, Column, Column]:
        if self._columns is None:
            self._columns = self._rows.columns()
        return self._columns

    def triples(self) -> list[tuple[int, int, int]]:
        """Return one (bucket, ledger, entry) per message."""
        keys, ledgers, entries = (column.tolist() for column in self.columns())
        return list(zip(keys, ledgers, entries, strict=True))

    def positions(self) -> list[Position]:
        _, ledgers, entries = self.columns()
        return list(map(Position, ledgers.tolist(), entries.tolist()))
