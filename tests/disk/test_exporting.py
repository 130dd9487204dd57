"""Exports of a store with something of everything: read back through our own readers, and imported again."""

from __future__ import annotations

import gzip
import json
import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyroaring import BitMap64

import bookstand
from bookstand import Store
from bookstand.cursor.store import recovery
from bookstand.delivery.topic_config import SubscriptionConfig, TopicConfig
from bookstand.disk.bookies.discovery import read_cookie, read_last_mark
from bookstand.disk.damage import Damage
from bookstand.disk.disks import Disks
from bookstand.disk.exporter.run import ExportReport, export_topics
from bookstand.disk.format import journal
from bookstand.disk.format.entry_block import KnownDigests
from bookstand.disk.format.entry_log_writer import LARGEST_LOG, EntryLogWriter
from bookstand.disk.importer.run import IMPORT_NODE
from bookstand.disk.metadata.dump import ledger_id_of
from bookstand.disk.topics import cursors, delayed, topics
from bookstand.errors import (
    IllegalOperationError,
    IncorrectParameterError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StoreError,
)
from bookstand.managed_ledger.records import decode_cursor_info, encode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
from bookstand.storage.commit.entry_operations import SetExplicitLac
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format.digest import DIGEST_NAMES, digest_for, master_key
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.storage.format.position import Position
from tests.disk.exports import (
    LENGTH,
    LOG_HEADER_BYTES,
    bytes_below,
    entries_of,
    imported,
    ledger_of,
    logs_of,
    nodes_of,
    opened,
    read_log,
    same_ledgers,
)
from tests.disk.full_store import (
    BARE,
    DELAYED,
    ODD,
    PACKED,
    PAGED,
    PARTITIONED,
    PLAIN,
    Acked,
    FullStore,
    acked_of,
    stored_entries,
)

TOPICS = sorted([PLAIN, ODD, DELAYED, PACKED, BARE, f"{PARTITIONED}-partition-0", f"{PARTITIONED}-partition-1"])


class Exported(NamedTuple):
    """A store, all of which was exported, with cursors in the old form and as they are."""

    full: FullStore
    old_form: ExportReport
    as_it_is: ExportReport

    @property
    def store(self) -> Store:
        return self.full.store

    @property
    def entries(self) -> list[tuple[int, int, bytes]]:
        store = self.store
        return [(ledger_id, *entry) for ledger_id in store.list_ledgers() for entry in stored_entries(store, ledger_id)]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    folder = tmp_path_factory.mktemp("exported")
    with bookstand.open(folder / "store", durability="none") as store:
        full = FullStore(store, random.Random(5))
        yield Exported(
            full, export_topics(store, folder / "old"), export_topics(store, folder / "as-it-is", old_form=False)
        )


@pytest.fixture
def target() -> Iterator[Store]:
    with bookstand.temporary() as store:
        yield store


# -- through readers ---------------------------------------------------------------------------------------------------


def test_every_entry_is_there_byte_for_byte(exported: Exported) -> None:
    report = exported.as_it_is
    with opened(report) as disks:
        assert list(entries_of(disks)) == exported.entries
        assert disks.damage == []
        assert disks.ledger_ids == list(exported.store.list_ledgers())
    assert report.entries == len(exported.entries)
    assert report.bytes == sum(LENGTH.size + len(stored) for _, _, stored in exported.entries)
    assert (report.ledgers, report.topics, report.logs) == (len(list(exported.store.list_ledgers())), len(TOPICS), 1)
    assert (report.damage, report.cursors) == ([], 0)


def test_ledgers_have_their_metadata_but_for_their_bookies(exported: Exported) -> None:
    several = 0
    with opened(exported.as_it_is) as disks:
        for ledger_id, found in disks.dump.ledgers.items():  # type: ignore[union-attr]
            expected = exported.store.ledger_metadata(ledger_id)
            several += expected.ensemble_size > 1
            assert found.ensembles == ((0, ("bookie-0",)),)
            assert (found.ensemble_size, found.write_quorum_size, found.ack_quorum_size) == (1, 1, 1)
            assert found == expected.replace(
                ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, ensembles=found.ensembles
            )
            assert found.version == expected.version
        assert several == 4


def test_what_bookies_know_of_ledgers_is_in_the_journal(exported: Exported) -> None:
    ledgers = exported.full.ledgers
    with opened(exported.as_it_is) as disks:
        assert list(disks.catalog.fenced) == [ledgers["fenced"]]
        assert disks.catalog.explicit_lacs == {ledgers["explicit-lac"]: 2}
        # Of those that a bookie never heard of it knows nothing.
        assert not {ledgers["untouched"], ledgers["empty"]} & disks.catalog.master_keys.keys()
        for name, password in (("hmac", b"hmac"), ("far", b"far"), ("open", b"open"), ("gap", b"")):
            assert disks.catalog.master_keys[ledgers[name]] == master_key(password)
        path = exported.as_it_is.bookie / "journal" / "current" / "1.txn"
        blocks = journal.read(path, KnownDigests({}, []), disks.damage.append)
        assert [block for block in blocks if len(block.starts)] == []
        assert not disks.damage
    assert path.stat().st_size % 512 == 0


def test_topics_have_their_messages(exported: Exported) -> None:
    store = exported.store
    with opened(exported.old_form) as disks:
        found = {topic.name: topic for topic in topics.topics(disks)}
        assert sorted(found) == TOPICS
        for name, topic in found.items():
            with bookstand.open(store.path, read_only=True) as reading:
                managed = reading.managed_ledger(name, create=False)
                expected = [(entry.position, entry.data) for entry in managed.entries(Position(-1, -1))]
                assert topic.info.terminated == managed.terminated
            messages = list(topic.messages())
            assert [(message.position, message.data) for message in messages] == expected
            assert all(message.wrong == () for message in messages)
        assert found[PACKED].info.terminated == found[PACKED].end._replace(entry_id=found[PACKED].end.entry_id - 1)
        assert disks.damage == []


def acked_on(cursor: cursors.DiskCursor) -> Acked:
    """As the store's cursor tells it."""
    state = cursor.state
    ranges = []
    for ledger_id, acked in state.acked.items():
        for entry_id in acked:
            if ranges and ranges[-1][0] == ledger_id and ranges[-1][2] == entry_id - 1:
                ranges[-1] = (ledger_id, ranges[-1][1], entry_id)
            else:
                ranges.append((ledger_id, entry_id, entry_id))
    batches = {
        position: [index for index in range(bits.bit_length()) if bits >> index & 1]
        for position, bits in state.batches.items()
    }
    return Acked(state.mark_delete, ranges, batches, dict(state.properties), cursor.cursor_properties)


@pytest.mark.parametrize("form", ["old_form", "as_it_is"])
def test_cursors_have_their_acknowledgments(exported: Exported, form: str) -> None:
    with opened(getattr(exported, form)) as disks:
        found = {topic.name: {one.name: one for one in cursors.cursors(topic)} for topic in topics.topics(disks)}
        assert {name: {one: acked_on(cursor) for one, cursor in some.items()} for name, some in found.items()} == (
            exported.full.acked
        )
        hows = {one.source.how for some in found.values() for one in some.values()}
        assert disks.damage == []
    assert hows == {recovery.SNAPSHOT, recovery.RECORD} | ({recovery.MARKER} if form == "as_it_is" else set())


def test_delayed_messages_wait(exported: Exported) -> None:
    with opened(exported.old_form) as disks:
        found = {one.cursor.name: one for one in delayed.delayed(topics.topic(disks, DELAYED), now=1)}
        for name, rows in exported.full.rows.items():
            waiting: dict[int, BitMap64] = {}
            for position in rows:
                waiting.setdefault(position.ledger_id, BitMap64()).add(position.entry_id)
            assert found[name].positions() == waiting
            assert found[name].buckets
            segments = [segment for bucket in found[name].buckets for segment in bucket.segments()]
            times = {
                Position(ledger_id, entry_id): time
                for one in segments
                for time, ledger_id, entry_id in one.indexes.indexes
            }
            assert times
            assert times.items() <= rows.items()
        assert disks.damage == []


def test_other_nodes_are_there(exported: Exported) -> None:
    with opened(exported.old_form) as disks:
        assert disks.dump is not None
        found = {path: node.value for path, node in disks.dump.nodes.items()}
        above = {path.rpartition("/")[0] for path in found} - {""}
        assert above <= found.keys()
        assert found["/somebody/else's"] == b"\0\xff"
        assert disks.dump.partitioned == {PARTITIONED: 3}
        assert sum(ledger_id_of(path) is not None for path in found) == exported.old_form.ledgers


# -- into another store ------------------------------------------------------------------------------------------------


def test_an_import_gives_the_same_store(exported: Exported, target: Store) -> None:
    report = imported(exported.as_it_is, target)
    same_ledgers(exported.store, target)
    expected = nodes_of(exported.store)
    # Imports write plain what Pulsar could not load.
    (rewritten,) = report.rewritten
    expected[rewritten] = encode_cursor_info(decode_cursor_info(expected[rewritten]))
    assert nodes_of(target) == expected
    assert target.verify().ok
    assert target.create_ledger().id == max(exported.full.ledgers.values()) + 1


@pytest.mark.parametrize("form", ["old_form", "as_it_is"])
def test_an_imported_store_works_like_the_one_before(exported: Exported, target: Store, form: str) -> None:
    imported(getattr(exported, form), target)
    for name, expected in exported.full.acked.items():
        topic = target.topic(name, TopicConfig(trim_consumed=False, delayed_delivery_tracker="bucket"))
        found = {one: acked_of(topic.cursor(one, create=False)) for one in topic.ledger.cursor_names()}
        assert found == expected
    topic = target.topic(DELAYED, TopicConfig(delayed_delivery_tracker="bucket"))
    for name, rows in exported.full.rows.items():
        subscription = topic.subscription(name, SubscriptionConfig(cursor=PAGED))
        assert not subscription.receive(10, 0.0)
        assert {position for _, position in subscription.peek_delayed()} == rows.keys()
    # What was negatively acknowledged is remembered.
    packed = target.topic(PACKED)
    nacking = SubscriptionConfig(cursor=PAGED, durable_nacks=True, nack_delay=3_600_000)
    received = packed.subscription("s-nacks", nacking).receive(100, 0.0)
    assert len(received) == 50 + 30 - 1


def test_ledgers_open_with_their_passwords_and_end_where_they_did(exported: Exported, target: Store) -> None:
    imported(exported.old_form, target)
    passwords = {"far": b"far", "open": b"open", "explicit-lac": b"told", "fenced": b"fenced"}
    for name, ledger_id in exported.full.ledgers.items():
        password = passwords.get(name, name.encode() if name in ("crc32", "crc32c", "hmac", "dummy") else b"")
        ends = []
        for store in (exported.store, target):
            with store.open_ledger(ledger_id, recovery=False, password=password) as reader:
                ends.append((reader.last_add_confirmed, reader.length))
        assert ends[0] == ends[1], name
        with target.open_ledger(ledger_id, recovery=True, password=password) as recovered:
            lasts = {"far": 2, "gap": 1, "open": 2, "explicit-lac": 2, "fenced": 0, "recovering": 0}
            lasts |= {"untouched": -1, "empty": -1}
            assert recovered.last_add_confirmed == lasts.get(name, 19), name


def test_what_is_exported_once_more_is_the_same(exported: Exported, target: Store, tmp_path: Path) -> None:
    """From the store that was imported: entries, and all nodes but those that tell of the bookie and the store."""
    imported(exported.old_form, target)
    again = export_topics(target, tmp_path / "again")
    assert [path.read_bytes() for path in logs_of(again)] == [path.read_bytes() for path in logs_of(exported.old_form)]
    with opened(again) as one, opened(exported.old_form) as other:
        nodes = [
            {path: node.value for path, node in disks.dump.nodes.items() if not path.startswith("/ledgers/cookies/")}  # type: ignore[union-attr]
            for disks in (one, other)
        ]
    names = {"/ledgers/INSTANCEID"}
    assert {path: value for path, value in nodes[0].items() if path not in names} == {
        path: value for path, value in nodes[1].items() if path not in names
    }


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_same_store_gives_the_same_bytes(exported: Exported, tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        report = export_topics(exported.store, tmp_path / "place", log_bytes=20_000)
        found.append(bytes_below(tmp_path / "place"))
        os.rename(tmp_path / "place", tmp_path / f"before-{len(found)}")
    assert found[0] == found[1]
    assert report.logs > 3


def test_the_folder(exported: Exported) -> None:
    found = bytes_below(exported.old_form.metadata.parent)
    below = [path for path, data in found.items() if data is not None]
    assert sorted(below) == sorted(
        [
            "metadata.jsonl.gz",
            "bookie-0/journal/current/1.txn",
            "bookie-0/journal/current/VERSION",
            "bookie-0/ledgers/current/0.log",
            "bookie-0/ledgers/current/VERSION",
            "bookie-0/ledgers/current/lastId",
            "bookie-0/ledgers/current/lastMark",
        ]
    )
    assert {"bookie-0/ledgers/current/ledgers", "bookie-0/ledgers/current/locations"} <= found.keys()
    # The passwords of ledgers are in it.
    assert exported.old_form.metadata.stat().st_mode & 0o077 == 0


def test_cookies_say_where_it_is_to_be(exported: Exported) -> None:
    bookie = exported.old_form.bookie
    damage: list[Damage] = []
    texts = [bookie / kind / "current" / "VERSION" for kind in ("journal", "ledgers")]
    cookie = read_cookie(texts[0], damage.append)
    assert cookie is not None
    assert cookie.bookie == "bookie-0"
    assert cookie.journal_folders == (str(bookie / "journal"),)
    assert cookie.ledger_folders == (str(bookie / "ledgers"),)
    assert uuid.UUID(cookie.instance_id).bytes == exported.store.storage.store_id
    assert not damage
    with opened(exported.old_form) as disks:
        assert disks.dump is not None
        assert disks.dump.bookies == ["bookie-0"]
        nodes = disks.dump.nodes
        assert nodes["/ledgers/INSTANCEID"].value.decode() == cookie.instance_id
        assert {texts[0].read_bytes(), texts[1].read_bytes()} == {nodes["/ledgers/cookies/bookie-0"].value}


def test_marks_and_ids(exported: Exported, tmp_path: Path) -> None:
    report = export_topics(exported.store, tmp_path / "place", log_bytes=2_000)
    current = report.bookie / "ledgers" / "current"
    paths = logs_of(report)
    assert [path.name for path in paths] == [f"{number:x}.log" for number in range(report.logs)]
    assert report.logs > 16
    assert (current / "lastId").read_text() == f"{report.logs - 1:x}\n"
    damage: list[Damage] = []
    assert read_last_mark(current / "lastMark", damage.append) == (1, 0)
    assert not damage


@pytest.mark.parametrize("log_bytes", [LOG_HEADER_BYTES, 2_000, 30_000, LARGEST_LOG])
def test_logs_follow_each_other(exported: Exported, tmp_path: Path, log_bytes: int) -> None:
    report = export_topics(exported.store, tmp_path / "place", log_bytes=log_bytes, old_form=False)
    logs = [read_log(path) for path in logs_of(report)]
    assert [entry for log in logs for entry in log.entries] == exported.entries
    for log, following in zip(logs, [*logs[1:], None], strict=True):
        assert log.rows == log.taken
        assert (log.map_offset, log.map_count) == (log.first_map_record, len(log.taken))
        # As much as has room, and one entry in any case.
        assert log.map_offset <= log_bytes or len(log.entries) == 1
        if following is not None:
            assert log.map_offset + LENGTH.size + len(following.entries[0][2]) > log_bytes
    with opened(report) as disks:
        assert list(entries_of(disks)) == exported.entries
        assert disks.damage == []


def test_a_map_of_many_ledgers_is_in_several_records(tmp_path: Path) -> None:
    digest = digest_for("crc32c", b"")
    entries = [(ledger_id, 0, encode(digest, ledger_id, 0, -1, 1, b"x")) for ledger_id in range(0, 50_002, 2)]
    with EntryLogWriter(tmp_path) as written:
        for ledger_id, _, stored in entries:
            written.add(ledger_id, [stored])
    log = read_log(tmp_path / "0.log")
    assert log.entries == entries
    assert log.rows == log.taken
    assert log.map_count == len(entries)
    # Three records, of 10 000 ledgers at most.
    assert (tmp_path / "0.log").stat().st_size == log.map_offset + 3 * (LENGTH.size + 20) + 16 * len(entries)


@pytest.mark.parametrize("options", [{}, {"log_bytes": 2_000}, {"topics": [PLAIN]}, {"old_form": False}])
def test_a_dry_run_reports_what_a_run_does(exported: Exported, tmp_path: Path, options: dict[str, Any]) -> None:
    would = export_topics(exported.store, tmp_path / "place", dry_run=True, **options)
    assert not (tmp_path / "place").exists()
    report = export_topics(exported.store, tmp_path / "place", **options)
    assert would == report
    known = set(exported.store.list_ledgers())
    with opened(report) as disks:
        assert disks.dump is not None
        assert report.nodes == len(disks.dump.nodes)
        assert len(disks.ledger_ids) == report.ledgers
        there = known.intersection(disks.ledger_ids)
    # Each is in one of the three.
    assert sorted([*there, *report.superseded, *report.left_out]) == sorted(known)


def test_a_dry_run_leaves_what_an_attempt_left(exported: Exported, tmp_path: Path) -> None:
    unfinished = tmp_path / "place" / ".unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "metadata.jsonl.gz").write_bytes(b"")
    export_topics(exported.store, tmp_path / "place", dry_run=True)
    assert [one.name for one in unfinished.iterdir()] == ["metadata.jsonl.gz"]
    (tmp_path / "place" / "mine").write_bytes(b"")
    with pytest.raises(StoreError, match="not empty"):
        export_topics(exported.store, tmp_path / "place", dry_run=True)


def test_an_empty_store(tmp_path: Path, target: Store) -> None:
    with bookstand.temporary() as store:
        report = export_topics(store, tmp_path / "place")
    assert report[2:9] == (0, 0, 0, 0, 1, 0, [])
    assert report.superseded == report.left_out == []
    log = read_log(logs_of(report)[0])
    assert (log.entries, log.map_offset, log.map_count) == ([], 0, 0)
    assert imported(report, target).ledgers == 0


@pytest.mark.parametrize("metadata_format", [1, 2, 3])
def test_formats_of_metadata(tmp_path: Path, target: Store, metadata_format: int) -> None:
    """The oldest has neither digest nor password: what cannot be checked by it is not taken for damaged."""
    with bookstand.open(tmp_path / "store", durability="none", metadata_format=metadata_format) as store:
        for digest in DIGEST_NAMES:
            for password in (b"", b"pw"):
                with store.create_ledger(3, 2, 2, digest=digest, password=password) as closed:
                    closed.append_many([b"a", b"b"])
                told = store.create_ledger(digest=digest, password=password)
                told.append_many([b"a", b"b"])
                state = store.storage.state(told.id)
                assert state is not None
                store.storage.apply(WriteBatch(SetExplicitLac(told.id, state.incarnation, master_key(password), 1)))
        report = export_topics(store, tmp_path / "place")
        assert (report.entries, report.damage) == (32, [])
        imported(report, target)
        for ledger_id in store.list_ledgers():
            one, other = ledger_of(store, ledger_id), ledger_of(target, ledger_id)
            if metadata_format == 1 and store.storage.state(ledger_id).digest == "hmac":  # type: ignore[union-attr]
                # Nor can what its writer told be told again.
                for known in (one["state"], other["state"]):
                    known.pop("explicit_lac")
            assert one == other


def test_ledger_ids_have_nothing_behind_them(tmp_path: Path) -> None:
    with bookstand.temporary() as store:
        with store.create_ledger_adv((1 << 63) - 2) as last:
            last.write(0, b"last")
        report = export_topics(store, tmp_path / "place")
    with opened(report) as disks:
        assert [entry[0] for entry in entries_of(disks)] == [(1 << 63) - 2]
        # There is no number behind its upper half that a service could go on from.
        assert not [path for path in disks.dump.nodes if "HOB" in path]  # type: ignore[union-attr]


# -- some of it --------------------------------------------------------------------------------------------------------


def test_a_topic_has_with_it_what_belongs_to_it(exported: Exported, tmp_path: Path, target: Store) -> None:
    report = export_topics(exported.store, tmp_path / "place", [PACKED], old_form=False)
    imported(report, target)
    assert report.topics == 1
    record = node_of(PACKED)
    assert set(nodes_of(target)) == {
        "/admin/policies/acme",
        "/admin/policies/acme/orders",
        record,
        f"{record}/s-inline",
        f"{record}/s-nacks",
        *(path for path in nodes_of(exported.store) if path.startswith("/negative-acks/")),
    }
    for ledger_id in target.list_ledgers():
        labels = target.ledger_metadata(ledger_id).custom_metadata
        assert labels.get("pulsar/managed-ledger", b"").endswith(b"/packed") or labels["component"] == b"negative-acks"
    topic = target.topic(PACKED)
    found = {one: acked_of(topic.cursor(one, create=False)) for one in topic.ledger.cursor_names()}
    assert found == exported.full.acked[PACKED]


def test_buckets_belong_to_their_topic(exported: Exported, tmp_path: Path, target: Store) -> None:
    imported(export_topics(exported.store, tmp_path / "place", [DELAYED]), target)
    topic = target.topic(DELAYED, TopicConfig(delayed_delivery_tracker="bucket"))
    for name, rows in exported.full.rows.items():
        subscription = topic.subscription(name, SubscriptionConfig(cursor=PAGED))
        assert {position for _, position in subscription.peek_delayed()} == rows.keys()


@pytest.mark.parametrize("name", [PARTITIONED, "acme/orders/persistent/part"])
def test_a_partitioned_topic_stands_for_its_partitions(exported: Exported, tmp_path: Path, name: str) -> None:
    report = export_topics(exported.store, tmp_path / "place", [name])
    with opened(report) as disks:
        assert disks.dump is not None
        # Nobody has written to the third one.
        assert disks.dump.topics == [f"{PARTITIONED}-partition-{number}" for number in range(2)]
        assert disks.dump.partitioned == {PARTITIONED: 3}


def test_a_partition_alone(exported: Exported, tmp_path: Path) -> None:
    with opened(export_topics(exported.store, tmp_path / "place", [f"{PARTITIONED}-partition-1"])) as disks:
        assert disks.dump is not None
        assert disks.dump.topics == [f"{PARTITIONED}-partition-1"]
        assert disks.dump.partitioned == {PARTITIONED: 3}


def test_a_topic_that_is_not_of_pulsar(exported: Exported, tmp_path: Path, target: Store) -> None:
    imported(export_topics(exported.store, tmp_path / "place", [BARE]), target)
    assert list(nodes_of(target)) == [node_of(BARE)]
    (entry,) = target.topic(BARE).ledger.entries(Position(-1, -1))
    assert entry.data.endswith(b"x")


def test_some_ledgers(exported: Exported, tmp_path: Path, target: Store) -> None:
    wanted = [exported.full.ledgers[name] for name in ("far", "hmac", "untouched")]
    report = export_topics(exported.store, tmp_path / "place", ledgers=wanted)
    assert (report.topics, report.ledgers, report.entries) == (0, 3, 23)
    imported(report, target)
    assert list(target.list_ledgers()) == sorted(wanted)
    assert nodes_of(target) == {}
    assert [entry.data for entry in target.open_ledger(wanted[0], password=b"far")] == [b"0", b"1", b"2"]


def test_topics_and_ledgers(exported: Exported, tmp_path: Path) -> None:
    wanted = exported.full.ledgers["crc32"]
    report = export_topics(exported.store, tmp_path / "place", [ODD], ledgers=[wanted])
    with opened(report) as disks:
        assert disks.dump is not None
        assert disks.dump.topics == [ODD]
        assert wanted in disks.dump.ledgers
        assert len(disks.dump.ledgers) == report.ledgers == 2


def test_a_cursor_ledger_that_was_asked_for_is_there(exported: Exported, tmp_path: Path) -> None:
    """Although the cursor does not need it any more in the old form."""
    record, _ = exported.store.nodes.get(cursor_node_of(PLAIN, "s-pages"))
    pages = decode_cursor_info(record).cursor_ledger_id
    for ledgers, expected in (([], False), ([pages], True)):
        report = export_topics(exported.store, tmp_path / str(expected), [PLAIN], ledgers=ledgers)
        with opened(report) as disks:
            assert (pages in disks.dump.ledgers) == expected  # type: ignore[union-attr]


def test_progress(exported: Exported, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = export_topics(exported.store, tmp_path / "place", progress=lambda *done: told.append(done))
    assert told == [(number, report.ledgers) for number in range(1, report.ledgers + 1)]


def test_from_a_store_that_is_only_read(exported: Exported, tmp_path: Path) -> None:
    with bookstand.open(exported.store.path, read_only=True) as reading:
        report = export_topics(reading, tmp_path / "place", old_form=False)
    assert [path.read_bytes() for path in logs_of(report)] == [path.read_bytes() for path in logs_of(exported.as_it_is)]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_folder_with_something_in_it(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(StoreError, match="is not empty: mine is there"):
        export_topics(exported.store, tmp_path)
    assert bytes_below(tmp_path) == {"mine": b"mine"}
    with pytest.raises(StoreError, match=f"cannot export to {tmp_path}/mine"):
        export_topics(exported.store, tmp_path / "mine")
    assert bytes_below(tmp_path) == {"mine": b"mine"}


def test_a_folder_with_an_export_in_it(exported: Exported) -> None:
    place = exported.old_form.metadata.parent
    before = bytes_below(place)
    with pytest.raises(StoreError, match="is not empty"):
        export_topics(exported.store, place)
    with pytest.raises(StoreError, match="is not empty"):
        export_topics(exported.store, place, bookie="another")
    assert bytes_below(place) == before


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"topics": PLAIN}, IncorrectParameterError, "topics are given as a list"),
    ({"topics": iter([PLAIN])}, IncorrectParameterError, "not as an iterator"),
    ({"topics": [3]}, IncorrectParameterError, "a list of str"),
    ({"topics": ["persistent://acme/orders/none"]}, NoSuchNodeError, "no topic 'persistent://acme/orders/none'"),
    ({"topics": ["persistent://acme"]}, IncorrectParameterError, "full topic name"),
    ({"topics": [""]}, IncorrectParameterError, "name"),
    ({"ledgers": 3}, IncorrectParameterError, "ledgers are given as a list"),
    ({"ledgers": [True]}, IncorrectParameterError, "a list of int"),
    ({"ledgers": ["3"]}, IncorrectParameterError, "a list of int"),
    ({"ledgers": [77]}, NoSuchLedgerError, "ledger 77 does not exist"),
    ({"ledgers": [-1]}, NoSuchLedgerError, "ledger -1 does not exist"),
    ({"ledgers": [1 << 63]}, NoSuchLedgerError, "does not exist"),
    ({"bookie": ""}, IncorrectParameterError, "no name of a bookie"),
    ({"bookie": ".."}, IncorrectParameterError, "no name of a bookie"),
    ({"bookie": "a/b"}, IncorrectParameterError, "no name of a bookie"),
    ({"bookie": "a b"}, IncorrectParameterError, "a b"),
    ({"bookie": "metadata.jsonl.gz"}, IncorrectParameterError, "no name of a bookie"),
    ({"bookie": None}, IncorrectParameterError, "no name of a bookie"),
    ({"log_bytes": 1023}, IncorrectParameterError, "a log has from"),
    ({"log_bytes": LARGEST_LOG + 1}, IncorrectParameterError, "a log has from"),
    ({"log_bytes": 2e6}, IncorrectParameterError, "a log has from"),
]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    REFUSED,
    ids=[f"{number}-{error.__name__}" for number, (_, error, _) in enumerate(REFUSED)],
)
def test_what_cannot_be_exported(
    exported: Exported, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        export_topics(exported.store, tmp_path / "place", **arguments)
    assert not (tmp_path / "place").exists() or not list((tmp_path / "place").iterdir())


def test_an_unfinished_import(tmp_path: Path) -> None:
    with bookstand.temporary() as store:
        store.nodes.put(IMPORT_NODE, b"{}")
        with pytest.raises(IllegalOperationError, match="unfinished import"):
            export_topics(store, tmp_path / "place")
    assert not (tmp_path / "place").exists()


def test_what_was_acknowledged_and_is_not_written_yet(tmp_path: Path) -> None:
    """The store is read as it is; what was queued in it is, at least."""
    with bookstand.temporary() as store:
        writer = store.create_ledger()
        pending = [writer.append_async(b"%d" % number) for number in range(100)]
        report = export_topics(store, tmp_path / "place")
        assert report.entries == 100
        assert all(one.done() for one in pending)


def test_the_dump_is_text(exported: Exported) -> None:
    """With each node below one that is before it."""
    with gzip.open(exported.old_form.metadata, "rt", encoding="utf-8") as lines:
        nodes = [json.loads(line) for line in lines]
    seen = {""}
    for node in nodes:
        assert node["path"].rpartition("/")[0] in seen
        seen.add(node["path"])
    closed = sum(one.state == CLOSED for one in map(exported.store.ledger_metadata, exported.store.list_ledgers()))
    assert closed
    assert Disks.open([exported.old_form.bookie]).dump is None
