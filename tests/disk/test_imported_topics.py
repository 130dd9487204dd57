"""Recorded disks imported into a store, and opened there with our own classes: against what the original said.

Opening a topic writes, so every test has a copy of the store to itself.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyroaring import BitMap64

import bookstand
from bookstand.cursor.format import record
from bookstand.cursor.store import recovery
from bookstand.delivery.topic_config import TopicConfig
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import ImportReport, import_disks
from bookstand.disk.topics import cursors, delayed, topics
from bookstand.errors import NoSuchEntryError, NoSuchLedgerOnBookieError
from bookstand.managed_ledger.message.format import Message
from bookstand.managed_ledger.records import decode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.storage.format.digest import master_key
from bookstand.storage.format.position import Position
from bookstand.store import Store
from bookstand.testing.clock import VirtualClock
from tests.disk.recordings import RECORDINGS, dump_path, truth


class Imported(NamedTuple):
    name: str
    disks: Disks
    report: ImportReport
    path: Path
    folder: Path

    def copy(self, **options: Any) -> Store:
        """A store of the caller's own, at the time at which the disks were recorded."""
        path = self.folder / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.path, path)
        return bookstand.open(path, durability="none", clock=VirtualClock(delayed.time_of(self.disks)), **options)


@pytest.fixture(scope="module", params=RECORDINGS)
def imported(
    request: pytest.FixtureRequest, unpacked: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Imported]:
    name = request.param
    folder = tmp_path_factory.mktemp("imported")
    with Disks.open([unpacked(name)], dump_path(name)) as disks:
        with bookstand.open(folder / "store", durability="none") as store:
            report = import_disks(disks, store)
            assert store.verify().ok
        yield Imported(name, disks, report, folder / "store", folder)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- ledgers -----------------------------------------------------------------------------------------------------------


def test_ledgers_are_what_the_original_says(imported: Imported) -> None:
    """In f the truth is from after a restart, which closed what was open, and dropped and made ledgers."""
    known = imported.disks.dump.ledgers  # type: ignore[union-attr]
    seen = 0
    with imported.copy() as store:
        assert list(store.list_ledgers()) == list(known)
        for line in truth(imported.name, "ledgers"):
            ledger_id, said = line["ledger_id"], line["metadata"]
            if imported.name == "f" and known.get(ledger_id) is None:
                continue
            seen += 1
            metadata = store.ledger_metadata(ledger_id)
            assert metadata.ensembles == tuple((one["first_entry"], tuple(one["bookies"])) for one in said["ensembles"])
            custom = {key: base64.b64decode(value) for key, value in said["custom_metadata"].items()}
            assert metadata.custom_metadata == custom
            assert metadata.password == base64.b64decode(said["password"])
            assert metadata.has_password == said["has_password"]
            assert metadata.digest_type == {"MAC": "hmac"}.get(said["digest"], said["digest"].lower())
            assert metadata.ctime == said["ctime"]
            assert metadata.format_version == said["format_version"]
            quorums = (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
            assert quorums == (said["ensemble_size"], said["write_quorum"], said["ack_quorum"])
            reader = store.open_ledger(ledger_id, recovery=False, password=metadata.password)
            if imported.name != "f":
                assert metadata.state == said["state"]
                assert metadata.ctoken == said["ctoken"]
                assert reader.last_add_confirmed == line["lac"]
                if metadata.state == "CLOSED":
                    assert (metadata.last_entry_id, metadata.length) == (said["last_entry"], said["length"])
            for entry in line["entries"]:
                if "error" in entry:
                    with pytest.raises((NoSuchEntryError, NoSuchLedgerOnBookieError)):
                        reader.read_unconfirmed(entry["entry"], entry["entry"])
                    continue
                (found,) = reader.read_unconfirmed(entry["entry"], entry["entry"])
                assert sha(found.data) == entry["sha256"]
                assert found.cumulative_length == entry["cumulative_length"]
    assert seen


def test_entries_and_what_bookies_knew_are_the_same_bytes(imported: Imported) -> None:
    disks, catalog = imported.disks, imported.disks.catalog
    with imported.copy() as store:
        storage = store.storage
        for ledger_id in store.list_ledgers():
            ledger = disks.ledger(ledger_id)
            closed = ledger.extent.state == "CLOSED"
            expected = {entry.entry_id: entry.stored for entry in ledger.entries(beyond=not closed)}
            found = {
                first + number: stored
                for first, run in storage.runs(ledger_id, 1 << 40)
                for number, stored in enumerate(run)
            }
            assert found == expected
            state = storage.state(ledger_id)
            assert state is not None
            assert state.fenced == (ledger_id in catalog.fenced)
            assert state.explicit_lac == catalog.explicit_lacs.get(ledger_id, -1)
            assert state.master_key == master_key(store.ledger_metadata(ledger_id).password)
            assert state.count == len(expected)
        # What is new gets an id behind all of them.
        assert store.create_ledger().id == max(store.list_ledgers()) == max(disks.dump.ledgers) + 1  # type: ignore[union-attr]


def test_recovery_ends_ledgers_where_the_disks_allow(imported: Imported) -> None:
    restarted = {line["ledger_id"]: line for line in truth(imported.name, "ledgers-after-restart")}
    recovered = 0
    with imported.copy() as store:
        for ledger_id in list(store.list_ledgers()):
            before = store.ledger_metadata(ledger_id)
            if before.state == "CLOSED":
                continue
            recovered += 1
            reader = store.open_ledger(ledger_id, recovery=True, password=before.password)
            extent = imported.disks.ledger(ledger_id).extent
            assert reader.is_closed()
            assert extent.enough <= reader.last_add_confirmed <= extent.gapless
            entries = list(reader)
            assert len(entries) == reader.last_add_confirmed + 1
            assert reader.length == sum(entry.length for entry in entries)
            if len(imported.disks.bookies) == 1:
                assert reader.last_add_confirmed == extent.gapless
                after = restarted.get(ledger_id)
                if after is not None and after["state"] == "CLOSED":
                    assert (reader.last_add_confirmed, reader.length) == (after["last_entry"], after["length"])
        if imported.name == "f":
            check_acknowledged(imported, store)
    assert recovered


def test_nodes_are_those_of_the_dump(imported: Imported) -> None:
    dump = imported.disks.dump
    assert dump is not None
    with imported.copy() as store:
        found = {path: store.nodes.get(path) for path in store.storage.node_paths("/")}
        assert len(found) == imported.report.nodes
        assert all(version == 0 for _, version in found.values())
        for path, (value, _) in found.items():
            if path in imported.report.rewritten:
                assert value[:1] == b"\x08"
                assert dump.nodes[path].value[:2] == b"\x47\x78"
                assert decode_cursor_info(value) == decode_cursor_info(dump.nodes[path].value)
                assert decode_cursor_info(value).cursor_properties
            else:
                assert value == dump.nodes[path].value
        left = dump.nodes.keys() - found.keys()
        assert {dump.ledger_id_of(path) for path in left if dump.nodes[path].value} == set(dump.ledgers)
        assert "/ledgers/LAYOUT" in found


def check_acknowledged(imported: Imported, store: Store) -> None:
    """What writers were told is there, in ledgers that are recovered by now."""
    told = [line for line in truth(imported.name, "acked") if "ledger" in line]
    assert told
    for line in told:
        metadata = store.ledger_metadata(line["ledger"])
        assert metadata.state == "CLOSED"
        assert line["entry"] <= metadata.last_entry_id


# -- topics ------------------------------------------------------------------------------------------------------------


def test_topics_have_the_same_messages(imported: Imported) -> None:
    expected: dict[str, dict[Position, dict[str, Any]]] = {}
    for line in truth(imported.name, "messages"):
        expected.setdefault(line["topic"], {})[Position(line["ledger"], line["entry"])] = line
    with imported.copy() as store:
        for line in truth(imported.name, "topics"):
            topic = store.topic(line["topic"])
            lines = expected.pop(line["topic"], {})
            entries = list(topic.ledger.entries(Position(-1, -1)))
            if imported.name != "f":  # what was on a disk and the restart dropped is more than it says
                assert [entry.position for entry in entries] == list(lines)
            found = {entry.position: entry.data for entry in entries}
            assert lines.keys() <= found.keys()
            for position, said in lines.items():
                check_message(found[position], said)
    assert not expected


def check_message(data: bytes, said: dict[str, Any]) -> None:
    message = Message(data)
    message.check()
    assert len(data) == said["entry_len"]
    assert message.stored_checksum == said["checksum"]
    assert sha(bytes(message.stored_payload)) == said["payload_sha256"]
    metadata, fields = message.metadata, said["metadata"]
    for name in ("producer_name", "sequence_id", "publish_time", "deliver_at_time", "event_time", "partition_key"):
        assert getattr(metadata, name) == fields.get(name)
    if metadata.chunk_id is None:
        values = [one.payload for one in message.messages()] if message.is_batch else [message.payload()]
        assert [sha(value) for value in values] == [one["sha256"] for one in said["messages"]]


# -- cursors -----------------------------------------------------------------------------------------------------------


def acked_of(line: dict[str, Any]) -> dict[int, BitMap64]:
    acked: dict[int, BitMap64] = {}
    for ledger, lower, _, upper in line["individually_deleted"]:
        acked.setdefault(ledger, BitMap64()).update(range(lower + 1, upper + 1))
    return acked


def unacked_in(bits: int) -> list[int]:
    return [index for index in range(bits.bit_length()) if bits >> index & 1]


def test_cursors_stand_where_the_original_recovers_them(imported: Imported) -> None:
    name, disks = imported.name, imported.disks
    on_disk = {(topic.name, one.name): one for topic in topics.topics(disks) for one in cursors.cursors(topic)}
    lines = truth(name, "cursors")
    assert len(lines) == len(on_disk)
    batches = 0
    with imported.copy() as store:
        for line in lines:
            topic = store.topic(line["topic"])
            cursor = topic.cursor(line["subscription"], create=False)
            there = on_disk[line["topic"], line["subscription"]]
            extent = topic.ledger.extent
            ranges: dict[int, BitMap64] = {}
            for lower, upper in cursor.acked_ranges():
                ranges.setdefault(lower.ledger_id, BitMap64()).update(range(lower.entry_id + 1, upper.entry_id + 1))
            assert ranges == acked_of(line)
            if line["subscription"] == "pulsar.dedup" and dict(there.state.properties) != line["properties"]:
                # The broker that was started again has read on from there.
                assert cursor.properties == dict(there.state.properties)
                assert extent.following(cursor.mark_delete_position) == extent.following(there.state.mark_delete)
            else:
                assert cursor.properties == line["properties"]
                if name != "f":  # of the last entries there the restart decided
                    assert cursor.backlog == line["backlog"]
                assert extent.following(cursor.mark_delete_position) == extent.following(Position(*line["mark_delete"]))
            assert cursor.cursor_properties == line["cursor_properties"]
            # What the node has the broker forgets, and so the truth does not have it.
            in_node = {Position(ledger, entry): unacked_in(bits) for ledger, entry, bits in there.info.batches}
            said = {
                Position(ledger, entry): unacked_in(
                    sum((word % (1 << 64)) << (64 * place) for place, word in enumerate(words))
                )
                for ledger, entry, words in line["batch_deleted"]
            }
            in_record = cursor.recovered_from.how == recovery.RECORD
            assert cursor.partial_batches() == (in_node if in_record else said)
            assert in_record == (there.info.cursor_ledger_id < 0)
            assert cursor.recovered_from.skipped == ()
            batches += len(cursor.partial_batches())
    assert batches or name in "cf"


def test_cursors_stay_in_the_old_form_until_they_change(imported: Imported) -> None:
    """Some cursor with its state in a ledger, and some with its state in its record."""
    chosen = {}
    for topic in topics.topics(imported.disks):
        for cursor in cursors.cursors(topic):
            if cursor.next != topic.end:
                chosen[cursor.source.how] = cursor
    assert chosen
    with imported.copy() as store:
        for there in chosen.values():
            path = cursor_node_of(there.topic.name, there.name)
            before, _ = store.nodes.get(path)
            topic = store.topic(there.topic.name)
            cursor = topic.cursor(there.name, create=False)
            assert store.nodes.get(path)[0] == before
            assert decode_cursor_info(before).cursor_ledger_id == there.ledger_id
            if there.ledger_id >= 0:
                last = store.open_ledger(there.ledger_id, recovery=False).read_last_entry()
                assert not record.is_ours(last.data)
            cursor.ack(next(cursor.unacked()).position).result()
            cursor.flush()
            now = decode_cursor_info(store.nodes.get(path)[0]).cursor_ledger_id
            assert now != there.ledger_id
            assert record.is_ours(store.open_ledger(now, recovery=False).read_unconfirmed(0, 0)[0].data)


# -- delayed messages --------------------------------------------------------------------------------------------------


def test_delayed_indexes_wait_for_the_same_messages(imported: Imported) -> None:
    lines = truth(imported.name, "delayed")
    assert lines
    now = delayed.time_of(imported.disks)
    with imported.copy() as store:
        for line in lines:
            topic = store.topic(line["topic"], TopicConfig(delayed_delivery_tracker="bucket"))
            subscription = topic.subscription(line["subscription"])
            tracker = subscription.tracker
            assert isinstance(tracker, BucketDelayedTracker)
            ledgers = {
                bucket["ledger_id"]: bucket["property"]
                for bucket in line["buckets"]
                if any(row[0] > now for segment in bucket["segments"] for row in segment["indexes"])
            }
            properties = subscription.cursor.cursor_properties
            assert {int(value): key for key, value in properties.items() if "delayed.bucket" in key} == ledgers
            # What is in no bucket is met again when the subscription reads on.
            while subscription.receive(1000, timeout=0):
                pass
            assert tracker.count == line["tracker_count"]
            rows = tracker.peek()
            found = {
                Position(ledger, entry): time
                for time, ledger, entry in zip(
                    rows.timestamps.tolist(), rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True
                )
            }
            in_buckets = {
                Position(ledger, entry)
                for bucket in line["buckets"]
                for segment in bucket["segments"]
                for _, ledger, entry in segment["indexes"]
            }
            cursor = subscription.cursor
            waiting = {
                Position(one["ledger"], one["entry"]): one["metadata"]["deliver_at_time"]
                for one in truth(imported.name, "messages")
                if one["topic"] == line["topic"] and one["metadata"].get("deliver_at_time", 0) > now
            }
            expected = {at: time for at, time in waiting.items() if at in in_buckets or not cursor.is_acked(at)}
            assert found == expected
