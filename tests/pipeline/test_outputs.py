"""Outputs of jobs: durable before they have their names, where they were asked for, and of the inputs as they are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.errors import BookstandError, IncorrectParameterError, StoreError, StoreNotFoundError
from bookstand.managed_ledger.topic_name import node_of
from bookstand.pipeline.execution.cli import FINE, NOT_ALL, WRONG_USE, main
from bookstand.pipeline.execution.input_state import place_state
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.execution.publish import Output
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.jobs.import_disks import Import
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.jobs.verify import Verify
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.schemas import TABLES
from bookstand.pipeline.tables.sources import (
    STORE,
    DataSource,
    bookies,
    clusters,
    local_path,
    open_metadata,
    places,
    stores,
)
from bookstand.pipeline.tables.tables import plan, rows
from tests.pipeline import kit

HERE = LocalRunner()


def place(path: Path) -> DataSource:
    return DataSource(STORE, (str(path),))


# -- durable -----------------------------------------------------------------------------------------------------------


class Disk:
    """What would be left of files after a power cut, by the calls of a process: contents and names that were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, output: Path) -> None:
        self.synced: dict[tuple[int, int], object] = {}
        self.renamed: list[Path] = []
        self.faults: list[str] = []
        self._output = output
        fsync, rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), self._sync(descriptor))[0])
        monkeypatch.setattr(os, "rename", lambda *names, **more: (self._rename(*names), rename(*names, **more))[1])

    def _sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.synced[status.st_dev, status.st_ino] = self._content(path)

    def _content(self, path: Path) -> object:
        return frozenset(os.listdir(path)) if path.is_dir() else (path.stat().st_size, path.stat().st_mtime_ns)

    def is_durable(self, path: Path) -> bool:
        status = path.stat()
        return self.synced.get((status.st_dev, status.st_ino)) == self._content(path)

    def _rename(self, source: Any, target: Any) -> None:
        source, target = Path(source), Path(target)
        # A store that an attempt makes renames files of its own.
        if self._output in target.parents and "attempts" not in target.relative_to(self._output).parts:
            if target.parent.name != "_bookstand":
                self.renamed.append(target)
                own = (self._output / "_bookstand").stat()
                held = self.synced.get((own.st_dev, own.st_ino))
                if not isinstance(held, frozenset) or "manifest" not in held:
                    self.faults.append("the name of the manifest")
            inner = source.rglob("*") if source.is_dir() else ()
            self.faults += [str(one) for one in (source, *inner) if not self.is_durable(one)]


@pytest.mark.parametrize("job", ["export", "import"])
def test_files_are_durable_before_they_are_renamed_and_their_names_after(
    tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "new" / "folder" / "out"
    if job == "export":
        made: Any = Export((place(kit.fill(tmp_path / "store", topics=2)),), str(output))
    else:
        made = Import(kit.clusters(tmp_path / "disks", "one", "two"), str(output))
    disk = Disk(monkeypatch, output)
    # In this process, whose calls are watched.
    assert execute(made, LocalRunner(0)).ok
    monkeypatch.undo()
    assert len(disk.renamed) == (7 if job == "export" else 2)
    assert disk.faults == []
    for target in disk.renamed:
        for folder in target.parents:
            if folder == tmp_path.parent:
                break
            # What a folder held when it was synced last has these names.
            status = folder.stat()
            held = disk.synced[status.st_dev, status.st_ino]
            assert isinstance(held, frozenset)
            below = target if folder == target.parent else next(one for one in target.parents if one.parent == folder)
            assert below.name in held, folder


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("number", [1, 3])
def test_a_commit_that_fails_is_repeated(
    tmp_path: Path, error: BaseException, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails while it publishes removes what it has not published yet: the next one makes it again."""
    job = Import(kit.clusters(tmp_path / "disks", "one", "two", "three"), str(tmp_path / "out"))
    rename = os.rename
    calls = 0

    def failing(source: Any, target: Any) -> None:
        nonlocal calls
        if Path(target).parent == tmp_path / "out":
            calls += 1
            if calls == number:
                raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises((BookstandError, KeyboardInterrupt)):
        execute(job, HERE)
    monkeypatch.undo()
    summary = execute(job, HERE)
    assert summary.ok
    assert (len(summary.before), len(summary.results)) == (number - 1, 4 - number)
    for name in ("one", "two", "three"):
        assert kit.content(tmp_path / "out" / name)


def test_a_file_that_takes_a_name_after_a_crash_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Import(kit.clusters(tmp_path / "disks", "one", "two"), str(tmp_path / "out"))

    def stop(output: Output) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as crash:
        crash.setattr(Output, "_replay", lambda output: None)
        crash.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        execute(job, HERE)
    assert not (tmp_path / "out" / "one").exists()
    (tmp_path / "out" / "one").write_text("mine")
    summary = execute(job, HERE)
    assert (tmp_path / "out" / "one").read_text() == "mine"
    assert [result.unit for result in summary.before] == ["two"]
    (failed,) = summary.failed
    assert "not of this job" in (failed.failure or "")


def test_doing_all_again_keeps_a_commit_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Import(kit.clusters(tmp_path / "disks", "one"), str(tmp_path / "out"))
    with monkeypatch.context() as crash:
        crash.setattr(Output, "_replay", lambda output: None)
        crash.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        execute(job, HERE)
    assert execute(job, HERE, again=True).ok
    assert kit.content(tmp_path / "out" / "one")


# -- addresses ---------------------------------------------------------------------------------------------------------


ADDRESSES = (
    "s3a://bucket/out",
    "hdfs://name:9000/out",
    "hdfs:/out",
    "dbfs:/out",
    "file://elsewhere/out",
    "file://[elsewhere/out",
)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize(
    "words",
    [
        "export {store} --output {address}",
        "import {disks} --output {address}",
        "rebuild-delayed {store} --work {address}",
        "recut {store} --work {address}",
        "verify {store} --summary {address}",
        "verify {address}",
        "stats {disks} --metadata {address}",
        "rebuild-delayed {store} --table {address}",
    ],
)
def test_addresses_are_rejected_before_any_work(
    tmp_path: Path,
    address: str,
    words: str,
    shared: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    store, disks = shared
    before = (store / "data.mdb").read_bytes()
    assert main(words.format(store=store, disks=disks, address=address).split()) == WRONG_USE
    told = capsys.readouterr().err
    assert repr(address) in told
    assert "path" in told
    assert list(tmp_path.iterdir()) == []
    assert (store / "data.mdb").read_bytes() == before


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("shared")
    kit.clusters(folder / "disks", "one")
    return kit.fill(folder / "store", topics=1), folder / "disks" / "one"


def test_addresses_of_files_are_paths(
    tmp_path: Path, shared: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address, path in (
        ("file:///a%20b/c", "/a b/c"),
        ("file:/a", "/a"),
        ("file://localhost/a", "/a"),
        ("./s3a://b", str(tmp_path / "s3a:" / "b")),
        ("a:/b", str(tmp_path / "a:" / "b")),
        ("x", str(tmp_path / "x")),
        ("file:///a#1/b?c", "/a#1/b?c"),
        ("file:/a\nb", "/a\nb"),
    ):
        assert local_path(address, "output") == path
    words = ["verify", f"file://{shared[0]}", "--summary", f"file://{tmp_path}/summary.json"]
    assert main(words) == FINE
    assert json.loads((tmp_path / "summary.json").read_text())["ok"]
    words = ["export", str(shared[0]), "--output", f"file://{tmp_path}/out", "--table", "ledgers"]
    assert main(words) == FINE
    assert kit.parquet(tmp_path / "out")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "summary.json"]


@pytest.mark.parametrize("kind", ["folder", "missing"])
def test_a_summary_that_cannot_be_written_is_rejected_before_any_work(
    tmp_path: Path, kind: str, shared: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path if kind == "folder" else tmp_path / "no" / "summary.json"
    words = ["export", str(shared[0]), "--output", str(tmp_path / "out"), "--summary", str(summary)]
    assert main(words) == WRONG_USE
    assert "summary must be a file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# -- file systems that are missing where a task runs -------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["store", "bookie", "journal", "dump"])
def test_a_place_that_is_missing_where_it_is_read_is_no_damage(tmp_path: Path, missing: str) -> None:
    """A mount point without its file system is an empty folder."""
    if missing == "store":
        (found,) = stores(kit.fill(tmp_path / "store", topics=1))
        assert execute(RebuildDelayed((found.name,), CutSettings(least=50)), HERE).ok
        gone = tmp_path / "store"
    else:
        kit.clusters(tmp_path / "disks", "one")
        (found,) = clusters(tmp_path / "disks" / "one")
        bookie = tmp_path / "disks" / "one" / "made:3181"
        gone = {"bookie": bookie, "journal": bookie / "journal", "dump": Path(found.metadata or "")}[missing]
    planned = [(plan(found, query(table)), query(table)) for table in TABLES]
    if gone.is_file():
        gone.unlink()
    else:
        shutil.rmtree(gone)
        gone.mkdir()
    for parts, asked in planned:
        assert parts
        with pytest.raises(StoreNotFoundError, match="mounted"):
            sum(batch.num_rows for part in parts for batch in rows(part, asked))


def test_a_place_that_is_missing_fails_the_unit_of_a_job(tmp_path: Path) -> None:
    kit.clusters(tmp_path / "disks", "one", "two")
    found = clusters(tmp_path / "disks" / "*")
    store = kit.fill(tmp_path / "store", topics=1)
    jobs: tuple[Any, ...] = (
        Verify((*found, place(store))),
        Export((*found, place(store)), str(tmp_path / "out"), ("ledgers",)),
        Import({"one": found[0], "two": found[1]}, str(tmp_path / "stores")),
    )
    plans = [job.plan() for job in jobs]
    for gone in (tmp_path / "disks" / "two" / "made:3181" / "ledgers", store):
        shutil.rmtree(gone)
        gone.mkdir()
    for job, planned in zip(jobs, plans, strict=True):
        (tmp_path / "work").mkdir(exist_ok=True)
        results = {one.unit: one.failure for one in HERE.run(job, planned.units, tmp_path / "work")}
        failed = {name for name, why in results.items() if why is not None and "mounted" in why}
        assert len(results) - len(failed) == 1, results


def test_an_attempt_without_its_work_folder_fails(tmp_path: Path) -> None:
    job = Export((place(kit.fill(tmp_path / "store", topics=1)),), str(tmp_path / "out"), ("ledgers",))
    (result,) = HERE.run(job, job.plan().units, tmp_path / "not-mounted")
    assert "file system that all machines share" in (result.failure or "")
    assert not (tmp_path / "not-mounted").exists()


# -- the state of inputs -----------------------------------------------------------------------------------------------


def _replace(file: Path) -> None:
    """The same bytes and times in another file."""
    copy = file.with_name("copy")
    shutil.copy2(file, copy)
    copy.replace(file)


def _change(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes((data[-1] ^ 1,)))


def _append(file: Path) -> None:
    status = file.stat()
    with file.open("ab") as opened:
        opened.write(b"\0")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


_CHANGES = (_replace, _change, _append, Path.unlink)
_FILES = ("0.log", "0.txn", "metadata.jsonl.gz", "VERSION")


def test_the_state_of_disks_changes_with_every_file(tmp_path: Path) -> None:
    kit.clusters(tmp_path / "disks", "one", "two")
    found = clusters(tmp_path / "disks" / "*")
    for file in _FILES:
        for change in _CHANGES:
            before = [place_state(one) for one in found]
            (first, *_) = (tmp_path / "disks" / "one").rglob(file)
            saved = first.read_bytes()
            change(first)
            after = [place_state(one) for one in found]
            assert (after[0] == before[0], after[1] == before[1]) == (False, True), (file, change)
            first.write_bytes(saved)


@pytest.mark.parametrize(("file", "change"), [("0.log", _append), ("metadata.jsonl.gz", _replace)])
def test_an_import_that_continues_knows_its_disks_by_their_files(
    tmp_path: Path, file: str, change: Callable[[Path], None]
) -> None:
    kit.clusters(tmp_path / "disks", "one", "two")
    found = dict(zip(("one", "two"), clusters(tmp_path / "disks" / "*"), strict=True))
    job = Import(found, str(tmp_path / "out"))
    # Interrupted after the first cluster.
    assert execute(job, HERE, only=["one"]).ok
    assert [one.unit for one in execute(job, HERE, dry_run=True).before] == ["one"]
    change(next((tmp_path / "disks" / "one").rglob(file)))
    for dry_run in (True, False):
        with pytest.raises(StoreError, match="before its source changed"):
            execute(job, HERE, dry_run=dry_run)
    assert not (tmp_path / "out" / "two").exists()
    # What has not changed goes on.
    assert execute(job, HERE, only=["two"]).ok


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(["append", "compact", "restore", "open", "read", "node"]), min_size=1, max_size=4))
def test_the_state_of_a_store_changes_with_its_content(steps: list[str]) -> None:
    """Also by commits in one tick of the file system's clock; and never by reading."""
    from tempfile import TemporaryDirectory

    from tests.delivery.bucket_kit import MEMORY

    with TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "store"
        with bookstand.open(path, durability="none") as store:
            store.create_ledger().append(b"x")
            store.backup(Path(folder) / "saved")
        (found,) = stores(path)
        for step in steps:
            before, content = place_state(found), kit.content(path)
            if step == "read":
                with bookstand.open(path, read_only=True) as store:
                    assert list(store.list_ledgers())
            elif step == "restore":
                shutil.rmtree(path)
                shutil.copytree(Path(folder) / "saved", path)
            else:
                with bookstand.open(path, durability="none") as store:
                    if step == "append":
                        store.create_ledger().append(b"y")
                    elif step == "node":
                        store.nodes.put("/notes/today", step.encode())
                    elif step == "compact":
                        store.compact()
            if kit.content(path) != content:
                assert place_state(found) != before
            if step == "read":
                assert place_state(found) == before


def test_a_commit_changes_the_state_of_a_store_in_a_file_that_looks_the_same(tmp_path: Path) -> None:
    """Two commits may be in one tick of the file system's clock."""
    file = tmp_path / "store" / "data.mdb"

    def commit(value: bytes) -> None:
        with bookstand.open(tmp_path / "store") as store:
            store.nodes.put("/notes/today", value)

    # Later commits use pages again, so that the file does not grow.
    for number in range(4):
        commit(b"%d" % number)
    (found,) = stores(tmp_path / "store")
    status, before = file.stat(), place_state(found)
    commit(b"x")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = file.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (status.st_ino, status.st_size, status.st_mtime_ns)
    assert place_state(found) != before


def test_an_export_knows_its_stores_by_their_commits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        kit.fill(tmp_path / name, topics=1)
    words = ["export", str(tmp_path / "[ab]"), "--output", str(tmp_path / "out"), "--table", "messages"]
    unit = f"{tmp_path / 'a'} messages {kit.TOPIC.format(0)}"
    assert main([*words, "--unit", unit]) == FINE
    assert main(words) == FINE
    before = kit.parquet(tmp_path / "out")
    assert main([*words, "--json"]) == FINE
    capsys.readouterr()
    with bookstand.open(tmp_path / "a") as store:
        store.managed_ledger(kit.TOPIC.format(0)).append(b"new")
    for more in ([], ["--dry-run"]):
        assert main([*words, *more]) == NOT_ALL
        assert "before its source changed" in capsys.readouterr().err
    # Nor is what was published passed off as new.
    assert main([*words, "--again", "--json"]) == NOT_ALL
    summary = json.loads(capsys.readouterr().out)
    assert [one["unit"] for one in summary["failed"]] == [unit]
    assert kit.parquet(tmp_path / "out") == before
    fresh = [*words[:3], str(tmp_path / "fresh"), *words[4:]]
    assert main(fresh) == FINE
    assert sum(len(columns["place"]) for columns in kit.parquet(tmp_path / "fresh").values()) == 361


def test_other_passwords_are_another_input(tmp_path: Path) -> None:
    places_of = kit.clusters(tmp_path / "disks", "one")
    assert execute(Import(places_of, str(tmp_path / "out")), HERE).ok
    with pytest.raises(StoreError, match="before its source changed"):
        execute(Import(places_of, str(tmp_path / "out"), passwords=(b"word",)), HERE)


def test_a_place_is_the_same_for_every_task(tmp_path: Path) -> None:
    kit.clusters(tmp_path / "disks", "one")
    kit.fill(tmp_path / "store", topics=1)
    for one in (*places([tmp_path / "store", tmp_path / "disks" / "one"]), bookies(tmp_path / "disks" / "one")):
        assert DataSource.of(json.loads(json.dumps(one))) == one
    with pytest.raises(IncorrectParameterError, match="must be a local path"):
        stores("s3a://bucket/store")


# -- names -------------------------------------------------------------------------------------------------------------

NAMES = ("a b", "two\nlines", "%2F", "[a]*", "-x", "né", "売上" * 42, "x" * 255)


def test_stores_of_any_name_are_exported(tmp_path: Path) -> None:
    kit.fill(tmp_path / "stores" / NAMES[0], topics=1)
    for name in NAMES[1:]:
        shutil.copytree(tmp_path / "stores" / NAMES[0], tmp_path / "stores" / name)
    found = tuple(stores(str(tmp_path / "stores" / "*")))
    assert len(found) == len(NAMES)
    for job in (Export(found, str(tmp_path / "out"), ("ledgers", "messages")), Verify(found)):
        assert execute(job, LocalRunner(2)).ok
    files = kit.parquet(tmp_path / "out")
    for table in ("ledgers", "messages"):
        told = [columns["place"][0] for file, columns in files.items() if file.startswith(table)]
        assert sorted(told) == sorted(place.name for place in found)
    assert len(execute(Export(found, str(tmp_path / "out"), ("ledgers",)), HERE).before) == len(NAMES)


def test_clusters_of_any_name_are_imported(tmp_path: Path) -> None:
    found = kit.clusters(tmp_path / "disks", *NAMES)
    assert execute(Import(found, str(tmp_path / "out")), LocalRunner(2)).ok
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == sorted([*NAMES, "_bookstand"])
    assert all(kit.content(tmp_path / "out" / name)["ledgers"] for name in NAMES)


def test_what_is_named_twice_is_done_once(tmp_path: Path) -> None:
    (found,) = stores(kit.fill(tmp_path / "store", topics=1))
    topic = kit.TOPIC.format(0)
    export = Export((found, found), str(tmp_path / "out"), ("ledgers", "messages", "ledgers"), (topic, topic))
    for job in (export, Verify((found, found)), RebuildDelayed((found.name, found.name), CutSettings(least=50))):
        summary = execute(job, HERE)
        assert summary.ok, str(summary)
        assert summary.units == len(summary.results) == (2 if job is export else 1)
    # The names of these differ in nothing.
    one, other = (DataSource(STORE, paths) for paths in (("/a,/b",), ("/a", "/b")))
    with pytest.raises(IncorrectParameterError, match="two different units '/a,/b'"):
        execute(Verify((one, other)), HERE)


# -- links -------------------------------------------------------------------------------------------------------------


def test_what_two_paths_lead_to_is_read_once(tmp_path: Path) -> None:
    store = kit.fill(tmp_path / "data" / "one", topics=1)
    (tmp_path / "data" / "current").symlink_to(store)
    kit.clusters(tmp_path / "data", "disks")
    (tmp_path / "data" / "copy").symlink_to(tmp_path / "data" / "disks")
    (tmp_path / "data" / "empty").mkdir()
    glob = str(tmp_path / "data" / "*")
    names = {str(tmp_path / "data" / name) for name in ("current", "copy")}
    assert [one.name for one in stores(glob)] == [str(tmp_path / "data" / "current")]
    assert [one.name for one in clusters(glob)] == [str(tmp_path / "data" / "copy")]
    assert {one.name for one in places(glob)} == names
    assert [one.name for one in stores([store, tmp_path / "data" / "current"])] == [str(store)]
    assert {result.unit for result in execute(Verify(tuple(places(glob))), HERE).results} == names
    # The second change of the same store would find it changed.
    assert execute(RebuildDelayed(tuple(one.name for one in stores(glob)), CutSettings(least=50)), HERE).ok


def test_what_is_above_a_link_is_what_is_above_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a" / "inner")
    store = kit.fill(tmp_path / "a" / "store", topics=1)
    kit.fill(tmp_path / "b" / "store", topics=2)
    monkeypatch.chdir(tmp_path / "b")
    kit.clusters(tmp_path / "a", "disks")
    for start in ("link", str(tmp_path / "b" / "link"), f"file://{tmp_path}/b/link"):
        assert [one.name for one in stores(f"{start}/../store")] == [str(store)]
        assert [one.name for one in places(f"{start}/../st*")] == [str(store)]
        assert clusters(f"{start}/../disks") == clusters(tmp_path / "a" / "disks")
        assert local_path(f"{start}/../out", "output") == str(tmp_path / "a" / "out")
    assert local_path("../b/./link/out", "output") == str(tmp_path / "b" / "link" / "out")


def test_the_state_of_disks_changes_with_files_behind_links(tmp_path: Path) -> None:
    kit.clusters(tmp_path / "disks", "one")
    for number, current in enumerate(sorted((tmp_path / "disks").rglob("current"))):
        moved = tmp_path / f"disk-{number}"
        current.rename(moved)
        current.symlink_to(moved)
        # A link that leads to where it is.
        (moved / "loop").symlink_to(current)
    (found,) = clusters(tmp_path / "disks" / "one")
    for file in ("0.log", "0.txn"):
        before = place_state(found)
        assert place_state(found) == before
        _append(next(path for path in tmp_path.glob("disk-*/*") if path.name == file))
        assert place_state(found) != before


@pytest.mark.parametrize("kind", ["store", "journal", "dump"])
def test_a_link_to_a_file_system_that_is_missing_is_no_damage(tmp_path: Path, kind: str) -> None:
    if kind == "store":
        link = kit.fill(tmp_path / "store", topics=1) / "data.mdb"
        (found,) = stores(tmp_path / "store")
    else:
        kit.clusters(tmp_path / "disks", "one")
        (found,) = clusters(tmp_path / "disks" / "one")
        current = tmp_path / "disks" / "one" / "made:3181" / "journal" / "current"
        link = Path(found.metadata or "") if kind == "dump" else current
    target = tmp_path / "mounted" / link.name
    target.parent.mkdir()
    link.rename(target)
    link.symlink_to(target)
    planned = plan(found, query("ledgers"))
    target.rename(tmp_path / "unmounted")
    with pytest.raises(StoreNotFoundError, match="mounted"):
        sum(batch.num_rows for part in planned for batch in rows(part, query("ledgers")))


# -- topics that are not there -----------------------------------------------------------------------------------------


def test_topics_that_cannot_be_exported_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = kit.fill(tmp_path / "store", topics=2)
    kit.clusters(tmp_path / "disks", "one")
    (known,) = kit.clusters(tmp_path / "other", "two").values()
    words = ["export", str(store), known.name, "--json", "--output", str(tmp_path / "out"), "--table", "cursors"]

    def told(*more: str) -> tuple[int, list[str]]:
        code = main([*words, *more])
        return code, [one["what"] for one in json.loads(capsys.readouterr().out)["problems"]]

    there = [part for topic in topics_in(known, store) for part in ("--topic", topic)]
    assert told(*there) == (FINE, [])
    shutil.rmtree(tmp_path / "out")
    missing = "persistent://acme/orders/9"
    for table in ("cursors", "messages"):
        assert told(*there, "--topic", missing, "--table", table, "--dry-run") == (
            NOT_ALL,
            [f"topic {missing} is in none of the places"],
        )
    with bookstand.open(store) as opened:
        opened.nodes.put(node_of(kit.TOPIC.format(0)), b"\xff\xff\xff")
    words[words.index("cursors")] = "messages"
    code, problems = told()
    assert code == NOT_ALL
    assert [one for one in problems if str(store) in one and kit.TOPIC.format(0) in one]
    assert {columns["topic"][0] for columns in kit.parquet(tmp_path / "out").values()} >= {kit.TOPIC.format(1)}


def topics_in(known: DataSource, store: Path) -> list[str]:
    with open_metadata(known) as (dump, _):
        return [*dump.topics, *kit.topics_of(store)]
