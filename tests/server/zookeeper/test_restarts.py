"""What was answered is there after a power cut and after SIGKILL, sessions and their znodes included."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bookstand
from bookstand.server.zookeeper.protocol.protocol import CreateMode
from bookstand.testing import VirtualClock, every_crash
from tests.server.zookeeper.kit import Client, ClosedError, Serving, clients

ROOT = Path(__file__).resolve().parent.parent.parent.parent

_SERVE = """
import asyncio, sys
import bookstand
from bookstand.server.zookeeper.server import ZooKeeperServer
from bookstand.storage.clock import SystemClock

async def main():
    server = ZooKeeperServer(bookstand.open(sys.argv[1]).storage, SystemClock(), port=int(sys.argv[2]))
    await server.start()
    print(server.address[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Process:
    """A server in a process of its own, which is killed in the end."""

    def __init__(self, path: Path, port: int = 0) -> None:
        command = [sys.executable, "-c", _SERVE, str(path), str(port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def write_until_it_is_cut(client: Client, name: int, answered: list[tuple[str, bytes]]) -> None:
    """Creates and sets, each told only once it was answered."""
    try:
        for number in range(1_000_000):
            path = f"/n{name}-{number}"
            assert client.create(path, b"first") == path
            answered.append((path, b"first"))
            assert client.set(path, b"second").version == 1
            answered.append((path, b"second"))
    except (ClosedError, ConnectionError, OSError):
        pass


def test_what_was_answered_survives_sigkill(store_path: Path) -> None:
    """Several clients write while the server is killed, and again; each znode then is as answered, or one write on."""
    answered: list[tuple[str, bytes]] = []
    process = Process(store_path)
    owner = Client(process.port).connect()
    owner.create("/owned", b"", CreateMode.EPHEMERAL)
    for round_ in range(3):
        writers = [Client(process.port).connect() for _ in range(3)]
        threads = [
            threading.Thread(target=write_until_it_is_cut, args=(client, round_ * 10 + number, answered))
            for number, client in enumerate(writers)
        ]
        before = len(answered)
        for thread in threads:
            thread.start()
        while len(answered) < before + 60:
            assert any(thread.is_alive() for thread in threads)
        process.kill()
        for thread in threads:
            thread.join()
        for client in writers:
            client.close()
        process = Process(store_path)
        with clients(process.port) as (client,):
            for path, value in dict(answered).items():
                data, stat = client.get(path)
                assert (data, stat.version) in ((value, int(value == b"second")), (b"second", 1))
            # The session goes on, for it was not silent for as long as it may be.
            assert client.exists("/owned").ephemeral_owner == owner.session_id
            known = {path for path, _ in answered}
            found = {f"/{name}" for name in client.children("/") if name.startswith("n")}
            # What was under way may be there.
            assert known <= found
            assert len(found - known) <= 3 * (round_ + 1)
            assert client.exists("/").children == len(client.children("/"))
    again = Client(process.port).connect(session_id=owner.session_id, password=owner.password)
    assert again.session_id == owner.session_id
    again.close_session()
    with clients(process.port) as (client,):
        assert client.exists("/owned") == -101
    owner.close()
    process.kill()
    with bookstand.open(store_path) as store:
        assert store.verify().ok


def test_power_cuts_at_every_moment(tmp_path: Path) -> None:
    """A workload with one of everything, cut wherever it can be; each state is served again, and looked at."""

    def workload(path: str, acknowledge: Callable[[Any], None]) -> None:
        with bookstand.open(path) as store, Serving(store.storage, VirtualClock()) as serving:
            client = Client(serving.port).connect()
            acknowledge(("session", client.session_id, client.password))
            for step, do in enumerate(STEPS):
                do(client)
                acknowledge(("step", step, client.zxid))
            client.close()

    def check(store: Any, acknowledged: list[Any]) -> None:
        steps = [done[1] for done in acknowledged if done[0] == "step"]
        with Serving(store.storage, VirtualClock()) as serving:
            opened = next((done for done in acknowledged if done[0] == "session"), None)
            if opened is None:
                client = Client(serving.port).connect()
            else:
                client = Client(serving.port).connect(session_id=opened[1], password=opened[2])
                assert client.session_id == opened[1]
            client.ping()
            assert client.zxid >= max((done[2] for done in acknowledged if done[0] == "step"), default=0)
            state = look(client)
            # What is there is what was answered, or what that and the one write under way make of it.
            assert state in EXPECTED[len(steps) : len(steps) + 2]
            client.close()

    every_crash(workload, check)


STEPS: list[Callable[[Client], Any]] = [
    lambda client: client.create("/a", b"1"),
    lambda client: client.create("/a/e", b"2", CreateMode.EPHEMERAL),
    lambda client: client.set("/a", b"3"),
    lambda client: client.create("/a/n-", b"", CreateMode.PERSISTENT_SEQUENTIAL),
    lambda client: client.delete("/a/e"),
]


def look(client: Client) -> dict[str, tuple[bytes, int, int]]:
    """Value, version and number of children of each znode."""
    found = {}
    waiting = ["/a"]
    while waiting:
        path = waiting.pop()
        answer = client.get(path)
        if not isinstance(answer, int):
            found[path] = (answer[0], answer[1].version, answer[1].children)
            waiting += [f"{path}/{name}" for name in client.children(path)]
    return found


EXPECTED: list[dict[str, tuple[bytes, int, int]]] = [
    {},
    {"/a": (b"1", 0, 0)},
    {"/a": (b"1", 0, 1), "/a/e": (b"2", 0, 0)},
    {"/a": (b"3", 1, 1), "/a/e": (b"2", 0, 0)},
    {"/a": (b"3", 1, 2), "/a/e": (b"2", 0, 0), "/a/n-0000000001": (b"", 0, 0)},
    {"/a": (b"3", 1, 1), "/a/n-0000000001": (b"", 0, 0)},
]
