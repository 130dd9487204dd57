"""Baseline of a served store: a BookKeeper bookie with its ZooKeeper, and BookKeeper's client.

The original programs run with default settings, except for directories and ports, a higher disk usage threshold, and a
disabled auto-recovery daemon. Without a JDK or Maven they are missing.
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
from typing import Any, NamedTuple

from benchmarks.maven import JAVA, classpath
from benchmarks.measure import ROOT, Missing, as_installed

PATIENCE = 60.0
_POLL_INTERVAL = 0.002
_TICKS = os.sysconf("SC_CLK_TCK")
# Compile our modules in the first start, which does not count, because the original programs are compiled, too.
_BYTECODE = ROOT / "build" / "bytecode"

_OURS = "bookstand.benchmarks.bookies"
_ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
_BOOKIE = "org.apache.bookkeeper.server.Main"
_SHELL = "org.apache.bookkeeper.bookie.BookieShell"
# The flags of the original scripts, with a smaller heap and less logging.
_FLAGS = (
    "-Xmx512m",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-Dio.netty.leakDetectionLevel=disabled",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    f"-Dlog4j2.configurationFile={JAVA / 'log4j2.properties'}",
)
_SETTINGS = """
metadataServiceUri=zk+hierarchical://127.0.0.1:{zookeeper}/ledgers
journalDirectories={folder}/journal
ledgerDirectories={folder}/ledgers
allowLoopback=true
advertisedAddress=127.0.0.1
bookiePort={bookie}
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
autoRecoveryDaemonEnabled=false
"""


class Server(NamedTuple):
    """Ports of a server, and the process id of its bookie."""

    zookeeper: int
    bookie: int
    pid: int

    @property
    def uri(self) -> str:
        return f"zk+hierarchical://127.0.0.1:{self.zookeeper}/ledgers"

    def cpu(self) -> float:
        """Return the CPU seconds, user and system, of the bookie's process so far."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        except OSError as error:
            raise Missing("the CPU time of a process needs /proc, which does not exist") from error
        # The fields follow the process name in parentheses, which may contain any character.
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


class Client:
    """BookKeeper's client as a worker process: each line requests a round of adds. Its JVM stays warm."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def add(self, uri: str, version: int, count: int, size: int, window: int) -> float:
        """Perform ``count`` adds; returns the seconds until all are confirmed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"uri={uri} version={version} count={count} bytes={size} window={window}\n")
        self._process.stdin.flush()
        answer = dict(word.partition("=")[::2] for word in self._process.stdout.readline().split())
        if answer.get("adds") != str(count):
            raise RuntimeError(f"BookKeeper's client has added {answer.get('adds', 'none')} of {count} entries")
        return int(answer["wall"]) / 1e9


@contextmanager
def client() -> Iterator[Client]:
    with _process(_java(f"{_OURS}.Client"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Client(process)


@contextmanager
def ours(store: Path) -> Iterator[Server]:
    """Run ``bookstand serve`` with one bookie."""
    command = [sys.executable, "-m", "bookstand.tools.main", "serve", str(store)]
    command += ["--bookies", "1", "--zookeeper", "0", "--json"]
    with _process(command, stdout=subprocess.PIPE, env=as_installed(_BYTECODE)) as process:
        assert process.stdout is not None
        output = json.loads(process.stdout.readline())
        addresses = (output["zookeeper"], output["bookies"][0]["address"])
        zookeeper, bookie = (int(address.rpartition(":")[2]) for address in addresses)
        yield Server(zookeeper, bookie, process.pid)


@contextmanager
def original(folder: Path) -> Iterator[Server]:
    """Run ZooKeeper, the shell's ``initnewcluster`` and a bookie, one after the other, in a new folder. ZooKeeper is a
    separate process."""
    zookeeper, bookie, settings = _settings(folder)
    with _process(_java(_ZOOKEEPER, str(zookeeper), str(folder / "zookeeper")), stderr=subprocess.PIPE) as first:
        _wait_until_listening(first, zookeeper)
        subprocess.run(_java(_SHELL, "-conf", str(settings), "initnewcluster"), capture_output=True, check=True)
        with _process(_java(_BOOKIE, "--conf", str(settings)), stderr=subprocess.PIPE) as second:
            _wait_until_listening(second, bookie)
            yield Server(zookeeper, bookie, second.pid)


@contextmanager
def original_together(folder: Path) -> Iterator[Server]:
    """Run a bookie and ZooKeeper in one process, in a folder that :func:`original` has used."""
    zookeeper, bookie, settings = _settings(folder)
    together = _java(f"{_OURS}.Together", str(zookeeper), str(folder / "zookeeper"), str(settings))
    with _process(together, stderr=subprocess.PIPE) as process:
        _wait_until_listening(process, zookeeper)
        _wait_until_listening(process, bookie)
        yield Server(zookeeper, bookie, process.pid)


def _settings(folder: Path) -> tuple[int, int, Path]:
    """Return the ports of ZooKeeper and of the bookie, which are fixed for a folder, and the bookie's settings file."""
    settings = folder / "bookie.conf"
    if settings.exists():
        lines = dict(line.split("=", 1) for line in settings.read_text().strip().splitlines())
        zookeeper = lines["metadataServiceUri"].rpartition(":")[2].partition("/")[0]
        return int(zookeeper), int(lines["bookiePort"]), settings
    folder.mkdir(parents=True)
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    first, second = (probe.getsockname()[1] for probe in probes)
    for probe in probes:
        probe.close()
    settings.write_text(_SETTINGS.format(folder=folder, zookeeper=first, bookie=second))
    return first, second, settings


def _java(program: str, *arguments: str) -> list[str]:
    return ["java", *_FLAGS, "-cp", classpath("bookies.xml", "bookies"), program, *arguments]


@contextmanager
def _process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process, and terminate it at the end."""
    process = subprocess.Popen(command, cwd=ROOT, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE)
        finally:
            process.kill()


def _wait_until_listening(process: subprocess.Popen[str], port: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionError:
            if process.poll() is not None or time.monotonic() > until:
                process.kill()
                output = process.communicate()[1]
                raise RuntimeError(f"no process listens on port {port}: {output[-300:].strip()}") from None
            time.sleep(_POLL_INTERVAL)
        else:
            return
