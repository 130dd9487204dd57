"""Room in the data file ahead of the pages that LMDB writes.

A write behind the end of a file, or into blocks that are only allocated, has the file system change what it keeps of
the file, and a sync has to write that as well. Where zeros were written before, a commit only writes over them. The
price is that new space is written twice, the first time in few and large writes.

The bytes behind the last page that LMDB's header names belong to no commit: LMDB goes by its header, not by the length
of the file. Only bytes behind the end of the file are written here, and only under LMDB's lock of writers, so no page
can be lost, whenever the process ends.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from bookstand.storage.logger import logger
from bookstand.storage.process.interrupt_guard import is_interruption

# A store keeps at most half as much in reserve as it uses, and nothing while that would be less than the smallest.
_SHARE_OF_USED = 2
SMALLEST = 256 << 10
# A larger one gains little more; but the commit that has to wait for it waits longer, and commits larger than it would
# have everything written twice.
LARGEST = 1 << 20
# On a disk that is nearly full others need the rest more.
_SHARE_OF_FREE = 64

_MOST_COMMITS_PASSED = 64

_NEVER = sys.maxsize

# Few enough to stay in the processor's cache while they are written again and again.
_ZEROS = bytes(64 << 10)


def is_supported(path: str) -> bool:
    """Whether the file system is likely to write over blocks in place.

    One that has no block device of its own does not: it is in memory, on the network, or copies what is written over.
    """
    return hasattr(os, "posix_fallocate") and os.major(os.stat(path).st_dev) != 0


class Preallocator:
    """What one data file has in reserve. It is never a reason for an error."""

    __slots__ = ("_page_size", "_path", "_seen", "enough_until", "next_look")

    def __init__(self, path: str, page_size: int) -> None:
        self._path = path
        self._page_size = page_size
        # The last page that may be in use without another look.
        self.enough_until = -1
        # The commit that is to look: even that takes its time.
        self.next_look = 0
        # The last look's commit, and the last page then.
        self._seen = 0, 0

    def look(self, commit: int, last_page: int) -> None:
        """Have enough in reserve for this commit and some that come. Only for who holds the lock of writers."""
        if last_page > self.enough_until:
            self.fill(last_page)
        seen_commit, seen_page = self._seen
        self._seen = commit, last_page
        # As the file grew lately, twice as fast at most.
        growth = 2 * max(last_page - seen_page, 1) / max(commit - seen_commit, 1)
        self.next_look = commit + 1 + min(int((self.enough_until - last_page) / growth), _MOST_COMMITS_PASSED)

    def fill(self, last_page: int) -> None:
        """Have some again behind this page, the last one in use. Only for who holds the lock of writers."""
        used = (last_page + 1) * self._page_size
        size = min(used // _SHARE_OF_USED, LARGEST)
        if size < SMALLEST:
            self.enough_until = SMALLEST * _SHARE_OF_USED // self._page_size
            return
        try:
            left = _lengthen(self._path, used, size) - used
        except OSError as error:
            if is_interruption(error):
                raise
            # Commits only take longer.
            self.enough_until = _NEVER
            logger().debug("no room is kept ahead in %s: %s", self._path, error)
            return
        # Where there was none to be had, the next look is as far away as where there was.
        self.enough_until = last_page + (max(left, size) - size // 2) // self._page_size


def _lengthen(path: str, used: int, size: int) -> int:
    """Where the file ends then."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        end = os.fstat(descriptor).st_size
        missing = used + size - end
        # Another process may have seen to it.
        if missing <= size // 2 or missing > _free_bytes(descriptor) // _SHARE_OF_FREE:
            return end
        try:
            # It finds out whether the disk has room, and takes it in one piece.
            os.posix_fallocate(descriptor, end, missing)
            for start in range(0, missing, len(_ZEROS)):
                zeros = _ZEROS[: missing - start]
                if os.pwrite(descriptor, zeros, end + start) != len(zeros):
                    raise OSError("written only in part")
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, end)
            raise
        return end + missing
    finally:
        os.close(descriptor)


def _free_bytes(descriptor: int) -> int:
    status = os.fstatvfs(descriptor)
    return status.f_bavail * status.f_frsize
