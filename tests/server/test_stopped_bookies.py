"""One bookie of several is gone for a while: clients are refused, told so by ZooKeeper, and find it again."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookstand import errors
from bookstand.server import cluster, serve
from bookstand.server.bind_errors import address_of
from bookstand.server.server import Server
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import EventType, Op
from tests.kit import eventually
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire, stored
from tests.server.kit import bookie_at, connected, leave
from tests.server.zookeeper.kit import Client

AVAILABLE = "/ledgers/available"


@pytest.fixture
def wires(server: Server) -> Iterator[list[Wire]]:
    connections = [bookie_at(address) for address in server.bookies]
    yield connections
    for wire in connections:
        wire.socket.close()


def is_refused(address: str) -> bool:
    try:
        Wire(address_of(address)).socket.close()
    except ConnectionRefusedError:
        return True
    return False


def test_its_connections_are_cut_and_others_go_on(server: Server, wires: list[Wire]) -> None:
    for wire in wires:
        assert wire.v2(kit.v2_add(stored(1, 0))).code == 0
    server.stop_bookie(2)
    assert wires[1].is_closed()
    assert is_refused(server.bookies[1])
    for wire in (wires[0], wires[2]):
        assert wire.v2(kit.v2_add(stored(1, 1))).code == 0
    server.start_bookie(2)
    with bookie_at(server.bookies[1]) as again:
        # What it had it has, and nothing that it was not sent.
        assert again.v2(kit.v2_read(1, 0)).body == stored(1, 0)
        assert again.v2(kit.v2_read(1, 1)).code == 2
        assert again.v2(kit.v2_add(stored(1, 1))).code == 0


def test_it_is_stopped_at_one_entry(server: Server, wires: list[Wire]) -> None:
    """What waited there when it was stopped has died with it."""
    server.faults.add("stall@append(1:1)@bookie2")
    for wire in wires:
        assert wire.v2(kit.v2_add(stored(1, 0))).code == 0
    wires[1].send(kit.v2_add(stored(1, 1)))
    eventually(lambda: server.faults.as_json()[0]["fired"])
    server.stop_bookie(2)
    assert wires[1].is_closed()
    assert wires[0].v2(kit.v2_add(stored(1, 1))).code == 0
    server.start_bookie(2)
    server.faults.clear()
    with bookie_at(server.bookies[1]) as again:
        assert again.v2(kit.v2_add(stored(1, 2))).code == 0
        assert [again.v2(kit.v2_read(1, number)).code for number in range(3)] == [0, 2, 0]


def test_clients_hear_of_it_from_zookeeper(server: Server, kazoo: KazooClient) -> None:
    name = server.cluster.names[1]
    heard: list[list[str]] = []
    kazoo.ChildrenWatch(AVAILABLE, lambda children: heard.append(sorted(children)))
    everybody = sorted([*server.cluster.names, "readonly"])
    without = [each for each in everybody if each != name]
    server.stop_bookie(2)
    eventually(lambda: heard[-1] == without)
    info = kazoo.get(f"{AVAILABLE}/{server.cluster.names[0]}")[0]
    server.start_bookie(2)
    eventually(lambda: heard == [everybody, without, everybody])
    assert len(kazoo.get(f"{AVAILABLE}/{name}")[0]) == len(info)


def test_watchers_have_been_notified_when_a_stop_or_a_start_returns(server: Server) -> None:
    """Each time: what has been sent on this machine is there to be read, without another request."""
    name = server.cluster.names[1]
    with Client(int(server.zookeeper.rpartition(":")[2])).connect() as watcher:
        for number in range(10):
            watcher.children(AVAILABLE, watch=True)
            watcher.exists(f"{AVAILABLE}/{name}", watch=True)
            (server.start_bookie if number % 2 else server.stop_bookie)(2)
            assert select.select([watcher.socket], [], [], 0)[0] == [watcher.socket]
            watcher.ping()
            assert watcher.events == [
                (EventType.CREATED if number % 2 else EventType.DELETED, f"{AVAILABLE}/{name}"),
                (EventType.CHILDREN_CHANGED, AVAILABLE),
            ]
            assert (name in watcher.children(AVAILABLE)) == bool(number % 2)
            watcher.events.clear()


def test_a_stop_says_so_where_watchers_cannot_be_notified(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "NOTIFY_SECONDS", 0.3)
    server.faults.add("stall@nodes.put(/a)")
    with Client(int(server.zookeeper.rpartition(":")[2])).connect() as client:
        client.send(Op.CREATE, records.REQUESTS[Op.CREATE].encode(records.Create("/a", b"", OPEN_ACL, 0)))
        eventually(lambda: server.faults.as_json()[0]["fired"])
        with pytest.raises(errors.MetadataServiceError, match=r"bookie 2 is stopped, but .* within 0.3 s"):
            server.stop_bookie(2)
        assert not server.cluster.bookies.is_open(2)
        server.faults.clear()
        assert client.reply()[0].error == 0
    server.start_bookie(2)
    assert not is_refused(server.bookies[1])


def test_a_bookie_is_stopped_while_the_store_crashes(server: Server) -> None:
    """The call ends, with or without an error, however the crash and the notification meet."""
    server.store.storage.crash()
    with pytest.raises(errors.BookstandError):
        server.stop_bookie(2)


def test_a_read_that_waits_is_cut_and_may_wait_again(server: Server, wires: list[Wire]) -> None:
    writer = server.store.create_ledger()
    for _ in range(2):
        writer.append(b"abc")
    wires[1].send(kit.v3_long_poll(writer.id, 0, 60_000))
    server.stop_bookie(2)
    assert wires[1].is_closed()
    server.start_bookie(2)
    with bookie_at(server.bookies[1]) as again:
        again.send(kit.v3_long_poll(writer.id, 0, 3_600_000))
        # The store's writer tells no bookie: it has to look for itself.
        writer.append(b"abc")
        assert again.v3().readResponse.maxLAC == 1


def test_stopping_and_starting_twice_is_the_same_as_once(server: Server) -> None:
    server.stop_bookie(2)
    server.stop_bookie(2)
    assert [bookie["running"] for bookie in server.state()["bookies"]] == [True, False, True]
    server.start_bookie(2)
    server.start_bookie(2)
    assert [bookie["running"] for bookie in server.state()["bookies"]] == [True, True, True]
    assert not is_refused(server.bookies[1])


def test_nobody_else_gets_its_port_meanwhile(server: Server) -> None:
    server.stop_bookie(2)
    with pytest.raises(OSError, match="in use"), socket.create_server(address_of(server.bookies[1])):
        pass
    server.start_bookie(2)
    assert not is_refused(server.bookies[1])


def test_a_stopped_bookie_is_there_after_a_restart(store_path: Path) -> None:
    with serve(store_path, bookies=2) as server:
        server.stop_bookie(1)
        before = server.bookies
    with serve(store_path, bookies=2) as server:
        assert server.bookies == before
        client = connected(server)
        assert sorted(client.get_children(AVAILABLE)) == sorted([*before, "readonly"])
        leave(client)


def test_a_stopped_bookie_stays_unlisted_when_the_disk_fills_up(server: Server, kazoo: KazooClient) -> None:
    first, second, third = server.cluster.names
    server.stop_bookie(2)
    server.faults.add("full@commit")
    with bookie_at(server.bookies[0]) as wire:
        assert wire.v2(kit.v2_add(stored(1, 0))).code == 105
    eventually(lambda: sorted(kazoo.get_children(f"{AVAILABLE}/readonly")) == sorted([first, third]))
    server.start_bookie(2)
    eventually(lambda: sorted(kazoo.get_children(f"{AVAILABLE}/readonly")) == sorted([first, second, third]))
    server.stop_bookie(2)
    server.faults.clear()
    eventually(lambda: sorted(kazoo.get_children(AVAILABLE)) == sorted([first, third, "readonly"]))


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_bookie_that_there_is_not(server: Server, number: int) -> None:
    for change in (server.stop_bookie, server.start_bookie):
        with pytest.raises(errors.IncorrectParameterError, match=f"no bookie {number}: they are numbered from 1 to 3"):
            change(number)
