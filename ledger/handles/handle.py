"""Base class of ledger handles: reads, and the last-add-confirmed.

Each handle has its own view of the ledger:

``last_add_confirmed`` (LAC)
    highest entry id that the handle knows to be acknowledged together with all entries before it;
``last_add_pushed`` (LAP)
    last entry id assigned by a plain writer; other handles advance it together with the LAC;
``length``
    total payload bytes of the entries that the handle knows of.

In the v3 protocol each read response carries the bookie's highest LAC; in v2 it does not. The difference determines
which entries a reader opened without recovery may read next. A store opened with ``wire="v2"`` behaves like Pulsar's
v2 client.
"""

from __future__ import annotations

from itertools import repeat
from time import monotonic

from bookstand.errors import (
    BookstandError,
    DigestMismatchError,
    ForkedStoreError,
    IllegalOperationError,
    IncorrectParameterError,
    LedgerClosedError,
    LedgerError,
    NoSuchEntryError,
    NoSuchLedgerOnBookieError,
    ReadError,
    StoreDamagedError,
)
from bookstand.ledger.handles.entry import Entry
from bookstand.ledger.validation import as_count, as_entry_id, as_timeout, check_size
from bookstand.storage.commit.futures import completed
from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format.entry_batch import decode_entries
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.storage.format.schema import MAX_ENTRY_ID
from bookstand.storage.process.fork_guard import ProcessBound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Any, NoReturn, Self

    from bookstand.ledger.client import Client
    from bookstand.storage.commit.futures import Pending
    from bookstand.storage.format.digest import Digest
    from bookstand.storage.format.ledger_metadata import LedgerMetadata

# Size of a batch read response on the wire: fixed part, and overhead per entry.
_BATCH_BYTES = 36
_BATCH_ENTRY_BYTES = 4


class EntryLostError(ReadError, StoreDamagedError):
    """An entry that is known to have been stored is missing."""


class LedgerHandle(ProcessBound):
    """Base class of writers and readers. Read methods may be called from any thread."""

    def __init__(self, client: Client, metadata: LedgerMetadata, digest: Digest, master_key: bytes) -> None:
        self._client = client
        self._storage = client.storage
        # Shared by all handles of the store: a writer's entry ids, LAC and queued adds must change together.
        self._lock = client.storage.committer_lock
        self._id = metadata.ledger_id
        self._digest = digest
        self._master_key = master_key
        self._metadata = metadata
        self._lac = -1
        self._lap = -1
        self._length = 0
        if metadata.state == CLOSED:
            self._adopt(metadata)

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """Ledger id."""
        return self._id

    @property
    def client(self) -> Client:
        """Client that opened the handle."""
        return self._client

    def check_size(self, entry_id: int, payload: bytes) -> None:
        """Raise :class:`EntryTooLargeError` if the entry would exceed ``max_entry_bytes``."""
        check_size(self._id, entry_id, payload, self._digest.size, self._client.max_entry_bytes)

    @property
    def last_add_confirmed(self) -> int:
        """Last entry id known to be confirmed; -1: none."""
        self._refresh()
        return self._lac

    @property
    def last_add_pushed(self) -> int:
        """Last entry id assigned by this writer; for a reader, its last-add-confirmed."""
        self._refresh()
        return self._lap

    @property
    def length(self) -> int:
        """Total payload bytes of the entries that the handle knows of."""
        self._refresh()
        return self._length

    @property
    def metadata(self) -> LedgerMetadata:
        """This handle's copy of the ledger's metadata."""
        self._refresh()
        return self._metadata

    def is_closed(self) -> bool:
        """Return True if this handle's copy of the metadata is closed. A writer is not notified when another client
        recovers and closes its ledger."""
        self._refresh()
        return self._metadata.state == CLOSED

    def _refresh(self) -> None:
        """Load newer metadata, if the handle watches it."""

    def _adopt(self, metadata: LedgerMetadata) -> None:
        """Replace the metadata. The last entry of a closed ledger is authoritative, even if the LAC was higher."""
        self._metadata = metadata
        if metadata.state == CLOSED:
            self._lac = self._lap = metadata.last_entry_id
            self._length = metadata.length

    def _advance_lac(self, lac: int, length: int) -> None:
        """Raise LAC, LAP and length to the given values; they never decrease."""
        with self._lock:
            self._lac = max(self._lac, lac)
            self._lap = max(self._lap, lac)
            self._length = max(self._length, length)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, first: int, last: int) -> list[Entry]:
        """Read the entries ``first`` to ``last``, both inclusive. ``last`` must not exceed this handle's LAC."""
        first, last = _range(first, last)
        self._check_confirmed(last)
        return self._read_range(first, last)

    def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """Read entries without checking the LAC. The result may include entries that a later recovery discards."""
        first, last = _range(first, last)
        return self._read_range(first, last)

    def batch_read(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        """Read one or more confirmed entries from ``start``.

        At most ``max_count`` entries (0 or less: unlimited) and ``max_size`` bytes on the wire (0 or less: the store's
        ``max_entry_bytes``) are read. The first entry is returned even if it exceeds ``max_size``.
        """
        start, max_count, max_size = _batch_arguments(start, max_count, max_size)
        max_count, max_size = max(0, max_count), max(0, max_size)
        self._check_confirmed(start)
        available = self._lac - start + 1
        return self._batch(start, min(max_count or available, available), max_size)

    def batch_payloads(self, start: int, max_count: int) -> Sequence[bytes]:
        """Read the payloads of 1 to ``max_count`` confirmed entries from ``start``, and check their digests. Faster
        than :meth:`batch_read`, because it creates no :class:`Entry` objects."""
        self._check_confirmed(start)
        self._client.check_usable()
        self._storage.flush_if_queued()
        count = min(max_count, self._lac - start + 1)
        if self._storage.entry_hooks is None:
            try:
                for first, stored in self._storage.slices(self._id, start, start + count - 1):
                    _, payloads = decode_entries(self._digest, self._id, first, stored)
                    self._update_lac_after_read()
                    return payloads
            except LedgerError:
                # _batch() returns the intact entries before the damaged one.
                pass
        return [entry.data for entry in self._batch(start, count, 0)]

    def _check_confirmed(self, entry_id: int) -> None:
        self._refresh()
        if entry_id > self._lac:
            self._client.check_usable()
            raise ReadError(f"entry {self._id}:{entry_id} is not confirmed; last-add-confirmed is {self._lac}")

    def batch_read_unconfirmed(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        """Read entries as :meth:`batch_read` does, but up to the last stored entry or the first gap."""
        start, max_count, max_size = _batch_arguments(start, max_count, max_size)
        if max_count < 0 or max_size < 0:
            raise IncorrectParameterError(
                f"max_count and max_size must not be negative, they are {max_count} and {max_size}"
            )
        return self._batch(start, max_count, max_size)

    def read_last_entry(self) -> Entry:
        """Read the entry at this handle's LAC. Raises :class:`NoSuchEntryError` if no entry is confirmed."""
        self._refresh()
        if self._lac < 0:
            self._client.check_usable()
            raise NoSuchEntryError(f"ledger {self._id} has no confirmed entry")
        return self._read_range(self._lac, self._lac)[0]

    def __iter__(self) -> Iterator[Entry]:
        """Iterate over the entries that are confirmed when the iteration begins. Entries are read in slices. No read
        transaction is open between slices."""
        for first, lengths, payloads in self._confirmed_slices():
            yield from entries_of(self._id, first, lengths, payloads)

    def payloads(self) -> Iterator[bytes]:
        """Iterate over the payloads of all confirmed entries, after checking their digests."""
        for _, _, payloads in self._confirmed_slices():
            yield from payloads

    def _confirmed_slices(self) -> Iterator[tuple[int, Sequence[int], Sequence[bytes]]]:
        self._refresh()
        expected, last = 0, self._lac
        self._client.check_usable()
        self._storage.flush_if_queued()
        for first, stored in self._storage.slices(self._id, 0, last):
            lengths, payloads = self.decode(first, stored)
            yield first, lengths, payloads
            expected = first + len(stored)
            self._client.check_usable()
        if expected <= last:
            raise self.absence_error(expected)

    def _read_range(self, first: int, last: int) -> list[Entry]:
        self._client.check_usable()
        self._storage.flush_if_queued()
        entries: list[Entry] = []
        try:
            for start, stored in self._storage.slices(self._id, first, last):
                lengths, payloads = self.decode(start, stored)
                entries += entries_of(self._id, start, lengths, payloads)
            if len(entries) <= last - first:
                raise self.absence_error(first + len(entries))
            return entries
        finally:
            # BookKeeper's client requests all entries in parallel, so any existing entry of the range carries a LAC.
            if entries or self._storage.first_entry_from(self._id, first, last) is not None:
                self._update_lac_after_read()

    def decode(self, first: int, stored: Sequence[bytes]) -> tuple[Sequence[int], Sequence[bytes]]:
        """Decode consecutive entries to their cumulative lengths and payloads, and check their digests."""
        try:
            return decode_entries(self._digest, self._id, first, stored)
        except DigestMismatchError:
            for entry_id in range(first, first + len(stored)):
                if self._storage.entry_as_stored(self._id, entry_id) is None:
                    # The entry is missing, so the slice contains the next one in its place.
                    raise self.absence_error(entry_id) from None
            raise

    def _update_lac_after_read(self) -> None:
        """Advance the LAC after a read: v3 responses carry the highest LAC that the bookie knows."""
        if self._client.v3:
            state = self._storage.state(self._id)
            if state is not None and state.known_lac > self._lap:
                self._advance_lac(state.known_lac, 0)

    def absence_error(self, entry_id: int) -> LedgerError:
        """Return the error for a missing entry. Damage is never reported as absence."""
        state = self._storage.state(self._id)
        if state is None and self._storage.metadata(self._id) is not None:
            return EntryLostError(f"entry {self._id}:{entry_id} cannot be located: the ledger's state is missing")
        if state is None or not state.heard_of:
            return NoSuchLedgerOnBookieError(f"ledger {self._id} has no entry {entry_id}: no entry was ever added")
        if state.must_exist(entry_id) and self._storage.entry(self._id, entry_id) is None:
            return EntryLostError(f"entry {self._id}:{entry_id} was stored, but is missing: the store is damaged")
        return NoSuchEntryError(f"ledger {self._id} has no entry {entry_id}")

    def _batch(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        self._client.check_usable()
        self._storage.flush_if_queued()
        limit = self._client.max_entry_bytes
        if 0 < max_size < limit:
            limit = max_size
        entries: list[Entry] = []
        size = _BATCH_BYTES
        try:
            last = start + max_count - 1 if max_count else MAX_ENTRY_ID
            for first, stored in self._storage.slices(self._id, start, last):
                for entry_id, encoded in enumerate(stored, first):
                    size += _BATCH_ENTRY_BYTES + len(encoded)
                    if entries and size > limit:
                        return entries
                    _, length, payload = layout.decode(self._digest, self._id, entry_id, encoded)
                    entries.append(Entry(self._id, entry_id, payload, len(payload), length))
        except LedgerError:
            # Return the entries before the error; the next read starts at the damaged one and raises.
            if not entries:
                raise
        finally:
            if entries:
                self._update_lac_after_read()
        if not entries:
            raise self.absence_error(start)
        return entries

    # -- the last-add-confirmed ------------------------------------------------------------------------------------

    def read_last_confirmed(self) -> int:
        """Read the LAC from the store. It may be lower than the LAC of the ledger's writer."""
        self._refresh()
        if self._metadata.state == CLOSED:
            if self._client.v3:
                self._reset_to_end()
            return self._metadata.last_entry_id
        self._client.check_usable()
        self._storage.flush_if_queued()
        lac, length = self._query_lac()
        self._advance_lac(lac, length)
        return lac

    def _reset_to_end(self) -> None:
        """Reset the LAC of a closed ledger to its last entry: a read may have advanced it beyond that."""
        with self._lock:
            self._lac, self._length = self._metadata.last_entry_id, self._metadata.length

    def _query_lac(self) -> tuple[int, int]:
        """Query LAC and length. v3 has a request that returns the LAC without a length; v2 reads the newest entry."""
        hooks = self._storage.hooks
        if hooks is not None:
            hooks.on_read_lac(self._id)
        if self._client.v3:
            return self._lac_of_newest_or_explicit(), 0
        newest = self._newest()
        return newest if newest is not None and newest[0] >= 0 else (-1, 0)

    def _lac_of_newest_or_explicit(self) -> int:
        state = self._storage.state(self._id)
        if state is None:
            return -1
        carried = -1
        if state.last_entry >= 0:
            try:
                stored = self._storage.entry(self._id, state.last_entry)
            except LedgerError:
                stored = None
            if stored is None:
                # A bookie answers this request from memory, so failed reads are ignored and only wrong bytes matter.
                stored = self._storage.entry_as_stored(self._id, state.last_entry)
            if stored is None:
                raise self.absence_error(state.last_entry)
            carried, _ = layout.decode_last_confirmed(self._digest, self._id, stored)
        return max(carried, state.explicit_lac)

    def _newest(self) -> tuple[int, int] | None:
        """Return LAC and cumulative length from the entry with the highest id, or None if no entry exists."""
        state = self._storage.state(self._id)
        if state is None or state.last_entry < 0:
            return None
        try:
            stored = self._storage.entry(self._id, state.last_entry)
            if stored is None:
                raise self.absence_error(state.last_entry)
            return layout.decode_last_confirmed(self._digest, self._id, stored)
        except (NoSuchEntryError, NoSuchLedgerOnBookieError):
            return None

    def try_read_last_confirmed(self) -> int:
        """Read only the newest entry, and advance the LAC to the one that it carries."""
        self._refresh()
        if self._metadata.state == CLOSED:
            return self._metadata.last_entry_id
        self._client.check_usable()
        self._storage.flush_if_queued()
        newest = self._newest()
        if newest is not None and newest[0] > self._lac:
            self._advance_lac(*newest)
        else:
            self._advance_lac(self._lac, 0)
        return self._lac

    def read_explicit_last_confirmed(self) -> int:
        """Read the explicit LAC, which a writer sends without adding an entry, or the newest entry's if higher."""
        self._refresh()
        if self._metadata.state == CLOSED:
            self._reset_to_end()
            return self._metadata.last_entry_id
        self._client.check_usable()
        self._storage.flush_if_queued()
        lac = self._lac_of_newest_or_explicit()
        self._advance_lac(lac, 0)
        return lac

    def wait_entry(self, entry_id: int, timeout: float | None = None) -> tuple[int, Entry | None]:
        """Wait until an entry is confirmed, and return the LAC and the entry.

        The entry is None if the timeout expires, or if the ledger is closed before that entry. In v3 this notices
        entries of other handles and processes; in v2 only this handle's own operations advance its LAC.
        """
        entry_id, timeout = as_entry_id(entry_id), as_timeout(timeout)
        if entry_id < 0:
            raise IncorrectParameterError(f"an entry id must not be negative, it is {entry_id}")
        self._refresh()
        if entry_id > self._lac and self._metadata.state != CLOSED:
            self._client.check_usable()
            self._storage.flush_if_queued()
            state = self._storage.state(self._id)
            if state is None or state.last_entry < 0:
                raise self.absence_error(entry_id)
        if self._confirmed_in_time(entry_id, timeout, listen=self._client.v3):
            entry = self._read_range(entry_id, entry_id)[0]
            return self._lac, entry
        return self._lac, None

    def follow(self, timeout: float | None = None) -> Iterator[Entry]:
        """Iterate over all confirmed entries, then over new ones as they are confirmed.

        The last entry of an open ledger is returned after the next entry, an explicit LAC or the close has confirmed
        it. The iteration ends at the end of a closed ledger, or after ``timeout`` seconds without a new entry.
        """
        timeout = as_timeout(timeout)
        next_entry = 0
        while self._confirmed_in_time(next_entry, timeout, listen=True):
            for entry in self._batch(next_entry, self._lac - next_entry + 1, 0):
                yield entry
                next_entry += 1

    def _confirmed_in_time(self, entry_id: int, timeout: float | None, listen: bool) -> bool:
        """Wait until the LAC reaches the entry. With ``listen``, also read the LAC that other handles stored."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            self._refresh()
            if entry_id <= self._lac:
                return True
            if self._metadata.state == CLOSED:
                return False
            self._client.check_usable()
            if listen:
                self._storage.flush_if_queued()
                state = self._storage.state(self._id)
                if state is not None and state.known_lac > self._lac:
                    self._advance_lac(state.known_lac, 0)
                    continue
            if not self._storage.wait_for_commit(deadline):
                return False

    # -- operations that some handles reject -----------------------------------------------------------------------

    def append(self, data: bytes) -> int:
        return self._refuse("append")

    def append_async(self, data: bytes) -> Pending:
        return self._refuse("append_async")

    def append_many(self, payloads: Iterable[bytes]) -> range:
        return self._refuse("append_many")

    def write(self, entry_id: int, data: bytes) -> int:
        return self._refuse("write")

    def write_async(self, entry_id: int, data: bytes) -> Pending:
        return self._refuse("write_async")

    def _refuse(self, operation: str) -> NoReturn:
        raise IllegalOperationError(f"a {type(self).__name__} does not support {operation} (ledger {self._id})")

    def force(self) -> None:
        """Make acknowledged entries durable. A reader has none, so this only checks that the ledger is open."""
        self._refresh()
        if self._metadata.state == CLOSED:
            raise LedgerClosedError(f"ledger {self._id} is closed")

    def force_async(self) -> Pending:
        try:
            self.force()
        except BookstandError as error:
            return completed(error=error)
        return completed()

    def close(self) -> None:
        raise TypeError("LedgerHandle is a base class; use the handles that a Store returns")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # After a simulated crash, an error from close() would replace the one that ended the block.
            if error is None or not self._storage.crashed:
                self.close()
        except ForkedStoreError:
            # In a forked child, an exception that ended the block (for example SystemExit) propagates instead.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ledger {self._id}, LAC {self._lac}>"


def entries_of(ledger_id: int, first: int, lengths: Sequence[int], payloads: Sequence[bytes]) -> Iterable[Entry]:
    """Create Entry objects for consecutive entries, without a Python-level call per entry."""
    rows = zip(
        repeat(ledger_id), range(first, first + len(payloads)), payloads, map(len, payloads), lengths, strict=False
    )
    return map(tuple.__new__, repeat(Entry), rows)


def _range(first: Any, last: Any) -> tuple[int, int]:
    first, last = as_entry_id(first), as_entry_id(last)
    if first < 0 or first > last:
        raise IncorrectParameterError(f"a range of entries must satisfy 0 <= first <= last, not {first} to {last}")
    return first, last


def _batch_arguments(start: Any, max_count: Any, max_size: Any) -> tuple[int, int, int]:
    start, max_count, max_size = as_entry_id(start), as_count("max_count", max_count), as_count("max_size", max_size)
    if start < 0:
        raise IncorrectParameterError(f"the start of a batch must not be negative, it is {start}")
    return start, max_count, max_size
