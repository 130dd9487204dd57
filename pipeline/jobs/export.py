"""``export``: write tables of stores and disks as Parquet files. Each table has a folder.

A table is one file for each place; messages of stores are one file for each topic. Files are published atomically and
have the columns of :mod:`bookstand.pipeline.tables.schemas`. Damage is a row with an error, and is in the summary.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bookstand.disk.topics.topics import topics
from bookstand.errors import BookstandError
from bookstand.pipeline.execution.input_state import place_state
from bookstand.pipeline.execution.publish import Output
from bookstand.pipeline.execution.unit import JobPlan, Result, Unit, fingerprint
from bookstand.pipeline.execution.worker import Lost, calls
from bookstand.pipeline.tables.sources import STORE, DataSource, check_present, open_metadata, open_source

if TYPE_CHECKING:
    import pyarrow as pa

    from bookstand.pipeline.tables.query import Query

TABLES = ("ledgers", "messages", "cursors", "acks", "delayed_buckets", "delayed_index")
"""Tables that are exported by default. The other tables are ``entries`` and ``nodes``."""

# Rows of a row group: large groups are read faster, and the writer holds one in memory.
_ROW_GROUP = 1 << 17
_NAME_BYTES = 200


@dataclass(frozen=True)
class Export:
    """Job that writes tables of stores and disks as Parquet files."""

    places: tuple[DataSource, ...]
    output: str
    tables: tuple[str, ...] = TABLES
    topics: tuple[str, ...] = ()
    looking: bool = False
    """True in a dry run."""

    name = "export"

    def __post_init__(self) -> None:
        Output(self.output)
        # The import of tables fails if Arrow is not installed.
        from bookstand.pipeline.tables.schemas import table_of

        for table in self.tables:
            table_of(table)

    def work(self) -> Path | None:
        return None if self.looking else Output(self.output).attempts()

    def plan(self) -> JobPlan:
        """Plan a unit for each table of a place, and a unit for each topic for the messages of a store."""
        units: list[Unit] = []
        problems: list[str] = []
        topics_found: set[str] = set()
        # Reading a damaged store may kill the process.
        for place, planned in calls(self._planned, self.places):
            if isinstance(planned, Lost):
                problems.append(f"{place.name}: {planned.why}")
                continue
            units += planned.units
            problems += planned.problems
            topics_found.update(planned.topics)
        problems += [f"topic {one} is in none of the places" for one in self.topics if one not in topics_found]
        return JobPlan(units, problems=tuple(problems))

    def _planned(self, place: DataSource) -> _Planned | Lost:
        units = []
        try:
            state = place_state(place)
            found, problems = self._topics(place)
            for table in self.tables:
                by_topic = table == "messages" and place.kind == STORE
                wanted = [[name] for name in found if not self.topics or name in self.topics]
                for chosen in wanted if by_topic else [list(self.topics)]:
                    name = " ".join((place.name, table, *(chosen if table == "messages" else ())))
                    of = {"place": list(place), "state": state, "table": table, "topics": chosen}
                    units.append(Unit(name, of))
        except (BookstandError, OSError) as error:
            return Lost(str(error))
        return _Planned(units, problems, found)

    def _topics(self, place: DataSource) -> tuple[list[str], list[str]]:
        """Topics of a place, if the units depend on them, and the damage found while listing them. A table that is
        restricted to some topics has no rows for damage that cannot be attributed to a topic."""
        if not self.topics and (place.kind != STORE or "messages" not in self.tables):
            return [], []
        if place.kind == STORE:
            with open_source(place) as disks:
                names = [topic.name for topic in topics(disks)]
                damage = disks.damage
        elif place.metadata is None:
            return [], []
        else:
            with open_metadata(place) as (dump, damage):
                names = dump.topics
        return names, [f"{place.name}: {one.what}" for one in damage]

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return Output(self.output).published(units, look_only=self.looking)

    def preview(self) -> Export:
        return replace(self, looking=True)

    def do(self, unit: Unit, folder: Path) -> Result:
        place, table = DataSource.of(unit.of["place"]), unit.of["table"]
        check_present(place)
        asked = _query(table, unit.of["topics"])
        file = None
        if not self.looking:
            file = Output.place(folder, f"{table}/{_begin(Path(place.paths[0]).name)}-{fingerprint(unit.name)}.parquet")
        rows, problems = _write(file, place, asked)
        Output.sync(folder)
        return Result(unit.name, {table: rows}, tuple(problems))

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return Output(self.output).publish(done)


def _begin(name: str) -> str:
    """Truncate a name so that the name of the file does not exceed the limit of file systems."""
    return os.fsencode(name)[:_NAME_BYTES].decode(errors="ignore")


class _Planned(NamedTuple):
    """Units and problems of one place, and its topics."""

    units: list[Unit]
    problems: list[str]
    topics: list[str]


def _query(table: str, chosen: Sequence[str]) -> Query:
    """Query for all rows, including messages in no bucket, restricted to ``chosen`` topics if the table has topics."""
    from bookstand.pipeline.tables.predicate import ALL
    from bookstand.pipeline.tables.query import query
    from bookstand.pipeline.tables.schemas import table_of

    of_topics = chosen and "topic" in table_of(table).names
    return query(table, wanted=ALL.among("topic", chosen) if of_topics else ALL, unsealed=True)


def _write(file: Path | None, place: DataSource, asked: Query) -> tuple[int, list[str]]:
    """Write all rows to ``file``, or only count them if it is None. Return their number and the distinct errors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bookstand.pipeline.tables import tables
    from bookstand.pipeline.tables.schemas import ERROR

    rows = 0
    problems: dict[str, None] = {}
    waiting: list[pa.RecordBatch] = []

    def flush(least: int) -> None:
        if writer is not None and sum(map(len, waiting)) >= least:
            writer.write_table(pa.Table.from_batches(waiting))
            waiting.clear()

    writer = None if file is None else pq.ParquetWriter(file, asked.table.schema, compression="zstd")
    try:
        for batch in tables.read([place], asked):
            rows += batch.num_rows
            problems |= dict.fromkeys(batch.column(ERROR).drop_null().to_pylist())
            if writer is not None and batch.num_rows:
                waiting.append(batch)
            flush(_ROW_GROUP)
        flush(1)
    finally:
        if writer is not None:
            writer.close()
    return rows, list(problems)
