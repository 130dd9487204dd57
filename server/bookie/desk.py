"""What the connections to one bookie share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING

from bookstand.errors import IncorrectParameterError
from bookstand.server.bookie.bookie import Bookie
from bookstand.server.bookie.figures import Figures
from bookstand.server.bookie.long_polls import LongPolls
from bookstand.server.bookie.posting import PostOffice

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookstand.server.bookie.connection import BookieConnection


@dataclass(frozen=True)
class Limits:
    """``frame_bytes``: of one frame, as ``nettyMaxFrameSizeBytes``; larger ones close the connection.

    ``connection_bytes``: of adds of one connection that are not answered yet; it is not read from beyond that.
    ``server_bytes``: of all connections together, those of frames that have not arrived whole included; adds beyond
    that are refused as too many, and connections closed in the middle of a frame.
    ``long_polls``: of reads of one connection that wait for something to come; more are refused as too many.
    """

    frame_bytes: int = 5 << 20
    connection_bytes: int = 16 << 20
    server_bytes: int = 512 << 20
    long_polls: int = 10_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise IncorrectParameterError(f"{name} is a number from 1 up, not {value!r}")


class Load:
    """Bytes that a server holds for its connections: adds that are not answered, frames that are not whole."""

    def __init__(self) -> None:
        self.bytes = 0


class Desk:
    """One bookie's. For the loop's thread, but where it says otherwise."""

    def __init__(
        self,
        bookie: Bookie,
        office: PostOffice,
        load: Load,
        limits: Limits,
        scratch: memoryview,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.bookie = bookie
        self.office = office
        self.load = load
        self.limits = limits
        self.scratch = scratch
        self.loop = loop
        self.figures = Figures(bookie.number)
        self.long_polls = LongPolls(bookie, loop)
        self.connections: set[BookieConnection] = set()
        self._ended = False

    @property
    def hooked(self) -> bool:
        """Whether a test has a say in what happens here."""
        return self.bookie.storage.hooks is not None

    def opened(self, connection: BookieConnection) -> None:
        self.connections.add(connection)
        self.figures.connections += 1
        if self._ended:
            # It was accepted at the last moment.
            connection.abort()

    def closed(self, connection: BookieConnection) -> None:
        self.connections.discard(connection)
        self.figures.connections -= 1

    def aside(self, work: Callable[[], Callable[[], None]]) -> None:
        """Work that hooks may keep waiting, in a thread of its own; what it returns is called in the loop."""

        def run() -> None:
            then = work()
            try:
                self.loop.call_soon_threadsafe(then)
            except RuntimeError:
                # The loop is closed.
                pass

        Thread(target=run, name=f"bookstand-bookie-{self.bookie.number}", daemon=True).start()

    def open(self) -> None:
        """Connections may come."""
        self._ended = False

    def close(self) -> None:
        """Those that there are go, and so does whoever comes until it is opened again."""
        self._ended = True
        self.long_polls.close()
        for connection in list(self.connections):
            connection.abort()
