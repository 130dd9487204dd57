"""State of the inputs of a job, by which a job that continues recognizes results that are still valid."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bookstand.errors import StoreFormatError
from bookstand.pipeline.execution.unit import fingerprint
from bookstand.pipeline.tables.sources import STORE, DataSource
from bookstand.storage.lmdb.environment import DATA_FILE
from bookstand.storage.lmdb.meta_page import META_BYTES, SMALLEST_PAGE, parse_meta


def file_state(path: str) -> list[int]:
    """Inode, size and time of a file; empty if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def place_state(place: DataSource) -> str:
    """A fingerprint of the state of a store, or of all files of a cluster's disks and their dump."""
    if place.kind == STORE:
        data = os.path.join(place.paths[0], DATA_FILE)
        # Two commits may come in the same tick of the file system's clock.
        return fingerprint([file_state(data), _last_commit(data)])
    files = [[path, file_state(path)] for folder in place.folders or place.paths for path in _files(folder)]
    return fingerprint([files, [] if place.metadata is None else file_state(place.metadata)])


def _files(folder: str) -> Iterator[str]:
    """All files below a folder, also behind links, which disks may be mounted by."""
    seen: set[str] = set()
    for inner, names, files in os.walk(folder, followlinks=True):
        names.sort()
        if (target := os.path.realpath(inner)) in seen:
            names.clear()
            continue
        seen.add(target)
        yield from (os.path.join(inner, file) for file in sorted(files))


def _last_commit(data: str) -> int:
    """Of a store that may be damaged: -1 if its header cannot be read."""
    try:
        with open(data, "rb") as file:
            first = parse_meta(file.read(SMALLEST_PAGE))
            file.seek(first.page_size if first is not None else SMALLEST_PAGE)
            metas = [first, parse_meta(file.read(META_BYTES))]
    except (OSError, StoreFormatError):
        return -1
    return max((meta.transaction for meta in metas if meta is not None), default=-1)
