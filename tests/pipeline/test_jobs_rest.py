"""Cursors that are migrated, tables, findings and counts, and the command that runs it all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.disk.topics.cursors import cursors
from bookstand.disk.topics.topics import topics
from bookstand.pipeline.execution.cli import FINE, NOT_ALL, WRONG_USE, main
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.export import TABLES, Export
from bookstand.pipeline.jobs.migrate_cursors import MigrateCursors
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.jobs.stats import HOUR, Stats, added_up
from bookstand.pipeline.jobs.verify import Verify
from bookstand.pipeline.tables.schemas import table_of
from bookstand.pipeline.tables.sources import STORE, DataSource, bookies, open_source
from tests.delivery.bucket_kit import MEMORY
from tests.disk.recordings import RECORDINGS, dump_path, recording
from tests.kit import change_entry
from tests.page_damage import spoil_free_list, zero_leaf
from tests.pipeline import kit

HERE = LocalRunner()
SMALL = CutSettings(least=50, step_millis=100_000)
T0 = kit.TOPIC.format(0)
OLD = {"enable_lru_cache_max_unacked_ranges": False, "max_unacked_ranges_in_metadata_store": 0}


def place(path: Path) -> DataSource:
    return DataSource(STORE, (str(path),))


# -- cursors -----------------------------------------------------------------------------------------------------------


def states(path: Path) -> dict[tuple[str, str], Any]:
    """What every cursor has acknowledged."""
    with open_source(place(path)) as disks:
        return {
            (topic.name, cursor.name): (
                cursor.next,
                {ledger_id: bitmap for ledger_id, bitmap in cursor.state.acked.items() if bitmap},
                cursor.state.batches,
                cursor.state.properties,
                cursor.cursor_properties,
            )
            for topic in topics(disks)
            for cursor in cursors(topic)
        }


@pytest.mark.long
@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_cursors_there_and_back(name: str, unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Disks.open([unpacked(name)], dump_path(name)) as disks, bookstand.open(path) as store:
        import_disks(disks, store)
    before = states(path)
    for form, how in (("pages", {"marker"}), ("snapshot", {"snapshot", "record"}), ("pages", {"marker"})):
        summary = execute(MigrateCursors((str(path),), form), HERE)
        assert not summary.failed
        assert summary.counts["cursors"] == len(before)
        assert states(path) == before
        again = execute(MigrateCursors((str(path),), form), HERE)
        assert again.counts["changed"] == 0
        with open_source(place(path)) as disks:
            assert {cursor.source.how for topic in topics(disks) for cursor in cursors(topic)} <= how


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sets(st.integers(0, 119)),
    st.booleans(),
    st.dictionaries(st.integers(0, 119), st.sets(st.integers(0, 9), min_size=1, max_size=9), max_size=5),
)
def test_made_cursors_there_and_back(acked: set[int], words: bool, batches: dict[int, set[int]]) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "store"
        with bookstand.open(path) as store:
            topic = store.managed_ledger(T0, max_entries_per_ledger=50)
            positions = topic.append_many([b"x"] * 120)
            config = CursorConfig(**OLD, persist_as_long_array=words)  # type: ignore[arg-type]
            with Cursor.open(topic, "sub", config) as cursor:
                cursor.ack([positions[at] for at in acked]).result()
                for at, indexes in batches.items():
                    cursor.ack_batch(positions[at], indexes, 10).result()
        before = states(path)
        for form in ("pages", "snapshot"):
            assert not execute(MigrateCursors((str(path),), form), HERE).failed
            assert states(path) == before


def test_only_these_cursors_are_migrated(tmp_path: Path) -> None:
    path = kit.fill(tmp_path / "store", topics=2, cursors=("one", "two"))
    summary = execute(MigrateCursors((str(path),), "snapshot", (T0,), ("one",)), HERE)
    assert summary.counts["changed"] == 1
    assert kit.acks(path, T0, "one")[-1] == "snapshot"
    assert kit.acks(path, T0, "two")[-1] == "marker"
    with pytest.raises(bookstand.BookstandError, match="form"):
        MigrateCursors((str(path),), "words")


# -- tables ------------------------------------------------------------------------------------------------------------


def test_tables_tell_what_is_there(tmp_path: Path) -> None:
    path = kit.fill(tmp_path / "store", topics=2)
    assert execute(RebuildDelayed((str(path),), SMALL, topics=(T0,)), HERE).ok
    summary = execute(Export((place(path),), str(tmp_path / "out")), HERE)
    assert summary.ok
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for file, columns in kit.parquet(tmp_path / "out").items():
        table = file.split("/")[0]
        assert tuple(columns) == table_of(table).names
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        assert all((row["place"], row["error"]) == (str(path), None) for row in rows)
        tables[table] += rows
    assert {name: len(rows) for name, rows in tables.items()} == summary.counts
    with bookstand.open(path, read_only=True) as store:
        assert [row["ledger_id"] for row in tables["ledgers"]] == list(store.list_ledgers())
    assert {row["kind"] for row in tables["ledgers"]} >= {"topic", "cursor", "bucket"}
    assert len(tables["messages"]) == 2 * 180
    delayed = {
        (row["deliver_at_ms"], row["ledger_id"], row["entry_id"])
        for row in tables["delayed_index"]
        if row["topic"] == T0
    }
    assert delayed == set(kit.waiting(path, T0))
    assert {row["bucket_ledger_id"] is None for row in tables["delayed_index"] if row["topic"] == T0} == {False}
    assert {row["bucket_ledger_id"] is None for row in tables["delayed_index"] if row["topic"] != T0} == {True}
    for row in tables["cursors"]:
        _, acked, batches, *_ = kit.acks(path, row["topic"])
        mine = [one for one in tables["acks"] if one["topic"] == row["topic"]]
        whole = [one for one in mine if one["unacked_indexes"] is None]
        assert len(mine) - len(whole) == len(batches) == row["partial_batches"]
        assert sum(one["last_entry_id"] - one["first_entry_id"] + 1 for one in whole) == row["acked_entries"]
        assert row["acked_entries"] == sum(map(len, acked.values()))


def test_disks_are_exported_as_the_store_they_are_imported_into(
    unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    disks = bookies(unpacked("b"), str(dump_path("b")))
    with Disks.open(disks.paths, disks.metadata) as opened_disks, bookstand.open(tmp_path / "store") as store:
        import_disks(opened_disks, store)
    found = {}
    for name, one in (("disks", disks), ("store", place(tmp_path / "store"))):
        execute(Export((one,), str(tmp_path / name), ("messages", "acks", "cursors")), HERE)
        rows: dict[str, list[Any]] = {}
        for file, columns in kit.parquet(tmp_path / name).items():
            del columns["place"]
            rows.setdefault(file.split("/")[0], []).extend(zip(*columns.values(), strict=True))
        found[name] = {table: sorted(some, key=repr) for table, some in rows.items()}
    assert found["disks"] == found["store"]


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(bookstand.BookstandError, match="no table 'x'"):
        Export((), str(tmp_path), ("x",))


# -- findings and counts -----------------------------------------------------------------------------------------------


def test_damage_is_named_by_place(tmp_path: Path, unpacked: Callable[[str], Path]) -> None:
    good, bad = (kit.fill(tmp_path / name, topics=1) for name in ("good", "bad"))
    change_entry(bad, 0, 7, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))
    disk = bookies(unpacked("damaged") / "entrylog" / "bit-flip-payload")
    summary = execute(Verify((place(good), place(bad), disk, place(tmp_path / "absent"))), HERE)
    told = summary.as_dict()
    assert {one["unit"] for one in told["problems"]} == {str(bad), disk.name}
    assert [one["unit"] for one in told["failed"]] == [str(tmp_path / "absent")]
    assert any("0:7" in one["what"] for one in told["problems"])


def test_a_fleet_adds_up(tmp_path: Path) -> None:
    paths = [kit.fill(tmp_path / name, topics=2, first=ord(name)) for name in "abc"]
    assert execute(RebuildDelayed((str(paths[0]),), SMALL), HERE).ok
    summary = execute(Stats(tuple(map(place, paths))), LocalRunner(2))
    assert summary.ok
    total = added_up(summary.results)
    due: dict[str, int] = {}
    backlog = 0
    for path in paths:
        for topic in kit.topics_of(path):
            for time, *_ in kit.waiting(path, topic):
                due[str(time // HOUR)] = due.get(str(time // HOUR), 0) + 1
            with open_source(place(path)) as disks:
                backlog += sum(c.backlog for t in topics(disks) if t.name == topic for c in cursors(t))
    assert total["due"] == due
    assert total["backlog"] == backlog == sum(total["backlogs"].values())
    assert total["kept"].keys() == {"in buckets", "in the topic alone"}
    assert (total["topics"], total["cursors"]) == (6, 6)
    fewer = execute(Stats(tuple(map(place, paths)), buckets_only=True), HERE)
    assert added_up(fewer.results)["kept"] == {"in buckets": total["kept"]["in buckets"]}


# -- the command -------------------------------------------------------------------------------------------------------


def test_jobs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        kit.fill(tmp_path / name, topics=1, first=ord(name))
    glob = str(tmp_path / "[ab]")

    def told(*arguments: str, code: int = FINE) -> Any:
        assert main([*arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    assert told("rebuild-delayed", glob, "--least", "50", "--dry-run")["dry_run"]
    first = told("rebuild-delayed", glob, "--least", "50", "--summary", str(tmp_path / "summary.json"))
    assert first["counts"]["buckets"] == 4
    assert json.loads((tmp_path / "summary.json").read_text()) == first
    unit = first["results"][0]["unit"]
    assert told("rebuild-delayed", glob, "--least", "50")["done_before"] == [one["unit"] for one in first["results"]]
    assert told("rebuild-delayed", glob, "--least", "50", "--unit", unit, "--again")["done"] == 1
    assert told("recut", glob, "--least", "1000")["counts"]["buckets"] == 2
    assert told("recut", glob, "--step-seconds", "10", "--precision-bits", "10")["counts"]["buckets"] == 2
    assert told("migrate-cursors", glob, "--to", "snapshot")["counts"]["changed"] == 2
    assert told("export", glob, "--output", str(tmp_path / "out"), "--table", "cursors")["counts"] == {"cursors": 2}
    assert told("stats", glob)["facts"]["topics"] == 2
    change_entry(tmp_path / "a", 0, 7, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))
    assert told("verify", glob, code=NOT_ALL)["problems"]
    assert main(["verify", glob]) == NOT_ALL
    printed = capsys.readouterr().out
    assert "UNIT" in printed
    assert "problem:" in printed


@pytest.mark.parametrize("spoil", [zero_leaf, spoil_free_list])
@pytest.mark.parametrize(
    "job", ["verify", "recut --least 5", "migrate-cursors --to snapshot", "rebuild-delayed --least 5"]
)
def test_a_store_with_damaged_pages_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], job: str, spoil: Callable[[Path], None]
) -> None:
    """And costs no other one its turn."""
    for name in ("bad", "good"):
        kit.fill(tmp_path / name, topics=1)
    assert main(["rebuild-delayed", str(tmp_path / "*"), "--least", "50"]) == FINE
    capsys.readouterr()
    spoil(tmp_path / "bad")
    before = (tmp_path / "bad" / "data.mdb").read_bytes()
    assert main([*job.split(), str(tmp_path / "*"), "--json"]) == NOT_ALL
    summary = json.loads(capsys.readouterr().out)
    (told,) = {str(problem) for problem in summary["problems"]}
    assert "bad/data.mdb is damaged" in told
    assert "bookstand repair saves what can be saved" in told
    assert any("good" in one["unit"] and "failure" not in one for one in summary["results"])
    assert (tmp_path / "bad" / "data.mdb").read_bytes() == before


def test_an_import_from_the_command_line(
    tmp_path: Path, unpacked: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one").symlink_to(unpacked("b"))
    with_dump = tmp_path / "two"
    with_dump.mkdir()
    (with_dump / "bookie-0").symlink_to(unpacked("b") / "bookie-0")
    (with_dump / "metadata.jsonl.gz").symlink_to(recording("b") / "metadata.jsonl.gz")
    out = str(tmp_path / "out")
    assert main(["import", str(with_dump), "--output", out, "--json"]) in (FINE, NOT_ALL)
    assert json.loads(capsys.readouterr().out)["counts"]["nodes"] > 0
    assert (tmp_path / "out" / "two").is_dir()
    several = [str(with_dump), str(unpacked("d")), "--metadata", str(dump_path("b"))]
    assert main(["import", *several, "--output", out]) == WRONG_USE


@pytest.mark.parametrize(
    "arguments",
    [
        ["stats", "/nowhere"],
        ["export", "{store}", "--output", "{out}", "--table", "x"],
        ["verify", "{store}", "--unit", "x"],
        ["recut", "{store}", "--step-seconds", "nan"],
        ["rebuild-delayed", "{store}", "--table", "{out}/no.parquet"],
    ],
)
def test_what_makes_no_sense_is_said(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    kit.fill(tmp_path / "store", topics=1)
    given_words = [word.format(store=tmp_path / "store", out=tmp_path / "out") for word in arguments]
    assert main(given_words) in (NOT_ALL, WRONG_USE)
    assert capsys.readouterr().err.startswith("bookstand: ")


def test_no_job_loads_spark_before_it_is_asked_to() -> None:
    program = (
        "import sys, bookstand.pipeline.execution.cli as c; c.parser(); from bookstand.pipeline.jobs import (export, "
    )
    program += "import_disks, migrate_cursors, rebuild_delayed, recut, stats, verify); "
    program += "assert not {'pyspark', 'pyarrow', 'pandas', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_command_line_hands_its_arguments_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bookstand.tools.main import main as bookstand_main

    with bookstand.open(tmp_path / "store") as store:
        store.create_ledger().close()
    assert bookstand_main(["spark", "stats", str(tmp_path / "store"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["ledgers"] == 1
    with pytest.raises(SystemExit) as ended:
        bookstand_main(["spark", "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: bookstand spark ")
