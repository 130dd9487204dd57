"""Sortable and filterable tables: columns for the page's script, in which each text is stored once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bookstand.storage.format.escapes import cell
from bookstand.tools.report import text as texts
from bookstand.tools.report.ledgers import UNKNOWN
from bookstand.tools.report.model import Report, Subscription
from bookstand.tools.report.svg import ledgers_of
from bookstand.tools.report.text import short_topic, shortened
from bookstand.tools.view.details import node_line

LEDGERS, OTHERS = 10_000, 2_000
"""Maximum number of rows in a table, which limits the size of the page. A truncated table says which rows it has."""

# JavaScript numbers beyond this are inexact.
_EXACT = 1 << 53

ID, INT, SIZE, TIME, RATIO = "id", "int", "size", "time", "ratio"
TEXT, NAME, PLACE, SENTENCE = "text", "name", "place", "sentence"
_LONGEST = {TEXT: texts.NAME, NAME: texts.NAME, PLACE: texts.NAME, SENTENCE: texts.SENTENCE}
"""Maximum length of texts, by kind."""


class Column(NamedTuple):
    """Column with a function that returns its value in a row."""

    title: str
    kind: str
    of: Callable[[Any], Any]


class TableSpec(NamedTuple):
    """Definition of a table. ``sort`` is the initial sort column, in descending order if ``down``. ``chosen`` describes
    the rows that a truncated table has."""

    name: str
    caption: str
    columns: Sequence[Column]
    sort: int
    chosen: str
    down: bool = True


class Table(NamedTuple):
    """Table whose ``rows`` may be a part of ``total``."""

    shape: TableSpec
    rows: Sequence[Any]
    total: int

    def data(self) -> dict[str, Any]:
        columns = [_values(column, self.rows) for column in self.shape.columns]
        return {"columns": columns, "sort": self.shape.sort, "down": self.shape.down}


def _values(column: Column, rows: Sequence[Any]) -> dict[str, Any]:
    found = map(column.of, rows)
    most = _LONGEST.get(column.kind)
    if most is None:
        return {"kind": column.kind, "values": list(map(_number, found))}
    numbers: dict[str, int] = {}
    values = [numbers.setdefault(cell(shortened(text or "", most)), len(numbers)) for text in found]
    return {"kind": column.kind, "values": values, "texts": list(numbers)}


def _number(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= _EXACT:
        return str(value)
    return round(value, 4) if isinstance(value, float) else value


# -- definitions -------------------------------------------------------------------------------------------------------

_LEDGERS = TableSpec(
    "ledgers",
    "Ledgers",
    (
        Column("Ledger", ID, lambda row: row["ledger"]),
        Column("Kind", PLACE, lambda row: row["kind"]),
        Column("State", PLACE, lambda row: row["state"]),
        Column("Entries", INT, lambda row: row["entries"]),
        Column("Size", SIZE, lambda row: row["bytes"]),
        Column("Created (UTC)", TIME, lambda row: None if row["created"] == UNKNOWN else row["created"]),
        Column("Topic", NAME, lambda row: short_topic(row["topic"])),
        Column("Subscription", TEXT, lambda row: row["cursor"]),
        Column("Damage", SENTENCE, lambda row: row["damage"]),
    ),
    4,
    "those with damage and the largest",
)
_TOPICS = TableSpec(
    "topics",
    "Topics",
    (
        Column("Topic", NAME, lambda one: short_topic(one.name)),
        Column("Ledgers", INT, lambda one: one.ledgers),
        Column("Entries", INT, lambda one: one.entries),
        Column("Size", SIZE, lambda one: one.bytes),
        Column("Cursors", INT, lambda one: one.cursors),
    ),
    3,
    "the largest",
)
_OF_SUBSCRIPTION = (
    Column("Topic", NAME, lambda one: short_topic(one.topic)),
    Column("Subscription", TEXT, lambda one: one.name),
)
_CURSORS = TableSpec(
    "cursors",
    "Subscriptions",
    (
        *_OF_SUBSCRIPTION,
        Column("Mark-delete", PLACE, lambda one: one.mark_delete),
        Column("Backlog", INT, lambda one: one.backlog),
        Column("Holes", INT, lambda one: one.holes),
        Column("Acknowledged in them", INT, lambda one: one.acked),
        Column("Batches in part", INT, lambda one: one.batches),
        Column("State read from", TEXT, lambda one: one.source),
    ),
    3,
    "those most behind",
)
_CACHES = TableSpec(
    "caches",
    "Pages of acknowledgments",
    (
        *_OF_SUBSCRIPTION,
        Column("Pages", INT, lambda one: one.pages.number),
        Column("Size in memory", SIZE, lambda one: one.pages.bytes),
        Column("Fit the cache", INT, lambda one: one.pages.fit),
        Column("Share that fits", RATIO, lambda one: one.pages.fit / one.pages.number if one.pages.number else None),
        Column("Hits", INT, lambda one: one.asked and one.asked.hits),
        Column("Misses", INT, lambda one: one.asked and one.asked.misses),
        Column("Hit ratio", RATIO, lambda one: one.asked and one.asked.ratio),
    ),
    3,
    "the largest",
)
_WAITING = TableSpec(
    "waiting",
    "Messages that wait for their time",
    (
        Column("Topic", NAME, lambda one: short_topic(one.topic)),
        Column("Subscription", TEXT, lambda one: one.subscription),
        Column("Waiting", INT, lambda one: one.messages),
        Column("In buckets", INT, lambda one: one.in_buckets),
        Column("In the topic", INT, lambda one: one.in_topic),
        Column("Buckets", INT, lambda one: len(one.buckets)),
        Column("Next due (UTC)", TIME, lambda one: one.next_due),
        Column("Last due (UTC)", TIME, lambda one: one.last_due),
    ),
    2,
    "those with most messages",
)
_BUCKETS = TableSpec(
    "buckets",
    "Buckets",
    (
        Column("Topic", NAME, lambda row: short_topic(row[0].topic)),
        Column("Subscription", TEXT, lambda row: row[0].subscription),
        Column("Topic's ledgers", PLACE, lambda row: ledgers_of(row[1])),
        Column("Snapshot in ledger", ID, lambda row: row[1].snapshot),
        Column("Segments", INT, lambda row: len(row[1].segments)),
        Column("Messages", INT, lambda row: row[1].messages),
        Column("Due", INT, lambda row: row[1].due),
        Column("First due (UTC)", TIME, lambda row: row[1].first_due),
        Column("Last due (UTC)", TIME, lambda row: row[1].last_due),
        Column("Problem", SENTENCE, lambda row: "; ".join(row[1].problems)),
    ),
    5,
    "the first",
)
_NODES = TableSpec(
    "nodes",
    "Nodes",
    (
        Column("Node", NAME, lambda row: row["path"]),
        Column("Version", INT, lambda row: row["version"]),
        Column("Size", SIZE, lambda row: row["bytes"]),
        Column("Value", TEXT, lambda row: row["value"]),
    ),
    0,
    "the first by their paths",
    down=False,
)
_DAMAGE = TableSpec(
    "damage",
    "Damage",
    (
        Column("What is wrong", SENTENCE, lambda one: one.what),
        Column("Ledger", ID, lambda one: _known(one.ledger_id)),
        Column("Entry", ID, lambda one: _known(one.entry_id)),
        Column("File or topic", NAME, lambda one: one.file),
        Column("Offset", ID, lambda one: _known(one.offset)),
    ),
    1,
    "the first",
    down=False,
)


def _known(number: int) -> int | None:
    return None if number < 0 else number


def tables(report: Report) -> Iterator[Table]:
    """Yield the tables that have rows."""
    yield from _some(_LEDGERS, list(report.ledgers.largest(LEDGERS)), len(report.ledgers))
    yield from _first(_TOPICS, report.topics, lambda one: one.bytes)
    yield from _first(_CURSORS, report.subscriptions, lambda one: (one.backlog, one.holes))
    yield from _first(_CACHES, list(filter(_has_pages, report.subscriptions)), lambda one: one.pages.bytes)
    waiting = [one.waiting for one in report.delayed]
    some = [one for one in waiting if one.messages or one.buckets]
    yield from _first(_WAITING, some, lambda one: one.messages)
    yield from _first(_BUCKETS, [(one, bucket) for one in waiting for bucket in one.buckets], lambda one: 0)
    yield from _some(_NODES, list(map(node_line, report.nodes)), report.node_count or 0)
    yield from _first(_DAMAGE, report.damage, lambda one: 0)


def _has_pages(one: Subscription) -> bool:
    return bool(one.pages.number) or one.asked is not None


def _first(shape: TableSpec, found: Sequence[Any], by: Callable[[Any], Any]) -> Iterator[Table]:
    """Yield the table with the largest rows; among equals, the first ones."""
    yield from _some(shape, sorted(found, key=by, reverse=True)[:OTHERS], len(found))


def _some(shape: TableSpec, rows: Sequence[Any], total: int) -> Iterator[Table]:
    if rows:
        yield Table(shape, rows, total)
