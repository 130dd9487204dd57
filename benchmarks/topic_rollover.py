"""P29: cost of a rollover and of opening a topic of many ledgers, compared with a topic of ten.

The record of a topic lists all its ledgers, and each rollover rewrites it. The listed ledgers are empty, because
neither a rollover nor an opening reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any

import bookstand
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, interleave, timed
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.managed_ledger.records import LedgerInfo, ManagedLedgerInfo, encode_ledger_info
from bookstand.managed_ledger.topic_name import node_of

FEW = 10
SIZES = (FEW, 1_000, 10_000)
ROLLOVERS = 5
"""Rollovers in one sample."""

_LEDGERS_PER_COMMIT = 1_000
_ROOM = 256 << 20


def create_ledgers(store: Any, number: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < number:
        with store.transaction() as transaction:
            ids += [transaction.create_ledger().id for _ in range(min(_LEDGERS_PER_COMMIT, number - len(ids)))]
    return ids


def plant(store: Any, name: str, ledger_ids: Sequence[int]) -> int:
    """Write the record of a topic that lists full ledgers and a last one with an entry; returns its size in bytes."""
    last = store.create_ledger()
    last.append(b".")
    last.close()
    listed = [LedgerInfo(one, 50_000, 100 << 20, 1_700_000_000_000) for one in ledger_ids]
    stored = encode_ledger_info(ManagedLedgerInfo([*listed, LedgerInfo(last.id, 1, 1, 1_700_000_000_000)]))
    store.nodes.put(node_of(name), stored, -1)
    return len(stored)


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as directory, bookstand.open(directory / "store", durability="none") as store:
        ids = create_ledgers(store, max(SIZES))
        names = map(str, count())
        sizes: dict[int, int] = {}

        def planted(number: int) -> str:
            name = next(names)
            sizes[number] = plant(store, name, ids[:number])
            return name

        def roll_over(number: int) -> Sample:
            with closing(store.managed_ledger(planted(number), max_entries_per_ledger=1)) as topic:
                return timed(lambda: [topic.append(b".") for _ in range(ROLLOVERS)], ROLLOVERS)

        def open_topic(number: int) -> Sample:
            name = planted(number)
            opened: list[Any] = []
            sample = timed(lambda: opened.append(store.managed_ledger(name)), 1)
            opened[0].close()
            return sample

        kinds: dict[str, Callable[[int], Sample]] = {"P29": roll_over, "P29o": open_topic}
        for row in rows:
            candidates = {str(number): partial(kinds[row.row], number) for number in SIZES}
            measured = interleave(candidates, bench.rounds(3, 7))
            few, some, many = (measured[str(number)] for number in SIZES)
            middle = ratio(row, some, few)
            note = f"{middle.value:.2f} with {SIZES[1]:,} ledgers; the record takes {sizes[SIZES[2]]:,} bytes"
            yield ratio(row, many, few, f"{note}, {sizes[FEW]:,} with {FEW}; on {place.kind}")
