"""What a commit changes, written down in the header of the file: so that one sync is enough for it.

LMDB writes the pages of a commit and syncs them, and then the header page that makes them count, and waits for that as
well. Here it does not wait: before LMDB commits, the changes are written into the free rest of the header page of the
commit before. The sync of the pages takes them along, and the header page itself goes to the disk with the next
commit's. Should the power go before, the header on the disk is that of the commit before, and beside it stand the
changes of the one that followed. Whoever opens the file next repeats them (:mod:`bookstand.storage.repeating`).

Why nothing is lost: when commit N begins to write, all of N-1 is on the disk but perhaps its header page; its changes
are, beside that of N-2. N writes its own beside that of N-1, and touches neither the page of N-2 nor what stands beside
it. So one page leads to N-1 at any time, whatever becomes of the other one before it is on the disk. LMDB uses no page
anew that N-2 or N-1 need. Where N-1 was not written down, its header page is on the disk already, and N changes nothing
in the sector that tells of N-1.

A large value stands on pages of its own, which the sync takes along as well: only which one it is is written down, by
its size and checksum (:mod:`bookstand.storage.apart`).

What is too much for the rest of a page, or has more in large values than :data:`MOST_APART`, is not written down: LMDB
syncs the header page.
"""

from __future__ import annotations

import errno
import os
from collections import namedtuple
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from struct import Struct

import google_crc32c

from bookstand.proto.layout import Layout
from bookstand.storage import keys
from bookstand.storage.meta_page import META_BYTES, META_PAGES, SMALLEST_PAGE, parse_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import NamedTuple

    from bookstand.storage.meta_page import Meta

    class Apart(NamedTuple):
        """A value on pages of its own. Entries begin with their key; of others ``begins`` says nothing."""

        size: int
        crc: int
        begins: bytes = b""

    Change = tuple[bytes, bytes, bytes | None]
    """Sub-database, key, and the value; None: the record is removed. Of one commit, each record comes once."""
    Written = tuple[bytes, bytes, bytes | Apart | None]
    """A change as it is written down."""

else:
    Apart = namedtuple("Apart", ["size", "crc", "begins"], defaults=[b""])

_DESCRIPTORS = "/proc/self/fd"

# In sectors of its own, and in the smallest page there is.
START = 512
CAPACITY = SMALLEST_PAGE - START
assert START >= META_BYTES

REDO = Layout(
    "the changes of the next commit, in a header page",
    ("CRC32C", "I", "of all that follows"),
    ("size", "I", "bytes of the changes"),
    ("commit", "Q", "LMDB's transaction id; they count only where the page's own is one less, and the newest"),
    ("changes", "size bytes", ""),
)
CHANGE = Layout(
    "one of these changes",
    ("sub-database", "B", f"its place in {', '.join(name.decode() for name in keys.DATABASES)}"),
    ("key size", "H", ""),
    ("value size", "H", "0xffff: the record is removed; 0xfffe: the value is on pages of its own"),
    ("key", "key size bytes", ""),
    ("value", "value size bytes", "or which it is, if it is on pages of its own"),
)
APART = Layout(
    "which of the values on pages of their own it is",
    ("size", "I", ""),
    ("CRC32C", "I", "of the value"),
)
_REDO, _CHANGE, _APART = REDO.struct, CHANGE.struct, APART.struct
_CRC = Struct(REDO.order + "I")
_CRC_BYTES = _CRC.size
_NONE = bytes(_REDO.size)
_REMOVED, _IS_APART = 0xFFFF, 0xFFFE
_NUMBER = {name: number for number, name in enumerate(keys.DATABASES)}
LARGEST = CAPACITY - _REDO.size
MOST = LARGEST // (_CHANGE.size + keys.LEDGER_KEY.size)
"""More changes of entries, or of bookies' copies, never fit."""
MOST_APART = 1 << 19
"""So many bytes of values on pages of their own: from twice as many on, the checksums take the time of a sync."""


def largest_within(page_size: int) -> int:
    """Larger values are on pages of their own, for LMDB has a page hold two at least; so are some that are smaller."""
    return page_size // 2


def room_if_alike(count: int, largest: int, page_size: int) -> int:
    """What so many entries take, if each is as large as the largest."""
    stored = largest if largest <= largest_within(page_size) else _APART.size
    return count * (_CHANGE.size + keys.ENTRY_KEY.size + stored)


def pack(changes: Iterable[Change], page_size: int) -> bytes | None:
    """None if they are too large to be written down."""
    parts: list[bytes] = []
    size = apart = 0
    largest = largest_within(page_size)
    for database, key, value in changes:
        if value is None:
            told, stored = _REMOVED, b""
        elif len(value) <= largest:
            told, stored = len(value), value
        else:
            apart += len(value)
            if apart > MOST_APART:
                return None
            told, stored = _IS_APART, _APART.pack(len(value), google_crc32c.value(value))
        size += _CHANGE.size + len(key) + len(stored)
        if size > LARGEST:
            return None
        parts += _CHANGE.pack(_NUMBER[database], len(key), told), key, stored
    return b"".join(parts)


def unpack(packed: bytes) -> Iterator[Written]:
    position = 0
    while position < len(packed):
        number, key_size, told = _CHANGE.unpack_from(packed, position)
        position += _CHANGE.size
        key = packed[position : position + key_size]
        position += key_size
        stored = packed[position : position + {_REMOVED: 0, _IS_APART: _APART.size}.get(told, told)]
        position += len(stored)
        value: bytes | Apart | None = stored
        if told == _REMOVED:
            value = None
        elif told == _IS_APART:
            size, crc = _APART.unpack(stored)
            value = Apart(size, crc, key if keys.DATABASES[number] == keys.ENTRIES else b"")
        yield keys.DATABASES[number], key, value


def pending(pages: list[bytes]) -> tuple[int, list[Written]] | None:
    """Of the header pages the commit that is to be repeated, and its changes; None if the newest one is whole."""
    found: list[tuple[Meta, bytes]] = [(meta, page) for page in pages if (meta := parse_meta(page)) is not None]
    if not found or any(len(page) < SMALLEST_PAGE for _, page in found):
        return None
    meta, page = max(found, key=lambda one: one[0].transaction)
    crc, size, commit = _REDO.unpack_from(page, START)
    begin, end = START + _CRC_BYTES, START + _REDO.size + size
    if commit != meta.transaction + 1 or size > LARGEST or google_crc32c.value(page[begin:end]) != crc:
        return None
    return commit, list(unpack(page[START + _REDO.size : end]))


def commit_written_down(page: bytes) -> int:
    """Whose changes stand in a header page."""
    commit: int = _REDO.unpack_from(page, START)[2]
    return commit


class UntouchedError(OSError):
    """Nothing could be written down, so LMDB was not asked to commit."""


class Header:
    """The two header pages of a data file that LMDB has open, and what is written down in them.

    LMDB writes a header page through a descriptor of its own, which waits for the disk. Where it need not wait, another
    one is put in its place: py-lmdb cannot tell LMDB so for single commits. Whatever writes is for who holds the lock
    of writers.
    """

    __slots__ = ("_file", "_lmdbs", "_page_size", "_synchronous", "_waiting", "whole")

    def __init__(self, path: str, page_size: int, lmdbs: int) -> None:
        """``lmdbs``: LMDB's descriptor, as :func:`descriptor_of_header` finds it."""
        self._page_size = page_size
        self._lmdbs = lmdbs
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._synchronous = os.dup(lmdbs)
        except BaseException:
            os.close(self._file)
            raise
        # Whether LMDB's descriptor is its own one.
        self._waiting = True
        self.whole = 0
        """The last commit of this process, if its header page is on the disk; -1 if that waits; 0 if there was none."""

    def close(self, sync: bool) -> None:
        """``sync``: so that a file which nobody has open is whole by itself. Where that fails, the next commit does it
        or whoever repeats this one."""
        if sync and self.whole < 0:
            with suppress(OSError):
                self.sync()
        for descriptor in (self._file, self._synchronous):
            with suppress(OSError):
                os.close(descriptor)

    def prepare(self, commit: int, packed: bytes | None) -> None:
        """Before LMDB commits: write down the changes, and have its header page wait; or, where they are too large, be
        synced. :class:`UntouchedError` if nothing came of it."""
        if packed is not None:
            rest = _REDO.pack(0, len(packed), commit)[_CRC_BYTES:] + packed
            record = _CRC.pack(google_crc32c.value(rest)) + rest
        elif self.whole == commit - 1:
            record = b""
        else:
            # The page is to go to the disk with this commit's pages, whether the kernel takes it for written or not.
            record = _NONE
        if record:
            try:
                self._put(record, self._slot(commit))
            except OSError as error:
                if self.stands(commit):
                    self.rewrite(without=commit)
                    self.sync()
                raise UntouchedError(error.errno, error.strerror) from error
        # In this order: an interruption may leave one that waits where none is needed, never the other way round.
        if packed is not None and self._waiting:
            self._waiting = False
            os.dup2(self._file, self._lmdbs, inheritable=False)
        elif packed is None and not self._waiting:
            os.dup2(self._synchronous, self._lmdbs, inheritable=False)
            self._waiting = True

    def stands(self, commit: int) -> bool:
        """Whether changes of this commit are written down."""
        found = os.pread(self._file, _REDO.size, self._slot(commit))
        return len(found) == _REDO.size and _REDO.unpack(found)[2] == commit

    def rewrite(self, without: int | None) -> None:
        """Both pages as they are, after a sync that failed: nobody knows which pages the kernel still takes for
        unwritten. What was written down for the commit ``without`` is struck out."""
        for number, page in enumerate(self._pages()):
            if commit_written_down(page) == without:
                page = page[:START] + _NONE + page[START + _REDO.size :]
            self._put(page, number * self._page_size)

    def sync(self) -> None:
        os.fdatasync(self._file)

    def _slot(self, commit: int) -> int:
        return (commit - 1) % META_PAGES * self._page_size + START

    def _pages(self) -> list[bytes]:
        return [os.pread(self._file, SMALLEST_PAGE, number * self._page_size) for number in range(META_PAGES)]

    def _put(self, data: bytes, where: int) -> None:
        if os.pwrite(self._file, data, where) != len(data):
            raise OSError(errno.EIO, "the header of the data file was written only in part")


def descriptor_of_header(path: str) -> int | None:
    """That through which LMDB writes its header pages: of those that this process has of the file, the one that waits
    for the disk. None where it cannot be told, or the system is not Linux: then every commit syncs twice."""
    file = os.stat(path)
    found = []
    for name in os.listdir(_DESCRIPTORS) if os.path.isdir(_DESCRIPTORS) else ():
        with suppress(OSError):
            if os.path.samestat(os.fstat(int(name)), file) and fcntl(int(name), F_GETFL) & os.O_DSYNC:
                found.append(int(name))
    return found[0] if len(found) == 1 else None
