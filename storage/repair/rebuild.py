"""Rebuild of a damaged store: copy the remaining data into a new one, and report the losses.

Ledgers are copied first, then nodes, then the data of servers (:mod:`bookstand.storage.repair.served`). Entries,
metadata and nodes are copied byte for byte, with their versions. :mod:`bookstand.storage.repair.ledger` decides what
becomes of each ledger. Deleted ledgers are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING

from bookstand.errors import (
    IncorrectParameterError,
    MetadataSerializationError,
    NotAStoreError,
    StoreDamagedError,
    StoreError,
)
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.commit.restore_operations import (
    RaiseCounter,
    RestoreEntries,
    RestoreSealed,
    RestoreState,
    RestoreVersioned,
)
from bookstand.storage.format import ledger_metadata as metadata_format
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.ledger_state import LedgerState, unpack
from bookstand.storage.lmdb.tree_walk import TreeGap
from bookstand.storage.metadata_store import check_path
from bookstand.storage.process import data_files
from bookstand.storage.process.witness import Witness
from bookstand.storage.repair.ledger import LedgerRepair
from bookstand.storage.repair.report import Loss, RepairReport
from bookstand.storage.repair.salvage import Progress, Salvage, SalvagedRecord
from bookstand.storage.repair.served import served_operations

if TYPE_CHECKING:
    from bookstand.storage.commit.operations import Operation
    from bookstand.storage.format.ledger_metadata import LedgerMetadata
    from bookstand.storage.storage import Storage

_COMMIT_BYTES = 4 << 20
_COMMIT_RECORDS = 2_000


class NothingToSaveError(StoreError):
    """The file contains no record of a store."""


class StoreRebuilder:
    """Copies a salvaged file into ``storage``, the new store; None for a dry run."""

    def __init__(
        self,
        found: Salvage,
        report: RepairReport,
        passwords: Sequence[bytes],
        storage: Storage | None,
        progress: Progress | None,
    ) -> None:
        self._found = found
        self._report = report
        self._passwords = passwords
        self._storage = storage
        self._progress = progress
        self._operations: list[Operation] = []
        self._bytes = 0
        # Number of keys found in each sub-database, to compare with the number that its tree records.
        self._met = dict.fromkeys(schema.DATABASES, 0)
        self._sums = dict.fromkeys(schema.META_SUMS, 0)
        # Lost entries that were not found in the file.
        self._absent = 0
        self._may_have_lost_ledgers = bool(found.gaps[schema.STATE] or found.gaps[schema.LEDGERS])
        self._meta = self._store_records()
        self._states = self._read_states()
        self._deleted = self._deleted_ids()
        highest = max((state.incarnation for state in self._states.values() if state is not None), default=-1)
        self._next_incarnation = max(self._counter(schema.META_NEXT_INCARNATION), highest + 1)
        self._next_ledger = self._counter(schema.META_NEXT_LEDGER)
        self._saved: set[int] = set()
        self._skipped: set[int] = set()

    def run(self) -> None:
        if all(next(self._found.records(database), None) is None for database in schema.DATABASES):
            if self._found.is_foreign:
                raise NotAStoreError(f"{self._found.path} is an LMDB file of another program")
            raise NothingToSaveError(f"nothing of {self._found.path} can be saved: it has no record of a store")
        self._add_ledgers()
        self._add_nodes()
        self._raise(schema.META_NEXT_LEDGER, self._next_ledger)
        self._raise(schema.META_NEXT_INCARNATION, self._next_incarnation)
        store_id = self._meta.get(schema.META_STORE_ID)
        if store_id is not None:
            self._add(RestoreSealed(schema.META, schema.META_STORE_ID, store_id), len(store_id))
        for operation, size in served_operations(self._found, self._report, self._saved, self._skipped, self._met):
            self._add(operation, size)
        self._commit()
        self._report.losses += self._losses_of_the_store(Witness.read(self._report.source))
        self._report_unexplained_damage()

    # -- ledger states and the store's own records -------------------------------------------------------------------

    def _store_records(self) -> dict[bytes, bytes]:
        records = {}
        for key, bodies in self._found.sealed(schema.META):
            self._met[schema.META] += 1
            if bodies and not key.startswith(schema.META_OF_SERVERS):
                # The highest of several values of a counter.
                records[key] = max(bodies)
            elif not bodies and key not in (schema.META_FORMAT, schema.META_WRITERS):
                self._lose("store", f"{sealed_record.describe(schema.META, key)} is damaged")
        for key in schema.META_RECORDS:
            if key not in records and key != schema.META_FORMAT:
                self._lose("store", f"{sealed_record.describe(schema.META, key)} is missing")
        return records

    def _counter(self, name: bytes) -> int:
        return min(int.from_bytes(self._meta.get(name, b""), "big"), schema.MAX_LEDGER_ID)

    def _deleted_ids(self) -> set[int]:
        found = set()
        for key in self._meta:
            if key.startswith(schema.META_DELETED):
                try:
                    found.add(schema.parse_deletion(key)[1])
                except StoreDamagedError as damage:
                    self._lose("store", str(damage))
        return found

    def _read_states(self) -> dict[int, LedgerState | None]:
        states: dict[int, LedgerState | None] = {}
        for ledger_id, bodies in self._of_ledgers(schema.STATE):
            good: list[LedgerState] = []
            for body in bodies:
                try:
                    good.append(unpack(ledger_id, body))
                except StoreDamagedError:
                    continue
            # The one in the tree comes first; of others the latest counts.
            states[ledger_id] = max(good, key=_age_of_state) if good else None
        return states

    def _of_ledgers(self, database: bytes) -> Iterator[tuple[int, list[bytes]]]:
        for key, bodies in self._found.sealed(database):
            self._met[database] += 1
            try:
                yield schema.ledger_of(database, key), bodies
            except StoreDamagedError as damage:
                self._lose("store", str(damage))

    # -- ledgers -----------------------------------------------------------------------------------------------------

    def _add_ledgers(self) -> None:
        metadata = dict(self._of_ledgers(schema.LEDGERS))
        waiting = sorted(set(self._states) | set(metadata), reverse=True)
        for ledger_id, entries in groupby(self._entries(), key=lambda one: one[0]):
            while waiting and waiting[-1] < ledger_id:
                self._add_ledger(waiting[-1], metadata.get(waiting.pop()), iter(()))
            if waiting and waiting[-1] == ledger_id:
                waiting.pop()
            self._add_ledger(ledger_id, metadata.get(ledger_id), ((entry_id, found) for _, entry_id, found in entries))
        while waiting:
            self._add_ledger(waiting[-1], metadata.get(waiting.pop()), iter(()))

    def _entries(self) -> Iterator[tuple[int, int, SalvagedRecord]]:
        for found in self._found.records(schema.ENTRIES):
            self._met[schema.ENTRIES] += 1
            try:
                ledger_id, entry_id = schema.entry_of(found.key)
            except StoreDamagedError as damage:
                self._lose("store", str(damage))
                continue
            yield ledger_id, entry_id, found

    def _add_ledger(
        self, ledger_id: int, bodies: list[bytes] | None, entries: Iterator[tuple[int, SalvagedRecord]]
    ) -> None:
        known = self._states.get(ledger_id)
        stored = self._newest(bodies or [])
        if stored is None and (known.deleted_at if known is not None else ledger_id in self._deleted):
            self._report.deleted_ledgers += 1
            self._skipped.add(ledger_id)
            for _ in entries:
                pass
            return
        parsed = self._parsed(ledger_id, stored)
        if known is None and bodies is None and ledger_id not in self._states and not self._may_have_lost_ledgers:
            # Only unreachable pages have entries of this ledger.
            entries = (pair for pair in entries if pair[1].in_place is not None)
            first = next(entries, None)
            if first is None:
                return
            entries = chain([first], entries)
        one = LedgerRepair(ledger_id, known, parsed, self._passwords, bodies is not None and parsed is None)
        self._copy_entries(one, entries)
        if known is None:
            how = "damaged" if ledger_id in self._states else "missing"
            self._lose_of(ledger_id, "state", f"it is {how}; it is reconstructed from the entries")
        self._report.losses += one.losses()
        if one.has_only_damage:
            return
        self._absent += one.absent
        if one.unchecked and one.last_taken >= 0:
            self._report.unchecked.append(ledger_id)
        self._add(RestoreState(ledger_id, one.state(self._next_incarnation)), sealed_record.VERSION.size)
        self._saved.add(ledger_id)
        self._next_incarnation += known is None
        self._next_ledger = max(self._next_ledger, ledger_id + 1)
        if stored is not None and parsed is not None:
            self._add_metadata(one, parsed, *stored)
        elif one.existed:
            self._reconstruct_metadata(one, "it is missing" if bodies is None else "it is damaged")

    def _add_metadata(self, one: LedgerRepair, parsed: LedgerMetadata, value: bytes, version: int) -> None:
        key = schema.LEDGER_KEY.pack(one.ledger_id)
        self._sums[schema.LEDGERS] ^= _seal(key, value, version)
        closed = one.closed()
        if closed is not None:
            why = f"it was {parsed.state}, and its last entries are lost: it is closed at {closed.last_entry_id}"
            self._lose_of(one.ledger_id, "metadata", why)
            value, version = metadata_format.serialize(closed), version + 1
        self._restore(schema.LEDGERS, key, value, version)
        self._report.ledgers += 1

    def _reconstruct_metadata(self, one: LedgerRepair, why: str) -> None:
        self._lose_of(one.ledger_id, "metadata", f"{why}; it is reconstructed from the entries")
        metadata = metadata_format.serialize(one.metadata())
        self._restore(schema.LEDGERS, schema.LEDGER_KEY.pack(one.ledger_id), metadata, 0)
        self._report.made_up.append(one.ledger_id)
        self._report.ledgers += 1

    def _parsed(self, ledger_id: int, stored: tuple[bytes, int] | None) -> LedgerMetadata | None:
        try:
            return None if stored is None else metadata_format.parse(stored[0], ledger_id)
        except MetadataSerializationError:
            return None

    def _copy_entries(self, one: LedgerRepair, entries: Iterator[tuple[int, SalvagedRecord]]) -> None:
        ids: list[int] = []
        batch: list[bytes] = []
        lac, size, after = -1, 0, -1
        for entry_id, found in entries:
            taken = self._take(one, entry_id, found)
            if taken is None:
                continue
            ids.append(entry_id)
            batch.append(taken[0])
            lac = max(lac, taken[1])
            size += len(taken[0])
            self._report.entries += 1
            self._report.bytes += len(taken[0])
            if size >= _COMMIT_BYTES or len(batch) >= _COMMIT_RECORDS:
                self._add(RestoreEntries(one.ledger_id, after, ids, batch, lac), size)
                ids, batch, size, after = [], [], 0, entry_id
        if batch:
            self._add(RestoreEntries(one.ledger_id, after, ids, batch, lac), size)

    def _take(self, one: LedgerRepair, entry_id: int, found: SalvagedRecord) -> tuple[bytes, int] | None:
        in_place = None if found.in_place is None else self._found.value(found.in_place)
        others = [value for node in found.elsewhere if (value := self._found.value(node)) is not None]
        taken = one.take(entry_id, found.in_place is not None, in_place, others)
        self._report.found_elsewhere += taken is not None and taken[0] != in_place
        return taken

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _add_nodes(self) -> None:
        for key, bodies in self._found.sealed(schema.NODES):
            self._met[schema.NODES] += 1
            try:
                path = check_path(schema.path_of(key))
            except (StoreDamagedError, IncorrectParameterError) as error:
                self._lose("store", f"nodes: {error}: a node is lost")
                continue
            stored = self._newest(bodies)
            if stored is None:
                why = "it is damaged, or it is another node whose path is damaged"
                self._report.losses.append(Loss("node", why, node=path))
                continue
            self._sums[schema.NODES] ^= _seal(key, *stored)
            self._restore(schema.NODES, key, *stored)
            self._report.nodes += 1

    @staticmethod
    def _newest(bodies: list[bytes]) -> tuple[bytes, int] | None:
        good = [
            (body[sealed_record.VERSION.size :], sealed_record.VERSION.unpack_from(body)[0])
            for body in bodies
            if len(body) >= sealed_record.VERSION.size
        ]
        return max(good, key=lambda one: one[1], default=None)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _restore(self, database: bytes, key: bytes, value: bytes, version: int) -> None:
        self._add(RestoreVersioned(database, key, value, version), len(value))

    def _raise(self, name: bytes, number: int) -> None:
        self._add(RaiseCounter(name, number), schema.COUNTER_BYTES)

    def _add(self, operation: Operation, size: int) -> None:
        self._operations.append(operation)
        self._bytes += size
        if self._bytes >= _COMMIT_BYTES or len(self._operations) >= _COMMIT_RECORDS:
            self._commit()

    def _commit(self) -> None:
        if self._storage is not None and self._operations:
            self._storage.apply(WriteBatch(*self._operations))
        self._operations = []
        self._bytes = 0
        if self._progress is not None:
            self._progress(min(self._report.bytes, self._found.file.bytes), self._found.file.bytes)

    # -- losses ------------------------------------------------------------------------------------------------------

    def _lose(self, what: str, why: str) -> None:
        self._report.losses.append(Loss(what, why))

    def _lose_of(self, ledger_id: int, what: str, why: str) -> None:
        self._report.losses.append(Loss(what, why, ledger_id))

    def _losses_of_the_store(self, witnessed: int | None) -> Iterator[Loss]:
        """Losses that cannot be attributed to a single ledger, entry or node."""
        commit = self._found.commit
        if commit is not None and witnessed is not None and witnessed > commit:
            yield Loss("store", f"commits up to {witnessed} were witnessed; all after {commit} are lost")
        elif commit is None or witnessed != commit:
            for doubt in self._found.doubts:
                yield Loss("store", f"{doubt}: the last commits may be lost")
        for database in schema.DATABASES:
            yield from self._losses_of(database)

    def _report_unexplained_damage(self) -> None:
        """Report structural damage that affects no record: valid parts may still be of different commits."""
        if self._found.doubts or any(self._found.gaps.values()):
            # The cause is known, and is reported or refuted by checksums, counts or the witness.
            return
        problem = data_files.structure_problem(self._report.source)
        if problem is not None and self._report.whole:
            self._lose("store", f"the newest commit may not be complete: {problem}")

    def _losses_of(self, database: bytes) -> Iterator[Loss]:
        name = database.decode()
        tree = self._found.trees.get(database)
        gaps = self._found.gaps[database]
        if database in schema.META_SUMS:
            recorded = self._recorded_sum(database)
            if recorded == self._sums[database] and recorded is not None:
                # All records were found in their newest version, wherever they were.
                return
            named = sum(map(_is_of(database), self._report.losses))
            lacking = 0 if tree is None else tree.records - self._met[database]
            if not gaps and recorded is not None and (lacking > 0 or not named):
                yield Loss("store", f"{name} holds outdated pages: the XOR of its checksums is not the recorded one")
        elif tree is not None and not gaps:
            lacking = tree.records - self._met[database] - (self._absent if database == schema.ENTRIES else 0)
            if lacking > 0:
                yield Loss("store", f"{name} should have {tree.records} records: {lacking} are not in the file")
        if database == schema.ENTRIES and tree is not None and self._met[database] >= tree.records:
            return
        for one in gaps:
            yield Loss("store", _describe(name, one))

    def _recorded_sum(self, database: bytes) -> int | None:
        body = self._meta.get(schema.META_SUMS[database])
        return None if body is None else int.from_bytes(body, "big")


def _seal(key: bytes, value: bytes, version: int) -> int:
    return sealed_record.checksum_of(sealed_record.seal_versioned(key, version, value))


def _age_of_state(state: LedgerState) -> tuple[int, int, int, int]:
    return state.incarnation, state.deleted_at, state.last_entry, state.count


def _is_of(database: bytes) -> Callable[[Loss], bool]:
    what = "node" if database == schema.NODES else "metadata"
    return lambda loss: loss.what == what


def _describe(name: str, one: TreeGap) -> str:
    where = f"records from {_key(one.low)} on" if one.high is None else f"records {_key(one.low)} to {_key(one.high)}"
    where = "any of its records" if one.high is None and not one.low else where
    why = one.why if one.page is None else f"page {one.page} {one.why}"
    return f"{name}: {why}; {where} may be lost or outdated"


def _key(key: bytes) -> str:
    if len(key) == schema.ENTRY_KEY.size:
        return ":".join(map(str, schema.ENTRY_KEY.unpack(key)))
    if len(key) == schema.LEDGER_KEY.size:
        return str(int.from_bytes(key, "big"))
    return repr(key.decode(errors="backslashreplace")) if key else "the first"
