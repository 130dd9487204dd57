"""A topic: a series of ledgers that is written to as one, and a record of it in Pulsar's own form.

The record (``ManagedLedgerInfo``) stands in the node ``/managed-ledgers/<name>``. What belongs together happens in one
commit: a ledger is created and listed, deleted and unlisted; so there is none that nobody knows of. A crash between
closing a full ledger and listing the next leaves a topic whose last ledger is closed, which opening carries on from.

Opening a topic for writing takes it over: its last ledger is recovered, and whoever wrote to it before is fenced.
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
# How often whoever takes a topic over tries to be faster than who has it.
_TAKING_OVER = 20
_READ_AT_ONCE = 1_000


class ManagedLedgerFencedError(LedgerFencedError):
    """The topic was opened by another; this one writes no more."""


class ManagedLedgerTerminatedError(IllegalOperationError):
    """The topic was terminated: it takes no more entries."""


class ManagedLedger(ProcessBound):
    """Use ``store.managed_ledger(name)``. All methods may be called from any thread."""

    max_entries_per_ledger: int = MAX_ENTRIES_PER_LEDGER
    max_bytes_per_ledger: int = MAX_BYTES_PER_LEDGER
    max_ledger_age: float = MAX_LEDGER_AGE
    """Limits of a ledger, in entries, bytes and seconds; at the first one reached the next ledger is begun."""

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
        # Of whatever changes the record: an interrupted call may have changed it without noting that here.
        self._guard = InterruptGuard(self._repair)
        # The record that is being stored.
        self._intended: bytes | None = None
        self.change_options(max_entries_per_ledger, max_bytes_per_ledger, max_ledger_age, info_compression)
        self._writer: LedgerWriter | None = None
        # Set for good once somebody else has taken the topic over, or it was closed.
        self._fenced: BookstandError | None = None
        self._readers = TopicReaders(client)
        # Who still needs entries, by name: each tells up to where it needs none.
        self._holds: dict[str, Callable[[], Position]] = {}
        if client.read_only:
            self._info, self._version = self._load(create)
            self._extent = self._measure()
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
        """Replace options while the topic is open: all given ones, or none if one is invalid. None leaves an option
        as it is."""
        entries = self.max_entries_per_ledger if max_entries_per_ledger is None else max_entries_per_ledger
        size = self.max_bytes_per_ledger if max_bytes_per_ledger is None else max_bytes_per_ledger
        age = self.max_ledger_age if max_ledger_age is None else max_ledger_age
        as_positive("max_entries_per_ledger", entries)
        as_positive("max_bytes_per_ledger", size)
        if not isinstance(age, int | float) or not age > 0:
            raise IncorrectParameterError(f"max_ledger_age must be a positive number of seconds, not {age!r}")
        if info_compression is not None:
            # Raises for a codec that does not exist, or is not installed.
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
        """Close what the one before us left open, and begin a ledger of our own. Whoever goes on writing may begin the
        next ledger meanwhile: then that is the one to close."""
        for _ in range(_TAKING_OVER):
            self._info, self._version = self._load(create)
            if self._info.ledgers:
                self._info.ledgers[-1] = self._ended(self._info.ledgers[-1])
            self._extent = self._measure()
            if self._info.terminated is not None:
                return
            try:
                self._begin_ledger()
            except ManagedLedgerFencedError as error:
                refused = error
                self._fenced = None
                continue
            return
        raise refused

    def _ended(self, last: LedgerInfo) -> LedgerInfo:
        """The record of the last ledger, once it has been recovered and so is closed."""
        try:
            reader = self.client.open(last.ledger_id, True, b"", None)
        except NoSuchLedgerError as error:
            if last.entries:
                return self._lost(last, error)
            return last._replace(entries=0)
        except (MetadataSerializationError, StoreDamagedError) as error:
            raise TopicDamagedError(
                f"topic {self.name} cannot be opened for writing: its last ledger, {last.ledger_id}, cannot be "
                f"recovered: {error}. `bookstand verify` lists what is damaged, and `bookstand repair` makes a store "
                "of what is intact"
            ) from error
        now = self.client.clock.now()
        return last._replace(entries=reader.last_add_confirmed + 1, size=reader.length, timestamp=last.timestamp or now)

    def _lost(self, lost: LedgerInfo, error: BookstandError) -> LedgerInfo:
        if self.skip_lost:
            logger().warning("topic %s: ledger %d is lost, with %d entries", self.name, lost.ledger_id, lost.entries)
            return lost
        raise TopicDamagedError(
            f"topic {self.name}: ledger {lost.ledger_id} with {lost.entries} entries is listed, but missing"
        ) from error

    def _measure(self) -> TopicExtent:
        """What is listed; where nobody may be fenced, the last ledger as far as it is known to go."""
        ledgers = self._info.ledgers
        if self.client.read_only and ledgers:
            reader = self.client.open(ledgers[-1].ledger_id, False, b"", None)
            ledgers[-1] = ledgers[-1]._replace(entries=reader.read_last_confirmed() + 1)
        return TopicExtent((info.ledger_id, info.entries) for info in ledgers)

    def as_taken_over(self) -> ManagedLedger:
        """Of a topic that was opened read-only: as it will be for whoever opens it for writing. Its last ledger has
        all entries that recovery keeps, those without any are gone, and there is a new one."""
        found = copy(self)
        ledgers = [self._as_ended(info) for info in self._info.ledgers[-1:]]
        ledgers[:0] = self._info.ledgers[:-1]
        if self._info.terminated is None:
            following = int.from_bytes(self.client.storage.meta(schema.META_NEXT_LEDGER) or b"", "big")
            ledgers = [*(info for info in ledgers if info.entries), records.LedgerInfo(following)]
        found._info = self._info._replace(ledgers=ledgers)
        found._extent = TopicExtent((info.ledger_id, info.entries) for info in ledgers)
        return found

    def _as_ended(self, last: LedgerInfo) -> LedgerInfo:
        """The record of the last ledger as :meth:`_ended` will have it."""
        reader = self.client.open(last.ledger_id, False, b"", None)
        state = self.client.storage.state(last.ledger_id)
        if reader.metadata.state != CLOSED and state is not None:
            return last._replace(entries=state.unbroken + 1)
        return last._replace(entries=reader.last_add_confirmed + 1)

    # -- the series --------------------------------------------------------------------------------------------------

    @property
    def extent(self) -> TopicExtent:
        """Which entries there are, confirmed by now."""
        with self._lock, self._guard:
            if self._writer is not None:
                self._extent.resize_last(self._writer.last_add_confirmed + 1)
            return self._extent

    @property
    def ledgers(self) -> list[LedgerInfo]:
        """The ledgers in their order. The last one counts what is confirmed by now."""
        with self._lock, self._guard:
            ledgers = list(self._info.ledgers)
            if self._writer is not None:
                entries = self._writer.last_add_confirmed + 1
                ledgers[-1] = ledgers[-1]._replace(entries=entries, size=self._writer.length)
            return ledgers

    @property
    def last_confirmed(self) -> Position:
        """The last entry; with none, the place before the first one to come."""
        with self._lock, self._guard:
            last = self.extent.last
            if last is not None:
                return last
            return Position(self._info.ledgers[-1].ledger_id if self._info.ledgers else -1, -1)

    @property
    def version(self) -> int:
        """Of the topic's record: another one as soon as somebody else takes the topic over."""
        return self._version

    @property
    def usable(self) -> bool:
        """Whether it can still be used: it was neither closed nor deleted, nor taken over by another."""
        return self._fenced is None

    @property
    def terminated(self) -> Position | None:
        """The last entry of a topic that was terminated."""
        return self._info.terminated

    def check_owned(self) -> None:
        """Raise if it was closed or deleted, or another has taken it over, which shows in the topic's record."""
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

    def _look_who_owns_it(self) -> None:
        """Somebody has fenced its ledger, and may have taken the topic over: then it is not usable any more."""
        with suppress(BookstandError):
            self.check_owned()

    def _record(self, make: Callable[[Transaction], records.ManagedLedgerInfo], dropped: Iterable[int] = ()) -> None:
        """The record becomes what ``make`` says, and ledgers that are not listed any more go: in one commit."""
        try:
            with Transaction(self.client) as transaction:
                info = make(transaction)
                # Before anything is deleted, which another may have done who has the topic by now.
                self._intended = stored = records.encode_ledger_info(info, self._compression)
                version = transaction.put_node(self.path, stored, self._version)
                self._delete_in(transaction, dropped)
        except MetadataVersionError as error:
            self._fence(error)
        self._info, self._version = info, version.result()
        self._extent = TopicExtent((ledger.ledger_id, ledger.entries) for ledger in info.ledgers)

    def _repair(self) -> None:
        """After an interrupted change: go on with what is stored of the topic. The last ledger is closed where it ends,
        as when the topic is opened; the next entry begins another one."""
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
            info.ledgers[-1] = self._ended(info.ledgers[-1])
        self._info, self._version = info, version
        self._extent = self._measure()

    def _delete_in(self, transaction: Transaction, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            try:
                self.client.storage.state(ledger_id)
                exists = self._exists(ledger_id)
            except StoreDamagedError as error:
                # The topic must not depend on it for ever: it is no longer listed, and what is left of it stays.
                logger().warning(
                    "topic %s: ledger %d is no longer listed, but stays in the store, because its records cannot be "
                    "read: %s. `bookstand repair` makes a store without it",
                    self.name,
                    ledger_id,
                    error,
                )
                continue
            if exists:
                transaction.delete_ledger(ledger_id)

    def _exists(self, ledger_id: int) -> bool:
        return self.client.storage.has_ledger(ledger_id)

    def _begin_ledger(self) -> None:
        """List what is known of the ledgers by now, and a new one with it."""
        kept = [ledger for ledger in self._info.ledgers if ledger.entries]
        dropped = [ledger.ledger_id for ledger in self._info.ledgers if not ledger.entries]
        begun: list[LedgerWriter] = []

        def with_new_one(transaction: Transaction) -> records.ManagedLedgerInfo:
            begun.append(transaction.create_ledger(custom_metadata=ledger_labels(self.name)))
            return self._info._replace(ledgers=[*kept, records.LedgerInfo(begun[0].id)])

        self._record(with_new_one, dropped)
        (self._writer,) = begun
        self._began = self.client.clock.now()
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
        """Add a message in Pulsar's framing; returns where it is once it is durable. ``deliver_at`` is in ms since
        1970: the message is stored at once, and meant for delivery then."""
        return self.append_entry(self.framed(payload, deliver_at, properties))

    def append_async(
        self, payload: bytes, deliver_at: int | None = None, properties: Mapping[str, str] | None = None
    ) -> Pending:
        """The same; the Pending's result is the position. Blocks where a ledger is full, while the next is begun."""
        return self.append_entry_async(self.framed(payload, deliver_at, properties))

    def append_many(
        self,
        payloads: Iterable[bytes],
        deliver_at: int | Iterable[int | None] | None = None,
        properties: Mapping[str, str] | None = None,
        compression: str = "NONE",
    ) -> list[Position]:
        """Add many messages, the fast way; with one time of delivery for all, or one for each."""
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
        """The entry that a message becomes."""
        from bookstand.managed_ledger.message.format import encode_message

        now = self.client.clock.now()
        return encode_message(as_payload(payload), publish_time=now, deliver_at=deliver_at, properties=properties)

    def append_entry(self, data: bytes) -> Position:
        """Add an entry as it is, without framing."""
        try:
            with self._lock, self._guard:
                writer = self._current()
            # Who comes while it is committed finds the lock free, and gathers with others.
            entry_id = writer.try_append_solo(data, self.max_entries_per_ledger)
            if entry_id < 0:
                with self._lock, self._guard:
                    writer = self._current()
                    pending = writer.enqueue_append(data)
                    position = Position(writer.id, writer.last_add_pushed)
                    self._roll_if_full()
                pending.result()
                return position
        except LedgerFencedError:
            self._look_who_owns_it()
            raise
        with self._lock, self._guard:
            if self._writer is writer:
                self._roll_if_full()
        return Position(writer.id, entry_id)

    def append_entry_async(self, data: bytes) -> Pending:
        """An entry as it is to be stored, framing included; gives a :class:`Pending` for its position."""
        with self._lock, self._guard:
            writer = self._current()
            pending = writer.append_async(data)
            position = Position(writer.id, writer.last_add_pushed)
            self._roll_if_full()
        return with_result(pending, position)

    def append_entries(self, entries: Iterable[bytes]) -> list[Position]:
        """Add many entries as they are; those of one ledger go together."""
        source: Iterator[bytes] = iter(entries)
        positions: list[Position] = []
        while True:
            with self._lock, self._guard:
                writer = self._current()
                count, size = writer.submitted_totals()
                part = _up_to(islice(source, self.max_entries_per_ledger - count), self.max_bytes_per_ledger - size)
                if not part:
                    return positions
                try:
                    added = writer.append_many(part)
                except LedgerFencedError:
                    self._look_who_owns_it()
                    raise
                was_full = self._roll_if_full()
            positions += positions_in(writer.id, added)
            if not was_full:
                # There were no more than it took.
                return positions

    def _current(self) -> LedgerWriter:
        """The ledger to write to; the lock is held."""
        self.client.check_writable()
        if self._fenced is not None:
            raise self._fenced
        if self._info.terminated is not None:
            raise ManagedLedgerTerminatedError(f"topic {self.name} was terminated at {self._info.terminated}")
        if self._writer is None or self._writer.is_closing or self._is_full(self._writer):
            self._roll()
        assert self._writer is not None
        return self._writer

    def _is_full(self, writer: LedgerWriter) -> bool:
        entries, size = writer.submitted_totals()
        if entries >= self.max_entries_per_ledger:
            return True
        age = self.client.clock.now() - self._began
        return entries > 0 and (size >= self.max_bytes_per_ledger or age >= self.max_ledger_age * 1000)

    def _roll_if_full(self) -> bool:
        """Begin the next ledger as soon as this one is full; whether it was. What fails here is none of the append's
        business, which is done; the next one tries again."""
        assert self._writer is not None
        if not self._is_full(self._writer):
            return False
        try:
            self._roll()
        except BookstandError as error:
            logger().warning("topic %s: the next ledger could not be begun: %s", self.name, error)
        return True

    def roll(self) -> None:
        """Begin a new ledger now, unless the last one is empty."""
        with self._lock, self._guard:
            writer = self._current()
            if writer.last_add_pushed >= 0:
                self._roll()

    def _roll(self) -> None:
        """Close the current ledger, and begin the next; the lock is held."""
        self._end_current()
        self._begin_ledger()

    def _end_current(self) -> None:
        """Close the ledger that is written to, and note how far it goes."""
        writer = self._writer
        if writer is None:
            return
        try:
            try:
                writer.close()
            except (MetadataVersionError, LedgerClosedError):
                # Recovered by somebody else: the metadata says where it ends.
                pass
            metadata = self.client.read_metadata(writer.id)
        except NoSuchLedgerError as error:
            self._fence(error)
        ended = self._info.ledgers[-1]._replace(
            entries=metadata.last_entry_id + 1, size=metadata.length, timestamp=self.client.clock.now()
        )
        self._info.ledgers[-1] = ended
        self._extent.resize_last(ended.entries)
        self._writer = None
        if self.client.storage.hooks is not None:
            self.client.storage.point("topic.closed", self.path)

    def terminate(self) -> Position:
        """Take no more entries, for good; returns the last one."""
        with self._lock, self._guard:
            if self._info.terminated is None:
                self._current()
                # What others are adding is in it, or refused.
                self._end_current()
                last = self.last_confirmed
                self._record(lambda _: self._info._replace(terminated=last))
            assert self._info.terminated is not None
            return self._info.terminated

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, position: Position, count: int) -> list[TopicEntry]:
        """Up to ``count`` confirmed entries from ``position`` on, over the borders of ledgers."""
        return list(islice(self.entries(position), as_count("count", count)))

    def entries(self, position: Position) -> Iterator[TopicEntry]:
        """All entries from ``position`` on that are confirmed when the iteration comes to them."""
        following = self.extent.following(Position(*position).previous)
        while following is not None:
            ledger_id, first = following
            entries = self.extent.entries(ledger_id) or 0
            for run in self.read_run(ledger_id, first, entries - 1):
                yield from run.entries()
            following = self.extent.following(Position(ledger_id, entries - 1))

    def read_entry(self, position: Position) -> TopicEntry:
        """One entry; :class:`NoSuchEntryError` if there is none at the position, :class:`UnreadableEntryError` if it is
        damaged."""
        position = Position(*position)
        try:
            (entry,) = self._reader(position.ledger_id).read(position.entry_id, position.entry_id)
        except _DAMAGE as error:
            raise self._unreadable(position, error) from error
        return TopicEntry(position, entry.data)

    def read_positions(
        self, positions: Iterable[Position], on_unreadable: OnUnreadable | None = None
    ) -> Iterator[TopicEntry]:
        """The entries at ascending positions; :class:`NoSuchEntryError` where there is none. Damaged entries are
        treated as by :meth:`read_run`."""
        for ledger_id, first, last in runs_of(positions):
            for run in self.read_run(ledger_id, first, last, on_unreadable):
                yield from run.entries()

    def read_run(
        self, ledger_id: int, first: int, last: int, on_unreadable: OnUnreadable | None = None
    ) -> Iterator[EntryRun]:
        """Entries of one ledger, some at a time.

        :class:`UnreadableEntryError` is raised when the iteration reaches a damaged entry, after the intact ones before
        it. With ``on_unreadable`` it is passed to that function instead, and the iteration continues behind it.
        """
        count = _READ_AT_ONCE
        while first <= last:
            try:
                part = self._reader(ledger_id).batch_payloads(first, min(count, last - first + 1))
            except _DAMAGE as error:
                if count > 1:
                    # The damage may be further on.
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
                count = _READ_AT_ONCE
                continue
            yield EntryRun(ledger_id, first, part)
            first += len(part)
            count = min(2 * count, _READ_AT_ONCE)

    def _unreadable(self, position: Position, error: BookstandError) -> UnreadableEntryError:
        """The error of a damaged entry, or of the rest of its ledger if that cannot be read at all. Raises ``error`` if
        the topic has no such entry, and what the topic as a whole suffers from: it may have been taken over."""
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

    # -- who reads it --------------------------------------------------------------------------------------------------

    def cursor_names(self) -> list[str]:
        """The cursors that are stored, open or not."""
        return sorted(cursor_of(name) for name in self._nodes.children(self.path))

    # -- trimming ------------------------------------------------------------------------------------------------------

    def hold(self, name: str, needs_none_up_to: Callable[[], Position]) -> None:
        """Somebody reads the topic: :meth:`trim_consumed` keeps what is behind the position that the function tells."""
        self._holds[name] = needs_none_up_to

    def release(self, name: str) -> None:
        self._holds.pop(name, None)

    def trim_consumed(self) -> list[int]:
        """Delete ledgers that nobody needs any more. As long as a cursor that is stored is not open, none are."""
        stored = self._nodes.children(self.path)
        with self._lock, self._guard:
            if not self._holds or any(name not in self._holds for name in stored):
                return []
            return self.trim(min(told() for told in self._holds.values()).next)

    def trim(self, before: Position) -> list[int]:
        """Delete the ledgers of which every entry is before the position, the last ledger apart; returns their ids."""
        with self._lock, self._guard:
            if self._fenced is not None:
                raise self._fenced
            ledgers = self._info.ledgers
            count = 0
            while count < len(ledgers) - 1 and Position(ledgers[count].ledger_id, ledgers[count].entries) <= before:
                count += 1
            if not count:
                return []
            doomed = [ledger.ledger_id for ledger in ledgers[:count]]
            self._record(lambda _: self._info._replace(ledgers=ledgers[count:]), doomed)
            self._readers.forget(doomed)
            if self.client.storage.hooks is not None:
                self.client.storage.point("topic.trimmed", self.path)
            return doomed

    def delete(self) -> None:
        """Delete the topic with all its ledgers, in one commit. Its cursors go first."""
        cursors = self._nodes.children(self.path)
        if cursors:
            raise IllegalOperationError(f"topic {self.name} has cursors: {', '.join(cursors)}")
        with self._lock, self._guard:
            self.client.check_writable()
            if self._fenced is not None:
                raise self._fenced
            if self._writer is not None:
                self._end_current()
            try:
                with Transaction(self.client) as transaction:
                    transaction.delete_node(self.path, self._version)
                    self._delete_in(transaction, [ledger.ledger_id for ledger in self._info.ledgers])
            except (MetadataVersionError, NoSuchNodeError) as error:
                self._fence(error)
            self._fenced = ManagedLedgerFencedError(f"topic {self.name} was deleted")

    def close(self) -> None:
        """Commit what is queued, and close the current ledger."""
        with self._lock, self._guard:
            if self._writer is not None:
                try:
                    self._end_current()
                except ManagedLedgerFencedError:
                    # Whose it is now goes on with it.
                    pass
            self._fenced = self._fenced or ClientClosedError(f"topic {self.name} is closed")


class TopicDamagedError(StoreDamagedError):
    """A ledger that a topic lists is missing."""


class UnreadableEntryError(TopicDamagedError):
    """An entry of a topic is damaged, or the rest of a ledger is. The cause says how."""

    def __init__(self, topic: str, position: Position, last: Position, reason: str) -> None:
        self.topic = topic
        self.position = position
        """The first entry that cannot be read."""
        self.last = last
        """The last one: that entry itself, unless the ledger's own records are damaged or missing."""
        self.reason = reason
        if position == last:
            what, acknowledging = f"entry {position}", f"subscription.ack({tuple(position)})"
        else:
            what, acknowledging = f"entries {position} to {last}", "subscription.ack_many(error.positions)"
        super().__init__(
            f"topic {topic}: {what} cannot be read: {reason}. To go on: read from {last.next}; acknowledge unread with "
            f"{acknowledging}; or have damaged entries skipped with TopicConfig(auto_skip_non_recoverable_data=True)"
        )

    @property
    def positions(self) -> list[Position]:
        """All entries that cannot be read."""
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
"""Errors by which an entry that the topic has cannot be read, now or later."""


def _up_to(entries: Iterable[bytes], room: int) -> list[bytes]:
    """Entries until their bytes fill the room; no more are taken."""
    part: list[bytes] = []
    for data in entries:
        part.append(data)
        room -= len(data)
        if room <= 0:
            break
    return part
