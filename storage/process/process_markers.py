"""Process markers: files that identify the processes that have a store open, or died with it open.

Every process that opens a store for writing creates a file ``open-…`` in its folder. The file is locked while the
process lives, and removed when it closes the store. An unlocked marker belongs to a process that died with the store
open; the next process that opens the store checks it more thoroughly. A reader creates a file ``read-…`` if it may
write to the folder, so that the data file is not replaced meanwhile, or ``read-unlocked-…`` if the disk has no space
for LMDB's lock file, so that nothing is written meanwhile. A server process creates a file ``serve-…`` for each of its
roles, which one process at a time can hold.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from bookstand.errors import StoreError
from bookstand.storage.process import fork_guard
from bookstand.storage.process.interrupt_guard import is_interruption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

WRITER = "open-"
READER = "read-"
UNLOCKED = "read-unlocked-"
SERVER = "serve-"


class FolderLock:
    """Lock held while a store is created or opened, so that only one process at a time does so.

    End a ``with`` block with :meth:`release`, because an interruption may occur on entry to ``__exit__``.
    """

    def __init__(self, folder: str, what: str | None = None) -> None:
        """``what`` is named by the :class:`StoreError` raised if the folder cannot be locked; else ``OSError``."""
        self._file: int | None = None
        self._folder = folder
        self._what = what
        fork_guard.notify_of_forks(self)

    def __enter__(self) -> Self:
        try:
            with fork_guard.files_lock:
                self._file = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            self.release()
            if self._what is None or is_interruption(error):
                raise
            raise StoreError(f"{self._what}: cannot lock its folder: {error}") from error
        except BaseException:
            # An interruption may occur while it waits, or right after it has acquired the lock.
            self.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock if it is held. An interrupted call can be repeated."""
        with fork_guard.files_lock:
            file = self._file
            if file is None:
                return
            interruption: OSError | None = None
            # Unlock explicitly, because close() may report an error.
            try:
                fcntl.flock(file, fcntl.LOCK_UN)
            except OSError as error:
                interruption = error if is_interruption(error) else None
            # No interruption can occur between these two statements.
            self._file = None
            try:
                os.close(file)
            except OSError as error:
                interruption = error if is_interruption(error) else interruption
            if interruption is not None:
                raise interruption

    def _forked(self) -> None:
        """In a forked child: close the file without releasing the parent's lock, which must not outlive the parent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class _LockedFile:
    """A file locked by this process. The constructor locks nothing, so that nothing remains locked if an interruption
    prevents the caller from getting the object."""

    _file: int | None = None

    def abandon(self) -> None:
        """Close the file and leave it in the folder, as the death of the process would."""
        with fork_guard.files_lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    # A child shares the lock. If it kept the file open, the lock would outlive the parent.
    _forked = abandon


class ProcessMarker(_LockedFile):
    def __init__(self, folder: str, read_only: bool = False, locked: bool = True) -> None:
        """``locked=False`` marks a reader without LMDB's lock file, which keeps writers out."""
        prefix = (READER if locked else UNLOCKED) if read_only else WRITER
        self.path = os.path.join(folder, f"{prefix}{os.getpid()}-{os.urandom(4).hex()}")
        self._folder = folder
        # Without this sync the marker might be missing after a power failure, when it is needed.
        self._is_durable = not read_only

    def enter(self) -> None:
        """Create and lock the marker."""
        try:
            with fork_guard.files_lock:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                fork_guard.notify_of_forks(self)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if self._is_durable:
                sync_folder(self._folder)
        except BaseException:
            with suppress(OSError):
                self.remove()
            raise

    def remove(self) -> None:
        """Remove the marker, because the store was closed properly."""
        if self._file is None:
            return
        try:
            remove([self.path])
        except OSError as error:
            # An interrupted call is repeated, so the lock must stay.
            if not is_interruption(error):
                self.abandon()
            raise
        self.abandon()


class RoleHeldError(Exception):
    """Another process holds the role: ``holder``, empty if unknown."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class ExclusiveRole(_LockedFile):
    """A role that one process at a time can hold for a store. The system releases it when the process ends."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, f"{SERVER}{name}")

    def take(self) -> None:
        """Acquire the role until :meth:`remove`. Raise :class:`RoleHeldError` if another process has it."""
        try:
            with FolderLock(self._folder) as lock:
                self._lock()
                lock.release()
        except BaseException:
            self.abandon()
            raise

    def _lock(self) -> None:
        with fork_guard.files_lock:
            self._file = file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fork_guard.notify_of_forks(self)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RoleHeldError(os.pread(file, 32, 0).decode("ascii", "replace")) from None
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        except OSError as error:
            # On a full disk the file does not name the holder.
            if is_interruption(error):
                raise

    def remove(self) -> None:
        if self._file is None:
            return
        try:
            # Under the lock, no process is between opening the file and locking it.
            with FolderLock(self._folder) as lock:
                remove([self._path])
                lock.release()
        finally:
            self.abandon()


def remove(markers: Iterable[str]) -> None:
    for marker in markers:
        try:
            os.unlink(marker)
        except FileNotFoundError:
            # Another process that opens the store has removed it.
            continue


class OpenProcesses:
    """Other processes that have a store open: ``writers`` and ``readers``, of which ``unlocked`` do not use LMDB's lock
    file, and the markers of processes that died."""

    def __init__(self, folder: str, besides: ProcessMarker | None = None) -> None:
        self.writers = 0
        self.readers = 0
        self.unlocked = 0
        self.died_writing: list[str] = []
        self.died_reading: list[str] = []
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith((WRITER, READER)) and (besides is None or path != besides.path):
                self._inspect(path, name.startswith(WRITER))

    def _inspect(self, path: str, writer: bool) -> None:
        try:
            marker = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            # A shared lock, so that another process inspecting the same marker does not take this one for its owner.
            fcntl.flock(marker, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if writer:
                self.writers += 1
            else:
                self.readers += 1
                self.unlocked += os.path.basename(path).startswith(UNLOCKED)
        else:
            (self.died_writing if writer else self.died_reading).append(path)
        finally:
            os.close(marker)


def make_folders(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    sync_parents(path)


def sync_parents(path: str) -> None:
    """Make the names of a folder and its parents durable, up to the root of the file system.

    This includes existing folders: a process that created them may have been killed before it synced their names.
    """
    # Not abspath: after a symbolic link, ".." is the parent of the link's target.
    folder = os.path.realpath(path)
    device = os.stat(folder).st_dev
    while (parent := os.path.dirname(folder)) != folder and os.stat(parent).st_dev == device:
        folder = parent
        try:
            sync_folder(folder)
        except PermissionError:
            # A process that may not read a folder is unlikely to have created the one in it.
            continue


def sync_folder(folder: str) -> None:
    """Make names created, renamed or removed in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
