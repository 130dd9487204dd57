"""Partitioning of a read into self-contained parts, which are sent to tasks."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from bookstand.disk.damage import Damage
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.sources import DataSource

# A smaller part is not worth the overhead of a task.
SMALLEST_PART = 4 << 20
# Larger parts limit parallelism: a cluster may have more cores than the machine that plans the read.
LARGEST_PART = 64 << 20
# Cost of a row in addition to its bytes.
ROW_BYTES = 100


class ReadPart(NamedTuple):
    """Part of a read. ``work`` is specific to the table; ``weight`` is the estimated cost in bytes."""

    place: DataSource
    work: Any
    weight: int = 0


class PlanDamage(NamedTuple):
    """Work item: damage found during planning."""

    damage: tuple[Damage, ...]


class Range(NamedTuple):
    """Entries ``first`` to ``last`` of a ledger, inclusive. ``weight`` is their total cost."""

    ledger_id: int
    first: int
    last: int
    weight: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


def target_parallelism(query: Query, weight: int) -> int:
    """Number of parts for a read of ``weight`` bytes."""
    if query.partitions is not None:
        return query.partitions
    return max(1, min(len(os.sched_getaffinity(0)), weight // SMALLEST_PART), -(-weight // LARGEST_PART))


def split(ranges: Sequence[Range], parts: int) -> list[list[Range]]:
    """Divide ranges into up to ``parts`` parts of about equal weight, in order. Ranges are split if necessary."""
    total = sum(one.weight for one in ranges)
    found: list[list[Range]] = [[] for _ in range(parts)]
    number = used = 0
    for one in ranges:
        rest = one
        while rest.entries > 0:
            last_part = number == parts - 1
            # The capacity is cumulative: unused capacity of previous parts is available to this one.
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
    """Distribute parts among up to ``count`` bundles of about equal weight."""
    bundles: list[tuple[int, int, list[ReadPart]]] = [(0, number, []) for number in range(count)]
    for part in sorted(parts, key=lambda one: -one.weight):
        weight, number, bundle = heapq.heappop(bundles)
        bundle.append(part)
        heapq.heappush(bundles, (weight + part.weight + 1, number, bundle))
    return [tuple(bundle) for _, _, bundle in sorted(bundles, key=lambda one: one[1]) if bundle]
