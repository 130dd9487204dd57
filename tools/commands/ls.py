"""List the ledgers, topics, nodes, files or records at PATH.

For each ledger: its kind and owner, its state, the number of its entries and bytes, its last entry, its ensemble size,
write quorum and ack quorum, and known damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer

from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.topic_name import fits
from bookstand.tools.cli import output
from bookstand.tools.cli.options import Json, Metadata, MoreDisks, Password, Place, damage_lines, document, looking_at
from bookstand.tools.cli.output import Column, counted, human
from bookstand.tools.view.base import LedgerFacts, View
from bookstand.tools.view.bookies import DiskView
from bookstand.tools.view.details import ledger_line, node_line

EXAMPLES = (
    "bookstand ls my-store",
    "bookstand ls my-store --kind cursor --state OPEN",
    "bookstand ls my-store --topics",
    "bookstand ls my-store --nodes",
    "bookstand ls bookie --metadata metadata.jsonl.gz --topic '*/orders'",
    "bookstand ls bookie --files --kind journal",
    "bookstand ls bookie --contents --ledger 5",
    "bookstand ls bookie --records --ledger 5 --json",
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
_NODES = (
    Column("path", "NODE", least=20),
    Column("version", "VERSION", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("changed", "CHANGED", show=output.time, rank=1),
    Column("value", "VALUE", least=10),
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


_CONTENTS = (
    Column("file", "FILE", least=20),
    Column("bookie", "BOOKIE", least=8, rank=2),
    Column("ledger", "LEDGER", right=True),
    Column("kind", "KIND", rank=1),
    Column("state", "STATE"),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
    Column("in_map", "IN MAP", right=True, show=output.size, rank=4),
    Column("topic", "TOPIC", show=output.topic, least=16, rank=3),
)

# Filters that each list accepts.
_CHOICES = {
    "ledgers": {"topic", "kind", "state", "bookie", "ledger"},
    "topics": {"topic"},
    "nodes": set(),
    "files": {"kind"},
    "contents": {"topic", "ledger"},
    "records": {"ledger", "entry", "start", "end"},
}


def run(
    path: Place,
    topics: Annotated[bool, typer.Option("--topics", help="List topics instead of ledgers.")] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="List nodes, with the beginning of each value.")] = False,
    files: Annotated[
        bool, typer.Option("--files", help="List a bookie's files, or a store's files and sub-databases.")
    ] = False,
    contents: Annotated[
        bool,
        typer.Option(
            "--contents", help="List the ledgers in each entry log and journal of a bookie, with their sizes."
        ),
    ] = False,
    records: Annotated[
        bool, typer.Option("--records", help="List every record of a bookie's entry logs and journals.")
    ] = False,
    topic: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Only data of these topics; * matches any characters.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Only ledgers of this kind: topic, cursor, bucket, schema, compacted, …; with --files, only files of "
            "this kind: journal, log or index.",
        ),
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only ledgers in this state: OPEN, CLOSED, UNLISTED, …")
    ] = None,
    bookie: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only ledgers with this bookie in one of their ensembles.")
    ] = None,
    ledger: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="Only this ledger. May be repeated.", show_default=False),
    ] = None,
    entry: Annotated[int | None, typer.Option(metavar="ID", help="Only records of entries with this id.")] = None,
    start: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="Only records at this file offset or after it.")
    ] = None,
    end: Annotated[
        int | None, typer.Option(metavar="OFFSET", help="Only records at this file offset or before it.")
    ] = None,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    modes = {"topics": topics, "nodes": nodes, "files": files, "contents": contents, "records": records}
    if sum(modes.values()) > 1:
        raise IncorrectParameterError("--topics, --nodes, --files, --contents and --records exclude each other")
    mode = next((name for name, asked in modes.items() if asked), "ledgers")
    choices = {"topic": topic, "kind": kind, "state": state, "bookie": bookie, "ledger": ledger}
    for name, value in {**choices, "entry": entry, "start": start, "end": end}.items():
        if value is not None and name not in _CHOICES[mode]:
            raise IncorrectParameterError(f"--{name} does not apply to {mode}")
    with looking_at(path, disk, metadata, password, json) as view:
        if records:
            _print_records(view, _Records(ledger, entry, start, end), json)
        elif contents:
            rows = [row for row in _disks(view).contents() if _is_meant(row, topic, ledger)]
            _print("contents", _CONTENTS, rows, view, json)
        elif files:
            rows = [row for row in view.files() if kind is None or row["kind"].endswith(kind.lower())]
            _print("files", _FILES, rows, view, json)
        elif nodes:
            _print("nodes", _NODES, list(map(node_line, view.nodes())), view, json)
            if not json:
                output.line(counted(view.node_count, "node") if view.node_count else "no nodes")
        elif topics:
            rows = list(_topic_rows(view, topic))
            _print("topics", _TOPICS, rows, view, json)
        else:
            rows = list(_ledger_rows(view, topic, kind, state, bookie, ledger))
            _print("ledgers", _LEDGERS, rows, view, json)
            if not json:
                _sum_up(rows)
                if view.node_count and all(value is None for value in choices.values()):
                    output.line(f"{counted(view.node_count, 'node')}: --nodes lists them")


def _print(name: str, columns: tuple[Column, ...], rows: list[dict[str, Any]], view: View, json: bool) -> None:
    if json:
        shown = [{key: value for key, value in row.items() if key not in ("of", "quorums")} for row in rows]
        document(view, {name: shown})
        return
    output.table(columns, rows)


def _disks(view: View) -> DiskView:
    if not isinstance(view, DiskView):
        raise IncorrectParameterError(
            "--records and --contents require a bookie's disk; a store has sub-databases (--files)"
        )
    return view


class _Records(NamedTuple):
    """Filter for records; None matches all."""

    ledgers: list[int] | None
    entry: int | None
    start: int | None
    end: int | None

    def has(self, row: dict[str, Any]) -> bool:
        return (
            (not self.ledgers or row["ledger"] in self.ledgers)
            and (self.entry is None or row.get("entry") == self.entry)
            and (self.start is None or row["offset"] >= self.start)
            and (self.end is None or row["offset"] <= self.end)
        )


def _print_records(view: View, wanted: _Records, json: bool) -> None:
    """Print records one by one, because there may be many: as JSON Lines, or in columns of a fixed width."""
    rows = filter(wanted.has, _disks(view).records())
    if json:
        for row in rows:
            output.json_line(row)
        damage_lines(view)
        return
    last = ""
    for row in rows:
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


def _ledger_rows(
    view: View, topic: str | None, kind: str | None, state: str | None, bookie: str | None, ledgers: list[int] | None
) -> Iterator[dict[str, Any]]:
    for ledger_id in view.ledger_ids():
        if (ledgers and ledger_id not in ledgers) or (bookie is not None and bookie not in _bookies(view, ledger_id)):
            continue
        facts = view.describe(ledger_id)
        if (
            (topic is None or fits(facts.topic, topic))
            and (kind is None or facts.kind == kind.lower())
            and (state is None or facts.state == state.upper())
        ):
            yield _row(facts)


def _bookies(view: View, ledger_id: int) -> set[str]:
    """Return the bookies of all ensembles of a ledger."""
    metadata = view.ledger(ledger_id).metadata
    return set() if metadata is None else {one for _, members in metadata.ensembles for one in members}


def _is_meant(row: dict[str, Any], topic: str | None, ledgers: list[int] | None) -> bool:
    return (topic is None or fits(row["topic"] or "", topic)) and (not ledgers or row["ledger"] in ledgers)


def _row(facts: LedgerFacts) -> dict[str, Any]:
    """Add the values that only the table shows."""
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
