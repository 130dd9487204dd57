"""The header pages of an LMDB file (0.9, 64 bits, little-endian), of which there are two: commits go to them in turn.

The first word of a tree's record is not used by LMDB, which keeps the size of a page in that of the free pages; the
last one is the page of its root.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import namedtuple

import google_crc32c

from bookstand.errors import BookstandError, StoreDamagedError, StoreError, StoreFormatError, WriteError
from bookstand.proto.struct_layout import Layout
from bookstand.storage.lmdb.errors import FULL, disk_full
from bookstand.storage.process.interrupt_guard import is_interruption

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


class MetaPages:
    """The header pages of a data file that is written to. Callers hold LMDB's lock of writers.

    A header page that LMDB could not write may be on the disk nevertheless, although LMDB shows the commit before it.
    The next commit uses the same pages again: until that header page is replaced on the disk, a power cut would let it
    refer to pages of another commit. And a header page that was written by a process which has died may be in the
    system's cache only, where the system takes it for written if the device failed. Neither can be seen by the number
    of the newest commit, and LMDB looks at nothing else.
    """

    # From the map's size on, as LMDB writes it: within one sector.
    _START = 32
    _NUMBER = struct.Struct("<Q")

    def __init__(self, path: str, page_size: int) -> None:
        self._path = path
        self._page_size = page_size
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if is_interruption(error):
                raise
            raise StoreError(f"cannot open {path}: {error}") from error

    def close(self) -> None:
        """Close the file. Nothing is done if that was done already."""
        file = self._file
        if file < 0:
            return
        # No interruption comes between these two.
        self._file = -1
        try:
            os.close(file)
        except OSError as error:
            # All that was written was synced.
            if is_interruption(error):
                raise

    def prepare(self, number: int, before: int | None, is_own: bool) -> int:
        """Make sure that commit ``number`` can use the pages that LMDB takes for free.

        ``before`` is the checksum of the header page that the newest commit replaces as the newest one, None if it is
        unknown; ``is_own``: the newest commit was confirmed to this process. Return the checksum of its header page.
        """
        try:
            newest, older = self._read(number - 1)
            if before != google_crc32c.value(older):
                self._rewrite(number - 1, newest, older)
            elif not is_own:
                # The first sync of the commit writes it.
                self._write(number - 1, newest)
        except OSError as error:
            if is_interruption(error):
                raise
            raise self._error(error) from error
        return int(google_crc32c.value(newest))

    def rewrite(self, newest: int) -> None:
        """Write both header pages again, and sync them. Afterwards the one that is not of commit ``newest``, the newest
        one, has a lower number, also if a later commit wrote it, which has failed."""
        self._rewrite(newest, *self._read(newest))

    def _rewrite(self, number: int, newest: bytes, older: bytes) -> None:
        self._write(number, newest)
        self._write(number - 1, older[: -self._NUMBER.size] + self._NUMBER.pack(number - 1))
        os.fdatasync(self._file)

    def _read(self, number: int) -> tuple[bytes, bytes]:
        """The header page of the newest commit, which has this number, and the other one."""
        found = os.pread(self._file, self._page_size + META_BYTES, 0)
        if len(found) != self._page_size + META_BYTES:
            raise OSError(errno.EIO, "the header pages were read only in part")
        pages = found[self._START : META_BYTES], found[self._page_size + self._START :]
        newest = pages[number % META_PAGES]
        (stored,) = self._NUMBER.unpack_from(newest, len(newest) - self._NUMBER.size)
        if stored != number:
            raise StoreDamagedError(
                f"{self._path} is damaged: the header page of commit {number}, the newest one, has the number {stored}"
            )
        return newest, pages[(number + 1) % META_PAGES]

    def _write(self, number: int, page: bytes) -> None:
        if os.pwrite(self._file, page, number % META_PAGES * self._page_size + self._START) != len(page):
            raise OSError(errno.EIO, "a header page was written only in part")

    def _error(self, error: OSError) -> BookstandError:
        about = f"cannot write the header pages of {self._path}, so nothing is committed: {error}"
        return disk_full(about, error) if error.errno in FULL else WriteError(about)
