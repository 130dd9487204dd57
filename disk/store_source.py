"""A store with the interface of bookies' disks.

Nothing is opened for writing, fenced or recovered. Unreadable data is reported and never hides the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from bookstand.disk.bookies.disk_ledger import StoredEntry
from bookstand.disk.bookies.ledger_end import DELETED, UNKNOWN, LedgerEnd, Ranges
from bookstand.disk.damage import Damage
from bookstand.disk.metadata.dump import DumpNode, MetadataDump
from bookstand.errors import (
    DigestMismatchError,
    IncorrectParameterError,
    MetadataSerializationError,
    NoSuchLedgerError,
    StoreDamagedError,
)
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format import ledger_metadata as metadata_format
from bookstand.storage.format import schema
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.ledger_metadata import CLOSED, NO_ENTRY, LedgerMetadata
from bookstand.storage.format.schema import MAX_ENTRY_ID
from bookstand.storage.lmdb.environment import data_file

if TYPE_CHECKING:
    from bookstand.storage.format.ledger_state import LedgerState
    from bookstand.storage.storage import Storage

# Number of ledgers cached.
_KEPT_LEDGERS = 64
# Maximum number of missing entries reported per gap.
_NAMED = 100
NOWHERE = -1


class StoreLedger:
    """A ledger as far as it is readable; damage is reported. If its metadata does not give its end, its state in the
    store does."""

    def __init__(self, storage: Storage, ledger_id: int, source: StoreSource) -> None:
        self.id = ledger_id
        self._storage = storage
        self._source = source
        self.problems: list[str] = []
        self.metadata: LedgerMetadata | None = None
        self.state: LedgerState | None = None
        found = None
        try:
            found = storage.metadata(ledger_id)
            self.metadata = None if found is None else metadata_format.parse(found[0], ledger_id, version=found[1])
        except (StoreDamagedError, MetadataSerializationError) as error:
            self._report(str(error))
        try:
            self.state = storage.state(ledger_id)
        except StoreDamagedError as error:
            self._report(str(error))
        if self.state is None and not self.problems:
            if found is None:
                raise NoSuchLedgerError(f"there is no ledger {ledger_id}")
            self._report("the store has no state for it")

    def __repr__(self) -> str:
        return f"<ledger {self.id} of a store>"

    def _report(self, what: str, entry_id: int = -1) -> None:
        if entry_id < 0:
            self.problems.append(what)
        self._source.report(what, self.id, entry_id)

    @property
    def fenced(self) -> bool:
        return self.state is not None and self.state.fenced

    @property
    def master_key(self) -> bytes | None:
        return None if self.state is None else self.state.master_key

    @property
    def digest_name(self) -> str | None:
        if self.metadata is not None and self.metadata.digest_type is not None:
            return self.metadata.digest_type
        return (self.state.digest or None) if self.state is not None else None

    @cached_property
    def _passwords(self) -> list[bytes]:
        metadata = self.metadata
        return [metadata.password] if metadata is not None and metadata.has_password else self._source.passwords

    @property
    def last_stored(self) -> int:
        return self._highest if self.state is None else self.state.last_entry

    @cached_property
    def _highest(self) -> int:
        """Highest entry found, for a ledger whose state is unreadable."""
        highest = NO_ENTRY
        try:
            for first, stored in self._storage.runs(self.id, MAX_ENTRY_ID):
                highest = first + len(stored) - 1
        except StoreDamagedError as error:
            self._report(str(error))
        return highest

    @cached_property
    def extent(self) -> LedgerEnd:
        """End of the ledger: the metadata's if it is closed, otherwise the end at which recovery would close it."""
        metadata, state = self.metadata, self.state
        highest = self.last_stored
        unbroken = NO_ENTRY if state is None else state.unbroken
        lac = NO_ENTRY if state is None else state.known_lac
        if metadata is not None and metadata.state == CLOSED:
            last, length, name = metadata.last_entry_id, metadata.length, CLOSED
            lac = last
        else:
            last = highest if state is None else max(unbroken, min(lac, highest))
            length = self._length_at(last)
            name = DELETED if state is not None and state.deleted_at else UNKNOWN
            name = name if metadata is None else metadata.state
        missing = Ranges() if state is None or state.count == highest + 1 >= last + 1 else self._missing(last)
        doubts: tuple[str, ...] = ()
        if state is not None and highest > last:
            doubts = (f"there are entries behind its end at {last}, up to {highest}",)
        return LedgerEnd(last, length, name, lac, unbroken, unbroken, highest, Ranges(), missing, doubts)

    def _length_at(self, entry_id: int) -> int:
        stored = self._storage.entry_as_stored(self.id, entry_id) if entry_id >= 0 else None
        try:
            return 0 if stored is None else layout.decode_header(stored)[3]
        except DigestMismatchError:
            return 0

    def _missing(self, last: int) -> Ranges:
        gaps = []
        expected = 0
        for first, stored in self._storage.runs(self.id, last):
            if first > expected:
                gaps.append((expected, first - 1))
            expected = first + len(stored)
        if expected <= last:
            gaps.append((expected, last))
        return Ranges(gaps)

    def entries(self, first: int = 0, last: int | None = None, *, beyond: bool = False) -> Iterator[StoredEntry]:
        if first < 0 or (last is not None and last < NO_ENTRY):
            raise IncorrectParameterError(f"ledger {self.id}: no entries from {first} to {last}")
        end = max(self.last_stored, self.extent.last_entry) if beyond else self.extent.last_entry
        return self._entries(first, end if last is None else min(last, end))

    def stored(self, first: int, last: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield runs of entries in stored form. Entries that the store should have but lacks are reported."""
        try:
            for start, part in self._storage.runs(self.id, last, first):
                self._tell_lost(first, start - 1)
                yield start, part
                first = start + len(part)
        except StoreDamagedError as error:
            self._report(str(error), first)
            return
        self._tell_lost(first, last)

    def _tell_lost(self, first: int, last: int) -> None:
        state = self.state
        if state is None or state.deleted_at:
            return
        for gone in range(first, min(last, first + _NAMED - 1) + 1):
            if state.must_exist(gone):
                self._report(f"entry {self.id}:{gone} was stored, but is missing", gone)

    def _entries(self, first: int, last: int) -> Iterator[StoredEntry]:
        for start, part in self.stored(first, last):
            for entry_id, stored in enumerate(part, start):
                entry = self.decoded(entry_id, stored)
                if entry is not None:
                    yield entry

    def decoded(self, entry_id: int, stored: bytes) -> StoredEntry | None:
        name = self.digest_name
        error: DigestMismatchError | None = None
        for password in self._passwords if name == "hmac" else [b""]:
            digest = digest_for(name or "crc32c", password)
            try:
                lac, length, payload = layout.decode(digest, self.id, entry_id, stored)
                return StoredEntry(self.id, entry_id, lac, length, payload, stored, bool(digest.size))
            except DigestMismatchError as mismatch:
                error = mismatch
        self._report(str(error or f"entry {self.id}:{entry_id}: its password is not known"), entry_id)
        return None


class StoreSource:
    """Ledgers and nodes of a store, with the interface of :class:`bookstand.disk.disks.Disks`."""

    def __init__(self, storage: Storage, passwords: Sequence[bytes], limits: ExpansionLimits = DEFAULT) -> None:
        self.limits = limits
        self.damage: list[Damage] = []
        self.passwords = [*passwords, b""]
        self._storage = storage
        self._kept: dict[int, StoreLedger] = {}
        self._told: set[Damage] = set()

    @property
    def storage(self) -> Storage:
        return self._storage

    def report(self, what: str, ledger_id: int = -1, entry_id: int = -1) -> None:
        found = Damage(data_file(self._storage.path), NOWHERE, what, ledger_id, entry_id)
        if found not in self._told:
            self._told.add(found)
            self.damage.append(found)

    @cached_property
    def ledger_ids(self) -> list[int]:
        """Ids of the ledgers with metadata."""
        return self._ids(schema.LEDGERS)

    @cached_property
    def deleted_ids(self) -> list[int]:
        """Ids of deleted ledgers whose entries have not been garbage-collected."""
        return sorted(set(self._ids(schema.STATE)).difference(self.ledger_ids))

    def _ids(self, database: bytes) -> list[int]:
        found = []
        try:
            for key in self._storage.keys_of(database):
                try:
                    found.append(schema.ledger_of(database, key))
                except StoreDamagedError as error:
                    self.report(str(error))
        except StoreDamagedError as error:
            self.report(str(error))
        return found

    def ledger(self, ledger_id: int) -> StoreLedger:
        kept = self._kept.pop(ledger_id, None) or StoreLedger(self._storage, ledger_id, self)
        if len(self._kept) >= _KEPT_LEDGERS:
            del self._kept[next(iter(self._kept))]
        self._kept[ledger_id] = kept
        return kept

    @cached_property
    def dump(self) -> MetadataDump:
        """The nodes as a metadata dump. It has no ledgers: a store does not represent them as nodes."""
        nodes: dict[str, DumpNode] = {}
        damaged: list[str] = []
        try:
            for key in self._storage.keys_of(schema.NODES):
                path = ""
                try:
                    path = schema.path_of(key)
                    found = self._storage.node(path)
                except StoreDamagedError as error:
                    self.report(str(error))
                    damaged += [path] if path else []
                    continue
                if found is not None:
                    nodes[path] = DumpNode(path, *found)
        except StoreDamagedError as error:
            self.report(str(error))
        return MetadataDump(nodes, self._tell, damaged=damaged, limits=self.limits)

    def _tell(self, damage: Damage) -> None:
        self.report(damage.what, damage.ledger_id, damage.entry_id)
