"""A ledger on bookies' disks: its end and its entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bookstand.disk.bookies.copy_catalog import Catalog, Copies
from bookstand.disk.bookies.ledger_end import EntryRows, LedgerEnd, ack_quorum_of, extent, survey
from bookstand.disk.damage import Damage, Report
from bookstand.disk.format.entry_block import GOOD
from bookstand.errors import DigestMismatchError, IncorrectParameterError
from bookstand.storage.format.digest import Digest, digest_for, master_key
from bookstand.storage.format.entry_codec import HEADER_BYTES, decode, decode_header
from bookstand.storage.format.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookstand.storage.format.schema import MAX_ENTRY_ID

# Digest names by size, which identifies the digest.
_NAMES = {0: "dummy", 4: "crc32c", 8: "crc32", 20: "hmac"}


class StoredEntry(NamedTuple):
    """An entry as read: the fields of its header, its payload, and all of its bytes as ``stored``."""

    ledger_id: int
    entry_id: int
    lac: int
    cumulative_length: int
    payload: bytes
    stored: bytes
    checked: bool
    """True if the digest is valid, False if it could not be checked."""


class DiskLedger:
    """A ledger, read from the best copy of each entry; an unreadable copy is reported, and the next one is used."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata | None,
        catalog: Catalog,
        report: Report,
        passwords: Sequence[bytes] = (),
    ) -> None:
        self.id = ledger_id
        self.metadata = metadata
        self._catalog = catalog
        self._report = report
        self._passwords = passwords

    def __repr__(self) -> str:
        return f"<ledger {self.id} on disks>"

    @property
    def fenced(self) -> bool:
        """True if a journal or an index file has a fence; fences only in a bookie's database are not found."""
        return self.id in self._catalog.fenced

    @property
    def master_key(self) -> bytes | None:
        """Master key that writers present: as bookies have it, or derived from the password in the metadata."""
        found = self._catalog.master_keys.get(self.id)
        if found is None and self.metadata is not None and self.metadata.has_password:
            return master_key(self.metadata.password)
        return found

    @property
    def digest_name(self) -> str | None:
        """Digest name from the metadata; without it, from the digests that match or from the lengths of the entries."""
        return None if self._digest_size is None else _NAMES[self._digest_size]

    @cached_property
    def _digest_size(self) -> int | None:
        if self.metadata is not None and self.metadata.digest_type is not None:
            return digest_for(self.metadata.digest_type, b"").size
        return self._catalog.digest_size(self.id)

    @cached_property
    def _digest(self) -> Digest | None:
        """Digest to check entries by; None if it is unknown or there are no digests."""
        name = self.digest_name
        if name is None or name == "dummy":
            return None
        if name != "hmac":
            return digest_for(name, b"")
        passwords = [self.metadata.password] if self.metadata is not None and self.metadata.has_password else []
        block = next(self._catalog.blocks(self.id, rows=1024), None)
        good = None if block is None else block.rows(np.flatnonzero(block.verdicts == GOOD)[:1])
        if good is not None and len(good):
            stored = next(self._catalog.read(good))
            for password in (*passwords, *self._passwords):
                digest = digest_for(name, password)
                if digest.of(stored[:HEADER_BYTES], stored[HEADER_BYTES + digest.size :]) == _slot(stored, digest):
                    return digest
        return None

    @cached_property
    def extent(self) -> LedgerEnd:
        """End of the ledger, its missing entries, and remaining doubts."""
        metadata = self.metadata
        absent: list[str] = []
        if metadata is not None:
            here = {bookie.name for bookie in self._catalog.bookies}
            absent = sorted({bookie for _, members in metadata.ensembles for bookie in members} - here)
        found = extent(
            survey(self._held(), ack_quorum_of(metadata)),
            metadata,
            self._length_at,
            explicit_lac=self._catalog.explicit_lacs.get(self.id, NO_ENTRY),
            absent=absent,
        )
        by_metadata = metadata is not None and metadata.digest_type is not None
        if self._digest is None and found.highest >= 0 and not by_metadata:
            told = "nothing tells which it is" if self.digest_name is None else f"by lengths it is {self.digest_name}"
            found = found._replace(doubts=(*found.doubts, f"no digest of its entries could be checked; {told}"))
        return found

    def _held(self) -> Iterator[EntryRows]:
        for copies in self._catalog.blocks(self.id):
            firsts = np.flatnonzero(copies.firsts())
            lacs = np.maximum.reduceat(copies.lacs, firsts) if len(firsts) else copies.lacs
            yield EntryRows(copies.entry_ids[firsts], self._catalog.holders(copies), lacs, copies.lengths[firsts])

    def _length_at(self, entry_id: int) -> int | None:
        found = self._catalog.best(self.id, entry_id, entry_id)
        return int(found.lengths[0]) if len(found) else None

    def entries(self, first: int = 0, last: int | None = None, *, beyond: bool = False) -> Iterator[StoredEntry]:
        """Yield existing entries from ``first`` to ``last``, up to the end of the ledger, or with ``beyond`` past it.
        Missing entries are in ``extent.missing``."""
        if first < 0 or (last is not None and last < NO_ENTRY):
            raise IncorrectParameterError(f"ledger {self.id}: no entries from {first} to {last}")
        end = MAX_ENTRY_ID if beyond else self.extent.last_entry
        return self._entries(first, end if last is None else min(last, end))

    def _entries(self, first: int, last: int) -> Iterator[StoredEntry]:
        for copies in self._catalog.blocks(self.id, first, last):
            best = copies.rows(copies.firsts())
            for row, stored in enumerate(self._catalog.read(best)):
                try:
                    yield self._entry(int(best.entry_ids[row]), stored)
                except DigestMismatchError as error:
                    entry_id = int(best.entry_ids[row])
                    others = copies.rows(np.flatnonzero(copies.entry_ids == entry_id))
                    self._report_unread(best.rows(slice(row, row + 1)), error)
                    yield from self._first_right(others.rows(slice(1, None)))

    def _first_right(self, copies: Copies) -> Iterator[StoredEntry]:
        """Yield the entry from the first readable copy, if any."""
        for row, stored in enumerate(self._catalog.read(copies)):
            try:
                entry = self._entry(int(copies.entry_ids[row]), stored)
            except DigestMismatchError as error:
                self._report_unread(copies.rows(slice(row, row + 1)), error)
            else:
                yield entry
                return

    def _entry(self, entry_id: int, stored: bytes) -> StoredEntry:
        digest = self._digest
        if digest is not None:
            lac, length, payload = decode(digest, self.id, entry_id, stored)
            return StoredEntry(self.id, entry_id, lac, length, payload, stored, True)
        ledger, entry, lac, length = decode_header(stored)
        start = HEADER_BYTES + (self._digest_size or 0)
        if (ledger, entry) != (self.id, entry_id) or len(stored) < start:
            raise DigestMismatchError(f"entry {self.id}:{entry_id}: the file has something else in its place")
        return StoredEntry(self.id, entry_id, lac, length, stored[start:], stored, False)

    def _report_unread(self, copy: Copies, error: DigestMismatchError) -> None:
        path = str(self._catalog.files[int(copy.files[0])].path)
        what = f"this copy cannot be read: {error}"
        self._report(Damage(path, int(copy.records[0]), what, self.id, int(copy.entry_ids[0])))


def _slot(stored: bytes, digest: Digest) -> Any:
    return stored[HEADER_BYTES : HEADER_BYTES + digest.size]
