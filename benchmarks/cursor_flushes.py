"""P9: cost of a flush with one dirty ledger, for growing numbers of ledgers with acknowledgments.

Each round acknowledges entries in random ledgers, and flushes after each one. Only the flushes are measured.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import bookstand
from benchmarks.cursor_topics import MEASURED, acknowledge, plant
from benchmarks.figures import Figure
from benchmarks.measure import Sample, Series, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row

SIZES = (100, 1_000, 10_000, 100_000)
LEGACY_SIZE = 10_000
HOLES = 100
_ENTRIES = 4 * HOLES
_FLUSHES = 40
# CPU seconds of a flush at which the benchmark fails early.
_MAX_FLUSH_SECONDS = 0.1
_ROOM = 1 << 30


class _Flushed(NamedTuple):
    """Cost of flushing a cursor of one size, in seconds and in bytes per flush."""

    series: Series
    sizes: list[float]


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    rounds = bench.rounds(9, 25)
    for row in rows:
        with place.directory() as directory:
            if row.row == "P9":
                yield _growth(row, _flush(directory, SIZES, rounds), f"on {place.kind}")
            else:
                yield _against_legacy(row, _flush(directory, (LEGACY_SIZE,), rounds)[LEGACY_SIZE])


def _flush(directory: Path, sizes: Sequence[int], rounds: int) -> dict[int, _Flushed]:
    from bookstand.cursor.cursor import Cursor

    written: dict[int, list[float]] = {size: [] for size in sizes}
    with ExitStack() as stack:
        candidates = {}
        for size in sizes:
            store = stack.enter_context(bookstand.open(directory / str(size)))
            topic = stack.enter_context(closing(plant(store, "topic", size, _ENTRIES)))
            # Not the first entry, so that the mark-delete position does not move.
            acknowledge(topic, "cursor", range(1, 1 + 3 * HOLES, 3), size)
            cursor = stack.enter_context(Cursor.open(topic, "cursor", MEASURED))
            cursor.put_property("opened", 1)
            cursor.flush()
            candidates[size] = _Flusher(topic, cursor, written[size]).round
        measured = interleave({str(size): candidates[size] for size in sizes}, rounds)
    found = {}
    for size in sizes:
        series = measured[str(size)]
        assert isinstance(series, Series)
        found[size] = _Flushed(series, written[size][-rounds:])
    return found


class _Flusher:
    def __init__(self, topic: Any, cursor: Any, written: list[float]) -> None:
        from bookstand.storage.format.position import Position

        self._position = Position
        self._cursor = cursor
        self._written = written
        self._ledgers = topic.extent.ledger_ids[:-1]
        self._chance = random.Random(len(self._ledgers))

    def round(self) -> Sample:
        cursor = self._cursor
        cpu = wall = 0.0
        before = cursor.stats
        for ledger_id in self._chance.choices(self._ledgers, k=_FLUSHES):
            # Use the last quarter of the ledger, which begins without acknowledgments.
            entry_id = self._chance.randrange(3 * HOLES + 1, _ENTRIES)
            while cursor.is_acked(self._position(ledger_id, entry_id)):
                entry_id = self._chance.randrange(3 * HOLES + 1, _ENTRIES)
            cursor.ack(self._position(ledger_id, entry_id))
            wall_start, cpu_start = perf_counter(), process_time()
            cursor.flush()
            cpu += process_time() - cpu_start
            wall += perf_counter() - wall_start
            if cpu > _FLUSHES * _MAX_FLUSH_SECONDS:
                raise RuntimeError(f"a flush of one of {len(self._ledgers):,} ledgers takes seconds")
        after = cursor.stats
        if (after.flushes, after.pages_written) != (before.flushes + _FLUSHES, before.pages_written + _FLUSHES):
            raise RuntimeError("a flush did not write exactly one page")
        self._written.append((after.bytes_written - before.bytes_written) / _FLUSHES)
        return Sample(cpu / _FLUSHES, wall / _FLUSHES)


def _growth(row: Row, flushed: dict[int, _Flushed], note: str) -> Figure:
    costs = {
        "CPU": {size: one.series.cpu * 1e6 for size, one in flushed.items()},
        "bytes": {size: statistics.median(one.sizes) for size, one in flushed.items()},
    }
    growth = {what: max(cost.values()) / min(cost.values()) for what, cost in costs.items()}
    worse = max(growth, key=growth.__getitem__)
    each = ", ".join(f"{size:,}: {costs['bytes'][size]:,.0f} B, {costs['CPU'][size]:,.0f} us" for size in flushed)
    figure = Figure(
        row,
        value=growth[worse],
        ours=max(costs[worse].values()),
        baseline=min(costs[worse].values()),
        note=f"growth of CPU {growth['CPU']:.2f}, of bytes {growth['bytes']:.2f}; {each}; {note}",
    )
    for size, one in flushed.items():
        figure.rounds[f"{size} ledgers"] = {
            "cpu us": [sample.cpu * 1e6 for sample in one.series.samples],
            "wall us": [sample.wall * 1e6 for sample in one.series.samples],
            "bytes": one.sizes,
        }
    return figure


def _against_legacy(row: Row, flushed: _Flushed) -> Figure:
    from benchmarks.cursor_legacy import snapshot

    ours = statistics.median(flushed.sizes)
    full = len(snapshot(LEGACY_SIZE, range(1, 1 + 3 * HOLES, 3), "ranges"))
    words = len(snapshot(LEGACY_SIZE, range(1, 1 + 3 * HOLES, 3), "long_arrays"))
    return Figure(
        row,
        value=full / ours,
        ours=ours,
        baseline=full,
        note=f"as long arrays {words:,} B, {words / ours:,.0f} x; ours takes {flushed.series.cpu * 1e6:,.0f} us CPU",
        rounds={"ours": {"bytes": flushed.sizes}},
    )
