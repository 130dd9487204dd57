"""Damaged entries that a subscription has found. They are reported once or skipped, and block no others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pyroaring import BitMap64

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.message.received_message import MessageRef
from bookstand.delivery.subscription.acks import AckHandler
from bookstand.delivery.subscription.stats import Counters
from bookstand.managed_ledger.managed_ledger import UnreadableEntryError
from bookstand.storage.format.position import Position, positions_in
from bookstand.storage.logger import logger


class UnreadableEntries:
    """Not thread-safe; callers hold the subscription's lock.

    ``skips`` returns True if damaged entries are to be skipped: acknowledged without being read, so that they do not
    hold back the mark-delete position. Other damaged entries stay in the backlog until they are acknowledged.
    """

    def __init__(
        self, name: str, cursor: Cursor, acks: AckHandler, counters: Counters, skips: Callable[[], bool]
    ) -> None:
        self._name = name
        self._cursor = cursor
        self._acks = acks
        self._counters = counters
        self._skips = skips
        self._by_ledger: dict[int, BitMap64] = {}
        self._unreported: deque[UnreadableEntryError] = deque()

    def record(self, error: UnreadableEntryError) -> None:
        """Record the damage that a read has found, or skip it."""
        ledger_id = error.position.ledger_id
        damaged = BitMap64(range(error.position.entry_id, error.last.entry_id + 1))
        damaged -= self._by_ledger.get(ledger_id, BitMap64())
        if not damaged:
            return
        if self._skips():
            logger().warning("subscription %s skips %d damaged entries: %s", self._name, len(damaged), error)
            self._skip(ledger_id, damaged)
        else:
            self._by_ledger[ledger_id] = self._by_ledger.get(ledger_id, BitMap64()) | damaged
            self._unreported.append(error)

    def _skip(self, ledger_id: int, entry_ids: BitMap64) -> None:
        unacked: list[MessageRef] = [*self._unacked(ledger_id, entry_ids)]
        self._acks.ack_silently(unacked)
        self._counters.skipped += len(unacked)

    def _unacked(self, ledger_id: int, entry_ids: BitMap64) -> list[Position]:
        positions = positions_in(ledger_id, list(entry_ids))
        return [position for position in positions if not self._cursor.is_acked(position)]

    def skip_known(self) -> None:
        """Skip the recorded entries if the setting has been switched on."""
        if self._by_ledger and self._skips():
            by_ledger, self._by_ledger = self._by_ledger, {}
            self._unreported.clear()
            for ledger_id, entry_ids in by_ledger.items():
                self._skip(ledger_id, entry_ids)

    def report(self) -> None:
        """Raise the error of a damaged entry that has not been reported."""
        while self._unreported:
            error = self._unreported.popleft()
            if not all(map(self._cursor.is_acked, error.positions)):
                raise error

    @property
    def positions(self) -> list[Position]:
        """Unacknowledged damaged entries, in order."""
        found: list[Position] = []
        for ledger_id, entry_ids in sorted(self._by_ledger.items()):
            unacked = self._unacked(ledger_id, entry_ids)
            if len(unacked) < len(entry_ids):
                self._by_ledger[ledger_id] = BitMap64(entry_id for _, entry_id in unacked)
            found += unacked
        return found
