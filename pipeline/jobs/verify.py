"""``verify``: read all data of stores and disks and report damage. Nothing is changed.

It checks every record and digest of a store, and every file of bookies' disks. In both it also checks the records of
topics, the states of cursors and the buckets of delayed messages.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bookstand.disk.damage import Damage
from bookstand.disk.topics.cursors import cursors
from bookstand.disk.topics.delayed import DelayedIndex
from bookstand.disk.topics.topics import topics
from bookstand.errors import StoreDamagedError
from bookstand.pipeline.execution.unit import Result
from bookstand.pipeline.jobs.read_only import ReadOnlyJob
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source
from bookstand.storage.storage import open_storage
from bookstand.storage.verify import verify

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks


class Verify(ReadOnlyJob):
    """Job that reads all data and reports damage."""

    name = "verify"

    def look(self, name: str, place: DataSource) -> Result:
        found: dict[str, None] = {}
        counts = {"ledgers": 0, "entries": 0, "bytes": 0}
        if place.kind == STORE:
            try:
                storage = open_storage(place.paths[0], create=False, read_only=True, check="structure")
            except StoreDamagedError as error:
                # LMDB must not read a file with a damaged structure: it could crash.
                return Result(name, counts, (str(error),))
            try:
                report = verify(storage, structure=False)
            finally:
                storage.close()
            counts = {"ledgers": report.ledgers, "entries": report.entries, "bytes": report.bytes}
            found |= dict.fromkeys(problem.message for problem in report.problems)
        with open_source(place) as disks:
            if place.kind != STORE:
                counts = _read_ledgers(disks)
            counts |= _read_topics(disks)
            found |= dict.fromkeys(one.what if place.kind == STORE else str(one) for one in disks.damage)
        return Result(name, counts, tuple(found))


def _read_ledgers(disks: Disks) -> dict[str, int]:
    entries = size = 0
    for ledger_id in disks.ledger_ids:
        ledger = disks.ledger(ledger_id)
        for entry in ledger.entries():
            entries += 1
            size += len(entry.stored)
        disks.damage += [_missing(ledger_id, pair) for pair in ledger.extent.missing]
    return {"ledgers": len(disks.ledger_ids), "entries": entries, "bytes": size}


def _missing(ledger_id: int, pair: tuple[int, int]) -> Damage:
    first, last = pair
    return Damage("the disks", -1, f"entries {first} to {last} are on none of them", ledger_id, first)


def _read_topics(disks: Disks) -> dict[str, int]:
    counts = {"topics": 0, "cursors": 0, "buckets": 0}
    for topic in topics(disks):
        counts["topics"] += 1
        for cursor in cursors(topic):
            counts["cursors"] += 1
            for bucket in DelayedIndex(cursor, 0).buckets:
                counts["buckets"] += 1
                deque(bucket.segments(), maxlen=0)
    return counts
