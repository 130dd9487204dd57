"""P25: durable adds of the original's client, 128 bytes each, 2 000 under way: CPU time of the server's process alone.

The client is the same process for both, warm, and not throttled. The bookie has the original's own settings, its
journal is synced, and its ZooKeeper is a process of its own, which does not count. What a bookie does later, when it
flushes what its journal has, counts only as far as it falls into its own rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from benchmarks import bookies
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Missing, Sample, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row

WINDOW = 2_000
PAYLOAD_BYTES = 128
VERSIONS = {"P25": 2, "P25v3": 3}
# Until the compilers of both JVMs have little left to do.
_WARM_UP_ADDS = 1_000_000


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    try:
        yield from _measure(rows, bench)
    except Missing as missing:
        for row in rows:
            yield ratio(row, missing, missing)


def _measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    count = 100_000 if bench.quick else 300_000
    with ExitStack() as stack:
        folder = stack.enter_context(bench.disk.directory())
        client = stack.enter_context(bookies.client())
        served = stack.enter_context(bookies.ours(folder / "ours"))
        original = stack.enter_context(bookies.original(folder / "original"))

        def add(server: bookies.Server, version: int) -> Sample:
            before = server.cpu()
            wall = client.add(server.uri, version, count, PAYLOAD_BYTES, WINDOW)
            return Sample((server.cpu() - before) / count, wall / count)

        for row in rows:
            version = VERSIONS[row.row]
            candidates = {"ours": lambda v=version: add(served, v), "original": lambda v=version: add(original, v)}
            measured = interleave(candidates, bench.rounds(5, 9), warm_up=_WARM_UP_ADDS // count)
            note = f"on {bench.disk.kind}, the server's process alone, its ZooKeeper's aside"
            yield ratio(row, measured["ours"], measured["original"], note)
