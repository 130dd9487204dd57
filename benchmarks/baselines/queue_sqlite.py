"""A hand-written delayed queue on SQLite: leases, delivery times, one transaction per batch.

The table `waiting` is ordered by time. A received message stays there with the end of its lease as its time, so that it
is redelivered automatically. Payloads are in another table, so that a lease does not rewrite them.

Tried and slower, on disk and in memory: one table with an index on the time (by `UPDATE ... RETURNING`, and by `SELECT`
and `executemany`), a table of times by id with an index, `UPDATE waiting` instead of insert and delete, `executemany`
for the leases, pages of 4 and 8 KiB, longer checkpoints, mmap.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

Message = tuple[int, bytes, int]  # id, payload, end of the lease


class SqliteQueue:
    def __init__(self, directory: Path, lease_millis: int = 60_000) -> None:
        self._lease = lease_millis
        self._db = sqlite3.connect(directory / "queue.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA page_size=16384",
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "PRAGMA cache_size=-65536",
            "CREATE TABLE IF NOT EXISTS payloads (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)",
            "CREATE TABLE IF NOT EXISTS waiting (due INTEGER, id INTEGER, PRIMARY KEY (due, id)) WITHOUT ROWID",
        ):
            self._db.execute(statement)

    def publish(self, payloads: list[bytes], delay_millis: int = 0) -> None:
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        (last,) = execute("SELECT max(id) FROM payloads").fetchone()
        first = (last or 0) + 1
        rows = zip(range(first, first + len(payloads)), payloads, strict=True)
        self._db.executemany("INSERT INTO payloads VALUES (?, ?)", rows)
        execute("INSERT INTO waiting SELECT ?, id FROM payloads WHERE id >= ?", (_now() + delay_millis, first))
        execute("COMMIT")

    def receive(self, count: int) -> list[Message]:
        """Receive due messages, earliest first, with a new lease."""
        now = _now()
        end = now + self._lease
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        rows = execute(
            "SELECT id, payload, ?, due FROM waiting CROSS JOIN payloads USING (id) WHERE due <= ? "
            "ORDER BY due, id LIMIT ?",
            (end, now, count),
        ).fetchall()
        if rows:
            last_id, _, _, last_due = rows[-1]
            execute("INSERT INTO waiting SELECT ?, id FROM waiting WHERE (due, id) <= (?, ?)", (end, last_due, last_id))
            execute("DELETE FROM waiting WHERE (due, id) <= (?, ?)", (last_due, last_id))
        execute("COMMIT")
        return rows

    def payloads(self, messages: list[Message]) -> list[bytes]:
        return [message[1] for message in messages]

    def ack(self, messages: list[Message]) -> None:
        """Acknowledge all messages, or raise if a lease has expired, because another receiver may have the message."""
        self._db.execute("BEGIN IMMEDIATE")
        leases = [(message[2], message[0]) for message in messages]
        released = self._db.executemany("DELETE FROM waiting WHERE due = ? AND id = ?", leases).rowcount
        if released != len(messages):
            self._db.execute("ROLLBACK")
            raise RuntimeError("a lease has expired")
        self._db.executemany("DELETE FROM payloads WHERE id = ?", [message[:1] for message in messages])
        self._db.execute("COMMIT")

    def left(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM payloads").fetchone()[0])

    def server_cpu(self) -> float:
        return 0.0

    def close(self) -> None:
        self._db.close()


def _now() -> int:
    return time.time_ns() // 1_000_000
