"""A bookie's door: the port at which it is found, open or shut."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from bookstand.server.bookie.connection import BookieConnection
from bookstand.server.bookie.shared_state import BookieContext

_BACKLOG = 1024


class ListeningPort:
    """For the loop's thread. ``port`` 0 is any free one when it is opened first, and the same one ever after."""

    def __init__(self, desk: BookieContext, host: str, port: int) -> None:
        self.desk = desk
        self.address = host, port
        self._host = host
        self._listener: asyncio.Server | None = None
        self._kept: list[socket.socket] = []

    @property
    def is_open(self) -> bool:
        return self._listener is not None

    async def open(self) -> None:
        self._give_up_place()
        connect = partial(BookieConnection, self.desk)
        self._listener = await self.desk.loop.create_server(connect, self._host, self.address[1], backlog=_BACKLOG)
        self.address = self._listener.sockets[0].getsockname()[:2]
        self.desk.open()

    async def shut(self, keep_place: bool = False) -> None:
        """Whoever comes is refused, and all connections are cut. ``keep_place``: nobody else gets the port then."""
        self._give_up_place()
        listener, self._listener = self._listener, None
        if listener is None:
            return
        places = [(listening.family, listening.getsockname()) for listening in listener.sockets]
        for listening in listener.sockets:
            self.desk.loop.remove_reader(listening.fileno())
        # A connection that was accepted in this turn gets its transport in the next: asyncio would lose its socket if
        # the listener were closed by then.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        listener.close()
        if keep_place:
            self._kept = [_bound(family, place) for family, place in places]
        self.desk.close()
        await listener.wait_closed()
        while self.desk.connections:
            # They go in later turns of the loop.
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _give_up_place(self) -> None:
        kept, self._kept = self._kept, []
        for place in kept:
            place.close()


def _bound(family: int, place: tuple[str, int]) -> socket.socket:
    """A socket that has a place and does not listen there: the system refuses whoever comes."""
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(place)
        # From now on others cannot have it as well.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        # Somebody was faster; that shows when it is opened.
        pass
    return bound
