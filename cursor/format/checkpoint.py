"""Markers: checkpoint records of a cursor's state, and the node records that may precede them. No I/O.

The contents of a marker, in the frame of record.py, are the fields 1010 to 1015 of proto/cursor_record.proto; the
properties in the frame are the user's.

A flush appends pages, then node records if its nodes do not fit into one entry, then its marker. A node record contains
only field 1015. Node records and their marker are numbered as parts: of n parts the last, number n − 1, is the marker,
so that a marker contains the number of node records directly before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from bookstand.cursor.errors import CursorDamagedError, ReservedPropertyError
from bookstand.cursor.format import record
from bookstand.cursor.format.page_index import PreparedIndex
from bookstand.errors import EntryTooLargeError, IncorrectParameterError
from bookstand.proto import wire_format
from bookstand.storage.format.position import Position

_TIME, _PREVIOUS, _PAGE_ENTRIES, _STATE_SIZE, _ROOT, _NODE = 1010, 1011, 1012, 1013, 1014, 1015
_TIME_TAG, _PREVIOUS_TAG, _PAGE_ENTRIES_TAG, _STATE_SIZE_TAG = (
    wire_format.tag(field, wire_format.VARINT) for field in (_TIME, _PREVIOUS, _PAGE_ENTRIES, _STATE_SIZE)
)
_ROOT_TAG, _NODE_TAG = wire_format.tag(_ROOT, wire_format.BYTES), wire_format.tag(_NODE, wire_format.BYTES)
# Maximum size of the contents without nodes: four numbers, and a root of seven numbers.
_MAX_CONTENTS = 4 * (2 + 10) + (2 + 1) + 7 * 10
_UNNUMBERED = record.Identity("", record.MARKER, 0, 0, 0, 1)
_OUT_OF_RANGE = 1 << 63
_LONGEST_POSITION = Position(-1, -1)


class Marker(NamedTuple):
    """A decoded marker. ``previous`` is the entry id of the previous marker in this ledger, or None. The marker follows
    ``page_entries`` entries of pages and ``node_entries`` node records; ``nodes`` are the nodes in the marker itself.
    ``state_size`` is the size of pages, index and properties in bytes."""

    generation: int
    mark_delete: Position
    properties: dict[str, int]
    time_ms: int
    previous: int | None
    page_entries: int
    node_entries: int
    state_size: int
    root: bytes
    nodes: list[bytes]


def room_for_nodes(cursor: str, properties: dict[str, int], limit: int) -> int:
    """Return the number of bytes of nodes, including framing, that fit into a marker of at most ``limit`` bytes."""
    around = _frame_bytes(cursor) + len(record.encode_properties(properties))
    if around >= limit:
        raise EntryTooLargeError(
            f"a marker with these properties takes {around} bytes, but an entry holds only {limit}"
        )
    return limit - around


# Cached because every flush needs it.
@lru_cache(maxsize=16)
def _frame_bytes(cursor: str) -> int:
    """Return the maximum size of a marker without nodes and properties."""
    begin = record.begin(_LONGEST_POSITION, record.MARKER)
    tail = record.tail(_UNNUMBERED._replace(cursor=cursor))
    return len(begin) + _MAX_CONTENTS + len(tail) + record.CRC_BYTES


def state_size(prepared: PreparedIndex, properties: dict[str, int]) -> int:
    return prepared.page_bytes + prepared.node_bytes + len(record.encode_properties(properties))


def encode_marker(
    cursor: str,
    prepared: PreparedIndex,
    *,
    generation: int,
    mark_delete: Position,
    properties: dict[str, int],
    time_ms: int,
    previous: int | None,
    page_entries: int,
) -> list[bytes]:
    """Encode the node records, if any, and the marker, to append from ``prepared.entry_id`` on.

    No entry is too large if the index was prepared with the result of :func:`room_for_nodes`.
    """
    reserved = record.RESERVED_NAMES.intersection(properties)
    if reserved:
        raise ReservedPropertyError(f"properties may not be named {', '.join(sorted(reserved))}")
    for name, value in properties.items():
        if not -_OUT_OF_RANGE <= value < _OUT_OF_RANGE:
            raise IncorrectParameterError(f"property {name!r} is {value}, which does not fit into 64 bits")
    parts = len(prepared.nodes)
    entries = []
    for part, nodes in enumerate(prepared.nodes[:-1]):
        out = record.begin(mark_delete, record.NODES)
        entries.append(_seal(out, nodes, record.Identity(cursor, record.NODES, generation, 0, part, parts)))
    out = record.begin(mark_delete, record.MARKER)
    out += record.encode_properties(properties)
    wire_format.write_varint_field(out, _TIME, time_ms)
    if previous is not None:
        wire_format.write_varint_field(out, _PREVIOUS, previous)
    wire_format.write_varint_field(out, _PAGE_ENTRIES, page_entries)
    wire_format.write_varint_field(out, _STATE_SIZE, state_size(prepared, properties))
    wire_format.write_bytes_field(out, _ROOT, prepared.root)
    identity = record.Identity(cursor, record.MARKER, generation, 0, parts - 1, parts)
    entries.append(_seal(out, prepared.nodes[-1], identity))
    return entries


def _seal(out: bytearray, nodes: list[bytes], identity: record.Identity) -> bytes:
    for node in nodes:
        wire_format.write_bytes_field(out, _NODE, node)
    return record.seal(out, record.tail(identity))


def decode_marker(cursor: str, entry_id: int, stored: bytes) -> Marker:
    """Decode the marker in ``entry_id``. Raises :class:`CursorDamagedError` if ``stored`` is anything else."""
    identity = _identify(cursor, entry_id, stored, (record.MARKER,))
    numbers: dict[int, int] = {}
    root = None
    nodes = []
    try:
        for tag, number, chunk in record.contents(stored, record.tail(identity)):
            if tag == _NODE_TAG:
                nodes.append(chunk)
            elif tag == _ROOT_TAG:
                root = chunk
            else:
                numbers[tag] = number
        if root is None:
            raise record.RecordError("it has no index")
        if identity.part + 1 != identity.parts:
            raise record.RecordError("it is not the last one of its flush")
        mark_delete, properties = record.read_position(stored)
        return Marker(
            identity.generation,
            mark_delete,
            properties,
            wire_format.int64(numbers[_TIME_TAG]),
            numbers.get(_PREVIOUS_TAG),
            numbers[_PAGE_ENTRIES_TAG],
            identity.part,
            numbers[_STATE_SIZE_TAG],
            root,
            nodes,
        )
    except KeyError as error:
        raise _damaged(cursor, entry_id, f"a marker without field {error.args[0] >> 3}") from error
    except ValueError as error:
        raise _damaged(cursor, entry_id, error) from error


def decode_nodes(cursor: str, entry_id: int, stored: bytes) -> list[bytes]:
    """Return the nodes of a marker or node record. Raises :class:`CursorDamagedError` if ``stored`` is neither."""
    identity = _identify(cursor, entry_id, stored, (record.NODES, record.MARKER))
    try:
        return [chunk for tag, _, chunk in record.contents(stored, record.tail(identity)) if tag == _NODE_TAG]
    except ValueError as error:
        raise _damaged(cursor, entry_id, error) from error


def node_loader(cursor: str, read: Callable[[int], bytes]) -> Callable[[int, int], bytes]:
    """Return a loader for :meth:`PageIndex.read` that reads entries with ``read`` and caches their nodes."""
    cache: dict[int, list[bytes]] = {}

    def load(entry_id: int, slot: int) -> bytes:
        nodes = cache.get(entry_id)
        if nodes is None:
            nodes = cache[entry_id] = decode_nodes(cursor, entry_id, read(entry_id))
        if slot >= len(nodes):
            raise _damaged(cursor, entry_id, f"it has {len(nodes)} nodes of the index, but slot {slot} is referenced")
        return nodes[slot]

    return load


def _identify(cursor: str, entry_id: int, stored: bytes, kinds: tuple[int, ...]) -> record.Identity:
    try:
        identity = record.identify(stored)
    except record.RecordError as error:
        raise _damaged(cursor, entry_id, error) from error
    if identity.cursor != cursor or identity.kind not in kinds:
        raise _damaged(cursor, entry_id, f"it is the {identity}")
    return identity


def _damaged(cursor: str, entry_id: int, why: object) -> CursorDamagedError:
    return CursorDamagedError(f"cursor {cursor!r}: entry {entry_id} is not the expected record: {why}")
