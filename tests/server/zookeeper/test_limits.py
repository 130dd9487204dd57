"""Limits of what a server buffers for its clients: requests, answers, watches, identities, words."""

from __future__ import annotations

import socket
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from kazoo.client import KazooClient

from bookstand.server.framing import FramedConnection
from bookstand.server.zookeeper import connection, four_letter_words, read_operations, watches
from bookstand.server.zookeeper import write_round as pending
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records, requests
from bookstand.server.zookeeper.protocol.protocol import (
    MAX_FRAME,
    XID_AUTH,
    XID_SET_WATCHES,
    Code,
    Op,
    Permission,
    WatcherType,
    WatchMode,
)
from bookstand.server.zookeeper.protocol.records import Acl
from bookstand.testing import VirtualClock
from tests.server.zookeeper.kit import PATIENCE, Client, ClosedError, Serving, eventually, multi_body
from tests.server.zookeeper.test_robustness import connections, resident_bytes
from tests.server.zookeeper.test_words import ask

MANY = 5_000
GREEDY_ANSWER = 900_000


def figures(serving: Serving, name: str, label: str = "limit") -> dict[str, float]:
    samples = serving.do(lambda: list(serving.server.samples()))
    name = f"bookstand_zookeeper_{name}"
    return {sample.labels.get(label, ""): sample.value for sample in samples if sample.name == name}


def limits_exceeded(serving: Serving) -> dict[str, float]:
    return figures(serving, "limit_exceeded_total")


def held(serving: Serving) -> dict[str, float]:
    return figures(serving, "held_bytes", "buffer")


def send_all(client: Client, frames: list[bytes]) -> Thread:
    """While the test reads: a client that only sends waits for the server's buffers, and the server for its."""
    octets = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    sender = Thread(target=client.socket.sendall, args=[octets])
    sender.start()
    return sender


def frame(xid: int, op: Op, request: Any) -> bytes:
    body = multi_body(request) if op in (Op.MULTI, Op.MULTI_READ) else records.REQUESTS[op].encode(request)
    return records.REQUEST_HEADER.encode(records.RequestHeader(xid, op)) + body


def test_limits_have_metrics_from_the_start(serving: Serving) -> None:
    assert limits_exceeded(serving) == {
        "frame": 0,
        "connection_requests": 0,
        "connection_unread": 0,
        "server_bytes": 0,
        "answer": 0,
        "watches": 0,
        "identities": 0,
    }
    assert held(serving) == {"frames": 0, "requests": 0, "answers": 0}
    assert figures(serving, "watch_bytes") == {"": 0}


# -- requests that wait ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["writes", "both", "multi"])
def test_five_thousand_outstanding_requests_on_one_connection_are_all_answered(
    connect: Callable[..., Client], kind: str
) -> None:
    client = connect()
    client.create("/a")
    read = Op.EXISTS, records.PathAndWatch("/a", False)
    write = Op.SET_DATA, records.SetData("/a", b"x", -1)
    kinds = {
        "writes": [write],
        # A read waits for the commit of the write before it.
        "both": [read] * 99 + [write],
        "multi": [(Op.MULTI_READ, [(Op.GET_DATA, records.PathAndWatch("/a", False))] * 2)],
    }[kind]
    sender = send_all(client, [frame(number, *kinds[number % len(kinds)]) for number in range(MANY)])
    answers = [client.reply()[0] for _ in range(MANY)]
    assert [answer.xid for answer in answers] == list(range(MANY))
    assert {answer.error for answer in answers} == {0}
    sender.join()
    client.ping()


def test_five_thousand_outstanding_requests_of_kazoo_are_all_answered(serving: Serving) -> None:
    client = KazooClient(hosts=f"127.0.0.1:{serving.port}", timeout=30)
    client.start(timeout=PATIENCE)
    client.create("/a", b"0")
    pending = [client.set_async("/a", b"1") for _ in range(MANY // 2)]
    pending += [client.get_async("/a") for _ in range(MANY // 2)]
    assert len([each.get(timeout=PATIENCE) for each in pending]) == MANY
    assert client.get("/a")[1].version == MANY // 2
    client.stop()
    client.close()


@pytest.mark.parametrize("count", [1_000, 1_001, 2_001])
def test_a_connection_is_read_while_nothing_is_outstanding(
    serving: Serving, connect: Callable[..., Client], count: int
) -> None:
    """Around the limit of waiting requests, before and after: whatever was waiting when it was reached."""
    client, other = connect(), connect()
    client.create("/a")
    requests_ = [frame(number, Op.EXISTS, records.PathAndWatch("/a", False)) for number in range(count)]
    sender = send_all(client, requests_)
    assert [client.reply()[0].xid for _ in range(count)] == list(range(count))
    sender.join()
    client.ping()
    assert other.exists("/a").version == 0
    assert serving.do(lambda: all(each._reading for each in serving.server._state.connections))


def test_large_requests_that_wait_are_read_in_turn(serving: Serving, connect: Callable[..., Client]) -> None:
    client = connect()
    client.create("/a")
    large = frame(1, Op.SET_DATA, records.SetData("/a", bytes(1_000_000), -1))
    sender = send_all(client, [large] * 30)
    for _ in range(30):
        assert client.reply()[0].error == 0
    sender.join()
    assert client.exists("/a").version == 30


def test_a_client_that_fills_each_commit_does_not_keep_others_waiting(
    serving: Serving, connect: Callable[..., Client], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "BATCH_WRITES", 50)
    client, other = connect(), connect()
    client.create("/a")
    count, begin = 900, client.zxid
    state = serving.server._state
    with store.storage.committer.paused():
        one = frame(1, Op.SET_DATA, records.SetData("/a", b"", -1))
        sender = send_all(client, [one] * count)
        # Of the first commit as many as have arrived by then.
        eventually(lambda: serving.do(lambda: state.outstanding) >= count - 50)
        other.send(Op.PING, xid=-2)
        eventually(lambda: serving.do(lambda: sum(bool(each.frames) for each in state.connections)) == 2)
    header, _ = other.reply()
    assert header.zxid - begin <= 150
    assert {client.reply()[0].error for _ in range(count)} == {0}
    sender.join()


def test_waiting_requests_count_for_the_limit_of_the_server(
    serving: Serving, connect: Callable[..., Client], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELD_IN_ALL_BYTES", 8 << 20)
    other = connect()
    other.create("/a")
    writers = [connect() for _ in range(10)]
    large = frame(1, Op.SET_DATA, records.SetData("/a", bytes(500_000), -1))
    with store.storage.committer.paused():
        other.send(Op.SET_DATA, records.REQUESTS[Op.SET_DATA].encode(records.SetData("/a", b"", -1)))
        eventually(lambda: serving.do(lambda: serving.server._rounds.busy))
        for writer in writers:
            try:
                writer.socket.sendall((len(large).to_bytes(4, "big") + large) * 4)
            except OSError:
                pass
        eventually(lambda: connections(serving) < 9)
        assert serving.do(lambda: serving.server._state.held_bytes) <= 8 << 20
        assert held(serving)["requests"] > 0
        assert limits_exceeded(serving)["server_bytes"] > 0
    assert other.reply()[0].error == 0
    for writer in writers:
        writer.close()
    eventually(lambda: serving.do(lambda: serving.server._state.held_bytes) == 0)
    assert other.exists("/a")


# -- answers -----------------------------------------------------------------------------------------------------------


def test_the_answer_of_a_multi_read_is_bounded(serving: Serving, connect: Callable[..., Client]) -> None:
    """11 KB of requests for a large value: what a client would refuse, the server does not make."""
    client = connect()
    client.create("/large", bytes(1_000_000))
    before = resident_bytes()
    wanted = [(Op.GET_DATA, records.PathAndWatch("/large", False))] * 500
    assert len(multi_body(wanted)) < 12_000
    assert client.call(Op.MULTI_READ, wanted) == Code.CONNECTION_LOSS
    assert resident_bytes() - before < 48 << 20
    assert limits_exceeded(serving)["answer"] == 1
    # One by one, as a broker then asks, and in smaller batches.
    assert len(client.get("/large")[0]) == 1_000_000
    found = client.call(Op.MULTI_READ, wanted[:10])
    assert [len(result[0]) for result in found] == [1_000_000] * 10


def test_the_names_of_a_multi_read_are_bounded(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_operations, "ANSWER_BYTES", 100_000)
    monkeypatch.setattr(requests, "ANSWER_BYTES", 100_000)
    client = connect()
    client.create("/p")
    names = [f"{number:03d}" + "x" * 200 for number in range(300)]
    for begin in range(0, 300, 100):
        creates = [(Op.CREATE, records.Create(f"/p/{name}", b"", OPEN_ACL, 0)) for name in names[begin : begin + 100]]
        client.multi(*creates)
    children = Op.GET_CHILDREN, records.PathAndWatch("/p", False)
    assert client.call(Op.MULTI_READ, [children])[0] == names
    assert client.call(Op.MULTI_READ, [children] * 2) == Code.CONNECTION_LOSS
    monkeypatch.setattr(requests, "ANSWER_BYTES", 50_000)
    assert client.children("/p") == Code.CONNECTION_LOSS
    assert client.call(Op.GET_CHILDREN2, records.PathAndWatch("/p", False)) == Code.CONNECTION_LOSS
    assert limits_exceeded(serving)["answer"] == 3
    assert client.exists("/p").children == 300


def test_what_a_multi_read_reads_for_errors_is_bounded(serving: Serving, connect: Callable[..., Client]) -> None:
    """A large value that the client may not read."""
    client, count = connect(), 100
    client.create("/large", bytes(1_000_000), acl=[Acl(int(Permission.ADMIN), "world", "anyone")])
    wanted = [(Op.GET_DATA, records.PathAndWatch("/large", False))] * count
    assert client.call(Op.MULTI_READ, wanted) == Code.CONNECTION_LOSS
    assert client.call(Op.MULTI_READ, wanted[:10]) == [Code.NO_AUTH] * 10
    assert limits_exceeded(serving)["answer"] == 1
    small = [(Op.GET_DATA, records.PathAndWatch("/none", False))] * 10_000
    assert client.call(Op.MULTI_READ, small) == [Code.NO_NODE] * 10_000


def test_what_a_multi_reads_is_bounded(connect: Callable[..., Client]) -> None:
    """No client is served while it is committed."""
    client = connect()
    client.create("/large", bytes(1_000_000))
    checks = [(Op.CHECK, records.Check("/large", 0))] * 100
    assert client.multi(*checks, (Op.SET_DATA, records.SetData("/large", b"", -1))) == Code.CONNECTION_LOSS
    assert client.exists("/large").version == 0
    assert len(client.multi(*checks[:20], (Op.SET_DATA, records.SetData("/large", b"", -1)))) == 21
    assert len(client.multi(*[(Op.CHECK, records.Check("/large", 1))] * 10_000)) == 10_000


def test_a_client_that_never_reads_is_counted(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_BYTES", 2 << 20)
    greedy, other = connect(), connect()
    other.create("/large", bytes(GREEDY_ANSWER))
    wanted = [(Op.GET_DATA, records.PathAndWatch("/large", False))] * 15
    for _ in range(10):
        greedy.send(Op.MULTI_READ, multi_body(wanted))
    eventually(lambda: connections(serving) == 1)
    assert limits_exceeded(serving)["connection_unread"] == 1
    assert other.exists("/large")


def test_a_session_that_expires_with_unread_answers_does_not_hold_them(
    serving: Serving, connect: Callable[..., Client], clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FramedConnection, "closing_seconds", 0.2)
    greedy, other = connect(timeout=4_000), connect(timeout=40_000)
    other.create("/large", bytes(GREEDY_ANSWER))
    wanted = [(Op.GET_DATA, records.PathAndWatch("/large", False))] * 10
    greedy.send(Op.MULTI_READ, multi_body([*wanted, *wanted[:5]]))
    eventually(lambda: held(serving)["answers"] > 0)
    clock.advance(5)
    eventually(lambda: serving.do(serving.server.sessions) == [other.session_id])
    eventually(lambda: connections(serving) == 1)
    assert held(serving)["answers"] == 0


# -- frames ------------------------------------------------------------------------------------------------------------


def test_frames_over_the_limit_are_counted(serving: Serving, connect: Callable[..., Client]) -> None:
    client, other = connect(), connect()
    client.socket.sendall((MAX_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises((ClosedError, ConnectionError)):
        client.frame()
    assert limits_exceeded(serving)["frame"] == 1
    assert other.create("/a") == "/a"


# -- watches and identities --------------------------------------------------------------------------------------------


def test_watches_of_a_connection_are_bounded(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "CONNECTION_BYTES", 5_000)
    client, other = connect(), connect()
    answers = [client.exists(f"/n{number}", watch=True) for number in range(100)]
    assert answers[0] == Code.NO_NODE
    assert answers[-1] == Code.THROTTLED_OP
    count = answers.index(Code.THROTTLED_OP)
    assert limits_exceeded(serving)["watches"] == 100 - count
    # Those that it has go on, another connection may watch, and a watch that is used up makes room.
    assert client.exists("/n0", watch=True) == Code.NO_NODE
    assert other.exists("/n99", watch=True) == Code.NO_NODE
    other.create("/n0")
    assert client.wait_for_event() == (1, "/n0")
    assert client.exists("/n99", watch=True) == Code.NO_NODE
    assert client.call(Op.ADD_WATCH, records.PathAndNumber("/m", WatchMode.PERSISTENT)) == Code.THROTTLED_OP
    assert client.call(Op.REMOVE_WATCHES, records.PathAndNumber("/n1", WatcherType.ANY)) is None
    assert client.call(Op.ADD_WATCH, records.PathAndNumber("/m", WatchMode.PERSISTENT)) == 0


def test_watches_of_all_connections_are_bounded_and_end_with_them(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "SERVER_BYTES", 5_000)
    first, second = connect(), connect()
    while first.exists(f"/n{first.xid}", watch=True) != Code.THROTTLED_OP:
        pass
    assert second.exists("/a", watch=True) == Code.THROTTLED_OP
    assert 4_000 < figures(serving, "watch_bytes")[""] <= 5_000
    first.close()
    eventually(lambda: figures(serving, "watch_bytes")[""] == 0)
    assert second.exists("/a", watch=True) == Code.NO_NODE
    second.create("/a")
    assert second.events == [(1, "/a")]
    assert figures(serving, "watch_bytes")[""] == 0


@pytest.mark.parametrize("op", [Op.SET_WATCHES, Op.SET_WATCHES2])
def test_watches_that_cannot_be_restored_end_the_connection(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, op: Op
) -> None:
    """Clients do not look at the answer; without their watches they would miss events."""
    monkeypatch.setattr(watches, "CONNECTION_BYTES", 5_000)
    client = connect()
    lists = [[f"/n{number}" for number in range(100)], [], []]
    request = records.SetWatches(0, [], *lists[:2]) if op is Op.SET_WATCHES else records.SetWatches2(0, [], *lists, [])
    assert client.call(op, request, xid=XID_SET_WATCHES) == Code.THROTTLED_OP
    with pytest.raises((ClosedError, ConnectionError)):
        client.frame()


def test_identities_of_a_connection_are_bounded(serving: Serving, connect: Callable[..., Client]) -> None:
    client = connect()

    def prove(number: int) -> Any:
        return client.call(Op.AUTH, records.Auth(0, "digest", b"user:%d" % number), xid=XID_AUTH)

    # One of them is its address.
    assert [prove(number) for number in range(requests.MOST_IDENTITIES - 1)] == [None] * (requests.MOST_IDENTITIES - 1)
    assert prove(0) is None
    assert prove(requests.MOST_IDENTITIES) == Code.AUTH_FAILED
    with pytest.raises((ClosedError, ConnectionError)):
        client.frame()
    assert limits_exceeded(serving)["identities"] == 1


def test_identities_of_a_connection_take_bounded_memory(serving: Serving, connect: Callable[..., Client]) -> None:
    client = connect()

    def prove(size: int) -> Any:
        return client.call(Op.AUTH, records.Auth(0, "digest", b"u" * size + b":password"), xid=XID_AUTH)

    assert [prove(7_000), prove(8_000)] == [None, None]
    assert prove(7_500) == Code.AUTH_FAILED
    assert limits_exceeded(serving)["identities"] == 1


def test_access_control_lists_are_bounded(connect: Callable[..., Client], store: Any) -> None:
    """``auth`` stands for each identity of the client."""
    client = connect()
    for number in range(20):
        client.call(Op.AUTH, records.Auth(0, "digest", b"%d" % number + b"u" * 700 + b":pw"), xid=XID_AUTH)
    assert client.create("/a", acl=[Acl(31, "auth", "")]) == "/a"
    assert len(client.call(Op.GET_ACL, "/a")[0]) == 20
    expanding = [Acl(number, "auth", "") for number in range(1, 31)]
    assert client.create("/b", acl=expanding) == Code.INVALID_ACL
    assert client.call(Op.SET_ACL, records.SetAcl("/a", expanding, -1)) == Code.INVALID_ACL
    assert client.create("/c", acl=[Acl(31, "auth", "")] * 30) == "/c"
    assert client.create("/d", acl=[Acl(31, "ip", f"10.0.0.{number % 256}") for number in range(20_000)]) == "/d"
    assert client.create("/e", acl=[Acl(number, "ip", "10.0.0.1") for number in range(1, 2_000)]) == Code.INVALID_ACL


# -- words -------------------------------------------------------------------------------------------------------------


def test_what_a_word_answers_is_bounded(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(four_letter_words, "MOST_CHARACTERS", 1_000)
    client = connect()
    for number in range(200):
        client.exists(f"/n{number:03d}", watch=True)
    for word in ("wchp", "wchc"):
        lines = ask(serving.port, word).splitlines()
        assert sum(map(len, lines)) < 1_100
        assert lines[-1].startswith("... and more: ")
        assert lines[-1].endswith(" lines are left out")


def test_a_client_that_asks_for_words_and_never_reads_is_not_held_for_ever(
    serving: Serving, connect: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNREAD_BYTES", 100_000)
    client = connect()
    path = "/" + "x" * 400
    for number in range(4_000):
        client.send(Op.EXISTS, records.REQUESTS[Op.EXISTS].encode(records.PathAndWatch(f"{path}{number}", True)))
    for _ in range(4_000):
        client.reply()
    with socket.create_connection(("127.0.0.1", serving.port), timeout=PATIENCE) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        other.sendall(b"wchp")
        eventually(lambda: connections(serving) == 1)
