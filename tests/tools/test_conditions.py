"""Every command on every kind of thing: the right answer or a clear error, and the right exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.tools.cli.exit_codes import FAILED, FINE, NOT_THERE, WRONG_ARGUMENTS
from tests.tools.kit import run

DUMP = ("--metadata", "metadata.jsonl.gz")
READING = ("ls", "show", "verify", "cursors", "delayed", "stats")
"""Commands that need no more than a path."""
CHANGING = ("import-bookie", "export-bookie", "migrate cursors", "migrate snapshots")


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("place", [("my-store",), ("empty",), ("bookie", *DUMP)], ids=lambda place: place[0])
def test_healthy(here: Path, command: str, place: tuple[str, ...]) -> None:
    result = run(command, *place)
    assert (result.code, result.err) == (FINE, "")
    kind = "bookie bookie-0" if place[0] == "bookie" else "store"
    assert result.out.startswith(f"{kind} {'at ' if place[0] == 'bookie' else ''}{place[0]}")
    as_json = run(command, *place, "--json")
    assert (as_json.code, as_json.err) == (FINE, "")
    assert (as_json.json["kind"], as_json.json["path"]) == (kind.split()[0], place[0])


@pytest.mark.parametrize("command", READING)
def test_a_bookie_without_metadata(here: Path, command: str) -> None:
    result = run(command, "bookie")
    assert "metadata.jsonl.gz may be the metadata: pass it with --metadata" in result.err
    if command == "delayed":
        assert result.code == WRONG_ARGUMENTS
        assert "pass the dump" in result.err
    else:
        assert result.code == FINE
        assert result.out.startswith("bookie bookie-0 at bookie, without metadata")


@pytest.mark.parametrize("command", [*READING, "cat", *CHANGING])
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("something", "something is neither a store nor a bookie's disk"),
        ("something/else.txt", "something/else.txt is neither a store nor a bookie's disk"),
        ("nothing", "there is nothing at nothing"),
        ("my-store/nothing", "there is nothing at my-store/nothing"),
    ],
)
def test_neither(here: Path, command: str, place: str, says: str) -> None:
    more = {"cat": ["2"], "import-bookie": ["new"], "export-bookie": ["new"]}.get(command, [])
    result = run(*command.split(), place, *more)
    assert (result.code, result.out, result.err) == (NOT_THERE, "", f"bookstand: {says}\n")
    as_json = run(*command.split(), place, *more, "--json")
    assert (as_json.code, as_json.err) == (result.code, result.err)
    assert as_json.json["error"]["message"] == says
    assert as_json.json["error"]["exit_code"] == NOT_THERE


@pytest.mark.parametrize("command", [*READING, "cat"])
def test_a_store_that_is_written_to(own: Path, command: str) -> None:
    """By this process; by another one in test_processes.py."""
    with bookstand.open(own / "my-store") as store:
        with store.create_ledger() as writer:
            writer.append_many([b"new"] * 5)
            result = run(command, "my-store", *([str(writer.id)] if command == "cat" else []))
            assert (result.code, result.err) == (FINE, "")
            writer.append(b"still")
        if command == "cat":
            assert result.out.splitlines() == [f"{writer.id}:{number}  new" for number in range(5)]
        elif command != "delayed" and command != "cursors":
            assert "open in another process" in result.out.splitlines()[0]


@pytest.mark.parametrize("place", ["my-store/data.mdb", "my-store/", "./my-store"])
@pytest.mark.parametrize("words", ["export-bookie {} new", "upgrade {}", "migrate cursors {}"])
def test_ways_to_name_a_store_that_is_worked_on(own: Path, place: str, words: str) -> None:
    result = run(*words.format(place).split())
    assert (result.code, result.err) == (FINE, "")
    assert result.out.startswith("store my-store\n")


@pytest.mark.parametrize("place", ["my-store/data.mdb", "my-store/", "./my-store"])
def test_ways_to_name_a_store(here: Path, place: str) -> None:
    assert run("ls", place, "--json").json["ledgers"] == run("ls", "my-store", "--json").json["ledgers"]


def test_the_folders_of_a_bookie_by_themselves(here: Path) -> None:
    folders = sorted(Path("bookie").resolve().iterdir())
    apart = [word for folder in folders[1:] for word in ("--disk", folder)]
    assert (
        run("ls", folders[0], *apart, *DUMP, "--json").json["ledgers"]
        == run("ls", "bookie", *DUMP, "--json").json["ledgers"]
    )


def test_nothing_is_changed(own: Path) -> None:
    store = own / "my-store"
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    for command in READING:
        run(command, "my-store")
    run("cat", "my-store", "orders", "--messages")
    after = {path.name: path.read_bytes() for path in store.iterdir()}
    before.pop("lock.mdb")
    after.pop("lock.mdb")
    assert after == before


# -- wrong arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["ls"], WRONG_ARGUMENTS, "Missing argument"),
        (["list", "my-store"], WRONG_ARGUMENTS, "No such command 'list'"),
        (["verfy", "my-store"], WRONG_ARGUMENTS, "Did you mean 'verify'"),
        (["ls", "my-store", "--nonsense"], WRONG_ARGUMENTS, "No such option"),
        (["ls", "my-store", "--topics", "--files"], WRONG_ARGUMENTS, "exclude each other"),
        (["ls", "my-store", "--topics", "--kind", "topic"], WRONG_ARGUMENTS, "--kind does not apply to topics"),
        (["ls", "my-store", "--nodes", "--topic", "x"], WRONG_ARGUMENTS, "--topic does not apply to nodes"),
        (["ls", "bookie", "--nodes"], WRONG_ARGUMENTS, "nodes are in the metadata: pass the dump with --metadata"),
        (["ls", "bookie", "--records", "--topic", "x"], WRONG_ARGUMENTS, "--topic does not apply to records"),
        (["ls", "bookie", "--files", "--ledger", "5"], WRONG_ARGUMENTS, "--ledger does not apply to files"),
        (["ls", "bookie", "--entry", "5"], WRONG_ARGUMENTS, "--entry does not apply to ledgers"),
        (["ls", "bookie", "--contents", "--files"], WRONG_ARGUMENTS, "exclude each other"),
        (["ls", "my-store", "--contents"], WRONG_ARGUMENTS, "--records and --contents require a bookie's disk"),
        (["ls", "my-store", "--records"], WRONG_ARGUMENTS, "--records and --contents require a bookie's disk"),
        (["ls", "my-store", "--metadata", "metadata.jsonl.gz"], WRONG_ARGUMENTS, "no dump is needed"),
        (["ls", "my-store", "--disk", "bookie"], WRONG_ARGUMENTS, "no other disks have parts of it"),
        (["ls", "bookie", "--disk", "nothing"], NOT_THERE, "there is nothing at nothing"),
        (["ls", "bookie", "--disk", "my-store"], NOT_THERE, "my-store is not a bookie's folder"),
        (["ls", "bookie/ledgers-0/current/0.log", "--disk", "bookie"], WRONG_ARGUMENTS, "--disk requires a folder"),
        (["ls", ""], WRONG_ARGUMENTS, "'' is no path"),
        (["ls", "bookie", "--metadata", "nothing.gz"], NOT_THERE, "no metadata dump at nothing.gz"),
        (["ls", "bookie", "--metadata", "something"], WRONG_ARGUMENTS, "metadata dump"),
        (["show", "my-store", "77"], NOT_THERE, "there is no ledger 77"),
        (["show", "my-store", "2:1000"], NOT_THERE, "ledger 2 has no entry 1000; it ends at 99"),
        (["show", "my-store", "9223372036854775808"], NOT_THERE, "9223372036854775808"),
        (["show", "my-store", "nowhere"], NOT_THERE, "there is no topic 'nowhere'"),
        (["show", "my-store", "--node", "/nowhere"], NOT_THERE, "there is no node /nowhere"),
        (["show", "my-store", "2", "--node", "/notes"], WRONG_ARGUMENTS, "exclude each other"),
        (["show", "bookie", "77777", *DUMP], NOT_THERE, "ledger 77777"),
        (["show", "bookie", "plain"], NOT_THERE, "without metadata the names of topics are unknown"),
        (["show", "bookie", "--node", "/ledgers"], WRONG_ARGUMENTS, "--metadata"),
        (["cat", "my-store", "77"], NOT_THERE, "there is no ledger 77"),
        (["cat", "my-store"], WRONG_ARGUMENTS, "Missing argument"),
        (["cat", "my-store", "0", "1", "--first", "1"], WRONG_ARGUMENTS, "require a single ledger or topic"),
        (["cat", "my-store", "2", "--raw", "--hex"], WRONG_ARGUMENTS, "exclude each other"),
        (["cat", "my-store", "2", "--first", "x"], WRONG_ARGUMENTS, "--first must be the id of an entry of ledger 2"),
        (["cat", "my-store", "orders", "--first", "7"], WRONG_ARGUMENTS, "--first of a topic must be LEDGER:ENTRY"),
        (["cursors", "my-store", "orders", "--cursor", "x"], NOT_THERE, "there is no cursor 'x'"),
        (["cursors", "my-store", "--history"], WRONG_ARGUMENTS, "name the topic"),
        (["cursors", "bookie", "plain", "--cursor", "s-cum", "--history", *DUMP], WRONG_ARGUMENTS, "require a store"),
        (["cursors", "my-store", "orders", "--cursor", "audit", "--at-marker", "x"], WRONG_ARGUMENTS, "LEDGER:ENTRY"),
        (
            ["cursors", "my-store", "orders", "--cursor", "audit", "--at-marker", "5:0"],
            WRONG_ARGUMENTS,
            "no intact marker",
        ),
        (["delayed", "my-store", "--at", "soon"], WRONG_ARGUMENTS, "2026-01-31T12:00:00Z"),
        (["delayed", "my-store", "orders", "--subscription", "x"], NOT_THERE, "there is no subscription 'x'"),
        (["import-bookie", "bookie"], WRONG_ARGUMENTS, "Missing argument"),
        (["import-bookie", "bookie", "new", "--ledger", "x"], WRONG_ARGUMENTS, "Invalid value for '--ledger'"),
        (["import-bookie", "my-store", "new"], NOT_THERE, "my-store is not a bookie's folder"),
        (["import-bookie", "bookie", "something", "--dry-run"], NOT_THERE, "neither empty nor a store"),
        (["import-bookie", "bookie", "something"], NOT_THERE, "no store"),
    ],
)
def test_wrong_arguments(here: Path, arguments: list[str], code: int, says: str) -> None:
    result = run(*arguments)
    assert result.code == code
    # What is looked at may have been said before.
    assert result.out == "" or result.out.startswith(("store ", "bookie "))
    assert result.out.count("\n") <= 1
    assert says in result.err
    as_json = run(*arguments, "--json")
    assert as_json.code == code
    if "--raw" not in arguments:
        assert says in as_json.json["error"]["message"]
        assert as_json.json["error"]["exit_code"] == code


def test_a_store_that_the_system_refuses(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root is refused nothing, so that the refusal is made up where the file is opened."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", "my-store/data.mdb")

    monkeypatch.setattr(bookstand, "open", refuse)
    result = run("ls", "my-store")
    assert (result.code, result.out) == (FAILED, "")
    assert "Permission denied" in result.err
    assert result.err.count("\n") == 1


def test_two_topics_of_one_name(own: Path) -> None:
    with bookstand.open(own / "my-store") as store:
        store.managed_ledger("persistent://other/shop/orders").close()
    result = run("show", "my-store", "orders")
    assert result.code == WRONG_ARGUMENTS
    assert "several topics are called 'orders'" in result.err
    assert (
        run("show", "my-store", "other/shop/orders", "--json").json["topic"]["topic"].startswith("persistent://other")
    )
