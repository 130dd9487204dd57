"""LMDB environment of a store: transactions, growth of the map, and reopening after a failed commit.

LMDB forbids changing the map while this process has a transaction open or is about to open one. Every transaction
therefore holds the shared :class:`MapLock`, and a map change holds it exclusively. Read transactions are short: none
is held across user code.

A call may be interrupted between any two steps, and then neither ends its transaction nor releases the map lock. The
end of a write transaction does not depend on that. An interrupted read transaction is ended by the next call that
encounters it.
"""

from __future__ import annotations

import os
import sys
from threading import RLock, get_ident

import lmdb

from bookstand.storage.process.fork_guard import ProcessBound, call_in_child

try:
    from _ctypes import Py_INCREF
except ImportError:
    # An interpreter without libffi.
    Py_INCREF = None  # type: ignore[assignment]
try:
    from lmdb import _envid
except ImportError:
    _envid = None  # type: ignore[assignment]
else:
    _env_keys = _envid.env_keys

from bookstand.errors import ClientClosedError, NotAStoreError, StoreDamagedError, StoreError, StoreFormatError
from bookstand.storage.commit.commit_marks import CommitMarks
from bookstand.storage.commit.futures import LOST_WAKEUP_POLL, Waiters
from bookstand.storage.format import schema
from bookstand.storage.lmdb.errors import disk_full, reraise
from bookstand.storage.lmdb.meta_page import MetaPages
from bookstand.storage.lmdb.preallocation import Preallocator, is_supported
from bookstand.storage.process import process_markers
from bookstand.storage.process.interrupt_guard import Call, is_interruption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

    from bookstand.errors import BookstandError

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"

FIRST_MAP_SIZE = 1 << 30
# Doubling suits small maps; for large ones it would reserve absurd amounts of address space.
LARGEST_GROWTH = 64 << 30
MAX_READERS = 510
# Size that LMDB gives the lock file for that many readers. The file is written beforehand: LMDB maps it without
# checking for disk space, and touching a mapped page without a disk block raises SIGBUS.
LOCK_FILE_BYTES = 32 << 10


class MapUser(Call):
    """A call that holds the map lock shared, with its transaction if it reads."""

    __slots__ = ("transaction",)

    def __init__(self, frame: FrameType | None) -> None:
        self.thread = get_ident()
        self.frame = frame
        self.transaction: lmdb.Transaction | None = None


class MapLock(ProcessBound):
    """Shared lock of transactions, and exclusive lock of map changes.

    It is reentrant for shared holders: an exclusive request waits for them. A thread that requests it exclusively
    releases its own shared holds first. Holds of interrupted calls are detected by the threads that wait for them and
    by the next call of the same thread, and their transactions are ended.
    """

    def __init__(self) -> None:
        # An RLock, acquired without a Python call: an interruption at either end of a ``with`` leaves it free.
        self.lock = RLock()
        self._changed = Waiters()
        self._inside: dict[int, list[MapUser]] = {}
        self._shut: Call | None = None

    def enter(self, call: MapUser) -> None:
        while True:
            with self.lock:
                calls = self._inside.get(call.thread)
                if calls:
                    self._end_interrupted(call.thread)
                    calls = self._inside.get(call.thread)
                # A thread with a shared hold may acquire another one: the exclusive request waits for both.
                if calls:
                    calls.append(call)
                    return
                if self._shut is None or self._shut.is_over:
                    self._shut = None
                    self._inside[call.thread] = [call]
                    return
            self._changed.wait(LOST_WAKEUP_POLL, self._is_open)

    def _is_open(self) -> bool:
        return self._shut is None

    def _is_empty(self) -> bool:
        return not self._inside

    def leave(self, call: MapUser) -> None:
        with self.lock:
            calls = self._inside.get(call.thread, [])
            if call in calls:
                calls.remove(call)
            # Break the reference cycle of frame and call.
            call.frame = None
            if not calls:
                self._inside.pop(call.thread, None)
                if self._shut is not None:
                    self._changed.notify()

    def leave_all(self) -> None:
        with self.lock:
            self._inside.pop(get_ident(), None)
            if self._shut is not None:
                self._changed.notify()

    def _end_interrupted(self, thread: int) -> None:
        calls = self._inside.get(thread, [])
        for call in [call for call in calls if call.is_over]:
            if call.transaction is not None:
                call.transaction.abort()
            calls.remove(call)
        if not calls:
            self._inside.pop(thread, None)

    def __enter__(self) -> None:
        """Acquire it exclusively, after all shared holders have left."""
        call = Call(sys._getframe(1))
        self.leave_all()
        while not self._shuts(call):
            self._changed.wait(LOST_WAKEUP_POLL, self._is_open)
        try:
            while not self._is_empty():
                self._changed.wait(LOST_WAKEUP_POLL, self._is_empty)
                with self.lock:
                    for thread in list(self._inside):
                        self._end_interrupted(thread)
        except BaseException:
            self.__exit__()
            raise

    def _shuts(self, call: Call) -> bool:
        with self.lock:
            if self._shut is not None and not self._shut.is_over:
                return False
            self._shut = call
            return True

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self._shut = None
            self._changed.notify()


class LmdbEnvironment(ProcessBound):
    """An open LMDB environment with its sub-databases. ``lib_version=0`` pins the file format of LMDB 0.9."""

    _env: lmdb.Environment | None = None

    def __init__(
        self, path: str, *, read_only: bool, durable: bool, locked: bool = True, map_size: int = FIRST_MAP_SIZE
    ) -> None:
        """``locked=False`` opens it without LMDB's lock file; the caller ensures that no process writes meanwhile."""
        self.path = path
        self.read_only = read_only
        self._durable = durable
        self._locked = locked
        self.page_size = 0
        self._map_size = map_size
        self._map_lock = MapLock()
        self._preallocator: Preallocator | None = None
        self._marks = CommitMarks()
        self._meta_pages: MetaPages | None = None
        self.name_is_durable = True
        """False if the data file has replaced another one and the folder has not been synced since."""
        self._closed = False
        self._closed_for: BookstandError | None = None
        self.databases: dict[bytes, lmdb._Database] = {}
        self._open()

    # -- opening and closing ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        env = self._open_lmdb()
        try:
            env.reader_check()
            self.page_size = env.stat()["psize"]
            self.databases = self._open_databases(env)
            self._preallocator = self._make_preallocator()
            if schema.COPIES not in self.databases and not self.read_only:
                self._create_copies(env)
            self._close_meta_pages()
            if self._durable and not self.read_only:
                self._meta_pages = MetaPages(data_file(self.path), self.page_size)
            self._marks.forget()
        except lmdb.NotFoundError as error:
            env.close()
            raise StoreDamagedError(f"store {self.path}: one of its sub-databases is missing") from error
        except lmdb.Error as error:
            env.close()
            reraise(error, self.path, "opening its sub-databases")
        except BaseException:
            env.close()
            raise
        self._env = env

    def _open_lmdb(self) -> lmdb.Environment:
        while True:
            try:
                return lmdb.open(
                    os.fsencode(self.path),
                    map_size=self._map_size,
                    readonly=self.read_only,
                    lock=self._locked,
                    create=False,
                    max_dbs=len(schema.DATABASES),
                    max_readers=MAX_READERS,
                    sync=self._durable,
                    metasync=self._durable,
                    writemap=False,
                    lib_version=0,
                )
            except lmdb.MapResizedError:
                # Another process has committed to a larger file between LMDB's size check and first use.
                continue
            except lmdb.Error as error:
                reraise(error, self.path, "opening it")

    def _open_databases(self, env: lmdb.Environment) -> dict[bytes, lmdb._Database]:
        while True:
            try:
                # The format first: a later format may have other sub-databases.
                check_format(self.path, _format_record(self.path, env))
                return dict(_each_database(env))
            except lmdb.MapResizedError:
                # Another process has committed to a file larger than the requested map.
                env.set_mapsize(0)

    def _create_copies(self, env: lmdb.Environment) -> None:
        """Create the sub-database that old stores do not have. Read-only environments do without it."""
        while True:
            try:
                self.databases[schema.COPIES] = env.open_db(schema.COPIES)
                return
            except lmdb.MapResizedError:
                env.set_mapsize(0)

    def _make_preallocator(self) -> Preallocator | None:
        """Return None if commits need not wait for a file that grows."""
        name = data_file(self.path)
        if self.read_only or not self._durable or not is_supported(name):
            return None
        return Preallocator(name, self.page_size)

    def close(self, reason: BookstandError | None = None) -> None:
        with self._map_lock:
            self._closed = True
            self._closed_for = reason
            self._release()

    def _folder_lock(self) -> process_markers.FolderLock:
        """Folder lock, acquired before the map lock: its holder may be waiting until this thread, whose transaction has
        ended, releases the map lock."""
        self._map_lock.leave_all()
        return process_markers.FolderLock(self.path, f"store {self.path}")

    def reopen(self) -> None:
        """Close and open the environment, the only way to recover once LMDB has marked it as broken.

        Holds the folder lock, as the first opening does. LMDB initializes its lock file while it opens: if a process
        died in the middle, another process waiting for its turn would start with transaction 0.
        """
        with self._folder_lock() as lock:
            self.reopen_locked()
            lock.release()

    def reopen_locked(self) -> None:
        """Reopen for a caller that holds the folder lock."""
        with self._map_lock:
            self._release()
            self._open()

    def sync_name(self) -> None:
        """Make the data file's name durable. A commit to a file that may lose its name may be lost with it."""
        try:
            if self._durable:
                process_markers.sync_folder(self.path)
        except OSError as error:
            if is_interruption(error):
                raise
            raise StoreError(
                f"store {self.path}: the new data file's name cannot be synced, so nothing is committed to it: {error}"
            ) from error
        self.name_is_durable = True

    def _release(self) -> None:
        # No interruption can occur between these two statements.
        env, self._env = self._env, None
        if env is not None:
            env.close()
        self._close_meta_pages()

    def _close_meta_pages(self) -> None:
        if self._meta_pages is not None:
            self._meta_pages.close()
            self._meta_pages = None

    def _forked(self) -> None:
        """In a forked child: keep the environment allocated forever.

        Freeing it would end the transactions of the parent's threads, and py-lmdb would wait for the calls that these
        threads are in. The files remain open and mapped until the child exits.
        """
        if self._env is not None:
            _leak(self._env)

    # -- transactions ----------------------------------------------------------------------------------------------

    def read(self) -> ReadTransaction:
        return ReadTransaction(self)

    def _enter(self, call: MapUser) -> lmdb.Environment:
        """Acquire the map lock shared and return the open environment; the caller releases the lock."""
        while True:
            self._map_lock.enter(call)
            env = self._env
            if env is not None:
                return env
            self._map_lock.leave(call)
            self._open_again()

    def _open_again(self, given_up: lmdb.Environment | None = None) -> None:
        """Open the environment if an earlier reopening failed: the device may have recovered. Reopen it if it is still
        ``given_up``, which LMDB rejects after a failed commit."""
        self._check_open()
        with self._folder_lock() as lock, self._map_lock:
            self._check_open()
            if self._env is given_up:
                self._release()
            if self._env is None:
                self._open()
            lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_for or ClientClosedError(f"store {self.path} is closed")

    def begin_read(self, frame: FrameType | None = None) -> MapUser:
        """Begin a read transaction, ended by :meth:`end_read`; :meth:`read` does both. With ``frame``, the
        transaction also ends after that frame has left the stack."""
        call = MapUser(frame)
        while True:
            env = self._enter(call)
            try:
                call.transaction = env.begin()
                return call
            except lmdb.MapResizedError:
                self._map_lock.leave(call)
                self._adopt_map_size()
            except lmdb.PanicError:
                # The thread whose commit failed has not reopened it yet, or was interrupted before it did.
                self._map_lock.leave(call)
                self._open_again(env)
            except lmdb.ReadersFullError as error:
                # LMDB frees the reader slots of dead processes only on request.
                freed = env.reader_check()
                self._map_lock.leave(call)
                if not freed:
                    reraise(error, self.path, "beginning to read")
            except lmdb.Error as error:
                self._map_lock.leave(call)
                reraise(error, self.path, "beginning to read")
            except BaseException:
                self._map_lock.leave(call)
                raise

    def end_read(self, call: MapUser) -> None:
        if call.transaction is not None:
            call.transaction.abort()
        self._map_lock.leave(call)

    def begin_write(self) -> lmdb.Transaction:
        """Begin a write transaction for a ``with`` block, which aborts it unless it was committed. The caller's frame
        holds the map lock shared until :meth:`end_write`. The caller handles LMDB's errors, except a map that another
        process has grown.

        The ``with`` block uses LMDB's own object, and nothing here refers to the transaction on return. An interruption
        between any two steps therefore ends the transaction, wherever its exception is stored.
        """
        call = MapUser(sys._getframe(1))
        while True:
            env = self._enter(call)
            try:
                if not self.name_is_durable:
                    self.sync_name()
                # Positional arguments (parent and write): py-lmdb takes twice as long for keyword arguments.
                return env.begin(None, None, True)
            except lmdb.MapResizedError:
                self._map_lock.leave(call)
                self._adopt_map_size()
            except lmdb.PanicError:
                self._map_lock.leave(call)
                self._open_again(env)
            except BaseException:
                self._map_lock.leave(call)
                raise

    def preallocate(self, transaction: lmdb.Transaction) -> None:
        """Extend the file for the next commits, if due."""
        preallocator = self._preallocator
        if preallocator is not None and transaction.id() >= preallocator.next_check and self._env is not None:
            preallocator.maybe_extend(transaction.id(), self._env.info()["last_pgno"])

    def mark(self, transaction: lmdb.Transaction, number: int) -> None:
        """Write the mark of the commit that :meth:`commit` will make. If that fails, nothing is committed."""
        self._marks.write(transaction, self.databases[schema.META], number, self._meta_pages)

    def commit(self, transaction: lmdb.Transaction, number: int) -> None:
        """Commit; durable on return if the environment is. ``number`` is the transaction's id."""
        transaction.commit()
        self._marks.committed(number)

    def resolve_outcome(self) -> bool | None:
        """After a failed commit: return whether it took effect (None: unknown), and make that final.

        Both meta pages are rewritten before the sync: after a failed write the kernel may consider a page clean that
        the disk does not have. LMDB's writer lock keeps other processes from committing meanwhile.
        """
        try:
            with self.begin_write() as transaction:
                done = self._marks.took_effect(transaction, self.databases[schema.META])
                if self._meta_pages is not None:
                    self._meta_pages.rewrite(transaction.id() - 1)
                transaction.abort()
        finally:
            self.end_write()
        return done

    def end_write(self) -> None:
        """Release the map lock, so that others may change the map."""
        self._map_lock.leave_all()

    # -- the map and the file --------------------------------------------------------------------------------------

    def _adopt_map_size(self) -> None:
        with self._map_lock:
            if self._env is not None:
                self._adopt_map_size_of(self._env)

    def _adopt_map_size_of(self, env: lmdb.Environment) -> None:
        try:
            env.set_mapsize(0)
        except (lmdb.Error, MemoryError) as error:
            # LMDB has released the old map. The next transaction opens the file again.
            self._release()
            raise StoreError(
                f"store {self.path}: cannot map the file, which another process has grown: {error}"
            ) from error

    def grow(self, needed: int = 0) -> None:
        """Grow the map by at least ``needed`` bytes. This process must not have a write transaction open."""
        with self._folder_lock() as lock, self._map_lock:
            env = self._env
            if env is not None:
                self._grow(env, needed)
            # A closed environment is reopened by the caller's next attempt, which grows it if still needed.
            lock.release()

    def _grow(self, env: lmdb.Environment, needed: int) -> None:
        # Freed pages may be retained only for dead readers.
        env.reader_check()
        self._adopt_map_size_of(env)
        size = env.info()["map_size"]
        larger = size + max(min(size, LARGEST_GROWTH), needed)
        larger += -larger % 65536
        try:
            env.set_mapsize(larger)
            self._map_size = larger
        except (lmdb.Error, MemoryError, OverflowError) as error:
            # LMDB has released the old map before it tried the new size.
            self._release()
            self._map_size = size
            self._open()
            answer = disk_full(f"store {self.path}: cannot map {larger} bytes: {error}", error)
            raise answer from answer.__cause__

    @property
    def last_commit(self) -> int:
        call = MapUser(sys._getframe())
        env = self._enter(call)
        try:
            return env.info()["last_txnid"]
        finally:
            self._map_lock.leave(call)

    def reader_check(self) -> None:
        """Release pages and slots of dead readers."""
        call = MapUser(sys._getframe())
        env = self._enter(call)
        try:
            env.reader_check()
        finally:
            self._map_lock.leave(call)

    def copy(self, destination: str, compact: bool) -> None:
        """Write a consistent copy of the data file into the folder ``destination`` while writers continue."""
        call = MapUser(sys._getframe())
        while True:
            env = self._enter(call)
            given_up = False
            try:
                # As bytes, which the stubs do not allow: a string would have to be UTF-8.
                env.copy(os.fsencode(destination), compact=compact)  # type: ignore[arg-type]
                return
            except (lmdb.MapResizedError, lmdb.PanicError) as error:
                # Remove the partial copy, which would block the next attempt.
                os.unlink(data_file(destination))
                given_up = isinstance(error, lmdb.PanicError)
            finally:
                self._map_lock.leave(call)
            if given_up:
                self._open_again(env)
            else:
                self._adopt_map_size()


class ReadTransaction:
    """Context manager of a read transaction. Translates LMDB's errors."""

    __slots__ = ("_call", "_environment")

    def __init__(self, environment: LmdbEnvironment) -> None:
        self._environment = environment

    def __enter__(self) -> lmdb.Transaction:
        self._call = self._environment.begin_read(sys._getframe(1))
        return self._call.transaction  # type: ignore[return-value]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._environment.end_read(self._call)
        if isinstance(error, lmdb.Error):
            reraise(error, self._environment.path, "reading")


def values(found: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """Type LMDB's results as bytes: LMDB returns memoryviews only on request, and this package requests none."""
    return found  # type: ignore[return-value]


def _each_database(env: lmdb.Environment) -> Iterator[tuple[bytes, lmdb._Database]]:
    for name in schema.DATABASES:
        try:
            yield name, env.open_db(name, create=False)
        except lmdb.NotFoundError:
            if name != schema.COPIES:
                raise


def _format_record(path: str, env: lmdb.Environment) -> bytes | None:
    try:
        meta = env.open_db(schema.META, create=False)
    except lmdb.NotFoundError:
        return None
    with env.begin() as transaction:
        found = transaction.get(schema.META_FORMAT, None, meta)
    if found is None:
        raise StoreDamagedError(f"store {path} is damaged: record 'format' of meta is missing")
    return found


def check_format(path: str, found: bytes | None) -> None:
    """Raise if the format record is missing, malformed or of another version; the message names the remedy."""
    if found is None:
        raise NotAStoreError(f"{path} holds an LMDB file of another program")
    if len(found) != schema.FORMAT.size:
        raise StoreDamagedError(f"store {path} is damaged: its format is {found!r}")
    (version,) = schema.FORMAT.unpack(found)
    if version > schema.FORMAT_VERSION:
        raise StoreFormatError(
            f"store {path} has format {version}; this version of bookstand reads format "
            f"{schema.FORMAT_VERSION}: open it with a newer version"
        )
    if version < schema.FORMAT_VERSION:
        raise StoreFormatError(
            f"store {path} has format {version}, of a development version of bookstand; this version reads format "
            f"{schema.FORMAT_VERSION}: export it with the version that wrote it (bookstand export-bookie), and import "
            "that into a new store (bookstand import-bookie)"
        )


def _leak(env: lmdb.Environment) -> None:
    _parent_environments.append(env)
    # Module globals are deleted at interpreter exit.
    if Py_INCREF is not None:
        Py_INCREF(env)


def _allow_reopening_in_child() -> None:
    """In a forked child: allow opening files that an environment of the parent has open.

    py-lmdb refuses to open an environment twice in a process, because closing one would release the process's locks of
    the other. Here the parent's environments are never closed, and a child does not inherit locks.
    """
    if _envid is not None:
        process = os.getpid()
        _envid.env_keys = lambda path, subdir: tuple(
            (process, key)
            for key in _env_keys(path, subdir)  # type: ignore[no-untyped-call]
        )


_parent_environments: list[lmdb.Environment] = []
call_in_child(_allow_reopening_in_child)


def data_file(path: str) -> str:
    return os.path.join(path, DATA_FILE)


def lock_file(path: str) -> str:
    return os.path.join(path, LOCK_FILE)
