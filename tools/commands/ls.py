"""List what is at PATH: its ledgers, or its topics, or its files.

Of each ledger: what it is of, its state, how many entries and bytes it has, its last entry, its ensemble size, write
quorum and ack quorum, and what is known to be wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from bookstand.errors import IncorrectParameterError
from bookstand.ledger.topic_name import fits
from bookstand.tools import output
from bookstand.tools.disk_view import DiskView
from bookstand.tools.known import ledger_line
from bookstand.tools.options import Json, Metadata, MoreDisks, Password, Place, damage_lines, document, looking_at
from bookstand.tools.output import Column, counted, human
from bookstand.tools.view import LedgerFacts, View

EXAMPLES = (
    "bookstand ls my-store",
    "bookstand ls my-store --kind cursor --state OPEN",
    "bookstand ls my-store --topics",
    "bookstand ls bookie --metadata metadata.jsonl.gz --topic '*/orders'",
    "bookstand ls bookie --files",
    "bookstand ls bookie --records --json",
)

_LEDGERS = (
    Column("ledger", "LEDGER", right=True),
    Column("kind", "KIND"),
    Column("state", "STATE"),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("last_entry", "LAST", right=True, rank=3),
    Column("quorums", "E/W/A", rank=4),
    Column("digest", "DIGEST", rank=5),
    Column("created", "CREATED", show=output.time, rank=6),
    Column("of", "OF", least=16, show=output.topic),
    Column("damage", "DAMAGE", least=10),
)
_TOPICS = (
    Column("topic", "TOPIC", least=20, show=output.topic),
    Column("ledgers", "LEDGERS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("cursors", "CURSORS", right=True),
    Column("partitions", "PARTITIONS", right=True, rank=1),
    Column("last", "LAST", rank=2),
    Column("terminated", "TERMINATED AT", rank=3),
)
_FILES = (
    Column("name", "NAME", least=20),
    Column("kind", "KIND"),
    Column("bookie", "BOOKIE", least=8, rank=1),
    Column("version", "VERSION", right=True, rank=3),
    Column("records", "RECORDS", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("pages", "PAGES", right=True, rank=2),
    Column("depth", "DEPTH", right=True, rank=4),
    Column("ledgers", "MAP", right=True, rank=5),
    Column("mark", "MARK", right=True),
)


def run(
    path: Place,
    topics: Annotated[bool, typer.Option("--topics", help="List topics instead of ledgers.")] = False,
    files: Annotated[
        bool, typer.Option("--files", help="List a bookie's files, or a store's files and sub-databases.")
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="List every record of a bookie's entry logs and journals.")
    ] = False,
    topic: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only what is of these topics; * stands for anything.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Only ledgers of this kind: topic, cursor, bucket, schema, compacted, …"),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only ledgers in this state: OPEN, CLOSED, UNLISTED, …")
    ] = None,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    if topics + files + records > 1:
        raise IncorrectParameterError("--topics, --files and --records exclude each other")
    if (topics or files or records) and (kind or state):
        raise IncorrectParameterError("--kind and --state are of ledgers")
    with looking_at(path, disk, metadata, password, json) as view:
        if records:
            _print_records(view, json)
        elif files:
            rows = view.files()
            _print("files", _FILES, rows, view, json)
        elif topics:
            rows = list(_topic_rows(view, topic))
            _print("topics", _TOPICS, rows, view, json)
        else:
            rows = list(_ledger_rows(view, topic, kind, state))
            _print("ledgers", _LEDGERS, rows, view, json)
            if not json:
                _sum_up(rows)


def _print(name: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], view: View, json: bool) -> None:
    if json:
        shown = [{key: value for key, value in row.items() if key not in ("of", "quorums")} for row in rows]
        document(view, {name: shown})
        return
    output.table(columns, rows)


def _print_records(view: View, json: bool) -> None:
    """One by one, for there may be many: a line of JSON each, or columns wide enough for what is usual."""
    if not isinstance(view, DiskView):
        raise IncorrectParameterError("records are in the files of bookies; a store has sub-databases (--files)")
    if json:
        for row in view.records():
            output.json_line(row)
        damage_lines(view)
        return
    last = ""
    for row in view.records():
        if row["file"] != last:
            last = row["file"]
            output.heading(last)
            output.line(_RECORD.format("OFFSET", "WHAT", "LEDGER", "ENTRY", "LAC", "BYTES", "LENGTH", "DIGEST"))
        values = (row.get(key) for key in ("offset", "what", "ledger", "entry", "lac", "bytes", "length", "digest"))
        output.line(_RECORD.format(*map(output.shown, values)).rstrip())


_RECORD = "{:>10}  {:<12}  {:>13}  {:>8}  {:>8}  {:>8}  {:>10}  {}"


def _sum_up(rows: list[dict[str, Any]]) -> None:
    if not rows:
        output.line("no ledgers")
        return
    entries, size = (sum(row[key] for row in rows) for key in ("entries", "bytes"))
    kinds = Counter(row["kind"] for row in rows)
    output.line(f"{counted(len(rows), 'ledger')}, {counted(entries, 'entry')}, {human(size)}")
    output.line(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))


def _ledger_rows(view: View, topic: str | None, kind: str | None, state: str | None) -> Iterator[dict[str, Any]]:
    for ledger_id in view.ledger_ids():
        facts = view.describe(ledger_id)
        if (
            (topic is None or fits(facts.topic, topic))
            and (kind is None or facts.kind == kind.lower())
            and (state is None or facts.state == state.upper())
        ):
            yield _row(facts)


def _row(facts: LedgerFacts) -> dict[str, Any]:
    """With what only the table has."""
    row = ledger_line(facts)
    row["of"] = f"{facts.topic} : {facts.cursor}" if facts.cursor else facts.topic
    if facts.ensemble_size is not None:
        row["quorums"] = f"{facts.ensemble_size}/{facts.write_quorum}/{facts.ack_quorum}"
    return row


def _topic_rows(view: View, pattern: str | None) -> Iterator[dict[str, Any]]:
    partitioned = {} if view.source.dump is None else view.source.dump.partitioned
    for name in view.topics():
        if pattern is not None and not fits(name, pattern):
            continue
        topic = view.topic(name)
        size = 0
        for ledger_id in topic.ledgers():
            ledger = topic.ledger(ledger_id)
            size += ledger.extent.length if ledger is not None else 0
        last = topic.end.previous if topic.end.entry_id > 0 else None
        yield {
            "topic": name,
            "ledgers": len(topic.info.ledgers),
            "entries": sum(topic.entry_counts.values()),
            "bytes": size,
            "cursors": len(topic.cursors()),
            "partitions": partitioned.get(name),
            "last": None if last is None else f"{last.ledger_id}:{last.entry_id}",
            "terminated": None if topic.info.terminated is None else _place(topic.info.terminated),
        }
    for name, partitions in partitioned.items():
        if name not in view.topics() and (pattern is None or fits(name, pattern)):
            yield {"topic": name, "partitions": partitions}


def _place(position: Any) -> str:
    return f"{position.ledger_id}:{position.entry_id}"
