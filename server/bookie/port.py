"""The listening port of a bookie, which can be closed and reopened."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from bookstand.server.bookie.connection import BookieConnection
from bookstand.server.bookie.shared_state import BookieContext

_BACKLOG = 1024


class ListeningPort:
    """Used in the loop's thread only. Port 0 selects a free port when first opened, and the same port later."""

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
        """Refuse new connections and cut the existing ones. ``keep_place`` reserves the port against other
        processes."""
        self._give_up_place()
        listener, self._listener = self._listener, None
        if listener is None:
            return
        places = [(listening.family, listening.getsockname()) for listening in listener.sockets]
        for listening in listener.sockets:
            self.desk.loop.remove_reader(listening.fileno())
        # asyncio creates the transport of an accepted connection in the next turn, and leaks its socket if the listener
        # is closed before.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        listener.close()
        if keep_place:
            self._kept = [_bound(family, place) for family, place in places]
        self.desk.close()
        await listener.wait_closed()
        while self.desk.connections:
            # asyncio reports lost connections in later turns of the loop.
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _give_up_place(self) -> None:
        kept, self._kept = self._kept, []
        for place in kept:
            place.close()


def _bound(family: int, place: tuple[str, int]) -> socket.socket:
    """Bind a socket to an address without listening, so that the kernel refuses connections."""
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(place)
        # Without SO_REUSEADDR no other socket can bind the address.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        # Another process has taken the port; the next open() reports that.
        pass
    return bound
