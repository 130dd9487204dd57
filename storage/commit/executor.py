"""Commit execution: one write transaction that applies or refuses each write batch, and the outcome of its sync."""

from __future__ import annotations

from itertools import islice, takewhile

import lmdb

from bookstand.errors import BookstandError, OutcomeUnknownError
from bookstand.storage.commit import change_feed
from bookstand.storage.commit.commit_marks import WRITERS_LISTED
from bookstand.storage.commit.entry_operations import AddEntries
from bookstand.storage.commit.operations import ConsumesSpace, WriteSet
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.ledger_state import LedgerState, record_added, unpack
from bookstand.storage.lmdb.environment import LmdbEnvironment, values
from bookstand.storage.lmdb.errors import translate
from bookstand.storage.process.disk_space import DiskSpace
from bookstand.storage.process.interrupt_guard import is_interruption
from bookstand.storage.served.replica_operations import AddToReplica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Protocol

    from bookstand.storage.commit.group_commit import Outcome
    from bookstand.storage.commit.operations import Operation
    from bookstand.storage.format.entry_batch import EncodedEntries
    from bookstand.storage.hooks import Hooks
    from bookstand.storage.process.witness import Witness

    class Request(Protocol):
        """A commit request, as the executor sees it."""

        @property
        def operations(self) -> Sequence[Operation]: ...


# Commits between two calls of reader_check(), which releases the pages that killed readers keep from being reused.
_READER_CHECK_INTERVAL = 128

_ADDS = (AddEntries, AddToReplica)

# Maximum number of ledger states cached between commits.
_CACHED_STATES = 1_000


class CommitExecutor:
    """Executes commits, one at a time. Each makes all accepted write batches durable, or none."""

    def __init__(self, environment: LmdbEnvironment, disk: DiskSpace, witness: Witness | None) -> None:
        self._environment = environment
        self._disk = disk
        self._witness = witness
        # Cached states as of this commit. Stale as soon as another process has committed.
        self._states: dict[int, LedgerState | None] = {}
        self._states_at = -1
        # Set when nothing can be written any longer.
        self.broken: BookstandError | None = None

    def forget_states(self) -> None:
        """Discard cached states, because the data file was replaced and its commit numbers restart."""
        self._states, self._states_at = {}, -1

    def commit(self, requests: Sequence[Request], hooks: Hooks | None) -> list[Outcome]:
        """Commit the requests in one transaction; return (results, error) for each."""
        try:
            for request in requests:
                for operation in request.operations:
                    if type(operation) is AddEntries:
                        operation.encode()
            if hooks is not None:
                hooks.point("commit.before_write")
            return self._write(requests, hooks)
        except lmdb.Error as error:
            translated = translate(error, self._environment.path, "writing")
        except BookstandError as error:
            translated = error
        self._disk.record_failure(translated)
        return [(None, translated)] * len(requests)

    def _write(self, requests: Sequence[Request], hooks: Hooks | None) -> list[Outcome]:
        full = self._disk.full_error()
        while True:
            try:
                with self._environment.begin_write() as transaction:
                    self._environment.preallocate(transaction)
                    number = transaction.id()
                    states = (
                        self._states if self._states_at == number - 1 and len(self._states) < _CACHED_STATES else {}
                    )
                    # Invalid until the commit has succeeded, because the transaction modifies them.
                    self._states_at = -1
                    write_transaction = WriteTransaction(self._environment, transaction, states)
                    outcomes = [write_transaction.apply(request.operations, full) for request in requests]
                    write_transaction.write_derived()
                    if not write_transaction.changes_anything():
                        transaction.abort()
                        return outcomes
                    if hooks is not None:
                        hooks.point("commit.before_sync")
                    failure = self._sync(transaction, number)
                if failure is not None:
                    self._resolve_outcome(failure)
            except lmdb.MapFullError:
                self._environment.grow(_size_of(requests))
                continue
            finally:
                self._environment.end_write()
            self._states, self._states_at = states, number
            if number % _READER_CHECK_INTERVAL == 0:
                self._environment.reader_check()
            self._after_sync(number, hooks)
            return outcomes

    def _after_sync(self, number: int, hooks: Hooks | None) -> None:
        if self._witness is not None:
            try:
                self._witness.record_commit(number)
            except OSError as error:
                if is_interruption(error):
                    raise
                raise OutcomeUnknownError(
                    f"store {self._environment.path}: commit {number} is on disk, but its witness could not be "
                    f"written: {error}"
                ) from error
        if hooks is not None:
            hooks.point("commit.after_sync")

    def commit_entries(self, entries: AddEntries) -> BookstandError | None:
        """Fast path: commit entries of a single known ledger.

        Equivalent to :meth:`commit`, without the work that only several operations need, because a single durable
        append is latency-bound. All other cases fall back to :meth:`commit`.
        """
        if self._witness is not None or self._disk.full is not None:
            return self._commit_single(entries)
        environment = self._environment
        one = entries.encode_one() if len(entries.payloads) == 1 else None
        if one is None:
            entries.encode()
        try:
            with environment.begin_write() as transaction:
                environment.preallocate(transaction)
                number = transaction.id()
                ledger = self._states.get(entries.ledger_id) if self._states_at == number - 1 else None
                if ledger is None:
                    transaction.abort()
                else:
                    # Invalid until the commit has succeeded, because the transaction modifies them.
                    self._states_at = -1
                    entries.check(ledger)
                    databases = environment.databases
                    if one is None:
                        entries.account(ledger)
                        _put_entries(transaction, databases[schema.ENTRIES], entries.encode())
                    else:
                        record_added(ledger, entries.first_entry, 1, len(one[1]), entries.last_add_confirmed)
                        transaction.put(*one, True, True, False, databases[schema.ENTRIES])
                    key = schema.LEDGER_KEY.pack(entries.ledger_id)
                    sealed = sealed_record.seal(key, ledger.pack())
                    transaction.put(key, sealed, True, True, False, databases[schema.STATE])
                    failure = self._sync(transaction, number)
            if ledger is None:
                return self._commit_single(entries)
            if failure is not None:
                self._resolve_outcome(failure)
            self._states_at = number
            if number % _READER_CHECK_INTERVAL == 0:
                environment.reader_check()
            return None
        except BookstandError as error:
            translated: BookstandError = error
        except lmdb.MapFullError:
            return self._commit_single(entries)
        except lmdb.Error as error:
            translated = translate(error, environment.path, "writing")
        finally:
            environment.end_write()
        self._disk.record_failure(translated)
        return translated

    def _commit_single(self, entries: AddEntries) -> BookstandError | None:
        ((_, error),) = self.commit([_SingleAdd(entries)], None)
        return error  # type: ignore[return-value]

    def _sync(self, transaction: lmdb.Transaction, number: int) -> BookstandError | None:
        """Commit the transaction. Return an error that leaves the outcome unknown, for :meth:`_resolve_outcome`."""
        self._environment.mark(transaction, number)
        try:
            self._environment.commit(transaction, number)
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            return translate(error, self._environment.path, "committing")
        return None

    def _resolve_outcome(self, error: BookstandError) -> None:
        """Reopen the store after a failed commit, which LMDB may regard as broken. Raise if it had no effect."""
        environment = self._environment
        try:
            environment.reopen()
            took_effect = environment.resolve_outcome()
        except (BookstandError, lmdb.Error, OSError) as second:
            if isinstance(second, OSError) and is_interruption(second):
                raise
            self.broken = OutcomeUnknownError(
                f"store {environment.path}: a commit failed ({error}), and the store cannot be opened again "
                f"({second}); open it again to see whether the commit took effect"
            )
            raise self.broken from error
        if took_effect is None:
            raise OutcomeUnknownError(
                f"store {environment.path}: a commit failed ({error}), and more than {WRITERS_LISTED - 1} other "
                "processes have committed before its outcome could be read; read the records it was to change"
            ) from error
        if not took_effect:
            raise error from error.__cause__


class WriteTransaction:
    """One write transaction, shared by the write sets of a commit. ``states`` are the cached ledger states."""

    __slots__ = ("_changed", "_databases", "_entries_changed", "_published", "_records", "_states", "_transaction")

    def __init__(
        self, environment: LmdbEnvironment, transaction: lmdb.Transaction, states: dict[int, LedgerState | None]
    ) -> None:
        self._databases = environment.databases
        self._transaction = transaction
        self._states = states
        self._changed: set[int] = set()
        # Value of each written record before the transaction, and now.
        self._records: dict[tuple[bytes, bytes], tuple[bytes | None, bytes | None]] = {}
        # Records to publish in the change feed, in order of change.
        self._published: dict[tuple[bytes, bytes], None] = {}
        # Set by changes of entries and of overrides.
        self._entries_changed = False

    # -- reads by write sets -----------------------------------------------------------------------------------------

    def get(self, database: bytes, key: bytes) -> bytes | None:
        # Positional arguments: py-lmdb takes twice as long for keyword arguments.
        return self._transaction.get(key, None, self._databases[database])  # type: ignore[return-value]

    def get_many(self, database: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Existing records among the keys, in key order."""
        return self._transaction.cursor(self._databases[database]).getmulti(keys)  # type: ignore[return-value]

    def state(self, ledger_id: int) -> LedgerState | None:
        if ledger_id in self._states:
            return self._states[ledger_id]
        key = schema.LEDGER_KEY.pack(ledger_id)
        sealed = self.get(schema.STATE, key)
        state = None if sealed is None else unpack(ledger_id, sealed_record.unseal(schema.STATE, key, sealed))
        self._states[ledger_id] = state
        return state

    def entry_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._keys_of_ledger(schema.ENTRIES, ledger_id, limit)

    def replica_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._keys_of_ledger(schema.COPIES, ledger_id, limit)

    def ledger_keys(self) -> Iterator[bytes]:
        yield from values(self._transaction.cursor(self._databases[schema.LEDGERS]).iternext(True, False))

    def _keys_of_ledger(self, database: bytes, ledger_id: int, limit: int | None) -> list[bytes]:
        cursor = self._transaction.cursor(self._databases[database])
        prefix = schema.LEDGER_KEY.pack(ledger_id)
        if not cursor.set_range(prefix):
            return []
        found = takewhile(lambda key: key.startswith(prefix), values(cursor.iternext(True, False)))
        return list(islice(found, limit))

    # -- changes -----------------------------------------------------------------------------------------------------

    def apply(self, operations: Sequence[Operation], full: BookstandError | None) -> Outcome:
        """Apply one write batch, or refuse it and change nothing. ``full``: error for operations that consume space."""
        try:
            if full is not None and any(isinstance(operation, ConsumesSpace) for operation in operations):
                raise full
            operation = operations[0] if len(operations) == 1 else None
            if type(operation) is AddEntries:
                ledger_id = operation.ledger_id
                ledger = operation.check(self._states.get(ledger_id) or self.state(ledger_id))
                if operation.first_entry > ledger.last_entry:
                    # By far the most frequent case. Nothing can refuse it any longer, so it needs no write set.
                    operation.account(ledger)
                    self._changed.add(ledger_id)
                    self._put_entry_batch(operation.encode())
                    return None, None
            staging = WriteSet(self)
            results = [operation.apply(staging) for operation in operations]
        except BookstandError as refusal:
            return None, refusal
        self._merge(staging)
        return results, None

    def _merge(self, staging: WriteSet) -> None:
        for (database, key), value in staging.writes.items():
            if self._put(database, key, value) and staging.is_published and database in schema.META_SUMS:
                self._published[database, key] = None
        for encoded in staging.entries:
            self._put_entry_batch(encoded)
        entries = self._databases[schema.ENTRIES]
        for key in staging.removed_entries:
            self._transaction.delete(key, b"", entries)
            self._entries_changed = True
        if staging.overrides:
            self._put_overrides(staging.overrides)
        if staging.states:
            self._states.update(staging.states)
            self._changed.update(staging.states)

    def _put(self, database: bytes, key: bytes, value: bytes | None) -> bool:
        """Write or delete a record; return True if that changes anything."""
        current = self.get(database, key)
        if current == value:
            return False
        written = self._records.get((database, key))
        self._records[database, key] = current if written is None else written[0], value
        if value is None or (written is not None and current is not None):
            # Without the deletion LMDB would overwrite a larger value of this transaction in place, and keep its pages.
            self._transaction.delete(key, b"", self._databases[database])
        if value is not None:
            self._transaction.put(key, value, True, True, False, self._databases[database])
        return True

    def _put_entry_batch(self, encoded: EncodedEntries) -> None:
        _put_entries(self._transaction, self._databases[schema.ENTRIES], encoded)
        self._entries_changed = True

    def _put_overrides(self, overrides: dict[bytes, bytes | None]) -> None:
        """Write overrides of bookies' replicas. Each change of an override changes the bookie's record as well."""
        database = self._databases[schema.COPIES]
        # LMDB is faster with sorted keys.
        put = sorted((key, override) for key, override in overrides.items() if override is not None)
        self._transaction.cursor(database).putmulti(put)
        for key in overrides.keys() - dict(put).keys():
            self._transaction.delete(key, b"", database)
        self._entries_changed = True

    def write_derived(self) -> None:
        """Write ledger states, checksum sums and the change feed, once per transaction."""
        for ledger_id in self._changed:
            state = self._states[ledger_id]
            key = schema.LEDGER_KEY.pack(ledger_id)
            self._put(schema.STATE, key, None if state is None else sealed_record.seal(key, state.pack()))

        changed = dict.fromkeys(schema.META_SUMS, 0)
        for (database, key), (before, after) in self._records.items():
            if database in changed:
                changed[database] ^= self._counted_seal(database, key, before) ^ sealed_record.checksum_of(after)
        for database, change in changed.items():
            if change:
                key = schema.META_SUMS[database]
                total = sealed_record.unseal_sum(schema.META, key, self.get(schema.META, key))
                self._put(schema.META, key, sealed_record.encode_checksum_xor(key, total ^ change))

        published = self.get(schema.META, schema.META_CHANGE_FEED) if self._published else None
        if published is not None:
            for key, value in change_feed.append_changes(change_feed.decode_count(published), list(self._published)):
                self._put(schema.META, key, value)

    def _counted_seal(self, database: bytes, key: bytes, before: bytes | None) -> int:
        """Return the checksum by which the sum counts a replaced record; a damaged record may count by its body's."""
        stored = sealed_record.checksum_of(before)
        if before is None or sealed_record.is_sealed(key, before):
            return stored
        total = 0
        for value in values(self._transaction.cursor(self._databases[database]).iternext(False, True)):
            total ^= sealed_record.checksum_of(value)
        for (changed, _), (old, new) in self._records.items():
            if changed == database:
                total ^= sealed_record.checksum_of(old) ^ sealed_record.checksum_of(new)
        sum_key = schema.META_SUMS[database]
        counted = sealed_record.unseal_sum(schema.META, sum_key, self.get(schema.META, sum_key))
        computed = sealed_record.checksum_of(sealed_record.seal(key, sealed_record.body_of(before)))
        return computed if counted == total ^ stored ^ computed else stored

    def changes_anything(self) -> bool:
        """Return False if the changes cancel out: LMDB assigns no number to a commit that changes nothing."""
        return self._entries_changed or any(before != now for before, now in self._records.values())


class _SingleAdd:
    """Commit request of entries that their writer commits itself."""

    __slots__ = ("operations",)

    def __init__(self, entries: AddEntries) -> None:
        self.operations = (entries,)


def _put_entries(transaction: lmdb.Transaction, database: lmdb._Database, encoded: EncodedEntries) -> None:
    if encoded.count == 1:
        ((key, stored),) = encoded.pairs()
        transaction.put(key, stored, True, True, False, database)
    elif encoded.count:
        cursor = transaction.cursor(database)
        # LMDB packs pages tighter and searches less if it knows that keys are appended at the end.
        at_end = not cursor.last() or bytes(cursor.key()) < encoded.first_key
        cursor.putmulti(encoded.pairs(), True, True, at_end)


def _size_of(requests: Sequence[Request]) -> int:
    total = 0
    for request in requests:
        for operation in request.operations:
            if isinstance(operation, _ADDS):
                total += operation.estimated_bytes
    return 2 * total + (1 << 20)
