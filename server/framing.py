"""Length-prefixed frames of both protocols: splitting of received bytes, and backpressure.

::

    0        4
    +--------+-------------------
    | length | that many bytes
    +--------+-------------------
      int32, big-endian

All connections of a loop receive into one shared buffer, so an idle connection holds no memory. Received bytes are
split into *runs*: consecutive frames of equal size. Frames sent in bulk are mostly of one size, so numpy can process a
run column by column.
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
# Unsent bytes of a connection above which no more of its requests are processed.
SENDING_HIGH_WATER = 256 << 10
# Bytes of responses that are buffered before a write to the socket.
_FLUSH_BYTES = 256 << 10
# Number of frames compared one by one before numpy is faster.
_COUNTED = 8
# A frame over the limit is answered from its first bytes. A connection that does not send these in time is closed.
HEAD_BYTES = 256
HEAD_SECONDS = 1.0
# Time that a client has to read its last responses after its connection is closed.
CLOSING_SECONDS = 10.0


class FrameRun(NamedTuple):
    """``frames`` frames of ``size`` bytes each; the length field of the first is at ``start`` in ``data``."""

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
        """The run without its first ``taken`` frames."""
        return self._replace(start=self.start + taken * self.stride, frames=self.frames - taken)

    def rows(self) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
        """The frames with their length fields, one per row."""
        import numpy as np

        octets = np.frombuffer(self.data, np.uint8, self.frames * self.stride, self.start)
        return octets.reshape(self.frames, self.stride)


Buffers = tuple[int, int, int]
"""Bytes in the buffers of one connection, in the order of ``BUFFERS``."""

BUFFERS = ("frames", "requests", "answers")
"""Incomplete or waiting frames, requests in progress, unread responses."""


class Held:
    """Bytes in the buffers of several connections."""

    __slots__ = (*BUFFERS, "total")

    def __init__(self) -> None:
        self.frames = self.requests = self.answers = self.total = 0

    def change(self, before: Buffers, now: Buffers) -> None:
        """Record a change of one connection's buffers."""
        self.frames += now[0] - before[0]
        self.requests += now[1] - before[1]
        self.answers += now[2] - before[2]
        self.total += sum(now) - sum(before)


def split(data: bytes, largest: int, at: int = 0) -> tuple[list[FrameRun], int, bool]:
    """Split the complete frames from ``at`` on into runs. Return the runs, the position behind them, and False if an
    invalid length field follows: no later frame boundary can be found then."""
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
    """Count the leading frames, up to ``fits``, whose length field equals ``prefix``."""
    count = 1
    while count < fits and data[at + count * stride : at + count * stride + LENGTH_BYTES] == prefix:
        count += 1
        if count == _COUNTED:
            break
    else:
        return count
    import numpy as np

    # The step doubles, so that a short run does not pay for scanning the whole buffer.
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
    """One connection. Received frames are processed while there is room for their responses; until then nothing more is
    read from the socket. A client that sends without reading is thus blocked, and other clients are not affected."""

    transport: asyncio.Transport

    head_seconds: ClassVar[float] = HEAD_SECONDS
    closing_seconds: ClassVar[float] = CLOSING_SECONDS

    def __init__(self, scratch: memoryview, largest_frame: int) -> None:
        self._scratch = scratch
        self._largest_frame = largest_frame
        # An incomplete frame, and the size at which to parse it again.
        self._partial = bytearray()
        self._wanted = 0
        self._backlog: deque[FrameRun] = deque()
        # Runs share the buffer that they were received in, so it counts as a whole while one of them waits.
        self._arrived_bytes = self._backlog_bytes = 0
        # Bytes of a frame over the limit that are still to be skipped.
        self._excess = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._closing_timer: asyncio.TimerHandle | None = None
        # Maintained by subclasses, which know the memory use of their requests.
        self._request_bytes = 0
        self._buffers: Buffers = (0, 0, 0)
        self._writable = True
        self._reading = True
        self._answers: list[bytes] = []
        self._answer_bytes = 0
        self.closed = False

    # -- for subclasses ------------------------------------------------------------------------------------------------

    @abstractmethod
    def take(self, run: FrameRun) -> int:
        """Process frames of a run, and return their number. It is less than ``run.frames`` only if :meth:`has_room`
        turned false."""

    def has_room(self) -> bool:
        """True if more requests may be processed now. After returning False, a subclass calls :meth:`proceed` when that
        changes."""
        return self._writable

    def worked(self) -> None:
        """Called after the received frames have been processed, as far as there was room."""

    def reject(self, head: bytes) -> bool | None:
        """Answer a frame over the limit that begins with ``head``, and return True to skip the rest of it. Return False
        to close the connection, None if more of the frame is needed. A frame that is not rejected by its first
        ``HEAD_BYTES`` closes the connection."""
        return False

    def send(self, answer: bytes) -> None:
        """Buffer a response; responses are sent together at the end of a turn of the loop."""
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
        """Report a change of the buffers to :meth:`hold`."""
        unsent = 0 if self._writable else self.transport.get_write_buffer_size()
        now = len(self._partial) + self._backlog_bytes, self._request_bytes, unsent
        before = self._buffers
        if now != before:
            self._buffers = now
            self.hold(before, now)

    def hold(self, before: Buffers, now: Buffers) -> None:
        """Called when the buffers have changed; a subclass may close the connection."""

    def refuse(self) -> None:
        """Close the connection without a response, as a bookie does after a malformed request."""
        self._drop()
        # Responses that were written before are still sent to a client that reads them.
        self.transport.close()
        if self._closing_timer is None:
            loop = asyncio.get_running_loop()
            self._closing_timer = loop.call_later(self.closing_seconds, self.transport.abort)

    def abort(self) -> None:
        """Close the connection immediately and discard unsent responses."""
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
        """Process received frames while there is room."""
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

    # -- asyncio callbacks ---------------------------------------------------------------------------------------------

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
        """Reject a frame over the limit. Return the number of its bytes that have arrived, 0 if the connection must be
        closed, or None if the rest of the frame's head is needed."""
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
    """Build a frame from the parts of its body."""
    body = b"".join(parts)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
