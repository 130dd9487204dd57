"""Container format for byte strings with a JSON header, used in files and between tasks.

::

    header length (4 bytes, big-endian), header (JSON), payloads, concatenated
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bookstand.errors import MalformedError

_LENGTH = 4
_SIZES = "sizes"


def pack(head: Mapping[str, Any], pieces: Sequence[bytes | memoryview]) -> bytes:
    return b"".join(packed(head, pieces))


def packed(head: Mapping[str, Any], pieces: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
    """Encode like :func:`pack`, as a sequence of buffers, so that large payloads are not copied."""
    sizes = [len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces]
    told = json.dumps({**head, _SIZES: sizes}).encode()
    return (len(told).to_bytes(_LENGTH, "big"), told, *pieces)


def unpack(data: bytes | memoryview) -> tuple[dict[str, Any], list[memoryview]]:
    view = memoryview(data)
    at = _LENGTH + int.from_bytes(view[:_LENGTH], "big")
    try:
        head = json.loads(bytes(view[_LENGTH:at]))
        sizes = head.pop(_SIZES)
    except (ValueError, KeyError):
        raise MalformedError("what a task has left cannot be read") from None
    if at + sum(sizes) != len(view):
        raise MalformedError("what a task has left was cut short")
    pieces = []
    for size in sizes:
        pieces.append(view[at : at + size])
        at += size
    return head, pieces
