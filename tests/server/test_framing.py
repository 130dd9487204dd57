"""What has arrived is split into frames, however it came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookstand.server.framing import Run, split

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


def frames_of(runs: list[Run]) -> list[bytes]:
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
