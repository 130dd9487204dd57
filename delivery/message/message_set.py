"""Sets of messages as bitmaps, and redelivery counts made of such sets. Plain state, no I/O.

A whole entry is its entry id. A message of a batch is a *code*: its entry id, and below it the batch index in as many
bits as one of ``WIDTHS`` has, the least that the index fits. So codes of one width are ids of a ledger like any
others, the messages of a batch are neighbors, and every message has one code.
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
"""Width (0: a whole entry), ledger id, and the id or code in that ledger."""

# Additions to a set of one width between two searches for runs.
_ADDITIONS = 1 << 16


def width_of(batch_index: int) -> int:
    """The number of bits of a batch index; 0 for -1, a whole entry."""
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
    """Width, ledger ids and codes of many messages."""
    found = sorted(set(map(code_of, messages)))
    columns = []
    for width, codes in groupby(found, itemgetter(0)):
        _, ledger_ids, ids = np.array(list(codes), dtype=np.int64).T
        columns.append((width, ledger_ids, ids))
    return columns


def entries_and_indexes(width: int, codes: Column) -> tuple[Column, Column]:
    """Entry ids and batch indexes of codes; -1 for whole entries."""
    if not width:
        return codes, np.full(len(codes), -1, dtype=np.int64)
    return codes >> width, codes & ((1 << width) - 1)


def message_of(ledger_id: int, entry_id: int, batch_index: int) -> MessageId:
    """``batch_index`` is -1 for a whole entry."""
    return Position(ledger_id, entry_id) if batch_index < 0 else BatchMessageId(ledger_id, entry_id, batch_index)


class MessageSet:
    """Not thread-safe: callers hold a lock."""

    __slots__ = ("_additions", "_by_width")

    def __init__(self) -> None:
        # Only non-empty ones.
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
        """Mask of the entries that are in the set as a whole."""
        return 0 in self._by_width

    @property
    def has_members(self) -> bool:
        """Mask of the messages of batches that are in the set."""
        return len(self._by_width) > (0 in self._by_width)

    # -- one -----------------------------------------------------------------------------------------------------------

    def has(self, code: Code) -> bool:
        presence = self._by_width.get(code[0])
        return presence is not None and presence.contains(code[1], code[2])

    def add(self, code: Code) -> bool:
        """Add a message; False if the set has it already."""
        self._count_additions(1)
        return self._of_width(code[0]).add(code[1], code[2])

    def discard(self, code: Code) -> bool:
        """Remove a message; False if the set does not have it."""
        presence = self._by_width.get(code[0])
        if presence is None or not presence.discard(code[1], code[2]):
            return False
        if not presence:
            del self._by_width[code[0]]
        return True

    # -- many of one width ---------------------------------------------------------------------------------------------

    def has_many(self, width: int, ledger_ids: Column, codes: Column) -> Mask:
        presence = self._by_width.get(width)
        if presence is None:
            return np.zeros(len(codes), dtype=np.bool_)
        return presence.contains_many(ledger_ids, codes)

    def add_many(self, width: int, ledger_ids: Column, codes: Column) -> None:
        if len(codes):
            self._count_additions(len(codes))
            self._of_width(width).add_many(ledger_ids, codes)

    def discard_many(self, width: int, ledger_ids: Column, codes: Column) -> None:
        presence = self._by_width.get(width)
        if presence is not None:
            presence.discard_many(ledger_ids, codes)
            if not presence:
                del self._by_width[width]

    # -- entries and ledgers -------------------------------------------------------------------------------------------

    def members_of(self, position: Position) -> list[BatchMessageId]:
        """Messages of a batch that are in the set one by one."""
        ledger_id, entry_id = position
        found: list[BatchMessageId] = []
        for width, presence in self._by_width.items():
            if width:
                first = entry_id << width
                codes = presence.within(ledger_id, first, first + (1 << width) - 1)
                found += members_of(position, [code - first for code in codes])
        return found

    def discard_before(self, ledger_id: int) -> None:
        """Remove the messages of all ledgers below one."""
        for width, presence in list(self._by_width.items()):
            presence.discard_ledgers(0, ledger_id - 1)
            if not presence:
                del self._by_width[width]

    def clear(self) -> None:
        self._by_width.clear()

    @property
    def memory_bytes(self) -> int:
        return sum(presence.memory_bytes for presence in self._by_width.values())

    def _of_width(self, width: int) -> PositionSet:
        presence = self._by_width.get(width)
        if presence is None:
            presence = self._by_width[width] = PositionSet()
        return presence

    def _count_additions(self, count: int) -> None:
        # Messages mostly come in the order of the topic: as runs they take a fraction of their bits.
        self._additions += count
        if self._additions >= _ADDITIONS:
            self._additions = 0
            for presence in self._by_width.values():
                presence.optimize()


class RedeliveryCounts:
    """Redelivery count of each message: a set of messages for each digit of the count in Gray code.

    One more redelivery changes one digit, and most messages that failed together are in the same sets, as runs.
    An entry that was redelivered whole counts for each of its messages. Acknowledged messages stay until their ledger
    is passed: they are not asked for again, so acknowledging does not have to look here. Not thread-safe: callers hold
    a lock.
    """

    def __init__(self) -> None:
        self._digits: list[MessageSet] = []
        # Entries above it have no count.
        self._highest: tuple[int, ...] = EARLIEST

    def __bool__(self) -> bool:
        return bool(self._digits)

    def of(self, message: MessageId) -> int:
        if not self._digits:
            return 0
        count = self._own(code_of(message))
        return count + self._own((0, message[0], message[1])) if len(message) > 2 else count

    def of_each(self, messages: Sequence[MessageId]) -> list[int]:
        if not self._digits or not messages or min(messages)[:2] > self._highest:
            return [0] * len(messages)
        return list(map(self.of, messages))

    def of_columns(self, width: int, ledger_ids: Column, codes: Column) -> Column:
        """Counts of many messages of one width."""
        counts = self._own_columns(width, ledger_ids, codes)
        if width:
            counts += self._own_columns(0, ledger_ids, codes >> width)
        return counts

    def increment(self, message: MessageId) -> None:
        code = code_of(message)
        self._highest = max(self._highest, message[:2])
        count = self._own(code) + 1
        # The lowest digit that is set in binary is the one that changes.
        number = (count & -count).bit_length() - 1
        if number == len(self._digits):
            self._digits.append(MessageSet())
        digit = self._digits[number]
        if not digit.add(code):
            digit.discard(code)

    def restore(self, width: int, ledger_ids: Column, codes: Column, count: int) -> None:
        """Set the count of many messages of one width; that of a message of a batch includes its entry's."""
        if not len(codes) or not (count or self._digits):
            return
        own = np.full(len(codes), count, dtype=np.int64)
        if width:
            own = np.maximum(own - self._own_columns(0, ledger_ids, codes >> width), 0)
        while len(self._digits) < int(own.max()).bit_length():
            self._digits.append(MessageSet())
        for number, digit in enumerate(self._digits):
            chosen = (own ^ own >> 1) >> number & 1 == 1
            digit.add_many(width, ledger_ids[chosen], codes[chosen])
            digit.discard_many(width, ledger_ids[~chosen], codes[~chosen])
        last = int(ledger_ids.max())
        self._highest = max(self._highest, (last, int((codes[ledger_ids == last] >> width).max())))

    def discard_before(self, ledger_id: int) -> None:
        """Forget the messages of all ledgers below one."""
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

    def _own(self, code: Code) -> int:
        count = parity = 0
        for number in range(len(self._digits) - 1, -1, -1):
            parity ^= self._digits[number].has(code)
            count |= parity << number
        return count

    def _own_columns(self, width: int, ledger_ids: Column, codes: Column) -> Column:
        counts = np.zeros(len(codes), dtype=np.int64)
        parity = np.zeros(len(codes), dtype=np.bool_)
        for number in range(len(self._digits) - 1, -1, -1):
            parity ^= self._digits[number].has_many(width, ledger_ids, codes)
            counts |= parity.astype(np.int64) << number
        return counts
