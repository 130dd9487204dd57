"""Interception of store opens within a ``with`` block, transparent to the calling code."""

from __future__ import annotations

import os
from contextlib import contextmanager

from bookstand import store as front_door
from bookstand.storage import storage as storage_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_NAME = "open_storage"


@contextmanager
def watched_openings(folder: str, prepare: Callable[[str, dict[str, Any]], None]) -> Iterator[None]:
    """Call ``prepare(path, options)``, which may change the options, before a store below the directory is opened."""
    root = os.path.realpath(folder)
    modules = (storage_module, front_door)
    real = [getattr(module, _NAME) for module in modules]

    def open_storage(path: Any, **options: Any) -> Any:
        try:
            full = os.path.realpath(os.fsdecode(os.fspath(path)))
        except (TypeError, ValueError):
            full = ""
        if full.startswith(root + os.sep):
            prepare(full, options)
        return real[0](path, **options)

    for module in modules:
        setattr(module, _NAME, open_storage)
    try:
        yield
    finally:
        for module, function in zip(modules, real, strict=True):
            setattr(module, _NAME, function)
