"""Changes of the store: operations that are checked and applied as one.

Every operation has an ``apply(staging)`` that reads and writes through a :class:`WriteSet`. A staging is one change's
view inside a write transaction: what it stages is seen by the operations after it, and reaches the transaction only
when all of them have passed. An operation that raises refuses its whole change, and only that.

Operations on entries are in :mod:`bookstand.storage.commit.entry_operations`, on ledgers in
:mod:`bookstand.storage.commit.ledger_operations`, on nodes in :mod:`bookstand.storage.commit.node_operations`.
"""

from __future__ import annotations

from bookstand.errors import MetadataVersionError, StoreDamagedError
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.served import bookie_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Protocol

    from bookstand.storage.format.entry_batch import EncodedEntries
    from bookstand.storage.format.ledger_state import LedgerState
    from bookstand.storage.served.bookie_replica import ReplicaState

    class Operation(Protocol):
        """One step of a change."""

        def apply(self, staging: WriteSet) -> Any:
            """Check, stage, and return the operation's result; or raise, and nothing of the change happens."""

    class TransactionView(Protocol):
        """The write transaction as stagings see it."""

        def get(self, database: bytes, key: bytes) -> bytes | None: ...
        def get_many(self, database: bytes, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes]]: ...
        def state(self, ledger_id: int) -> LedgerState | None: ...
        def entry_keys(self, ledger_id: int, limit: int | None) -> list[bytes]: ...
        def copy_keys(self, ledger_id: int, limit: int | None) -> list[bytes]: ...
        def ledger_keys(self) -> Iterator[bytes]: ...


ANY_VERSION = None
MUST_NOT_EXIST = -1


class WriteBatch:
    """Operations that happen together or not at all."""

    __slots__ = ("operations",)

    def __init__(self, *operations: Operation) -> None:
        self.operations = operations


class ConsumesSpace:
    """Operations that a full store refuses. Deleting, collecting, fencing and closing stay possible: they are the way
    out."""

    __slots__ = ()


class WriteSet:
    """What one change has written so far, over the view of the transaction."""

    __slots__ = ("_view", "entries", "is_news", "marks", "removed_entries", "states", "writes")

    def __init__(self, view: TransactionView) -> None:
        self._view = view
        self.writes: dict[tuple[bytes, bytes], bytes | None] = {}
        self.states: dict[int, LedgerState | None] = {}
        self.entries: list[EncodedEntries] = []
        # Of bookies' copies; None: the mark is taken away.
        self.marks: dict[bytes, bytes | None] = {}
        self.removed_entries: list[bytes] = []
        # Whether a server of the store is to be told of it; of what it writes itself it is not.
        self.is_news = True

    def get(self, database: bytes, key: bytes) -> bytes | None:
        if (database, key) in self.writes:
            return self.writes[database, key]
        return self._view.get(database, key)

    def put(self, database: bytes, key: bytes, value: bytes | None) -> None:
        self.writes[database, key] = value

    def state(self, ledger_id: int) -> LedgerState | None:
        """The ledger's state, ready to be changed."""
        if ledger_id not in self.states:
            current = self._view.state(ledger_id)
            self.states[ledger_id] = None if current is None else current.copy()
        return self.states[ledger_id]

    def merge(self, inner: WriteSet) -> None:
        """Take over what a staging over this one has staged: a step of a change that may fail by itself."""
        self.writes.update(inner.writes)
        self.states.update(inner.states)
        self.entries += inner.entries
        self.marks.update(inner.marks)
        self.removed_entries += inner.removed_entries

    def versioned(self, database: bytes, key: bytes) -> tuple[bytes, int] | None:
        sealed = self.get(database, key)
        return None if sealed is None else sealed_record.unseal_versioned(database, key, sealed)

    def entries_among(self, wanted: Sequence[bytes]) -> dict[bytes, bytes]:
        """By their keys those entries that are there; in the order of the keys, unless some were staged here."""
        found = dict(self._view.get_many(schema.ENTRIES, wanted))
        if self.entries:
            staged = dict(pair for encoded in self.entries for pair in encoded.pairs())
            found.update({key: staged[key] for key in wanted if key in staged})
        return found

    def marks_among(self, wanted: Sequence[bytes]) -> dict[bytes, bytes]:
        """By their keys the marks that tell a bookie's copies of entries apart from the store's."""
        found: dict[bytes, bytes | None] = dict(self._view.get_many(schema.COPIES, wanted))
        if self.marks:
            found.update({key: self.marks[key] for key in wanted if key in self.marks})
        return {key: mark for key, mark in found.items() if mark is not None}

    def get_many(self, database: bytes, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """For a staging over this one."""
        found = self.entries_among(wanted) if database == schema.ENTRIES else self.marks_among(wanted)
        return list(found.items())

    def entry_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._view.entry_keys(ledger_id, limit)

    def copy_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._view.copy_keys(ledger_id, limit)

    def ledger_keys(self) -> Iterator[bytes]:
        """Keys of the ledgers that have metadata, in no order."""
        staged = {key: value for (database, key), value in self.writes.items() if database == schema.LEDGERS}
        yield from (key for key, value in staged.items() if value is not None)
        yield from (key for key in self._view.ledger_keys() if key not in staged)

    def copy(self, ledger_id: int, bookie: int) -> ReplicaState | None:
        """What a bookie knows of a ledger, ready to be changed and put back."""
        key = schema.COPY_LEDGER.pack(ledger_id, bookie)
        sealed = self.get(schema.COPIES, key)
        return (
            None
            if sealed is None
            else bookie_replica.unpack(schema.copy_name(key), sealed_record.unseal(schema.COPIES, key, sealed))
        )

    def put_copy(self, ledger_id: int, bookie: int, copy: ReplicaState) -> None:
        key = schema.COPY_LEDGER.pack(ledger_id, bookie)
        self.put(schema.COPIES, key, sealed_record.seal(key, copy.pack()))

    def next_number(self, name: bytes) -> int:
        sealed = self.get(schema.META, name)
        if sealed is None:
            raise StoreDamagedError(f"{sealed_record.describe(schema.META, name)} is missing")
        counter = sealed_record.unseal(schema.META, name, sealed)
        number = int.from_bytes(counter, "big")
        if len(counter) != schema.COUNTER_BYTES or number > schema.MAX_LEDGER_ID + 1:
            raise StoreDamagedError(
                f"{sealed_record.describe(schema.META, name)} is damaged: {counter.hex()} is no number of its"
            )
        self.put(schema.META, name, sealed_record.seal(name, (number + 1).to_bytes(schema.COUNTER_BYTES, "big")))
        return number


def version_conflict(what: str, found: int, expected: int) -> MetadataVersionError:
    if found == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} does not exist, but version {expected} was expected")
    if expected == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} exists already, with version {found}")
    return MetadataVersionError(f"{what} has version {found}, not {expected}")
