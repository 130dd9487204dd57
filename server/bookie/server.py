"""Bookies over a store, each on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.server.bookie.bookie import Bookie
from bookstand.server.bookie.connection import BookieConnection
from bookstand.server.bookie.desk import Desk, Limits, Load
from bookstand.server.bookie.posting import PostOffice
from bookstand.server.framing import SCRATCH_BYTES
from bookstand.storage.metrics import Sample
from bookstand.storage.storage import Storage

_BACKLOG = 1024


class BookieServer:
    """``await start()`` listens, one port for each bookie; ``await stop()`` ends it. The store stays open.

    Bookies are numbered from 1 on; which number a bookie has is what tells its copies in the store apart, so it must be
    the same ones after a restart.
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
        self._desks: list[Desk] = []
        self._servers: list[asyncio.Server] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._desks.clear()
        office, load, scratch = PostOffice(self._storage, loop), Load(), memoryview(bytearray(SCRATCH_BYTES))
        try:
            for bookie, port in self._bookies:
                desk = Desk(bookie, office, load, self._limits, scratch, loop)
                self._desks.append(desk)
                connect = partial(BookieConnection, desk)
                self._servers.append(await loop.create_server(connect, self._host, port, backlog=_BACKLOG))
        except BaseException:
            await self.stop()
            raise
        self._storage.clients.add(self)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each bookie."""
        return [server.sockets[0].getsockname()[:2] for server in self._servers]

    async def drain(self, seconds: float) -> None:
        """Take no more requests, and wait for so long at most until what was taken is answered."""
        connections = [connection for desk in self._desks for connection in desk.connections]
        for connection in connections:
            connection.hold()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until and not all(connection.has_answered for connection in connections):
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Stop listening, and close all connections. What has arrived and was not answered may be stored."""
        self._storage.clients.discard(self)
        for server in self._servers:
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
        # A connection that was accepted in this turn gets its transport in the next: asyncio would lose its socket if
        # the server were closed by then.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for desk in self._desks:
            desk.close()
        for server in self._servers:
            await server.wait_closed()
        while any(desk.connections for desk in self._desks):
            # They go in later turns of the loop.
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._servers.clear()

    def storage_crashed(self, reason: BookstandError) -> None:
        """For tests: the store has died, and its bookies with it. From any thread."""
        if self._loop is not None:
            for desk in self._desks:
                self._loop.call_soon_threadsafe(desk.close)

    def samples(self) -> Iterator[Sample]:
        """What there is to watch of it: a source for ``store.metrics()``."""
        for desk in self._desks:
            yield from desk.figures.samples()
