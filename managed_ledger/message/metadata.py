"""Metadata of messages, as in ``proto/pulsar_message.proto``.

Absent fields are None, not the schema's defaults, so that a message can be written back unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

from bookstand.proto.schema_codec import (
    BOOL,
    BYTES_FIELD,
    INT32,
    INT64,
    TEXT,
    UINT32,
    UINT64,
    Field,
    MessageSchema,
    nested,
    pair,
)

Pairs = tuple[tuple[str, str], ...]


class EncryptionKey(NamedTuple):
    key: str
    value: bytes
    metadata: Pairs = ()
    unknown: bytes = b""


class MessageMetadata(NamedTuple):
    producer_name: str
    sequence_id: int
    publish_time: int  # ms
    properties: Pairs = ()
    replicated_from: str | None = None
    partition_key: str | None = None
    replicate_to: tuple[str, ...] = ()
    compression: int | None = None
    uncompressed_size: int | None = None
    num_messages_in_batch: int | None = None
    event_time: int | None = None
    encryption_keys: tuple[EncryptionKey, ...] = ()
    encryption_algo: str | None = None
    encryption_param: bytes | None = None
    schema_version: bytes | None = None
    partition_key_b64_encoded: bool | None = None
    ordering_key: bytes | None = None
    deliver_at_time: int | None = None
    marker_type: int | None = None
    txnid_least_bits: int | None = None
    txnid_most_bits: int | None = None
    highest_sequence_id: int | None = None
    null_value: bool | None = None
    uuid: str | None = None
    num_chunks_from_msg: int | None = None
    total_chunk_msg_size: int | None = None
    chunk_id: int | None = None
    null_partition_key: bool | None = None
    compacted_batch_indexes: tuple[int, ...] = ()
    schema_id: bytes | None = None
    unknown: bytes = b""


class SingleMessageMetadata(NamedTuple):
    """Metadata of one message in a batch."""

    payload_size: int
    properties: Pairs = ()
    partition_key: str | None = None
    compacted_out: bool | None = None
    event_time: int | None = None
    partition_key_b64_encoded: bool | None = None
    ordering_key: bytes | None = None
    sequence_id: int | None = None
    null_value: bool | None = None
    null_partition_key: bool | None = None
    unknown: bytes = b""


class BrokerEntryMetadata(NamedTuple):
    broker_timestamp: int | None = None
    index: int | None = None  # type: ignore[assignment]  # a tuple has a method of that name
    unknown: bytes = b""


_PROPERTY = pair(TEXT, TEXT)

_ENCRYPTION_KEY = MessageSchema(
    {
        1: Field("key", TEXT, required=True),
        2: Field("value", BYTES_FIELD, required=True),
        3: Field("metadata", _PROPERTY, many=True),
    }
)
MESSAGE_METADATA = MessageSchema(
    {
        1: Field("producer_name", TEXT, required=True),
        2: Field("sequence_id", UINT64, required=True),
        3: Field("publish_time", UINT64, required=True),
        4: Field("properties", _PROPERTY, many=True),
        5: Field("replicated_from", TEXT),
        6: Field("partition_key", TEXT),
        7: Field("replicate_to", TEXT, many=True),
        8: Field("compression", INT32),
        9: Field("uncompressed_size", UINT32),
        11: Field("num_messages_in_batch", INT32),
        12: Field("event_time", UINT64),
        13: Field("encryption_keys", nested(_ENCRYPTION_KEY, EncryptionKey), many=True),
        14: Field("encryption_algo", TEXT),
        15: Field("encryption_param", BYTES_FIELD),
        16: Field("schema_version", BYTES_FIELD),
        17: Field("partition_key_b64_encoded", BOOL),
        18: Field("ordering_key", BYTES_FIELD),
        19: Field("deliver_at_time", INT64),
        20: Field("marker_type", INT32),
        22: Field("txnid_least_bits", UINT64),
        23: Field("txnid_most_bits", UINT64),
        24: Field("highest_sequence_id", UINT64),
        25: Field("null_value", BOOL),
        26: Field("uuid", TEXT),
        27: Field("num_chunks_from_msg", INT32),
        28: Field("total_chunk_msg_size", INT32),
        29: Field("chunk_id", INT32),
        30: Field("null_partition_key", BOOL),
        31: Field("compacted_batch_indexes", INT32, many=True),
        32: Field("schema_id", BYTES_FIELD),
    }
)
SINGLE_MESSAGE_METADATA = MessageSchema(
    {
        1: Field("properties", _PROPERTY, many=True),
        2: Field("partition_key", TEXT),
        3: Field("payload_size", INT32, required=True),
        4: Field("compacted_out", BOOL),
        5: Field("event_time", UINT64),
        6: Field("partition_key_b64_encoded", BOOL),
        7: Field("ordering_key", BYTES_FIELD),
        8: Field("sequence_id", UINT64),
        9: Field("null_value", BOOL),
        10: Field("null_partition_key", BOOL),
    }
)
BROKER_ENTRY_METADATA = MessageSchema({1: Field("broker_timestamp", UINT64), 2: Field("index", UINT64)})
