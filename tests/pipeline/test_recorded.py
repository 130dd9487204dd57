"""Every table of every recording, as the bookies left it and as a store that it was imported into, and the truth."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookstand.disk.disks import Disks
from bookstand.disk.metadata.dump import MetadataDump, ledger_id_of
from bookstand.disk.topics import topics
from bookstand.pipeline.tables.predicate import Predicate
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.schemas import TABLES
from bookstand.pipeline.tables.sources import BOOKIE, STORE, DataSource, bookies
from bookstand.pipeline.tables.tables import plan_all, read, rows
from bookstand.storage.format.position import Position
from tests.disk.recordings import RECORDINGS, dump_path, truth
from tests.disk.test_cursors import acked_of, batches_of

Row = dict[str, Any]
KILLED_WHILE_WRITING = "f"
NAMES = {"CRC32C": "crc32c", "CRC32": "crc32", "MAC": "hmac", "DUMMY": "dummy"}


class Recorded:
    def __init__(self, name: str, place: DataSource) -> None:
        self.name = name
        self.place = place

    def rows(self, table: str, **more: Any) -> list[Row]:
        found = [row for batch in read([self.place], query(table, **more)) for row in batch.to_pylist()]
        assert {row["place"] for row in found} <= {self.place.name}
        assert not [row["error"] for row in found if row["error"]]
        return found

    @property
    def settled(self) -> bool:
        """Whether the truth is of the disks themselves, and not of what a restart made of them."""
        return self.name != KILLED_WHILE_WRITING


@pytest.fixture(scope="module", params=[(name, kind) for name in RECORDINGS for kind in (BOOKIE, STORE)], ids="-".join)
def recorded(request: pytest.FixtureRequest, place: Callable[[str, str], DataSource]) -> Recorded:
    return Recorded(request.param[0], place(*request.param))


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_ledgers(recorded: Recorded) -> None:
    found = {row["ledger_id"]: row for row in recorded.rows("ledgers")}
    for line in truth(recorded.name, "ledgers"):
        said = line["metadata"]
        row = found.get(line["ledger_id"])
        if row is None or not recorded.settled:
            assert not recorded.settled
            continue
        assert (row["state"], row["lac"]) == (said["state"], line["lac"])
        if said["state"] == "CLOSED":
            assert (row["last_entry_id"], row["bytes"]) == (said["last_entry"], said["length"])
        sizes = (row["ensemble_size"], row["write_quorum"], row["ack_quorum"])
        assert sizes == (said["ensemble_size"], said["write_quorum"], said["ack_quorum"])
        assert row["bookies"] == said["ensembles"][-1]["bookies"]
        assert row["digest"] == NAMES[said["digest"]]
        assert row["created_ms"] == said["ctime"]
        custom = {name: base64.b64decode(value) for name, value in said["custom_metadata"].items()}
        assert dict(row["custom_metadata"]) == custom
        if custom.get("application") == b"pulsar" and custom.get("component") == b"managed-ledger":
            assert row["kind"] == ("cursor" if "pulsar/cursor" in custom else "topic")
            assert row["topic"]


def test_entries(recorded: Recorded) -> None:
    found = {(row["ledger_id"], row["entry_id"]): row for row in recorded.rows("entries")}
    ends = {row["ledger_id"]: row["last_entry_id"] for row in recorded.rows("ledgers")}
    seen = 0
    for line in truth(recorded.name, "ledgers"):
        for said in line["entries"]:
            at = line["ledger_id"], said["entry"]
            if "error" in said or said["entry"] > ends.get(at[0], -1):
                continue
            row = found[at]
            assert (row["size"], row["cumulative_length"]) == (said["len"], said["cumulative_length"])
            assert sha(row["payload"]) == said["sha256"]
            assert row["checked"] == (line["metadata"]["digest"] != "DUMMY")
            assert row["lac"] < row["entry_id"]
            seen += 1
    assert seen


def test_entries_are_those_that_one_process_reads(recorded: Recorded) -> None:
    """However they are divided, each comes once."""
    asked = query("entries", ("ledger_id", "entry_id", "payload"), partitions=5)
    bundles = plan_all([recorded.place], asked)
    assert len(bundles) == 5
    batches = [batch for bundle in bundles for part in bundle for batch in rows(part, asked)]
    found = sorted((row["ledger_id"], row["entry_id"], row["payload"]) for b in batches for row in b.to_pylist())
    assert found == sorted((row["ledger_id"], row["entry_id"], row["payload"]) for row in recorded.rows("entries"))


def test_messages(recorded: Recorded) -> None:
    lines = {(line["topic"], line["ledger"], line["entry"]): line for line in truth(recorded.name, "messages")}
    found: dict[tuple[str, int, int], list[Row]] = {}
    for row in recorded.rows("messages"):
        found.setdefault((row["topic"], row["ledger_id"], row["entry_id"]), []).append(row)
    if recorded.settled:  # what was on a disk and the restart dropped is more than it says
        assert found.keys() == lines.keys()
    for at, line in lines.items():
        check_messages(found[at], line)


def check_messages(found: list[Row], line: Row) -> None:
    metadata = line["metadata"]
    assert [(row["payload_size"], sha(row["payload"])) for row in found] == [
        (one["len"], one["sha256"]) for one in line["messages"]
    ]
    is_batch = "num_messages_in_batch" in metadata
    for index, (row, one) in enumerate(zip(found, line["messages"], strict=True)):
        own = one if is_batch else metadata
        assert row["batch_index"] == (index if is_batch else None)
        assert row["batch_size"] == len(found)
        assert (row["producer"], row["publish_ms"]) == (metadata["producer_name"], metadata["publish_time"])
        assert row["sequence_id"] == own.get("sequence_id", metadata["sequence_id"])
        assert row["deliver_at_ms"] == metadata.get("deliver_at_time")
        assert (row["event_ms"], row["key"]) == (own.get("event_time"), own.get("partition_key"))
        assert row["properties"] == [tuple(pair) for pair in own.get("properties", [])]
        assert row["null_value"] == own.get("null_value", False)
        assert row["compression"] == metadata.get("compression", "NONE")
        chunk = "chunk_id" in metadata
        assert row["chunk_id"] == metadata.get("chunk_id")
        assert (row["chunks"] is not None) == (row["chunk_uuid"] is not None) == chunk


def test_cursors_and_acks(recorded: Recorded, place: Callable[[str, str], DataSource]) -> None:
    cursors = {(row["topic"], row["cursor"]): row for row in recorded.rows("cursors")}
    acks: dict[tuple[str, str], list[Row]] = {}
    for row in recorded.rows("acks"):
        acks.setdefault((row["topic"], row["cursor"]), []).append(row)
    lines = truth(recorded.name, "cursors")
    assert sorted(cursors) == sorted((line["topic"], line["subscription"]) for line in lines)
    with Disks.open(place(recorded.name, BOOKIE).paths, dump_path(recorded.name)) as disks:
        known = {topic.name: topic for topic in topics.topics(disks)}
        for line in lines:
            at = line["topic"], line["subscription"]
            row = cursors[at]
            if line["subscription"] != "pulsar.dedup":  # there the restart has read on
                position = row["mark_delete_ledger_id"], row["mark_delete_entry_id"]
                behind = known[line["topic"]].behind
                assert behind(position) == behind(tuple(line["mark_delete"]))  # type: ignore[arg-type]
                assert dict(row["properties"]) == line["properties"]
                assert dict(row["cursor_properties"]) == line["cursor_properties"]
                if recorded.settled:
                    assert row["backlog"] == line["backlog"]
            whole = [one for one in acks.get(at, ()) if one["unacked_indexes"] is None]
            ranges: dict[int, list[int]] = {}
            for one in whole:
                ranges.setdefault(one["ledger_id"], []).extend(range(one["first_entry_id"], one["last_entry_id"] + 1))
            assert ranges == {ledger: list(ids) for ledger, ids in acked_of(line).items()}
            assert row["acked_entries"] == sum(map(len, ranges.values()))
            partial = {
                (one["ledger_id"], one["first_entry_id"]): sum(1 << index for index in one["unacked_indexes"])
                for one in acks.get(at, ())
                if one["unacked_indexes"] is not None
            }
            assert row["partial_batches"] == len(partial)
            if row["source"] != "record":  # the broker forgets those that a record has
                assert partial == {tuple(position): bits for position, bits in batches_of(line).items()}


def test_delayed(recorded: Recorded) -> None:
    dump = MetadataDump.open(dump_path(recorded.name), lambda damage: None)
    now = max(node.mtime for node in dump.nodes.values())
    buckets: dict[tuple[str, str], list[Row]] = {}
    for row in recorded.rows("delayed_buckets"):
        buckets.setdefault((row["topic"], row["cursor"]), []).append(row)
    every: dict[int, list[Row]] = {}
    for row in recorded.rows("delayed_index"):
        every.setdefault(row["bucket_ledger_id"], []).append(row)
    marks = {
        (row["topic"], row["cursor"]): Position(row["mark_delete_ledger_id"], row["mark_delete_entry_id"])
        for row in recorded.rows("cursors")
    }
    acks: dict[tuple[str, str, int], list[Row]] = {}
    for row in recorded.rows("acks"):
        if row["unacked_indexes"] is None:
            acks.setdefault((row["topic"], row["cursor"], row["ledger_id"]), []).append(row)

    def acked(of: tuple[str, str], at: Position) -> bool:
        ranges = acks.get((*of, at.ledger_id), ())
        return at <= marks[of] or any(one["first_entry_id"] <= at.entry_id <= one["last_entry_id"] for one in ranges)

    waiting: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for row in recorded.rows("delayed_index", now_ms=now, unsealed=True):
        waiting.setdefault((row["topic"], row["cursor"]), set()).add((row["ledger_id"], row["entry_id"]))
    for line in truth(recorded.name, "delayed"):
        at = line["topic"], line["subscription"]
        assert len(waiting.pop(at, ())) == line["tracker_count"]
        found = {row["ledger_id"]: row for row in buckets.pop(at, ())}
        assert sorted(found) == sorted(bucket["ledger_id"] for bucket in line["buckets"])
        for bucket in line["buckets"]:
            row, segments = found[bucket["ledger_id"]], bucket["segments"]
            assert (row["bucket"], row["segments"]) == (bucket["property"], len(segments))
            assert row["first_due_ms"] == min(segment["min"] for segment in segments)
            assert row["last_due_ms"] == max(segment["max"] for segment in segments)
            assert row["messages"] == sum(len(ids) for one in segments for ids in one["bitmaps"].values())
            indexes = [
                (row["segment"], row["deliver_at_ms"], row["ledger_id"], row["entry_id"])
                for row in every.pop(bucket["ledger_id"])
            ]
            held = [(segment["entry"], *index) for segment in segments for index in segment["indexes"]]
            assert indexes == [one for one in held if not acked(at, Position(*one[2:]))]
    assert not waiting
    assert not buckets
    assert not every


def test_nodes(recorded: Recorded) -> None:
    found = {row["path"]: row for row in recorded.rows("nodes")}
    nodes = MetadataDump.open(dump_path(recorded.name), lambda damage: None).nodes
    assert found
    for path, row in found.items():
        node = nodes[path]
        if recorded.place.kind == BOOKIE:
            assert (row["value"], row["version"], row["changed_ms"]) == (node.value, node.version, node.mtime or None)
        else:
            assert row["created_ms"] is None
    left = {path for path in nodes.keys() - found.keys() if nodes[path].value}
    assert not left if recorded.place.kind == BOOKIE else all(ledger_id_of(path) is not None for path in left)


def test_passwords_that_no_metadata_tells(unpacked: Callable[[str], Path]) -> None:
    """Without one the entries are there, and nobody has checked them."""
    (said,) = [
        line
        for line in truth("a", "ledgers")
        if line["metadata"]["digest"] == "MAC" and line["metadata"]["custom_metadata"].get("app") == "Zm9yZWlnbg=="
    ]
    wanted = Predicate().among("ledger_id", {said["ledger_id"]})
    for passwords, checked in (((), {False}), ((b"other", b"pw-MAC"), {True})):
        asked = query("entries", wanted=wanted, passwords=passwords)
        found = [row for batch in read([bookies(unpacked("a"))], asked) for row in batch.to_pylist()]
        found = [row for row in found if not row["error"]]
        assert {row["checked"] for row in found} == checked
        assert [sha(row["payload"]) for row in found] == [entry["sha256"] for entry in said["entries"]]


@pytest.mark.parametrize("kind", [BOOKIE, STORE])
@pytest.mark.parametrize("table", TABLES)
def test_columns_may_be_chosen(place: Callable[[str, str], DataSource], table: str, kind: str) -> None:
    """The others are not made, and the rows are the same."""
    names = TABLES[table].names[-2:0:-2]
    some = list(read([place("b", kind)], query(table, names)))
    assert {batch.schema for batch in some} == {TABLES[table].schema_of(names)}
    found = [row for batch in some for row in batch.to_pylist()]
    whole = [row for batch in read([place("b", kind)], query(table)) for row in batch.to_pylist()]
    assert found == [{name: row[name] for name in names} for row in whole]
