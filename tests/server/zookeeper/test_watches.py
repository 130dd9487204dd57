"""Who is told of what, in which order, and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.acls import digest_identity
from bookstand.server.zookeeper.protocol.protocol import (
    Code,
    CreateMode,
    EventType,
    Op,
    Permission,
    WatcherType,
    WatchMode,
)
from tests.server.zookeeper.kit import Client

CREATED, DELETED, CHANGED, CHILDREN = EventType


def add_watch(client: Client, path: str, mode: int) -> Any:
    return client.call(Op.ADD_WATCH, records.PathAndNumber(path, mode))


def test_an_event_comes_before_the_answer_of_the_write_that_caused_it(client: Client) -> None:
    assert client.exists("/a", watch=True) == Code.NO_NODE
    client.create("/a")
    assert client.order[-2:] == [(CREATED, "/a"), client.xid]
    assert client.get("/a", watch=True)
    client.set("/a", b"x")
    assert client.order[-2:] == [(CHANGED, "/a"), client.xid]


def test_a_watch_fires_once(client: Client) -> None:
    client.create("/a")
    client.get("/a", watch=True)
    client.get("/a", watch=True)
    client.set("/a", b"1")
    client.set("/a", b"2")
    assert client.events == [(CHANGED, "/a")]


def test_watches_of_children(connect: Callable[..., Client]) -> None:
    client, other = connect(), connect()
    client.create("/a")
    other.children("/a", watch=True)
    client.set("/a", b"x")
    client.create("/a/b")
    assert other.wait_for_event() == (CHILDREN, "/a")
    other.children("/a", watch=True)
    client.set("/a/b", b"")
    client.delete("/a/b")
    assert other.wait_for_event() == (CHILDREN, "/a")
    assert not other.events


def test_a_deletion_is_told_once_to_who_watches_value_and_children(client: Client) -> None:
    client.create("/a")
    client.get("/a", watch=True)
    client.children("/a", watch=True)
    client.children("/", watch=True)
    client.delete("/a")
    assert client.events == [(DELETED, "/a"), (CHILDREN, "/")]


def test_nothing_is_watched_of_what_is_not_there_but_by_exists(client: Client) -> None:
    client.get("/a", watch=True)
    client.children("/a", watch=True)
    client.create("/a")
    assert client.events == []


def test_watches_that_stay(client: Client) -> None:
    client.create("/a")
    assert add_watch(client, "/a", WatchMode.PERSISTENT) == 0
    client.set("/a", b"1")
    client.set("/a", b"2")
    client.create("/a/b")
    client.create("/a/b/c")
    client.delete("/a/b/c")
    client.delete("/a/b")
    client.delete("/a")
    client.create("/a")
    assert client.events == [
        (CHANGED, "/a"),
        (CHANGED, "/a"),
        (CHILDREN, "/a"),
        (CHILDREN, "/a"),
        (DELETED, "/a"),
        (CREATED, "/a"),
    ]


def test_watches_of_all_that_is_below(client: Client) -> None:
    """Such a watch is told what happens to each znode, never that children have changed."""
    assert add_watch(client, "/a", WatchMode.PERSISTENT_RECURSIVE) == 0
    for path in ("/a", "/a/b", "/a/b/c", "/ab"):
        client.create(path)
    client.set("/a/b/c", b"x")
    client.delete("/a/b/c")
    assert client.events == [
        (CREATED, "/a"),
        (CREATED, "/a/b"),
        (CREATED, "/a/b/c"),
        (CHANGED, "/a/b/c"),
        (DELETED, "/a/b/c"),
    ]


def test_a_watcher_is_told_once_however_it_watches(client: Client) -> None:
    add_watch(client, "/", WatchMode.PERSISTENT_RECURSIVE)
    add_watch(client, "/a", WatchMode.PERSISTENT)
    client.exists("/a", watch=True)
    client.create("/a")
    assert client.events == [(CREATED, "/a")]
    assert add_watch(client, "/a", 7) == Code.BAD_ARGUMENTS


def test_events_of_a_multi_come_in_order(client: Client) -> None:
    add_watch(client, "/", WatchMode.PERSISTENT_RECURSIVE)
    client.multi(
        (
            Op.CREATE,
            records.Create("/a", b"", records.ACLS.decode(b"\0\0\0\1\0\0\0\x1f\0\0\0\5world\0\0\0\6anyone"), 0),
        ),
        (Op.SET_DATA, records.SetData("/a", b"1", -1)),
        (Op.DELETE, records.Delete("/a", -1)),
    )
    assert client.events == [(CREATED, "/a"), (CHANGED, "/a"), (DELETED, "/a")]


def test_removed_watches_do_not_fire(client: Client) -> None:
    client.create("/a")

    def remove(path: str, kind: int) -> Any:
        return client.call(Op.REMOVE_WATCHES, records.PathAndNumber(path, kind))

    def check(path: str, kind: int) -> Any:
        return client.call(Op.CHECK_WATCHES, records.PathAndNumber(path, kind))

    assert remove("/a", WatcherType.ANY) == Code.NO_WATCHER
    client.get("/a", watch=True)
    client.children("/a", watch=True)
    assert check("/a", WatcherType.DATA) is None
    assert remove("/a", WatcherType.DATA) is None
    assert check("/a", WatcherType.DATA) == Code.NO_WATCHER
    assert check("/a", WatcherType.CHILDREN) is None
    client.set("/a", b"x")
    assert client.events == []
    client.create("/a/b")
    assert client.events == [(CHILDREN, "/a")]
    add_watch(client, "/a", WatchMode.PERSISTENT)
    assert remove("/a", WatcherType.PERSISTENT) is None
    add_watch(client, "/a", WatchMode.PERSISTENT_RECURSIVE)
    assert remove("/a", WatcherType.PERSISTENT_RECURSIVE) is None
    assert remove("/a", WatcherType.ANY) == Code.NO_WATCHER
    assert remove("/a", 9) == Code.BAD_ARGUMENTS
    client.set("/a", b"y")
    assert client.events == [(CHILDREN, "/a")]


def test_watches_end_with_their_connection(connect: Callable[..., Client]) -> None:
    first, other = connect(), connect()
    first.create("/a")
    first.get("/a", watch=True)
    first.close()
    again = connect(session_id=first.session_id, password=first.password)
    other.set("/a", b"x")
    again.ping()
    assert again.events == []


@pytest.mark.parametrize("op", [Op.SET_WATCHES, Op.SET_WATCHES2])
def test_who_comes_back_is_told_what_was_missed(connect: Callable[..., Client], op: Op) -> None:
    first, other = connect(), connect()
    for path in ("/same", "/set", "/deleted", "/parent", "/quiet"):
        first.create(path)
    seen = first.zxid
    first.close()
    other.set("/set", b"x")
    other.delete("/deleted")
    other.create("/parent/child")
    other.create("/new")
    again = connect(session_id=first.session_id, password=first.password, seen=seen)
    lists = [["/same", "/set", "/deleted"], ["/new", "/later"], ["/parent", "/quiet", "/deleted"]]
    request = (
        records.SetWatches(seen, *lists)
        if op is Op.SET_WATCHES
        else records.SetWatches2(seen, *lists, ["/persistent"], ["/recursive"])
    )
    assert again.call(op, request, xid=-8) is None
    assert again.order[-1] == -8
    assert again.events == [
        (CHANGED, "/set"),
        (DELETED, "/deleted"),
        (CREATED, "/new"),
        (CHILDREN, "/parent"),
        (DELETED, "/deleted"),
    ]
    again.events.clear()
    # What has not fired is watched from here on.
    other.set("/same", b"")
    other.create("/later")
    other.create("/quiet/child")
    other.create("/persistent")
    other.create("/recursive")
    other.create("/recursive/below")
    other.set("/persistent", b"x")
    other.create("/persistent/child")
    again.ping()
    expected = [(CHANGED, "/same"), (CREATED, "/later"), (CHILDREN, "/quiet")]
    if op is Op.SET_WATCHES2:
        expected += [(CREATED, "/persistent"), (CREATED, "/recursive"), (CREATED, "/recursive/below")]
        expected += [(CHANGED, "/persistent"), (CHILDREN, "/persistent")]
    assert again.events == expected


def test_no_reader_is_ahead_of_its_events(connect: Callable[..., Client]) -> None:
    """Whoever watches is told of a change before a read of its shows it."""
    writer, reader = connect(), connect()
    writer.create("/a", b"0")
    for number in range(1, 100):
        before = reader.get("/a", watch=True)[0]
        writer.send(Op.SET_DATA, records.REQUESTS[Op.SET_DATA].encode(records.SetData("/a", b"%d" % number, -1)))
        value = reader.get("/a")[0]
        assert (value == before) or reader.events == [(CHANGED, "/a")]
        writer.reply()
        reader.ping()
        assert reader.events == [(CHANGED, "/a")]
        reader.events.clear()


def test_ephemerals_that_end_are_told(connect: Callable[..., Client]) -> None:
    owner, watcher = connect(), connect()
    add_watch(watcher, "/", WatchMode.PERSISTENT_RECURSIVE)
    owner.create("/b", mode=CreateMode.EPHEMERAL)
    owner.create("/a", mode=CreateMode.EPHEMERAL)
    owner.close_session()
    watcher.ping()
    assert watcher.events == [(CREATED, "/b"), (CREATED, "/a"), (DELETED, "/a"), (DELETED, "/b")]


# -- who may read ------------------------------------------------------------------------------------------------------

SECRET = b"user:password"
CREATE_ONLY = (records.Acl(int(Permission.CREATE | Permission.DELETE | Permission.WRITE), "world", "anyone"),)
OF_USER = (records.Acl(persistent_records.ALL, *digest_identity(SECRET)),)


def prove(client: Client) -> None:
    assert client.call(Op.AUTH, records.Auth(0, "digest", SECRET), xid=-4) is None


@pytest.mark.parametrize("by_api", [False, True])
def test_a_recursive_watch_does_not_show_znodes_that_its_client_may_not_read(
    connect: Callable[..., Client], store: Any, by_api: bool
) -> None:
    """Names of znodes are secrets of those who may read them; a watch of the root would show all of them."""
    owner, spy, friend = connect(), connect(), connect()
    prove(owner)
    prove(friend)
    for watcher in (spy, friend):
        add_watch(watcher, "/", WatchMode.PERSISTENT_RECURSIVE)
    owner.create("/open", b"")
    owner.create("/open/secret", b"", acl=OF_USER)
    if by_api:
        store.nodes.put("/open/secret", b"x")
        owner.call(Op.SYNC, "/")
    else:
        owner.set("/open/secret", b"x")
    owner.create("/open/secret/below", b"", acl=OF_USER)
    owner.delete("/open/secret/below")
    owner.delete("/open/secret")
    owner.set("/open", b"x")
    spy.ping()
    friend.ping()
    assert spy.events == [(CREATED, "/open"), (CHANGED, "/open")]
    assert friend.events == [
        (CREATED, "/open"),
        (CREATED, "/open/secret"),
        (CHANGED, "/open/secret"),
        (CREATED, "/open/secret/below"),
        (DELETED, "/open/secret/below"),
        (DELETED, "/open/secret"),
        (CHANGED, "/open"),
    ]


@pytest.mark.parametrize("mode", [None, WatchMode.PERSISTENT])
def test_events_of_a_znode_need_the_permission_to_read_it(connect: Callable[..., Client], mode: int | None) -> None:
    """That of the znode for what happens to it, and that of its parent for what happens to the children."""
    owner, spy = connect(), connect()
    prove(owner)
    owner.create("/closed", acl=OF_USER)
    owner.create("/half", acl=CREATE_ONLY)
    for path in ("/closed", "/half", "/new"):
        if mode is None:
            spy.exists(path, watch=True)
        else:
            add_watch(spy, path, mode)
    owner.set("/closed", b"x")
    owner.create("/closed/child")
    owner.set("/half", b"x")
    owner.create("/half/child")
    owner.delete("/half/child")
    owner.delete("/half")
    owner.create("/new", acl=OF_USER)
    spy.ping()
    assert spy.events == []
    # A permission that is proved or given later counts from then on.
    owner.delete("/new")
    owner.create("/new", acl=OF_USER)
    prove(spy)
    if mode is None:
        spy.exists("/new", watch=True)
    owner.set("/new", b"y")
    spy.ping()
    assert spy.events == [(CHANGED, "/new")]


def test_an_ephemeral_that_ends_shows_to_those_who_may_read_it(connect: Callable[..., Client]) -> None:
    owner, spy, friend = connect(), connect(), connect()
    prove(owner)
    prove(friend)
    owner.create("/e", mode=CreateMode.EPHEMERAL, acl=OF_USER)
    for watcher in (spy, friend):
        add_watch(watcher, "/", WatchMode.PERSISTENT_RECURSIVE)
    owner.close_session()
    friend.ping()
    spy.ping()
    assert (spy.events, friend.events) == ([], [(DELETED, "/e")])


def test_watches_that_are_restored_need_the_permission_to_read(connect: Callable[..., Client]) -> None:
    owner, spy = connect(), connect()
    prove(owner)
    seen = owner.zxid
    for path in ("/a", "/b"):
        owner.create(path, acl=OF_USER)
        owner.create(f"{path}/child", acl=OF_USER)
    request = records.SetWatches(seen, ["/a", "/gone"], ["/b"], ["/a"])
    assert spy.call(Op.SET_WATCHES, request, xid=-8) is None
    owner.set("/a", b"x")
    spy.ping()
    assert spy.events == [(DELETED, "/gone")]
