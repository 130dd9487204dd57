"""A plain model of a topic and of its cursors: lists and sets, and nothing done cleverly.

A topic is a list of ledgers, each a number of entries. A cursor is what it has acknowledged: everything up to its
mark-delete position, a set of entries beyond it, and for batches that are acknowledged in part the messages that are
not. What a restart finds is a copy, made whenever a cursor writes. With ``limits`` the copy is a snapshot in Pulsar's
old form, of which only the lowest ranges and batches are kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from bookstand.storage.format.position import Position

INTERNAL_PREFIX = "#pulsar.internal."


class Refused(Exception):  # noqa: N818 - what an operation answers, not what went wrong in the model
    """``kind`` is a word that tells why."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Limits(NamedTuple):
    """Of the old form."""

    ranges: int
    batches: int
    ranges_in_record: int


class Settings(NamedTuple):
    limits: Limits | None = None  # None: pages, without limits
    batch_index_acks: bool = True
    writes: int | None = None  # how many changes are written at once before the rate is used up; None: all
    entries_per_cursor_ledger: int = 50_000


class Stored(NamedTuple):
    """What a restart finds."""

    mark_delete: Position
    acked: frozenset[Position]
    batches: dict[Position, frozenset[int]]
    properties: dict[str, int]


def ranges_of(acked: Iterable[Position]) -> list[list[Position]]:
    """Unbroken runs within ledgers, in their order."""
    found: list[list[Position]] = []
    for position in sorted(acked):
        if found and found[-1][-1].next == position:
            found[-1].append(position)
        else:
            found.append([position])
    return found


class Topic:
    """``ledgers`` are [id, number of entries]; the last one is written to. Ids come from the caller."""

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.ledgers: list[list[int]] = []
        self.next_id = 1
        self.cursors: dict[str, Cursor] = {}
        self.records: dict[str, Record] = {}
        self.is_open = False

    # -- the series ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """An empty last ledger is replaced; another goes on with a new one behind it."""
        self.ledgers = [ledger for ledger in self.ledgers if ledger[1]]
        self._begin()
        self.is_open = True

    def _begin(self) -> None:
        self.ledgers.append([self.next_id, 0])
        self.next_id += 1

    def append(self, count: int) -> list[Position]:
        added = []
        for _ in range(count):
            last = self.ledgers[-1]
            added.append(Position(last[0], last[1]))
            last[1] += 1
            if last[1] >= self.max_entries:
                self._begin()
        return added

    def roll(self) -> None:
        if self.ledgers[-1][1] >= self.max_entries:
            self._begin()

    def positions(self) -> list[Position]:
        return [Position(ledger_id, entry) for ledger_id, entries in self.ledgers for entry in range(entries)]

    def entries(self, ledger_id: int) -> int | None:
        return dict(map(tuple, self.ledgers)).get(ledger_id)  # type: ignore[arg-type]

    def has(self, position: Position) -> bool:
        return 0 <= position.entry_id < (self.entries(position.ledger_id) or 0)

    def behind(self, position: Position) -> Position | None:
        """The first entry behind the position."""
        for ledger_id, entries in self.ledgers:
            if ledger_id > position.ledger_id and entries:
                return Position(ledger_id, 0)
            if ledger_id == position.ledger_id and position.entry_id + 1 < entries:
                return Position(ledger_id, max(0, position.entry_id + 1))
        return None

    def before(self, position: Position) -> Position | None:
        """The last entry before the position."""
        for ledger_id, entries in reversed(self.ledgers):
            if ledger_id < position.ledger_id and entries:
                return Position(ledger_id, entries - 1)
            if ledger_id == position.ledger_id and min(entries, position.entry_id) > 0:
                return Position(ledger_id, min(entries, position.entry_id) - 1)
        return None

    @property
    def last(self) -> Position:
        found = [Position(ledger_id, entries - 1) for ledger_id, entries in self.ledgers if entries]
        return found[-1] if found else Position(self.ledgers[-1][0], -1)

    def trim(self, before: Position) -> None:
        while len(self.ledgers) > 1 and Position(self.ledgers[0][0], self.ledgers[0][1]) <= before:
            del self.ledgers[0]

    def trim_consumed(self) -> None:
        """Ledgers that every cursor has written to be behind go, the last one apart."""
        if not self.cursors or set(self.records) - set(self.cursors):
            return
        needed = min(cursor.stored_mark_delete for cursor in self.cursors.values())
        self.trim(needed.next)

    # -- its cursors ---------------------------------------------------------------------------------------------------

    def open_cursor(
        self,
        name: str,
        settings: Settings,
        initial: str = "earliest",
        properties: dict[str, int] | None = None,
        cursor_properties: dict[str, str] | None = None,
    ) -> Cursor:
        if name in self.cursors:
            return self.cursors[name]
        if name not in self.records:
            first = self.behind(Position(-1, -1))
            start = (
                self.last if initial == "latest" else Position(first.ledger_id if first else self.last.ledger_id, -1)
            )
            stored = Stored(start, frozenset(), {}, dict(properties or {}))
            self.records[name] = Record(stored, start, dict(properties or {}), dict(cursor_properties or {}))
        self.cursors[name] = Cursor(self, self.records[name], settings)
        return self.cursors[name]

    def delete_cursor(self, name: str) -> None:
        del self.cursors[name], self.records[name]

    def crash(self) -> None:
        self.cursors.clear()
        self.is_open = False

    def close(self) -> None:
        for cursor in self.cursors.values():
            cursor.close()
        self.crash()


class Record:
    """What there is of a cursor while nobody has it open. ``fallback`` and ``fallback_properties`` are what is left
    where its ledger cannot be read."""

    def __init__(
        self,
        stored: Stored,
        fallback: Position,
        fallback_properties: dict[str, int],
        cursor_properties: dict[str, str],
    ) -> None:
        self.stored = stored
        self.fallback = fallback
        self.fallback_properties = fallback_properties
        self.cursor_properties = cursor_properties
        self.has_ledger = False

    def lose_ledger(self) -> None:
        self.stored = Stored(self.fallback, frozenset(), {}, dict(self.fallback_properties))


class Cursor:
    def __init__(self, topic: Topic, record: Record, settings: Settings) -> None:
        self.topic = topic
        self.record = record
        self.settings = settings
        self.writes_left = settings.writes
        self.room = 0  # entries that the cursor's ledger still takes
        self.dirty = False
        self.taken_over = False  # somebody else has written the record: noticed when it is to be written
        stored = record.stored
        self.mark_delete_position = self._within(stored.mark_delete)
        self.acked = {one for one in stored.acked if topic.has(one)}
        self.batches = {at: left for at, left in stored.batches.items() if topic.has(at)}
        self.properties = dict(stored.properties)
        self.stored_mark_delete = self.mark_delete_position
        self._close_holes()
        self.read_position = self._following(self.mark_delete_position)

    def _within(self, position: Position) -> Position:
        topic = self.topic
        if position > topic.last:
            return topic.last
        if topic.entries(position.ledger_id) is None and position.entry_id < 0:
            return topic.before(position) or position
        return position

    # -- changes -------------------------------------------------------------------------------------------------------

    def _following(self, position: Position) -> Position:
        return self.topic.behind(position) or position.next

    def _close_holes(self) -> None:
        following = self.topic.behind(self.mark_delete_position)
        while following is not None and following in self.acked:
            self.mark_delete_position = following
            following = self.topic.behind(following)
        self.acked = {one for one in self.acked if one > self.mark_delete_position}
        self.batches = {at: left for at, left in self.batches.items() if at > self.mark_delete_position}

    def _changed(self, dirty: bool = True) -> None:
        """What follows every change that was not refused."""
        if self.read_position <= self.mark_delete_position:
            self.read_position = self._following(self.mark_delete_position)
        self.dirty = self.dirty or dirty
        if self.writes_left is None or self.writes_left > 0:
            self.writes_left = None if self.writes_left is None else self.writes_left - 1
            self.flush()

    def _is_there(self, position: Position) -> bool:
        """Whether there is anything to note at the position; refused where there will be later."""
        if position <= self.mark_delete_position:
            return False
        if self.topic.has(position):
            return True
        if position > self.topic.last or (
            self.topic.entries(position.ledger_id) is not None and position.entry_id >= 0
        ):
            raise Refused("no such position")
        return False

    def ack(self, positions: Iterable[Position]) -> None:
        dirty = False
        try:
            for position in positions:
                if self._is_there(position):
                    dirty = True
                    self.acked.add(position)
                    self.batches.pop(position, None)
        finally:
            self.dirty = self.dirty or dirty
            self._close_holes()
            if self.read_position <= self.mark_delete_position:
                self.read_position = self._following(self.mark_delete_position)
        self._changed(dirty)

    def ack_batch(self, position: Position, indexes: Iterable[int], size: int) -> None:
        left = frozenset(range(size)) - frozenset(indexes)
        if left and not self.settings.batch_index_acks:
            return
        if not self._is_there(position):
            self._changed(False)
            return
        if position not in self.acked:
            self._note_part(position, left)
        self._close_holes()
        self._changed()

    def _note_part(self, position: Position, left: frozenset[int]) -> None:
        left &= self.batches.get(position, left)
        if left:
            self.batches[position] = left
        else:
            self.batches.pop(position, None)
            self.acked.add(position)

    def mark_delete(self, position: Position, properties: dict[str, int] | None = None) -> None:
        if position < self.mark_delete_position:
            raise Refused("marked already")
        entries = self.topic.entries(position.ledger_id)
        beyond = position.entry_id >= entries if entries is not None else position > self.topic.last
        if beyond and position > self.mark_delete_position:
            raise Refused("no such position")
        self._move(position, properties)

    def _move(self, position: Position, properties: dict[str, int] | None) -> None:
        self.mark_delete_position = max(self.mark_delete_position, position)
        self.properties = dict(properties or {})
        self._close_holes()
        self._changed()

    def mark_delete_batch(
        self, position: Position, indexes: Iterable[int], size: int, properties: dict[str, int] | None = None
    ) -> None:
        """Everything before the batch, and in it everything before the first message that is left."""
        left = frozenset(range(size)) - frozenset(indexes)
        if not left:
            return self.mark_delete(position, properties)
        before = self.topic.before(position)
        if position <= self.mark_delete_position:
            raise Refused("marked already")
        if not self.settings.batch_index_acks:
            return self._move(before or self.mark_delete_position, properties)
        if self._is_there(position) and position not in self.acked:
            self._note_part(position, frozenset(range(min(left), size)))
        return self._move(before or self.mark_delete_position, properties)

    def reset(self, position: Position) -> None:
        self.acked.clear()
        self.batches.clear()
        self.properties = {}
        following = self.topic.behind(position.previous)
        if following is None:
            self.mark_delete_position = self.topic.last
        else:
            self.mark_delete_position = self.topic.before(following) or following.previous
        self.read_position = self._following(self.mark_delete_position)
        self.dirty = True
        self.flush()

    def clear_backlog(self) -> None:
        self.mark_delete(max(self.topic.last, self.mark_delete_position))

    def skip(self, count: int, include_acked: bool) -> None:
        """Mark as deleted up to the entry that is so many further."""
        behind = [one for one in self.topic.positions() if one > self.mark_delete_position]
        counted = behind if include_acked else [one for one in behind if one not in self.acked]
        self.mark_delete([self.mark_delete_position, *counted][min(count, len(counted))])

    def put_property(self, name: str, value: int) -> None:
        self.properties[name] = value
        self.dirty = True

    def remove_property(self, name: str) -> None:
        self.dirty = self.dirty or name in self.properties
        self.properties.pop(name, None)

    @property
    def cursor_properties(self) -> dict[str, str]:
        return self.record.cursor_properties

    def set_cursor_properties(self, properties: dict[str, str]) -> None:
        _check_names(properties)
        kept = {name: value for name, value in self.cursor_properties.items() if name.startswith(INTERNAL_PREFIX)}
        self.record.cursor_properties = {**kept, **properties}

    def put_cursor_property(self, name: str, value: str) -> None:
        self.record.cursor_properties = {**self.cursor_properties, name: value}

    def remove_cursor_property(self, name: str) -> None:
        self.record.cursor_properties = {key: value for key, value in self.cursor_properties.items() if key != name}

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, count: int) -> list[Position]:
        """Up to so many entries that are not acknowledged; the read position moves behind them."""
        found = [one for one in self.topic.positions() if one >= self.read_position and not self.is_acked(one)]
        if len(found) > count or (found and len(found) == count):
            self.read_position = found[count - 1].next
        else:
            self.read_position = max(self.read_position, self.topic.last.next)
        return found[:count]

    def rewind(self) -> None:
        self.read_position = self._following(self.mark_delete_position)

    def seek(self, position: Position) -> None:
        self.read_position = max(position, self._following(self.mark_delete_position))

    def is_acked(self, position: Position) -> bool:
        return position <= self.mark_delete_position or position in self.acked

    def nth(self, count: int, include_acked: bool) -> Position | None:
        """The entry so many behind the mark-delete position, from 1 on; None if less than that are not acknowledged,
        also where acknowledged ones count."""
        behind = [one for one in self.topic.positions() if one > self.mark_delete_position]
        left = [one for one in behind if one not in self.acked]
        return (behind if include_acked else left)[count - 1] if 0 < count <= len(left) else None

    def replay(self, positions: Iterable[Position]) -> list[Position]:
        """Those of them that are not acknowledged, in their order."""
        return [one for one in sorted(positions) if self.topic.has(one) and not self.is_acked(one)]

    def next_available(self, position: Position) -> Position:
        """The entry behind; behind the whole run where this one is acknowledged."""
        while position in self.acked and position.next in self.acked:
            position = position.next
        return self._following(position)

    @property
    def backlog(self) -> int:
        positions = self.topic.positions()
        return len(positions) - bisect_right(positions, self.mark_delete_position) - len(self.acked)

    @property
    def entries_to_read(self) -> int:
        positions = self.topic.positions()
        acked = sum(1 for one in self.acked if one >= self.read_position)
        return len(positions) - bisect_left(positions, self.read_position) - acked

    @property
    def has_more(self) -> bool:
        return self.topic.behind(self.read_position.previous) is not None

    # -- writing -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.dirty:
            return
        if self.taken_over and not self.room:
            raise Refused("taken over")
        limits = self.settings.limits
        self._store(None if limits is None else limits.ranges, None if limits is None else limits.batches)
        if not self.room:
            # A new ledger: the record holds the position of that moment.
            self.record.fallback = self.mark_delete_position
            self.record.fallback_properties = dict(self.properties)
            self.room = self.settings.entries_per_cursor_ledger
        self.room -= 1
        self.record.has_ledger = True

    def _store(self, ranges: int | None, batches: int | None) -> None:
        kept = ranges_of(self.acked)[:ranges]
        self.record.stored = Stored(
            self.mark_delete_position,
            frozenset(one for run in kept for one in run),
            dict(sorted(self.batches.items())[:batches]),
            dict(self.properties),
        )
        self.stored_mark_delete = self.mark_delete_position
        self.dirty = False

    def close(self) -> None:
        """In the old form, few ranges go into the record, and all batches with them."""
        self.flush()
        limits = self.settings.limits
        if limits is not None and self.record.has_ledger and len(ranges_of(self.acked)) <= limits.ranges_in_record:
            self._store(None, None)
            self.record.fallback = self.mark_delete_position
            self.record.fallback_properties = dict(self.properties)
            self.record.has_ledger = False


def _check_names(names: Iterable[str]) -> None:
    if any(name.startswith(INTERNAL_PREFIX) for name in names):
        raise Refused("reserved name")
