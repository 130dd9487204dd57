"""The page on what BookKeeper's own commands are here: it has all of them with all options, and what it names runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.topic import Topic
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.store import Store
from bookstand.tools.cli.exit_codes import FINE
from tests.tools.kit import lay_out, run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "from-bookkeeper-shell.md").read_text()
DATA = ROOT / "tests" / "data" / "bookkeeper"
ADMIN = "pulsar-managed-ledger-admin"
# The same everywhere.
HELP = "-h/--help"
# What calls on the page are calls of.
OBJECTS = {"store": Store, "topic": Topic, "topic.ledger": ManagedLedger, "topic.cursor(name)": Cursor}


class Row(NamedTuple):
    options: str
    here: str


def rows(text: str) -> dict[str, Row]:
    found = re.findall(r"^\| `([\w-]+)` \| (.*?) ?\| (.*) \|$", text, re.MULTILINE)
    names = [name for name, *_ in found]
    assert len(set(names)) == len(names)
    return {name: Row(options, here) for name, options, here in found}


SHELL, _, REST = PAGE.partition(f"\n## {ADMIN}\n")
TABLES = {"shell.json": rows(SHELL), "managed_ledger_admin.json": rows(REST)}


@pytest.mark.parametrize("file", TABLES)
def test_every_command_with_every_option_is_there(file: str) -> None:
    known: dict[str, list[str]] = json.loads((DATA / file).read_text())
    table = TABLES[file]
    assert table.keys() == known.keys()
    for command, options in known.items():
        named = re.findall(r"`(-[\w-]+)`", table[command].options)
        for option in options:
            if option != HELP:
                (_,) = [name for name in named if name in option.split("/")]
        assert len(named) == len([option for option in options if option != HELP]), command


@pytest.mark.parametrize("file", TABLES)
def test_each_is_something_or_said_to_be_nothing(file: str) -> None:
    for command, row in TABLES[file].items():
        # "as" names another row that is.
        same = re.match(r"as `([\w-]+)`", row.here)
        here = TABLES[file][same[1]].here if same else row.here
        assert "`bookstand " in here or calls(here) or here.startswith("Nothing"), command


def lines() -> list[str]:
    return re.findall(r"`bookstand ([^`]+)`", PAGE)


@pytest.mark.long
def test_what_the_page_names_runs(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a store and a disk, in their order; each on its own has something to say."""
    lay_out(bench, tmp_path)
    monkeypatch.chdir(tmp_path)
    named = list(dict.fromkeys(lines()))
    for line in named:
        result = run(*shlex.split(line))
        assert result.code == FINE, (line, result.err)
        assert result.out, line
    assert len(named) > 45


def calls(text: str) -> list[tuple[str, str]]:
    """Of what, and which."""
    found = re.findall(r"`((?:store|topic)[^`]*)`", text)
    return [(call.rpartition("(")[0].rpartition(".")[0], call.rpartition("(")[0].rpartition(".")[2]) for call in found]


def test_what_is_done_in_python_is_there() -> None:
    found = calls(PAGE)
    assert len(found) > 5
    for of, name in found:
        assert callable(getattr(OBJECTS[of], name)), (of, name)
