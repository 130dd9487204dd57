"""Where a store and the broker that wrote it do not say the same, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from bookstand.storage.format.position import Position
from tests.interop.broker_seen import Place, SeenCursor, SeenStore, SeenTopic, expanded

SHOWN = 5
RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


def few(many: Iterable[object]) -> str:
    found = sorted(map(str, many))
    return f"{len(found)} ({', '.join(found[:SHOWN])}{', …' if len(found) > SHOWN else ''})"


def _position(text: str) -> Position:
    ledger_id, entry_id = text.split(":")
    return Position(int(ledger_id), int(entry_id))


def ended(exit_code: str, seen: SeenStore) -> str:
    """A server has, and the store is whole."""
    return seen.wrong() if exit_code == "0" else f"it has ended with {exit_code}"


def about_topic(found: SeenTopic, internal: Any) -> Iterator[str]:
    """Empty ledgers come and go with every opening."""
    broker = [(one["ledgerId"], one["entries"]) for one in internal["ledgers"] if one["entries"]]
    ours = [ledger for ledger in found.ledgers if ledger[1]]
    if ours != broker:
        yield f"ledgers {ours}, the broker's are {broker}"
    last = _position(internal["lastConfirmedEntry"])
    if found.behind(found.last_confirmed) != found.behind(last):
        yield f"last confirmed {found.last_confirmed}, the broker's is {last}"


def dropped_tail(found: SeenTopic, internal: Any, confirmed: Iterable[Place]) -> bool:
    """Whether the broker has less at the end, of which nobody was told that it is there.

    What was under way when several bookies died may be on one of them alone. BookKeeper's client ends a ledger where a
    bookie that should have an entry has none; the store's own recovery keeps what any of them has.
    """
    broker = {one["ledgerId"]: one["entries"] for one in internal["ledgers"] if one["entries"]}
    ours = {ledger_id: count for ledger_id, count in found.ledgers if count}
    if not ours:
        return False
    *before, (last, count) = ours.items()
    kept = broker.get(last, 0)
    if dict(before) != {ledger_id: entries for ledger_id, entries in broker.items() if ledger_id != last}:
        return False
    return kept < count and not any(ledger_id == last and entry_id >= kept for ledger_id, entry_id, _ in confirmed)


def about_names(expected: Iterable[str], found: Iterable[str]) -> Iterator[str]:
    if sorted(expected) != sorted(found):
        yield f"the broker has cursors {sorted(found)}, not {sorted(expected)}"


def about_cursors(topic: str, found: SeenTopic, seen: SeenStore, stats: Any, internal: Any) -> Iterator[str]:
    for name, ours in found.cursors.items():
        broker = _of_the_broker(name, stats, internal)
        if found.behind(ours.mark_delete) != found.behind(broker.mark_delete):
            yield f"{name}: mark-delete {ours.mark_delete}, the broker's is {broker.mark_delete}"
        if unequal := _open_entries(ours, found) ^ _open_entries(broker, found):
            yield f"{name}: the broker has otherwise whether these are acknowledged: {few(unequal)}"
        if ours.backlog != broker.backlog:
            yield f"{name}: backlog {ours.backlog}, the broker's is {broker.backlog}"
        if (tables := seen.cursor_in_tables(topic, name)) != ours:
            yield f"{name}: Spark's tables have {tables}, not {ours}"


def about_delayed(topic: str, name: str, seen: SeenStore, stats: Any) -> Iterator[str]:
    broker = stats["subscriptions"][name]["msgDelayed"]
    _, waiting = seen.subscribed(topic, name)
    in_table = len(seen.delayed_in_tables(topic, name))
    if not broker == waiting == in_table:
        yield f"{name}: {broker} delayed, by the broker; {waiting} in the tracker, {in_table} in Spark's table"


def lost(sent: dict[str, Place], there: dict[Place, str], ledgers: Iterable[tuple[int, int]]) -> Iterator[str]:
    """What was confirmed is where that was said, unless its ledger was trimmed."""
    first = min((ledger_id for ledger_id, _ in ledgers), default=0)
    gone = [f"{name} at {place}" for name, place in sent.items() if place[0] >= first and there.get(place) != name]
    if gone:
        yield f"lost: {few(gone)}"


def _of_the_broker(name: str, stats: Any, internal: Any) -> SeenCursor:
    cursor = internal["cursors"][name]
    numbers = (tuple(map(int, one)) for one in RANGE.findall(cursor["individuallyDeletedMessages"]))
    ranges = ((Position(*one[:2]), Position(*one[2:])) for one in numbers)
    backlog = stats["subscriptions"][name]["msgBacklog"]
    return SeenCursor(_position(cursor["markDeletePosition"]), backlog, set(expanded(ranges)))


def _open_entries(cursor: SeenCursor, found: SeenTopic) -> set[Position]:
    entries = (Position(ledger_id, entry_id) for ledger_id, count in found.ledgers for entry_id in range(count))
    return {entry for entry in entries if entry > cursor.mark_delete and entry not in cursor.acked}
