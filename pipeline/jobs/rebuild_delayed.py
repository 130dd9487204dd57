"""``rebuild-delayed``: rebuild the bucket snapshots of subscriptions from the messages.

Delayed messages are read from the entries of each topic, or from an exported table of messages. Acknowledged messages
are left out. The new buckets replace all buckets of the subscriptions, in one transaction for each topic.

A topic is one unit. If its ledgers are in several stores, or if row groups of the table have messages of several
topics, its messages are read in parts, which are then joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.disk.metadata.dump import MetadataDump
from bookstand.disk.topics.cursors import DiskCursor
from bookstand.disk.topics.cursors import cursor as cursor_of
from bookstand.disk.topics.delayed import waiting
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import BookstandError, IncorrectParameterError, StoreDamagedError
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.pipeline.execution import store_commit
from bookstand.pipeline.execution.input_state import file_state
from bookstand.pipeline.execution.unit import JobPlan, Packed, Part, Result, Unit
from bookstand.pipeline.jobs.bucket_cutting import CutSettings, check_bucket, cut
from bookstand.pipeline.jobs.bucket_staging import ENTRY_LIMIT, change_of, cursor_fingerprint, cursor_names, stage
from bookstand.pipeline.jobs.single_topic import opened_topic
from bookstand.pipeline.jobs.topics import each_topic, missing
from bookstand.pipeline.tables import delayed_rows
from bookstand.pipeline.tables.sources import STORE, DataSource, local_path, open_source
from bookstand.proto.expansion import DEFAULT, ExpansionLimits

_MANAGED_LEDGER = "pulsar/managed-ledger"


@dataclass(frozen=True)
class RebuildDelayed:
    """Job that rebuilds buckets. ``topics`` and ``cursors`` restrict it. Messages due by ``due_by`` (ms) are left out.

    ``rest`` also seals the last bucket of a cursor; without it, messages after the last complete bucket remain in the
    topic only, as with the tracker. ``together`` means that the stores are parts of the same cluster: a ledger that is
    missing in one is read from another. ``table`` lists Parquet files to read messages from, instead of the stores.
    """

    stores: tuple[str, ...]
    cut: CutSettings = field(default_factory=CutSettings)
    topics: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()
    due_by: int = 0
    rest: bool = True
    together: bool = False
    table: tuple[str, ...] = ()
    workplace: str | None = None
    looking: bool = False
    """True in a dry run."""
    limits: ExpansionLimits = DEFAULT
    """Bounds on the expansion of entries and records."""

    name = "rebuild-delayed"

    def __post_init__(self) -> None:
        self.cut.check()
        store_commit.work(self.workplace)
        # Tasks may have a different working directory.
        object.__setattr__(self, "table", tuple(local_path(table, "table") for table in self.table))

    def work(self) -> Path | None:
        return None if self.looking else store_commit.work(self.workplace)

    # -- plan --------------------------------------------------------------------------------------------------------

    def plan(self) -> JobPlan:
        plan = JobPlan([], [], [])
        problems: list[str] = []
        tables = _tables(self.table, problems)
        where = self._where(problems) if self.together else {}
        found: set[str] = set()
        for store, topic in each_topic(self.stores, self.topics, problems, self.limits):
            names = cursor_names(topic, self.cursors)
            if not names or (self.table and topic.name not in tables):
                continue
            found.add(topic.name)
            of = self._of(store, topic, names)
            if self.table:
                _plan_table(of, tables[topic.name], plan)
            else:
                _plan_store(of, topic, where, plan)
        problems += missing(self.topics or tables, found)
        return plan._replace(problems=tuple(problems))

    def _of(self, store: str, topic: DiskTopic, names: Sequence[str]) -> dict[str, Any]:
        return {
            "store": store,
            "topic": topic.name,
            "cursors": {name: cursor_fingerprint(cursor_of(topic, name)) for name in names},
            "ledgers": [[ledger_id, count] for ledger_id, count in topic.entry_counts.items()],
            "settings": [*self.cut, self.due_by, self.rest],
        }

    def _where(self, problems: list[str]) -> dict[tuple[str, int], str]:
        """Map from (managed ledger, ledger id) to the store that has the ledger."""
        found: dict[tuple[str, int], str] = {}
        for store in self.stores:
            try:
                with open_source(DataSource(STORE, (store,), limits=self.limits)) as disks:
                    for ledger_id in disks.ledger_ids:
                        metadata = disks.ledger(ledger_id).metadata
                        label = None if metadata is None else metadata.custom_metadata.get(_MANAGED_LEDGER)
                        if label is not None:
                            found.setdefault((label.decode(errors="replace"), ledger_id), store)
            except (BookstandError, OSError) as error:
                problems.append(f"store {store}: {error}")
        return found

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return store_commit.done(self.name, units, self.limits)

    # -- do ----------------------------------------------------------------------------------------------------------

    def preview(self) -> RebuildDelayed:
        return replace(self, looking=True)

    def do(self, unit: Unit, folder: Path) -> Result:
        of = unit.of
        with opened_topic(of["store"], of["topic"], self.limits) as (topic, dump):
            if "table" in of:
                rows: Iterable[Indexes] = delayed_rows.of_table(of["table"], topic.name, of["row_groups"])
            else:
                _check_local(topic)
                rows = delayed_rows.of_topic(topic, topic.ledgers())
            return self._seal_all(unit, topic, dump, rows, folder)

    def read(self, part: Part) -> list[Packed]:
        of = part.of
        if "table" in of:
            import pyarrow.parquet as pq

            table = pq.ParquetFile(of["table"]).read_row_groups(of["row_groups"], columns=list(delayed_rows.COLUMNS))
            units = of["topics"]
            topics = delayed_rows.by_topic(table)
            return [Packed(units[name], delayed_rows.packed_rows(rows)) for name, rows in topics if name in units]
        with opened_topic(of["home"], of["topic"], self.limits) as (topic, _):
            record = topic.info
        (unit,) = part.units
        with open_source(DataSource(STORE, (of["store"],), limits=self.limits)) as disks:
            topic = DiskTopic(disks, of["topic"], record)
            parts = delayed_rows.of_topic(topic, of["ledgers"])
            found = [Packed(unit, delayed_rows.packed_rows(rows)) for rows in parts]
            return found + [Packed(unit, b"", problem=f"{of['store']}: {one}") for one in disks.damage]

    def join(self, unit: Unit, pieces: Sequence[bytes], folder: Path) -> Result:
        with opened_topic(unit.of["store"], unit.of["topic"], self.limits) as (topic, dump):
            return self._seal_all(unit, topic, dump, [delayed_rows.unpacked_rows(pieces)], folder)

    def _seal_all(
        self, unit: Unit, topic: DiskTopic, dump: MetadataDump, rows: Iterable[Indexes], folder: Path
    ) -> Result:
        """Seal the buckets of all cursors of a topic. The messages are read once."""
        versions = {name: dump.nodes[cursor_node_of(topic.name, name)].version for name in unit.of["cursors"]}
        cursors = [cursor_of(topic, name) for name in unit.of["cursors"]]
        parts = list(rows) if len(cursors) > 1 else rows
        number = messages = 0
        for cursor in cursors:
            for sealed in self._seal(cursor, parts, folder, number):
                messages += sealed
                number += 1
        counts = {"cursors": len(cursors), "buckets": number, "messages": messages}
        problems = tuple(str(one) for one in topic.disks.damage)
        return Result(unit.name, counts, problems, facts={"versions": versions})

    def _seal(self, cursor: DiskCursor, parts: Iterable[Indexes], folder: Path, number: int) -> Iterator[int]:
        left = (waiting(cursor, rows, self.due_by) for rows in parts)
        for bucket in cut(left, self.cut.least):
            if not self.rest and not bucket.complete:
                return
            check_bucket(bucket)
            snapshot = self.cut.seal(bucket.indexes, ENTRY_LIMIT)
            if not self.looking:
                stage(folder, cursor.name, number, bucket.key, snapshot)
            number += 1
            yield bucket.indexes.size

    # -- commit ------------------------------------------------------------------------------------------------------

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return store_commit.commit(self.name, done, change_of, self.limits)


def _check_local(topic: DiskTopic) -> None:
    """Raise if a ledger of the topic is labeled with another topic: ledger ids of several clusters can collide."""
    for ledger_id in topic.ledgers():
        ledger = topic.ledger(ledger_id)
        metadata = None if ledger is None else ledger.metadata
        label = None if metadata is None else metadata.custom_metadata.get(_MANAGED_LEDGER)
        if label is not None and label.decode(errors="replace") not in (topic.managed_ledger, topic.name):
            raise StoreDamagedError(f"ledger {ledger_id} is listed by topic {topic.name}, and is of {label!r}")


# -- location of messages ----------------------------------------------------------------------------------------------


def _plan_store(of: dict[str, Any], topic: DiskTopic, where: Mapping[tuple[str, int], str], plan: JobPlan) -> None:
    places: dict[str, list[int]] = {of["store"]: []}
    for ledger_id in topic.ledgers():
        store = None if topic.ledger(ledger_id) is not None else _elsewhere(where, topic, ledger_id)
        places.setdefault(store or of["store"], []).append(ledger_id)
    unit = Unit(f"{of['store']} {of['topic']}", of)
    if len(places) == 1:
        plan.units.append(unit)
        return
    plan.joined.append(unit)
    for store, ledgers in places.items():
        there = {"home": of["store"], "store": store, "topic": topic.name, "ledgers": ledgers}
        plan.parts.append(Part(f"{unit.name} from {store}", there, (unit.name,)))


def _elsewhere(where: Mapping[tuple[str, int], str], topic: DiskTopic, ledger_id: int) -> str | None:
    return where.get((topic.managed_ledger, ledger_id)) or where.get((topic.name, ledger_id))


_Rows = list[tuple[str, list[int], bool]]
"""Locations of a topic's messages: file, row groups, and True if these have no messages of other topics."""


def _tables(files: Sequence[str], problems: list[str]) -> dict[str, _Rows]:
    """Locations of messages by topic. A row group is not read if its statistics show a single topic."""
    found: dict[str, _Rows] = {}
    if files:
        import pyarrow.compute as pc
    for file in files:
        parquet = _opened(file)
        groups: dict[str, tuple[list[int], bool]] = {}
        damaged = 0
        for number in range(parquet.num_row_groups):
            statistics = _statistics(parquet, number, "topic")
            if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
                names, alone = [statistics.min], True
            else:
                names = pc.unique(parquet.read_row_group(number, columns=["topic"]).column(0)).to_pylist()
                alone = len(names) == 1
            damaged += _damaged_rows(parquet, number)
            for name in names:
                if name is None:
                    # Only damaged rows have no topic.
                    continue
                some, others = groups.get(name, ([], True))
                groups[name] = ([*some, number], others and alone)
        for name, (numbers, alone) in groups.items():
            found.setdefault(name, []).append((file, numbers, alone))
        if damaged:
            problems.append(f"{file}: {damaged} rows are damaged, and are taken for messages without delay")
    return found


def _opened(file: str) -> Any:
    """Open a Parquet file. Raise if it does not have the required columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise IncorrectParameterError(f"table {file} is no Parquet file: {error}") from None
    schema = parquet.schema_arrow
    missing = set(delayed_rows.COLUMNS) - set(schema.names)
    if missing:
        raise IncorrectParameterError(f"{file} is no table of messages: it has no {', '.join(sorted(missing))}")
    for name in delayed_rows.COLUMNS:
        found = schema.field(name).type
        kind = found.value_type if pa.types.is_dictionary(found) else found
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not (is_text if name == "topic" else pa.types.is_integer(kind)):
            wanted = "text" if name == "topic" else "whole numbers"
            raise IncorrectParameterError(f"table {file}: column {name} must be {wanted}, not {found}")
    return parquet


def _statistics(parquet: Any, number: int, column: str) -> Any:
    """Statistics of a column of a row group. Parquet numbers leaf columns, not top-level columns."""
    leaf = next(leaf for leaf in range(len(parquet.schema)) if parquet.schema.column(leaf).path == column)
    return parquet.metadata.row_group(number).column(leaf).statistics


def _damaged_rows(parquet: Any, number: int) -> int:
    from bookstand.pipeline.tables.schemas import ERROR

    if ERROR not in parquet.schema_arrow.names:
        return 0
    rows: int = parquet.metadata.row_group(number).num_rows
    statistics = _statistics(parquet, number, ERROR)
    if statistics is not None and statistics.has_null_count:
        return rows - int(statistics.null_count)
    return rows - int(parquet.read_row_group(number, columns=[ERROR]).column(0).null_count)


def _plan_table(of: dict[str, Any], rows: _Rows, plan: JobPlan) -> None:
    of = {**of, "messages": [[file, numbers, file_state(file)] for file, numbers, _ in rows]}
    name = f"{of['store']} {of['topic']}"
    if len(rows) == 1 and rows[0][2]:
        file, numbers, _ = rows[0]
        plan.units.append(Unit(name, {**of, "table": file, "row_groups": numbers}))
        return
    plan.joined.append(Unit(name, of))
    known = {part.name: number for number, part in enumerate(plan.parts)}
    for file, numbers, _ in rows:
        # A row group is one part, shared by all topics in it, so that it is read once.
        for number in numbers:
            here = f"{file} row group {number}"
            if here not in known:
                known[here] = len(plan.parts)
                plan.parts.append(Part(here, {"table": file, "row_groups": [number], "topics": {}}, ()))
            part = plan.parts[known[here]]
            part.of["topics"][of["topic"]] = name
            plan.parts[known[here]] = part._replace(units=(*part.units, name))
