"""P1: long runs of appends, 2 000 per commit, compared with alternative stores."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from benchmarks import ours
from benchmarks.baselines.leveldb import LevelDb
from benchmarks.baselines.raw_lmdb import BulkLmdb, RawLmdb
from benchmarks.baselines.rocksdb import RocksDb
from benchmarks.baselines.sqlite import Sqlite, SqliteRows
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, interleave, timed
from benchmarks.places import Bench, Place
from benchmarks.rows import Row

BATCH = 2_000
BATCHES = 50
PAYLOAD_BYTES = 128


class Store(Protocol):
    def stored(self, payloads: list[bytes]) -> list[bytes]: ...
    def append_batches(self, payloads: list[bytes], batches: int) -> None: ...
    def count(self) -> int: ...
    def close(self) -> None: ...


_CANDIDATES: dict[str, Callable[[Path], Store]] = {
    "many": ours.Many,
    "handles": ours.Handles,
    "raw": RawLmdb,
    "bulk": BulkLmdb,
    "sqlite": Sqlite,
    "sqlite-rows": SqliteRows,
    "rocksdb": RocksDb,
    "leveldb": LevelDb,
}

# row without its location suffix -> (ours, baseline)
_PAIRS = {
    "P1": ("many", "raw"),
    "P1s": ("many", "sqlite"),
    "P1r": ("many", "rocksdb"),
    "P1h": ("handles", "raw"),
    "P1hs": ("handles", "sqlite"),
    "P1-multi": ("many", "bulk"),
    "P1-rows": ("many", "sqlite-rows"),
    "P1-level": ("many", "leveldb"),
}


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    in_memory = [row for row in rows if not row.row.endswith("-disk")]
    on_disk = [row for row in rows if row.row.endswith("-disk")]
    yield from _measure(in_memory, bench.memory(), bench.rounds(11, 31))
    yield from _measure(on_disk, bench.disk, bench.rounds(7, 15))


def _measure(rows: list[Row], place: Place, rounds: int) -> Iterator[Figure]:
    if not rows:
        return
    pairs = {row.row: _PAIRS[row.row.removesuffix("-disk")] for row in rows}
    names = sorted({name for pair in pairs.values() for name in pair})
    payloads = random.Random(1).randbytes(BATCH * PAYLOAD_BYTES)
    pool = [payloads[start : start + PAYLOAD_BYTES] for start in range(0, len(payloads), PAYLOAD_BYTES)]
    measured = interleave({name: _candidate(_CANDIDATES[name], pool, place) for name in names}, rounds)
    for row in rows:
        mine, other = pairs[row.row]
        yield ratio(row, measured[mine], measured[other], f"on {place.kind}")


def _candidate(opened: Callable[[Path], Store], pool: list[bytes], place: Place) -> Callable[[], Sample]:
    def once() -> Sample:
        with place.directory() as directory, closing(opened(directory)) as store:
            stored = store.stored(pool)
            sample = timed(lambda: store.append_batches(stored, BATCHES), BATCH * BATCHES)
            if store.count() != BATCH * BATCHES:
                raise RuntimeError(f"{opened.__name__} holds {store.count()} entries, not {BATCH * BATCHES}")
            return sample

    return once
