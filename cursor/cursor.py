"""A subscription's place in a topic: what is acknowledged, kept in memory as far as that goes, and on the disk.

An acknowledgment is *accepted* when the call returns, and *durable* when the Pending it gave is done; whoever waits for
that has it written. Two locks: ``_lock`` guards the state in memory, is held for no I/O, and is all that
acknowledgments take; ``_flushing`` lets one flush at a time write. A flush encodes what is dirty under the first lock,
so that what it writes is one moment's state, and writes it under the second alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from threading import Lock, RLock
from typing import Any, NamedTuple

from bookstand.cursor import legacy, log, recovery
from bookstand.cursor.acks import LedgerAcks, bits_of, indexes_of
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.history import CursorDiff, HistoryEntry, diff_of, history_of
from bookstand.cursor.index import Index, Prepared
from bookstand.cursor.live import LiveState, PageNeeded
from bookstand.cursor.log import CursorFencedError, CursorLog
from bookstand.cursor.marker import encode_marker, room_for_nodes, state_size
from bookstand.cursor.page import EncodedPage, encode_page
from bookstand.cursor.page_ref import PageRef
from bookstand.cursor.pages import ResidentPages
from bookstand.cursor.ranges import AckRange, RangeSet
from bookstand.cursor.recovery import RecoveredFrom
from bookstand.cursor.state import AckState
from bookstand.cursor.throttle import Throttle
from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    IncorrectParameterError,
    LedgerError,
    LedgerFencedError,
    NoSuchNodeError,
    WriteOnReadOnlyError,
)
from bookstand.ledger.managed import ManagedLedger, TopicEntry
from bookstand.ledger.records import CursorInfo
from bookstand.storage.pending import Completion, Pending, completed, pending_on
from bookstand.storage.position import Position

_UNLIMITED = 1 << 62
INTERNAL_PREFIX = "#pulsar.internal."


class CursorStats(NamedTuple):
    """What there is to watch of a cursor; sizes in bytes."""

    metadata_size: int
    cache_bytes: int
    cache_pages: int
    cache_hits: int
    cache_misses: int
    dirty_pages: int
    flushes: int
    pages_written: int
    bytes_written: int

    @property
    def hit_ratio(self) -> float:
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else 1.0


class _Written(NamedTuple):
    """One moment's state on its way to the disk."""

    entries: list[bytes]
    stamps: dict[int, tuple[int, int]]
    size: int
    mark_delete: Position
    moves: int
    completion: Completion


class Cursor:
    """Use :meth:`open`. All methods may be called from any thread."""

    # -- opening -----------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        topic: ManagedLedger,
        name: str,
        config: CursorConfig | None = None,
        *,
        initial: str = "earliest",
        create: bool = True,
        properties: Mapping[str, int] | None = None,
        cursor_properties: Mapping[str, str] | None = None,
        at_marker: Position | None = None,
    ) -> Cursor:
        """The cursor ``name`` of a topic, made if there is none. ``initial`` is where a new one begins: ``"earliest"``
        or ``"latest"``. ``at_marker``: as it was at one of the markers of :meth:`history`, read-only."""
        if initial not in ("earliest", "latest"):
            raise IncorrectParameterError(f"initial is 'earliest' or 'latest', not {initial!r}")
        config = CursorConfig() if config is None else config
        if not isinstance(config, CursorConfig):
            raise IncorrectParameterError(f"config is a CursorConfig, not {config!r}")
        return cls(topic, name, config, initial, create, properties or {}, cursor_properties or {}, at_marker)

    def __init__(
        self,
        topic: ManagedLedger,
        name: str,
        config: CursorConfig,
        initial: str,
        create: bool,
        properties: Mapping[str, int],
        cursor_properties: Mapping[str, str],
        at_marker: Position | None,
    ) -> None:
        self.topic = topic
        self.name = name
        self.config = config
        self.read_only = topic.client.read_only or at_marker is not None
        self._lock = Lock()
        self._flushing = RLock()
        self._closed: BookstandError | None = None
        self._renew()
        self._log = CursorLog(topic, name, config.compression, config.compression_threshold)
        limit = config.max_individual_ack_cache_bytes if self._paged else _UNLIMITED
        self._state = LiveState(lambda: topic.extent, ResidentPages(limit), Position(-1, -1))
        self._dirty = self._state.pages.dirty
        self._generation = 0
        self._marker: int | None = None
        self._stored_moves = -1
        self._resets = 0
        self.cursor_metadata_size_in_bytes = 0
        self._paused = False
        self._on_pause: list[Callable[[], object]] = []
        self._on_resume: list[Callable[[], object]] = []
        self._flushes = self._pages_written = self._bytes_written = 0
        self._load(initial, create, properties, cursor_properties, at_marker)
        self._read_position = self._next_from(self._state.mark_delete)
        # Whether an acknowledgment may wait for a flush that was asked for by one before it.
        self._joins_flush = config.throttle_mark_delete is None
        self._throttle = Throttle(config.throttle_mark_delete, config.flush_interval, self._flush_quietly)
        if not self.read_only:
            topic.hold(self._log.path.rpartition("/")[2], lambda: self._durable_mark_delete)

    @property
    def _paged(self) -> bool:
        return self.config.enable_lru_cache_max_unacked_ranges

    def _load(
        self,
        initial: str,
        create: bool,
        properties: Mapping[str, int],
        cursor_properties: Mapping[str, str],
        at_marker: Position | None,
    ) -> None:
        info = self._log.load()
        if info is None:
            if not create or self.read_only:
                raise NoSuchNodeError(f"topic {self.topic.name} has no cursor {self.name!r}")
            found = self._begin(initial, properties, cursor_properties)
        else:
            found = self._recover(info, at_marker)
        self.recovered_from = found.source
        self._adopt(found)

    def _begin(
        self, initial: str, properties: Mapping[str, int], cursor_properties: Mapping[str, str]
    ) -> recovery.State:
        """A new cursor: its record is all there is of it."""
        ledgers = self.topic.ledgers
        if initial == "latest":
            mark_delete = self.topic.last_confirmed
        else:
            first = self.topic.extent.first
            mark_delete = Position(first.ledger_id if first else ledgers[0].ledger_id if ledgers else -1, -1)
        info = CursorInfo(
            log.NO_LEDGER,
            mark_delete,
            properties=tuple(properties.items()),
            last_active=self.topic.client.clock.now(),
            cursor_properties=_checked_properties(cursor_properties),
        )
        self._log.put(info)
        source = RecoveredFrom(recovery.NEW, log.NO_LEDGER, -1)
        return recovery.State(source, mark_delete, dict(properties), Index(), [], 0, None, 0)

    def _recover(self, info: CursorInfo, at_marker: Position | None) -> recovery.State:
        topic_entries = {ledger.ledger_id: ledger.entries for ledger in self.topic.ledgers}
        skipped: tuple[str, ...] = ()
        ledger_id = info.cursor_ledger_id if at_marker is None else at_marker.ledger_id
        if ledger_id >= 0:
            try:
                entries = self._log.entries_of(ledger_id, not self.read_only)
                upto = None if at_marker is None else at_marker.entry_id
                found = recovery.recover(self.name, entries, topic_entries, self._state.pages, upto)
                if isinstance(found, recovery.State):
                    if at_marker is None or found.marker_entry == at_marker.entry_id:
                        return found
                    raise IncorrectParameterError(f"cursor {self.name!r} has no whole marker at {at_marker}")
                skipped = found
            except LedgerError as error:
                if at_marker is not None:
                    raise
                skipped = (f"ledger {ledger_id} cannot be read: {error}",)
        mark_delete = info.mark_delete or Position(-1, -1)
        state = legacy.from_parts(mark_delete, info.ranges, info.batches, dict(info.properties), topic_entries).state
        source = RecoveredFrom(recovery.RECORD, log.NO_LEDGER, -1, skipped)
        return recovery.from_old_state(source, state, 0)

    def _adopt(self, found: recovery.State) -> None:
        state = self._state
        state.index = found.pages
        state.properties = dict(found.properties)
        self._generation = found.generation
        self._marker = found.marker_entry
        for page in found.unstored:
            page.limit = self.topic.extent.entries(page.ledger_id) or 0
            state.pages.touch(page)
        state.mark_delete = self._within_topic(found.mark_delete)
        self._drop_what_is_not_there()
        if found.source.how in (recovery.MARKER, recovery.NEW) or self.read_only:
            self._stored_moves = state.moves
        self._durable_mark_delete = state.mark_delete
        self._note_size(found.size)
        self._close_holes()

    def _within_topic(self, mark_delete: Position) -> Position:
        """A position behind the topic's end is the topic's end; one in a ledger that is gone, the entry before."""
        extent = self.topic.extent
        last = self.topic.last_confirmed
        if mark_delete > last:
            return last
        if extent.entries(mark_delete.ledger_id) is None and mark_delete.entry_id < 0:
            return extent.preceding(mark_delete) or mark_delete
        return mark_delete

    def _drop_what_is_not_there(self) -> None:
        """Acknowledgments in ledgers that the topic has not."""
        state, extent = self._state, self.topic.extent
        for ledger_id in [one for one, _ in state.index.items() if extent.entries(one) is None]:
            state.index.remove(ledger_id)
        for ledger_id in [one for one in state.pages.ledger_ids() if extent.entries(one) is None]:
            state.pages.drop(ledger_id)

    # -- changing the state ------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """What is accepted from now on is answered by the next flush."""
        self._completion = Completion(self)
        self._pending = pending_on(self._completion)

    def _change(self, change: Callable[[], object]) -> Pending:
        """Change the state, reading the pages it takes without the lock; returns what tells when it is durable."""
        while True:
            try:
                with self._lock:
                    self._check_writable()
                    change()
                    self._advance_read_position()
                    pending = self._pending if self._is_dirty() else completed()
                    wanted = self._state.wanted
                    over_limit = self._state.pages.over_limit
                break
            except PageNeeded as needed:
                self._bring(needed.ledger_id)
        if wanted is not None:
            self._close_holes()
        if over_limit:
            self.flush()
        else:
            self._throttle.accepted()
        return pending

    def _close_holes(self) -> None:
        """Go on moving the mark-delete position, however many pages have to be read for it."""
        while True:
            with self._lock:
                self._state.close_holes()
                wanted = self._state.wanted
            if wanted is None:
                return
            self._bring(wanted)

    def _bring(self, ledger_id: int) -> None:
        """Read a page, and put it among those in memory."""
        while True:
            with self._lock:
                self._check_usable()
                ref = self._state.index.get(ledger_id)
                handle = self._log.handle
            if ref is None or handle is None:
                return
            try:
                parts = recovery.read_parts(partial(log.read_entry, handle), ref)
                page = recovery.load_page(self.name, ledger_id, ref, parts)
            except BookstandError:
                if handle is not self._log.handle:
                    # The ledger was followed by another meanwhile, and is gone.
                    continue
                raise
            with self._lock:
                if self._state.index.get(ledger_id) is not ref and self._state.index.get(ledger_id) != ref:
                    continue
                self._state.install(page)
            return

    def _is_dirty(self) -> bool:
        return bool(self._dirty) or self._state.moves != self._stored_moves

    def _check_usable(self) -> None:
        if self._closed is not None:
            raise self._closed
        self.topic.client.check_usable()

    def _check_writable(self) -> None:
        self._check_usable()
        if self.read_only:
            raise WriteOnReadOnlyError(f"cursor {self.name!r} was opened read-only")

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, positions: Position | Iterable[Position]) -> Pending:
        """Acknowledge an entry, or several. The Pending is done once that is durable; its ``result()`` has it written.

        Entries that were acknowledged before are no error; one behind the topic's end is, and what came before it in
        the list stays acknowledged.
        """
        if type(positions) is Position:
            ledger_id, entry_id = positions
            with self._lock:
                # The shortest way: a page that is dirty already, and not the one at the mark-delete position.
                page = self._dirty.get(ledger_id)
                frontier = self._state.frontier
                if (
                    page is not None
                    and 0 <= entry_id < page.limit
                    and frontier is not None
                    and ledger_id != frontier[0]
                    and not page.partial
                    and self._joins_flush
                ):
                    page.acked.add(entry_id)
                    return self._pending
            wanted = [positions]
        else:
            wanted = _positions(positions)
        return self._change(lambda: self._state.ack(wanted))

    def ack_many(self, ledger_id: int, entry_ids: Iterable[int]) -> Pending:
        """Acknowledge many entries of one ledger at once, the fast way."""
        ids = list(entry_ids)
        if not ids:
            return completed()
        return self._change(lambda: self._state.ack_ledger(ledger_id, ids))

    def ack_batch(self, position: Position, indexes: Iterable[int], batch_size: int) -> Pending:
        """Acknowledge some messages of a batch; with the last of them the entry is acknowledged."""
        position = _position(position)
        not_acked = bits_of(indexes, batch_size)
        if not self.config.batch_index_acks and not_acked:
            return completed()
        return self._change(lambda: self._state.ack_part(position, not_acked))

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> Pending:
        """Acknowledge everything up to a position. The properties replace those there are."""
        position, properties = _position(position), _long_properties(properties)
        return self._change(lambda: self._state.mark_delete_to(position, properties))

    def mark_delete_batch(
        self,
        position: Position,
        indexes: Iterable[int],
        batch_size: int,
        properties: Mapping[str, int] | None = None,
    ) -> Pending:
        """Acknowledge everything before a batch, and in it what is before the first message not among ``indexes``."""
        position, properties = _position(position), _long_properties(properties)
        not_acked = bits_of(indexes, batch_size)
        return self._change(lambda: self._state.mark_delete_in_batch(position, not_acked, properties))

    def reset(self, position: Position) -> Pending:
        """Go to ``position``, backwards or forwards: it is the next to be delivered. Everything from there on is as if
        it had never been acknowledged."""
        position = _position(position)

        def change() -> None:
            following = self.topic.extent.following(position.previous)
            self._state.reset(position if following is None or position == EARLIEST_IN_LEDGER else following)
            self._resets += 1
            self._read_position = self._next_from(self._state.mark_delete)

        return self._change(change)

    def clear_backlog(self) -> Pending:
        """Acknowledge everything there is."""
        return self._change(lambda: self._state.mark_delete_to(self.topic.last_confirmed, {}))

    # -- questions ---------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[], Any]) -> Any:
        while True:
            try:
                with self._lock:
                    self._check_usable()
                    return question()
            except PageNeeded as needed:
                self._bring(needed.ledger_id)

    @property
    def mark_delete_position(self) -> Position:
        with self._lock:
            return self._state.mark_delete

    @property
    def durable_mark_delete_position(self) -> Position:
        """As of the last flush."""
        return self._durable_mark_delete

    @property
    def read_position(self) -> Position:
        """The next entry that :meth:`read` looks at."""
        with self._lock:
            return self._read_position

    @property
    def properties(self) -> dict[str, int]:
        """Those of the last mark-delete."""
        with self._lock:
            return dict(self._state.properties)

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        position = _position(position)
        return self._ask(lambda: self._state.is_acked(position))  # type: ignore[no-any-return]

    def unacked_in_batch(self, position: Position) -> list[int] | None:
        """The messages of a batch that are not acknowledged yet; None where none of them is."""
        position = _position(position)
        bits = self._ask(lambda: self._state.not_acked_indexes(position))
        return None if bits is None else indexes_of(bits)

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged; no page is read to tell."""
        with self._lock:
            return self._state.backlog

    def acked_ranges(self) -> list[AckRange]:
        """What is acknowledged beyond the mark-delete position, as ranges within ledgers, in their order."""
        return [one for ranges in self.build_individual_deleted_message_ranges() for one in ranges]

    def build_individual_deleted_message_ranges(self) -> list[list[AckRange]]:
        """The same, one list for each ledger of the topic that has any."""
        return [list(RangeSet({page.ledger_id: page.acked})) for page in self._pages() if page.acked]

    def _pages(self) -> Iterator[LedgerAcks]:
        """A copy of each page, in the order of ledgers; those not in memory are read one by one and not kept."""
        with self._lock:
            ids = sorted({*self._dirty, *(ledger_id for ledger_id, _ in self._state.index.items())})
        for ledger_id in ids:
            page = self._ask(partial(self._copy_of_page, ledger_id))
            if page is not None:
                yield page

    def _copy_of_page(self, ledger_id: int) -> LedgerAcks | None:
        page = self._state.page(ledger_id)
        return None if page is None else page.copy()

    def partial_batches(self) -> dict[Position, list[int]]:
        """For each batch that is acknowledged in part, the messages that are not."""
        return {
            Position(page.ledger_id, entry_id): indexes_of(bits)
            for page in self._pages()
            for entry_id, bits in sorted(page.partial.items())
        }

    def lru_switch(self, ledger_id: int) -> bool:
        """Have the page of a ledger in memory; whether there is one."""
        return self._ask(lambda: self._state.page(ledger_id)) is not None

    @property
    def stats(self) -> CursorStats:
        with self._lock:
            pages = self._state.pages
            return CursorStats(
                self.cursor_metadata_size_in_bytes,
                pages.bytes,
                len(pages),
                pages.hits,
                pages.misses,
                len(pages.dirty),
                self._flushes,
                self._pages_written,
                self._bytes_written,
            )

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, count: int, skip: Callable[[Position], bool] | None = None) -> list[TopicEntry]:
        """Up to ``count`` entries from the read position on, which moves behind them. Entries that are acknowledged,
        and those for which ``skip`` is true, are passed over without being read."""
        if type(count) is not int or count < 1:
            raise IncorrectParameterError(f"count is a number from 1 up, not {count!r}")
        found: list[TopicEntry] = []
        while len(found) < count:
            extent = self.topic.extent
            start = self.read_position
            following = extent.following(start.previous)
            if following is None:
                break
            ledger_id, first = following
            last = (extent.entries(ledger_id) or 0) - 1
            runs, end = self._wanted_runs(ledger_id, first, last, count - len(found), skip)
            for run_first, run_last in runs:
                for entry in self.topic.read_ledger(ledger_id, run_first, run_last):
                    found.append(TopicEntry(Position(ledger_id, entry.entry_id), entry.data))
            with self._lock:
                if self._read_position == start:
                    self._read_position = Position(ledger_id, end + 1)
        return found

    def _wanted_runs(
        self, ledger_id: int, first: int, last: int, count: int, skip: Callable[[Position], bool] | None
    ) -> tuple[list[tuple[int, int]], int]:
        """Runs of entries to deliver, ``count`` of them at most, and the last entry that was looked at."""

        def look() -> tuple[list[tuple[int, int]], int]:
            page = self._state.page(ledger_id)
            consumed = self._state.mark_delete
            runs: list[tuple[int, int]] = []
            left = count
            entry_id = first if ledger_id > consumed.ledger_id else max(first, consumed.entry_id + 1)
            while entry_id <= last and left:
                if page is not None and entry_id in page.acked:
                    entry_id = page.next_open(entry_id)
                    continue
                if skip is None or not skip(Position(ledger_id, entry_id)):
                    if runs and runs[-1][1] == entry_id - 1:
                        runs[-1] = runs[-1][0], entry_id
                    else:
                        runs.append((entry_id, entry_id))
                    left -= 1
                entry_id += 1
            return runs, min(entry_id - 1, last) if left == 0 else last

        return self._ask(look)  # type: ignore[no-any-return]

    @property
    def has_more(self) -> bool:
        """Whether there is an entry at or behind the read position."""
        return self.topic.extent.following(self.read_position.previous) is not None

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        with self._lock:
            self._read_position = self._next_from(self._state.mark_delete)

    def seek(self, position: Position) -> None:
        """Read from the position on, but from no entry up to the mark-delete position."""
        with self._lock:
            self._read_position = max(_position(position), self._next_from(self._state.mark_delete))

    def _next_from(self, position: Position) -> Position:
        return self.topic.extent.following(position) or position.next

    def _advance_read_position(self) -> None:
        if self._read_position <= self._state.mark_delete:
            self._read_position = self._next_from(self._state.mark_delete)

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is accepted and not durable yet; nothing if there is nothing."""
        with self._flushing:
            with self._lock:
                self._check_usable()
                if self.read_only or not self._is_dirty():
                    return
            try:
                if not self._paged:
                    self._flush_snapshot()
                elif self._log.is_writable(
                    self.config.max_entries_per_cursor_ledger, self.config.max_cursor_ledger_age * 1000
                ):
                    self._flush_pages()
                else:
                    self._flush_into_new_ledger()
            except CursorFencedError as error:
                self._closed = error
                raise
        self._tell_dispatchers()

    def _flush_quietly(self) -> None:
        """What the background does; who waits for a result is told by it."""
        try:
            self.flush()
            if self._is_dirty():
                self._throttle.accepted()
        except BookstandError as error:
            from bookstand.storage.log import logger

            logger().warning("cursor %s of topic %s could not be written: %s", self.name, self.topic.name, error)

    def _encode_dirty(self) -> dict[int, EncodedPage]:
        """The dirty pages as entries; the lock is held."""
        return {
            ledger_id: encode_page(
                self.name,
                ledger_id,
                page.acked,
                page.partial,
                generation=self._generation + 1,
                mark_delete=self._state.mark_delete,
                limit=self._log.entry_limit,
            )
            for ledger_id, page in sorted(self._dirty.items())
            if page
        }

    def _written(self, entries: list[bytes], size: int) -> _Written:
        """Note what this flush will have written; the lock is held."""
        completion = self._completion
        self._renew()
        stamps = {ledger_id: page.stamp for ledger_id, page in self._dirty.items()}
        return _Written(entries, stamps, size, self._state.mark_delete, self._state.moves, completion)

    def _flush_pages(self) -> None:
        """Dirty pages, what changed of the index, and a marker, at the end of the ledger there is."""
        with self._lock:
            state, index = self._state, self._state.index
            encoded = self._encode_dirty()
            next_entry = self._log.next_entry
            entries: list[bytes] = []
            replaced: dict[int, PageRef | None] = {}
            for ledger_id in [one for one, page in self._dirty.items() if not page]:
                replaced[ledger_id] = index.remove(ledger_id)
            for ledger_id, page in encoded.items():
                replaced[ledger_id] = index.get(ledger_id)
                index.set(ledger_id, page.ref(next_entry + len(entries)))
                entries += page.entries
            prepared, marker = self._encode_marker(index, next_entry + len(entries), len(entries), self._marker)
            written = self._written(entries + marker, state_size(prepared, state.properties))
        try:
            writer = self._log.writer
            assert writer is not None
            log.append(writer, written.entries, self.config.flush_commit_bytes)
        except BaseException as error:
            with self._lock:
                index.abort()
                for ledger_id, ref in replaced.items():
                    if ref is None:
                        index.remove(ledger_id)
                    elif ledger_id >= state.mark_delete.ledger_id:
                        index.set(ledger_id, ref)
            self._failed(written, error)
            raise
        with self._lock:
            index.commit()
            self._generation += 1
            self._marker = prepared.marker_entry_id
        self._succeeded(written)

    def _encode_marker(
        self, index: Index, entry_id: int, page_entries: int, previous: int | None
    ) -> tuple[Prepared, list[bytes]]:
        properties = self._state.properties
        prepared = index.prepare(entry_id, room_for_nodes(self.name, properties, self._log.entry_limit))
        marker = encode_marker(
            self.name,
            prepared,
            generation=self._generation + 1,
            mark_delete=self._state.mark_delete,
            properties=properties,
            time_ms=self.topic.client.clock.now(),
            previous=previous,
            page_entries=page_entries,
        )
        return prepared, marker

    def _flush_into_new_ledger(self) -> None:
        """The pages that the index refers to are copied, nothing else; then the record is pointed at the new ledger.
        The old one stays whole and in use until then."""
        with self._lock:
            encoded = self._encode_dirty()
            clean = [(one, ref) for one, ref in self._state.index.items() if one not in self._dirty]
            old = self._log.handle
            resets = self._resets
            written = self._written([], 0)
            properties = dict(self._state.properties)
        try:
            writer = self._log.begin()
            try:
                index, size = self._fill(writer, clean, encoded, old, written, properties)
                self._log.switch(writer, self._info_of(written, properties), self.config.retained_cursor_ledgers)
            except CursorFencedError:
                raise
            except BookstandError:
                self._log.drop(writer)
                raise
        except CursorFencedError as error:
            self._failed(written, error)
            raise
        except BaseException as error:
            if not isinstance(error, BookstandError) or not self._fall_back(written, properties):
                self._failed(written, error)
                raise
            return
        with self._lock:
            self._generation += 1
            self._take_over(index, resets)
        self._succeeded(written._replace(size=size))

    def _fill(
        self,
        writer: Any,
        clean: list[tuple[int, PageRef]],
        encoded: dict[int, EncodedPage],
        old: Any,
        written: _Written,
        properties: dict[str, int],
    ) -> tuple[Index, int]:
        """Write a whole state into an empty ledger; returns its index, and its size."""
        refs: dict[int, PageRef] = {}
        batch: list[bytes] = []
        at = size = 0
        for ledger_id, ref in clean:
            parts = recovery.read_parts(lambda entry_id: log.read_entry(old, entry_id), ref)
            # What was damaged since it was checked is not to be carried on under a new name.
            recovery.load_page(self.name, ledger_id, ref, parts)
            refs[ledger_id] = ref._replace(entry_id=at + len(batch))
            batch += parts
            size += sum(map(len, parts))
            if size >= self.config.flush_commit_bytes:
                log.append(writer, batch, self.config.flush_commit_bytes)
                at += len(batch)
                batch, size = [], 0
        for ledger_id, page in encoded.items():
            refs[ledger_id] = page.ref(at + len(batch))
            batch += page.entries
        index = Index.build(sorted(refs.items()))
        entry_id = at + len(batch)
        prepared = index.prepare(entry_id, room_for_nodes(self.name, properties, self._log.entry_limit))
        batch += encode_marker(
            self.name,
            prepared,
            generation=self._generation + 1,
            mark_delete=written.mark_delete,
            properties=properties,
            time_ms=self.topic.client.clock.now(),
            previous=None,
            page_entries=entry_id,
        )
        log.append(writer, batch, self.config.flush_commit_bytes)
        index.commit()
        self._marker = prepared.marker_entry_id
        written.entries.extend(batch)
        return index, state_size(prepared, properties)

    def _take_over(self, index: Index, resets: int) -> None:
        """The new ledger's index, without what has gone since it was made; the lock is held."""
        state = self._state
        mark_delete = state.mark_delete
        if resets != self._resets:
            index = Index()
        index.remove_below(mark_delete.ledger_id)
        if mark_delete.ledger_id not in state.pages and mark_delete.ledger_id not in state.index:
            index.remove(mark_delete.ledger_id)
        state.index = index

    def _info_of(self, written: _Written, properties: Mapping[str, int]) -> CursorInfo:
        """The record beside a ledger: the position to fall back to."""
        info = self._log.info
        assert info is not None
        return info._replace(
            mark_delete=written.mark_delete,
            ranges=(),
            batches=(),
            properties=tuple(properties.items()),
            last_active=self.topic.client.clock.now(),
        )

    # -- the old form ------------------------------------------------------------------------------------------------

    def _old_state(self) -> AckState:
        """The whole state as it is now, copied; the lock is held, and all pages are in memory."""
        pages = {ledger_id: self._state.page(ledger_id) for ledger_id in self._state.pages.ledger_ids()}
        return AckState(
            self._state.mark_delete,
            {ledger_id: page.acked.copy() for ledger_id, page in pages.items() if page is not None and page.acked},
            {
                Position(ledger_id, entry_id): bits
                for ledger_id, page in pages.items()
                if page is not None
                for entry_id, bits in page.partial.items()
            },
            dict(self._state.properties),
        )

    def _flush_snapshot(self) -> None:
        """The whole state in Pulsar's form, as one entry; into the record where that is too large for an entry."""
        for ledger_id, _ in list(self._state.index.items()):
            self._bring(ledger_id)
        config = self.config
        with self._lock:
            state = self._old_state()
            written = self._written([], 0)
        try:
            snapshot = legacy.write(
                state,
                "long_arrays" if config.persist_as_long_array else "ranges",
                config.max_unacked_ranges_to_persist,
                config.max_batch_deleted_index_to_persist,
            ).data
            if len(snapshot) > self._log.entry_limit:
                self._log.inline(self._inline_info(state))
            elif self._log.is_writable(config.max_entries_per_cursor_ledger, config.max_cursor_ledger_age * 1000):
                assert self._log.writer is not None
                log.append(self._log.writer, [snapshot], config.flush_commit_bytes)
            else:
                writer = self._log.begin()
                log.append(writer, [snapshot], config.flush_commit_bytes)
                info = self._info_of(written, state.properties)
                self._log.switch(writer, info, config.retained_cursor_ledgers)
        except CursorFencedError as error:
            self._failed(written, error)
            raise
        except BaseException as error:
            if not isinstance(error, BookstandError) or not self._fall_back(written, state.properties):
                self._failed(written, error)
                raise
            return
        with self._lock:
            # In this form no page is stored by itself.
            self._state.index = Index()
            self._marker = None
        written.entries.append(snapshot)
        self._succeeded(written._replace(size=len(snapshot)), paged=False)

    def _inline_info(self, state: AckState) -> CursorInfo:
        info = self._log.info
        assert info is not None
        limit = self.config.max_unacked_ranges_in_metadata_store
        ranges = [(*one.lower, *one.upper) for one in RangeSet(state.acked).to_ranges(limit)]
        return info._replace(
            mark_delete=state.mark_delete,
            ranges=tuple(ranges),
            batches=tuple((position.ledger_id, position.entry_id, bits) for position, bits in state.batches.items()),
            properties=tuple(state.properties.items()),
            last_active=self.topic.client.clock.now(),
        )

    def _fall_back(self, written: _Written, properties: Mapping[str, int]) -> bool:
        """No ledger can be written: put the state into the record, if all of it is in memory and it is small enough.
        Returns whether that worked."""
        with self._lock:
            if any(ledger_id not in self._state.pages for ledger_id, _ in self._state.index.items()):
                return False
            state = self._old_state()
        if len(RangeSet(state.acked)) > self.config.max_unacked_ranges_in_metadata_store:
            return False
        if not self._log_has_record():
            return False
        try:
            self._log.inline(self._inline_info(state))
        except BookstandError:
            return False
        with self._lock:
            self._state.index = Index()
            self._marker = None
        self._succeeded(written, paged=False)
        return True

    def _log_has_record(self) -> bool:
        return self._log.info is not None

    # -- after a flush -----------------------------------------------------------------------------------------------

    def _succeeded(self, written: _Written, paged: bool = True) -> None:
        with self._lock:
            for ledger_id, stamp in written.stamps.items():
                page = self._dirty.get(ledger_id)
                if page is None or page.stamp != stamp:
                    continue
                if not page:
                    self._state.pages.drop(ledger_id)
                else:
                    self._state.pages.stored(ledger_id)
            self._stored_moves = written.moves
            self._durable_mark_delete = written.mark_delete
            self._flushes += 1
            self._pages_written += len(written.stamps)
            self._bytes_written += sum(map(len, written.entries))
            self._note_size(written.size)
        written.completion.complete()

    def _failed(self, written: _Written, error: BaseException) -> None:
        """What is in memory has moved, and is written by a later flush."""
        if not isinstance(error, BookstandError):
            error = LedgerFencedError(f"a flush was interrupted by {error!r}")
        written.completion.complete(error=error)

    # -- waiting for a flush: the Pendings' driver -------------------------------------------------------------------

    def drive(self, completion: Completion, deadline: float | None) -> None:
        """Somebody waits for it to be durable: write it now."""
        while not completion.done:
            try:
                self.flush()
            except BookstandError:
                if not completion.done:
                    raise
            with self._lock:
                if not completion.done and completion is self._completion and not self._is_dirty():
                    # What it stood for has been written, or undone, by others.
                    self._renew()
                    break
        else:
            return
        completion.complete()

    def hurry(self) -> None:
        self._throttle.hurry()

    # -- the size limit ----------------------------------------------------------------------------------------------

    def _note_size(self, size: int) -> None:
        self.cursor_metadata_size_in_bytes = size

    @property
    def paused(self) -> bool:
        """Whether the state is so large that no new messages are to be dispatched, nor delayed ones that are due."""
        limit = self.config.max_per_cursor_metadata_size_in_bytes
        return limit >= 1 and self.cursor_metadata_size_in_bytes >= limit

    def on_pause(self, callback: Callable[[], object]) -> None:
        """Call it whenever dispatching is to pause."""
        self._on_pause.append(callback)

    def on_resume(self, callback: Callable[[], object]) -> None:
        """Call it whenever dispatching may go on."""
        self._on_resume.append(callback)

    def _tell_dispatchers(self) -> None:
        paused = self.paused
        if paused != self._paused:
            self._paused = paused
            for callback in self._on_pause if paused else self._on_resume:
                callback()

    # -- string properties -------------------------------------------------------------------------------------------

    @property
    def cursor_properties(self) -> dict[str, str]:
        """Properties of the subscription, which are in its record and durable at once."""
        assert self._log.info is not None
        return dict(self._log.info.cursor_properties)

    def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace all of them but those that begin with ``#pulsar.internal.``, which stay."""
        with self._flushing:
            self._check_writable()
            kept = {name: value for name, value in self.cursor_properties.items() if name.startswith(INTERNAL_PREFIX)}
            self._put_properties({**kept, **dict(_checked_properties(properties))})

    def put_cursor_property(self, name: str, value: str) -> None:
        with self._flushing:
            self._check_writable()
            _checked_properties({name: value})
            self._put_properties({**self.cursor_properties, name: value})

    def remove_cursor_property(self, name: str) -> None:
        with self._flushing:
            self._check_writable()
            properties = self.cursor_properties
            properties.pop(name, None)
            self._put_properties(properties)

    def _put_properties(self, properties: Mapping[str, str]) -> None:
        assert self._log.info is not None
        self._log.put(self._log.info._replace(cursor_properties=tuple(properties.items())))

    # -- time travel -------------------------------------------------------------------------------------------------

    def history(self) -> list[HistoryEntry]:
        """The markers that are still there, newest first: in the cursor's ledger, and in former ones that are kept."""
        return history_of(self)

    def diff(self, one: Position | None, other: Position | None) -> CursorDiff:
        """What is acknowledged at ``other`` and not at ``one``, and the reverse. Both are markers of
        :meth:`history`, or None for what is now."""
        return diff_of(self, one, other)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is accepted, and close the cursor's ledger. In the old form a small state goes into the record,
        as Pulsar has it."""
        self._throttle.stop()
        with self._flushing:
            if self._closed is not None:
                return
            try:
                if not self.read_only:
                    self.flush()
                    self._end()
            finally:
                self._closed = ClientClosedError(f"cursor {self.name!r} of topic {self.topic.name} is closed")

    def _end(self) -> None:
        if not self._paged and self._log.handle is not None:
            with self._lock:
                state = self._old_state()
            if len(RangeSet(state.acked)) <= self.config.max_unacked_ranges_in_metadata_store:
                self._log.inline(self._inline_info(state))
                return
        if self._log.writer is not None:
            self._log.writer.close()

    def delete(self) -> None:
        """Delete the cursor with all that is stored of it, in one commit."""
        self._throttle.stop()
        with self._flushing:
            self._check_writable()
            self._log.delete()
            self.topic.release(self._log.path.rpartition("/")[2])
            self._closed = CursorFencedError(f"cursor {self.name!r} of topic {self.topic.name} was deleted")

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cursor {self.name!r} of {self.topic.name!r} at {self._state.mark_delete}>"


EARLIEST_IN_LEDGER = Position(-1, -1)


def _position(position: object) -> Position:
    if isinstance(position, tuple) and len(position) == 2 and all(type(part) is int for part in position):
        return Position(*position)
    raise IncorrectParameterError(f"a position is a ledger id and an entry id, not {position!r}")


def _positions(positions: object) -> list[Position]:
    if isinstance(positions, tuple) and len(positions) == 2 and all(type(part) is int for part in positions):
        return [Position(*positions)]
    if not isinstance(positions, Iterable):
        raise IncorrectParameterError(f"positions are a Position or an iterable of them, not {positions!r}")
    return [_position(one) for one in positions]


def _long_properties(properties: Mapping[str, int] | None) -> dict[str, int]:
    checked = dict(properties or {})
    for name, value in checked.items():
        if not isinstance(name, str) or type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise IncorrectParameterError(f"a property is a name with a 64-bit number, not {name!r}: {value!r}")
    return checked


def _checked_properties(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise IncorrectParameterError(f"a cursor property is a name with a string, not {name!r}: {value!r}")
        if name.startswith(INTERNAL_PREFIX):
            raise IncorrectParameterError(f"property {name!r}: names that begin with {INTERNAL_PREFIX} are reserved")
    return tuple(properties.items())
