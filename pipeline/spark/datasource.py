"""Spark data sources for stores and bookies' disks: ``format("bookstand")`` and ``format("bookie")``.

They adapt :mod:`bookstand.pipeline.tables.tables` to Spark's interface.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.spark.streaming import LedgerStream, default_table, streamed
from bookstand.pipeline.tables.partitioning import ReadPart
from bookstand.pipeline.tables.query import Query, checked_options, places_of, query_of
from bookstand.pipeline.tables.sources import BOOKIE, STORE
from bookstand.pipeline.tables.tables import plan_all, rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from bookstand.pipeline.tables.arrow import pa


class PartBundle(InputPartition):
    """Input of one task."""

    def __init__(self, parts: tuple[ReadPart, ...]) -> None:
        super().__init__(None)
        self.parts = parts


class Reader(DataSourceReader):
    """Reader of one frame, fully described by the options of its ``load``.

    It must not define ``pushFilters``: Spark stores pushed filters in an object that all frames of one ``load`` share,
    and the filter of one frame would also remove rows from the others.
    """

    def __init__(self, kind: str, options: dict[str, str], query: Query) -> None:
        self._kind = kind
        self._options = options
        self._query = query

    def partitions(self) -> Sequence[InputPartition]:
        places = places_of(self._kind, self._options)
        return [PartBundle(parts) for parts in plan_all(places, self._query)] or [PartBundle(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PartBundle)
        for part in partition.parts:
            yield from rows(part, self._query)


class _Source(DataSource):
    kind: str

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = checked_options(self.kind, options)
        self._query = query_of(self._options, default_table(self._options))

    def schema(self) -> str:
        return self._query.table.ddl(self._query.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self.kind, self._options, _chosen(self._query, schema))


class BookstandSource(_Source):
    """Source of one or more stores."""

    kind = STORE

    @classmethod
    def name(cls) -> str:
        return "bookstand"

    def streamReader(self, schema: StructType) -> LedgerStream:  # noqa: N802
        return streamed(self._options, _chosen(self._query, schema))


class BookieSource(_Source):
    """Source of the disks of clusters of bookies."""

    kind = BOOKIE

    @classmethod
    def name(cls) -> str:
        return "bookie"


SOURCES: tuple[type[DataSource], ...] = (BookstandSource, BookieSource)


def _chosen(query: Query, schema: StructType) -> Query:
    """Restrict a query to the columns of a schema. The schema must not change their types."""
    table = query.table
    columns = table.chosen(tuple(field.name for field in schema.fields))
    for field in schema.fields:
        if field.dataType.simpleString() != table[field.name].type:
            raise IncorrectParameterError(
                f"column {field.name} of table {table.name} is {table[field.name].type}, "
                f"not {field.dataType.simpleString()}"
            )
    return replace(query, columns=columns)
