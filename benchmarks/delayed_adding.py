"""P20: adding a million delayed messages to buckets and draining them, compared with recorded figures of Pulsar.

The workload is that of the recording: ledgers of 50 000 entries, random delays of up to an hour, a stopped clock while
they are added, and 19 buckets that are sealed meanwhile. Then the clock advances past all of them, and they are drained
by the thousand, which loads segments and deletes buckets. Both figures include everything: bookstand commits snapshots
durably to a store, the recorded Pulsar stores them in a map in memory.

Ours is the CPU time of the process, the recorded figure that of the calling thread without garbage collection. The
baseline is its lowest round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from benchmarks.delayed_buckets import HOUR, PER_SEAL, fixture, original, settings, spread_over_an_hour
from benchmarks.figures import Figure
from benchmarks.measure import Sample, Series, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker

MESSAGES = 1_000_000
AT_A_TIME = 1_000
DRAINS = {"columns": BucketDelayedTracker.take_due, "positions": BucketDelayedTracker.pop_due}
"""Due messages as two columns, or as a sorted list of positions."""

_WORKLOAD = "bucket_tracker_1m_random_1h"
_ADDING, _DRAINING = "add_ns_all", "drain_by_1000_ns_per_position"
_SHOWS = {"P20": ("adding", _ADDING), "P20d": ("columns", _DRAINING), "P20d-positions": ("positions", _DRAINING)}
_ROOM = 1 << 30


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as directory:
        measured = costs(directory, MESSAGES, PER_SEAL, bench.rounds(3, 7))
    for row in rows:
        ours, figure = _SHOWS[row.row]
        median = original(_WORKLOAD, figure, "median")
        yield _against(
            row, measured[ours], original(_WORKLOAD, figure), f"median recorded {median:,.0f}; on {place.kind}"
        )


def costs(directory: Path, messages: int, per_seal: int, rounds: int) -> dict[str, Series]:
    """Measure the seconds per message of adding and of each drain."""
    runs = {name: _Run(directory / name, name, messages, per_seal) for name in DRAINS}
    measured = interleave({name: run.round for name, run in runs.items()}, rounds)
    found = {name: series for name, series in measured.items() if isinstance(series, Series)}
    # Drop the warm-up round of each, like interleave() does for draining.
    return {**found, "adding": Series([sample for run in runs.values() for sample in run.added[1:]])}


class _Run:
    def __init__(self, directory: Path, name: str, messages: int, per_seal: int) -> None:
        self._directory = directory
        self._take: Any = DRAINS[name]
        self._messages = messages
        self._per_seal = per_seal
        self._indexes = spread_over_an_hour(np.random.default_rng(1), messages, 10, messages // per_seal)
        self.added: list[Sample] = []

    def round(self) -> Sample:
        """Run one round in a new store."""
        config = settings(delayed_delivery_min_index_count_per_bucket=self._per_seal)
        with fixture(self._directory / f"{len(self.added)}", config) as at:
            tracker = at.tracker()
            times, ledger_ids, entry_ids = self._indexes
            parts = [slice(start, start + AT_A_TIME) for start in range(0, self._messages, AT_A_TIME)]
            start, used = perf_counter(), process_time()
            for part in parts:
                tracker.add_many((ledger_ids[part], entry_ids[part]), times[part])
            self.added.append(self._each(process_time() - used, perf_counter() - start))
            _check("buckets were sealed", len(tracker.buckets), self._messages // self._per_seal - 1)
            at.clock.advance((HOUR + 1) // 1000 + 1)
            taken = 0
            take = self._take
            start, used = perf_counter(), process_time()
            while count := _count(take(tracker, AT_A_TIME)):
                taken += count
            sample = self._each(process_time() - used, perf_counter() - start)
            _check("messages came back", taken, self._messages)
            _check("buckets remain", len(tracker.buckets), 0)
            tracker.close()
        return sample

    def _each(self, cpu: float, wall: float) -> Sample:
        return Sample(cpu / self._messages, wall / self._messages)


def _count(taken: Any) -> int:
    return len(taken[0]) if isinstance(taken, tuple) else len(taken)


def _check(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} {what}, not {expected}")


def _against(row: Row, ours: Series, recorded: float, note: str) -> Figure:
    cpu, wall = ([round(sample[clock] * 1e9, 1) for sample in ours.samples] for clock in (0, 1))
    return Figure(
        row,
        value=recorded / min(cpu),
        ours=min(cpu),
        baseline=recorded,
        note=note,
        clocks={"ours": {"cpu": min(cpu), "wall": min(wall)}},
        rounds={"ours": {"cpu": cpu, "wall": wall}},
    )
