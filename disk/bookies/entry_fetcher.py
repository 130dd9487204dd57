"""Batched reads of stored entries from their files."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bookstand.disk.damage import Report
from bookstand.disk.format.tolerant_file import TolerantFile

# Read-ahead limits in bytes and entries.
_SLICE_BYTES = 4 << 20
_SLICE_ROWS = 1024
# Entries that are up to this many bytes apart are read together.
_NEAR = 4096
_OPEN_FILES = 32


class Fetcher:
    """Reader of entries by (file, offset, size); the file is an index into ``paths``."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], report: Report) -> None:
        self._paths = paths
        self._report = report
        self._open: OrderedDict[int, TolerantFile] = OrderedDict()

    def fetch(self, files: NDArray[Any], offsets: NDArray[Any], sizes: NDArray[Any]) -> Iterator[bytes]:
        """Yield the bytes at these locations, in this order. Each file is read forward, several entries at a time. An
        entry is truncated if its file has become shorter."""
        start = 0
        while start < len(sizes):
            ends = np.cumsum(sizes[start : start + _SLICE_ROWS], dtype=np.int64)
            stop = start + max(1, int(np.searchsorted(ends, _SLICE_BYTES, "right")))
            yield from self._slice(files[start:stop], offsets[start:stop], sizes[start:stop])
            start = stop

    def _slice(self, files: NDArray[Any], offsets: NDArray[Any], sizes: NDArray[Any]) -> list[bytes]:
        order = np.lexsort((offsets, files))
        file, begin = files[order], offsets[order]
        end = begin + sizes[order]
        apart = np.flatnonzero((file[1:] != file[:-1]) | (begin[1:] < end[:-1]) | (begin[1:] > end[:-1] + _NEAR)) + 1
        found = [b""] * len(order)
        for first, stop in zip([0, *apart.tolist()], [*apart.tolist(), len(order)], strict=True):
            base = int(begin[first])
            data = self._file(int(file[first])).read(base, int(end[stop - 1]) - base)
            places = zip(
                order[first:stop].tolist(), (begin[first:stop] - base).tolist(), (end[first:stop] - base).tolist(),
                strict=True,
            )  # fmt: skip
            for row, a, b in places:
                found[row] = data[a:b]
        return found

    def _file(self, number: int) -> TolerantFile:
        file = self._open.pop(number, None)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            file = TolerantFile(self._paths[number], self._report)
        self._open[number] = file
        return file

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
