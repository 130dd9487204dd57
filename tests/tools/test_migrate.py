"""Cursors and buckets of one store in other forms: that a dry run tells what a run does, which are left alone, and that
it can be killed at any moment."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.store import Store
from bookstand.testing import every_crash
from bookstand.tools.cli.exit_codes import DAMAGE, FAILED, FINE, NOT_THERE, WRONG_ARGUMENTS
from bookstand.tools.main import main
from tests.disk.recordings import RECORDINGS, dump_path
from tests.kit import Child, change_entry
from tests.pipeline import kit
from tests.tools.kit import ORDERS, run

T0, T1 = kit.TOPIC.format(0), kit.TOPIC.format(1)


def migrated(*arguments: object, code: int = FINE) -> Any:
    result = run("migrate", *arguments, "--json")
    assert result.code == code, result
    return result.json


def named(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(row["topic"], row["cursor"]) for row in rows}


def known(path: Path | str) -> dict[tuple[str, str], Any]:
    """What each cursor has acknowledged, and what waits for it; however that is stored."""
    found: dict[tuple[str, str], Any] = {}
    for topic in kit.topics_of(Path(path)):
        for cursor in cursor_names(Path(path), topic):
            *acks, _ = kit.acks(Path(path), topic, cursor)
            found[topic, cursor] = acks, sorted(kit.waiting(Path(path), topic, cursor))
    return found


def forms(path: Path | str) -> dict[tuple[str, str], str]:
    return {
        (topic, cursor): kit.acks(Path(path), topic, cursor)[-1]
        for topic in kit.topics_of(Path(path))
        for cursor in cursor_names(Path(path), topic)
    }


def cursor_names(path: Path, topic: str) -> list[str]:
    rows = run("cursors", path, topic, "--json").json["cursors"]
    return [row["cursor"] for row in rows]


OLD = {"snapshot", "record"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return filled(tmp_path / "store")


def filled(path: Path) -> Path:
    """Two topics, of which each of two cursors has buckets."""
    kit.fill(path, cursors=("one", "two"))
    assert execute(RebuildDelayed((str(path),), CutSettings(least=50, step_millis=100_000)), LocalRunner()).ok
    with bookstand.open(path) as opened:
        for topic in (T0, T1):
            opened.managed_ledger(topic).close()
    return path


# -- what it does ------------------------------------------------------------------------------------------------------


def test_cursors_there_and_back(store: Path) -> None:
    before = known(store)
    for form, how in (("snapshot", OLD), ("pages", {"marker"}), ("snapshot", OLD)):
        content = kit.content(store)
        would = migrated("cursors", store, "--to", form, "--dry-run")
        assert kit.content(store) == content
        done = migrated("cursors", store, "--to", form)
        assert {**done, "dry_run": True} == would
        assert named(row for row in done["cursors"] if row["changed"]) == before.keys()
        assert known(store) == before
        assert set(forms(store).values()) <= how
        content = kit.content(store)
        again = migrated("cursors", store, "--to", form)
        assert [row["changed"] for row in again["cursors"]] == [False] * 4
        assert kit.content(store) == content
    assert run("verify", store).code == FINE


@pytest.mark.long
@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_cursors(name: str, unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Disks.open([unpacked(name)], dump_path(name)) as disks, bookstand.open(path) as opened:
        import_disks(disks, opened)
    before = known(path)
    for form in ("pages", "snapshot"):
        would = migrated("cursors", path, "--to", form, "--dry-run")
        done = migrated("cursors", path, "--to", form)
        assert {**done, "dry_run": True} == would
        assert named(done["cursors"]) == before.keys()
        assert known(path) == before


@pytest.mark.parametrize("options", [("--least", 1000), ("--step-seconds", 10), ("--most-in-segment", 7)])
def test_snapshots_are_cut_anew(store: Path, options: tuple[object, ...]) -> None:
    before = known(store)
    content = kit.content(store)
    would = migrated("snapshots", store, *options, "--dry-run")
    assert kit.content(store) == content
    done = migrated("snapshots", store, *options)
    assert {**done, "dry_run": True} == would
    assert named(row for row in done["cursors"] if row["changed"]) == before.keys()
    assert known(store) == before
    for row in done["cursors"]:
        entries = kit.entries_of_buckets(store, row["topic"], row["cursor"])
        assert row["buckets"] == len(entries)
        assert row["bytes"] == sum(len(entry) for some in entries.values() for entry in some)
        assert row["segments"] == len(kit.segments(store, row["topic"], row["cursor"]))
    content = kit.content(store)
    assert not any(row["changed"] for row in migrated("snapshots", store, *options)["cursors"])
    assert kit.content(store) == content
    assert not [note for note in run("verify", store, "--json").json["notes"] if "left over" in note]


def test_coarser_times(store: Path) -> None:
    before = known(store)
    migrated("snapshots", store, "--precision-bits", 10)
    rounded = {
        name: (acks, sorted((-(-time // 1024) * 1024, *position) for time, *position in waiting))
        for name, (acks, waiting) in before.items()
    }
    assert {name: (acks, waiting) for name, (acks, waiting) in known(store).items()} == rounded


def test_some_topics_and_cursors(store: Path) -> None:
    done = migrated("cursors", store, "--to", "snapshot", "--topic", "0", "--cursor", "t*")
    assert named(done["cursors"]) == {(T0, "two")}
    assert {name for name, form in forms(store).items() if form in OLD} == {(T0, "two")}
    done = migrated("snapshots", store, "--least", 1000, "--topic", "*/orders/1")
    assert named(done["cursors"]) == {(T1, "one"), (T1, "two")}
    assert len(kit.in_buckets(store, T0, "one")) > 1 == len(kit.in_buckets(store, T1, "one"))


def test_what_it_prints(own: Path) -> None:
    dry = run("migrate", "cursors", "my-store", "--to", "snapshot", "--dry-run").out
    assert dry.startswith("store my-store, which was not changed\n")
    assert "2 cursors would be changed\n" in dry
    assert "\n2 cursors changed\n" in run("migrate", "cursors", "my-store", "--to", "snapshot").out
    assert (
        "\n0 cursors changed, 2 already in this form\n" in run("migrate", "cursors", "my-store", "--to", "snapshot").out
    )
    text = run("migrate", "snapshots", "my-store", "--most-in-segment", 1).out
    assert "10 → 50" in text


# -- what it leaves alone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [("cursors", "--to", "snapshot"), ("snapshots", "--least", "1000")])
def test_what_another_process_has_open(store: Path, what: tuple[str, ...]) -> None:
    command, *options = what
    with Child(store) as other:
        other.run(f"held = bookstand.open(path).topic({T1!r}).cursor('one')")
        would = migrated(command, store, *options, "--dry-run", code=FAILED)
        done = migrated(command, store, *options, code=FAILED)
        assert {**done, "dry_run": True} == would
        assert named(done["left"]) == {(T1, "one"), (T1, "two")}
        assert named(done["cursors"]) == {(T0, "one"), (T0, "two")}
        assert all(row["changed"] for row in done["cursors"])
        text = run("migrate", command, store, *options)
        assert text.code == FAILED
        assert "skipped: acme/orders/1 : one: cursor 'one' of topic persistent://acme/orders/1 may be" in text.out
        other.run("held.flush()")
        taken = migrated(command, store, *options, "--take-over")
        assert named(taken["cursors"]) == set(known(store))
    assert len(taken["left"]) == 0


def test_a_damaged_cursor_costs_no_other(own: Path) -> None:
    change_entry(own / "my-store", 5, 6, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))
    would = migrated("cursors", "my-store", "--to", "snapshot", "--dry-run", code=DAMAGE)
    done = migrated("cursors", "my-store", "--to", "snapshot", code=DAMAGE)
    assert {**done, "dry_run": True} == would
    assert (named(done["left"]), named(done["cursors"])) == ({(ORDERS, "audit")}, {(ORDERS, "billing")})
    assert "5:6" in done["left"][0]["why"]


def test_a_damaged_bucket_costs_no_other_topic(store: Path) -> None:
    with bookstand.open(store, read_only=True) as opened:
        bucket = next(one for one in opened.bucket_snapshots() if (one.topic, one.cursor) == (T1, "two"))
    change_entry(store, bucket.ledger_id, 1, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))
    done = migrated("snapshots", store, "--least", 1000, code=DAMAGE)
    ((failed),) = done["failed"]
    assert failed["topic"] == T1
    assert "cannot be cut anew" in failed["why"]
    assert named(done["cursors"]) == {(T0, "one"), (T0, "two")}
    text = run("migrate", "snapshots", store, "--least", 1000)
    assert text.code == DAMAGE
    assert "skipped: acme/orders/1: what cannot be read cannot be cut anew" in text.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["migrate", "topics", "my-store"], WRONG_ARGUMENTS, "No such command 'topics'"),
        (["migrate", "cursor", "my-store"], WRONG_ARGUMENTS, "Did you mean 'cursors'?"),
        (["migrate", "cursors"], WRONG_ARGUMENTS, "Missing argument"),
        (["migrate", "cursors", "nothing"], NOT_THERE, "there is nothing at nothing"),
        (["migrate", "cursors", "bookie"], NOT_THERE, "bookie is a bookie, not a store"),
        (["migrate", "cursors", "my-store", "--to", "words"], WRONG_ARGUMENTS, "'pages' or 'snapshot', not 'words'"),
        (["migrate", "cursors", "my-store", "--topic", "x"], NOT_THERE, "there is no topic 'x'"),
        (["migrate", "cursors", "my-store", "--cursor", "x*"], NOT_THERE, "nothing to migrate that matches x*"),
        (["migrate", "snapshots", "my-store", "--cursor", "audit"], NOT_THERE, "nothing to migrate that matches audit"),
        (["migrate", "snapshots", "my-store", "--least", "0"], WRONG_ARGUMENTS, "--least"),
        (["migrate", "snapshots", "my-store", "--most-in-segment", "0"], WRONG_ARGUMENTS, "from 1 message up"),
        (["migrate", "snapshots", "my-store", "--step-seconds", "0"], WRONG_ARGUMENTS, "--step-seconds"),
        *(
            (["migrate", "snapshots", "my-store", "--step-seconds", seconds], WRONG_ARGUMENTS, "0.001")
            for seconds in ("inf", "nan", "1e300")
        ),
        (["migrate", "snapshots", "my-store", "--precision-bits", "63"], WRONG_ARGUMENTS, "--precision-bits"),
    ],
)
def test_what_is_refused(here: Path, arguments: list[str], code: int, says: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
    assert says in result.err
    assert run(*arguments, "--json").json["error"]["exit_code"] == code


def test_an_empty_store_has_nothing_to_migrate(here: Path) -> None:
    assert migrated("cursors", "empty", "--dry-run")["cursors"] == []
    assert "0 cursors would be changed\n" in run("migrate", "snapshots", "empty", "--dry-run").out


# -- killed ------------------------------------------------------------------------------------------------------------

STEPS = (("cursors", "--to", "snapshot"), ("snapshots", "--least", "1000"), ("cursors", "--to", "pages"))


def step(path: str, number: int) -> None:
    command, *options = STEPS[number]
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["migrate", command, path, *options]) == FINE


def workload(path: str, acknowledge: Callable[[object], None]) -> None:
    """One step after the other."""
    small(Path(path))
    acknowledge("filled")
    for number in range(len(STEPS)):
        step(path, number)
        acknowledge(number)


def small(path: Path) -> None:
    """Made again it is the same; in few commits, for each is cut in several ways."""
    with bookstand.open(path) as store:
        for number in range(2):
            topic = store.managed_ledger(kit.TOPIC.format(number), max_entries_per_ledger=10)
            times = [kit.NOW + 1_000 * place if place % 2 else None for place in range(30)]
            positions = topic.append_many([b"m"] * 30, times)
            for cursor in ("one", "two"):
                with Cursor.open(topic, cursor) as opened:
                    opened.ack(positions[3:20:4]).result()
            topic.close()
    assert execute(RebuildDelayed((str(path),), CutSettings(least=5)), LocalRunner(processes=0)).ok


class Check:
    """Whenever it stops, nothing is lost and nothing there twice; and run again, it is done."""

    def __init__(self, expected: dict[tuple[str, str], Any]) -> None:
        self._expected = expected

    def __call__(self, store: Store, acknowledged: list[Any]) -> None:
        if "filled" not in acknowledged:
            return
        path = store.storage.path
        assert known(path) == self._expected
        done = max((one for one in acknowledged if one != "filled"), default=-1)
        before = forms(path)
        assert set(before.values()) <= {*OLD, "marker"}
        if done == 0:
            # Each state is looked at twice: the second time the first look has gone on.
            assert set(before.values()) <= OLD or set(before.values()) == {"marker"}
        for number in range(max(done, 0), len(STEPS)):
            step(path, number)
            assert known(path) == self._expected
        assert set(forms(path).values()) == {"marker"}
        assert all(len(kit.in_buckets(Path(path), *name)) == 1 for name in self._expected)
        assert not [one for one in store.bucket_snapshots() if one.orphaned or one.problem]


@pytest.mark.long
@pytest.mark.parametrize(("mode", "limit", "least"), [("images", 60, 60), ("kill", 12, 12)])
def test_stopped_at_any_moment_and_run_again(tmp_path: Path, mode: str, limit: int, least: int) -> None:
    small(tmp_path / "whole")
    expected = known(tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    explored = every_crash(workload, Check(expected), limit=limit, mode=mode, seed=3)
    assert explored.states >= least
