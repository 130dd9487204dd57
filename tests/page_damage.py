"""Damage to the pages of a store's file that LMDB does not see: it ends the process, or writes over what is in use."""

from __future__ import annotations

import struct
from pathlib import Path

from bookstand.storage.lmdb.meta_page import SMALLEST_PAGE, parse_meta
from bookstand.storage.lmdb.pages import Branch, Leaf, parse_page
from bookstand.storage.repair.salvage import Salvage
from tests.kit import data_file

_PAGE_NUMBER = struct.Struct("<Q")
_ROOT_OF_FREE = 80
"""Where a header page has the root of the tree of free pages: the last word of its record."""


def zero_leaf(path: Path) -> None:
    """A page of entries, not the first one: LMDB ends the process that goes on to it from the one before."""
    with Salvage(str(data_file(path))) as found:
        number = found.trees[b"entries"].root
        while isinstance(page := parse_page(found.file.page(number) or b""), Branch):
            number = page.children[1][1]
        size = found.file.page_size
    _write_over(path, number * size, bytes(size))


def spoil_free_list(path: Path) -> None:
    """A page in use is listed as free: what is written next is written over it."""
    data = data_file(path).read_bytes()
    newest = max((0, SMALLEST_PAGE), key=lambda offset: parse_meta(data[offset:]) or ())
    (root,) = _PAGE_NUMBER.unpack_from(data, newest + _ROOT_OF_FREE)
    with Salvage(str(data_file(path))) as found:
        page = found.file.page(root) or b""
        used = found.trees[b"entries"].root
    leaf = parse_page(page)
    assert isinstance(leaf, Leaf)
    listed = leaf.nodes[0].value
    assert len(listed) > _PAGE_NUMBER.size, "it lists none"
    last = root * SMALLEST_PAGE + page.index(listed) + len(listed) - _PAGE_NUMBER.size
    _write_over(path, last, _PAGE_NUMBER.pack(used))


def _write_over(path: Path, offset: int, data: bytes) -> None:
    with open(data_file(path), "r+b") as file:
        file.seek(offset)
        file.write(data)
