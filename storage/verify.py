"""Verify a whole store: every sealed record, every digest, every invariant."""

from __future__ import annotations

from collections import namedtuple

from bookstand.errors import DigestMismatchError, MetadataSerializationError, StoreDamagedError
from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format import ledger_metadata as metadata_format
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_batch import decode_entries
from bookstand.storage.served import bookie_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NamedTuple

    from bookstand.storage.format.digest import Digest
    from bookstand.storage.format.ledger_metadata import LedgerMetadata
    from bookstand.storage.format.ledger_state import LedgerState
    from bookstand.storage.storage import Storage

    class Problem(NamedTuple):
        """A finding. ``ledger_id`` and ``entry_id`` are None if it does not concern a single ledger or entry."""

        ledger_id: int | None
        entry_id: int | None
        message: str

else:
    Problem = namedtuple("Problem", ["ledger_id", "entry_id", "message"])


class Report:
    """Result of :func:`verify`."""

    def __init__(self, progress: Callable[[int], None] | None = None) -> None:
        """``progress`` receives the number of bytes of entries verified so far."""
        self._progress = progress
        self.problems: list[Problem] = []
        self.ledgers = 0
        self.entries = 0
        self.nodes = 0
        self.bytes = 0

    @property
    def ok(self) -> bool:
        """True if no problem was found."""
        return not self.problems

    def count(self, stored: list[bytes]) -> None:
        """Count verified entries."""
        self.entries += len(stored)
        self.bytes += sum(map(len, stored))
        if self._progress is not None:
            self._progress(self.bytes)

    def add(self, message: str, ledger_id: int | None = None, entry_id: int | None = None) -> None:
        """Record a problem."""
        self.problems.append(Problem(ledger_id, entry_id, message))

    def __repr__(self) -> str:
        found = f"{len(self.problems)} problems" if self.problems else "no problems"
        return f"<Report: {found} in {self.ledgers} ledgers, {self.entries} entries, {self.nodes} nodes>"

    def __str__(self) -> str:
        return "\n".join([repr(self), *(problem.message for problem in self.problems)])


def verify(storage: Storage, structure: bool = True, progress: Callable[[int], None] | None = None) -> Report:
    """Verify a store while writers continue; entries added meanwhile are not verified.

    If the ``structure`` of the file is damaged, nothing else is read, because LMDB might crash the process. Pass
    ``structure=False`` only if the structure has been verified already.
    """
    report = Report(progress)
    storage.check_usable()
    if structure:
        _reported(report, storage.check_structure)
        if not report.ok:
            return report
    with_state = _ledgers(storage, schema.STATE, report)
    with_metadata = _ledgers(storage, schema.LEDGERS, report)
    for ledger_id in sorted(with_state | with_metadata):
        try:
            _verify_ledger(storage, ledger_id, report)
        except StoreDamagedError as damage:
            report.add(str(damage), ledger_id)
    _reported(report, _verify_entry_keys, storage, with_state, report)
    for key in schema.META_RECORDS:
        if _reported(report, storage.meta, key, default=_DAMAGED) is None:
            report.add(f"{sealed_record.describe(schema.META, key)} is missing")
    _reported(report, _verify_meta, storage, report)
    _reported(report, _verify_nodes, storage, report)
    _reported(report, _verify_copies, storage, report)
    for database in schema.META_SUMS:
        _reported(report, _verify_sum, storage, database, report)
    return report


def _verify_entry_keys(storage: Storage, with_state: set[int], report: Report) -> None:
    for ledger_id in storage.ledgers_with_entries():
        if ledger_id in with_state or storage.state(ledger_id) is not None:
            continue
        # Ignore entries that were collected meanwhile, together with the state.
        if storage.first_entry_from(ledger_id, 0, schema.MAX_ENTRY_ID) is not None and storage.state(ledger_id) is None:
            report.add(f"ledger {ledger_id} has entries, but the store has no state for it", ledger_id)
    for key in storage.keys_of(schema.ENTRIES):
        # This test is cheaper than unpacking, and nearly all keys pass it.
        if len(key) != schema.ENTRY_KEY.size or (key[0] | key[8]) & 0x80:
            _reported(report, schema.entry_of, key)


def _verify_meta(storage: Storage, report: Report) -> None:
    for key in storage.keys_of(schema.META):
        if key not in schema.META_RECORDS:
            _reported(report, storage.meta, key)
        if key.startswith(schema.META_DELETED):
            _reported(report, schema.parse_deletion, key)


def _verify_nodes(storage: Storage, report: Report) -> None:
    for key in storage.keys_of(schema.NODES):
        report.nodes += 1
        path = _reported(report, schema.path_of, key)
        if path is not None:
            _reported(report, storage.node, path)


def _verify_copies(storage: Storage, report: Report) -> None:
    """Check the replica states of all bookies, and the ids of each entry that overrides the store's."""
    for key in storage.keys_of(schema.COPIES):
        name = _reported(report, schema.copy_name, key)
        if name is None:
            continue
        try:
            storage.check_copy(key, name)
        except StoreDamagedError as damage:
            report.add(str(damage), *bookie_replica.position_of(key))


def _verify_sum(storage: Storage, database: bytes, report: Report) -> None:
    recorded, found = storage.sum_of_seals(database)
    # Single damaged records are reported elsewhere.
    if recorded != found and all(storage.is_sealed(database, key) for key in storage.keys_of(database)):
        report.add(f"{database.decode()} holds outdated pages: the XOR of its checksums is not the recorded one")


_DAMAGED = object()


def _reported(report: Report, read: Callable[..., Any], *arguments: object, default: object = None) -> Any:
    """Return the result of ``read``; report damage, and return ``default`` instead."""
    try:
        return read(*arguments)
    except StoreDamagedError as damage:
        report.add(str(damage))
        return default


def _ledgers(storage: Storage, database: bytes, report: Report) -> set[int]:
    found: set[int] = set()

    def collect() -> None:
        for key in storage.keys_of(database):
            ledger_id = _reported(report, schema.ledger_of, database, key)
            if ledger_id is not None:
                found.add(ledger_id)

    _reported(report, collect)
    return found


def _verify_ledger(storage: Storage, ledger_id: int, report: Report) -> None:
    report.ledgers += 1
    # In this order: if the state has the same incarnation afterwards, so has the metadata.
    state = storage.state(ledger_id)
    found = storage.metadata(ledger_id)
    metadata = None
    if found is not None:
        try:
            metadata = metadata_format.parse(found[0], ledger_id)
        except MetadataSerializationError as damage:
            report.add(str(damage), ledger_id)
    if state is None:
        # A ledger created meanwhile has its state by now.
        if found is not None and storage.state(ledger_id) is None and storage.metadata(ledger_id) is not None:
            report.add(f"ledger {ledger_id} has metadata, but the store has no state for it", ledger_id)
        return
    before = len(report.problems)
    digest = _digest_of(state, metadata)
    count, missing = _verify_entries(storage, ledger_id, state, digest, report)
    beyond = storage.first_entry_from(ledger_id, state.last_entry + 1, schema.MAX_ENTRY_ID)
    now = storage.state(ledger_id)
    if now is None or now.incarnation != state.incarnation:
        # Collected or recreated meanwhile: the entries read may be of several incarnations.
        del report.problems[before:]
        return
    if found is None and state.digest and not now.deleted_at:
        # Only a ledger that a fence created has no digest.
        report.add(f"the metadata of ledger {ledger_id} is missing, but it was not deleted", ledger_id)
    if not now.deleted_at:
        # Entries of a deleted ledger are collected in several commits.
        for entry_id in missing:
            report.add(f"entry {ledger_id}:{entry_id} was stored, but is missing", ledger_id, entry_id)
    # After a concurrent append or collection, the counts are of different snapshots.
    if now.pack() == state.pack():
        _verify_count(ledger_id, state, count, report)
        if beyond is not None:
            message = f"entry {ledger_id}:{beyond} exists, but the last stored entry is {state.last_entry}"
            report.add(message, ledger_id, beyond)


def _digest_of(state: LedgerState, metadata: LedgerMetadata | None) -> Digest | None:
    """Digest of a ledger, None if unknown: the password of a deleted ledger is deleted with its metadata."""
    if metadata is not None and metadata.digest_type is not None:
        return digest_for(metadata.digest_type, metadata.password)
    return digest_for(state.digest, b"") if state.digest not in ("", "hmac") else None


def _verify_entries(
    storage: Storage, ledger_id: int, state: LedgerState, digest: Digest | None, report: Report
) -> tuple[int, list[int]]:
    """Return the number of entries, and the ids of stored entries that are missing (up to 100 of each gap)."""
    count = 0
    length = 0
    expected = 0
    missing: list[int] = []
    for first, stored in storage.runs(ledger_id, state.last_entry):
        missing += [lost for lost in range(expected, min(first, expected + 100)) if state.must_exist(lost)]
        expected = first + len(stored)
        count += len(stored)
        report.count(stored)
        good = _verify_digests(ledger_id, first, stored, digest, report)
        if state.in_order:
            length = _verify_lengths(ledger_id, good, length, report)
    missing += [lost for lost in range(expected, min(state.last_entry + 1, expected + 100)) if state.must_exist(lost)]
    return count, missing


def _verify_digests(
    ledger_id: int, first: int, stored: list[bytes], digest: Digest | None, report: Report
) -> list[tuple[int, int, int]]:
    """Return (entry id, cumulative length, own length) of each valid entry."""
    if digest is None:
        return []
    try:
        lengths, payloads = decode_entries(digest, ledger_id, first, stored)
        return list(zip(range(first, first + len(stored)), lengths, map(len, payloads), strict=True))
    except DigestMismatchError:
        pass
    good = []
    for entry_id, entry in enumerate(stored, first):
        try:
            _, length, payload = layout.decode(digest, ledger_id, entry_id, entry)
            good.append((entry_id, length, len(payload)))
        except DigestMismatchError as damage:
            report.add(str(damage), ledger_id, entry_id)
    return good


def _verify_lengths(ledger_id: int, entries: list[tuple[int, int, int]], before: int, report: Report) -> int:
    """Check that cumulative lengths rise by at least each entry's own length, in a ledger written in order."""
    for entry_id, cumulative, own in entries:
        if cumulative < before + own:
            report.add(
                f"entry {ledger_id}:{entry_id} has cumulative length {cumulative}, less than {before} before it and "
                f"its own {own}",
                ledger_id,
                entry_id,
            )
        before = cumulative
    return before


def _verify_count(ledger_id: int, state: LedgerState, count: int, report: Report) -> None:
    if state.count != count:
        report.add(f"ledger {ledger_id} has {count} entries, but {state.count} were stored", ledger_id)
    if not state.deleted_at and not state.unbroken + 1 <= state.count <= state.last_entry + 1:
        report.add(
            f"ledger {ledger_id}: {state.count} entries contradict last entry {state.last_entry} and first gap "
            f"{state.unbroken + 1}",
            ledger_id,
        )
