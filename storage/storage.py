"""Storage engine of the bookie: one store on one machine, shared by all clients of this process.

Every change goes through ``submit``. With ``durability="commit"`` a change survives kill -9 and power loss once its
Pending has completed. Of unconfirmed changes a prefix, in order of submission, may survive.
"""

from __future__ import annotations

import os
from contextlib import suppress
from threading import Lock, RLock
from time import monotonic
from weakref import WeakSet

from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    IncorrectParameterError,
    StoreCrashedError,
    StoreDamagedError,
    StoreInUseError,
    WriteOnReadOnlyError,
)
from bookstand.storage.commit.entry_operations import AddEntries, DeleteEntries
from bookstand.storage.commit.executor import CommitExecutor
from bookstand.storage.commit.futures import Pending, Waiters, pending_for
from bookstand.storage.commit.group_commit import CommitRequest, GroupCommitter
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import schema
from bookstand.storage.hooks import Hooks, SimulatedCrash
from bookstand.storage.lmdb.environment import FIRST_MAP_SIZE, LmdbEnvironment
from bookstand.storage.process import data_files, process_markers
from bookstand.storage.process.disk_space import DiskSpace
from bookstand.storage.process.fork_guard import ProcessBound, call_in_child
from bookstand.storage.process.interrupt_guard import is_interruption
from bookstand.storage.process.witness import Witness
from bookstand.storage.reader import StorageReader
from bookstand.storage.served.replica_reader import ReplicaReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from bookstand.storage.commit.group_commit import Outcome
    from bookstand.storage.hooks import Subject

    class Client(Protocol):
        """An object that serves other threads or network clients from this storage."""

        def storage_crashed(self, reason: BookstandError) -> None:
            """Fail all operations in flight: the storage will complete none of them."""


DURABILITIES = ("commit", "none")
CHECKS = ("fast", "structure", "full", "subprocess")
# Checks that verify the structure of the whole file.
_STRUCTURE_CHECKS = ("structure", "full")

# A structure check that reads a half-written commit is repeated; real damage is found every time.
_STRUCTURE_ATTEMPTS = 3

# Seconds between two checks of a waiting reader for commits of other processes.
WATCH_INTERVAL = 0.01

_opened: dict[tuple[int, int], Storage] = {}
_opened_lock = Lock()


def open_storage(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    read_only: bool = False,
    durability: str = "commit",
    check: str = "fast",
    witness: bool = False,
    hooks: Hooks | None = None,
    map_size: int = FIRST_MAP_SIZE,
) -> Storage:
    """Open the store at ``path``, or return the storage that this process has open already.

    Each call needs its own ``close()``.
    """
    if durability not in DURABILITIES:
        raise IncorrectParameterError(f"durability must be one of {DURABILITIES}, not {durability!r}")
    if check not in CHECKS:
        raise IncorrectParameterError(f"check must be one of {CHECKS}, not {check!r}")
    if hooks is not None and not isinstance(hooks, Hooks):
        raise IncorrectParameterError(f"hooks must be a bookstand.storage.hooks.Hooks, not {type(hooks).__name__}")
    folder = data_files.folder_name(path)
    opened: Storage | None = None
    try:
        while opened is None:
            with _opened_lock, data_files.os_errors(f"cannot open the store {folder}"):
                data_files.prepare_folder(folder, create, read_only)
                status = os.stat(folder)
                identity = status.st_dev, status.st_ino
                shared = _opened.get(identity)
                if shared is None:
                    opened = _open_first(
                        folder, identity, create, read_only, durability, check, witness, hooks, map_size
                    )
                elif not shared.closing:
                    shared.attach(read_only, durability, check, witness, hooks)
                    opened = shared
            if opened is None and shared is not None:
                # Wait for the thread that closes it, or complete a close that was interrupted.
                shared.finish_closing()
    except BaseException:
        # No caller can close it, because it is not returned.
        if opened is not None:
            opened.close()
        raise
    return opened


def _open_first(
    folder: str,
    identity: tuple[int, int],
    create: bool,
    read_only: bool,
    durability: str,
    check: str,
    witness: bool,
    hooks: Hooks | None,
    map_size: int,
) -> Storage:
    """Open a store that this process does not have open. The caller holds the registry lock."""
    if check == "subprocess" and data_files.has_data_file(folder):
        # Before this process locks the folder, because the child locks it too.
        data_files.probe_in_subprocess(folder)
    if hooks is not None:
        hooks.point("open.before")
    try:
        with process_markers.FolderLock(folder) as lock:
            created = data_files.create_if_missing(folder, create, read_only, durability == "commit", hooks)
            if created and hooks is not None:
                hooks.point("open.created")
            Storage(folder, identity, read_only, durability, check, witness, hooks, map_size, created)
            lock.release()
        storage = _opened[identity]
        if hooks is not None:
            storage.point("open.after")
    except SimulatedCrash:
        raise
    except BaseException:
        if identity in _opened:
            _opened[identity]._release_resources()
        raise
    return storage


class Storage(ProcessBound, StorageReader):
    """An open store; obtain one with :func:`open_storage`. All methods are thread-safe."""

    _released = False
    path = ""

    def __init__(
        self,
        path: str,
        identity: tuple[int, int],
        read_only: bool,
        durability: str,
        check: str,
        witness: bool,
        hooks: Hooks | None,
        map_size: int,
        created: bool,
    ) -> None:
        self.path = path
        self._identity = identity
        self.read_only = read_only
        self.durability = durability
        self._disk = DiskSpace(path)
        self.use_hooks(hooks)
        self._closed_reason: BookstandError | None = None
        # Notified of a crash, so that they can fail the operations of their own clients.
        self.clients: WeakSet[Client] = WeakSet()
        self._users = 1
        self._is_clean = False
        # Clients that have called close(), so that a repeated call does not count twice.
        self._closed_clients: set[Client | None] = set()
        # Set when the last client closes the store. A thread that reopens it completes the close first.
        self.closing = False
        self._closing_lock = RLock()
        self._watchers = Waiters()
        self._marker: process_markers.ProcessMarker | None = None
        self._roles: set[process_markers.ExclusiveRole] = set()
        self._witness: Witness | None = None
        self._was_extended = False
        # A new store needs no structure check.
        self._structure_seen = created
        others = process_markers.OpenProcesses(path)
        abandoned = [] if created else self._precheck(check, others)
        if read_only and not os.access(path, os.W_OK) and others.writers:
            raise StoreInUseError(
                f"store {path} is being written to, and this process cannot write to its folder: the writer could "
                "reuse pages that are being read"
            )
        if not read_only and others.unlocked:
            raise StoreInUseError(
                f"store {path} is being read by a process that found no disk space for LMDB's lock file: a writer "
                "could reuse pages that are being read; close the store in that process first"
            )
        locked = data_files.preallocate_lock_file(path, read_only)
        durable = durability == "commit"
        self._environment = LmdbEnvironment(
            path, read_only=read_only, durable=durable, locked=locked, map_size=map_size
        )
        try:
            if witness:
                self._witness = Witness(path)
                self._witness.check(lambda: self._environment.last_commit)
            if check in _STRUCTURE_CHECKS and not self._structure_seen:
                self.check_structure()
            if (check == "full" and not created) or self._was_extended:
                self._check_everything()
            if hooks is not None:
                hooks.point("open.before_marker")
            self._place_marker(locked)
            if hooks is not None:
                hooks.point("open.after_marker")
            if not read_only:
                process_markers.remove(abandoned)
            self._commits = CommitExecutor(self._environment, self._disk, self._witness)
            self.committer = GroupCommitter(self._commit)
            self.committer_lock = self.committer.lock
            _opened[identity] = self
        except BaseException as failure:
            self._environment.close()
            with suppress(OSError):
                if self._marker is not None and isinstance(failure, SimulatedCrash):
                    self._marker.abandon()
                elif self._marker is not None:
                    self._marker.remove()
            if self._witness is not None:
                self._witness.close()
            raise

    # -- opening and closing ---------------------------------------------------------------------------------------

    def _precheck(self, check: str, others: process_markers.OpenProcesses) -> list[str]:
        """Check the files before LMDB opens them. Return the markers of processes that died with the store open."""
        if others.writers:
            # The writer may reuse the pages being checked, because no read transaction protects them yet.
            return []
        self._was_extended = data_files.check_file_length(self.path, self.read_only)
        if not self.read_only:
            data_files.remove_leftovers(self.path)
        if others.died_writing or check in _STRUCTURE_CHECKS:
            data_files.verify_structure(self.path)
            self._structure_seen = True
        return others.died_writing + others.died_reading

    def _place_marker(self, locked: bool) -> None:
        self._marker = process_markers.ProcessMarker(self.path, self.read_only, locked)
        try:
            self._marker.enter()
        except OSError as error:
            if not self.read_only or not locked or is_interruption(error):
                raise
            # On a read-only medium no other process can replace the file.
            self._marker = None

    def _check_everything(self) -> None:
        from bookstand.storage.verify import verify

        report = verify(self, structure=False)
        if not report.ok:
            raise StoreDamagedError(f"store {self.path} is damaged: {report.problems[0].message}")

    def attach(self, read_only: bool, durability: str, check: str, witness: bool, hooks: Hooks | None) -> None:
        """Register another client of this process, and check that its options agree with the open store."""
        self.check_usable()
        if self.read_only and not read_only:
            raise StoreInUseError(f"store {self.path} is open read-only in this process; it cannot be written to")
        if durability != self.durability and not read_only:
            raise StoreInUseError(
                f"store {self.path} is open in this process with durability={self.durability!r}, not {durability!r}"
            )
        if hooks is not None and self.hooks not in (None, hooks):
            raise StoreInUseError(f"store {self.path} is open in this process with other hooks")
        if witness and self._witness is None:
            raise StoreInUseError(f"store {self.path} is open in this process without a witness")
        if check in _STRUCTURE_CHECKS:
            self.check_structure()
        if check == "full":
            self._check_everything()
        if hooks is not None:
            # Existing handles keep the hooks that they were created with.
            self.use_hooks(hooks)
        self._users += 1

    def close(self, client: Client | None = None) -> None:
        """Release one client's use of the store. The last client commits queued changes and closes the files.

        Calling it again for the same client completes a close that was interrupted.
        """
        if self.crashed:
            return
        with _opened_lock:
            if not self.closing and (client is None or client not in self._closed_clients):
                # No interruption can occur between these two statements.
                self._users -= 1
                self._closed_clients.add(client)
            if self._users:
                return
            self.closing = True
        self.finish_closing()

    def finish_closing(self) -> None:
        """Commit queued changes and close the files. After an interruption, call it again."""
        with self._closing_lock:
            if self._released:
                return
            try:
                # Outside the lock: callbacks of these commits may open and close stores.
                self.committer.stop()
            finally:
                # Paused, so that nothing submitted at the last moment commits while the environment closes.
                with _opened_lock, self.committer.paused(), data_files.os_errors(f"cannot close the store {self.path}"):
                    self._release_resources()
        self._watchers.notify()

    def _release_resources(self) -> None:
        """Close the environment and remove the marker. Can be repeated after an interruption."""
        if self._released:
            return
        clean = self._closed_reason is None or self._is_clean
        self._is_clean = clean
        if not self.crashed:
            self._closed_reason = ClientClosedError(f"store {self.path} is closed")
        self._environment.close(self._closed_reason)
        if self._witness is not None:
            self._witness.close()
        for role in list(self._roles):
            self.release_role(role)
        if self._marker is not None:
            if clean:
                self._marker.remove()
            else:
                self._marker.abandon()
        _opened.pop(self._identity, None)
        self._released = True

    @property
    def crashed(self) -> bool:
        return isinstance(self._closed_reason, StoreCrashedError)

    def crash(self, reason: StoreCrashedError | None = None) -> None:
        """Simulate the death of the process, for tests.

        Queued changes are not committed, and the process marker remains in the folder. A commit in progress in another
        thread completes and counts. Every later use of a handle, in any thread and by any client, raises ``reason``,
        except that a client can still be closed. The path can be opened again, in this process and in others.
        """
        if self._released or self.crashed:
            return
        self._closed_reason = reason or StoreCrashedError(f"store {self.path} has crashed (simulated); open it again")
        self.closing = True
        try:
            if self.hooks is not None:
                self.hooks.crashed(self._closed_reason)
            with self.committer.shut_down():
                self._release_resources()
        finally:
            self._watchers.notify()
        for client in list(self.clients):
            client.storage_crashed(self._closed_reason)

    def _store_path(self) -> str | None:
        return None if self._released else self.path or None

    def check_usable(self) -> None:
        if self._closed_reason is not None:
            raise self._closed_reason.with_traceback(None)

    # -- server roles ----------------------------------------------------------------------------------------------

    def acquire_role(self, name: str) -> process_markers.ExclusiveRole | None:
        """Acquire the exclusive right to serve the store's ``name``, until :meth:`release_role` or process exit.

        :class:`StoreInUseError` if another process holds it. Other processes may use the store meanwhile. Any number of
        servers may serve a read-only store: they need no role, and get None.
        """
        self.check_usable()
        if self.read_only:
            return None
        role = process_markers.ExclusiveRole(self.path, name)
        # Beforehand, so that it ends with the store whatever happens here.
        self._roles.add(role)
        try:
            with data_files.os_errors(f"cannot serve the store {self.path}"):
                role.take()
            return role
        except process_markers.RoleHeldError as taken:
            holder = f"process {taken.holder}" if taken.holder else "another process"
            self._roles.discard(role)
            raise StoreInUseError(
                f"store {self.path}: {holder} serves its {name} already; only one server at a time is allowed"
            ) from None
        except BaseException:
            # It is not returned, so no caller can release it.
            self.release_role(role)
            raise

    def release_role(self, role: process_markers.ExclusiveRole | None) -> None:
        if role in self._roles and role is not None:
            # Keep the role until it is released: an interrupted call is repeated.
            with data_files.os_errors(f"cannot stop serving the store {self.path}"):
                role.remove()
            self._roles.discard(role)

    # -- hooks -----------------------------------------------------------------------------------------------------

    def use_hooks(self, hooks: Hooks | None) -> None:
        """Install hooks, or remove them. Writers that exist already keep the hooks that they were created with."""
        self.hooks = hooks
        if hooks is None:
            self._disk.simulates_full = False
        # None if the hooks do not intercept single entries.
        self.entry_hooks = hooks if hooks is not None and hooks.sees_entries else None

    def point(self, name: str, subject: Subject = None, bookie: int | None = None) -> None:
        """Run the hooks of a failpoint, or those for one bookie of a server. Callers check ``hooks`` first to save the
        call; another thread may have removed them since."""
        hooks = self.hooks
        if hooks is None:
            return
        if bookie is not None:
            hooks = hooks.for_bookie(bookie)
        self.check_usable()
        try:
            hooks.on_failpoint(name, subject, self)
        except SimulatedCrash as crash:
            self.crash(crash.reason)
            raise

    def copies(self, bookie: int) -> ReplicaReader:
        self.check_usable()
        return ReplicaReader(self._environment, bookie)

    # -- changes ---------------------------------------------------------------------------------------------------

    def submit(self, batch: WriteBatch) -> Pending:
        """Queue a write batch; the result is the list of its operations' results."""
        request = CommitRequest(self.committer, batch.operations)
        self.enqueue(request, awaited=False)
        return pending_for(request)

    def apply(self, batch: WriteBatch) -> list[Any]:
        request = CommitRequest(self.committer, batch.operations)
        self.enqueue(request)
        result: list[Any] = pending_for(request).result()
        return result

    def enqueue(self, request: CommitRequest, awaited: bool = True) -> None:
        self.check_writable()
        self.committer.submit(request, awaited)

    def enqueue_locked(self, request: CommitRequest) -> None:
        """Queue a request for a caller that holds ``committer_lock``."""
        self.check_writable()
        self.committer.enqueue(request)

    def flush(self) -> None:
        self.committer.flush()

    def flush_if_queued(self) -> None:
        """Commit what this process has queued, so that a subsequent read sees it."""
        if not self.committer.idle:
            self.committer.flush()

    @property
    def is_full(self) -> bool:
        """True if a write has found the disk full, and there is still no space."""
        if self.hooks is not None:
            self._disk.simulates_full = self.hooks.disk_is_full()
        return self._disk.full_error() is not None

    def check_writable(self) -> None:
        if self._closed_reason is not None:
            raise self._closed_reason.with_traceback(None)
        if self.read_only:
            raise WriteOnReadOnlyError(f"store {self.path} was opened read-only")

    def _commit(self, requests: list[CommitRequest]) -> list[Outcome]:
        """Commit a batch; return (results, error) for each request. Runs in one thread at a time."""
        if self._closed_reason is not None:
            return [(None, self._closed_reason)] * len(requests)
        hooks = self.hooks
        if hooks is not None:
            self._disk.simulates_full = hooks.disk_is_full()
        try:
            outcomes = self._commits.commit(requests, hooks)
        except SimulatedCrash as crash:
            self.crash(crash.reason)
            raise
        self._after_commit()
        return outcomes

    def commit_entries(self, entries: AddEntries) -> BookstandError | None:
        """Commit entries of one ledger in this thread, which leads the committer. Bypasses the hooks."""
        if self._closed_reason is not None:
            return self._closed_reason
        error = self._commits.commit_entries(entries)
        if error is not None or self._watchers:
            self._after_commit()
        return error

    def _after_commit(self) -> None:
        if self._commits.broken is not None:
            self._closed_reason = self._commits.broken
        if self._watchers:
            self._watchers.notify()

    # -- waiting for other processes -------------------------------------------------------------------------------

    def wait_for_commit(self, deadline: float | None) -> bool:
        """Wait up to ``WATCH_INTERVAL`` for a commit of this process; return False after the deadline.

        Commits of other processes send no wake-up: the caller reads again after each call.
        """
        self.check_usable()
        rest = WATCH_INTERVAL if deadline is None else min(WATCH_INTERVAL, deadline - monotonic())
        if rest <= 0:
            return False
        self._watchers.wait(rest, lambda: False)
        return True

    # -- maintenance -----------------------------------------------------------------------------------------------

    @property
    def store_id(self) -> bytes:
        store_id = self.meta(schema.META_STORE_ID)
        if store_id is None:
            raise StoreDamagedError(f"store {self.path}: its id is missing")
        return store_id

    @property
    def last_commit(self) -> int:
        self.check_usable()
        return self._environment.last_commit

    def collect(self, ledger_id: int) -> None:
        """Remove the remaining entries of a deleted ledger, in commits of bounded size."""
        while self.apply(WriteBatch(DeleteEntries(ledger_id)))[0]:
            pass
        self._disk.record_freed()

    def collect_deleted(self, deleted_before: int, limit: int | None = None) -> int:
        """Remove the remaining entries of ledgers deleted before a time (ms), oldest deletion first. Return the number
        of ledgers, at most ``limit``."""
        count = 0
        for key in self.meta_keys(schema.META_DELETED):
            deleted_at, ledger_id = schema.parse_deletion(key)
            if deleted_at > deleted_before or count == limit:
                break
            self.collect(ledger_id)
            count += 1
        return count

    def other_processes(self) -> process_markers.OpenProcesses:
        return process_markers.OpenProcesses(self.path, besides=self._marker)

    def check_structure(self) -> None:
        """Raise :class:`StoreDamagedError` if LMDB could not read the whole file, or not write to it without destroying
        data.

        Other processes may write meanwhile: the read transaction protects all pages of the newest commit and later
        ones.
        """
        self.check_usable()
        with self._environment.read():
            for _ in range(_STRUCTURE_ATTEMPTS - 1):
                if data_files.structure_problem(self.path) is None:
                    return
            data_files.verify_structure(self.path)

    def replace_data_file(self, write_replacement: Callable[[], None]) -> None:
        """Call ``write_replacement``, which replaces the data file, and continue with the new file.

        Nothing is committed meanwhile, or before the new file's name is durable. :class:`StoreInUseError` if another
        process has the store open.
        """
        self.check_writable()
        # The folder lock is acquired with the environment open: reading would otherwise reopen it, which needs the
        # folder lock. Only a commit could close it again, and none is in progress.
        with self.committer.paused(), self._folder_lock_of_open() as lock:
            others = self.other_processes()
            if others.writers or others.readers:
                raise StoreInUseError(f"store {self.path} is open in another process")
            # Commit numbers restart in the new file, which also affects a witness that this process does not use.
            witness = self._witness
            if witness is None and Witness.exists(self.path):
                witness = Witness(self.path)
            try:
                if witness is not None:
                    witness.restart()
                self._environment.name_is_durable = False
                write_replacement()
            finally:
                # After any failure the file with that name is the store, whether old or new.
                if not self.crashed:
                    self._environment.reopen_locked()
                    self._environment.sync_name()
                    self._commits.forget_states()
                    if witness is not None:
                        witness.record_commit(self._environment.last_commit)
                if witness is not None and witness is not self._witness:
                    witness.close()
            lock.release()

    def _folder_lock_of_open(self) -> process_markers.FolderLock:
        self._environment.reader_check()
        return process_markers.FolderLock(self.path)

    def copy(self, destination: str, compact: bool) -> None:
        self.check_usable()
        self._environment.copy(destination, compact)


def _forget_parents() -> None:
    """In a forked child: no store is open, and no thread is opening one."""
    global _opened_lock
    _opened.clear()
    _opened_lock = Lock()


call_in_child(_forget_parents)
