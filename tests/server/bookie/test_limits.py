"""What clients do that should not: the server lives, holds no more than it may, and others do not notice."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookstand.errors import IncorrectParameterError, StoreDamagedError
from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie import long_polls
from bookstand.server.bookie.bookie import Bookie
from bookstand.server.bookie.long_polls import LongPolls
from bookstand.server.bookie.server import BookieServer
from bookstand.server.bookie.shared_state import Limits
from bookstand.server.framing import FramedConnection
from bookstand.storage.served.replica_reader import ReplicaReader
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


def by_label(server: BookieServer, name: str, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in server.samples() if sample.name == name}


def limits_exceeded(server: BookieServer) -> dict[str, float]:
    return by_label(server, "bookstand_bookie_limit_exceeded_total", "limit")


def held(server: BookieServer) -> dict[str, float]:
    return by_label(server, "bookstand_bookie_held_bytes", "buffer")


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


def test_a_refused_client_that_does_not_read_its_answers_is_not_held_for_ever(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FramedConnection, "closing_seconds", 0.2)
    server = serve()
    wire, other, desk = connect(server), connect(server), kit.desk_of(server)
    assert other.v2(kit.v2_add(stored(1, 0, bytes(4 << 20)))).code == OK
    wire.send(kit.v3_long_poll(1, 5, 3_600_000))
    assert eventually(lambda: desk.figures.long_polls == 1)
    wire.send(kit.v2_read(1, 0), kit.v2_read(1, 0), struct.pack(">i", -1))
    assert eventually(lambda: desk.figures.refused == 1)
    assert eventually(lambda: desk.figures.connections == 1)
    assert desk.load.bytes == desk.figures.long_polls == 0
    assert held(server)["answers"] == 0


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
    server = serve(store=store, limits=Limits(server_bytes=140_000))
    first, second = connect(server), connect(server)
    with store.storage.committer.paused():
        first.send(*(kit.v2_add(stored(1, n, bytes(1000))) for n in range(90)))
        desk = kit.desk_of(server)
        assert eventually(lambda: desk.figures.adds_in_progress > 120_000)
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
    server = serve(limits=Limits(long_polls=5))
    wire = connect(server)
    wire.v2(kit.v2_add(stored(1, 0)))
    wire.send(*(kit.v3_long_poll(1, 5, 3_600_000, txn=n) for n in range(6)))
    response = wire.v3()
    assert (response.header.txnId, response.status) == (5, messages.ETOOMANYREQUESTS)
    assert limits_exceeded(server)["connection_long_polls"] == 1


# -- frames over the limit ---------------------------------------------------------------------------------------------


def fitting(entry: int, limit: int) -> bytes:
    """An add whose frame is exactly as long as the limit allows."""
    return kit.v2_add(stored(1, entry, bytes(limit - len(kit.v2_add(stored(1, entry, b""))))))


def test_the_frame_limit_counts_the_length_field_and_is_pulsars_by_default(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any
) -> None:
    server = serve(store=store)
    wire = connect(server)
    assert Limits().frame_bytes == 5_253_120
    largest = fitting(0, 5_253_120)
    assert len(largest) == 5_253_120
    assert wire.v2(largest).code == OK
    assert wire.v2(kit.v2_read(1, 0)).body == largest[28:]
    assert wire.v2(fitting(1, 5_253_121)) == (2, kit.ADD, 100, 1, 1, b"")
    assert wire.v2(kit.v2_read(1, 1)).code == 2
    assert store.storage.entry_as_stored(1, 0) == largest[28:]
    assert limits_exceeded(server)["frame"] == 1


@pytest.mark.parametrize("pieces", [1, 7, 1_000_000])
def test_an_add_over_the_frame_limit_is_refused_alone(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], pieces: int
) -> None:
    """In both versions, however its octets arrive: what is sent before and behind it is answered."""
    wire = connect(serve(limits=Limits(frame_bytes=1500)))
    over = stored(1, 1, bytes(1600))
    octets = b"".join(
        (
            kit.v2_add(stored(1, 0)),
            kit.v2_add(over),
            kit.v3_add(over, txn=7),
            kit.v2_add(over),
            kit.v2_add(stored(1, 2)),
        )
    )
    size = -(-len(octets) // min(pieces, len(octets)))
    for begin in range(0, len(octets), size):
        wire.send(octets[begin : begin + size])
    answers = [wire.frame() or b"" for _ in range(5)]
    (third,) = [messages.Response.FromString(answer) for answer in answers if answer[:1] == b"\n"]
    assert (third.header.txnId, third.header.operation, third.status) == (7, messages.ADD_ENTRY, messages.EBADREQ)
    plain = sorted(struct.unpack_from(">iqq", answer, 4) for answer in answers if answer[:1] != b"\n")
    assert plain == [(0, 1, 0), (0, 1, 2), (100, 1, 1), (100, 1, 1)]
    assert [wire.v2(kit.v2_read(1, entry)).code for entry in range(3)] == [0, 2, 0]


def test_other_requests_of_version_3_over_the_limit_are_refused(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    wire = connect(serve(limits=Limits(frame_bytes=1500)))
    values = {"ledgerId": 1, "lac": 0, "masterKey": kit.KEY, "body": bytes(2000)}
    answer = wire.v3(kit.v3_request(messages.WRITE_LAC, 3, "writeLacRequest", **values))
    assert (answer.header.txnId, answer.header.operation, answer.status) == (3, messages.WRITE_LAC, messages.EBADREQ)
    assert wire.v2(kit.v2_add(stored(1, 0))).code == OK


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x02",
        bytes([2, kit.READ, 0, 0]) + bytes(60),
        bytes([0, kit.ADD, 0, 0]) + bytes(60),
        bytes([9, kit.ADD, 0, 0]) + bytes(60),
        b"\n\x06\x08\x02\x10\x02\x18\x01" + bytes(60),
        b"\n\xff" + bytes(200),
        b"\n\x06\x08\x03",
    ],
)
def test_a_frame_over_the_limit_that_cannot_be_answered_closes_the_connection(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FramedConnection, "head_seconds", 0.05)
    server = serve()
    wire = connect(server)
    wire.send(struct.pack(">i", 6 << 20) + head)
    assert wire.is_closed()
    assert eventually(lambda: kit.desk_of(server).load.bytes == 0)


def test_the_rest_of_a_frame_over_the_limit_is_not_held(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    server = serve()
    wire = connect(server)
    before = private_bytes()
    wire.send((1 << 30).to_bytes(4, "big") + kit.v2_add(stored(1, 0))[4:])
    for _ in range(48):
        wire.socket.sendall(bytes(1 << 20))
    assert wire.v2().code == 100
    assert private_bytes() - before < 16 << 20
    assert kit.desk_of(server).load.bytes == 0


def test_the_first_bytes_of_a_frame_over_the_limit_are_bounded(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    """Its header claims more bytes than any header has."""
    server = serve()
    wire, most = connect(server), 0.0
    with pytest.raises(ConnectionError):  # noqa: PT012 - a send after the server has closed the connection fails
        wire.send(struct.pack(">i", 1 << 30) + b"\n\xff" + bytes(250))
        for _ in range(200):
            wire.send(bytes(1 << 16))
            most = max(most, held(server)["frames"])
    assert most < 1024


def test_bytes_that_trickle_in_do_not_prolong_the_time_for_a_head(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FramedConnection, "head_seconds", 0.2)
    server = serve()
    wire = connect(server)
    wire.send(struct.pack(">i", 6 << 20) + b"\n\x7f")
    with pytest.raises(ConnectionError):  # noqa: PT012 - a send after the server has closed the connection fails
        for _ in range(100):
            time.sleep(0.02)
            wire.send(b"\0")


# -- requests in progress ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_five_thousand_outstanding_requests_on_one_connection_are_all_answered(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], version: int
) -> None:
    """Adds, then reads: each time all are sent before an answer is read."""
    wire = connect(serve())
    count, entry = 5_000, bytes(300)
    if version == 2:
        adds = [kit.v2_add(stored(1, number, entry)) for number in range(count)]
        reads = [kit.v2_read(1, number) for number in range(count)]
    else:
        adds = [kit.v3_add(stored(1, number, entry), txn=number) for number in range(count)]
        reads = [kit.v3_read(1, number, txn=number) for number in range(count)]
    for requests in (adds, reads):
        sender = Thread(target=wire.send, args=requests)
        sender.start()
        if version == 2:
            answers = [wire.v2() for _ in range(count)]
            assert {(answer.code, answer.entry) for answer in answers} == {(OK, number) for number in range(count)}
        else:
            told = [wire.v3() for _ in range(count)]
            assert {(each.status, each.header.txnId) for each in told} == {(0, number) for number in range(count)}
        sender.join()


def test_changes_in_progress_hold_up_their_connection(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any
) -> None:
    """Not adds alone: fences, forces and LACs that wait for the disk have the limit of the connection."""
    server = serve(store=store, limits=Limits(connection_bytes=64 << 10))
    wire, desk = connect(server), kit.desk_of(server)
    assert wire.v2(kit.v2_add(stored(1, 0))).code == OK
    count = 2_000
    kinds = [
        lambda number: kit.explicit_lac(1, 0, txn=number),
        lambda number: kit.v3_fence(1, txn=number),
        lambda number: kit.v3_request(messages.FORCE_LEDGER, number, "forceLedgerRequest", ledgerId=1),
    ]
    with store.storage.committer.paused():
        sender = Thread(target=wire.send, args=[kinds[number % 3](number) for number in range(count)])
        sender.start()
        assert eventually(lambda: limits_exceeded(server)["connection_requests"] > 0)
        assert desk.load.bytes < 512 << 10
    assert {wire.v3().header.txnId for _ in range(count)} == set(range(count))
    sender.join()
    assert desk.load.bytes == 0


def test_changes_beyond_the_limit_of_the_server_are_refused(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any
) -> None:
    server = serve(store=store, limits=Limits(server_bytes=20_000))
    first, second = connect(server), connect(server)
    assert first.v2(kit.v2_add(stored(1, 0))).code == OK
    with store.storage.committer.paused():
        first.send(kit.v2_add(stored(1, 1, bytes(19_000))))
        assert eventually(lambda: kit.desk_of(server).load.bytes > 19_000)
        assert second.v3(kit.v3_fence(1)).status == messages.ETOOMANYREQUESTS
        assert second.v2(kit.v2_read(1, 0, kit.FENCE, kit.KEY)).code == TOO_MANY
        assert second.v2(kit.v2_read(1, 0)).code == OK
    assert first.v2().code == OK
    assert limits_exceeded(server)["server_bytes"] == 2
    assert second.v3(kit.v3_fence(1)).status == messages.EOK


def test_waiting_frames_count_for_the_limit_of_the_server(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    """Requests of clients that do not read: at most a buffer of each has been read from the socket."""
    server = serve(limits=Limits(server_bytes=4 << 20))
    wires, other = [connect(server) for _ in range(12)], connect(server)
    desk = kit.desk_of(server)
    assert other.v2(kit.v2_add(stored(1, 0, bytes(200_000)))).code == OK
    requests = kit.v2_read(1, 0) * 20_000
    for wire in wires:
        try:
            wire.send(requests)
        except ConnectionError:
            pass
    assert eventually(lambda: desk.figures.refused >= 4)
    assert eventually(lambda: desk.load.bytes <= 4 << 20)
    assert held(server)["frames"] > 400_000
    assert held(server)["answers"] > 0
    assert limits_exceeded(server)["server_bytes"] >= 4
    assert other.v2(kit.v2_add(stored(99, 0))).code == OK
    for wire in wires:
        wire.socket.close()
    assert eventually(lambda: desk.load.bytes == 0)
    assert held(server) == dict.fromkeys(held(server), 0)


# -- long polls --------------------------------------------------------------------------------------------------------


def test_long_polls_of_all_connections_are_limited(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    server = serve(limits=Limits(server_long_polls=3))
    first, second = connect(server), connect(server)
    first.v2(kit.v2_add(stored(1, 0)))
    first.send(*(kit.v3_long_poll(1, 5, 3_600_000, txn=n) for n in range(3)))
    assert eventually(lambda: kit.desk_of(server).figures.long_polls == 3)
    assert second.v3(kit.v3_long_poll(1, 5, 3_600_000)).status == messages.ETOOMANYREQUESTS
    assert limits_exceeded(server)["server_long_polls"] == 1
    first.socket.close()
    assert eventually(lambda: kit.desk_of(server).figures.long_polls == 0)
    assert second.v3(kit.v3_long_poll(1, 5, 1)).status == messages.EOK


def test_long_polls_are_answered_when_the_client_reads(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    """All end with one add, and each has its entry in the answer."""
    server = serve()
    slow, other = connect(server), connect(server)
    desk = kit.desk_of(server)
    large = stored(1, 1, bytes(1 << 20))
    other.v2(kit.v2_add(stored(1, 0)))
    slow.send(*(kit.v3_long_poll(1, 0, 3_600_000, txn=n) for n in range(100)))
    assert eventually(lambda: desk.figures.long_polls == 100)
    before = private_bytes()
    assert other.v2(kit.v2_add(large), kit.v2_add(stored(1, 2, lac=1))).code == OK
    assert other.v2().code == OK
    assert held(server)["answers"] < 8 << 20
    assert private_bytes() - before < 32 << 20
    assert desk.figures.long_polls > 50
    found = [slow.v3() for _ in range(100)]
    assert sorted(each.header.txnId for each in found) == list(range(100))
    assert all(each.readResponse.body == large for each in found)
    assert eventually(lambda: desk.figures.long_polls == 0)


def test_waiting_reads_are_removed_in_constant_time(store: Any) -> None:
    """Many of one ledger; a look at all others for each would take minutes."""

    async def run() -> float:
        polls = LongPolls(Bookie(store.storage, 1), asyncio.get_running_loop())
        stops = [polls.wait(1, number % 3, 3_600, lambda come: None) for number in range(30_000)]
        begun = time.monotonic()
        for stop in reversed(stops):
            stop()
        taken = time.monotonic() - begun
        assert not polls._ledgers
        polls.close()
        return taken

    assert asyncio.run(run()) < 10


def test_a_look_at_the_ledgers_of_waiting_reads_is_bounded(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's own writers confirm entries of many ledgers: each look reads some of them, and none is left out."""
    monkeypatch.setattr(long_polls, "LEDGERS_AT_ONCE", 50)
    read: list[int] = [0]
    enter, ledger_of = ReplicaReader.__enter__, ReplicaReader.ledger
    monkeypatch.setattr(ReplicaReader, "__enter__", lambda view: (read.append(0), enter(view))[1])

    def ledger(view: ReplicaReader, ledger_id: int) -> Any:
        read[-1] += 1
        return ledger_of(view, ledger_id)

    monkeypatch.setattr(ReplicaReader, "ledger", ledger)
    writers = [store.create_ledger() for _ in range(120)]

    async def run() -> set[int]:
        polls = LongPolls(Bookie(store.storage, 1), asyncio.get_running_loop())
        ended: set[int] = set()
        for writer in writers:
            polls.wait(writer.id, -1, 3_600, lambda come, number=writer.id: ended.add(number))  # type: ignore[misc]
        with ThreadPoolExecutor(4) as threads:
            for writer in writers * 2:
                threads.submit(writer.append, b"x")
            deadline = time.monotonic() + kit.PATIENCE
            while len(ended) < len(writers) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
        polls.close()
        return ended

    assert asyncio.run(run()) == {writer.id for writer in writers}
    assert max(read) == 50


def test_other_connections_are_served_while_many_reads_end(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them end with one add; each is answered once, whatever else happens between."""
    monkeypatch.setattr(long_polls, "READS_AT_ONCE", 10)
    server = serve()
    readers, leaving, other = [connect(server) for _ in range(3)], connect(server), connect(server)
    assert other.v2(kit.v2_add(stored(1, 0))).code == OK
    for reader in (*readers, leaving):
        reader.send(*(kit.v3_long_poll(1, 0, 3_600_000, txn=n) for n in range(100)))
    desk = kit.desk_of(server)
    assert eventually(lambda: desk.figures.long_polls == 400)
    other.send(kit.v2_add(stored(1, 1)), kit.v2_add(stored(1, 2)))
    leaving.socket.close()
    assert [other.v2().code for _ in range(2)] == [OK, OK]
    for reader in readers:
        answers = [reader.v3() for _ in range(100)]
        assert sorted(answer.header.txnId for answer in answers) == list(range(100))
        assert {answer.readResponse.entryId for answer in answers} == {1}
    assert eventually(lambda: desk.figures.long_polls == 0)
    assert not desk.long_polls._ledgers


def test_a_damaged_ledger_ends_the_reads_that_wait_for_it_and_no_others(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = connect(serve(store=store))
    writers = [store.create_ledger() for _ in range(2)]
    for writer in writers:
        writer.append(b"one")
    damaged, sound = (writer.id for writer in writers)
    wire.send(kit.v3_long_poll(damaged, 0, 3_600_000, txn=1), kit.v3_long_poll(sound, 0, 3_600_000, txn=2))
    assert wire.v2(kit.v2_read(sound, 0)).code == OK
    ledger_of = ReplicaReader.ledger

    def ledger(view: ReplicaReader, ledger_id: int) -> Any:
        if ledger_id == damaged:
            raise StoreDamagedError("its state is damaged")
        return ledger_of(view, ledger_id)

    monkeypatch.setattr(ReplicaReader, "ledger", ledger)
    for payload in (b"two", b"three"):
        writers[1].append(payload)
    found = {answer.header.txnId: answer for answer in (wire.v3(), wire.v3())}
    assert found[1].status == messages.EIO
    assert (found[2].status, found[2].readResponse.maxLAC) == (messages.EOK, 1)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(1, 2), st.integers(-1, 4)),
            st.tuples(st.just("stop"), st.integers(0, 30), st.just(0)),
            st.tuples(st.just("confirmed"), st.integers(1, 2), st.integers(-1, 5)),
        ),
        max_size=60,
    )
)
def test_a_new_lac_ends_the_reads_that_know_a_lower_one(store: Any, steps: list[tuple[str, int, int]]) -> None:
    """Compared with a list that is searched each time."""

    async def run() -> None:
        polls = LongPolls(Bookie(store.storage, 1), asyncio.get_running_loop())
        ended: set[int] = set()
        stops: list[Callable[[], object]] = []
        waiting: dict[int, tuple[int, int]] = {}
        for what, first, second in steps:
            if what == "wait":
                number = len(stops)
                waiting[number] = first, second
                stops.append(polls.wait(first, second, 3_600, lambda come, number=number: ended.add(number)))
            elif what == "stop":
                if first < len(stops):
                    assert bool(stops[first]()) == (first in waiting)
                    waiting.pop(first, None)
            else:
                expected = {number for number, (ledger, lac) in waiting.items() if ledger == first and lac < second}
                ended.clear()
                polls.confirmed(first, second)
                assert ended == expected
                waiting = {number: known for number, known in waiting.items() if number not in expected}
        polls.close()

    asyncio.run(run())


# -- the limits themselves ---------------------------------------------------------------------------------------------


def test_limits_have_metrics_from_the_start(serve: Callable[..., BookieServer]) -> None:
    server = serve()
    assert limits_exceeded(server) == {
        "frame": 0,
        "connection_requests": 0,
        "server_bytes": 0,
        "connection_long_polls": 0,
        "server_long_polls": 0,
    }
    assert held(server) == {"frames": 0, "requests": 0, "answers": 0}
    assert [sample.value for sample in server.samples() if sample.name == "bookstand_bookie_long_polls"] == [0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"frame_bytes": 0},
        {"frame_bytes": 1023},
        {"frame_bytes": 1 << 31},
        {"server_bytes": -1},
        {"long_polls": True},
        {"server_long_polls": 1.5},
    ],
)
def test_limits_are_positive(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(IncorrectParameterError, match=f"{name} must be .* not {value}"):
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
