"""Bookies over the test's store, listening on ports of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from bookstand.server.bookie.server import BookieServer
from bookstand.server.loop_thread import LoopThread
from tests.server.bookie.kit import Wire


@pytest.fixture
def serve(open_store: Callable[..., Any]) -> Iterator[Callable[..., BookieServer]]:
    """Starts a server of so many bookies over the test's store, opened with ``options``."""
    with ExitStack() as stack:

        def start(bookies: int = 1, store: Any = None, limits: Any = None, **options: Any) -> BookieServer:
            opened = store if store is not None else open_store(**options)
            server = BookieServer(opened.storage, ports=[0] * bookies, limits=limits)
            stack.enter_context(LoopThread(server))
            return server

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[..., Wire]]:
    with ExitStack() as stack:
        yield lambda server, bookie=1: stack.enter_context(Wire(server.addresses[bookie - 1]))


@pytest.fixture
def wire(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> Wire:
    """A connection to the only bookie of a server."""
    return connect(serve())
