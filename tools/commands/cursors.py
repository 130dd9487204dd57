"""Show the acknowledgment state of subscriptions: the mark-delete position, the number of unacknowledged entries
(backlog), the number of acknowledged ranges beyond mark-delete (holes), the number of partially acknowledged batches,
and the source of the state.

For a single topic, the properties of its cursors are also shown. For a store, --history and --at-marker show earlier
states of a cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookstand.disk.topics.cursors import DiskCursor
from bookstand.errors import IncorrectParameterError, NoSuchNodeError
from bookstand.storage.format.position import Position
from bookstand.tools.cli import output
from bookstand.tools.cli.options import Json, Metadata, MoreDisks, Password, Place, Topic, document, looking_at
from bookstand.tools.cli.output import Column, Fact, iso
from bookstand.tools.view.base import View, position_of

if TYPE_CHECKING:
    from bookstand.tools.view.store import StoreView

EXAMPLES = (
    "bookstand cursors my-store",
    "bookstand cursors my-store orders",
    "bookstand cursors my-store orders --cursor audit --history",
    "bookstand cursors bookie --metadata metadata.jsonl.gz --json",
)

_CURSORS = (
    Column("topic", "TOPIC", show=output.topic, least=16),
    Column("cursor", "CURSOR", least=12),
    Column("mark_delete", "MARK-DELETE"),
    Column("backlog", "BACKLOG", right=True),
    Column("holes", "HOLES", right=True),
    Column("acked", "ACKED", right=True, rank=3),
    Column("batches", "BATCHES", right=True),
    Column("cursor_ledger", "LEDGER", right=True, rank=2),
    Column("source", "FROM", least=8, rank=1),
)
_FACTS = (
    Fact("topic", "topic"),
    Fact("mark_delete", "mark-delete"),
    Fact("next", "next"),
    Fact("backlog", "backlog"),
    Fact("holes", "holes"),
    Fact("acked", "acknowledged beyond"),
    Fact("ranges", "ranges"),
    Fact("batches", "partial batches"),
    Fact("partial", "unacknowledged"),
    Fact("source", "read from"),
    Fact("skipped", "skipped"),
    Fact("cursor_ledger", "cursor's ledger"),
    Fact("last_active", "last active", output.time),
    Fact("properties", "properties"),
    Fact("cursor_properties", "of the subscription"),
)
_HISTORY = (
    Column("marker", "MARKER"),
    Column("generation", "GENERATION", right=True),
    Column("time", "TIME", show=output.time),
    Column("mark_delete", "MARK-DELETE"),
    Column("ledgers", "LEDGERS", right=True),
    Column("acked", "ACKED", right=True),
    Column("bytes", "SIZE", right=True, show=output.size),
)

# Maximum number of ranges printed for a cursor; JSON has all of them.
_SHOWN = 20


def run(
    path: Place,
    topic: Topic = None,
    cursor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the cursor with this name.", show_default=False)
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="List the earlier states of one cursor that a store still has.")
    ] = False,
    at_marker: Annotated[
        str | None,
        typer.Option(
            metavar="LEDGER:ENTRY", help="Show the earlier state of the cursor at this marker.", show_default=False
        ),
    ] = None,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    if (history or at_marker is not None) and (topic is None or cursor is None):
        raise IncorrectParameterError(
            "--history and --at-marker require a single cursor: name the topic, and the cursor with --cursor"
        )
    with looking_at(path, disk, metadata, password, json) as view:
        names = view.topics() if topic is None else [view.find_topic(topic)]
        if cursor is not None and cursor not in {one.name for name in names for one in view.cursors(name)}:
            raise NoSuchNodeError(f"there is no cursor {cursor!r}")
        if history:
            assert cursor is not None
            rows = _history(view, names[0], cursor)
            _print(view, "history", rows, json, lambda: output.table(_HISTORY, rows))
        elif at_marker is not None:
            assert cursor is not None
            facts = _earlier(view, names[0], cursor, at_marker)
            _print(view, "cursors", [facts], json, lambda: output.facts(_FACTS, _shortened(facts)))
        else:
            rows = [_facts(one) for name in names for one in view.cursors(name) if cursor in (None, one.name)]
            _print(view, "cursors", rows, json, lambda: _print_cursors(rows, topic is not None))


def _print(view: View, name: str, rows: list[dict[str, Any]], json: bool, print_rows: Callable[[], None]) -> None:
    if json:
        document(view, {name: rows})
    else:
        print_rows()


def _print_cursors(rows: list[dict[str, Any]], in_full: bool) -> None:
    if not rows:
        output.line("no cursors")
    elif not in_full:
        output.table(_CURSORS, rows)
    else:
        for row in rows:
            output.heading(row["cursor"])
            output.facts(_FACTS, _shortened(row))


def _facts(cursor: DiskCursor) -> dict[str, Any]:
    state = cursor.state
    ranges = [
        (ledger_id, first, last)
        for ledger_id, firsts, lasts in cursor.holes()
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]
    following = cursor.next
    return {
        "topic": cursor.topic.name,
        "cursor": cursor.name,
        "mark_delete": _place(state.mark_delete),
        "next": _place(following),
        "backlog": cursor.backlog,
        "holes": len(ranges),
        "acked": sum(last - first + 1 for _, first, last in ranges),
        "ranges": [f"{ledger_id}:{_span(first, last)}" for ledger_id, first, last in ranges],
        "batches": len(state.batches),
        "partial": {_place(position): _bits(unacked) for position, unacked in sorted(state.batches.items())},
        "source": str(cursor.source),
        "skipped": list(cursor.skipped),
        "cursor_ledger": None if cursor.ledger_id < 0 else cursor.ledger_id,
        "last_active": iso(cursor.info.last_active),
        "properties": dict(state.properties),
        "cursor_properties": dict(cursor.cursor_properties),
    }


def _bits(number: int) -> list[int]:
    return [place for place in range(number.bit_length()) if number >> place & 1]


def _history(view: View, topic: str, cursor: str) -> list[dict[str, Any]]:
    return [
        {
            "marker": _place(one.marker),
            "generation": one.generation,
            "time": iso(one.time_ms),
            "mark_delete": _place(one.mark_delete),
            "ledgers": one.ledgers,
            "acked": one.acked,
            "bytes": one.size,
        }
        for one in _store(view).history(topic, cursor)
    ]


def _earlier(view: View, topic: str, cursor: str, marker: str) -> dict[str, Any]:
    position = position_of(marker)
    if position is None:
        raise IncorrectParameterError(f"--at-marker must be LEDGER:ENTRY, not {marker!r}")
    with _store(view).at_marker(topic, cursor, position) as found:
        lists = found.build_individual_deleted_message_ranges()
        ranges = [one for ranges in lists for one in ranges]
        partial = found.partial_batches()
        return {
            "topic": topic,
            "cursor": cursor,
            "mark_delete": _place(found.mark_delete_position),
            "backlog": found.backlog,
            "holes": len(ranges),
            "acked": sum(one.upper.entry_id - one.lower.entry_id for one in ranges),
            "ranges": [f"{one.upper.ledger_id}:{_span(one.lower.entry_id + 1, one.upper.entry_id)}" for one in ranges],
            "batches": len(partial),
            "partial": {_place(at): left for at, left in partial.items()},
            "source": str(found.recovered_from),
            "properties": found.properties,
        }


def _store(view: View) -> StoreView:
    from bookstand.tools.view.store import StoreView

    if not isinstance(view, StoreView):
        raise IncorrectParameterError("--history and --at-marker require a store; bookies' disks are not supported")
    return view


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Shorten the lists of a row for printing."""
    partial = [f"{at} {left}" for at, left in row["partial"].items()]
    return {**row, "ranges": _first(row["ranges"]), "partial": _first(partial)}


def _first(values: list[str]) -> list[str]:
    return values if len(values) <= _SHOWN else [*values[:_SHOWN], f"and {len(values) - _SHOWN} more"]


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _place(position: Position) -> str:
    return f"{position.ledger_id}:{position.entry_id}"
