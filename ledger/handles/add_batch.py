"""What travels together: consecutive entries of one ledger, from their submission until they are answered."""

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

# Bytes that one Add may gather. Who submits more commits it, so that a caller who never waits is held back.
_ROOM = 4 << 20
# What an entry takes of it besides its payload.
ENTRY_ROOM = 256


class PendingAdd(CommitRequest):
    """Consecutive entries on their way."""

    __slots__ = ("entries", "payloads", "started", "stored", "writer")

    def __init__(self, writer: BaseWriter, entries: AddEntries) -> None:
        super().__init__(writer.committer, (entries,))
        self.writer = writer
        self.entries = entries
        self.payloads = entries.payloads
        self.stored = False
        self.started = monotonic() if writer.timed else 0.0

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.payloads))

    def on_committed(self, value: Any, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        # The stored bytes have done their work; the Add itself may live as long as the caller keeps its answer.
        self.entries.encoded = None
        self.writer.add_finished(self, error, later)


class OpenAddBatch(PendingAdd):
    """An Add that the appends of all threads may join until it is sealed.

    Joining takes no lock. An append puts its Pending, which holds the payload meanwhile, behind those that have
    ``arrived``, and only then looks whether the Add is ``sealed``. Who seals it holds the writer's lock, and says so
    before counting who has arrived. So whoever found it open is in, and whoever did not asks :meth:`took`.

    The place in ``arrived`` gives the entry its id. Sealing may be interrupted anywhere: who comes next starts it anew,
    and comes to the same end.
    """

    __slots__ = ("_count", "_measured", "_numbered", "arrived", "room", "sealed")

    def __init__(self, writer: BaseWriter, entries: AddEntries, sealed: bool) -> None:
        super().__init__(writer, entries)
        self.arrived: list[Pending] = []
        self.sealed = sealed
        # Those who join take from it without a lock: it is no exact limit.
        self.room = _ROOM
        # Of ``arrived``: how many are in, once that is certain, and how many were measured, and their bytes.
        self._count = 0 if sealed else -1
        self._measured = 0, 0
        self._numbered = False

    def on_sealed(self) -> None:
        if self.writer.gathering is self:
            self.writer.end_gathering()

    def seal(self) -> None:
        """Nobody joins any more: who is in gets an id. The writer's lock is held, here and in what follows."""
        if self._numbered:
            return
        self.sealed = True
        if self._count < 0:
            self._count = len(self.arrived)
        arrived = self.arrived[: self._count]
        if arrived and not self.payloads:
            self.payloads += [pending._value for pending in arrived]
        for entry_id, pending in enumerate(arrived, self.entries.first_entry):
            pending._value = entry_id
        if self.entries.sizes is None:
            self.entries.sizes = PayloadSizes(list(map(len, self.payloads)))
        self._numbered = True
        # A Pending knows its Add: both would live on until the next garbage collection.
        self.arrived.clear()

    def took(self, pending: Pending) -> bool:
        """Whether an append that found the Add sealed after it had joined came in time."""
        self.seal()
        return type(pending._value) is int

    def measure(self) -> tuple[int, int]:
        """How many have arrived in an Add that is not sealed, and the bytes of their payloads."""
        count, size = self._measured
        fresh = self.arrived[count:]
        if fresh:
            count, size = self._measured = count + len(fresh), size + sum(len(pending._value) for pending in fresh)
        return count, size
