"""What clients do that should not: the server lives, holds no more than it may, and others do not notice."""

from __future__ import annotations

import random
import resource
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bookstand.errors import IncorrectParameterError
from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.desk import Limits
from bookstand.server.bookie.server import BookieServer
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire, stored

OK, TOO_MANY = 0, 106


def private_bytes(process: int | str = "self") -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["RssAnon"].split()[0]) << 10


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + kit.PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_thousand_connections(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2500:
        if hard < 2500:
            pytest.skip("not enough file descriptors")
        resource.setrlimit(resource.RLIMIT_NOFILE, (2500, hard))
    server = serve()
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(server.addresses[0])) for _ in range(1000)]
        before = private_bytes()
        for number, wire in enumerate(wires):
            wire.send(kit.v2_add(stored(number, 0)), kit.v2_add(stored(number, 1))[:30])
        assert {wire.v2().code for wire in wires} == {OK}
        for number, wire in enumerate(wires):
            wire.send(kit.v2_add(stored(number, 1))[30:])
        assert {wire.v2().code for wire in wires} == {OK}
        assert private_bytes() - before < 64 << 20
        desk = kit.desk_of(server)
        assert desk.figures.connections == 1000
    assert eventually(lambda: desk.figures.connections == 0)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 100,
        struct.pack(">i", -1),
        struct.pack(">i", (6 << 20)),
        bytes(4),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(1000),
    ],
)
def test_garbage_ends_its_own_connection_alone(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], garbage: bytes
) -> None:
    server = serve()
    other, wire = connect(server), connect(server)
    assert other.v2(kit.v2_add(stored(1, 0))).code == OK
    wire.send(garbage)
    wire.socket.shutdown(socket.SHUT_WR)
    assert wire.is_closed()
    assert other.v2(kit.v2_read(1, 0)).code == OK


def test_what_came_before_garbage_is_stored(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    server = serve()
    wire = connect(server)
    wire.send(kit.v2_add(stored(1, 0)), struct.pack(">i", -5))
    assert wire.is_closed()
    assert eventually(lambda: connect(server).v2(kit.v2_read(1, 0)).code == OK)


def test_who_does_not_read_is_not_read_from(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    """Reads of large entries by the thousand, whose answers nobody takes."""
    server = serve()
    slow, other = connect(server), connect(server)
    entry = stored(1, 0, bytes(1 << 20))
    assert other.v2(kit.v2_add(entry)).code == OK
    before = private_bytes()
    slow.send(*[kit.v2_read(1, 0)] * 5000)
    desk = kit.desk_of(server)
    assert eventually(lambda: any(not connection._reading for connection in desk.connections))
    assert [other.v2(kit.v2_read(1, 0)).code for _ in range(5)] == [OK] * 5
    assert private_bytes() - before < 64 << 20
    assert [slow.v2().body == entry for _ in range(20)] == [True] * 20


def test_answers_that_are_not_taken_are_not_held_for_everybody(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    server = serve(limits=Limits(server_bytes=16 << 20))
    other = connect(server)
    entry, small = stored(1, 0, bytes(4 << 20)), stored(1, 1)
    assert [other.v2(kit.v2_add(one)).code for one in (entry, small)] == [OK] * 2
    before = private_bytes()
    desk = kit.desk_of(server)
    known = set(desk.connections)
    slow = [connect(server) for _ in range(60)]
    assert eventually(lambda: len(desk.connections) == len(known) + len(slow))
    # So that the system holds little of it, at either end.
    for connection in set(desk.connections) - known:
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    for wire in slow:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(*[kit.v2_read(1, 0)] * 10)
    assert eventually(lambda: desk.figures.refused >= 40)
    # Who goes too far is counted a moment before he is gone.
    assert eventually(lambda: desk.load.bytes <= 16 << 20)
    assert private_bytes() - before < 64 << 20
    assert other.v2(kit.v2_read(1, 1)).body == small
    for wire in slow:
        wire.socket.close()
    assert eventually(lambda: desk.load.bytes == 0)
    assert other.v2(kit.v2_read(1, 0)).body == entry


def test_adds_that_are_not_answered_hold_up_their_connection(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any
) -> None:
    server = serve(store=store, limits=Limits(connection_bytes=1 << 20))
    fast, other = connect(server), connect(server)
    desk = kit.desk_of(server)
    fast.socket.settimeout(kit.PATIENCE)
    count = 3000
    with store.storage.committer.paused():
        fast.send(*(kit.v2_add(stored(1, n, bytes(1000))) for n in range(count // 10)))
        fast.socket.setblocking(False)
        sent = 0
        rest = b"".join(kit.v2_add(stored(1, n, bytes(1000))) for n in range(count // 10, count))
        assert eventually(lambda: desk.figures.adds_in_progress > 0)
        for _ in range(200):
            try:
                sent += fast.socket.send(rest[sent:])
            except BlockingIOError:
                time.sleep(0.001)
        assert desk.figures.adds_in_progress < (1 << 20) + (1 << 20)
    fast.socket.settimeout(kit.PATIENCE)
    fast.send(rest[sent:])
    assert {fast.v2().code for _ in range(count)} == {OK}
    assert other.v2(kit.v2_read(1, count - 1)).code == OK
    assert desk.figures.adds_in_progress == 0
    assert desk.load.bytes == 0


def test_a_server_that_holds_too_much_refuses_more(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any
) -> None:
    server = serve(store=store, limits=Limits(server_bytes=100_000))
    first, second = connect(server), connect(server)
    with store.storage.committer.paused():
        first.send(*(kit.v2_add(stored(1, n, bytes(1000))) for n in range(90)))
        desk = kit.desk_of(server)
        assert eventually(lambda: desk.figures.adds_in_progress > 80_000)
        assert second.v2(kit.v2_add(stored(2, 0, bytes(20_000)))).code == TOO_MANY
        assert second.v3(kit.v3_add(stored(2, 0, bytes(20_000)))).status == messages.ETOOMANYREQUESTS
        assert second.v2(kit.v2_read(2, 0)).code == 1
    assert {first.v2().code for _ in range(90)} == {OK}
    assert second.v2(kit.v2_add(stored(2, 0, bytes(20_000)))).code == OK


def test_halves_of_large_frames_are_not_held_for_everybody(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    server = serve(limits=Limits(server_bytes=8 << 20))
    half = (4 << 20).to_bytes(4, "big") + bytes(3 << 20)
    wires = [connect(server) for _ in range(6)]
    other = connect(server)
    desk = kit.desk_of(server)
    for wire in wires:
        try:
            wire.send(half)
        except ConnectionError:
            # It was closed before all of it was sent.
            pass
    assert eventually(lambda: desk.figures.refused >= 4)
    assert eventually(lambda: desk.load.bytes <= 8 << 20)
    assert other.v2(kit.v2_add(stored(1, 0))).code == OK
    for wire in wires:
        wire.socket.close()
    assert eventually(lambda: desk.load.bytes == 0)


def test_long_polls_are_limited(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    wire = connect(serve(limits=Limits(long_polls=5)))
    wire.v2(kit.v2_add(stored(1, 0)))
    wire.send(*(kit.v3_long_poll(1, 5, 3_600_000, txn=n) for n in range(6)))
    response = wire.v3()
    assert (response.header.txnId, response.status) == (5, messages.ETOOMANYREQUESTS)


def test_frames_larger_than_the_limit_close_the_connection(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    server = serve(limits=Limits(frame_bytes=1000))
    assert connect(server).v2(kit.v2_add(stored(1, 0, bytes(900)))).code == OK
    large = connect(server)
    large.send(kit.v2_add(stored(1, 1, bytes(1000))))
    assert large.is_closed()


@pytest.mark.parametrize("wrong", [{"frame_bytes": 0}, {"server_bytes": -1}, {"long_polls": True}])
def test_limits_are_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(IncorrectParameterError):
        Limits(**wrong)


def test_changed_frames_harm_nobody(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    """Each on a connection that is used until it is closed; an honest client works all the while."""
    chance = random.Random(3)
    server = serve(durability="none")
    honest = connect(server)
    seeds = [
        kit.v2_add(stored(1, 0)),
        kit.v2_read(1, 0),
        kit.v2_read(1, -1, kit.FENCE, kit.OTHER_KEY),
        kit.v2_batch(1, 0, 10, 1000),
        kit.v3_add(stored(1, 0)),
        kit.v3_read(1, 0),
        kit.v3_long_poll(1, 0, 10),
        kit.explicit_lac(1, 0),
        kit.v3_request(messages.GET_LIST_OF_ENTRIES_OF_LEDGER, 1, "getListOfEntriesOfLedgerRequest", ledgerId=1),
    ]
    for number in range(300):
        with Wire(server.addresses[0]) as wire:
            octets = bytearray(b"".join(chance.choices(seeds, k=5)))
            for _ in range(3):
                octets[chance.randrange(len(octets))] = chance.randrange(256)
            wire.send(bytes(octets))
            if number % 2:
                wire.socket.shutdown(socket.SHUT_WR)
                while wire.frame() is not None:
                    pass
        entry = stored(77, number)
        assert honest.v2(kit.v2_add(entry)).code == OK
        assert honest.v2(kit.v2_read(77, number)).body == entry
