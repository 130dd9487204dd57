"""What jobs leave is there once and whole: run twice, killed anywhere, beside others, over what is damaged."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.errors import StoreError
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.pipeline.execution import store_commit
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import attempt, execute
from bookstand.pipeline.execution.publish import Output
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.jobs.import_disks import Import
from bookstand.pipeline.jobs.migrate_cursors import MigrateCursors
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.jobs.recut import Recut
from bookstand.pipeline.tables.sources import STORE, DataSource, bookies
from bookstand.storage.format.position import Position
from tests.disk.recordings import dump_path
from tests.kit import Program
from tests.pipeline import kit
from tests.pipeline.dying import DyingExport

HERE = LocalRunner()
SMALL = CutSettings(least=50, step_millis=100_000)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Which files there are, and which of them were written."""
    files = (file for file in folder.rglob("*") if file.is_file() and "lock" not in file.name)
    return {str(file.relative_to(folder)): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_import_is_what_a_single_process_imports_and_is_done_once(tmp_path: Path) -> None:
    places = kit.clusters(tmp_path / "disks", "one", "two", "three")
    job = Import(places, str(tmp_path / "out"))
    assert execute(job, LocalRunner(2)).ok
    for name, place in places.items():
        with Disks.open(place.paths, place.metadata) as disks, bookstand.open(tmp_path / name) as store:
            import_disks(disks, store)
        assert kit.content(tmp_path / "out" / name) == kit.content(tmp_path / name)
    before = tree(tmp_path / "out")
    again = execute(job, HERE)
    assert [result.unit for result in again.before] == list(places)
    assert not again.results
    assert tree(tmp_path / "out") == before


_KILLED = """
import os, sys
from pathlib import Path
from bookstand.pipeline.execution import publish as publishing
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.import_disks import Import
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.tables.sources import bookies
from tests.pipeline.dying import dying_at

folder, number, before = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "before"


class Own:
    # Stores rename files as well: only what the commit renames is counted.

    rename = staticmethod(dying_at(number, os.rename, before=before))

    def __getattr__(self, name):
        return getattr(os, name)


publishing.os = Own()
places = {name: bookies(folder / "disks" / name, str(folder / "disks" / name / "metadata.jsonl.gz")) for name in "ab"}
execute(Import(places, str(folder / "out")), LocalRunner())
"""


@pytest.mark.parametrize("before", [True, False])
def test_a_commit_that_is_killed_at_any_rename_is_ended_by_the_next_run(tmp_path: Path, before: bool) -> None:
    places = kit.clusters(tmp_path / "disks", "a", "b")
    wanted = {}
    for name, place in places.items():
        with Disks.open(place.paths, place.metadata) as disks, bookstand.open(tmp_path / name) as store:
            import_disks(disks, store)
        wanted[name] = kit.content(tmp_path / name)
    # The manifest gets its name, both stores, and the list of what is published.
    for number in range(1, 5):
        with Program(_KILLED, tmp_path, number, "before" if before else "after") as program:
            assert program.finish() == -9
        stopped = tree(tmp_path / "out")
        looked = execute(Import(places, str(tmp_path / "out")), HERE, dry_run=True)
        assert tree(tmp_path / "out") == stopped
        summary = execute(Import(places, str(tmp_path / "out")), HERE)
        assert summary.ok
        assert [one.unit for one in looked.before] == [one.unit for one in summary.before]
        # Once the manifest is there, nothing is done again.
        assert len(summary.before) == (2 if number > 1 or not before else 0)
        for name in places:
            assert kit.content(tmp_path / "out" / name) == wanted[name]
        left = {one.name for one in (tmp_path / "out" / "_bookstand").iterdir()}
        assert left == {"attempts", "lock", "published"}
        execute(Import(places, str(tmp_path / "out")), HERE)
        assert not list((tmp_path / "out" / "_bookstand" / "attempts").iterdir())
        shutil.rmtree(tmp_path / "out")


@pytest.mark.long
def test_a_process_that_dies_is_one_attempt(tmp_path: Path) -> None:
    store = kit.fill(tmp_path / "store", topics=2)
    (tmp_path / "marks").mkdir()
    places = (DataSource(STORE, (str(store),)),)
    tables = ("messages", "cursors")
    assert execute(Export(places, str(tmp_path / "wanted"), tables), HERE).ok
    job = DyingExport(places, str(tmp_path / "out"), tables, marks=str(tmp_path / "marks"))
    assert execute(job, LocalRunner(2)).ok
    assert len(list((tmp_path / "marks").iterdir())) == 3
    assert kit.parquet(tmp_path / "out") == kit.parquet(tmp_path / "wanted")


def test_what_is_there_and_is_not_of_the_job_stays(tmp_path: Path) -> None:
    places = kit.clusters(tmp_path / "disks", "one", "two")
    (tmp_path / "out" / "one").mkdir(parents=True)
    (tmp_path / "out" / "one" / "mine").write_text("do not touch")
    summary = execute(Import(places, str(tmp_path / "out")), HERE)
    (failed,) = summary.failed
    assert failed.unit == "one"
    assert "not of this job" in (failed.failure or "")
    assert (tmp_path / "out" / "one" / "mine").read_text() == "do not touch"
    assert kit.content(tmp_path / "out" / "two")
    shutil.rmtree(tmp_path / "out" / "one")
    summary = execute(Import(places, str(tmp_path / "out")), HERE, only=["one"])
    assert summary.ok
    assert summary.counts["ledgers"] == 3


def test_an_output_of_another_state_of_its_source_is_not_mixed_with_this_one(tmp_path: Path) -> None:
    places = kit.clusters(tmp_path / "disks", "one")
    assert execute(Import(places, str(tmp_path / "out")), HERE).ok
    with pytest.raises(StoreError, match="before its source changed"):
        execute(Import(places, str(tmp_path / "out"), unlisted=True), HERE)


def test_what_was_published_and_removed_is_made_again(tmp_path: Path) -> None:
    job = Import(kit.clusters(tmp_path / "disks", "one", "two"), str(tmp_path / "out"))
    assert execute(job, HERE).ok
    shutil.rmtree(tmp_path / "out" / "two")
    summary = execute(job, HERE)
    assert [result.unit for result in summary.before] == ["one"]
    assert [result.unit for result in summary.results] == ["two"]
    assert kit.content(tmp_path / "out" / "two")


def test_a_run_that_publishes_waits_for_another_one(tmp_path: Path) -> None:
    """Or its work would be lost."""
    job = Import(kit.clusters(tmp_path / "disks", "one"), str(tmp_path / "out"))
    held, threads = threading.Event(), []

    def hold() -> None:
        with Output(tmp_path / "out")._locked():
            held.set()
            time.sleep(0.3)

    def begin_another(done: int, total: int) -> None:
        threads.append(threading.Thread(target=hold))
        threads[0].start()
        held.wait()

    assert execute(job, HERE, progress=begin_another).ok
    threads[0].join()
    assert kit.content(tmp_path / "out" / "one")


def test_a_unit_that_two_have_done_is_published_once(tmp_path: Path) -> None:
    places = kit.clusters(tmp_path / "disks", "one")
    job = Import(places, str(tmp_path / "out"))
    (unit,) = job.plan().units
    job.work().mkdir(parents=True)
    first, second = attempt(job, unit, job.work()), attempt(job, unit, job.work())
    assert first.staged != second.staged
    assert [result.failure for result in job.commit([(unit, first)])] == [None]
    before = tree(tmp_path / "out" / "one")
    assert [result.failure for result in job.commit([(unit, second)])] == [None]
    assert tree(tmp_path / "out" / "one") == before


# -- stores ------------------------------------------------------------------------------------------------------------

_KILLED_APPLYING = """
import sys
from bookstand.pipeline.execution import store_commit as store_changes
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.execution.local_runner import LocalRunner
from tests.pipeline.dying import dying_at

path, number, before = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "before"
store_changes.apply = dying_at(number, store_changes.apply, before=before)
execute(RebuildDelayed((path,), CutSettings(least=50, step_millis=100_000)), LocalRunner())
"""


def record(path: Path, topic: str) -> tuple[bytes, int]:
    with bookstand.open(path, read_only=True) as store:
        return store.nodes.get(cursor_node_of(topic, "sub"))


@pytest.mark.parametrize(("number", "before"), [(1, True), (1, False), (2, False), (3, True)])
def test_a_change_is_applied_once_however_the_job_is_killed(tmp_path: Path, number: int, before: bool) -> None:
    path = kit.fill(tmp_path / "store", topics=3)
    names = [kit.TOPIC.format(number) for number in range(3)]
    versions = {name: record(path, name)[1] for name in names}
    waiting = {name: kit.waiting(path, name) for name in names}
    with Program(_KILLED_APPLYING, path, number, "before" if before else "after") as program:
        assert program.finish() == -9
    summary = execute(RebuildDelayed((str(path),), SMALL), HERE)
    assert summary.ok
    assert len(summary.before) == number - before
    for name in names:
        assert record(path, name)[1] == versions[name] + 1
        assert sorted(kit.in_all_buckets(path, name)) == sorted(waiting[name]) == sorted(kit.waiting(path, name))
    with bookstand.open(path, read_only=True) as store:
        assert store.verify().ok
        assert not [one for one in store.bucket_snapshots() if one.orphaned]
    content = kit.content(path)
    assert len(execute(RebuildDelayed((str(path),), SMALL), HERE).before) == 3
    assert kit.content(path) == content


_KILLED_MIGRATING = """
import sys
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs import migrate_cursors as jobs
from bookstand.pipeline.execution.local_runner import LocalRunner
from tests.pipeline.dying import dying_at

jobs.migrate_cursor = dying_at(int(sys.argv[2]), jobs.migrate_cursor, before=sys.argv[3] == "before")
execute(jobs.MigrateCursors((sys.argv[1],), "snapshot"), LocalRunner())
"""


@pytest.mark.parametrize(("number", "before", "left"), [(1, True, 3), (1, False, 2), (2, True, 2), (3, False, 0)])
def test_cursors_are_migrated_once_however_the_job_is_killed(
    tmp_path: Path, number: int, before: bool, left: int
) -> None:
    path = kit.fill(tmp_path / "store", topics=3)
    names = [kit.TOPIC.format(number) for number in range(3)]
    acked = {name: kit.acks(path, name)[:-1] for name in names}
    with Program(_KILLED_MIGRATING, path, number, "before" if before else "after") as program:
        assert program.finish() == -9
    assert {name: kit.acks(path, name)[:-1] for name in names} == acked
    assert execute(MigrateCursors((str(path),), "snapshot"), HERE).counts["changed"] == left
    assert {name: kit.acks(path, name)[:-1] for name in names} == acked
    assert {kit.acks(path, name)[-1] for name in names} == {"snapshot"}


def test_what_was_worked_out_from_another_state_is_not_applied(tmp_path: Path) -> None:
    path = kit.fill(tmp_path / "store", topics=1)
    job = RebuildDelayed((str(path),), SMALL)
    (unit,) = job.plan().units
    result = attempt(job, unit, tmp_path)
    with bookstand.open(path) as store, Cursor.open(store.managed_ledger(kit.TOPIC.format(0)), "sub") as cursor:
        cursor.change_properties(lambda _, properties: properties.__setitem__("mine", "1"))
    before = kit.content(path)
    (refused,) = job.commit([(unit, result)])
    assert "has changed since" in (refused.failure or "")
    assert kit.content(path) == before
    assert execute(job, HERE).ok
    assert kit.in_buckets(path, kit.TOPIC.format(0))
    # A second attempt of the same unit is one that others were faster than.
    (again,) = job.commit([(unit, result)])
    assert again.failure is not None


def test_done_before_means_that_it_is_still_so(tmp_path: Path) -> None:
    path = kit.fill(tmp_path / "store", topics=1)
    job = RebuildDelayed((str(path),), SMALL)
    assert execute(job, HERE).ok
    assert len(execute(job, HERE).before) == 1
    assert execute(Recut((str(path),), CutSettings(least=1000), True), HERE).ok
    assert len(kit.in_buckets(path, kit.TOPIC.format(0))) == 1
    assert not execute(job, HERE).before
    assert len(kit.in_buckets(path, kit.TOPIC.format(0))) == 2
    # Whoever acknowledges, changes what is to be done.
    with bookstand.open(path) as store, Cursor.open(store.managed_ledger(kit.TOPIC.format(0)), "sub") as cursor:
        cursor.ack(Position(*cursor.read(1)[0].position)).result()
    assert not execute(job, HERE).before


@pytest.mark.long
@pytest.mark.parametrize("name", ["import", "export", "rebuild-delayed", "recut", "migrate-cursors"])
def test_a_dry_run_changes_nothing(tmp_path: Path, name: str) -> None:
    path = kit.fill(tmp_path / "store", topics=2)
    assert execute(RebuildDelayed((str(path),), SMALL), HERE).ok
    places = kit.clusters(tmp_path / "disks", "one")
    out = str(tmp_path / "out")
    jobs: dict[str, Any] = {
        "import": Import(places, out),
        "export": Export((DataSource(STORE, (str(path),)),), out),
        "rebuild-delayed": RebuildDelayed((str(path),), CutSettings(least=7)),
        "recut": Recut((str(path),), CutSettings(least=1000), True),
        "migrate-cursors": MigrateCursors((str(path),), "snapshot"),
    }
    before = kit.content(path)
    files = tree(tmp_path / "disks"), sorted(os.listdir(tmp_path))
    summary = execute(jobs[name], HERE, dry_run=True)
    assert summary.ok
    assert summary.results
    assert "would be done" in str(summary)
    assert kit.content(path) == before
    assert (tree(tmp_path / "disks"), sorted(os.listdir(tmp_path))) == files
    # And it said what is done then.
    done = execute(jobs[name], HERE)
    told = [{one.unit: one.counts for one in some.results} for some in (summary, done)]
    assert told[0] == told[1]
    assert any(sum(counts.values()) for counts in told[0].values())


# -- what is damaged ---------------------------------------------------------------------------------------------------


def test_damaged_disks_are_named_and_the_rest_is_imported(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    cases = unpacked("damaged") / "entrylog"
    names = ["bit-flip-payload", *sorted(one.name for one in cases.iterdir() if "trunc" in one.name)[:2]]
    places = {name: bookies(cases / name) for name in names}
    places |= kit.clusters(tmp_path / "disks", "good", "gone")
    shutil.rmtree(tmp_path / "disks" / "gone")
    foreign = tmp_path / "disks" / "good" / "foreign.log"
    foreign.write_bytes(b"this is no log of a bookie" * 100)
    summary = execute(Import(places, str(tmp_path / "out")), HERE)
    assert [result.unit for result in summary.failed] == ["gone"]
    told = summary.as_dict()
    assert not told["ok"]
    assert told["failed"][0]["why"]
    assert {one["unit"] for one in told["problems"]} >= {"bit-flip-payload"}
    assert len(kit.content(tmp_path / "out" / "good")["ledgers"]) == 3
    for name in names:
        assert (tmp_path / "out" / name).is_dir()


def test_without_metadata_ledgers_are_imported(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    with_dump = Import({"a": bookies(unpacked("a"), str(dump_path("a")))}, str(tmp_path / "with"))
    without = Import({"a": bookies(unpacked("a"))}, str(tmp_path / "without"))
    named, unnamed = execute(with_dump, HERE), execute(without, HERE)
    assert named.counts["nodes"] > 0 == unnamed.counts["nodes"]
    assert unnamed.counts["entries"] >= named.counts["entries"]


def test_a_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    good = kit.fill(tmp_path / "good", topics=1)
    bad = kit.fill(tmp_path / "bad", topics=1)
    (bad / "data.mdb").write_bytes(b"\0" * 5000)
    stores = (str(bad), str(good))
    for job in (RebuildDelayed(stores, SMALL), MigrateCursors(stores), Recut(stores)):
        summary = execute(job, HERE)
        assert any(str(bad) in what for what in summary.problems)
        assert not summary.failed
    assert kit.in_buckets(good, kit.TOPIC.format(0))


def test_a_unit_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    path = kit.fill(tmp_path / "store", topics=1)
    with pytest.raises(bookstand.BookstandError, match="no unit 'x'"):
        execute(RebuildDelayed((str(path),), SMALL), HERE, only=["x"])


def test_the_work_folder_is_as_before_afterwards(tmp_path: Path) -> None:
    path = kit.fill(tmp_path / "store", topics=1)
    work = tmp_path / "work"
    (work / "of-somebody" / "else").mkdir(parents=True)
    assert execute(RebuildDelayed((str(path),), SMALL, workplace=str(work)), HERE).ok
    assert [str(one.relative_to(work)) for one in sorted(work.rglob("*"))] == ["of-somebody", "of-somebody/else"]
    assert store_commit.work(str(work)) == work
