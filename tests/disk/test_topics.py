"""Topics and their messages: against what the original client read, and where entries are damaged."""

from __future__ import annotations

import base64
import hashlib
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.disk.damage import Damage
from bookstand.disk.disks import Disks
from bookstand.disk.topics import topics
from bookstand.disk.topics.messages import DiskMessage, Whole, joined
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.message import compression
from bookstand.managed_ledger.message.format import Message, assemble, batch, encode_message, single
from bookstand.managed_ledger.message.metadata import BrokerEntryMetadata, EncryptionKey
from bookstand.managed_ledger.records import LedgerInfo, ManagedLedgerInfo, encode_ledger_info
from bookstand.managed_ledger.topic_name import node_of
from bookstand.storage.format.position import Position
from tests.disk.cluster import TOPIC, Cluster
from tests.disk.recordings import RECORDINGS, dump_path, truth

Recorded = tuple[str, Disks]


@pytest.fixture(scope="module", params=RECORDINGS)
def recorded(request: pytest.FixtureRequest, unpacked: Callable[[str], Path]) -> Iterator[Recorded]:
    with Disks.open([unpacked(request.param)], dump_path(request.param)) as disks:
        yield request.param, disks


# -- recorded disks --------------------------------------------------------------------------------------------------


def said(metadata: Any) -> dict[str, Any]:
    """Fields that are set, as the truth has them."""
    fields = {
        name: value for name, value in metadata._asdict().items() if value not in (None, ()) and name != "unknown"
    }
    for name, value in fields.items():
        if isinstance(value, bytes):
            fields[name] = base64.b64encode(value).decode()
        elif name == "properties":
            fields[name] = [list(pair) for pair in value]
    return fields


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def described(message: DiskMessage) -> dict[str, Any]:
    """A message as a line of the truth."""
    assert message.metadata is not None
    assert message.stored_payload is not None
    metadata = said(message.metadata)
    if "compression" in metadata:
        metadata["compression"] = message.compression
    found = {
        "topic": message.topic,
        "ledger": message.ledger_id,
        "entry": message.entry_id,
        "entry_len": len(message.data),
        "has_checksum": message.has_checksum,
        "checksum": message.checksum,
        "metadata": metadata,
        "payload_len": len(message.stored_payload),
        "payload_sha256": digest(message.stored_payload),
        "messages": [],
    }
    if message.broker_metadata is not None:
        found["broker_entry_metadata"] = said(message.broker_metadata)
    for value in message.values():
        one = {"len": len(value.payload), "sha256": digest(value.payload)}
        if value.metadata is not None:
            names = ("partition_key", "sequence_id", "event_time", "null_value", "properties")
            one |= {name: field for name, field in said(value.metadata).items() if name in names}
        found["messages"].append(one)
    return found


def test_recorded_topics(recorded: Recorded) -> None:
    name, disks = recorded
    found = {topic.name: topic for topic in topics.topics(disks)}
    lines = truth(name, "topics")
    assert sorted(found) == sorted(line["topic"] for line in lines)
    for line in lines:
        topic = found[line["topic"]]
        assert topic.managed_ledger == line["managed_ledger"]
        terminated = line.get("terminated_position")
        assert topic.info.terminated == (terminated and Position(*terminated))
        assert sorted(topic.cursors()) == sorted(map(decoded, line["cursors"]))
        if name == "f":
            continue  # what it says of ledgers is from after a restart, which added some
        assert dict(topic.info.properties) == line["properties"]
        ledgers = [
            LedgerInfo(one["ledger_id"], one.get("entries", 0), one.get("size", 0), one.get("timestamp", 0))
            for one in line["ledgers"]
        ]
        assert [info._replace(properties=(), unknown=b"", offload=None) for info in topic.info.ledgers] == ledgers
        assert topic.ledgers() == [one["ledger_id"] for one in line["ledgers"]]
        assert sum(topic.entry_counts.values()) == line["entries"]
        assert sum(message.count for message in topic.messages()) == line["messages"]


def decoded(cursor: str) -> str:
    from urllib.parse import unquote_plus

    return unquote_plus(cursor)


def test_recorded_messages(recorded: Recorded) -> None:
    name, disks = recorded
    expected = {(line["topic"], line["ledger"], line["entry"]): line for line in truth(name, "messages")}
    assert expected
    for topic in topics.topics(disks):
        for message in topic.messages():
            line = expected.pop((message.topic, message.ledger_id, message.entry_id), None)
            if line is None:
                assert name == "f", message  # what was on a disk and the restart dropped
                continue
            assert described(message) == line
            assert message.wrong == ()
    assert not expected
    assert not [damage for damage in disks.damage if damage.file.startswith("persistent:")]


def test_recorded_chunks_are_joined(recorded: Recorded) -> None:
    name, disks = recorded
    chunks = [line for line in truth(name, "messages") if "chunk_id" in line["metadata"]]
    if not chunks:
        assert name == "f"
        return
    (topic,) = [topic for topic in topics.topics(disks) if topic.name == chunks[0]["topic"]]
    wholes = list(topic.joined())
    (found,) = [whole for whole in wholes if len(whole.positions) > 1]
    assert found.positions == tuple(Position(line["ledger"], line["entry"]) for line in chunks)
    assert len(wholes) == len(list(topic.messages())) - len(chunks) + 1
    (value,) = found.message.values()
    assert len(value.payload) == chunks[0]["metadata"]["total_chunk_msg_size"]
    at = 0
    for line in chunks:
        assert digest(value.payload[at : at + line["payload_len"]]) == line["payload_sha256"]
        at += line["payload_len"]


def test_what_producers_were_told_is_there(unpacked: Callable[[str], Path]) -> None:
    with Disks.open([unpacked("f")], dump_path("f")) as disks:
        sums = {topic.name: set[str]() for topic in topics.topics(disks)}
        for topic in topics.topics(disks):
            for message in topic.messages():
                sums[topic.name].update(digest(value.payload) for value in message.values())
        told = [line for line in truth("f", "acked") if "topic" in line]
        assert told
        for line in told:
            assert line["sha256"] in sums[line["topic"]], line


# -- a topic's places ------------------------------------------------------------------------------------------------


def plain(count: int, start: int = 0) -> list[bytes]:
    return [
        encode_message(b"message %d" % number, publish_time=1, sequence_id=number)
        for number in range(start, start + count)
    ]


def test_behind_a_position(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.topic({3: plain(2), 5: [], 8: plain(1)})
    with cluster.open() as disks:
        topic = topics.topic(disks, TOPIC)
        assert topic.behind(Position(-1, -1)) == Position(3, 0)
        assert topic.behind(Position(3, -1)) == Position(3, 0)
        assert topic.behind(Position(3, 0)) == Position(3, 1)
        same = [Position(3, 1), Position(4, 7), Position(5, -1), Position(8, -1)]
        assert {topic.behind(position) for position in same} == {Position(8, 0)}
        assert {topic.behind(position) for position in (Position(8, 0), Position(9, -1))} == {topic.end}
        assert topic.end == Position(8, 1)
        assert [entry.entry_id for entry in topic.entries(Position(3, 1))] == [1, 0]
        with pytest.raises(KeyError):
            topics.topic(disks, TOPIC + "-other")


def test_an_empty_topic(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.ledger(0, [b"elsewhere"])
    cluster.node(node_of(TOPIC), encode_ledger_info(ManagedLedgerInfo()))
    with cluster.open() as disks:
        topic = topics.topic(disks, TOPIC)
        assert list(topic.messages()) == []
        assert topic.behind(Position(3, 3)) == topic.end


def test_without_metadata_there_are_no_names(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.topic({3: plain(2)})
    with cluster.open(metadata=False) as disks:
        assert topics.topics(disks) == []
        with pytest.raises(IncorrectParameterError, match="without metadata"):
            topics.topic(disks, TOPIC)


# -- damage ----------------------------------------------------------------------------------------------------------


def wrong_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def packed(codec: str, **more: Any) -> bytes:
    return encode_message(b"value " * 100, publish_time=1, compression=codec, **more)


def with_payload(data: bytes, payload: bytes) -> bytes:
    """The message with another payload, and a checksum that fits."""
    return assemble(Message(data).metadata, payload)


DAMAGED = [
    pytest.param(wrong_bit(plain(1)[0]), "checksum", 1, id="checksum"),
    pytest.param(b"", "ends after 0", 0, id="empty"),
    pytest.param(plain(1)[0][:9], "checksum", 0, id="cut"),
    pytest.param(b"\x0e\x02\x00\x00\xff\xff", "broker", 0, id="broker metadata"),
    pytest.param(b"\x00\x00\x00\x02\x08\x01", "required", 0, id="no producer"),
    pytest.param(with_payload(packed("ZSTD"), b"nothing of the kind"), "cannot be unpacked", 0, id="zstd"),
    pytest.param(with_payload(packed("LZ4"), b"\xff" * 9), "cannot be unpacked", 0, id="lz4"),
    pytest.param(with_payload(packed("ZLIB"), b"\xff" * 9), "cannot be unpacked", 0, id="zlib"),
    pytest.param(with_payload(packed("SNAPPY"), b"\xff" * 9), "SNAPPY", 0, id="snappy"),
    pytest.param(assemble(Message(packed("LZ4")).metadata._replace(compression=9), b"x"), "codec 9", 0, id="codec"),
    pytest.param(
        with_payload(
            batch([single(b"one"), single(b"two")], publish_time=1),
            Message(batch([single(b"one"), single(b"two")], publish_time=1)).payload()[:-1],
        ),
        "message 1 of the batch",
        1,
        id="batch",
    ),
]


@pytest.mark.parametrize(("data", "what", "values"), DAMAGED)
def test_damage_is_reported_and_the_rest_goes_on(tmp_path: Path, data: bytes, what: str, values: int) -> None:
    cluster = Cluster(tmp_path)
    cluster.topic({4: [*plain(2), data, *plain(2, 3)]})
    with cluster.open() as disks:
        topic = topics.topic(disks, TOPIC)
        found = [list(message.values()) for message in topic.messages()]
        assert [len(one) for one in found] == [1, 1, values, 1, 1]
        assert found[4][0].payload == b"message 4"
        assert {(damage.file, damage.ledger_id, damage.entry_id) for damage in disks.damage} == {(TOPIC, 4, 2)}
        assert what in " ".join(damage.what for damage in disks.damage)
        # Read again, it is not worse.
        before = list(disks.damage)
        (message,) = [message for message in topic.messages() if message.wrong or message.entry_id == 2]
        assert len(list(message.values())) == len(list(message.values())) == values
        assert message.wrong == tuple(damage.what for damage in before)
        assert [len(list(message.values())) for message in topic.messages()] == [1, 1, values, 1, 1]
        assert disks.damage == before


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    cluster.topic({4: [packed("ZSTD"), packed("ZLIB"), packed("NONE")]})
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with cluster.open() as disks:
        found = [len(list(message.values())) for message in topics.topic(disks, TOPIC).messages()]
        assert found == [0, 1, 1]
        (damage,) = disks.damage
        assert (damage.ledger_id, damage.entry_id) == (4, 0)
        assert "bookstand[codecs]" in damage.what


def test_what_is_encrypted_stays_so(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    secret = encode_message(b"secret", publish_time=1, compression="LZ4", encryption_keys=(EncryptionKey("k", b"v"),))
    cluster.topic({4: [secret, *plain(1)]})
    with cluster.open() as disks:
        first, second = topics.topic(disks, TOPIC).messages()
        assert (first.is_encrypted, second.is_encrypted) == (True, False)
        assert [value.payload for value in first.values()] == [first.stored_payload]
        assert not disks.damage


def test_ledgers_and_entries_that_are_gone_are_reported(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.ledger(3, plain(5), without=[1, 2])
    infos = [LedgerInfo(3, 5, 50, 1), LedgerInfo(7, 9, 90, 1), LedgerInfo(8)]
    cluster.node(node_of(TOPIC), encode_ledger_info(ManagedLedgerInfo(infos)))
    with cluster.open() as disks:
        topic = topics.topic(disks, TOPIC)
        assert [message.entry_id for message in topic.messages()] == [0, 3, 4]
        told = {damage.ledger_id: damage.what for damage in disks.damage if damage.file == TOPIC}
        assert sorted(told) == [3, 7]
        assert "1 to 2" in told[3]
        assert "9 entries" in told[7]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.sampled_from([b"", b"\x0e\x01", b"\x0e\x02", plain(1)[0][:30], packed("LZ4")[:60]]))
def test_no_bytes_are_too_odd(data: bytes, start: bytes) -> None:
    damage: list[Damage] = []
    message = DiskMessage(TOPIC, Position(1, 2), start + data, damage.append)
    list(message.values())
    shown = (message.broker_metadata, message.checksum, message.count, message.is_chunk, message.compression)
    assert len(shown) == 5
    assert message.wrong == tuple(one.what for one in damage)
    assert message.metadata is not None or message.wrong


# -- chunks ----------------------------------------------------------------------------------------------------------


def chunked(uuid: str, value: bytes, count: int, codec: str = "LZ4") -> list[bytes]:
    """A message in chunks, as a producer sends it: packed first, then cut."""
    stored = compression.pack(codec, value)
    size = -(-len(stored) // count)
    whole = Message(encode_message(value, publish_time=1, compression=codec)).metadata
    return [
        assemble(
            whole._replace(uuid=uuid, chunk_id=number, num_chunks_from_msg=count, total_chunk_msg_size=len(stored)),
            stored[number * size : (number + 1) * size],
            BrokerEntryMetadata(5, number),
        )
        for number in range(count)
    ]


def as_messages(stored: Iterable[bytes], damage: list[Damage]) -> Iterator[DiskMessage]:
    for number, data in enumerate(stored):
        yield DiskMessage(TOPIC, Position(1, number), data, damage.append)


def values_of(wholes: Iterable[Whole]) -> list[bytes]:
    return [value.payload for whole in wholes for value in whole.message.values()]


VALUES = {f"m-{number}": random.Random(number).randbytes(300) + bytes(200) for number in range(4)}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_chunks_of_several_messages_in_any_mixture(data: st.DataObject) -> None:
    counts = {uuid: data.draw(st.integers(2, 4)) for uuid in VALUES}
    left = {uuid: list(enumerate(chunked(uuid, VALUES[uuid], counts[uuid]))) for uuid in VALUES}
    lost = data.draw(st.sets(st.tuples(st.sampled_from(sorted(VALUES)), st.integers(0, 3))))
    stored, complete = [], []
    while any(left.values()):
        uuid = data.draw(st.sampled_from([uuid for uuid, parts in left.items() if parts]))
        number, part = left[uuid].pop(0)
        if (uuid, number) in lost:
            continue
        stored += [part] * data.draw(st.integers(1, 2)) if number else [part]
        if number + 1 == counts[uuid] and not any((uuid, at) in lost for at in range(counts[uuid])):
            complete.append(VALUES[uuid])
    damage: list[Damage] = []
    assert values_of(joined(as_messages(stored, damage), damage.append)) == complete
    touched = {uuid for uuid, number in lost if number < counts[uuid]}
    some_left = {uuid for uuid in touched if len({n for u, n in lost if u == uuid and n < counts[uuid]}) < counts[uuid]}
    for uuid in VALUES:
        named = any(repr(uuid) in one.what for one in damage)
        if uuid in some_left:
            assert named
        elif not named:
            continue
        else:
            # A chunk that came again behind the last one has nothing before it any more.
            assert all("comes without" in one.what for one in damage if repr(uuid) in one.what)


def test_a_message_that_begins_again(tmp_path: Path) -> None:
    first, second, third = chunked("m", VALUES["m-0"], 3)
    damage: list[Damage] = []
    wholes = list(joined(as_messages([first, second, *plain(1), first, second, third], damage), damage.append))
    assert values_of(wholes) == [b"message 0", VALUES["m-0"]]
    assert wholes[1].positions == (Position(1, 3), Position(1, 4), Position(1, 5))
    assert ["begins again" in one.what for one in damage] == [True]


def test_waiting_chunks_are_bounded() -> None:
    parts = [chunked(f"m-{number}", random.Random(number).randbytes(3000), 3, "NONE") for number in range(5)]
    stored = [part for number in range(3) for part in (one[number] for one in parts)]
    damage: list[Damage] = []
    found = values_of(joined(as_messages(stored, damage), damage.append, max_pending=7000))
    assert 0 < len(found) < 5
    assert found == [random.Random(number).randbytes(3000) for number in range(5 - len(found), 5)]
    assert sum("7000 bytes" in one.what for one in damage) == 5 - len(found)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_topic_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    size, count = 256 << 10, 96
    cluster = Cluster(tmp_path)
    cluster.topic({4: [encode_message(bytes([number]) * size, publish_time=1) for number in range(count)]})
    with cluster.open() as disks:
        del cluster
        topic: DiskTopic = topics.topic(disks, TOPIC)
        list(islice(topic.messages(), 1))
        tracemalloc.start()
        try:
            assert sum(len(value.payload) for message in topic.messages() for value in message.values()) == size * count
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < size * count // 2
