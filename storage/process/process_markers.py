"""Who has the store open, and whether the last ones left in good order.

Every process that opens a store for writing keeps a file ``open-…`` in its folder, locked as long as the process
lives and removed when it closes the store. A marker without a lock was left by a process that died: the store was not
closed, and is examined more closely when it is opened next. A process that only reads keeps a file ``read-…`` if it
may write to the folder, so that the data file is not replaced meanwhile; or ``read-unlocked-…`` if the disk has no
room for LMDB's lock file, so that nothing is written meanwhile. The process that serves a store keeps a file
``serve-…`` for each of its roles, which one process at a time can have.
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
    """Held while a store is created or opened, so that this happens in one process at a time.

    A block ends with :meth:`release`, because an interruption may come at the entry of ``__exit__``.
    """

    def __init__(self, folder: str, what: str | None = None) -> None:
        """``what``: what :class:`StoreError` names if the folder cannot be locked; else that is an ``OSError``."""
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
            # An interruption may come while it waits, or right after it has got the lock.
            self.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let the next one in. Nothing is done if that was done already; an interrupted call is repeated."""
        with fork_guard.files_lock:
            file = self._file
            if file is None:
                return
            interruption: OSError | None = None
            # Explicitly: it is released whatever close() says.
            try:
                fcntl.flock(file, fcntl.LOCK_UN)
            except OSError as error:
                interruption = error if is_interruption(error) else None
            # No interruption comes between these two.
            self._file = None
            try:
                os.close(file)
            except OSError as error:
                interruption = error if is_interruption(error) else interruption
            if interruption is not None:
                raise interruption

    def _forked(self) -> None:
        """In a forked child: close the file without releasing the lock, which the parent holds. If the child kept it
        open, the lock would outlive the parent."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class _Held:
    """A locked file of this process. Making the object locks nothing yet: if an interruption keeps it from being
    returned, nothing remains locked."""

    _file: int | None = None

    def forget(self) -> None:
        """Close the file and leave it in the folder, as a process that dies does."""
        with fork_guard.files_lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    # A child shares the lock. If it kept the file open, the lock would outlive the parent.
    _forked = forget


class ProcessMarker(_Held):
    """This process's marker."""

    def __init__(self, folder: str, read_only: bool = False, locked: bool = True) -> None:
        """``locked=False``: a reader without LMDB's lock file, which keeps writers out."""
        prefix = (READER if locked else UNLOCKED) if read_only else WRITER
        self.path = os.path.join(folder, f"{prefix}{os.getpid()}-{os.urandom(4).hex()}")
        self._folder = folder
        # Without this the marker might be missing after a power cut, which is when it is wanted.
        self._is_durable = not read_only

    def enter(self) -> None:
        """Leave the marker in the folder."""
        try:
            with fork_guard.files_lock:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                fork_guard.notify_of_forks(self)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if self._is_durable:
                sync_folder(self._folder)
        except BaseException:
            with suppress(OSError):
                self.leave()
            raise

    def leave(self) -> None:
        """The store was closed in good order."""
        if self._file is None:
            return
        try:
            remove([self.path])
        except OSError as error:
            # An interrupted call is repeated.
            if not is_interruption(error):
                self.forget()
            raise
        self.forget()


class RoleHeldError(Exception):
    """``holder`` is the process that has the role, as far as it could say so."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


class ExclusiveRole(_Held):
    """What one process at a time does for all who use a store. The system lets go of it when the process ends, however
    that comes about."""

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, f"{SERVER}{name}")

    def take(self) -> None:
        """Have it until :meth:`leave`; :class:`RoleHeldError` if another has it."""
        try:
            with FolderLock(self._folder) as lock:
                self._lock()
                lock.release()
        except BaseException:
            self.forget()
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
            # On a full disk it stays unsaid who it is.
            if is_interruption(error):
                raise

    def leave(self) -> None:
        if self._file is None:
            return
        try:
            # Nobody is between opening the file and locking it.
            with FolderLock(self._folder) as lock:
                remove([self._path])
                lock.release()
        finally:
            self.forget()


def remove(markers: Iterable[str]) -> None:
    for marker in markers:
        try:
            os.unlink(marker)
        except FileNotFoundError:
            # Another process that opens the store has removed it.
            continue


class OpenProcesses:
    """Other processes that have a store open: living ``writers`` and ``readers``, of these the ``unlocked``, which use
    no lock file of LMDB's, and the markers of processes that died."""

    def __init__(self, folder: str, besides: ProcessMarker | None = None) -> None:
        self.writers = 0
        self.readers = 0
        self.unlocked = 0
        self.died_writing: list[str] = []
        self.died_reading: list[str] = []
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith((WRITER, READER)) and (besides is None or path != besides.path):
                self._look_at(path, name.startswith(WRITER))

    def _look_at(self, path: str, writer: bool) -> None:
        try:
            marker = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            # Shared: who looks at the marker of one who died must not seem to be him to others who look.
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
    """Make a folder and its missing parents, durably."""
    os.makedirs(path, exist_ok=True)
    sync_parents(path)


def sync_parents(path: str) -> None:
    """Make the name of a folder durable, and those of its parents up to the root of the file system.

    Existing folders are no exception: a process that made them may have been killed before it synced their names.
    """
    # Not abspath: behind a symbolic link, ".." is the parent of what the link names.
    folder = os.path.realpath(path)
    device = os.stat(folder).st_dev
    while (parent := os.path.dirname(folder)) != folder and os.stat(parent).st_dev == device:
        folder = parent
        try:
            sync_folder(folder)
        except PermissionError:
            # A process that may not read a folder has hardly created the one in it.
            continue


def sync_folder(folder: str) -> None:
    """Make names created, renamed or removed in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
