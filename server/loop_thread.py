"""An event loop in a background thread, for programs without a loop."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from threading import Thread
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from bookstand.storage.process import fork_guard
from bookstand.storage.process.fork_guard import ProcessBound

_Result = TypeVar("_Result")


class Service(Protocol):
    """A server that runs on an event loop."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


async def _settle() -> None:
    """Wait for the remaining tasks, such as a connection that was accepted during shutdown."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)


class LoopThread(ProcessBound):
    """Run services inside a ``with LoopThread(server):`` block."""

    def __init__(self, *services: Service) -> None:
        self._services = services
        self._selector = selectors.DefaultSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = Thread(target=self._loop.run_forever, name="bookstand-server", daemon=True)

    def _forked(self) -> None:
        """Close ports and connections in a forked child; otherwise they would outlive the server."""
        for key in list(self._selector.get_map().values()):
            fork_guard.disconnect(key.fd)

    def call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine on the loop and return its result."""
        future: Future[_Result] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            for service in self._services:
                start = asyncio.run_coroutine_threadsafe(service.start(), self._loop)
                try:
                    start.result()
                finally:
                    # Where the caller was interrupted, it goes on: what has not started cannot be stopped.
                    wait([start])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        try:
            for service in reversed(self._services):
                self.call(service.stop())
            self.call(_settle())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
