"""Importing bookies' disks: what is told, that nothing is done twice, and that it can be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.storage.format.ledger_state import LedgerState
from bookstand.storage.lmdb.environment import data_file
from bookstand.store import Store
from bookstand.testing import every_crash
from bookstand.tools.cli.exit_codes import DAMAGE, FAILED, FINE
from bookstand.tools.commands import import_bookie
from bookstand.tools.main import main
from tests.disk.recordings import DAMAGED, RECORDINGS, dump_path, truth
from tests.kit import PATIENCE
from tests.tools import child
from tests.tools.kit import run

DUMP = ("--metadata", "metadata.jsonl.gz")


def imported(*arguments: object, code: int = FINE) -> Any:
    result = run("import-bookie", *arguments, "--json")
    assert result.code == code, result
    return result.json


def contents(store: Store) -> dict[str, Any]:
    """All that an import makes."""
    storage = store.storage
    found: dict[str, Any] = {path: store.nodes.get(path) for path in storage.node_paths("/")}
    for ledger_id in store.list_ledgers():
        state = storage.state(ledger_id)
        numbers = [getattr(state, name) for name in LedgerState.__slots__ if name != "incarnation"]
        found[f"ledger {ledger_id}"] = (storage.metadata(ledger_id), numbers, list(storage.runs(ledger_id, 1 << 40)))
    return found


def contents_at(path: Path) -> dict[str, Any]:
    with bookstand.open(path, read_only=True) as store:
        return contents(store)


# -- what it does ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_a_dry_run_says_is_done_and_then_there(name: str, unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    """Also from several disks instead of the folder that they are in."""
    disks = sorted(unpacked(name).iterdir())
    new, dump = tmp_path / "new", ("--metadata", dump_path(name))
    would = imported(*disks, new, *dump, "--dry-run")
    assert not new.exists()
    assert would["dry_run"]
    done = imported(*disks, new, *dump)
    assert {**done, "dry_run": True} == would
    dump_has = {
        row["ledger"]
        for row in run("ls", unpacked(name), *dump, "--json").json["ledgers"]
        if row["state"] != "UNLISTED"
    }
    assert done["ledgers"] == len(dump_has)
    if name != "f":
        assert dump_has == {line["ledger_id"] for line in truth(name, "ledgers")}
    before = Path(data_file(new)).read_bytes()
    again = imported(unpacked(name), new, *dump)
    assert (again["ledgers"], again["entries"], again["nodes"], again["resumed"]) == (0, 0, 0, False)
    assert (again["ledgers_there"], again["entries_there"]) == (done["ledgers"], done["entries"])
    assert imported(unpacked(name), new, *dump, "--dry-run")["ledgers"] == 0
    assert Path(data_file(new)).read_bytes() == before
    assert run("verify", new).code == FINE


def test_some_ledgers_and_those_that_are_not_listed(here: Path, tmp_path: Path) -> None:
    some = imported("bookie", tmp_path / "some", "--ledger", 5, "--ledger", 1, *DUMP)
    assert (some["ledgers"], some["nodes"]) == (2, 0)
    every = imported("bookie", tmp_path / "every", "--unlisted", *DUMP)
    listed = imported("bookie", tmp_path / "listed", *DUMP)
    without = imported("bookie", tmp_path / "without")
    assert every["ledgers"] == listed["ledgers"] + 81 == len(contents_ledgers(tmp_path / "every"))
    assert [one["what"] for one in every["left_out"]] == []
    assert len(listed["left_out"]) == 81
    assert (without["nodes"], without["ledgers"]) == (0, 164)
    assert set(contents_ledgers(tmp_path / "some")) == {1, 5}


def contents_ledgers(path: Path) -> list[int]:
    return [row["ledger"] for row in run("ls", path, "--json").json["ledgers"]]


def test_what_it_prints(here: Path, tmp_path: Path) -> None:
    text = run("import-bookie", "bookie", tmp_path / "new", *DUMP).out
    assert text.startswith(f"store {tmp_path / 'new'}\n")
    assert "\nimported       87     5419" in text
    assert "left out: 81 ledgers with 3788 entries: not in the metadata, so deleted and not collected yet" in text
    assert "existing       87     5419" in run("import-bookie", "bookie", tmp_path / "new", *DUMP).out
    dry = run("import-bookie", "bookie", tmp_path / "new", *DUMP, "--dry-run").out
    assert dry.startswith(f"store {tmp_path / 'new'}, which was not changed\n")


def test_damage_is_told_and_the_rest_imported(unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    case = unpacked(DAMAGED) / "entrylog" / "bit-flip-payload"
    done = imported(case, tmp_path / "new", code=DAMAGE)
    assert done["ledgers"] == 3
    assert any((one["ledger"], one["entry"]) == (5, 6) for one in done["damage"])
    assert [note["missing"] for note in done["notes"] if note["ledger"] == 5] == [[[6, 6]]]
    text = run("import-bookie", case, tmp_path / "new")
    assert text.code == DAMAGE
    assert "damage: " in text.out


# -- what it refuses ---------------------------------------------------------------------------------------------------


def test_conflicts_are_named_and_nothing_is_changed(own: Path, bench: Path) -> None:
    before = Path(data_file(own / "my-store")).read_bytes()
    for options in ((), ("--dry-run",)):
        result = run("import-bookie", bench / "bookie", "my-store", *options, "--metadata", bench / "metadata.jsonl.gz")
        assert (result.code, result.out, result.err.count("\n")) == (FAILED, "", 1)
        assert (
            "nothing was imported, because the store holds conflicting data: ledger 0 has other metadata" in result.err
        )
        assert "more\n" in result.err
        assert Path(data_file(own / "my-store")).read_bytes() == before


def test_an_unfinished_import_of_something_else(here: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    stop_early(new)
    result = run("import-bookie", "bookie", new, "--ledger", 5, *DUMP)
    assert (result.code, result.out, result.err.count("\n")) == (FAILED, "", 1)
    assert "unfinished import of something else" in result.err
    assert any("run it again" in note for note in run("verify", new, "--json").json["notes"])
    assert "an interrupted import was resumed" in run("import-bookie", "bookie", new, *DUMP).out


# -- killed ------------------------------------------------------------------------------------------------------------


def stop_early(path: Path) -> None:
    """Leaves a store as an import that has only begun."""

    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise StoppedError

    with (
        Disks.open(["bookie"], "metadata.jsonl.gz") as disks,
        bookstand.open(path) as store,
        pytest.raises(StoppedError),
    ):
        import_disks(disks, store, progress=stop, commit_bytes=1000)


@pytest.mark.long
def test_killed_at_any_point_and_run_again(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At points that the store passes while the command runs, with more commits than so little would take."""
    monkeypatch.setattr(import_bookie, "import_disks", partial(import_disks, commit_bytes=200_000))
    run("import-bookie", "bookie", tmp_path / "whole", *DUMP)
    expected = contents_at(tmp_path / "whole")
    disks = str((here / "bookie").resolve())
    dump = str((here / "metadata.jsonl.gz").resolve())
    out = tmp_path / "out"

    def workload(path: str, acknowledge: Callable[[Any], None]) -> None:
        with open(out, "w") as file, contextlib.redirect_stdout(file):
            assert main(["import-bookie", disks, path, "--metadata", dump, "--json"]) == FINE
        acknowledge("done")

    def check(store: Store, acknowledged: list[Any]) -> None:
        path = Path(store.storage.path)
        if acknowledged:
            assert contents(store) == expected
        done = run("import-bookie", disks, path, "--metadata", dump, "--json")
        assert done.code == FINE, done
        assert contents(store) == expected
        assert run("import-bookie", disks, path, "--metadata", dump, "--json").json["ledgers"] == 0

    explored = every_crash(workload, check, limit=7, mode="kill")
    assert explored.states == 7


def test_killed_at_any_time_and_run_again(here: Path, tmp_path: Path) -> None:
    """By the clock; whether it has just begun or is over by then, the store is in the end the same."""
    run("import-bookie", "bookie", tmp_path / "whole", *DUMP)
    expected = contents_at(tmp_path / "whole")
    for number, wait in enumerate((0.0, 0.01, 0.05)):
        new = tmp_path / f"new-{number}"
        words = ("import-bookie", "bookie", new, *DUMP)
        process = child.start(*words, folder=here, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not Path(data_file(new)).exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE) in (-signal.SIGKILL, FINE)
        report = imported("bookie", new, *DUMP)
        assert report["ledgers"] + report["ledgers_there"] == 87
        assert contents_at(new) == expected
        shutil.rmtree(new)


def test_json_of_the_summary_is_whole(here: Path, tmp_path: Path) -> None:
    result = run("import-bookie", "bookie", tmp_path / "new", *DUMP, "--dry-run", "--json")
    found = json.loads(result.out)
    assert (found["disks"], found["store"]) == (["bookie"], str(tmp_path / "new"))
    assert found["left_out"][0]["what"].startswith("ledger ")
