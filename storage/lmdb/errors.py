"""Translation of LMDB's errors into bookstand's. No other module translates them."""

from __future__ import annotations

import errno
import os

import lmdb

from bookstand.errors import (
    BookstandError,
    DiskFullError,
    NotEnoughBookiesError,
    StoreAccessError,
    StoreDamagedError,
    StoreError,
    StoreFormatError,
    StoreInUseError,
    WriteError,
)
from bookstand.storage.process.interrupt_guard import is_interruption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

# Free bytes at which a full store accepts writes again.
LOW_WATER = 128 << 10

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.BadTxnError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.NotFoundError,
    lmdb.BadValsizeError,
)
FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def translate(error: lmdb.Error, path: str, doing: str) -> BookstandError:
    """Return the error to raise instead of LMDB's ``error``, for the store at ``path`` while ``doing``."""
    code = getattr(error, "code", 0)
    about = f"store {path}: {doing}: {error}"
    if code in FULL or (code == errno.EIO and not has_space(path)):
        # LMDB reports a write that was cut short by a full disk as an I/O error.
        return disk_full(about, error)
    if isinstance(error, lmdb.MapFullError):
        return disk_full(f"store {path}: {doing}: the map cannot grow any further", error)
    if code in _REFUSED:
        return StoreAccessError(about)
    if isinstance(error, _DAMAGE):
        return StoreDamagedError(about)
    if isinstance(error, lmdb.VersionMismatchError | lmdb.IncompatibleError):
        return StoreFormatError(about)
    if isinstance(error, lmdb.ReadersFullError):
        return StoreError(f"store {path}: {doing}: more concurrent readers than LMDB has reader slots")
    if "already open in this process" in str(error):
        return StoreInUseError(about)
    if code == errno.EIO:
        return WriteError(about)
    return StoreError(about)


def has_space(path: str) -> bool:
    """Return True if the disk has space for more than one or two commits."""
    try:
        disk = os.statvfs(path)
    except OSError as error:
        if is_interruption(error):
            raise
        return True
    return disk.f_bavail * disk.f_frsize >= LOW_WATER


def reraise(error: lmdb.Error, path: str, doing: str) -> NoReturn:
    """Raise the translated error with its cause."""
    answer = translate(error, path, doing)
    raise answer from answer.__cause__ or error


def disk_full(about: str, error: BaseException) -> NotEnoughBookiesError:
    """BookKeeper's error for a full disk, with :class:`DiskFullError` as its cause."""
    cause = DiskFullError(f"{about} (no space left; reads continue, and writes resume once there is space)")
    cause.__cause__ = error
    answer = NotEnoughBookiesError(str(cause))
    answer.__cause__ = cause
    return answer
