"""What tests of a served store share: clients of its ZooKeeper and of its bookies."""

from __future__ import annotations

from kazoo.client import KazooClient

from bookstand.server.bind_errors import address_of
from bookstand.server.server import Server
from tests.kit import PATIENCE
from tests.server.bookie.kit import Wire


def connected(server: Server) -> KazooClient:
    client = KazooClient(hosts=server.zookeeper, timeout=30)
    client.start(timeout=PATIENCE)
    return client


def leave(client: KazooClient) -> None:
    client.stop()
    client.close()


def bookie_at(address: str) -> Wire:
    return Wire(address_of(address))
