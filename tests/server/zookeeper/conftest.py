"""A server over the test's store, and clients of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bookstand.testing import VirtualClock
from tests.server.zookeeper.kit import Client, Serving


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(now=1_700_000_000_000)


@pytest.fixture
def serving(store: Any, clock: VirtualClock) -> Iterator[Serving]:
    with Serving(store.storage, clock) as running:
        yield running


@pytest.fixture
def connect(serving: Serving) -> Iterator[Callable[..., Client]]:
    """Clients with sessions; those that are still there are cut off in the end."""
    opened: list[Client] = []

    def new(**options: Any) -> Client:
        client = Client(serving.port).connect(**options)
        opened.append(client)
        return client

    yield new
    for client in opened:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    return connect()
