"""The bookie: one store on one machine, shared by all who have it open in this process.

``submit`` is the one way to change anything. What a submit's Pending completed for survives kill -9 and power loss
(``durability="commit"``); what was not confirmed may survive, and then as a prefix.
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
        """Who answers others out of this storage."""

        def storage_crashed(self, reason: BookstandError) -> None:
            """It is gone: nothing that is under way will be answered by it."""


DURABILITIES = ("commit", "none")
CHECKS = ("fast", "structure", "full", "subprocess")
# Those that look at the structure of every file.
_CLOSE = ("structure", "full")

# A look at the structure that meets a commit half written is repeated; damage is there every time.
_LOOKS = 3

# How often a waiting reader looks for what other processes have committed.
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
    """The storage at ``path``; the same one for everybody in this process who has it open. Close it as often."""
    if durability not in DURABILITIES:
        raise IncorrectParameterError(f"durability must be one of {DURABILITIES}, not {durability!r}")
    if check not in CHECKS:
        raise IncorrectParameterError(f"check must be one of {CHECKS}, not {check!r}")
    if hooks is not None and not isinstance(hooks, Hooks):
        raise IncorrectParameterError(f"hooks are a bookstand.storage.hooks.Hooks, not {type(hooks).__name__}")
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
                    shared.share(read_only, durability, check, witness, hooks)
                    opened = shared
            if opened is None and shared is not None:
                # Waits for the thread that closes it, and ends what an interrupted one has begun.
                shared.finish_closing()
    except BaseException:
        # It is not returned, so no caller can close it.
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
    """Nobody in this process has it open; the registry is locked."""
    if check == "subprocess" and data_files.has_data_file(folder):
        # Before the folder is locked, for the child locks it as well.
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
            _opened[identity]._let_go()
        raise
    return storage


class Storage(ProcessBound, StorageReader):
    """Use :func:`open_storage`. All methods may be called from any thread."""

    _gone = False
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
        self._refusal: BookstandError | None = None
        # Those who are to be told of a crash, for they answer others.
        self.clients: WeakSet[Client] = WeakSet()
        self._users = 1
        self._closed_clean = False
        # Those users that have closed it, as far as they are known.
        self._left: set[Client | None] = set()
        # The last user is closing it; whoever wants to open it again ends that first, one thread at a time.
        self.closing = False
        self._closing_lock = RLock()
        self._watchers = Waiters()
        self._owner: process_markers.ProcessMarker | None = None
        self._roles: set[process_markers.ExclusiveRole] = set()
        self._witness: Witness | None = None
        self._lengthened = False
        # Of a new one there is nothing to see.
        self._structure_seen = created
        others = process_markers.OpenProcesses(path)
        abandoned = [] if created else self._examine(check, others)
        if read_only and not os.access(path, os.W_OK) and others.writers:
            raise StoreInUseError(
                f"store {path} is being written to, and its folder cannot be written to from here: nothing would keep "
                "the writer from reusing pages that are being read"
            )
        if not read_only and others.unlocked:
            raise StoreInUseError(
                f"store {path} is read by a process that found no room on the disk for LMDB's lock file: nothing would "
                "keep a writer from reusing the pages that are being read; close it there first"
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
            if check in _CLOSE and not self._structure_seen:
                self.check_structure()
            if (check == "full" and not created) or self._lengthened:
                self._check_everything()
            if hooks is not None:
                hooks.point("open.before_marker")
            self._announce(locked)
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
                if self._owner is not None and isinstance(failure, SimulatedCrash):
                    self._owner.forget()
                elif self._owner is not None:
                    self._owner.leave()
            if self._witness is not None:
                self._witness.close()
            raise

    # -- opening and closing ---------------------------------------------------------------------------------------

    def _examine(self, check: str, others: process_markers.OpenProcesses) -> list[str]:
        """Look at the files before LMDB does; returns the markers of processes that did not close the store."""
        if others.writers:
            # Its pages change while we would look at them, as long as nothing keeps those that we read.
            return []
        self._lengthened = data_files.check_file_length(self.path, self.read_only)
        if not self.read_only:
            data_files.remove_leftovers(self.path)
        if others.died_writing or check in _CLOSE:
            data_files.verify_structure(self.path)
            self._structure_seen = True
        return others.died_writing + others.died_reading

    def _announce(self, locked: bool) -> None:
        self._owner = process_markers.ProcessMarker(self.path, self.read_only, locked)
        try:
            self._owner.enter()
        except OSError as error:
            if not self.read_only or not locked or is_interruption(error):
                raise
            # On a read-only medium no process can replace the file, either.
            self._owner = None

    def _check_everything(self) -> None:
        from bookstand.storage.verify import verify

        report = verify(self, structure=False)
        if not report.ok:
            raise StoreDamagedError(f"store {self.path} is damaged: {report.problems[0].message}")

    def share(self, read_only: bool, durability: str, check: str, witness: bool, hooks: Hooks | None) -> None:
        """Somebody else in this process opens it, too."""
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
        if check in _CLOSE:
            self.check_structure()
        if check == "full":
            self._check_everything()
        if hooks is not None:
            # Handles made before do not see them.
            self.use_hooks(hooks)
        self._users += 1

    def close(self, client: Client | None = None) -> None:
        """Commit what is queued; the last one who closes it closes the files. Called again for the same client, it ends
        what an interruption has left."""
        if self.crashed:
            return
        with _opened_lock:
            if not self.closing and (client is None or client not in self._left):
                # No interruption comes between the two.
                self._users -= 1
                self._left.add(client)
            if self._users:
                return
            self.closing = True
        self.finish_closing()

    def finish_closing(self) -> None:
        """Commit what is queued, and close the files, unless another thread has. An interruption leaves the rest to the
        next call."""
        with self._closing_lock:
            if self._gone:
                return
            try:
                # Outside the lock: what is told of these commits may open and close stores.
                self.committer.stop()
            finally:
                # Paused: nothing may commit while the environment goes, also not what was submitted at the last moment.
                with _opened_lock, self.committer.paused(), data_files.os_errors(f"cannot close the store {self.path}"):
                    self._let_go()
        self._watchers.notify()

    def _let_go(self) -> None:
        """Each step can be repeated; the last one is to be gone."""
        if self._gone:
            return
        clean = self._refusal is None or self._closed_clean
        self._closed_clean = clean
        if not self.crashed:
            self._refusal = ClientClosedError(f"store {self.path} is closed")
        self._environment.close(self._refusal)
        if self._witness is not None:
            self._witness.close()
        for role in list(self._roles):
            self.resign(role)
        if self._owner is not None:
            if clean:
                self._owner.leave()
            else:
                self._owner.forget()
        _opened.pop(self._identity, None)
        self._gone = True

    @property
    def crashed(self) -> bool:
        return isinstance(self._refusal, StoreCrashedError)

    def crash(self, reason: StoreCrashedError | None = None) -> None:
        """For tests: let go of everything as if the process had died here.

        Nothing that is queued is committed, and the store is not closed in good order: the marker of its owner stays,
        as a dead process leaves it. A commit that another thread is in the middle of ends first, and counts. Every
        later use of a handle, in whatever thread and by whatever client, raises ``reason``; closing a client does not.
        The path can be opened again, in this process as in others.
        """
        if self._gone or self.crashed:
            return
        self._refusal = reason or StoreCrashedError(f"store {self.path} has crashed (simulated); open it again")
        self.closing = True
        try:
            if self.hooks is not None:
                self.hooks.crashed(self._refusal)
            with self.committer.halted():
                self._let_go()
        finally:
            self._watchers.notify()
        for client in list(self.clients):
            client.storage_crashed(self._refusal)

    def _store_path(self) -> str | None:
        return None if self._gone else self.path or None

    def check_usable(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    # -- serving it ------------------------------------------------------------------------------------------------

    def take_role(self, name: str) -> process_markers.ExclusiveRole | None:
        """Be the one who serves others with the store's ``name``, until :meth:`resign`, or the process ends.

        :class:`StoreInUseError` if somebody is already. Others may use the store meanwhile. A store that is only read
        may be served by many: that is no role, None.
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
                f"store {self.path}: {holder} serves its {name} already, and only one server can at a time"
            ) from None
        except BaseException:
            # It is not returned, so no caller can resign it.
            self.resign(role)
            raise

    def resign(self, role: process_markers.ExclusiveRole | None) -> None:
        if role in self._roles and role is not None:
            # An interrupted call is repeated.
            with data_files.os_errors(f"cannot end serving the store {self.path}"):
                role.leave()
            self._roles.discard(role)

    # -- hooks, where there are any --------------------------------------------------------------------------------

    def use_hooks(self, hooks: Hooks | None) -> None:
        """From now on; handles that writers have already do not see them."""
        self.hooks = hooks
        if hooks is None:
            self._disk.kept_full = False
        # The same where they want to see single entries.
        self.entry_hooks = hooks if hooks is not None and hooks.sees_entries else None

    def point(self, name: str, subject: Subject = None, bookie: int | None = None) -> None:
        """Pass a point of ``hooks.POINTS``, at a server's bookie or at none. Callers ask first whether there are hooks;
        they may be gone since."""
        hooks = self.hooks
        if hooks is None:
            return
        if bookie is not None:
            hooks = hooks.of_bookie(bookie)
        self.check_usable()
        try:
            hooks.at(name, subject, self)
        except SimulatedCrash as crash:
            self.crash(crash.reason)
            raise

    def copies(self, bookie: int) -> ReplicaReader:
        """What one of a server's bookies has, at this moment."""
        self.check_usable()
        return ReplicaReader(self._environment, bookie)

    # -- changes ---------------------------------------------------------------------------------------------------

    def submit(self, change: WriteBatch) -> Pending:
        """Queue a change; the result is the list of its operations' results."""
        submission = CommitRequest(self.committer, change.operations)
        self.enqueue(submission, awaited=False)
        return pending_for(submission)

    def apply(self, change: WriteBatch) -> list[Any]:
        """Submit, and wait until it is committed."""
        submission = CommitRequest(self.committer, change.operations)
        self.enqueue(submission)
        result: list[Any] = pending_for(submission).result()
        return result

    def enqueue(self, submission: CommitRequest, awaited: bool = True) -> None:
        self.check_writable()
        self.committer.submit(submission, awaited)

    def enqueue_locked(self, submission: CommitRequest) -> None:
        """The same for a caller that holds ``committer_lock``."""
        self.check_writable()
        self.committer.enqueue(submission)

    def flush(self) -> None:
        """Commit whatever is queued."""
        self.committer.flush()

    def flush_if_queued(self) -> None:
        """Commit what is queued in this process, so that a read sees it."""
        if not self.committer.idle:
            self.committer.flush()

    @property
    def is_full(self) -> bool:
        """Whether a write has found the disk full, and there is no space yet."""
        if self.hooks is not None:
            self._disk.kept_full = self.hooks.disk_is_full()
        return self._disk.refusal() is not None

    def check_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if self.read_only:
            raise WriteOnReadOnlyError(f"store {self.path} was opened read-only")

    def _commit(self, submissions: list[CommitRequest]) -> list[Outcome]:
        """(results, error) for each; runs in one thread at a time."""
        if self._refusal is not None:
            return [(None, self._refusal)] * len(submissions)
        hooks = self.hooks
        if hooks is not None:
            self._disk.kept_full = hooks.disk_is_full()
        try:
            outcomes = self._commits.commit(submissions, hooks)
        except SimulatedCrash as crash:
            self.crash(crash.reason)
            raise
        self._after_commit()
        return outcomes

    def commit_entries(self, entries: AddEntries) -> BookstandError | None:
        """Commit entries of one ledger, and nothing else, in this thread, which has claimed the committer. Hooks see
        nothing of it."""
        if self._refusal is not None:
            return self._refusal
        error = self._commits.commit_entries(entries)
        if error is not None or self._watchers:
            self._after_commit()
        return error

    def _after_commit(self) -> None:
        if self._commits.broken is not None:
            self._refusal = self._commits.broken
        if self._watchers:
            self._watchers.notify()

    # -- waiting for others -------------------------------------------------------------------------------------------

    def watch(self, deadline: float | None) -> bool:
        """Wait a little for another commit, of this process or any other; False once the deadline has passed."""
        self.check_usable()
        rest = WATCH_INTERVAL if deadline is None else min(WATCH_INTERVAL, deadline - monotonic())
        if rest <= 0:
            return False
        self._watchers.wait(rest, lambda: False)
        return True

    # -- upkeep ----------------------------------------------------------------------------------------------------

    @property
    def store_id(self) -> bytes:
        store_id = self.meta(schema.META_STORE_ID)
        if store_id is None:
            raise StoreDamagedError(f"store {self.path}: its id is missing")
        return store_id

    @property
    def last_commit(self) -> int:
        """Number of the newest commit, by whatever process."""
        self.check_usable()
        return self._environment.last_commit

    def collect(self, ledger_id: int) -> None:
        """Remove what is left of a deleted ledger, in commits of bounded size."""
        while self.apply(WriteBatch(DeleteEntries(ledger_id)))[0]:
            pass
        self._disk.note_freed()

    def collect_deleted(self, deleted_before: int, most: int | None = None) -> int:
        """Remove what is left of the ledgers deleted before that time (ms), or of the ``most`` that were first; returns
        how many there were."""
        count = 0
        for key in self.meta_keys(schema.META_DELETED):
            deleted_at, ledger_id = schema.parse_deletion(key)
            if deleted_at > deleted_before or count == most:
                break
            self.collect(ledger_id)
            count += 1
        return count

    def others(self) -> process_markers.OpenProcesses:
        """Which other processes have the store open."""
        return process_markers.OpenProcesses(self.path, besides=self._owner)

    def check_structure(self) -> None:
        """:class:`StoreDamagedError` if LMDB could not read all of the file, or not write to it without destroying
        something. Others may write meanwhile: the read transaction keeps every page of the newest commit and of later
        ones as it is."""
        self.check_usable()
        with self._environment.read():
            for _ in range(_LOOKS - 1):
                if data_files.structure_problem(self.path) is None:
                    return
            data_files.verify_structure(self.path)

    def replace_data_file(self, write_anew: Callable[[], None]) -> None:
        """Call ``write_anew``, which puts another data file in place of this one, and go on with that.

        Nothing is committed meanwhile, nor later before the new file's name is durable. :class:`StoreInUseError` if
        another process has the store open.
        """
        self.check_writable()
        # Reading opens the environment if it is not open, which takes the folder's lock, so it is opened before; only a
        # commit could close it again, and none is under way.
        with self.committer.paused(), self._folder_lock_of_open() as lock:
            others = self.others()
            if others.writers or others.readers:
                raise StoreInUseError(f"store {self.path} is open in another process")
            # The new file counts its commits from the beginning, which concerns a witness that is not in use as well.
            witness = self._witness
            if witness is None and Witness.exists(self.path):
                witness = Witness(self.path)
            try:
                if witness is not None:
                    witness.restart()
                self._environment.name_is_durable = False
                write_anew()
            finally:
                # Whatever went wrong: the file of that name is the store, be it the old one or the new one.
                if not self.crashed:
                    self._environment.reopen_locked()
                    self._environment.sync_name()
                    self._commits.forget_states()
                    if witness is not None:
                        witness.saw(self._environment.last_commit)
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
