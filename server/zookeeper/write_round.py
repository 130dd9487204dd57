"""Writes of a round, with the connections to answer."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from bookstand.server.zookeeper.batch import Write
from bookstand.server.zookeeper.protocol.protocol import Op

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from bookstand.server.zookeeper.connection import ZooKeeperConnection

# Limits of one commit.
BATCH_WRITES = 1_000
BATCH_BYTES = 16 << 20


class Pending(NamedTuple):
    """A write to commit; ``connection`` is None for the server's own writes."""

    write: Write
    op: Op
    connection: ZooKeeperConnection | None
    xid: int
    begun: float

    @classmethod
    def own(cls, write: Write) -> Self:
        """Wrap one of the server's own writes."""
        return cls(write, Op.ERROR, None, 0, perf_counter())


class WriteRound:
    def __init__(self) -> None:
        self.writes: list[Pending] = []
        self._bytes = 0

    def add(self, pending: Pending, size: int = 0) -> None:
        self.writes.append(pending)
        self._bytes += size

    @property
    def full(self) -> bool:
        return len(self.writes) >= BATCH_WRITES or self._bytes >= BATCH_BYTES
