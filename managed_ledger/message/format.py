"""Codec of a topic's entries: broker entry metadata, checksum, message metadata and payload.

The uncompressed payload of a batch is the concatenation of its messages.

:class:`Message` decodes lazily, so that the parts before a malformed one remain readable. Reading a malformed part
raises :class:`~bookstand.errors.MalformedMessageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, TypeVar

import google_crc32c

from bookstand.errors import IncorrectParameterError, MalformedError, MalformedMessageError, MessageChecksumError
from bookstand.managed_ledger.message.batch_members import (
    MIN_MEMBER_BYTES,
    BatchMember,
    decode_members,
    encode_batch,
    encode_uniform_batch,
    metadata_of,
)
from bookstand.managed_ledger.message.compression import NAMES, NUMBERS, pack, unpack
from bookstand.managed_ledger.message.length_prefixed import U32, parse, part_bounds, read_u32, serialize
from bookstand.managed_ledger.message.metadata import (
    BROKER_ENTRY_METADATA,
    MESSAGE_METADATA,
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
)
from bookstand.proto.expansion import DEFAULT, MESSAGE_BYTES, Expansion, ExpansionLimits
from bookstand.proto.struct_layout import Layout
from bookstand.proto.wire_format import WireError, int64, read_varint, write_varint_field

_BROKER_MAGIC = b"\x0e\x02"
_CHECKSUM_MAGIC = b"\x0e\x01"
BROKER = Layout(
    "the broker entry metadata, if present",
    ("magic", "2s", f"`{_BROKER_MAGIC.hex()}`"),
    ("size", "I", "of what follows"),
    ("BrokerEntryMetadata", "size bytes", ""),
)
CHECKSUM = Layout(
    "the checksum, if present",
    ("magic", "2s", f"`{_CHECKSUM_MAGIC.hex()}`"),
    ("CRC32C", "I", "of everything after it"),
)
MESSAGE = Layout(
    "the message",
    ("size", "I", "of the metadata"),
    ("MessageMetadata", "size bytes", ""),
    ("payload", "the rest", "compressed as a whole"),
)
_CHECKSUM = CHECKSUM.struct
_MAGIC_SIZE = 2
# Offsets of the metadata's size and the metadata in an entry without broker entry metadata.
_HEAD_AT = _MAGIC_SIZE + U32.size
_PLAIN_HEAD = _HEAD_AT + U32.size
_METADATA = "the message's metadata"
_METADATA_CACHE_SIZE = 1_000
# Maximum size of metadata to cache.
_MAX_CACHED_METADATA = 4 << 10
_TIME_FIELD = 19
_TIME_TAG = b"\x98\x01"
# Size of the field deliver_at_time with a time from 1971 to 2109.
_TIME_BYTES = len(_TIME_TAG) + 6

PRODUCER = "bookstand"
"""Default producer name."""

_T = TypeVar("_T")
MetadataAndOffset = tuple[MessageMetadata | None, int]
"""A message's metadata, and the offset of its payload."""


# -- reading ---------------------------------------------------------------------------------------------------------


class Message:
    """A lazily decoded entry."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def _broker(self) -> tuple[BrokerEntryMetadata | None, int]:
        if self._magic(0, "the entry") != _BROKER_MAGIC:
            return None, 0
        what = "the broker's metadata"
        start, end = part_bounds(self.data, _MAGIC_SIZE, what)
        return parse(BROKER_ENTRY_METADATA, BrokerEntryMetadata, self.data, start, end, what), end

    @property
    def broker_metadata(self) -> BrokerEntryMetadata | None:
        return self._broker[0]

    @property
    def offset(self) -> int:
        """Offset of the producer's bytes, after the broker entry metadata."""
        return self._broker[1]

    @cached_property
    def has_checksum(self) -> bool:
        return self._magic(self.offset, "the message") == _CHECKSUM_MAGIC

    @property
    def stored_checksum(self) -> int:
        return read_u32(self.data, self.offset + _MAGIC_SIZE, "the checksum")

    @property
    def computed_checksum(self) -> int:
        return int(google_crc32c.value(self.data[self._metadata_at :]))

    def check(self) -> None:
        """Verify the checksum, if the message has one."""
        if self.has_checksum and self.stored_checksum != self.computed_checksum:
            raise MessageChecksumError(
                f"the message's checksum is {self.computed_checksum:08x}, not {self.stored_checksum:08x} as stored"
            )

    @property
    def _metadata_at(self) -> int:
        return self.offset + (_MAGIC_SIZE + U32.size if self.has_checksum else 0)

    @cached_property
    def _metadata(self) -> tuple[MessageMetadata, int]:
        start, end = part_bounds(self.data, self._metadata_at, _METADATA)
        return parse(MESSAGE_METADATA, MessageMetadata, self.data, start, end, _METADATA), end

    @property
    def metadata(self) -> MessageMetadata:
        return self._metadata[0]

    @property
    def payload_offset(self) -> int:
        return self._metadata[1]

    @property
    def stored_payload(self) -> bytes:
        """Payload as stored, possibly compressed."""
        return self.data[self.payload_offset :]

    def payload(self, limits: ExpansionLimits = DEFAULT) -> bytes:
        """Return the uncompressed payload."""
        return unpacked_payload(self.metadata, self.stored_payload, limits.of(len(self.data)))

    @property
    def is_batch(self) -> bool:
        """True for a batch, including a batch of one message."""
        return self.metadata.num_messages_in_batch is not None

    def messages(self, limits: ExpansionLimits = DEFAULT) -> Iterator[BatchMember]:
        """Iterate over the messages of a batch, up to the number in its metadata."""
        expansion = limits.of(len(self.data))
        body = unpacked_payload(self.metadata, self.stored_payload, expansion)
        count = self.metadata.num_messages_in_batch or 0
        charge_batch(count, len(body), expansion)
        for stored, payload in decode_members(body, count):
            yield BatchMember(metadata_of(stored), payload)

    def _magic(self, at: int, what: str) -> bytes:
        magic = self.data[at : at + _MAGIC_SIZE]
        if len(magic) < _MAGIC_SIZE:
            raise MalformedMessageError(f"{what} ends after {len(magic)} bytes, within its first {_MAGIC_SIZE}")
        return magic


def charge_batch(count: int, size: int, expansion: Expansion) -> None:
    """Charge the messages of a batch of ``size`` bytes to the expansion limit."""
    count = min(count, size // MIN_MEMBER_BYTES)
    if count <= 0:
        return
    try:
        expansion.take(count * MESSAGE_BYTES, f"the batch of {count} messages")
    except MalformedError as error:
        raise MalformedMessageError(str(error)) from None


def unpacked_payload(metadata: MessageMetadata, stored: bytes, expansion: Expansion) -> bytes:
    """Decompress the payload of an entry."""
    number = metadata.compression or 0
    codec = NAMES.get(number)
    if codec is None:
        raise MalformedMessageError(f"the payload is compressed with the unknown codec {number}")
    try:
        return unpack(codec, stored, metadata.uncompressed_size or 0, expansion)
    except MalformedError as error:
        raise MalformedMessageError(f"the payload is damaged: {error}") from None


def decode_message(data: bytes, cache: dict[bytes, MessageMetadata]) -> tuple[MessageMetadata, int]:
    """Decode a message's metadata, and return it with the offset of the payload.

    Decoding metadata dominates the cost, and messages published together mostly have the same metadata. The caller
    provides the ``cache`` of decoded metadata by stored bytes.
    """
    if data.startswith(_CHECKSUM_MAGIC) and len(data) >= _PLAIN_HEAD:
        end = _PLAIN_HEAD + U32.unpack_from(data, _PLAIN_HEAD - U32.size)[0]
        if end <= len(data):
            stored = data[_PLAIN_HEAD:end]
            metadata = cache.get(stored) or _read_delayed(stored, cache)
            if metadata is None:
                metadata = parse(MESSAGE_METADATA, MessageMetadata, data, _PLAIN_HEAD, end, _METADATA)
                _cache_metadata(cache, stored, metadata)
            return metadata, end
    message = Message(data)
    return message.metadata, message.payload_offset


def _read_delayed(stored: bytes, cache: dict[bytes, MessageMetadata]) -> MessageMetadata | None:
    """Decode metadata whose last field is deliver_at_time, caching the bytes before it; otherwise return None. The
    delivery time often differs between messages that are otherwise equal."""
    at = len(stored) - _TIME_BYTES
    if at < 0 or not stored.startswith(_TIME_TAG, at):
        return None
    try:
        time, end = read_varint(stored, at + len(_TIME_TAG), len(stored))
        if end < len(stored):
            return None
        before = stored[:at]
        metadata = cache.get(before)
        if metadata is None:
            # If the preceding bytes are valid metadata, the rest is a complete field, not the end of another one.
            metadata = MessageMetadata(**MESSAGE_METADATA.read(before))
            _cache_metadata(cache, before, metadata)
    except WireError:
        return None
    return metadata._replace(deliver_at_time=int64(time))


def _cache_metadata(cache: dict[bytes, MessageMetadata], stored: bytes, metadata: MessageMetadata) -> None:
    if len(stored) > _MAX_CACHED_METADATA:
        return
    if len(cache) >= _METADATA_CACHE_SIZE:
        cache.clear()
    cache[stored] = metadata


def decode_runs(
    entries: Iterable[bytes], cache: dict[bytes, MessageMetadata]
) -> Iterator[tuple[MetadataAndOffset, int]]:
    """Decode many entries, and return each result with the number of consecutive entries that have it.

    An entry that is not a message has metadata None and payload offset 0. Consecutive entries mostly have the same
    metadata bytes, which are then compared instead of decoded.
    """
    decoded: MetadataAndOffset = None, 0
    head = b""
    count = 0
    for data in entries:
        if head and data.startswith(head, _HEAD_AT) and data.startswith(_CHECKSUM_MAGIC):
            count += 1
            continue
        if count:
            yield decoded, count
        try:
            decoded = decode_message(data, cache)
        except MalformedMessageError:
            decoded = None, 0
        head = data[_HEAD_AT : decoded[1]] if data.startswith(_CHECKSUM_MAGIC) else b""
        count = 1
    if count:
        yield decoded, count


def plain_metadata(data: bytes) -> bytes | None:
    """Return a message's metadata bytes; None if it has broker entry metadata, has no checksum or is truncated."""
    if not data.startswith(_CHECKSUM_MAGIC) or len(data) < _PLAIN_HEAD:
        return None
    end = _PLAIN_HEAD + int(U32.unpack_from(data, _PLAIN_HEAD - U32.size)[0])
    return data[_PLAIN_HEAD:end] if end <= len(data) else None


# -- writing ---------------------------------------------------------------------------------------------------------


def assemble(
    metadata: MessageMetadata,
    stored_payload: bytes,
    broker_metadata: BrokerEntryMetadata | None = None,
    *,
    checksum: bool = True,
) -> bytes:
    """Assemble an entry from its metadata and its payload, which is already compressed if the metadata says so."""
    message = serialize(MESSAGE_METADATA, metadata)
    head = U32.pack(len(message)) + message
    parts = [head, stored_payload]
    if checksum:
        crc = google_crc32c.extend(google_crc32c.value(head), stored_payload)
        parts.insert(0, _CHECKSUM.pack(_CHECKSUM_MAGIC, crc))
    if broker_metadata is not None:
        broker = serialize(BROKER_ENTRY_METADATA, broker_metadata)
        parts.insert(0, _BROKER_MAGIC + U32.pack(len(broker)) + broker)
    return b"".join(parts)


def encode_message(
    payload: bytes,
    *,
    publish_time: int,
    deliver_at: int | None = None,
    properties: Mapping[str, str] | None = None,
    producer_name: str = PRODUCER,
    sequence_id: int = 0,
    compression: str = "NONE",
    broker_metadata: BrokerEntryMetadata | None = None,
    **more: Any,
) -> bytes:
    """Encode one message as an entry. Times are in ms since 1970; ``more`` are further fields of the metadata."""
    stored = pack(compression, payload)
    metadata = _metadata(
        producer_name, sequence_id, publish_time, deliver_at, properties, compression, len(payload), more
    )
    return assemble(metadata, stored, broker_metadata)


def encode_messages(
    payloads: Iterable[bytes],
    *,
    publish_time: int,
    deliver_at: int | Iterable[int | None] | None = None,
    properties: Mapping[str, str] | None = None,
    compression: str = "NONE",
) -> Iterator[bytes]:
    """Encode messages that differ only in their payloads and delivery times, as :func:`encode_message` would."""
    # Encoded metadata without the delivery time, which is the last field, by payload size.
    untimed: dict[int, bytes] = {}
    head, head_crc, head_size, head_time = b"", 0, -1, None
    same = deliver_at is None or isinstance(deliver_at, int)
    times: Iterable[Any] = repeat(deliver_at) if same else deliver_at  # type: ignore[assignment]
    packs = compression != "NONE"
    begin, extend = _CHECKSUM.pack, google_crc32c.extend
    for payload, time in zip(payloads, times, strict=not same):
        size = len(payload)
        if size != head_size or time != head_time:
            head_size, head_time = size, time
            message = untimed.get(size)
            if message is None:
                metadata = _metadata(PRODUCER, 0, publish_time, None, properties, compression, size, {})
                message = untimed[size] = serialize(MESSAGE_METADATA, metadata)
            if time is not None:
                message += _time_field(time)
            head = U32.pack(len(message)) + message
            head_crc = google_crc32c.value(head)
        stored = pack(compression, payload) if packs else payload
        # Concatenate the short parts first, so that the payload is copied only once.
        yield begin(_CHECKSUM_MAGIC, extend(head_crc, stored)) + head + stored


def _time_field(time: int) -> bytes:
    out = bytearray()
    try:
        write_varint_field(out, _TIME_FIELD, time)
    except TypeError:
        raise IncorrectParameterError(f"deliver_at must be in milliseconds since 1970, not {time!r}") from None
    return bytes(out)


def single(payload: bytes, *, properties: Mapping[str, str] | None = None, **more: Any) -> BatchMember:
    """Return a message for :func:`batch`."""
    pairs = tuple((properties or {}).items())
    return BatchMember(_build(SingleMessageMetadata, more, payload_size=len(payload), properties=pairs), payload)


def batch(messages: Iterable[BatchMember], *, sequence_id: int = 0, **shared: Any) -> bytes:
    """Encode several messages as an entry. Messages without a sequence id are numbered from ``sequence_id``. ``shared``
    are arguments of :func:`encode_message`."""
    return _batch(*encode_batch(messages, sequence_id), sequence_id=sequence_id, **shared)


def batch_alike(
    payloads: Sequence[bytes],
    *,
    member_properties: Mapping[str, str] | None = None,
    partition_key: str | None = None,
    event_time: int | None = None,
    sequence_id: int = 0,
    **shared: Any,
) -> bytes:
    """Encode messages that differ only in their payloads as an entry; faster than :func:`batch`."""
    like = SingleMessageMetadata(0, tuple((member_properties or {}).items()), partition_key, event_time=event_time)
    return _batch(encode_uniform_batch(payloads, like, sequence_id), len(payloads), sequence_id=sequence_id, **shared)


def _batch(
    body: bytes,
    count: int,
    *,
    publish_time: int,
    deliver_at: int | None = None,
    properties: Mapping[str, str] | None = None,
    producer_name: str = PRODUCER,
    sequence_id: int,
    compression: str = "NONE",
    broker_metadata: BrokerEntryMetadata | None = None,
    **more: Any,
) -> bytes:
    if not count:
        raise IncorrectParameterError("a batch must have at least one message")
    more = {"highest_sequence_id": sequence_id + count - 1, **more, "num_messages_in_batch": count}
    stored = pack(compression, body)
    metadata = _metadata(producer_name, sequence_id, publish_time, deliver_at, properties, compression, len(body), more)
    return assemble(metadata, stored, broker_metadata)


def _metadata(
    producer_name: str,
    sequence_id: int,
    publish_time: int,
    deliver_at: int | None,
    properties: Mapping[str, str] | None,
    codec: str,
    size: int,
    more: Mapping[str, Any],
) -> MessageMetadata:
    return _build(
        MessageMetadata,
        more,
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time,
        deliver_at_time=deliver_at,
        properties=tuple(properties.items()) if properties else (),
        # Pulsar's producers omit the codec without compression, and always set the size.
        compression=NUMBERS[codec] or None,
        uncompressed_size=size,
    )


def _build(build: Callable[..., _T], more: Mapping[str, Any], **values: Any) -> _T:
    try:
        return build(**values, **more)
    except TypeError as error:
        raise IncorrectParameterError(f"metadata has no such field: {error}") from None
