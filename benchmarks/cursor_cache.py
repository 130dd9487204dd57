"""P27 and P28: cursors whose state is larger than their cache.

P27 calls nth, skip and backlog of a cursor with 20 MB of state, with the default cache and with a cache that holds all
pages. P28 acknowledges an entry in each of many ledgers, whose pages are not in memory, in one call; the time includes
the flushes during and after the call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import bookstand
from benchmarks.cursor_topics import FIRST_LEDGER, MEASURED, acknowledge, plant
from benchmarks.figures import Figure
from benchmarks.measure import Sample, Series, interleave, timed
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.cursor.config import CursorConfig

LEDGERS = 10_000
# Single acknowledged entries, one of three, which take 2 bytes each.
HOLES = 1_000
COLD_SIZES = (1_000, 10_000)
# Pages of 6 KB, of which the cache holds about four hundred.
COLD_HOLES = 3_000
_ALL_IN_MEMORY = replace(MEASURED, max_individual_ack_cache_bytes=64 << 20)
_CALLS = 40
_ROOM = 1 << 30


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    for row in rows:
        with place.directory() as directory:
            if row.row == "P27":
                yield _query_figure(row, directory, LEDGERS, bench.rounds(5, 9))
            else:
                yield _cold(row, directory, COLD_SIZES, bench.rounds(3, 5))


# -- P27 ---------------------------------------------------------------------------------------------------------------


def _query_figure(row: Row, directory: Path, ledgers: int, rounds: int, config: CursorConfig = MEASURED) -> Figure:
    from bookstand.cursor.cursor import Cursor

    with ExitStack() as stack:
        store = stack.enter_context(bookstand.open(directory / "store"))
        topic = stack.enter_context(closing(plant(store, "topic", ledgers, 4 * HOLES)))
        cursors = {}
        for name, caching in (("cold", config), ("warm", _ALL_IN_MEMORY)):
            acknowledge(topic, name, range(1, 1 + 3 * HOLES, 3), ledgers)
            cursors[name] = stack.enter_context(Cursor.open(topic, name, caching))
        for ledger_id in topic.extent.ledger_ids:
            cursors["warm"].lru_switch(ledger_id)
        state = cursors["cold"].cursor_metadata_size_in_bytes
        candidates = {
            f"{what} {name}": _Queries(cursor, what, ledgers).round
            for what in _WORK
            for name, cursor in cursors.items()
        }
        if cursors["cold"].stats.cache_pages >= ledgers or cursors["warm"].stats.cache_pages < ledgers:
            raise RuntimeError(f"the small cache holds all {ledgers} pages, or the large one does not")
        measured = interleave(candidates, rounds)
        _check(cursors["cold"], cursors["warm"])
    series = {name: one for name, one in measured.items() if isinstance(one, Series)}
    ratios = {what: series[f"{what} cold"].cpu / series[f"{what} warm"].cpu for what in _WORK}
    worst = max(ratios, key=ratios.__getitem__)
    note = ", ".join(f"{what} {value:.2f}" for what, value in ratios.items())
    figure = Figure(
        row,
        value=ratios[worst],
        ours=series[f"{worst} cold"].cpu * 1e6,
        baseline=series[f"{worst} warm"].cpu * 1e6,
        note=f"{note}; {state / 1e6:.1f} MB of state, {ledgers:,} ledgers",
    )
    figure.rounds = {name: {"cpu us": [sample.cpu * 1e6 for sample in one.samples]} for name, one in series.items()}
    return figure


class _Queries:
    """Queries of one round, relative to the cursor's position in the topic."""

    def __init__(self, cursor: Any, what: str, ledgers: int) -> None:
        self._cursor = cursor
        self._query = _WORK[what]
        # Skip only a small part of the backlog.
        self._limit = ledgers // 2
        self._chance = random.Random(what)

    def round(self) -> Sample:
        arguments = [self._chance.random() for _ in range(_CALLS)]
        return timed(lambda: [self._query(self._cursor, argument, self._limit) for argument in arguments], _CALLS)


_WORK: dict[str, Callable[[Any, float, int], object]] = {
    "nth": lambda cursor, chance, _: cursor.nth(1 + int(chance * cursor.backlog)),
    "skip": lambda cursor, chance, limit: cursor.skip(1 + int(chance * limit)),
    "backlog": lambda cursor, *_: cursor.backlog,
}


def _check(cold: Any, warm: Any) -> None:
    if (cold.mark_delete_position, cold.backlog) != (warm.mark_delete_position, warm.backlog):
        raise RuntimeError(f"the cursors are at {cold.mark_delete_position} and {warm.mark_delete_position}")


# -- P28 ---------------------------------------------------------------------------------------------------------------


def _cold(row: Row, directory: Path, sizes: Sequence[int], rounds: int, config: CursorConfig = MEASURED) -> Figure:
    from bookstand.cursor.cursor import Cursor

    with ExitStack() as stack:
        candidates = {}
        for size in sizes:
            store = stack.enter_context(bookstand.open(directory / str(size)))
            topic = stack.enter_context(closing(plant(store, "topic", size, 4 * COLD_HOLES)))
            acknowledge(topic, "cursor", range(1, 1 + 3 * COLD_HOLES, 3), size)
            cursor = stack.enter_context(Cursor.open(topic, "cursor", config))
            cursor.put_property("opened", 1)
            cursor.flush()
            candidates[str(size)] = _ColdLedgers(cursor, size).round
        measured = interleave(candidates, rounds)
    series = {name: one for name, one in measured.items() if isinstance(one, Series)}
    costs = {size: series[str(size)].cpu * 1e6 for size in sizes}
    small, large = min(sizes), max(sizes)
    figure = Figure(
        row,
        value=costs[large] / costs[small],
        ours=costs[large],
        baseline=costs[small],
        note=", ".join(f"{size:,} ledgers: {cost:,.0f} us each" for size, cost in costs.items()),
    )
    figure.rounds = {
        f"{name} ledgers": {"cpu us": [sample.cpu * 1e6 for sample in one.samples]} for name, one in series.items()
    }
    return figure


class _ColdLedgers:
    """Acknowledges one more entry of each ledger, in ascending order, so that each page has been evicted when it is
    needed."""

    def __init__(self, cursor: Any, ledgers: int) -> None:
        self._cursor = cursor
        self._ledgers = ledgers
        self._entry_id = 3 * COLD_HOLES + 1

    def round(self) -> Sample:
        from bookstand.storage.format.position import Position

        cursor, entry_id = self._cursor, self._entry_id
        self._entry_id += 2
        positions = [Position(FIRST_LEDGER + number, entry_id) for number in range(self._ledgers)]
        before, misses = cursor.backlog, cursor.stats.cache_misses

        def work() -> None:
            cursor.ack(positions)
            cursor.flush()

        sample = timed(work, self._ledgers)
        if before - cursor.backlog != self._ledgers:
            raise RuntimeError(f"{before - cursor.backlog} entries were acknowledged, not {self._ledgers}")
        if cursor.stats.cache_misses - misses < 0.9 * self._ledgers:
            raise RuntimeError("the pages were in memory")
        return sample
