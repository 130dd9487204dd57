"""P18: time and memory of acknowledging in random order over a hundred ledgers, one by one and in batches.

A random half of the entries of each ledger is acknowledged. The cursor has default settings, including background
flushes, and uses a new topic in each round. The baselines store everything only in memory.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import bookstand
from benchmarks.baselines.acks import Sets, SortedRanges
from benchmarks.cursor_topics import FIRST_LEDGER, plant
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, child_memory, interleave, timed
from benchmarks.places import Bench, Place
from benchmarks.rows import Row

LEDGERS = 100
ENTRIES = 20_000
EACH = ENTRIES // 2
COUNT = LEDGERS * EACH
BATCH = 1_000
_IDS = range(FIRST_LEDGER, FIRST_LEDGER + LEDGERS)
_ROOM = 256 << 20
_SEED = 18

_ACK_EACH = """
import random
from array import array
import bookstand
from benchmarks.baselines.acks import Sets
from benchmarks.cursor_topics import plant
from bookstand.cursor.cursor import Cursor
from bookstand.storage.format.position import Position
path, candidate, (ledgers, entries, each, seed) = sys.argv[1], sys.argv[2], map(int, sys.argv[3:])
with bookstand.open(path) as store:
    topic = plant(store, "topic", ledgers, entries)
    cursor = Cursor.open(topic, "cursor")
    ids = topic.extent.ledger_ids[:ledgers]
    sets = Sets(ids)
    ack = cursor.ack if candidate == "cursor" else sets.ack
    chance = random.Random(seed)
    orders = [(ledger_id, array("I", chance.sample(range(1, entries), each))) for ledger_id in ids]
    ready()
    for place in range(each):
        for ledger_id, order in orders:
            ack(Position(ledger_id, order[place]))
    done(str(topic.extent.total - cursor.backlog if candidate == "cursor" else len(sets)))
"""


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    for row in rows:
        if row.row == "P18m":
            yield _memory(row, place, bench.rounds(3, 5))
        else:
            yield _speed(row, place, bench.rounds(3, 7))


def _speed(row: Row, place: Place, rounds: int) -> Figure:
    ours, baseline = _CANDIDATES[row.row]
    chance = random.Random(_SEED)
    work = ours.work(chance)

    def in_cursor() -> Sample:
        from bookstand.cursor.cursor import Cursor

        with (
            place.directory() as directory,
            bookstand.open(directory / "store") as store,
            closing(plant(store, "topic", LEDGERS, ENTRIES)) as topic,
            Cursor.open(topic, "cursor") as cursor,
        ):
            sample = timed(lambda: ours.run(cursor, work), COUNT)
            _check(topic.extent.total - cursor.backlog)
        return sample

    def in_baseline() -> Sample:
        candidate = baseline(_IDS)
        sample = timed(lambda: ours.run(candidate, work), COUNT)
        _check(len(candidate))
        return sample

    measured = interleave({"ours": in_cursor, "baseline": in_baseline}, rounds)
    return ratio(row, measured["ours"], measured["baseline"], f"{COUNT:,} acks, on {place.kind}")


class _Each:
    """Single positions."""

    @staticmethod
    def work(chance: random.Random) -> list[Any]:
        from bookstand.storage.format.position import Position

        positions = [Position(ledger_id, entry_id) for ledger_id in _IDS for entry_id in _drawn(chance)]
        chance.shuffle(positions)
        return positions

    @staticmethod
    def run(candidate: Any, work: list[Any]) -> None:
        ack = candidate.ack
        for position in work:
            ack(position)


class _Batches:
    """Batches of a thousand entries of one ledger."""

    @staticmethod
    def work(chance: random.Random) -> list[Any]:
        batches = []
        for ledger_id in _IDS:
            entry_ids = _drawn(chance)
            batches += [(ledger_id, entry_ids[at : at + BATCH]) for at in range(0, EACH, BATCH)]
        chance.shuffle(batches)
        return batches

    @staticmethod
    def run(candidate: Any, work: list[Any]) -> None:
        for ledger_id, entry_ids in work:
            candidate.ack_many(ledger_id, entry_ids)


class _MixedBatches:
    """Batches of a thousand positions across ledgers."""

    @staticmethod
    def work(chance: random.Random) -> list[Any]:
        positions = _Each.work(chance)
        return [positions[at : at + BATCH] for at in range(0, COUNT, BATCH)]

    run = _Each.run


_Work = type[_Each] | type[_Batches] | type[_MixedBatches]
_CANDIDATES: dict[str, tuple[_Work, Callable[[Sequence[int]], Any]]] = {
    "P18": (_Each, Sets),
    "P18b": (_Batches, SortedRanges),
    "P18b-mixed": (_MixedBatches, SortedRanges),
}


def _drawn(chance: random.Random) -> list[int]:
    """Draw half of a ledger's entries in random order, without the first, so that mark-delete does not move."""
    return chance.sample(range(1, ENTRIES), EACH)


def _check(acked: int) -> None:
    if acked != COUNT:
        raise RuntimeError(f"{acked} entries are acknowledged, not {COUNT}")


def _memory(row: Row, place: Place, rounds: int) -> Figure:
    """Measure the peak memory growth of a process that acknowledges."""
    grown: dict[str, list[float]] = {"cursor": [], "sets": []}
    for _ in range(rounds):
        for candidate, series in grown.items():
            with place.directory() as directory:
                numbers = map(str, (LEDGERS, ENTRIES, EACH, _SEED))
                memory = child_memory(_ACK_EACH, str(directory / "store"), candidate, *numbers)
            _check(int(memory.output))
            series.append(memory.peak - memory.start)
    ours, sets = statistics.median(grown["cursor"]), statistics.median(grown["sets"])
    samples = {"ours": {"peak": grown["cursor"]}, "baseline": {"peak": grown["sets"]}}
    return Figure(row, value=ours / sets, ours=ours, baseline=sets, note=f"{COUNT:,} acks", rounds=samples)
