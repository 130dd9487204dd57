"""Pending adds: consecutive entries of one ledger that are committed together."""

from __future__ import annotations

from time import monotonic

from bookstand.storage.commit.group_commit import CommitRequest
from bookstand.storage.format.entry_batch import PayloadSizes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from bookstand.ledger.handles.base_writer import BaseWriter
    from bookstand.storage.commit.entry_operations import AddEntries
    from bookstand.storage.commit.futures import Pending

# The append that exceeds this size commits the batch itself: backpressure for callers that never wait.
_MAX_BATCH_BYTES = 4 << 20
# Bytes charged for an entry in addition to its payload.
ENTRY_OVERHEAD = 256


class PendingAdd(CommitRequest):
    """Consecutive entries that have been submitted and not yet acknowledged."""

    __slots__ = ("entries", "payloads", "started", "stored", "writer")

    def __init__(self, writer: BaseWriter, entries: AddEntries) -> None:
        super().__init__(writer.committer, (entries,))
        self.writer = writer
        self.entries = entries
        self.payloads = entries.payloads
        self.stored = False
        self.started = monotonic() if writer.has_timeout else 0.0

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.payloads))

    def on_committed(self, value: Any, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        # Free the encoded entries: the caller's Pending keeps this object alive.
        self.entries.encoded = None
        self.writer.on_add_committed(self, error, later)


class OpenAddBatch(PendingAdd):
    """A pending add that appends of all threads may join until it is sealed.

    Joining takes no lock. An append puts its Pending, which carries the payload, at the end of ``joined`` and then
    reads ``sealed``. The sealing thread holds the writer's lock, and sets ``sealed`` before it reads the length of
    ``joined``. An append that finds the batch unsealed is therefore part of it; one that finds it sealed calls
    :meth:`accepted`.

    The index in ``joined`` determines the entry id. Sealing may be interrupted at any step; the next call repeats it
    with the same result.
    """

    __slots__ = ("_count", "_counted", "_has_ids", "joined", "sealed", "space_left")

    def __init__(self, writer: BaseWriter, entries: AddEntries, sealed: bool) -> None:
        super().__init__(writer, entries)
        self.joined: list[Pending] = []
        self.sealed = sealed
        # Appends subtract from it without a lock, so the limit is approximate.
        self.space_left = _MAX_BATCH_BYTES
        # Number of entries in a sealed batch; -1 until it is sealed.
        self._count = 0 if sealed else -1
        # Running totals for counts(): entries of ``joined`` counted so far, and their bytes.
        self._counted = 0, 0
        self._has_ids = False

    def on_sealed(self) -> None:
        if self.writer.open_batch is self:
            self.writer.seal_batch()

    def seal(self) -> None:
        """Close the batch, and assign entry ids. The caller holds the writer's lock, as for the following methods."""
        if self._has_ids:
            return
        self.sealed = True
        if self._count < 0:
            self._count = len(self.joined)
        joined = self.joined[: self._count]
        if joined and not self.payloads:
            self.payloads += [pending._value for pending in joined]
        for entry_id, pending in enumerate(joined, self.entries.first_entry):
            pending._value = entry_id
        if self.entries.sizes is None:
            self.entries.sizes = PayloadSizes(list(map(len, self.payloads)))
        self._has_ids = True
        # Break the reference cycle: each Pending refers to this object.
        self.joined.clear()

    def accepted(self, pending: Pending) -> bool:
        """Return True if an append that found the batch sealed after joining is part of it."""
        self.seal()
        return type(pending._value) is int

    def counts(self) -> tuple[int, int]:
        """Return the number of entries that have joined an unsealed batch, and their payload bytes."""
        count, size = self._counted
        uncounted = self.joined[count:]
        if uncounted:
            count += len(uncounted)
            size += sum(len(pending._value) for pending in uncounted)
            self._counted = count, size
        return count, size
