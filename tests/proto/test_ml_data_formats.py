"""Pulsar's records: the schemas have its numbers and types, and our codecs read and write as protobuf does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.managed_ledger.message.metadata import MESSAGE_METADATA, EncryptionKey, MessageMetadata
from bookstand.proto import ack_messages, ack_messages_vectorized, varints, wire_format
from bookstand.proto import ml_data_formats_pb2 as formats
from bookstand.proto import pulsar_message_pb2 as messages
from bookstand.proto.schema_codec import UNKNOWN

UNHURRIED = settings(deadline=None)  # the machine may be busy

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UINT64 = st.integers(0, (1 << 64) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)

TYPES = {
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
}

SCHEMAS = {
    formats.PositionInfo: """
        1 required int64 ledgerId; 2 required int64 entryId; 3 repeated MessageRange individualDeletedMessages;
        4 repeated LongProperty properties; 5 repeated BatchedEntryDeletionIndexInfo batchedEntryDeletionIndexInfo;
        6 repeated LongListMap individualDeletedMessageRanges""",
    formats.MessageRange: "1 required NestedPositionInfo lowerEndpoint; 2 required NestedPositionInfo upperEndpoint",
    formats.NestedPositionInfo: "1 required int64 ledgerId; 2 required int64 entryId",
    formats.BatchedEntryDeletionIndexInfo: "1 required NestedPositionInfo position; 2 repeated int64 deleteSet",
    formats.LongListMap: "1 required int64 key; 2 repeated int64 values",
    formats.LongProperty: "1 required string name; 2 required int64 value",
    formats.StringProperty: "1 required string name; 2 required string value",
    formats.ManagedLedgerInfo: """
        1 repeated LedgerInfo ledgerInfo; 2 optional NestedPositionInfo terminatedPosition;
        3 repeated KeyValue properties""",
    formats.ManagedLedgerInfo.LedgerInfo: """
        1 required int64 ledgerId; 2 optional int64 entries; 3 optional int64 size; 4 optional int64 timestamp;
        5 optional OffloadContext offloadContext; 6 repeated KeyValue properties""",
    formats.ManagedCursorInfo: """
        1 required int64 cursorsLedgerId; 2 optional int64 markDeleteLedgerId; 3 optional int64 markDeleteEntryId;
        4 repeated MessageRange individualDeletedMessages; 5 repeated LongProperty properties;
        6 optional int64 lastActive; 7 repeated BatchedEntryDeletionIndexInfo batchedEntryDeletionIndexInfo;
        8 repeated StringProperty cursorProperties""",
    formats.ManagedLedgerInfoMetadata: "1 required CompressionType compressionType; 2 required int32 uncompressedSize",
    formats.ManagedCursorInfoMetadata: "1 required CompressionType compressionType; 2 required int32 uncompressedSize",
    messages.BrokerEntryMetadata: "1 optional uint64 broker_timestamp; 2 optional uint64 index",
}


def schema(message: Any) -> str:
    rows = []
    for field in sorted(message.DESCRIPTOR.fields, key=lambda field: field.number):
        label = "required" if field.is_required else "repeated" if field.is_repeated else "optional"
        named = field.message_type or field.enum_type
        rows.append(f"{field.number} {label} {named.name if named else TYPES[field.type]} {field.name}")
    return "; ".join(rows)


@pytest.mark.parametrize("message", SCHEMAS, ids=lambda message: message.DESCRIPTOR.name)
def test_the_schema_has_pulsars_numbers_and_types(message: Any) -> None:
    assert schema(message) == " ".join(SCHEMAS[message].split())


def test_codecs_have_pulsars_numbers() -> None:
    numbers = {"NONE": 0, "LZ4": 1, "ZLIB": 2, "ZSTD": 3, "SNAPPY": 4}
    assert dict(formats.CompressionType.items()) == numbers
    assert dict(messages.CompressionType.items()) == numbers


def test_golden_vectors() -> None:
    ranges = formats.PositionInfo.FromString(bytes.fromhex("080310011a0c0a0408031002120408031004"))
    (one,) = ranges.individualDeletedMessages
    assert (ranges.ledgerId, ranges.entryId) == (3, 1)
    assert (one.lowerEndpoint.entryId, one.upperEndpoint.entryId) == (2, 4)
    longs = formats.PositionInfo.FromString(bytes.fromhex("08031001320408031018"))
    assert list(longs.individualDeletedMessageRanges[0].values) == [0b11000]
    assert len(ack_messages.write_position(3, -1)) == 2 + 1 + 10, "-1 takes ten bytes"


# -- tables against protobuf -----------------------------------------------------------------------------------------

METADATA: dict[str, Any] = {
    "producer_name": TEXT,
    "sequence_id": UINT64,
    "publish_time": UINT64,
    "properties": PAIRS,
    "replicated_from": TEXT,
    "partition_key": TEXT,
    "replicate_to": st.lists(TEXT, max_size=3).map(tuple),
    "compression": st.integers(0, 4),
    "uncompressed_size": st.integers(0, (1 << 32) - 1),
    "num_messages_in_batch": INT32,
    "event_time": UINT64,
    "encryption_keys": st.lists(
        st.tuples(TEXT, st.binary(max_size=8), PAIRS).map(lambda key: EncryptionKey(*key)), max_size=2
    ).map(tuple),
    "encryption_algo": TEXT,
    "encryption_param": st.binary(max_size=8),
    "schema_version": st.binary(max_size=8),
    "partition_key_b64_encoded": st.booleans(),
    "ordering_key": st.binary(max_size=8),
    "deliver_at_time": INT64,
    "marker_type": INT32,
    "txnid_least_bits": UINT64,
    "txnid_most_bits": UINT64,
    "highest_sequence_id": UINT64,
    "null_value": st.booleans(),
    "uuid": TEXT,
    "num_chunks_from_msg": INT32,
    "total_chunk_msg_size": INT32,
    "chunk_id": INT32,
    "null_partition_key": st.booleans(),
    "compacted_batch_indexes": st.lists(INT32, max_size=3).map(tuple),
    "schema_id": st.binary(max_size=8),
}
REQUIRED = ("producer_name", "sequence_id", "publish_time")
METADATAS = st.fixed_dictionaries(
    {name: METADATA[name] for name in REQUIRED},
    optional={name: strategy for name, strategy in METADATA.items() if name not in REQUIRED},
).map(lambda values: MessageMetadata(**values))


def as_protobuf(metadata: MessageMetadata) -> Any:
    message = messages.MessageMetadata()
    for name, value in metadata._asdict().items():
        if name == UNKNOWN or value is None:
            continue
        if name == "properties":
            message.properties.extend(messages.KeyValue(key=key, value=one) for key, one in value)
        elif name == "encryption_keys":
            for one in value:
                pairs = [messages.KeyValue(key=key, value=text) for key, text in one.metadata]
                message.encryption_keys.add(key=one.key, value=one.value, metadata=pairs)
        elif isinstance(value, tuple):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


def test_the_table_names_every_field() -> None:
    named = {number: field.name for number, field in MESSAGE_METADATA.by_number.items()}
    assert named == {field.number: field.name for field in messages.MessageMetadata.DESCRIPTOR.fields}
    assert set(METADATA) == set(named.values())


@UNHURRIED
@given(METADATAS)
def test_metadata_is_written_and_read_as_protobuf_does(metadata: MessageMetadata) -> None:
    theirs = as_protobuf(metadata).SerializeToString()
    assert MESSAGE_METADATA.write(metadata) == theirs
    assert MessageMetadata(**MESSAGE_METADATA.read(theirs)) == metadata


@UNHURRIED
@given(METADATAS, st.integers(100, 1000), INT64, st.binary(max_size=5))
def test_unknown_fields_are_kept(metadata: MessageMetadata, field: int, number: int, chunk: bytes) -> None:
    more = bytearray()
    wire_format.write_varint_field(more, field, number)
    wire_format.write_bytes_field(more, field, chunk)
    more += (
        bytes([wire_format.tag(10, wire_format.FIXED64)])
        + b"8 bytes."
        + bytes([wire_format.tag(10, wire_format.FIXED32)])
        + b"four"
    )
    data = MESSAGE_METADATA.write(metadata) + bytes(more)
    values = MESSAGE_METADATA.read(data)
    assert values[UNKNOWN] == more
    assert MESSAGE_METADATA.write(MessageMetadata(**values)) == data


def test_repeated_numbers_may_be_packed() -> None:
    start = MESSAGE_METADATA.write(MessageMetadata("", 0, 0))
    packed = bytearray(start)
    wire_format.write_bytes_field(packed, 31, b"\x01\x02\x81\x01")
    assert MESSAGE_METADATA.read(bytes(packed))["compacted_batch_indexes"] == (1, 2, 129)


@UNHURRIED
@given(INT64, INT64, st.integers(0, 1 << 200))
def test_batch_sets_are_written_and_read_as_protobuf_does(ledger: int, entry: int, unacked: int) -> None:
    words = [word - (1 << 64) if word >> 63 else word for word in ack_messages.words_of(unacked)]
    position = formats.NestedPositionInfo(ledgerId=ledger, entryId=entry)
    theirs = formats.BatchedEntryDeletionIndexInfo(position=position, deleteSet=words).SerializeToString()
    assert ack_messages.write_batch(ledger, entry, unacked) == theirs
    assert ack_messages.read_batch(theirs) == (ledger, entry, unacked)


@UNHURRIED
@given(st.lists(st.tuples(INT64, INT64, INT64, INT64), max_size=20), st.sampled_from([3, 4]))
def test_many_ranges_are_written_and_read_as_one_by_one(ranges: list[ack_messages.Range], field: int) -> None:
    singly = bytearray()
    for one in ranges:
        wire_format.write_bytes_field(singly, field, ack_messages.write_range(one))
    rows = np.array(ranges, dtype=np.int64).reshape(-1, 4)
    assert ack_messages_vectorized.write_ranges(rows, field) == singly
    found, end = ack_messages_vectorized.read_ranges(b"\x08\x01" + bytes(singly) + b"\x08\x01", 2, field)
    assert [tuple(row) for row in found.tolist()] == ranges
    assert end == len(singly) + 2
    assert [ack_messages.read_range(chunk) for _, _, chunk in wire_format.fields(bytes(singly))] == ranges


SETS = st.lists(st.tuples(INT64, st.lists(UINT64, max_size=20)), max_size=6)


@UNHURRIED
@given(SETS)
def test_words_are_written_and_read_as_protobuf_does(sets: list[tuple[int, list[int]]]) -> None:
    theirs = formats.PositionInfo()
    for ledger, words in sets:
        signed = [word - (1 << 64) if word >> 63 else word for word in words]
        theirs.individualDeletedMessageRanges.add(key=ledger, values=signed)
    data = theirs.SerializePartialToString()
    arrays = [(ledger, np.array(words, dtype=np.uint64)) for ledger, words in sets]
    assert ack_messages_vectorized.write_longs(arrays, 6) == data
    found, end = ack_messages_vectorized.read_longs(b"\x10\x01" + data + b"\x08\x01", 2, 6)
    assert [(key, words.tolist()) for key, words in found] == sets
    assert end == len(data) + 2
    assert [ack_messages.read_longs(chunk) for _, _, chunk in wire_format.fields(data)] == sets


@UNHURRIED
@given(SETS, st.data())
def test_many_sets_end_before_an_odd_one(sets: list[tuple[int, list[int]]], draw: st.DataObject) -> None:
    arrays = [(ledger, np.array(words, dtype=np.uint64)) for ledger, words in sets]
    good = ack_messages_vectorized.write_longs(arrays, 6)
    odd = draw.draw(
        st.sampled_from([b"\x32\x04\x10\x01\x08\x07", b"\x32\x05\x08\x07\x12\x01\x05", b"\x32\x09\x08\x07\x10\x05"])
    )
    found, end = ack_messages_vectorized.read_longs(good + odd, 0, 6)
    assert ([(key, words.tolist()) for key, words in found], end) == (sets, len(good))


@UNHURRIED
@given(INT64, st.lists(UINT64, max_size=20))
def test_words_may_be_packed(ledger: int, words: list[int]) -> None:
    chunk, out = bytearray(), bytearray()
    for word in words:
        wire_format.write_varint(chunk, word)
    wire_format.write_bytes_field(out, 2, chunk)
    wire_format.write_varint_field(out, 1, ledger)
    key, found = ack_messages_vectorized.read_any_longs(bytes(out))
    assert (key, found.tolist()) == (ledger, words)


@UNHURRIED
@given(st.lists(UINT64, max_size=50))
def test_many_varints_are_as_one_by_one(numbers: list[int]) -> None:
    singly = bytearray()
    for number in numbers:
        wire_format.write_varint(singly, number)
    table = np.array(numbers, dtype=np.uint64)
    assert varints.encode_all(table) == singly
    data = np.frombuffer(bytes(singly) + b"\x80", dtype=np.uint8)
    starts, lengths = varints.split(data)
    assert varints.decode_all(data, starts, lengths).tolist() == numbers
