"""Codec of the messages in a batch.

Most of the time goes into SingleMessageMetadata. In a typical batch it differs only in the sequence id, its last field,
so the bytes before that field are decoded and encoded once for all messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import NamedTuple

from bookstand.errors import ExpansionError, IncorrectParameterError, MalformedMessageError
from bookstand.managed_ledger.message.length_prefixed import U32, part_bounds, serialize
from bookstand.managed_ledger.message.metadata import SINGLE_MESSAGE_METADATA, SingleMessageMetadata
from bookstand.proto.expansion import FREE_BYTES, RECORD_BYTES, ExpansionLimits
from bookstand.proto.struct_layout import Layout
from bookstand.proto.wire_format import VARINT, WireError, read_varint, tag_bytes, write_varint_field

MEMBER = Layout(
    "a message of a batch, within the payload",
    ("size", "I", "of the metadata"),
    ("SingleMessageMetadata", "size bytes", ""),
    ("payload", "size in the metadata", ""),
)
MIN_MEMBER_BYTES = U32.size + 2
"""Size of a message without a payload: its metadata has at least the field ``payload_size``."""
_SEQUENCE_ID = 8
"""Field number; of the commonly used fields it is the last."""
_SEQUENCE_TAG = tag_bytes(_SEQUENCE_ID, VARINT)[0]
_MAX_SEQUENCE_BYTES = 9
_CONTINUATION_BIT = 0x80
_VARINT_BITS = 7
_MIN_UNIFORM_RUN = 8
"""Minimum number of messages for which the search for uniform metadata pays off."""
_MAX_CACHED_HEADS = 1 << 16
"""Maximum bytes of encoded metadata of a batch that are cached for the next batch."""
_MAX_CACHED_METADATA = 256
"""Maximum size of cached metadata."""
# The metadata of a message of a batch may be as long as the unpacked payload. It is decoded for one message at a time,
# and so bounded for each.
_LIMITS = ExpansionLimits(FREE_BYTES)
_MAX_PROPERTIES = FREE_BYTES // RECORD_BYTES


Offsets = tuple[int, int, int]
"""Offsets of a message: start of its metadata, start of its payload, end of its payload."""


class BatchMember(NamedTuple):
    """One message of a batch."""

    metadata: SingleMessageMetadata
    payload: bytes


# -- reading ---------------------------------------------------------------------------------------------------------


def decode_members(body: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Return the stored but validated metadata and the payload of the first ``count`` messages. The iterator raises
    :class:`~bookstand.errors.MalformedMessageError` at the first malformed message."""
    for start, stop, end in member_offsets(body, 0, count):
        yield body[start:stop], body[stop:end]


def member_offsets(data: bytes, at: int, count: int) -> Iterator[Offsets]:
    """Return the offsets of ``count`` messages, the first of which begins at ``at``."""
    return chain.from_iterable(_offset_runs(data, at, count))


def _offset_runs(data: bytes, at: int, count: int) -> Iterator[Iterable[Offsets]]:
    """Return offsets in runs of uniform messages. A malformed message raises after all messages before it."""
    index = 0
    may_be_uniform = True
    while index < count:
        offsets = start, stop, end = _member_offsets(data, at, index)
        uniform = _uniform_count(data, at, start, stop, end, count - index) if may_be_uniform else 0
        # Each attempt costs as much as decoding several messages, so one failure ends the attempts.
        may_be_uniform = uniform > 0
        size = end - at
        length = size * uniform
        yield zip(*(range(first, first + length, size) for first in offsets), strict=True) if uniform else (offsets,)
        at += length or size
        index += uniform or 1


def _member_offsets(data: bytes, at: int, index: int) -> Offsets:
    """Decode the offsets of one message."""
    limit = len(data)
    start = at + U32.size
    stop = start + U32.unpack_from(data, at)[0] if start <= limit else limit + 1
    if stop > limit:
        part_bounds(data, at, f"the metadata of {_name(index)}")
    stored = data[start:stop]
    try:
        size = _cached_payload_size(stored) if stop - start <= _MAX_CACHED_METADATA else _payload_size(stored)
    except WireError as error:
        raise MalformedMessageError(f"{_name(index)} cannot be read: {error}") from None
    except ExpansionError:
        raise MalformedMessageError(f"{_name(index)} has more than {_MAX_PROPERTIES} properties") from None
    end = stop + size
    if not stop <= end <= limit:
        raise MalformedMessageError(f"{_name(index)} should have {size} bytes, there are {limit - stop}")
    return start, stop, end


def _uniform_count(data: bytes, at: int, start: int, stop: int, end: int, remaining: int) -> int:
    """Return the number of messages from offset ``at`` whose metadata differs only in the value of the sequence id.

    The count is all ``remaining`` messages, or those whose sequence id has the same number of bytes. It is 0 if not all
    of these are uniform, or if the check does not pay off. Each byte offset is compared over all messages at once.
    """
    if remaining < _MIN_UNIFORM_RUN or stop - at > min(remaining, _MAX_CACHED_METADATA):
        return 0
    size = end - at
    stored = data[start:stop]
    varies = stop
    if (sequence_at := _find_sequence_id(stored)) is not None:
        varies = start + sequence_at
        first, _ = read_varint(stored, sequence_at, len(stored))
        remaining = min(remaining, (1 << _VARINT_BITS * (stop - varies)) - first)
    run_end = at + size * remaining
    if run_end > len(data):
        return 0
    for offset in range(at, varies):
        if data[offset:run_end:size].count(data[offset]) != remaining:
            return 0
    for offset in range(varies, stop - 1):
        if min(data[offset:run_end:size]) < _CONTINUATION_BIT:
            return 0
    return 0 if varies < stop and max(data[stop - 1 : run_end : size]) >= _CONTINUATION_BIT else remaining


def metadata_of(stored: bytes) -> SingleMessageMetadata:
    """Decode metadata that :func:`decode_members` returned."""
    return SingleMessageMetadata(**SINGLE_MESSAGE_METADATA.read(stored))


def _name(index: int) -> str:
    return f"message {index} of the batch"


@lru_cache(maxsize=1 << 12)
def _cached_payload_size(stored: bytes) -> int:
    sequence_at = _find_sequence_id(stored)
    return _payload_size(stored) if sequence_at is None else _size_before(stored[: sequence_at - 1])


def _find_sequence_id(stored: bytes) -> int | None:
    """Return the offset of the sequence id if it is the last field of the metadata, otherwise None."""
    at = len(stored) - 1
    if stored[-1:] >= b"\x80":
        return None
    while at > 0 and stored[at - 1] & _CONTINUATION_BIT:
        at -= 1
    if at > 0 and stored[at - 1] == _SEQUENCE_TAG and len(stored) - at <= _MAX_SEQUENCE_BYTES:
        try:
            # If the preceding bytes are valid metadata, the rest is a complete field, not the end of another one.
            _size_before(stored[: at - 1])
        except WireError:
            return None
        return at
    return None


@lru_cache(maxsize=1 << 10)
def _size_before(stored: bytes) -> int:
    return _payload_size(stored)


def _payload_size(stored: bytes) -> int:
    size: int = SINGLE_MESSAGE_METADATA.read(stored, expansion=_LIMITS.of(0))["payload_size"]
    return size


# -- writing ---------------------------------------------------------------------------------------------------------


def encode_batch(messages: Iterable[BatchMember], first_sequence_id: int) -> tuple[bytes, int]:
    """Encode a batch's payload, and return it with the number of messages. Messages without a sequence id are numbered
    consecutively from ``first_sequence_id``."""
    pieces: list[bytes] = []
    count = 0
    for own, payload in messages:
        if own.payload_size != len(payload):
            raise IncorrectParameterError(f"message {count} must have {own.payload_size} bytes, not {len(payload)}")
        if own.sequence_id is None:
            own = own._replace(sequence_id=first_sequence_id + count)
        stored = serialize(SINGLE_MESSAGE_METADATA, own)
        pieces += U32.pack(len(stored)), stored, payload
        count += 1
    return b"".join(pieces), count


def encode_uniform_batch(payloads: Sequence[bytes], like: SingleMessageMetadata, first_sequence_id: int) -> bytes:
    """Encode the payload of a batch whose messages differ only in their payloads. ``like`` has no sequence id and no
    field with a higher number."""
    sizes = list(map(len, payloads))
    count = len(sizes)
    heads = {size: serialize(SINGLE_MESSAGE_METADATA, like._replace(payload_size=size)) for size in set(sizes)}
    tails = _sequence_fields(first_sequence_id, count)
    pieces: list[bytes] = [b""] * (2 * count)
    pieces[1::2] = payloads
    if len(heads) == 1:
        (head,) = heads.values()
        is_small = len(head) * count <= _MAX_CACHED_HEADS
        pieces[::2] = _cached_heads(head, tails) if is_small else _heads(repeat(head), tails)
    else:
        pieces[::2] = _heads(map(heads.__getitem__, sizes), tails)
    return b"".join(pieces)


@lru_cache(maxsize=16)
def _cached_heads(metadata: bytes, sequence_fields: tuple[bytes, ...]) -> list[bytes]:
    return _heads(repeat(metadata), sequence_fields)


def _heads(metadata: Iterable[bytes], sequence_fields: Sequence[bytes]) -> list[bytes]:
    return [
        U32.pack(len(own) + len(field)) + own + field for own, field in zip(metadata, sequence_fields, strict=False)
    ]


@lru_cache(maxsize=16)
def _sequence_fields(first: int, count: int) -> tuple[bytes, ...]:
    fields = []
    for number in range(first, first + count):
        out = bytearray()
        write_varint_field(out, _SEQUENCE_ID, number)
        fields.append(bytes(out))
    return tuple(fields)
