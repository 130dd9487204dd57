"""What a served store is held against: a bookie of the original's, its ZooKeeper, and the original's client.

The client is one process, whoever serves. Where there is no JDK or no Maven, all of it is missing.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.maven import JAVA, classpath
from benchmarks.measure import ROOT, Missing

ORIGINAL = "a bookie of BookKeeper 4.18.0"
# As the original's scripts start it, but for a smaller heap and fewer words.
_FLAGS = (
    "-Xmx512m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-Dio.netty.leakDetectionLevel=disabled",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    f"-Dlog4j2.configurationFile={JAVA / 'log4j2.properties'}",
)
_PATIENCE = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Server(NamedTuple):
    """A bookie that is ready: where its cluster is, and the process that alone counts."""

    uri: str
    pid: int

    def cpu(self) -> float:
        """Seconds, user and system, that the process has taken so far with all of its threads."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        except OSError as error:
            raise Missing("the CPU time of a process is read from /proc, which is not here") from error
        # Behind the name in brackets, which may hold anything.
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


class Client:
    """The original's client: a line asks for a round of adds, a line answers. Its JVM is warm for all but the first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def add(self, uri: str, version: int, count: int, size: int, window: int) -> float:
        """How long it took until so many adds were confirmed, in seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"uri={uri} version={version} count={count} bytes={size} window={window}\n")
        self._process.stdin.flush()
        answer = dict(word.partition("=")[::2] for word in self._process.stdout.readline().split())
        if answer.get("adds") != str(count):
            raise RuntimeError(f"the original's client has added {answer.get('adds', 'nothing')} of {count}")
        return int(answer["wall"]) / 1e9


@contextmanager
def client() -> Iterator[Client]:
    with _process(_java("Client"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Client(process)


@contextmanager
def ours(store: Path) -> Iterator[Server]:
    """``bookstand serve`` with one bookie, in a process of its own."""
    command = [*serve_command(store), "--zookeeper", "0", "--json"]
    with _process(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield Server(said["metadata_service_uri"], process.pid)


@contextmanager
def original(folder: Path) -> Iterator[Server]:
    """A bookie of the original's with its ZooKeeper in a process of its own, whose CPU time is not the bookie's."""
    zookeeper, bookie = free_ports(2)
    with (
        _process(original_command(folder, "zookeeper", zookeeper, bookie)) as first,
        _listening(first, zookeeper),
        _process(original_command(folder, "bookie", zookeeper, bookie)) as second,
        _listening(second, bookie),
    ):
        yield Server(f"zk+hierarchical://127.0.0.1:{zookeeper}/ledgers", second.pid)


def serve_command(store: Path) -> list[str]:
    return [sys.executable, "-m", "bookstand.tools.main", "serve", str(store), "--bookies", "1"]


def original_command(folder: Path, parts: str, zookeeper: int, bookie: int) -> list[str]:
    return _java("Server", str(folder), parts, str(zookeeper), str(bookie))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _java(program: str, *arguments: str) -> list[str]:
    where = classpath("bookies.xml", "bookies")
    return ["java", *_FLAGS, "-cp", where, f"bookstand.benchmarks.bookies.{program}", *arguments]


@contextmanager
def _process(command: list[str], **streams: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, cwd=ROOT, text=True, **streams)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _listening(process: subprocess.Popen[str], port: int) -> Iterator[None]:
    """From when the process listens there."""
    until = time.monotonic() + _PATIENCE
    while True:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"nobody listens at port {port}: {' '.join(process.args[-5:])}")
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionError:
            time.sleep(0.05)
        else:
            break
    yield
