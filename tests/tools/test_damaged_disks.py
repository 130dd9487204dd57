"""Files of bookies that are damaged in one place each: what is right in them is printed, nothing else, and whoever
reads them hears of the damage."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

import bookstand
from bookstand.disk.exporter.run import export_topics
from bookstand.tools.cli.exit_codes import DAMAGE, FINE
from tests.disk.recordings import DAMAGED, truth
from tests.replay.disk_damaged import KINDS, LENGTH, entries_in, ids_at, state_of_journal, state_of_log
from tests.tools.kit import run

CASES = sorted({(line["kind"], line["case"]) for line in truth(DAMAGED, "expected")})


@pytest.mark.parametrize("known", [True, False], ids=["with metadata", "without"])
def test_a_damaged_entry_is_where_its_record_begins(known: bool, tmp_path: Path) -> None:
    """Whoever finds it: the digests of the entry itself, or those of its ledger's others."""
    with bookstand.open(tmp_path / "store") as store, store.create_ledger() as writer:
        for number in range(20):
            writer.append(b"entry %02d" % number)
        export_topics(store, tmp_path / "copy", ledgers=[writer.id])
    dump = ("--metadata", tmp_path / "copy" / "metadata.jsonl.gz") if known else ()
    records = run("ls", tmp_path / "copy", "--records", "--json", *dump).lines
    (log,) = (tmp_path / "copy").glob("**/ledgers/current/0.log")
    begins = {row["entry"]: row["offset"] for row in records if row["what"] == "entry" and row["file"].endswith(".log")}
    copies = run("show", tmp_path / "copy", "0:3", "--json", *dump).json["entry"]["copies"]
    assert begins[3] in {copy["offset"] for copy in copies}
    data = bytearray(log.read_bytes())
    data[data.index(b"entry 03")] ^= 1
    log.write_bytes(data)
    damage = run("verify", tmp_path / "copy", "--json", *dump).json["damage"]
    assert [one["offset"] for one in damage if (one["ledger"], one["entry"]) == (0, 3)] == [begins[3]]


@pytest.mark.parametrize(("kind", "case"), CASES, ids="-".join)
def test_what_is_right_is_told_and_nothing_else(kind: str, case: str, unpacked: Callable[[str], Path]) -> None:
    (file,) = (unpacked(DAMAGED) / kind / case).rglob(f"*{KINDS[kind]}")
    data = file.read_bytes()
    right = set(entries_in(data))
    state = state_of_log(data) if kind == "entrylog" else state_of_journal(data)

    verified = run("verify", file, "--json")
    assert verified.err == ""
    if not state.odd:
        assert verified.code == (DAMAGE if state.damage else FINE)
    assert verified.json["ok"] == (verified.code == FINE) == (not verified.json["damage"])

    records = run("ls", file, "--records", "--json")
    rows = [row for row in records.lines if row.get("what") == "entry" and row["digest"] == "good"]
    assert {(row["offset"] + LENGTH.size, row["bytes"]) for row in rows} == right

    stored: dict[tuple[int, int], set[bytes]] = {}
    for found in right:
        stored.setdefault(ids_at(data, found), set()).add(data[found.offset : found.offset + found.size])
    ledgers = sorted({ledger_id for ledger_id, _ in stored})
    assert [row["ledger"] for row in run("ls", file, "--json").json["ledgers"] if row["entries"]] == ledgers
    if ledgers:
        shown = run("cat", file, *ledgers, "--beyond", "--json")
        entries = [row for row in shown.lines if "entry" in row]
        assert {(row["ledger"], row["entry"]) for row in entries} == set(stored)
        for row in entries:
            payload = row["payload"].encode() if "payload" in row else base64.b64decode(row["payload_base64"])
            assert any(one.endswith(payload) for one in stored[row["ledger"], row["entry"]])
        assert {records.code, shown.code} <= {verified.code, FINE}
        # What is met by reading entries is told by whoever reads them; a ledgers map is no entry.
        assert bool(records.code) == bool(shown.code)
