"""``export``: what stores and disks hold, as Parquet: a folder for each table, a file for each place and topic.

Every file is there whole or not at all, and has the columns of
:data:`bookstand.pipeline.rows.TABLES`, behind ``place``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookstand.disk.topics import topics
from bookstand.errors import BookstandError, IncorrectParameterError, MissingExtraError
from bookstand.pipeline.places import STORE, Place, opened
from bookstand.pipeline.publishing import Output
from bookstand.pipeline.rows import NUMBER, TABLES, TEXT, of_table
from bookstand.pipeline.unit import Plan, Result, Unit, fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

    from bookstand.disk.disks import Disks

# Large enough to be read fast, small enough to be held.
_ROW_GROUP = 1 << 17


@dataclass(frozen=True)
class Export:
    places: tuple[Place, ...]
    output: str
    tables: tuple[str, ...] = tuple(TABLES)
    topics: tuple[str, ...] = ()
    looking: bool = False
    """Whether nothing is to be left."""

    name = "export"

    def __post_init__(self) -> None:
        for table in self.tables:
            if table not in TABLES:
                raise IncorrectParameterError(f"there is no table {table!r}, but {', '.join(TABLES)}")

    def work(self) -> Path | None:
        return None if self.looking else Output(self.output).attempts

    def plan(self) -> Plan:
        """A store is read a table and a topic at a time. Reading bookies' disks begins with reading all of them, so
        that is done once."""
        units: list[Unit] = []
        problems: list[str] = []
        for place in self.places:
            if place.kind != STORE:
                of = {"place": list(place), "tables": list(self.tables), "topics": list(self.topics)}
                units.append(Unit(place.name, of))
                continue
            try:
                with opened(place) as disks:
                    units += self._units(place, disks)
            except (BookstandError, OSError) as error:
                problems.append(f"{place.name}: {error}")
        return Plan(units, problems=tuple(problems))

    def _units(self, place: Place, disks: Disks) -> list[Unit]:
        units = []
        names = [topic.name for topic in topics(disks) if not self.topics or topic.name in self.topics]
        for table in self.tables:
            for only in [[name] for name in names] if table == "messages" else [list(self.topics)]:
                name = " ".join((place.name, table, *(only if table == "messages" else ())))
                units.append(Unit(name, {"place": list(place), "tables": [table], "topics": only}))
        return units

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return Output(self.output).published(units, look_only=self.looking)

    def preview(self) -> Export:
        return replace(self, looking=True)

    def do(self, unit: Unit, folder: Path) -> Result:
        kind, paths, metadata = unit.of["place"]
        place = Place(kind, tuple(paths), metadata)
        counts: dict[str, int] = {}
        with opened(place) as disks:
            for table in unit.of["tables"]:
                if self.looking:
                    counts[table] = sum(len(columns[0]) for columns in of_table(table, disks, unit.of["topics"]))
                    continue
                file = f"{table}/{Path(place.paths[0]).name}-{fingerprint(unit.name)}.parquet"
                counts[table] = _write(Output.place(folder, file), place, table, disks, unit.of["topics"])
            problems = tuple(dict.fromkeys(map(str, disks.damage)))
        return Result(unit.name, counts, problems)

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return Output(self.output).publish(done)


def schema(table: str) -> pa.Schema:
    """``place`` first."""
    pa = _pyarrow()
    kinds = {TEXT: pa.string(), NUMBER: pa.int64()}
    fields = [(name, kinds.get(kind) or pa.list_(pa.int64())) for name, kind in TABLES[table].items()]
    return pa.schema([("place", pa.string()), *fields])


def _write(file: Path, place: Place, table: str, disks: Disks, only: Sequence[str]) -> int:
    pa = _pyarrow()
    import pyarrow.parquet as pq

    wanted = schema(table)
    rows = 0
    waiting: list[Any] = []
    with pq.ParquetWriter(file, wanted, compression="zstd") as writer:
        for columns in of_table(table, disks, only):
            if not len(columns[0]):
                continue
            arrays = [pa.array(column, field.type) for column, field in zip(columns, list(wanted)[1:], strict=True)]
            waiting.append(pa.record_batch([pa.array([place.name] * len(arrays[0])), *arrays], schema=wanted))
            rows += len(arrays[0])
            if sum(map(len, waiting)) >= _ROW_GROUP:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
    return rows


def _pyarrow() -> pa:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'bookstand[spark]'") from error
    return pyarrow
