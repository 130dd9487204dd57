"""What others write than clients of the server is noticed, all of it, without a look at the whole tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand.ledger.cluster.ledger_path import ledger_path
from bookstand.server.zookeeper import request_rounds
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Code, EventType, Op, WatchMode
from bookstand.storage.commit.node_operations import PutNode
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import schema
from bookstand.testing import Faults
from tests.server.zookeeper.kit import Client, Serving, clients

CREATED, DELETED, CHANGED = EventType.CREATED, EventType.DELETED, EventType.DATA_CHANGED


@pytest.fixture
def no_survey(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """From now on a look at the whole tree is a failure."""
    looks: list[Any] = []
    monkeypatch.setattr(request_rounds, "survey", lambda storage: looks.append(storage))
    yield
    assert not looks


@pytest.fixture
def watcher(connect: Callable[..., Client]) -> Client:
    client = connect()
    client.call(Op.ADD_WATCH, records.PathAndNumber("/", WatchMode.PERSISTENT_RECURSIVE))
    return client


def events(client: Client, count: int) -> list[tuple[int, str]]:
    return [client.wait_for_event() for _ in range(count)]


@pytest.mark.usefixtures("no_survey")
def test_a_change_is_noticed_by_itself(store: Any, watcher: Client, child: Callable[..., Any]) -> None:
    """By another process and by this one, of nodes and of ledgers."""
    other = child()
    other.run("store.nodes.put('/a', b'1')")
    assert events(watcher, 1) == [(CREATED, "/a")]
    store.nodes.put("/a", b"2")
    assert events(watcher, 1) == [(CHANGED, "/a")]
    other.run("store.nodes.delete('/a')")
    assert events(watcher, 1) == [(DELETED, "/a")]
    other.run("writer = store.create_ledger()")
    path = ledger_path(next(iter(store.list_ledgers())))
    assert events(watcher, 4)[-1] == (CREATED, path)
    other.run("writer.close()")
    assert events(watcher, 1) == [(CHANGED, path)]


@pytest.mark.usefixtures("no_survey")
def test_what_clients_write_is_no_news(watcher: Client, connect: Callable[..., Client], store: Any) -> None:
    client = connect()
    for number in range(20):
        client.create(f"/n{number}", b"x")
        client.set(f"/n{number}", b"y")
    store.nodes.put("/end", b"")
    assert events(watcher, 41)[-1] == (CREATED, "/end")
    assert store.storage.change_count() == 1


@pytest.mark.parametrize("count", [2, 4])
def test_nodes_that_change_places_together(store: Any, watcher: Client, count: int) -> None:
    """Checksums are linear: those of an even number of such changes cancel each other out."""
    places = range(count)
    with store.transaction() as change:
        for number in places:
            change.put_node(f"/there/{number}", b"x")
    events(watcher, count + 1)
    with store.transaction() as change:
        for number in places:
            change.delete_node(f"/there/{number}")
            change.put_node(f"/gone/away/{number}", b"x")
    assert {path for kind, path in events(watcher, 2 * count + 2) if kind == CREATED} == {
        "/gone",
        "/gone/away",
        *(f"/gone/away/{number}" for number in places),
    }
    assert watcher.children("/gone/away") == [str(number) for number in places]


@pytest.mark.parametrize("served", [True, False], ids=["served", "not-served"])
def test_a_tree_that_is_deleted_is_gone(store: Any, served: bool) -> None:
    """From the leaves up, as it has to be: whether a server was there or not."""
    paths = ["/a", "/a/b", "/a/b/c"]
    with Serving(store.storage) as serving, clients(serving.port) as (client,):
        for path in paths:
            store.nodes.put(path, b"x")
        assert client.children("/a/b") == ["c"]
        if served:
            for path in reversed(paths):
                store.nodes.delete(path)
            client.call(Op.SYNC, "/")
            assert client.exists("/a") == Code.NO_NODE
            return
    for path in reversed(paths):
        store.nodes.delete(path)
    with Serving(store.storage) as serving, clients(serving.port) as (client,):
        assert client.children("/") == ["zookeeper"]


def test_more_news_than_are_kept(store: Any, watcher: Client) -> None:
    """Then there is a look at everything; nothing is missed."""
    count = schema.CHANGE_FEED_LENGTH + 100
    with store.transaction() as change:
        for number in range(count):
            change.put_node(f"/n/{number}", b"x")
    assert len(events(watcher, count + 1)) == count + 1
    assert len(watcher.children("/n")) == count
    store.nodes.put("/n/0", b"y")
    assert events(watcher, 1) == [(CHANGED, "/n/0")]
    assert len(list(store.storage.meta_keys(schema.META_CHANGE_FEED))) <= schema.CHANGE_FEED_LENGTH + 1


def test_who_syncs_sees_what_was_written_before(store: Any, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the server lets some time pass, for its last look at everything took long."""
    monkeypatch.setattr(request_rounds, "LONG_LOOK", 0.0)
    monkeypatch.setattr(request_rounds, "LOOK_SHARE", 1e-9)
    with store.transaction() as change:
        for number in range(schema.CHANGE_FEED_LENGTH + 1):
            change.put_node(f"/n/{number}", b"x")
    assert client.call(Op.SYNC, "/") == "/"
    store.nodes.put("/late", b"x")
    assert "late" not in client.children("/")
    assert client.call(Op.SYNC, "/") == "/"
    assert "late" in client.children("/")


def test_a_store_that_was_never_served_keeps_no_news(store: Any) -> None:
    store.nodes.put("/a", b"x")
    assert list(store.storage.meta_keys(schema.META_CHANGE_FEED)) == []


def test_clients_are_served_while_others_write_all_the_time(
    store: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the server looks whether there is something new, there is; and yet clients have their turn."""
    storage, written = store.storage, [0]
    total = storage.change_count

    def write_and_look() -> int:
        written[0] += 1
        storage.apply(WriteBatch(PutNode("/busy", b"%d" % written[0], None)))
        return int(total())

    with monkeypatch.context() as patch:
        patch.setattr(storage, "change_count", write_and_look)
        for number in range(5):
            assert client.create(f"/n{number}") == f"/n{number}"
            before = written[0]
            assert client.call(Op.SYNC, "/") == "/"
            assert int(client.get("/busy")[0]) >= before


def test_what_could_not_be_taken_in_is_taken_in_later(open_store: Callable[..., Any]) -> None:
    faults = Faults()
    store = open_store(hooks=faults)
    with Serving(store.storage) as serving, clients(serving.port) as (client,):
        client.children("/", watch=True)
        # The first is the one of the node itself.
        faults.fail("commit", nth=2)
        store.nodes.put("/late", b"x")
        assert client.wait_for_event() == (EventType.CHILDREN_CHANGED, "/")
        assert client.children("/") == ["late", "zookeeper"]
    faults.check()


def test_a_full_disk_takes_what_makes_room(small_disk: Path, open_store: Callable[..., Any]) -> None:
    """Also where it came together with what does not."""
    store = open_store(path=small_disk / "store")
    with Serving(store.storage) as serving, clients(serving.port, 2) as (one, two):
        for number in range(50):
            one.create(f"/n{number}", bytes(10_000))
        (small_disk / "ballast").write_bytes(bytes(1 << 20))
        number = 0
        while one.create(f"/more{number}", bytes(100_000)) != Code.SYSTEM_ERROR:
            number += 1
        delete = records.REQUESTS[Op.DELETE].encode(records.Delete("/n0", -1))
        create = records.REQUESTS[Op.CREATE].encode(records.Create("/no", bytes(1_000), OPEN_ACL, 0))

        def both() -> None:
            """In one turn of the loop, so that they are of one commit."""
            two.send(Op.CREATE, create)
            one.send(Op.DELETE, delete)

        serving.do(both)
        assert (two.reply()[0].error, one.reply()[0].error) == (Code.SYSTEM_ERROR, 0)
