"""A subscription's place in a topic: what is acknowledged, kept in memory as far as that goes, and on the disk.

An acknowledgment is *accepted* when the call returns, and *durable* when the Pending it gave is done; whoever waits for
that has it written. Two locks: ``_lock`` guards the state in memory (``live.py``), is held for no I/O, and is all that
acknowledgments take; ``flushing.py`` has the other, which lets one flush at a time write. It encodes what is dirty
under the first, so that what it writes is one moment's state, and writes it under the second alone.

The parts, each of which knows those before it: the state; what writes it; whether it can be used (``usability.py``);
what brings the pages that a question or a change asks for (``bringing.py``); where reading stands (``reading.py``).
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
        read_only: bool = False,
    ) -> Cursor:
        """The cursor ``name`` of a topic, made if there is none. ``initial`` is where a new one begins: ``"earliest"``
        or ``"latest"``. ``at_marker``: as it was at one of the markers of :meth:`history`, read-only. ``read_only``:
        as it is stored; whoever has it open keeps it."""
        if initial not in ("earliest", "latest"):
            raise IncorrectParameterError(f"initial is 'earliest' or 'latest', not {initial!r}")
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
        """Delete a cursor without opening it, in one commit with all of its ledgers. Nothing of it needs to be
        readable: neither its state, nor its ledgers, nor its record. A cursor of that name that is open is fenced.
        :class:`NoSuchNodeError` if there is none."""
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
        """The marker of :meth:`history` that the cursor was opened at; None for its newest state."""
        # Guards the state in memory; held for no I/O.
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
        for what in found.source.damage:
            logger().warning("topic %s, cursor %s: %s", topic.name, name, what)
        bootstrap.install_recovered(topic, self._state, found)
        self._throttle = FlushScheduler(config.throttle_mark_delete, config.flush_interval, self._flush_in_background)
        # Whether an acknowledgment may wait for a flush that was asked for by one before it.
        self._joins_flush = config.throttle_mark_delete is None and not self.read_only
        self._flushing = Flusher(name, self._state, self._log, config, self._lock, self._throttle.hurry)
        self._flushing.adopt(found)
        self._usability = CursorLifecycle(name, topic.client, self._flushing, self.read_only)
        self._bringing = PageLoader(name, self._state, self._log, self._flushing, self._lock, self._usability)
        self._bringing.close_holes()
        if not paged:
            self._load_for_old_form(switching=found.source.how == MARKER)
        self._reading = CursorReader(topic, self._state, self._bringing, self._lock)
        self._pausing = DispatchPause(self._state, self._flushing, config)
        self._flushing.after_drive = self._pausing.tell
        if not self.read_only:
            topic.register_cursor(self._log.hold_name, lambda: self.durable_mark_delete_position)
        topic.client.add_metrics(self)

    def _load_for_old_form(self, switching: bool) -> None:
        """Read all pages, because in the old form the whole state is in memory. If ``switching`` from pages, reject a
        state that the next flush would store in part only: before its pages are in memory, if they have too many
        ranges or batches. A state that was in the old form already pauses dispatch instead while its limits leave a
        part out."""
        reason = None
        checked = switching and not self.read_only and not self.config.allow_loss
        if checked:
            ranges = batches = 0
            for page in self._bringing.pages():
                ranges += len(RangeSet({page.ledger_id: page.acked}))
                batches += len(page.partial)
            reason = snapshot_form.misfit(ranges, batches, self.config)
        if reason is None:
            self._bringing.bring_all()
            if checked:
                reason = self._flushing.snapshot_misfit(inline=True)
        if reason is not None:
            raise IllegalOperationError(
                f"cursor {self.name!r} of topic {self.topic.name} cannot be opened in the old form without losing"
                f" acknowledgments: its state {reason}; raise that limit, leave enable_lru_cache_max_unacked_ranges on,"
                " or set allow_loss=True to have those messages delivered again"
            )

    # -- settings ----------------------------------------------------------------------------------------------------

    def check_config(self, config: CursorConfig) -> None:
        """Raise :class:`IllegalOperationError` if :meth:`change_config` would reject ``config``."""
        what = f"cursor {self.name!r} of topic {self.topic.name}"
        CURSOR_WHILE_OPEN.check(what, self.config, _as_config(config))

    def change_config(self, config: CursorConfig) -> None:
        """Replace the settings while the cursor is open: all of them, or none if one is rejected. The form of storage
        (``enable_lru_cache_max_unacked_ranges``) is fixed while it is open."""
        with self._flushing.alone:
            self.check_config(config)
            self.config = config
            self._flushing.change_config(config)
            self._log.change_compression(config.compression, config.compression_threshold)
            self._throttle.change(config.throttle_mark_delete, config.flush_interval)
            with self._lock:
                self._joins_flush = config.throttle_mark_delete is None and not self.read_only
                if config.enable_lru_cache_max_unacked_ranges:
                    self._state.pages.change_limit(config.max_individual_ack_cache_bytes)
        self._pausing.change_config(config)

    # -- changing the state ------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[], object]) -> Pending:
        """Change the state; return the Pending of the flush that makes the change durable."""

        def apply() -> tuple[Pending, bool, bool]:
            self._usability.check_writable()
            change()
            self._reading.advance()
            pending = self._flushing.pending if self._flushing.is_dirty else completed()
            return pending, self._state.wanted is not None, self._state.pages.over_limit

        pending, stopped, over_limit = self._bringing.ask(apply)
        if stopped:
            self._bringing.close_holes_if_possible()
        if over_limit:
            self.flush()
        else:
            self._throttle.accepted()
        return pending

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, positions: Position | Iterable[Position]) -> Pending:
        """Acknowledge an entry, or several. The Pending completes when that is durable; its ``result()`` flushes it.

        Entries that are acknowledged already are ignored. A position beyond the topic's end is an error; the positions
        before it in the list are acknowledged. A list is not atomic: ledger by ledger it becomes visible, and durable
        if dirty pages exceed their share of the cache meanwhile.
        """
        if type(positions) is Position:
            ledger_id, entry_id = positions
            with self._lock:
                # Fast path: the page is already dirty and the acknowledgment does not move mark-delete.
                page = self._dirty.get(ledger_id) if self._usability.is_undisturbed else None
                if (
                    page is not None
                    and 0 <= entry_id < page.limit
                    and not page.partial
                    and not page.may_have_runs
                    and self._joins_flush
                ):
                    frontier = self._state.frontier
                    if frontier is not None and positions > frontier:
                        page.acked.add(entry_id)
                        return self._flushing.pending
            return self._change(partial(self._state.ack, positions))
        given = as_positions(positions)
        with self._lock:
            self._usability.check_writable()
            by_ledger, error = self._state.by_ledger(given)
        pending = self._ack_by_ledger(by_ledger)
        if error is not None:
            raise error
        return pending

    def ack_many(self, ledger_id: int, entry_ids: Iterable[int]) -> Pending:
        """Acknowledge many entries of one ledger at once: all of them, or none if the ledger does not have them all."""
        ids = list(entry_ids)
        if not ids:
            return completed()
        return self._change(partial(self._state.ack_ledger, ledger_id, ids))

    def ack_entries(self, positions: Iterable[Position]) -> Pending:
        """Acknowledge many entries of any ledgers at once: all of them, or none if the topic does not have them all.
        Otherwise the same as :meth:`ack` of a list: ledger by ledger."""
        given = list(positions)
        if not given:
            return completed()
        first_ledger = given[0][0]
        if list(map(_LEDGER_OF, given)).count(first_ledger) == len(given):
            return self.ack_many(first_ledger, map(_ENTRY_OF, given))
        by_ledger: dict[int, list[int]] = {}
        for ledger_id, together in groupby(given, _LEDGER_OF):
            by_ledger.setdefault(ledger_id, []).extend(map(_ENTRY_OF, together))
        with self._lock:
            self._usability.check_writable()
            self._state.check(by_ledger)
        return self._ack_by_ledger(by_ledger)

    def _ack_by_ledger(self, by_ledger: Mapping[int, list[int]]) -> Pending:
        """Acknowledge entries that exist. Pages are flushed on the way whenever too many are dirty, so that the memory
        does not grow with the number of ledgers. The last Pending stands for all: a later flush writes all before."""
        work = sorted(by_ledger.items(), reverse=True)
        while True:
            pending = self._change(partial(self._state.ack_ledgers, work))
            if not work:
                return pending

    def ack_batch(self, position: Position, indexes: Iterable[int], batch_size: int) -> Pending:
        """Acknowledge some messages of a batch; with the last of them the entry is acknowledged."""
        position = as_position(position)
        not_acked = bits_of(indexes, batch_size)
        if not self.config.batch_index_acks and not_acked:
            return completed()
        return self._change(lambda: self._state.ack_part(position, not_acked))

    def mark_delete(self, position: Position, properties: Mapping[str, int] | None = None) -> Pending:
        """Acknowledge everything up to a position. The properties replace those there are."""
        position, properties = as_position(position), as_properties(properties)
        return self._change(lambda: self._state.mark_delete_to(position, properties))

    def mark_delete_batch(
        self,
        position: Position,
        indexes: Iterable[int],
        batch_size: int,
        properties: Mapping[str, int] | None = None,
    ) -> Pending:
        """Acknowledge everything before a batch, and in it what is before the first message not among ``indexes``."""
        position, properties = as_position(position), as_properties(properties)
        not_acked = bits_of(indexes, batch_size)
        if not not_acked:
            return self.mark_delete(position, properties)
        if not self.config.batch_index_acks:
            return self._change(lambda: self._state.mark_delete_before(position, properties))
        return self._change(lambda: self._state.mark_delete_in_batch(position, not_acked, properties))

    def reset(self, position: Position) -> Pending:
        """Go to ``position``, backwards or forwards: it is the next to be delivered. Everything from there on is as if
        it had never been acknowledged."""
        position = as_position(position)

        def change() -> None:
            self._state.reset(position)
            self._reading.begin()

        pending = self._change(change)
        # What was to be forgotten must not come back with the next crash.
        self._flush_in_background()
        return pending

    def skip(self, count: int, include_acked: bool = False) -> Pending:
        """Acknowledge everything up to the ``count``-th entry behind the mark-delete position, or all there is. Entries
        that are acknowledged already are counted with ``include_acked`` only."""
        count = as_count(count)

        def change() -> None:
            target = self._nth(count, include_acked) or self.topic.last_confirmed
            self._state.mark_delete_to(max(target, self._state.mark_delete), {})

        return self._change(change)

    def clear_backlog(self) -> Pending:
        """Acknowledge everything there is."""
        return self._change(lambda: self._state.mark_delete_to(self.topic.last_confirmed, {}))

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def mark_delete_position(self) -> Position:
        """Up to here everything is acknowledged."""
        # Without the lock: it is one reference, and who asks may hold locks that others wait for with this one.
        return self._state.mark_delete

    @property
    def durable_mark_delete_position(self) -> Position:
        """As of the last flush."""
        return self._flushing.durable_mark_delete

    @property
    def read_position(self) -> Position:
        """The next entry that :meth:`read` looks at."""
        return self._reading.position

    @property
    def properties(self) -> dict[str, int]:
        """Those of the last mark-delete."""
        with self._lock:
            return dict(self._state.properties)

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        position = as_position(position)
        return self._bringing.ask(lambda: self._state.is_acked(position))

    def nth(self, count: int, include_acked: bool = False) -> Position | None:
        """Return the ``count``-th entry behind the mark-delete position that is not acknowledged; with
        ``include_acked``, of all entries. None if the backlog is smaller. At most one page is read."""
        count = as_count(count)

        def look() -> Position | None:
            if count > self._state.backlog:
                return None
            return self._nth(count, include_acked)

        return self._bringing.ask(look)

    def _nth(self, count: int, include_acked: bool) -> Position | None:
        if not include_acked:
            return self._state.nth_open(count)
        extent = self.topic.extent
        return extent.at(extent.rank(self._state.mark_delete) + count)

    def next_available(self, position: Position) -> Position:
        """The entry behind a position, or behind the whole run of acknowledged ones that it is in."""
        position = as_position(position)
        return self._reading.next_from(self._bringing.ask(lambda: self._state.run_end(position)))

    def replay(self, positions: Iterable[Position], on_unreadable: OnUnreadable | None = None) -> list[TopicEntry]:
        """Read the entries that are not acknowledged, in their order, whatever the read position is. Damaged entries
        are treated as by :meth:`ManagedLedger.read_run`."""
        extent = self.topic.extent
        wanted = [one for one in sorted(set(as_positions(positions))) if extent.has(one) and not self.is_acked(one)]
        return list(self.topic.read_positions(wanted, on_unreadable))

    def put_property(self, name: str, value: int) -> None:
        """Set a property beside those of the last mark-delete; stored with whatever is stored next."""
        as_properties({name: value})
        with self._lock:
            self._usability.check_writable()
            self._state.properties[name] = value
            self._state.moves += 1

    def remove_property(self, name: str) -> None:
        """Forget a property of the mark-delete position."""
        with self._lock:
            self._usability.check_writable()
            self._state.properties.pop(name, None)
            self._state.moves += 1

    def unacked_in_batch(self, position: Position) -> list[int] | None:
        """The messages of a batch that are not acknowledged yet; None where none of them is."""
        position = as_position(position)
        bits = self._bringing.ask(lambda: self._state.not_acked_indexes(position))
        return None if bits is None else indexes_of(bits)

    def unacked_of_batch(self, position: Position, batch_size: int) -> Sequence[int]:
        """The messages of a batch of that size that are not acknowledged yet: all of them where none is, and none where
        the whole entry is."""
        position = as_position(position)

        def look() -> Sequence[int]:
            if self._state.is_acked(position):
                return ()
            bits = self._state.not_acked_indexes(position)
            return range(batch_size) if bits is None else indexes_of(bits)

        return self._bringing.ask(look)

    def unacked_of(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """Entries of a ledger, out of those given, that are not acknowledged as a whole."""
        return self._bringing.ask(lambda: self._state.unacked_of(ledger_id, entry_ids))

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
        return [list(RangeSet({page.ledger_id: page.acked})) for page in self._bringing.pages() if page.acked]

    def acked_entries(self) -> Iterator[tuple[int, BitMap64]]:
        """Acknowledged entries beyond the mark-delete position, as a bitmap for each ledger that has any. Those that a
        stored state names and the ledger does not have are left out."""
        extent = self.topic.extent
        for page in self._bringing.pages():
            acked, count = page.acked, extent.entries(page.ledger_id) or 0
            yield page.ledger_id, acked & BitMap64(range(count)) if acked and acked.max() >= count else acked

    def partial_batches(self) -> dict[Position, list[int]]:
        """For each batch that is acknowledged in part, the messages that are not."""
        return {
            Position(page.ledger_id, entry_id): indexes_of(bits)
            for page in self._bringing.pages()
            for entry_id, bits in sorted(page.partial.items())
        }

    def lru_switch(self, ledger_id: int) -> bool:
        """Have the page of a ledger in memory; whether there is one."""
        return self._bringing.bring(ledger_id) is not None

    @property
    def damaged_pages(self) -> tuple[DamagedPage, ...]:
        """The pages of acknowledgments that turned out to be damaged, when it was opened or since: each was replaced by
        an older one, or dropped."""
        return (*self.recovered_from.pages, *self._flushing.damaged_pages)

    @property
    def stats(self) -> CursorStats:
        """Its sizes and counts, as the metrics tell them."""
        with self._lock:
            pages = self._state.pages
            flushing = self._flushing
            return CursorStats(
                metadata_size=flushing.state_size,
                backlog=self._state.backlog,
                cache_bytes=pages.bytes,
                cache_pages=len(pages),
                cache_hits=pages.hits,
                cache_misses=pages.misses,
                dirty_pages=len(pages.dirty),
                flushes=flushing.flushes,
                pages_written=flushing.pages_written,
                bytes_written=flushing.bytes_written,
                left_out_ranges=flushing.left_out_ranges,
                left_out_batches=flushing.left_out_batches,
                paused=self.paused,
                paused_by_state_size=STATE_SIZE in self._pausing.reasons,
                paused_by_left_out=LEFT_OUT in self._pausing.reasons,
                entries_to_resume=self._pausing.entries_to_resume(self.topic.extent),
                damaged_pages=len(self.damaged_pages),
            )

    def samples(self) -> Iterator[Sample]:
        """The same for metrics, as long as the cursor is open."""
        if self._usability.closed is not None:
            return iter(())
        return metrics.samples(self.stats, self.topic.name, self.name)

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(
        self, count: int, skip: Callable[[Position], bool] | None = None, wanted: EntryFilter | None = None
    ) -> list[TopicEntry]:
        """Up to ``count`` entries from the read position on, which moves behind them. Entries that are acknowledged,
        and those for which ``skip`` is true, are passed over without being read. ``wanted`` says the same of many:
        given a ledger and the first and the last of a run of its entries, which of them are not to be passed over.

        :class:`UnreadableEntryError` is raised at a damaged entry, once the intact ones before it have been read; the
        position stays there. ``seek(error.last.next)`` moves it behind the damage.
        """
        if skip is not None:
            wanted = partial(predicate_from_skip, skip)
        return [entry for run in self.read_runs(count, wanted) for entry in run.entries()]

    def read_runs(self, count: int, wanted: EntryFilter | None = None, upto: Position | None = None) -> list[EntryRun]:
        """Read without creating an object for each entry. ``upto``: no entry behind it is read or passed over."""
        return self._reading.read_runs(as_count(count), wanted, upto)

    def unacked(
        self,
        wanted: EntryFilter | None = None,
        start: Position | None = None,
        on_unreadable: OnUnreadable | None = None,
    ) -> Iterator[TopicEntry]:
        """All entries, from ``start`` on, that are not acknowledged when the iteration reaches them, whatever the read
        position is. Damaged entries are treated as by :meth:`ManagedLedger.read_run`."""
        return self._reading.unacked(wanted, start, on_unreadable)

    @property
    def has_more(self) -> bool:
        """Whether there is an entry at or behind the read position."""
        return self._reading.has_more

    @property
    def was_interrupted(self) -> bool:
        """Whether an exception arrived in the middle of a change of the cursor, which must be opened again then."""
        return self._usability.was_interrupted

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        with self._lock:
            self._reading.begin()

    def seek(self, position: Position) -> None:
        """Read from the position on, but from no entry up to the mark-delete position."""
        self._reading.seek(as_position(position))

    # -- writing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is accepted and not durable yet; nothing if there is nothing. :class:`WriteOnReadOnlyError` for a
        read-only cursor whose state is not stored as it is, which only a cursor opened for writing may store."""
        with self._lock:
            self._usability.check()
            if self._flushing.is_dirty:
                self._usability.check_writable()
        try:
            self._flushing.flush()
        finally:
            self._pausing.tell()

    def preview(self) -> FlushStats:
        """Of a cursor that was opened read-only: what its first flush would write, were it opened for writing."""
        return self._flushing.preview()

    def snapshot_misfit(self) -> str | None:
        """Say why a snapshot in one entry does not hold the whole state of a cursor in the old form; None if it
        does."""
        return self._flushing.snapshot_misfit(inline=False)

    def _flush_in_background(self) -> None:
        """Whoever waits for a result is told of an error by it."""
        try:
            self.flush()
        except (ClientClosedError, StoreCrashedError):
            # The store went first, and what was accepted with it.
            return
        except BookstandError as error:
            logger().warning("cursor %s of topic %s could not be written: %s", self.name, self.topic.name, error)
        if self.usable and self._flushing.is_dirty:
            self._throttle.accepted()

    @property
    def cursor_metadata_size_in_bytes(self) -> int:
        """The size of the whole state when it was last written."""
        return self._flushing.state_size

    # -- the size limit ----------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """True while the state is so large that nothing above the highest acknowledged position is to be dispatched. In
        the old form also where its limits keep a part from being written."""
        return self._pausing.paused

    @property
    def pause_reasons(self) -> tuple[str, ...]:
        """Why: ``"state_size"``, ``"left_out"`` or both; empty without a pause."""
        return self._pausing.reasons

    @property
    def entries_to_resume(self) -> int | None:
        """A number of entries, the lowest that are not acknowledged, whose acknowledgment ends the pause once it is
        written: 0 without a pause, None where no acknowledgment ends it. By size it is exact to a ledger."""
        with self._lock:
            return self._pausing.entries_to_resume(self.topic.extent)

    def admission(self, outstanding: int = 0) -> Admission | None:
        """The entries that may be dispatched now; None without a pause, which means all of them. ``outstanding`` is the
        number of messages that are dispatched and not acknowledged."""
        if not self.paused:
            return None
        ask = self._bringing.ask
        return ask(partial(self._pausing.admission, ask, outstanding))

    def on_pause(self, callback: Callable[[], object]) -> None:
        """Call it whenever a pause of dispatch begins."""
        self._pausing.on_pause.append(callback)

    def on_resume(self, callback: Callable[[], object]) -> None:
        """Call it whenever a pause of dispatch ends."""
        self._pausing.on_resume.append(callback)

    # -- string properties -------------------------------------------------------------------------------------------

    @property
    def cursor_properties(self) -> dict[str, str]:
        """Properties of the subscription, which are in its record and durable at once."""
        assert self._log.info is not None
        return dict(self._log.info.cursor_properties)

    def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace all of them but those that begin with ``#pulsar.internal.``, which stay, and are set one by one."""
        with self._flushing.alone, self._flushing.guard:
            self._usability.check_writable()
            kept = {name: value for name, value in self.cursor_properties.items() if name.startswith(INTERNAL_PREFIX)}
            self._put_properties({**kept, **dict(as_cursor_properties(properties))})

    def put_cursor_property(self, name: str, value: str) -> None:
        """Give the cursor itself a property; durable on return."""
        with self._flushing.alone, self._flushing.guard:
            self._usability.check_writable()
            check_cursor_property(name, value)
            self._put_properties({**self.cursor_properties, name: value})

    def remove_cursor_property(self, name: str) -> None:
        """Take a property of the cursor itself away; durable on return."""
        with self._flushing.alone, self._flushing.guard:
            self._usability.check_writable()
            properties = self.cursor_properties
            properties.pop(name, None)
            self._put_properties(properties)

    def change_properties(self, change: Callable[[Transaction, dict[str, str]], object]) -> None:
        """Have ``change(transaction, properties)`` change the properties, reserved names included, and do to the
        transaction what goes with that: ledgers created, filled and deleted. It is one commit."""
        with self._flushing.alone, self._flushing.guard:
            self._usability.check_writable()
            self._log.put_properties(change)

    def _put_properties(self, properties: Mapping[str, str]) -> None:
        assert self._log.info is not None
        self._log.put(self._log.info._replace(cursor_properties=tuple(properties.items())))

    # -- time travel -------------------------------------------------------------------------------------------------

    def history(self) -> list[HistoryEntry]:
        """The markers that are still there, newest first: in the cursor's ledger, and in former ones that are kept."""
        return history_of(self.name, self._log)

    def diff(self, one: Position | None, other: Position | None) -> CursorDiff:
        """What is acknowledged at ``other`` and not at ``one``, and the reverse. Both are markers of
        :meth:`history`, or None for what is now."""
        return diff_of(self._all_acked(one), self._all_acked(other))

    def _all_acked(self, marker: Position | None) -> AllAcked:
        if marker is not None:
            with Cursor.open(self.topic, self.name, self.config, create=False, at_marker=marker) as earlier:
                return earlier._all_acked(None)
        mark_delete = self.mark_delete_position
        return all_acked(
            mark_delete, {page.ledger_id: page.acked for page in self._bringing.pages()}, self.topic.ledgers
        )

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is accepted, and close the cursor's ledger. In the old form a small state goes into the record,
        as Pulsar has it."""
        self._throttle.stop()
        try:
            with self._flushing.alone:
                if self._usability.was_interrupted:
                    # What is durable is whole, and is all there is to keep.
                    with self._lock:
                        self._usability.break_off()
                if self._usability.closed is not None:
                    return
                try:
                    # A fenced cursor has reported that to its callers already.
                    if not self.read_only and self._flushing.fenced is None:
                        self._flushing.write()
                        self._end()
                finally:
                    message = f"cursor {self.name!r} of topic {self.topic.name} is closed"
                    self._usability.closed = ClientClosedError(message)
        finally:
            self._flushing.call_back()

    def _end(self) -> None:
        paged = self.config.enable_lru_cache_max_unacked_ranges
        if not paged and self._log.handle is not None and self._flushing.end_inline():
            return
        if self._log.writer is not None:
            self._log.writer.close()

    def delete(self) -> None:
        """Delete the cursor and everything stored for it, snapshots of delayed messages included, in one commit."""
        self._throttle.stop()
        with self._flushing.alone, self._flushing.guard:
            self._usability.check_writable()
            self._log.delete()
            self.topic.unregister_cursor(self._log.hold_name)
            self._usability.closed = CursorFencedError(f"cursor {self.name!r} of topic {self.topic.name} was deleted")

    @property
    def usable(self) -> bool:
        """Whether it can still be used: it was neither closed nor deleted, nor taken over by another."""
        return self._usability.usable

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        damaged = len(self.recovered_from.damage) + len(self._flushing.damaged_pages)
        found = f", {damaged} damaged parts skipped" if damaged else ""
        return f"<Cursor {self.name!r} of {self.topic.name!r} at {self._state.mark_delete}{found}>"


def _as_config(config: object) -> CursorConfig:
    if not isinstance(config, CursorConfig):
        raise IncorrectParameterError(f"config must be a CursorConfig, not {config!r}")
    return config
