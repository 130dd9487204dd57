"""What a store holds that a broker wrote: as bookstand's own classes have it, and as Spark's tables do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bookstand
from bookstand import Store
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.topic_config import TopicConfig
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.pipeline.spark.session import session
from bookstand.storage.format.position import Position

Place = tuple[int, int, int]
"""Ledger, entry, and which of its batch, or -1."""

MOST = 1_000_000
_TABLES = ("messages", "cursors", "acks", "delayed_index")


@dataclass
class SeenCursor:
    """A cursor, whoever tells of it."""

    mark_delete: Position
    backlog: int
    acked: set[Position]
    """Behind the mark-delete position."""

    partial: dict[Position, list[int]] = field(default_factory=dict)
    """Of batches, the messages that are not acknowledged."""

    def is_acked(self, place: Place) -> bool:
        entry = Position(*place[:2])
        if entry <= self.mark_delete or entry in self.acked:
            return True
        return entry in self.partial and place[2] not in self.partial[entry]


@dataclass
class SeenTopic:
    ledgers: list[tuple[int, int]]
    """Ids, and how many entries each has."""

    last_confirmed: Position
    cursors: dict[str, SeenCursor]

    def behind(self, position: Position) -> Position | None:
        """The entry that comes next; positions that have the same are the same place."""
        entries = ((ledger_id, entry_id) for ledger_id, count in self.ledgers for entry_id in range(count))
        return next((Position(*entry) for entry in entries if entry > position), None)


class SeenStore:
    """Nobody has it open any more. What is asked is read once, and the store is not changed."""

    def __init__(self, path: Path, settings: TopicConfig) -> None:
        self.path = path
        self._settings = settings
        self._given: dict[tuple[str, str], tuple[list[str], int]] = {}

    def wrong(self) -> str:
        """Which of the commands for operators finds something wrong, or fails."""
        report = self.path.with_name(f"{self.path.name}-report.html")
        commands = {
            "verify": ["verify", str(self.path)],
            "ls": ["ls", str(self.path), "--nodes"],
            "cursors": ["cursors", str(self.path)],
            "delayed": ["delayed", str(self.path)],
            "report": ["report", str(self.path), "--output", str(report)],
        }
        codes = {name: exit_code(arguments) for name, arguments in commands.items()}
        return ", ".join(f"bookstand {name} ended with {code}" for name, code in codes.items() if code)

    # -- bookstand's classes -------------------------------------------------------------------------------------------

    @cached_property
    def topics(self) -> dict[str, SeenTopic]:
        """As they are for whoever opens the store to go on with it."""
        names = {row["topic"] for row in self.rows("cursors")}
        with self._opened() as store:
            return {name: _seen(store.managed_ledger(name, create=False)) for name in names}

    def subscribed(self, topic: str, name: str) -> tuple[list[str], int]:
        """What a subscriber is given now, and how many messages wait for their time."""
        if (topic, name) not in self._given:
            with (
                self._opened() as store,
                store.topic(topic, self._settings) as opened,
                opened.subscription(name) as subscription,
            ):
                given: list[str] = []
                while messages := subscription.receive(MOST, timeout=0):
                    given += (message.payload.decode() for message in messages)
                self._given[topic, name] = sorted(given), subscription.tracker.count
        return self._given[topic, name]

    @contextmanager
    def _opened(self) -> Iterator[Store]:
        """A copy that may be written to."""
        with TemporaryDirectory(dir=self.path.parent) as scratch:
            copy = Path(scratch) / "copy"
            with bookstand.open(self.path, read_only=True) as store:
                store.backup(copy)
            with bookstand.open(copy, durability="none") as store:
                yield store

    # -- Spark ---------------------------------------------------------------------------------------------------------

    def rows(self, table: str) -> list[Any]:
        return self._tables[table]

    @cached_property
    def _tables(self) -> dict[str, list[Any]]:
        spark = session("interop")
        try:
            now = round(time.time() * 1000)
            read = spark.read.format("bookstand").option("unsealed", "true").option("now_ms", now)
            return {table: read.option("table", table).load(str(self.path)).collect() for table in _TABLES}
        finally:
            spark.stop()

    def damage(self) -> list[str]:
        return [row["error"] for table in _TABLES for row in self.rows(table) if row["error"] is not None]

    @cached_property
    def payloads(self) -> Mapping[str, dict[Place, str]]:
        """By topic, of each message."""
        found: dict[str, dict[Place, str]] = defaultdict(dict)
        for row in self.rows("messages"):
            index = -1 if row["batch_index"] is None else row["batch_index"]
            found[row["topic"]][row["ledger_id"], row["entry_id"], index] = bytes(row["payload"]).decode()
        return found

    def cursor_in_tables(self, topic: str, name: str) -> SeenCursor:
        def of_it(table: str) -> Iterator[Any]:
            return (row for row in self.rows(table) if (row["topic"], row["cursor"]) == (topic, name))

        (row,) = of_it("cursors")
        runs = list(of_it("acks"))
        acked = {
            Position(run["ledger_id"], entry_id)
            for run in runs
            if run["unacked_indexes"] is None
            for entry_id in range(run["first_entry_id"], run["last_entry_id"] + 1)
        }
        partial = {
            Position(run["ledger_id"], run["first_entry_id"]): list(run["unacked_indexes"])
            for run in runs
            if run["unacked_indexes"] is not None
        }
        mark_delete = Position(row["mark_delete_ledger_id"], row["mark_delete_entry_id"])
        assert (row["acked_entries"], row["partial_batches"]) == (len(acked), len(partial)), row
        return SeenCursor(mark_delete, row["backlog"], acked, partial)

    def delayed_in_tables(self, topic: str, name: str) -> set[Position]:
        found = (row for row in self.rows("delayed_index") if (row["topic"], row["cursor"]) == (topic, name))
        # What two buckets have, as a broker leaves them that died while it merged them, has two rows.
        return {Position(row["ledger_id"], row["entry_id"]) for row in found}


def exit_code(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "bookstand.tools.main", *arguments]
    return subprocess.run(command, check=False, capture_output=True).returncode


def _seen(topic: ManagedLedger) -> SeenTopic:
    ledgers = [(one.ledger_id, one.entries) for one in topic.ledgers]
    cursors = {name: _seen_cursor(topic, name) for name in topic.cursor_names()}
    return SeenTopic(ledgers, topic.last_confirmed, cursors)


def _seen_cursor(topic: ManagedLedger, name: str) -> SeenCursor:
    with Cursor.open(topic, name, create=False) as cursor:
        ranges = ((one.lower, one.upper) for one in cursor.acked_ranges())
        return SeenCursor(cursor.mark_delete_position, cursor.backlog, set(expanded(ranges)), cursor.partial_batches())


def expanded(ranges: Iterable[tuple[Position, Position]]) -> Iterator[Position]:
    """Each has its last entry and not its first, both in one ledger."""
    for lower, upper in ranges:
        assert lower.ledger_id == upper.ledger_id, (lower, upper)
        for entry_id in range(lower.entry_id + 1, upper.entry_id + 1):
            yield Position(upper.ledger_id, entry_id)
