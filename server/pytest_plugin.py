"""Server fixtures of the pytest plugin.

``bookstand_server``
    the test's ``bookstand_store``, served to clients in any language: :class:`bookstand.server.Server`. The marker
    ``@pytest.mark.bookstand_serve(bookies=1, ...)`` sets the options of the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bookstand import Store
    from bookstand.server.server import Server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "bookstand_serve(**options): the options of serve() for bookstand_server")


@pytest.fixture
def bookstand_server(request: pytest.FixtureRequest, bookstand_store: Store) -> Iterator[Server]:
    """The test's store, served at free ports to clients in any language."""
    from bookstand.server.server import serve

    options: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("bookstand_serve"))):
        options |= marker.kwargs
    with serve(bookstand_store, **options) as server:
        yield server
