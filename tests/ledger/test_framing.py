"""Messages: what is written is what Pulsar reads, what it wrote is read, and what is broken is named."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import sys
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.errors import (
    ExpansionError,
    IncorrectParameterError,
    MalformedError,
    MalformedMessageError,
    MessageChecksumError,
    MissingExtraError,
)
from bookstand.managed_ledger.message import compression
from bookstand.managed_ledger.message.format import (
    Message,
    assemble,
    batch,
    decode_runs,
    encode_message,
    encode_messages,
    single,
)
from bookstand.managed_ledger.message.metadata import (
    SINGLE_MESSAGE_METADATA,
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
)
from bookstand.proto.expansion import ExpansionLimits
from bookstand.proto.pulsar_message_pb2 import MessageMetadata as TheirMetadata
from bookstand.proto.pulsar_message_pb2 import SingleMessageMetadata as TheirSingle

LIMITS = ExpansionLimits(max_expanded_bytes=1 << 20)
UNHURRIED = settings(deadline=None)  # the machine may be busy

RECORDED = Path(__file__).resolve().parent.parent / "data" / "cursor" / "messages.jsonl.gz"
SAMPLES: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
GOOD = [base64.b64decode(sample["b64"]) for sample in SAMPLES if sample["kind"] == "good"]

CODECS = list(compression.NUMBERS)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=3)

GOLDEN = bytes.fromhex("0e0134b104a8000000150a0a70726f64756365722d3010001880d095ffbc31")


def test_golden_message() -> None:
    written = encode_message(b"", publish_time=1_700_000_000_000, producer_name="producer-0", sequence_id=0)
    message = Message(GOLDEN)
    assert message.broker_metadata is None
    assert message.has_checksum
    assert message.stored_checksum == message.computed_checksum == 0x34B104A8
    assert message.metadata == MessageMetadata("producer-0", 0, 1_700_000_000_000)
    assert message.payload_offset == 31
    assert message.payload() == b""
    message.check()
    # Ours says the size of an empty payload as well.
    assert Message(written).metadata == message.metadata._replace(uncompressed_size=0)
    assert assemble(message.metadata, b"") == GOLDEN


@UNHURRIED
@given(
    st.binary(max_size=200),
    st.sampled_from(CODECS),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    PROPERTIES,
    st.none()
    | st.tuples(st.integers(0, 1 << 60), st.integers(0, 1 << 60)).map(lambda pair: BrokerEntryMetadata(*pair)),
)
def test_a_message_reads_back(
    payload: bytes, codec: str, deliver_at: int | None, properties: dict[str, str], broker: BrokerEntryMetadata | None
) -> None:
    data = encode_message(
        payload,
        publish_time=5,
        deliver_at=deliver_at,
        properties=properties,
        producer_name="p",
        sequence_id=7,
        compression=codec,
        broker_metadata=broker,
        partition_key="k",
    )
    message = Message(data)
    message.check()
    assert message.broker_metadata == broker
    assert message.payload() == payload
    assert not message.is_batch
    said = message.metadata
    assert (said.deliver_at_time, dict(said.properties), said.partition_key) == (deliver_at, properties, "k")
    theirs = TheirMetadata.FromString(data[message.offset + 10 : message.payload_offset])
    assert theirs.HasField("deliver_at_time") == (deliver_at is not None)
    assert (theirs.producer_name, theirs.sequence_id, theirs.publish_time) == ("p", 7, 5)
    assert theirs.uncompressed_size == len(payload)
    assert {one.key: one.value for one in theirs.properties} == properties


@UNHURRIED
@given(st.lists(st.tuples(st.binary(max_size=50), PROPERTIES), min_size=1, max_size=5), st.sampled_from(CODECS))
def test_a_batch_reads_back(parts: list[tuple[bytes, dict[str, str]]], codec: str) -> None:
    singles = [single(payload, properties=properties, partition_key="k") for payload, properties in parts]
    message = Message(batch(singles, publish_time=1, sequence_id=10, compression=codec))
    assert message.is_batch
    assert message.metadata.num_messages_in_batch == len(parts)
    assert message.metadata.highest_sequence_id == 10 + len(parts) - 1
    found = list(message.messages())
    assert [(one.payload, dict(one.metadata.properties)) for one in found] == parts
    assert [one.metadata.sequence_id for one in found] == list(range(10, 10 + len(parts)))
    (size,) = struct.unpack_from(">I", message.payload())
    assert TheirSingle.FromString(message.payload()[4 : 4 + size]).payload_size == len(parts[0][0])


def test_recorded_messages_are_checked() -> None:
    assert len(GOOD) == 60
    for data in GOOD:
        Message(data).check()


def test_each_step_stands_on_its_own() -> None:
    """Of an entry that is broken at one place, what stands before it can be had."""
    whole = encode_message(b"payload", publish_time=1, broker_metadata=BrokerEntryMetadata(2, 3))
    offset = Message(whole).offset
    cut = Message(whole[: offset + 12])
    assert cut.broker_metadata == BrokerEntryMetadata(2, 3)
    assert cut.has_checksum
    with pytest.raises(MessageChecksumError, match="checksum is"):
        cut.check()
    with pytest.raises(MalformedMessageError, match="the message's metadata should have"):
        _ = cut.metadata


def changed_metadata(**fields: Any) -> bytes:
    """A message of one byte, whose metadata says what is not so."""
    return assemble(MessageMetadata("p", 0, 0)._replace(**fields), b"x")


BROKEN = {
    "the entry ends after 0": b"",
    "the entry ends after 1": b"\x0e",
    "the entry ends within the size of the broker's metadata": b"\x0e\x02\x00\x00",
    "the broker's metadata should have 9 bytes, there are 1": b"\x0e\x02\x00\x00\x00\x09\x08",
    "the broker's metadata cannot be read: the message ends inside": b"\x0e\x02\x00\x00\x00\x01\x08\x0e\x01",
    "the message ends after 0": b"\x0e\x02\x00\x00\x00\x00",
    "the entry ends within the checksum": b"\x0e\x01\x00",
    "the entry ends within the size of the message's metadata": b"\x0e\x01\x00\x00\x00\x00\x00",
    "the message's metadata should have 4294967295 bytes": b"\x0e\x01\x00\x00\x00\x00\xff\xff\xff\xff",
    "the message's metadata cannot be read: the required field producer_name": b"\x0e\x01\0\0\0\0\0\0\0\0",
    "unknown codec 77": changed_metadata(compression=77),
    "LZ4 data expands to 4294967295 bytes": changed_metadata(compression=1, uncompressed_size=2**32 - 1),
    "SNAPPY data cannot be unpacked to 5 bytes": changed_metadata(compression=4, uncompressed_size=5),
    "ZSTD data cannot be unpacked": changed_metadata(compression=3, uncompressed_size=5),
    "ZLIB data": changed_metadata(compression=2, uncompressed_size=5),
    "the size of the metadata of message 0 of the batch": changed_metadata(num_messages_in_batch=1),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named(what: str) -> None:
    message = Message(BROKEN[what])
    with pytest.raises(MalformedMessageError) as raised:
        read_all(message)
    assert what in str(raised.value)


def test_a_batch_that_claims_too_much() -> None:
    one = SINGLE_MESSAGE_METADATA.write(SingleMessageMetadata(payload_size=9))
    body = struct.pack(">I", len(one)) + one + b"short"
    whole = SINGLE_MESSAGE_METADATA.write(SingleMessageMetadata(payload_size=2))
    data = assemble(
        MessageMetadata("p", 0, 0, num_messages_in_batch=2), struct.pack(">I", len(whole)) + whole + b"ok" + body
    )
    messages = Message(data).messages()
    assert next(messages).payload == b"ok"
    with pytest.raises(MalformedMessageError, match="message 1 of the batch should have 9 bytes, there are 5"):
        next(messages)
    negative = SINGLE_MESSAGE_METADATA.write(SingleMessageMetadata(payload_size=-1))
    data = assemble(MessageMetadata("p", 0, 0, num_messages_in_batch=1), struct.pack(">I", len(negative)) + negative)
    with pytest.raises(MalformedMessageError, match="-1 bytes"):
        list(Message(data).messages())


def read_all(message: Message) -> None:
    _ = message.broker_metadata, message.has_checksum
    if message.has_checksum:
        _ = message.stored_checksum, message.computed_checksum
    _ = message.metadata
    message.payload(LIMITS)
    if message.is_batch:
        list(message.messages(LIMITS))


@UNHURRIED
@given(st.sampled_from(GOOD), st.data())
def test_mutated_messages_raise_only_our_errors(data: bytes, draw: st.DataObject) -> None:
    mutated = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(mutated) - 1))
        mutated[at] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(mutated)))
    for one in (bytes(mutated), bytes(mutated[:cut]), bytes(mutated) + b"more"):
        message = Message(one)
        try:
            read_all(message)
        except MalformedMessageError:
            pass


@UNHURRIED
@given(st.binary(max_size=60))
def test_any_bytes_raise_only_our_errors(data: bytes) -> None:
    for one in (data, b"\x0e\x01" + data, b"\x0e\x02\0\0\0\x04" + data):
        try:
            read_all(Message(one))
        except MalformedMessageError:
            pass


@UNHURRIED
@given(st.sampled_from(GOOD), st.data())
def test_one_flipped_bit_is_noticed_by_the_checksum(data: bytes, draw: st.DataObject) -> None:
    start = Message(data).offset + 2
    at = draw.draw(st.integers(start, len(data) - 1))
    flipped = data[:at] + bytes([data[at] ^ 1 << draw.draw(st.integers(0, 7))]) + data[at + 1 :]
    with pytest.raises(MessageChecksumError):
        Message(flipped).check()


def test_a_message_without_checksum_passes() -> None:
    data = assemble(MessageMetadata("p", 0, 0), b"x", checksum=False)
    message = Message(data)
    assert not message.has_checksum
    message.check()
    assert message.payload() == b"x"


@pytest.mark.slow
def test_the_properties_of_a_message_of_a_batch_are_bounded() -> None:
    """They are compressed with the payload, and not charged to the entry, for they are read by message."""
    properties = {f"{number:x}": "" for number in range(150_000)}
    for count in (100_000, 150_000):
        some = dict(list(properties.items())[:count])
        data = batch([single(b"a"), single(b"b", properties=some)], publish_time=1, compression="ZSTD")
        if count == 100_000:
            assert [len(one.metadata.properties) for one in Message(data).messages()] == [0, count]
        else:
            with pytest.raises(MalformedMessageError, match="message 1 of the batch has more than 131072 properties"):
                list(Message(data).messages())


# -- compression -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_refused(codec: str) -> None:
    bomb = bytes(10 << 20)
    packed = compression.pack(codec, bomb)
    assert len(packed) < 1 << 20
    limits = ExpansionLimits(max_expanded_bytes=1 << 20)
    with pytest.raises(
        ExpansionError, match=r"10485760 bytes or more, but .* may expand to 1048576; .* max_expanded_bytes"
    ):
        compression.unpack(codec, packed, len(bomb), limits.of(len(packed)))
    # What says less than it unpacks to gets no more room than it said.
    if codec == "ZLIB":
        assert compression.unpack(codec, packed, 100) == bytes(100)
    else:
        with pytest.raises(MalformedError):
            compression.unpack(codec, packed, 100)
    with pytest.raises(MalformedError):
        compression.unpack(codec, packed, (10 << 20) + 1)


@pytest.mark.parametrize("codec", ["LZ4", "ZSTD", "SNAPPY"])
def test_a_missing_extra_is_named(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message(encode_message(b"some payload", publish_time=1, compression=codec))
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingExtraError, match=r"bookstand\[codecs\]"):
        message.payload()
    with pytest.raises(MissingExtraError, match=r"bookstand\[codecs\]"):
        encode_message(b"some payload", publish_time=1, compression=codec)
    assert (
        Message(encode_message(b"zlib needs none", publish_time=1, compression="ZLIB")).payload() == b"zlib needs none"
    )


def test_wrong_arguments() -> None:
    with pytest.raises(IncorrectParameterError, match="codec must be one of"):
        encode_message(b"", publish_time=1, compression="BROTLI")
    with pytest.raises(IncorrectParameterError, match="no such field"):
        encode_message(b"", publish_time=1, partition="k")
    with pytest.raises(IncorrectParameterError, match="no such field"):
        encode_message(b"", publish_time=1, uncompressed_size=5)
    wrong: list[dict[str, Any]] = [{"sequence_id": "1"}, {"producer_name": 5}, {"properties": {"\ud800": ""}}]
    for values in wrong:
        with pytest.raises(IncorrectParameterError, match="cannot be written"):
            encode_message(b"", **{"publish_time": 1, **values})
    with pytest.raises(IncorrectParameterError, match="at least one"):
        batch([], publish_time=1)
    with pytest.raises(IncorrectParameterError, match="must have 1 bytes, not 2"):
        batch([single(b"x")._replace(payload=b"xx")], publish_time=1)


def test_the_checksum_is_over_all_that_follows() -> None:
    data = encode_message(b"payload", publish_time=1)
    assert struct.unpack_from(">I", data, 2)[0] == google_crc32c.value(data[6:])


# The last of them end with what looks like a time of delivery, and is the end of a chunk.
TIMES = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(1 << 40, (1 << 41) - 1)
MISLEADING = [
    b"\x98\x01" + b"\x80" * 5 + b"\x01",
    b"\x18\x00\x98\x01" + b"\xff" * 5 + b"\x7f",
    b"\x98\x01" + b"\x80" * 6,
]
ENTRIES = st.one_of(
    st.builds(lambda size, at: encode_message(bytes(size), publish_time=7, deliver_at=at), st.integers(0, 2), TIMES),
    st.builds(
        lambda end, at: encode_message(b"", publish_time=7, deliver_at=at, schema_id=end),
        st.sampled_from(MISLEADING),
        TIMES,
    ),
    st.integers(0, 9).map(lambda size: b"\x0e\x01" + bytes(4) + size.to_bytes(4) + (b"\x98\x01" * 5)[:size]),
    st.sampled_from(GOOD),
    st.binary(max_size=30).map(b"\x0e\x01".__add__),
    st.binary(max_size=30),
)


@UNHURRIED
@given(st.lists(ENTRIES, max_size=12), st.data())
def test_many_open_as_each_does_alone(entries: list[bytes], draw: st.DataObject) -> None:
    if entries:
        cut = draw.draw(st.sampled_from(entries))
        entries = [*entries, cut[: draw.draw(st.integers(0, len(cut)))], *entries]
    expected: list[tuple[MessageMetadata | None, int]] = []
    for data in entries:
        try:
            expected.append((Message(data).metadata, Message(data).payload_offset))
        except MalformedMessageError:
            expected.append((None, 0))
    decoded = [one for one, count in decode_runs(entries, {}) for _ in range(count)]
    assert decoded == expected


@UNHURRIED
@given(st.lists(st.tuples(st.integers(0, 3), TIMES)), PROPERTIES, st.sampled_from(["NONE", "ZLIB"]))
def test_many_are_framed_as_each_is_alone(
    messages: list[tuple[int, int | None]], properties: dict[str, str], codec: str
) -> None:
    together = encode_messages(
        [bytes(size) for size, _ in messages],
        publish_time=7,
        deliver_at=[time for _, time in messages],
        properties=properties,
        compression=codec,
    )
    assert list(together) == [
        encode_message(bytes(size), publish_time=7, deliver_at=time, properties=properties, compression=codec)
        for size, time in messages
    ]


def test_a_time_is_a_number() -> None:
    with pytest.raises(IncorrectParameterError, match="deliver_at must be"):
        list(encode_messages([b""], publish_time=7, deliver_at=["soon"]))  # type: ignore[list-item]
