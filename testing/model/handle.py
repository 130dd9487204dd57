"""Open ledgers: common state and reading."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from bookstand import errors
from bookstand.testing.model.servers import Bookie, Metadata
from bookstand.testing.model.session import Session
from bookstand.testing.model.values import (
    BATCH_ENTRY_OVERHEAD,
    BATCH_OVERHEAD,
    ILLEGAL_OPERATION,
    INCORRECT_PARAMETER,
    LEDGER_CLOSED,
    NO_SUCH_ENTRY,
    NO_SUCH_LEDGER_ON_BOOKIE,
    OK,
    READ_ERROR,
    Entry,
    error,
)


class Handle(ABC):
    """Base class of open ledgers: a copy of the metadata, the three central numbers, and reading."""

    def __init__(self, client: Session, metadata: Metadata) -> None:
        self.client = client
        self.cluster = client.cluster
        self.id = metadata.ledger_id
        self.metadata = metadata
        self.last_add_confirmed = -1
        self.last_add_pushed = -1
        self.length = 0
        if metadata.is_closed:
            self.adopt(metadata)

    @property
    def bookie(self) -> Bookie:
        return self.cluster.ledgers[self.id]

    def is_closed(self) -> bool:
        """Return True if this handle's copy of the metadata is closed. Writers are not notified of changes."""
        return self.metadata.is_closed

    def adopt(self, metadata: Metadata) -> None:
        """Adopt newer metadata. If closed, it determines the ledger's end, even if that is lower than known numbers."""
        self.metadata = metadata
        if metadata.is_closed:
            self.last_add_confirmed = self.last_add_pushed = metadata.last_entry_id
            self.length = metadata.length

    def learn(self, lac: int, length: int) -> None:
        """Raise the numbers to a LAC and length that were received. Applies to all handles, also closed ones."""
        self.last_add_confirmed = max(self.last_add_confirmed, lac)
        self.last_add_pushed = max(self.last_add_pushed, lac)
        self.length = max(self.length, length)

    # -- reading

    def read(self, first: int, last: int) -> list[Entry]:
        if first < 0 or first > last:
            raise error(INCORRECT_PARAMETER)
        if last > self.last_add_confirmed:
            raise error(READ_ERROR)
        return self._read_range(first, last)

    def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        if first < 0 or first > last:
            raise error(INCORRECT_PARAMETER)
        return self._read_range(first, last)

    def _read_range(self, first: int, last: int) -> list[Entry]:
        """Read entries. All are requested together, so those after a failed one still deliver their LAC."""
        self.client.check_open()
        entries: list[Entry] = []
        failure: errors.LedgerError | None = None
        for entry_id in range(first, last + 1):
            try:
                entries.append(self._read_one(entry_id))
            except errors.LedgerError as error_of_one:
                failure = failure or error_of_one
        if failure is not None:
            raise failure
        return entries

    def _read_one(self, entry_id: int) -> Entry:
        stored = self.cluster.read_entry(self.id, entry_id)
        if self.client.v3:
            # Every read response carries the bookie's LAC instead of the entry's.
            self.learn(self.bookie.known_lac, 0)
        return Entry(self.id, entry_id, stored.data, len(stored.data), stored.cumulative_length)

    def batch_read(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        if start < 0:
            raise error(INCORRECT_PARAMETER)
        if start > self.last_add_confirmed:
            raise error(READ_ERROR)
        room = self.last_add_confirmed - start + 1
        return self._batch(start, min(max_count, room) if max_count > 0 else room, max_size)

    def batch_read_unconfirmed(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        if start < 0 or max_count < 0 or max_size < 0:
            raise error(INCORRECT_PARAMETER)
        return self._batch(start, max_count if max_count > 0 else None, max_size)

    def _batch(self, start: int, max_count: int | None, max_size: int) -> list[Entry]:
        """Read entries up to the first gap or either limit, but at least one."""
        self.client.check_open()
        limit = self.client.max_entry_bytes
        if 0 < max_size < limit:
            limit = max_size
        batch: list[Entry] = []
        size = BATCH_OVERHEAD
        while max_count is None or len(batch) < max_count:
            try:
                stored = self.cluster.read_entry(self.id, start + len(batch))
            except errors.LedgerError:
                if not batch:
                    raise
                break
            size += BATCH_ENTRY_OVERHEAD + stored.size
            if batch and size > limit:
                break
            batch.append(self._read_one(start + len(batch)))
        return batch

    def read_last_entry(self) -> Entry:
        if self.last_add_confirmed < 0:
            raise error(NO_SUCH_ENTRY)
        return self.read(self.last_add_confirmed, self.last_add_confirmed)[0]

    # -- querying the LAC

    def read_last_confirmed(self) -> int:
        """Return the LAC of the bookies, which may be behind a writer's."""
        if self.metadata.is_closed:
            if self.client.v3:
                self._back_to_the_end()
            return self.metadata.last_entry_id
        self.client.check_open()
        lac, length = self._ask_bookie()
        self.learn(lac, length)
        return lac

    def _back_to_the_end(self) -> None:
        """Reset a closed handle to its ledger's end; reads may have raised its LAC beyond that."""
        self.last_add_confirmed = self.metadata.last_entry_id
        self.length = self.metadata.length

    def _ask_bookie(self) -> tuple[int, int]:
        """Return LAC and length. The v3 protocol has a request that includes explicit LACs but no length."""
        fault = self.cluster.read_lac_fault(self.id)
        if fault != OK:
            raise error(fault)
        if self.client.v3:
            newest = self.bookie.newest()
            return max(self.bookie.explicit_lac, -1 if newest is None else newest.lac), 0
        newest = self.cluster.read_newest(self.id)
        if newest is None or newest.lac < 0:
            return -1, 0
        return newest.lac, newest.cumulative_length

    def read_last_confirmed_at_open(self) -> None:
        try:
            self.read_last_confirmed()
        except errors.LedgerError:
            raise error(READ_ERROR) from None

    def try_read_last_confirmed(self) -> int:
        if self.metadata.is_closed:
            return self.metadata.last_entry_id
        self.client.check_open()
        newest = self.cluster.read_newest(self.id)
        if newest is not None and newest.lac > self.last_add_confirmed:
            self.learn(newest.lac, newest.cumulative_length)
        else:
            self.learn(self.last_add_confirmed, 0)
        return self.last_add_confirmed

    def read_explicit_last_confirmed(self) -> int:
        if self.metadata.is_closed:
            self._back_to_the_end()
            return self.metadata.last_entry_id
        self.client.check_open()
        newest = self.bookie.newest()
        lac = max(self.bookie.explicit_lac, -1 if newest is None else newest.lac)
        self.learn(lac, 0)
        return lac

    def wait_entry(self, entry_id: int, timeout: float | None = None) -> tuple[int, Entry | None]:
        """Wait until the entry is confirmed. The model has no time: if it is not confirmed now, the wait times out."""
        if self.metadata.is_closed and entry_id > self.metadata.last_entry_id:
            return self.metadata.last_entry_id, None
        if entry_id <= self.last_add_confirmed:
            found = self._read_range(entry_id, entry_id)
            return self.last_add_confirmed, found[0]
        self.client.check_open()
        if not self.bookie.entries:
            raise error(NO_SUCH_ENTRY if self.bookie.heard_of else NO_SUCH_LEDGER_ON_BOOKIE)
        if self.client.v3 and self.bookie.known_lac > self.last_add_confirmed:
            self.learn(self.bookie.known_lac, 0)
            if entry_id <= self.last_add_confirmed:
                return self.last_add_confirmed, self._read_one(entry_id)
        return self.last_add_confirmed, None

    # -- writer operations, which readers reject

    def append(self, data: bytes) -> int:
        raise error(ILLEGAL_OPERATION)

    def append_many(self, payloads: Iterable[bytes]) -> range:
        raise error(ILLEGAL_OPERATION)

    def write(self, entry_id: int, data: bytes) -> int:
        raise error(ILLEGAL_OPERATION)

    @property
    def writable(self) -> bool:
        return not self.metadata.is_closed

    def force(self) -> None:
        if not self.writable:
            raise error(LEDGER_CLOSED)

    @abstractmethod
    def close(self) -> None: ...
