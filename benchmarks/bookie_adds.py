"""P25: durable adds over the wire, 128 bytes each, 2 000 under way: CPU time of the server's process.

The client is one of Python's that does as little as it can, in this process; its time does not count. The baseline is a
bookie of BookKeeper's under its own client, which needs Java and is not measured here yet.
"""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure, ratio
from benchmarks.measure import ROOT, Missing, Sample, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.proto.wire import write_bytes, write_number
from bookstand.storage.batch import encode_entries
from bookstand.storage.digest import digest_for, master_key

WINDOW = 2_000
PAYLOAD = bytes(128)
# Clients write what they have to send at once, as far as it fits into a socket's buffer.
_SENT_AT_ONCE = 500
_KEY = master_key(b"")


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    for row in rows:
        yield _measure(row, 3 if row.row == "P25v3" else 2, bench)


def _measure(row: Row, version: int, bench: Bench) -> Figure:
    count = 100_000 if bench.quick else 300_000
    ledgers = itertools.count(1)
    with bench.disk.directory() as directory, _server(directory / "store") as (port, process):
        candidates = {"ours": lambda: _add(port, process, version, next(ledgers), count)}
        measured = interleave(candidates, bench.rounds(3, 7))
    baseline = Missing("needs Java, and is not measured here yet")
    return ratio(row, measured["ours"], baseline, f"on {bench.disk.kind}, the server's process alone")


@contextmanager
def _server(path: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "benchmarks.bookie_adds_server", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def _cpu(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def _add(port: int, process: subprocess.Popen[str], version: int, ledger: int, count: int) -> Sample:
    frames = list(_frames(version, ledger, count))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before, begun = _cpu(process), time.perf_counter()
        sent = answered = 0
        rest = b""
        while answered < count:
            while sent < count and sent - answered < WINDOW:
                upto = min(sent + _SENT_AT_ONCE, count, answered + WINDOW)
                client.sendall(b"".join(frames[sent:upto]))
                sent = upto
            answers, rest = _count(rest + client.recv(1 << 18))
            answered += answers
        wall, cpu = time.perf_counter() - begun, _cpu(process) - before
    return Sample(cpu / count, wall / count)


def _count(octets: bytes) -> tuple[int, bytes]:
    """Whole answers, and what is left of another."""
    count = at = 0
    while len(octets) - at >= 4:
        end = at + 4 + int.from_bytes(octets[at : at + 4], "big")
        if end > len(octets):
            break
        count, at = count + 1, end
    return count, octets[at:]


def _frames(version: int, ledger: int, count: int) -> Iterator[bytes]:
    encoded = encode_entries(digest_for("crc32c", b""), ledger, 0, -1, 0, [PAYLOAD] * count)
    for number, (_, stored) in enumerate(encoded.pairs()):
        frame = b"\x02\x01\0\0" + _KEY + stored if version == 2 else _third(ledger, number, stored)
        yield struct.pack(">i", len(frame)) + frame


def _third(ledger: int, number: int, stored: bytes) -> bytes:
    header, add, request = bytearray(b"\x08\x03\x10\x02"), bytearray(), bytearray()
    write_number(header, 3, number)
    write_number(add, 1, ledger)
    write_number(add, 2, number)
    write_bytes(add, 3, _KEY)
    write_bytes(add, 4, stored)
    write_bytes(request, 1, header)
    write_bytes(request, 101, add)
    return bytes(request)
