"""Ledgers and topics that clients write through ZooKeeper are the store's own, and the store's own are theirs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from bookstand import errors
from bookstand.ledger.client import MAX_COLLECTED_LEDGERS
from bookstand.ledger.cluster.ledger_path import ledger_path
from bookstand.managed_ledger.records import decode_ledger_info
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
from bookstand.server.bookie.protocol.codes import NO_ENTRY, NO_LEDGER
from bookstand.server.bookie.server import BookieServer
from bookstand.server.loop_thread import LoopThread
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Code, CreateMode, EventType, Op, WatchMode
from bookstand.server.zookeeper.value_location import LEDGER_IDS
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.ledger_metadata import LedgerMetadata, parse, serialize
from bookstand.testing import VirtualClock
from tests.server.bookie.kit import Wire, stored, v2_add, v2_read
from tests.server.zookeeper.kit import Client, Serving, clients, eventually


def metadata(ledger_id: int = 0, **more: Any) -> LedgerMetadata:
    arguments = {
        "ensemble_size": 1,
        "write_quorum_size": 1,
        "ack_quorum_size": 1,
        "ensembles": [(0, ["127.0.0.1:3181"])],
        "digest_type": "crc32c",
        "password": b"pw",
    }
    return LedgerMetadata(ledger_id, **(arguments | more))


def make_parents(client: Client, path: str) -> None:
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        client.create("/" + "/".join(parts[:depth]))


# -- ledgers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger_id", [0, 7, 12_345_678, (1 << 31) - 2, (1 << 31) - 1, (1 << 63) - 1])
def test_a_ledger_made_by_a_client_is_the_store_s(store: Any, client: Client, ledger_id: int) -> None:
    path, made = ledger_path(ledger_id), serialize(metadata(ledger_id, custom_metadata={"a": b"x"}))
    make_parents(client, path)
    assert client.create(path, made) == path
    assert list(store.list_ledgers()) == [ledger_id]
    found = store.ledger_metadata(ledger_id)
    assert (found.version, found.custom_metadata["a"], found.state) == (0, b"x", "OPEN")
    # The octets are those that came.
    assert client.get(path)[0] == made
    assert client.create(path, made) == Code.NODE_EXISTS
    closed = serialize(metadata(ledger_id, state="CLOSED", last_entry_id=-1, length=0))
    assert client.set(path, closed, version=1) == Code.BAD_VERSION
    assert client.set(path, closed, version=0).version == 1
    assert store.is_closed(ledger_id)
    assert store.ledger_metadata(ledger_id).version == 1
    reader = store.open_ledger(ledger_id, password=b"pw")
    assert reader.last_add_confirmed == -1
    with pytest.raises(errors.UnauthorizedAccessError):
        store.open_ledger(ledger_id, password=b"other")
    assert client.delete(path, version=0) == Code.BAD_VERSION
    assert client.delete(path, version=1) is None
    assert list(store.list_ledgers()) == []
    assert client.get(path) == Code.NO_NODE


def test_a_ledger_of_the_store_is_a_znode(store: Any, client: Client) -> None:
    writer = store.create_ledger(password=b"pw", custom_metadata={"k": b"v"})
    writer.append(b"abc")
    path = ledger_path(writer.id)
    data, stat = client.get(path)
    assert parse(data, writer.id).custom_metadata["k"] == b"v"
    assert (stat.version, stat.data_length, stat.ephemeral_owner) == (0, len(data), 0)
    assert client.children("/ledgers/00/0000") == ["L0000"]
    assert client.exists("/ledgers").children == 1
    writer.close()
    assert client.get(path)[1].version == 1
    # A client recovers it, as the original would: the store's writers and readers see that.
    store.delete_ledger(writer.id)
    assert client.get(path) == Code.NO_NODE
    # What was there for its sake stays, as it would if a client had made it.
    assert client.exists("/ledgers/00/0000").children == 0
    assert client.delete("/ledgers/00/0000") is None


def test_one_compare_and_set_for_both(store: Any, client: Client) -> None:
    """Whoever comes second with a version is refused, on whichever way it came."""
    writer = store.create_ledger(password=b"pw")
    path = ledger_path(writer.id)
    data, stat = client.get(path)
    recovering = serialize(parse(data, writer.id).replace(state="IN_RECOVERY"))
    assert client.set(path, recovering, stat.version).version == 1
    with pytest.raises(errors.MetadataVersionError):
        store.write_ledger_metadata(parse(data, writer.id), 0)
    store.write_ledger_metadata(parse(data, writer.id), 1)
    assert client.set(path, recovering, 1) == Code.BAD_VERSION
    assert client.set(path, recovering, 2).version == 3


def test_ledger_ids_are_given_once(store: Any, client: Client) -> None:
    """Numbers below the place for ids are the store's next ids: those that its own ledgers take are passed over."""
    for _ in range(3):
        store.create_ledger()
    client.create("/ledgers")
    client.create("/ledgers/idgen")
    mode = CreateMode.EPHEMERAL_SEQUENTIAL
    assert client.create("/ledgers/idgen/ID-", mode=mode) == "/ledgers/idgen/ID-0000000003"
    assert store.create_ledger().id == 4
    assert client.create("/ledgers/idgen/ID-", mode=mode) == "/ledgers/idgen/ID-0000000005"


@pytest.mark.parametrize("data", [b"", None, b"BookieMetadataFormatVersion\t3\n\x01", b"anything"])
def test_what_is_no_ledger_s_metadata_is_refused_there(store: Any, client: Client, data: bytes | None) -> None:
    path = ledger_path(5)
    make_parents(client, path)
    assert client.create(path, data) == Code.BAD_ARGUMENTS
    client.create(path, serialize(metadata(5)))
    assert client.call(Op.SET_DATA, records.SetData(path, data, -1)) == Code.BAD_ARGUMENTS
    assert store.ledger_metadata(5).version == 0


def test_paths_that_only_look_like_a_ledger_s_are_nodes(store: Any, client: Client) -> None:
    """A ledger has one path; its id with more digits than it needs is another znode."""
    path = "/ledgers/000/0000/0000/0000/L0005"
    make_parents(client, path)
    assert client.create(path, b"anything") == path
    assert list(store.list_ledgers()) == []
    assert store.nodes.get(path) == (b"anything", 0)


def test_a_deleted_ledger_s_id_can_be_used_again(store: Any, client: Client) -> None:
    writer = store.create_ledger()
    writer.append_many([b"old"] * 10)
    path = ledger_path(writer.id)
    client.get(path)
    assert client.delete(path) is None
    assert client.create(path, serialize(metadata(writer.id))) == path
    with pytest.raises(errors.LedgerError):
        store.open_ledger(writer.id, password=b"pw").read_unconfirmed(0, 0)


@pytest.mark.parametrize("bookies", [1, 2, 3])
def test_an_id_can_be_used_again_whatever_bookies_have_of_it(store: Any, client: Client, bookies: int) -> None:
    """Marks and records of their copies are more than there are entries."""
    path = ledger_path(7)
    make_parents(client, path)
    server = BookieServer(store.storage, ports=[0] * bookies)
    with LoopThread(server), ExitStack() as stack:
        wires = [stack.enter_context(Wire(address)) for address in server.addresses]
        for old in (True, False):
            client.create(path, serialize(metadata(7)))
            for wire in wires:
                assert wire.v2(v2_read(7, 0)).code in (NO_LEDGER, NO_ENTRY)
                assert wire.codes(v2_add(stored(7, entry), master_key(b"pw")) for entry in range(3)) == [0, 0, 0]
            if old:
                assert client.delete(path) is None


def test_what_deleted_ledgers_leave_is_collected_after_a_while(store: Any, client: Client, clock: VirtualClock) -> None:
    """Until then whoever reads the ledger goes on, as with bookies."""
    writer = store.create_ledger()
    writer.append(b"x")
    client.delete(ledger_path(writer.id))
    assert store.storage.entry(writer.id, 0) is not None
    for _ in range(33):
        # Less than the session's time-out, which may be looked at before the ping has come.
        clock.advance(20)
        client.ping()
    eventually(lambda: (clock.advance(1), client.ping(), store.storage.entry(writer.id, 0) is None)[-1])


def test_more_ledgers_than_one_step_collects_are_collected_while_the_store_is_served(
    store: Any, client: Client, clock: VirtualClock
) -> None:
    """Each sweep leaves none whose grace period is over."""
    writers = [store.create_ledger() for _ in range(3 * MAX_COLLECTED_LEDGERS + 1)]
    for writer in writers:
        writer.append(b"x")
        writer.close()
        client.delete(ledger_path(writer.id))
    for _ in range(33):
        clock.advance(20)
        client.ping()

    def collected() -> bool:
        client.ping()
        return all(store.storage.entry(writer.id, 0) is None for writer in writers)

    steps = 0
    while not collected():
        steps += 1
        assert steps < 100, "they are not collected"
        # In all less than the time between two sweeps.
        clock.advance(0.3)
        time.sleep(0.05)


# -- ids after a format ------------------------------------------------------------------------------------------------


def next_id(client: Client) -> int:
    """As BookKeeper's clients take one."""
    if client.exists(LEDGER_IDS) == Code.NO_NODE:
        client.create("/ledgers") if client.exists("/ledgers") == Code.NO_NODE else None
        client.create(LEDGER_IDS)
    path = client.create(f"{LEDGER_IDS}/ID-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
    client.delete(path)
    return int(path.removeprefix(f"{LEDGER_IDS}/ID-"))


def format_cluster(client: Client, store: Any) -> None:
    """As BookKeeper's metaformat: each child of the root that has ledgers, then the one of the ids, in this order."""

    def delete_below(path: str) -> None:
        for name in client.children(path):
            delete_below(f"{path}/{name}")
            assert client.delete(f"{path}/{name}") is None

    for name in client.children("/ledgers"):
        if name.isdecimal() or name == "idgen":
            delete_below(f"/ledgers/{name}")
            assert client.delete(f"/ledgers/{name}") is None


def create_over_the_wire(client: Client) -> int:
    ledger_id = next_id(client)
    make_parents(client, ledger_path(ledger_id))
    assert client.create(ledger_path(ledger_id), serialize(metadata(ledger_id))) == ledger_path(ledger_id)
    return ledger_id


def test_ledger_ids_start_at_0_after_a_format(store: Any, client: Client) -> None:
    assert [create_over_the_wire(client) for _ in range(3)] == [0, 1, 2]
    format_cluster(client, store)
    assert [create_over_the_wire(client) for _ in range(3)] == [0, 1, 2]
    # The store's users go on behind them.
    assert store.create_ledger().id == 3


def test_an_id_is_used_again_after_a_format_without_what_its_ledger_had(store: Any, client: Client) -> None:
    server = BookieServer(store.storage, ports=[0])
    with LoopThread(server), Wire(server.addresses[0]) as wire:
        for _ in range(2):
            ledger_id = create_over_the_wire(client)
            assert ledger_id == 0
            assert wire.v2(v2_read(0, 0)).code in (NO_LEDGER, NO_ENTRY)
            assert wire.v2(v2_add(stored(0, 0), master_key(b"pw"))).code == 0
            format_cluster(client, store)


def test_ledger_ids_go_on_where_ledgers_are_left(store: Any, client: Client) -> None:
    """Positions of topics are in the order of ledger ids: none is used again below one that exists."""
    assert create_over_the_wire(client) == 0
    kept = store.create_ledger()
    client.delete(ledger_path(0))
    client.delete(LEDGER_IDS)
    assert create_over_the_wire(client) == kept.id + 1


def test_ids_that_are_deleted_one_by_one_are_not_used_again(store: Any, client: Client) -> None:
    assert create_over_the_wire(client) == 0
    client.delete(ledger_path(0))
    assert create_over_the_wire(client) == 1
    assert store.create_ledger().id == 2


# -- quotas ------------------------------------------------------------------------------------------------------------


def test_quotas_are_rejected(client: Client) -> None:
    """One that is stored and has no effect would be taken for one that has."""
    limits = "/zookeeper/quota/a/zookeeper_limits"
    assert client.create("/zookeeper/quota/a") == Code.UNIMPLEMENTED
    assert client.create(limits, b"count=5,bytes=-1") == Code.UNIMPLEMENTED
    assert client.set("/zookeeper/quota/zookeeper_limits", b"count=5") == Code.UNIMPLEMENTED
    assert client.children("/zookeeper/quota") == []
    assert client.multi((Op.CREATE, records.Create("/zookeeper/quota/b", b"", OPEN_ACL, 0)))[0] == Code.UNIMPLEMENTED
    # The connection goes on, and paths that only look alike are not concerned.
    assert client.create("/zookeeper/quotas") == "/zookeeper/quotas"


# -- nodes -------------------------------------------------------------------------------------------------------------


def test_nodes_are_the_same_for_both(store: Any, client: Client) -> None:
    client.create("/a", b"one")
    client.create("/a/b", b"two")
    assert store.nodes.get("/a/b") == (b"two", 0)
    assert store.nodes.children("/a") == ["b"]
    assert store.nodes.put("/a/b", b"three", 0) == 1
    assert client.set("/a/b", b"late", 0) == Code.BAD_VERSION
    assert client.get("/a/b")[0] == b"three"
    assert client.set("/a/b", b"four", 1).version == 2
    with pytest.raises(errors.MetadataVersionError):
        store.nodes.put("/a/b", b"late", 1)
    store.nodes.put("/x/y/z", b"deep")
    assert client.children("/") == ["a", "x", "zookeeper"]
    assert client.get("/x")[0] == b""
    assert client.set("/x", b"given").version == 1
    assert store.nodes.get("/x") == (b"given", 1)
    store.nodes.delete("/a/b")
    assert client.get("/a/b") == Code.NO_NODE
    assert client.exists("/a").children == 0


def test_those_who_watch_are_told_what_the_store_s_users_write(store: Any, client: Client) -> None:
    client.call(Op.ADD_WATCH, records.PathAndNumber("/", WatchMode.PERSISTENT_RECURSIVE))
    client.create("/a")
    client.children("/a", watch=True)
    assert client.wait_for_event() == (EventType.CREATED, "/a")
    store.nodes.put("/a/b", b"1")
    assert [client.wait_for_event() for _ in range(2)] == [
        (EventType.CREATED, "/a/b"),
        (EventType.CHILDREN_CHANGED, "/a"),
    ]
    before = client.exists("/a/b")
    store.nodes.put("/a/b", b"2")
    assert client.wait_for_event() == (EventType.DATA_CHANGED, "/a/b")
    after = client.exists("/a/b")
    assert (after.version, after.mzxid > before.mzxid, after.czxid) == (1, True, before.czxid)
    store.nodes.delete("/a/b")
    assert client.wait_for_event() == (EventType.DELETED, "/a/b")
    path = ledger_path(store.create_ledger().id)
    events = [client.wait_for_event() for _ in range(4)]
    assert events == [(EventType.CREATED, at) for at in ("/ledgers", "/ledgers/00", "/ledgers/00/0000", path)]


def test_what_another_process_writes_is_noticed(store: Any, client: Client, child: Callable[..., Any]) -> None:
    process = child()
    client.call(Op.ADD_WATCH, records.PathAndNumber("/other", WatchMode.PERSISTENT_RECURSIVE))
    process.run("store.nodes.put('/other/a', b'1')")
    assert [client.wait_for_event() for _ in range(2)] == [(1, "/other"), (1, "/other/a")]
    client.create("/mine", b"x")
    assert process.run("value = store.nodes.get('/mine')") is None
    process.run("store.nodes.put('/mine', b'y', 0)")
    assert client.set("/mine", b"z", 0) == Code.BAD_VERSION


def test_what_was_written_while_no_server_was_there(store: Any) -> None:
    """A client that comes back is told of it, as of all that it has missed."""
    with Serving(store.storage) as serving, clients(serving.port) as (first,):
        for path in ("/set", "/deleted", "/parent"):
            first.create(path)
        seen = first.zxid
    store.nodes.put("/set", b"x")
    store.nodes.delete("/deleted")
    store.nodes.put("/parent/child", b"")
    with Serving(store.storage) as serving:
        again = Client(serving.port).connect(session_id=first.session_id, password=first.password, seen=seen)
        request = records.SetWatches(seen, ["/set", "/deleted"], [], ["/parent"])
        again.call(Op.SET_WATCHES, request, xid=-8)
        assert again.events == [
            (EventType.DATA_CHANGED, "/set"),
            (EventType.DELETED, "/deleted"),
            (EventType.CHILDREN_CHANGED, "/parent"),
        ]
        again.close()


def test_paths_that_no_znode_can_have_are_left_alone(store: Any, client: Client) -> None:
    for path in ("/a/", "/a//b", "//", "/a/./b", "/\x01", "/𐀀"):
        store.nodes.put(path, b"x")
    store.nodes.put("/fine", b"x")
    client.call(Op.SYNC, "/")
    assert client.children("/") == ["fine", "zookeeper"]


# -- topics ------------------------------------------------------------------------------------------------------------

TOPIC = "persistent://acme/orders/t"


def test_a_topic_of_the_store_is_what_a_broker_reads(store: Any, client: Client) -> None:
    topic = store.topic(TOPIC)
    topic.publish(b"hello")
    subscription = topic.subscription("sub")
    subscription.receive(1)
    data, stat = client.get(node_of(TOPIC))
    info = decode_ledger_info(data, TOPIC)
    assert [ledger.ledger_id for ledger in info.ledgers] == list(store.list_ledgers())[:1]
    assert client.children("/managed-ledgers/acme/orders/persistent") == ["t"]
    assert client.children(node_of(TOPIC)) == ["sub"]
    assert client.get(cursor_node_of(TOPIC, "sub"))[0] == store.nodes.get(cursor_node_of(TOPIC, "sub"))[0]
    # Compare-and-set on a record is one for both.
    assert client.set(node_of(TOPIC), data, stat.version).version == stat.version + 1


def test_a_topic_written_by_a_broker_is_the_store_s(store: Any, client: Client, open_store: Any, tmp_path: Any) -> None:
    """What another store has of a topic, put here through the wire: ZooKeeper's part and the bookies'."""
    other = open_store(path=tmp_path / "other")
    with other.topic(TOPIC) as topic:
        topic.publish(b"hello")
        topic.subscription("sub").ack(topic.publish(b"seen"))
        topic.publish(b"later")
    with Bookies(store) as bookies:
        for ledger_id in other.list_ledgers():
            found = other.ledger_metadata(ledger_id)
            make_parents(client, ledger_path(ledger_id))
            assert client.create(ledger_path(ledger_id), serialize(found)) == ledger_path(ledger_id)
            for entry_id in range(found.last_entry_id + 1):
                bookies.add(other.storage.entry(ledger_id, entry_id), master_key(found.password))
    for path in (node_of(TOPIC), cursor_node_of(TOPIC, "sub")):
        make_parents(client, path)
        assert client.create(path, other.nodes.get(path)[0]) == path
    subscription = store.topic(TOPIC).subscription("sub")
    # Beside their payload, messages have what a broker puts before it.
    assert [message.data[-5:] for message in subscription.receive(10)] == [b"hello", b"later"]


class Bookies:
    """One bookie over the store, and a client that adds entries to it."""

    def __init__(self, store: Any) -> None:
        self._server = BookieServer(store.storage, ports=[0])
        self._running = LoopThread(self._server)

    def __enter__(self) -> Bookies:
        self._running.__enter__()
        self._wire = Wire(self._server.addresses[0])
        return self

    def add(self, entry: bytes, key: bytes) -> None:
        assert self._wire.v2(v2_add(entry, key)).code == 0

    def __exit__(self, *_: object) -> None:
        self._wire.socket.close()
        self._running.__exit__(None, None, None)


def test_entries_added_to_bookies_are_read_from_the_store(store: Any, client: Client) -> None:
    """As BookKeeper's client writes a ledger: its metadata here, its entries there, and closes it here."""
    key, digest = master_key(b"pw"), digest_for("crc32c", b"pw")
    path = ledger_path(9)
    make_parents(client, path)
    client.create(path, serialize(metadata(9)))
    with Bookies(store) as bookies:
        for entry_id in range(3):
            bookies.add(stored(9, entry_id, b"abc", digest=digest), key)
    closed = metadata(9, state="CLOSED", last_entry_id=2, length=9)
    assert client.set(path, serialize(closed), 0).version == 1
    reader = store.open_ledger(9, password=b"pw")
    assert [entry.data for entry in reader] == [b"abc"] * 3
    assert store.verify().ok


def test_an_acl_does_not_keep_the_store_s_users_out(store: Any, client: Client) -> None:
    """Lists are for those who come through the wire; who has the store's files has the store."""
    client.create("/a", b"x", acl=[records.Acl(1, "world", "anyone")])
    assert client.set("/a", b"y") == Code.NO_AUTH
    assert store.nodes.put("/a", b"y") == 1
    assert client.get("/a")[0] == b"y"
    assert client.call(Op.GET_ACL, "/a")[0] == [records.Acl(1, "world", "anyone")]
    assert (records.Acl(1, "world", "anyone"),) != OPEN_ACL
