"""Registry of a tracker's buckets: properties of a cursor, and ledgers of its store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pyroaring import BitMap64

from bookstand.cursor.cursor import Cursor
from bookstand.ledger.client import Client
from bookstand.ledger.transaction import Transaction
from bookstand.storage.format.position import Position

Change = Callable[[Transaction, dict[str, str]], object]
"""Changes properties, and adds related operations to the transaction."""


class BucketRegistry(Protocol):
    topic: str
    cursor: str
    client: Client

    def properties(self) -> Mapping[str, str]: ...

    def change(self, change: Change) -> None:
        """Apply a change in one commit."""

    def write_acknowledged(self) -> None:
        """Make all acknowledgments durable."""

    def mark_delete(self) -> Position:
        """Position up to which nothing will be delivered."""

    def unacknowledged(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """Entries of a ledger that may still be delivered."""


class CursorBucketRegistry:
    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.topic = cursor.topic.name
        self.cursor = cursor.name
        self.client = cursor.topic.client

    def properties(self) -> Mapping[str, str]:
        return self._cursor.cursor_properties

    def change(self, change: Change) -> None:
        self._cursor.change_properties(change)

    def write_acknowledged(self) -> None:
        self._cursor.flush()

    def mark_delete(self) -> Position:
        return self._cursor.mark_delete_position

    def unacknowledged(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        return self._cursor.unacked_of(ledger_id, entry_ids)
