"""Worker of the time index benchmarks: ``python -m benchmarks.time_index_worker CANDIDATE``.

Each line of ``name=value`` words on stdin requests a round, and a line of the same form is the result, as in
benchmarks/java: nanoseconds of CPU of the whole process and of wall time for all adds and all drains, and the private
memory of the adds. The columns are created before the clocks start.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from benchmarks.measure import private_mib, trimmed_bytes
from benchmarks.time_index_work import END_OF_TIME, START, Columns, Work, checksum

BATCH = 10_000
WARM_UP = 300_000


class Candidate(Protocol):
    def prepare(self, columns: Columns) -> Any:
        """Convert the messages to the form that a caller would have; not measured."""

    def add(self, prepared: Any) -> None: ...
    def count(self) -> int: ...
    def drain(self, now: int) -> Columns:
        """Remove all due messages from the index."""

    def memory_bytes(self) -> int:
        """Return the size that the structure reports; 0 if it does not."""


class _Ours:
    def __init__(self, bits: int) -> None:
        from bookstand.delivery.time_index.index import TimeIndex

        self.index = TimeIndex(bits)

    def count(self) -> int:
        return len(self.index)

    def drain(self, now: int) -> Columns:
        return Columns(*self.index.pop_due(now).columns())

    def memory_bytes(self) -> int:
        return self.index.memory_bytes


class Batches(_Ours):
    """``add_many`` with BATCH messages per call."""

    def prepare(self, columns: Columns) -> list[Columns]:
        size = len(columns.times)
        return [Columns(*(column[at : at + BATCH] for column in columns)) for at in range(0, size, BATCH)]

    def add(self, prepared: list[Columns]) -> None:
        add_many = self.index.add_many
        for times, ledgers, entries in prepared:
            add_many(times, ledgers, entries)


class Singles(_Ours):
    """``add`` with one message per call."""

    def prepare(self, columns: Columns) -> tuple[list[int], ...]:
        return tuple(column.tolist() for column in columns)

    def add(self, prepared: tuple[list[int], ...]) -> None:
        add = self.index.add
        for timestamp, ledger, entry in zip(*prepared, strict=True):
            add(timestamp, ledger, entry)


class Handles(_Ours):
    """``handle`` for each bucket and ledger, and one call of it per message."""

    def prepare(self, columns: Columns) -> list[tuple[int, int, list[int]]]:
        keys = columns.times >> self.index_bits
        changes = np.flatnonzero((np.diff(keys) != 0) | (np.diff(columns.ledgers) != 0)) + 1
        bounds = [0, *changes.tolist(), len(keys)]
        return [
            (int(columns.times[first]), int(columns.ledgers[first]), columns.entries[first:last].tolist())
            for first, last in pairwise(bounds)
        ]

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.index_bits = bits

    def add(self, prepared: list[tuple[int, int, list[int]]]) -> None:
        handle = self.index.handle
        for timestamp, ledger, entries in prepared:
            add = handle(timestamp, ledger)
            for entry in entries:
                add(entry)


class Published:
    """The published structure in Python: SortedDict -> dict -> BitMap, one add per message."""

    def __init__(self, bits: int) -> None:
        from pyroaring import BitMap
        from sortedcontainers import SortedDict  # type: ignore[import-untyped]

        self.mask = -1 << bits
        self.bitmap = BitMap
        self.buckets = SortedDict()

    def prepare(self, columns: Columns) -> tuple[list[int], ...]:
        return tuple(column.tolist() for column in columns)

    def add(self, prepared: tuple[list[int], ...]) -> None:
        buckets, mask, bitmap = self.buckets, self.mask, self.bitmap
        for timestamp, ledger, entry in zip(*prepared, strict=True):
            key = timestamp & mask
            bucket = buckets.get(key)
            if bucket is None:
                bucket = buckets[key] = {}
            entries = bucket.get(ledger)
            if entries is None:
                entries = bucket[ledger] = bitmap()
            entries.add(entry)

    def count(self) -> int:
        return sum(len(entries) for bucket in self.buckets.values() for entries in bucket.values())

    def drain(self, now: int) -> Columns:
        keys, ledgers, entries, lengths = [], [], [], []
        buckets = self.buckets
        while buckets and buckets.peekitem(0)[0] <= now:
            key, bucket = buckets.popitem(0)
            for ledger in sorted(bucket):
                found = np.frombuffer(bucket[ledger].to_array(), np.uint32)
                keys.append(key)
                ledgers.append(ledger)
                entries.append(found)
                lengths.append(len(found))
        if not keys:
            return Columns(*(np.empty(0, np.int64) for _ in range(3)))
        return Columns(
            np.repeat(np.array(keys, np.int64), lengths),
            np.repeat(np.array(ledgers, np.int64), lengths),
            np.concatenate(entries).astype(np.int64),
        )

    def memory_bytes(self) -> int:
        return 0


CANDIDATES: dict[str, Callable[[int], Candidate]] = {
    "batches": Batches,
    "singles": Singles,
    "handles": Handles,
    "published": Published,
}


def run(make: Callable[[int], Candidate], work: Work, drain: str, measured: bool) -> dict[str, int]:
    """Run one round. ``drain`` is "all" for a drain in steps of time, "none", or a number of messages."""
    candidate = make(work.bits)
    add = candidate.add
    before = 0
    added = cpu = wall = 0
    for columns in _parts(work) if measured or make is not Batches else work.chunks():
        if not added and measured:
            # The arrays for a chunk exist. Free the memory of earlier rounds, which could be reused unnoticed.
            before = trimmed_bytes()
        prepared = candidate.prepare(columns)
        added += len(columns.times)
        started, used = time.perf_counter_ns(), time.process_time_ns()
        add(prepared)
        cpu += time.process_time_ns() - used
        wall += time.perf_counter_ns() - started
        del prepared
    gc.collect()
    answer = {"added": added, "add_cpu": cpu, "add_wall": wall, "reported": candidate.memory_bytes()}
    answer["memory"] = round(private_mib() * (1 << 20)) - before if measured else 0
    if candidate.count() != added:
        raise RuntimeError(f"{added} messages were added, but the index has {candidate.count()}")
    if drain != "none":
        answer |= _drain(candidate, work, None if drain == "all" else int(drain))
    return answer


def _parts(work: Work) -> Iterator[Columns]:
    """Yield batches: a chunk of Python integers would exceed the measured memory, and the processor's cache, which a
    caller's batch fits into."""
    for chunk in work.chunks():
        for at in range(0, len(chunk.times), BATCH):
            yield Columns(*(column[at : at + BATCH] for column in chunk))


def _drain(candidate: Candidate, work: Work, first: int | None) -> dict[str, int]:
    drained = total = cpu = wall = 0
    now = START
    while (drained < first) if first else now < work.end:
        now = min(now + work.step, work.end)
        started, used = time.perf_counter_ns(), time.process_time_ns()
        columns = candidate.drain(now)
        cpu += time.process_time_ns() - used
        wall += time.perf_counter_ns() - started
        drained += len(columns.times)
        total += checksum(columns)
    if first is None and len(candidate.drain(END_OF_TIME).times):
        raise RuntimeError("some messages were not drained when they were due")
    total = (total + (1 << 63)) % (1 << 64) - (1 << 63)
    return {"drained": drained, "checksum": total, "drain_cpu": cpu, "drain_wall": wall}


def main() -> None:
    make = CANDIDATES[sys.argv[1]]
    # Run small rounds first, so that loaded code and one-time allocations do not count.
    run(make, Work("ordered", 8, 10, WARM_UP), "all", False)
    run(make, Work("random", 10, 10, WARM_UP), "all", False)
    for line in sys.stdin:
        words = dict(word.split("=") for word in line.split())
        work = Work(words["workload"], *(int(words[name]) for name in ("per_milli", "bits", "messages", "percent")))
        answer = run(make, work, words.get("drain", "all"), words.get("memory") == "1")
        print(*(f"{name}={value}" for name, value in answer.items()), flush=True)


if __name__ == "__main__":
    main()
