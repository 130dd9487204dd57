"""One commit: a write transaction in which many changes are each applied or refused, and what becomes of it."""

from __future__ import annotations

from itertools import islice, takewhile

import lmdb

from bookstand.errors import BookstandError, OutcomeUnknownError
from bookstand.storage.commit import change_feed
from bookstand.storage.commit.commit_marks import WRITERS_LISTED
from bookstand.storage.commit.entry_operations import AddEntries
from bookstand.storage.commit.operations import ConsumesSpace, WriteSet
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.ledger_state import LedgerState, added, unpack
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

    class Submitted(Protocol):
        """What a commit needs to know of a submission."""

        @property
        def operations(self) -> Sequence[Operation]: ...


# Pages are kept for a reader that was killed until somebody looks; who has the store open looks so often.
_COMMITS_BETWEEN_LOOKS = 128

_ADDS = (AddEntries, AddToReplica)

# States of ledgers kept from one commit to the next.
_KEPT_STATES = 1_000


class CommitExecutor:
    """Commits batches, one at a time. After each the disk holds all of the batch that was not refused, or none."""

    def __init__(self, environment: LmdbEnvironment, disk: DiskSpace, witness: Witness | None) -> None:
        self._environment = environment
        self._disk = disk
        self._witness = witness
        # States as of the commit with this number; worth nothing as soon as another process has committed.
        self._states: dict[int, LedgerState | None] = {}
        self._states_at = -1
        # Set where nothing can be written any more.
        self.broken: BookstandError | None = None

    def forget_states(self) -> None:
        """The file was replaced, and counts its commits anew."""
        self._states, self._states_at = {}, -1

    def commit(self, submissions: Sequence[Submitted], hooks: Hooks | None) -> list[Outcome]:
        """(results, error) for each submission."""
        try:
            for submission in submissions:
                for operation in submission.operations:
                    if type(operation) is AddEntries:
                        operation.encode()
            if hooks is not None:
                hooks.point("commit.before_write")
            return self._write(submissions, hooks)
        except lmdb.Error as error:
            answer = translate(error, self._environment.path, "writing")
        except BookstandError as error:
            answer = error
        self._disk.note(answer)
        return [(None, answer)] * len(submissions)

    def _write(self, submissions: Sequence[Submitted], hooks: Hooks | None) -> list[Outcome]:
        full = self._disk.refusal()
        while True:
            try:
                with self._environment.begin_write() as transaction:
                    self._environment.reserve(transaction)
                    number = transaction.id()
                    states = self._states if self._states_at == number - 1 and len(self._states) < _KEPT_STATES else {}
                    # Until the commit has succeeded they are worth nothing: it changes them as it goes.
                    self._states_at = -1
                    writing = WriteTransaction(self._environment, transaction, states)
                    outcomes = [writing.attempt(submission.operations, full) for submission in submissions]
                    writing.write_rest()
                    if not writing.changes_anything():
                        transaction.abort()
                        return outcomes
                    if hooks is not None:
                        hooks.point("commit.before_sync")
                    failure = self._sync(transaction, number)
                if failure is not None:
                    self._settle(failure)
            except lmdb.MapFullError:
                self._environment.grow(_size_of(submissions))
                continue
            finally:
                self._environment.end_write()
            self._states, self._states_at = states, number
            if number % _COMMITS_BETWEEN_LOOKS == 0:
                self._environment.reader_check()
            self._after_sync(number, hooks)
            return outcomes

    def _after_sync(self, number: int, hooks: Hooks | None) -> None:
        if self._witness is not None:
            try:
                self._witness.saw(number)
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
        """A batch that is entries of one known ledger: the same as :meth:`commit`, without what only several need.

        A lone durable append is what people wait for most, and waits for nothing but this. Whatever is out of the
        ordinary goes the long way.
        """
        if self._witness is not None or self._disk.full is not None:
            return self._commit_alone(entries)
        environment = self._environment
        one = entries.encode_one() if len(entries.payloads) == 1 else None
        if one is None:
            entries.encode()
        try:
            with environment.begin_write() as transaction:
                environment.reserve(transaction)
                number = transaction.id()
                ledger = self._states.get(entries.ledger_id) if self._states_at == number - 1 else None
                if ledger is None:
                    transaction.abort()
                else:
                    # Until the commit has succeeded the states are worth nothing: it changes them as it goes.
                    self._states_at = -1
                    entries.admit(ledger)
                    databases = environment.databases
                    if one is None:
                        entries.count_in(ledger)
                        _put_entries(transaction, databases[schema.ENTRIES], entries.encode())
                    else:
                        added(ledger, entries.first_entry, 1, len(one[1]), entries.last_add_confirmed)
                        transaction.put(*one, True, True, False, databases[schema.ENTRIES])
                    key = schema.LEDGER_KEY.pack(entries.ledger_id)
                    sealed = sealed_record.seal(key, ledger.pack())
                    transaction.put(key, sealed, True, True, False, databases[schema.STATE])
                    failure = self._sync(transaction, number)
            if ledger is None:
                return self._commit_alone(entries)
            if failure is not None:
                self._settle(failure)
            self._states_at = number
            if number % _COMMITS_BETWEEN_LOOKS == 0:
                environment.reader_check()
            return None
        except BookstandError as error:
            answer: BookstandError = error
        except lmdb.MapFullError:
            return self._commit_alone(entries)
        except lmdb.Error as error:
            answer = translate(error, environment.path, "writing")
        finally:
            environment.end_write()
        self._disk.note(answer)
        return answer

    def _commit_alone(self, entries: AddEntries) -> BookstandError | None:
        ((_, error),) = self.commit([_Lone(entries)], None)
        return error  # type: ignore[return-value]

    def _sync(self, transaction: lmdb.Transaction, number: int) -> BookstandError | None:
        """Commit the transaction. Return the error after which it may have taken no effect, for :meth:`_settle`."""
        self._environment.mark(transaction, number)
        try:
            self._environment.commit(transaction, number)
        except lmdb.MapFullError:
            raise
        except lmdb.Error as error:
            return translate(error, self._environment.path, "committing")
        return None

    def _settle(self, error: BookstandError) -> None:
        """After the device failed during a commit: reopen the store, and raise unless the commit took effect. LMDB may
        have marked the environment as broken, whatever the error was."""
        environment = self._environment
        try:
            environment.reopen()
            took_effect = environment.settle()
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
                "processes have committed before its outcome could be read; read what it was to change"
            ) from error
        if not took_effect:
            raise error from error.__cause__


class WriteTransaction:
    """One write transaction, as the stagings of the changes in it see it. ``states`` are those known beforehand."""

    __slots__ = ("_changed", "_databases", "_entries_changed", "_news", "_records", "_states", "_transaction")

    def __init__(
        self, environment: LmdbEnvironment, transaction: lmdb.Transaction, states: dict[int, LedgerState | None]
    ) -> None:
        self._databases = environment.databases
        self._transaction = transaction
        self._states = states
        self._changed: set[int] = set()
        # What each record that is written was before, and is now.
        self._records: dict[tuple[bytes, bytes], tuple[bytes | None, bytes | None]] = {}
        # Records that a server is to be told of, in the order in which they were changed.
        self._news: dict[tuple[bytes, bytes], None] = {}
        # Entries, or marks of bookies' copies.
        self._entries_changed = False

    # -- what stagings read ------------------------------------------------------------------------------------------

    def get(self, database: bytes, key: bytes) -> bytes | None:
        # Positional arguments: py-lmdb takes twice as long over keywords.
        return self._transaction.get(key, None, self._databases[database])  # type: ignore[return-value]

    def get_many(self, database: bytes, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Those that are there, in the order of the keys."""
        return self._transaction.cursor(self._databases[database]).getmulti(wanted)  # type: ignore[return-value]

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

    def copy_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
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

    def attempt(self, operations: Sequence[Operation], full: BookstandError | None) -> Outcome:
        """Apply one change, or refuse it and leave no trace. ``full`` is what to say to changes that take space."""
        try:
            if full is not None and any(isinstance(operation, ConsumesSpace) for operation in operations):
                raise full
            operation = operations[0] if len(operations) == 1 else None
            if type(operation) is AddEntries:
                ledger_id = operation.ledger_id
                ledger = operation.admit(self._states.get(ledger_id) or self.state(ledger_id))
                if operation.first_entry > ledger.last_entry:
                    # By far the most frequent change, and nothing can refuse it from here on: no need to stage it.
                    operation.count_in(ledger)
                    self._changed.add(ledger_id)
                    self._add(operation.encode())
                    return None, None
            staging = WriteSet(self)
            results = [operation.apply(staging) for operation in operations]
        except BookstandError as refusal:
            return None, refusal
        self._merge(staging)
        return results, None

    def _merge(self, staging: WriteSet) -> None:
        for (database, key), value in staging.writes.items():
            if self._put(database, key, value) and staging.is_news and database in schema.META_SUMS:
                self._news[database, key] = None
        for encoded in staging.entries:
            self._add(encoded)
        entries = self._databases[schema.ENTRIES]
        for key in staging.removed_entries:
            self._transaction.delete(key, b"", entries)
            self._entries_changed = True
        if staging.marks:
            self._mark(staging.marks)
        if staging.states:
            self._states.update(staging.states)
            self._changed.update(staging.states)

    def _put(self, database: bytes, key: bytes, value: bytes | None) -> bool:
        """Whether that changes anything."""
        there = self.get(database, key)
        if there == value:
            return False
        written = self._records.get((database, key))
        self._records[database, key] = there if written is None else written[0], value
        if value is None or (written is not None and there is not None):
            # Over a larger value of the same transaction LMDB writes in place, and leaves it more pages than it takes.
            self._transaction.delete(key, b"", self._databases[database])
        if value is not None:
            self._transaction.put(key, value, True, True, False, self._databases[database])
        return True

    def _add(self, encoded: EncodedEntries) -> None:
        _put_entries(self._transaction, self._databases[schema.ENTRIES], encoded)
        self._entries_changed = True

    def _mark(self, marks: dict[bytes, bytes | None]) -> None:
        """Marks of bookies' copies: what changes them changes the bookie's record as well."""
        database = self._databases[schema.COPIES]
        # In the order of the keys, which LMDB takes faster.
        put = sorted((key, mark) for key, mark in marks.items() if mark is not None)
        self._transaction.cursor(database).putmulti(put)
        for key in marks.keys() - dict(put).keys():
            self._transaction.delete(key, b"", database)
        self._entries_changed = True

    def write_rest(self) -> None:
        """States are written once a transaction, however many changes touched them; so are the sums of seals, and what
        a server is told."""
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

        told = self.get(schema.META, schema.META_CHANGE_FEED) if self._news else None
        if told is not None:
            for key, value in change_feed.told(change_feed.decode_count(told), list(self._news)):
                self._put(schema.META, key, value)

    def _counted_seal(self, database: bytes, key: bytes, before: bytes | None) -> int:
        """The seal with which the sum counts a record that is replaced. Of a damaged record that is the seal stored, or
        the one that belongs to its body: whichever makes the sum correct."""
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
        """Return False if the changes cancel each other out: LMDB does not number a commit that changes nothing."""
        return self._entries_changed or any(before != now for before, now in self._records.values())


class _Lone:
    """Entries that nobody submitted: their writer commits them itself."""

    __slots__ = ("operations",)

    def __init__(self, entries: AddEntries) -> None:
        self.operations = (entries,)


def _put_entries(transaction: lmdb.Transaction, database: lmdb._Database, encoded: EncodedEntries) -> None:
    if encoded.count == 1:
        ((key, stored),) = encoded.pairs()
        transaction.put(key, stored, True, True, False, database)
    elif encoded.count:
        cursor = transaction.cursor(database)
        # LMDB packs its pages tighter and searches less where it knows that keys come in at the very end.
        at_end = not cursor.last() or bytes(cursor.key()) < encoded.first_key
        cursor.putmulti(encoded.pairs(), True, True, at_end)


def _size_of(submissions: Sequence[Submitted]) -> int:
    """About how many bytes of the map the submissions will take."""
    room = 0
    for submission in submissions:
        for operation in submission.operations:
            if isinstance(operation, _ADDS):
                room += operation.room
    return 2 * room + (1 << 20)
