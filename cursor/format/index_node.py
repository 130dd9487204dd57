"""Nodes of the index: leaves refer to pages, inner nodes to other nodes.

A node is identified by an entry of the cursor ledger and a slot in that record. Leaves are large because they contain
all user ledgers. Inner nodes are small because a flush writes at least one on each level, so that a flush of a large
index costs little more than one of a small index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import lt
from typing import NamedTuple

from bookstand.cursor.format.ack_page import PageRef
from bookstand.cursor.format.packed_column import ColumnError, pick, read_column, write_column
from bookstand.proto.struct_layout import Layout

LEAF_ITEMS = 50
INNER_ITEMS = 8
_HEAD = 2
_REF_COLUMNS = len(PageRef._fields)


class NodeRef(NamedTuple):
    """Location of a node, and the checksum of its bytes."""

    entry_id: int
    slot: int
    crc: int


LEAF = Layout(
    "a leaf of the index",
    ("level", "B", "0"),
    ("count", "B", f"1 to {LEAF_ITEMS}"),
    ("user ledgers", "a column", ""),
    *((name, "a column", "of the pages") for name in PageRef._fields),
)
INNER = Layout(
    "an inner node of the index",
    ("level", "B", "1 or higher"),
    ("count", "B", f"1 to {INNER_ITEMS} nodes of the level below"),
    ("first user ledgers", "a column", ""),
    *((name, "a column", "of those nodes") for name in NodeRef._fields),
)


class Sums(NamedTuple):
    """Sums over pages."""

    pages: int
    acked: int
    partial: int
    size: int


def encode_leaf(ledger_ids: Sequence[int], refs: Sequence[PageRef]) -> bytes:
    return _encode(0, (ledger_ids, *zip(*refs, strict=True)))


def encode_inner(level: int, firsts: Sequence[int], refs: Sequence[NodeRef]) -> bytes:
    return _encode(level, (firsts, *zip(*refs, strict=True)))


def decode_leaf(raw: bytes) -> tuple[list[int], list[PageRef]]:
    """Decode a leaf. Raises :class:`ValueError` for other data, like :func:`decode_inner`."""
    ledger_ids, *columns = _decode(raw, 0, 1 + _REF_COLUMNS, LEAF_ITEMS)
    return ledger_ids, list(map(PageRef._make, zip(*columns, strict=True)))


def sum_leaf(raw: bytes) -> tuple[list[int], Sums]:
    """Return a leaf's user ledgers and sums, without creating its references."""
    ledger_ids, _, _, _, acked, partial, size, _ = _decode(raw, 0, 1 + _REF_COLUMNS, LEAF_ITEMS)
    return ledger_ids, Sums(len(ledger_ids), sum(acked), sum(partial), sum(size))


def acked_in_leaf(raw: bytes) -> tuple[list[int], list[int]]:
    """Return a leaf's user ledgers and their numbers of acknowledged entries."""
    ledger_ids, _, _, _, acked, *_ = _decode(raw, 0, 1 + _REF_COLUMNS, LEAF_ITEMS)
    return ledger_ids, acked


def decode_inner(raw: bytes, level: int) -> tuple[list[int], list[NodeRef]]:
    firsts, *columns = _decode(raw, level, 1 + len(NodeRef._fields), INNER_ITEMS)
    return firsts, list(map(NodeRef._make, zip(*columns, strict=True)))


def find_in_leaf(raw: bytes, ledger_id: int) -> PageRef | None:
    """Return one reference of a leaf, without decoding the others."""
    count = raw[1]
    ledger_ids, at = read_column(raw, _HEAD, count)
    row = bisect_left(ledger_ids, ledger_id)
    if row == count or ledger_ids[row] != ledger_id:
        return None
    values = []
    for _ in range(_REF_COLUMNS):
        value, at = pick(raw, at, count, row)
        values.append(value)
    return PageRef._make(values)


def level_of(raw: bytes) -> int:
    return raw[0] if raw else 0


def _encode(level: int, columns: tuple[Sequence[int], ...]) -> bytes:
    out = bytearray((level, len(columns[0])))
    for column in columns:
        write_column(out, column)
    return bytes(out)


def _decode(raw: bytes, level: int, columns: int, capacity: int) -> list[list[int]]:
    if len(raw) < _HEAD or raw[0] != level or not 0 < raw[1] <= capacity:
        raise ColumnError(f"it is not a node of level {level}")
    at = _HEAD
    decoded = []
    for _ in range(columns):
        column, at = read_column(raw, at, raw[1])
        decoded.append(column)
    if at != len(raw):
        raise ColumnError(f"the node ends at byte {at} of {len(raw)}")
    if not all(map(lt, decoded[0], decoded[0][1:])):
        raise ColumnError("its user ledgers are not in ascending order")
    return decoded
