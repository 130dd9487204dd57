"""Write batches: operations that are checked and applied atomically.

Each operation has an ``apply(staging)`` that reads and writes through a :class:`WriteSet`, the view that one batch has
of the write transaction. Later operations of the batch see what earlier ones have written. The writes reach the
transaction only when all operations have passed. An operation that raises refuses its own batch, and no other.

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
        """One step of a write batch."""

        def apply(self, staging: WriteSet) -> Any:
            """Check and stage the operation, and return its result; raise to refuse the whole batch."""

    class TransactionView(Protocol):
        def get(self, database: bytes, key: bytes) -> bytes | None: ...
        def get_many(self, database: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]: ...
        def state(self, ledger_id: int) -> LedgerState | None: ...
        def entry_keys(self, ledger_id: int, limit: int | None) -> list[bytes]: ...
        def replica_keys(self, ledger_id: int, limit: int | None) -> list[bytes]: ...
        def ledger_keys(self) -> Iterator[bytes]: ...


ANY_VERSION = None
MUST_NOT_EXIST = -1


class WriteBatch:
    """Operations that take effect together or not at all."""

    __slots__ = ("operations",)

    def __init__(self, *operations: Operation) -> None:
        self.operations = operations


class ConsumesSpace:
    """Operations that a full store refuses. Others remain possible, because they are needed to free space."""

    __slots__ = ()


class WriteSet:
    """Uncommitted writes of one batch, over the view of the transaction."""

    __slots__ = ("_view", "entries", "is_published", "overrides", "removed_entries", "states", "writes")

    def __init__(self, view: TransactionView) -> None:
        self._view = view
        self.writes: dict[tuple[bytes, bytes], bytes | None] = {}
        self.states: dict[int, LedgerState | None] = {}
        self.entries: list[EncodedEntries] = []
        # Overrides of bookies' replicas, by key; None deletes one.
        self.overrides: dict[bytes, bytes | None] = {}
        self.removed_entries: list[bytes] = []
        # False for writes of the store's server, which the change feed leaves out.
        self.is_published = True

    def get(self, database: bytes, key: bytes) -> bytes | None:
        if (database, key) in self.writes:
            return self.writes[database, key]
        return self._view.get(database, key)

    def put(self, database: bytes, key: bytes, value: bytes | None) -> None:
        self.writes[database, key] = value

    def state(self, ledger_id: int) -> LedgerState | None:
        """Mutable state of a ledger, written with the batch."""
        if ledger_id not in self.states:
            current = self._view.state(ledger_id)
            self.states[ledger_id] = None if current is None else current.copy()
        return self.states[ledger_id]

    def merge(self, inner: WriteSet) -> None:
        """Add the writes of a nested write set, made by a step that may fail on its own."""
        self.writes.update(inner.writes)
        self.states.update(inner.states)
        self.entries += inner.entries
        self.overrides.update(inner.overrides)
        self.removed_entries += inner.removed_entries

    def versioned(self, database: bytes, key: bytes) -> tuple[bytes, int] | None:
        sealed = self.get(database, key)
        return None if sealed is None else sealed_record.unseal_versioned(database, key, sealed)

    def existing_entries(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Existing entries by key, in key order unless some were staged here."""
        found = dict(self._view.get_many(schema.ENTRIES, keys))
        if self.entries:
            staged = dict(pair for encoded in self.entries for pair in encoded.pairs())
            found.update({key: staged[key] for key in keys if key in staged})
        return found

    def existing_overrides(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes | None] = dict(self._view.get_many(schema.COPIES, keys))
        if self.overrides:
            found.update({key: self.overrides[key] for key in keys if key in self.overrides})
        return {key: mark for key, mark in found.items() if mark is not None}

    def get_many(self, database: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Existing records among the keys, for a nested write set."""
        found = self.existing_entries(keys) if database == schema.ENTRIES else self.existing_overrides(keys)
        return list(found.items())

    def entry_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._view.entry_keys(ledger_id, limit)

    def replica_keys(self, ledger_id: int, limit: int | None) -> list[bytes]:
        return self._view.replica_keys(ledger_id, limit)

    def ledger_keys(self) -> Iterator[bytes]:
        """Keys of the ledgers that have metadata, unordered."""
        staged = {key: value for (database, key), value in self.writes.items() if database == schema.LEDGERS}
        yield from (key for key, value in staged.items() if value is not None)
        yield from (key for key in self._view.ledger_keys() if key not in staged)

    def replica(self, ledger_id: int, bookie: int) -> ReplicaState | None:
        """Replica state of a ledger at one bookie. Changes take effect with :meth:`put_replica`."""
        key = schema.COPY_LEDGER.pack(ledger_id, bookie)
        sealed = self.get(schema.COPIES, key)
        return (
            None
            if sealed is None
            else bookie_replica.unpack(schema.copy_name(key), sealed_record.unseal(schema.COPIES, key, sealed))
        )

    def put_replica(self, ledger_id: int, bookie: int, replica: ReplicaState) -> None:
        key = schema.COPY_LEDGER.pack(ledger_id, bookie)
        self.put(schema.COPIES, key, sealed_record.seal(key, replica.pack()))

    def next_number(self, name: bytes) -> int:
        sealed = self.get(schema.META, name)
        if sealed is None:
            raise StoreDamagedError(f"{sealed_record.describe(schema.META, name)} is missing")
        counter = sealed_record.unseal(schema.META, name, sealed)
        number = int.from_bytes(counter, "big")
        if len(counter) != schema.COUNTER_BYTES or number > schema.MAX_LEDGER_ID + 1:
            raise StoreDamagedError(
                f"{sealed_record.describe(schema.META, name)} is damaged: {counter.hex()} is not a valid counter"
            )
        self.put(schema.META, name, sealed_record.seal(name, (number + 1).to_bytes(schema.COUNTER_BYTES, "big")))
        return number


def version_conflict(what: str, found: int, expected: int) -> MetadataVersionError:
    if found == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} does not exist, but version {expected} was expected")
    if expected == MUST_NOT_EXIST:
        return MetadataVersionError(f"{what} exists already, with version {found}")
    return MetadataVersionError(f"{what} has version {found}, not {expected}")
