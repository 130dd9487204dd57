"""The messages of a batch, as its entry's payload has them.

What they say of themselves costs more to read and to write than all the rest, and those of a batch mostly differ in
their sequence ids alone: what precedes that is read and written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError, MalformedMessageError
from bookstand.managed_ledger.message.length_prefixed import U32, bounds, written
from bookstand.managed_ledger.message.metadata import SINGLE_MESSAGE_METADATA, SingleMessageMetadata
from bookstand.proto.struct_layout import Layout
from bookstand.proto.wire_format import VARINT, WireError, read_varint, tag_bytes, write_varint_field

MEMBER = Layout(
    "a message of a batch, within the payload",
    ("size", "I", "of the metadata"),
    ("SingleMessageMetadata", "size bytes", ""),
    ("payload", "as many as the metadata says", ""),
)
LEAST_MEMBER_BYTES = U32.size + 2
"""Of one that has no payload: what it says of itself is at least the payload's size."""
_SEQUENCE_ID = 8
"""The field's number; of those that are mostly there it comes last."""
_SEQUENCE_TAG = tag_bytes(_SEQUENCE_ID, VARINT)[0]
_LONGEST_SEQUENCE = 9
_MORE = 0x80
_VARINT_BITS = 7
_FEWEST_ALIKE = 8
"""Fewer are read as quickly one by one."""
_WORTH_KEEPING = 1 << 16
"""What precedes the payloads of a batch is kept for the next one, up to so many bytes of metadata."""
_WORTH_KNOWING = 256
"""Metadata up to so many bytes is remembered."""


Bounds = tuple[int, int, int]
"""Of a message of a batch: where its metadata begins, where its payload does, and where that ends."""


class BatchMember(NamedTuple):
    """One message of a batch."""

    metadata: SingleMessageMetadata
    payload: bytes


# -- reading ---------------------------------------------------------------------------------------------------------


def decode_members(body: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Of the first ``count`` messages the metadata, as it is stored but known to be sound, and the payload;
    :class:`~bookstand.errors.MalformedMessageError` at the first that is broken."""
    for start, stop, end in member_offsets(body, 0, count):
        yield body[start:stop], body[stop:end]


def member_offsets(data: bytes, at: int, count: int) -> Iterator[Bounds]:
    """The same without a copy, of messages that begin at ``at``."""
    return chain.from_iterable(_runs_of_bounds(data, at, count))


def _runs_of_bounds(data: bytes, at: int, count: int) -> Iterator[Iterable[Bounds]]:
    """Of some messages at a time, and where one is broken of all that precede it."""
    index = 0
    may_be_alike = True
    while index < count:
        one = start, stop, end = _bounds(data, at, index)
        alike = _alike(data, at, start, stop, end, count - index) if may_be_alike else 0
        # Looking for it costs as much as a few of them.
        may_be_alike = alike > 0
        size = end - at
        length = size * alike
        yield zip(*(range(first, first + length, size) for first in one), strict=True) if alike else (one,)
        at += length or size
        index += alike or 1


def _bounds(data: bytes, at: int, index: int) -> Bounds:
    """Of one message, read for itself."""
    limit = len(data)
    start = at + U32.size
    stop = start + U32.unpack_from(data, at)[0] if start <= limit else limit + 1
    if stop > limit:
        bounds(data, at, f"the metadata of {_name(index)}")
    stored = data[start:stop]
    try:
        size = _known_size(stored) if stop - start <= _WORTH_KNOWING else _payload_size(stored)
    except WireError as error:
        raise MalformedMessageError(f"{_name(index)} cannot be read: {error}") from None
    end = stop + size
    if not stop <= end <= limit:
        raise MalformedMessageError(f"{_name(index)} should have {size} bytes, there are {limit - stop}")
    return start, stop, end


def _alike(data: bytes, at: int, start: int, stop: int, end: int, left: int) -> int:
    """How many messages, from the one at ``at`` on, have metadata that differs in nothing but the sequence id, and that
    in nothing but its value: all that are ``left``, or as many as have one of so many bytes. 0 where they are not all
    alike, or not worth a look.

    Octet by octet, each of all messages at once.
    """
    if left < _FEWEST_ALIKE or stop - at > min(left, _WORTH_KNOWING):
        return 0
    size = end - at
    stored = data[start:stop]
    varies = stop
    if (sequence_at := _sequence_at(stored)) is not None:
        varies = start + sequence_at
        first, _ = read_varint(stored, sequence_at, len(stored))
        left = min(left, (1 << _VARINT_BITS * (stop - varies)) - first)
    beyond = at + size * left
    if beyond > len(data):
        return 0
    for place in range(at, varies):
        if data[place:beyond:size].count(data[place]) != left:
            return 0
    for place in range(varies, stop - 1):
        if min(data[place:beyond:size]) < _MORE:
            return 0
    return 0 if varies < stop and max(data[stop - 1 : beyond : size]) >= _MORE else left


def metadata_of(stored: bytes) -> SingleMessageMetadata:
    """What :func:`members` gave, read."""
    return SingleMessageMetadata(**SINGLE_MESSAGE_METADATA.read(stored))


def _name(index: int) -> str:
    return f"message {index} of the batch"


@lru_cache(maxsize=1 << 12)
def _known_size(stored: bytes) -> int:
    sequence_at = _sequence_at(stored)
    return _payload_size(stored) if sequence_at is None else _size_before(stored[: sequence_at - 1])


def _sequence_at(stored: bytes) -> int | None:
    """Where the sequence id begins that the metadata ends with; None if it does not."""
    at = len(stored) - 1
    while at > 0 and stored[at - 1] & _MORE:
        at -= 1
    if at > 0 and stored[at - 1] == _SEQUENCE_TAG and len(stored) - at <= _LONGEST_SEQUENCE and not stored[-1] & _MORE:
        try:
            # Only where this is whole by itself, the rest is a field, and not the end of another one.
            _size_before(stored[: at - 1])
        except WireError:
            return None
        return at
    return None


@lru_cache(maxsize=1 << 10)
def _size_before(stored: bytes) -> int:
    return _payload_size(stored)


def _payload_size(stored: bytes) -> int:
    size: int = SINGLE_MESSAGE_METADATA.read(stored)["payload_size"]
    return size


# -- writing ---------------------------------------------------------------------------------------------------------


def encode_batch(messages: Iterable[BatchMember], first_sequence_id: int) -> tuple[bytes, int]:
    """A batch's payload, and how many messages it has. Sequence ids count up, where a message does not say its own."""
    pieces: list[bytes] = []
    count = 0
    for own, payload in messages:
        if own.payload_size != len(payload):
            raise IncorrectParameterError(f"message {count} says {own.payload_size} bytes, it has {len(payload)}")
        if own.sequence_id is None:
            own = own._replace(sequence_id=first_sequence_id + count)
        stored = written(SINGLE_MESSAGE_METADATA, own)
        pieces += U32.pack(len(stored)), stored, payload
        count += 1
    return b"".join(pieces), count


def encode_uniform_batch(payloads: Sequence[bytes], like: SingleMessageMetadata, first_sequence_id: int) -> bytes:
    """The same of messages that have nothing of their own but the payload: ``like`` says no sequence id, and nothing of
    what comes behind it."""
    sizes = list(map(len, payloads))
    count = len(sizes)
    heads = {size: written(SINGLE_MESSAGE_METADATA, like._replace(payload_size=size)) for size in set(sizes)}
    tails = _sequence_fields(first_sequence_id, count)
    pieces: list[bytes] = [b""] * (2 * count)
    pieces[1::2] = payloads
    if len(heads) == 1:
        (head,) = heads.values()
        known = len(head) * count <= _WORTH_KEEPING
        pieces[::2] = _heads_alike(head, tails) if known else _heads(repeat(head), tails)
    else:
        pieces[::2] = _heads(map(heads.__getitem__, sizes), tails)
    return b"".join(pieces)


@lru_cache(maxsize=16)
def _heads_alike(metadata: bytes, sequence_fields: tuple[bytes, ...]) -> list[bytes]:
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
