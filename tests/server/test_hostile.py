"""A thousand clients at once that do what they should not, on a server in a process of its own."""

from __future__ import annotations

import json
import random
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bookstand
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Op
from tests.kit import own_environment
from tests.server.bookie import kit
from tests.server.bookie.kit import PATIENCE, Wire
from tests.server.bookie.test_limits import private_bytes
from tests.server.zookeeper.kit import Client

EACH = 100
"""Of each kind, and as many at either protocol."""
OPEN_FILES = 2_500
LARGE = 200_000
SIX_MIB = struct.pack(">i", 6 << 20)
HALF = struct.pack(">i", LARGE) + bytes(LARGE // 2)
NOISE = random.Random(7)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int], int]]:
    """The process, where the bookie is, and where ZooKeeper is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
            pytest.skip(f"this machine lets a process have {hard} files open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    command = [sys.executable, "-m", "bookstand.tools.main", "serve", str(tmp_path / "store"), "--bookies", "1"]
    process = subprocess.Popen(
        [*command, "--zookeeper", "0", "--json"], stdout=subprocess.PIPE, text=True, env=own_environment()
    )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        ports = [int(address.rpartition(":")[2]) for address in (told["bookies"][0]["address"], told["zookeeper"])]
        yield process, ("127.0.0.1", ports[0]), ports[1]
    finally:
        process.kill()
        process.communicate()


class Honest:
    """One client of each protocol, which are served all the while."""

    def __init__(self, bookie: tuple[str, int], zookeeper: int) -> None:
        self._wire, self._client = Wire(bookie), Client(zookeeper).connect()
        self._entries = 0
        self._client.create("/honest")

    def work(self) -> None:
        for _ in range(5):
            entry = kit.stored(77, self._entries)
            assert self._wire.v2(kit.v2_add(entry)).code == 0
            assert self._wire.v2(kit.v2_read(77, self._entries)).body == entry
            assert self._wire.v3(kit.v3_read(77, self._entries)).readResponse.body == entry
            self._client.set("/honest", b"%d" % self._entries)
            assert self._client.get("/honest")[0] == b"%d" % self._entries
            self._entries += 1

    def end(self) -> None:
        self._wire.socket.close()
        self._client.close()


def test_a_thousand_hostile_clients_at_once(
    served: tuple[subprocess.Popen[str], tuple[str, int], int], tmp_path: Path
) -> None:
    process, bookie, zookeeper = served
    honest = Honest(bookie, zookeeper)
    honest.work()
    with Wire(bookie) as wire, Client(zookeeper).connect() as client:
        assert wire.v2(kit.v2_add(kit.stored(1, 0, bytes(LARGE)))).code == 0
        client.create("/large", bytes(LARGE))
    before = private_bytes(process.pid)
    connections: list[socket.socket | Client] = []

    def connect(port: int, octets: bytes) -> None:
        connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        connections.append(connection)
        try:
            connection.sendall(octets)
        except ConnectionError:
            # It was closed before all of it was sent.
            pass

    get = records.REQUESTS[Op.GET_DATA].encode(records.PathAndWatch("/large", False))
    for _ in range(EACH):
        for port in (bookie[1], zookeeper):
            for octets in (b"", HALF, SIX_MIB, NOISE.randbytes(500)):
                connect(port, octets)
        connect(bookie[1], kit.v2_read(1, 0) * 40)
        slow = Client(zookeeper).connect()
        connections.append(slow)
        for _ in range(40):
            slow.send(Op.GET_DATA, get)
        honest.work()
    assert len(connections) == 10 * EACH
    honest.work()
    # Halves and what two hundred do not take: not the sixteen hundred megabytes that they have asked for.
    assert private_bytes(process.pid) - before < 256 << 20
    for connection in connections:
        connection.close()
    honest.work()
    honest.end()
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 0
    with bookstand.open(tmp_path / "store") as store:
        assert store.verify().ok
