"""Znodes through the wire: what they hold, what is counted of them, and what is refused with which code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookstand.server.zookeeper import server
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Code, CreateMode, Op
from bookstand.testing import VirtualClock
from tests.server.zookeeper.kit import Client, ClosedError, Serving, eventually


def test_a_new_store_has_what_zookeeper_has(client: Client) -> None:
    data, stat = client.get("/")
    assert (data, stat.version, stat.cversion, stat.children) == (b"", 0, -1, 1)
    assert client.children("/") == ["zookeeper"]
    assert client.children("/zookeeper") == ["config", "quota"]
    assert client.get("/zookeeper/config")[1].aversion == -1


def test_a_value_and_its_stat(client: Client, clock: VirtualClock) -> None:
    created = clock.now()
    assert client.create("/a", b"one") == "/a"
    made = client.zxid
    clock.advance(5)
    assert client.set("/a", b"four").version == 1
    data, stat = client.get("/a")
    assert data == b"four"
    assert stat == records.Stat(made, client.zxid, created, created + 5_000, 1, 0, 0, 0, 4, 0, made)


def test_null_is_not_empty(client: Client) -> None:
    client.create("/null", None)
    client.create("/empty", b"")
    assert client.get("/null")[0] is None
    assert client.get("/empty")[0] == b""
    assert client.call(Op.SET_DATA, records.SetData("/empty", None, -1)).data_length == 0
    assert client.get("/empty")[0] is None


def test_creations_and_deletions_of_children_are_counted(client: Client) -> None:
    client.create("/a")
    for name in ("x", "y", "z"):
        client.create(f"/a/{name}")
    client.delete("/a/x")
    stat = client.exists("/a")
    assert (stat.version, stat.cversion, stat.children, stat.pzxid) == (0, 4, 2, client.zxid)
    assert client.children("/a") == ["y", "z"]


def test_sequential_names_go_on_where_others_were_deleted(client: Client) -> None:
    client.create("/q")
    mode = CreateMode.PERSISTENT_SEQUENTIAL
    assert client.create("/q/n-", mode=mode) == "/q/n-0000000000"
    assert client.create("/q/other") == "/q/other"
    client.delete("/q/n-0000000000")
    assert client.create("/q/n-", mode=mode) == "/q/n-0000000002"
    assert client.create("/q/", mode=mode) == "/q/0000000003"
    assert client.create("/", mode=mode) == "/0000000001"


def test_names_that_begin_alike_are_told_apart(client: Client) -> None:
    """A name with a character that sorts before the slash lies between another and what is below that."""
    for path in ("/a", "/a/x", "/a-b", "/a-b/y", "/a.c", "/a0", "/a/x/deep", "/ä"):
        assert client.create(path) == path
    assert client.children("/") == ["a", "a-b", "a.c", "a0", "zookeeper", "ä"]
    assert client.children("/a") == ["x"]
    assert client.delete("/a") == Code.NOT_EMPTY
    assert client.call(Op.GET_ALL_CHILDREN_NUMBER, "/a") == 2


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda c: c.create("/no/way"), Code.NO_NODE),
        (lambda c: c.create("/there"), Code.NODE_EXISTS),
        (lambda c: c.create("/"), Code.NODE_EXISTS),
        (lambda c: c.create("relative"), Code.BAD_ARGUMENTS),
        (lambda c: c.create("/a//b"), Code.BAD_ARGUMENTS),
        (lambda c: c.create("/a/../b"), Code.BAD_ARGUMENTS),
        (lambda c: c.create("/there/"), Code.BAD_ARGUMENTS),
        (lambda c: c.create("/\x01"), Code.BAD_ARGUMENTS),
        (lambda c: c.create("/" + "x" * 600), Code.BAD_ARGUMENTS),
        (lambda c: c.create("/mode", mode=9), Code.BAD_ARGUMENTS),
        (lambda c: c.create("/ephemeral/child"), Code.NO_CHILDREN_FOR_EPHEMERALS),
        (lambda c: c.create("/noacl", acl=[]), Code.INVALID_ACL),
        (lambda c: c.delete("/no"), Code.NO_NODE),
        (lambda c: c.delete("/"), Code.BAD_ARGUMENTS),
        (lambda c: c.delete("/there", version=7), Code.BAD_VERSION),
        (lambda c: c.delete("/full"), Code.NOT_EMPTY),
        (lambda c: c.set("/no", b""), Code.NO_NODE),
        (lambda c: c.set("/there", b"", version=3), Code.BAD_VERSION),
        (lambda c: c.get("/no"), Code.NO_NODE),
        (lambda c: c.exists("/no"), Code.NO_NODE),
        (lambda c: c.children("/no"), Code.NO_NODE),
        (lambda c: c.call(Op.GET_ACL, "/no"), Code.NO_NODE),
    ],
)
def test_refusals(client: Client, request_of: Callable[[Client], Any], code: Code) -> None:
    client.create("/there")
    client.create("/full")
    client.create("/full/child")
    client.create("/ephemeral", mode=CreateMode.EPHEMERAL)
    assert request_of(client) == code


def test_a_refused_write_uses_a_zxid(client: Client) -> None:
    client.create("/a")
    before = client.zxid
    assert client.delete("/no") == Code.NO_NODE
    assert client.zxid == before + 1
    assert client.exists("/no") == Code.NO_NODE
    assert client.zxid == before + 1


def test_the_version_after_the_largest() -> None:
    from bookstand.server.zookeeper.persistent_records import next_version

    assert next_version(5) == 6
    assert next_version((1 << 31) - 1) == -(1 << 31)
    assert next_version(-2) == 0


def test_create2_and_containers_answer_with_a_stat(client: Client) -> None:
    path, stat = client.call(Op.CREATE2, records.Create("/a", b"abc", OPEN_ACL, 0))
    assert (path, stat.data_length, stat.czxid) == ("/a", 3, client.zxid)
    path, stat = client.call(Op.CREATE_CONTAINER, records.Create("/c", b"", OPEN_ACL, CreateMode.CONTAINER))
    assert (path, stat.ephemeral_owner) == ("/c", 0)
    assert client.call(Op.CREATE_CONTAINER, records.Create("/d", b"", OPEN_ACL, 0)) == Code.BAD_ARGUMENTS


def test_containers_go_when_their_last_child_has_gone(serving: Serving, client: Client, clock: VirtualClock) -> None:
    for path in ("/used", "/unused", "/full"):
        client.call(Op.CREATE_CONTAINER, records.Create(path, b"", OPEN_ACL, CreateMode.CONTAINER))
    client.create("/used/child")
    client.create("/full/child")
    client.delete("/used/child")
    assert client.exists("/used", watch=True)
    serving.do(serving.server.sweep)
    assert client.wait_for_event() == (2, "/used")
    assert client.exists("/used") == Code.NO_NODE
    assert client.exists("/unused").children == 0
    assert client.exists("/full").children == 1


def test_containers_are_swept_as_time_passes(serving: Serving, client: Client, clock: VirtualClock) -> None:
    client.call(Op.CREATE_CONTAINER, records.Create("/c", b"", OPEN_ACL, CreateMode.CONTAINER))
    client.create("/c/child")
    client.delete("/c/child")
    assert client.exists("/c").children == 0
    for _ in range(4):
        clock.advance(20)
        client.ping()
    eventually(lambda: client.exists("/c") == Code.NO_NODE)


def test_znodes_with_a_time_to_live(serving: Serving, client: Client, clock: VirtualClock) -> None:
    def create(path: str, ttl: int, mode: int = CreateMode.PERSISTENT_WITH_TTL) -> Any:
        return client.call(Op.CREATE_TTL, records.CreateTtl(path, b"", OPEN_ACL, mode, ttl))

    assert create("/t", 5_000)[0] == "/t"
    assert create("/n-", 60_000, CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL)[0] == "/n-0000000001"
    assert create("/p", 5_000)[0] == "/p"
    client.create("/p/child")
    assert create("/x", 0) == Code.BAD_ARGUMENTS
    assert create("/x", 1 << 41) == Code.BAD_ARGUMENTS
    assert create("/x", 5, CreateMode.PERSISTENT) == Code.BAD_ARGUMENTS
    assert client.create("/x", mode=CreateMode.PERSISTENT_WITH_TTL) == Code.BAD_ARGUMENTS
    clock.advance(5)
    serving.do(serving.server.sweep)
    assert client.exists("/t").children == 0
    clock.advance(0.001)
    serving.do(serving.server.sweep)
    assert client.exists("/t") == Code.NO_NODE
    assert client.exists("/p").children == 1
    assert client.exists("/n-0000000001").children == 0


def test_requests_that_are_none(connect: Callable[..., Client]) -> None:
    client = connect()
    client.send(55)
    assert client.reply()[0].error == Code.UNIMPLEMENTED
    with pytest.raises(ClosedError):
        client.reply()
    client = connect()
    client.send(Op.CREATE, b"\0\0\0\x05/")
    assert client.reply()[0].error == Code.MARSHALLING_ERROR
    client.send(Op.GET_DATA, b"")
    assert client.reply()[0].error == Code.MARSHALLING_ERROR
    assert client.create("/still/here") == Code.NO_NODE


def test_answers_come_in_the_order_of_requests(client: Client) -> None:
    """Reads wait for what the same client has written before; errors do not overtake."""
    client.create("/a")
    for number in range(300):
        client.send(Op.SET_DATA, records.REQUESTS[Op.SET_DATA].encode(records.SetData("/a", b"%d" % number, -1)))
        client.send(Op.GET_DATA, records.REQUESTS[Op.GET_DATA].encode(records.PathAndWatch("/a", False)))
        client.send(Op.CREATE, b"")
    begun = client.xid - 900
    for number in range(300):
        xids = []
        for _ in range(3):
            header, body = client.reply()
            xids.append(header.xid)
            if (header.xid - begun) % 3 == 2:
                assert records.RESULTS[Op.GET_DATA].decode(body)[0] == b"%d" % number
        assert xids == [begun + 3 * number + step for step in (1, 2, 3)]


def test_a_megabyte_fits(client: Client) -> None:
    value = bytes(range(256)) * 4000
    client.create("/large", value)
    assert client.get("/large")[0] == value


def test_a_sweep_looks_at_some_znodes_in_each_turn_of_the_loop(
    serving: Serving, client: Client, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "SWEPT_AT_ONCE", 20)
    mode = CreateMode.PERSISTENT_WITH_TTL
    creates = [records.CreateTtl(f"/t{number}", b"", OPEN_ACL, mode, 5 + number % 2 * 60_000) for number in range(190)]
    client.multi(*((Op.CREATE_TTL, one) for one in creates))
    clock.advance(1)
    tree, looks = serving.server._state.tree, 0
    find = tree.find

    def counted(path: str) -> Any:
        nonlocal looks
        looks += 1
        return find(path)

    def sweep() -> int:
        """Number of looks in this turn."""
        before = looks
        serving.server.sweep()
        serving.server.sweep()
        return looks - before

    monkeypatch.setattr(tree, "find", counted)
    assert serving.do(sweep) == 20
    eventually(lambda: serving.do(lambda: serving.server._state.znodes) == 4 + 95)
    assert looks == 190
    left = [f"t{number}" for number in range(1, 190, 2)]
    assert sorted(client.children("/")) == sorted([*left, "zookeeper"])


def test_deleted_znodes_are_not_swept(serving: Serving, client: Client) -> None:
    """What is created and deleted takes no memory until the next sweep."""
    mode = CreateMode.PERSISTENT_WITH_TTL
    for number in range(3):
        client.call(Op.CREATE_TTL, records.CreateTtl(f"/t{number}", b"", OPEN_ACL, mode, 5_000))
    client.delete("/t0")
    client.multi((Op.DELETE, records.Delete("/t1", -1)), (Op.CREATE, records.Create("/t1", b"", OPEN_ACL, 0)))
    assert serving.do(lambda: serving.server._state.mortal) == {"/t2"}
