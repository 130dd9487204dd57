"""LMDB's pages, taken apart without LMDB: it believes what it reads, and a damaged page may end the process.

The layout is that of LMDB 0.9 on 64 bits, little-endian. Every page begins with a header, and what follows depends on
the kind that its flags tell. Branches and leaves have the offsets of their nodes, two bytes each, up to ``lower``. On
an overflow page the value follows the header, in which the number of its pages stands in place of ``lower`` and
``upper``. Meta pages are those of :mod:`bookstand.storage.lmdb.meta_page`.

Nothing here raises for what is in a page: what cannot be is left out, and counted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

from bookstand.errors import StoreFormatError
from bookstand.proto.struct_layout import Layout
from bookstand.storage.lmdb.meta_page import META_PAGES, SMALLEST_PAGE, Meta, parse_meta

_PAGE_SIZES = (SMALLEST_PAGE, 1 << 13, 1 << 14, 1 << 15)
NO_PAGE = (1 << 64) - 1

PAGE = Layout(
    "the header of a page of LMDB",
    ("page", "Q", "its number"),
    ("padding", "H", ""),
    ("flags", "H", "1: branch, 2: leaf, 4: overflow"),
    ("lower", "H", "where the free space begins"),
    ("upper", "H", "where the free space ends"),
    order="<",
)
BRANCH_NODE = Layout(
    "a node of a branch",
    ("page low", "H", "the lowest 16 bits of the child's number"),
    ("page middle", "H", "the next 16"),
    ("page high", "H", "the highest 16"),
    ("key size", "H", ""),
    ("key", "key size bytes", "the lowest one below the child"),
    order="<",
)
LEAF_NODE = Layout(
    "a node of a leaf",
    ("size low", "H", "the lower 16 bits of the value's size"),
    ("size high", "H", "the higher 16"),
    ("flags", "H", "1: the value is on pages of its own; 2: it is the record of a tree"),
    ("key size", "H", ""),
    ("key", "key size bytes", ""),
    ("value", "size bytes", "or the number of the page where it begins, 8 bytes"),
    order="<",
)
TREE = Layout(
    "the record of a tree, a value in the main tree",
    ("padding", "I", ""),
    ("flags", "H", ""),
    ("depth", "H", ""),
    ("branch pages", "Q", ""),
    ("leaf pages", "Q", ""),
    ("overflow pages", "Q", ""),
    ("records", "Q", ""),
    ("root", "Q", "the number of its page"),
    order="<",
)
_HEADER, _TREE, _BRANCH_NODE, _NODE = PAGE.struct, TREE.struct, BRANCH_NODE.struct, LEAF_NODE.struct
_OFFSET = struct.Struct("<H")
_PAGE = struct.Struct("<Q")

_BRANCH, _LEAF, _OVERFLOW = 0x01, 0x02, 0x04
_KIND = 0x7F & ~0x10
_BIG, _TREE_BELOW = 0x01, 0x02


class Tree(NamedTuple):
    records: int
    root: int
    """:data:`NO_PAGE` if it is empty."""


class Node(NamedTuple):
    key: bytes
    value: bytes
    size: int
    """Of the value, where it begins on page ``overflow`` and is not in ``value``."""
    overflow: int | None
    is_tree: bool


class Leaf(NamedTuple):
    nodes: list[Node]
    broken: int
    """Nodes that cannot be."""


class Branch(NamedTuple):
    children: list[tuple[bytes, int]]
    """Lowest key and page of each; the key of the first counts for nothing."""
    broken: int


def parse_tree(value: bytes) -> Tree | None:
    if len(value) != _TREE.size:
        return None
    *_, records, root = _TREE.unpack(value)
    return Tree(records, root)


def parse_page(page: bytes) -> Leaf | Branch | None:
    """None for pages of other kinds, and for what is no page."""
    _, _, flags, lower, upper = _HEADER.unpack_from(page)
    if flags & _KIND not in (_LEAF, _BRANCH) or not _HEADER.size <= lower <= upper <= len(page):
        return None
    offsets = [offset for (offset,) in _OFFSET.iter_unpack(page[_HEADER.size : lower - lower % 2])]
    if flags & _KIND == _BRANCH:
        children = [child for offset in offsets if (child := _child(page, offset, upper)) is not None]
        return Branch(children, len(offsets) - len(children))
    nodes = [node for offset in offsets if (node := _node(page, offset, upper)) is not None]
    return Leaf(nodes, len(offsets) - len(nodes))


def _child(page: bytes, offset: int, upper: int) -> tuple[bytes, int] | None:
    start = offset + _BRANCH_NODE.size
    if offset < upper or start > len(page):
        return None
    low, middle, high, key_size = _BRANCH_NODE.unpack_from(page, offset)
    if start + key_size > len(page):
        return None
    return page[start : start + key_size], low | middle << 16 | high << 32


def _node(page: bytes, offset: int, upper: int) -> Node | None:
    start = offset + _NODE.size
    if offset < upper or start > len(page):
        return None
    low, high, flags, key_size = _NODE.unpack_from(page, offset)
    size = low | high << 16
    end = start + key_size
    stored = _PAGE.size if flags & _BIG else size
    if not key_size or end + stored > len(page):
        return None
    key, value = page[start:end], page[end : end + stored]
    return Node(key, value, size, _PAGE.unpack(value)[0] if flags & _BIG else None, bool(flags & _TREE_BELOW))


def estimate_pages(sizes: Iterable[int], key_size: int, page_size: int) -> int:
    """How many pages values of these sizes take that were written one behind the other: large ones have pages of their
    own, and the rest is on leaves. Branches are few, and not counted."""
    room = page_size - _HEADER.size
    # As LMDB reckons: a leaf has two nodes at least.
    largest = (room // 2 & -2) - _OFFSET.size
    own = leaves = 0
    free = 0
    for size in sizes:
        node = _NODE.size + key_size + size
        if node > largest:
            own += -(-(_HEADER.size + size) // page_size)
            node = _NODE.size + key_size + _PAGE.size
        node += node % 2 + _OFFSET.size
        if node > free:
            leaves += 1
            free = room
        free -= node
    return own + leaves


def page_number(page: bytes) -> int:
    """Which page it says that it is."""
    number: int = _PAGE.unpack_from(page)[0]
    return number


class PageReader:
    """A data file by pages, which are read and not mapped: neither its end nor a broken disk ends the process."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.identity = self._stamp()
        self.bytes = os.fstat(self._file).st_size
        self.bytes_read = 0
        self.page_size = SMALLEST_PAGE
        self.metas = self._read_metas()

    def close(self) -> None:
        os.close(self._file)

    @property
    def changed(self) -> bool:
        """Whether somebody has written to it since."""
        return self._stamp() != self.identity

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    @property
    def pages(self) -> int:
        """A page that was cut off counts."""
        return -(-self.bytes // self.page_size)

    def _read_metas(self) -> list[Meta | None]:
        found = [_meta_of(self.read(0, SMALLEST_PAGE))]
        # Where the first one is damaged, the second one is where it is most often.
        told = [] if found[0] is None else [found[0].page_size]
        for size in filter(_may_be_page_size, [*told, *_PAGE_SIZES]):
            meta = _meta_of(self.read(size, SMALLEST_PAGE))
            if meta is not None:
                found.append(meta)
                self.page_size = size
                return found
        if found[0] is not None and _may_be_page_size(found[0].page_size):
            self.page_size = found[0].page_size
        return [*found, None]

    def page(self, number: int) -> bytes | None:
        """None if it is not in the file, or not to be read. What is cut off is zeros."""
        if number >= self.pages:
            return None
        start = number * self.page_size
        found = self.read(start, min(self.page_size, self.bytes - start))
        return None if found is None else found.ljust(self.page_size, b"\0")

    def read(self, offset: int, size: int) -> bytes | None:
        """None unless all of it is there."""
        if size < 0 or offset + size > self.bytes:
            return None
        try:
            found = os.pread(self._file, size, offset)
        except OSError:
            return None
        self.bytes_read += len(found)
        return found if len(found) == size else None

    def extent(self, page: bytes, number: int) -> int:
        """How many pages the value takes that begins on this one; 1 for pages of any other kind."""
        told, _, flags, lower, upper = _HEADER.unpack_from(page)
        count = lower | upper << 16
        begins = told == number and flags & _KIND == _OVERFLOW and number + count <= self.pages
        return max(1, count) if begins else 1

    def begins(self, node: Node, size: int) -> bytes:
        """The first bytes of a value, as far as they are to be had."""
        if node.overflow is None:
            return node.value[:size]
        return self.read(node.overflow * self.page_size + _HEADER.size, size) or b""

    def value(self, node: Node) -> bytes | None:
        """None if it is not to be had."""
        if node.overflow is None:
            return node.value if len(node.value) == node.size else None
        if node.overflow < META_PAGES or node.overflow >= self.pages:
            return None
        # Whatever the header of that page says: what the value is worth, its digest or seal tells.
        return self.read(node.overflow * self.page_size + _HEADER.size, node.size)


def _may_be_page_size(size: int) -> bool:
    return size in _PAGE_SIZES


def _meta_of(page: bytes | None) -> Meta | None:
    """A number of another version may be damage as well: which it is, the other page and the rest of the file tell."""
    try:
        return parse_meta(page or b"")
    except StoreFormatError:
        return None


def newest_commit(path: str) -> int:
    """The number of the last commit that a data file's header tells of; 0 where nothing was ever committed to it."""
    file = PageReader(path)
    try:
        return max((meta.transaction for meta in file.metas if meta is not None), default=0)
    finally:
        file.close()
