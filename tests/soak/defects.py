"""Ways to break the library, switched on from the tests only, with ``switched_on("no sync")``.

Each is a mistake that somebody could make in the code that it replaces. Whatever replaces something notes, through
``hit``, that it was reached and did the wrong thing; a defect that nothing reaches says nothing of the tests.

Processes that are forked have the defect of the one that forked them. Those that are started have it where
``environment_of`` is in their environment: Python imports ``startup/sitecustomize.py`` then, before anything else runs.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import lmdb

from bookstand import errors
from bookstand.ledger import client, transaction
from bookstand.ledger.handles import base_writer, handle, reader, recovery, writer
from bookstand.storage import backup, storage
from bookstand.storage.commit import entry_operations, ledger_operations, node_operations, operations
from bookstand.storage.commit import executor as commits
from bookstand.storage.format import entry_batch, entry_codec, ledger_state, schema, sealed_record
from bookstand.storage.lmdb import environment
from bookstand.storage.process import data_files, process_markers, witness

NAME = "BOOKSTAND_TEST_DEFECT"
HITS = "BOOKSTAND_TEST_DEFECT_HITS"
STARTUP = Path(__file__).parent / "startup"

Make = Callable[[Callable[..., Any]], Any]


class Patches:
    """What a defect replaces; ``undo`` puts it back."""

    def __init__(self, hit: Callable[[], None]) -> None:
        self.hit = hit
        self._replaced: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, make: Make) -> None:
        """``make`` gets what is there, and gives what is there instead."""
        before = getattr(owner, name)
        self._replaced.append((owner, name, before))
        setattr(owner, name, make(before))

    def undo(self) -> None:
        while self._replaced:
            setattr(*self._replaced.pop())


class Defect(NamedTuple):
    name: str
    area: str
    """storage, ledger, metadata or files."""
    breaks: str
    how: Callable[[Patches], None]


DEFECTS: dict[str, Defect] = {}


def defect(name: str, area: str, breaks: str) -> Callable[[Callable[[Patches], None]], Callable[[Patches], None]]:
    def register(how: Callable[[Patches], None]) -> Callable[[Patches], None]:
        assert name not in DEFECTS
        DEFECTS[name] = Defect(name, area, breaks, how)
        return how

    return register


# -- switching -------------------------------------------------------------------------------------------------------


class Hits:
    """How often defects were reached, counted by all processes that have the file."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        if not os.path.exists(file):
            Path(file).write_bytes(bytes(mmap.PAGESIZE))
        # Memory, so that counting is no file operation: those are watched, and made to fail.
        with open(file, "r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), mmap.PAGESIZE)

    def __call__(self) -> None:
        self._shared[0] = min(255, self._shared[0] + 1)

    def any(self) -> bool:
        return self._shared[0] > 0


@contextmanager
def switched_on(name: str, hit: Callable[[], None] = lambda: None) -> Iterator[None]:
    patches = Patches(hit)
    try:
        DEFECTS[name].how(patches)
        yield
    finally:
        patches.undo()


def environment_of(name: str, hits: str) -> dict[str, str]:
    """What processes that are started from here need to have the defect."""
    before = os.environ.get("PYTHONPATH")
    path = f"{STARTUP}{os.pathsep}{before}" if before else str(STARTUP)
    return {NAME: name, HITS: hits, "PYTHONPATH": path}


def switch_on_at_start() -> None:
    """In a process that was started with ``environment_of``: until it ends."""
    DEFECTS[os.environ[NAME]].how(Patches(Hits(os.environ[HITS])))


# -- commits and the disk --------------------------------------------------------------------------------------------


def _opening_with(patches: Patches, **options: bool) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def open_environment(*arguments: Any, **given: Any) -> Any:
            if "metasync" in given:
                patches.hit()
                given.update(options)
            return real(*arguments, **given)

        return open_environment

    patches.replace(lmdb, "open", make)


@defect("no sync", "storage", "commits do not wait for the disk at all")
def _no_sync(patches: Patches) -> None:
    _opening_with(patches, sync=False, metasync=False)


@defect("no sync of the header", "storage", "commits wait for their pages, but not for the header that tells of them")
def _no_metasync(patches: Patches) -> None:
    _opening_with(patches, metasync=False)


@defect("header before data", "storage", "data and header are written together, and synced once after both")
def _header_before_data(patches: Patches) -> None:
    _opening_with(patches, sync=False, metasync=False)

    def make(real: Callable[..., Any]) -> Any:
        def sync(self: Any, transaction: Any, number: Any) -> None:
            real(self, transaction, number)
            self._environment._env.sync(True)

        return sync

    patches.replace(commits.CommitExecutor, "_sync", make)


@defect("a dropped page", "storage", "of every fourth commit one page does not come to the file")
def _dropped_page(patches: Patches) -> None:
    page, metas = 4096, 2
    count = 0

    def make(real: Callable[..., Any]) -> Any:
        def sync(self: Any, transaction: Any, number: Any) -> None:
            nonlocal count
            count += 1
            file = Path(environment.data_file(self._environment.path))
            if count % 4:
                return real(self, transaction, number)
            before = file.read_bytes()
            real(self, transaction, number)
            after = file.read_bytes()
            for start in reversed(range(metas * page, len(after), page)):
                old = before[start : start + page].ljust(page, b"\0")
                if old != after[start : start + page]:
                    patches.hit()
                    descriptor = os.open(file, os.O_WRONLY)
                    os.pwrite(descriptor, old, start)
                    os.close(descriptor)
                    return None
            return None

        return sync

    patches.replace(commits.CommitExecutor, "_sync", make)


@defect("acknowledged early", "storage", "a lone append is answered when it is queued, before its commit")
def _acknowledged_early(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def append(self: Any, data: bytes) -> int:
            pending = self.append_async(data)
            if pending.done():
                return int(pending.result())
            patches.hit()
            with self._lock:
                # Now it has its id.
                self.seal_batch()
            return int(pending._value)

        return append

    patches.replace(writer.LedgerWriter, "append", make)


@defect("force does not wait", "storage", "force moves the last-add-confirmed without committing what it promises")
def _force_does_not_wait(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def force(self: Any) -> None:
            flush = self._storage.flush

            def forget() -> None:
                patches.hit()

            self._storage.flush = forget
            try:
                real(self)
            finally:
                self._storage.flush = flush

        return force

    patches.replace(base_writer.BaseWriter, "force", make)


@defect("an entry of a batch is lost", "storage", "of three entries or more in one commit the second is not written")
def _lost_entry(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def add(self: Any, encoded: Any) -> None:
            if encoded.count > 2:
                patches.hit()
                first, _, *others = encoded.pairs()
                kept = [first, *others]
                encoded = entry_batch.EncodedEntries(kept.__iter__, encoded.first_key, len(kept), encoded.largest)
            real(self, encoded)

        return add

    patches.replace(commits.WriteTransaction, "_put_entry_batch", make)


@defect("a batch that grew the map is lost", "storage", "what found the map full is answered, and not tried again")
def _lost_while_growing(patches: Patches) -> None:
    class GrownError(Exception):
        pass

    def make_grow(real: Callable[..., Any]) -> Any:
        def grow(self: Any, needed: int = 0) -> None:
            real(self, needed)
            patches.hit()
            raise GrownError

        return grow

    def make_write(real: Callable[..., Any]) -> Any:
        def write(self: Any, submissions: Any, hooks: Any) -> Any:
            try:
                return real(self, submissions, hooks)
            except GrownError:
                return [(None, None)] * len(submissions)

        return write

    patches.replace(environment.LmdbEnvironment, "grow", make_grow)
    patches.replace(commits.CommitExecutor, "_write", make_write)


@defect("a full disk is swallowed", "storage", "appends that found the disk full are answered as if they were stored")
def _full_disk_swallowed(patches: Patches) -> None:
    def is_full(error: BaseException | None) -> bool:
        found = error is not None and isinstance(error.__cause__, errors.DiskFullError)
        if found:
            patches.hit()
        return found

    def make_commit(real: Callable[..., Any]) -> Any:
        def commit(self: Any, submissions: Any, hooks: Any) -> Any:
            outcomes = real(self, submissions, hooks)
            return [(value, None if is_full(error) else error) for value, error in outcomes]

        return commit

    def make_commit_entries(real: Callable[..., Any]) -> Any:
        def commit_entries(self: Any, entries: Any) -> Any:
            error = real(self, entries)
            return None if is_full(error) else error

        return commit_entries

    patches.replace(commits.CommitExecutor, "commit", make_commit)
    patches.replace(commits.CommitExecutor, "commit_entries", make_commit_entries)


@defect("an unknown outcome is answered", "storage", "a commit that the device failed under counts as done")
def _unknown_is_ok(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def settle(self: Any, error: Any) -> None:
            patches.hit()
            with suppress(errors.BookstandError):
                real(self, error)

        return settle

    patches.replace(commits.CommitExecutor, "_resolve_outcome", make)


@defect("stale states", "storage", "states of ledgers are kept although another process has committed")
def _stale_states(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def commit(self: Any, *arguments: Any) -> Any:
            if self._states_at >= 0:
                newest = self._environment.last_commit
                if newest != self._states_at:
                    patches.hit()
                    self._states_at = newest
            return real(self, *arguments)

        return commit

    patches.replace(commits.CommitExecutor, "_write", make)
    patches.replace(commits.CommitExecutor, "commit_entries", make)


@defect("states do not count", "storage", "the number of a ledger's entries is not counted up")
def _states_do_not_count(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def record_added(ledger: Any, *arguments: Any) -> None:
            count = ledger.count
            real(ledger, *arguments)
            if ledger.count != count:
                patches.hit()
                ledger.count = count

        return record_added

    patches.replace(ledger_state, "record_added", make)
    patches.replace(commits, "record_added", make)


@defect("sums of seals stand still", "storage", "records of the store change, and the sum that guards them does not")
def _no_sums(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def write_derived(self: Any) -> None:
            sums = schema.META_SUMS
            patches.hit()
            schema.META_SUMS = {}
            try:
                real(self)
            finally:
                schema.META_SUMS = sums

        return write_derived

    patches.replace(commits.WriteTransaction, "write_derived", make)


@defect("a transaction in two commits", "storage", "a transaction's nodes and ledgers are committed before its entries")
def _two_commits(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def commit(self: Any) -> None:
            if self._operations and any(self._appends.values()):
                patches.hit()
                results = self._client.storage.apply(operations.WriteBatch(*self._operations))
                for answer, result in zip(self._completions, results, strict=True):
                    answer.complete(result)
                self._operations, self._completions = [], []
            real(self)

        return commit

    patches.replace(transaction.Transaction, "_commit", make)


# -- files -----------------------------------------------------------------------------------------------------------


def _unsynced_files(patches: Patches, concerns: Callable[[str], bool]) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def sync_file(path: str) -> None:
            if concerns(path):
                patches.hit()
            else:
                real(path)

        return sync_file

    patches.replace(data_files, "sync_file", make)


def _is_a_copy(path: str) -> bool:
    return os.path.basename(os.path.dirname(path)) == backup._COPYING


def _beside_a_store(path: str) -> bool:
    return os.path.exists(environment.data_file(os.path.dirname(os.path.dirname(path))))


@defect("a new data file is not synced", "files", "a store's first data file gets its name before it is on the disk")
def _new_file_unsynced(patches: Patches) -> None:
    _unsynced_files(patches, lambda path: not _is_a_copy(path))


@defect("a backup is not synced", "files", "the copy gets its name before it is on the disk")
def _backup_unsynced(patches: Patches) -> None:
    _unsynced_files(patches, lambda path: _is_a_copy(path) and not _beside_a_store(path))


@defect("a compacted file is not synced", "files", "the new data file replaces the old one before it is on the disk")
def _compacted_unsynced(patches: Patches) -> None:
    _unsynced_files(patches, lambda path: _is_a_copy(path) and _beside_a_store(path))


@defect("folders are not synced", "files", "names of new files are not made durable")
def _folders_unsynced(patches: Patches) -> None:
    patches.replace(process_markers, "sync_folder", lambda real: lambda folder: patches.hit())


@defect("a backup's name is not synced", "files", "a backup is confirmed before its name is on the disk")
def _backup_name_unsynced(patches: Patches) -> None:
    def make(real: Any) -> Any:
        return SimpleNamespace(**{**vars(real), "sync_folder": lambda folder: patches.hit()})

    patches.replace(backup, "process_markers", make)


@defect("names of parent folders are not synced", "files", "a new store's folder may lose its own name")
def _parents_unsynced(patches: Patches) -> None:
    patches.replace(process_markers, "sync_parents", lambda real: lambda path: patches.hit())


@defect("a reader needs room for a lock file", "files", "a store on a full disk cannot be opened for reading")
def _lock_file_needed(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def preallocate_lock_file(path: str, read_only: bool) -> bool:
            if not real(path, read_only):
                patches.hit()
                data_files.raise_os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "cannot make the lock file")
            return True

        return preallocate_lock_file

    patches.replace(data_files, "preallocate_lock_file", make)


@defect("a data file is made in its place", "files", "a new data file has its name from the first byte on")
def _made_in_place(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def create_if_missing(path: str, create: bool, read_only: bool, durable: bool, hooks: Any = None) -> bool:
            if data_files.has_data_file(path) or not create or read_only:
                return bool(real(path, create, read_only, durable, hooks))
            patches.hit()
            data_files._write_superblock(environment.data_file(path))
            data_files.sync_file(environment.data_file(path))
            process_markers.sync_folder(path)
            return True

        return create_if_missing

    patches.replace(data_files, "create_if_missing", make)


@defect("a short file is believed", "files", "nobody looks whether the data file is as long as its header says")
def _no_length_check(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def check_file_length(path: str, read_only: bool) -> bool:
            try:
                real(path, read_only)
            except errors.StoreDamagedError:
                patches.hit()
            return False

        return check_file_length

    patches.replace(data_files, "check_file_length", make)


@defect("trees are not looked at", "files", "a store that was not closed is opened like one that was")
def _no_structure_check(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def verify_structure(path: str) -> None:
            try:
                real(path)
            except errors.StoreDamagedError:
                patches.hit()

        return verify_structure

    patches.replace(data_files, "verify_structure", make)


@defect("no marker", "files", "a process that opens a store leaves no sign that it has it open")
def _no_marker(patches: Patches) -> None:
    class Nobody:
        path = ""

        def __init__(self, folder: str, read_only: bool = False, locked: bool = True) -> None:
            patches.hit()

        def enter(self) -> None:
            pass

        remove = abandon = enter

    patches.replace(process_markers, "ProcessMarker", lambda real: Nobody)


@defect("the witness is not written", "files", "commits are not witnessed")
def _no_witness(patches: Patches) -> None:
    patches.replace(witness.Witness, "record_commit", lambda real: lambda self, commit: patches.hit())


@defect("the witness is made in its place", "files", "a part of a witness file may have its name")
def _witness_in_place(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def create(self: Any, folder: str) -> None:
            patches.hit()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._write(witness._MAGIC.ljust(witness.WITNESS.struct.size, b"\0"), 0)
            os.fsync(self._file)

        return create

    patches.replace(witness.Witness, "_create", make)


@defect("compaction asks nobody", "files", "the data file is replaced although another process has it open")
def _compaction_asks_nobody(patches: Patches) -> None:
    class Nobody:
        writers = readers = 0

    def make(real: Any) -> Any:
        def survey(folder: str, besides: Any = None) -> Any:
            if besides is None:
                return real(folder)
            found = real(folder, besides)
            if found.writers or found.readers:
                patches.hit()
            return Nobody()

        return survey

    patches.replace(process_markers, "OpenProcesses", make)


@defect(
    "compaction goes on with the old file",
    "files",
    "commits after a compaction go into a file without a name",
)
def _the_old_file(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def replace_data_file(self: Any, write_anew: Any) -> None:
            self._environment.reopen_locked = patches.hit
            try:
                real(self, write_anew)
            finally:
                del self._environment.reopen_locked

        return replace_data_file

    patches.replace(storage.Storage, "replace_data_file", make)


# -- ledgers ---------------------------------------------------------------------------------------------------------


def _admitting(patches: Patches, pretend: Callable[[Any, Any], tuple[str, Any] | None]) -> None:
    """While an add is examined, ``pretend`` has one attribute of the ledger's state be another."""

    def make(real: Callable[..., Any]) -> Any:
        def check(self: Any, ledger: Any) -> Any:
            change = None if ledger is None else pretend(self, ledger)
            if change is None:
                return real(self, ledger)
            patches.hit()
            name, value = change
            before = getattr(ledger, name)
            setattr(ledger, name, value)
            try:
                return real(self, ledger)
            finally:
                setattr(ledger, name, before)

        return check

    patches.replace(entry_operations.AddEntries, "check", make)


@defect("a fence is not looked at", "ledger", "entries are added to a ledger that is fenced")
def _no_fence_check(patches: Patches) -> None:
    _admitting(patches, lambda add, ledger: ("fenced", False) if ledger.fenced else None)


@defect("an incarnation is not looked at", "ledger", "a writer adds to another ledger that has its ledger's id by now")
def _no_incarnation_check(patches: Patches) -> None:
    _admitting(
        patches,
        lambda add, ledger: ("incarnation", add.incarnation) if ledger.incarnation != add.incarnation else None,
    )


@defect("recovery does not fence", "ledger", "the writer goes on while a ledger is recovered")
def _recovery_does_not_fence(patches: Patches) -> None:
    patches.replace(recovery._Recovery, "_fence", lambda real: lambda self: patches.hit())


def _adding(patches: Patches, position: int, wrong: Callable[[tuple[Any, ...]], Any]) -> None:
    """One of the arguments of an add is another one. They are ledger, incarnation, master key, digest, first entry,
    last-add-confirmed, length before."""

    def make(real: Callable[..., Any]) -> Any:
        def create(self: Any, *arguments: Any) -> None:
            changed = list(arguments)
            changed[position] = wrong(arguments)
            if changed[position] != arguments[position]:
                patches.hit()
            real(self, *changed)

        return create

    patches.replace(entry_operations.AddEntries, "__init__", make)


@defect("entries carry a wrong LAC", "ledger", "an entry says of itself that it is confirmed")
def _wrong_lac(patches: Patches) -> None:
    _adding(patches, 5, lambda arguments: arguments[4])


@defect("entries carry a wrong length", "ledger", "an entry's cumulative length is its own")
def _wrong_length(patches: Patches) -> None:
    _adding(patches, 6, lambda arguments: 0)


@defect("recovery ends one too high", "ledger", "a recovered ledger is closed one entry behind its last")
def _lac_too_high(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def close(self: Any) -> None:
            patches.hit()
            self._reader._lac += 1
            real(self)

        return close

    patches.replace(recovery._Recovery, "_close", make)


@defect("recovery reads one entry too few", "ledger", "what was acknowledged last is dropped by a recovery")
def _one_too_few(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def recovery_read(self: Any, first: int) -> Any:
            entries = real(self, first)
            patches.hit()
            if len(entries) < 2:
                raise errors.NoSuchEntryError(f"ledger {self.id} has no entry {first}")
            return entries[:-1]

        return recovery_read

    patches.replace(reader.LedgerReader, "recovery_read", make)


@defect("an explicit LAC of an earlier ledger", "ledger", "a writer tells its LAC of another ledger with its id")
def _explicit_lac_of_another(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def apply(self: Any, staging: Any) -> None:
            ledger = staging.state(self.ledger_id)
            if ledger is not None and ledger.incarnation != self.incarnation:
                patches.hit()
                self.incarnation = ledger.incarnation
            real(self, staging)

        return apply

    patches.replace(entry_operations.SetExplicitLac, "apply", make)


@defect("entries of a deleted ledger reappear", "ledger", "a ledger is created over the entries of a deleted one")
def _entries_reappear(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def apply(self: Any, staging: Any) -> Any:
            leftover = None if self.ledger_id is None else staging.state(self.ledger_id)
            if leftover is not None and leftover.count:
                patches.hit()
                leftover.count = 0
            return real(self, staging)

        return apply

    patches.replace(ledger_operations.CreateLedger, "apply", make)


@defect("a digest is not looked at", "ledger", "whatever bytes lie in the store are given as the entry")
def _no_digest_check(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def verified(digest: Any, ledger_id: int, stored: bytes, name: str) -> Any:
            start = entry_codec.HEADER_BYTES + digest.size
            try:
                return real(digest, ledger_id, stored, name)
            except errors.DigestMismatchError:
                if len(stored) < start:
                    raise
            patches.hit()
            _, entry_id, lac, length = entry_codec.HEADER.unpack_from(stored)
            return entry_id, lac, length, stored[start:]

        return verified

    patches.replace(entry_codec, "_verified", make)
    # The quick way for many entries leaves it to the plain one.
    patches.replace(entry_batch, "_decode_slice", lambda real: lambda *arguments: None)


@defect("damage is told as absence", "ledger", "an entry whose digest does not match is said not to be there")
def _damage_is_absence(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def decode(self: Any, first: int, stored: Any) -> Any:
            try:
                return real(self, first, stored)
            except errors.DigestMismatchError as error:
                patches.hit()
                raise errors.NoSuchEntryError(str(error)) from None

        return decode

    patches.replace(handle.LedgerHandle, "decode", make)


@defect("loss is told as absence", "ledger", "an entry that is lost is said never to have been there")
def _loss_is_absence(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def absence_error(self: Any, entry_id: int) -> Any:
            answer = real(self, entry_id)
            if isinstance(answer, handle.EntryLostError):
                patches.hit()
                return errors.NoSuchEntryError(str(answer))
            return answer

        return absence_error

    patches.replace(handle.LedgerHandle, "absence_error", make)


# -- metadata --------------------------------------------------------------------------------------------------------


@defect("metadata without compare-and-set", "metadata", "whoever writes a ledger's metadata last wins")
def _no_compare_and_set(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def write_metadata(self: Any, metadata: Any, expected_version: Any, incarnation: Any = None) -> Any:
            patches.hit()
            return real(self, metadata, None, incarnation)

        return write_metadata

    patches.replace(client.Client, "write_metadata", make)


@defect("a close of an earlier ledger", "metadata", "a writer closes another ledger that has its ledger's id by now")
def _close_of_another(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def write_metadata(self: Any, metadata: Any, expected_version: Any, incarnation: Any = None) -> Any:
            if incarnation is not None:
                patches.hit()
            return real(self, metadata, expected_version)

        return write_metadata

    patches.replace(client.Client, "write_metadata", make)


@defect("nodes without versions", "metadata", "a node is written whatever version was expected")
def _nodes_without_versions(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def apply(self: Any, staging: Any) -> Any:
            if self.expected_version is not None:
                patches.hit()
                self.expected_version = None
            return real(self, staging)

        return apply

    patches.replace(node_operations.PutNode, "apply", make)


@defect("nodes are removed without versions", "metadata", "a node is removed whatever version was expected")
def _removed_without_versions(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def apply(self: Any, staging: Any) -> Any:
            if self.expected_version is not None:
                patches.hit()
                self.expected_version = None
            return real(self, staging)

        return apply

    patches.replace(node_operations.DeleteNode, "apply", make)


@defect("seals are not looked at", "metadata", "a record whose checksum does not match is believed")
def _seals_not_looked_at(patches: Patches) -> None:
    def make(real: Callable[..., Any]) -> Any:
        def unseal(database: bytes, key: bytes, sealed: bytes) -> bytes:
            try:
                return bytes(real(database, key, sealed))
            except errors.StoreDamagedError:
                patches.hit()
                return sealed[sealed_record._CRC.size :]

        return unseal

    patches.replace(sealed_record, "unseal", make)
