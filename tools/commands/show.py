"""Show the details of one object at PATH: a ledger by its id, an entry as LEDGER:ENTRY, a topic by its name or the end
of it, or a node of the metadata. Without an object, show the store or the bookies as a whole.

Of a ledger: its metadata, its end, and how the end was determined. Of an entry: its header, its copies with their
locations and digests, and its message. Of a topic: its ledgers and cursors.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bookstand.errors import IncorrectParameterError
from bookstand.tools.cli import output
from bookstand.tools.cli.options import Json, Metadata, MoreDisks, Password, Place, document, looking_at
from bookstand.tools.cli.output import Column, Fact
from bookstand.tools.view import details
from bookstand.tools.view.base import View, ledger_of, position_of

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
        typer.Argument(metavar="[LEDGER|LEDGER:ENTRY|TOPIC]", help="Object to show.", show_default=False),
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="PATH", help="Node of the metadata to show.", show_default=False)
    ] = None,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    if what is not None and node is not None:
        raise IncorrectParameterError("--node and another object exclude each other")
    with looking_at(path, disk, metadata, password, json) as view:
        if node is not None:
            _show(view, "node", details.node(view, node), json)
        elif what is None:
            _show(view, "about", details.about(view), json)
        elif (position := position_of(what)) is not None:
            _show(view, "entry", details.entry(view, position), json)
        elif (ledger_id := ledger_of(what)) is not None:
            _show(view, "ledger", details.ledger(view, ledger_id), json)
        else:
            _show(view, "topic", details.topic(view, view.find_topic(what)), json)


def _show(view: View, what: str, facts: dict[str, Any], json: bool) -> None:
    if json:
        document(view, {what: facts})
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
        output.heading("ensembles")
        output.table(_ENSEMBLES, facts["metadata"]["ensembles"])
        custom = facts["metadata"]["custom"]
        if custom:
            output.heading("custom metadata")
            output.facts([Fact(key, key) for key in custom], custom)
    if facts["doubts"]:
        output.heading("notes")
    for doubt in facts["doubts"]:
        output.paragraph(doubt)


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
    Fact("writers", "processes writing"),
    Fact("readers", "processes reading"),
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
    Fact("cookie_folders", "folders by cookie"),
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
_ENSEMBLES = (
    Column("first_entry", "FROM ENTRY", right=True),
    Column("bookies", "BOOKIES", least=20),
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
