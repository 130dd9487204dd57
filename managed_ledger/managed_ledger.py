"""Managed ledger: a topic as a sequence of ledgers, described by a record in Pulsar's format.

The record (``ManagedLedgerInfo``) is stored in the node ``/managed-ledgers/<name>``. Ledgers are created and deleted in
the same commit that updates the record, so no unlisted ledger remains. A crash between closing a full ledger and
listing the next one leaves a closed last ledger; opening the topic then adds a new one.

Opening a topic for writing takes it over: its last ledger is recovered, which fences the previous writer.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from itertools import islice
from threading import RLock

from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    DigestMismatchError,
    IllegalOperationError,
    IncorrectParameterError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataSerializationError,
    MetadataVersionError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    NoSuchNodeError,
    StoreDamagedError,
)
from bookstand.ledger.handles.handle import EntryLostError
from bookstand.ledger.transaction import Transaction
from bookstand.ledger.validation import as_count, as_payload, as_positive
from bookstand.managed_ledger import records
from bookstand.managed_ledger.reader_cache import TopicReaders
from bookstand.managed_ledger.topic_entries import EntryRun, TopicEntry, runs_of
from bookstand.managed_ledger.topic_extent import TopicExtent
from bookstand.managed_ledger.topic_name import cursor_of, ledger_labels, node_of
from bookstand.storage.commit.futures import with_result
from bookstand.storage.format import schema
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.storage.format.position import Position, positions_in
from bookstand.storage.logger import logger
from bookstand.storage.metadata_store import Nodes
from bookstand.storage.process.fork_guard import ProcessBound
from bookstand.storage.process.interrupt_guard import InterruptGuard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bookstand.ledger.client import Client
    from bookstand.ledger.handles.handle import LedgerHandle
    from bookstand.ledger.handles.writer import LedgerWriter
    from bookstand.managed_ledger.records import LedgerInfo
    from bookstand.storage.commit.futures import Pending

    OnUnreadable = Callable[["UnreadableEntryError"], object]

MAX_ENTRIES_PER_LEDGER = 50_000
MAX_BYTES_PER_LEDGER = 100 << 20
MAX_LEDGER_AGE = 4 * 3600.0
# Attempts to take over a topic whose current writer keeps adding ledgers.
_TAKEOVER_ATTEMPTS = 20
_READ_BATCH_SIZE = 1_000


class ManagedLedgerFencedError(LedgerFencedError):
    """The topic was opened by another writer; this object can no longer write."""


class ManagedLedgerTerminatedError(IllegalOperationError):
    """The topic was terminated, so entries can no longer be added."""


class ManagedLedger(ProcessBound):
    """A topic's ledgers; use ``store.managed_ledger(name)``. All methods may be called from any thread."""

    max_entries_per_ledger: int = MAX_ENTRIES_PER_LEDGER
    max_bytes_per_ledger: int = MAX_BYTES_PER_LEDGER
    max_ledger_age: float = MAX_LEDGER_AGE
    """Limits of a ledger in entries, bytes and seconds. The topic rolls over when the first one is reached."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        create: bool = True,
        max_entries_per_ledger: int | None = None,
        max_bytes_per_ledger: int | None = None,
        max_ledger_age: float | None = None,
        info_compression: str | None = None,
        skip_lost: bool = False,
    ) -> None:
        self.name = name
        self.path = node_of(name)
        self.client = client
        self.skip_lost = skip_lost
        self._compression: str | None = None
        self._nodes = Nodes(client.storage, client.check_usable, client.check_writable)
        self._lock = RLock()
        # An interrupted call may have written the record without updating this object.
        self._guard = InterruptGuard(self._repair)
        # Record of the latest update, by which _repair() recognizes this object's own write.
        self._intended: bytes | None = None
        self.change_options(max_entries_per_ledger, max_bytes_per_ledger, max_ledger_age, info_compression)
        self._writer: LedgerWriter | None = None
        # Set permanently after a takeover by another writer, a delete or a close.
        self._fenced: BookstandError | None = None
        self._readers = TopicReaders(client)
        # Durable mark-delete position of each registered cursor, by name.
        self._mark_deletes: dict[str, Callable[[], Position]] = {}
        if client.read_only:
            self._info, self._version = self._load(create)
            self._extent = self._build_extent()
        else:
            self._take_over(create)

    def change_options(
        self,
        max_entries_per_ledger: int | None = None,
        max_bytes_per_ledger: int | None = None,
        max_ledger_age: float | None = None,
        info_compression: str | None = None,
        skip_lost: bool | None = None,
    ) -> None:
        """Change options of the open topic. None keeps an option. If one is invalid, none is changed."""
        entries = self.max_entries_per_ledger if max_entries_per_ledger is None else max_entries_per_ledger
        size = self.max_bytes_per_ledger if max_bytes_per_ledger is None else max_bytes_per_ledger
        age = self.max_ledger_age if max_ledger_age is None else max_ledger_age
        as_positive("max_entries_per_ledger", entries)
        as_positive("max_bytes_per_ledger", size)
        if not isinstance(age, int | float) or not age > 0:
            raise IncorrectParameterError(f"max_ledger_age must be a positive number of seconds, not {age!r}")
        if info_compression is not None:
            # Raises if the codec does not exist or is not installed.
            records.encode_ledger_info(records.ManagedLedgerInfo(), info_compression)
        with self._lock:
            self.max_entries_per_ledger, self.max_bytes_per_ledger, self.max_ledger_age = entries, size, age
            if info_compression is not None:
                self._compression = info_compression
            if skip_lost is not None:
                self.skip_lost = skip_lost

    # -- opening -----------------------------------------------------------------------------------------------------

    def _load(self, create: bool) -> tuple[records.ManagedLedgerInfo, int]:
        try:
            stored, version = self._nodes.get(self.path)
        except NoSuchNodeError:
            if not create or self.client.read_only:
                raise
            return records.ManagedLedgerInfo(), -1
        return records.decode_ledger_info(stored, f"node {self.path}", self.client.expansion_limits), version

    def _take_over(self, create: bool) -> None:
        """Recover the last ledger, and add a new one. The previous writer may roll over meanwhile; the next attempt
        then recovers its new ledger."""
        for _ in range(_TAKEOVER_ATTEMPTS):
            self._info, self._version = self._load(create)
            if self._info.ledgers:
                self._info.ledgers[-1] = self._recovered_info(self._info.ledgers[-1])
            self._extent = self._build_extent()
            if self._info.terminated is not None:
                return
            try:
                self._create_ledger()
            except ManagedLedgerFencedError as error:
                fenced = error
                self._fenced = None
                continue
            return
        raise fenced

    def _recovered_info(self, last: LedgerInfo) -> LedgerInfo:
        """Recover the last ledger, and return its LedgerInfo with the final counts."""
        try:
            reader = self.client.open(last.ledger_id, True, b"", None)
        except NoSuchLedgerError as error:
            if last.entries:
                return self._report_lost(last, error)
            return last._replace(entries=0)
        except (MetadataSerializationError, StoreDamagedError) as error:
            raise TopicDamagedError(
                f"topic {self.name} cannot be opened for writing: its last ledger, {last.ledger_id}, cannot be "
                f"recovered: {error}. `bookstand verify` lists the damage, and `bookstand repair` creates a store from "
                "the intact records"
            ) from error
        now = self.client.clock.now()
        return last._replace(entries=reader.last_add_confirmed + 1, size=reader.length, timestamp=last.timestamp or now)

    def _report_lost(self, lost: LedgerInfo, error: BookstandError) -> LedgerInfo:
        if self.skip_lost:
            logger().warning("topic %s: ledger %d is lost, with %d entries", self.name, lost.ledger_id, lost.entries)
            return lost
        raise TopicDamagedError(
            f"topic {self.name}: ledger {lost.ledger_id} with {lost.entries} entries is listed, but missing"
        ) from error

    def _build_extent(self) -> TopicExtent:
        """Build the extent from the record. A read-only store reads the LAC of the last ledger instead of fencing."""
        ledgers = self._info.ledgers
        if self.client.read_only and ledgers:
            reader = self.client.open(ledgers[-1].ledger_id, False, b"", None)
            ledgers[-1] = ledgers[-1]._replace(entries=reader.read_last_confirmed() + 1)
        return TopicExtent((info.ledger_id, info.entries) for info in ledgers)

    def preview_takeover(self) -> ManagedLedger:
        """Return a copy of this read-only topic as it would be after opening it for writing. The last ledger has all
        entries that recovery would retain, empty ledgers are removed, and a new one is listed."""
        preview = copy(self)
        ledgers = [self._preview_recovered_info(info) for info in self._info.ledgers[-1:]]
        ledgers[:0] = self._info.ledgers[:-1]
        if self._info.terminated is None:
            next_ledger = int.from_bytes(self.client.storage.meta(schema.META_NEXT_LEDGER) or b"", "big")
            ledgers = [*(info for info in ledgers if info.entries), records.LedgerInfo(next_ledger)]
        preview._info = self._info._replace(ledgers=ledgers)
        preview._extent = TopicExtent((info.ledger_id, info.entries) for info in ledgers)
        return preview

    def _preview_recovered_info(self, last: LedgerInfo) -> LedgerInfo:
        """Return the LedgerInfo that :meth:`_recovered_info` would return, without recovery."""
        reader = self.client.open(last.ledger_id, False, b"", None)
        state = self.client.storage.state(last.ledger_id)
        if reader.metadata.state != CLOSED and state is not None:
            return last._replace(entries=state.unbroken + 1)
        return last._replace(entries=reader.last_add_confirmed + 1)

    # -- ledgers -----------------------------------------------------------------------------------------------------

    @property
    def extent(self) -> TopicExtent:
        """Extent of the confirmed entries."""
        with self._lock, self._guard:
            if self._writer is not None:
                self._extent.resize_last(self._writer.last_add_confirmed + 1)
            return self._extent

    @property
    def ledgers(self) -> list[LedgerInfo]:
        """Ledgers in order. The last one has its current number of confirmed entries."""
        with self._lock, self._guard:
            ledgers = list(self._info.ledgers)
            if self._writer is not None:
                entries = self._writer.last_add_confirmed + 1
                ledgers[-1] = ledgers[-1]._replace(entries=entries, size=self._writer.length)
            return ledgers

    @property
    def last_confirmed(self) -> Position:
        """Position of the last confirmed entry; of an empty topic, the position before its first entry."""
        with self._lock, self._guard:
            last = self.extent.last
            if last is not None:
                return last
            return Position(self._info.ledgers[-1].ledger_id if self._info.ledgers else -1, -1)

    @property
    def version(self) -> int:
        """Version of the topic's record. It changes when another writer takes over the topic."""
        return self._version

    @property
    def usable(self) -> bool:
        """False after the topic was closed, deleted or taken over by another writer."""
        return self._fenced is None

    @property
    def terminated(self) -> Position | None:
        """Last position of a terminated topic; otherwise None."""
        return self._info.terminated

    def check_owned(self) -> None:
        """Raise if the topic was closed, deleted or taken over; the version of its record shows a takeover."""
        with self._lock, self._guard:
            self.client.check_usable()
            if self._fenced is not None:
                raise self._fenced
            if self.client.read_only:
                return
            try:
                _, version = self._nodes.get(self.path)
            except NoSuchNodeError as error:
                self._fence(error)
            if version != self._version:
                self._fence(MetadataVersionError(f"its record has version {version}, not {self._version}"))

    def _detect_takeover(self) -> None:
        """Fence this object if another writer, which has fenced the ledger, has taken over the topic."""
        with suppress(BookstandError):
            self.check_owned()

    def _update_record(
        self, make: Callable[[Transaction], records.ManagedLedgerInfo], dropped: Iterable[int] = ()
    ) -> None:
        """Write the record that ``make`` returns, and delete the ``dropped`` ledgers, in one commit."""
        try:
            with Transaction(self.client) as transaction:
                info = make(transaction)
                # The version is checked before the deletions: after a takeover, the new owner may have deleted them.
                self._intended = stored = records.encode_ledger_info(info, self._compression)
                version = transaction.put_node(self.path, stored, self._version)
                self._delete_ledgers(transaction, dropped)
        except MetadataVersionError as error:
            self._fence(error)
        self._info, self._version = info, version.result()
        self._extent = TopicExtent((ledger.ledger_id, ledger.entries) for ledger in info.ledgers)

    def _repair(self) -> None:
        """Reload the record after an interrupted update, and recover the last ledger as opening the topic does. The
        next append adds a new ledger."""
        if self._fenced is not None or self.client.closed:
            return
        self._writer = None
        try:
            info, version = self._load(create=False)
            stored, _ = self._nodes.get(self.path)
        except NoSuchNodeError as error:
            self._fence(error)
        if version != self._version and stored != self._intended:
            self._fence(MetadataVersionError(f"its record has version {version}, not {self._version}"))
        if info.ledgers:
            info.ledgers[-1] = self._recovered_info(info.ledgers[-1])
        self._info, self._version = info, version
        self._extent = self._build_extent()

    def _delete_ledgers(self, transaction: Transaction, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            try:
                self.client.storage.state(ledger_id)
                exists = self._exists(ledger_id)
            except StoreDamagedError as error:
                # Unlist the ledger anyway, so that its damage does not block trimming and deleting the topic.
                logger().warning(
                    "topic %s: ledger %d was removed from the topic, but remains in the store, because its records "
                    "cannot be read: %s. `bookstand repair` creates a store without it",
                    self.name,
                    ledger_id,
                    error,
                )
                continue
            if exists:
                transaction.delete_ledger(ledger_id)

    def _exists(self, ledger_id: int) -> bool:
        return self.client.storage.has_ledger(ledger_id)

    def _create_ledger(self) -> None:
        """Create a ledger, list it in the record, and delete empty ones."""
        retained = [ledger for ledger in self._info.ledgers if ledger.entries]
        dropped = [ledger.ledger_id for ledger in self._info.ledgers if not ledger.entries]
        created: list[LedgerWriter] = []

        def add_ledger(transaction: Transaction) -> records.ManagedLedgerInfo:
            created.append(transaction.create_ledger(custom_metadata=ledger_labels(self.name)))
            return self._info._replace(ledgers=[*retained, records.LedgerInfo(created[0].id)])

        self._update_record(add_ledger, dropped)
        (self._writer,) = created
        self._created_at = self.client.clock.now()
        if self.client.storage.hooks is not None:
            self.client.storage.point("topic.begun", self.path)

    def _fence(self, error: BookstandError) -> None:
        self._fenced = ManagedLedgerFencedError(f"topic {self.name} was opened by another writer: {error}")
        self._writer = None
        raise self._fenced from error

    # -- writing -----------------------------------------------------------------------------------------------------

    def append(
        self, payload: bytes, deliver_at: int | None = None, properties: Mapping[str, str] | None = None
    ) -> Position:
        """Add a message in Pulsar's message format, and return its position after it is durable. ``deliver_at`` is the
        time of a delayed delivery, in milliseconds since 1970."""
        return self.append_entry(self.framed(payload, deliver_at, properties))

    def append_async(
        self, payload: bytes, deliver_at: int | None = None, properties: Mapping[str, str] | None = None
    ) -> Pending:
        """Add a message; the result of the returned Pending is its position. Blocks while the topic rolls over."""
        return self.append_entry_async(self.framed(payload, deliver_at, properties))

    def append_many(
        self,
        payloads: Iterable[bytes],
        deliver_at: int | Iterable[int | None] | None = None,
        properties: Mapping[str, str] | None = None,
        compression: str = "NONE",
    ) -> list[Position]:
        """Add many messages, much faster than one by one. ``deliver_at`` is one time for all, or one per message."""
        from bookstand.managed_ledger.message.format import encode_messages

        return self.append_entries(
            encode_messages(
                map(as_payload, payloads),
                publish_time=self.client.clock.now(),
                deliver_at=deliver_at,
                properties=properties,
                compression=compression,
            )
        )

    def framed(
        self, payload: bytes, deliver_at: int | None = None, properties: Mapping[str, str] | None = None
    ) -> bytes:
        """Encode a message as an entry."""
        from bookstand.managed_ledger.message.format import encode_message

        now = self.client.clock.now()
        return encode_message(as_payload(payload), publish_time=now, deliver_at=deliver_at, properties=properties)

    def append_entry(self, data: bytes) -> Position:
        """Add an already encoded entry."""
        try:
            with self._lock, self._guard:
                writer = self._current()
            # Committed without the lock, so that appends of other threads can form a batch meanwhile.
            entry_id = writer.try_append_solo(data, self.max_entries_per_ledger)
            if entry_id < 0:
                with self._lock, self._guard:
                    writer = self._current()
                    pending = writer.enqueue_append(data)
                    position = Position(writer.id, writer.last_add_pushed)
                    self._roll_over_if_full()
                pending.result()
                return position
        except LedgerFencedError:
            self._detect_takeover()
            raise
        with self._lock, self._guard:
            if self._writer is writer:
                self._roll_over_if_full()
        return Position(writer.id, entry_id)

    def append_entry_async(self, data: bytes) -> Pending:
        """Add an already encoded entry; the result of the returned Pending is its position."""
        with self._lock, self._guard:
            writer = self._current()
            pending = writer.append_async(data)
            position = Position(writer.id, writer.last_add_pushed)
            self._roll_over_if_full()
        return with_result(pending, position)

    def append_entries(self, entries: Iterable[bytes]) -> list[Position]:
        """Add many already encoded entries, with one :meth:`append_many` per ledger."""
        source: Iterator[bytes] = iter(entries)
        positions: list[Position] = []
        while True:
            with self._lock, self._guard:
                writer = self._current()
                count, size = writer.submitted_totals()
                part = _take_bytes(
                    islice(source, self.max_entries_per_ledger - count), self.max_bytes_per_ledger - size
                )
                if not part:
                    return positions
                try:
                    added = writer.append_many(part)
                except LedgerFencedError:
                    self._detect_takeover()
                    raise
                was_full = self._roll_over_if_full()
            positions += positions_in(writer.id, added)
            if not was_full:
                # The ledger had room for all remaining entries.
                return positions

    def _current(self) -> LedgerWriter:
        """Return the writer of the current ledger, rolling over if necessary. The caller holds the lock."""
        self.client.check_writable()
        if self._fenced is not None:
            raise self._fenced
        if self._info.terminated is not None:
            raise ManagedLedgerTerminatedError(f"topic {self.name} was terminated at {self._info.terminated}")
        if self._writer is None or self._writer.is_closing or self._is_full(self._writer):
            self._roll_over()
        assert self._writer is not None
        return self._writer

    def _is_full(self, writer: LedgerWriter) -> bool:
        entries, size = writer.submitted_totals()
        if entries >= self.max_entries_per_ledger:
            return True
        age = self.client.clock.now() - self._created_at
        return entries > 0 and (size >= self.max_bytes_per_ledger or age >= self.max_ledger_age * 1000)

    def _roll_over_if_full(self) -> bool:
        """Roll over if the current ledger is full. Return True if it was full. Errors are logged only: the append that
        precedes this call has succeeded, and the next one retries."""
        assert self._writer is not None
        if not self._is_full(self._writer):
            return False
        try:
            self._roll_over()
        except BookstandError as error:
            logger().warning("topic %s: the next ledger could not be created: %s", self.name, error)
        return True

    def roll(self) -> None:
        """Roll over to a new ledger, unless the current one is empty."""
        with self._lock, self._guard:
            writer = self._current()
            if writer.last_add_pushed >= 0:
                self._roll_over()

    def _roll_over(self) -> None:
        self._close_current()
        self._create_ledger()

    def _close_current(self) -> None:
        """Close the current ledger, and record its last entry."""
        writer = self._writer
        if writer is None:
            return
        try:
            try:
                writer.close()
            except (MetadataVersionError, LedgerClosedError):
                # Another client has recovered the ledger; its last entry is in the metadata.
                pass
            metadata = self.client.read_metadata(writer.id)
        except NoSuchLedgerError as error:
            self._fence(error)
        closed = self._info.ledgers[-1]._replace(
            entries=metadata.last_entry_id + 1, size=metadata.length, timestamp=self.client.clock.now()
        )
        self._info.ledgers[-1] = closed
        self._extent.resize_last(closed.entries)
        self._writer = None
        if self.client.storage.hooks is not None:
            self.client.storage.point("topic.closed", self.path)

    def terminate(self) -> Position:
        """Reject all further appends permanently, and return the last position."""
        with self._lock, self._guard:
            if self._info.terminated is None:
                self._current()
                # Concurrent appends either precede the close or fail.
                self._close_current()
                last = self.last_confirmed
                self._update_record(lambda _: self._info._replace(terminated=last))
            assert self._info.terminated is not None
            return self._info.terminated

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, position: Position, count: int) -> list[TopicEntry]:
        """Read up to ``count`` confirmed entries from ``position``, across ledgers."""
        return list(islice(self.entries(position), as_count("count", count)))

    def entries(self, position: Position) -> Iterator[TopicEntry]:
        """Iterate over the confirmed entries from ``position``, including those confirmed during the iteration."""
        following = self.extent.following(Position(*position).previous)
        while following is not None:
            ledger_id, first = following
            entries = self.extent.entries(ledger_id) or 0
            for run in self.read_run(ledger_id, first, entries - 1):
                yield from run.entries()
            following = self.extent.following(Position(ledger_id, entries - 1))

    def read_entry(self, position: Position) -> TopicEntry:
        """Read one entry. Raises :class:`NoSuchEntryError` or, if it is damaged, :class:`UnreadableEntryError`."""
        position = Position(*position)
        try:
            (entry,) = self._reader(position.ledger_id).read(position.entry_id, position.entry_id)
        except _DAMAGE as error:
            raise self._unreadable(position, error) from error
        return TopicEntry(position, entry.data)

    def read_positions(
        self, positions: Iterable[Position], on_unreadable: OnUnreadable | None = None
    ) -> Iterator[TopicEntry]:
        """Read the entries at ascending positions. Raises :class:`NoSuchEntryError` for a missing entry. Damaged
        entries are handled as in :meth:`read_run`."""
        for ledger_id, first, last in runs_of(positions):
            for run in self.read_run(ledger_id, first, last, on_unreadable):
                yield from run.entries()

    def read_run(
        self, ledger_id: int, first: int, last: int, on_unreadable: OnUnreadable | None = None
    ) -> Iterator[EntryRun]:
        """Read entries of one ledger in runs.

        :class:`UnreadableEntryError` is raised when the iteration reaches a damaged entry. With ``on_unreadable``, the
        error is passed to that function instead, and the iteration continues after the damaged entry.
        """
        count = _READ_BATCH_SIZE
        while first <= last:
            try:
                part = self._reader(ledger_id).batch_payloads(first, min(count, last - first + 1))
            except _DAMAGE as error:
                if count > 1:
                    # Read entry by entry up to the damaged one.
                    count = 1
                    continue
                unreadable = self._unreadable(Position(ledger_id, first), error)
                if on_unreadable is not None:
                    on_unreadable(unreadable)
                elif self.skip_lost and isinstance(error, NoSuchLedgerError):
                    logger().warning("%s", unreadable)
                else:
                    raise unreadable from error
                first = unreadable.last.entry_id + 1
                count = _READ_BATCH_SIZE
                continue
            yield EntryRun(ledger_id, first, part)
            first += len(part)
            count = min(2 * count, _READ_BATCH_SIZE)

    def _unreadable(self, position: Position, error: BookstandError) -> UnreadableEntryError:
        """Return the error for a damaged entry, or for the rest of its ledger if that is unreadable as a whole. Raises
        ``error`` if the topic does not have the entry, and a fencing error if the topic was taken over."""
        info = next((one for one in self._info.ledgers if one.ledger_id == position.ledger_id), None)
        if info is None or not self.extent.has(position):
            raise error
        self.check_owned()
        last = position
        try:
            self.client.read_metadata(position.ledger_id)
            self.client.storage.state(position.ledger_id)
        except _DAMAGE:
            last = Position(position.ledger_id, (self.extent.entries(position.ledger_id) or 1) - 1)
        reason = str(error)
        if isinstance(error, NoSuchLedgerError):
            reason = f"ledger {info.ledger_id} with {info.entries} entries is listed, but missing"
        return UnreadableEntryError(self.name, position, last, reason)

    def _reader(self, ledger_id: int) -> LedgerHandle:
        with self._lock, self._guard:
            if self._writer is not None and self._writer.id == ledger_id:
                return self._writer
            return self._readers.get(ledger_id)

    # -- cursors -------------------------------------------------------------------------------------------------------

    def cursor_names(self) -> list[str]:
        """Names of all stored cursors, open or not."""
        return sorted(cursor_of(name) for name in self._nodes.children(self.path))

    # -- trimming ------------------------------------------------------------------------------------------------------

    def register_cursor(self, name: str, mark_delete: Callable[[], Position]) -> None:
        """Register an open cursor: :meth:`trim_consumed` retains all entries after the position that ``mark_delete``
        returns."""
        self._mark_deletes[name] = mark_delete

    def unregister_cursor(self, name: str) -> None:
        self._mark_deletes.pop(name, None)

    def trim_consumed(self) -> list[int]:
        """Delete ledgers that all cursors have consumed. Nothing is deleted while a stored cursor is not open."""
        stored = self._nodes.children(self.path)
        with self._lock, self._guard:
            if not self._mark_deletes or any(name not in self._mark_deletes for name in stored):
                return []
            return self.trim(min(mark_delete() for mark_delete in self._mark_deletes.values()).next)

    def trim(self, before: Position) -> list[int]:
        """Delete the ledgers whose entries all precede the position, except the last ledger, and return their ids."""
        with self._lock, self._guard:
            if self._fenced is not None:
                raise self._fenced
            ledgers = self._info.ledgers
            count = 0
            while count < len(ledgers) - 1 and Position(ledgers[count].ledger_id, ledgers[count].entries) <= before:
                count += 1
            if not count:
                return []
            trimmed = [ledger.ledger_id for ledger in ledgers[:count]]
            self._update_record(lambda _: self._info._replace(ledgers=ledgers[count:]), trimmed)
            self._readers.discard(trimmed)
            if self.client.storage.hooks is not None:
                self.client.storage.point("topic.trimmed", self.path)
            return trimmed

    def delete(self) -> None:
        """Delete the topic with all its ledgers in one commit. Its cursors must have been deleted before."""
        cursors = self._nodes.children(self.path)
        if cursors:
            raise IllegalOperationError(f"topic {self.name} has cursors: {', '.join(cursors)}")
        with self._lock, self._guard:
            self.client.check_writable()
            if self._fenced is not None:
                raise self._fenced
            if self._writer is not None:
                self._close_current()
            try:
                with Transaction(self.client) as transaction:
                    transaction.delete_node(self.path, self._version)
                    self._delete_ledgers(transaction, [ledger.ledger_id for ledger in self._info.ledgers])
            except (MetadataVersionError, NoSuchNodeError) as error:
                self._fence(error)
            self._fenced = ManagedLedgerFencedError(f"topic {self.name} was deleted")

    def close(self) -> None:
        """Commit queued entries, and close the current ledger."""
        with self._lock, self._guard:
            if self._writer is not None:
                try:
                    self._close_current()
                except ManagedLedgerFencedError:
                    # The new owner has recovered the ledger.
                    pass
            self._fenced = self._fenced or ClientClosedError(f"topic {self.name} is closed")


class TopicDamagedError(StoreDamagedError):
    """A ledger that a topic lists is missing."""


class UnreadableEntryError(TopicDamagedError):
    """A damaged entry of a topic, or the damaged rest of a ledger. ``__cause__`` is the original error."""

    def __init__(self, topic: str, position: Position, last: Position, reason: str) -> None:
        self.topic = topic
        self.position = position
        """First entry that cannot be read."""
        self.last = last
        """Last entry that cannot be read. It differs from ``position`` if the ledger's records are damaged."""
        self.reason = reason
        if position == last:
            what, acknowledging = f"entry {position}", f"subscription.ack({tuple(position)})"
        else:
            what, acknowledging = f"entries {position} to {last}", "subscription.ack_many(error.positions)"
        super().__init__(
            f"topic {topic}: {what} cannot be read: {reason}. To continue, read from {last.next}, acknowledge unread "
            f"with {acknowledging}, or skip damaged entries with TopicConfig(auto_skip_non_recoverable_data=True)"
        )

    @property
    def positions(self) -> list[Position]:
        """Positions of all entries that cannot be read."""
        return positions_in(self.position.ledger_id, range(self.position.entry_id, self.last.entry_id + 1))

    def __reduce__(self) -> tuple[type[UnreadableEntryError], tuple[str, Position, Position, str]]:
        return type(self), (self.topic, self.position, self.last, self.reason)


_DAMAGE = (
    DigestMismatchError,
    EntryLostError,
    MetadataSerializationError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerOnBookieError,
    StoreDamagedError,
)
"""Errors of permanently unreadable entries."""


def _take_bytes(entries: Iterable[bytes], size: int) -> list[bytes]:
    """Take entries until they have ``size`` bytes, and leave the rest in the iterator."""
    part: list[bytes] = []
    for data in entries:
        part.append(data)
        size -= len(data)
        if size <= 0:
            break
    return part
