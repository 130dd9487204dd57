"""What the working process tells, as frames in a pipe. What was written to a pipe is there when its writer is killed;
only the last frame may be cut off, and is not counted then."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

# Kind, how many numbers follow, and one more that depends on the kind.
_HEADER = struct.Struct("<IIq")
_NUMBER = np.dtype("<i8")

PUBLISHING = 1
"""The numbers: when each is to be delivered (0: at once). ``first``: which message the first one is. Told before."""
PUBLISHED = 2
"""Durable: all messages before ``first``."""
DELIVERED = 3
"""The numbers: messages. ``first``: at which time. Told before anything is done with them."""
NACKED = 4
"""The numbers: messages. Told before."""
ACKNOWLEDGING = 5
"""The numbers: messages. Told before."""
DURABLE = 6
"""The numbers: messages whose acknowledgment is durable by now."""
STATE = 7
"""``first``: how many messages wait for their time."""


class PipeMessage(NamedTuple):
    kind: int
    first: int
    numbers: np.ndarray


class PipeWriter:
    """For the working process, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def tell(self, kind: int, first: int = 0, numbers: Sequence[int] | np.ndarray = ()) -> None:
        """On return it cannot get lost."""
        frame = _HEADER.pack(kind, len(numbers), first) + np.asarray(numbers, _NUMBER).tobytes()
        with self._lock:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]


class PipeReader:
    """For the process that keeps the books."""

    def __init__(self) -> None:
        self._rest = b""

    def hear(self, data: bytes) -> Iterator[PipeMessage]:
        """The frames that are whole by now."""
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
