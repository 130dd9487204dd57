"""Tables of ledgers and of metadata nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookstand.disk.bookies.disk_ledger import DiskLedger
from bookstand.disk.damage import Damage
from bookstand.disk.metadata.dump import DumpNode
from bookstand.disk.topics.ledger_kind import content_of
from bookstand.errors import NoSuchLedgerError
from bookstand.pipeline.tables.arrow import pa
from bookstand.pipeline.tables.partitioning import ROW_BYTES, PlanDamage, ReadPart, target_parallelism
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.record_batches import Row, damage_text, damaged_row, from_damage, from_rows
from bookstand.pipeline.tables.snapshot import SnapshotPins, pinned, pins_of_ledgers
from bookstand.pipeline.tables.sources import STORE, DataSource, open_metadata, open_source

# Cost of examining a ledger, as an equivalent number of bytes.
_LEDGER_WEIGHT = 16 << 10


class LedgerWork(NamedTuple):
    """Work item: ledgers. If ``chosen`` is None, all ledgers."""

    pins: SnapshotPins | None
    chosen: tuple[int, ...] | None


class NodeWork(NamedTuple):
    """Work item: metadata nodes."""

    nodes: tuple[DumpNode, ...]


# -- ledgers -----------------------------------------------------------------------------------------------------------


def plan_ledgers(place: DataSource, query: Query) -> list[ReadPart]:
    if place.kind != STORE:
        # Listing the ledgers requires reading the disks, which the task does.
        return [ReadPart(place, LedgerWork(None, None))]
    with open_source(place, query.passwords) as source:
        ids = source.ledger_ids
        pins = pins_of_ledgers(source, ids)
        ids = [ledger_id for ledger_id in ids if query.wanted.has("ledger_id", ledger_id)]
        count = min(target_parallelism(query, _LEDGER_WEIGHT * len(ids)), max(1, len(ids)))
        groups = [tuple(ids[len(ids) * n // count : len(ids) * (n + 1) // count]) for n in range(count)]
        parts = [ReadPart(place, LedgerWork(pins, group), _LEDGER_WEIGHT * len(group)) for group in groups if group]
        # Damage of a ledger is in the row of the ledger.
        damage = [one for one in source.damage if one.ledger_id < 0]
        return [*parts, ReadPart(place, PlanDamage(tuple(damage)))] if damage else parts


def read_ledgers(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    if isinstance(part.work, PlanDamage):
        yield from from_damage(query, part.place, part.work.damage)
        return
    yield from from_rows(query, part.place, _ledger_rows(part.place, part.work, query))


def _ledger_rows(place: DataSource, work: LedgerWork, query: Query) -> Iterator[Row]:
    with pinned(place, query.passwords, work.pins) as source:
        known = set(source.ledger_ids)
        names = query.names
        by_entries = not names.isdisjoint(("kind", "topic", "cursor"))
        told_of: dict[int, list[Damage]] = {}
        for one in source.damage:
            told_of.setdefault(one.ledger_id, []).append(one)
        for damage in told_of.pop(-1, ()):
            yield damaged_row(damage)
        for ledger_id in sorted(told_of.keys() - known):
            yield from map(damaged_row, told_of[ledger_id])
        for ledger_id in sorted(known) if work.chosen is None else work.chosen:
            if not query.wanted.has("ledger_id", ledger_id):
                continue
            seen = len(source.damage)
            try:
                row = _ledger_row(source.ledger(ledger_id), known, by_entries)
            except NoSuchLedgerError:
                yield damaged_row(Damage(place.name, -1, "the ledger is gone since the read was planned", ledger_id))
                continue
            found = [*told_of.get(ledger_id, ()), *source.damage[seen:]]
            if found:
                row["error"] = "\n".join(map(damage_text, dict.fromkeys(found)))
            yield row


def _ledger_row(ledger: DiskLedger, known: set[int], by_entries: bool) -> Row:
    extent, metadata = ledger.extent, ledger.metadata
    missing = extent.missing.ids if len(extent.missing) else 0
    row: Row = {
        "ledger_id": ledger.id,
        "state": extent.state,
        "entries": extent.last_entry + 1 - missing,
        "bytes": extent.length,
        "last_entry_id": extent.last_entry,
        "lac": extent.lac,
        "digest": ledger.digest_name,
        "fenced": ledger.fenced,
        "missing": str(extent.missing) if missing else None,
        "doubts": list(extent.doubts),
    }
    if by_entries:
        content = content_of(ledger, known.__contains__)
        row |= {"kind": content.kind, "topic": content.topic or None, "cursor": content.cursor or None}
    if metadata is not None:
        row |= {
            "ensemble_size": metadata.ensemble_size,
            "write_quorum": metadata.write_quorum_size,
            "ack_quorum": metadata.ack_quorum_size,
            "bookies": list(metadata.ensembles[-1][1]),
            "created_ms": metadata.ctime if metadata.ctime > 0 else None,
            "custom_metadata": dict(metadata.custom_metadata),
        }
    return row


# -- nodes -------------------------------------------------------------------------------------------------------------


def plan_nodes(place: DataSource, query: Query) -> list[ReadPart]:
    with open_metadata(place, query.passwords) as (dump, damage):
        nodes = [node for node in dump.nodes.values() if query.wanted.has("path", node.path)]
        weight = sum(len(node.path) + len(node.value) + ROW_BYTES for node in nodes)
        count = min(target_parallelism(query, weight), max(1, len(nodes)))
        parts = [
            ReadPart(
                place, NodeWork(tuple(nodes[len(nodes) * n // count : len(nodes) * (n + 1) // count])), weight // count
            )
            for n in range(count)
        ]
        return [*parts, ReadPart(place, PlanDamage(tuple(damage)))] if damage else parts


def read_nodes(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    if isinstance(part.work, PlanDamage):
        return from_damage(query, part.place, part.work.damage)
    rows = (
        {
            "path": node.path,
            "value": node.value,
            "version": node.version,
            "created_ms": node.ctime or None,
            "changed_ms": node.mtime or None,
        }
        for node in part.work.nodes
    )
    return from_rows(query, part.place, rows)
