"""Request semantics of one bookie, independent of the protocol version, sockets and the event loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from bookstand.errors import IncorrectParameterError
from bookstand.server.bookie import availability
from bookstand.server.bookie.protocol import codes, v2
from bookstand.storage.format.ledger_state import MAX_BOOKIES
from bookstand.storage.served.replica_reader import ReplicaReader
from bookstand.storage.storage import Storage

if TYPE_CHECKING:
    from bookstand.storage.hooks import Hooks, Subject

LAST_ENTRY = -1
"""Entry id that requests the last entry of a ledger."""

_MOST_BATCH_BYTES = 5 << 20


class ReadResult(NamedTuple):
    """Result of a read: its code, the entry, and the highest LAC that the bookie knows."""

    code: int
    stored: bytes | None = None
    lac: int = -1


def check_bookie(path: str, number: int, bookies: int) -> None:
    """Raise unless ``number`` is one of the store's ``bookies`` bookies."""
    if not 0 < number <= bookies:
        raise IncorrectParameterError(f"store {path} has no bookie {number}: they are numbered from 1 to {bookies}")


class Bookie:
    """One bookie of a store; ``number``, from 1 on, identifies its replicas."""

    def __init__(self, storage: Storage, number: int) -> None:
        check_bookie(storage.path, number, MAX_BOOKIES)
        self.storage = storage
        self.number = number

    def view(self) -> ReplicaReader:
        """Open a snapshot of the bookie's replicas, as a context manager."""
        return self.storage.copies(self.number)

    @property
    def hooks(self) -> Hooks | None:
        """Test hooks for this bookie."""
        hooks = self.storage.hooks
        return None if hooks is None else hooks.for_bookie(self.number)

    @property
    def entry_hooks(self) -> Hooks | None:
        """Test hooks for this bookie, if they intercept single entries."""
        return None if self.storage.entry_hooks is None else self.hooks

    def point(self, name: str, subject: Subject) -> None:
        self.storage.point(name, subject, self.number)

    def read(self, view: ReplicaReader, ledger_id: int, entry_id: int) -> ReadResult:
        ledger = view.ledger(ledger_id)
        if ledger is None:
            return ReadResult(codes.NO_LEDGER)
        if entry_id == LAST_ENTRY:
            if ledger.last_entry is None:
                return ReadResult(codes.NO_ENTRY, None, ledger.lac)
            entry_id = ledger.last_entry
        stored = view.entry(ledger_id, entry_id)
        hooks = self.entry_hooks
        if hooks is not None:
            stored = hooks.on_read(ledger_id, entry_id, stored)
        return ReadResult(codes.NO_ENTRY if stored is None else codes.OK, stored, ledger.lac)

    def read_batch(self, view: ReplicaReader, request: v2.Request) -> tuple[int, list[bytes]]:
        """Read at least one entry, and further consecutive ones up to the request's limits."""
        entries: list[bytes] = []
        room = min(request.most_bytes, _MOST_BATCH_BYTES) - v2.BATCH_BYTES
        count = request.most_entries
        while count <= 0 or len(entries) < count:
            found = self.read(view, request.ledger_id, request.entry_id + len(entries))
            if found.stored is None:
                if not entries:
                    return found.code, []
                break
            room -= v2.BATCH_ENTRY_BYTES + len(found.stored)
            if entries and room < 0:
                break
            entries.append(found.stored)
        return codes.OK, entries

    def read_lac(self, view: ReplicaReader, ledger_id: int) -> tuple[int, bytes | None, bytes | None]:
        """Return (code, body of the explicit LAC, last entry)."""
        hooks = self.entry_hooks
        if hooks is not None:
            hooks.on_read_lac(ledger_id)
        ledger = view.ledger(ledger_id)
        if ledger is None:
            return codes.NO_ENTRY, None, None
        explicit = ledger.explicit_lac or None
        # Does not pass through on_read(): the entry is only read for the LAC that it carries.
        last = None if ledger.last_entry is None else view.entry(ledger_id, ledger.last_entry)
        return codes.NO_ENTRY if explicit is None and last is None else codes.OK, explicit, last

    def entry_ids(self, view: ReplicaReader, ledger_id: int) -> bytes | None:
        """Encoded availability of a ledger's entries; None for an unknown ledger."""
        return None if view.ledger(ledger_id) is None else availability.encode(view.entry_ids(ledger_id))

    def disk(self) -> tuple[int, int]:
        """Total and free bytes of the store's disk."""
        disk = os.statvfs(self.storage.path)
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
