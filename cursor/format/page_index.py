"""Index of a cursor, from user ledgers to their pages: a copy-on-write B+-tree in the entries of the cursor ledger.

A flush writes the nodes that changed since the last flush, from the leaves up to the root, and refers to the stored
copies of all others. Its cost depends on the changes and the depth of the tree, not on the number of user ledgers. The
nodes of a flush are stored in its marker, and in node records before it if they do not fit; index_node.py defines their
layout. Every reference to a node, from the root in the marker down, contains the checksum of its bytes, so that a stale
node or a node of another cursor is detected.

In memory a stored leaf stays encoded, at about 15 bytes for each user ledger, and is decoded when it changes. This
module is not thread-safe, and does no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import google_crc32c

from bookstand.cursor.errors import CursorDamagedError
from bookstand.cursor.format.ack_page import PageRef
from bookstand.cursor.format.index_node import (
    INNER_ITEMS,
    LEAF_ITEMS,
    NodeRef,
    Sums,
    acked_in_leaf,
    decode_inner,
    decode_leaf,
    encode_inner,
    encode_leaf,
    find_in_leaf,
    level_of,
    sum_leaf,
)
from bookstand.errors import EntryTooLargeError, IllegalOperationError
from bookstand.proto import wire_format
from bookstand.proto.struct_layout import Layout

Load = Callable[[int, int], bytes]
"""(entry id, slot) -> the bytes of the node."""

ROOT = Layout(
    "the root of a cursor's index",
    ("count", "varint", "user ledgers"),
    ("acked", "varint", "acknowledged entries of all pages"),
    ("partial", "varint", "partially acknowledged entries of all pages"),
    ("size", "varint", "bytes of all pages"),
    ("entry id", "varint, if count > 0", "of the topmost node"),
    ("slot", "varint, if count > 0", "of that node in the entry"),
    ("CRC32C", "varint, if count > 0", "of that node's bytes"),
)

# A node is merged with a neighbor when removals leave it at most this fraction full, given as a divisor.
_MIN_FILL = 4
# Size of the tag and length of a node in a record.
NODE_FRAMING = 2 + 3


class _Leaf:
    """A leaf: decoded while ``raw`` is None, otherwise encoded."""

    __slots__ = ("changes", "first", "keys", "raw", "ref", "refs", "weight")

    level = 0
    capacity = LEAF_ITEMS

    def __init__(self, keys: list[int], refs: list[PageRef]) -> None:
        self.keys = keys
        self.refs = refs
        self.raw: bytes | None = None
        self.first = keys[0] if keys else 0
        self.ref: NodeRef | None = None
        self.changes = 0
        self.weight = 0

    def __len__(self) -> int:
        return len(self.keys) if self.raw is None else self.raw[1]

    def mark_dirty(self) -> None:
        """Decode the leaf, and drop the reference to its stored copy, before a change."""
        if self.raw is not None:
            self.keys, self.refs = decode_leaf(self.raw)
            self.raw = None
        self.ref = None
        self.changes += 1

    def update_first(self) -> None:
        if self.keys:
            self.first = self.keys[0]

    def mark_clean(self, raw: bytes, ref: NodeRef) -> None:
        self.raw = raw
        self.ref = ref
        self.weight = len(raw)
        self.keys, self.refs = [], []

    def items(self) -> tuple[list[int], list[PageRef]]:
        return (self.keys, self.refs) if self.raw is None else decode_leaf(self.raw)

    def acked(self) -> tuple[list[int], list[int]]:
        if self.raw is not None:
            return acked_in_leaf(self.raw)
        return self.keys, [ref.acked for ref in self.refs]

    def sums(self) -> Sums:
        if self.raw is not None:
            return sum_leaf(self.raw)[1]
        _, _, _, acked, partial, size, _ = zip(*self.refs, strict=True)
        return Sums(len(self.refs), sum(acked), sum(partial), sum(size))

    def find(self, ledger_id: int) -> PageRef | None:
        if self.raw is not None:
            return find_in_leaf(self.raw, ledger_id)
        at = bisect_left(self.keys, ledger_id)
        return self.refs[at] if at < len(self.keys) and self.keys[at] == ledger_id else None

    def split(self, at: int) -> _Leaf:
        """Move the items from ``at`` on to a new leaf."""
        other = _Leaf(self.keys[at:], self.refs[at:])
        del self.keys[at:], self.refs[at:]
        return other

    def merge(self, other: _Leaf) -> None:
        self.keys += other.keys
        self.refs += other.refs


class _Inner:
    """An inner node. ``firsts`` are the first user ledgers of its children."""

    __slots__ = ("changes", "children", "firsts", "level", "ref", "weight")

    capacity = INNER_ITEMS

    def __init__(self, level: int, firsts: list[int], children: list[_Node]) -> None:
        self.level = level
        self.firsts = firsts
        self.children = children
        self.ref: NodeRef | None = None
        self.changes = 0
        self.weight = 0

    def __len__(self) -> int:
        return len(self.children)

    @property
    def first(self) -> int:
        return self.firsts[0]

    def mark_dirty(self) -> None:
        self.ref = None
        self.changes += 1

    def update_first(self) -> None:
        pass

    def child_for(self, ledger_id: int) -> int:
        return max(bisect_right(self.firsts, ledger_id) - 1, 0)

    def split(self, at: int) -> _Inner:
        other = _Inner(self.level, self.firsts[at:], self.children[at:])
        del self.firsts[at:], self.children[at:]
        return other

    def merge(self, other: _Inner) -> None:
        self.firsts += other.firsts
        self.children += other.children


_Node = _Leaf | _Inner


class PreparedIndex(NamedTuple):
    """The part of the index that a flush writes.

    ``nodes`` has one list for each entry, from ``entry_id`` on: all but the last become node records, the last one is
    stored in the marker. ``node_bytes`` and ``page_bytes`` are the sizes of all nodes and pages reachable from the
    root.
    """

    entry_id: int
    root: bytes
    nodes: list[list[bytes]]
    node_bytes: int
    page_bytes: int

    @property
    def marker_entry_id(self) -> int:
        return self.entry_id + len(self.nodes) - 1


class _NodeWriter:
    """Assigns changed nodes to entries."""

    def __init__(self, entry_id: int, room: int | None) -> None:
        self.entry_id = entry_id
        self.nodes: list[list[bytes]] = [[]]
        self.written: list[tuple[_Node, int, bytes, NodeRef]] = []
        self._room = room
        self._used = 0

    def put(self, node: _Node, raw: bytes) -> NodeRef:
        size = len(raw) + NODE_FRAMING
        self._used += size
        if self._room is not None and self._used > self._room:
            if size > self._room:
                raise EntryTooLargeError(
                    f"a node of the index takes {size} bytes, but an entry has room for {self._room}"
                )
            self.nodes.append([])
            self._used = size
        ref = NodeRef(self.entry_id + len(self.nodes) - 1, len(self.nodes[-1]), google_crc32c.value(raw))
        self.nodes[-1].append(raw)
        self.written.append((node, node.changes, raw, ref))
        return ref


class PageIndex:
    """A sorted, persistent map from user ledger ids to :class:`PageRef`.

    ``acked``, ``partial`` and ``page_bytes`` are sums over all pages.
    """

    def __init__(self) -> None:
        self.acked = 0
        self.partial = 0
        self.page_bytes = 0
        self._count = 0
        self._root: _Node = _Leaf([], [])
        self._writer: _NodeWriter | None = None

    # -- the map -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __contains__(self, ledger_id: int) -> bool:
        return self.get(ledger_id) is not None

    def get(self, ledger_id: int) -> PageRef | None:
        node = self._root
        while isinstance(node, _Inner):
            node = node.children[node.child_for(ledger_id)]
        return node.find(ledger_id)

    @property
    def last_ledger(self) -> int:
        """Highest user ledger; -1 if the index is empty."""
        node = self._root
        while isinstance(node, _Inner):
            node = node.children[-1]
        keys, _ = node.items()
        return keys[-1] if keys else -1

    def items(self) -> Iterator[tuple[int, PageRef]]:
        """Iterate in ascending order. The index must not change meanwhile."""
        for leaf in _leaves(self._root):
            yield from zip(*leaf.items(), strict=True)

    def acked_counts(self) -> Iterator[tuple[int, int]]:
        """Yield each user ledger and its number of acknowledged entries, in ascending order. The index must not change
        meanwhile."""
        for leaf in _leaves(self._root):
            yield from zip(*leaf.acked(), strict=True)

    def set(self, ledger_id: int, ref: PageRef) -> None:
        path, leaf = self._descend(ledger_id)
        _mark_dirty(path, leaf)
        at = bisect_left(leaf.keys, ledger_id)
        if at < len(leaf.keys) and leaf.keys[at] == ledger_id:
            self._count_page(leaf.refs[at], -1)
            leaf.refs[at] = ref
        else:
            leaf.keys.insert(at, ledger_id)
            leaf.refs.insert(at, ref)
        self._count_page(ref, 1)
        self._rebalance_growth(path, leaf, at + 1 == len(leaf))

    def remove(self, ledger_id: int) -> PageRef | None:
        """Remove a user ledger. Returns its former reference."""
        path, leaf = self._descend(ledger_id)
        ref = leaf.find(ledger_id)
        if ref is None:
            return None
        _mark_dirty(path, leaf)
        at = bisect_left(leaf.keys, ledger_id)
        del leaf.keys[at], leaf.refs[at]
        self._count_page(ref, -1)
        leaf.update_first()
        for inner, child in reversed(path):
            _rebalance_child(inner, child)
        self._shrink_root()
        return ref

    def remove_below(self, ledger_id: int) -> int:
        """Remove the user ledgers with lower ids. Returns their number."""
        before = self._count
        if before and self._root.first < ledger_id:
            self._trim(self._root, ledger_id)
            self._shrink_root()
        return before - self._count

    def _descend(self, ledger_id: int) -> tuple[list[tuple[_Inner, int]], _Leaf]:
        path = []
        node = self._root
        while isinstance(node, _Inner):
            child = node.child_for(ledger_id)
            path.append((node, child))
            node = node.children[child]
        return path, node

    def _count_page(self, ref: PageRef, sign: int) -> None:
        self._count_pages(Sums(1, ref.acked, ref.partial, ref.size), sign)

    def _count_pages(self, sums: Sums, sign: int) -> None:
        self._count += sign * sums.pages
        self.acked += sign * sums.acked
        self.partial += sign * sums.partial
        self.page_bytes += sign * sums.size

    def _rebalance_growth(self, path: list[tuple[_Inner, int]], leaf: _Leaf, at_end: bool) -> None:
        """Split overfull nodes, from the leaf up."""
        leaf.update_first()
        node: _Node = leaf
        sibling = _split(leaf, at_end)
        for inner, child in reversed(path):
            inner.firsts[child] = node.first
            if sibling is not None:
                inner.firsts.insert(child + 1, sibling.first)
                inner.children.insert(child + 1, sibling)
            node = inner
            sibling = _split(inner, child + 2 == len(inner))
        if sibling is not None:
            self._root = _Inner(node.level + 1, [node.first, sibling.first], [node, sibling])

    def _trim(self, node: _Node, ledger_id: int) -> None:
        """Remove lower user ledgers from a node that contains at least one."""
        node.mark_dirty()
        if isinstance(node, _Leaf):
            at = bisect_left(node.keys, ledger_id)
            for ref in node.refs[:at]:
                self._count_page(ref, -1)
            del node.keys[:at], node.refs[:at]
            node.update_first()
            return
        at = node.child_for(ledger_id)
        for child in node.children[:at]:
            for leaf in _leaves(child):
                self._count_pages(leaf.sums(), -1)
        del node.firsts[:at], node.children[:at]
        if node.first < ledger_id:
            self._trim(node.children[0], ledger_id)
            _rebalance_child(node, 0)

    def _shrink_root(self) -> None:
        """Replace a root with a single child by that child."""
        while isinstance(self._root, _Inner) and len(self._root) < 2:
            self._root = self._root.children[0] if len(self._root) else _Leaf([], [])

    # -- storing -------------------------------------------------------------------------------------------------------

    def prepare(self, entry_id: int, room: int | None = None) -> PreparedIndex:
        """Encode the changes since the last commit for the entries from ``entry_id`` on, each with at most ``room``
        bytes of nodes, including framing.

        Callers must call :meth:`commit` when all entries are durable, or :meth:`abort`. Changes in between belong to
        the next flush. An exception leaves the index unchanged.
        """
        if self._writer is not None:
            raise IllegalOperationError("the index is already being written")
        writer = _NodeWriter(entry_id, room)
        root = bytearray()
        for number in (self._count, self.acked, self.partial, self.page_bytes):
            wire_format.write_varint(root, number)
        if self._count:
            for number in self._write(self._root, writer):
                wire_format.write_varint(root, number)
        self._writer = writer
        return PreparedIndex(
            entry_id, bytes(root), writer.nodes, self._root.weight if self._count else 0, self.page_bytes
        )

    def _write(self, node: _Node, writer: _NodeWriter) -> NodeRef:
        if node.ref is not None:
            return node.ref
        if isinstance(node, _Leaf):
            raw = encode_leaf(node.keys, node.refs)
            node.weight = len(raw)
        else:
            refs = [child.ref or self._write(child, writer) for child in node.children]
            raw = encode_inner(node.level, node.firsts, refs)
            node.weight = len(raw) + sum([child.weight for child in node.children])
        return writer.put(node, raw)

    def commit(self) -> None:
        """Mark the prepared nodes clean, except nodes that have changed since."""
        for node, changes, raw, ref in self._end_write().written:
            if node.changes != changes:
                continue
            if isinstance(node, _Leaf):
                node.mark_clean(raw, ref)
            else:
                node.ref = ref

    def abort(self) -> None:
        """Discard the prepared nodes, so that the next flush writes them."""
        self._end_write()

    @property
    def is_prepared(self) -> bool:
        """True between :meth:`prepare` and :meth:`commit` or :meth:`abort`."""
        return self._writer is not None

    def _end_write(self) -> _NodeWriter:
        writer = self._writer
        if writer is None:
            raise IllegalOperationError("the index is not being written")
        self._writer = None
        return writer

    @classmethod
    def read(cls, root: bytes, load: Load, *, cursor: str = "") -> PageIndex:
        """Read the index that was prepared with ``root``. Raises :class:`CursorDamagedError`, which names ``cursor``,
        for damaged nodes, and passes exceptions of ``load`` through."""
        return _IndexReader(cursor, load).index(root)

    @classmethod
    def build(cls, items: Iterable[tuple[int, PageRef]]) -> PageIndex:
        """Build an index from items in ascending order. None of its nodes is stored."""
        index = cls()
        pairs = list(items)
        nodes: list[_Node] = []
        for at in range(0, len(pairs), _Leaf.capacity):
            group_items = pairs[at : at + _Leaf.capacity]
            nodes.append(_Leaf([ledger_id for ledger_id, _ in group_items], [ref for _, ref in group_items]))
        for _, ref in pairs:
            index._count_page(ref, 1)
        level = 0
        while len(nodes) > 1:
            level += 1
            groups = [nodes[at : at + _Inner.capacity] for at in range(0, len(nodes), _Inner.capacity)]
            nodes = [_Inner(level, [child.first for child in group], group) for group in groups]
        if nodes:
            index._root = nodes[0]
        return index


def _leaves(node: _Node) -> Iterator[_Leaf]:
    if isinstance(node, _Leaf):
        yield node
    else:
        for child in node.children:
            yield from _leaves(child)


def _mark_dirty(path: list[tuple[_Inner, int]], leaf: _Leaf) -> None:
    for inner, _ in path:
        inner.mark_dirty()
    leaf.mark_dirty()


def _split(node: _Node, at_end: bool) -> _Node | None:
    """Split an overfull node, and return its new right neighbor. A split after an insertion at the end leaves a full
    node, because user ledgers are mostly added in ascending order."""
    if len(node) <= node.capacity:
        return None
    return node.split(node.capacity if at_end else len(node) // 2)


def _rebalance_child(inner: _Inner, child: int) -> None:
    """Drop a child after a removal if it is empty, merge it if it is small, and update its first user ledger."""
    node = inner.children[child]
    if not len(node):
        del inner.firsts[child], inner.children[child]
        return
    inner.firsts[child] = node.first
    if _is_small(inner, child):
        _merge(inner, max(child - 1, 0))


def _merge(inner: _Inner, left: int) -> None:
    """Merge two neighbors, or distribute their items evenly if one node cannot hold them."""
    node, other = inner.children[left], inner.children[left + 1]
    node.mark_dirty()
    other.mark_dirty()
    if isinstance(node, _Leaf) and isinstance(other, _Leaf):
        node.merge(other)
    elif isinstance(node, _Inner) and isinstance(other, _Inner):
        seam = len(node)
        node.merge(other)
        # Either node may have had a single small child, which had no neighbor to merge with.
        for child in (seam, seam - 1):
            if _is_small(node, child):
                _merge(node, max(child - 1, 0))
    inner.firsts[left] = node.first
    if len(node) > node.capacity:
        half = node.split(len(node) // 2)
        inner.firsts[left + 1], inner.children[left + 1] = half.first, half
    else:
        del inner.firsts[left + 1], inner.children[left + 1]


def _is_small(inner: _Inner, child: int) -> bool:
    """Return True if the child must be merged with a neighbor, and has one."""
    if not 0 <= child < len(inner) or len(inner) < 2:
        return False
    node = inner.children[child]
    return len(node) <= node.capacity // _MIN_FILL


class _IndexReader:
    """Builds an index from stored nodes, and verifies each node against its reference."""

    def __init__(self, cursor: str, load: Load) -> None:
        self._cursor = cursor
        self._load = load
        self._index = PageIndex()

    def index(self, root: bytes) -> PageIndex:
        index = self._index
        numbers = []
        at = 0
        try:
            while at < len(root):
                number, at = wire_format.read_varint(root, at, len(root))
                numbers.append(number)
            count, acked, partial, page_bytes, *place = numbers
            ref = NodeRef._make(place) if place or count else None
        except (TypeError, ValueError) as error:
            raise CursorDamagedError(f"cursor {self._cursor!r}: the root of its index is damaged: {error}") from error
        if ref is not None:
            index._root = self._node(ref, None, 0, None)
        if (count, acked, partial, page_bytes) != (len(index), index.acked, index.partial, index.page_bytes):
            raise CursorDamagedError(f"cursor {self._cursor!r}: the sums over its index do not match its root")
        return index

    def _node(self, ref: NodeRef, level: int | None, lower: int, bound: int | None) -> _Node:
        """Read a node, whose user ledgers must be at least ``lower`` and less than ``bound``."""
        raw = self._load(ref.entry_id, ref.slot)
        if google_crc32c.value(raw) != ref.crc:
            raise self._damaged(ref, "its checksum does not match")
        if level is None:
            level = level_of(raw)
        try:
            if level:
                keys, refs = decode_inner(raw, level)
            else:
                keys, sums = sum_leaf(raw)
        except ValueError as error:
            raise self._damaged(ref, error) from error
        if keys[0] < lower or (bound is not None and keys[-1] >= bound):
            raise self._damaged(ref, "it contains user ledgers of other nodes")
        if not level:
            leaf = _Leaf(keys, [])
            self._index._count_pages(sums, 1)
            leaf.mark_clean(raw, ref)
            return leaf
        bounds = [*keys[1:], bound]
        inner = _Inner(
            level, keys, [self._node(*child) for child in zip(refs, [level - 1] * len(keys), keys, bounds, strict=True)]
        )
        inner.ref = ref
        inner.weight = len(raw) + sum([child.weight for child in inner.children])
        return inner

    def _damaged(self, ref: NodeRef, why: object) -> CursorDamagedError:
        return CursorDamagedError(
            f"cursor {self._cursor!r}: slot {ref.slot} of entry {ref.entry_id} is not the expected node of the index:"
            f" {why}"
        )
