"""Contents of nodes and of entries other than messages: topics, cursors, cursor states and buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookstand.cursor.format import position_info, record
from bookstand.cursor.format.chunked_snapshot import footer_of
from bookstand.delivery.tracker.bucket.snapshot.codec import SnapshotMetadata, decode_metadata, decode_segment
from bookstand.disk.bookies.disk_ledger import StoredEntry
from bookstand.disk.damage import Damage, Report
from bookstand.disk.metadata.dump import MetadataDump, ledger_id_of
from bookstand.disk.topics import ledger_kind
from bookstand.disk.topics.messages import NO_PLACE
from bookstand.errors import BookstandError, NoSuchNodeError
from bookstand.proto.expansion import ExpansionLimits
from bookstand.proto.wire_format import WireError
from bookstand.storage.format.position import Position
from bookstand.tools.cli.output import iso, readable

_PAIRS = frozenset({"properties", "cursor_properties"})


# -- nodes -----------------------------------------------------------------------------------------------------------


def node_record(dump: MetadataDump, path: str) -> dict[str, Any] | None:
    """Decode the node of a ledger, a topic or a cursor. Return None for other or damaged nodes; the dump reports
    damage."""
    ledger_id = ledger_id_of(path)
    if ledger_id is not None:
        metadata = dump.ledgers.get(ledger_id)
        return None if metadata is None else {"metadata": metadata.to_safe_string()}
    place = dump.place_of(path)
    if place is None:
        return None
    topic, cursor = place
    try:
        if cursor is not None:
            facts: dict[str, Any] = _plain(dump.cursor_info(topic, cursor)._asdict())
            return {**facts, "last_active": iso(facts.get("last_active"))}
        facts = _plain(dump.topic_info(topic)._asdict())
    except NoSuchNodeError:
        return None
    for ledger in facts.get("ledgers", ()):
        ledger["timestamp"] = iso(ledger.get("timestamp"))
    return facts


def _plain(value: Any) -> Any:
    """Convert a record to JSON, without fields that are not set."""
    if isinstance(value, Position):
        return f"{value.ledger_id}:{value.entry_id}"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {
            key: dict(one) if key in _PAIRS else _plain(one)
            for key, one in value.items()
            if one is not None and one not in ((), [], b"")
        }
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return readable(value) if isinstance(value, bytes) else value


# -- entries ---------------------------------------------------------------------------------------------------------


def entry_record(kind: str, entry: StoredEntry, report: Report, limits: ExpansionLimits) -> dict[str, Any] | None:
    """Decode an entry of a cursor's or a bucket's ledger. Return None for other kinds and for damage, which is
    reported."""
    read = _READERS.get(kind)
    try:
        return None if read is None else read(entry, limits)
    except (BookstandError, WireError, record.RecordError) as error:
        what = f"it cannot be read as what is in the ledger of a {kind}: {error}"
        report(Damage("", NO_PLACE, what, entry.ledger_id, entry.entry_id))
        return None


def _cursor(entry: StoredEntry, limits: ExpansionLimits) -> dict[str, Any]:
    data = entry.payload
    if record.is_ours(data):
        identity = record.identify(data)
        mark_delete, properties = record.read_position(data)
        is_page = identity.kind == record.PAGE
        facts = {
            "form": _FORMS.get(identity.kind, "nodes of the index"),
            "cursor": identity.cursor,
            "generation": identity.generation,
            "user_ledger": identity.user_ledger if is_page else None,
            "part": f"{identity.part + 1} of {identity.parts}" if identity.parts > 1 else None,
            "mark_delete": _plain(mark_delete),
            "properties": properties,
        }
        return {key: value for key, value in facts.items() if value is not None}
    footer = footer_of(data, limits)
    if footer is not None:
        return {"form": "end of a snapshot in chunks", "chunks": footer.parts, "bytes": footer.length}
    state = position_info.read(data, expansion=limits.of(len(data))).state
    return {
        "form": "full snapshot",
        "mark_delete": _plain(state.mark_delete),
        "acked_entries": sum(map(len, state.acked.values())),
        "acked_ledgers": len(state.acked),
        "batches": len(state.batches),
        "properties": dict(state.properties),
    }


_FORMS = {record.PAGE: "page", record.MARKER: "marker"}


def _bucket(entry: StoredEntry, limits: ExpansionLimits) -> dict[str, Any]:
    if entry.entry_id == 0:
        segments = decode_metadata(entry.payload).metadata_list
        return {
            "form": "metadata of a bucket",
            "segments": len(segments),
            "messages": sum(map(len, SnapshotMetadata(segments).bitmaps().values())),
            "first_due": iso(min((one.min_schedule_timestamp for one in segments), default=None)),
            "last_due": iso(max((one.max_schedule_timestamp for one in segments), default=None)),
        }
    indexes = decode_segment(entry.payload)
    return {
        "form": "segment of a bucket",
        "messages": indexes.size,
        "first_due": iso(int(indexes.timestamps.min())) if indexes.size else None,
        "last_due": iso(int(indexes.timestamps.max())) if indexes.size else None,
    }


_READERS: dict[str, Callable[[StoredEntry, ExpansionLimits], dict[str, Any]]] = {
    ledger_kind.CURSOR: _cursor,
    ledger_kind.BUCKET: _bucket,
}
