"""Network server: the protocols of BookKeeper's bookies and of ZooKeeper over a store, for clients in other languages.

``with bookstand.server.serve(path) as server:`` serves a store inside the block; see docs/server.md.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.server import Server, serve

__all__ = ["Server", "serve"]


def __getattr__(name: str) -> object:
    """Import the server on first use: loading asyncio takes time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bookstand.server.server import Server

    return Server
