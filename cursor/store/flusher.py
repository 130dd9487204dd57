"""Writing what is acknowledged: one moment's state at a time, whole or not at all.

What is dirty is encoded under the state's lock, and written without it. Those who acknowledged before that moment are
answered when it is durable; what is acknowledged meanwhile waits for the next flush.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, RLock
from typing import NamedTuple

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import snapshot_form
from bookstand.cursor.format.ack_page import EncodedPage, encode_page
from bookstand.cursor.format.checkpoint import encode_marker, room_for_nodes, state_size
from bookstand.cursor.format.page_index import PageIndex, PreparedIndex
from bookstand.cursor.format.page_ref import PageRef
from bookstand.cursor.format.record import encode_properties
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.state.cursor_state import CursorState
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.state.ranges import RangeSet
from bookstand.cursor.store import cursor_ledger, recovery
from bookstand.cursor.store.cursor_ledger import CursorFencedError, CursorLedger
from bookstand.errors import (
    BookstandError,
    InterruptedOperationError,
    MetadataVersionError,
    NoSuchLedgerError,
    OutcomeUnknownError,
)
from bookstand.ledger.handles.handle import LedgerHandle
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.commit.futures import Completion, Pending, pending_for
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound
from bookstand.storage.process.interrupt_guard import InterruptGuard


class _Moment(NamedTuple):
    """What a flush writes: the state as it was when it began."""

    mark_delete: Position
    properties: dict[str, int]
    pages: dict[int, EncodedPage]
    stamps: dict[int, tuple[int, int]]
    moves: int
    resets: int
    completion: Completion


class FlushStats(NamedTuple):
    """Pages and bytes that a flush writes, and the size of the whole state then."""

    pages: int
    bytes: int
    size: int


class Flusher(ProcessBound):
    """One flush at a time; ``lock`` is the state's. It is the driver of the Pendings that acknowledgments give, and has
    ``hurry`` called for those who want to be told and do not wait for it in a thread."""

    def __init__(
        self,
        name: str,
        live: CursorState,
        cursor_log: CursorLedger,
        config: CursorConfig,
        lock: Lock,
        hurry: Callable[[], None],
    ) -> None:
        self._name = name
        self._live = live
        self._log = cursor_log
        self._storage = cursor_log.client.storage
        self._config = config
        self._lock = lock
        self.hurry = hurry
        # Called after each flush of a thread that waits for a result, without any lock.
        self.after_drive: Callable[[], object] = lambda: None
        self.alone = RLock()
        # Of whatever is done alone: it has changed what is stored, and may not have noted that.
        self.guard = InterruptGuard(self._refuse)
        # Callbacks of completed Pendings, which may wait for locks whose holders wait for ``alone``.
        self._callbacks: deque[Callable[[], None]] = deque()
        self._generation = 0
        self._marker: int | None = None
        self._stored_moves = -1
        self._stored_resets = live.resets
        # Pages that turned out to be damaged while the cursor was open.
        self.damaged_pages: list[recovery.DamagedPage] = []
        self.durable_mark_delete = live.mark_delete
        self.state_size = 0
        # Of these bytes, those that do not belong to a page.
        self.size_beside_pages = 0
        self._least_size: int | None = None
        self._stored_properties: dict[str, int] = {}
        # In the old form: what its limits kept from being written, in a snapshot or in the record.
        self.left_out_ranges = self.left_out_batches = 0
        self.is_inline = False
        self.flushes = self.pages_written = self.bytes_written = 0
        # Somebody else has opened the cursor.
        self.fenced: CursorFencedError | None = None
        self._renew()

    def adopt(self, found: recovery.RecoveredState) -> None:
        """What was recovered is what is stored, unless it was in another form."""
        self._generation = found.generation
        self._marker = found.marker_entry
        self.durable_mark_delete = self._live.mark_delete
        self.state_size = found.size
        self.size_beside_pages = found.size - found.pages.page_bytes
        self._stored_properties = found.properties
        self._least_size = None
        paged = self._config.enable_lru_cache_max_unacked_ranges
        if found.source.how == recovery.NEW or (found.is_stored and paged):
            self._stored_moves = self._live.moves

    def change_config(self, config: CursorConfig) -> None:
        """Use these settings from the next flush on. The caller holds :attr:`alone`."""
        self._config = config

    # -- who waits; the lock is held, but for drive --------------------------------------------------------------------

    def _renew(self) -> None:
        """What is accepted from now on is answered by the next flush."""
        self._completion = Completion(self)
        self.pending: Pending = pending_for(self._completion)

    @property
    def left_out(self) -> bool:
        return bool(self.left_out_ranges or self.left_out_batches)

    @property
    def least_size(self) -> int:
        """The size that the state as it was last written would have with everything acknowledged."""
        if self._least_size is None:
            if self._marker is not None:
                self._least_size = len(encode_properties(self._stored_properties))
            else:
                nothing = AckSnapshot(self.durable_mark_delete, {}, {}, self._stored_properties)
                self._least_size = snapshot_form.size_inline(nothing)
        return self._least_size

    @property
    def is_dirty(self) -> bool:
        return bool(self._live.pages.dirty) or self._live.moves != self._stored_moves

    def drive(self, completion: Completion, deadline: float | None) -> None:
        """Somebody waits for it to be durable: write it now."""
        while not completion.done:
            try:
                self.flush()
            finally:
                self.after_drive()
            with self._lock:
                if completion.done or completion is not self._completion or self.is_dirty:
                    continue
                # What it stood for has been written by others, or there was nothing to write.
                self._renew()
            completion.complete()

    # -- flushes -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is accepted and not durable yet; nothing if there is nothing. Then call back, without any lock."""
        try:
            self.write()
        finally:
            self.call_back()

    def _refuse(self) -> None:
        raise InterruptedOperationError(
            f"cursor {self._name!r} was interrupted while its state was written, and acknowledgments that were not "
            "durable may be lost; open it again"
        )

    def end(self, error: BookstandError) -> None:
        """Fail the Pendings of what is not durable; the state's lock is held."""
        self._complete(self._completion, error)

    def _complete(self, completion: Completion, error: BaseException | None = None) -> None:
        """Complete the Pendings of a flush; their callbacks are called later."""
        self._callbacks.extend(completion.settle(error=error))

    def call_back(self) -> None:
        """Call the callbacks of Pendings that flushes have completed. The caller holds neither lock."""
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback()

    def write(self) -> None:
        """Flush without calling back."""
        with self.alone, self.guard:
            lost = self._log.is_lost()
            with self._lock:
                dirty = self.is_dirty or lost
                completion = self._completion
                if not dirty:
                    self._renew()
            if not dirty:
                # Who acknowledged nothing new while a flush was under way waits for no other.
                self._complete(completion)
                return
            try:
                self._flush_dirty()
            except CursorFencedError as error:
                self.fenced = error
                with self._lock:
                    # Who has acknowledged meanwhile waits for a flush that does not come.
                    completion = self._completion
                    self._renew()
                self._complete(completion, error)
                raise

    def _flush_dirty(self) -> None:
        if not self._config.enable_lru_cache_max_unacked_ranges:
            self._flush_snapshot()
        elif not self._is_writable or not self._flush_pages():
            self._flush_into_new_ledger()

    @property
    def _is_writable(self) -> bool:
        """Whether there is a ledger that takes more."""
        config = self._config
        return not self._log.is_lost() and self._log.is_writable(
            config.max_entries_per_cursor_ledger, config.max_cursor_ledger_age * 1000
        )

    def _begin(self, paged: bool = True) -> _Moment:
        """This moment's state; the lock is held. Whoever has been waiting, waits for this flush."""
        live = self._live
        completion = self._completion
        self._renew()
        return _Moment(
            live.mark_delete,
            dict(live.properties),
            self._encode_dirty() if paged else {},
            {ledger_id: page.stamp for ledger_id, page in live.pages.dirty.items()},
            live.moves,
            live.resets,
            completion,
        )

    def _encode_dirty(self) -> dict[int, EncodedPage]:
        return {
            ledger_id: self._encode(page, self._live.mark_delete)
            for ledger_id, page in sorted(self._live.pages.dirty.items())
            if page
        }

    def _encode(self, page: LedgerAcks, mark_delete: Position) -> EncodedPage:
        return encode_page(
            self._name,
            page.ledger_id,
            page.acked,
            page.partial,
            generation=self._generation + 1,
            mark_delete=mark_delete,
            limit=self._log.entry_limit,
        )

    def _flush_pages(self) -> bool:
        """Dirty pages, what changed of the index, and a marker, at the end of the ledger there is; False, and nothing
        is done, after a reset, which begins a new ledger."""
        with self._lock:
            if self._live.resets != self._stored_resets:
                return False
            index = self._live.index
            moment = self._begin()
            entries: list[bytes] = []
            replaced: dict[int, PageRef | None] = {}
            for ledger_id, page in moment.pages.items():
                replaced[ledger_id] = index.get(ledger_id)
                index.set(ledger_id, page.ref(self._log.next_entry + len(entries)))
                entries += page.entries
            first = self._log.next_entry + len(entries)
            refusal: BaseException | None = None
            try:
                prepared, marker = self._encode_marker(index, moment, first, len(entries), self._marker)
            except BaseException as error:
                if index.is_prepared:
                    index.abort()
                self._put_back(index, replaced)
                refusal = error
        if refusal is not None:
            self._failed(moment, refusal)
            raise refusal
        try:
            if self._storage.hooks is not None:
                self._storage.point("cursor.encoded", self._log.path)
            self._log.append(entries + marker, self._config.flush_commit_bytes)
            if self._storage.hooks is not None:
                self._storage.point("cursor.flushed", self._log.path)
        except BaseException as error:
            with self._lock:
                index.abort()
                self._put_back(index, replaced)
            self._retry(moment, error)
            return True
        with self._lock:
            index.commit()
        self._marker = prepared.marker_entry_id
        size = state_size(prepared, moment.properties)
        self._succeeded(moment, entries + marker, size, prepared.page_bytes)
        self._log.appended(self._config.retained_cursor_ledgers)
        return True

    def _retry(self, moment: _Moment, error: BaseException) -> None:
        """The ledger takes no more: the record may, or another ledger does. Raises where none of that works."""
        if not isinstance(error, BookstandError):
            self._failed(moment, error)
            raise error
        if not isinstance(error, NoSuchLedgerError):
            try:
                self._put_into_record(moment, error)
                return
            except BookstandError:
                pass
        try:
            self._flush_into_new_ledger()
        except BaseException as second:
            self._failed(moment, second)
            raise
        self._complete(moment.completion)

    def _put_back(self, index: PageIndex, replaced: dict[int, PageRef | None]) -> None:
        """The pages that were to be written were not: the index says again what is stored. The lock is held."""
        for ledger_id, ref in replaced.items():
            if ref is None:
                index.remove(ledger_id)
            elif index.get(ledger_id) is not None:
                index.set(ledger_id, ref)

    def _encode_marker(
        self, index: PageIndex, moment: _Moment, entry_id: int, page_entries: int, previous: int | None
    ) -> tuple[PreparedIndex, list[bytes]]:
        prepared = index.prepare(entry_id, room_for_nodes(self._name, moment.properties, self._log.entry_limit))
        marker = encode_marker(
            self._name,
            prepared,
            generation=self._generation + 1,
            mark_delete=moment.mark_delete,
            properties=moment.properties,
            time_ms=self._log.client.clock.now(),
            previous=previous,
            page_entries=page_entries,
        )
        return prepared, marker

    def _flush_into_new_ledger(self) -> None:
        """The pages that the index refers to are copied, nothing else; then the record is pointed at the new ledger.
        The old one stays whole and in use until then."""
        with self._lock:
            moment = self._begin()
            clean = [(one, ref) for one, ref in self._live.index.items() if one not in moment.stamps]
            old = self._log.handle
        damaged: list[recovery.DamagedPage] = []
        try:
            with self._log.new_ledger(moment.resets != self._stored_resets) as writer:
                copy = self._fill(writer, clean, old, moment, damaged)
                if self._storage.hooks is not None:
                    self._storage.point("cursor.copied", self._log.path)
                self._point_at(writer, moment, copy.copied)
            if self._storage.hooks is not None:
                self._storage.point("cursor.switched", self._log.path)
        except (CursorFencedError, MetadataVersionError) as error:
            self._failed(moment, error)
            raise
        except BookstandError as error:
            self._fall_back(moment, error)
            return
        except BaseException as interruption:
            self._failed(moment, interruption)
            raise
        with self._lock:
            self._log.handle = writer
            self._take_over(copy.pages, moment)
        self.report(damaged)
        self._marker = copy.marker
        self._succeeded(moment, copy.entries, copy.size, copy.pages.page_bytes)

    def preview(self) -> FlushStats:
        """What a flush writes that begins a new ledger, as the first one does after a cursor was opened. Nothing is
        written: of a cursor that is read-only, and read no further."""
        paged = self._config.enable_lru_cache_max_unacked_ranges
        if not paged:
            snapshot = snapshot_form.snapshot(snapshot_form.state_of(self._live), self._config)
            return FlushStats(0, len(snapshot.data), len(snapshot.data))
        with self._lock:
            moment = self._begin()
            clean = [(one, ref) for one, ref in self._live.index.items() if one not in moment.stamps]
            copy = self._fill(cursor_ledger.DiscardingWriter(), clean, self._log.handle, moment, [])
        return FlushStats(len(moment.pages), sum(map(len, copy.entries)), copy.size)

    def _fill(
        self,
        writer: cursor_ledger.EntrySink,
        clean: Sequence[tuple[int, PageRef]],
        old: LedgerHandle | None,
        moment: _Moment,
        damaged: list[recovery.DamagedPage],
    ) -> _Copy:
        """Write the whole state into an empty ledger. Pages that are damaged, of which ``damaged`` is told, are
        replaced."""
        commit_bytes = self._config.flush_commit_bytes
        refs: dict[int, PageRef] = {}
        waiting: list[bytes] = []
        at = size = 0
        for ledger_id, ref in clean:
            assert old is not None
            try:
                parts = recovery.read_parts(old, ref)
                # A page that was damaged after its check must not be copied as an intact one.
                recovery.load_page(self._name, ledger_id, ref, parts, self._log.client.expansion_limits)
            except recovery.DAMAGED as error:
                with self._lock:
                    pages = self._live.pages
                    resident = pages.get(ledger_id) if ledger_id in pages else None
                    older = None if resident is None else resident.copy()
                if older is None:
                    older, report = self._log.replacement(old, ledger_id, ref, error, moment.mark_delete)
                    damaged.append(report)
                if not older:
                    continue
                encoded = self._encode(older, moment.mark_delete)
                parts, ref = encoded.entries, encoded.ref(0)
            refs[ledger_id] = ref._replace(entry_id=at + len(waiting))
            waiting += parts
            size += ref.size
            if size >= commit_bytes:
                cursor_ledger.append(writer, waiting, commit_bytes)
                at += len(waiting)
                waiting, size = [], 0
        for ledger_id, page in moment.pages.items():
            refs[ledger_id] = page.ref(at + len(waiting))
            waiting += page.entries
        index = PageIndex.build(sorted(refs.items()))
        entries = at + len(waiting)
        copied = entries - sum(len(page.entries) for page in moment.pages.values())
        prepared, marker = self._encode_marker(index, moment, entries, entries, None)
        cursor_ledger.append(writer, waiting + marker, commit_bytes)
        index.commit()
        size = state_size(prepared, moment.properties)
        return _Copy(index, prepared.marker_entry_id, waiting + marker, size, copied)

    def _point_at(self, writer: LedgerWriter, moment: _Moment, copied: int = 0) -> None:
        info = self._log.info
        assert info is not None
        now = self._log.client.clock.now()
        beside = snapshot_form.record_pointing_at_ledger(info, moment.mark_delete, moment.properties, now)
        was_reset = moment.resets != self._stored_resets
        self._log.switch(writer, beside, self._config.retained_cursor_ledgers, copied, was_reset)

    def _take_over(self, index: PageIndex, moment: _Moment) -> None:
        """The new ledger's index, without what has gone since the moment it is of; the lock is held."""
        live = self._live
        if moment.resets != live.resets:
            index = PageIndex()
        here = live.mark_delete.ledger_id
        index.remove_below(here)
        if here not in live.pages and here not in live.index:
            index.remove(here)
        live.index = index

    # -- the old form --------------------------------------------------------------------------------------------------

    def _flush_snapshot(self) -> None:
        """The whole state as one entry; into the record where that is too large for an entry."""
        with self._lock:
            moment = self._begin(paged=False)
            state = snapshot_form.state_of(self._live)
        try:
            snapshot = snapshot_form.snapshot(state, self._config)
            entry = snapshot.data
            size = len(entry)
            left_out = snapshot.ranges_left_out, snapshot.batches_left_out
            is_inline = size > self._log.entry_limit
            if is_inline:
                self._log.inline(self._inline_info(state))
                left_out = snapshot_form.ranges_not_fitting_inline(state, self._config), 0
                size = snapshot_form.size_inline(state)
            elif moment.resets != self._stored_resets or not self._is_writable or not self._append_snapshot(entry):
                with self._log.new_ledger(moment.resets != self._stored_resets) as writer:
                    cursor_ledger.append(writer, [entry], self._config.flush_commit_bytes)
                    self._point_at(writer, moment)
        except (CursorFencedError, MetadataVersionError) as error:
            self._failed(moment, error)
            raise
        except BookstandError as error:
            self._fall_back(moment, error)
            return
        except BaseException as interruption:
            self._failed(moment, interruption)
            raise
        self._forget_pages()
        self.left_out_ranges, self.left_out_batches = left_out
        self.is_inline = is_inline
        self._succeeded(moment, [entry], size)

    def _append_snapshot(self, entry: bytes) -> bool:
        """At the end of the ledger there is; False if that was deleted."""
        try:
            self._log.append([entry], self._config.flush_commit_bytes)
        except NoSuchLedgerError:
            return False
        self._log.appended(self._config.retained_cursor_ledgers)
        return True

    def snapshot_misfit(self, *, inline: bool) -> str | None:
        """Say why a flush in the old form would not write the whole state, all of which is in memory; None if it would.
        ``inline``: a state that is too large for an entry may be stored in the record."""
        with self._lock:
            state = snapshot_form.state_of(self._live)
        written = snapshot_form.snapshot(state, self._config)
        ranges = len(RangeSet(state.acked))
        if written.ranges_left_out or written.batches_left_out:
            return snapshot_form.misfit(ranges, len(state.batches), self._config)
        size, limit = len(written.data), self._log.entry_limit
        if size <= limit or (inline and not snapshot_form.ranges_not_fitting_inline(state, self._config)):
            return None
        reason = f"takes {size} bytes as a snapshot, but an entry at most {limit}"
        if inline:
            most = self._config.max_unacked_ranges_in_metadata_store
            reason += f", and it has {ranges} ranges, but max_unacked_ranges_in_metadata_store is {most}"
        return reason

    def end_inline(self) -> bool:
        """At a clean close in the old form: put a small state into the record, as Pulsar does. Whether it was."""
        with self._lock:
            state = snapshot_form.state_of(self._live)
        if snapshot_form.ranges_not_fitting_inline(state, self._config):
            return False
        self._log.inline(self._inline_info(state))
        return True

    def _inline_info(self, state: AckSnapshot) -> CursorInfo:
        info = self._log.info
        assert info is not None
        return snapshot_form.inline(info, state, self._log.client.clock.now(), self._config)

    def _fall_back(self, moment: _Moment, error: BookstandError) -> None:
        """No ledger can be written: the record may be."""
        try:
            self._put_into_record(moment, error)
        except BookstandError:
            self._failed(moment, error)
            raise error.with_traceback(None) from None

    def _put_into_record(self, moment: _Moment, error: BookstandError) -> None:
        """The whole state into the record, if all of it is in memory and it is small enough; raises otherwise."""
        with self._lock:
            state = snapshot_form.state_of(self._live) if snapshot_form.is_fully_resident(self._live) else None
            if state is None or snapshot_form.ranges_not_fitting_inline(state, self._config):
                raise error
            # Acknowledgments accepted since the flush began are written, too; the next flush completes their Pending.
            moment = moment._replace(mark_delete=self._live.mark_delete)
            if self._config.enable_lru_cache_max_unacked_ranges:
                # The next ledger begins with all pages. None may be evicted: the ledger of the clean ones is deleted.
                moment = moment._replace(stamps={})
                self._live.write_all_pages()
        self._log.inline(self._inline_info(state))
        logger().warning(
            "topic %s, cursor %s: its state is in its record now, no ledger takes it: %s",
            self._log.topic,
            self._name,
            error,
        )
        self._forget_pages()
        self.left_out_ranges = self.left_out_batches = 0
        self.is_inline = True
        self._succeeded(moment, [], snapshot_form.size_inline(state))

    def _forget_pages(self) -> None:
        """What is stored is one whole state: no page is stored by itself any more."""
        with self._lock:
            self._live.forget_stored_pages()
            self._log.handle = self._log.writer
        self._marker = None

    # -- damage --------------------------------------------------------------------------------------------------------

    def report(self, damaged: Iterable[recovery.DamagedPage]) -> None:
        """Log and count pages that were replaced or dropped while the cursor was open."""
        for page in damaged:
            self.damaged_pages.append(page)
            logger().warning("topic %s, cursor %s: %s", self._log.topic, self._name, page)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def _succeeded(self, moment: _Moment, entries: Sequence[bytes], size: int, page_bytes: int = 0) -> None:
        with self._lock:
            pages = self._live.pages
            # After a reset, a page with the same stamp may be another one, which is not stored.
            stamps = moment.stamps if moment.resets == self._live.resets else {}
            for ledger_id, stamp in stamps.items():
                page = pages.dirty.get(ledger_id)
                if page is not None and page.stamp == stamp:
                    pages.stored(ledger_id)
            self._stored_moves = moment.moves
            self._stored_resets = moment.resets
            self.durable_mark_delete = moment.mark_delete
            self.flushes += 1
            self.pages_written += len(moment.pages)
            self.bytes_written += sum(map(len, entries))
            self.state_size = size
            self.size_beside_pages = size - page_bytes
            self._stored_properties = moment.properties
            self._least_size = None
        self._generation += 1
        self._complete(moment.completion)

    def _failed(self, moment: _Moment, error: BaseException) -> None:
        """What is in memory has moved on all the same, and a later flush writes it."""
        if not isinstance(error, BookstandError):
            error = OutcomeUnknownError(f"a flush of cursor {self._name!r} was interrupted by {error!r}")
        self._complete(moment.completion, error)


class _Copy(NamedTuple):
    """A whole state in a new ledger."""

    pages: PageIndex
    marker: int
    entries: list[bytes]
    size: int
    copied: int
