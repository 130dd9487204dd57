"""Every command on every kind of thing: the right answer or a clear error, and the right exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.tools.exit_codes import DAMAGE, FAILED, FINE, NOT_THERE, WRONG_ARGUMENTS
from tests.tools import kit
from tests.tools.kit import ORDERS, run

DUMP = ("--metadata", "metadata.jsonl.gz")
READING = ("ls", "show", "verify", "cursors", "delayed", "stats")
"""Commands that need no more than a path."""


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
    assert "metadata.jsonl.gz may be the metadata: give it with --metadata" in result.err
    if command == "delayed":
        assert result.code == WRONG_ARGUMENTS
        assert "give the dump" in result.err
    else:
        assert result.code == FINE
        assert result.out.startswith("bookie bookie-0 at bookie, without metadata")


@pytest.mark.parametrize("command", READING)
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
    result = run(command, place)
    assert (result.code, result.out, result.err) == (NOT_THERE, "", f"bookstand: {says}\n")
    as_json = run(command, place, "--json")
    assert (as_json.code, as_json.err) == (result.code, result.err)
    assert as_json.json["error"]["message"] == says
    assert as_json.json["error"]["exit_code"] == NOT_THERE


@pytest.mark.parametrize("command", [*READING, "cat"])
def test_a_newer_format(own: Path, command: str) -> None:
    kit.make_newer(own / "my-store")
    result = run(command, "my-store", *(["2"] if command == "cat" else []))
    assert (result.code, result.out) == (NOT_THERE, "")
    assert result.err.count("\n") == 1
    assert "has format 2; this version of bookstand knows formats up to 1: open it with a newer one" in result.err


@pytest.mark.parametrize("command", [*READING, "cat"])
def test_a_file_that_was_cut_short(own: Path, command: str) -> None:
    kit.cut_file(own / "my-store")
    result = run(command, "my-store", *(["2"] if command == "cat" else []))
    assert result.code == DAMAGE
    told = result.out if command == "verify" else result.err
    assert "data.mdb is damaged: it has" in told
    if command != "verify":
        assert (result.out, result.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", READING)
@pytest.mark.parametrize("how", [kit.damage_entry, kit.lose_entry])
def test_a_damaged_entry(own: Path, command: str, how: Callable[[Path, int, int], None]) -> None:
    """Of the bucket, which whoever looks at delayed messages reads; the others do not read its entries."""
    how(own / "my-store", 4, 3)
    result = run(command, "my-store")
    if command in ("verify", "delayed"):
        assert result.code == DAMAGE
        assert "4:3" in result.out + result.err or "damage was found" in result.err
    elif command == "stats" and how is kit.lose_entry:
        assert result.code == DAMAGE
    else:
        assert result.code == FINE


def test_verify_names_each_finding(own: Path) -> None:
    store = own / "my-store"
    kit.damage_entry(store, 2, 7)
    kit.lose_entry(store, 3, 5)
    kit.damage_entry(store, 5, 6)
    kit.damage_entry(store, 4, 0)
    result = run("verify", "my-store", "--json")
    assert result.code == DAMAGE
    found = result.json
    assert not found["ok"]
    places = {(one["ledger"], one["entry"]) for one in found["damage"]}
    assert {(2, 7), (3, 5), (5, 6), (4, 0)} <= places
    told = " ".join(one["what"] for one in found["damage"])
    assert "cursor 'audit'" in told
    assert "bucket #pulsar.internal.delayed.bucket_2_2 of cursor 'billing'" in told
    text = run("verify", "my-store")
    assert text.code == DAMAGE
    assert len([line for line in text.out.splitlines() if line.startswith("damage: ")]) == len(found["damage"])


def test_what_is_damaged_does_not_hide_the_rest(own: Path) -> None:
    kit.damage_entry(own / "my-store", 2, 7)
    result = run("cat", "my-store", "2", "--messages", "--json")
    assert result.code == DAMAGE
    *rows, last = result.lines
    assert [row["entry"] for row in rows] == [number for number in range(100) if number != 7]
    assert (last["damage"]["ledger"], last["damage"]["entry"]) == (2, 7)
    assert "digest does not match" in result.err
    # The newest marker is gone, the one before it counts.
    kit.damage_entry(own / "my-store", 5, 6)
    audit = run("cursors", "my-store", "orders", "--cursor", "audit", "--json")
    assert audit.code == DAMAGE
    assert audit.json["cursors"][0]["source"].startswith("marker in entry 5:4, past ")
    assert audit.json["cursors"][0]["mark_delete"] == "2:-1"


@pytest.mark.parametrize("command", READING)
def test_damaged_records(own: Path, command: str) -> None:
    """A ledger's metadata, its state, and a node: each costs itself only."""
    from tests import kit as stores

    with stores.raw(own / "my-store", write=True) as database:
        for name, key in ((b"ledgers", (2).to_bytes(8, "big")), (b"state", (0).to_bytes(8, "big"))):
            record = database(name)
            record[key] = record[key][:-1] + bytes((record[key][-1] ^ 1,))
        nodes = database(b"nodes")
        path = f"/managed-ledgers/{ORDERS.removeprefix('persistent://').replace('/shop/', '/shop/persistent/')}/audit"
        nodes[path.encode()] = nodes[path.encode()][:-1] + b"\xff"
    result = run(command, "my-store", "--json")
    assert result.code == DAMAGE
    if command == "ls":
        rows = {row["ledger"]: row for row in result.json["ledgers"]}
        assert set(rows) == {0, 1, 2, 3, 4, 5, 6, 8}
        assert {ledger_id for ledger_id, row in rows.items() if row["damage"]} == {0, 2}
    if command == "cursors":
        assert [row["cursor"] for row in result.json["cursors"]] == ["billing"]
    if command == "verify":
        told = " ".join(one["what"] for one in result.json["damage"])
        assert all(word in told for word in ("metadata of ledger 2", "state of ledger 0", "audit"))


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


def test_a_damaged_disk(here: Path) -> None:
    listed = run("ls", "damaged-bookie", "--json")
    assert listed.code == DAMAGE
    assert any("damaged" in mark for row in listed.json["ledgers"] for mark in row["damage"])
    assert "bookstand verify lists them" in listed.err
    verified = run("verify", "damaged-bookie", "--json")
    assert verified.code == DAMAGE
    assert any((one["offset"] or 0) > 0 and one["ledger"] is not None for one in verified.json["damage"])
    assert run("stats", "damaged-bookie").code == DAMAGE
    assert run("show", "damaged-bookie", "5").code == DAMAGE
    assert run("cursors", "damaged-bookie").code == DAMAGE


def test_damage_of_a_disk_is_found_by_reading_it(tmp_path: Path, unpacked: Callable[[str], Path]) -> None:
    """Entries of three bookies: one disk is left out, one log is cut."""
    import shutil

    from tests.disk.recordings import dump_path

    shutil.copytree(unpacked("d"), tmp_path / "disks", symlinks=True)
    dump = ("--metadata", str(dump_path("d")), "--json")
    assert run("verify", tmp_path / "disks", *dump).code == FINE
    shutil.rmtree(tmp_path / "disks" / "bookie-2")
    partly = run("verify", tmp_path / "disks", *dump).json
    assert any("there is no disk of bookie-2" in note for note in partly["notes"])
    for log in (tmp_path / "disks" / "bookie-1").rglob("current/*.log"):
        log.write_bytes(log.read_bytes()[:2000])
    for journal in (tmp_path / "disks" / "bookie-1").rglob("*.txn"):
        journal.write_bytes(journal.read_bytes()[:512])
    result = run("verify", tmp_path / "disks", *dump)
    assert result.code == DAMAGE
    assert any("cut off" in one["what"] or "are left" in one["what"] for one in result.json["damage"])


# -- wrong arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["ls"], WRONG_ARGUMENTS, "Missing argument"),
        (["list", "my-store"], WRONG_ARGUMENTS, "No such command 'list'"),
        (["verfy", "my-store"], WRONG_ARGUMENTS, "Did you mean 'verify'"),
        (["ls", "my-store", "--nonsense"], WRONG_ARGUMENTS, "No such option"),
        (["ls", "my-store", "--topics", "--files"], WRONG_ARGUMENTS, "exclude each other"),
        (["ls", "my-store", "--topics", "--kind", "topic"], WRONG_ARGUMENTS, "--kind and --state are of ledgers"),
        (["ls", "my-store", "--records"], WRONG_ARGUMENTS, "records are in the files of bookies"),
        (["ls", "my-store", "--metadata", "metadata.jsonl.gz"], WRONG_ARGUMENTS, "no dump is needed"),
        (["ls", "bookie", "--metadata", "nothing.gz"], NOT_THERE, "no metadata dump at nothing.gz"),
        (["ls", "bookie", "--metadata", "something"], WRONG_ARGUMENTS, "metadata dump"),
        (["show", "my-store", "77"], NOT_THERE, "there is no ledger 77"),
        (["show", "my-store", "2:1000"], NOT_THERE, "ledger 2 has no entry 1000; it ends at 99"),
        (["show", "my-store", "9223372036854775808"], NOT_THERE, "9223372036854775808"),
        (["show", "my-store", "nowhere"], NOT_THERE, "there is no topic 'nowhere'"),
        (["show", "my-store", "--node", "/nowhere"], NOT_THERE, "there is no node /nowhere"),
        (["show", "my-store", "2", "--node", "/notes"], WRONG_ARGUMENTS, "not both"),
        (["show", "bookie", "77777", *DUMP], NOT_THERE, "ledger 77777"),
        (["show", "bookie", "plain"], NOT_THERE, "without metadata nothing says what topics are called"),
        (["show", "bookie", "--node", "/ledgers"], WRONG_ARGUMENTS, "--metadata"),
        (["cat", "my-store", "77"], NOT_THERE, "there is no ledger 77"),
        (["cat", "my-store", "2", "--raw", "--hex"], WRONG_ARGUMENTS, "exclude each other"),
        (["cat", "my-store", "2", "--first", "x"], WRONG_ARGUMENTS, "--first is the id of an entry of ledger 2"),
        (["cat", "my-store", "orders", "--first", "7"], WRONG_ARGUMENTS, "--first of a topic is LEDGER:ENTRY"),
        (["cursors", "my-store", "orders", "--cursor", "x"], NOT_THERE, "there is no cursor 'x'"),
        (["cursors", "my-store", "--history"], WRONG_ARGUMENTS, "name the topic"),
        (["cursors", "bookie", "plain", "--cursor", "s-cum", "--history", *DUMP], WRONG_ARGUMENTS, "of stores only"),
        (["cursors", "my-store", "orders", "--cursor", "audit", "--at-marker", "x"], WRONG_ARGUMENTS, "LEDGER:ENTRY"),
        (["cursors", "my-store", "orders", "--cursor", "audit", "--at-marker", "5:0"], WRONG_ARGUMENTS, "whole marker"),
        (["delayed", "my-store", "--at", "soon"], WRONG_ARGUMENTS, "2026-01-31T12:00:00Z"),
        (["import-bookie", "my-store", "new"], NOT_THERE, "my-store is no bookie's folder"),
        (["import-bookie", "bookie", "something", "--dry-run"], NOT_THERE, "no store"),
        (["import-bookie", "bookie", "something"], NOT_THERE, "no store"),
    ],
)
def test_wrong_arguments(here: Path, arguments: list[str], code: int, says: str) -> None:
    result = run(*arguments)
    assert result.code == code, result
    assert says in " ".join(result.err.split())
    assert "Traceback" not in result.err


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
