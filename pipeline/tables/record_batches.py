"""Record batches of a table, of which only the columns are made that somebody wants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from bookstand.disk.damage import Damage
from bookstand.errors import StoreDamagedError
from bookstand.pipeline.tables.arrow import pa
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.schemas import ERROR, PLACE
from bookstand.pipeline.tables.sources import DataSource

Row = dict[str, Any]
_ROWS = 4096
# Messages may expand to many times their stored bytes, and an Arrow array holds no more than 2 GiB.
_BYTES = 32 << 20
# So many damaged rows are named in an error.
_NAMED = 10


class DamagedDataError(StoreDamagedError):
    """What a strict read has met."""


def from_columns(query: Query, place: DataSource, count: int, values: Mapping[str, Any]) -> pa.RecordBatch:
    """``values``: an array, a value for all rows, or what makes either once it is wanted. What is not there is null."""
    table, names = query.table, query.names
    chosen = [name for name in table.names if name in names]
    arrays = []
    for name in chosen:
        value = place.name if name == PLACE else values.get(name)
        if callable(value):
            value = value()
        kind = table[name].arrow
        if value is None:
            arrays.append(pa.nulls(count, kind))
        elif isinstance(value, pa.Array):
            arrays.append(value)
        elif isinstance(value, np.ndarray):
            arrays.append(pa.array(value, kind))
        else:
            arrays.append(pa.repeat(pa.scalar(value, kind), count))
    return pa.record_batch(arrays, table.schema_of(chosen))


def from_rows(query: Query, place: DataSource, rows: Iterable[Row], size: int = _ROWS) -> Iterator[pa.RecordBatch]:
    """Rows by the names of their columns. Maps are given as pairs, or as dictionaries."""
    table, names = query.table, query.names
    chosen = [name for name in table.names if name in names]
    schema = table.schema_of(chosen)
    for some in _pieces(iter(rows), size, [name for name in chosen if table[name].type == "binary"]):
        arrays = []
        for name in chosen:
            if name == PLACE:
                arrays.append(pa.repeat(pa.scalar(place.name), len(some)))
                continue
            values = [row.get(name) for row in some]
            if table[name].type.startswith("map"):
                values = [list(value.items()) if isinstance(value, dict) else value for value in values]
            arrays.append(pa.array(values, table[name].arrow))
        yield pa.record_batch(arrays, schema)


def _pieces(rows: Iterator[Row], size: int, large: Sequence[str]) -> Iterator[list[Row]]:
    """Rows in lists of up to ``size``, or fewer where the values of their ``large`` columns have many bytes."""
    if not large:
        while some := list(islice(rows, size)):
            yield some
        return
    some, weight = [], 0
    for row in rows:
        some.append(row)
        weight += sum(len(row.get(name) or b"") for name in large)
        if len(some) == size or weight >= _BYTES:
            yield some
            some, weight = [], 0
    if some:
        yield some


def from_damage(query: Query, place: DataSource, damage: Iterable[Damage]) -> Iterator[pa.RecordBatch]:
    """A row for each, with the ledger and the entry where the table has them."""
    return from_rows(query, place, (damaged_row(one) for one in damage))


def damaged_row(damage: Damage, **more: Any) -> Row:
    row: Row = {ERROR: damage_text(damage), **more}
    if damage.ledger_id >= 0:
        row["ledger_id"] = damage.ledger_id
    if damage.entry_id >= 0:
        row["entry_id"] = damage.entry_id
    return row


def damage_text(damage: Damage) -> str:
    """Where it is, and what. Not everything is at a place of a file."""
    text = str(damage)
    return text if damage.offset >= 0 else text.replace(f"{damage.file} at {damage.offset}", damage.file, 1)


def project_and_filter(query: Query, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows that are wanted, with the columns that are, and no others."""
    for batch in batches:
        if query.strict:
            _refuse_damage(batch)
        wanted = query.wanted.rows(batch)
        if wanted.num_rows:
            yield wanted.select(list(query.columns))


def _refuse_damage(batch: pa.RecordBatch) -> None:
    errors = batch.column(ERROR)
    if errors.null_count < len(errors):
        found = errors.drop_null()
        more = f"\nand {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise DamagedDataError("\n".join(found[:_NAMED].to_pylist()) + more)
