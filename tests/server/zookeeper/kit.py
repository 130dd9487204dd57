"""A server in a thread of its own, and a client that speaks frames."""

from __future__ import annotations

import asyncio
import socket
from threading import Thread
from typing import Any

from bookstand.server.zookeeper import records
from bookstand.server.zookeeper.jute import BOOL
from bookstand.server.zookeeper.protocol import XID_EVENT, CreateMode, Op
from bookstand.server.zookeeper.server import ZooKeeperServer
from bookstand.storage.clock import SystemClock
from bookstand.storage.storage import Storage

PATIENCE = 60.0
"""How long to wait for what must come: long, for it must come however slow the machine is."""


class Serving:
    """``with Serving(storage) as serving``: a server that listens at ``serving.port``."""

    def __init__(self, storage: Storage, clock: Any = None, port: int = 0, **options: Any) -> None:
        self._storage = storage
        self._clock = clock or SystemClock()
        self.port = port
        self._options = options
        self.server: ZooKeeperServer | None = None

    def start(self) -> Serving:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = ZooKeeperServer(self._storage, self._clock, port=self.port, **self._options)
        self.call(self.server.start())
        self.port = self.server.port
        return self

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def do(self, function: Any, *arguments: Any) -> Any:
        """Call a function in the server's thread."""

        async def run() -> Any:
            return function(*arguments)

        return self.call(run())

    def stop(self) -> None:
        if self.server is not None:
            self.call(self.server.stop())
            self.server = None
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Serving:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
