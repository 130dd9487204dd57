"""Facts of all ledgers in columns: a hundred thousand ledgers take a few megabytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookstand.tools.report.histogram import step_for
from bookstand.tools.view.base import LedgerFacts

UNKNOWN = -1
"""Placeholder for an unknown time or number."""

# Exceeds the largest bit length of a size.
_SIZES = 64


class Kind(NamedTuple):
    """Sum of the ledgers of a kind. ``oldest`` and ``newest`` are creation times."""

    kind: str
    ledgers: int
    entries: int
    bytes: int
    oldest: int | None
    newest: int | None


class Cell(NamedTuple):
    """Number of ledgers by creation time and size. ``column`` is the time step, :data:`UNKNOWN` if the time is unknown.
    ``bits`` is the bit length of the size: from ``2 ** (bits - 1)`` to less than ``2 ** bits`` bytes, 0 if empty."""

    column: int
    bits: int
    ledgers: int


class Grid(NamedTuple):
    """Ledgers by age and size. Column n begins at ``first + n * step``, in ms."""

    first: int
    step: int
    columns: int
    cells: list[Cell]


class _Names:
    """Interned texts and their numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


_NUMBERS = ("ledger", "entries", "bytes", "created")
_TEXTS = ("kind", "state", "topic", "cursor", "damage")


class Ledgers:
    def __init__(self) -> None:
        self._columns = {name: array("q") for name in (*_NUMBERS, *_TEXTS)}
        self._names = {name: _Names() for name in _TEXTS}

    def __len__(self) -> int:
        return len(self._columns["ledger"])

    def add(self, facts: LedgerFacts) -> None:
        for name in _NUMBERS:
            value = getattr(facts, name)
            self._columns[name].append(UNKNOWN if value is None else value)
        for name in _TEXTS:
            text = "; ".join(facts.damage) if name == "damage" else getattr(facts, name)
            self._columns[name].append(self._names[name].number(text))

    @property
    def entries(self) -> int:
        return int(self._column("entries").sum())

    @property
    def bytes(self) -> int:
        return int(self._column("bytes").sum())

    @property
    def damaged(self) -> int:
        """Number of damaged ledgers."""
        fine = self._names["damage"].numbers.get("", UNKNOWN)
        return int(np.count_nonzero(self._column("damage") != fine))

    def kinds(self) -> list[Kind]:
        """Sum up ledgers by kind, the largest kind first."""
        found = []
        kinds, created = self._column("kind"), self._column("created")
        for name, number in self._names["kind"].numbers.items():
            of_kind = kinds == number
            times = created[of_kind & (created != UNKNOWN)]
            found.append(
                Kind(
                    name,
                    int(np.count_nonzero(of_kind)),
                    int(self._column("entries")[of_kind].sum()),
                    int(self._column("bytes")[of_kind].sum()),
                    int(times.min()) if len(times) else None,
                    int(times.max()) if len(times) else None,
                )
            )
        return sorted(found, key=lambda one: (-one.bytes, one.kind))

    def largest(self, most: int) -> Iterator[dict[str, Any]]:
        """Yield at most ``most`` rows by ledger id: damaged ledgers are preferred, then the largest ones."""
        fine = self._names["damage"].numbers.get("", UNKNOWN)
        order = np.lexsort((self._column("ledger"), -self._column("bytes"), self._column("damage") == fine))
        texts = {name: list(self._names[name].numbers) for name in _TEXTS}
        for row in np.sort(order[:most]).tolist():
            numbers = {name: self._columns[name][row] for name in _NUMBERS}
            yield {**numbers, **{name: texts[name][self._columns[name][row]] for name in _TEXTS}}

    def grid(self, columns: int) -> Grid:
        """Group the ledgers by age and size, with at most ``columns`` time steps."""
        created, bits = self._column("created"), _bits_of(self._column("bytes"))
        known = created != UNKNOWN
        first = step = used = 0
        column = np.full(len(self), UNKNOWN, np.int64)
        if known.any():
            low, high = int(created[known].min()), int(created[known].max())
            step = step_for(low, high, columns)
            first = low // step * step
            used = (high - first) // step + 1
            column[known] = (created[known] - first) // step
        # One number for each cell, so that cells are sorted by time and then by size.
        numbers, counts = np.unique(column * _SIZES + bits, return_counts=True)
        return Grid(
            first,
            step,
            used,
            [
                Cell(number // _SIZES, number % _SIZES, count)
                for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
            ],
        )

    def _column(self, name: str) -> NDArray[np.int64]:
        return np.array(self._columns[name], np.int64)


def _bits_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bit length of each number. A logarithm would not be exact."""
    bits = np.zeros(len(sizes), np.int64)
    left = sizes.copy()
    while (some := left > 0).any():
        bits[some] += 1
        left[some] >>= 1
    return bits
