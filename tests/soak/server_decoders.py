"""Readers of what comes over the wire: the part of the table that is theirs.

A request that closes its connection counts as refused.
"""

from __future__ import annotations

import asyncio
import random
import struct
import weakref
from pathlib import Path
from typing import Any

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.bookie import Bookie
from bookstand.server.bookie.commit_bridge import CommitBridge
from bookstand.server.bookie.connection import BookieConnection
from bookstand.server.bookie.protocol import codes, v2
from bookstand.server.bookie.shared_state import BookieContext, Limits, MemoryBudget
from bookstand.server.framing import SCRATCH_BYTES, split
from bookstand.storage.storage import open_storage
from tests.server import test_framing
from tests.server.bookie import kit, test_adds, test_v3
from tests.soak.decoder import Decoder

_LARGEST = test_framing.LARGEST
_MAP_BYTES = 64 << 20
FRAMES_SHARE = 12.0
"""Of frames to a server: 100,000 of each protocol in forty rounds."""

# Of the client that is served beside them. No mutation comes to this ledger by chance.
_OTHERS_LEDGER = 0x0123_4567_89AB_CDEF


def all_of_them(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    ledger, entry = rng.choice([0, 5, 1 << 40]), rng.choice([0, 100, 20_000])
    stored = [kit.stored(ledger, entry + n, rng.randbytes(8)) for n in range(12)]
    adds = [[kit.v2_add(each) for each in stored], [kit.v3_add(each, 300 + n) for n, each in enumerate(stored)]]
    reads = [
        kit.v2_read(ledger, entry),
        kit.v2_read(ledger, -1, kit.FENCE, kit.KEY),
        kit.v2_batch(ledger, entry, 9, 400),
    ]
    third = [kit.v3_add(stored[0]), kit.v3_read(ledger, entry, 9), kit.v3_fence(ledger), kit.explicit_lac(ledger, 3)]
    third.append(kit.v3_request(messages.READ_LAC, 1, "readLacRequest", ledgerId=ledger))
    third.append(kit.v3_long_poll(ledger, entry, 10))
    refusals = v2.MalformedRequestError
    served = _Served(folder / "served")
    framed_second = [*reads, adds[0][0], b"".join(adds[0])]
    framed_third = [*third, b"".join(adds[1])]
    return {
        "frames": Decoder([b"".join(map(kit.framed, (b"", b"ab", b"ab", b"abc")))], _frames, refusals=refusals),
        "request of version 2": Decoder([frame[4:] for frame in reads], v2.read_request, refusals=refusals),
        "request of version 3": Decoder([frame[4:] for frame in third], _both_ways, refusals=refusals, share=0.5),
        "run of adds": Decoder([b"".join(frames) for frames in adds], _by_the_column, refusals=refusals, share=0.3),
        "frames to a bookie, version 2": Decoder(framed_second, served, refusals=refusals, share=FRAMES_SHARE),
        "frames to a bookie, version 3": Decoder(framed_third, served, refusals=refusals, share=FRAMES_SHARE),
    }


def _frames(data: bytes) -> int:
    runs, end, sound = split(data, _LARGEST)
    assert (test_framing.frames_of(runs), data[end:], sound) == test_framing.naively(data)
    if not sound:
        raise v2.MalformedRequestError("a length that no frame has")
    return len(runs)


def _both_ways(data: bytes) -> int:
    if test_v3.parsed(data) is None:
        test_v3.check(data)
        raise v2.MalformedRequestError("no request")
    return test_v3.check(data)


def _by_the_column(data: bytes) -> int:
    """Of each run, what it comes to at once and what its frames come to one by one."""
    runs, _, sound = split(data, _LARGEST)
    found = sum(test_adds.check_run(run) for run in runs)
    if not sound or not found:
        raise v2.MalformedRequestError("no adds")
    return found


class Transport(asyncio.Transport):
    """Takes what is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.answers += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    abort = close


class _Served:
    """A bookie over a store, without a socket: octets in, answers out. Whatever one client sends, another one's adds
    and reads are answered."""

    def __init__(self, folder: Path) -> None:
        self._storage = open_storage(folder, durability="none", map_size=_MAP_BYTES)
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        office = CommitBridge(self._storage, self._loop)
        limits = Limits(frame_bytes=1 << 20)
        self._desk = BookieContext(Bookie(self._storage, 1), office, MemoryBudget(), limits, self._scratch, self._loop)
        self._others = self._connection()
        self._others_entry = 0
        self._send(self._others[0], kit.v2_add(kit.stored(_OTHERS_LEDGER, 0)))
        self._go_on()
        self._others[1].answers.clear()

    def __call__(self, data: bytes) -> list[bytes]:
        connection, transport = self._connection()
        self._send(connection, data)
        self._send_others()
        self._go_on()
        self._check_others()
        closed = transport.closed
        connection.connection_lost(None)
        assert self._desk.load.bytes == 0
        runs, end, sound = split(bytes(transport.answers), 6 << 20)
        assert sound
        assert end == len(transport.answers)
        answers = test_framing.frames_of(runs)
        for answer in answers:
            # The version of a request is echoed, also one that is none.
            code = struct.unpack_from(">i", answer, 4)[0]
            if answer[:1] == b"\n" and code != codes.BAD_VERSION:
                assert messages.Response.FromString(answer).IsInitialized()
        if closed:
            raise v2.MalformedRequestError("it was closed")
        return answers

    def _connection(self) -> tuple[BookieConnection, Transport]:
        made = BookieConnection(self._desk), Transport()
        made[0].connection_made(made[1])
        return made

    def _send(self, connection: BookieConnection, data: bytes) -> None:
        async def send() -> None:
            self._scratch[: len(data)] = data
            connection.buffer_updated(len(data))

        self._loop.run_until_complete(send())

    def _go_on(self) -> None:
        for _ in range(3):
            # What was committed is told in one turn, and sent in the next.
            self._storage.flush()
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def _send_others(self) -> None:
        """It adds an entry, and reads the one before."""
        self._others_entry += 1
        add = kit.v2_add(kit.stored(_OTHERS_LEDGER, self._others_entry))
        self._send(self._others[0], add + kit.v2_read(_OTHERS_LEDGER, self._others_entry - 1))

    def _check_others(self) -> None:
        octets = self._others[1].answers
        added, read = sorted(test_framing.frames_of(split(bytes(octets), _LARGEST)[0]))
        octets.clear()
        assert struct.unpack(">BBHiqq", added) == (2, kit.ADD, 0, codes.OK, _OTHERS_LEDGER, self._others_entry)
        before = kit.stored(_OTHERS_LEDGER, self._others_entry - 1)
        assert read == struct.pack(">BBHi", 2, kit.READ, 0, codes.OK) + before[:16] + before
