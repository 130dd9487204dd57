"""Writer of ledgers whose entry ids the caller chooses."""

from __future__ import annotations

from bookstand.ledger.handles.base_writer import BaseWriter
from bookstand.ledger.validation import as_entry_id, as_payload
from bookstand.storage.commit.futures import Pending, pending_for


class LedgerWriterAdv(BaseWriter):
    """Writer to which the caller passes entry ids, in any order. Adds are acknowledged in the order of their ids."""

    def write(self, entry_id: int, data: bytes) -> int:
        """Add an entry, and return its id after it and all entries before it are durable."""
        return self.write_async(entry_id, data).result()  # type: ignore[no-any-return]

    def write_async(self, entry_id: int, data: bytes) -> Pending:
        """Add an entry; the result of the returned Pending is its id."""
        entry_id = as_entry_id(entry_id)
        if type(data) is not bytes:
            data = as_payload(data)
        self.check_size(entry_id, data)
        return pending_for(*self._submit_single(data, entry_id))
