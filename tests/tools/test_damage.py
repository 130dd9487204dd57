"""Damaged stores and disks: whoever reads what is damaged hears of it, the rest is told, damage is never absence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import bookstand
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
from bookstand.storage.format.schema import FORMAT_VERSION
from bookstand.tools.cli.exit_codes import DAMAGE, FINE, NOT_THERE
from tests import kit as stores
from tests.disk.recordings import dump_path
from tests.tools import kit
from tests.tools.kit import ORDERS, run
from tests.tools.test_conditions import CHANGING, READING

EVERY = [*READING, "cat", *CHANGING]
AUDIT = cursor_node_of(ORDERS, "audit")


def _place(bench: Path, command: str) -> list[object]:
    """The store, as the command is given it."""
    if command == "import-bookie":
        return [bench / "bookie", "my-store", "--metadata", bench / "metadata.jsonl.gz"]
    return ["my-store", *{"cat": ["2"], "export-bookie": ["new"]}.get(command, [])]


# -- stores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", EVERY)
def test_a_newer_format(own: Path, bench: Path, command: str) -> None:
    kit.make_newer(own / "my-store")
    result = run(*command.split(), *_place(bench, command))
    assert (result.code, result.out) == (NOT_THERE, "")
    assert result.err.count("\n") == 1
    as_json = run(*command.split(), *_place(bench, command), "--json")
    assert (as_json.code, as_json.json["error"]["kind"]) == (NOT_THERE, "StoreFormatError")
    found, known = f"has format {FORMAT_VERSION + 1}", f"reads format {FORMAT_VERSION}: open it with a newer version"
    assert f"{found}; this version of bookstand {known}" in result.err


@pytest.mark.parametrize("command", EVERY)
def test_a_file_that_was_cut_short(own: Path, bench: Path, command: str) -> None:
    kit.cut_file(own / "my-store")
    result, as_json = (
        run(*command.split(), *_place(bench, command)),
        run(*command.split(), *_place(bench, command), "--json"),
    )
    assert result.code == as_json.code == DAMAGE
    found = as_json.json
    assert (found["damage"][0]["what"] if command == "verify" else found["error"]["message"]) in result.out + result.err
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
        assert [row["cursor"] for row in result.json["cursors"]] == ["audit", "billing"]
    if command == "verify":
        told = " ".join(one["what"] for one in result.json["damage"])
        assert all(word in told for word in ("metadata of ledger 2", "state of ledger 0", "audit"))


def spoil_node(path: Path, node: str) -> None:
    with stores.raw(path, write=True) as database:
        nodes = database(b"nodes")
        nodes[node.encode()] = nodes[node.encode()][:-1] + b"\xff"


def put_node(path: Path, node: str, value: bytes) -> None:
    """Something else where a record is to be, and sealed as it should be."""
    with bookstand.open(path) as store:
        store.nodes.put(node, value)


LOSE = (kit.lose_entry, 2, 7)
DAMAGE_IT = (kit.damage_entry, 2, 7)
NO_TOPIC = (spoil_node, node_of(ORDERS))
NO_CURSOR = (spoil_node, AUDIT)
ODD_TOPIC = (put_node, node_of(ORDERS), b"\xff\xff")
ODD_CURSOR = (put_node, AUDIT, b"\xff\xff")


@pytest.mark.parametrize(
    ("how", "arguments", "says"),
    [
        (LOSE, ["show", "2:7"], "entry 2:7 cannot be read: entry 2:7 was stored, but is missing"),
        (LOSE, ["cat", "2"], "entry 2:7 was stored, but is missing"),
        (LOSE, ["cat", "2", "--first", "7", "--last", "7"], "entry 2:7 was stored, but is missing"),
        (LOSE, ["cat", "orders"], "entry 2:7 was stored, but is missing"),
        (LOSE, ["cat", "orders", "--messages"], "entry 2:7 was stored, but is missing"),
        (LOSE, ["stats"], "entry 2:7 was stored, but is missing"),
        (LOSE, ["delayed", "orders"], "entry 2:7 was stored, but is missing"),
        (DAMAGE_IT, ["show", "2:7"], "its crc32c digest does not match its bytes"),
        (DAMAGE_IT, ["cat", "2", "--raw"], "its crc32c digest does not match its bytes"),
        (DAMAGE_IT, ["cat", "orders"], "its crc32c digest does not match its bytes"),
        (DAMAGE_IT, ["delayed"], "its crc32c digest does not match its bytes"),
        ((kit.damage_entry, 5, 6), ["cursors"], "damage was found"),
        ((kit.damage_entry, 5, 6), ["cursors", "orders", "--cursor", "audit", "--history"], "damage was found"),
        ((kit.damage_entry, 5, 6), ["show", "orders"], "damage was found"),
        ((kit.damage_entry, 5, 6), ["show", "5:6"], "entry 5:6 cannot be read"),
        ((kit.lose_entry, 4, 0), ["delayed", "orders"], "damage was found"),
        (NO_TOPIC, ["show", "orders"], "there is no topic 'orders'; damage may hide it"),
        (NO_TOPIC, ["cat", "orders"], "there is no topic 'orders'; damage may hide it"),
        (NO_TOPIC, ["ls", "--topics"], "damage was found in 3 places"),
        (NO_TOPIC, ["show", "--node", node_of(ORDERS)], "is damaged: its checksum does not match"),
        (NO_CURSOR, ["cursors", "orders", "--cursor", "audit"], "damage was found in 2 places"),
        (NO_CURSOR, ["delayed", "--subscription", "audit"], "damage was found in 2 places"),
        (NO_CURSOR, ["show", "orders"], "damage was found"),
        (ODD_TOPIC, ["show", "orders"], "there is no topic 'orders'; damage may hide it"),
        (ODD_TOPIC, ["show", "--node", node_of(ORDERS)], "the record of the topic persistent://acme/shop/orders"),
        (ODD_TOPIC, ["ls", "--topics"], "the record of the topic persistent://acme/shop/orders"),
        (ODD_CURSOR, ["cursors", "orders"], "damage was found in 2 places"),
        (ODD_CURSOR, ["show", "--node", AUDIT], "the record of the cursor audit"),
        (ODD_CURSOR, ["delayed", "orders"], "damage was found in 2 places"),
    ],
)
def test_who_reads_what_is_damaged_hears_of_it(
    own: Path, how: tuple[Callable[..., None], object], arguments: list[str], says: str
) -> None:
    damage, *where = how
    damage(own / "my-store", *where)
    command, *rest = arguments
    result = run(command, "my-store", *rest)
    assert result.code == DAMAGE, result
    assert says in result.err
    if "--raw" in rest:
        return
    as_json = run(command, "my-store", *rest, "--json")
    assert (as_json.code, as_json.err) == (DAMAGE, result.err)
    last = as_json.lines[-1] if command == "cat" else as_json.json
    assert last.get("damage") or last["error"]["exit_code"] == DAMAGE


def test_what_is_not_there_in_a_whole_store_is_absent(own: Path) -> None:
    for words in (["show", "my-store", "2:100"], ["show", "my-store", "other"], ["cat", "my-store", "77"]):
        assert run(*words).code == NOT_THERE


# -- disks -------------------------------------------------------------------------------------------------------------


def test_entries_that_are_on_no_disk(tmp_path: Path, unpacked: Callable[[str], Path]) -> None:
    """All disks are there, and the entries of one ledger are not: they are lost, and not merely absent."""
    shutil.copytree(unpacked("d"), tmp_path / "d", symlinks=True)
    dump = ("--metadata", dump_path("d"))
    for file in (*(tmp_path / "d").rglob("journal*/current/*.txn"), *(tmp_path / "d").rglob("ledgers*/current/*.log")):
        data = bytearray(file.read_bytes())
        wanted = (0).to_bytes(8, "big") + (7).to_bytes(8, "big")
        at = data.find(wanted)
        while at >= 0:
            data[at + 40] ^= 1
            at = data.find(wanted, at + 1)
        file.write_bytes(data)
    lost = run("show", tmp_path / "d", "0:7", *dump)
    assert (lost.code, lost.out.count("\n")) == (DAMAGE, 1)
    assert "entry 0:7 cannot be read" in lost.err
    for command, *what in (["cat", "0"], ["ls"], ["stats"], ["show", "0"], ["verify"]):
        assert run(command, tmp_path / "d", *what, *dump).code == DAMAGE
    rows = [row for row in run("cat", tmp_path / "d", "0", *dump, "--json").lines if "entry" in row]
    assert 7 not in {row["entry"] for row in rows}
    # With one disk less another may have them.
    shutil.rmtree(tmp_path / "d" / "bookie-2")
    partly = run("cat", tmp_path / "d", "0", *dump)
    assert "there is no disk of bookie-2" in partly.err


def test_a_damaged_disk(here: Path) -> None:
    listed = run("ls", "damaged-bookie", "--json")
    assert listed.code == DAMAGE
    assert any("damaged" in mark for row in listed.json["ledgers"] for mark in row["damage"])
    assert "see bookstand verify" in listed.err
    verified = run("verify", "damaged-bookie", "--json")
    assert verified.code == DAMAGE
    assert any((one["offset"] or 0) > 0 and one["ledger"] is not None for one in verified.json["damage"])
    assert run("stats", "damaged-bookie").code == DAMAGE
    assert run("show", "damaged-bookie", "5").code == DAMAGE
    assert run("cursors", "damaged-bookie").code == DAMAGE


def test_damage_of_a_disk_is_found_by_reading_it(tmp_path: Path, unpacked: Callable[[str], Path]) -> None:
    """Entries of three bookies: one disk is left out, one log is cut."""
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
