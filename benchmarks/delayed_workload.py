"""Pulsar's own benchmark of its bucket tracker, with additional workloads, compared with recorded figures of Pulsar.

    python -m benchmarks.delayed_workload [--quick]

Pulsar's benchmark (BucketDelayedDeliveryTrackerBenchmark, JMH) uses one message per ledger, buckets of 20 messages and
segments of a second. It measures single calls and merging. Its getScheduledMessages benchmark adds messages that are
already due, and then finds none. Therefore this benchmark adds a drain, and a workload with default settings that adds
a million messages, restarts, and drains them.

The figures are the CPU time of the process, with one thread. The recorded figures are those of one Java thread without
garbage collection, with snapshots in a map in memory; here snapshots are committed to a store.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import NamedTuple

import numpy as np

from benchmarks import places
from benchmarks.delayed_buckets import HOUR, PER_SEAL, Fixture, fixture, original, settings, spread_over_an_hour
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import DelayedIndex, Indexes
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker

BASE = 4_102_444_800_000
"""The stopped clock: the year 2100."""

INITIAL = (1_000, 5_000, 8_000)
WRITES = 10_000
_ENTRIES = 1_000
_MILLION = "bucket_tracker_1m_random_1h"


class Line(NamedTuple):
    """One figure, and the recorded figures of Pulsar 4.2.4 and of the unreleased tree."""

    what: str
    ours: float
    released: float
    unreleased: float
    unit: str


class Repeats(NamedTuple):
    """Numbers of single calls."""

    asked: int
    polled: int


FULL = Repeats(asked=200_000, polled=20_000)
QUICK = Repeats(asked=20_000, polled=2_000)


# -- Pulsar's benchmark ------------------------------------------------------------------------------------------------


def jmh_shape(directory: Path, initial: int, writes: int = WRITES, repeats: Repeats = FULL) -> Iterator[Line]:
    config = settings(
        is_delayed_delivery_deliver_at_time_strict=True,
        delayed_delivery_min_index_count_per_bucket=20,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=1,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=100,
        delayed_delivery_max_num_buckets=50,
    )
    chance = np.random.default_rng(initial)
    with fixture(directory, config, BASE) as at:
        tracker = at.tracker()

        def line(name: str, what: str, seconds: float, count: int) -> Line:
            return _line(
                "jmh_shape", f"initial_{initial}_{name}", f"{initial:,} initial messages: {what}", seconds / count
            )

        def preload() -> None:
            for number in range(1, initial + 1):
                tracker.add((number, number), BASE + 1_000 * number)

        yield line("preload_ns_per_add", "adding them", _cpu(preload), initial)
        delays = (5_000 + chance.integers(0, 25_000, writes)).tolist()

        def write() -> None:
            for number, delay in enumerate(delays, initial + 1):
                tracker.add((number, number % _ENTRIES), BASE + delay)

        yield line("write_ns", f"adding {writes:,} more", _cpu(write), writes)
        asked = list(
            zip(
                chance.integers(1, initial + 100, repeats.asked).tolist(),
                chance.integers(1, _ENTRIES, repeats.asked).tolist(),
                strict=True,
            )
        )
        yield line("contains_ns", "contains_message", _cpu(lambda: _each(tracker.contains_message, asked)), len(asked))
        yield line("next_delivery_time_ns", "next_delivery", _cpu(lambda: _next(tracker, repeats.asked)), repeats.asked)
        yield line("count_ns", "count", _cpu(lambda: _count(tracker, repeats.asked)), repeats.asked)
        polled = _cpu(lambda: _poll(tracker, repeats.polled))
        yield line("get_scheduled_benchmark_ns", "5 adds of due messages, and pop_due(10)", polled, repeats.polled)
        waiting = tracker.count
        at.clock.advance(1_000 * (initial + 1) + 60_000)
        cpu, drained = _drain(tracker, 1_000)
        _check(drained, waiting)
        yield line("drain_by_1000_ns_per_position", "drained by 1 000, each", cpu, drained)
        tracker.close()


def _each(ask: Callable[[tuple[int, int]], object], positions: list[tuple[int, int]]) -> None:
    for position in positions:
        ask(position)


def _next(tracker: BucketDelayedTracker, times: int) -> None:
    for _ in range(times):
        tracker.next_delivery()


def _count(tracker: BucketDelayedTracker, times: int) -> None:
    for _ in range(times):
        tracker.count  # noqa: B018


def _poll(tracker: BucketDelayedTracker, times: int) -> None:
    for number in range(times):
        for entry in range(5):
            tracker.add((1 << 30, number * 5 + entry), BASE - 1_000)
        tracker.pop_due(10)


# -- the defaults ------------------------------------------------------------------------------------------------------


def a_million(directory: Path, buckets: int = 20, per_seal: int = PER_SEAL) -> Iterator[Line]:
    """Add a million messages with random delays of up to an hour, in ledgers of 50 000, restart, and drain them."""
    config = settings(delayed_delivery_min_index_count_per_bucket=per_seal)
    for read, limit in ((1, 100), (1_000, 1_000)):
        with fixture(directory / str(read), config) as at:
            tracker = at.tracker()
            cpu = _add_all(tracker, buckets, per_seal, read)
            what = "adding one by one" if read == 1 else f"adding by {read:,}"
            yield _line(_MILLION, "add_ns_all", f"{what}, sealing included, each", cpu / (buckets * per_seal))
            if read > 1:
                yield _restart(at, buckets - 1, per_seal)
            at.clock.advance(HOUR + 60_000)
            cpu, drained = _drain(tracker, limit)
            _check(drained, buckets * per_seal)
            workload = _MILLION if limit == 1_000 else f"{_MILLION}_drain_by_{limit}"
            figure = f"drain_by_{limit}_ns_per_position"
            yield _line(workload, figure, f"drained by {limit:,}, each", cpu / drained)
            tracker.close()


def _line(workload: str, figure: str, what: str, seconds: float) -> Line:
    """Report single operations in milliseconds, and averages over many calls in microseconds."""
    unit = "us" if "_ns" in figure else "ms"
    released, unreleased = (original(workload, figure, "median", later_tree=later) for later in (False, True))
    if unit == "us":
        return Line(what, seconds * 1e6, released / 1e3, unreleased / 1e3, unit)
    return Line(what, seconds * 1e3, released, unreleased, unit)


def _add_all(tracker: BucketDelayedTracker, buckets: int, per_seal: int, read: int) -> float:
    cpu = 0.0
    for number in range(buckets):
        indexes = spread_over_an_hour(np.random.default_rng(number), per_seal, number)
        if read == 1:
            cpu += _cpu(partial(_add_one_by_one, tracker, indexes.indexes))
        else:
            parts = [indexes.part(start, start + read) for start in range(0, per_seal, read)]
            cpu += _cpu(partial(_add_parts, tracker, parts))
    return cpu


def _add_one_by_one(tracker: BucketDelayedTracker, indexes: list[DelayedIndex]) -> None:
    for time, ledger_id, entry_id in indexes:
        tracker.add((ledger_id, entry_id), time)


def _add_parts(tracker: BucketDelayedTracker, parts: list[Indexes]) -> None:
    for times, ledger_ids, entry_ids in parts:
        tracker.add_many((ledger_ids, entry_ids), times)


def _restart(at: Fixture, buckets: int, per_seal: int) -> Line:
    trackers: list[BucketDelayedTracker] = []
    best = min(_cpu(lambda: trackers.append(at.tracker())) for _ in range(5))
    for tracker in trackers:
        _check(tracker.count, buckets * per_seal)
        tracker.close()
    what = f"restart with {buckets} buckets of {per_seal:,}"
    return _line(_MILLION, "recovery_ms_19_buckets", what, best)


# -- common ------------------------------------------------------------------------------------------------------------


def _cpu(work: Callable[[], object]) -> float:
    start = process_time()
    work()
    return process_time() - start


def _drain(tracker: BucketDelayedTracker, limit: int) -> tuple[float, int]:
    drained = 0
    start = process_time()
    while found := tracker.pop_due(limit):
        drained += len(found)
    return process_time() - start, drained


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found:,} of {expected:,} messages came back")


def table(lines: Iterator[Line]) -> Iterator[str]:
    yield "| what | bookstand | Pulsar 4.2.4 | unreleased | |"
    yield "|---|---:|---:|---:|---|"
    for what, *figures, unit in lines:
        yield f"| {what} | {' | '.join(f'{one:,.3g}' for one in figures)} | {unit} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delayed_workload", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest of three sizes, and fewer calls")
    options = parser.parse_args()
    place = places.bench(options.quick).memory()
    with place.directory() as directory:
        for initial in INITIAL[:1] if options.quick else INITIAL:
            for text in table(jmh_shape(directory / str(initial), initial, repeats=QUICK if options.quick else FULL)):
                print(text, flush=True)
            print()
        for text in table(a_million(directory / "million")):
            print(text, flush=True)


if __name__ == "__main__":
    main()
