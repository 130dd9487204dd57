"""Decoder of LMDB pages that does not use LMDB: LMDB trusts every page, and a damaged one may crash the process.

The layout is that of LMDB 0.9 on 64 bits, little-endian. Every page begins with a header whose flags determine the kind
of page. Branches and leaves have the offsets of their nodes, two bytes each, up to ``lower``. On an overflow page the
value follows the header, which has the number of pages in place of ``lower`` and ``upper``. Meta pages are decoded by
:mod:`bookstand.storage.lmdb.meta_page`.

The content of a page never raises an exception here: impossible nodes are skipped and counted.
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
    "the header of an LMDB page",
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
    ("flags", "H", "1: the value is on overflow pages; 2: it is the record of a tree"),
    ("key size", "H", ""),
    ("key", "key size bytes", ""),
    ("value", "size bytes", "or the number of its first overflow page, 8 bytes"),
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
    """:data:`NO_PAGE` if the tree is empty."""


class Node(NamedTuple):
    key: bytes
    value: bytes
    size: int
    """Size of the value. If it begins on page ``overflow``, ``value`` holds the page number."""
    overflow: int | None
    is_tree: bool


class Leaf(NamedTuple):
    nodes: list[Node]
    broken: int
    """Number of impossible nodes."""


class Branch(NamedTuple):
    children: list[tuple[bytes, int]]
    """Lowest key and page of each child; the key of the first has no meaning."""
    broken: int


def parse_tree(value: bytes) -> Tree | None:
    if len(value) != _TREE.size:
        return None
    *_, records, root = _TREE.unpack(value)
    return Tree(records, root)


def parse_page(page: bytes) -> Leaf | Branch | None:
    """Decode a leaf or branch; return None for other kinds of pages and for anything else."""
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
    """Estimate the number of leaves and overflow pages of consecutive values. Branches are few."""
    room = page_size - _HEADER.size
    # LMDB requires room for at least two nodes in a leaf.
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
    number: int = _PAGE.unpack_from(page)[0]
    return number


class PageReader:
    """Page reader of a data file. It does not map the file, so neither a short file nor a broken disk is fatal."""

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
        """Return True if the file was written to since it was opened."""
        return self._stamp() != self.identity

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    @property
    def pages(self) -> int:
        """Number of pages, including a truncated one."""
        return -(-self.bytes // self.page_size)

    def _read_metas(self) -> list[Meta | None]:
        found = [_meta_of(self.read(0, SMALLEST_PAGE))]
        # If the first meta page is damaged, try the second one at the page sizes in use.
        stated = [] if found[0] is None else [found[0].page_size]
        for size in filter(_may_be_page_size, [*stated, *_PAGE_SIZES]):
            meta = _meta_of(self.read(size, SMALLEST_PAGE))
            if meta is not None:
                found.append(meta)
                self.page_size = size
                return found
        if found[0] is not None and _may_be_page_size(found[0].page_size):
            self.page_size = found[0].page_size
        return [*found, None]

    def page(self, number: int) -> bytes | None:
        """Read a page, padded with zeros if truncated; None if it is beyond the end or unreadable."""
        if number >= self.pages:
            return None
        start = number * self.page_size
        found = self.read(start, min(self.page_size, self.bytes - start))
        return None if found is None else found.ljust(self.page_size, b"\0")

    def read(self, offset: int, size: int) -> bytes | None:
        """Read bytes; None unless all of them can be read."""
        if size < 0 or offset + size > self.bytes:
            return None
        try:
            found = os.pread(self._file, size, offset)
        except OSError:
            return None
        self.bytes_read += len(found)
        return found if len(found) == size else None

    def overflow_page_count(self, page: bytes, number: int) -> int:
        """Number of pages of the value that begins on this page; 1 for pages of any other kind."""
        stated, _, flags, lower, upper = _HEADER.unpack_from(page)
        count = lower | upper << 16
        is_first = stated == number and flags & _KIND == _OVERFLOW and number + count <= self.pages
        return max(1, count) if is_first else 1

    def value_prefix(self, node: Node, size: int) -> bytes:
        if node.overflow is None:
            return node.value[:size]
        return self.read(node.overflow * self.page_size + _HEADER.size, size) or b""

    def value(self, node: Node) -> bytes | None:
        if node.overflow is None:
            return node.value if len(node.value) == node.size else None
        if node.overflow < META_PAGES or node.overflow >= self.pages:
            return None
        # The header of that page is ignored: the value's digest or checksum decides whether it is valid.
        return self.read(node.overflow * self.page_size + _HEADER.size, node.size)


def _may_be_page_size(size: int) -> bool:
    return size in _PAGE_SIZES


def _meta_of(page: bytes | None) -> Meta | None:
    """Decode a meta page; None also for an unknown version, which may be damage: the rest of the file decides that."""
    try:
        return parse_meta(page or b"")
    except StoreFormatError:
        return None


def newest_commit(path: str) -> int:
    """Number of the newest commit in a data file's meta pages; 0 if nothing was ever committed."""
    file = PageReader(path)
    try:
        return max((meta.transaction for meta in file.metas if meta is not None), default=0)
    finally:
        file.close()
