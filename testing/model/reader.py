"""Handles of opened ledgers, with or without recovery."""

from __future__ import annotations

from dataclasses import replace

from bookstand import errors
from bookstand.testing.model.handle import Handle
from bookstand.testing.model.servers import Metadata
from bookstand.testing.model.session import Session
from bookstand.testing.model.values import (
    CLOSED,
    IN_RECOVERY,
    LEDGER_RECOVERY,
    NO_SUCH_ENTRY,
    NO_SUCH_LEDGER_ON_BOOKIE,
    OK,
    OPEN,
    error,
)


class Reader(Handle):
    def __init__(self, client: Session, metadata: Metadata, watching: bool) -> None:
        super().__init__(client, metadata)
        # Only handles opened without recovery watch the metadata, until they are closed.
        self.watching = watching

    def close(self) -> None:
        self.watching = False

    def recover(self) -> None:
        """Fence the ledger, determine its end, and close it there."""
        if self.metadata.state == OPEN:
            self.adopt(self.cluster.put(replace(self.metadata, state=IN_RECOVERY), self.metadata.version))
        try:
            fault = self.cluster.fence_fault(self.id)
            if fault != OK:
                raise error(fault)
            self.bookie.fenced = True
            newest = self.cluster.read_newest(self.id)
            if newest is not None and newest.lac >= 0:
                self.learn(newest.lac, newest.cumulative_length)
            self._recover_entries()
        except errors.LedgerError:
            raise error(LEDGER_RECOVERY) from None
        closed = replace(self.metadata, state=CLOSED, last_entry_id=self.last_add_confirmed, length=self.length)
        self.adopt(self.cluster.put(closed, self.metadata.version))

    def _recover_entries(self) -> None:
        while True:
            entry_id = self.last_add_confirmed + 1
            try:
                stored = self.cluster.read_entry(self.id, entry_id)
            except errors.LedgerError as failure:
                if failure.code in (NO_SUCH_ENTRY, NO_SUCH_LEDGER_ON_BOOKIE):
                    return
                raise
            self.last_add_confirmed = self.last_add_pushed = entry_id
            self.length = stored.cumulative_length
