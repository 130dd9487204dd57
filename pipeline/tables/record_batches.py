"""Construction of record batches. Only the columns that a query needs are built."""

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
# Messages may expand to many times their stored size, and an Arrow array is limited to 2 GiB.
_BYTES = 32 << 20
# Maximum number of damaged rows that an error message lists.
_NAMED = 10


class DamagedDataError(StoreDamagedError):
    """Damage encountered by a strict read."""


def from_columns(query: Query, place: DataSource, count: int, values: Mapping[str, Any]) -> pa.RecordBatch:
    """Make a batch from arrays, constants, or callables that return either. Missing columns are null."""
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
    """Make batches from rows, which map column names to values. Map columns accept pairs or dictionaries."""
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
    """Group rows into lists of up to ``size``, and fewer if their ``large`` columns have many bytes."""
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
    """Make a row for each damage, with ledger and entry if the table has these columns."""
    return from_rows(query, place, (damaged_row(one) for one in damage))


def damaged_row(damage: Damage, **more: Any) -> Row:
    row: Row = {ERROR: damage_text(damage), **more}
    if damage.ledger_id >= 0:
        row["ledger_id"] = damage.ledger_id
    if damage.entry_id >= 0:
        row["entry_id"] = damage.entry_id
    return row


def damage_text(damage: Damage) -> str:
    """Location and description of damage. The offset is omitted if it is unknown."""
    text = str(damage)
    return text if damage.offset >= 0 else text.replace(f"{damage.file} at {damage.offset}", damage.file, 1)


def project_and_filter(query: Query, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply the predicate and select the columns of a query."""
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
