"""Planning and reading of all tables. Does not need Spark.

for batch in read("/var/lib/app/store", query("cursors")): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from bookstand.disk.damage import Damage
from bookstand.errors import MalformedError, NotAStoreError, StoreDamagedError, StoreFormatError
from bookstand.pipeline.tables import cursors, delayed, entries, ledgers, messages
from bookstand.pipeline.tables.arrow import pa
from bookstand.pipeline.tables.partitioning import PlanDamage, ReadPart, bin_pack, target_parallelism
from bookstand.pipeline.tables.query import FAST, Query
from bookstand.pipeline.tables.record_batches import from_damage, project_and_filter
from bookstand.pipeline.tables.sources import STORE, DataSource, check_present, stores
from bookstand.storage.storage import open_storage

# Errors that are caused by damage of the source, not by the caller or the machine.
_DAMAGED = (StoreDamagedError, StoreFormatError, NotAStoreError, MalformedError)


class _Ways(NamedTuple):
    plan: Callable[[DataSource, Query], list[ReadPart]]
    read: Callable[[ReadPart, Query], Iterator[pa.RecordBatch]]


_WAYS = {
    "ledgers": _Ways(ledgers.plan_ledgers, ledgers.read_ledgers),
    "entries": _Ways(entries.plan, entries.read),
    "cursors": _Ways(cursors.plan, cursors.read_cursors),
    "acks": _Ways(cursors.plan, cursors.read_acks),
    "delayed_buckets": _Ways(cursors.plan, delayed.read_buckets),
    "delayed_index": _Ways(delayed.plan_index, delayed.read_index),
    "messages": _Ways(messages.plan, messages.read),
    "nodes": _Ways(ledgers.plan_nodes, ledgers.read_nodes),
}


def plan(place: DataSource, query: Query) -> list[ReadPart]:
    """Plan a read of the current state of a source. If all of it is damaged, the plan has one part with the error."""
    if not query.wanted.has("place", place.name):
        return []
    try:
        if place.kind == STORE and query.check != FAST:
            open_storage(place.paths[0], create=False, read_only=True, check=query.check).close()
        return _WAYS[query.table_name].plan(place, query)
    except _DAMAGED as error:
        if query.strict:
            raise
        return [ReadPart(place, PlanDamage((Damage(place.name, -1, str(error)),)))]


def plan_all(places: Sequence[DataSource], query: Query) -> list[tuple[ReadPart, ...]]:
    """Plan a read of several sources, with a bundle of parts for each task."""
    parts = [part for place in places for part in plan(place, query)]
    return bin_pack(parts, max(1, target_parallelism(query, sum(part.weight for part in parts))))


def rows(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part. A strict query raises :class:`DamagedDataError` at the first damage."""
    return project_and_filter(query, _rows(part, query))


def _rows(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    if not isinstance(part.work, PlanDamage):
        # A file system that is not mounted on this machine is not damage: fail the task.
        check_present(part.place)
    try:
        yield from _WAYS[query.table_name].read(part, query)
    except _DAMAGED as error:
        if query.strict:
            raise
        yield from from_damage(query, part.place, [Damage(part.place.name, -1, str(error))])


def read(places: Iterable[DataSource] | str, wanted: Query) -> Iterator[pa.RecordBatch]:
    """Read all rows of sources, or of the stores at a path, in this process."""
    for place in stores(places) if isinstance(places, str) else places:
        for part in plan(place, wanted):
            yield from rows(part, wanted)
