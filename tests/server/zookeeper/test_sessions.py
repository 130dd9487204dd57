"""Sessions: what a client gets that asks for one, what is left of it while it is away, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from bookstand.ledger.cluster.ledger_path import ledger_path
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Code, CreateMode, Op
from bookstand.testing import VirtualClock
from tests.server.zookeeper.kit import Client, ClosedError, Serving, clients, eventually

EPHEMERAL = CreateMode.EPHEMERAL
OUTSTANDING = 20


@pytest.mark.parametrize(("asked", "given"), [(10_000, 10_000), (1, 4_000), (60_000, 40_000), (30_000, 30_000)])
def test_time_outs_are_bounded(connect: Callable[..., Client], asked: int, given: int) -> None:
    assert connect(timeout=asked).timeout == given


def test_each_session_is_another(connect: Callable[..., Client]) -> None:
    first, second = connect(), connect()
    assert first.session_id != second.session_id
    assert first.session_id > 0
    assert first.password != second.password


def test_ephemerals_end_with_their_session(connect: Callable[..., Client]) -> None:
    owner, watcher = connect(), connect()
    owner.create("/e", b"x", EPHEMERAL)
    owner.create("/kept")
    name = owner.create("/kept/n-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
    assert watcher.exists("/e", watch=True).ephemeral_owner == owner.session_id
    assert owner.call(Op.GET_EPHEMERALS, "/") == ["/e", name]
    assert owner.call(Op.GET_EPHEMERALS, "/kept") == [name]
    owner.close_session()
    assert watcher.wait_for_event() == (2, "/e")
    assert watcher.exists("/e") == Code.NO_NODE
    assert watcher.children("/kept") == []


def test_closing_is_answered_and_then_the_connection_ends(connect: Callable[..., Client]) -> None:
    client = connect()
    before = client.zxid
    assert client.call(Op.CLOSE_SESSION) is None
    assert client.zxid > before
    with pytest.raises(ClosedError):
        client.frame()


def test_a_session_outlives_its_connection(serving: Serving, connect: Callable[..., Client]) -> None:
    first = connect()
    first.create("/e", b"", EPHEMERAL)
    first.close()
    again = connect(session_id=first.session_id, password=first.password)
    assert (again.session_id, again.password, again.timeout) == (first.session_id, first.password, first.timeout)
    assert again.exists("/e").ephemeral_owner == first.session_id


def test_who_takes_a_session_over_ends_the_other_connection(connect: Callable[..., Client]) -> None:
    first = connect()
    second = connect(session_id=first.session_id, password=first.password)
    with pytest.raises((ClosedError, ConnectionError)):
        first.frame()
    assert second.create("/a") == "/a"


@pytest.mark.parametrize("what", ["password", "id"])
def test_nobody_takes_over_what_is_not_his(connect: Callable[..., Client], what: str) -> None:
    first = connect()
    session_id = first.session_id + (77 if what == "id" else 0)
    password = b"x" * 16 if what == "password" else first.password
    other = connect(session_id=session_id, password=password)
    assert (other.session_id, other.timeout) == (0, 0)
    with pytest.raises(ClosedError):
        other.frame()
    assert first.create("/a") == "/a"


def test_it_ends_when_nothing_is_heard_of_it_and_not_before(
    serving: Serving, connect: Callable[..., Client], clock: VirtualClock
) -> None:
    owner, watcher = connect(timeout=10_000), connect(timeout=40_000)
    owner.create("/e", b"", EPHEMERAL)
    assert watcher.exists("/e", watch=True)
    clock.advance(9.999)
    serving.do(lambda: None)
    assert watcher.exists("/e").ephemeral_owner == owner.session_id
    owner.ping()
    clock.advance(9.999)
    watcher.ping()
    assert sorted(serving.do(serving.server.sessions)) == sorted([owner.session_id, watcher.session_id])
    clock.advance(0.001)
    assert watcher.wait_for_event() == (2, "/e")
    assert watcher.exists("/e") == Code.NO_NODE
    with pytest.raises((ClosedError, ConnectionError)):
        owner.frame()
    gone = connect(session_id=owner.session_id, password=owner.password)
    assert (gone.session_id, gone.timeout) == (0, 0)


def test_sessions_and_ephemerals_outlive_the_server(store: Any, clock: VirtualClock) -> None:
    with Serving(store.storage, clock) as serving, clients(serving.port, 2) as (one, two):
        one.create("/one", b"", EPHEMERAL)
        two.create("/two", b"", EPHEMERAL)
        zxid = two.zxid
    clock.advance(1_000)
    with Serving(store.storage, clock) as serving:
        again = Client(serving.port).connect(session_id=one.session_id, password=one.password, seen=zxid)
        assert again.session_id == one.session_id
        assert again.exists("/one").ephemeral_owner == one.session_id
        assert again.exists("/two", watch=True).ephemeral_owner == two.session_id
        # The other one has its time-out from the restart on.
        clock.advance(29.9)
        again.ping()
        assert again.exists("/two").ephemeral_owner == two.session_id
        clock.advance(0.2)
        assert again.wait_for_event() == (2, "/two")
        assert again.exists("/one")
        again.close()


def test_zxids_go_on_after_a_restart(store: Any, clock: VirtualClock) -> None:
    with Serving(store.storage, clock) as serving, clients(serving.port) as (client,):
        client.create("/a")
        client.delete("/no")
        stat, zxid = client.exists("/a"), client.zxid
    with Serving(store.storage, clock) as serving, clients(serving.port) as (client,):
        assert client.exists("/a") == stat
        # A session takes one.
        assert client.zxid == zxid + 1
        client.create("/b")
        assert client.exists("/b").czxid == zxid + 2


def test_a_client_that_has_seen_more_is_another_store_s(serving: Serving) -> None:
    with Client(serving.port) as client, pytest.raises((ClosedError, ConnectionError)):
        client.connect(seen=10_000)


def test_requests_sent_right_behind_the_greeting(serving: Serving) -> None:
    """They wait until there is a session."""
    from bookstand.server.zookeeper.persistent_records import OPEN_ACL
    from bookstand.server.zookeeper.protocol import records
    from bookstand.server.zookeeper.protocol.jute import BOOL

    with Client(serving.port) as client:
        greeting = records.CONNECT_REQUEST.encode(records.ConnectRequest(0, 0, 10_000, 0, bytes(16)))
        client.send_frame(greeting + BOOL.encode(False))
        body = records.REQUESTS[Op.CREATE].encode(records.Create("/e", b"", OPEN_ACL, EPHEMERAL))
        client.send(Op.CREATE, body)
        client.send(Op.EXISTS, records.REQUESTS[Op.EXISTS].encode(records.PathAndWatch("/e", False)))
        session_id = records.CONNECT_RESPONSE.decode(client.frame()).session_id
        assert client.reply()[0].error == 0
        stat = records.RESULTS[Op.EXISTS].decode(client.reply()[1])
        assert stat.ephemeral_owner == session_id


def test_a_greeting_without_the_read_only_byte(serving: Serving) -> None:
    """Clients before 3.4 send none."""
    from bookstand.server.zookeeper.protocol import records

    with Client(serving.port) as client:
        client.send_frame(records.CONNECT_REQUEST.encode(records.ConnectRequest(0, 0, 10_000, 0, None)))
        assert records.CONNECT_RESPONSE.decode(client.frame()).session_id


def test_who_asks_for_no_session_is_not_waited_for(serving: Serving, clock: VirtualClock) -> None:
    with Client(serving.port) as silent:
        eventually(lambda: serving.do(lambda: len(serving.server._state.connections)) == 1)
        clock.advance(10.001)
        with pytest.raises((ClosedError, ConnectionError)):
            silent.frame()


def test_a_test_may_end_a_session_or_cut_its_connection(serving: Serving, connect: Callable[..., Client]) -> None:
    owner, other = connect(), connect()
    owner.create("/e", b"", EPHEMERAL)
    assert other.exists("/e", watch=True)
    assert serving.do(serving.server.disconnect, owner.session_id)
    with pytest.raises((ClosedError, ConnectionError)):
        owner.frame()
    eventually(lambda: not serving.do(serving.server.disconnect, owner.session_id))
    assert other.exists("/e")
    assert serving.do(serving.server.expire, owner.session_id)
    assert other.wait_for_event() == (2, "/e")
    assert not serving.do(serving.server.expire, owner.session_id)


def test_what_a_closed_session_has_asked_for_before_is_done(connect: Callable[..., Client]) -> None:
    """Many writes and the end, sent at once: all are answered, in order."""
    from bookstand.server.zookeeper.persistent_records import OPEN_ACL
    from bookstand.server.zookeeper.protocol import records

    client, other = connect(), connect()
    for number in range(50):
        body = records.REQUESTS[Op.CREATE].encode(records.Create(f"/n{number}", b"", OPEN_ACL, number % 2))
        client.send(Op.CREATE, body)
    last = client.send(Op.CLOSE_SESSION)
    assert [client.reply()[0].xid for _ in range(51)] == list(range(last - 50, last + 1))
    assert other.children("/") == sorted([f"n{number}" for number in range(0, 50, 2)] + ["zookeeper"])


@contextmanager
def constant_writes(clients: Sequence[Client]) -> Iterator[Callable[[], int]]:
    """Writes of several clients without a pause: there are always some that arrive while others are committed. Gives
    the number that the client with the fewest has had answered."""
    clients[0].create("/load")
    body = records.REQUESTS[Op.SET_DATA].encode(records.SetData("/load", b"x", -1))
    ended = Event()
    answered = dict.fromkeys(clients, 0)

    def write(client: Client) -> None:
        for _ in range(OUTSTANDING):
            client.send(Op.SET_DATA, body)
        while not ended.is_set():
            client.reply()
            client.send(Op.SET_DATA, body)
            answered[client] += 1
        for _ in range(OUTSTANDING):
            client.reply()

    writers = [Thread(target=write, args=[client]) for client in clients]
    for writer in writers:
        writer.start()
    try:
        yield lambda: min(answered.values())
    finally:
        ended.set()
        for writer in writers:
            writer.join()


def test_time_passes_while_others_write_without_a_pause(
    connect: Callable[..., Client], clock: VirtualClock, store: Any, serving: Serving
) -> None:
    """Sessions end, what was deleted is collected, and a connection without a greeting is closed."""
    loaded, leaving, silent = [connect() for _ in range(2)], connect(), Client(serving.port)
    leaving.create("/e", mode=CreateMode.EPHEMERAL)
    ledger = store.create_ledger()
    ledger.append(b"x")
    ledger.close()
    leaving.delete(ledger_path(ledger.id))
    leaving.close()
    with constant_writes(loaded) as answered, silent:

        def advance(seconds: float) -> None:
            """In steps, and with a request of the client in each."""
            for _ in range(int(seconds / 10)):
                clock.advance(10)
                more = answered() + OUTSTANDING
                eventually(lambda more=more: answered() > more)

        advance(60)
        eventually(lambda: store.storage.node("/e") is None)
        with pytest.raises((ClosedError, ConnectionError)):
            silent.frame()
        advance(660)
        eventually(lambda: store.storage.entry(ledger.id, 0) is None)
    assert loaded[0].exists("/load")


def test_sessions_expire_between_commits_that_follow_each_other(
    serving: Serving, connect: Callable[..., Client], clock: VirtualClock, store: Any
) -> None:
    """Whenever the clock is looked at, a commit is under way."""
    server = serving.server
    idle, writer = connect(timeout=4_000), connect(timeout=40_000)
    writer.create("/a")

    def look_once() -> None:
        server._timer.cancel()
        server._pass_time(server._rounds)
        server._timer.cancel()

    with store.storage.committer.paused():
        writer.send(Op.SET_DATA, records.REQUESTS[Op.SET_DATA].encode(records.SetData("/a", b"", -1)))
        eventually(lambda: serving.do(lambda: server._rounds.busy))
        clock.advance(5)
        serving.do(look_once)
    writer.reply()
    eventually(lambda: serving.do(server.sessions) == [writer.session_id])
    with pytest.raises((ClosedError, ConnectionError)):
        idle.frame()
