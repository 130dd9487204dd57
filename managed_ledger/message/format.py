"""An entry of a topic: what the broker noted, a checksum, the message's metadata and its payload.

The payload of a batch is, once unpacked, its messages one behind the other.

:class:`Message` reads one step at a time and only as far as it is asked, so that what stands before a broken part can
still be had. Each step that fails raises :class:`~bookstand.errors.MalformedMessageError` and says what is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, TypeVar

import google_crc32c

from bookstand.errors import IncorrectParameterError, MalformedError, MalformedMessageError, MessageChecksumError
from bookstand.managed_ledger.message.batch_members import (
    LEAST_MEMBER_BYTES,
    BatchMember,
    decode_members,
    encode_batch,
    encode_uniform_batch,
    metadata_of,
)
from bookstand.managed_ledger.message.compression import NAMES, NUMBERS, pack, unpack
from bookstand.managed_ledger.message.length_prefixed import U32, bounds, parsed, read_u32, written
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
    "what the broker noted, if it did",
    ("magic", "2s", f"`{_BROKER_MAGIC.hex()}`"),
    ("size", "I", "of what follows"),
    ("BrokerEntryMetadata", "size bytes", ""),
)
CHECKSUM = Layout(
    "the checksum, if there is one",
    ("magic", "2s", f"`{_CHECKSUM_MAGIC.hex()}`"),
    ("CRC32C", "I", "of everything behind it"),
)
MESSAGE = Layout(
    "the message",
    ("size", "I", "of the metadata"),
    ("MessageMetadata", "size bytes", ""),
    ("payload", "the rest", "compressed as a whole"),
)
_CHECKSUM = CHECKSUM.struct
_MAGIC_SIZE = 2
# Where there is nothing of the broker's, the metadata's size and the metadata begin here.
_HEAD_AT = _MAGIC_SIZE + U32.size
_PLAIN_HEAD = _HEAD_AT + U32.size
_METADATA = "the message's metadata"
_MOST_KNOWN = 1_000
# The known metadata takes up to some hundred times these bytes in all.
_WORTH_KNOWING = 4 << 10
_TIME_FIELD = 19
_TIME_TAG = b"\x98\x01"
# The field with a time from 1971 to 2109.
_TIME_BYTES = len(_TIME_TAG) + 6

PRODUCER = "bookstand"
"""Who a message is from unless it is said."""

_T = TypeVar("_T")
Opened = tuple[MessageMetadata | None, int]
"""A message's metadata, and where its payload begins."""


# -- reading ---------------------------------------------------------------------------------------------------------


class Message:
    """An entry, read lazily."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def _broker(self) -> tuple[BrokerEntryMetadata | None, int]:
        if self._magic(0, "the entry") != _BROKER_MAGIC:
            return None, 0
        what = "the broker's metadata"
        start, end = bounds(self.data, _MAGIC_SIZE, what)
        return parsed(BROKER_ENTRY_METADATA, BrokerEntryMetadata, self.data, start, end, what), end

    @property
    def broker_metadata(self) -> BrokerEntryMetadata | None:
        return self._broker[0]

    @property
    def offset(self) -> int:
        """Where what the producer sent begins."""
        return self._broker[1]

    @cached_property
    def has_checksum(self) -> bool:
        return self._magic(self.offset, "the message") == _CHECKSUM_MAGIC

    @property
    def stored_checksum(self) -> int:
        """What the message says its checksum is."""
        return read_u32(self.data, self.offset + _MAGIC_SIZE, "the checksum")

    @property
    def computed_checksum(self) -> int:
        return int(google_crc32c.value(self.data[self._metadata_at :]))

    def check(self) -> None:
        """Raise unless the checksum is right; a message without one passes."""
        if self.has_checksum and self.stored_checksum != self.computed_checksum:
            raise MessageChecksumError(
                f"the message's checksum is {self.computed_checksum:08x}, it says {self.stored_checksum:08x}"
            )

    @property
    def _metadata_at(self) -> int:
        return self.offset + (_MAGIC_SIZE + U32.size if self.has_checksum else 0)

    @cached_property
    def _metadata(self) -> tuple[MessageMetadata, int]:
        start, end = bounds(self.data, self._metadata_at, _METADATA)
        return parsed(MESSAGE_METADATA, MessageMetadata, self.data, start, end, _METADATA), end

    @property
    def metadata(self) -> MessageMetadata:
        return self._metadata[0]

    @property
    def payload_offset(self) -> int:
        return self._metadata[1]

    @property
    def stored_payload(self) -> bytes:
        """The payload as it lies there, compressed perhaps."""
        return self.data[self.payload_offset :]

    def payload(self, limits: ExpansionLimits = DEFAULT) -> bytes:
        """The payload unpacked."""
        return unpacked_payload(self.metadata, self.stored_payload, limits.of(len(self.data)))

    @property
    def is_batch(self) -> bool:
        """A batch of one message is a batch as well."""
        return self.metadata.num_messages_in_batch is not None

    def messages(self, limits: ExpansionLimits = DEFAULT) -> Iterator[BatchMember]:
        """The messages of a batch, up to the number in its metadata."""
        expansion = limits.of(len(self.data))
        body = unpacked_payload(self.metadata, self.stored_payload, expansion)
        count = self.metadata.num_messages_in_batch or 0
        take_batch(count, len(body), expansion)
        for stored, payload in decode_members(body, count):
            yield BatchMember(metadata_of(stored), payload)

    def _magic(self, at: int, what: str) -> bytes:
        magic = self.data[at : at + _MAGIC_SIZE]
        if len(magic) < _MAGIC_SIZE:
            raise MalformedMessageError(f"{what} ends after {len(magic)} of the {_MAGIC_SIZE} bytes that begin it")
        return magic


def take_batch(count: int, size: int, expansion: Expansion) -> None:
    """Charge the messages of a batch of ``size`` bytes; :class:`~bookstand.errors.MalformedMessageError` if there are
    too many."""
    count = min(count, size // LEAST_MEMBER_BYTES)
    if count <= 0:
        return
    try:
        expansion.take(count * MESSAGE_BYTES, f"the batch of {count} messages")
    except MalformedError as error:
        raise MalformedMessageError(str(error)) from None


def unpacked_payload(metadata: MessageMetadata, stored: bytes, expansion: Expansion) -> bytes:
    """Unpack the payload of an entry."""
    number = metadata.compression or 0
    codec = NAMES.get(number)
    if codec is None:
        raise MalformedMessageError(f"the payload is compressed with the unknown codec {number}")
    try:
        return unpack(codec, stored, metadata.uncompressed_size or 0, expansion)
    except MalformedError as error:
        raise MalformedMessageError(f"the payload is damaged: {error}") from None


def decode_message(data: bytes, known: dict[bytes, MessageMetadata]) -> tuple[MessageMetadata, int]:
    """A message's metadata, and where its payload begins.

    Reading metadata costs more than all the rest, and messages that were published together have mostly the same:
    ``known`` is the caller's, and remembers what was read.
    """
    if data.startswith(_CHECKSUM_MAGIC) and len(data) >= _PLAIN_HEAD:
        end = _PLAIN_HEAD + U32.unpack_from(data, _PLAIN_HEAD - U32.size)[0]
        if end <= len(data):
            stored = data[_PLAIN_HEAD:end]
            metadata = known.get(stored) or _delayed(stored, known)
            if metadata is None:
                metadata = parsed(MESSAGE_METADATA, MessageMetadata, data, _PLAIN_HEAD, end, _METADATA)
                _remember(known, stored, metadata)
            return metadata, end
    message = Message(data)
    return message.metadata, message.payload_offset


def _delayed(stored: bytes, known: dict[bytes, MessageMetadata]) -> MessageMetadata | None:
    """Metadata that ends with the time of delivery, by what precedes that: times differ where all else is the same.
    None if it does not end so."""
    at = len(stored) - _TIME_BYTES
    if at < 0 or not stored.startswith(_TIME_TAG, at):
        return None
    try:
        time, end = read_varint(stored, at + len(_TIME_TAG), len(stored))
        if end < len(stored):
            return None
        before = stored[:at]
        metadata = known.get(before)
        if metadata is None:
            # Only where this is whole by itself, the rest is a field, and not the end of another one.
            metadata = MessageMetadata(**MESSAGE_METADATA.read(before))
            _remember(known, before, metadata)
    except WireError:
        return None
    return metadata._replace(deliver_at_time=int64(time))


def _remember(known: dict[bytes, MessageMetadata], stored: bytes, metadata: MessageMetadata) -> None:
    if len(stored) > _WORTH_KNOWING:
        return
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[stored] = metadata


def decode_runs(entries: Iterable[bytes], known: dict[bytes, MessageMetadata]) -> Iterator[tuple[Opened, int]]:
    """The same of many, without an error: what is no message has no metadata, and is payload from its first byte on.
    Neighbours mostly begin alike, and then that is all that is looked at: how many they are in a row is told."""
    opened: Opened = None, 0
    head = b""
    count = 0
    for data in entries:
        if head and data.startswith(head, _HEAD_AT) and data.startswith(_CHECKSUM_MAGIC):
            count += 1
            continue
        if count:
            yield opened, count
        try:
            opened = decode_message(data, known)
        except MalformedMessageError:
            opened = None, 0
        head = data[_HEAD_AT : opened[1]] if data.startswith(_CHECKSUM_MAGIC) else b""
        count = 1
    if count:
        yield opened, count


def open_messages(entries: Iterable[bytes], known: dict[bytes, MessageMetadata]) -> Iterator[Opened]:
    """The same, one by one."""
    for opened, count in decode_runs(entries, known):
        yield from repeat(opened, count)


def plain_metadata(data: bytes) -> bytes | None:
    """The bytes of a message's metadata, where nothing of the broker's precedes it and it is there as a whole."""
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
    """An entry of parts that are ready; the payload is compressed already if it is to be."""
    message = written(MESSAGE_METADATA, metadata)
    head = U32.pack(len(message)) + message
    parts = [head, stored_payload]
    if checksum:
        sum_of_both = google_crc32c.extend(google_crc32c.value(head), stored_payload)
        parts.insert(0, _CHECKSUM.pack(_CHECKSUM_MAGIC, sum_of_both))
    if broker_metadata is not None:
        broker = written(BROKER_ENTRY_METADATA, broker_metadata)
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
    """An entry of one message. Times are in ms since 1970; ``more`` are fields of the metadata, by their names."""
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
    """Entries of one message each that differ in nothing but the payload, and perhaps the time of delivery: the same
    as :func:`frame` makes one by one."""
    # By the size of the payload, without the time: it comes last of the fields that are written here.
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
                message = untimed[size] = written(MESSAGE_METADATA, metadata)
            if time is not None:
                message += _time_field(time)
            head = U32.pack(len(message)) + message
            head_crc = google_crc32c.value(head)
        stored = pack(compression, payload) if packs else payload
        # The short parts first: what is long is copied once.
        yield begin(_CHECKSUM_MAGIC, extend(head_crc, stored)) + head + stored


def _time_field(time: int) -> bytes:
    out = bytearray()
    try:
        write_varint_field(out, _TIME_FIELD, time)
    except TypeError:
        raise IncorrectParameterError(f"a time of delivery is in milliseconds since 1970, not {time!r}") from None
    return bytes(out)


def single(payload: bytes, *, properties: Mapping[str, str] | None = None, **more: Any) -> BatchMember:
    """One message for :func:`batch`."""
    pairs = tuple((properties or {}).items())
    return BatchMember(_checked(SingleMessageMetadata, more, payload_size=len(payload), properties=pairs), payload)


def batch(messages: Iterable[BatchMember], *, sequence_id: int = 0, **of_all: Any) -> bytes:
    """An entry of several messages. ``sequence_id`` is the first one's; they count up from it unless they say else.

    ``of_all``: what :func:`frame` takes.
    """
    return _batch(*encode_batch(messages, sequence_id), sequence_id=sequence_id, **of_all)


def batch_alike(
    payloads: Sequence[bytes],
    *,
    member_properties: Mapping[str, str] | None = None,
    partition_key: str | None = None,
    event_time: int | None = None,
    sequence_id: int = 0,
    **of_all: Any,
) -> bytes:
    """The same of messages that differ in nothing but the payload: as :func:`batch` of a :func:`single` for each."""
    like = SingleMessageMetadata(0, tuple((member_properties or {}).items()), partition_key, event_time=event_time)
    return _batch(encode_uniform_batch(payloads, like, sequence_id), len(payloads), sequence_id=sequence_id, **of_all)


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
        raise IncorrectParameterError("a batch has at least one message")
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
    return _checked(
        MessageMetadata,
        more,
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time,
        deliver_at_time=deliver_at,
        properties=tuple(properties.items()) if properties else (),
        # Pulsar's producers leave the codec out if there is none, and give the size in any case.
        compression=NUMBERS[codec] or None,
        uncompressed_size=size,
    )


def _checked(build: Callable[..., _T], more: Mapping[str, Any], **values: Any) -> _T:
    try:
        return build(**values, **more)
    except TypeError as error:
        raise IncorrectParameterError(f"metadata has no such field: {error}") from None
