"""A topic and a cursor on it, over restarts and crashes, and what the cursor has stored."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import record
from bookstand.cursor.format.ack_page import PageRef
from bookstand.cursor.format.checkpoint import Marker, decode_marker, node_loader
from bookstand.cursor.format.page_index import PageIndex
from bookstand.managed_ledger.records import CursorInfo, decode_cursor_info, encode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.storage.format.position import EARLIEST, Position

TOPIC = "orders"
SUBSCRIPTION = "audit"
NEVER = 1e9
"""Seconds: the background does nothing."""

FORMS: dict[str, dict[str, Any]] = {
    "pages": {},
    "ranges": {"enable_lru_cache_max_unacked_ranges": False, "persist_as_long_array": False},
    "long arrays": {"enable_lru_cache_max_unacked_ranges": False, "persist_as_long_array": True},
}
OLD_FORMS = [form for form in FORMS if form != "pages"]


class Desk:
    """``p`` are the topic's entries in their order, ``cursor`` is the cursor that is open.

    What a cursor is opened with stays the same over restarts, but for what a restart changes.
    """

    def __init__(
        self,
        path: Path,
        form: str = "pages",
        *,
        per_ledger: int = 50_000,
        entries: int = 0,
        opening: dict[str, Any] | None = None,
        ledgers_before: int = 0,
        begin: bool = True,
        **settings: Any,
    ) -> None:
        self.path = path
        self.form = form
        self.per_ledger = per_ledger
        self.opening = dict(opening or {})
        self.settings = {"flush_interval": NEVER, **settings}
        self.cursor: Any = None
        self._open_store()
        for _ in range(ledgers_before):
            self.store.create_ledger().close()
        self._open_topic()
        self.p: list[Position] = []
        self.fill(entries)
        if begin:
            self.open()

    def _open_store(self) -> None:
        self.store: Any = bookstand.open(self.path, **self.opening)

    def _open_topic(self) -> None:
        self.topic: Any = self.store.managed_ledger(TOPIC, max_entries_per_ledger=self.per_ledger)

    def fill(self, count: int) -> list[Position]:
        added = list(self.topic.append_entries([b"%d" % (len(self.p) + number) for number in range(count)]))
        self.p += added
        return added

    @property
    def start(self) -> Position:
        return Position(self.p[0].ledger_id, -1)

    def config(self) -> CursorConfig:
        return CursorConfig(**{**FORMS[self.form], **self.settings})

    def open(self, **options: Any) -> Cursor:
        self.cursor = Cursor.open(self.topic, SUBSCRIPTION, self.config(), **options)
        return self.cursor

    def roll(self) -> None:
        """The topic goes on in a new ledger."""
        self.topic.roll()

    # -- restarts ----------------------------------------------------------------------------------------------------

    def leave(self, how: str) -> None:
        """``crash``, or ``close``; or ``flush``, and then a crash."""
        if how == "close":
            self.cursor.close()
            self.topic.close()
            self.store.close()
            return
        if how == "flush":
            self.cursor.flush()
        self.store.storage.crash()

    def restart(self, how: str, form: str | None = None, **settings: Any) -> Cursor:
        self.leave(how)
        return self.come_back(form, **settings)

    def come_back(self, form: str | None = None, **settings: Any) -> Cursor:
        self.form = self.form if form is None else form
        self.settings.update(settings)
        self._open_store()
        self._open_topic()
        return self.open()

    def end(self) -> None:
        self.store.close()
        with bookstand.open(self.path, create=False) as store:
            report = store.verify()
        assert report.ok, report.problems

    # -- what the cursor has ------------------------------------------------------------------------------------------

    def seen(self) -> dict[str, Any]:
        """All of a cursor's state that outlives it."""
        cursor = self.cursor
        return {
            "mark_delete": cursor.mark_delete_position,
            "acked": [position for position in self.p if cursor.is_acked(position)],
            "ranges": cursor.acked_ranges(),
            "batches": cursor.partial_batches(),
            "properties": cursor.properties,
            "backlog": cursor.backlog,
        }

    def acked(self) -> list[int]:
        """The numbers of the entries that are acknowledged."""
        return [number for number, position in enumerate(self.p) if self.cursor.is_acked(position)]

    def ack(self, numbers: Iterable[int]) -> Any:
        return self.cursor.ack([self.p[number] for number in numbers])

    def read_all(self) -> list[int]:
        """The numbers of the entries that are still to be read."""
        found: list[int] = []
        while entries := self.cursor.read(7):
            found += [self.p.index(entry.position) for entry in entries]
        return found

    # -- what is stored -----------------------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        return cursor_node_of(TOPIC, SUBSCRIPTION)

    @property
    def record(self) -> CursorInfo:
        return decode_cursor_info(self.store.nodes.get(self.node)[0])

    def plant(self, info: CursorInfo) -> None:
        """Have the cursor, which is not open, stand in the metadata store like this."""
        self.store.nodes.put(self.node, encode_cursor_info(info))

    def plant_ledger(self, entries: Iterable[bytes], custom_metadata: dict[str, bytes] | None = None) -> int:
        """A ledger with these entries, to be a cursor's; its id."""
        writer = self.store.create_ledger(custom_metadata=custom_metadata or {})
        for entry in entries:
            writer.append(entry)
        writer.close()
        return int(writer.id)

    def append_to_ledger(self, *entries: bytes) -> int:
        """Replace the cursor's ledger, as a crash left it, by one with more entries behind those it has; its id."""
        info = self.record
        ledger_id = self.plant_ledger([*self.stored(), *entries])
        self.plant(info._replace(cursor_ledger_id=ledger_id))
        return ledger_id

    def stored(self, ledger_id: int | None = None) -> list[bytes]:
        """The entries of the cursor's ledger."""
        ledger_id = self.record.cursor_ledger_id if ledger_id is None else ledger_id
        reader = self.store.open_ledger(ledger_id, recovery=False)
        last = reader.read_last_confirmed()
        handle_last = max(last, self._unconfirmed_end(reader))
        return [entry.data for entry in reader.read_unconfirmed(0, handle_last)] if handle_last >= 0 else []

    def _unconfirmed_end(self, reader: Any) -> int:
        """A writer that crashed did not say how far it came."""
        for last in itertools.count(reader.read_last_confirmed()):
            try:
                reader.read_unconfirmed(last + 1, last + 1)
            except bookstand.BookstandError:
                return last
        raise AssertionError

    def kinds(self) -> list[str]:
        """What the entries of the cursor's ledger are, in a letter each: Page, Nodes, Marker."""
        letters = {record.PAGE: "P", record.NODES: "N", record.MARKER: "M"}
        return [letters[record.identify(entry).kind] for entry in self.stored()]

    def marker(self) -> Marker:
        entries = self.stored()
        return decode_marker(SUBSCRIPTION, len(entries) - 1, entries[-1])

    def refs(self) -> dict[int, PageRef]:
        """Where the last marker says that the pages are."""
        entries = self.stored()
        index = PageIndex.read(self.marker().root, node_loader(SUBSCRIPTION, entries.__getitem__))
        return dict(index.items())


def ledgers_of(store: Any) -> set[int]:
    return set(store.list_ledgers())


def before(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id - 1)


def positions(ledger_id: int, entries: Iterable[int]) -> Iterator[Position]:
    return (Position(ledger_id, entry) for entry in entries)


__all__ = [
    "EARLIEST",
    "FORMS",
    "NEVER",
    "OLD_FORMS",
    "SUBSCRIPTION",
    "TOPIC",
    "Desk",
    "before",
    "ledgers_of",
    "positions",
]
