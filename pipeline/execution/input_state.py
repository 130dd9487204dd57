"""Fingerprints of the inputs of a job. A job that is resumed uses them to find results that are still valid."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bookstand.errors import StoreFormatError
from bookstand.pipeline.execution.unit import fingerprint
from bookstand.pipeline.tables.sources import STORE, DataSource
from bookstand.storage.lmdb.environment import DATA_FILE
from bookstand.storage.lmdb.meta_page import META_BYTES, SMALLEST_PAGE, parse_meta


def file_state(path: str) -> list[int]:
    """Inode, size and modification time of a file; empty if the file does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def place_state(place: DataSource) -> str:
    """Fingerprint of a store, or of all files of a cluster's disks and its metadata dump."""
    if place.kind == STORE:
        data = os.path.join(place.paths[0], DATA_FILE)
        # Modification times do not distinguish two commits within one tick of the file system's clock.
        return fingerprint([file_state(data), _last_commit(data)])
    files = [[path, file_state(path)] for folder in place.folders or place.paths for path in _files(folder)]
    return fingerprint([files, [] if place.metadata is None else file_state(place.metadata)])


def _files(folder: str) -> Iterator[str]:
    """All files below a folder. Symbolic links are followed: they may lead to other disks."""
    seen: set[str] = set()
    for inner, names, files in os.walk(folder, followlinks=True):
        names.sort()
        if (target := os.path.realpath(inner)) in seen:
            names.clear()
            continue
        seen.add(target)
        yield from (os.path.join(inner, file) for file in sorted(files))


def _last_commit(data: str) -> int:
    """Number of the last committed transaction; -1 if the meta pages cannot be read."""
    try:
        with open(data, "rb") as file:
            first = parse_meta(file.read(SMALLEST_PAGE))
            file.seek(first.page_size if first is not None else SMALLEST_PAGE)
            metas = [first, parse_meta(file.read(META_BYTES))]
    except (OSError, StoreFormatError):
        return -1
    return max((meta.transaction for meta in metas if meta is not None), default=-1)
