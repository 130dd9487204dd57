"""Length-prefixed parts of a message, and the errors for malformed ones."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TypeVar

from bookstand.errors import IncorrectParameterError, MalformedMessageError
from bookstand.proto.schema_codec import MessageSchema
from bookstand.proto.wire_format import WireError

U32 = Struct(">I")

_T = TypeVar("_T")


def read_u32(data: bytes, at: int, what: str) -> int:
    if at + U32.size > len(data):
        raise MalformedMessageError(f"the entry ends within {what}")
    number: int = U32.unpack_from(data, at)[0]
    return number


def part_bounds(data: bytes, at: int, what: str) -> tuple[int, int]:
    """Return start and end of the part whose size is at offset ``at``."""
    size = read_u32(data, at, f"the size of {what}")
    start = at + U32.size
    if size > len(data) - start:
        raise MalformedMessageError(f"{what} should have {size} bytes, there are {len(data) - start}")
    return start, start + size


def parse(table: MessageSchema, build: Callable[..., _T], data: bytes, start: int, end: int, what: str) -> _T:
    try:
        return build(**table.read(data, start, end))
    except WireError as error:
        raise MalformedMessageError(f"{what} cannot be read: {error}") from None


def serialize(table: MessageSchema, metadata: object) -> bytes:
    try:
        return table.write(metadata)
    except (TypeError, AttributeError, ValueError) as error:
        raise IncorrectParameterError(f"the metadata cannot be written: {error}") from None
