"""P10: opening a cursor with ten million acknowledgments, compared with decoding them from Pulsar's form in memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import bookstand
from benchmarks.cursor_topics import MEASURED, acknowledge, plant
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, child_memory, interleave, timed
from benchmarks.places import Bench, Place
from benchmarks.rows import Row

LEDGERS = 1_000
ENTRIES = 20_000
# Without the first entry, so that the mark-delete position does not move.
ACKED = range(1, ENTRIES, 2)
_TOPIC, _CURSOR, _EMPTY = "topic", "cursor", "empty"
_ROOM = 256 << 20
_MIB = 1 << 20

_OPEN = """
import bookstand
from bookstand.cursor.cursor import Cursor
from benchmarks.cursor_topics import MEASURED
with bookstand.open(sys.argv[1], durability="none") as store:
    topic = store.managed_ledger("topic")
    empty = Cursor.open(topic, "empty", MEASURED)
    ready()
    cursor = Cursor.open(topic, "cursor", MEASURED)
    done(str(topic.extent.total - cursor.backlog))
"""


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as directory:
        path = directory / "store"
        with bookstand.open(path, durability="none") as store, closing(plant(store, _TOPIC, LEDGERS, ENTRIES)) as topic:
            acknowledge(topic, _EMPTY, (), LEDGERS)
            acknowledge(topic, _CURSOR, ACKED, LEDGERS)
        timed_rows = [row for row in rows if row.row != "P10m"]
        if timed_rows:
            yield from _times(timed_rows, path, place, bench.rounds(3, 7))
        for row in rows:
            if row.row == "P10m":
                yield _memory(row, path, bench.rounds(3, 7))


def _times(rows: Sequence[Row], path: Path, place: Place, rounds: int) -> Iterator[Figure]:
    with bookstand.open(path, durability="none") as store, closing(store.managed_ledger(_TOPIC)) as topic:
        candidates: dict[str, Callable[[], Sample]] = {"ours": lambda: _open(topic)}
        forms = {"P10": "ranges", "P10-words": "long_arrays"}
        for row in rows:
            candidates[row.row] = _decoder(forms[row.row])
        measured = interleave(candidates, rounds)
    for row in rows:
        yield ratio(row, measured["ours"], measured[row.row], f"on {place.kind}, topic already open")


def _open(topic: Any) -> Sample:
    from bookstand.cursor.cursor import Cursor

    opened: list[Cursor] = []
    sample = timed(lambda: opened.append(Cursor.open(topic, _CURSOR, MEASURED)), 1)
    with opened[0] as cursor:
        _check(topic.extent.total - cursor.backlog)
    return sample


def _decoder(form: Any) -> Callable[[], Sample]:
    """Return a candidate that decodes the same acknowledgments from memory, without store, topic and checksums."""
    from benchmarks.cursor_legacy import snapshot
    from bookstand.cursor.format import position_info

    data = snapshot(LEDGERS, ACKED, form)

    def decode() -> Sample:
        read: list[position_info.Snapshot] = []
        sample = timed(lambda: read.append(position_info.read(data)), 1)
        _check(sum(map(len, read[0].state.acked.values())))
        return sample

    return decode


def _check(acked: int) -> None:
    if acked != LEDGERS * len(ACKED):
        raise RuntimeError(f"{acked} acknowledgments came back, not {LEDGERS * len(ACKED)}")


def _memory(row: Row, path: Path, rounds: int) -> Figure:
    """Measure the peak growth of a process that already has an empty cursor of the topic open, over the limit."""
    grown, ended, started = [], [], []
    for _ in range(rounds):
        memory = child_memory(_OPEN, str(path))
        _check(int(memory.output))
        started.append(memory.start)
        grown.append(memory.peak - memory.start)
        ended.append(memory.end - memory.start)
    limit = MEASURED.max_individual_ack_cache_bytes / _MIB
    return Figure(
        row,
        value=statistics.median(grown) / limit,
        ours=statistics.median(grown),
        baseline=limit,
        note=f"{statistics.median(ended):.2f} MiB more after opening; {statistics.median(started):.1f} MiB before",
        rounds={"ours": {"peak": grown, "open": ended}, "baseline": {"start": started}},
    )
