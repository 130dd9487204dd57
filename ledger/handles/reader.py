"""Readers of ledgers."""

from __future__ import annotations

from bookstand.errors import ClientClosedError, LedgerError, ReadError, StoreDamagedError
from bookstand.ledger.handles.handle import EntryLostError, LedgerHandle, entries_of
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.storage.format.schema import MAX_ENTRY_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.ledger.client import Client
    from bookstand.ledger.handles.entry import Entry
    from bookstand.storage.format.digest import Digest
    from bookstand.storage.format.ledger_metadata import LedgerMetadata


class LedgerReader(LedgerHandle):
    """Reader of a ledger. Opened without recovery, it watches the ledger's metadata and so notices when the ledger is
    closed."""

    def __init__(
        self, client: Client, metadata: LedgerMetadata, digest: Digest, master_key: bytes, watching: bool
    ) -> None:
        super().__init__(client, metadata, digest, master_key)
        self._watching = watching

    def _refresh(self) -> None:
        if self._watching and not self._client.closed:
            newest = self._client.newer_metadata(self._metadata)
            if newest is not None:
                with self._lock:
                    self._adopt(newest)

    def read_lac_at_open(self) -> None:
        """Read the LAC once, as BookKeeper does when it opens a ledger without recovery."""
        try:
            self.read_last_confirmed()
        except (ClientClosedError, StoreDamagedError):
            raise
        except LedgerError as error:
            raise ReadError(f"ledger {self._id}: the last confirmed entry cannot be read: {error}") from error

    def simulate_empty(self) -> None:
        """Treat the ledger as closed without entries, and stop watching its metadata. For tests."""
        self._watching = False
        self._adopt(self._metadata.replace(state=CLOSED, last_entry_id=-1, length=0))

    def recovery_read(self, first: int) -> list[Entry]:
        """Return the entries of one slice from ``first``, at least one. Raises if entry ``first`` does not exist."""
        for start, stored in self._storage.slices(self._id, first, MAX_ENTRY_ID):
            lengths, payloads = self.decode(start, stored)
            return list(entries_of(self._id, start, lengths, payloads))
        raise self.absence_error(first)

    def close(self) -> None:
        """Stop watching the metadata. The handle remains readable, and the ledger is not affected."""
        self._watching = False


class DamagedLedgerReader(LedgerReader):
    """Reader of the stored entries of a ledger whose metadata, state or last entry is damaged."""

    @property
    def last_stored(self) -> int:
        """Id of the last entry: from the metadata of a closed ledger, otherwise the highest stored one; -1: none."""
        if self._metadata.state == CLOSED:
            return self._metadata.last_entry_id
        last = -1
        for first, stored in self._storage.runs(self._id, MAX_ENTRY_ID):
            last = first + len(stored) - 1
        return last

    def _read_range(self, first: int, last: int) -> list[Entry]:
        self._client.check_usable()
        self._storage.flush_if_queued()
        entries: list[Entry] = []
        for start, stored in self._storage.runs(self._id, last, first):
            if start != first + len(entries):
                break
            lengths, payloads = self.decode(start, stored)
            entries += entries_of(self._id, start, lengths, payloads)
        if len(entries) <= last - first:
            raise EntryLostError(f"entry {self._id}:{first + len(entries)} is missing: the store is damaged")
        return entries
