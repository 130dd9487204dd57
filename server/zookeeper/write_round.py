"""Writes on their way to the disk, and whom to answer."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from bookstand.server.zookeeper.batch import Write
from bookstand.server.zookeeper.protocol.protocol import Op

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from bookstand.server.zookeeper.connection import ZooKeeperConnection

# What one commit takes at the most.
BATCH_WRITES = 1_000
BATCH_BYTES = 16 << 20


class Pending(NamedTuple):
    """``connection`` is None where nobody waits for it."""

    write: Write
    op: Op
    connection: ZooKeeperConnection | None
    xid: int
    begun: float

    @classmethod
    def own(cls, write: Write) -> Self:
        """What the server writes by itself."""
        return cls(write, Op.ERROR, None, 0, perf_counter())


class WriteRound:
    """The writes of a round."""

    def __init__(self) -> None:
        self.writes: list[Pending] = []
        self._bytes = 0

    def add(self, pending: Pending, size: int = 0) -> None:
        self.writes.append(pending)
        self._bytes += size

    @property
    def full(self) -> bool:
        return len(self.writes) >= BATCH_WRITES or self._bytes >= BATCH_BYTES
