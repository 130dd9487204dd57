"""Negatively acknowledged messages by the time at which they return. Plain state, no I/O.

Bucket of time -> ledger -> entries, and for messages of batches -> codes (``message_set.py``), in one time index for
each width of codes. :class:`NackTimes` has a message under every time that it was nacked for, as Pulsar's client does;
:class:`PendingNacks`, which subscriptions use, under the last one only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bookstand.delivery.message.message_id import MessageId, position_of
from bookstand.delivery.message.message_set import (
    Code,
    MessageSet,
    RedeliveryCounts,
    code_of,
    entries_and_indexes,
    message_of,
    width_of,
)
from bookstand.delivery.message.position_set import Column, Mask
from bookstand.delivery.nacks.record import Nacks, codes_in, nacks_of
from bookstand.delivery.time_index.index import TimeIndex
from bookstand.delivery.time_index.precision import Precision
from bookstand.delivery.tracker.scheduled import first_of_each
from bookstand.storage.format.position import Position

_MANY_MOVED = 4096
"""Messages nacked anew before they returned, up to which their earlier times stay in the indexes."""
_MOVED_SHARE = 64
"""Or one in so many of all nacked messages, so that removing earlier times costs each of them little."""
_PAGE = 1 << 17
"""Rows looked at together when earlier times are removed."""
_NEVER = -1 << 63


class MessageRows(NamedTuple):
    """Messages in columns; ``batch_indexes`` are -1 for whole entries."""

    keys: Column
    ledger_ids: Column
    entry_ids: Column
    batch_indexes: Column

    def pick(self, rows: Mask | Column | slice) -> MessageRows:
        return MessageRows(*(column[rows] for column in self))

    def without_repetitions(self) -> MessageRows:
        """The first row of each message, in their order."""
        if not len(self.keys) or int(self.batch_indexes.max()) < 0:
            return self.pick(first_of_each(self.ledger_ids, self.entry_ids))
        ids = np.column_stack(self[1:])
        return self.pick(np.sort(np.unique(ids, axis=0, return_index=True)[1]))

    def messages(self) -> list[MessageId]:
        if not len(self.keys):
            return []
        if int(self.batch_indexes.max()) < 0:
            return list(map(Position, self.ledger_ids.tolist(), self.entry_ids.tolist()))
        return list(map(message_of, self.ledger_ids.tolist(), self.entry_ids.tolist(), self.batch_indexes.tolist()))

    def by_width(self) -> Iterator[tuple[int, Column, Column, Column]]:
        """Width, and for the messages of that width their rows, ledger ids and codes."""
        if not len(self.keys):
            return
        if int(self.batch_indexes.max()) < 0:
            yield 0, np.arange(len(self.keys)), self.ledger_ids, self.entry_ids
            return
        indexes, inverse = np.unique(self.batch_indexes, return_inverse=True)
        widths = np.array(list(map(width_of, indexes.tolist())), dtype=np.int64)[inverse]
        for width in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == width)
            codes = self.entry_ids[rows]
            if width:
                codes = codes << width | self.batch_indexes[rows]
            yield width, rows, self.ledger_ids[rows], codes


class NackTimes:
    """Not thread-safe: callers hold a lock. Times are keys: rounded already, by :meth:`key`."""

    def __init__(self, precision: Precision) -> None:
        self.key = precision.key
        """The bucket that a timestamp goes to now."""
        self._indexes: dict[int, TimeIndex] = {}

    def _index(self, width: int) -> TimeIndex:
        index = self._indexes.get(width)
        if index is None:
            index = self._indexes[width] = TimeIndex(compact=True)
        return index

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, key: int, code: Code) -> bool:
        """Add a message; True if that replaces another nack of it."""
        self._index(code[0]).add(key, code[1], code[2])
        return False

    def add_many(self, key: int, width: int, ledger_ids: Column, codes: Column) -> bool:
        """Add many of one width; True if that replaces nacks of some."""
        self._index(width).add_many(key, ledger_ids, codes)
        return False

    def restore(self, nacks: Nacks) -> None:
        """Add what a record of the log says, under its time as it is."""
        index = self._index(nacks.width)
        for first, last in zip(nacks.firsts.tolist(), nacks.lasts.tolist(), strict=True):
            index.add_range(nacks.time, nacks.ledger_id, first, last)

    # -- out -----------------------------------------------------------------------------------------------------------

    def pop(self, until: int) -> MessageRows:
        """Remove and return the rows with keys up to ``until``, in the order of key, ledger, entry and batch index."""
        parts = []
        for width, index in self._indexes.items():
            keys, ledger_ids, codes = index.pop_due(until).columns()
            parts.append(MessageRows(keys, ledger_ids, *entries_and_indexes(width, codes)))
        if len(parts) == 1:
            return parts[0]
        if not parts:
            none = np.empty(0, dtype=np.int64)
            return MessageRows(none, none, none, none)
        rows = MessageRows(*map(np.concatenate, zip(*parts, strict=True)))
        return rows.pick(np.lexsort(tuple(reversed(rows))))

    def put_back(self, rows: MessageRows) -> None:
        """Add rows that were popped, and not redelivered."""
        for width, numbers, ledger_ids, codes in rows.by_width():
            self._index(width).add_many(rows.keys[numbers], ledger_ids, codes)

    def remove(self, rows: MessageRows) -> None:
        """Forget rows that were popped."""

    # -- questions -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(map(len, self._indexes.values()))

    def next_time(self) -> int | None:
        """A key that no other is below; None if there is none."""
        times = [index.next_time() for index in self._indexes.values()]
        return min([time for time in times if time is not None], default=None)

    def positions(self) -> list[Position]:
        """Entries of all messages, once for each message and key."""
        found: list[Position] = []
        for width, index in self._indexes.items():
            _, ledger_ids, codes = index.peek().columns()
            found += map(Position, ledger_ids.tolist(), (codes >> width).tolist())
        return found

    def buckets(self) -> dict[int, int]:
        """Number of messages under each key."""
        counts: dict[int, int] = {}
        for index in self._indexes.values():
            for segment in index.peek():
                counts[segment.key] = counts.get(segment.key, 0) + len(segment.entry_ids)
        return counts

    def groups(self) -> Iterator[Nacks]:
        """All of it for a log: whole entries first, since a nack of an entry replaces those of its messages."""
        for width in sorted(self._indexes):
            for segment in self._indexes[width].peek():
                yield nacks_of(segment.key, segment.ledger_id, segment.entry_ids.astype(np.int64), width)

    def clear(self) -> None:
        self._indexes.clear()

    @property
    def memory_bytes(self) -> int:
        return sum(index.memory_bytes for index in self._indexes.values())


class PendingNacks(NackTimes):
    """Messages under the time that they were nacked for last.

    A bit for each message says that it is nacked. The time index finds what is under a time, not the time of a message:
    so where one is nacked again before it returned, its earlier times stay in the index for a while, and the last one
    is remembered beside it. Such messages are few, or are made so.

    A nack of a whole entry replaces those of the messages of that batch; messages that are nacked one by one after it
    have their own times. Messages that were popped count as nacked until :meth:`remove`.
    """

    def __init__(self, precision: Precision, counts: RedeliveryCounts) -> None:
        super().__init__(precision)
        self._counts = counts
        self._waiting = MessageSet()
        # Last key of each message that may be in the indexes under others; _NEVER if it is not nacked any more.
        self._moved: dict[MessageId, int] = {}
        self._moved_codes = MessageSet()
        # Rows that were popped, and neither removed nor put back.
        self._in_hand = 0

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, key: int, code: Code) -> bool:
        width, ledger_id, number = code
        replaces = False
        if width:
            # The rest of the batch may still wait for the nack of its entry.
            replaces = self._waiting.has((0, ledger_id, number >> width))
        elif self._waiting.has_members:
            for member in self._waiting.members_of(Position(ledger_id, number)):
                replaces = True
                self._waiting.discard(code_of(member))
                self._move(member, code_of(member), _NEVER)
        is_new = self._waiting.add(code)
        if not is_new or (self._moved and self._moved_codes.has(code)):
            entries, indexes = entries_and_indexes(width, np.array([number], dtype=np.int64))
            self._move(message_of(ledger_id, int(entries[0]), int(indexes[0])), code, key)
        super().add(key, code)
        return replaces or not is_new

    def add_many(self, key: int, width: int, ledger_ids: Column, codes: Column) -> bool:
        concerns_others = self._waiting.has_entries if width else self._waiting.has_members
        if self._moved or concerns_others or self._waiting.has_many(width, ledger_ids, codes).any():
            rows = zip(ledger_ids.tolist(), codes.tolist(), strict=True)
            return max([self.add(key, (width, ledger_id, code)) for ledger_id, code in rows], default=False)
        self._waiting.add_many(width, ledger_ids, codes)
        return super().add_many(key, width, ledger_ids, codes)

    def restore(self, nacks: Nacks) -> None:
        codes = codes_in(nacks)
        ledger_ids = np.full(len(codes), nacks.ledger_id, dtype=np.int64)
        self.add_many(nacks.time, nacks.width, ledger_ids, codes)
        self._counts.restore(nacks.width, ledger_ids, codes, nacks.redeliveries)

    # -- out -----------------------------------------------------------------------------------------------------------

    def pop(self, until: int) -> MessageRows:
        rows = super().pop(until)
        self._in_hand += len(rows.keys)
        return rows

    def put_back(self, rows: MessageRows) -> None:
        super().put_back(rows)
        self._in_hand -= len(rows.keys)

    def valid(self, rows: MessageRows) -> MessageRows:
        """Filter popped rows for the last nack of each message."""
        return rows.pick(self._are_valid(rows))

    def remove(self, rows: MessageRows) -> None:
        """Forget messages that were popped, and their rows."""
        valid = rows.pick(self._are_valid(rows))
        for width, _, ledger_ids, codes in valid.by_width():
            self._waiting.discard_many(width, ledger_ids, codes)
        if self._moved:
            for message in valid.messages():
                if message in self._moved:
                    self._moved[message] = _NEVER
        self._in_hand -= len(rows.keys)
        if not self._waiting and not self._in_hand and self._moved:
            self._indexes.clear()
            self._forget_moved()

    def _are_valid(self, rows: MessageRows) -> Mask:
        valid = np.zeros(len(rows.keys), dtype=np.bool_)
        for width, numbers, ledger_ids, codes in rows.by_width():
            keys = rows.keys[numbers]
            valid[numbers] = self._are_last(width, keys, ledger_ids, codes)
        return valid

    def _are_last(self, width: int, keys: Column, ledger_ids: Column, codes: Column) -> Mask:
        last = self._waiting.has_many(width, ledger_ids, codes)
        if self._moved:
            for row in np.flatnonzero(self._moved_codes.has_many(width, ledger_ids, codes)).tolist():
                entries, indexes = entries_and_indexes(width, codes[row : row + 1])
                message = message_of(int(ledger_ids[row]), int(entries[0]), int(indexes[0]))
                last[row] &= self._moved[message] == keys[row]
        return last

    # -- earlier times of messages -------------------------------------------------------------------------------------

    def _move(self, message: MessageId, code: Code, key: int) -> None:
        self._moved[message] = key
        self._moved_codes.add(code)
        if len(self._moved) > max(_MANY_MOVED, len(self._waiting) // _MOVED_SHARE) and not self._in_hand:
            # The row of this message is not there yet, and has no other key than this one.
            self._remove_earlier()

    def _remove_earlier(self) -> None:
        """Remove from the indexes all rows but the last one of each message."""
        for width, index in self._indexes.items():
            first, limit = None, _PAGE
            while True:
                keys, ledger_ids, codes = index.peek(first, None, limit).columns()
                earlier = ~self._are_last(width, keys, ledger_ids, codes)
                for row in zip(
                    keys[earlier].tolist(), ledger_ids[earlier].tolist(), codes[earlier].tolist(), strict=True
                ):
                    index.discard(*row)
                if len(keys) < limit:
                    break
                # A bucket may be larger than a page.
                limit = 2 * limit if first == keys[-1] else limit
                first = int(keys[-1])
        self._forget_moved()

    def _forget_moved(self) -> None:
        self._moved.clear()
        self._moved_codes.clear()

    # -- questions -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, message: MessageId) -> bool:
        """Return True if the message is nacked, alone or with the whole of its entry."""
        waiting = self._waiting
        if not waiting:
            return False
        return message in waiting or (len(message) > 2 and position_of(message) in waiting)

    def has_any_of(self, position: Position) -> bool:
        """Return True if the entry is nacked, or one of its messages."""
        waiting = self._waiting
        return bool(waiting) and (position in waiting or bool(waiting.members_of(position)))

    def last_entries(self) -> list[Position]:
        """The last entry of each width that has nacked messages."""
        found = []
        for width, index in self._indexes.items():
            _, ledger_ids, codes = index.peek().columns()
            if len(codes):
                last = int(ledger_ids.max())
                found.append(Position(last, int(codes[ledger_ids == last].max()) >> width))
        return found

    def groups(self) -> Iterator[Nacks]:
        for width in sorted(self._indexes):
            keys, ledger_ids, codes = self._indexes[width].peek().columns()
            if self._moved:
                last = self._are_last(width, keys, ledger_ids, codes)
                keys, ledger_ids, codes = keys[last], ledger_ids[last], codes[last]
            counts = self._counts.of_columns(width, ledger_ids, codes)
            order = np.lexsort((codes, counts, ledger_ids, keys)) if counts.any() else np.arange(len(codes))
            yield from _grouped(width, keys[order], ledger_ids[order], counts[order], codes[order])

    def clear(self) -> None:
        super().clear()
        self._waiting.clear()
        self._forget_moved()

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self._waiting.memory_bytes


def _grouped(width: int, keys: Column, ledger_ids: Column, counts: Column, codes: Column) -> Iterable[Nacks]:
    """Of sorted columns one record for each key, ledger and count."""
    if not len(keys):
        return
    changes = (np.diff(keys) != 0) | (np.diff(ledger_ids) != 0) | (np.diff(counts) != 0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(starts[1:], len(keys))
    heads = zip(keys[starts].tolist(), ledger_ids[starts].tolist(), counts[starts].tolist(), strict=True)
    for (key, ledger_id, count), start, end in zip(heads, starts.tolist(), ends.tolist(), strict=True):
        yield nacks_of(key, ledger_id, codes[start:end], width, count)
