"""``export``: what stores and disks hold, as Parquet: a folder for each table, a file for each place and topic.

Every file is there whole or not at all, and has the columns of its table (:mod:`bookstand.pipeline.tables.schemas`).
What is damaged is a row with an error, and named in the summary.
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
"""Those that are exported if nothing else is said; there are ``entries`` and ``nodes`` besides."""

# Large enough to be read fast, small enough to be held.
_ROW_GROUP = 1 << 17
_NAME_BYTES = 200


@dataclass(frozen=True)
class Export:
    """Writes tables of stores and disks as Parquet."""

    places: tuple[DataSource, ...]
    output: str
    tables: tuple[str, ...] = TABLES
    topics: tuple[str, ...] = ()
    looking: bool = False
    """Whether nothing is to be left."""

    name = "export"

    def __post_init__(self) -> None:
        Output(self.output)
        # Arrow comes with the tables.
        from bookstand.pipeline.tables.schemas import table_of

        for table in self.tables:
            table_of(table)

    def work(self) -> Path | None:
        return None if self.looking else Output(self.output).attempts()

    def plan(self) -> JobPlan:
        """A table at a time, and messages a topic at a time where that takes no reading of everything."""
        units: list[Unit] = []
        problems: list[str] = []
        topics_found: set[str] = set()
        # A store may end the process that reads its topics.
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
        """Names of the topics of a place, where units depend on them, and what is damaged among them: in tables of some
        topics, damage of which the topic is not known has no row."""
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
    """As much of a name as leaves room for more in the name of a file."""
    return os.fsencode(name)[:_NAME_BYTES].decode(errors="ignore")


class _Planned(NamedTuple):
    """What a place contributes to the plan."""

    units: list[Unit]
    problems: list[str]
    topics: list[str]


def _query(table: str, chosen: Sequence[str]) -> Query:
    """Everything, what is not in buckets as well; of ``chosen`` topics where the table has any."""
    from bookstand.pipeline.tables.predicate import ALL
    from bookstand.pipeline.tables.query import query
    from bookstand.pipeline.tables.schemas import table_of

    of_topics = chosen and "topic" in table_of(table).names
    return query(table, wanted=ALL.among("topic", chosen) if of_topics else ALL, unsealed=True)


def _write(file: Path | None, place: DataSource, asked: Query) -> tuple[int, list[str]]:
    """How many rows there are, and what is wrong with some. Without a file they are only counted."""
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
