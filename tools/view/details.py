"""Facts about single objects: as JSON, and as printed."""

from __future__ import annotations

from typing import Any

from bookstand.disk.metadata.dump import DumpNode
from bookstand.storage.format.position import Position
from bookstand.tools.cli.output import iso, readable
from bookstand.tools.view.base import LedgerFacts, View
from bookstand.tools.view.messages import message_facts, message_of, payload_facts, value_facts
from bookstand.tools.view.records import entry_record, node_record

_BEGINNING = 80
"""Maximum length of a node's value in a line."""


def about(view: View) -> dict[str, Any]:
    about = view.about()
    if "changed" in about:
        about["changed"] = iso(about["changed"])
    return about


def ledger_line(facts: LedgerFacts) -> dict[str, Any]:
    """Convert the facts of a ledger to a line of JSON."""
    labels = {"topic": facts.topic or None, "cursor": facts.cursor or None}
    return {**facts._asdict(), **labels, "created": iso(facts.created)}


def ledger(view: View, ledger_id: int) -> dict[str, Any]:
    found = view.ledger(ledger_id)
    metadata, extent = found.metadata, found.extent
    facts = ledger_line(view.describe(ledger_id))
    facts["extent"] = {
        "last_entry": extent.last_entry,
        "length": extent.length,
        "lac": extent.lac,
        "gapless_to": extent.gapless,
        "enough_copies_to": extent.enough,
        "highest": extent.highest,
        "missing": [list(pair) for pair in extent.missing],
        "too_few_copies": [list(pair) for pair in extent.too_few],
    }
    facts["master_key"] = None if found.master_key is None else found.master_key.hex()
    facts["doubts"] = list(extent.doubts)
    if metadata is not None:
        facts["metadata"] = {
            "format": metadata.format_version,
            "version": metadata.version,
            "state": metadata.state,
            "has_password": metadata.has_password and metadata.password != b"",
            "ensembles": [{"first_entry": first, "bookies": list(members)} for first, members in metadata.ensembles],
            "custom": {key: readable(value) for key, value in metadata.custom_metadata.items()},
        }
    return facts


def entry(view: View, position: Position) -> dict[str, Any]:
    copies = view.copies(*position)
    found = view.entry(*position)
    ledger = view.ledger(position.ledger_id)
    what = view.content(ledger)
    facts: dict[str, Any] = {
        "ledger": found.ledger_id,
        "entry": found.entry_id,
        "kind": what.kind,
        "topic": what.topic or None,
        "cursor": what.cursor or None,
        "lac": found.lac,
        "cumulative_length": found.cumulative_length,
        "stored_bytes": len(found.stored),
        "bytes": len(found.payload),
        "digest": ledger.digest_name,
        "digest_right": found.checked,
        "behind_the_end": found.entry_id > ledger.extent.last_entry,
        "copies": copies,
    }
    message = message_of(found, what.topic, view.source.damage.append, view.source.limits)
    record = entry_record(what.kind, found, view.source.damage.append, view.source.limits)
    if record is not None:
        facts["record"] = record
    if message is None:
        facts |= payload_facts(found.payload)
    else:
        facts["message"] = message_facts(message)
        facts["messages"] = [
            {"index": index, "bytes": len(payload), **metadata, **payload_facts(payload)}
            for index, (payload, metadata) in enumerate(value_facts(message))
        ]
    return facts


def topic(view: View, name: str) -> dict[str, Any]:
    found = view.topic(name)
    ledgers = []
    for info in found.info.ledgers:
        ledger = found.ledger(info.ledger_id)
        if ledger is not None:
            view.marks(ledger)
        elif info.entries:
            found.report(f"its {info.entries} entries are unavailable", info.ledger_id)
        ledgers.append(
            {
                "ledger": info.ledger_id,
                "state": "MISSING" if ledger is None else view.state_of(ledger),
                "entries": found.entry_counts[info.ledger_id],
                "bytes": info.size if ledger is None else ledger.extent.length,
                "recorded": info.entries,
                "closed": iso(info.timestamp),
                "offloaded": info.offload is not None,
            }
        )
    cursors = [
        {
            "cursor": cursor.name,
            "mark_delete": _place(cursor.state.mark_delete),
            "backlog": cursor.backlog,
            "ledger": None if cursor.ledger_id < 0 else cursor.ledger_id,
            "source": str(cursor.source),
        }
        for cursor in view.cursors(name)
    ]
    return {
        "topic": name,
        "entries": sum(found.entry_counts.values()),
        "bytes": sum(ledger["bytes"] for ledger in ledgers),
        "terminated": None if found.info.terminated is None else _place(found.info.terminated),
        "properties": dict(found.info.properties),
        "ledgers": ledgers,
        "cursors": cursors,
    }


def node_line(node: DumpNode) -> dict[str, Any]:
    """Convert a node to a line, with the beginning of its value."""
    value = readable(node.value)
    return {
        "path": node.path,
        "version": node.version,
        "created": iso(node.ctime),
        "changed": iso(node.mtime),
        "bytes": len(node.value),
        "value": value if len(value) <= _BEGINNING else f"{value[: _BEGINNING - 1]}…",
    }


def node(view: View, path: str) -> dict[str, Any]:
    facts = view.node(path)
    if "value" in facts:
        value = facts.pop("value")
        facts |= {"created": iso(facts["created"]), "changed": iso(facts["changed"]), "bytes": len(value)}
        facts["value"] = readable(value)
        assert view.source.dump is not None
        record = node_record(view.source.dump, path)
        if record is not None:
            facts["record"] = record
    return facts


def _place(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"
