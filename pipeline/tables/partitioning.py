"""How a read is divided: into parts that tasks are told, each with all that it takes to read it."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bookstand.disk.damage import Damage
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.sources import DataSource

# Less is not worth another task.
SMALLEST_PART = 4 << 20
# A task that reads more holds up the others: clusters have more cores than the machine that plans.
LARGEST_PART = 64 << 20
# What a row costs beside its bytes.
ROW_BYTES = 100


class ReadPart(NamedTuple):
    """``work`` is what the reader of the table understands; ``weight`` some bytes."""

    place: DataSource
    work: Any
    weight: int = 0


class PlanDamage(NamedTuple):
    """Work: what was found damaged when the read was planned."""

    damage: tuple[Damage, ...]


class Range(NamedTuple):
    """Entries of a ledger, the last one included; ``weight`` is that of all of them."""

    ledger_id: int
    first: int
    last: int
    weight: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


def target_parallelism(query: Query, weight: int) -> int:
    """Number of parts for so many bytes."""
    if query.partitions is not None:
        return query.partitions
    return max(1, min(len(os.sched_getaffinity(0)), weight // SMALLEST_PART), -(-weight // LARGEST_PART))


def split(ranges: Sequence[Range], parts: int) -> list[list[Range]]:
    """``ranges`` in their order, cut where it takes a cut to give each part about the same weight."""
    total = sum(one.weight for one in ranges)
    found: list[list[Range]] = [[] for _ in range(parts)]
    number = used = 0
    for one in ranges:
        rest = one
        while rest.entries > 0:
            last_part = number == parts - 1
            # What a part before had no room for is this one's.
            room = total * (number + 1) // parts - used
            fits = rest.entries if last_part or rest.weight <= room else rest.entries * room // rest.weight
            if fits:
                weight = rest.weight * fits // rest.entries
                found[number].append(Range(rest.ledger_id, rest.first, rest.first + fits - 1, weight))
                rest = Range(rest.ledger_id, rest.first + fits, rest.last, rest.weight - weight)
                used += weight
            if rest.entries > 0:
                number += 1
    return [part for part in found if part]


def bin_pack(parts: Iterable[ReadPart], count: int) -> list[tuple[ReadPart, ...]]:
    """Parts of many places together, in so many bundles at most, about equally heavy."""
    bundles: list[tuple[int, int, list[ReadPart]]] = [(0, number, []) for number in range(count)]
    for part in sorted(parts, key=lambda one: -one.weight):
        weight, number, bundle = heapq.heappop(bundles)
        bundle.append(part)
        heapq.heappush(bundles, (weight + part.weight + 1, number, bundle))
    return [tuple(bundle) for _, _, bundle in sorted(bundles, key=lambda one: one[1]) if bundle]
