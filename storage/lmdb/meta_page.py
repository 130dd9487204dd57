"""The two meta pages of an LMDB file (0.9, 64 bits, little-endian), which commits write alternately.

LMDB does not use the first word of a tree's record, except that the record of the free list has the page size there.
The last word is the page number of the root.
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
        """``root`` is that of the main tree, whose values are the records of the other trees."""

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
    ("page size", "I", "the first word of the record of the free list"),
    ("free list", "44x", "the rest of that record"),
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
    """Decode a meta page; None if it is not one."""
    if len(page) < _META.size:
        return None
    magic, version, _, _, page_size, root, last_page, transaction = _META.unpack_from(page)
    if magic != _MAGIC:
        return None
    if version != 1:
        raise StoreFormatError(f"the data file has LMDB data format {version}; bookstand uses 1 (LMDB 0.9)")
    return Meta(transaction, last_page, page_size, root)


class MetaPages:
    """The meta pages of a data file open for writing. Callers hold LMDB's writer lock.

    A meta page that LMDB failed to write may have reached the disk, although LMDB shows the commit before it. The next
    commit reuses the same data pages: until that meta page is replaced on the disk, a power failure would make it refer
    to pages of another commit. Conversely, a meta page written by a process that has died may exist only in the page
    cache, where the kernel considers it clean if the device failed. Neither case is visible in the number of the newest
    commit, and LMDB checks nothing else.
    """

    # From the map size on, as LMDB writes it: within one sector.
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
        """Close the file, if it is open."""
        file = self._file
        if file < 0:
            return
        # No interruption can arrive between this line and the next call.
        self._file = -1
        try:
            os.close(file)
        except OSError as error:
            # Everything written has been synced.
            if is_interruption(error):
                raise

    def prepare(self, number: int, before: int | None, is_own: bool) -> int:
        """Ensure that commit ``number`` can reuse the pages that LMDB considers free.

        ``before`` is the checksum of the meta page that the newest commit superseded, None if unknown. ``is_own``: the
        newest commit was confirmed to this process. Return the checksum of the newest commit's meta page.
        """
        try:
            newest, older = self._read(number - 1)
            if before != google_crc32c.value(older):
                self._rewrite(number - 1, newest, older)
            elif not is_own:
                # The first sync of the commit makes it durable.
                self._write(number - 1, newest)
        except OSError as error:
            if is_interruption(error):
                raise
            raise self._error(error) from error
        return int(google_crc32c.value(newest))

    def rewrite(self, newest: int) -> None:
        """Rewrite and sync both meta pages. Afterwards the older one has a lower number than commit ``newest``, even if
        a later commit, which failed, wrote it."""
        self._rewrite(newest, *self._read(newest))

    def _rewrite(self, number: int, newest: bytes, older: bytes) -> None:
        self._write(number, newest)
        self._write(number - 1, older[: -self._NUMBER.size] + self._NUMBER.pack(number - 1))
        os.fdatasync(self._file)

    def _read(self, number: int) -> tuple[bytes, bytes]:
        """Return the meta page of the newest commit, ``number``, and the other one."""
        found = os.pread(self._file, self._page_size + META_BYTES, 0)
        if len(found) != self._page_size + META_BYTES:
            raise OSError(errno.EIO, "the meta pages were read only in part")
        pages = found[self._START : META_BYTES], found[self._page_size + self._START :]
        newest = pages[number % META_PAGES]
        (stored,) = self._NUMBER.unpack_from(newest, len(newest) - self._NUMBER.size)
        if stored != number:
            raise StoreDamagedError(
                f"{self._path} is damaged: the meta page of commit {number}, the newest one, has the number {stored}"
            )
        return newest, pages[(number + 1) % META_PAGES]

    def _write(self, number: int, page: bytes) -> None:
        if os.pwrite(self._file, page, number % META_PAGES * self._page_size + self._START) != len(page):
            raise OSError(errno.EIO, "a meta page was written only in part")

    def _error(self, error: OSError) -> BookstandError:
        about = f"cannot write the meta pages of {self._path}, so nothing is committed: {error}"
        return disk_full(about, error) if error.errno in FULL else WriteError(about)
