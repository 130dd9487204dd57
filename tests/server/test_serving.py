"""A store that is served: what clients find there, where bookies are after a restart, and how it ends."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import bookstand
from bookstand import errors
from bookstand.ledger.cluster.cookie import parse as parse_cookie
from bookstand.ledger.cluster.ledger_path import ledger_path
from bookstand.ledger.cluster.paths import service_info
from bookstand.server import serve
from bookstand.server.bind_errors import address_of
from bookstand.server.bookie.server import BookieServer
from bookstand.server.loop_thread import LoopThread
from bookstand.server.server import Server
from bookstand.server.zookeeper.server import ZooKeeperServer
from bookstand.storage.clock import SystemClock
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_metadata import CLOSED, LedgerMetadata, serialize
from tests.kit import ChildRefusedError, eventually
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire
from tests.server.kit import bookie_at, connected, leave

RECORDED = Path(__file__).resolve().parents[1] / "data" / "wire"
PASSWORD = b"secret"
KEY = master_key(PASSWORD)
DIGEST = digest_for("crc32c", PASSWORD)


def entry(ledger_id: int, number: int) -> bytes:
    payload = b"entry %d" % number
    return encode(DIGEST, ledger_id, number, number - 1, len(payload) * (number + 1), payload)


def create(client: KazooClient, names: list[str], write_quorum: int = 2) -> LedgerMetadata:
    """A new ledger, step by step as BookKeeper's client makes it; with its id."""
    taken = client.create("/ledgers/idgen/ID-", ephemeral=True, sequence=True, makepath=True)
    client.delete(taken)
    metadata = LedgerMetadata(
        int(taken.rpartition("-")[2]),
        ensemble_size=len(names),
        write_quorum_size=write_quorum,
        ack_quorum_size=write_quorum,
        ensembles=[(0, names)],
        digest_type="crc32c",
        password=PASSWORD,
    )
    client.create(ledger_path(metadata.ledger_id), serialize(metadata), makepath=True)
    return metadata


def find_bookie(client: KazooClient, name: str) -> Wire:
    """Where a client finds a bookie of this name."""
    info, _ = client.get(f"/ledgers/available/{name}")
    port = next(port for port in range(1024, 65536) if service_info("127.0.0.1", port) == info)
    return Wire(("127.0.0.1", port))


# -- what clients find -------------------------------------------------------------------------------------------------


def recorded_tree() -> dict[str, bytes]:
    with gzip.open(RECORDED / "bk-tree.jsonl.gz", "rt") as lines:
        nodes = map(json.loads, lines)
        return {node["path"]: b64decode(node["data"]) for node in nodes}


def test_the_tree_is_that_of_a_cluster_whose_bookies_run(server: Server, kazoo: KazooClient) -> None:
    recorded = recorded_tree()
    for path in ("/ledgers", "/ledgers/LAYOUT", "/ledgers/available", "/ledgers/available/readonly"):
        assert kazoo.get(path)[0] == recorded[path]
    assert len(kazoo.get("/ledgers/INSTANCEID")[0]) == len(recorded["/ledgers/INSTANCEID"])
    assert sorted(kazoo.get_children("/ledgers/available")) == sorted([*server.bookies, "readonly"])
    assert kazoo.get_children("/ledgers/available/readonly") == []
    for name in server.bookies:
        cookie = parse_cookie(kazoo.get(f"/ledgers/cookies/{name}")[0])
        assert (cookie.bookie, cookie.instance_id) == (name, kazoo.get("/ledgers/INSTANCEID")[0].decode())


def test_what_is_said_of_a_bookie_is_what_the_original_says() -> None:
    """The value that a bookie of the original was seen to write."""
    assert service_info("127.0.0.1", 53915) == b'2#\n\x06bookie\x10\x9b\xa5\x03\x1a\t127.0.0.1"\nbookie-rpc'


def test_what_a_client_is_configured_with(server: Server) -> None:
    assert server.metadata_service_uri == f"zk+hierarchical://{server.zookeeper}/ledgers"
    assert server.metadata_store_url == f"zk:{server.zookeeper}"


def test_a_ledger_is_written_as_by_the_original_s_client(server: Server, kazoo: KazooClient) -> None:
    """Its id, its metadata, its entries at two of three bookies each, its end; then it is the store's."""
    metadata = create(kazoo, server.bookies)
    ledger_id = metadata.ledger_id
    wires = [bookie_at(address) for address in server.bookies]
    for number in range(9):
        for bookie in (number % 3, (number + 1) % 3):
            assert wires[bookie].v2(kit.v2_add(entry(ledger_id, number), KEY)).code == 0
    path = ledger_path(ledger_id)
    _, stat = kazoo.get(path)
    closed = metadata.replace(state=CLOSED, last_entry_id=8, length=9 * len(b"entry 0"))
    kazoo.set(path, serialize(closed), stat.version)
    reader = server.store.open_ledger(ledger_id, password=PASSWORD)
    assert [one.data for one in reader] == [b"entry %d" % number for number in range(9)]
    # And the other way round.
    writer = server.store.create_ledger(password=PASSWORD)
    writer.append(b"from the store")
    assert kazoo.exists(ledger_path(writer.id)) is not None
    assert wires[1].v2(kit.v2_read(writer.id, 0)).body[36:] == b"from the store"
    for wire in wires:
        wire.socket.close()


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_an_interrupted_start_leaves_nothing_behind(store_path: Path) -> None:
    """It is interrupted while the bookies are being listed."""
    paused, released = threading.Event(), threading.Event()

    def pause() -> None:
        with store.storage.committer.paused():
            paused.set()
            released.wait()

    with bookstand.open(store_path) as store:
        others = [threading.Thread(target=pause), threading.Timer(0.6, released.set)]
        interrupt = threading.Timer(0.3, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
        others[0].start()
        paused.wait()
        for one in (interrupt, others[1]):
            one.start()
        with pytest.raises(KeyboardInterrupt):
            serve(store, bookies=1).start()
        for one in (interrupt, *others):
            one.join()
        with serve(store, bookies=1) as server:
            assert server.state()["bookies"][0]["running"]


def test_bookies_are_where_they_were(store_path: Path) -> None:
    with serve(store_path) as server:
        before = server.bookies
    with serve(store_path) as server:
        assert server.bookies == before
        assert server.cluster.names == before


def test_a_bookie_whose_port_is_taken_keeps_its_name(store_path: Path) -> None:
    """Ledgers know it by that; where it listens now is told to clients."""
    with serve(store_path) as server:
        (first, *others) = server.bookies
        client = connected(server)
        ledger_id = create(client, [first], 1).ledger_id
        with bookie_at(first) as wire:
            assert wire.v2(kit.v2_add(entry(ledger_id, 0), KEY)).code == 0
        leave(client)
    with socket.create_server(address_of(first)), serve(store_path) as server:
        assert server.cluster.names == [first, *others]
        assert server.bookies[0] != first
        assert server.bookies[1:] == others
        client = connected(server)
        with find_bookie(client, first) as wire:
            assert wire.v2(kit.v2_read(ledger_id, 0)).body == entry(ledger_id, 0)
        leave(client)


def test_bookies_that_are_not_served_any_more_are_not_listed(store_path: Path) -> None:
    """Also where the server was killed, and could not say so."""
    with serve(store_path, bookies=3) as server:
        before = server.bookies
        server.crash()
    with bookstand.open(store_path) as store:
        assert store.nodes.children("/ledgers/available") == sorted([*before, "readonly"])
    with serve(store_path, bookies=2) as server:
        client = connected(server)
        assert sorted(client.get_children("/ledgers/available")) == sorted([*before[:2], "readonly"])
        leave(client)
    with bookstand.open(store_path) as store:
        assert store.nodes.children("/ledgers/available") == ["readonly"]


def test_a_name_is_one_bookie_s(store_path: Path) -> None:
    with serve(store_path, bookies=2) as server:
        ports = [address_of(address)[1] for address in server.bookies]
    with pytest.raises(errors.IncorrectParameterError, match=f"127.0.0.1:{ports[1]} is the name of bookie 2"):
        Server(store_path, bookie_ports=ports[::-1]).start()


def test_the_cookie_of_another_bookie_is_left_alone(store: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store.nodes.put(f"/ledgers/cookies/127.0.0.1:{port}", b"4\nanybody's")
    with pytest.raises(errors.IncorrectParameterError, match="the cookie of another bookie"):
        Server(store, bookie_ports=[port]).start()
    assert store.nodes.get(f"/ledgers/cookies/127.0.0.1:{port}") == (b"4\nanybody's", 0)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_what_was_taken_is_answered_before_the_end(store_path: Path) -> None:
    """Adds that are under way when it is stopped are answered, and stored."""
    server = Server(store_path, bookies=1, faults=["delay@append=0.3"])
    server.start()
    wire = bookie_at(server.bookies[0])
    wire.send(*(kit.v2_add(kit.stored(1, number)) for number in range(20)))
    eventually(lambda: server.faults.as_json()[0]["met"] == 20)
    server.stop()
    codes = [struct.unpack_from(">BBHiqq", wire.frame() or b"")[3] for _ in range(20)]
    assert codes == [0] * 20
    assert wire.frame() is None
    wire.socket.close()
    with bookstand.open(store_path) as store:
        assert [store.storage.entry(1, number) is not None for number in range(20)] == [True] * 20


def test_a_stall_does_not_keep_it_from_ending(store_path: Path) -> None:
    with serve(store_path, bookies=1, faults=["stall@append"]) as server:
        wire = bookie_at(server.bookies[0])
        wire.send(kit.v2_add(kit.stored(1, 0)))
        eventually(lambda: server.faults.as_json()[0]["fired"])
    wire.socket.close()
    with bookstand.open(store_path) as store:
        assert store.verify().ok


def test_a_store_that_was_open_stays_open(store: Any) -> None:
    with serve(store) as server:
        assert server.store is store
    store.create_ledger().append(b"still there")


def test_who_waits_hears_of_the_end_and_of_a_crash(store_path: Path) -> None:
    with serve(store_path) as server:
        server.end()
        server.wait()
    with serve(store_path) as server:
        server.crash()
        with pytest.raises(errors.StoreCrashedError):
            server.wait()


def test_a_store_is_served_by_one_server(store_path: Path, child: Any) -> None:
    """Whoever comes second is told who was first, and takes nothing from it; users of the store may come."""
    with serve(store_path, bookies=1) as server:
        client = connected(server)
        listed = client.get_children("/ledgers/available")
        with pytest.raises(errors.StoreInUseError, match=f"{store_path}: process {os.getpid()} serves its bookies"):
            Server(store_path).start()
        with (
            pytest.raises(errors.StoreInUseError, match="serves its ZooKeeper already"),
            LoopThread(ZooKeeperServer(server.store.storage, SystemClock(), port=0)),
        ):
            pass
        other = child()
        other.run("from bookstand.server import serve")
        with pytest.raises(ChildRefusedError, match=f"process {os.getpid()} serves its bookies already"):
            other.run("serve(path).start()")
        other.run("store.nodes.put('/by/another', b'x')")
        assert client.get("/by/another")[0] == b"x"
        assert client.get_children("/ledgers/available") == listed
        with bookie_at(server.bookies[0]) as wire:
            assert wire.v2(kit.v2_add(kit.stored(1, 0))).code == 0
        leave(client)
    other.run("value = serve(path); value.start(); value.stop(); value = None")
    assert not [name for name in os.listdir(store_path) if name.startswith("serve-")]


def test_a_server_that_was_killed_serves_no_more(store_path: Path, child: Any) -> None:
    """The system knows: nothing is left that would have to be cleared away."""
    killed = child()
    killed.run("from bookstand.server import serve\nserver = serve(path); server.start()")
    with pytest.raises(errors.StoreInUseError, match="serves its bookies already"):
        Server(store_path).start()
    killed.kill()
    with serve(store_path) as server:
        assert len(server.bookies) == 3


def test_what_crashed_may_be_served_again_at_once(store_path: Path) -> None:
    with serve(store_path) as first:
        first.crash()
        with serve(store_path) as second:
            assert second.bookies


# -- a full disk -------------------------------------------------------------------------------------------------------


def test_bookies_whose_disk_is_full_are_read_only(
    small_disk: Path, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ballast = small_disk / "ballast"
    with serve(open_store(path=small_disk / "store"), bookies=1) as server:
        client = connected(server)
        (name,) = server.bookies
        ballast.write_bytes(bytes(1 << 20))
        with bookie_at(name) as wire:
            number = code = 0
            while code == 0:
                code = wire.v2(kit.v2_add(kit.stored(1, number, bytes(100_000)))).code
                number += 1
            assert code == 105
            eventually(lambda: client.get_children("/ledgers/available/readonly") == [name])
            assert client.get_children("/ledgers/available") == ["readonly"]
            ballast.unlink()
            eventually(lambda: client.get_children("/ledgers/available/readonly") == [])
            assert sorted(client.get_children("/ledgers/available")) == sorted([name, "readonly"])
        leave(client)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken(store_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(errors.ServerAddressError, match=f"ZooKeeper cannot listen.*{port}"):
            Server(store_path, zookeeper=f"127.0.0.1:{port}").start()
        with pytest.raises(errors.ServerAddressError, match=f"bookies cannot listen.*{port}"):
            Server(store_path, bookie_ports=[0, port]).start()
    # Nothing of it is left: the store is closed, and no bookie is listed.
    with bookstand.open(store_path) as store:
        assert store.nodes.children("/ledgers/available") in ([], ["readonly"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bookies": 0}, "from 1 to"),
        ({"bookie_ports": [3181, 3181]}, "a port of its own"),
        ({"bookie_ports": [2181], "zookeeper": "2181"}, "a port of its own"),
        ({"zookeeper": ":2181"}, "host:port"),
        ({"zookeeper": "127.0.0.1:99999"}, "host:port"),
        ({"host": "0.0.0.0"}, "which host to advertise"),
        ({"zookeeper": "0.0.0.0:0"}, "which host to advertise"),
        ({"advertise": "::1"}, "a host's name"),
        ({"faults": ["fail@nothing"]}, "there is no operation"),
    ],
)
def test_arguments_that_make_no_sense(store_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(errors.IncorrectParameterError, match=says):
        Server(store_path, **options).start()


def test_each_part_binds_this_machine_alone_unless_told_otherwise(store: Any) -> None:
    """Also where a program starts one of them by itself."""
    bookies, zookeeper = BookieServer(store.storage, [0]), ZooKeeperServer(store.storage, SystemClock(), port=0)
    with LoopThread(bookies, zookeeper):
        assert [host for host, _ in (*bookies.addresses, zookeeper.address)] == ["127.0.0.1"] * 2


def test_a_signal_may_come_at_any_moment(store: Any) -> None:
    """Also while the thread that waits has what the handler needs."""
    sending = f"import os\nwhile True: os.kill({os.getpid()}, {signal.SIGUSR1:d})"
    with serve(store) as server:
        handled: list[None] = []
        before = signal.signal(signal.SIGUSR1, lambda *_: handled.append(server.end()))  # type: ignore[func-returns-value]
        sender = subprocess.Popen([sys.executable, "-c", sending])
        try:
            while len(handled) < 5_000:
                server.wait()
        finally:
            sender.kill()
            sender.wait()
            signal.signal(signal.SIGUSR1, before)
