"""The wire: the bookie's and ZooKeeper's protocols over a store, for clients in other languages.

``with bookstand.server.serve(path) as server:`` serves a store inside the block; docs/server.md is the way in.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.server import Server, serve

__all__ = ["Server", "serve"]


def __getattr__(name: str) -> object:
    """On first use, for a loop takes some time to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bookstand.server.server import Server

    return Server
