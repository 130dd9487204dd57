"""The header pages of an LMDB file (0.9, 64 bits, little-endian), of which there are two: commits go to them in turn.

::

    0            16     20       24       32        40                88         136        144
    +------------+------+--------+--------+---------+-----------------+----------+----------+------------+
    | page header| magic| version| address| map size| tree: free pages| main tree| last page| transaction|
    +------------+------+--------+--------+---------+-----------------+----------+----------+------------+

The first word of a tree record is not used by LMDB, which keeps the size of a page in that of the free pages; the last
one is the page of its root.
"""

from __future__ import annotations

import struct
from collections import namedtuple

from bookstand.errors import StoreFormatError

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

_META = struct.Struct("<16xIIQQI44x40xQQQ")
_MAGIC = 0xBEEFC0DE
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
