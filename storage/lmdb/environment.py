"""The LMDB environment of one store: transactions, growth of the map, and reopening after a failed commit.

LMDB forbids changing the map while this process has a transaction open or is about to open one, so every transaction
goes through :class:`MapLock`, and whoever changes the map shuts it first. Read transactions are short: nothing here is
held across a user's code.

A call may be interrupted between any two steps, and then neither ends its transaction nor leaves the gate. The end of a
write transaction does not depend on it; that of a read transaction is made up for by the next call that meets it.
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
# Doubling is right for small maps; for large ones it would reserve absurd amounts of address space.
LARGEST_GROWTH = 64 << 30
MAX_READERS = 510
# What LMDB makes of the lock file for that many readers; written beforehand, for LMDB maps it without checking
# whether the disk has room for it, and touching the map of a file without room ends in SIGBUS.
LOCK_FILE_BYTES = 32 << 10


class Pass(Call):
    """A call that is inside the gate, with its transaction if it reads."""

    __slots__ = ("transaction",)

    def __init__(self, frame: FrameType | None) -> None:
        self.thread = get_ident()
        self.frame = frame
        self.transaction: lmdb.Transaction | None = None


class MapLock(ProcessBound):
    """Open to any number of readers, or shut by one who changes the map.

    A thread that shuts the gate is not inside itself, and one that is inside may go in again: the thread that has shut
    the gate waits for it. Calls that were interrupted are found by those who wait for them, and by the next call of
    their thread; what they left open is ended.
    """

    def __init__(self) -> None:
        # An RLock, entered without a Python call: an interruption at either end of a ``with`` leaves it free.
        self.lock = RLock()
        self._changed = Waiters()
        self._inside: dict[int, list[Pass]] = {}
        self._shut: Call | None = None

    def enter(self, call: Pass) -> None:
        while True:
            with self.lock:
                calls = self._inside.get(call.thread)
                if calls:
                    self._end_interrupted(call.thread)
                    calls = self._inside.get(call.thread)
                # A thread that is inside may enter again: the one that has shut the gate waits for it.
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

    def leave(self, call: Pass) -> None:
        with self.lock:
            calls = self._inside.get(call.thread, [])
            if call in calls:
                calls.remove(call)
            # The frame refers to the call.
            call.frame = None
            if not calls:
                self._inside.pop(call.thread, None)
                if self._shut is not None:
                    self._changed.notify()

    def depart(self) -> None:
        """Leave it, however often this thread has entered it."""
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
        """Shut it, and wait until everybody has left."""
        call = Call(sys._getframe(1))
        self.depart()
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
    """An open LMDB environment with its sub-databases. ``lib_version=0`` pins the format of LMDB 0.9."""

    _env: lmdb.Environment | None = None

    def __init__(
        self, path: str, *, read_only: bool, durable: bool, locked: bool = True, map_size: int = FIRST_MAP_SIZE
    ) -> None:
        """``locked=False``: without LMDB's lock file. Callers see to it that no process writes meanwhile."""
        self.path = path
        self.read_only = read_only
        self._durable = durable
        self._locked = locked
        self.page_size = 0
        self._map_size = map_size
        self._gate = MapLock()
        self._reserve: Preallocator | None = None
        self._marks = CommitMarks()
        self._meta_pages: MetaPages | None = None
        self.name_is_durable = True
        """False while the data file has replaced another one and the folder was not synced since."""
        self._closed = False
        self._closed_for: BookstandError | None = None
        self.databases: dict[bytes, lmdb._Database] = {}
        self._open()

    # -- life ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        env = self._open_lmdb()
        try:
            env.reader_check()
            self.page_size = env.stat()["psize"]
            self.databases = self._open_databases(env)
            self._reserve = self._make_reserve()
            if schema.COPIES not in self.databases and not self.read_only:
                self._add_copies(env)
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
                # Another process has committed to a larger file between LMDB's look at its size and its first use.
                continue
            except lmdb.Error as error:
                reraise(error, self.path, "opening it")

    def _open_databases(self, env: lmdb.Environment) -> dict[bytes, lmdb._Database]:
        while True:
            try:
                # The format first: a later one may have other sub-databases.
                check_format(self.path, _format_record(self.path, env))
                return dict(_each_database(env))
            except lmdb.MapResizedError:
                # Another process commits to a file that is larger than the map asked for.
                env.set_mapsize(0)

    def _add_copies(self, env: lmdb.Environment) -> None:
        """Stores made before there were servers have none. Read-only ones stay without."""
        while True:
            try:
                self.databases[schema.COPIES] = env.open_db(schema.COPIES)
                return
            except lmdb.MapResizedError:
                env.set_mapsize(0)

    def _make_reserve(self) -> Preallocator | None:
        """None where nothing has to wait for a file that grows."""
        name = data_file(self.path)
        if self.read_only or not self._durable or not is_supported(name):
            return None
        return Preallocator(name, self.page_size)

    def close(self, reason: BookstandError | None = None) -> None:
        """Close it; later use raises ``reason``."""
        with self._gate:
            self._closed = True
            self._closed_for = reason
            self._release()

    def _folder_lock(self) -> process_markers.FolderLock:
        """The folder's lock, which is taken before the gate: its holder may be waiting until this thread, whose
        transaction has ended, has left the gate."""
        self._gate.depart()
        return process_markers.FolderLock(self.path, f"store {self.path}")

    def reopen(self) -> None:
        """Close and open again: the only way on after LMDB has given up on an environment.

        As the first opening does, it holds the folder's lock. LMDB initializes its lock file while it opens: a process
        that died in the middle of that would leave another one, which waits for its turn, with transaction 0.
        """
        with self._folder_lock() as lock:
            self.reopen_locked()
            lock.release()

    def reopen_locked(self) -> None:
        """Reopen for a caller that holds the folder's lock."""
        with self._gate:
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
        # No interruption comes between the two.
        env, self._env = self._env, None
        if env is not None:
            env.close()
        self._close_meta_pages()

    def _close_meta_pages(self) -> None:
        if self._meta_pages is not None:
            self._meta_pages.close()
            self._meta_pages = None

    def _forked(self) -> None:
        """In a forked child: never free the environment.

        LMDB would end the transactions of the parent's threads, and py-lmdb would wait for the calls that these threads
        are in. The files remain open and mapped until the child exits.
        """
        if self._env is not None:
            _keep_forever(self._env)

    # -- transactions ----------------------------------------------------------------------------------------------

    def read(self) -> ReadTransaction:
        return ReadTransaction(self)

    def _enter(self, call: Pass) -> lmdb.Environment:
        """Enter the gate and return the open environment; callers leave the gate afterwards."""
        while True:
            self._gate.enter(call)
            env = self._env
            if env is not None:
                return env
            self._gate.leave(call)
            self._open_again()

    def _open_again(self, given_up: lmdb.Environment | None = None) -> None:
        """Open the environment if an attempt to reopen it has failed: the device may have recovered. If LMDB has given
        it up after a failed commit, reopen it, unless another thread has."""
        self._check_open()
        with self._folder_lock() as lock, self._gate:
            self._check_open()
            if self._env is given_up:
                self._release()
            if self._env is None:
                self._open()
            lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_for or ClientClosedError(f"store {self.path} is closed")

    def begin_read(self, frame: FrameType | None = None) -> Pass:
        """Begin a read transaction; end it with :meth:`end_read`. :meth:`read` does both. It is ended as well once the
        frame, if one is given, has left the stack."""
        call = Pass(frame)
        while True:
            env = self._enter(call)
            try:
                call.transaction = env.begin()
                return call
            except lmdb.MapResizedError:
                self._gate.leave(call)
                self._adopt_map_size()
            except lmdb.PanicError:
                # The thread whose commit failed has not reopened it yet, or was interrupted before it did.
                self._gate.leave(call)
                self._open_again(env)
            except lmdb.ReadersFullError as error:
                # LMDB frees the slots of dead processes only on request.
                freed = env.reader_check()
                self._gate.leave(call)
                if not freed:
                    reraise(error, self.path, "beginning to read")
            except lmdb.Error as error:
                self._gate.leave(call)
                reraise(error, self.path, "beginning to read")
            except BaseException:
                self._gate.leave(call)
                raise

    def end_read(self, call: Pass) -> None:
        if call.transaction is not None:
            call.transaction.abort()
        self._gate.leave(call)

    def begin_write(self) -> lmdb.Transaction:
        """A write transaction, for a ``with`` block, at whose end it is aborted or was committed; the caller's frame is
        inside the gate until :meth:`end_write`. LMDB's errors are the caller's to handle, except a map that another
        process has grown.

        Nothing here refers to the transaction when it is returned, and the block belongs to LMDB's own object: so an
        interruption between any two steps ends the transaction, whoever keeps the exception.
        """
        call = Pass(sys._getframe(1))
        while True:
            env = self._enter(call)
            try:
                if not self.name_is_durable:
                    self.sync_name()
                # Positional arguments (parent and write): py-lmdb takes twice as long over keywords.
                return env.begin(None, None, True)
            except lmdb.MapResizedError:
                self._gate.leave(call)
                self._adopt_map_size()
            except lmdb.PanicError:
                self._gate.leave(call)
                self._open_again(env)
            except BaseException:
                self._gate.leave(call)
                raise

    def reserve(self, transaction: lmdb.Transaction) -> None:
        """Have the file as large as the next commits need it."""
        reserve = self._reserve
        if reserve is not None and transaction.id() >= reserve.next_look and self._env is not None:
            reserve.look(transaction.id(), self._env.info()["last_pgno"])

    def mark(self, transaction: lmdb.Transaction, number: int) -> None:
        """Write the mark of the commit that :meth:`commit` is about to make. If that fails, nothing is committed."""
        self._marks.write(transaction, self.databases[schema.META], number, self._meta_pages)

    def commit(self, transaction: lmdb.Transaction, number: int) -> None:
        """Commit; durable on return if the environment is. ``number`` is the transaction's id."""
        transaction.commit()
        self._marks.committed(number)

    def settle(self) -> bool | None:
        """After a commit that failed: return whether it took effect (None: that cannot be known), and make that final.

        LMDB's two header pages are written again before they are synced: after a write that failed the kernel may take
        a page for clean although the disk does not have it. LMDB's lock of writers keeps others from committing
        meanwhile.
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
        """From here on others may change the map."""
        self._gate.depart()

    # -- the map and the file --------------------------------------------------------------------------------------

    def _adopt_map_size(self) -> None:
        with self._gate:
            if self._env is not None:
                self._adopt_map_size_of(self._env)

    def _adopt_map_size_of(self, env: lmdb.Environment) -> None:
        try:
            env.set_mapsize(0)
        except (lmdb.Error, MemoryError) as error:
            # LMDB has given up the old map. The next transaction opens the file again.
            self._release()
            raise StoreError(
                f"store {self.path}: cannot map the file, which another process has grown: {error}"
            ) from error

    def grow(self, needed: int = 0) -> None:
        """Make the map larger, by at least ``needed`` bytes. No write transaction of this process may be open."""
        with self._folder_lock() as lock, self._gate:
            env = self._env
            if env is not None:
                self._grow(env, needed)
            # If it is closed it is opened, and grown if that is still needed, by the transaction that is tried next.
            lock.release()

    def _grow(self, env: lmdb.Environment, needed: int) -> None:
        # Freed pages may only be kept for readers that died.
        env.reader_check()
        self._adopt_map_size_of(env)
        size = env.info()["map_size"]
        larger = size + max(min(size, LARGEST_GROWTH), needed)
        larger += -larger % 65536
        try:
            env.set_mapsize(larger)
            self._map_size = larger
        except (lmdb.Error, MemoryError, OverflowError) as error:
            # LMDB has given up the old map before it tried the new one.
            self._release()
            self._map_size = size
            self._open()
            answer = disk_full(f"store {self.path}: cannot map {larger} bytes: {error}", error)
            raise answer from answer.__cause__

    @property
    def last_commit(self) -> int:
        """Number of the newest commit by any process."""
        call = Pass(sys._getframe())
        env = self._enter(call)
        try:
            return env.info()["last_txnid"]
        finally:
            self._gate.leave(call)

    def reader_check(self) -> None:
        """Free what is kept for readers that died."""
        call = Pass(sys._getframe())
        env = self._enter(call)
        try:
            env.reader_check()
        finally:
            self._gate.leave(call)

    def copy(self, destination: str, compact: bool) -> None:
        """A consistent copy of the data file into the folder ``destination``, while writers go on."""
        call = Pass(sys._getframe())
        while True:
            env = self._enter(call)
            given_up = False
            try:
                # As bytes, which the stubs do not know of: a string has to be UTF-8.
                env.copy(os.fsencode(destination), compact=compact)  # type: ignore[arg-type]
                return
            except (lmdb.MapResizedError, lmdb.PanicError) as error:
                # What it has begun is in the way of the next attempt.
                os.unlink(data_file(destination))
                given_up = isinstance(error, lmdb.PanicError)
            finally:
                self._gate.leave(call)
            if given_up:
                self._open_again(env)
            else:
                self._adopt_map_size()


class ReadTransaction:
    """``with environment.read() as transaction``; LMDB's errors become ours on the way out."""

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
    """What LMDB gives, as bytes: it gives memoryviews only to those who ask for buffers, and nobody here does."""
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
    """Refuse what is no store, or one of another format, and say what to do with it."""
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


def _keep_forever(env: lmdb.Environment) -> None:
    _environments_of_parents.append(env)
    # Module globals are deleted when the interpreter exits.
    if Py_INCREF is not None:
        Py_INCREF(env)


def _disregard_parents() -> None:
    """In a forked child: open files that an environment of the parent has open.

    py-lmdb refuses to open an environment twice in a process, since LMDB's locks belong to the process: closing one of
    the two would release those of the other. The parent's environments are never closed here, and a child does not
    inherit locks.
    """
    if _envid is not None:
        process = os.getpid()
        _envid.env_keys = lambda path, subdir: tuple(
            (process, key)
            for key in _env_keys(path, subdir)  # type: ignore[no-untyped-call]
        )


_environments_of_parents: list[lmdb.Environment] = []
call_in_child(_disregard_parents)


def data_file(path: str) -> str:
    return os.path.join(path, DATA_FILE)


def lock_file(path: str) -> str:
    return os.path.join(path, LOCK_FILE)
