"""Snapshots larger than an entry in the format of PIP-381: chunks followed by a footer.

The chunks are consecutive entries without a header. The footer is a JSON object, ``{"numParts": n, "length": bytes}``;
no snapshot begins with the byte ``{``. If the cursor ledger's custom metadata names a codec, even NONE, every snapshot,
chunked or not, is packed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from bookstand.errors import MalformedAckStateError, MalformedError
from bookstand.managed_ledger.message.compression import NUMBERS, unpack
from bookstand.proto.expansion import DEFAULT, Expansion, ExpansionLimits
from bookstand.proto.struct_layout import Layout

CODEC_PROPERTY = "pulsar/cursor-compressionType"
"""Key of the codec in a cursor ledger's custom metadata."""

_FIRST = b"{"
PACKED = Layout(
    "a snapshot in a cursor ledger that names a codec",
    ("size", "I", "unpacked"),
    ("snapshot", "remaining bytes", "packed"),
)
_U32 = PACKED.struct


class Footer(NamedTuple):
    parts: int
    length: int


class Stored(NamedTuple):
    """An unpacked snapshot, the entries that it was read from, and their expansion budget."""

    data: bytes
    first_entry: int
    last_entry: int
    expansion: Expansion


def footer_of(entry: bytes, limits: ExpansionLimits = DEFAULT) -> Footer | None:
    """Decode a footer; None if the entry is not a footer."""
    if not entry.startswith(_FIRST):
        return None
    try:
        footer = json.loads(entry)
        parts, length = footer["numParts"], footer["length"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedAckStateError(f"the footer of a chunked snapshot cannot be read: {error!r}") from None
    if type(parts) is not int or type(length) is not int or parts < 1 or length < 0:
        raise MalformedAckStateError(f"the footer of a chunked snapshot specifies {parts!r} parts and {length!r} bytes")
    if length > limits.max_expanded_bytes:
        raise MalformedAckStateError(
            f"the footer of a chunked snapshot specifies {length} bytes; if this is correct, raise max_expanded_bytes "
            f"({limits.max_expanded_bytes})"
        )
    return Footer(parts, length)


def stored_at(
    read: Callable[[int], bytes], entry_id: int, codec: str | None = None, limits: ExpansionLimits = DEFAULT
) -> Stored:
    """Read the snapshot whose last entry is ``entry_id``. ``codec`` is the value of :data:`CODEC_PROPERTY`."""
    entry = read(entry_id)
    footer = footer_of(entry, limits)
    first = entry_id
    if footer is not None:
        first = entry_id - footer.parts
        if first < 0:
            raise MalformedAckStateError(
                f"entry {entry_id} specifies {footer.parts} parts, but {entry_id} entries precede it"
            )
        parts = []
        remaining = footer.length
        for place in range(first, entry_id):
            parts.append(read(place))
            remaining -= len(parts[-1])
            if remaining < 0:
                break
        if remaining:
            raise MalformedAckStateError(f"the parts of the snapshot that ends with entry {entry_id} have a wrong size")
        entry = b"".join(parts)
    expansion = limits.of(len(entry))
    return Stored(unpacked(entry, codec, expansion), first, entry_id, expansion)


def unpacked(data: bytes, codec: str | None, expansion: Expansion | None = None) -> bytes:
    """Unpack a snapshot of a ledger whose custom metadata names ``codec``."""
    if codec is None:
        return data
    if codec not in NUMBERS:
        raise MalformedAckStateError(f"the cursor ledger names the unknown codec {codec!r}")
    if len(data) < _U32.size:
        raise MalformedAckStateError("the snapshot ends within its size")
    (size,) = _U32.unpack_from(data)
    packed = data[_U32.size :]
    if codec == "NONE" and size != len(packed):
        raise MalformedAckStateError(f"the snapshot should have {size} bytes, not {len(packed)}")
    try:
        return unpack(codec, packed, size, expansion)
    except MalformedError as error:
        raise MalformedAckStateError(f"the snapshot cannot be unpacked: {error}") from None
