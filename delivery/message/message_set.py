"""Sets of messages as bitmaps, and redelivery counts based on them. No I/O.

An entry is represented by its entry id. A message of a batch is represented by a *code*: the entry id, shifted left by
the smallest of ``WIDTHS`` that fits the batch index, plus the batch index. Codes of one width can be stored like entry
ids; the messages of a batch are adjacent, and each message has exactly one code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from bookstand.delivery.message.message_id import BatchMessageId, MessageId, members_of
from bookstand.delivery.message.position_set import Column, Mask, PositionSet
from bookstand.delivery.tracker.protocol import LARGEST
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import EARLIEST, Position

WIDTHS = (4, 10, 25)
"""Bits of a batch index. An entry has at most 128 MiB, and a message of a batch at least 6 bytes."""

Code = tuple[int, int, int]
"""Width (0 for an entry), ledger id, and the entry id or code in that ledger."""

# Number of additions between two run-length optimizations.
_OPTIMIZE_INTERVAL = 1 << 16


def width_of(batch_index: int) -> int:
    """Number of bits for a batch index; 0 for -1, an entry."""
    if batch_index < 0:
        return 0
    for width in WIDTHS:
        if not batch_index >> width:
            return width
    raise IncorrectParameterError(f"batch index must be below {1 << WIDTHS[-1]}, not {batch_index}")


def code_of(message: MessageId) -> Code:
    if len(message) == 2:
        return 0, message[0], message[1]
    ledger_id, entry_id, batch_index = message
    width = width_of(batch_index)
    code = entry_id << width | batch_index
    if code > LARGEST:
        raise IncorrectParameterError(
            f"entry id of a batch must be below {1 << 63 - width} for batch index {batch_index}, not {entry_id}"
        )
    return width, ledger_id, code


def codes_by_width(messages: Iterable[MessageId]) -> list[tuple[int, Column, Column]]:
    """Group messages by width, as ledger ids and codes."""
    found = sorted(set(map(code_of, messages)))
    columns = []
    for width, codes in groupby(found, itemgetter(0)):
        _, ledger_ids, ids = np.array(list(codes), dtype=np.int64).T
        columns.append((width, ledger_ids, ids))
    return columns


def entries_and_indexes(width: int, codes: Column) -> tuple[Column, Column]:
    """Decode codes to entry ids and batch indexes, which are -1 for entries."""
    if not width:
        return codes, np.full(len(codes), -1, dtype=np.int64)
    return codes >> width, codes & ((1 << width) - 1)


def message_of(ledger_id: int, entry_id: int, batch_index: int) -> MessageId:
    """``batch_index`` is -1 for an entry."""
    return Position(ledger_id, entry_id) if batch_index < 0 else BatchMessageId(ledger_id, entry_id, batch_index)


class MessageSet:
    """Set of entries and of messages of batches. Not thread-safe."""

    __slots__ = ("_additions", "_by_width")

    def __init__(self) -> None:
        # Contains no empty sets.
        self._by_width: dict[int, PositionSet] = {}
        self._additions = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_width.values()))

    def __bool__(self) -> bool:
        return bool(self._by_width)

    def __contains__(self, message: MessageId) -> bool:
        return bool(self._by_width) and self.has(code_of(message))

    @property
    def has_entries(self) -> bool:
        """True if the set contains entries."""
        return 0 in self._by_width

    @property
    def has_members(self) -> bool:
        """True if the set contains messages of batches."""
        return len(self._by_width) > (0 in self._by_width)

    def has(self, code: Code) -> bool:
        positions = self._by_width.get(code[0])
        return positions is not None and positions.contains(code[1], code[2])

    def add(self, code: Code) -> bool:
        """Add a message; return False if it is in the set already."""
        self._count_additions(1)
        return self._of_width(code[0]).add(code[1], code[2])

    def discard(self, code: Code) -> bool:
        """Remove a message; return False if it is not in the set."""
        positions = self._by_width.get(code[0])
        if positions is None or not positions.discard(code[1], code[2]):
            return False
        if not positions:
            del self._by_width[code[0]]
        return True

    def has_many(self, width: int, ledger_ids: Column, codes: Column) -> Mask:
        positions = self._by_width.get(width)
        if positions is None:
            return np.zeros(len(codes), dtype=np.bool_)
        return positions.contains_many(ledger_ids, codes)

    def add_many(self, width: int, ledger_ids: Column, codes: Column) -> None:
        if len(codes):
            self._count_additions(len(codes))
            self._of_width(width).add_many(ledger_ids, codes)

    def discard_many(self, width: int, ledger_ids: Column, codes: Column) -> None:
        positions = self._by_width.get(width)
        if positions is not None:
            positions.discard_many(ledger_ids, codes)
            if not positions:
                del self._by_width[width]

    def members_of(self, position: Position) -> list[BatchMessageId]:
        """Messages of one batch in the set. The entry itself is not expanded."""
        ledger_id, entry_id = position
        found: list[BatchMessageId] = []
        for width, positions in self._by_width.items():
            if width:
                first = entry_id << width
                codes = positions.within(ledger_id, first, first + (1 << width) - 1)
                found += members_of(position, [code - first for code in codes])
        return found

    def discard_before(self, ledger_id: int) -> None:
        """Remove all messages of ledgers before this one."""
        for width, positions in list(self._by_width.items()):
            positions.discard_ledgers(0, ledger_id - 1)
            if not positions:
                del self._by_width[width]

    def clear(self) -> None:
        self._by_width.clear()

    @property
    def memory_bytes(self) -> int:
        return sum(positions.memory_bytes for positions in self._by_width.values())

    def _of_width(self, width: int) -> PositionSet:
        positions = self._by_width.get(width)
        if positions is None:
            positions = self._by_width[width] = PositionSet()
        return positions

    def _count_additions(self, count: int) -> None:
        # Messages usually arrive in topic order, so runs take much less memory than single bits.
        self._additions += count
        if self._additions >= _OPTIMIZE_INTERVAL:
            self._additions = 0
            for positions in self._by_width.values():
                positions.optimize()


class RedeliveryCounts:
    """Redelivery count of each message: a message set for each bit of the count in Gray code. Not thread-safe.

    An increment changes one bit, and messages that fail together are usually in the same sets, as runs. The redelivery
    of an entry counts for each of its messages. Counts of acknowledged messages are removed ledger by ledger, so that
    acknowledgments do not access this structure.
    """

    def __init__(self) -> None:
        self._digits: list[MessageSet] = []
        # Highest entry with a count.
        self._highest: tuple[int, ...] = EARLIEST

    def __bool__(self) -> bool:
        return bool(self._digits)

    def of(self, message: MessageId) -> int:
        if not self._digits:
            return 0
        count = self._own_count(code_of(message))
        return count + self._own_count((0, message[0], message[1])) if len(message) > 2 else count

    def of_each(self, messages: Sequence[MessageId]) -> list[int]:
        if not self._digits or not messages or min(messages)[:2] > self._highest:
            return [0] * len(messages)
        return list(map(self.of, messages))

    def of_columns(self, width: int, ledger_ids: Column, codes: Column) -> Column:
        """Counts of many messages of one width."""
        counts = self._own_counts(width, ledger_ids, codes)
        if width:
            counts += self._own_counts(0, ledger_ids, codes >> width)
        return counts

    def increment(self, message: MessageId) -> None:
        code = code_of(message)
        self._highest = max(self._highest, message[:2])
        count = self._own_count(code) + 1
        # Gray code: an increment flips the bit at the lowest set bit of the new count.
        number = (count & -count).bit_length() - 1
        if number == len(self._digits):
            self._digits.append(MessageSet())
        digit = self._digits[number]
        if not digit.add(code):
            digit.discard(code)

    def restore(self, width: int, ledger_ids: Column, codes: Column, count: int) -> None:
        """Set the count of many messages of one width. The count of a message of a batch includes its entry's."""
        if not len(codes) or not (count or self._digits):
            return
        own = np.full(len(codes), count, dtype=np.int64)
        if width:
            own = np.maximum(own - self._own_counts(0, ledger_ids, codes >> width), 0)
        while len(self._digits) < int(own.max()).bit_length():
            self._digits.append(MessageSet())
        for number, digit in enumerate(self._digits):
            chosen = (own ^ own >> 1) >> number & 1 == 1
            digit.add_many(width, ledger_ids[chosen], codes[chosen])
            digit.discard_many(width, ledger_ids[~chosen], codes[~chosen])
        last = int(ledger_ids.max())
        self._highest = max(self._highest, (last, int((codes[ledger_ids == last] >> width).max())))

    def discard_before(self, ledger_id: int) -> None:
        """Remove the counts of all ledgers before this one."""
        for digit in self._digits:
            digit.discard_before(ledger_id)
        while self._digits and not self._digits[-1]:
            self._digits.pop()

    def clear(self) -> None:
        self._digits.clear()
        self._highest = EARLIEST

    @property
    def memory_bytes(self) -> int:
        return sum(digit.memory_bytes for digit in self._digits)

    def _own_count(self, code: Code) -> int:
        count = parity = 0
        for number in range(len(self._digits) - 1, -1, -1):
            parity ^= self._digits[number].has(code)
            count |= parity << number
        return count

    def _own_counts(self, width: int, ledger_ids: Column, codes: Column) -> Column:
        counts = np.zeros(len(codes), dtype=np.int64)
        parity = np.zeros(len(codes), dtype=np.bool_)
        for number in range(len(self._digits) - 1, -1, -1):
            parity ^= self._digits[number].has_many(width, ledger_ids, codes)
            counts |= parity.astype(np.int64) << number
        return counts
