"""Entries that expand to more than the store's limits: one message each, and the others are delivered as always."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand import ExpansionLimits
from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.subscription.dead_letters import BROKEN_PAYLOAD
from bookstand.errors import IncorrectParameterError, MalformedMessageError
from bookstand.managed_ledger.message import compression, format
from bookstand.managed_ledger.message.format import Message, assemble, batch_alike, decode_message, encode_message
from bookstand.proto.expansion import MESSAGE_BYTES
from bookstand.storage.format.position import Position
from tests.delivery.subscription_kit import MEMORY, MODES, START, Desk, subscription_config, topic_config, words

CODECS = list(compression.NUMBERS)
SMALL = ExpansionLimits(max_expanded_bytes=11 * MESSAGE_BYTES - 1)
"""Room for a batch of ten small messages."""


def expanding(codec: str, count: int) -> bytes:
    """An entry of a compressed batch of many equal messages: each is its size, and its metadata with its size."""
    message = b"\0\0\0\2\x18\0"
    like = format.Message(batch_alike([b""], publish_time=START, compression=codec)).metadata
    metadata = like._replace(num_messages_in_batch=count, uncompressed_size=count * len(message))
    return assemble(metadata, compression.pack(codec, message * count))


def is_refused(message: ReceivedMessage, position: Position, count: int) -> bool:
    with pytest.raises(MalformedMessageError) as raised:
        _ = message.payload
    said = str(raised.value)
    return f"entry {position}: " in said and f"batch of {count} messages" in said and "raise max_expan" in said


@pytest.mark.parametrize("codec", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_an_entry_of_some_kibibytes_takes_no_gigabytes(store_path: Path, codec: str) -> None:
    # As much of the small entry as an entry may have, and more than enough for some gigabytes of objects.
    count = 600_000
    with Desk(store_path) as desk:
        desk.publish("a")
        position = desk.topic.ledger.append_entry(expanding(codec, count))
        desk.publish("b")
        tracemalloc.start()
        try:
            first, middle, last = desk.drain()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # The entry itself, which SNAPPY compresses by a factor of twenty.
        assert peak < 8 << 20
        assert words([first, last]) == ["a", "b"]
        assert is_refused(middle, position, count)
        assert middle.position == position
        assert middle.batch_index == -1


@settings(max_examples=25)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.sampled_from(CODECS), st.integers(1, 30))
def test_batches_within_the_limits_are_delivered_and_others_are_one_message(
    sizes: list[int], codec: str, most: int
) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder, Desk(Path(folder) / "s", expansion_limits=SMALL) as desk:
        expected: list[object] = []
        for number, size in enumerate(sizes):
            names = [f"{number}:{index}" for index in range(size)]
            entry = batch_alike([name.encode() for name in names], publish_time=START, compression=codec)
            position = desk.topic.ledger.append_entry(entry)
            expected += names if size <= 10 else [(position, size)]
        found: list[object] = []
        for message in desk.drain(max=most):
            assert message.metadata is not None
            count = message.metadata.num_messages_in_batch or 0
            if message.batch_index >= 0:
                found += words([message])
                continue
            assert is_refused(message, message.position, count)
            found.append((message.position, count))
        assert found == expected


@pytest.mark.parametrize("mode", MODES)
def test_an_oversized_entry_is_one_message_in_every_way_of_its_life(store_path: Path, mode: str) -> None:
    sub = subscription_config(max_redeliveries=2, nack_delay=0, dead_letter_topic="graves")
    with Desk(store_path, topic_config(mode), sub, expansion_limits=SMALL) as desk:
        plain = batch_alike([b"."] * 11, publish_time=START)
        delayed = batch_alike([b"."] * 11, publish_time=START, deliver_at=START + 1000)
        positions = desk.topic.ledger.append_entries([plain, delayed])
        (first,) = desk.drain()
        assert first.position == positions[0]
        desk.go_to(1000)
        (second,) = desk.drain()
        assert second.position == positions[1]
        # Neither a crash nor a restart changes what they are.
        desk.crash()
        assert [message.id for message in desk.drain()] == positions
        desk.restart()
        assert [message.id for message in desk.drain()] == positions
        desk.sub.ack(first.id).result()
        for _ in range(3):
            for message in desk.drain():
                desk.sub.nack(message)
            desk.sub.nack(second.id)
            desk.pass_time(1000)
        assert desk.drain() == []
        assert desk.sub.stats.backlog == 0
        (grave,) = desk.store.topic("graves").subscription("mourner", subscription_config()).receive(9, timeout=0)
        assert grave.payload == delayed
        assert "max_expanded_bytes" in grave.properties[BROKEN_PAYLOAD]


def test_higher_limits_deliver_the_messages(store_path: Path) -> None:
    with Desk(store_path, expansion_limits=SMALL) as desk:
        desk.topic.ledger.append_entry(batch_alike([b"."] * 11, publish_time=START))
        assert len(desk.drain()) == 1
        desk.store_options = {}
        desk.restart()
        assert len(desk.drain()) == 11


def test_a_neighbor_with_the_same_metadata_and_another_size_is_no_batch_and_is_delivered(store_path: Path) -> None:
    entry = batch_alike([bytes(20)] * 4, publish_time=START)
    metadata, payload_at = decode_message(entry, {})
    assert metadata is not None
    short = assemble(metadata, entry[payload_at : payload_at + 4 * 5])
    with Desk(store_path) as desk:
        desk.topic.ledger.append_entries([entry, short, entry])
        found = desk.drain()
        assert [message.position.entry_id for message in found] == [0] * 4 + [1] + [2] * 4
        assert found[4].batch_index == -1


@pytest.mark.parametrize("codec", CODECS)
def test_what_pulsar_sends_is_within_the_limits(codec: str) -> None:
    # Very compressible, and as large as messages can be; Pulsar checks the size after compression.
    sizes = (1 << 20, 5 << 20, 30 << 20) if codec == "ZSTD" else (1 << 20, 5 << 20)
    entries = [encode_message(bytes(size), publish_time=START, compression=codec) for size in sizes]
    assert [len(Message(entry).payload()) for entry in entries] == list(sizes)
    many = Message(batch_alike([b""] * 10_000, publish_time=START, compression=codec))
    assert sum(1 for _ in many.messages()) == 10_000


def test_as_many_messages_as_an_entry_has_room_for_are_within_the_limits() -> None:
    least = len(batch_alike([b""] * 1000, publish_time=START)) // 1000
    format.charge_batch((5 << 20) // least, 5 << 20, ExpansionLimits().of(5 << 20))


@pytest.mark.parametrize("codec", ["NONE", "ZSTD"])
def test_a_publisher_is_refused_what_would_not_be_delivered(store_path: Path, codec: str) -> None:
    with Desk(store_path, topic_config(compression=codec), expansion_limits=SMALL) as desk:
        with pytest.raises(IncorrectParameterError, match=r"a batch of 11 messages expands to .* max_expanded_bytes"):
            desk.topic.publish_batch([b"."] * 11)
        large = bytes(SMALL.max_expanded_bytes + 1)
        publishing: list[Any] = [
            lambda: desk.topic.publish(large),
            lambda: desk.topic.publish_async(large).result(),
            lambda: desk.topic.publish_many([b"a", large]),
        ]
        for publish in publishing:
            if codec == "NONE":
                publish()
                continue
            with pytest.raises(IncorrectParameterError, match=r"the message expands to .* max_expanded_bytes"):
                publish()
        desk.topic.publish_batch([b"."] * 10)
        published = [len(large), len(large), 1, len(large)] if codec == "NONE" else []
        assert [len(message.payload) for message in desk.drain()] == published + [1] * 10


def test_metadata_that_is_remembered_is_small() -> None:
    known: dict[bytes, Any] = {}
    for number in range(50):
        entry = encode_message(b".", publish_time=number, properties={str(place): "x" * 1000 for place in range(30)})
        assert decode_message(entry, known)[0] is not None
    assert known == {}
    for number in range(50):
        decode_message(encode_message(b".", publish_time=number, properties={"a": "b"}), known)
    assert len(known) == 50
