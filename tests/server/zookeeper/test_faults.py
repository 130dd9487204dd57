"""Faults reach writes through the wire as they reach those through the store's own API, by the same rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookstand import errors
from bookstand.ledger.cluster.ledger_path import ledger_path
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Code, CreateMode, Op
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import schema
from bookstand.storage.format.ledger_metadata import serialize
from bookstand.testing import Faults
from tests import kit as store_kit
from tests.server.zookeeper.kit import Client, ClosedError, Serving, clients, eventually
from tests.server.zookeeper.test_mapping import make_parents, metadata


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def store(open_store: Callable[..., Any], faults: Faults) -> Any:
    return open_store(hooks=faults)


def test_a_write_that_fails_has_not_happened(client: Client, faults: Faults) -> None:
    faults.fail("nodes.put", path="/a", error=errors.MetadataVersionError)
    assert client.create("/a") == Code.BAD_VERSION
    assert client.exists("/a") == Code.NO_NODE
    assert client.create("/a") == "/a"
    faults.fail("nodes.put", path="/a")
    assert client.set("/a", b"x") == Code.SYSTEM_ERROR
    assert client.get("/a")[0] == b""
    faults.fail("nodes.delete", path="/a")
    assert client.delete("/a") == Code.SYSTEM_ERROR
    assert client.delete("/a") is None
    faults.check()


def test_a_write_whose_answer_is_lost_has_happened(connect: Callable[..., Client], faults: Faults) -> None:
    client, other = connect(), connect()
    other.exists("/a", watch=True)
    faults.lose_ack("nodes.put", path="/a")
    with pytest.raises((ClosedError, ConnectionError)):
        client.create("/a", b"x")
    assert other.wait_for_event() == (1, "/a")
    assert other.get("/a")[0] == b"x"
    faults.check()


def test_a_commit_of_which_nobody_knows_whether_it_happened(
    serving: Serving, connect: Callable[..., Client], faults: Faults
) -> None:
    """All connections are cut; who comes back is told what it has missed, and nothing is forgotten."""
    owner, watcher = connect(), connect()
    watcher.exists("/e", watch=True)
    seen = watcher.zxid
    faults.lose_ack("commit")
    for client, op in ((owner, lambda: owner.create("/e", b"x", CreateMode.EPHEMERAL)), (watcher, watcher.frame)):
        with pytest.raises((ClosedError, ConnectionError)):
            op()
        client.close()
    again = connect(session_id=watcher.session_id, password=watcher.password, seen=seen)
    again.call(Op.SET_WATCHES, records.SetWatches(seen, [], ["/e"], []), xid=-8)
    assert again.events == [(1, "/e")]
    assert again.exists("/e", watch=True).ephemeral_owner == owner.session_id
    back = connect(session_id=owner.session_id, password=owner.password)
    assert back.session_id == owner.session_id
    back.close_session()
    again.ping()
    assert again.events == [(1, "/e"), (2, "/e")]
    assert again.exists("/e") == Code.NO_NODE
    faults.check()


def test_a_write_that_conflicts(client: Client, faults: Faults) -> None:
    client.create("/a", b"x")
    faults.conflict("nodes.put", path="/a")
    assert client.set("/a", b"y", version=0) == Code.BAD_VERSION
    data, stat = client.get("/a")
    assert (data, stat.version) == (b"x", 1)
    faults.check()


def test_a_write_that_stalls_holds_up_what_comes_after(connect: Callable[..., Client], faults: Faults) -> None:
    client, other = connect(), connect()
    stall = faults.stall("nodes.put", path="/a")
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(client.create("/a")))
    thread.start()
    assert stall.reached()
    assert not done
    stall.release()
    thread.join()
    assert done == ["/a"]
    assert other.exists("/a").version == 0


def test_ledgers_pass_the_points_of_ledgers(client: Client, faults: Faults) -> None:
    path = ledger_path(3)
    make_parents(client, path)
    faults.fail("create", ledger=3)
    assert client.create(path, serialize(metadata(3))) == Code.SYSTEM_ERROR
    assert client.create(path, serialize(metadata(3))) == path
    faults.fail("metadata", ledger=3)
    assert client.set(path, serialize(metadata(3))) == Code.SYSTEM_ERROR
    faults.fail("delete", ledger=3)
    assert client.delete(path) == Code.SYSTEM_ERROR
    assert client.delete(path) is None
    faults.check()


@pytest.mark.parametrize("point", ["nodes.put.before", "nodes.put.after", "commit.before_sync", "commit.after_sync"])
def test_a_store_that_crashes_takes_its_server_along(
    serving: Serving, connect: Callable[..., Client], faults: Faults, open_store: Any, point: str
) -> None:
    client, other = connect(), connect()
    client.create("/before", b"x")
    faults.crash(point)
    with pytest.raises((ClosedError, ConnectionError)):
        client.create("/a", b"y")
    with pytest.raises((ClosedError, ConnectionError)):
        other.ping()
    with Serving(open_store().storage) as again, clients(again.port) as (late,):
        assert late.get("/before")[0] == b"x"
        found = late.exists("/a")
        assert (found == Code.NO_NODE) == (point in ("nodes.put.before", "commit.before_sync"))


def test_a_full_disk(client: Client, faults: Faults) -> None:
    """What takes space is refused, what makes room is done; reads go on."""
    client.create("/a", b"x" * 1000)
    client.create("/b")
    faults.disk_full()
    codes = {client.create(f"/c{number}", b"x" * 1000) for number in range(3)}
    assert Code.SYSTEM_ERROR in codes
    assert client.get("/a")[0] == b"x" * 1000
    assert client.multi((Op.CHECK, records.Check("/b", 0)), (Op.DELETE, records.Delete("/b", 0))) == [True, True]
    assert client.delete("/a") is None
    assert client.create("/e") == Code.SYSTEM_ERROR
    faults.free_space()
    eventually(lambda: client.create("/d") == "/d")


@pytest.mark.damaged
def test_damage_is_told_and_is_no_absence(open_store: Any, store_path: Path) -> None:
    with open_store() as store, Serving(store.storage) as serving, clients(serving.port) as (client,):
        for path in ("/value", "/stat", "/fine"):
            client.create(path, b"x")
    with store_kit.raw(store_path, write=True) as database:
        for name, key in ((schema.NODES, b"/value"), (schema.META, schema.znode_key("/stat"))):
            found = database(name)[key]
            database(name)[key] = found[:-1] + bytes([found[-1] ^ 1])
    store = open_store()
    assert not store.verify().ok
    with Serving(store.storage) as serving, clients(serving.port) as (client,):
        for path in ("/value", "/stat"):
            assert client.get(path) == Code.DATA_INCONSISTENCY
            assert client.exists(path) == Code.DATA_INCONSISTENCY
            assert client.create(path, b"y") == Code.DATA_INCONSISTENCY
            assert client.set(path, b"y") == Code.DATA_INCONSISTENCY
            assert client.delete(path) == Code.DATA_INCONSISTENCY
        assert client.get("/fine")[0] == b"x"
        assert client.children("/") == ["fine", "stat", "value", "zookeeper"]


@pytest.mark.damaged
def test_a_value_that_is_damaged_while_it_is_served(store: Any, client: Client, store_path: Path) -> None:
    client.create("/value", b"x")
    client.create("/fine", b"x")

    class Damage:
        """An operation that leaves a record as no server leaves it."""

        def apply(self, staging: Any) -> None:
            staging.put(schema.NODES, b"/value", b"\0\0\0\0" + staging.get(schema.NODES, b"/value")[4:])

    store.storage.apply(WriteBatch(Damage()))
    assert client.get("/value") == Code.DATA_INCONSISTENCY
    assert client.set("/value", b"y") == Code.DATA_INCONSISTENCY
    assert client.delete("/value") == Code.DATA_INCONSISTENCY
    assert client.get("/fine")[0] == b"x"


@pytest.mark.damaged
def test_a_znode_that_cannot_become_part_of_the_tree_is_damage(
    store: Any, serving: Serving, client: Client, connect: Callable[..., Client]
) -> None:
    """A user of the store writes a node below one whose record is damaged."""
    for path in ("/parent", "/parent/child", "/fine"):
        client.create(path, b"x")

    class Damage:
        def apply(self, staging: Any) -> None:
            staging.put(schema.META, schema.znode_key("/parent"), b"damaged")

    store.storage.apply(WriteBatch(Damage()))
    store.nodes.put("/parent/new", b"y")
    before = store.storage.last_commit
    assert client.get("/parent/new") == Code.DATA_INCONSISTENCY
    assert client.exists("/parent/new", watch=True) == Code.DATA_INCONSISTENCY
    wanted = [(Op.GET_DATA, records.PathAndWatch(path, False)) for path in ("/fine", "/parent/new")]
    assert client.call(Op.MULTI_READ, wanted) == Code.DATA_INCONSISTENCY
    assert client.get("/fine")[0] == b"x"
    # It is tried anew for each request, and at the time that the node was written.
    assert store.storage.last_commit - before <= 6
    assert serving.do(lambda: serving.server._state.own_writes) == []
    assert connect().create("/other") == "/other"
