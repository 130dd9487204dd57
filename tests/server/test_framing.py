"""What has arrived is split into frames, however it came."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.server.framing import SCRATCH_BYTES, FramedConnection, FrameRun, split

LARGEST = 1000


def naively(data: bytes) -> tuple[list[bytes], bytes, bool]:
    frames = []
    while len(data) >= 4:
        size = int.from_bytes(data[:4], "big", signed=True)
        if not 0 <= size <= LARGEST:
            return frames, data, False
        if len(data) < 4 + size:
            break
        frames.append(data[4 : 4 + size])
        data = data[4 + size :]
    return frames, data, True


def frames_of(runs: list[FrameRun]) -> list[bytes]:
    return [run.frame(index) for run in runs for index in range(run.frames)]


groups = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 200)), max_size=6)


@given(groups, st.binary(max_size=60))
def test_frames_are_told_apart_as_one_by_one(sizes: list[tuple[int, int]], rest: bytes) -> None:
    frames = [bytes([index % 256]) * size for size, count in sizes for index in range(count)]
    data = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames) + rest
    runs, end, sound = split(data, LARGEST)
    assert (frames_of(runs), data[end:], sound) == naively(data)


@given(st.binary(max_size=200))
def test_whatever_arrives_is_split_alike(data: bytes) -> None:
    runs, end, sound = split(data, LARGEST)
    assert (frames_of(runs), data[end:], sound) == naively(data)


def test_frames_of_one_size_are_one_run() -> None:
    data = (b"\0\0\0\x02ab" * 5000) + b"\0\0\0\x01c"
    runs, end, sound = split(data, LARGEST)
    assert [(run.size, run.frames) for run in runs] == [(2, 5000), (1, 1)]
    assert end == len(data)
    assert sound


def test_the_rest_of_a_run_begins_behind_what_was_taken() -> None:
    (run,), _, _ = split(b"".join(b"\0\0\0\x01" + bytes([index]) for index in range(20)), LARGEST)
    rest = run.rest(7)
    assert [rest.frame(index) for index in range(rest.frames)] == [bytes([index]) for index in range(7, 20)]
    assert rest.rows()[:, 4].tolist() == list(range(7, 20))


class Recorder(FramedConnection):
    """Records its frames, and of frames over the limit the head: the first octet decides about them."""

    HEAD = 12

    def __init__(self) -> None:
        super().__init__(memoryview(bytearray(SCRATCH_BYTES)), LARGEST)
        self.frames: list[bytes] = []
        self.rejected: list[bytes] = []

    def take(self, run: FrameRun) -> int:
        self.frames += [run.frame(index) for index in range(run.frames)]
        return run.frames

    def reject(self, head: bytes) -> bool | None:
        if len(head) < self.HEAD:
            return None
        if head[0] == 255:
            return False
        self.rejected.append(head[: self.HEAD])
        return True


def expected(frames: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    taken: list[bytes] = []
    rejected: list[bytes] = []
    for frame in frames:
        if len(frame) <= LARGEST:
            taken.append(frame)
        elif frame[0] == 255:
            break
        else:
            rejected.append(frame[: Recorder.HEAD])
    return taken, rejected


sent_frames = st.lists(
    st.tuples(st.one_of(st.integers(0, 30), st.integers(LARGEST - 2, LARGEST + 40)), st.sampled_from([1, 2, 255])),
    max_size=12,
)


@settings(deadline=None, max_examples=50)
@given(sent_frames, st.lists(st.integers(0, 1 << 14), max_size=8))
def test_frames_over_the_limit_are_skipped_however_they_arrive(sizes: list[tuple[int, int]], cuts: list[int]) -> None:
    """Over a socket, cut anywhere: those before and behind them are taken, in order, until one ends the connection."""
    frames = [bytes([first]) + bytes(size - 1) if size else b"" for size, first in sizes]
    octets = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    at = sorted({0, len(octets), *(cut % (len(octets) + 1) for cut in cuts)})

    async def run() -> Recorder:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            transport, recorder = await loop.create_connection(Recorder, sock=ours)
            for begin, end in pairwise(at):
                try:
                    theirs.sendall(octets[begin:end])
                except ConnectionError:
                    break
                await asyncio.sleep(0)
            if not recorder.closed:
                theirs.shutdown(socket.SHUT_WR)
            while not recorder.closed:
                await asyncio.sleep(0)
            transport.abort()
            await asyncio.sleep(0)
        return recorder

    recorder = asyncio.run(run())
    assert (recorder.frames, recorder.rejected) == expected(frames)
