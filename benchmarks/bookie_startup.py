"""P25s: wall time from starting a server's first process to the first durable add.

The client is this process, which is already running. It sends an add when ZooKeeper lists the bookie. `P25s` starts
without existing data, and starts the original programs one after the other, because each needs the previous one.
`P25s-again` starts with the data of `P25s`, and runs the original programs in one process, which is their fastest
start.
"""

from __future__ import annotations

import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from kazoo.client import KazooClient

from benchmarks import bookies
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.server.bookie.protocol import codes, v2
from bookstand.server.framing import joined
from bookstand.storage.format import entry_codec
from bookstand.storage.format.digest import digest_for, master_key

_POLL_INTERVAL = 0.002
_LEDGER = 1

Start = Callable[[Path], AbstractContextManager[bookies.Server]]
_FROM_NOTHING: dict[str, Start] = {"ours": bookies.ours, "original": bookies.original}
_AGAIN: dict[str, Start] = {"ours": bookies.ours, "original": bookies.original_together}


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    for row in rows:
        with bench.disk.directory() as folder:
            again = row.row == "P25s-again"
            candidates = {name: partial(_start, name, folder / name, again) for name in _FROM_NOTHING}
            measured = interleave(candidates, bench.rounds(5, 11))
        yield ratio(row, measured["ours"], measured["original"], f"on {bench.disk.kind}, CPU time until exit")


def _start(name: str, place: Path, again: bool) -> Sample:
    sample = _first_add(_FROM_NOTHING[name], place, 0)
    if again:
        sample = _first_add(_AGAIN[name], place, 1)
    shutil.rmtree(place)
    return sample


def _first_add(start: Start, place: Path, entry_id: int) -> Sample:
    cpu, begun = _cpu_of_children(), time.perf_counter()
    with start(place) as server:
        _wait_until_listed(server)
        until = time.monotonic() + bookies.PATIENCE
        while not _add(server.bookie, entry_id):
            if time.monotonic() > until:
                raise RuntimeError(f"the bookie on port {server.bookie} accepts no add")
            time.sleep(_POLL_INTERVAL)
        wall = time.perf_counter() - begun
    return Sample(_cpu_of_children() - cpu, wall)


def _cpu_of_children() -> float:
    """Return the CPU seconds of exited children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _wait_until_listed(server: bookies.Server) -> None:
    client = KazooClient(f"127.0.0.1:{server.zookeeper}")
    client.start()
    try:
        until = time.monotonic() + bookies.PATIENCE
        while client.exists(f"/ledgers/available/127.0.0.1:{server.bookie}") is None:
            if time.monotonic() > until:
                raise RuntimeError(f"the bookie on port {server.bookie} is not listed")
            time.sleep(_POLL_INTERVAL)
    finally:
        client.stop()
        client.close()


def _add(port: int, entry_id: int) -> bool:
    """Return True if the add was confirmed. BookKeeper's bookie listens before it is ready, and closes connections."""
    stored = entry_codec.encode(digest_for("crc32c", b""), _LEDGER, entry_id, -1, 1, b"x")
    request = joined([v2.HEADER.pack(v2.NEWEST, v2.ADD, 0), master_key(b""), stored])
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as answers:
            connection.sendall(request)
            answer = answers.read(v2.ANSWER_BYTES)
    except ConnectionError:
        return False
    return len(answer) == v2.ANSWER_BYTES and int.from_bytes(answer[8:12], "big") == codes.OK
