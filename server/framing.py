"""Frames of both protocols: how they arrive, and how they are held up.

::

    0        4
    +--------+-------------------
    | length | that many bytes
    +--------+-------------------
      int32, big-endian

All connections of a loop receive into one buffer, so that a connection that is idle holds nothing. What has arrived is
split into *runs*, frames of one size that follow each other: what clients send in bulk mostly has one size, and can
then be looked at by the column.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

LENGTH_BYTES = 4
SCRATCH_BYTES = 512 << 10
# What waits to be sent on a connection before no more of its requests are looked at.
SENDING_HIGH_WATER = 256 << 10
# Bytes of answers that are gathered before they are handed to the system.
_FLUSH_BYTES = 256 << 10
# How many frames of a run are counted one by one, before numpy pays.
_COUNTED = 8


class Run(NamedTuple):
    """``frames`` frames of ``size`` bytes each, the first one's length standing at ``start`` of ``data``."""

    data: bytes
    start: int
    size: int
    frames: int

    @property
    def stride(self) -> int:
        return LENGTH_BYTES + self.size

    def frame(self, index: int) -> bytes:
        begin = self.start + index * self.stride + LENGTH_BYTES
        return self.data[begin : begin + self.size]

    def rest(self, taken: int) -> Run:
        """The run without its first frames."""
        return self._replace(start=self.start + taken * self.stride, frames=self.frames - taken)

    def rows(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        """The frames with their lengths, one a row."""
        import numpy as np

        octets = np.frombuffer(self.data, np.uint8, self.frames * self.stride, self.start)
        return octets.reshape(self.frames, self.stride)


def split(data: bytes, largest: int) -> tuple[list[Run], int, bool]:
    """The whole frames that ``data`` begins with, where the rest begins, and whether that may be the beginning of a
    frame: where its length is one that no frame has, what follows cannot be told apart any more."""
    runs: list[Run] = []
    at, end = 0, len(data)
    while end - at >= LENGTH_BYTES:
        prefix = data[at : at + LENGTH_BYTES]
        size = int.from_bytes(prefix, "big", signed=True)
        if not 0 <= size <= largest:
            return runs, at, False
        stride = LENGTH_BYTES + size
        fits = (end - at) // stride
        if not fits:
            break
        count = _alike(data, at, stride, fits, prefix)
        runs.append(Run(data, at, size, count))
        at += stride * count
    return runs, at, True


def _alike(data: bytes, at: int, stride: int, fits: int, prefix: bytes) -> int:
    """How many of the next ``fits`` frames have the first one's length."""
    count = 1
    while count < fits and data[at + count * stride : at + count * stride + LENGTH_BYTES] == prefix:
        count += 1
        if count == _COUNTED:
            break
    else:
        return count
    import numpy as np

    # By growing steps, so that looking costs no more than there is to find.
    step = 8 * _COUNTED
    while count < fits:
        wanted = min(step, fits - count)
        lengths = np.ndarray((wanted, LENGTH_BYTES), np.uint8, data, at + count * stride, (stride, 1))
        other = np.flatnonzero((lengths != np.frombuffer(prefix, np.uint8)).any(axis=1))
        if len(other):
            return count + int(other[0])
        count += wanted
        step *= 2
    return count


class FramedConnection(asyncio.BufferedProtocol, ABC):
    """One connection. What has arrived is worked through as long as there is room for the answers; meanwhile nothing
    more is read from it. So a client that sends and does not read is held up, and nobody else."""

    transport: asyncio.Transport

    def __init__(self, scratch: memoryview, largest_frame: int) -> None:
        self._scratch = scratch
        self._largest_frame = largest_frame
        # Of a frame that has not arrived whole, and how many bytes to wait for before looking again.
        self._partial = bytearray()
        self._wanted = 0
        self._backlog: deque[Run] = deque()
        self._writable = True
        self._reading = True
        self._answers: list[bytes] = []
        self._answer_bytes = 0
        self.closed = False

    # -- for those who know what frames mean ---------------------------------------------------------------------------

    @abstractmethod
    def take(self, run: Run) -> int:
        """Look at frames of a run; returns how many have been. Fewer than all where :meth:`has_room` says no."""

    def has_room(self) -> bool:
        """Whether more requests may be looked at now; who says no calls :meth:`proceed` when that changes."""
        return self._writable

    def worked(self) -> None:
        """All that has arrived was looked at, or as much as there was room for."""

    def send(self, answer: bytes) -> None:
        """Answers go out together at the end of a turn."""
        self._answers.append(answer)
        self._answer_bytes += len(answer)
        if self._answer_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._answers:
            answers, self._answers, self._answer_bytes = self._answers, [], 0
            if not self.closed:
                self.transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
                self.weigh()

    def weigh(self) -> None:
        """What is held for the client may have changed."""

    def refuse(self) -> None:
        """Close it without an answer, as a bookie does with what it cannot make out."""
        self._drop()
        # What was answered before still goes out.
        self.transport.close()

    def abort(self) -> None:
        """Have it go at once, and what has not been sent with it."""
        self.transport.abort()
        self._drop()

    def _drop(self) -> None:
        self.closed = True
        self._backlog.clear()
        self._partial.clear()
        self.weigh()

    def proceed(self) -> None:
        """Go on with what has arrived, as far as there is room."""
        while self._backlog and not self.closed and self.has_room():
            run = self._backlog[0]
            taken = self.take(run)
            if self.closed:
                break
            if taken == run.frames:
                self._backlog.popleft()
            else:
                self._backlog[0] = run.rest(taken)
        self.worked()
        self.flush()
        self._hold_or_go_on()

    def _hold_or_go_on(self) -> None:
        reading = not self._backlog and self.has_room()
        if reading != self._reading and not self.closed and not self.transport.is_closing():
            self._reading = reading
            if reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """What is kept for a client that may take its time: of a frame that has not arrived whole, and of answers that
        it does not take."""
        return len(self._partial) + (0 if self._writable else self.transport.get_write_buffer_size())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=SENDING_HIGH_WATER)

    def connection_lost(self, error: Exception | None) -> None:
        self._drop()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if not self.closed:
            self._arrive(self._scratch[:nbytes])
            self.weigh()

    def _arrive(self, octets: memoryview) -> None:
        partial = self._partial
        if not partial:
            data = bytes(octets)
        else:
            partial += octets
            if len(partial) < self._wanted:
                return
            data = bytes(partial)
            partial.clear()
        runs, end, sound = split(data, self._largest_frame)
        if sound and end < len(data):
            partial += data[end:]
            self._wanted = LENGTH_BYTES
            if len(partial) >= LENGTH_BYTES:
                self._wanted += int.from_bytes(partial[:LENGTH_BYTES], "big")
        self._backlog.extend(runs)
        self.proceed()
        if not sound and not self.closed:
            self.refuse()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.weigh()
        if not self.closed:
            self.proceed()


def joined(parts: Sequence[bytes]) -> bytes:
    """A frame of these parts."""
    body = b"".join(parts)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
