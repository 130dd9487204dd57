"""Tables of cursors and of acknowledgments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bookstand.cursor.state.bitmap_runs import runs
from bookstand.cursor.state.ledger_acks import indexes_of
from bookstand.disk.damage import Damage
from bookstand.disk.topics.cursors import DiskCursor, names_of
from bookstand.disk.topics.cursors import cursor as cursor_of
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.pipeline.tables.arrow import pa
from bookstand.pipeline.tables.partitioning import PlanDamage, ReadPart, target_parallelism
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.record_batches import Row, damage_text, from_columns, from_damage, from_rows
from bookstand.pipeline.tables.snapshot import SnapshotPins, pinned, pins_of_topics
from bookstand.pipeline.tables.sources import STORE, DataSource, open_metadata, open_source

# Cost of reading a topic's records, as an equivalent number of bytes.
_TOPIC_WEIGHT = 64 << 10
# Maximum number of acknowledgment runs in a record batch.
_RUNS = 1 << 16


class Topics(NamedTuple):
    """Work item: cursors of topics."""

    pins: SnapshotPins | None
    topics: tuple[str, ...]


class CursorResult(NamedTuple):
    """A cursor and its damage."""

    topic: str
    name: str
    cursor: DiskCursor
    damage: Sequence[Damage]


# -- planning ----------------------------------------------------------------------------------------------------------


def plan(place: DataSource, query: Query) -> list[ReadPart]:
    """Plan a read of cursors by topic. Disks are one part: reading any of their cursors requires reading all disks."""
    if place.kind == STORE:
        with open_source(place, query.passwords) as source:
            assert source.dump is not None
            topics = [name for name in source.dump.topics if query.wanted.has("topic", name)]
            count = min(target_parallelism(query, _TOPIC_WEIGHT * len(topics)), max(1, len(topics)))
            groups = [tuple(topics[len(topics) * n // count : len(topics) * (n + 1) // count]) for n in range(count)]
            parts = [
                ReadPart(place, Topics(pins_of_topics(source, group), group), _TOPIC_WEIGHT * len(group))
                for group in groups
                if group
            ]
            for name in topics:
                source.dump.cursors(name)
            return [*parts, *_told(place, source.damage)]
    with open_metadata(place, query.passwords) as (dump, damage):
        topics = [name for name in dump.topics if query.wanted.has("topic", name)]
        for name in topics:
            dump.cursors(name)
        parts = [ReadPart(place, Topics(None, tuple(topics)), _TOPIC_WEIGHT * len(topics))] if topics else []
        return [*parts, *_told(place, damage)]


def _told(place: DataSource, damage: Sequence[Damage]) -> list[ReadPart]:
    return [ReadPart(place, PlanDamage(tuple(damage)))] if damage else []


# -- reading -----------------------------------------------------------------------------------------------------------


def found(part: ReadPart, query: Query) -> Iterator[CursorResult]:
    """Yield the cursors of a part that the query selects."""
    with pinned(part.place, query.passwords, part.work.pins) as source:
        for name in part.work.topics:
            topic = topic_of(source, name)
            for cursor in names_of(topic):
                if query.wanted.has("cursor", cursor):
                    seen = len(source.damage)
                    state = cursor_of(topic, cursor)
                    yield CursorResult(name, cursor, state, source.damage[seen:])


def read_cursors(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    if isinstance(part.work, PlanDamage):
        return from_damage(query, part.place, part.work.damage)
    return from_rows(query, part.place, (_cursor_row(one) for one in found(part, query)), 256)


def _cursor_row(one: CursorResult) -> Row:
    row: Row = {"topic": one.topic, "cursor": one.name}
    if one.damage:
        row["error"] = "\n".join(map(damage_text, one.damage))
    cursor, state = one.cursor, one.cursor.state
    return row | {
        "mark_delete_ledger_id": state.mark_delete.ledger_id,
        "mark_delete_entry_id": state.mark_delete.entry_id,
        "backlog": cursor.backlog,
        "acked_entries": sum(map(len, state.acked.values())),
        "acked_ledgers": len(state.acked),
        "partial_batches": len(state.batches),
        "properties": dict(state.properties),
        "cursor_properties": cursor.cursor_properties,
        "source": cursor.source.how,
        "cursor_ledger_id": cursor.ledger_id,
        "source_entry_id": cursor.source.entry,
    }


def read_acks(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    place = part.place
    if isinstance(part.work, PlanDamage):
        yield from from_rows(query, place, ({"error": damage_text(one)} for one in part.work.damage))
        return
    for one in found(part, query):
        named = {"topic": one.topic, "cursor": one.name}
        yield from from_rows(query, place, ({**named, "error": damage_text(damage)} for damage in one.damage))
        for ledger_id, acked in one.cursor.state.acked.items():
            if not query.wanted.has("ledger_id", ledger_id):
                continue
            firsts, lasts = runs(acked)
            for start in range(0, len(firsts), _RUNS):
                some = slice(start, start + _RUNS)
                columns = {"ledger_id": ledger_id, "first_entry_id": firsts[some], "last_entry_id": lasts[some]}
                yield from_columns(query, place, len(firsts[some]), {**named, **columns})
        batches = (
            {
                **named,
                "ledger_id": position.ledger_id,
                "first_entry_id": position.entry_id,
                "last_entry_id": position.entry_id,
                "unacked_indexes": indexes_of(bits),
            }
            for position, bits in one.cursor.state.batches.items()
        )
        yield from from_rows(query, place, batches)
