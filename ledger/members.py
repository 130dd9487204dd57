"""The messages of a batch, as its entry's payload has them.

What they say of themselves costs more to read and to write than all the rest, and those of a batch mostly differ in
their sequence ids alone: what precedes that is read and written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError, MalformedMessageError
from bookstand.ledger.message import SINGLE_MESSAGE_METADATA, SingleMessageMetadata
from bookstand.ledger.sized import U32, bounds, written
from bookstand.proto.layout import Layout
from bookstand.proto.wire import VARINT, WireError, tag_bytes, write_number

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
_WORTH_KNOWING = 256
"""Metadata up to so many bytes is remembered."""


class Single(NamedTuple):
    """One message of a batch."""

    metadata: SingleMessageMetadata
    payload: bytes


# -- reading ---------------------------------------------------------------------------------------------------------


def members(body: bytes, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Of the first ``count`` messages the metadata, as it is stored but known to be sound, and the payload;
    :class:`~bookstand.errors.MalformedMessageError` at the first that is broken."""
    at, end = 0, len(body)
    size_at = U32.unpack_from
    for index in range(count):
        start = at + U32.size
        stop = start + size_at(body, at)[0] if start <= end else end + 1
        if stop > end:
            bounds(body, at, f"the metadata of {_name(index)}")
        stored = body[start:stop]
        try:
            size = _known_size(stored) if stop - start <= _WORTH_KNOWING else _payload_size(stored)
        except WireError as error:
            raise MalformedMessageError(f"{_name(index)} cannot be read: {error}") from None
        at = stop + size
        if not stop <= at <= end:
            raise MalformedMessageError(f"{_name(index)} should have {size} bytes, there are {end - stop}")
        yield stored, body[stop:at]


def metadata_of(stored: bytes) -> SingleMessageMetadata:
    """What :func:`members` gave, read."""
    return SingleMessageMetadata(**SINGLE_MESSAGE_METADATA.read(stored))


def _name(index: int) -> str:
    return f"message {index} of the batch"


@lru_cache(maxsize=1 << 12)
def _known_size(stored: bytes) -> int:
    at = len(stored) - 1
    while at > 0 and stored[at - 1] & _MORE:
        at -= 1
    if at > 0 and stored[at - 1] == _SEQUENCE_TAG and len(stored) - at <= _LONGEST_SEQUENCE and not stored[-1] & _MORE:
        try:
            # Only where this is whole by itself, the rest is a field, and not the end of another one.
            return _size_before(stored[: at - 1])
        except WireError:
            pass
    return _payload_size(stored)


@lru_cache(maxsize=1 << 10)
def _size_before(stored: bytes) -> int:
    return _payload_size(stored)


def _payload_size(stored: bytes) -> int:
    size: int = SINGLE_MESSAGE_METADATA.read(stored)["payload_size"]
    return size


# -- writing ---------------------------------------------------------------------------------------------------------


def joined(messages: Iterable[Single], first_sequence_id: int) -> tuple[bytes, int]:
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


def joined_alike(payloads: Sequence[bytes], like: SingleMessageMetadata, first_sequence_id: int) -> bytes:
    """The same of messages that have nothing of their own but the payload: ``like`` says no sequence id, and nothing of
    what comes behind it."""
    heads: dict[int, bytes] = {}
    pieces: list[bytes] = []
    for payload, tail in zip(payloads, _sequence_fields(first_sequence_id, len(payloads)), strict=True):
        size = len(payload)
        head = heads.get(size)
        if head is None:
            head = heads[size] = written(SINGLE_MESSAGE_METADATA, like._replace(payload_size=size))
        pieces += U32.pack(len(head) + len(tail)), head, tail, payload
    return b"".join(pieces)


@lru_cache(maxsize=16)
def _sequence_fields(first: int, count: int) -> tuple[bytes, ...]:
    fields = []
    for number in range(first, first + count):
        out = bytearray()
        write_number(out, _SEQUENCE_ID, number)
        fields.append(bytes(out))
    return tuple(fields)
