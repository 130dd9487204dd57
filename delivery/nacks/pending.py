"""Negatively acknowledged messages by redelivery time. No I/O.

Each width of codes (``message_set.py``) has a time index from bucket to ledger to entry ids or codes.
:class:`NackTimes` contains a message under each time for which it was nacked, like Pulsar's client.
:class:`PendingNacks`, which subscriptions use, contains it only under the last one.
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

_MOVED_MIN = 4096
"""Outdated times are removed from the indexes when more than this number of messages have one."""
_MOVED_SHARE = 64
"""Or, in a large set, more than this fraction (1/n) of the messages, so that the removal costs little for each."""
_SCAN_PAGE = 1 << 17
"""Number of rows that are scanned together for outdated times."""
_NEVER = -1 << 63


class MessageRows(NamedTuple):
    """Messages in columns; ``batch_indexes`` are -1 for entries."""

    keys: Column
    ledger_ids: Column
    entry_ids: Column
    batch_indexes: Column

    def pick(self, rows: Mask | Column | slice) -> MessageRows:
        return MessageRows(*(column[rows] for column in self))

    def without_repetitions(self) -> MessageRows:
        """The first row of each message."""
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
        """Group rows by width: the width, row numbers, ledger ids and codes."""
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
    """Not thread-safe. Times are keys, already rounded by :meth:`key`."""

    def __init__(self, precision: Precision) -> None:
        self.key = precision.key
        """Bucket of a timestamp."""
        self._indexes: dict[int, TimeIndex] = {}

    def _index(self, width: int) -> TimeIndex:
        index = self._indexes.get(width)
        if index is None:
            index = self._indexes[width] = TimeIndex(compact=True)
        return index

    def add(self, key: int, code: Code) -> bool:
        """Add a message; return True if this replaces another nack."""
        self._index(code[0]).add(key, code[1], code[2])
        return False

    def add_many(self, key: int, width: int, ledger_ids: Column, codes: Column) -> bool:
        """Add many messages of one width; return True if this replaces other nacks."""
        self._index(width).add_many(key, ledger_ids, codes)
        return False

    def restore(self, nacks: Nacks) -> None:
        """Add a record of the log under its recorded time."""
        index = self._index(nacks.width)
        for first, last in zip(nacks.firsts.tolist(), nacks.lasts.tolist(), strict=True):
            index.add_range(nacks.time, nacks.ledger_id, first, last)

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
        """Return rows that were popped but not redelivered."""
        for width, numbers, ledger_ids, codes in rows.by_width():
            self._index(width).add_many(rows.keys[numbers], ledger_ids, codes)

    def remove(self, rows: MessageRows) -> None:
        """Confirm the redelivery of popped rows."""

    def __len__(self) -> int:
        return sum(map(len, self._indexes.values()))

    def next_time(self) -> int | None:
        """Lower bound of all keys; None if there are no messages."""
        times = [index.next_time() for index in self._indexes.values()]
        return min([time for time in times if time is not None], default=None)

    def positions(self) -> list[Position]:
        """Positions of all messages, once for each message and key."""
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
        """Contents as records: entries first, because a nack of an entry replaces the nacks of its messages."""
        for width in sorted(self._indexes):
            for segment in self._indexes[width].peek():
                yield nacks_of(segment.key, segment.ledger_id, segment.entry_ids.astype(np.int64), width)

    def clear(self) -> None:
        self._indexes.clear()

    @property
    def memory_bytes(self) -> int:
        return sum(index.memory_bytes for index in self._indexes.values())


class PendingNacks(NackTimes):
    """Messages under their last nack time only.

    A bitmap records which messages are nacked. The time index cannot look up the time of a message. If a message is
    nacked again before its redelivery, outdated rows therefore stay in the index for a while, and its current key is
    stored separately.

    A nack of an entry replaces the nacks of the messages in that batch. Messages that are nacked individually
    afterwards have their own times. Popped messages count as nacked until :meth:`remove`.
    """

    def __init__(self, precision: Precision, counts: RedeliveryCounts) -> None:
        super().__init__(precision)
        self._counts = counts
        self._nacked = MessageSet()
        # Current key of each message that may also be in the indexes under outdated ones; _NEVER if it is not nacked.
        self._moved: dict[MessageId, int] = {}
        self._moved_codes = MessageSet()
        # Number of rows that were popped, and neither removed nor put back.
        self._unresolved_rows = 0

    def add(self, key: int, code: Code) -> bool:
        width, ledger_id, number = code
        replaces = False
        if width:
            # Other messages of the batch may still depend on the nack of the entry.
            replaces = self._nacked.has((0, ledger_id, number >> width))
        elif self._nacked.has_members:
            for member in self._nacked.members_of(Position(ledger_id, number)):
                replaces = True
                self._nacked.discard(code_of(member))
                self._move(member, code_of(member), _NEVER)
        is_new = self._nacked.add(code)
        if not is_new or (self._moved and self._moved_codes.has(code)):
            entries, indexes = entries_and_indexes(width, np.array([number], dtype=np.int64))
            self._move(message_of(ledger_id, int(entries[0]), int(indexes[0])), code, key)
        super().add(key, code)
        return replaces or not is_new

    def add_many(self, key: int, width: int, ledger_ids: Column, codes: Column) -> bool:
        affects_others = self._nacked.has_entries if width else self._nacked.has_members
        if self._moved or affects_others or self._nacked.has_many(width, ledger_ids, codes).any():
            rows = zip(ledger_ids.tolist(), codes.tolist(), strict=True)
            return max([self.add(key, (width, ledger_id, code)) for ledger_id, code in rows], default=False)
        self._nacked.add_many(width, ledger_ids, codes)
        return super().add_many(key, width, ledger_ids, codes)

    def restore(self, nacks: Nacks) -> None:
        codes = codes_in(nacks)
        ledger_ids = np.full(len(codes), nacks.ledger_id, dtype=np.int64)
        self.add_many(nacks.time, nacks.width, ledger_ids, codes)
        self._counts.restore(nacks.width, ledger_ids, codes, nacks.redeliveries)

    def pop(self, until: int) -> MessageRows:
        rows = super().pop(until)
        self._unresolved_rows += len(rows.keys)
        return rows

    def put_back(self, rows: MessageRows) -> None:
        super().put_back(rows)
        self._unresolved_rows -= len(rows.keys)

    def valid(self, rows: MessageRows) -> MessageRows:
        """Drop outdated popped rows."""
        return rows.pick(self._are_valid(rows))

    def remove(self, rows: MessageRows) -> None:
        valid = rows.pick(self._are_valid(rows))
        for width, _, ledger_ids, codes in valid.by_width():
            self._nacked.discard_many(width, ledger_ids, codes)
        if self._moved:
            for message in valid.messages():
                if message in self._moved:
                    self._moved[message] = _NEVER
        self._unresolved_rows -= len(rows.keys)
        if not self._nacked and not self._unresolved_rows and self._moved:
            self._indexes.clear()
            self._forget_moved()

    def _are_valid(self, rows: MessageRows) -> Mask:
        valid = np.zeros(len(rows.keys), dtype=np.bool_)
        for width, numbers, ledger_ids, codes in rows.by_width():
            keys = rows.keys[numbers]
            valid[numbers] = self._are_last(width, keys, ledger_ids, codes)
        return valid

    def _are_last(self, width: int, keys: Column, ledger_ids: Column, codes: Column) -> Mask:
        last = self._nacked.has_many(width, ledger_ids, codes)
        if self._moved:
            for row in np.flatnonzero(self._moved_codes.has_many(width, ledger_ids, codes)).tolist():
                entries, indexes = entries_and_indexes(width, codes[row : row + 1])
                message = message_of(int(ledger_ids[row]), int(entries[0]), int(indexes[0]))
                last[row] &= self._moved[message] == keys[row]
        return last

    def _move(self, message: MessageId, code: Code, key: int) -> None:
        self._moved[message] = key
        self._moved_codes.add(code)
        if len(self._moved) > max(_MOVED_MIN, len(self._nacked) // _MOVED_SHARE) and not self._unresolved_rows:
            # The new row of this message is added after this, so no current row is lost.
            self._remove_earlier()

    def _remove_earlier(self) -> None:
        """Remove all rows but the current one of each message from the indexes."""
        for width, index in self._indexes.items():
            first, limit = None, _SCAN_PAGE
            while True:
                keys, ledger_ids, codes = index.peek(first, None, limit).columns()
                earlier = ~self._are_last(width, keys, ledger_ids, codes)
                for row in zip(
                    keys[earlier].tolist(), ledger_ids[earlier].tolist(), codes[earlier].tolist(), strict=True
                ):
                    index.discard(*row)
                if len(keys) < limit:
                    break
                # A bucket larger than a page needs a larger page.
                limit = 2 * limit if first == keys[-1] else limit
                first = int(keys[-1])
        self._forget_moved()

    def _forget_moved(self) -> None:
        self._moved.clear()
        self._moved_codes.clear()

    def __len__(self) -> int:
        return len(self._nacked)

    def __contains__(self, message: MessageId) -> bool:
        """Return True if the message or its entry is nacked."""
        nacked = self._nacked
        if not nacked:
            return False
        return message in nacked or (len(message) > 2 and position_of(message) in nacked)

    def has_any_of(self, position: Position) -> bool:
        """Return True if the entry or one of its messages is nacked."""
        nacked = self._nacked
        return bool(nacked) and (position in nacked or bool(nacked.members_of(position)))

    def last_entries(self) -> list[Position]:
        """The last nacked entry of each width."""
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
        self._nacked.clear()
        self._forget_moved()

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + self._nacked.memory_bytes


def _grouped(width: int, keys: Column, ledger_ids: Column, counts: Column, codes: Column) -> Iterable[Nacks]:
    """Convert sorted columns to one record per key, ledger and count."""
    if not len(keys):
        return
    changes = (np.diff(keys) != 0) | (np.diff(ledger_ids) != 0) | (np.diff(counts) != 0)
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    ends = np.append(starts[1:], len(keys))
    heads = zip(keys[starts].tolist(), ledger_ids[starts].tolist(), counts[starts].tolist(), strict=True)
    for (key, ledger_id, count), start, end in zip(heads, starts.tolist(), ends.tolist(), strict=True):
        yield nacks_of(key, ledger_id, codes[start:end], width, count)
