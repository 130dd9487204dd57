"""An open ledger: what writers and readers have in common.

A handle has three numbers of its own, which it learns from what it does and is told:

``last_add_confirmed`` (LAC)
    the highest entry known to be acknowledged together with all before it;
``last_add_pushed`` (LAP)
    for a plain writer the last id handed out, for other handles what they have learnt;
``length``
    the payload bytes of the ledger, as far as the handle knows.

Over the v3 wire every answer to a read brings the bookie's highest LAC along; over v2 it does not. That is visible in
what a reader opened without recovery may read next, so handles of a store opened with ``wire="v2"`` do as Pulsar's do.
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

# A batch answer's own bytes on the wire, and those each entry costs besides itself.
_BATCH_BYTES = 36
_BATCH_ENTRY_BYTES = 4


class EntryLostError(ReadError, StoreDamagedError):
    """An entry that was stored for certain is not there."""


class LedgerHandle(ProcessBound):
    """What writers and readers have in common. Read methods may be called from any thread."""

    def __init__(self, client: Client, metadata: LedgerMetadata, digest: Digest, master_key: bytes) -> None:
        self._client = client
        self._storage = client.storage
        # The store's own lock: what handles promise must change together with what they have queued.
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

    # -- what the handle knows -------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self._id

    @property
    def client(self) -> Client:
        """The client of the store that the handle belongs to."""
        return self._client

    def check_size(self, entry_id: int, payload: bytes) -> None:
        """:class:`EntryTooLargeError` if the payload would make too large an entry."""
        check_size(self._id, entry_id, payload, self._digest.size, self._client.max_entry_bytes)

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is known to be confirmed; -1: none."""
        self._refresh()
        return self._lac

    @property
    def last_add_pushed(self) -> int:
        """The last entry id that was handed out; a reader's is its last-add-confirmed."""
        self._refresh()
        return self._lap

    @property
    def length(self) -> int:
        """Bytes of payloads, as far as the handle knows."""
        self._refresh()
        return self._length

    @property
    def metadata(self) -> LedgerMetadata:
        """The handle's copy of the ledger's metadata."""
        self._refresh()
        return self._metadata

    def is_closed(self) -> bool:
        """Whether the handle's copy of the metadata says so. Nobody tells a writer that its ledger was recovered."""
        self._refresh()
        return self._metadata.state == CLOSED

    def _refresh(self) -> None:
        """Look for newer metadata, where the handle watches it."""

    def _adopt(self, metadata: LedgerMetadata) -> None:
        """Take over newer metadata. A close says where the ledger ends, even if that is lower than what was known."""
        self._metadata = metadata
        if metadata.state == CLOSED:
            self._lac = self._lap = metadata.last_entry_id
            self._length = metadata.length

    def _learn(self, lac: int, length: int) -> None:
        """Something told of a LAC: the numbers only rise."""
        with self._lock:
            self._lac = max(self._lac, lac)
            self._lap = max(self._lap, lac)
            self._length = max(self._length, length)

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, first: int, last: int) -> list[Entry]:
        """Entries ``first`` to ``last``, both included, which must be confirmed as far as this handle knows."""
        first, last = _range(first, last)
        self._refresh()
        if last > self._lac:
            self._client.check_usable()
            raise ReadError(f"entry {self._id}:{last} is not confirmed; the last one known to be is {self._lac}")
        return self._read_range(first, last)

    def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """The same without a look at what is confirmed: entries may be among them that a recovery drops later."""
        first, last = _range(first, last)
        return self._read_range(first, last)

    def batch_read(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        """Confirmed entries from ``start`` on: as many as there are, up to ``max_count`` (0 or less: any number) and
        to ``max_size`` bytes on the wire (0 or less: the store's ``max_entry_bytes``), but one at least."""
        start, max_count, max_size = _batch_arguments(start, max_count, max_size)
        max_count, max_size = max(0, max_count), max(0, max_size)
        self._refresh()
        if start > self._lac:
            self._client.check_usable()
            raise ReadError(f"entry {self._id}:{start} is not confirmed; the last one known to be is {self._lac}")
        room = self._lac - start + 1
        return self._batch(start, min(max_count or room, room), max_size)

    def batch_payloads(self, start: int, max_count: int) -> Sequence[bytes]:
        """Payloads of confirmed entries from ``start`` on, their digests checked: up to ``max_count``, and one at
        least. For those who want nothing else of the entries, and so need no object for each."""
        self._refresh()
        if start > self._lac:
            self._client.check_usable()
            raise ReadError(f"entry {self._id}:{start} is not confirmed; the last one known to be is {self._lac}")
        self._client.check_usable()
        self._storage.flush_if_queued()
        count = min(max_count, self._lac - start + 1)
        if self._storage.entry_hooks is None:
            try:
                for first, stored in self._storage.slices(self._id, start, start + count - 1):
                    _, payloads = decode_entries(self._digest, self._id, first, stored)
                    self._learn_from_read()
                    return payloads
            except LedgerError:
                # Of what precedes the one that is damaged nothing is lost by it.
                pass
        return [entry.data for entry in self._batch(start, count, 0)]

    def batch_read_unconfirmed(self, start: int, max_count: int, max_size: int) -> list[Entry]:
        """The same up to the last entry that is stored, or the first gap."""
        start, max_count, max_size = _batch_arguments(start, max_count, max_size)
        if max_count < 0 or max_size < 0:
            raise IncorrectParameterError(f"a batch has no negative count or size: {max_count}, {max_size}")
        return self._batch(start, max_count, max_size)

    def read_last_entry(self) -> Entry:
        """The last entry that this handle knows to be confirmed; :class:`NoSuchEntryError` if there is none."""
        self._refresh()
        if self._lac < 0:
            self._client.check_usable()
            raise NoSuchEntryError(f"ledger {self._id} has no confirmed entry")
        return self._read_range(self._lac, self._lac)[0]

    def __iter__(self) -> Iterator[Entry]:
        """All entries confirmed when the iteration begins, in slices that hold no transaction between them."""
        for first, lengths, payloads in self._confirmed_slices():
            yield from entries_of(self._id, first, lengths, payloads)

    def payloads(self) -> Iterator[bytes]:
        """The payloads of all confirmed entries, their digests checked, without an object for each."""
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
            raise self.absent(expected)

    def _read_range(self, first: int, last: int) -> list[Entry]:
        self._client.check_usable()
        self._storage.flush_if_queued()
        entries: list[Entry] = []
        try:
            for start, stored in self._storage.slices(self._id, first, last):
                lengths, payloads = self.decode(start, stored)
                entries += entries_of(self._id, start, lengths, payloads)
            if len(entries) <= last - first:
                raise self.absent(first + len(entries))
            return entries
        finally:
            # All of them are asked for at once, so that one that is there answers even if one before it is not.
            if entries or self._storage.first_entry_from(self._id, first, last) is not None:
                self._learn_from_read()

    def decode(self, first: int, stored: Sequence[bytes]) -> tuple[Sequence[int], Sequence[bytes]]:
        """Cumulative lengths and payloads of consecutive entries, or what is wrong with one of them."""
        try:
            return decode_entries(self._digest, self._id, first, stored)
        except DigestMismatchError:
            for entry_id in range(first, first + len(stored)):
                if self._storage.entry_as_stored(self._id, entry_id) is None:
                    # It is not there, and the next one came in its place.
                    raise self.absent(entry_id) from None
            raise

    def _learn_from_read(self) -> None:
        """Over v3 every entry that is read brings the highest LAC that the bookie knows."""
        if self._client.v3:
            state = self._storage.state(self._id)
            if state is not None and state.known_lac > self._lap:
                self._learn(state.known_lac, 0)

    def absent(self, entry_id: int) -> LedgerError:
        """What to say of an entry that is not there: damage is never reported as absence."""
        state = self._storage.state(self._id)
        if state is None and self._storage.metadata(self._id) is not None:
            return EntryLostError(f"entry {self._id}:{entry_id} cannot be told: the ledger's state is missing")
        if state is None or not state.heard_of:
            return NoSuchLedgerOnBookieError(f"ledger {self._id} has no entry {entry_id}: nothing was ever added to it")
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
                for entry_id, bytes_stored in enumerate(stored, first):
                    size += _BATCH_ENTRY_BYTES + len(bytes_stored)
                    if entries and size > limit:
                        return entries
                    _, length, payload = layout.decode(self._digest, self._id, entry_id, bytes_stored)
                    entries.append(Entry(self._id, entry_id, payload, len(payload), length))
        except LedgerError:
            # What could be read is given; whoever reads on from there meets the error first.
            if not entries:
                raise
        finally:
            if entries:
                self._learn_from_read()
        if not entries:
            raise self.absent(start)
        return entries

    # -- the last-add-confirmed ------------------------------------------------------------------------------------

    def read_last_confirmed(self) -> int:
        """Ask the store for the LAC; what it says may be behind what a writer knows."""
        self._refresh()
        if self._metadata.state == CLOSED:
            if self._client.v3:
                self._return_to_end()
            return self._metadata.last_entry_id
        self._client.check_usable()
        self._storage.flush_if_queued()
        lac, length = self._ask_for_lac()
        self._learn(lac, length)
        return lac

    def _return_to_end(self) -> None:
        """Reading may have taught a closed handle of a LAC beyond its ledger's end; asking puts that right."""
        with self._lock:
            self._lac, self._length = self._metadata.last_entry_id, self._metadata.length

    def _ask_for_lac(self) -> tuple[int, int]:
        """v3 has a request for it, which knows explicit LACs and no length; v2 reads the newest entry."""
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
                # The bookie answers this from what it remembers: a read that fails does not matter, wrong bytes do.
                stored = self._storage.entry_as_stored(self._id, state.last_entry)
            if stored is None:
                raise self.absent(state.last_entry)
            carried, _ = layout.decode_last_confirmed(self._digest, self._id, stored)
        return max(carried, state.explicit_lac)

    def _newest(self) -> tuple[int, int] | None:
        """(LAC, cumulative length) carried by the entry with the highest id; None if there is none."""
        state = self._storage.state(self._id)
        if state is None or state.last_entry < 0:
            return None
        try:
            stored = self._storage.entry(self._id, state.last_entry)
            if stored is None:
                raise self.absent(state.last_entry)
            return layout.decode_last_confirmed(self._digest, self._id, stored)
        except (NoSuchEntryError, NoSuchLedgerOnBookieError):
            return None

    def try_read_last_confirmed(self) -> int:
        """Look at the newest entry only, and learn from it if it knows more."""
        self._refresh()
        if self._metadata.state == CLOSED:
            return self._metadata.last_entry_id
        self._client.check_usable()
        self._storage.flush_if_queued()
        newest = self._newest()
        if newest is not None and newest[0] > self._lac:
            self._learn(*newest)
        else:
            self._learn(self._lac, 0)
        return self._lac

    def read_explicit_last_confirmed(self) -> int:
        """Ask for the LAC that a writer told without adding an entry, or the newest entry's if that is higher."""
        self._refresh()
        if self._metadata.state == CLOSED:
            self._return_to_end()
            return self._metadata.last_entry_id
        self._client.check_usable()
        self._storage.flush_if_queued()
        lac = self._lac_of_newest_or_explicit()
        self._learn(lac, 0)
        return lac

    def wait_entry(self, entry_id: int, timeout: float | None = None) -> tuple[int, Entry | None]:
        """Wait until the entry is confirmed: (LAC, the entry), or (LAC, None) when the time is over or the ledger is
        closed before it. Over v3 it sees what other handles and other processes write; over v2 nobody tells it."""
        entry_id, timeout = as_entry_id(entry_id), as_timeout(timeout)
        if entry_id < 0:
            raise IncorrectParameterError(f"an entry id is from 0 up, not {entry_id}")
        self._refresh()
        if entry_id > self._lac and self._metadata.state != CLOSED:
            self._client.check_usable()
            self._storage.flush_if_queued()
            state = self._storage.state(self._id)
            if state is None or state.last_entry < 0:
                raise self.absent(entry_id)
        if self._confirmed_in_time(entry_id, timeout, listen=self._client.v3):
            entry = self._read_range(entry_id, entry_id)[0]
            return self._lac, entry
        return self._lac, None

    def follow(self, timeout: float | None = None) -> Iterator[Entry]:
        """All confirmed entries, then those to come as they are confirmed; the last one of an open ledger shows when
        the next entry, an explicit LAC or the close confirms it. Ends when a closed ledger has been read to its end,
        or when nothing has come for ``timeout`` seconds."""
        timeout = as_timeout(timeout)
        next_entry = 0
        while self._confirmed_in_time(next_entry, timeout, listen=True):
            for entry in self._batch(next_entry, self._lac - next_entry + 1, 0):
                yield entry
                next_entry += 1

    def _confirmed_in_time(self, entry_id: int, timeout: float | None, listen: bool) -> bool:
        """Wait for the LAC to reach the entry. ``listen``: learn it from what others have stored."""
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
                    self._learn(state.known_lac, 0)
                    continue
            if not self._storage.wait_for_commit(deadline):
                return False

    # -- what only some handles do ---------------------------------------------------------------------------------

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
        raise IllegalOperationError(f"{operation} is not for a {type(self).__name__} (ledger {self._id})")

    def force(self) -> None:
        """Make what is acknowledged durable. A handle that does not write has nothing to force."""
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
        raise TypeError("use one of the handles that a store gives")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # After a crash, closing could only hide the crash that ends the block.
            if error is None or not self._storage.crashed:
                self.close()
        except ForkedStoreError:
            # Likewise in a forked child: an exception that ends the block, SystemExit say, is the one to propagate.
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ledger {self._id}, LAC {self._lac}>"


def entries_of(ledger_id: int, first: int, lengths: Sequence[int], payloads: Sequence[bytes]) -> Iterable[Entry]:
    """Entry objects for consecutive entries; made without a Python call for each."""
    rows = zip(
        repeat(ledger_id), range(first, first + len(payloads)), payloads, map(len, payloads), lengths, strict=False
    )
    return map(tuple.__new__, repeat(Entry), rows)


def _range(first: Any, last: Any) -> tuple[int, int]:
    first, last = as_entry_id(first), as_entry_id(last)
    if first < 0 or first > last:
        raise IncorrectParameterError(f"entries are read from 0 or later up to there or later, not {first} to {last}")
    return first, last


def _batch_arguments(start: Any, max_count: Any, max_size: Any) -> tuple[int, int, int]:
    start, max_count, max_size = as_entry_id(start), as_count("max_count", max_count), as_count("max_size", max_size)
    if start < 0:
        raise IncorrectParameterError(f"a batch begins at 0 or later, not {start}")
    return start, max_count, max_size
