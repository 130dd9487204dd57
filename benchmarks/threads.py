"""P3: 64 threads that append to one ledger writer on disk, each waiting for each of its durable appends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import bookstand
from benchmarks.baselines.leveldb import LevelDb
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row

THREADS = 64
PER_THREAD = 100
ALONE = 500
PAYLOAD = bytes(128)

# work(first, count): one thread's appends, numbered from `first`
Work = Callable[[int, int], None]


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    def many(directory: Path) -> Sample:
        return _bookstand(directory, THREADS, PER_THREAD)

    def alone(directory: Path) -> Sample:
        return _bookstand(directory, 1, ALONE)

    def leveldb(directory: Path) -> Sample:
        with closing(LevelDb(directory)) as store:
            return _run(lambda first, count: store.put_range(first, PAYLOAD, count), THREADS, PER_THREAD)

    def in_new_directory(run: Callable[[Path], Sample]) -> Callable[[], Sample]:
        def once() -> Sample:
            with bench.disk.directory() as directory:
                return run(directory)

        return once

    candidates = {"P3": alone, "P3l": leveldb}
    runs = {row.row: in_new_directory(candidates[row.row]) for row in rows}
    measured = interleave({"many": in_new_directory(many), **runs}, bench.rounds(7, 21))
    for row in rows:
        yield ratio(row, measured["many"], measured[row.row], f"on {bench.disk.kind}")


def _bookstand(directory: Path, threads: int, each: int) -> Sample:
    with bookstand.open(directory / "store") as store:
        writer = store.create_ledger()
        append = writer.append

        def work(_first: int, count: int) -> None:
            for _ in range(count):
                append(PAYLOAD)

        sample = _run(work, threads, each)
        if writer.last_add_confirmed != threads * each - 1:
            raise RuntimeError(f"{writer.last_add_confirmed + 1} appends confirmed, not {threads * each}")
        return sample


def _run(work: Work, threads: int, each: int) -> Sample:
    """Measure from the simultaneous start of all threads to the confirmation of the last append."""
    start = threading.Barrier(threads + 1)
    failures: list[BaseException] = []

    def body(number: int) -> None:
        try:
            start.wait()
            work(number * each, each)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=body, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    start.wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for thread in running:
        thread.join()
    count = threads * each
    sample = Sample((time.process_time() - cpu) / count, (time.perf_counter() - wall) / count)
    if failures:
        raise failures[0]
    return sample
