"""State shared by the connections to a bookie."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from threading import Lock, Thread
from typing import TYPE_CHECKING

from bookstand.errors import IncorrectParameterError
from bookstand.server.bookie.bookie import Bookie
from bookstand.server.bookie.commit_bridge import CommitBridge
from bookstand.server.bookie.long_polls import LongPolls
from bookstand.server.bookie.metrics import Figures
from bookstand.server.framing import Buffers

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookstand.server.bookie.connection import BookieConnection


LEAST_FRAME_BYTES = 1 << 10
MOST_FRAME_BYTES = (1 << 31) - 1
MOST_HOOK_THREADS = 256
"""Requests of a server that hooks keep waiting at one time. Each has a read transaction, of which a store has 510."""


@dataclass(frozen=True)
class Limits:
    """Limits on a server's buffers and long polls.

    ``frame_bytes``: size of a frame with its length field, as ``nettyMaxFrameSizeBytes``; the default is Pulsar's. A
    longer add is answered as a bad request, and the connection stays open.
    ``connection_bytes``: requests in progress of one connection; above it nothing more is read from the connection.
    ``server_bytes``: all buffers of all connections. Above it adds are refused with TOO_MANY_REQUESTS, and a connection
    whose partial frames, waiting frames or unread responses grow is closed.
    ``long_polls``, ``server_long_polls``: waiting reads of one connection and of all; more are refused with
    TOO_MANY_REQUESTS.
    """

    frame_bytes: int = 5_253_120
    connection_bytes: int = 16 << 20
    server_bytes: int = 512 << 20
    long_polls: int = 10_000
    server_long_polls: int = 100_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise IncorrectParameterError(f"{name} must be a positive integer, not {value!r}")
        if not LEAST_FRAME_BYTES <= self.frame_bytes <= MOST_FRAME_BYTES:
            raise IncorrectParameterError(
                f"frame_bytes must be between {LEAST_FRAME_BYTES} and {MOST_FRAME_BYTES}, not {self.frame_bytes}"
            )


class HookThreads:
    """Threads for the requests of a server that hooks may keep waiting. Further requests wait for a free thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = 0

    def run(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.append(work)
            if self._running == MOST_HOOK_THREADS:
                return
            self._running += 1
        Thread(target=self._work, name="bookstand-bookie-hooks", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                work = self._waiting.popleft()
            work()


class MemoryBudget:
    """Bytes buffered by a server for all its connections, its number of long polls, and its threads for hooks."""

    def __init__(self) -> None:
        self.bytes = 0
        self.long_polls = 0
        self.hook_threads = HookThreads()


class BookieContext:
    """Shared state of one bookie's connections. Used in the loop's thread only."""

    def __init__(
        self,
        bookie: Bookie,
        office: CommitBridge,
        load: MemoryBudget,
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
        """True if test hooks are installed."""
        return self.bookie.storage.hooks is not None

    def opened(self, connection: BookieConnection) -> None:
        self.connections.add(connection)
        self.figures.connections += 1
        if self._ended:
            # The connection was accepted while the port was being closed.
            connection.abort()

    def closed(self, connection: BookieConnection) -> None:
        self.connections.discard(connection)
        self.figures.connections -= 1

    def hold(self, before: Buffers, now: Buffers) -> bool:
        """Record a change of a connection's buffers. Return False if the server's buffers exceed their limit."""
        self.load.bytes += sum(now) - sum(before)
        self.figures.held.change(before, now)
        return self.load.bytes <= self.limits.server_bytes

    def aside(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run ``work``, which hooks may block, in another thread, and then the function that it returns in the loop."""

        def run() -> None:
            then = work()
            try:
                self.loop.call_soon_threadsafe(then)
            except RuntimeError:
                # The loop is closed.
                pass

        self.load.hook_threads.run(run)

    def open(self) -> None:
        self._ended = False

    def close(self) -> None:
        """Close all connections, and new ones until :meth:`open` is called."""
        self._ended = True
        self.long_polls.close()
        for connection in list(self.connections):
            connection.abort()
