"""Which of Spark's filters a read can do by itself."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from bookstand.pipeline.schemas import Table
from bookstand.pipeline.wanted import HIGHEST, LOWEST, Wanted

_NUMBERS, _TEXTS = ("bigint", "int"), ("string",)


def taken(filters: Iterable[Filter], table: Table) -> tuple[Wanted, list[Filter]]:
    """What they want, and those that are left for Spark."""
    wanted, left = Wanted(), []
    for one in filters:
        more = _with(wanted, one, table)
        if more is None:
            left.append(one)
        else:
            wanted = more
    return wanted, left


def _with(wanted: Wanted, one: Filter, table: Table) -> Wanted | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    name = attribute[0] if len(attribute) == 1 else ""
    if name not in table.names:
        return None
    if isinstance(one, IsNotNull):
        return wanted.not_null(name)
    kind = table[name].type
    fits: type = int if kind in _NUMBERS else str
    if kind not in _NUMBERS + _TEXTS:
        return None
    values = one.value if isinstance(one, In) else (getattr(one, "value", None),)
    # What is no number of this size is compared by Spark.
    if not all(type(value) is fits for value in values):
        return None
    if fits is int and not all(LOWEST < value < HIGHEST for value in values):
        return None
    if isinstance(one, EqualTo | In):
        return wanted.among(name, values)
    if fits is int:
        (value,) = values
        if isinstance(one, GreaterThan):
            return wanted.between(name, low=value + 1)
        if isinstance(one, GreaterThanOrEqual):
            return wanted.between(name, low=value)
        if isinstance(one, LessThan):
            return wanted.between(name, high=value - 1)
        if isinstance(one, LessThanOrEqual):
            return wanted.between(name, high=value)
    return None
