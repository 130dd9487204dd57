"""The index of a cursor: user ledger -> where its page is. A copy-on-write B+-tree over the entries of its ledger.

A flush writes the nodes that changed since the last one, from the leaves up to the root, and refers to all others where
they stand already; so it costs what has changed, and the depth of the tree, not the number of user ledgers. The nodes
of one flush go into its marker, and into records before it if they are too many; node.py has their layout. Every
reference to a node carries the checksum of its bytes, down from the root in the marker, so that a node of another time
or of another cursor is not taken for the one that was meant.

In memory a leaf that is stored stays in its stored form, some 15 bytes for a user ledger, and is decoded when it
changes. Nothing here is safe between threads, and nothing does I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Set
from typing import NamedTuple

import google_crc32c

from bookstand.cursor.errors import CursorDamagedError
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
from bookstand.cursor.format.page_ref import PageRef
from bookstand.errors import EntryTooLargeError, IllegalOperationError
from bookstand.proto import wire_format
from bookstand.proto.struct_layout import Layout

Load = Callable[[int, int], bytes]
"""(entry id, slot) -> the bytes of the node there."""

ROOT = Layout(
    "the root of a cursor's index",
    ("count", "varint", "user ledgers"),
    ("acked", "varint", "entries that are acknowledged, of all pages"),
    ("partial", "varint", "entries that are acknowledged in part, of all pages"),
    ("size", "varint", "bytes of all pages"),
    ("entry id", "varint, if count > 0", "where the uppermost node is"),
    ("slot", "varint, if count > 0", "which of the nodes there it is"),
    ("CRC32C", "varint, if count > 0", "of that node's bytes"),
)

# With no more than this fraction of its items a node is joined to its neighbour, when something is removed from it.
_FEWEST = 4
# What a record needs for a node besides its bytes: a tag and a length.
NODE_FRAMING = 2 + 3


class _Leaf:
    """Decoded while ``raw`` is None; otherwise only the first user ledger is at hand."""

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

    def touch(self) -> None:
        """It is about to change: decode it, and forget where it is stored."""
        if self.raw is not None:
            self.keys, self.refs = decode_leaf(self.raw)
            self.raw = None
        self.ref = None
        self.changes += 1

    def settle(self) -> None:
        """It has changed."""
        if self.keys:
            self.first = self.keys[0]

    def freeze(self, raw: bytes, ref: NodeRef) -> None:
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

    def cut(self, at: int) -> _Leaf:
        """The items from ``at`` on leave for a new leaf."""
        other = _Leaf(self.keys[at:], self.refs[at:])
        del self.keys[at:], self.refs[at:]
        return other

    def join(self, other: _Leaf) -> None:
        self.keys += other.keys
        self.refs += other.refs


class _Inner:
    """``firsts`` are the first user ledgers of the children."""

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

    def touch(self) -> None:
        self.ref = None
        self.changes += 1

    def settle(self) -> None:
        pass

    def child_for(self, ledger_id: int) -> int:
        return max(bisect_right(self.firsts, ledger_id) - 1, 0)

    def cut(self, at: int) -> _Inner:
        other = _Inner(self.level, self.firsts[at:], self.children[at:])
        del self.firsts[at:], self.children[at:]
        return other

    def join(self, other: _Inner) -> None:
        self.firsts += other.firsts
        self.children += other.children


_Node = _Leaf | _Inner


class PreparedIndex(NamedTuple):
    """What a flush has to write of the index.

    ``nodes`` has one list for each entry, from ``entry_id`` on: all but the last become records of nodes, the last one
    goes into the marker. ``node_bytes`` and ``page_bytes`` are the sizes of all nodes and pages that the root leads to.
    """

    entry_id: int
    root: bytes
    nodes: list[list[bytes]]
    node_bytes: int
    page_bytes: int

    @property
    def marker_entry_id(self) -> int:
        return self.entry_id + len(self.nodes) - 1


class _Writing:
    """Nodes on their way into entries."""

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
                    f"a node of the index takes {size} bytes, but an entry has {self._room} for it"
                )
            self.nodes.append([])
            self._used = size
        ref = NodeRef(self.entry_id + len(self.nodes) - 1, len(self.nodes[-1]), google_crc32c.value(raw))
        self.nodes[-1].append(raw)
        self.written.append((node, node.changes, raw, ref))
        return ref


class PageIndex:
    """A sorted map from user ledger ids to :class:`PageRef`, and how it is stored.

    ``acked``, ``partial`` and ``page_bytes`` are the sums over all pages.
    """

    def __init__(self) -> None:
        self.acked = 0
        self.partial = 0
        self.page_bytes = 0
        self._count = 0
        self._root: _Node = _Leaf([], [])
        self._writing: _Writing | None = None

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
        """The highest user ledger; -1 if there is none."""
        node = self._root
        while isinstance(node, _Inner):
            node = node.children[-1]
        keys, _ = node.items()
        return keys[-1] if keys else -1

    def items(self) -> Iterator[tuple[int, PageRef]]:
        """In ascending order. The index must not change meanwhile."""
        for leaf in _leaves(self._root):
            yield from zip(*leaf.items(), strict=True)

    def acked_counts(self) -> Iterator[tuple[int, int]]:
        """Yield each user ledger and its number of acknowledged entries, in ascending order. The index must not change
        meanwhile."""
        for leaf in _leaves(self._root):
            yield from zip(*leaf.acked(), strict=True)

    def set(self, ledger_id: int, ref: PageRef) -> None:
        path, leaf = self._descend(ledger_id)
        _touch(path, leaf)
        at = bisect_left(leaf.keys, ledger_id)
        if at < len(leaf.keys) and leaf.keys[at] == ledger_id:
            self._count_page(leaf.refs[at], -1)
            leaf.refs[at] = ref
        else:
            leaf.keys.insert(at, ledger_id)
            leaf.refs.insert(at, ref)
        self._count_page(ref, 1)
        self._settle_growth(path, leaf, at + 1 == len(leaf))

    def remove(self, ledger_id: int) -> PageRef | None:
        """What was there."""
        path, leaf = self._descend(ledger_id)
        ref = leaf.find(ledger_id)
        if ref is None:
            return None
        _touch(path, leaf)
        at = bisect_left(leaf.keys, ledger_id)
        del leaf.keys[at], leaf.refs[at]
        self._count_page(ref, -1)
        leaf.settle()
        for inner, child in reversed(path):
            _settle_child(inner, child)
        self._settle_root()
        return ref

    def remove_below(self, ledger_id: int) -> int:
        """Remove the user ledgers with lower ids. Returns how many there were."""
        before = self._count
        if before and self._root.first < ledger_id:
            self._trim(self._root, ledger_id)
            self._settle_root()
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

    def _settle_growth(self, path: list[tuple[_Inner, int]], leaf: _Leaf, at_end: bool) -> None:
        """Divide what has become too large, from the leaf up."""
        leaf.settle()
        node: _Node = leaf
        sibling = _divide(leaf, at_end)
        for inner, child in reversed(path):
            inner.firsts[child] = node.first
            if sibling is not None:
                inner.firsts.insert(child + 1, sibling.first)
                inner.children.insert(child + 1, sibling)
            node = inner
            sibling = _divide(inner, child + 2 == len(inner))
        if sibling is not None:
            self._root = _Inner(node.level + 1, [node.first, sibling.first], [node, sibling])

    def _trim(self, node: _Node, ledger_id: int) -> None:
        """``node`` has something to remove."""
        node.touch()
        if isinstance(node, _Leaf):
            at = bisect_left(node.keys, ledger_id)
            for ref in node.refs[:at]:
                self._count_page(ref, -1)
            del node.keys[:at], node.refs[:at]
            node.settle()
            return
        at = node.child_for(ledger_id)
        for child in node.children[:at]:
            for leaf in _leaves(child):
                self._count_pages(leaf.sums(), -1)
        del node.firsts[:at], node.children[:at]
        if node.first < ledger_id:
            self._trim(node.children[0], ledger_id)
            _settle_child(node, 0)

    def _settle_root(self) -> None:
        """A root with one child gives way to it."""
        while isinstance(self._root, _Inner) and len(self._root) < 2:
            self._root = self._root.children[0] if len(self._root) else _Leaf([], [])

    # -- storing -------------------------------------------------------------------------------------------------------

    def prepare(self, entry_id: int, room: int | None = None) -> PreparedIndex:
        """Encode what changed since the last commit, to be written into the entries from ``entry_id`` on.

        No entry is given more than ``room`` bytes of nodes, framing included. To be followed by :meth:`commit` when all
        entries are durable, or by :meth:`abort`; the index may change in between, and these changes are of the next
        flush then. What raises here leaves everything as it was.
        """
        if self._writing is not None:
            raise IllegalOperationError("the index is being written already")
        writing = _Writing(entry_id, room)
        root = bytearray()
        for number in (self._count, self.acked, self.partial, self.page_bytes):
            wire_format.write_varint(root, number)
        if self._count:
            for number in self._write(self._root, writing):
                wire_format.write_varint(root, number)
        self._writing = writing
        return PreparedIndex(
            entry_id, bytes(root), writing.nodes, self._root.weight if self._count else 0, self.page_bytes
        )

    def _write(self, node: _Node, writing: _Writing) -> NodeRef:
        if node.ref is not None:
            return node.ref
        if isinstance(node, _Leaf):
            raw = encode_leaf(node.keys, node.refs)
            node.weight = len(raw)
        else:
            refs = [child.ref or self._write(child, writing) for child in node.children]
            raw = encode_inner(node.level, node.firsts, refs)
            node.weight = len(raw) + sum([child.weight for child in node.children])
        return writing.put(node, raw)

    def commit(self) -> None:
        """What was prepared is durable: what has not changed meanwhile need not be written again."""
        for node, changes, raw, ref in self._end_writing().written:
            if node.changes != changes:
                continue
            if isinstance(node, _Leaf):
                node.freeze(raw, ref)
            else:
                node.ref = ref

    def abort(self) -> None:
        """What was prepared did not become durable: the next flush writes it."""
        self._end_writing()

    @property
    def is_prepared(self) -> bool:
        """Whether :meth:`commit` or :meth:`abort` is to come."""
        return self._writing is not None

    def _end_writing(self) -> _Writing:
        writing = self._writing
        if writing is None:
            raise IllegalOperationError("the index is not being written")
        self._writing = None
        return writing

    @classmethod
    def read(cls, root: bytes, load: Load, *, cursor: str = "") -> PageIndex:
        """The index as it was prepared with ``root``. Nodes that are not those that were written are
        :class:`CursorDamagedError`, which names ``cursor``; what ``load`` raises comes through."""
        return _Reading(cursor, load).index(root)

    @classmethod
    def build(cls, items: Iterable[tuple[int, PageRef]]) -> PageIndex:
        """From items in ascending order; nothing of it is stored yet."""
        index = cls()
        pairs = list(items)
        nodes: list[_Node] = []
        for at in range(0, len(pairs), _Leaf.capacity):
            some = pairs[at : at + _Leaf.capacity]
            nodes.append(_Leaf([ledger_id for ledger_id, _ in some], [ref for _, ref in some]))
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

    def renumber(self, entry_of: Callable[[int, PageRef], int]) -> PageIndex:
        """The same pages in another ledger, where each begins in the entry that ``entry_of`` tells. This index stays
        as it is, so that nothing has happened if the other ledger does not come about."""
        return PageIndex.build(
            [(ledger_id, ref._replace(entry_id=entry_of(ledger_id, ref))) for ledger_id, ref in self.items()]
        )

    def nodes_below(self, entry_id: int) -> list[NodeRef]:
        """The stored nodes in entries before ``entry_id`` that are still of use."""
        return [node.ref for node in _nodes(self._root) if node.ref is not None and node.ref.entry_id < entry_id]

    def reachable(self) -> Set[int]:
        """The entries of the cursor's ledger that pages and stored nodes are in."""
        entries = {node.ref.entry_id for node in _nodes(self._root) if node.ref is not None}
        for _, ref in self.items():
            entries.update(range(ref.entry_id, ref.entry_id + ref.parts))
        return entries


def _leaves(node: _Node) -> Iterator[_Leaf]:
    if isinstance(node, _Leaf):
        yield node
    else:
        for child in node.children:
            yield from _leaves(child)


def _nodes(node: _Node) -> Iterator[_Node]:
    yield node
    if isinstance(node, _Inner):
        for child in node.children:
            yield from _nodes(child)


def _touch(path: list[tuple[_Inner, int]], leaf: _Leaf) -> None:
    for inner, _ in path:
        inner.touch()
    leaf.touch()


def _divide(node: _Node, at_end: bool) -> _Node | None:
    """The new right neighbour of a node that has become too large. What came to its end leaves a full node behind, for
    user ledgers mostly come in ascending order."""
    if len(node) <= node.capacity:
        return None
    return node.cut(node.capacity if at_end else len(node) // 2)


def _settle_child(inner: _Inner, child: int) -> None:
    """A child that something was removed from: drop it, join it to a neighbour, or note what is first in it now."""
    node = inner.children[child]
    if not len(node):
        del inner.firsts[child], inner.children[child]
        return
    inner.firsts[child] = node.first
    if _is_small(inner, child):
        _join(inner, max(child - 1, 0))


def _join(inner: _Inner, left: int) -> None:
    """Make one of two neighbours, or two of nearly equal size if together they are too large for one."""
    node, other = inner.children[left], inner.children[left + 1]
    node.touch()
    other.touch()
    if isinstance(node, _Leaf) and isinstance(other, _Leaf):
        node.join(other)
    elif isinstance(node, _Inner) and isinstance(other, _Inner):
        seam = len(node)
        node.join(other)
        # Either may have come with a single small child, which had no neighbour to be joined to before.
        for child in (seam, seam - 1):
            if _is_small(node, child):
                _join(node, max(child - 1, 0))
    inner.firsts[left] = node.first
    if len(node) > node.capacity:
        half = node.cut(len(node) // 2)
        inner.firsts[left + 1], inner.children[left + 1] = half.first, half
    else:
        del inner.firsts[left + 1], inner.children[left + 1]


def _is_small(inner: _Inner, child: int) -> bool:
    """Whether the child is to be joined to a neighbour, and there is one."""
    if not 0 <= child < len(inner) or len(inner) < 2:
        return False
    node = inner.children[child]
    return len(node) <= node.capacity // _FEWEST


class _Reading:
    """Builds an index from stored nodes, and checks on the way that each is the one that was referred to."""

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
            raise CursorDamagedError(f"cursor {self._cursor!r}: its index does not amount to what its root says")
        return index

    def _node(self, ref: NodeRef, level: int | None, least: int, bound: int | None) -> _Node:
        """The node, whose user ledgers are from ``least`` on and below ``bound``."""
        raw = self._load(ref.entry_id, ref.slot)
        if google_crc32c.value(raw) != ref.crc:
            raise self._damaged(ref, "its checksum is another")
        if level is None:
            level = level_of(raw)
        try:
            if level:
                keys, refs = decode_inner(raw, level)
            else:
                keys, sums = sum_leaf(raw)
        except ValueError as error:
            raise self._damaged(ref, error) from error
        if keys[0] < least or (bound is not None and keys[-1] >= bound):
            raise self._damaged(ref, "it has user ledgers of other nodes")
        if not level:
            leaf = _Leaf(keys, [])
            self._index._count_pages(sums, 1)
            leaf.freeze(raw, ref)
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
            f"cursor {self._cursor!r}: slot {ref.slot} of entry {ref.entry_id} is not the node of the index that"
            f" belongs there: {why}"
        )
