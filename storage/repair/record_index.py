"""Where records were found, by their keys, in a few bytes each: they may be as many as a store has entries."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from heapq import merge

_PLACE = struct.Struct(">QH")


class RecordIndex:
    """Keys of one length lie together, each followed by its place, so that sorting them is sorting rows of bytes."""

    def __init__(self) -> None:
        self._rows: dict[int, bytearray] = {}

    def add(self, key: bytes, page: int, place: int) -> None:
        self._rows.setdefault(len(key), bytearray()).extend(key + _PLACE.pack(page, place))

    def sort(self) -> None:
        """Once all are there."""
        import numpy as np

        for size, rows in self._rows.items():
            # In place, and by all bytes, zeros as well.
            np.frombuffer(rows, f"S{size + _PLACE.size}").sort()

    def __iter__(self) -> Iterator[tuple[bytes, int, int]]:
        """(key, page, place) by ascending keys, and those of a key by their pages."""
        return merge(*(self._read(size, rows) for size, rows in self._rows.items()))

    @staticmethod
    def _read(size: int, rows: bytearray) -> Iterator[tuple[bytes, int, int]]:
        width = size + _PLACE.size
        for start in range(0, len(rows), width):
            row = bytes(rows[start : start + width])
            yield (row[:size], *_PLACE.unpack_from(row, size))
