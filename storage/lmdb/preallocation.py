"""Preallocation of the data file ahead of the pages that LMDB writes.

A write beyond the end of a file, or into blocks that are only allocated, makes the file system change its metadata,
which a sync must write as well. A commit into a range that was filled with zeros only overwrites data. The price is
that new space is written twice, the first time in few, large writes.

The bytes after the last page of LMDB's meta page belong to no commit: LMDB goes by the meta page, not by the file
length. Only bytes after the end of the file are written here, and only under LMDB's writer lock, so no page can be
lost, whenever the process ends.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from bookstand.storage.logger import logger
from bookstand.storage.process.interrupt_guard import is_interruption

# The reserve is at most half of the used size. Stores whose reserve would be below SMALLEST have none.
_SHARE_OF_USED = 2
SMALLEST = 256 << 10
# A larger reserve gains little and delays one commit; a commit larger than the reserve writes its pages twice.
LARGEST = 1 << 20
# On a nearly full disk other files need the space more.
_SHARE_OF_FREE = 64

_MAX_COMMITS_BETWEEN_CHECKS = 64

_NEVER = sys.maxsize

# Small enough to stay in the processor's cache while it is written repeatedly.
_ZEROS = bytes(64 << 10)


def is_supported(path: str) -> bool:
    """Return True if the file system probably overwrites blocks in place.

    One without a block device does not: it is in memory, on the network, or copy-on-write.
    """
    return hasattr(os, "posix_fallocate") and os.major(os.stat(path).st_dev) != 0


class Preallocator:
    """Reserve of one data file. Its failures are never reported as errors."""

    __slots__ = ("_page_size", "_path", "_seen", "next_check", "sufficient_until")

    def __init__(self, path: str, page_size: int) -> None:
        self._path = path
        self._page_size = page_size
        # Last page up to which the reserve suffices without another check.
        self.sufficient_until = -1
        # First commit that checks the reserve: even a check takes time.
        self.next_check = 0
        # Commit and last page of the previous check.
        self._seen = 0, 0

    def maybe_extend(self, commit: int, last_page: int) -> None:
        """Ensure a reserve for this commit and some later ones. The caller holds LMDB's writer lock."""
        if last_page > self.sufficient_until:
            self.extend(last_page)
        seen_commit, seen_page = self._seen
        self._seen = commit, last_page
        # Assume that the file grows up to twice as fast as since the previous check.
        growth = 2 * max(last_page - seen_page, 1) / max(commit - seen_commit, 1)
        commits = min(int((self.sufficient_until - last_page) / growth), _MAX_COMMITS_BETWEEN_CHECKS)
        self.next_check = commit + 1 + commits

    def extend(self, last_page: int) -> None:
        """Extend the reserve after ``last_page``, the last page in use. The caller holds LMDB's writer lock."""
        used = (last_page + 1) * self._page_size
        size = min(used // _SHARE_OF_USED, LARGEST)
        if size < SMALLEST:
            self.sufficient_until = SMALLEST * _SHARE_OF_USED // self._page_size
            return
        try:
            reserve = _extend_file(self._path, used, size) - used
        except OSError as error:
            if is_interruption(error):
                raise
            # Without a reserve, commits only take longer.
            self.sufficient_until = _NEVER
            logger().debug("%s is not preallocated: %s", self._path, error)
            return
        # If the disk had no space, the next check is as far away as after an extension.
        self.sufficient_until = last_page + (max(reserve, size) - size // 2) // self._page_size


def _extend_file(path: str, used: int, size: int) -> int:
    """Extend the file and return its new end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        end = os.fstat(descriptor).st_size
        missing = used + size - end
        # Another process may have extended it.
        if missing <= size // 2 or missing > _free_bytes(descriptor) // _SHARE_OF_FREE:
            return end
        try:
            # Reports a full disk, and allocates contiguous blocks.
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
