"""What only Spark shows: formats and options, types, errors, a writer beside a slow read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.schemas import TABLES
from bookstand.pipeline.tables.sources import BOOKIE, STORE, DataSource
from bookstand.pipeline.tables.tables import read
from tests.disk.recordings import dump_path
from tests.kit import Child, eventually
from tests.pipeline import kit

pytestmark = pytest.mark.xdist_group("spark")


def plain(row: Any) -> dict[str, Any]:
    """A row as Arrow has it."""
    found = row.asDict()
    return {
        name: bytes(value)
        if isinstance(value, bytearray)
        else sorted(value.items())
        if isinstance(value, dict)
        else value
        for name, value in found.items()
    }


def key(row: dict[str, Any]) -> str:
    return repr(sorted(row.items(), key=lambda pair: pair[0]))


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", [STORE, BOOKIE])
def test_every_table_through_spark(spark: Any, place: Callable[[str, str], DataSource], kind: str, table: str) -> None:
    where = place("c", kind)
    reader = spark.read.format("bookstand" if kind == STORE else "bookie").option("table", table)
    if kind == BOOKIE:
        reader = reader.option("metadata", str(dump_path("c")))
    frame = reader.load(where.paths[0])
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        (column.name, column.type) for column in TABLES[table].columns
    ]
    expected = [row for batch in read([where], query(table)) for row in batch.to_pylist()]
    for row in expected:
        for name, value in row.items():
            if TABLES[table][name].type.startswith("map") and value is not None:
                row[name] = sorted(value)
    assert sorted(map(key, map(plain, frame.collect()))) == sorted(map(key, expected))


def test_several_stores_by_list_glob_and_option(spark: Any, imported: Callable[[str], Path]) -> None:
    paths = [str(imported(name)) for name in "bd"]
    names = [
        spark.read.format("bookstand").option("table", "ledgers").load(paths),
        spark.read.format("bookstand").option("table", "ledgers").load(json.dumps(paths)),
        spark.read.format("bookstand").options(table="ledgers", paths=json.dumps(paths)).load(),
        spark.read.format("bookstand").option("table", "ledgers").load(f"{Path(paths[0]).parent}/store-[bd]"),
    ]
    counts = {
        tuple(sorted((row["place"], row["count"]) for row in one.groupBy("place").count().collect())) for one in names
    }
    ((first, second),) = counts
    assert [first[0], second[0]] == paths


def test_sql_knows_the_formats(spark: Any, imported: Callable[[str], Path]) -> None:
    path = imported("b")
    spark.sql(f"CREATE TEMPORARY VIEW b_cursors USING bookstand OPTIONS (path '{path}', table 'cursors')")
    (row,) = spark.sql("SELECT count(*) AS cursors, max(backlog) AS most FROM b_cursors").collect()
    assert row["cursors"] == 16
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING bookstand OPTIONS (table 'cursors') LOCATION '{path}'")


def test_columns_by_option_and_by_schema(spark: Any, imported: Callable[[str], Path]) -> None:
    reader = spark.read.format("bookstand").option("table", "entries")
    some = reader.option("columns", "entry_id,size").load(str(imported("b")))
    assert some.columns == ["entry_id", "size"]
    given = spark.read.format("bookstand").option("table", "entries").schema("size bigint, entry_id bigint")
    other = given.load(str(imported("b")))
    assert other.columns == ["size", "entry_id"]
    assert some.agg({"size": "sum"}).collect() == other.agg({"size": "sum"}).collect()
    with pytest.raises(Exception, match="column size of table entries is bigint, not int"):
        spark.read.format("bookstand").schema("size int").load(str(imported("b"))).collect()


def test_errors_say_what_is_wrong(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"there is no option tabel, but path"):
        spark.read.format("bookstand").option("tabel", "x").load(str(tmp_path)).collect()
    with pytest.raises(Exception, match=r"neither a store nor|not a store|is no store"):
        spark.read.format("bookstand").load(str(tmp_path)).collect()


def test_strict_reads_name_the_entry(spark: Any, tmp_path: Path) -> None:
    from bookstand.storage.format.schema import ENTRY_KEY
    from tests.kit import raw

    with bookstand.open(tmp_path / "store") as store, store.create_ledger() as writer:
        writer.append_many([b"x" * 50] * 10)
    stored = ENTRY_KEY.pack(writer.id, 4)
    with raw(tmp_path / "store", write=True) as database:
        entries = database(b"entries")
        entries[stored] = entries[stored][:-1] + b"y"
    reader = spark.read.format("bookstand")
    found = reader.load(str(tmp_path / "store"))
    assert found.where("error IS NULL").count() == 9
    (wrong,) = found.where("error IS NOT NULL").collect()
    assert (wrong["ledger_id"], wrong["entry_id"]) == (writer.id, 4)
    assert str(tmp_path / "store") in wrong["error"]
    with pytest.raises(Exception, match=f"entry {writer.id}:4"):
        reader.option("mode", "strict").load(str(tmp_path / "store")).collect()


@pytest.mark.long
def test_a_limit_a_union_and_a_join_with_itself(spark: Any, imported: Callable[[str], Path]) -> None:
    """A task may stop early, and a process may read a store twice."""
    frame = spark.read.format("bookstand").options(table="entries", partitions="3").load(str(imported("c")))
    whole = frame.count()
    assert frame.rdd.getNumPartitions() == 3
    assert len(frame.limit(5).collect()) == 5
    assert frame.union(frame).count() == 2 * whole
    assert frame.join(frame, ["ledger_id", "entry_id"]).count() == whole


@pytest.mark.long
def test_all_tasks_see_what_was_there_at_planning(
    spark: Any, store_path: Path, tmp_path: Path, child: Callable[..., Child]
) -> None:
    """A process goes on writing while a slow read runs: every task ends where the plan says, also those that begin
    later."""
    writing = child()
    writing.run("ledgers = [store.create_ledger() for _ in range(4)]")
    writing.run("[ledger.append_many([b'x' * 100] * 500) for ledger in ledgers] and None")
    signals = str(tmp_path)

    def slow(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import time

        open(f"{signals}/begun-{os.getpid()}", "w").close()
        while not os.path.exists(f"{signals}/go-on"):
            time.sleep(0.01)
        yield from batches

    options = {"table": "entries", "columns": "ledger_id,entry_id", "partitions": "4"}
    frame = spark.read.format("bookstand").options(**options).load(str(store_path))
    with ThreadPoolExecutor() as threads:
        found = threads.submit(frame.mapInArrow(slow, frame.schema).collect)
        eventually(lambda: list(tmp_path.glob("begun-*")), "a task")
        writing.run("[ledger.append_many([b'y' * 100] * 500) for ledger in ledgers] and None")
        (tmp_path / "go-on").touch()
        rows = sorted(map(tuple, found.result()))
    assert rows == [(ledger, entry) for ledger in range(4) for entry in range(500)]
    assert spark.read.format("bookstand").load(str(store_path)).count() == 4 * 1000


def test_a_frame_is_planned_by_its_first_action(spark: Any, tmp_path: Path) -> None:
    """As docs/spark.md says: all that is made of one load() shows the same."""
    with bookstand.open(tmp_path / "store") as store:
        ledger = store.create_ledger()
        ledger.append_many([b"x"] * 10)
        frame = spark.read.format("bookstand").load(str(tmp_path / "store"))
        columns = frame.select("entry_id")
        ledger.append_many([b"x"] * 10)
        assert frame.count() == 20
        ledger.append_many([b"x"] * 10)
        assert (frame.count(), len(frame.collect()), columns.count(), frame.union(frame).count()) == (20, 20, 20, 40)
        assert spark.read.format("bookstand").load(str(tmp_path / "store")).count() == 30


@pytest.mark.long
def test_disks_that_are_missing_where_a_task_runs_fail_it(spark: Any, tmp_path: Path) -> None:
    kit.clusters(tmp_path / "copies", "one", "two")
    found = {}
    for table in ("entries", "ledgers", "messages"):
        frame = spark.read.format("bookie").option("table", table).load(str(tmp_path / "copies" / "*"))
        found[table] = frame, frame.count()
        assert {Path(row.place).name for row in frame.select("place").distinct().collect()} == {"one", "two"}
    disk = tmp_path / "copies" / "two" / "made:3181" / "ledgers"
    disk.rename(tmp_path / "unmounted")
    disk.mkdir()
    for frame, _ in found.values():
        with pytest.raises(Exception, match="needs the same file systems, mounted at the same paths"):
            frame.count()
    disk.rmdir()
    (tmp_path / "unmounted").rename(disk)
    assert [frame.count() for frame, _ in found.values()] == [count for _, count in found.values()]
