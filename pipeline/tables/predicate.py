"""Predicates on rows: for each column, a range of numbers or a set of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bookstand.pipeline.tables.arrow import pa, pc

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class Predicate:
    """Conjunction of conditions on columns. A null value satisfies no condition."""

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Range of each column; both ends are inclusive."""
    values: Mapping[str, frozenset[int] | frozenset[str]] = field(default_factory=dict)
    given: frozenset[str] = frozenset()
    """Columns that must not be null."""

    def between(self, column: str, low: int = LOWEST, high: int = HIGHEST) -> Predicate:
        """Return this predicate restricted to rows with the column in a range."""
        before = self.range(column)
        return Predicate({**self.ranges, column: (max(low, before[0]), min(high, before[1]))}, self.values, self.given)

    def among(self, column: str, values: Iterable[int] | Iterable[str]) -> Predicate:
        """Return this predicate restricted to rows in which the column has one of ``values``."""
        before = self.values.get(column)
        now = frozenset(values) if before is None else before.intersection(values)
        return Predicate(self.ranges, {**self.values, column: now}, self.given)  # type: ignore[dict-item]

    def not_null(self, column: str) -> Predicate:
        return Predicate(self.ranges, self.values, self.given | {column})

    @property
    def columns(self) -> frozenset[str]:
        return frozenset((*self.ranges, *self.values, *self.given))

    def range(self, column: str) -> tuple[int, int]:
        """Smallest range that contains all values of the column that can satisfy the predicate."""
        low, high = self.ranges.get(column, (LOWEST, HIGHEST))
        values = [value for value in self.values.get(column, ()) if isinstance(value, int)]
        if column in self.values:
            low, high = max(low, min(values, default=HIGHEST)), min(high, max(values, default=LOWEST))
        return low, high

    def has(self, column: str, value: int | str) -> bool:
        """Return True if a row with this value can satisfy the predicate."""
        low, high = self.ranges.get(column, (LOWEST, HIGHEST))
        if isinstance(value, int) and not low <= value <= high:
            return False
        return column not in self.values or value in self.values[column]

    def overlaps(self, column: str, first: int, last: int) -> bool:
        """Return True if a value from ``first`` to ``last`` can satisfy the predicate."""
        low, high = self.range(column)
        return first <= high and low <= last

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a batch that satisfy the predicate."""
        mask = None
        for name in self.columns:
            column = batch.column(name)
            for part in self._masks(name, column):
                mask = part if mask is None else pc.and_(mask, part)
        return batch if mask is None else batch.filter(mask)

    def _masks(self, name: str, column: pa.Array) -> Iterable[pa.Array]:
        if name in self.given:
            yield pc.is_valid(column)
        if name in self.ranges:
            low, high = self.ranges[name]
            # A comparison with null gives null; a null value must not satisfy the condition.
            yield pc.fill_null(pc.greater_equal(column, pa.scalar(low, pa.int64())), False)
            yield pc.fill_null(pc.less_equal(column, pa.scalar(high, pa.int64())), False)
        if name in self.values:
            kind = column.type if not pa.types.is_integer(column.type) else pa.int64()
            wide = column if column.type == kind else column.cast(kind)
            yield pc.is_in(wide, value_set=pa.array(sorted(self.values[name]), kind))


ALL = Predicate()
