"""Read access to a store. Every method runs in its own read transaction, which ends before the method returns.

A generator calls a plain method for each of its transactions, because an interrupted generator cannot be recognized
(:mod:`bookstand.storage.process.interrupt_guard`).
"""

from __future__ import annotations

from itertools import count, islice, takewhile

import lmdb

from bookstand.errors import NoSuchEntryError, StoreDamagedError
from bookstand.storage.commit import change_feed
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.ledger_state import LedgerState, unpack
from bookstand.storage.lmdb.environment import LmdbEnvironment, values
from bookstand.storage.served import bookie_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bookstand.storage.hooks import Hooks

# Limits of a scan's slice: enough entries to amortize the read transaction and numpy, and bounded memory.
SLICE_ENTRIES = 2_000
SLICE_BYTES = 4 << 20


class StorageReader:
    """Read methods of :class:`~bookstand.storage.storage.Storage`."""

    _environment: LmdbEnvironment
    entry_hooks: Hooks | None

    def check_usable(self) -> None:
        """Raise if the store is closed, or was opened before a fork."""

    def state(self, ledger_id: int) -> LedgerState | None:
        """State of a ledger on the bookie; None if the bookie does not know the ledger."""
        sealed = self._get(schema.STATE, schema.LEDGER_KEY.pack(ledger_id))
        if sealed is None:
            return None
        return unpack(ledger_id, sealed_record.unseal(schema.STATE, schema.LEDGER_KEY.pack(ledger_id), sealed))

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Stored bytes of an entry, or None if it does not exist."""
        stored = self.entry_as_stored(ledger_id, entry_id)
        if self.entry_hooks is None:
            return stored
        changed = self.entry_hooks.on_read(ledger_id, entry_id, stored)
        if changed is None and stored is not None:
            raise NoSuchEntryError(f"ledger {ledger_id} has no entry {entry_id}")
        return changed

    def entry_as_stored(self, ledger_id: int, entry_id: int) -> bytes | None:
        """Stored bytes of an entry, without hooks."""
        return self._get(schema.ENTRIES, schema.ENTRY_KEY.pack(ledger_id, entry_id))

    def metadata(self, ledger_id: int) -> tuple[bytes, int] | None:
        """Return (metadata bytes, version), or None."""
        return self._versioned(schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id))

    def has_ledger(self, ledger_id: int) -> bool:
        if not 0 <= ledger_id <= schema.MAX_LEDGER_ID:
            return False
        return self._get(schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id)) is not None

    def ledger(self, ledger_id: int) -> tuple[bytes, int, LedgerState | None] | None:
        """Return (metadata bytes, version, state) from one snapshot, or None; state is None if the bookie has none."""
        self.check_usable()
        environment = self._environment
        key = schema.LEDGER_KEY.pack(ledger_id)
        with environment.read() as transaction:
            metadata: bytes | None = transaction.get(key, None, environment.databases[schema.LEDGERS])  # type: ignore[assignment]
            state: bytes | None = transaction.get(key, None, environment.databases[schema.STATE])  # type: ignore[assignment]
        if metadata is None:
            return None
        known = None if state is None else unpack(ledger_id, sealed_record.unseal(schema.STATE, key, state))
        return *sealed_record.unseal_versioned(schema.LEDGERS, key, metadata), known

    def node(self, path: str) -> tuple[bytes, int] | None:
        """Return (value, version), or None."""
        return self._versioned(schema.NODES, path.encode())

    def ledger_ids(self) -> Iterator[int]:
        return (schema.ledger_of(schema.LEDGERS, key) for key in self.keys_of(schema.LEDGERS))

    def keys_of(self, database: bytes, start: bytes = b"") -> Iterator[bytes]:
        """Keys of a sub-database from ``start`` on, read in pages: a slow caller holds no transaction open."""
        while True:
            page = self._key_page(database, start)
            yield from page
            if len(page) < SLICE_ENTRIES:
                return
            start = page[-1] + b"\0"

    def meta(self, key: bytes) -> bytes | None:
        sealed = self._get(schema.META, key)
        # The format record is not sealed.
        return sealed if sealed is None or key == schema.META_FORMAT else sealed_record.unseal(schema.META, key, sealed)

    def meta_keys(self, prefix: bytes) -> Iterator[bytes]:
        return takewhile(lambda key: key.startswith(prefix), self.keys_of(schema.META, prefix))

    def child_names(self, database: bytes, path: str) -> list[str]:
        """Child names of a path, of nodes or of znodes in ``meta``, in byte order. Deeper levels are skipped."""
        prefix = schema.child_prefix(database, path)
        found: dict[bytes, None] = {}
        start: bytes | None = prefix
        while start is not None:
            start = self._names_page(database, prefix, start, found)
        # An entry for the path itself, written with a trailing slash, is not a child.
        found.pop(b"", None)
        return [schema.path_of(name) for name in sorted(found)]

    def _names_page(self, database: bytes, prefix: bytes, start: bytes, found: dict[bytes, None]) -> bytes | None:
        """Add a page of names to ``found``; return the key to continue from, None at the end."""
        self.check_usable()
        with self._environment.read() as transaction:
            cursor = transaction.cursor(self._environment.databases[database])
            has_record = cursor.set_range(start)
            for _ in range(SLICE_ENTRIES):
                key: bytes = cursor.key()  # type: ignore[assignment]
                if not has_record or not key.startswith(prefix):
                    return None
                if key < start:
                    raise _out_of_order(database, key)
                name, deeper, _rest = key[len(prefix) :].partition(b"/")
                found[name] = None
                # The slash's successor: the first key that is not below the name.
                start = prefix + name + b"0" if deeper else key + b"\0"
                has_record = cursor.set_range(start) if deeper else cursor.next()
        return start

    def records(self, database: bytes, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Sealed records of a sub-database whose keys begin with ``prefix``, read in pages."""
        start = prefix
        while True:
            page = self._records_page(database, prefix, start)
            yield from page
            if len(page) < SLICE_ENTRIES:
                return
            start = page[-1][0] + b"\0"

    def _records_page(self, database: bytes, prefix: bytes, start: bytes) -> list[tuple[bytes, bytes]]:
        self.check_usable()
        with self._environment.read() as transaction:
            cursor = transaction.cursor(self._environment.databases[database])
            if not cursor.set_range(start):
                return []
            items: Iterator[tuple[bytes, bytes]] = cursor.iternext()  # type: ignore[assignment]
            page = list(islice(takewhile(lambda item: item[0].startswith(prefix), items), SLICE_ENTRIES))
        if page and not start <= page[0][0] <= page[-1][0]:
            raise _out_of_order(database, page[-1][0])
        return page

    def change_count(self) -> int:
        """Number of changes by writers other than a server, since the store was first served."""
        sealed = self._get(schema.META, schema.META_CHANGE_FEED)
        return 0 if sealed is None else change_feed.decode_count(sealed)

    def changes_since(self, seen: int, total: int) -> list[tuple[bytes, bytes]] | None:
        """Return (sub-database, key) of changes ``seen + 1`` to ``total``; None if any is damaged or not retained."""
        found = []
        for number in range(seen + 1, total + 1):
            sealed = (
                self._get(schema.META, change_feed.key_of(number))
                if total - seen <= schema.CHANGE_FEED_LENGTH
                else None
            )
            if sealed is None:
                return None
            try:
                found.append(change_feed.unpack(number, sealed))
            except StoreDamagedError:
                # The caller scans everything instead; `verify` reports the damage.
                return None
        return found

    def node_paths(self, prefix: str) -> Iterator[str]:
        start = prefix.encode()
        return map(schema.path_of, takewhile(lambda key: key.startswith(start), self.keys_of(schema.NODES, start)))

    def slices(self, ledger_id: int, first: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield stored entries ``first`` to ``last`` in slices: (id of the slice's first entry, consecutive entries).

        Ends at the first missing entry. Each slice is read in its own transaction, which ends before the slice is
        yielded, and holds at most about ``SLICE_BYTES``.
        """
        while first <= last:
            part = self._slice(ledger_id, first, last)
            if not part:
                return
            yield first, part
            first += len(part)

    def _slice(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        limit = 1 if self.entry_hooks is not None else min(last - first + 1, SLICE_ENTRIES)
        if limit == 1:
            stored = self.entry(ledger_id, first)
            return [] if stored is None else [stored]
        self.check_usable()
        environment = self._environment
        ledger_key = schema.LEDGER_KEY.pack(ledger_id)
        last_key = schema.ENTRY_KEY.pack(ledger_id, first + limit - 1)
        with environment.read() as transaction:
            sealed: bytes | None = transaction.get(ledger_key, None, environment.databases[schema.STATE])  # type: ignore[assignment]
            if sealed is None:
                return []
            state = unpack(ledger_id, sealed_record.unseal(schema.STATE, ledger_key, sealed))
            cursor = transaction.cursor(environment.databases[schema.ENTRIES])
            if not cursor.set_key(schema.ENTRY_KEY.pack(ledger_id, first)):
                return []
            if first <= state.unbroken and state.largest * limit <= SLICE_BYTES * 2:
                # No entry is missing before `unbroken`, so the keys need not be read.
                limit = min(limit, state.unbroken - first + 1)
                return list(islice(values(cursor.iternext(False, True)), limit))
            return _consecutive(cursor, first, last_key)

    def runs(self, ledger_id: int, last: int, first: int = 0) -> Iterator[tuple[int, list[bytes]]]:
        """Yield all existing entries in a range, across gaps and without hooks, as (first id, consecutive entries)."""
        while first <= last:
            run = self._run(ledger_id, first, last)
            if run is None:
                return
            yield run
            first = run[0] + len(run[1])

    def _run(self, ledger_id: int, first: int, last: int) -> tuple[int, list[bytes]] | None:
        self.check_usable()
        with self._environment.read() as transaction:
            cursor = transaction.cursor(self._environment.databases[schema.ENTRIES])
            found = _entry_from(cursor, ledger_id, first)
            if found is None or found[0] != ledger_id or found[1] > last:
                return None
            beyond = schema.ENTRY_KEY.pack(ledger_id, min(last, found[1] + SLICE_ENTRIES - 1))
            return found[1], _consecutive(cursor, found[1], beyond)

    def check_copy(self, key: bytes, name: str) -> None:
        """Raise if the record or entry of a bookie under ``key`` in ``copies`` is damaged."""
        self.check_usable()
        with self._environment.read() as transaction:
            databases = self._environment.databases
            found: bytes | None = transaction.get(key, None, databases[schema.COPIES])  # type: ignore[assignment]
            if found is None:
                # Collected meanwhile.
                return
            if len(key) == schema.COPY_LEDGER.size:
                bookie_replica.unpack(name, sealed_record.unseal(schema.COPIES, key, found))
                return
            ids = bookie_replica.ids_of(key)
            stored: bytes | None = transaction.get(ids, None, databases[schema.ENTRIES])  # type: ignore[assignment]
        copy = bookie_replica.resolve_entry(found, stored, False, name)
        if copy is not None and copy[: len(ids)] != ids:
            raise StoreDamagedError(f"{name} is damaged: its bytes are those of another entry")

    def sealed(self, database: bytes, key: bytes) -> bytes | None:
        """Raw record with its checksum, for comparison with an earlier read."""
        return self._get(database, key)

    def is_sealed(self, database: bytes, key: bytes) -> bool:
        """Return False if the record exists and its checksum does not match."""
        sealed = self._get(database, key)
        try:
            if sealed is not None:
                sealed_record.unseal(database, key, sealed)
        except StoreDamagedError:
            return False
        return True

    def sum_of_seals(self, database: bytes) -> tuple[int, int]:
        """Return the recorded and the computed XOR of all checksums of a sub-database, from one snapshot."""
        self.check_usable()
        environment = self._environment
        key = schema.META_SUMS[database]
        with environment.read() as transaction:
            sealed: bytes | None = transaction.get(key, None, environment.databases[schema.META])  # type: ignore[assignment]
            cursor = transaction.cursor(environment.databases[database])
            total = 0
            for value in values(cursor.iternext(False, True)):
                total ^= sealed_record.checksum_of(value)
        return sealed_record.unseal_sum(schema.META, key, sealed), total

    def sizes(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Yield (name, records, pages, bytes of the pages, tree depth) of each sub-database."""
        self.check_usable()
        for name in self._environment.databases:
            found = self._stat(name)
            pages = found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]
            yield name.decode(), found["entries"], pages, pages * found["psize"], found["depth"]

    def _stat(self, database: bytes) -> dict[str, int]:
        with self._environment.read() as transaction:
            return transaction.stat(self._environment.databases[database])  # type: ignore[return-value]

    def first_entry_from(self, ledger_id: int, first: int, last: int) -> int | None:
        """Id of the first existing entry from ``first`` to ``last``."""
        found = self._entry_from(ledger_id, first)
        return found[1] if found is not None and found[0] == ledger_id and found[1] <= last else None

    def ledgers_with_entries(self) -> Iterator[int]:
        """Ids of all ledgers that have an entry, with or without state, ascending."""
        found = self._entry_from(0, 0)
        while found is not None:
            yield found[0]
            if found[0] == schema.MAX_LEDGER_ID:
                return
            found = self._entry_from(found[0] + 1, 0)

    def _entry_from(self, ledger_id: int, first: int) -> tuple[int, int] | None:
        self.check_usable()
        with self._environment.read() as transaction:
            return _entry_from(transaction.cursor(self._environment.databases[schema.ENTRIES]), ledger_id, first)

    def _key_page(self, database: bytes, start: bytes) -> list[bytes]:
        self.check_usable()
        with self._environment.read() as transaction:
            # Inside the transaction: compaction replaces the environment and its handles between transactions.
            handle = self._environment.databases.get(database)
            if handle is None:
                return []
            cursor = transaction.cursor(handle)
            if not cursor.set_range(start):
                return []
            page = list(islice(values(cursor.iternext(True, False)), SLICE_ENTRIES))
        if page and not start <= page[0] <= page[-1]:
            raise _out_of_order(database, page[-1])
        return page

    def _get(self, database: bytes, key: bytes) -> bytes | None:
        self.check_usable()
        environment = self._environment
        with environment.read() as transaction:
            return transaction.get(key, None, environment.databases[database])  # type: ignore[return-value]

    def _versioned(self, database: bytes, key: bytes) -> tuple[bytes, int] | None:
        sealed = self._get(database, key)
        return None if sealed is None else sealed_record.unseal_versioned(database, key, sealed)


def _entry_from(cursor: lmdb.Cursor, ledger_id: int, entry_id: int) -> tuple[int, int] | None:
    """Move to the first entry at or after a position, past malformed keys, which ``verify`` reports."""
    start = schema.ENTRY_KEY.pack(ledger_id, entry_id)
    has_record = cursor.set_range(start)
    while has_record:
        key: bytes = cursor.key()  # type: ignore[assignment]
        if key < start:
            raise _out_of_order(schema.ENTRIES, key)
        try:
            return schema.entry_of(key)
        except StoreDamagedError:
            has_record = cursor.next()
    return None


def _out_of_order(database: bytes, key: bytes) -> StoreDamagedError:
    """Error for a key out of order, which would make a scan that continues after the last key loop forever."""
    return StoreDamagedError(f"{database.decode()} is damaged: key {key.hex()} is out of order")


def _consecutive(cursor: lmdb.Cursor, first: int, last_key: bytes) -> list[bytes]:
    """Values from the cursor on, up to the first gap in the keys, ``last_key`` or ``SLICE_BYTES``."""
    ledger_id = schema.ENTRY_KEY.unpack(last_key)[0]
    stored = []
    size = 0
    items: Iterable[tuple[bytes, bytes]] = cursor.iternext()  # type: ignore[assignment]
    for expected, (key, value) in zip(count(first), items, strict=False):
        if key != schema.ENTRY_KEY.pack(ledger_id, expected) or key > last_key:
            break
        stored.append(value)
        size += len(value)
        if size >= SLICE_BYTES:
            break
    return stored
