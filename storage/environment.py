"""The LMDB environment of one store: transactions, growth of the map, and reopening after a failed commit.

LMDB forbids changing the map while this process has a transaction open or is about to open one, so every transaction
goes through :class:`Gate`, and whoever changes the map shuts it first. Read transactions are short: nothing here is
held across a user's code.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from threading import Condition, RLock, get_ident

import lmdb

from bookstand.errors import ClientClosedError, NotAStoreError, StoreDamagedError, StoreError, StoreFormatError
from bookstand.storage import keys, owners
from bookstand.storage.commit_marks import CommitMarks
from bookstand.storage.lmdb_errors import disk_full, reraise
from bookstand.storage.meta_page import META_PAGES, SMALLEST_PAGE
from bookstand.storage.reserving import Reserve, gains_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

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


class Gate:
    """Open to any number of readers, or shut by one who changes the map.

    Who is inside is counted by thread. A thread that shuts the gate is not inside itself, whatever the count says: an
    interruption (Ctrl-C) between two steps may have kept it from leaving.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self._condition = Condition(self.lock)
        self._inside: dict[int, int] = {}
        self._shut = False

    def enter(self) -> None:
        # It is the condition's lock, and entered without a Python call.
        with self.lock:
            thread = get_ident()
            # Who is inside already may go in again: the one who has shut it waits for him.
            while self._shut and thread not in self._inside:
                self._condition.wait()
            self._inside[thread] = self._inside.get(thread, 0) + 1

    def leave(self) -> None:
        with self.lock:
            thread = get_ident()
            left = self._inside.pop(thread, 1) - 1
            if left > 0:
                self._inside[thread] = left
            if self._shut and not self._inside:
                self._condition.notify_all()

    def depart(self) -> None:
        """Leave it, however often this thread has entered it."""
        with self._condition:
            self._inside.pop(get_ident(), None)
            if not self._inside:
                self._condition.notify_all()

    def __enter__(self) -> None:
        """Shut it, and wait until everybody has left."""
        with self._condition:
            self.depart()
            while self._shut:
                self._condition.wait()
            self._shut = True
            try:
                while self._inside:
                    self._condition.wait()
            except BaseException:
                self._shut = False
                self._condition.notify_all()
                raise

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._shut = False
            self._condition.notify_all()


class Environment:
    """An open LMDB environment with its sub-databases. ``lib_version=0`` pins the format of LMDB 0.9."""

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
        self._gate = Gate()
        self._env: lmdb.Environment | None = None
        self._reserve: Reserve | None = None
        self._marks = CommitMarks()
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
            if keys.COPIES not in self.databases and not self.read_only:
                self._add_copies(env)
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
                    max_dbs=len(keys.DATABASES),
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
                self.databases[keys.COPIES] = env.open_db(keys.COPIES)
                return
            except lmdb.MapResizedError:
                env.set_mapsize(0)

    def _make_reserve(self) -> Reserve | None:
        """None where nothing has to wait for a file that grows."""
        name = data_file(self.path)
        if self.read_only or not self._durable or not gains_at(name):
            return None
        return Reserve(name, self.page_size)

    def close(self, reason: BookstandError | None = None) -> None:
        """Close it; later use raises ``reason``."""
        with self._gate:
            self._closed = True
            self._closed_for = reason
            self._release()

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        """Hold the folder's lock, which is taken before the gate: its holder may be waiting until this thread, whose
        transaction has ended, has left the gate."""
        self._gate.depart()
        lock = owners.FolderLock(self.path)
        try:
            try:
                lock.__enter__()
            except OSError as error:
                raise StoreError(f"store {self.path}: cannot lock its folder: {error}") from error
            yield
        finally:
            lock.__exit__()

    def reopen(self) -> None:
        """Close and open again: the only way on after LMDB has given up on an environment.

        As the first opening does, it holds the folder's lock. LMDB initializes its lock file while it opens: a process
        that died in the middle of that would leave another one, which waits for its turn, with transaction 0.
        """
        with self._folder_lock():
            self.reopen_locked()

    def reopen_locked(self) -> None:
        """Reopen for a caller that holds the folder's lock."""
        with self._gate:
            self._release()
            self._open()

    def sync_name(self) -> None:
        """Make the data file's name durable. A commit to a file that may lose its name may be lost with it."""
        try:
            if self._durable:
                owners.sync_folder(self.path)
        except OSError as error:
            raise StoreError(
                f"store {self.path}: the new data file's name cannot be synced, so nothing is committed to it: {error}"
            ) from error
        self.name_is_durable = True

    def _release(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No transaction of this process is open inside the block, and no thread is about to begin one."""
        with self._gate, self._gate.lock:
            yield

    # -- transactions ----------------------------------------------------------------------------------------------

    def read(self) -> Read:
        return Read(self)

    def _enter(self) -> lmdb.Environment:
        """Enter the gate and return the open environment; callers leave the gate afterwards."""
        while True:
            self._gate.enter()
            env = self._env
            if env is not None:
                return env
            self._gate.leave()
            self._open_again()

    def _open_again(self) -> None:
        """Open the environment if an attempt to reopen it has failed: the device may have recovered."""
        self._check_open()
        with self._folder_lock(), self._gate:
            self._check_open()
            if self._env is None:
                self._open()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_for or ClientClosedError(f"store {self.path} is closed")

    def begin_read(self) -> lmdb.Transaction:
        """Begin a read transaction; end it with :meth:`end_read`. :meth:`read` does both."""
        while True:
            env = self._enter()
            entered = True
            try:
                return env.begin()
            except lmdb.MapResizedError:
                self._gate.leave()
                entered = False
                self._adopt_map_size()
            except lmdb.ReadersFullError as error:
                # LMDB frees the slots of dead processes only on request.
                freed = env.reader_check()
                self._gate.leave()
                entered = False
                if not freed:
                    reraise(error, self.path, "beginning to read")
            except lmdb.Error as error:
                self._gate.leave()
                entered = False
                reraise(error, self.path, "beginning to read")
            except BaseException:
                if entered:
                    self._gate.leave()
                raise

    def end_read(self, transaction: lmdb.Transaction) -> None:
        transaction.abort()
        self._gate.leave()

    def begin_write(self) -> lmdb.Transaction:
        """A write transaction: LMDB errors are the caller's to handle, except a map that another process has grown.
        Once it is committed or aborted, :meth:`end_write`."""
        while True:
            env = self._enter()
            try:
                if not self.name_is_durable:
                    self.sync_name()
                # Positional arguments (parent and write): py-lmdb takes twice as long over keywords.
                transaction = env.begin(None, None, True)
            except lmdb.MapResizedError:
                self._gate.leave()
                self._adopt_map_size()
                continue
            except BaseException:
                self._gate.leave()
                raise
            reserve = self._reserve
            if reserve is not None and transaction.id() >= reserve.next_look:
                try:
                    reserve.look(transaction.id(), env.info()["last_pgno"])
                except BaseException:
                    transaction.abort()
                    self._gate.leave()
                    raise
            return transaction

    def mark(self, transaction: lmdb.Transaction, number: int) -> None:
        """Write the mark of the commit that :meth:`commit` is about to make. If that fails, nothing is committed."""
        self._marks.write(transaction, self.databases[keys.META], number)

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
        transaction = self.begin_write()
        try:
            done = self._marks.took_effect(transaction, self.databases[keys.META])
            if self._durable:
                self._rewrite_header_pages()
        finally:
            try:
                transaction.abort()
            finally:
                self.end_write()
        return done

    def _rewrite_header_pages(self) -> None:
        file = os.open(data_file(self.path), os.O_RDWR | os.O_CLOEXEC)
        try:
            for start in range(0, META_PAGES * self.page_size, self.page_size):
                page = os.pread(file, SMALLEST_PAGE, start)
                if len(page) != SMALLEST_PAGE or os.pwrite(file, page, start) != SMALLEST_PAGE:
                    raise OSError(errno.EIO, "a header page was read or written only in part")
            os.fdatasync(file)
        finally:
            os.close(file)

    def end_write(self) -> None:
        """From here on others may change the map."""
        self._gate.leave()

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
        with self._folder_lock(), self._gate:
            env = self._env
            if env is None:
                # It is opened, and grown if that is still needed, by the transaction that is tried next.
                return
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
        env = self._enter()
        try:
            return env.info()["last_txnid"]
        finally:
            self._gate.leave()

    def reader_check(self) -> None:
        """Free what is kept for readers that died."""
        env = self._enter()
        try:
            env.reader_check()
        finally:
            self._gate.leave()

    def copy(self, destination: str, compact: bool) -> None:
        """A consistent copy of the data file into the folder ``destination``, while writers go on."""
        while True:
            env = self._enter()
            try:
                # As bytes, which the stubs do not know of: a string has to be UTF-8.
                env.copy(os.fsencode(destination), compact=compact)  # type: ignore[arg-type]
                return
            except lmdb.MapResizedError:
                # What it has begun is in the way of the next attempt.
                os.unlink(data_file(destination))
            finally:
                self._gate.leave()
            self._adopt_map_size()


class Read:
    """``with environment.read() as transaction``; LMDB's errors become ours on the way out."""

    __slots__ = ("_environment", "_transaction")

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __enter__(self) -> lmdb.Transaction:
        self._transaction = self._environment.begin_read()
        return self._transaction

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._environment.end_read(self._transaction)
        if isinstance(error, lmdb.Error):
            reraise(error, self._environment.path, "reading")


def values(found: Iterator[bytes | memoryview]) -> Iterator[bytes]:
    """What LMDB gives, as bytes: it gives memoryviews only to those who ask for buffers, and nobody here does."""
    return found  # type: ignore[return-value]


def _each_database(env: lmdb.Environment) -> Iterator[tuple[bytes, lmdb._Database]]:
    for name in keys.DATABASES:
        try:
            yield name, env.open_db(name, create=False)
        except lmdb.NotFoundError:
            if name != keys.COPIES:
                raise


def _format_record(path: str, env: lmdb.Environment) -> bytes | None:
    try:
        meta = env.open_db(keys.META, create=False)
    except lmdb.NotFoundError:
        return None
    with env.begin() as transaction:
        found = transaction.get(keys.META_FORMAT, None, meta)
    if found is None:
        raise StoreDamagedError(f"store {path} is damaged: record 'format' of meta is missing")
    return found


def check_format(path: str, found: bytes | None) -> None:
    """Refuse what is no store, or one of another format, and say what to do with it."""
    if found is None:
        raise NotAStoreError(f"{path} holds an LMDB file of another program")
    if len(found) != keys.FORMAT.size:
        raise StoreDamagedError(f"store {path} is damaged: its format is {found!r}")
    (version,) = keys.FORMAT.unpack(found)
    if version > keys.FORMAT_VERSION:
        raise StoreFormatError(
            f"store {path} has format {version}; this version of bookstand reads format "
            f"{keys.FORMAT_VERSION}: open it with a newer version"
        )
    if version < keys.FORMAT_VERSION:
        raise StoreFormatError(
            f"store {path} has format {version}, of a development version of bookstand; this version reads format "
            f"{keys.FORMAT_VERSION}: export it with the version that wrote it (bookstand export-bookie), and import "
            "that into a new store (bookstand import-bookie)"
        )


def data_file(path: str) -> str:
    return os.path.join(path, DATA_FILE)


def lock_file(path: str) -> str:
    return os.path.join(path, LOCK_FILE)
