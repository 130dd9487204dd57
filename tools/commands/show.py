"""Show everything known of one thing at PATH: a ledger by its id, an entry as LEDGER:ENTRY, a topic by its name, a
metadata node, or, if nothing is named, of the store or the bookies as a whole.

A ledger: its metadata, where it ends and why. An entry: its header, where its copies lie, whether their digests are
right, and the message in it. A topic: its ledgers and cursors.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bookstand.errors import IncorrectParameterError
from bookstand.storage.position import Position
from bookstand.tools import output
from bookstand.tools.commands.ls import as_row
from bookstand.tools.messages import message_facts, message_of, payload_facts, value_facts
from bookstand.tools.options import Json, Metadata, Password, Place, looking_at
from bookstand.tools.output import Column, Fact, iso, readable
from bookstand.tools.records import entry_record, node_record
from bookstand.tools.view import View, ledger_of, position_of

EXAMPLES = (
    "bookstand show my-store",
    "bookstand show my-store 0",
    "bookstand show my-store 0:1 --json",
    "bookstand show my-store orders",
    "bookstand show bookie 5:3 --metadata metadata.jsonl.gz",
    "bookstand show my-store --node /managed-ledgers",
)

_LEDGER_COLUMNS = (
    Column("ledger", "LEDGER", right=True),
    Column("state", "STATE"),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("recorded", "RECORDED", right=True, rank=2),
    Column("closed", "CLOSED", show=output.time, rank=1),
    Column("offloaded", "OFFLOADED", rank=3),
)
_RECORD_LEDGERS = (
    Column("ledger_id", "LEDGER", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("size", "SIZE", right=True, show=output.size),
    Column("timestamp", "CLOSED", show=output.time),
)
_CURSOR_COLUMNS = (
    Column("cursor", "CURSOR", least=12),
    Column("mark_delete", "MARK-DELETE"),
    Column("backlog", "BACKLOG", right=True),
    Column("ledger", "LEDGER", right=True),
    Column("source", "FROM", least=10),
)
_COPY_COLUMNS = (
    Column("bookie", "BOOKIE", least=8),
    Column("file", "FILE", least=20),
    Column("offset", "OFFSET", right=True),
    Column("bytes", "BYTES", right=True),
    Column("lac", "LAC", right=True),
    Column("verdict", "DIGEST"),
)
_MESSAGE_COLUMNS = (
    Column("index", "MESSAGE", right=True),
    Column("bytes", "BYTES", right=True),
    Column("key", "KEY", least=8),
    Column("properties", "PROPERTIES", least=12, rank=1),
    Column("text", "PAYLOAD", least=16),
)


def run(
    path: Place,
    what: Annotated[
        str | None,
        typer.Argument(metavar="[LEDGER|LEDGER:ENTRY|TOPIC]", help="What to show.", show_default=False),
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="PATH", help="A node of the metadata.", show_default=False)
    ] = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    if what is not None and node is not None:
        raise IncorrectParameterError("show a node, or something else, not both")
    with looking_at(path, metadata, password, json) as view:
        if node is not None:
            _show(view, "node", _node(view, node), json)
        elif what is None:
            _show(view, "about", _about(view), json)
        elif (position := position_of(what)) is not None:
            _show(view, "entry", _entry(view, position), json)
        elif (ledger_id := ledger_of(what)) is not None:
            _show(view, "ledger", _ledger(view, ledger_id), json)
        else:
            _show(view, "topic", _topic(view, view.find_topic(what)), json)


# -- what is known -----------------------------------------------------------------------------------------------------


def _about(view: View) -> dict[str, Any]:
    about = view.about()
    if "changed" in about:
        about["changed"] = iso(about["changed"])
    return about


def _ledger(view: View, ledger_id: int) -> dict[str, Any]:
    ledger, row = view.ledger(ledger_id), as_row(view.describe(ledger_id))
    metadata, extent = ledger.metadata, ledger.extent
    facts = {key: value for key, value in row.items() if key not in ("of", "quorums")}
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
    facts["master_key"] = None if ledger.master_key is None else ledger.master_key.hex()
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


def _entry(view: View, position: Position) -> dict[str, Any]:
    copies = view.copies(*position)
    entry = view.entry(*position)
    ledger = view.ledger(position.ledger_id)
    what = view.content(ledger)
    facts: dict[str, Any] = {
        "ledger": entry.ledger_id,
        "entry": entry.entry_id,
        "kind": what.kind,
        "topic": what.topic or None,
        "cursor": what.cursor or None,
        "lac": entry.lac,
        "cumulative_length": entry.cumulative_length,
        "stored_bytes": len(entry.stored),
        "bytes": len(entry.payload),
        "digest": ledger.digest_name,
        "digest_right": entry.checked,
        "behind_the_end": entry.entry_id > ledger.extent.last_entry,
        "copies": copies,
    }
    message = message_of(entry, what.topic, view.source.damage.append)
    record = entry_record(what.kind, entry)
    if record is not None:
        facts["record"] = record
    if message is None:
        facts |= payload_facts(entry.payload)
    else:
        facts["message"] = message_facts(message)
        facts["messages"] = [
            {"index": index, "bytes": len(payload), **metadata, **payload_facts(payload)}
            for index, (payload, metadata) in enumerate(value_facts(message))
        ]
    return facts


def _topic(view: View, name: str) -> dict[str, Any]:
    topic = view.topic(name)
    ledgers = []
    for info in topic.info.ledgers:
        ledger = topic.ledger(info.ledger_id)
        ledgers.append(
            {
                "ledger": info.ledger_id,
                "state": "MISSING" if ledger is None else view.state_of(ledger),
                "entries": topic.entry_counts[info.ledger_id],
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
        "entries": sum(topic.entry_counts.values()),
        "bytes": sum(ledger["bytes"] for ledger in ledgers),
        "terminated": None if topic.info.terminated is None else _place(topic.info.terminated),
        "properties": dict(topic.info.properties),
        "ledgers": ledgers,
        "cursors": cursors,
    }


def _node(view: View, path: str) -> dict[str, Any]:
    facts = view.node(path)
    if "value" in facts:
        value = facts.pop("value")
        facts |= {"created": iso(facts["created"]), "changed": iso(facts["changed"]), "bytes": len(value)}
        facts["value"] = readable(value)
        record = node_record(path, value)
        if record is not None:
            facts["record"] = record
    return facts


def _place(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"


# -- printing ----------------------------------------------------------------------------------------------------------


def _show(view: View, what: str, facts: dict[str, Any], json: bool) -> None:
    if json:
        output.document({"kind": view.kind, "path": str(view.path), what: facts})
    else:
        _PRINTERS[what](facts)


def _print_about(facts: dict[str, Any]) -> None:
    output.facts(_ABOUT, facts)
    for bookie in facts.get("bookies", ()):
        output.heading(f"bookie {bookie['name']}")
        output.facts(_BOOKIE, bookie)


def _print_ledger(facts: dict[str, Any]) -> None:
    output.facts(_LEDGER, facts)
    output.heading("extent")
    extent = facts["extent"]
    ranges = {key: [_span(*pair) for pair in extent[key]] for key in ("missing", "too_few_copies")}
    output.facts(_EXTENT, {**extent, **ranges})
    if "metadata" in facts:
        output.heading("metadata")
        output.facts(_METADATA, facts["metadata"])
        for ensemble in facts["metadata"]["ensembles"]:
            output.line(f"ensemble from entry {ensemble['first_entry']}: {', '.join(ensemble['bookies'])}")
        for key, value in facts["metadata"]["custom"].items():
            output.line(f"{key}  {value}")
    for doubt in facts["doubts"]:
        output.paragraph(f"note: {doubt}")


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _print_entry(facts: dict[str, Any]) -> None:
    output.facts(_ENTRY, facts)
    output.heading("copies")
    output.table(_COPY_COLUMNS, facts["copies"])
    if "message" in facts:
        output.heading("message")
        message = facts["message"]
        output.facts([Fact(key, key.replace("_", " ")) for key in message], message)
        output.heading("payload" if len(facts["messages"]) == 1 else "messages")
        output.table(
            _MESSAGE_COLUMNS,
            [
                {**one, "key": one.get("partition_key"), "text": one.get("payload", one.get("payload_base64"))}
                for one in facts["messages"]
            ],
        )
    elif "record" in facts:
        output.heading("record")
        _print_record(facts["record"])
    else:
        output.heading("payload")
        output.line(facts.get("payload", facts.get("payload_base64", "")))


def _print_record(record: dict[str, Any]) -> None:
    output.facts([Fact(key, key.replace("_", " ")) for key in record], record)


def _print_topic(facts: dict[str, Any]) -> None:
    output.facts(_TOPIC, facts)
    output.heading("ledgers")
    output.table(_LEDGER_COLUMNS, facts["ledgers"])
    if facts["cursors"]:
        output.heading("cursors")
        output.table(_CURSOR_COLUMNS, facts["cursors"])


def _print_node(facts: dict[str, Any]) -> None:
    record = facts.get("record")
    output.facts(_NODE, {**facts, "value": None} if record else facts)
    if record:
        output.heading("record")
        _print_record({key: value for key, value in record.items() if key != "ledgers"})
        if record.get("ledgers"):
            output.table(_RECORD_LEDGERS, record["ledgers"])
    if facts["children"]:
        output.heading("children")
        for name in facts["children"]:
            output.line(name)


_PRINTERS = {
    "about": _print_about,
    "ledger": _print_ledger,
    "entry": _print_entry,
    "topic": _print_topic,
    "node": _print_node,
}
_ABOUT = (
    Fact("store_id", "store id"),
    Fact("format", "format"),
    Fact("file", "file"),
    Fact("bytes", "size", output.size_and_bytes),
    Fact("changed", "changed", output.time),
    Fact("writers", "open for writing in"),
    Fact("readers", "open for reading in"),
    Fact("metadata", "metadata"),
    Fact("ledgers", "ledgers"),
    Fact("deleted_ledgers", "deleted, kept"),
    Fact("unlisted_ledgers", "not in the metadata"),
    Fact("fenced_ledgers", "fenced"),
    Fact("next_ledger", "next ledger"),
    Fact("nodes", "nodes"),
    Fact("topics", "topics"),
)
_BOOKIE = (
    Fact("folder", "folder"),
    Fact("instance", "instance"),
    Fact("journal_folders", "journal folders"),
    Fact("ledger_folders", "ledger folders"),
    Fact("marks", "marks"),
    Fact("journals", "journals"),
    Fact("entry_logs", "entry logs"),
    Fact("index_files", "index files"),
)
_LEDGER = (
    Fact("ledger", "ledger"),
    Fact("kind", "kind"),
    Fact("topic", "topic"),
    Fact("cursor", "cursor"),
    Fact("state", "state"),
    Fact("entries", "entries"),
    Fact("bytes", "size", output.size_and_bytes),
    Fact("digest", "digest"),
    Fact("created", "created", output.time),
    Fact("fenced", "fenced"),
    Fact("master_key", "master key"),
    Fact("damage", "damage"),
)
_EXTENT = (
    Fact("last_entry", "last entry"),
    Fact("length", "length", output.size_and_bytes),
    Fact("lac", "last add confirmed"),
    Fact("gapless_to", "no gap up to"),
    Fact("enough_copies_to", "enough copies up to"),
    Fact("highest", "highest entry"),
    Fact("missing", "missing"),
    Fact("too_few_copies", "too few copies"),
)
_METADATA = (
    Fact("format", "format"),
    Fact("version", "version"),
    Fact("state", "state"),
    Fact("has_password", "has a password"),
)
_ENTRY = (
    Fact("ledger", "ledger"),
    Fact("entry", "entry"),
    Fact("kind", "kind"),
    Fact("topic", "topic"),
    Fact("cursor", "cursor"),
    Fact("lac", "last add confirmed"),
    Fact("cumulative_length", "cumulative length"),
    Fact("stored_bytes", "stored", output.size_and_bytes),
    Fact("bytes", "payload", output.size_and_bytes),
    Fact("digest", "digest"),
    Fact("digest_right", "digest is right"),
    Fact("behind_the_end", "behind the end"),
)
_TOPIC = (
    Fact("topic", "topic"),
    Fact("entries", "entries"),
    Fact("bytes", "size", output.size_and_bytes),
    Fact("terminated", "terminated at"),
    Fact("properties", "properties"),
)
_NODE = (
    Fact("path", "node"),
    Fact("version", "version"),
    Fact("created", "created", output.time),
    Fact("changed", "changed", output.time),
    Fact("bytes", "size", output.size_and_bytes),
    Fact("value", "value"),
)
