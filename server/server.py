"""The server of a store: opens the store, runs its cluster in a thread, and serves metrics and commands over HTTP."""

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
    """Serve a store at :attr:`metadata_service_uri` inside a ``with serve(path) as server:`` block.

    There is no authentication: every client that can reach the ports can read and write the store.

    Args:
        store: Directory of the store, or an open Store, which the server does not close.
        bookies: Number of bookies.
        bookie_ports: Port of each bookie in order; replaces ``bookies``. 0 selects the bookie's previous port if free.
        zookeeper: Address of ZooKeeper as ``host:port``, or a port of this machine. 0 selects any free port.
        host: Host that bookies listen on.
        advertise: Host name that clients connect to, if it differs from ``host``.
        limits: Limits on what bookies buffer.
        faults: Fault rules of the test kit, one line each.
        admin: Address of the HTTP endpoint for state, metrics and faults, as ``host:port``.
        metrics: Address of the HTTP endpoint for metrics alone.
        options: Options of ``bookstand.open`` if ``store`` is a directory.
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
            raise IncorrectParameterError(f"the store is already open and does not accept {', '.join(options)}")
        self._given = store
        self._options = options
        self._ports = [0] * bookies if bookie_ports is None else bookie_ports
        self._arguments = address_of(zookeeper), host, advertise, limits
        self._rules = faults
        self._admin = None if admin is None else address_of(admin)
        self._metrics = None if metrics is None else address_of(metrics)
        self.admin_url: str | None = None
        self.metrics_url: str | None = None
        # Not an Event: a signal handler that sets one can deadlock with the thread that it interrupts in wait().
        self._ended: SimpleQueue[None] = SimpleQueue()
        self.store: bookstand.Store
        self.cluster: Cluster
        self.faults: ServerFaults
        """The fault rules; they may change while the server runs."""

    # -- lifecycle -----------------------------------------------------------------------------------------------------

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
            # Stopping waits for operations that fault rules have stalled.
            stack.callback(self.faults.release)
            for source in (self.cluster.bookies, self.cluster.zookeeper):
                self.store._client.add_metrics(source)
            self._listen_for_http(stack)
            self._stack = stack.pop_all()

    def _listen_for_http(self, stack: ExitStack) -> None:
        """Start the HTTP endpoints. Import their library only if one is configured: loading it takes time."""
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
        """Answer the requests that have arrived, then stop. Close the store if the server opened it."""
        self._stack.close()

    def end(self) -> None:
        """Make :meth:`wait` return. Safe to call from any thread and from signal handlers."""
        self._ended.put(None)

    def wait(self) -> None:
        """Block until :meth:`end` is called. Raise the store's or ZooKeeper's error if the store becomes unusable."""
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

    # -- addresses -----------------------------------------------------------------------------------------------------

    @property
    def metadata_service_uri(self) -> str:
        """``metadataServiceUri`` for BookKeeper clients."""
        return self.cluster.metadata_service_uri

    @property
    def metadata_store_url(self) -> str:
        """``metadataStoreUrl`` for Pulsar brokers."""
        return self.cluster.metadata_store_url

    @property
    def zookeeper(self) -> str:
        """ZooKeeper's connect string, ``host:port``."""
        return joined(self.cluster.zookeeper_address)

    @property
    def bookies(self) -> list[str]:
        """Address of each bookie as ``host:port``."""
        return [joined(address) for address in self.cluster.bookie_addresses]

    # -- for tests of clients ------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Addresses, bookies, ZooKeeper sessions and fault rules, as in ``GET /state``."""
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
        """Simulate the death of the process: discard uncommitted changes and cut all connections."""
        self.store.storage.crash()

    def stop_bookie(self, number: int) -> None:
        """Simulate the death of one bookie: cut its connections, refuse new ones, and remove it from the list of
        available bookies. Its entries remain in the store and are served again after :meth:`start_bookie`."""
        self._running.call(self.cluster.stop_bookie(number))

    def start_bookie(self, number: int) -> None:
        """Restart a stopped bookie under its name and at its address."""
        self._running.call(self.cluster.start_bookie(number))

    def expire(self, session_id: int) -> bool:
        """Expire a ZooKeeper session as if its client had timed out. Return False if it does not exist."""
        return self._running.call(_called(self.cluster.zookeeper.expire, session_id))

    def disconnect(self, session_id: int) -> bool:
        """Cut the connection of a ZooKeeper session. Return False if it has no connection."""
        return self._running.call(_called(self.cluster.zookeeper.disconnect, session_id))


serve = Server
"""Alias that reads well in ``with serve(path) as server:``."""


async def _called(function: Any, argument: int) -> bool:
    return bool(function(argument))
