"""A subscription's position in a topic: the acknowledged entries, in memory and on disk.

An acknowledgment is *accepted* when the call returns, and *durable* when the Pending it returned is done. Waiting for
that Pending triggers a flush.

There are two locks. ``_lock`` guards the state in memory (``state/cursor_state.py``), is never held during I/O, and is
the only lock that an acknowledgment takes. The flush lock (``store/flusher.py``) lets one flush at a time write. A
flush encodes the dirty pages under both locks, so that it writes a consistent state, and writes under the flush lock
alone.

The parts, each of which depends only on those before it: the state, :class:`Flusher`, :class:`CursorLifecycle`,
:class:`PageLoader`, :class:`CursorReader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from bookstand.cursor import metrics
from bookstand.cursor.config import CURSOR_WHILE_OPEN, CursorConfig
from bookstand.cursor.dispatch_pause import LEFT_OUT, STATE_SIZE, Admission, DispatchPause
from bookstand.cursor.format import snapshot_form
from bookstand.cursor.lifecycle import CursorLifecycle
from bookstand.cursor.metrics import CursorStats
from bookstand.cursor.reader import CursorReader, EntryFilter, predicate_from_skip
from bookstand.cursor.state.cursor_state import CursorState
from bookstand.cursor.state.ledger_acks import bits_of, indexes_of
from bookstand.cursor.state.page_cache import PageCache
from bookstand.cursor.state.ranges import AckRange, RangeSet
from bookstand.cursor.store import bootstrap
from bookstand.cursor.store.cursor_ledger import CursorFencedError, CursorLedger
from bookstand.cursor.store.flush_scheduler import FlushScheduler
from bookstand.cursor.store.flusher import Flusher, FlushStats
from bookstand.cursor.store.history import AllAcked, CursorDiff, HistoryEntry, all_acked, diff_of, history_of
from bookstand.cursor.store.page_loader import PageLoader
from bookstand.cursor.store.recovery import MARKER, DamagedPage
from bookstand.cursor.validation import (
    INTERNAL_PREFIX,
    as_count,
    as_cursor_properties,
    as_position,
    as_positions,
    as_properties,
    check_cursor_property,
)
from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    IllegalOperationError,
    IncorrectParameterError,
    NoSuchNodeError,
    StoreCrashedError,
)
from bookstand.ledger.transaction import Transaction
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.topic_entries import EntryRun, TopicEntry
from bookstand.storage.commit.futures import Pending, completed
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger
from bookstand.storage.metrics import Sample
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.managed_ledger.managed_ledger import OnUnreadable

_UNLIMITED = 1 << 62
_LEDGER_OF, _ENTRY_OF = itemgetter(0), itemgetter(1)


class Cursor(ProcessBound):
    """A subscription's position in a topic; use :meth:`open`. All methods are thread-safe."""

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
        read_only: bool = False,
    ) -> Cursor:
        """Open the cursor ``name`` of a topic; create it at ``initial`` (``"earliest"`` or ``"latest"``) if it does not
        exist. ``at_marker`` opens the state at a marker of :meth:`history`, read-only. ``read_only`` opens the stored
        state without fencing another owner."""
        if initial not in ("earliest", "latest"):
            raise IncorrectParameterError(f"initial must be 'earliest' or 'latest', not {initial!r}")
        config = _as_config(CursorConfig() if config is None else config)
        read_only = read_only or topic.client.read_only or at_marker is not None
        return cls(
            topic,
            name,
            config,
            initial,
            create,
            as_properties(properties),
            as_cursor_properties(cursor_properties or {}),
            at_marker,
            read_only,
        )

    @classmethod
    def discard(cls, topic: ManagedLedger, name: str) -> None:
        """Delete a cursor without opening it, in one commit with all of its ledgers. Its state, ledgers and record may
        all be unreadable. A current owner of the cursor is fenced. Raises :class:`NoSuchNodeError` if the cursor does
        not exist."""
        log = CursorLedger(topic, name, None, 0)
        log.discard()
        topic.unregister_cursor(log.hold_name)

    def __init__(
        self,
        topic: ManagedLedger,
        name: str,
        config: CursorConfig,
        initial: str,
        create: bool,
        properties: Mapping[str, int],
        cursor_properties: tuple[tuple[str, str], ...],
        at_marker: Position | None,
        read_only: bool,
    ) -> None:
        self.topic = topic
        self.name = name
        self.config = config
        self.read_only = read_only
        self.at_marker = at_marker
        """Marker of :meth:`history` that the cursor was opened at; None for its newest state."""
        self._lock = Lock()
        self._log = CursorLedger(topic, name, config.compression, config.compression_threshold)
        paged = config.enable_lru_cache_max_unacked_ranges
        pages = PageCache(config.max_individual_ack_cache_bytes if paged else _UNLIMITED)
        self._state = CursorState(lambda: topic.extent, pages, Position(-1, -1))
        self._dirty = pages.dirty
        info = self._log.load()
        if info is not None:
            found = bootstrap.recover(topic, name, self._log, info, pages, at_marker, self.read_only)
        elif create and not self.read_only:
            found = bootstrap.create(topic, self._log, initial, properties, cursor_properties)
        else:
            raise NoSuchNodeError(f"topic {topic.name} has no cursor {name!r}")
        self.recovered_from = found.source
        for damage in found.source.damage:
            logger().warning("topic %s, cursor %s: %s", topic.name, name, damage)
        bootstrap.install_recovered(topic, self._state, found)
        self._scheduler = FlushScheduler(config.throttle_mark_delete, config.flush_interval, self._flush_in_background)
        # With a rate limit every acknowledgment must reach the scheduler, so none may take the fast path of ack().
        self._joins_flush = config.throttle_mark_delete is None and not self.read_only
        self._flusher = Flusher(name, self._state, self._log, config, self._lock, self._scheduler.request_flush)
        self._flusher.adopt_recovered(found)
        self._lifecycle = CursorLifecycle(name, topic.client, self._flusher, self.read_only)
        self._loader = PageLoader(name, self._state, self._log, self._flusher, self._lock, self._lifecycle)
        self._loader.advance_mark_delete()
        if not paged:
            self._load_for_snapshot_form(switching=found.source.how == MARKER)
        self._reader = CursorReader(topic, self._state, self._loader, self._lock)
        self._pause = DispatchPause(self._state, self._flusher, config)
        self._flusher.after_drive = self._pause.notify
        if not self.read_only:
            topic.register_cursor(self._log.hold_name, lambda: self.durable_mark_delete_position)
        topic.client.add_metrics(self)

    def _load_for_snapshot_form(self, switching: bool) -> None:
        """Load all pages, because the snapshot form needs the whole state in memory. When ``switching`` from pages,
        reject a state that the next flush would truncate; too many ranges or batches are detected before the pages are
        in memory. A state that is already in the snapshot form pauses dispatch instead while its limits truncate it."""
        reason = None
        checked = switching and not self.read_only and not self.config.allow_loss
        if checked:
            ranges = batches = 0
            for page in self._loader.pages():
                ranges += len(RangeSet({page.ledger_id: page.acked}))
                batches += len(page.partial)
            reason = snapshot_form.misfit(ranges, batches, self.config)
        if reason is None:
            self._loader.load_all()
            if checked:
                reason = self._flusher.snapshot_misfit(inline=True)
        if reason is not None:
            raise IllegalOperationError(
                f"cursor {self.name!r} of topic {self.topic.name} cannot be opened in the snapshot form without losing"
                f" acknowledgments: its state {reason}; raise that limit, leave enable_lru_cache_max_unacked_ranges on,"
                " or set allow_loss=True to have those messages redelivered"
            )

    # -- settings ----------------------------------------------------------------------------------------------------

    def check_config(self, config: CursorConfig) -> None:
        """Raise :class:`IllegalOperationError` if :meth:`change_config` would reject ``config``."""
        CURSOR_WHILE_OPEN.check(f"cursor {self.name!r} of topic {self.topic.name}", self.config, _as_config(config))

    def change_config(self, config: CursorConfig) -> None:
        """Replace the settings of the open cursor: all of them, or none if one is rejected. The storage form
        (``enable_lru_cache_max_unacked_ranges``) cannot be changed while the cursor is open."""
        with self._flusher.flush_lock:
            self.check_config(config)
            self.config = config
            self._flusher.change_config(config)
            self._log.change_compression(config.compression, config.compression_threshold)
            self._scheduler.change(config.throttle_mark_delete, config.flush_interval)
            with self._lock:
                self._joins_flush = config.throttle_mark_delete is None and not self.read_only
                if config.enable_lru_cache_max_unacked_ranges:
                    self._state.pages.change_limit(config.max_individual_ack_cache_bytes)
        self._pause.change_config(config)

    # -- changing the state ------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[], object]) -> Pending:
        """Change the state; return the Pending of the flush that makes the change durable."""

        def apply() -> tuple[Pending, bool, bool]:
            self._lifecycle.check_writable()
            change()
            self._reader.advance()
            pending = self._flusher.pending if self._flusher.is_dirty else completed()
            return pending, self._state.blocked_on_page is not None, self._state.pages.over_limit

        pending, is_blocked, over_limit = self._loader.query(apply)
        if is_blocked:
            self._loader.try_advance_mark_delete()
        if over_limit:
            self.flush()
        else:
            self._scheduler.on_change()
        return pending

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, positions: Position | Iterable[Position]) -> Pending:
        """Acknowledge an entry, or several. The Pending completes when the acknowledgment is durable; its ``result()``
        triggers a flush.

        Entries that are already acknowledged are ignored. A position beyond the topic's end is an error; the positions
        before it in the list are acknowledged. A list is not atomic: it is applied ledger by ledger, and a flush in
        between happens if dirty pages exceed their share of the cache.
        """
        if type(positions) is Position:
            ledger_id, entry_id = positions
            with self._lock:
                # Fast path: the page is already dirty and the acknowledgment does not move mark-delete.
                page = self._dirty.get(ledger_id) if self._lifecycle.is_idle else None
                if (
                    page is not None
                    and 0 <= entry_id < page.limit
                    and not page.partial
                    and not page.may_have_runs
                    and self._joins_flush
                ):
                    next_unacked = self._state.next_unacked
                    if next_unacked is not None and positions > next_unacked:
                        page.acked.add(entry_id)
                        return self._flusher.pending
            return self._change(partial(self._state.ack, positions))
        requested = as_positions(positions)
        with self._lock:
            self._lifecycle.check_writable()
            by_ledger, error = self._state.by_ledger(requested)
        pending = self._ack_by_ledger(by_ledger)
        if error is not None:
            raise error
        return pending

    def ack_many(self, ledger_id: int, entry_ids: Iterable[int]) -> Pending:
        """Acknowledge entries of one ledger: all of them, or none if one does not exist."""
        ids = list(entry_ids)
        if not ids:
            return completed()
        return self._change(partial(self._state.ack_ledger, ledger_id, ids))

    def ack_entries(self, positions: Iterable[Position]) -> Pending:
        """Acknowledge entries of any ledgers: none if one does not exist, otherwise ledger by ledger like
        :meth:`ack`."""
        requested = list(positions)
        if not requested:
            return completed()
        first_ledger = requested[0][0]
        if list(map(_LEDGER_OF, requested)).count(first_ledger) == len(requested):
            return self.ack_many(first_ledger, map(_ENTRY_OF, requested))
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, group in groupby(requested, _LEDGER_OF):
            by_ledger.setdefault(ledger_id, []).extend(map(_ENTRY_OF, group))
        with self._lock:
            self._lifecycle.check_writable()
            self._state.check(by_ledger)
        return self._ack_by_ledger(by_ledger)

    def _ack_by_ledger(self, by_ledger: Mapping[int, list[int]]) -> Pending:
        """Acknowledge existing entries. Flushes in between whenever too many pages are dirty, so that memory does not
        grow with the number of ledgers. The last Pending covers all changes, because flushes are ordered."""
        work = sorted(by_ledger.items(), reverse=True)
        while True:
            pending = self._change(partial(self._state.ack_ledgers, work))
            if not work:
                return pending

    def ack_batch(self, position: Position, indexes: Iterable[int], batch_size: int) -> Pending:
        """Acknowledge messages of a batch. The entry is acknowledged with its last message."""
        position = as_position(position)
        not_acked = bits_of(indexes, batch_size)
        if not self.config.batch_index_acks and not_acked:
            return completed()
        return self._change(lambda: self._state.ack_part(position, not_acked))

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> Pending:
        """Acknowledge everything up to and including a position, and replace the mark-delete properties."""
        position, properties = as_position(position), as_properties(properties)
        return self._change(lambda: self._state.mark_delete_to(position, properties))

    def mark_delete_batch(
        self,
        position: Position,
        indexes: Iterable[int],
        batch_size: int,
        properties: Mapping[str, int] | None = None,
    ) -> Pending:
        """Acknowledge everything before a batch, and its messages before the first one not in ``indexes``."""
        position, properties = as_position(position), as_properties(properties)
        not_acked = bits_of(indexes, batch_size)
        if not not_acked:
            return self.mark_delete(position, properties)
        if not self.config.batch_index_acks:
            return self._change(lambda: self._state.mark_delete_before(position, properties))
        return self._change(lambda: self._state.mark_delete_in_batch(position, not_acked, properties))

    def reset(self, position: Position) -> Pending:
        """Move the cursor backwards or forwards, so that ``position`` is delivered next. Everything from there on
        becomes unacknowledged."""
        position = as_position(position)

        def change() -> None:
            self._state.reset(position)
            self._reader.rewind()

        pending = self._change(change)
        # Flush now: after a crash the revoked acknowledgments would be in effect again.
        self._flush_in_background()
        return pending

    def skip(self, count: int, include_acked: bool = False) -> Pending:
        """Acknowledge everything up to the ``count``-th entry after the mark-delete position, or up to the end of a
        shorter backlog. Acknowledged entries count only with ``include_acked``."""
        count = as_count(count)

        def change() -> None:
            target = self._nth(count, include_acked) or self.topic.last_confirmed
            self._state.mark_delete_to(max(target, self._state.mark_delete), {})

        return self._change(change)

    def clear_backlog(self) -> Pending:
        """Acknowledge all entries of the topic."""
        return self._change(lambda: self._state.mark_delete_to(self.topic.last_confirmed, {}))

    # -- queries -----------------------------------------------------------------------------------------------------

    @property
    def mark_delete_position(self) -> Position:
        """Position up to which everything is acknowledged."""
        # Does not take the lock: reading one reference is atomic, and callers may hold locks that the lock's holders
        # wait for.
        return self._state.mark_delete

    @property
    def durable_mark_delete_position(self) -> Position:
        """Mark-delete position as of the last flush."""
        return self._flusher.durable_mark_delete

    @property
    def read_position(self) -> Position:
        """Position of the next entry that :meth:`read` considers."""
        return self._reader.position

    @property
    def properties(self) -> dict[str, int]:
        """Properties of the mark-delete position."""
        with self._lock:
            return dict(self._state.properties)

    def is_acked(self, position: Position) -> bool:
        """Return True if the whole entry is acknowledged."""
        position = as_position(position)
        return self._loader.query(lambda: self._state.is_acked(position))

    def nth(self, count: int, include_acked: bool = False) -> Position | None:
        """Return the ``count``-th unacknowledged entry after the mark-delete position, or with ``include_acked`` the
        ``count``-th entry. Returns None if the backlog is smaller. Reads at most one page."""
        count = as_count(count)
        return self._loader.query(lambda: None if count > self._state.backlog else self._nth(count, include_acked))

    def _nth(self, count: int, include_acked: bool) -> Position | None:
        if not include_acked:
            return self._state.nth_unacked(count)
        extent = self.topic.extent
        return extent.at(extent.rank(self._state.mark_delete) + count)

    def next_available(self, position: Position) -> Position:
        """Return the entry after a position, or after the run of acknowledged entries that contains it."""
        position = as_position(position)
        return self._reader.next_position(self._loader.query(lambda: self._state.run_end(position)))

    def replay(self, positions: Iterable[Position], on_unreadable: OnUnreadable | None = None) -> list[TopicEntry]:
        """Read the unacknowledged entries among ``positions``, in ascending order, independently of the read position.
        Damaged entries are handled as in :meth:`ManagedLedger.read_run`."""
        extent = self.topic.extent
        unacked = [one for one in sorted(set(as_positions(positions))) if extent.has(one) and not self.is_acked(one)]
        return list(self.topic.read_positions(unacked, on_unreadable))

    def put_property(self, name: str, value: int) -> None:
        """Set one mark-delete property; the next flush stores it."""
        as_properties({name: value})
        with self._lock:
            self._lifecycle.check_writable()
            self._state.properties[name] = value
            self._state.version += 1

    def remove_property(self, name: str) -> None:
        """Remove one mark-delete property; the next flush stores that."""
        with self._lock:
            self._lifecycle.check_writable()
            self._state.properties.pop(name, None)
            self._state.version += 1

    def unacked_in_batch(self, position: Position) -> list[int] | None:
        """Return the unacknowledged messages of a partially acknowledged batch; None for any other entry."""
        position = as_position(position)
        bits = self._loader.query(lambda: self._state.not_acked_indexes(position))
        return None if bits is None else indexes_of(bits)

    def unacked_of_batch(self, position: Position, batch_size: int) -> Sequence[int]:
        """Return the unacknowledged messages of a batch of that size; none if the entry is acknowledged."""
        position = as_position(position)

        def find() -> Sequence[int]:
            if self._state.is_acked(position):
                return ()
            bits = self._state.not_acked_indexes(position)
            return range(batch_size) if bits is None else indexes_of(bits)

        return self._loader.query(find)

    def unacked_of(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """Return the unacknowledged entries of a ledger among ``entry_ids``."""
        return self._loader.query(lambda: self._state.unacked_of(ledger_id, entry_ids))

    @property
    def backlog(self) -> int:
        """Number of unacknowledged entries. Reads no page."""
        with self._lock:
            return self._state.backlog

    def acked_ranges(self) -> list[AckRange]:
        """Return the acknowledged ranges after the mark-delete position, in ascending order. No range spans ledgers."""
        return [one for ranges in self.build_individual_deleted_message_ranges() for one in ranges]

    def build_individual_deleted_message_ranges(self) -> list[list[AckRange]]:
        """Return :meth:`acked_ranges` as one list for each ledger that has any."""
        return [list(RangeSet({page.ledger_id: page.acked})) for page in self._loader.pages() if page.acked]

    def acked_entries(self) -> Iterator[tuple[int, BitMap64]]:
        """Yield the acknowledged entries after the mark-delete position, as a bitmap for each ledger that has any.
        Entries that a stored state names but the ledger does not have are excluded."""
        extent = self.topic.extent
        for page in self._loader.pages():
            acked, count = page.acked, extent.entries(page.ledger_id) or 0
            yield page.ledger_id, acked & BitMap64(range(count)) if acked and acked.max() >= count else acked

    def partial_batches(self) -> dict[Position, list[int]]:
        """Return the unacknowledged messages of each partially acknowledged batch."""
        return {
            Position(page.ledger_id, entry_id): indexes_of(bits)
            for page in self._loader.pages()
            for entry_id, bits in sorted(page.partial.items())
        }

    def lru_switch(self, ledger_id: int) -> bool:
        """Load the page of a ledger into memory. Returns True if the ledger has one."""
        return self._loader.load(ledger_id) is not None

    @property
    def damaged_pages(self) -> tuple[DamagedPage, ...]:
        """Pages that were found damaged when the cursor was opened or since. Each was replaced by an older page, or
        dropped."""
        return (*self.recovered_from.pages, *self._flusher.damaged_pages)

    @property
    def stats(self) -> CursorStats:
        """Sizes and counts that the metrics report."""
        with self._lock:
            pages = self._state.pages
            flusher = self._flusher
            return CursorStats(
                metadata_size=flusher.state_size,
                backlog=self._state.backlog,
                cache_bytes=pages.bytes,
                cache_pages=len(pages),
                cache_hits=pages.hits,
                cache_misses=pages.misses,
                dirty_pages=len(pages.dirty),
                flushes=flusher.flushes,
                pages_written=flusher.pages_written,
                bytes_written=flusher.bytes_written,
                left_out_ranges=flusher.left_out_ranges,
                left_out_batches=flusher.left_out_batches,
                paused=self.paused,
                paused_by_state_size=STATE_SIZE in self._pause.reasons,
                paused_by_left_out=LEFT_OUT in self._pause.reasons,
                entries_to_resume=self._pause.entries_to_resume(self.topic.extent),
                damaged_pages=len(self.damaged_pages),
            )

    def samples(self) -> Iterator[Sample]:
        """Return :attr:`stats` as metric samples; none if the cursor is closed."""
        if self._lifecycle.closed is not None:
            return iter(())
        return metrics.samples(self.stats, self.topic.name, self.name)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(
        self, count: int, skip: Callable[[Position], bool] | None = None, wanted: EntryFilter | None = None
    ) -> list[TopicEntry]:
        """Read up to ``count`` entries from the read position on, and advance it. Acknowledged entries, and those for
        which ``skip`` returns True, are skipped without being read. ``wanted`` is the vectorized alternative: called
        with a ledger id and the first and last id of a run of entries, it returns the entry ids to read.

        A call that reaches a damaged entry returns the intact entries before it. The next call raises
        :class:`UnreadableEntryError`; the position stays there, and ``seek(error.last.next)`` moves it past the damage.
        """
        if skip is not None:
            wanted = partial(predicate_from_skip, skip)
        return [entry for run in self.read_runs(count, wanted) for entry in run.entries()]

    def read_runs(self, count: int, wanted: EntryFilter | None = None, upto: Position | None = None) -> list[EntryRun]:
        """Read without creating an object for each entry, up to and including the entry ``upto``."""
        return self._reader.read_runs(as_count(count), wanted, upto)

    def unacked(
        self,
        wanted: EntryFilter | None = None,
        start: Position | None = None,
        on_unreadable: OnUnreadable | None = None,
    ) -> Iterator[TopicEntry]:
        """Iterate over the entries from ``start`` on that are unacknowledged when the iteration reaches them,
        independently of the read position. Damaged entries are handled as in :meth:`ManagedLedger.read_run`."""
        return self._reader.unacked(wanted, start, on_unreadable)

    @property
    def has_more(self) -> bool:
        """True if the topic has an entry at or after the read position."""
        return self._reader.has_more

    @property
    def was_interrupted(self) -> bool:
        """True if an asynchronous exception interrupted a change of the cursor, which must then be reopened."""
        return self._lifecycle.was_interrupted

    def rewind(self) -> None:
        """Move the read position back to the first unacknowledged entry."""
        with self._lock:
            self._reader.rewind()

    def seek(self, position: Position) -> None:
        """Move the read position, but not before the first entry after the mark-delete position."""
        self._reader.seek(as_position(position))

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make accepted changes durable; a no-op if there are none. Raises :class:`WriteOnReadOnlyError` if a read-only
        cursor has recovered a state that differs from the stored one."""
        with self._lock:
            self._lifecycle.check()
            if self._flusher.is_dirty:
                self._lifecycle.check_writable()
        try:
            self._flusher.flush()
        finally:
            self._pause.notify()

    def preview(self) -> FlushStats:
        """Return the size of the first flush if this read-only cursor were opened for writing."""
        return self._flusher.preview()

    def snapshot_misfit(self) -> str | None:
        """Return the reason why the whole state does not fit into a snapshot in one entry; None if it fits."""
        return self._flusher.snapshot_misfit(inline=False)

    def _flush_in_background(self) -> None:
        """Flush, and log errors; callers that wait for a Pending receive them there."""
        try:
            self.flush()
        except (ClientClosedError, StoreCrashedError):
            # The store was closed before the cursor; accepted changes are lost.
            return
        except BookstandError as error:
            logger().warning("cursor %s of topic %s could not be written: %s", self.name, self.topic.name, error)
        if self.usable and self._flusher.is_dirty:
            self._scheduler.on_change()

    @property
    def cursor_metadata_size_in_bytes(self) -> int:
        """Size of the whole state at the last flush."""
        return self._flusher.state_size

    # -- the size limit ----------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """True while the state is at its size limit, so that no entry above the highest acknowledged position may be
        dispatched. In the snapshot form also while its limits exclude a part of the state."""
        return self._pause.paused

    @property
    def pause_reasons(self) -> tuple[str, ...]:
        """Reasons of the pause: ``"state_size"``, ``"left_out"`` or both; empty without a pause."""
        return self._pause.reasons

    @property
    def entries_to_resume(self) -> int | None:
        """Number of lowest unacknowledged entries whose durable acknowledgment ends the pause: 0 without a pause, None
        if no acknowledgment ends it. For a pause by size the number is rounded up to all holes of a ledger."""
        with self._lock:
            return self._pause.entries_to_resume(self.topic.extent)

    def admission(self, outstanding: int = 0) -> Admission | None:
        """Return the limit of dispatch; None without a pause. ``outstanding`` is the number of messages in flight."""
        if not self.paused:
            return None
        query = self._loader.query
        return query(partial(self._pause.admission, query, outstanding))

    def on_pause(self, callback: Callable[[], object]) -> None:
        """Register a callback for the beginning of a pause."""
        self._pause.on_pause.append(callback)

    def on_resume(self, callback: Callable[[], object]) -> None:
        """Register a callback for the end of a pause."""
        self._pause.on_resume.append(callback)

    # -- string properties -------------------------------------------------------------------------------------------

    @property
    def cursor_properties(self) -> dict[str, str]:
        """String properties of the cursor. They are stored in its record, and durable when a setter returns."""
        assert self._log.info is not None
        return dict(self._log.info.cursor_properties)

    def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace all cursor properties except those whose name begins with ``#pulsar.internal.``."""
        with self._flusher.flush_lock, self._flusher.guard:
            self._lifecycle.check_writable()
            internal = {key: text for key, text in self.cursor_properties.items() if key.startswith(INTERNAL_PREFIX)}
            self._put_properties({**internal, **dict(as_cursor_properties(properties))})

    def put_cursor_property(self, name: str, value: str) -> None:
        """Set a cursor property; durable on return."""
        with self._flusher.flush_lock, self._flusher.guard:
            self._lifecycle.check_writable()
            check_cursor_property(name, value)
            self._put_properties({**self.cursor_properties, name: value})

    def remove_cursor_property(self, name: str) -> None:
        """Remove a cursor property; durable on return."""
        with self._flusher.flush_lock, self._flusher.guard:
            self._lifecycle.check_writable()
            properties = self.cursor_properties
            properties.pop(name, None)
            self._put_properties(properties)

    def change_properties(self, change: Callable[[Transaction, dict[str, str]], object]) -> None:
        """Call ``change(transaction, properties)`` to modify the cursor properties, reserved names included, and commit
        them together with the ledgers that the callback creates, fills and deletes in the transaction."""
        with self._flusher.flush_lock, self._flusher.guard:
            self._lifecycle.check_writable()
            self._log.put_properties(change)

    def _put_properties(self, properties: Mapping[str, str]) -> None:
        assert self._log.info is not None
        self._log.put(self._log.info._replace(cursor_properties=tuple(properties.items())))

    # -- time travel -------------------------------------------------------------------------------------------------

    def history(self) -> list[HistoryEntry]:
        """Return the markers of the cursor ledger and of retained former ledgers, newest first."""
        return history_of(self.name, self._log)

    def diff(self, one: Position | None, other: Position | None) -> CursorDiff:
        """Compare the acknowledgments at two markers of :meth:`history`; None means the current state."""
        return diff_of(self._all_acked(one), self._all_acked(other))

    def _all_acked(self, marker: Position | None) -> AllAcked:
        if marker is not None:
            with Cursor.open(self.topic, self.name, self.config, create=False, at_marker=marker) as earlier:
                return earlier._all_acked(None)
        mark_delete = self.mark_delete_position
        return all_acked(mark_delete, {page.ledger_id: page.acked for page in self._loader.pages()}, self.topic.ledgers)

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush accepted changes, and close the cursor ledger. In the snapshot form a small state is moved into the
        record, as Pulsar does."""
        self._scheduler.stop()
        try:
            with self._flusher.flush_lock:
                if self._lifecycle.was_interrupted:
                    # The state in memory may be half changed; the durable state is consistent.
                    with self._lock:
                        self._lifecycle.mark_interrupted()
                if self._lifecycle.closed is not None:
                    return
                try:
                    # A fenced cursor has already reported that to its callers.
                    if not self.read_only and self._flusher.fenced is None:
                        self._flusher.write()
                        self._close_ledger()
                finally:
                    message = f"cursor {self.name!r} of topic {self.topic.name} is closed"
                    self._lifecycle.closed = ClientClosedError(message)
        finally:
            self._flusher.run_callbacks()

    def _close_ledger(self) -> None:
        paged = self.config.enable_lru_cache_max_unacked_ranges
        if not paged and self._log.handle is not None and self._flusher.try_store_inline():
            return
        if self._log.writer is not None:
            self._log.writer.close()

    def delete(self) -> None:
        """Delete the cursor and all its ledgers, including snapshots of delayed messages, in one commit."""
        self._scheduler.stop()
        with self._flusher.flush_lock, self._flusher.guard:
            self._lifecycle.check_writable()
            self._log.delete()
            self.topic.unregister_cursor(self._log.hold_name)
            self._lifecycle.closed = CursorFencedError(f"cursor {self.name!r} of topic {self.topic.name} was deleted")

    @property
    def usable(self) -> bool:
        """False once the cursor was closed, deleted, interrupted, or fenced by another owner."""
        return self._lifecycle.is_usable

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        damaged = len(self.recovered_from.damage) + len(self._flusher.damaged_pages)
        note = f", {damaged} damaged parts skipped" if damaged else ""
        return f"<Cursor {self.name!r} of {self.topic.name!r} at {self._state.mark_delete}{note}>"


def _as_config(config: object) -> CursorConfig:
    if not isinstance(config, CursorConfig):
        raise IncorrectParameterError(f"config must be a CursorConfig, not {config!r}")
    return config
