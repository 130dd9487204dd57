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
from typing import TYPE_CHECKING, ClassVar, NamedTuple

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
# A frame over the limit is answered by its first bytes; a connection that does not send them in time is closed.
HEAD_BYTES = 256
HEAD_SECONDS = 1.0
# A connection that is closed has this time to read its last answers.
CLOSING_SECONDS = 10.0


class FrameRun(NamedTuple):
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

    def rest(self, taken: int) -> FrameRun:
        """The run without its first frames."""
        return self._replace(start=self.start + taken * self.stride, frames=self.frames - taken)

    def rows(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        """The frames with their lengths, one a row."""
        import numpy as np

        octets = np.frombuffer(self.data, np.uint8, self.frames * self.stride, self.start)
        return octets.reshape(self.frames, self.stride)


Buffers = tuple[int, int, int]
"""Bytes in the buffers of a connection, in the order of ``BUFFERS``."""

BUFFERS = ("frames", "requests", "answers")
"""Frames that have not arrived completely or are waiting for room, requests in progress, unread answers."""


class Held:
    """Bytes in the buffers of several connections."""

    __slots__ = (*BUFFERS, "total")

    def __init__(self) -> None:
        self.frames = self.requests = self.answers = self.total = 0

    def change(self, before: Buffers, now: Buffers) -> None:
        """Record the buffers of one connection."""
        self.frames += now[0] - before[0]
        self.requests += now[1] - before[1]
        self.answers += now[2] - before[2]
        self.total += sum(now) - sum(before)


def split(data: bytes, largest: int, at: int = 0) -> tuple[list[FrameRun], int, bool]:
    """The complete frames from ``at`` on, the position behind them, and whether a frame may begin there: behind a
    length that no frame has, frames cannot be told apart."""
    runs: list[FrameRun] = []
    end = len(data)
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
        runs.append(FrameRun(data, at, size, count))
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

    head_seconds: ClassVar[float] = HEAD_SECONDS
    closing_seconds: ClassVar[float] = CLOSING_SECONDS

    def __init__(self, scratch: memoryview, largest_frame: int) -> None:
        self._scratch = scratch
        self._largest_frame = largest_frame
        # Of a frame that has not arrived whole, and how many bytes to wait for before looking again.
        self._partial = bytearray()
        self._wanted = 0
        self._backlog: deque[FrameRun] = deque()
        # Runs share the bytes that they arrived in; these count while runs are waiting.
        self._arrived_bytes = self._backlog_bytes = 0
        # The part of a frame over the limit that is still to be skipped.
        self._excess = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._closing_timer: asyncio.TimerHandle | None = None
        # Set by those who know what a request takes.
        self._request_bytes = 0
        self._buffers: Buffers = (0, 0, 0)
        self._writable = True
        self._reading = True
        self._answers: list[bytes] = []
        self._answer_bytes = 0
        self.closed = False

    # -- for those who know what frames mean ---------------------------------------------------------------------------

    @abstractmethod
    def take(self, run: FrameRun) -> int:
        """Look at frames of a run; returns how many have been. Fewer than all where :meth:`has_room` says no."""

    def has_room(self) -> bool:
        """Whether more requests may be looked at now; who says no calls :meth:`proceed` when that changes."""
        return self._writable

    def worked(self) -> None:
        """All that has arrived was looked at, or as much as there was room for."""

    def reject(self, head: bytes) -> bool | None:
        """Answer a frame over the limit that begins with ``head``, so that the rest of it is skipped. False: close the
        connection instead. None: more of the frame is needed; a frame that is not rejected by its first ``HEAD_BYTES``
        closes the connection."""
        return False

    def send(self, answer: bytes) -> None:
        """Answers go out together at the end of a turn."""
        self._answers.append(answer)
        self._answer_bytes += len(answer)
        if self._answer_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._answers:
            answers, self._answers, self._answer_bytes = self._answers, [], 0
            if not self.closed and not self.transport.is_closing():
                self.transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
                self.weigh()

    def weigh(self) -> None:
        """Report a change of the buffers."""
        unsent = 0 if self._writable else self.transport.get_write_buffer_size()
        now = len(self._partial) + self._backlog_bytes, self._request_bytes, unsent
        before = self._buffers
        if now != before:
            self._buffers = now
            self.hold(before, now)

    def hold(self, before: Buffers, now: Buffers) -> None:
        """The buffers have changed; a subclass may close the connection for it."""

    def refuse(self) -> None:
        """Close it without an answer, as a bookie does with what it cannot make out."""
        self._drop()
        # What was answered before still goes out, to a client that reads it.
        self.transport.close()
        if self._closing_timer is None:
            loop = asyncio.get_running_loop()
            self._closing_timer = loop.call_later(self.closing_seconds, self.transport.abort)

    def abort(self) -> None:
        """Have it go at once, and what has not been sent with it."""
        self.transport.abort()
        self._drop()

    def _drop(self) -> None:
        self.closed = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._partial.clear()
        self._stop_head_timer()
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
        self._backlog_bytes = self._arrived_bytes if self._backlog else 0
        self.worked()
        self.flush()
        self.weigh()
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=SENDING_HIGH_WATER)

    def connection_lost(self, error: Exception | None) -> None:
        if self._closing_timer is not None:
            self._closing_timer.cancel()
        self._drop()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if not self.closed:
            self._arrive(self._scratch[:nbytes])
            self.weigh()

    def _arrive(self, octets: memoryview) -> None:
        if self._excess:
            skipped = min(self._excess, len(octets))
            self._excess -= skipped
            octets = octets[skipped:]
            if not octets:
                return
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
        self._backlog.extend(runs)
        incomplete = False
        while not sound:
            passed = self._skip(data, end)
            if not passed:
                incomplete = passed is None
                break
            self._stop_head_timer()
            runs, end, sound = split(data, self._largest_frame, end + passed)
            self._backlog.extend(runs)
        if incomplete and self._head_timer is None:
            self._start_head_timer()
        if (sound or incomplete) and end < len(data):
            partial += data[end:]
            self._wanted = LENGTH_BYTES
            if incomplete:
                self._wanted = len(partial) + 1
            elif len(partial) >= LENGTH_BYTES:
                self._wanted += int.from_bytes(partial[:LENGTH_BYTES], "big")
        self._arrived_bytes = len(data)
        self.proceed()
        if not sound and not incomplete and not self.closed:
            self.refuse()

    def _skip(self, data: bytes, at: int) -> int | None:
        """Have a frame over the limit rejected; returns the number of its bytes that have arrived. 0: the connection is
        to be closed. None: the rest of the frame's head is needed."""
        size = int.from_bytes(data[at : at + LENGTH_BYTES], "big", signed=True)
        begin = at + LENGTH_BYTES
        head = data[begin : begin + min(size, HEAD_BYTES)]
        rejected = False if size < 0 else self.reject(head)
        if rejected is None and len(head) < min(size, HEAD_BYTES):
            return None
        if not rejected:
            return 0
        arrived = min(size, len(data) - begin)
        self._excess = size - arrived
        return LENGTH_BYTES + arrived

    def _start_head_timer(self) -> None:
        # More bytes do not prolong it.
        self._head_timer = asyncio.get_running_loop().call_later(self.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._reading:
            self.refuse()
        else:
            # The bytes may have arrived: nothing is read meanwhile.
            self._start_head_timer()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

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
