"""Paths and passwords of any bytes, and errors that nobody foresaw: no traceback, and not the exit code of damage."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import bookstand
from bookstand.errors import StoreDamagedError
from bookstand.tools.cli.exit_codes import FAILED, FINE, WRONG_ARGUMENTS
from bookstand.tools.commands import ls
from tests.tools import kit
from tests.tools.child import finished, start
from tests.tools.kit import run

ODD = os.fsdecode(b"st\xff\xe9")
SHOWN = r"st\udcff\udce9"


@pytest.fixture
def odd(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store whose name is no UTF-8, as the current one."""
    monkeypatch.chdir(tmp_path)
    return kit.copied(bench / "my-store", tmp_path / ODD)


LINES = [
    *(f"{command} {ODD}" for command in ("ls", "ls --files", "show", "verify", "cursors", "delayed", "stats")),
    *(f"{command} {ODD}" for command in ("upgrade", "compact", "report", "migrate cursors --to snapshot")),
    *(f"{command} {ODD} {ODD}-{command}" for command in ("backup", "repair")),
    f"export-bookie {ODD} new",
    f"cat {ODD} 2",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.partition(" ")[0])
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_store_whose_name_is_no_text(odd: Path, line: str, more: list[str]) -> None:
    code, out, err = finished(start(*line.split(), *more, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    assert (code, err) == (FINE, "")
    if line.startswith("cat"):
        return
    if more:
        assert ODD in json.dumps(json.loads(out), ensure_ascii=False)
    else:
        assert SHOWN in out


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_bookie_has_a_name_that_is_text(odd: Path, more: list[str]) -> None:
    result = run("export-bookie", ODD, f"{ODD}-exported", *more)
    assert (result.code, result.out) == (WRONG_ARGUMENTS, "")
    assert rf"{SHOWN}-exported/bookie-0 is no UTF-8" in result.err


@pytest.mark.parametrize("check", ["fast", "structure", "full", "subprocess"])
def test_such_a_store_in_python(tmp_path: Path, check: str) -> None:
    """It is made, opened, named in errors, copied, and written anew."""
    with bookstand.open(tmp_path / ODD) as store, store.create_ledger() as writer:
        writer.append(b"one")
    with bookstand.open(tmp_path / ODD, check=check) as store:
        store.backup(tmp_path / f"{ODD}-copy")
        store.compact()
    with bookstand.open(tmp_path / f"{ODD}-copy", check=check) as copy:
        assert [entry.data for entry in copy.open_ledger(writer.id)] == [b"one"]
    kit.cut_file(tmp_path / ODD)
    with pytest.raises(StoreDamagedError, match=ODD):
        bookstand.open(tmp_path / ODD, check=check)


def test_a_password_that_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with bookstand.open("store") as store, store.create_ledger(digest="hmac", password=b"\xff\xe9") as writer:
        writer.append(b"one")
    with kit.kit.raw(tmp_path / "store", write=True) as database:
        del database(b"ledgers")[writer.id.to_bytes(8, "big")]
    word = os.fsdecode(b"\xff\xe9")
    assert run("verify", "store", "--password", word).code in (FINE, 1)
    found = run("repair", "store", "new", "--password", word, "--json").json
    assert (found["entries"], found["unchecked"]) == (1, [])


def test_what_nobody_foresaw_is_no_damage(bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of\nours")

    monkeypatch.setattr(ls, "_ledger_rows", fail)
    result = run("ls", bench / "my-store", "--json")
    assert (result.code, result.err) == (FAILED, "bookstand: unexpected ZeroDivisionError: of ours\n")
    assert result.json["error"]["kind"] == "ZeroDivisionError"
