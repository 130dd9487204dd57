"""The bookie: one store on one machine, shared by all who have it open in this process.

``submit`` is the one way to change anything. What a submit's Pending completed for survives kill -9 and power loss
(``durability="commit"``); what was not confirmed may survive, and then as a prefix.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from threading import Condition, Lock
from time import monotonic

import lmdb

from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    ForkedStoreError,
    IncorrectParameterError,
    NoSuchEntryError,
    NotAStoreError,
    OutcomeUnknownError,
    StoreDamagedError,
    StoreFormatError,
    StoreInUseError,
    WriteError,
    WriteOnReadOnlyError,
)
from bookstand.storage import files, keys, owners, record
from bookstand.storage.changes import TAKES_SPACE, AddEntries, Change, CollectEntries, Staging
from bookstand.storage.committer import Committer, Submission
from bookstand.storage.diskspace import DiskSpace
from bookstand.storage.environment import FIRST_MAP_SIZE, Environment
from bookstand.storage.forking import ForkGuard
from bookstand.storage.lmdb_errors import translate
from bookstand.storage.pending import Pending
from bookstand.storage.state import LedgerState, unpack
from bookstand.storage.witness import Witness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from bookstand.storage.changes import Operation
    from bookstand.storage.committer import Outcome
    from bookstand.storage.hooks import Hooks

DURABILITIES = ("commit", "none")
CHECKS = ("fast", "full", "subprocess")

# A scan's slice: enough entries to pay for a read transaction and numpy, few enough bytes to stay small.
SLICE_ENTRIES = 2_000
SLICE_BYTES = 4 << 20

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
    folder = files.folder_name(path)
    with _opened_lock:
        files.prepare_folder(folder, create, read_only)
        status = os.stat(folder)
        identity = status.st_dev, status.st_ino
        shared = _opened.get(identity)
        if shared is not None:
            shared.share(read_only, durability, witness, hooks)
            return shared
        if check == "subprocess" and files.has_data_file(folder):
            # Before the folder is locked, for the child locks it as well.
            files.probe_in_subprocess(folder)
        with owners.FolderLock(folder):
            created = files.create_if_missing(folder, create, read_only, durability == "commit")
            storage = Storage(folder, read_only, durability, check, witness, hooks, map_size, created)
        storage.identity = identity
        _opened[identity] = storage
        return storage


class Storage:
    """Use :func:`open_storage`. All methods may be called from any thread."""

    identity: tuple[int, int]

    def __init__(
        self,
        path: str,
        read_only: bool,
        durability: str,
        check: str,
        witness: bool,
        hooks: Hooks | None,
        map_size: int,
        created: bool,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.durability = durability
        self.hooks = hooks
        self._refusal: BookstandError | None = None
        self._users = 1
        self._disk = DiskSpace(path)
        self._watchers = 0
        self._watch = Condition()
        self._owner: owners.Owner | None = None
        self._witness: Witness | None = None
        abandoned = [] if created else self._examine(check)
        if not read_only:
            files.preallocate_lock_file(path)
        self._environment = Environment(path, read_only=read_only, durable=durability == "commit", map_size=map_size)
        try:
            self._check_superblock()
            if witness:
                self._witness = Witness(path)
                self._witness.check(self._environment.last_commit)
            if check == "full" and not created:
                self._check_everything()
            self._owner = self._announce()
        except OSError as error:
            self._environment.close()
            raise files.os_error(error, f"cannot open the store {path}") from error
        except BaseException:
            self._environment.close()
            raise
        for marker in abandoned:
            if not read_only:
                os.unlink(marker)
        self.committer = Committer(self._commit)
        self.committer_lock = self.committer.lock

    # -- opening and closing ---------------------------------------------------------------------------------------

    def _examine(self, check: str) -> list[str]:
        """Look at the files before LMDB does; returns the markers of processes that did not close the store."""
        files.size_gate(self.path)
        others = owners.Survey(self.path)
        if others.writers:
            # Its pages change while we would look at them; whoever opens it alone next will look.
            return []
        if others.died_writing or check == "full":
            files.verify_structure(self.path)
        return others.died_writing + others.died_reading

    def _announce(self) -> owners.Owner | None:
        try:
            return owners.Owner(self.path, self.read_only)
        except OSError:
            if self.read_only:
                # A medium that cannot be written to: nobody can replace the file there, either.
                return None
            raise

    def _check_superblock(self) -> None:
        with self._environment.read() as transaction:
            sealed = transaction.get(keys.META_FORMAT, db=self._environment.database(keys.META))
        if sealed is None:
            raise NotAStoreError(f"{self.path} holds an LMDB file of another program")
        if len(sealed) != keys.FORMAT.size:
            raise StoreDamagedError(f"store {self.path} is damaged: its format is {sealed!r}")
        (version,) = keys.FORMAT.unpack(sealed)
        if version > keys.FORMAT_VERSION:
            raise StoreFormatError(
                f"store {self.path} has format {version}; this version of bookstand knows formats up to "
                f"{keys.FORMAT_VERSION}: open it with a newer one"
            )
        if version < keys.FORMAT_VERSION:
            raise StoreFormatError(
                f"store {self.path} has format {version}; upgrade it to {keys.FORMAT_VERSION} with "
                f"`bookstand upgrade {self.path}`"
            )

    def _check_everything(self) -> None:
        from bookstand.storage.verify import verify

        report = verify(self)
        if not report.ok:
            raise StoreDamagedError(f"store {self.path} is damaged: {report.problems[0]}")

    def share(self, read_only: bool, durability: str, witness: bool, hooks: Hooks | None) -> None:
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
        # Handles made before do not see them.
        self.hooks = hooks if hooks is not None else self.hooks
        self._users += 1

    def close(self) -> None:
        """Commit what is queued; the last one who closes it closes the files."""
        if isinstance(self._refusal, ForkedStoreError):
            return
        with _opened_lock:
            if self._users > 1:
                self._users -= 1
                return
            if not self._users:
                return
        if self._refusal is None:
            self.committer.stop()
        with _opened_lock:
            self._users -= 1
            if self._users > 0:
                return
            _opened.pop(self.identity, None)
            clean = self._refusal is None
            self._refusal = ClientClosedError(f"store {self.path} is closed")
            self._environment.close()
            if self._witness is not None:
                self._witness.close()
            if self._owner is not None:
                if clean:
                    self._owner.leave()
                else:
                    self._owner.forget()
        with self._watch:
            self._watch.notify_all()

    @contextmanager
    def still(self) -> Iterator[None]:
        """No transaction of this process is open, and none begins, inside the block."""
        with self.committer.paused(), self.committer.lock, self._environment.quiet():
            yield

    def forked(self) -> None:
        """This is the child of a fork: what was opened before it is the parent's."""
        self._refusal = ForkedStoreError(
            f"store {self.path} was opened before this process was forked; open stores after the fork, or start "
            "the process anew (multiprocessing: the spawn or forkserver method)"
        )
        self.committer.abandon(self._refusal)
        self._environment.close()
        if self._owner is not None:
            self._owner.forget()
        if self._witness is not None:
            self._witness.close()
        _opened.pop(self.identity, None)

    def check_usable(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    # -- changes ---------------------------------------------------------------------------------------------------

    def submit(self, change: Change) -> Pending:
        """Queue a change; the result is the list of its operations' results."""
        submission = Submission(self.committer, change.operations)
        self.enqueue(submission)
        return Pending(submission)

    def apply(self, change: Change) -> list[Any]:
        """Submit, and wait until it is committed."""
        result: list[Any] = self.submit(change).result()
        return result

    def enqueue(self, submission: Submission) -> None:
        self.check_writable()
        self.committer.submit(submission)

    def enqueue_locked(self, submission: Submission) -> None:
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

    def check_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if self.read_only:
            raise WriteOnReadOnlyError(f"store {self.path} was opened read-only")

    def _commit(self, submissions: list[Submission]) -> list[Outcome]:
        """One transaction for all of them; returns (result, error) for each. Runs in one thread at a time."""
        for submission in submissions:
            for operation in submission.operations:
                if isinstance(operation, AddEntries):
                    operation.encode()
        if self.hooks is not None:
            try:
                self.hooks.point("commit.before_write")
            except BookstandError as refusal:
                return _all_fail(submissions, refusal)
        full = self._disk.refusal()
        while True:
            writing = None
            try:
                self.check_usable()
                writing = Writing(self._environment)
                outcomes = [writing.attempt(submission.operations, full) for submission in submissions]
                if not writing.dirty:
                    writing.abort()
                    return outcomes
                writing.write_states()
                self._sync(writing)
            except lmdb.MapFullError as error:
                if writing is not None:
                    writing.abort()
                try:
                    self._environment.grow(_size_of(submissions))
                except BookstandError:
                    return _all_fail(submissions, translate(error, self.path, "growing its map"))
                continue
            except lmdb.Error as error:
                if writing is not None:
                    writing.abort()
                answer = translate(error, self.path, "writing")
                self._disk.note(answer)
                return _all_fail(submissions, answer)
            except BookstandError as error:
                if writing is not None:
                    writing.abort()
                self._disk.note(error)
                return _all_fail(submissions, error)
            except BaseException:
                if writing is not None:
                    writing.abort()
                raise
            if self._watchers:
                with self._watch:
                    self._watch.notify_all()
            return outcomes

    def _sync(self, writing: Writing) -> None:
        """Commit, and find out what became of a commit that failed half-way."""
        hooks = self.hooks
        if hooks is not None:
            hooks.point("commit.before_sync")
        number = writing.number
        try:
            writing.commit()
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            answer = translate(error, self.path, "committing")
            if not isinstance(answer, StoreDamagedError | WriteError):
                raise
            self._settle_unknown(writing, answer)
        if self._witness is not None:
            try:
                self._witness.saw(number)
            except OSError as error:
                raise OutcomeUnknownError(
                    f"store {self.path}: commit {number} is on disk, but its witness could not be written: {error}"
                ) from error
        if hooks is not None:
            hooks.point("commit.after_sync")

    def _settle_unknown(self, writing: Writing, error: BookstandError) -> None:
        """The device failed under the commit. Reopen, and look whether it took effect."""
        try:
            self._environment.reopen()
            if writing.took_effect():
                self._environment.sync()
                return
        except (BookstandError, lmdb.Error) as second:
            self._refusal = OutcomeUnknownError(
                f"store {self.path}: a commit failed ({error}), and the store cannot be opened again ({second}); "
                "whether the commit took effect shows when it can"
            )
            raise self._refusal from error
        raise error

    # -- reads -----------------------------------------------------------------------------------------------------

    def state(self, ledger_id: int) -> LedgerState | None:
        """What the bookie remembers of the ledger; None if it has never heard of it."""
        sealed = self._get(keys.STATE, keys.LEDGER_KEY.pack(ledger_id))
        if sealed is None:
            return None
        return unpack(ledger_id, record.unseal(keys.STATE, keys.LEDGER_KEY.pack(ledger_id), sealed))

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The stored bytes, or None if there is no such entry."""
        stored = self.entry_as_stored(ledger_id, entry_id)
        if self.hooks is None:
            return stored
        changed = self.hooks.on_read(ledger_id, entry_id, stored)
        if changed is None and stored is not None:
            raise NoSuchEntryError(f"ledger {ledger_id} has no entry {entry_id}")
        return changed

    def entry_as_stored(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The same past the hooks: what lies in the file."""
        return self._get(keys.ENTRIES, keys.ENTRY_KEY.pack(ledger_id, entry_id))

    def metadata(self, ledger_id: int) -> tuple[bytes, int] | None:
        """(metadata bytes, version), or None."""
        return self._versioned(keys.LEDGERS, keys.LEDGER_KEY.pack(ledger_id))

    def node(self, path: str) -> tuple[bytes, int] | None:
        """(value, version), or None."""
        return self._versioned(keys.NODES, path.encode())

    def ledger_ids(self, database: bytes = keys.LEDGERS) -> Iterator[int]:
        """Ids in the sub-database, ascending; read page by page, so that a slow caller holds nothing."""
        start = bytes(keys.LEDGER_KEY.size)
        while True:
            page = self._key_page(database, start)
            for key in page:
                yield keys.LEDGER_KEY.unpack(key)[0]
            if len(page) < SLICE_ENTRIES:
                return
            start = page[-1] + b"\0"

    def node_paths(self, prefix: str) -> Iterator[str]:
        """Paths that begin with ``prefix``, in the order of their bytes."""
        wanted = start = prefix.encode()
        while True:
            page = self._key_page(keys.NODES, start)
            for key in page:
                if not key.startswith(wanted):
                    return
                yield key.decode()
            if len(page) < SLICE_ENTRIES:
                return
            start = page[-1] + b"\0"

    def slices(self, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
        """Stored entries ``first`` to ``last`` in slices: (id of the slice's first entry, consecutive entries).

        Ends at the first entry that is not there. Each slice has a read transaction of its own, which is over before
        the slice is handed out, and at most about ``SLICE_BYTES`` of entries.
        """
        while first <= last:
            part = self._slice(ledger_id, first, last)
            if not part:
                return
            yield first, part
            first += len(part)

    def _slice(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        wanted = 1 if self.hooks is not None else min(last - first + 1, SLICE_ENTRIES)
        if wanted == 1:
            stored = self.entry(ledger_id, first)
            return [] if stored is None else [stored]
        self.check_usable()
        from itertools import islice

        environment = self._environment
        ledger_key = keys.LEDGER_KEY.pack(ledger_id)
        last_key = keys.ENTRY_KEY.pack(ledger_id, first + wanted - 1)
        with environment.read() as transaction:
            sealed = transaction.get(ledger_key, db=environment.database(keys.STATE))
            if sealed is None:
                return []
            state = unpack(ledger_id, record.unseal(keys.STATE, ledger_key, sealed))
            cursor = transaction.cursor(environment.database(keys.ENTRIES))
            if not cursor.set_key(keys.ENTRY_KEY.pack(ledger_id, first)):
                return []
            if state.in_order and state.largest * wanted <= SLICE_BYTES * 4:
                # Nothing is missing between first and last, so the values alone tell all there is to know.
                wanted = min(wanted, state.last_entry - first + 1)
                return list(islice(cursor.iternext(keys=False, values=True), wanted))
            return _consecutive(cursor, first, last_key)

    def runs(self, ledger_id: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
        """All entries up to ``last`` that there are, gaps or not, past the hooks: (first id, consecutive entries)."""
        first = 0
        while first <= last:
            self.check_usable()
            with self._environment.read() as transaction:
                cursor = transaction.cursor(self._environment.database(keys.ENTRIES))
                if not cursor.set_range(keys.ENTRY_KEY.pack(ledger_id, first)):
                    return
                found, first = keys.ENTRY_KEY.unpack(cursor.key())
                if found != ledger_id or first > last:
                    return
                beyond = keys.ENTRY_KEY.pack(ledger_id, min(last, first + SLICE_ENTRIES - 1))
                part = _consecutive(cursor, first, beyond)
            yield first, part
            first += len(part)

    def ledgers_with_entries(self) -> Iterator[int]:
        """Ids of all ledgers that have an entry, known or not, ascending."""
        ledger_id = -1
        while True:
            self.check_usable()
            with self._environment.read() as transaction:
                cursor = transaction.cursor(self._environment.database(keys.ENTRIES))
                if not cursor.set_range(keys.ENTRY_KEY.pack(ledger_id + 1, 0)):
                    return
                ledger_id = keys.ENTRY_KEY.unpack(cursor.key())[0]
            yield ledger_id

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        """Ids of all entries stored for a ledger, ascending."""
        start = keys.ENTRY_KEY.pack(ledger_id, 0)
        while True:
            page = self._key_page(keys.ENTRIES, start)
            for key in page:
                found, entry_id = keys.ENTRY_KEY.unpack(key)
                if found != ledger_id:
                    return
                yield entry_id
            if len(page) < SLICE_ENTRIES:
                return
            start = page[-1] + b"\0"

    def _key_page(self, database: bytes, start: bytes) -> list[bytes]:
        self.check_usable()
        from itertools import islice

        with self._environment.read() as transaction:
            cursor = transaction.cursor(self._environment.database(database))
            if not cursor.set_range(start):
                return []
            return list(islice(cursor.iternext(keys=True, values=False), SLICE_ENTRIES))

    def _get(self, database: bytes, key: bytes) -> bytes | None:
        self.check_usable()
        environment = self._environment
        with environment.read() as transaction:
            found: bytes | None = transaction.get(key, db=environment.database(database))
            return found

    def _versioned(self, database: bytes, key: bytes) -> tuple[bytes, int] | None:
        sealed = self._get(database, key)
        return None if sealed is None else record.unseal_versioned(database, key, sealed)

    def watch(self, deadline: float | None) -> bool:
        """Wait a little for another commit, of this process or any other; False once the deadline has passed."""
        self.check_usable()
        with self._watch:
            self._watchers += 1
            try:
                rest = WATCH_INTERVAL if deadline is None else min(WATCH_INTERVAL, deadline - monotonic())
                if rest <= 0:
                    return False
                self._watch.wait(rest)
            finally:
                self._watchers -= 1
        return True

    # -- upkeep ----------------------------------------------------------------------------------------------------

    @property
    def store_id(self) -> bytes:
        sealed = self._get(keys.META, keys.META_STORE_ID)
        if sealed is None:
            raise StoreDamagedError(f"store {self.path}: its id is missing")
        return record.unseal(keys.META, keys.META_STORE_ID, sealed)

    @property
    def last_commit(self) -> int:
        """Number of the newest commit, by whatever process."""
        self.check_usable()
        return self._environment.last_commit

    def collect(self, ledger_id: int) -> None:
        """Remove what is left of a deleted ledger, in commits of bounded size."""
        while self.apply(Change(CollectEntries(ledger_id)))[0]:
            pass
        self._disk.note_freed()

    def collect_deleted(self, deleted_before: int) -> int:
        """Remove what is left of all ledgers deleted before that time (ms); returns how many there were."""
        doomed = []
        for ledger_id in self.ledger_ids(keys.STATE):
            state = self.state(ledger_id)
            if state is not None and 0 < state.deleted_at <= deleted_before:
                doomed.append(ledger_id)
        for ledger_id in doomed:
            self.collect(ledger_id)
        return len(doomed)

    def replace_data_file(self, write_anew: Callable[[], None]) -> None:
        """Call ``write_anew``, which puts another data file in place of this one, and go on with that.

        Nothing is committed meanwhile. :class:`StoreInUseError` if another process has the store open.
        """
        self.check_writable()
        with self.committer.paused(), owners.FolderLock(self.path):
            others = owners.Survey(self.path, besides=self._owner)
            if others.writers or others.readers:
                raise StoreInUseError(f"store {self.path} is open in another process")
            write_anew()
            self._environment.reopen()

    def copy(self, destination: str, compact: bool) -> None:
        self.check_usable()
        self._environment.copy(destination, compact)


class Writing:
    """One write transaction, as the stagings of the changes in it see it."""

    __slots__ = ("_databases", "_environment", "_evidence", "_states", "_transaction", "dirty", "number")

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._transaction = environment.begin_write()
        self.number: int = self._transaction.id()
        self._states: dict[int, LedgerState | None] = {}
        self._evidence: tuple[bytes, bytes, bytes | None] | None = None
        self.dirty = False

    def get(self, database: bytes, key: bytes) -> bytes | None:
        found: bytes | None = self._transaction.get(key, db=self._environment.database(database))
        return found

    def state(self, ledger_id: int) -> LedgerState | None:
        if ledger_id not in self._states:
            key = keys.LEDGER_KEY.pack(ledger_id)
            sealed = self.get(keys.STATE, key)
            self._states[ledger_id] = (
                None if sealed is None else unpack(ledger_id, record.unseal(keys.STATE, key, sealed))
            )
        return self._states[ledger_id]

    def entry_keys(self, ledger_id: int, limit: int) -> list[bytes]:
        from itertools import islice, takewhile

        cursor = self._transaction.cursor(self._environment.database(keys.ENTRIES))
        prefix = keys.LEDGER_KEY.pack(ledger_id)
        if not cursor.set_range(prefix):
            return []
        found = takewhile(lambda key: key.startswith(prefix), cursor.iternext(keys=True, values=False))
        return list(islice(found, limit))

    def attempt(self, operations: Sequence[Operation], full: BookstandError | None) -> Outcome:
        """Apply one change, or refuse it and leave no trace. ``full`` is what to say to changes that take space."""
        if full is not None and any(isinstance(operation, TAKES_SPACE) for operation in operations):
            return None, full
        staging = Staging(self)
        try:
            results = [operation.apply(staging) for operation in operations]
        except BookstandError as refusal:
            return None, refusal
        self._merge(staging)
        return results, None

    def _merge(self, staging: Staging) -> None:
        for (database, key), value in staging.writes.items():
            self._put(database, key, value)
        for entry_keys, stored in staging.entries:
            self._add(entry_keys, stored)
        entries = self._environment.database(keys.ENTRIES)
        for key in staging.removed_entries:
            self._transaction.delete(key, db=entries)
            self.dirty = True
        if staging.states:
            self._states.update(staging.states)
            self.dirty = True

    def _put(self, database: bytes, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._transaction.delete(key, db=self._environment.database(database))
        else:
            self._transaction.put(key, value, db=self._environment.database(database))
        self._evidence = database, key, value
        self.dirty = True

    def _add(self, entry_keys: Any, stored: Any) -> None:
        database = self._environment.database(keys.ENTRIES)
        if len(entry_keys) == 1:
            self._transaction.put(entry_keys[0], stored[0], db=database)
        else:
            cursor = self._transaction.cursor(database)
            # LMDB packs its pages tighter and searches less where it knows that keys come in at the very end.
            at_end = not cursor.last() or cursor.key() < entry_keys[0]
            cursor.putmulti(zip(entry_keys, stored, strict=True), append=at_end)
        self.dirty = True

    def write_states(self) -> None:
        """States are written once a transaction, however many changes touched them."""
        for ledger_id, state in self._states.items():
            key = keys.LEDGER_KEY.pack(ledger_id)
            if state is not None:
                self._put(keys.STATE, key, record.seal(key, state.pack()))
            elif self.get(keys.STATE, key) is not None:
                self._put(keys.STATE, key, None)

    def commit(self) -> None:
        self._transaction.commit()

    def abort(self) -> None:
        try:
            self._transaction.abort()
        except lmdb.Error:
            # A transaction that LMDB has ended itself.
            pass

    def took_effect(self) -> bool:
        """After reopening: whether the last thing this transaction wrote is there."""
        if self._evidence is None:
            return False
        database, key, value = self._evidence
        with self._environment.read() as transaction:
            found: bytes | None = transaction.get(key, db=self._environment.database(database))
            return found == value


def _consecutive(cursor: lmdb.Cursor, first: int, last_key: bytes) -> list[bytes]:
    """Values from the cursor on, as long as the keys have no gap and the bytes are not too many."""
    from itertools import count

    ledger_id = keys.ENTRY_KEY.unpack(last_key)[0]
    stored = []
    size = 0
    for expected, (key, value) in zip(count(first), cursor.iternext(), strict=False):
        if key != keys.ENTRY_KEY.pack(ledger_id, expected) or key > last_key:
            break
        stored.append(value)
        size += len(value)
        if size >= SLICE_BYTES:
            break
    return stored


def _size_of(submissions: list[Submission]) -> int:
    """About how many bytes of the map the submissions will take."""
    payloads = 0
    for submission in submissions:
        for operation in submission.operations:
            if isinstance(operation, AddEntries):
                payloads += sum(map(len, operation.payloads)) + 200 * len(operation.payloads)
    return 2 * payloads + (1 << 20)


def _all_fail(submissions: list[Submission], error: BookstandError) -> list[Outcome]:
    return [(None, error)] * len(submissions)


ForkGuard(_opened.values).install()
