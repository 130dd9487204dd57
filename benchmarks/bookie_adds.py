"""P25: CPU time of the server process for durable adds by BookKeeper's client, 128 bytes each, 2 000 outstanding.

The client is the same warm, unthrottled process for both servers. The bookie has default settings with a synced
journal. Its ZooKeeper is a separate process, which does not count. Later flushes of the bookie count only if they
happen during its own rounds.
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
# Enough for the JIT compilers of both JVMs.
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
            note = f"on {bench.disk.kind}, server process only, without its ZooKeeper"
            yield ratio(row, measured["ours"], measured["original"], note)
