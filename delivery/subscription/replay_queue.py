"""Replay queue: redeliveries, and messages that a pause of dispatch holds back. No I/O.

Entries are stored in one bitmap per ledger, because millions of them can become due during a pause. Messages of batches
are stored in a set per batch and a heap. Discarded ones stay in the heap until it is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from bookstand.delivery.message.message_id import BatchMessageId, MessageId, position_of
from bookstand.storage.format.position import Position

if TYPE_CHECKING:
    from bookstand.cursor.dispatch_pause import Admission

# Up to this many discarded messages of batches stay in the heap.
_STALE_ALLOWANCE = 1_000


class ReplayQueue:
    """Set of messages, ordered by position. Not thread-safe; callers hold the subscription's lock."""

    def __init__(self) -> None:
        self._entries: dict[int, BitMap64] = {}
        self._members: dict[Position, set[BatchMessageId]] = {}
        self._heap: list[BatchMessageId] = []
        # Upper bound of the number of discarded messages in the heap.
        self._discarded = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, message: MessageId) -> bool:
        if len(message) > 2:
            return message in self._members.get(position_of(message), ())
        entries = self._entries.get(message[0])
        return entries is not None and message[1] in entries

    def has_any(self, messages: Iterable[MessageId]) -> bool:
        return bool(self._count) and any(message in self for message in messages)

    def add(self, messages: Iterable[MessageId]) -> None:
        for message in messages:
            if message in self:
                continue
            self._count += 1
            if len(message) > 2:
                self._members.setdefault(position_of(message), set()).add(message)
                heappush(self._heap, message)
            else:
                self._entries.setdefault(message[0], BitMap64()).add(message[1])

    def discard(self, messages: Iterable[MessageId]) -> None:
        """Remove messages that are in the queue; an entry is removed with all its messages."""
        if not self._count:
            return
        found: set[MessageId] = set()
        for message in messages:
            if message in self:
                found.add(message)
            if len(message) == 2:
                found.update(self._members.get(position_of(message), ()))
        self._remove(list(found))
        self._discarded += sum(len(message) > 2 for message in found)
        if self._discarded > len(self._heap) // 2 + _STALE_ALLOWANCE:
            self._discarded = 0
            self._heap = [member for members in self._members.values() for member in members]
            heapify(self._heap)

    def take(self, limit: int, admission: Admission | None = None, upto: Position | None = None) -> list[MessageId]:
        """Remove and return up to ``limit`` of the lowest messages that ``admission`` admits, up to ``upto``."""
        bounds = [] if upto is None else [upto]
        if admission is not None:
            bounds.append(admission.last)
        last = min(bounds, default=None)
        taken: list[MessageId] = []
        refused: list[BatchMessageId] = []
        entries = self._positions()
        position = next(entries, None)
        while len(taken) < limit:
            # A message that was discarded and added again can be in the heap twice.
            while self._heap and (self._heap[0] not in self or (taken and self._heap[0] == taken[-1])):
                heappop(self._heap)
            member = self._heap[0] if self._heap else None
            if position is None and member is None:
                break
            message: MessageId = position if member is None or (position and position < member) else member  # type: ignore[assignment]
            if last is not None and position_of(message) > last:
                break
            admitted = admission is None or admission.admits(position_of(message))
            if message is member:
                heappop(self._heap)
                if not admitted:
                    refused.append(member)
            else:
                position = next(entries, None)
            if admitted:
                taken.append(message)
        for member in refused:
            heappush(self._heap, member)
        self._remove(taken)
        return taken

    def _positions(self) -> Iterator[Position]:
        for ledger_id in sorted(self._entries):
            for entry_id in self._entries[ledger_id]:
                yield Position(ledger_id, entry_id)

    def _remove(self, taken: Sequence[MessageId]) -> None:
        self._count -= len(taken)
        by_ledger: dict[int, list[int]] = {}
        for message in taken:
            if len(message) > 2:
                members = self._members[position_of(message)]
                members.discard(message)
                if not members:
                    del self._members[position_of(message)]
            else:
                by_ledger.setdefault(message[0], []).append(message[1])
        for ledger_id, entry_ids in by_ledger.items():
            entries = self._entries[ledger_id]
            entries -= BitMap64(entry_ids)
            if not entries:
                del self._entries[ledger_id]

    def clear(self) -> None:
        self._entries.clear()
        self._members.clear()
        self._heap.clear()
        self._discarded = 0
        self._count = 0
