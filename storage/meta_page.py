"""The header pages of an LMDB file (0.9, 64 bits, little-endian), of which there are two: commits go to them in turn.

The first word of a tree's record is not used by LMDB, which keeps the size of a page in that of the free pages; the
last one is the page of its root.
"""

from __future__ import annotations

from collections import namedtuple

from bookstand.errors import StoreFormatError
from bookstand.proto.layout import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Meta(NamedTuple):
        """``root`` is that of the main tree, whose values are the other trees."""

        transaction: int
        last_page: int
        page_size: int
        root: int

else:
    Meta = namedtuple("Meta", ["transaction", "last_page", "page_size", "root"])

META_PAGES = 2
SMALLEST_PAGE = 4096

_MAGIC = 0xBEEFC0DE
META = Layout(
    "a meta page of LMDB 0.9, of which there are two",
    ("page header", "16x", ""),
    ("magic", "I", f"`{_MAGIC:#x}`"),
    ("version", "I", ""),
    ("address", "Q", ""),
    ("map size", "Q", ""),
    ("page size", "I", "the first word of the record of the tree of free pages"),
    ("free pages", "44x", "the rest of that record"),
    ("main tree", "40x", "its record but for the last word; its values are the other trees"),
    ("root", "Q", "that last word: the root's page"),
    ("last page", "Q", "the last one in use"),
    ("commit", "Q", "LMDB's transaction id"),
    order="<",
)
_META = META.struct
META_BYTES = _META.size
assert META_BYTES == 152


def parse_meta(page: bytes) -> Meta | None:
    """None if it is none."""
    if len(page) < _META.size:
        return None
    magic, version, _, _, page_size, root, last_page, transaction = _META.unpack_from(page)
    if magic != _MAGIC:
        return None
    if version != 1:
        raise StoreFormatError(f"the data file is of LMDB's data format {version}; bookstand's is 1 (LMDB 0.9)")
    return Meta(transaction, last_page, page_size, root)
