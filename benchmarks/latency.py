"""P2: single durable appends on disk, alternating with bare LMDB commits of an entry of the same size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from benchmarks import ours
from benchmarks.baselines.raw_lmdb import RawLmdb
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, Series
from benchmarks.places import Bench
from benchmarks.rows import Row

_WARM_UP = 20


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    turns = bench.rounds(300, 1_000)
    payload = bytes(128)
    with (
        bench.disk.directory() as directory,
        closing(ours.Many(directory)) as store,
        closing(RawLmdb(directory)) as bare,
    ):
        value = bare.stored([payload])[0]
        candidates: list[tuple[Series, Callable[[], None]]] = [
            (Series(), lambda: store.append_one(payload)),
            (Series(), lambda: bare.append_one(value)),
        ]
        for turn in range(-_WARM_UP, turns):
            for series, operation in candidates if turn % 2 else reversed(candidates):
                sample = _once(operation)
                if turn >= 0:
                    series.samples.append(sample)
    for row in rows:
        yield ratio(row, candidates[0][0], candidates[1][0], f"on {bench.disk.kind}, {turns} turns")


def _once(operation: Callable[[], None]) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    operation()
    return Sample(time.process_time() - cpu, time.perf_counter() - wall)
