"""A store's ledger, read like a ledger on bookies' disks: in stored form, without recovering or fencing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookstand.disk.damage import Damage, Report
from bookstand.errors import DigestMismatchError
from bookstand.storage.format import ledger_metadata as metadata_format
from bookstand.storage.format.digest import Digest, digest_for, master_key
from bookstand.storage.format.entry_batch import decode_entries
from bookstand.storage.format.entry_codec import decode, decode_header
from bookstand.storage.format.ledger_metadata import CLOSED, NO_ENTRY, LedgerMetadata
from bookstand.storage.format.ledger_state import LedgerState
from bookstand.storage.format.schema import MAX_ENTRY_ID
from bookstand.storage.storage import Storage

# Assumed if neither the metadata nor the state names a digest.
_USUAL_DIGEST = "crc32c"


class End(NamedTuple):
    last_entry: int
    state: str


class Payload(NamedTuple):
    entry_id: int
    payload: bytes


class StoredLedger:
    """Stored entries of a ledger: up to the end of a closed one; all of an open one, also entries after gaps."""

    def __init__(self, storage: Storage, ledger_id: int, metadata: LedgerMetadata, state: LedgerState | None) -> None:
        self.id = ledger_id
        self.metadata = metadata
        self.state = state
        self._storage = storage
        closed = metadata.state == CLOSED
        stored = NO_ENTRY if state is None else state.last_entry
        self.extent = End(metadata.last_entry_id if closed else stored, metadata.state)
        # Every entry up to this id was stored: a missing one is lost.
        self._unbroken = metadata.last_entry_id if closed else NO_ENTRY if state is None else state.unbroken

    @classmethod
    def find(cls, storage: Storage, ledger_id: int) -> StoredLedger | None:
        """Return the ledger, or None if it does not exist."""
        found = storage.metadata(ledger_id)
        if found is None:
            return None
        data, version = found
        metadata = metadata_format.parse(data, ledger_id, version=version)
        return cls(storage, ledger_id, metadata, storage.state(ledger_id))

    @property
    def entry_count(self) -> int:
        """Number of entries that recovery would find."""
        return self._unbroken + 1

    @property
    def digest(self) -> Digest:
        name = self.metadata.digest_type or (self.state.digest if self.state is not None else "")
        return digest_for(name or _USUAL_DIGEST, self.metadata.password)

    @property
    def knows_digest(self) -> bool:
        """True if digests can be computed and checked. The oldest metadata lacks the password that an HMAC needs."""
        return self.digest.name != "hmac" or self.metadata.has_password or self.master_key == master_key(b"")

    @property
    def master_key(self) -> bytes | None:
        if self.state is not None and self.state.master_key is not None:
            return self.state.master_key
        return master_key(self.metadata.password) if self.metadata.has_password else None

    def runs(self, report: Report) -> Iterator[list[bytes]]:
        """Yield all stored entries in order. Missing and damaged entries are reported. A damaged entry is yielded
        unchanged, unless its header names another entry."""
        expected = 0
        for first, stored in self._storage.runs(self.id, self.extent.last_entry):
            self._report_missing(expected, first - 1, report)
            yield self._checked(first, stored, report)
            expected = first + len(stored)
        self._report_missing(expected, self._unbroken, report)

    def _report_missing(self, first: int, last: int, report: Report) -> None:
        last = min(last, self._unbroken)
        if first <= last:
            report(self._damage(f"entries {first} to {last} are lost", first))

    def _checked(self, first: int, stored: list[bytes], report: Report) -> list[bytes]:
        if not self.knows_digest:
            return stored
        try:
            decode_entries(self.digest, self.id, first, stored)
            return stored
        except DigestMismatchError:
            return [entry for number, entry in enumerate(stored, first) if self._is_itself(number, entry, report)]

    def _is_itself(self, entry_id: int, stored: bytes, report: Report) -> bool:
        try:
            decode(self.digest, self.id, entry_id, stored)
        except DigestMismatchError as error:
            report(self._damage(str(error), entry_id))
            try:
                return decode_header(stored)[:2] == (self.id, entry_id)
            except DigestMismatchError:
                return False
        return True

    def entries(self, first: int = 0, last: int = MAX_ENTRY_ID) -> Iterator[Payload]:
        """Yield the payloads of the intact entries from ``first`` to ``last``."""
        for entry_id in range(first, min(last, self.extent.last_entry) + 1):
            stored = self._storage.entry_as_stored(self.id, entry_id)
            if stored is not None:
                try:
                    yield Payload(entry_id, decode(self.digest, self.id, entry_id, stored)[2])
                except DigestMismatchError:
                    continue

    def _damage(self, what: str, entry_id: int) -> Damage:
        return Damage(self._storage.path, -1, what, self.id, entry_id)
