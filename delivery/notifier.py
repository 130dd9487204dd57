"""Notifier for waiting threads and tasks.

No notification is lost: a waiter reads ``generation`` before it looks for work, and then waits until it differs.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

from bookstand.storage.commit.futures import Waiters
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    import asyncio


class Notifier(ProcessBound):
    def __init__(self) -> None:
        self._lock = RLock()
        self._threads = Waiters()
        self._tasks: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.generation = 0
        """Number of notifications."""

    def notify(self) -> None:
        with self._lock:
            self.generation += 1
            self._threads.notify()
            if not self._tasks:
                return
            tasks, self._tasks = self._tasks, []
        for loop, woken in tasks:
            try:
                loop.call_soon_threadsafe(_wake, woken)
            except RuntimeError:
                # The loop was closed together with its waiters.
                continue

    def wait(self, seen: int, timeout: float) -> None:
        """Wait until ``generation`` differs from ``seen``, or until the timeout in seconds."""
        self._threads.wait(timeout, lambda: self.generation != seen)

    async def wait_async(self, seen: int, timeout: float) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        entry = loop, woken
        with self._lock:
            if self.generation != seen:
                return
            self._tasks.append(entry)
        try:
            await asyncio.wait((woken,), timeout=timeout)
        finally:
            with self._lock:
                if entry in self._tasks:
                    self._tasks.remove(entry)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
