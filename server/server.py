"""A store that is served: opened, its cluster in a thread of its own, and what watches and commands it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

import bookstand
from bookstand.errors import IncorrectParameterError
from bookstand.server.bind_errors import LOOPBACK, address_of, joined
from bookstand.server.bookie.shared_state import Limits
from bookstand.server.cluster import Cluster
from bookstand.server.fault_rules import ServerFaults
from bookstand.server.loop_thread import LoopThread
from bookstand.storage.process.fork_guard import ProcessBound

_LOOK_INTERVAL = 0.2


class Server(ProcessBound):
    """``with serve(path) as server:`` the store is served inside the block, at :attr:`metadata_service_uri`.

    Whoever reaches its ports reads and writes the store: nobody is asked who he is.

    Args:
        store: Its folder, or a Store, which stays open then.
        bookies: How many there are.
        bookie_ports: One for each instead, in the order of their numbers. 0 is the one it had before, if it is free.
        zookeeper: Where ZooKeeper listens, as ``host:port``, or a port alone. 0 is any free one.
        host: What bookies listen at.
        advertise: The host that clients are told, if it is another one.
        limits: Of what bookies take.
        faults: Rules of the test kit, one line each.
        admin: Where state, figures and faults may be had over HTTP, as ``host:port``.
        metrics: Where figures alone may be.
        options: Of ``bookstand.open``, where it is a folder.
    """

    def __init__(
        self,
        store: bookstand.Store | str | os.PathLike[str],
        bookies: int = 3,
        *,
        bookie_ports: Sequence[int] | None = None,
        zookeeper: str = "0",
        host: str = LOOPBACK,
        advertise: str | None = None,
        limits: Limits | None = None,
        faults: Sequence[str] = (),
        admin: str | None = None,
        metrics: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(store, bookstand.Store) and options:
            raise IncorrectParameterError(f"the store is open already: there is no use for {', '.join(options)}")
        self._given = store
        self._options = options
        self._ports = [0] * bookies if bookie_ports is None else bookie_ports
        self._arguments = address_of(zookeeper), host, advertise, limits
        self._rules = faults
        self._admin = None if admin is None else address_of(admin)
        self._metrics = None if metrics is None else address_of(metrics)
        self.admin_url: str | None = None
        self.metrics_url: str | None = None
        # An Event may not be set by a handler of signals: it would wait for the thread that it interrupts.
        self._ended: SimpleQueue[None] = SimpleQueue()
        self.store: bookstand.Store
        self.cluster: Cluster
        self.faults: ServerFaults
        """Rules can be put in and taken out meanwhile."""

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with ExitStack() as stack:
            if isinstance(self._given, bookstand.Store):
                self.store = self._given
            else:
                self.store = stack.enter_context(bookstand.open(self._given, **self._options))
            storage, clock = self.store.storage, self.store._client.clock
            self.faults = ServerFaults(storage, bookies=len(self._ports))
            for rule in self._rules:
                self.faults.add(rule)
            self.cluster = Cluster(storage, clock, self._ports, *self._arguments)
            self._running = stack.enter_context(LoopThread(self.cluster))
            # What is stalled would keep it from being stopped.
            stack.callback(self.faults.release)
            for source in (self.cluster.bookies, self.cluster.zookeeper):
                self.store._client.add_metrics(source)
            self._listen_for_http(stack)
            self._stack = stack.pop_all()

    def _listen_for_http(self, stack: ExitStack) -> None:
        """Where it is wanted; nobody else waits for the library to be loaded."""
        if self._admin is None and self._metrics is None:
            return
        from bookstand.server.admin_api import metrics_routes, routes
        from bookstand.server.http_endpoint import Endpoint

        if self._admin is not None:
            self.admin_url = stack.enter_context(Endpoint("admin", self._admin, routes(self))).url
        if self._metrics is not None:
            endpoint = Endpoint("metrics", self._metrics, metrics_routes(self.store))
            self.metrics_url = f"{stack.enter_context(endpoint).url}/metrics"

    def stop(self) -> None:
        """What has arrived is answered; the store is closed, if it was opened here."""
        self._stack.close()

    def end(self) -> None:
        """Have :meth:`wait` return; from any thread, and from handlers of signals."""
        self._ended.put(None)

    def wait(self) -> None:
        """Until somebody calls :meth:`end`. Raises what became of the store if it cannot be served any more."""
        while True:
            try:
                self._ended.get(timeout=_LOOK_INTERVAL)
            except Empty:
                self.store.storage.check_usable()
                if self.cluster.zookeeper.failure is not None:
                    raise self.cluster.zookeeper.failure from None
            else:
                self.end()
                return

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- where it is ---------------------------------------------------------------------------------------------------

    @property
    def metadata_service_uri(self) -> str:
        """What BookKeeper's clients are configured with."""
        return self.cluster.metadata_service_uri

    @property
    def metadata_store_url(self) -> str:
        """What Pulsar's brokers are configured with."""
        return self.cluster.metadata_store_url

    @property
    def zookeeper(self) -> str:
        """Host and port, as clients of ZooKeeper take them."""
        return joined(self.cluster.zookeeper_address)

    @property
    def bookies(self) -> list[str]:
        """Host and port of each."""
        return [joined(address) for address in self.cluster.bookie_addresses]

    # -- for tests of clients ------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Where it is, and who is there."""
        bookies = enumerate(zip(self.cluster.names, self.bookies, strict=True), 1)
        return {
            "path": self.store.path,
            "metadata_service_uri": self.metadata_service_uri,
            "metadata_store_url": self.metadata_store_url,
            "zookeeper": self.zookeeper,
            "admin": self.admin_url,
            "metrics": self.metrics_url,
            "bookies": [
                {"name": name, "address": address, "running": self.cluster.bookies.is_open(number)}
                for number, (name, address) in bookies
            ],
            "read_only": self.cluster.read_only,
            "sessions": [f"{session:#x}" for session in self.cluster.zookeeper.sessions()],
            "rules": self.faults.as_json(),
        }

    def crash(self) -> None:
        """As if the process had died here: what was not committed is gone, and all connections are."""
        self.store.storage.crash()

    def stop_bookie(self, number: int) -> None:
        """Have one bookie be gone, as if its process had died: its connections are cut and others refused, and it is
        not listed. What it has stays, and is there when it is started again."""
        self._running.call(self.cluster.stop_bookie(number))

    def start_bookie(self, number: int) -> None:
        """Have it be there again, under its name and where it was."""
        self._running.call(self.cluster.start_bookie(number))

    def expire(self, session_id: int) -> bool:
        """End a session of ZooKeeper as if nothing had been heard of it; False: there is none of this id."""
        return self._running.call(_called(self.cluster.zookeeper.expire, session_id))

    def disconnect(self, session_id: int) -> bool:
        """Cut a session's connection; False: it has none."""
        return self._running.call(_called(self.cluster.zookeeper.disconnect, session_id))


serve = Server
"""As it reads best: ``with serve(path) as server:``."""


async def _called(function: Any, argument: int) -> bool:
    """In the loop's thread."""
    return bool(function(argument))
