"""P22: CPU time and private memory of a process until its first append is confirmed."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.figures import Figure, ratio
from benchmarks.measure import child, child_memory, interleave
from benchmarks.places import Bench, Place
from benchmarks.rows import Row

_FIRST_APPEND = """
import sys
import bookstand
bookstand.open(sys.argv[1]).create_ledger().append(bytes(128))
"""
_IMPORT_LMDB = "import lmdb"


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(64 << 20)
    for row in rows:
        yield _memory(row, place, bench.rounds(3, 9)) if row.row == "P22m" else _time(row, place, bench.rounds(15, 31))


def _time(row: Row, place: Place, rounds: int) -> Figure:
    with place.directory() as directory:
        bytecode = directory / "bytecode"
        number = itertools.count()
        candidates = {
            "ours": lambda: child(_FIRST_APPEND, str(directory / str(next(number))), bytecode=bytecode),
            "lmdb": lambda: child(_IMPORT_LMDB, bytecode=bytecode),
        }
        measured = interleave(candidates, rounds)
    return ratio(row, measured["ours"], measured["lmdb"], f"on {place.kind}, whole process")


def _memory(row: Row, place: Place, rounds: int) -> Figure:
    with place.directory() as directory:
        code = f"ready(){_FIRST_APPEND}done('.')"
        ours = [child_memory(code, str(directory / str(number))).end for number in range(rounds)]
        bare = [child_memory(f"ready()\n{_IMPORT_LMDB}\ndone('.')").end for _ in range(rounds)]
    value = statistics.median(ours)
    return Figure(
        row,
        value=value,
        ours=value,
        baseline=statistics.median(bare),
        rounds={"ours": {"RssAnon MiB": ours}, "baseline": {"RssAnon MiB": bare}},
    )
