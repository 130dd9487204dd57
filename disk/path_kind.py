"""Classification of a path: a store, a bookie's disk, or neither."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError, NotAStoreError, StoreNotFoundError
from bookstand.storage.lmdb.environment import DATA_FILE
from bookstand.storage.process.data_files import check_local

STORE, BOOKIE, BOOKIE_FILE = "store", "bookie", "bookie file"

_BOOKIE_FILES = (".log", ".txn")
_DUMPS = ("metadata.jsonl", "metadata.jsonl.gz")


class Target(NamedTuple):
    kind: str
    path: Path


def classify(path: str) -> Target:
    """Classify a path as a store, a bookie or a bookie's file. A store is named by its folder or its data file. A
    bookie is named by any folder in which :func:`bookstand.disk.bookies.discovery.find_bookies` finds one."""
    if not path or "\0" in path:
        raise IncorrectParameterError(f"{path!r} is no path")
    here = Path(path)
    if not os.path.lexists(here):
        check_local(path, "path")
        raise StoreNotFoundError(f"there is nothing at {path}")
    if here.name == DATA_FILE and not here.is_dir():
        return Target(STORE, here.parent)
    if os.path.lexists(here / DATA_FILE):
        return Target(STORE, here)
    if here.is_file() and here.suffix in _BOOKIE_FILES:
        return Target(BOOKIE_FILE, here)
    if here.is_dir() and _is_bookie(here):
        return Target(BOOKIE, here)
    raise NotAStoreError(f"{path} is neither a store nor a bookie's disk")


def _is_bookie(folder: Path) -> bool:
    from bookstand.disk.bookies.discovery import find_bookies

    return bool(find_bookies([folder], lambda damage: None))


def find_dump(path: Path) -> Path | None:
    """Find a metadata dump in a usual place: in the folder or beside it."""
    beside = path.absolute().parent if path.name in ("", "..") else path.parent
    return dump_in(path) or dump_in(beside)


def dump_in(folder: Path) -> Path | None:
    """Find the metadata dump in a folder."""
    return next((folder / name for name in _DUMPS if (folder / name).is_file()), None)
