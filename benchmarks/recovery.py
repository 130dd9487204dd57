"""P23 and the PM rows: time and private memory of recovery and scans of large ledgers.

Recovery closes a ledger, so every round uses a copy of a prepared store.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import bookstand
from benchmarks.figures import Figure, failure, ratio
from benchmarks.measure import Sample, Series, child_memory
from benchmarks.places import Bench
from benchmarks.rows import Row

LARGE = 10_000_000
SMALL = 100_000
LARGE_ENTRIES = 256
LARGE_ENTRY_BYTES = 2 << 20
TAIL_ENTRIES = 100_000
TAIL_ENTRY_BYTES = 1 << 10
_COMMIT = 20_000
_ROOM = 6 << 30

_RECOVER = """
import bookstand
ready()
store = bookstand.open(sys.argv[1])
reader = store.open_ledger(int(sys.argv[2]), recovery=True)
done(str(reader.last_add_confirmed + 1))
"""
_SCAN = """
import bookstand
ready()
store = bookstand.open(sys.argv[1])
count = 0
for entry in store.open_ledger(int(sys.argv[2])):
    count += 1
done(str(count))
"""


@dataclass(frozen=True)
class Prepared:
    """A store with open ledgers: a tiny one to warm up, one of SMALL and one of LARGE entries."""

    path: Path
    tiny: int
    small: int
    large: int

    def copy(self, destination: Path) -> Path:
        return Path(shutil.copytree(self.path, destination))


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as directory:
        prepared: Prepared | None = None
        for row in rows:
            if row.row == "PMscan-large":
                yield _memory(row, _SCAN, *_large_entries(directory / "own"), LARGE_ENTRIES)
                shutil.rmtree(directory / "own")
                continue
            if row.row == "PMrecover-tail":
                yield _memory(row, _RECOVER, *_long_tail(directory / "own"), TAIL_ENTRIES)
                shutil.rmtree(directory / "own")
                continue
            if prepared is None:
                prepared = _prepare(directory / "prepared")
            if row.row == "P23":
                yield _time(row, prepared, directory / "copy", bench.rounds(5, 9), f"on {place.kind}")
                continue
            path = prepared.copy(directory / "copy")
            yield _memory(row, _SCAN if row.row == "PMscan" else _RECOVER, path, prepared.large, LARGE)
            shutil.rmtree(path)


def _prepare(path: Path) -> Prepared:
    with bookstand.open(path) as store:
        ids = []
        for size in (10, SMALL, LARGE):
            writer = store.create_ledger()
            ids.append(writer.id)
            for start in range(0, size - 1, _COMMIT):
                writer.append_many([b"%012d" % number for number in range(start, min(start + _COMMIT, size - 1))])
            # Recovery reads from the last-add-confirmed in the last entry on: after this append, only this entry.
            writer.append(b"%012d" % (size - 1))
    return Prepared(path, *ids)


def _large_entries(path: Path) -> tuple[Path, int]:
    with bookstand.open(path) as store, store.create_ledger() as writer:
        for number in range(LARGE_ENTRIES):
            writer.append(number.to_bytes(4) * (LARGE_ENTRY_BYTES // 4))
        return path, writer.id


def _long_tail(path: Path) -> tuple[Path, int]:
    """Write with deferred sync and no force: no entry has a last-add-confirmed, so recovery reads all entries."""
    with bookstand.open(path) as store:
        writer = store.create_ledger(deferred_sync=True)
        for first in range(0, TAIL_ENTRIES, 1_000):
            writer.append_many([number.to_bytes(4) * (TAIL_ENTRY_BYTES // 4) for number in range(first, first + 1_000)])
    return path, writer.id


def _time(row: Row, prepared: Prepared, copy: Path, rounds: int, note: str) -> Figure:
    sizes = {prepared.small: SMALL, prepared.large: LARGE}
    series = {prepared.small: Series(), prepared.large: Series()}
    for turn in range(rounds):
        with bookstand.open(prepared.copy(copy)) as store:
            store.open_ledger(prepared.tiny, recovery=True)
            order = list(series)
            for ledger in order if turn % 2 else reversed(order):
                if store.is_closed(ledger):
                    raise RuntimeError("the ledger was closed before its recovery")
                wall, cpu = time.perf_counter(), time.process_time()
                reader = store.open_ledger(ledger, recovery=True)
                series[ledger].samples.append(Sample(time.process_time() - cpu, time.perf_counter() - wall))
                if reader.last_add_confirmed != sizes[ledger] - 1 or not store.is_closed(ledger):
                    raise RuntimeError(f"recovery ended at {reader.last_add_confirmed}")
        shutil.rmtree(copy)
    return ratio(row, series[prepared.large], series[prepared.small], note)


def _memory(row: Row, code: str, path: Path, ledger: int, entries: int) -> Figure:
    memory = child_memory(code, str(path), str(ledger))
    if memory.output != str(entries):
        return failure(row, f"{memory.output} entries, not {entries}")
    return Figure(
        row,
        value=memory.peak - memory.start,
        ours=memory.peak,
        baseline=memory.start,
        note=f"{memory.end:.1f} MiB at the end",
        rounds={"ours": {"peak": [memory.peak], "end": [memory.end]}, "baseline": {"start": [memory.start]}},
    )
