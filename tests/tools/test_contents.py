"""What is chosen of ledgers, files and records, and what files have of which ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.tools.cli.exit_codes import FINE
from tests.disk.recordings import RECORDINGS, dump_path
from tests.tools.kit import run

DUMP = ("--metadata", "metadata.jsonl.gz")


def rows(key: str, *arguments: object) -> list[dict[str, Any]]:
    result = run("ls", *arguments, "--json")
    assert (result.code, result.err) == (FINE, ""), result
    found: list[dict[str, Any]] = result.json[key]
    return found


def records(*arguments: object) -> list[dict[str, Any]]:
    return [row for row in run("ls", *arguments, "--records", "--json").lines if "damage" not in row]


# -- contents ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", RECORDINGS)
def test_contents_are_what_the_records_add_up_to(name: str, unpacked: Callable[[str], Path]) -> None:
    dump = ("--metadata", dump_path(name))
    entries = Counter[tuple[str, int]]()
    sizes = Counter[tuple[str, int]]()
    for row in records(unpacked(name), *dump):
        if row["what"] == "entry":
            entries[row["file"], row["ledger"]] += 1
            # With the length before it.
            sizes[row["file"], row["ledger"]] += row["bytes"] + 4
    found = rows("contents", unpacked(name), "--contents", *dump)
    assert {(row["file"], row["ledger"]): row["entries"] for row in found} == entries
    assert {(row["file"], row["ledger"]): row["bytes"] for row in found} == sizes
    states = {row["ledger"]: row["state"] for row in rows("ledgers", unpacked(name), *dump)}
    assert all(row["state"] == states[row["ledger"]] for row in found)


def test_maps_say_the_same_as_the_records(here: Path) -> None:
    mapped = [row for row in rows("contents", "bookie", "--contents", *DUMP) if row["in_map"] is not None]
    assert {row["file"] for row in mapped} == {"ledgers-0/current/0.log"}
    assert all(row["in_map"] == row["bytes"] for row in mapped)
    (log,) = [row for row in rows("files", "bookie", "--files", *DUMP) if row["ledgers"]]
    assert log["ledgers"] == len(mapped)


def test_contents_of_some(here: Path) -> None:
    every = rows("contents", "bookie", "--contents", *DUMP)
    some = rows("contents", "bookie", "--contents", "--ledger", 5, "--ledger", 14, *DUMP)
    assert some == [row for row in every if row["ledger"] in (5, 14)]
    batched = rows("contents", "bookie", "--contents", "--topic", "batched", *DUMP)
    assert {row["ledger"] for row in batched} == {14, 15}
    alone = rows("contents", "bookie/ledgers-1/current/0.log", "--contents")
    assert {row["ledger"] for row in alone} == {
        row["ledger"] for row in every if row["file"] == "ledgers-1/current/0.log"
    }


# -- nodes -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def only_nodes(tmp_path: Path) -> Path:
    """A store with nodes and nothing else."""
    path = tmp_path / "only-nodes"
    with bookstand.open(path) as store:
        store.nodes.put("/accounts/ann", b"100")
        store.nodes.put("/accounts/ann", b"70")
        store.nodes.put("/accounts/long", b"x" * 1000)
        store.nodes.put("/accounts/binary", bytes(range(3)))
    return path


def test_a_store_that_has_only_nodes_does_not_look_empty(only_nodes: Path) -> None:
    assert run("ls", only_nodes).out.splitlines()[1:] == ["no ledgers", "3 nodes: --nodes lists them"]
    table = run("ls", only_nodes, "--nodes").out.splitlines()[1:]
    assert table[0].split() == ["NODE", "VERSION", "SIZE", "VALUE"]
    assert table[1].split() == ["/accounts/ann", "1", "2", "B", "70"]
    assert table[-1] == "3 nodes"


def test_nodes_are_told_with_the_beginning_of_their_values(only_nodes: Path) -> None:
    found = {row["path"]: row for row in rows("nodes", only_nodes, "--nodes")}
    assert list(found) == ["/accounts/ann", "/accounts/binary", "/accounts/long"]
    assert (found["/accounts/ann"]["version"], found["/accounts/ann"]["value"]) == (1, "70")
    assert found["/accounts/binary"]["value"] == "0x000102"
    assert (found["/accounts/long"]["bytes"], found["/accounts/long"]["value"]) == (1000, "x" * 79 + "…")


def test_nodes_of_disks_are_those_of_the_dump(here: Path) -> None:
    found = rows("nodes", "bookie", "--nodes", *DUMP)
    about = run("show", "bookie", *DUMP, "--json").json["about"]
    assert len(found) == about["nodes"] > 50
    assert "/ledgers/00/0000/L0005" in {row["path"] for row in found}
    assert f"{len(found)} nodes: --nodes lists them" in run("ls", "bookie", *DUMP).out
    assert "nodes" not in run("ls", "bookie").out
    assert "nodes" not in run("ls", "bookie", *DUMP, "--topic", "plain").out


def test_no_nodes(here: Path) -> None:
    assert run("ls", "empty", "--nodes").out.splitlines()[1:] == ["no nodes"]


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_ledgers_of_a_bookie(unpacked: Callable[[str], Path]) -> None:
    """By all of their ensembles, not by whose disk they are on."""
    dump = ("--metadata", dump_path("d"))
    every = [row["ledger"] for row in rows("ledgers", unpacked("d"), *dump) if row["state"] != "UNLISTED"]
    named: dict[str, set[int]] = {}
    for ledger_id in every:
        shown = run("show", unpacked("d"), ledger_id, *dump, "--json").json["ledger"]
        for ensemble in shown["metadata"]["ensembles"]:
            for bookie in ensemble["bookies"]:
                named.setdefault(bookie, set()).add(ledger_id)
    assert len(named) > 1
    for bookie, ledgers in named.items():
        assert {row["ledger"] for row in rows("ledgers", unpacked("d"), "--bookie", bookie, *dump)} == ledgers
    assert rows("ledgers", unpacked("d"), "--bookie", "nobody", *dump) == []


def test_some_ledgers(here: Path) -> None:
    assert [row["ledger"] for row in rows("ledgers", "my-store", "--ledger", 3, "--ledger", 0)] == [0, 3]
    assert rows("ledgers", "my-store", "--ledger", 3, "--kind", "cursor") == []


def test_files_of_a_kind(here: Path) -> None:
    every = rows("files", "bookie", "--files", *DUMP)
    for kind, whole in (("journal", "journal"), ("log", "entry log"), ("Entry Log", "entry log"), ("index", "index")):
        found = rows("files", "bookie", "--files", "--kind", kind, *DUMP)
        assert found == [row for row in every if row["kind"] == whole]


def test_records_by_ledger_entry_and_place(here: Path) -> None:
    log = "bookie/ledgers-1/current/0.log"
    every = records(log)
    assert records(log, "--ledger", 5) == [row for row in every if row["ledger"] == 5]
    one = records("bookie", "--ledger", 5, "--entry", 3, *DUMP)
    assert {row["file"] for row in one} == {"ledgers-1/current/0.log", "journal/current/1a1edd4dc8f.txn"}
    (place,) = [row["offset"] for row in one if row["file"] == "ledgers-1/current/0.log"]
    assert [row["entry"] for row in records(log, "--start", place, "--end", place)] == [3]
    assert records(log, "--start", place + 1) == [row for row in every if row["offset"] > place]
    text = run("ls", log, "--records", "--ledger", 5, "--entry", 3).out
    assert text.count(f"\n     {place}  entry") == 1
