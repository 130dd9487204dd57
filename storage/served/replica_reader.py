"""Read access to the replicas of served bookies; see :mod:`bookstand.storage.served.bookie_replica`."""

from __future__ import annotations

import lmdb

from bookstand.storage.format import ledger_state, schema, sealed_record
from bookstand.storage.lmdb.errors import reraise
from bookstand.storage.served import bookie_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookstand.storage.format.ledger_state import LedgerState
    from bookstand.storage.lmdb.environment import LmdbEnvironment
    from bookstand.storage.served.bookie_replica import ReplicaState


class ReplicaReader:
    """Snapshot of one bookie, in its own read transaction. A context manager; do not hold it for long."""

    __slots__ = ("_bookie", "_call", "_environment", "_ledgers", "_transaction")

    _transaction: lmdb.Transaction

    def __init__(self, environment: LmdbEnvironment, bookie: int) -> None:
        self._environment = environment
        self._bookie = bookie
        self._ledgers: dict[int, tuple[LedgerState | None, ReplicaState | None]] = {}

    def __enter__(self) -> ReplicaReader:
        # Without a frame, because a server's connection leaves the block in another call.
        self._call = self._environment.begin_read()
        assert self._call.transaction is not None
        self._transaction = self._call.transaction
        return self

    def __exit__(self, *_: object) -> None:
        self._environment.end_read(self._call)

    def ledger(self, ledger_id: int) -> ReplicaState | None:
        """State of a ledger at the bookie; None if it does not know the ledger."""
        found, replica = self._known(ledger_id)
        return bookie_replica.effective_state(found, replica)

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        found, replica = self._known(ledger_id)
        home = bookie_replica.mirrors_store(found, self._bookie)
        storable = found is not None and entry_id >= 0
        if home and storable and (replica is None or not replica.has_overrides):
            return self._get(schema.ENTRIES, schema.ENTRY_KEY.pack(ledger_id, entry_id))
        key = schema.COPY_ENTRY.pack(ledger_id, self._bookie, entry_id)
        override = self._get(schema.COPIES, key)
        stored = self._get(schema.ENTRIES, schema.ENTRY_KEY.pack(ledger_id, entry_id)) if storable else None
        return bookie_replica.resolve_entry(override, stored, home, schema.copy_name(key))

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        found, replica = self._known(ledger_id)
        overrides = self._overrides(ledger_id) if replica is not None else {}
        if found is not None and bookie_replica.mirrors_store(found, self._bookie):
            for key, _ in self._items(schema.ENTRIES, schema.LEDGER_KEY.pack(ledger_id)):
                overrides.setdefault(schema.entry_of(key)[1], bookie_replica.SAME)
        return (entry_id for entry_id, override in sorted(overrides.items()) if override != bookie_replica.ABSENT)

    def _overrides(self, ledger_id: int) -> dict[int, bytes]:
        prefix = schema.COPY_LEDGER.pack(ledger_id, self._bookie)
        return {
            schema.COPY_ENTRY.unpack(key)[2]: override[:1]
            for key, override in self._items(schema.COPIES, prefix)
            if len(key) == schema.COPY_ENTRY.size
        }

    def _known(self, ledger_id: int) -> tuple[LedgerState | None, ReplicaState | None]:
        known = self._ledgers.get(ledger_id)
        if known is None:
            known = self._ledgers[ledger_id] = self._read_state(ledger_id), self._read_copy(ledger_id)
        return known

    def _read_state(self, ledger_id: int) -> LedgerState | None:
        if ledger_id < 0:
            return None
        key = schema.LEDGER_KEY.pack(ledger_id)
        sealed = self._get(schema.STATE, key)
        return (
            None if sealed is None else ledger_state.unpack(ledger_id, sealed_record.unseal(schema.STATE, key, sealed))
        )

    def _read_copy(self, ledger_id: int) -> ReplicaState | None:
        key = schema.COPY_LEDGER.pack(ledger_id, self._bookie)
        sealed = self._get(schema.COPIES, key)
        return (
            None
            if sealed is None
            else bookie_replica.unpack(schema.copy_name(key), sealed_record.unseal(schema.COPIES, key, sealed))
        )

    def _get(self, database: bytes, key: bytes) -> bytes | None:
        handle = self._environment.databases.get(database)
        try:
            return None if handle is None else self._transaction.get(key, None, handle)  # type: ignore[return-value]
        except lmdb.Error as error:
            reraise(error, self._environment.path, "reading")

    def _items(self, database: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        handle = self._environment.databases.get(database)
        if handle is None:
            return
        try:
            cursor = self._transaction.cursor(handle)
            has_record = cursor.set_range(prefix)
            while has_record and bytes(cursor.key()).startswith(prefix):
                yield bytes(cursor.key()), bytes(cursor.value())
                has_record = cursor.next()
        except lmdb.Error as error:
            reraise(error, self._environment.path, "reading")
