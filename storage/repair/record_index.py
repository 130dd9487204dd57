"""Compact index of record positions, of which there may be one per entry of the store."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from heapq import merge

_POSITION = struct.Struct(">QH")


class RecordIndex:
    """Index by key. Keys of one length are stored together, each followed by its position, and sorted as byte rows."""

    def __init__(self) -> None:
        self._rows: dict[int, bytearray] = {}

    def add(self, key: bytes, page: int, node: int) -> None:
        self._rows.setdefault(len(key), bytearray()).extend(key + _POSITION.pack(page, node))

    def sort(self) -> None:
        import numpy as np

        for size, rows in self._rows.items():
            # In place, comparing all bytes, including zeros.
            np.frombuffer(rows, f"S{size + _POSITION.size}").sort()

    def __iter__(self) -> Iterator[tuple[bytes, int, int]]:
        """Iterate over (key, page, node) in order of key and page."""
        return merge(*(self._read(size, rows) for size, rows in self._rows.items()))

    @staticmethod
    def _read(size: int, rows: bytearray) -> Iterator[tuple[bytes, int, int]]:
        width = size + _POSITION.size
        for start in range(0, len(rows), width):
            row = bytes(rows[start : start + width])
            yield (row[:size], *_POSITION.unpack_from(row, size))
