"""The handle for ledgers whose entry ids the caller chooses."""

from __future__ import annotations

from bookstand.ledger.handles.base_writer import BaseWriter
from bookstand.ledger.validation import as_entry_id, as_payload
from bookstand.storage.commit.futures import Pending, pending_for


class LedgerWriterAdv(BaseWriter):
    """The caller chooses the entry ids, and may write them in any order; answers come in their order all the same."""

    def write(self, entry_id: int, data: bytes) -> int:
        """Add an entry; returns its id once it and all before it are durable."""
        return self.write_async(entry_id, data).result()  # type: ignore[no-any-return]

    def write_async(self, entry_id: int, data: bytes) -> Pending:
        """The same; the Pending's result is the id."""
        entry_id = as_entry_id(entry_id)
        if type(data) is not bytes:
            data = as_payload(data)
        self.check_size(entry_id, data)
        return pending_for(*self._submit_alone(data, entry_id))
