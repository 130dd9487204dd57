"""Several operations as one, and several reads in one."""

from __future__ import annotations

from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Code, CreateMode, Op
from tests.server.zookeeper.kit import Client


def create(path: str, data: bytes = b"", mode: int = 0) -> tuple[Op, records.Create]:
    return Op.CREATE, records.Create(path, data, OPEN_ACL, mode)


def test_all_of_it(client: Client) -> None:
    client.create("/old", b"1")
    before = client.zxid
    results = client.multi(
        create("/a"),
        create("/a/b", b"x"),
        (Op.SET_DATA, records.SetData("/a/b", b"yy", 0)),
        (Op.CHECK, records.Check("/a/b", 1)),
        (Op.DELETE, records.Delete("/old", 0)),
        create("/a/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL),
        (Op.CREATE_CONTAINER, records.Create("/c", b"", OPEN_ACL, CreateMode.CONTAINER)),
    )
    assert results[:2] == ["/a", "/a/b"]
    assert (results[2].version, results[2].data_length) == (1, 2)
    assert results[3:6] == [True, True, "/a/n-0000000001"]
    assert results[6][0] == "/c"
    # One write, one zxid.
    assert client.zxid == before + 1
    stat = client.exists("/a")
    assert (stat.czxid, stat.pzxid, stat.cversion) == (client.zxid, client.zxid, 2)


def test_none_of_it(client: Client) -> None:
    client.create("/there")
    before = client.exists("/").cversion
    results = client.multi(create("/a"), create("/there"), create("/b"), (Op.DELETE, records.Delete("/no", -1)))
    assert results == [Code.OK, Code.NODE_EXISTS, Code.RUNTIME_INCONSISTENCY, Code.RUNTIME_INCONSISTENCY]
    assert client.exists("/a") == Code.NO_NODE
    assert client.exists("/").cversion == before


def test_nothing_at_all(client: Client) -> None:
    assert client.multi() == []


def test_a_check_that_fails(client: Client) -> None:
    client.create("/a")
    assert client.multi((Op.CHECK, records.Check("/a", 4)), create("/b")) == [
        Code.BAD_VERSION,
        Code.RUNTIME_INCONSISTENCY,
    ]


def test_reads_are_each_by_themselves(client: Client) -> None:
    client.create("/a", b"x")
    results = client.call(
        Op.MULTI_READ,
        [
            (Op.GET_DATA, records.PathAndWatch("/a", False)),
            (Op.GET_DATA, records.PathAndWatch("/no", False)),
            (Op.GET_CHILDREN, records.PathAndWatch("/", False)),
        ],
    )
    assert results[0][0] == b"x"
    assert results[1:] == [Code.NO_NODE, ["a", "zookeeper"]]


def test_a_multi_with_something_else_in_it_is_refused(client: Client) -> None:
    rows = [(Op.GET_DATA, records.PathAndWatch("/", False))]
    assert client.call(Op.MULTI, rows) == Code.MARSHALLING_ERROR
