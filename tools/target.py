"""What lies at a path, open to be looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bookstand.disk.target import BOOKIE, BOOKIE_FILE, STORE, Target, dump_beside, find
from bookstand.errors import IncorrectParameterError, StoreNotFoundError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.tools.view import View

__all__ = ["BOOKIE", "BOOKIE_FILE", "STORE", "Target", "dump_beside", "find", "open_view"]


def open_view(
    path: str,
    metadata: str | None = None,
    passwords: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> View:
    """What lies there, open to be looked at; a context manager. ``metadata`` and ``passwords`` are for disks."""
    target = find(path)
    if target.kind == STORE:
        if metadata is not None:
            raise IncorrectParameterError(f"{path} is a store, which has its metadata itself: no dump is needed")
        from bookstand.tools.store_view import StoreView

        return StoreView(target.path, [password.encode() for password in passwords])
    from bookstand.tools.disk_view import DiskView

    if metadata is not None and not os.path.exists(metadata):
        raise StoreNotFoundError(f"there is no metadata dump at {metadata}")
    return DiskView(target, metadata, [password.encode() for password in passwords], progress)
