"""Clients that misbehave harm nobody but themselves: many of them, slow ones, half frames, endless lengths, garbage."""

from __future__ import annotations

import random
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookstand.server.zookeeper import connection, server
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import MAX_FRAME, Code, Op, WatchMode
from tests.server.zookeeper.kit import PATIENCE, Client, ClosedError, Serving, eventually


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    raise AssertionError


def connections(serving: Serving) -> int:
    return int(serving.do(lambda: len(serving.server._state.connections)))


def test_a_thousand_connections(serving: Serving) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2_500
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"this machine lets a process have {hard} files open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    opened = [Client(serving.port) for _ in range(1_000)]
    before = resident_bytes()
    try:
        for client in opened:
            client.connect()
        for number, client in enumerate(opened):
            client.send(Op.CREATE, records.REQUESTS[Op.CREATE].encode(records.Create(f"/n{number}", b"", OPEN_ACL, 1)))
        for client in opened:
            assert client.reply()[0].error == 0
        assert len(opened[0].children("/")) == 1_001
        assert len({client.session_id for client in opened}) == 1_000
        assert resident_bytes() - before < 64 << 20
    finally:
        for client in opened:
            client.close()
    eventually(lambda: connections(serving) == 0)


@pytest.mark.parametrize(
    "octets",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        (MAX_FRAME + 1).to_bytes(4, "big"),
        (6 << 20).to_bytes(4, "big"),
        b"\0\0\0\x05\0\0",
        b"\0\0\0\x03abc",
        b"\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(2_000),
        random.Random(5).randbytes(5_000),
    ],
)
def test_what_is_no_greeting(serving: Serving, client: Client, octets: bytes) -> None:
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE) as other:
        other.sendall(octets)
        client.create("/others", b"")
        if octets != b"\0\0\0\x05\0\0":
            # The server does not wait for more.
            try:
                assert other.recv(100) == b""
            except ConnectionResetError:
                pass
    assert client.exists("/others").version == 0


@pytest.mark.parametrize("octets", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xf0", b"\0\0\0\x02ab", b"\0\x10\0\0"])
def test_frames_that_cannot_be_end_their_connection(
    serving: Serving, connect: Callable[..., Client], octets: bytes
) -> None:
    client, other = connect(), connect()
    client.socket.sendall(octets)
    with pytest.raises((ClosedError, ConnectionError)):
        client.frame()
    assert other.create("/a") == "/a"


def test_requests_that_arrive_octet_by_octet(client: Client) -> None:
    body = records.REQUEST_HEADER.encode(records.RequestHeader(1, Op.EXISTS))
    body += records.REQUESTS[Op.EXISTS].encode(records.PathAndWatch("/", False))
    for octet in len(body).to_bytes(4, "big") + body:
        client.socket.sendall(bytes([octet]))
    assert client.reply()[0].error == 0


def test_a_frame_has_as_many_bytes_as_with_zookeeper(connect: Callable[..., Client]) -> None:
    """``jute.maxbuffer``: one byte more ends the connection, and nothing of it is done."""
    largest = 1_048_575
    around = len(records.REQUESTS[Op.CREATE].encode(records.Create("/n", b"", OPEN_ACL, 0))) + 8
    fits, too_long = connect(), connect()
    assert fits.create("/n", bytes(largest - around)) == "/n"
    assert len(fits.get("/n")[0]) == largest - around
    with pytest.raises((ClosedError, ConnectionError)):
        too_long.create("/m", bytes(largest - around + 1))
    assert fits.exists("/m") == Code.NO_NODE


def test_half_frames_do_not_fill_the_memory(serving: Serving, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HELD_IN_ALL_BYTES", 8 << 20)
    before = resident_bytes()
    waiting = []
    half = MAX_FRAME.to_bytes(4, "big") + bytes(900_000)
    try:
        for _ in range(40):
            other = socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE)
            waiting.append(other)
            try:
                other.sendall(half)
            except ConnectionError:
                pass
        client.ping()
        assert serving.do(lambda: serving.server._state.held_bytes) <= 9 << 20
        assert resident_bytes() - before < 40 << 20
        assert client.create("/a") == "/a"
    finally:
        for other in waiting:
            other.close()
    eventually(lambda: serving.do(lambda: serving.server._state.held_bytes) == 0)


def test_who_does_not_read_is_not_answered(serving: Serving, connect: Callable[..., Client]) -> None:
    """Many reads of a large value, no answer taken: the server stops taking requests, and has little to hold."""
    greedy, other = connect(), connect()
    other.create("/large", bytes(500_000))
    request = records.REQUESTS[Op.GET_DATA].encode(records.PathAndWatch("/large", False))
    before = resident_bytes()
    for _ in range(400):
        greedy.send(Op.GET_DATA, request)
    for number in range(20):
        assert other.create(f"/n{number}") == f"/n{number}"
    assert resident_bytes() - before < 60 << 20
    # Nothing is lost: whoever begins to read gets all of it.
    for number in range(400):
        header, body = greedy.reply()
        assert header.xid == number + 1
        assert len(body) > 500_000


def test_answers_that_are_not_taken_are_not_held_for_everybody(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELD_IN_ALL_BYTES", 8 << 20)
    other = connect()
    other.create("/large", bytes(1_000_000))
    request = records.REQUESTS[Op.GET_DATA].encode(records.PathAndWatch("/large", False))
    before = resident_bytes()
    greedy = [connect() for _ in range(60)]
    for client in greedy:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(20):
            client.send(Op.GET_DATA, request)
    eventually(lambda: connections(serving) < 40)
    assert serving.do(lambda: serving.server._state.held_bytes) <= 8 << 20
    assert resident_bytes() - before < 64 << 20
    assert len(other.get("/large")[0]) == 1_000_000
    for client in greedy:
        client.close()
    eventually(lambda: serving.do(lambda: serving.server._state.held_bytes) == 0)


def test_who_does_not_read_does_not_keep_the_server(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LAST_ANSWERS_SECONDS", 0.2)
    with Serving(store.storage) as serving, Client(serving.port).connect() as greedy:
        greedy.create("/large", bytes(1_000_000))
        for _ in range(20):
            greedy.send(Op.GET_DATA, records.REQUESTS[Op.GET_DATA].encode(records.PathAndWatch("/large", False)))
        eventually(lambda: serving.do(lambda: serving.server._state.held_bytes) > 0)
        serving.stop()


def test_who_sends_faster_than_the_disk_is_not_read(serving: Serving, connect: Callable[..., Client]) -> None:
    client = connect()
    value = bytes(200_000)
    before = resident_bytes()
    client.create("/a")
    body = records.REQUESTS[Op.SET_DATA].encode(records.SetData("/a", value, -1))
    frame = records.REQUEST_HEADER.encode(records.RequestHeader(5, Op.SET_DATA)) + body
    for _ in range(300):
        client.send_frame(frame)
    for _ in range(300):
        assert client.reply()[0].error == 0
    assert client.exists("/a").version == 300
    assert resident_bytes() - before < 80 << 20


def test_a_watcher_that_does_not_read_is_dropped_in_the_end(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_BYTES", 200_000)
    watcher, writer = connect(), connect()
    watcher.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    watcher.call(Op.ADD_WATCH, records.PathAndNumber("/", WatchMode.PERSISTENT_RECURSIVE))
    path = "/" + "x" * 400
    writer.create(path)
    body = records.REQUESTS[Op.SET_DATA].encode(records.SetData(path, b"", -1))

    def dropped() -> Any:
        for _ in range(500):
            writer.send(Op.SET_DATA, body)
        for _ in range(500):
            assert writer.reply()[0].error == 0
        return connections(serving) == 1

    eventually(dropped)
    assert writer.exists(path)


def test_garbage_in_the_middle(serving: Serving, connect: Callable[..., Client]) -> None:
    """Requests with octets changed: each is answered or ends its connection, and the others go on."""
    rng = random.Random(11)
    other = connect()
    whole = [
        (Op.CREATE, records.REQUESTS[Op.CREATE].encode(records.Create("/g", b"abc", OPEN_ACL, 0))),
        (Op.SET_DATA, records.REQUESTS[Op.SET_DATA].encode(records.SetData("/g", b"abc", -1))),
        (Op.GET_CHILDREN2, records.REQUESTS[Op.GET_CHILDREN2].encode(records.PathAndWatch("/g", True))),
        (Op.SET_WATCHES2, records.REQUESTS[Op.SET_WATCHES2].encode(records.SetWatches2(0, ["/g"], [], [], [], ["/"]))),
    ]
    client = connect()
    for _ in range(400):
        op, body = rng.choice(whole)
        frame = bytearray(records.REQUEST_HEADER.encode(records.RequestHeader(1, op)) + body)
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        try:
            client.send_frame(bytes(frame[: rng.randrange(len(frame))] if rng.random() < 0.2 else frame))
            client.reply()
        except (ClosedError, ConnectionError):
            client.close()
            client = connect()
    assert other.exists("/").children >= 1
