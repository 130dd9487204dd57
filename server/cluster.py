"""A store served as a cluster: bookies and ZooKeeper on one event loop, and the bookies' registration in ZooKeeper."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress

from bookstand.errors import BookstandError, IncorrectParameterError, MetadataServiceError
from bookstand.ledger.cluster.ledger_path import ROOT
from bookstand.server.bind_errors import LOOPBACK, Address, bind_errors
from bookstand.server.bookie.server import BookieServer
from bookstand.server.bookie.shared_state import Limits
from bookstand.server.registration import Registration
from bookstand.server.zookeeper.server import ZooKeeperServer
from bookstand.storage.format.ledger_state import MAX_BOOKIES
from bookstand.storage.logger import logger
from bookstand.storage.storage import Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.clock import Clock

NOTIFY_SECONDS = 30.0
"""Time to wait for watchers to be notified that a bookie was stopped or started."""
DRAIN_SECONDS = 5.0
"""Time to wait, when a cluster is stopped, for answers to the requests that have arrived."""

_LOOK_INTERVAL = 0.2
# Wildcard addresses: valid to listen on, but no client can connect to them.
_ANY = ("", "0.0.0.0", "::")


class Cluster:
    """The bookies and the ZooKeeper server of one store. :meth:`stop` leaves the store open.

    ``ports`` has one port for each bookie. 0 selects the bookie's previous port, or any free one. ``advertise`` is the
    host name that clients connect to; it defaults to ``host``.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        ports: Sequence[int],
        zookeeper: Address,
        host: str = LOOPBACK,
        advertise: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        if not 0 < len(ports) <= MAX_BOOKIES:
            raise IncorrectParameterError(f"a store has from 1 to {MAX_BOOKIES} bookies, not {len(ports)}")
        taken = [port for port in (*ports, zookeeper[1]) if port]
        if len(set(taken)) < len(taken):
            raise IncorrectParameterError(f"each needs a port of its own, not {', '.join(map(str, sorted(taken)))}")
        for place in (host, zookeeper[0]):
            if place in _ANY and advertise is None:
                raise IncorrectParameterError(
                    f"clients cannot be told to connect to {place or 'all addresses'}: say which host to advertise"
                )
        if ":" in (advertise or host):
            raise IncorrectParameterError(f"a bookie's name cannot have {advertise or host}: advertise a host's name")
        self._storage = storage
        self._host = host
        self._ports = ports
        self._advertise = advertise
        self._limits = limits
        self._registration = Registration(storage)
        self.read_only = False
        """True while the bookies are listed as read-only."""
        self._watching: asyncio.Task[None] | None = None
        # Serializes changes to the list of available bookies.
        self._listing = asyncio.Lock()
        self.bookies = BookieServer(storage, ports, host, limits)
        self.zookeeper = ZooKeeperServer(storage, clock, *zookeeper)
        self.names: list[str] = []
        """Bookie ids, as used in ledger metadata."""

    @property
    def zookeeper_address(self) -> Address:
        host, port = self.zookeeper.address
        return self._advertise or host, port

    @property
    def bookie_addresses(self) -> list[Address]:
        return [(self._advertise or host, port) for host, port in self.bookies.addresses]

    @property
    def metadata_service_uri(self) -> str:
        host, port = self.zookeeper_address
        return f"zk+hierarchical://{host}:{port}{ROOT}"

    @property
    def metadata_store_url(self) -> str:
        host, port = self.zookeeper_address
        return f"zk:{host}:{port}"

    # -- for tests of clients ------------------------------------------------------------------------------------------

    async def stop_bookie(self, number: int) -> None:
        """Close one bookie's port and connections and unlist it. Return after watchers have been notified."""
        async with self._listing:
            await self.bookies.shut(number)
            await self._set_gone(number, True)

    async def start_bookie(self, number: int) -> None:
        """Reopen a stopped bookie at its port and list it again. Return after watchers have been notified."""
        async with self._listing:
            with bind_errors(f"bookie {number}"):
                await self.bookies.open(number)
            await self._set_gone(number, False)

    async def _set_gone(self, number: int, gone: bool) -> None:
        await asyncio.to_thread(self._registration.set_gone, self.names[number - 1], gone)
        try:
            await asyncio.wait_for(self.zookeeper.notified(), NOTIFY_SECONDS)
        except TimeoutError:
            raise MetadataServiceError(
                f"bookie {number} is {'stopped' if gone else 'started'}, but ZooKeeper's watchers were not notified "
                f"within {NOTIFY_SECONDS:g} s: is a write of a client stalled by a rule?"
            ) from None

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        ports = [port or self._port_before(number) for number, port in enumerate(self._ports, 1)]
        self.bookies = BookieServer(self._storage, ports, self._host, self._limits)
        with bind_errors("the bookies"):
            await self.bookies.start()
        try:
            # Register the bookies before clients can read the list.
            self.names = await asyncio.to_thread(self._registration.announce, self.bookie_addresses)
            with bind_errors("ZooKeeper"):
                await self.zookeeper.start()
        except BaseException:
            await self.stop()
            raise
        self._watching = asyncio.create_task(self._watch_the_disk())

    def _port_before(self, number: int) -> int:
        before = self._registration.address_before(number)
        if before is None or before[0] != (self._advertise or self._host) or before[1] in self._ports:
            return 0
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, before[1]))
            except OSError:
                return 0
        return before[1]

    async def stop(self) -> None:
        """Answer the requests that have arrived, then close all connections."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self.bookies.drain(DRAIN_SECONDS)
        await self.bookies.stop()
        await self.zookeeper.stop()
        await self._withdraw()

    async def _withdraw(self) -> None:
        if not self.names:
            # Startup failed before the bookies were registered. Listed bookies, if any, belong to another server.
            return
        try:
            await asyncio.to_thread(self._registration.withdraw)
        except BookstandError as error:
            # The bookies are stopped anyway; the next server of the store corrects the list.
            logger().warning("store %s: that its bookies are gone could not be written: %s", self._storage.path, error)

    async def _watch_the_disk(self) -> None:
        """List the bookies as read-only while the disk is full, as BookKeeper does."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL)
            full = self._storage.is_full
            if full == self.read_only:
                continue
            try:
                async with self._listing:
                    await asyncio.to_thread(self._registration.set_read_only, full)
            except BookstandError as error:
                logger().warning("store %s: bookies could not be listed anew: %s", self._storage.path, error)
            else:
                self.read_only = full
