"""A store that is served, and a client of its ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookstand.server import serve
from bookstand.server.server import Server
from tests.server.kit import connected, leave


@pytest.fixture
def server(store_path: Path) -> Iterator[Server]:
    with serve(store_path) as running:
        yield running


@pytest.fixture
def kazoo(server: Server) -> Iterator[KazooClient]:
    with_client = connected(server)
    yield with_client
    leave(with_client)
