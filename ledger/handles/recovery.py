"""Recovery: fence a ledger, find its last entry, and close the ledger there.

After recovery no entry can be added, every acknowledged entry is retained, and all readers agree on the last entry.
Several clients may recover a ledger concurrently, and recovery may be repeated after a crash at any step.
"""

from __future__ import annotations

from bookstand.errors import (
    LedgerError,
    LedgerRecoveryError,
    MetadataVersionError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    UnauthorizedAccessError,
)
from bookstand.ledger.handles.reader import LedgerReader
from bookstand.storage.commit.entry_operations import Fence
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format.ledger_metadata import CLOSED, IN_RECOVERY, OPEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.format.ledger_metadata import LedgerMetadata


def recover(reader: LedgerReader, incarnation: int | None) -> None:
    """Recover and close the ledger of a reader. If the ledger is deleted meanwhile and its id reused, the new ledger
    must not be touched. ``incarnation`` tells the two apart; it is None if the bookie has no state for the ledger."""
    _Recovery(reader, incarnation).run()


class _Recovery:
    """State of one recovery. It updates the reader without locking, because no other thread has the reader yet."""

    def __init__(self, reader: LedgerReader, incarnation: int | None) -> None:
        self._reader = reader
        self._incarnation = incarnation
        self._client = reader._client
        self._storage = reader._storage

    def run(self) -> None:
        ledger_id = self._reader._id
        if self._storage.hooks is not None:
            self._storage.point("recovery.before", ledger_id)
        if not self._mark_in_recovery():
            return
        if self._storage.hooks is not None:
            self._storage.point("recovery.marked", ledger_id)
        try:
            self._fence()
            self._read_to_end()
        except (NoSuchLedgerError, UnauthorizedAccessError):
            raise
        except LedgerError as error:
            raise LedgerRecoveryError(f"ledger {self._reader._id} could not be recovered: {error}") from error
        if self._storage.hooks is not None:
            self._storage.point("recovery.before_close", ledger_id)
        self._close()
        if self._storage.hooks is not None:
            self._storage.point("recovery.after_close", ledger_id)

    def _mark_in_recovery(self) -> bool:
        """Change the state from OPEN to IN_RECOVERY. Return False if the ledger has been closed meanwhile."""
        reader = self._reader
        while reader._metadata.state == OPEN:
            try:
                self._write(reader._metadata.replace(state=IN_RECOVERY))
            except MetadataVersionError:
                self._reload_metadata()
        return reader._metadata.state != CLOSED

    def _fence(self) -> None:
        reader = self._reader
        self._client.check_writable()
        if self._storage.hooks is not None:
            self._storage.hooks.on_fence(reader._id)
        (self._incarnation,) = self._storage.apply(WriteBatch(Fence(reader._id, reader._master_key, self._incarnation)))
        if self._storage.hooks is not None:
            self._storage.point("recovery.fenced", reader._id)

    def _read_to_end(self) -> None:
        """Read forward from the highest LAC that an entry carries to the first missing entry."""
        reader = self._reader
        newest = reader._newest()
        if newest is not None and newest[0] >= 0:
            reader._advance_lac(*newest)
        while True:
            try:
                entries = reader.recovery_read(reader._lac + 1)
            except (NoSuchEntryError, NoSuchLedgerOnBookieError):
                return
            if self._storage.hooks is not None:
                self._storage.point("recovery.entry_read", reader._id)
            last = entries[-1]
            reader._lac = reader._lap = last.entry_id
            reader._length = last.cumulative_length

    def _close(self) -> None:
        """Change the state from IN_RECOVERY to CLOSED. A concurrent close takes precedence."""
        reader = self._reader
        lac, length = reader._lac, reader._length
        while reader._metadata.state != CLOSED:
            try:
                self._write(reader._metadata.replace(state=CLOSED, last_entry_id=lac, length=length))
            except MetadataVersionError:
                self._reload_metadata()

    def _write(self, metadata: LedgerMetadata) -> None:
        reader = self._reader
        reader._adopt(self._client.write_metadata(metadata, reader._metadata.version, self._incarnation))

    def _reload_metadata(self) -> None:
        metadata, _ = self._client.read_with_incarnation(self._reader._id, self._incarnation)
        self._reader._adopt(metadata)
