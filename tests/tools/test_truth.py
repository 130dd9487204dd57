"""Every recorded disk, told by the command line, against what the originals said of it."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import pytest

from bookstand.tools.cli.exit_codes import DAMAGE, FINE
from tests.disk.recordings import RECORDINGS, dump_path, truth
from tests.tools.kit import run

KILLED_WHILE_WRITING = "f"
SETTLED = [name for name in RECORDINGS if name != KILLED_WHILE_WRITING]
TIMES = ("publish_time", "event_time", "deliver_at_time")


class Place(NamedTuple):
    """A recording's disks, as arguments: the folder with all of them, or one bookie and the others."""

    name: str
    path: Path
    options: tuple[object, ...]

    def run(self, command: str, *arguments: object) -> Any:
        result = run(command, self.path, *arguments, *self.options, "--json")
        assert (result.code, result.err) == (FINE, "")
        return result.lines if command == "cat" else result.json


@pytest.fixture(params=RECORDINGS)
def place(request: pytest.FixtureRequest, unpacked: Callable[[str], Path]) -> Place:
    folder = unpacked(request.param)
    first, *others = sorted(folder.iterdir())
    options = ("--metadata", dump_path(request.param))
    if request.param == "d":
        # As several disks, and not as the folder that they are in.
        return Place(request.param, first, (*options, *(word for one in others for word in ("--disk", one))))
    return Place(request.param, folder, options)


def millis(text: str) -> int:
    from bookstand.tools.cli.time_arguments import millis_of

    found = millis_of(text)
    assert found is not None
    return found


def payload_of(row: dict[str, Any]) -> bytes:
    return row["payload"].encode() if "payload" in row else base64.b64decode(row["payload_base64"])


# -- ledgers -----------------------------------------------------------------------------------------------------------


def test_ledgers(place: Place) -> None:
    rows = {row["ledger"]: row for row in place.run("ls")["ledgers"]}
    told = {row["ledger_id"]: row for row in truth(place.name, "ledgers")}
    after = {row["ledger_id"]: row for row in truth(place.name, "ledgers-after-restart")}
    listed = {ledger_id for ledger_id, row in rows.items() if row["state"] != "UNLISTED"}
    if place.name != KILLED_WHILE_WRITING:
        assert listed == set(told)
    closed = 0
    for ledger_id in listed & set(told):
        row, said = rows[ledger_id], told[ledger_id]["metadata"]
        quorums = (row["ensemble_size"], row["write_quorum"], row["ack_quorum"])
        assert quorums == (said["ensemble_size"], said["write_quorum"], said["ack_quorum"])
        assert row["digest"] == {"MAC": "hmac"}.get(said["digest"], said["digest"].lower())
        if row["state"] == "CLOSED":
            closed += 1
            assert (row["last_entry"], row["bytes"]) == (said["last_entry"], said["length"])
        elif place.name != KILLED_WHILE_WRITING and after.get(ledger_id, {}).get("state") == "CLOSED":
            assert (row["last_entry"], row["bytes"]) == (after[ledger_id]["last_entry"], after[ledger_id]["length"])
    assert closed


@pytest.mark.parametrize("place", SETTLED, indirect=True)
def test_entries_of_every_ledger(place: Place) -> None:
    """Behind the end of what is still open, too; a deleted ledger by what was read of it before."""
    told = {row["ledger_id"]: row for row in truth(place.name, "ledgers")}
    for state, beyond in (("CLOSED", ()), ("OPEN", ("--beyond",))):
        wanted = {ledger_id: row for ledger_id, row in told.items() if row["metadata"]["state"] == state}
        if not wanted:
            continue
        rows = place.run("cat", *wanted, *beyond)
        found = {(row["ledger"], row["entry"]): sha256(payload_of(row)).hexdigest() for row in rows}
        assert found == {
            (ledger_id, entry["entry"]): entry["sha256"]
            for ledger_id, row in wanted.items()
            for entry in row["entries"]
        }
        assert all(row["digest_right"] or told[row["ledger"]]["metadata"]["digest"] == "DUMMY" for row in rows)


@pytest.mark.parametrize("place", [KILLED_WHILE_WRITING], indirect=True)
def test_whatever_was_acknowledged_is_there(place: Place) -> None:
    acked = {(row["ledger"], row["entry"]) for row in truth(place.name, "acked") if "ledger" in row}
    rows = place.run("cat", *sorted({ledger_id for ledger_id, _ in acked}))
    found = {(row["ledger"], row["entry"]): sha256(payload_of(row)).hexdigest() for row in rows}
    assert acked <= set(found)
    told = {
        (row["ledger_id"], entry["entry"]): entry["sha256"]
        for row in truth(place.name, "ledgers")
        for entry in row["entries"]
    }
    assert all(told[at] == found[at] for at in set(told) & set(found))


# -- topics ------------------------------------------------------------------------------------------------------------


def test_messages_of_every_topic(place: Place) -> None:
    lines = truth(place.name, "messages")
    listed = [row for row in place.run("ls", "--topics")["topics"] if "ledgers" in row]
    assert {row["topic"] for row in listed} == {row["topic"] for row in truth(place.name, "topics")}
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in place.run("cat", *(row["topic"] for row in listed), "--messages"):
        found.setdefault((row["ledger"], row["entry"]), []).append(row)
    told = {(line["ledger"], line["entry"]): line for line in lines}
    if place.name == KILLED_WHILE_WRITING:
        # Here more is kept than the restart kept, and the restart has written.
        told = {at: line for at, line in told.items() if at in found}
        found = {at: rows for at, rows in found.items() if at in told}
    assert set(found) == set(told)
    for at, line in told.items():
        rows = found[at]
        values = [(row["bytes"], sha256(payload_of(row)).hexdigest()) for row in rows]
        assert values == [(one["len"], one["sha256"]) for one in line["messages"]], at
        for row, one in zip(rows, line["messages"], strict=True):
            check_metadata(row["message"], line["metadata"], one)


def check_metadata(shown: dict[str, Any], metadata: dict[str, Any], own: dict[str, Any]) -> None:
    """``own`` is what a message of a batch says of itself, which counts first."""
    said = {**metadata, **own}
    for name in ("producer_name", "partition_key", "sequence_id"):
        assert shown.get(name) == said.get(name) or (name == "sequence_id" and name not in own)
    for name in TIMES:
        if name in said:
            assert millis(shown[name]) == said[name]
    if "properties" in said:
        assert shown["properties"] == dict(said["properties"])
    assert shown["checksum"] in ("right", "none")


# -- cursors -----------------------------------------------------------------------------------------------------------


def acked_of(ranges: list[str]) -> set[tuple[int, int]]:
    found = set()
    for text in ranges:
        ledger_id, _, span = text.partition(":")
        first, _, last = span.partition("-")
        found |= {(int(ledger_id), entry_id) for entry_id in range(int(first), int(last or first) + 1)}
    return found


def test_cursors(place: Place) -> None:
    found = {(row["topic"], row["cursor"]): row for row in place.run("cursors")["cursors"]}
    lines = {(line["topic"], line["subscription"]): line for line in truth(place.name, "cursors")}
    # In topics that the restart has closed elsewhere, what follows a position is another entry.
    counts = {row["ledger"]: row["last_entry"] + 1 for row in place.run("ls")["ledgers"]}
    assert set(found) == set(lines)
    for key, line in lines.items():
        row = found[key]
        moved_on = key[1] == "pulsar.dedup" and row["properties"] != line["properties"]
        if moved_on:
            continue  # The broker that was started again has read on from there.
        ledger_id, entry_id = line["mark_delete"]
        at = tuple(map(int, row["mark_delete"].split(":", 1)))
        full = at[1] + 1 == counts.get(at[0])
        assert at == (ledger_id, entry_id) or (full and entry_id == -1) or (at[1], entry_id) == (-1, -1)
        assert acked_of(row["ranges"]) == {
            (lower, entry)
            for lower, first, upper, last in line["individually_deleted"]
            for entry in range(first + 1, last + 1)
            if lower == upper
        }
        assert row["properties"] == line["properties"]
        assert row["cursor_properties"] == line["cursor_properties"]
        if place.name != KILLED_WHILE_WRITING:
            assert row["backlog"] == line["backlog"]
        if row["cursor_ledger"] is not None:
            assert row["partial"] == {
                f"{ledger}:{entry}": [bit for bit in range(64 * len(words)) if words[bit // 64] >> bit % 64 & 1]
                for ledger, entry, words in line["batch_deleted"]
            }


def test_the_names_in_metadata_are_encoded(place: Place) -> None:
    """What the original's internal statistics call a cursor."""
    found = {row["cursor"] for row in place.run("cursors")["cursors"]}
    assert found == {unquote_plus(line["cursor"]) for line in truth(place.name, "cursors")}


# -- delayed messages --------------------------------------------------------------------------------------------------


def test_delayed_indexes(place: Place) -> None:
    shown = place.run("delayed")["subscriptions"]
    found = {(row["topic"], row["subscription"]): row for row in shown}
    lines = truth(place.name, "delayed")
    assert lines
    for line in lines:
        row = found.pop((line["topic"], line["subscription"]))
        assert row["messages"] == line["tracker_count"]
        buckets = {bucket["snapshot"]: bucket for bucket in row["buckets"]}
        assert set(buckets) == {int(bucket["ledger_id"]) for bucket in line["buckets"]}
        for bucket in line["buckets"]:
            mine, segments = buckets[int(bucket["ledger_id"])], bucket["segments"]
            assert bucket["property"].endswith(mine["ledgers"].replace("-", "_"))
            assert mine["segments"] == len(segments)
            assert mine["messages"] == sum(len(one["indexes"]) for one in segments)
            assert millis(mine["first_due"]) == min(one["min"] for one in segments)
            assert millis(mine["last_due"]) == max(one["max"] for one in segments)
            assert mine["problem"] is None
    assert {row["messages"] for row in found.values()} <= {0}


# -- as a whole --------------------------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_them(place: Place) -> None:
    verdict = place.run("verify", "--messages")
    assert verdict["ok"]
    assert verdict["counts"]["cursors"] == len(truth(place.name, "cursors"))


@pytest.mark.parametrize("bookie", [0, 1, 2])
def test_what_other_disks_may_have_is_no_damage(bookie: int, unpacked: Callable[[str], Path]) -> None:
    """Neither of ledgers nor of buckets; which disks are not here is said once."""
    bookies = sorted(unpacked("f").iterdir())
    alone = run("verify", bookies[bookie], "--metadata", dump_path("f"), "--json")
    assert (alone.code, alone.json["damage"]) == (FINE, [])
    notes = alone.json["notes"]
    assert [number for number, note in enumerate(notes) if "there is no disk of" in note] == [0]
    assert alone.json["counts"]["buckets"] == 2
    of_buckets = [note for note in notes if "bucket" in note]
    assert len(of_buckets) == 2
    assert all("cannot be had from these disks" in note for note in of_buckets)
    together = run("verify", unpacked("f"), "--metadata", dump_path("f"), "--json").json
    assert not [note for note in together["notes"] if "bucket" in note or "there is no disk of" in note]


def test_a_damaged_copy_of_a_bucket_is_damage_whatever_others_have(
    tmp_path: Path, unpacked: Callable[[str], Path]
) -> None:
    shutil.copytree(unpacked("f") / "bookie-0", tmp_path / "bookie-0", symlinks=True)
    dump = ("--metadata", dump_path("f"), "--json")
    records = run("ls", tmp_path / "bookie-0", "--records", "--ledger", 10, "--entry", 3, *dump).lines
    assert records
    for row in records:
        file = tmp_path / "bookie-0" / row["file"]
        data = bytearray(file.read_bytes())
        data[row["offset"] + row["bytes"] - 5] ^= 1
        file.write_bytes(data)
    damage = run("verify", tmp_path / "bookie-0", *dump).json["damage"]
    assert {(one["ledger"], one["entry"]) for one in damage} == {(10, 3)}
    assert {one["offset"] for one in damage} == {row["offset"] for row in records}


@pytest.mark.parametrize("name", ["d", "f"])
def test_disks_by_themselves_are_what_the_folder_is(name: str, unpacked: Callable[[str], Path]) -> None:
    folder = unpacked(name)
    bookies = sorted(folder.iterdir())
    dump = ("--metadata", dump_path(name), "--json")
    whole = run("ls", folder, *dump).json["ledgers"]
    for first, second, third in (bookies, bookies[::-1]):
        assert run("ls", first, "--disk", second, "--disk", third, *dump).json["ledgers"] == whole
    alone = run("cursors", bookies[0], *dump)
    # Not all cursors are known as they stood last; in f the ledgers are open, and nothing says that there is more.
    assert alone.code == (DAMAGE if name == "d" else FINE)
    (note,) = alone.json["notes"]
    assert f"there is no disk of {bookies[1].name}, {bookies[2].name}" in note
    assert note in alone.err
    assert all("missing" in one["what"] for one in alone.json["damage"])
