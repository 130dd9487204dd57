"""Pipe through which the child process reports its progress in frames.

Data written to a pipe survives the death of its writer. Only the last frame may be truncated, and is then ignored.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

# Kind, count of numbers that follow, and ``first``, whose meaning depends on the kind.
_HEADER = struct.Struct("<IIq")
_NUMBER = np.dtype("<i8")

PUBLISHING = 1
"""About to publish: ``first`` is the first message, the numbers are delivery times (0: no delay)."""
PUBLISHED = 2
"""All messages before ``first`` are durable."""
DELIVERED = 3
"""Messages delivered at the time ``first``, reported before they are processed."""
NACKED = 4
"""Messages about to be negatively acknowledged."""
ACKNOWLEDGING = 5
"""Messages about to be acknowledged."""
DURABLE = 6
"""Messages whose acknowledgment is durable."""
STATE = 7
"""``first`` is the number of delayed messages."""


class PipeMessage(NamedTuple):
    kind: int
    first: int
    numbers: np.ndarray


class PipeWriter:
    """Writing end in the child process. Thread-safe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def send(self, kind: int, first: int = 0, numbers: Sequence[int] | np.ndarray = ()) -> None:
        """Write a frame, which survives the death of this process."""
        frame = _HEADER.pack(kind, len(numbers), first) + np.asarray(numbers, _NUMBER).tobytes()
        with self._lock:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]


class PipeReader:
    """Reading end in the parent process."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[PipeMessage]:
        """Add data, and iterate over the frames completed by it."""
        data = self._rest + data
        at = 0
        while len(data) - at >= _HEADER.size:
            kind, count, first = _HEADER.unpack_from(data, at)
            end = at + _HEADER.size + count * _NUMBER.itemsize
            if len(data) < end:
                break
            yield PipeMessage(kind, first, np.frombuffer(data, _NUMBER, count, at + _HEADER.size))
            at = end
        self._rest = data[at:]
