"""The bookies of a store, each on its own port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.server.bookie.bookie import Bookie, check_bookie
from bookstand.server.bookie.commit_bridge import CommitBridge
from bookstand.server.bookie.port import ListeningPort
from bookstand.server.bookie.shared_state import BookieContext, Limits, MemoryBudget
from bookstand.server.framing import SCRATCH_BYTES
from bookstand.storage.metrics import Sample
from bookstand.storage.process.process_markers import ExclusiveRole
from bookstand.storage.storage import Storage


class BookieServer:
    """A server with one port for each bookie. :meth:`stop` leaves the store open.

    Bookies are numbered from 1. A bookie's number identifies its replicas in the store, so the order of the bookies
    must be the same after a restart. A store's bookies can be served by only one server at a time.
    """

    def __init__(
        self, storage: Storage, ports: Sequence[int] = (3181,), host: str = "127.0.0.1", limits: Limits | None = None
    ) -> None:
        if not ports:
            raise IncorrectParameterError("a server has one bookie at least")
        self._storage = storage
        self._host = host
        self._bookies = [(Bookie(storage, number), port) for number, port in enumerate(ports, 1)]
        self._limits = limits or Limits()
        self._doors: list[ListeningPort] = []
        self._role: ExclusiveRole | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        office, load, scratch = CommitBridge(self._storage, loop), MemoryBudget(), memoryview(bytearray(SCRATCH_BYTES))
        self._doors = [
            ListeningPort(BookieContext(bookie, office, load, self._limits, scratch, loop), self._host, port)
            for bookie, port in self._bookies
        ]
        self._role = await asyncio.to_thread(self._storage.acquire_role, "bookies")
        try:
            for door in self._doors:
                await door.open()
        except BaseException:
            await self.stop()
            raise
        self._storage.clients.add(self)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each bookie."""
        return [door.address for door in self._doors]

    # -- for tests of clients ------------------------------------------------------------------------------------------

    async def open(self, number: int) -> None:
        """Reopen a bookie at its previous address."""
        door = self._door(number)
        if not door.is_open:
            await door.open()

    async def shut(self, number: int) -> None:
        """Simulate the death of a bookie: cut its connections and refuse new ones."""
        await self._door(number).shut(keep_place=True)

    def is_open(self, number: int) -> bool:
        return self._door(number).is_open

    def _door(self, number: int) -> ListeningPort:
        check_bookie(self._storage.path, number, len(self._doors))
        return self._doors[number - 1]

    # -- shutdown ------------------------------------------------------------------------------------------------------

    async def drain(self, seconds: float) -> None:
        """Accept no more requests, and wait up to ``seconds`` for the responses to the accepted ones."""
        connections = [connection for door in self._doors for connection in door.desk.connections]
        for connection in connections:
            connection.take_no_more()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until and not all(connection.has_answered for connection in connections):
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop listening, and close all connections. Unanswered requests may have been stored."""
        self._storage.clients.discard(self)
        await asyncio.gather(*(door.shut() for door in self._doors))
        await asyncio.to_thread(self._storage.release_role, self._role)

    def storage_crashed(self, reason: BookstandError) -> None:
        """Close the bookies of a crashed store, for tests. Thread-safe."""
        if self._loop is not None:
            for door in self._doors:
                self._loop.call_soon_threadsafe(door.desk.close)

    def samples(self) -> Iterator[Sample]:
        """Metric samples of all bookies; a source for ``store.metrics()``."""
        for door in self._doors:
            yield from door.desk.figures.samples()
