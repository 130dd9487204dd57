"""Flushes: each one writes a consistent state atomically.

Dirty pages are encoded under the state's lock and written without it. The flush completes the Pendings of the
acknowledgments that it captured; later acknowledgments wait for the next flush.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import Lock, RLock
from typing import NamedTuple

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import snapshot_form
from bookstand.cursor.format.ack_page import EncodedPage, PageRef, encode_page
from bookstand.cursor.format.checkpoint import encode_marker, room_for_nodes, state_size
from bookstand.cursor.format.page_index import PageIndex, PreparedIndex
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


class _FlushSnapshot(NamedTuple):
    """The state that a flush captured, with its dirty pages encoded."""

    mark_delete: Position
    properties: dict[str, int]
    pages: dict[int, EncodedPage]
    page_versions: dict[int, tuple[int, int]]
    version: int
    resets: int
    completion: Completion


class FlushStats(NamedTuple):
    """Numbers of pages and bytes that a flush writes, and the size of the resulting state."""

    pages: int
    bytes: int
    size: int


class Flusher(ProcessBound):
    """Writes the state, one flush at a time; ``lock`` guards the state.

    It is the driver of the Pendings of acknowledgments: a thread that waits for one flushes itself, and ``hurry``
    requests a background flush for a Pending with a callback.
    """

    def __init__(
        self,
        name: str,
        state: CursorState,
        cursor_log: CursorLedger,
        config: CursorConfig,
        lock: Lock,
        hurry: Callable[[], None],
    ) -> None:
        self._name = name
        self._state = state
        self._log = cursor_log
        self._storage = cursor_log.client.storage
        self._config = config
        self._lock = lock
        self.hurry = hurry
        # Called without any lock after each flush by a thread that waits for a Pending.
        self.after_drive: Callable[[], object] = lambda: None
        self.flush_lock = RLock()
        # Detects interruptions of flushes, after which the state in memory may not match the stored one.
        self.guard = InterruptGuard(self._raise_interrupted)
        # Callbacks of completed Pendings. They run without locks, because they may wait for a holder of another lock
        # that waits for the flush lock.
        self._callbacks: deque[Callable[[], None]] = deque()
        self._generation = 0
        self._marker: int | None = None
        self._stored_version = -1
        self._stored_resets = state.resets
        # Pages that were found damaged while the cursor was open.
        self.damaged_pages: list[recovery.DamagedPage] = []
        self.durable_mark_delete = state.mark_delete
        self.state_size = 0
        # The part of ``state_size`` that is not pages.
        self.non_page_bytes = 0
        self._min_size: int | None = None
        self._stored_properties: dict[str, int] = {}
        # Ranges and batches that the limits of the snapshot form excluded from the last flush.
        self.left_out_ranges = self.left_out_batches = 0
        self.is_inline = False
        self.flushes = self.pages_written = self.bytes_written = 0
        # Set when another owner has opened the cursor.
        self.fenced: CursorFencedError | None = None
        self._new_completion()

    def adopt_recovered(self, found: recovery.RecoveredState) -> None:
        """Start from a recovered state. It counts as stored unless it is in another form or had to be repaired."""
        self._generation = found.generation
        self._marker = found.marker_entry
        self.durable_mark_delete = self._state.mark_delete
        self.state_size = found.size
        self.non_page_bytes = found.size - found.pages.page_bytes
        self._stored_properties = found.properties
        self._min_size = None
        paged = self._config.enable_lru_cache_max_unacked_ranges
        if found.source.how == recovery.NEW or (found.is_stored and paged):
            self._stored_version = self._state.version

    def change_config(self, config: CursorConfig) -> None:
        self._config = config

    # -- Pendings; callers hold the state's lock, except for drive() ---------------------------------------------------

    def _new_completion(self) -> None:
        """Assign changes from now on to the next flush."""
        self._completion = Completion(self)
        self.pending: Pending = pending_for(self._completion)

    @property
    def left_out(self) -> bool:
        return bool(self.left_out_ranges or self.left_out_batches)

    @property
    def min_size(self) -> int:
        """Size of the stored state if everything were acknowledged."""
        if self._min_size is None:
            if self._marker is not None:
                self._min_size = len(encode_properties(self._stored_properties))
            else:
                nothing = AckSnapshot(self.durable_mark_delete, {}, {}, self._stored_properties)
                self._min_size = snapshot_form.size_inline(nothing)
        return self._min_size

    @property
    def is_dirty(self) -> bool:
        return bool(self._state.pages.dirty) or self._state.version != self._stored_version

    def drive(self, completion: Completion, deadline: float | None) -> None:
        """Flush until the completion is done; called by a thread that waits for it."""
        while not completion.done:
            try:
                self.flush()
            finally:
                self.after_drive()
            with self._lock:
                if completion.done or completion is not self._completion or self.is_dirty:
                    continue
                # Another flush has written the changes, or there were none.
                self._new_completion()
            completion.complete()

    # -- flushes -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make accepted changes durable, and run the callbacks of completed Pendings without any lock."""
        try:
            self.write()
        finally:
            self.run_callbacks()

    def _raise_interrupted(self) -> None:
        raise InterruptedOperationError(
            f"cursor {self._name!r} was interrupted during a flush, and acknowledgments that were not durable may be "
            "lost; open it again"
        )

    def fail_pending(self, error: BookstandError) -> None:
        """Fail the Pendings of changes that are not durable. Callers hold the state's lock."""
        self._complete(self._completion, error)

    def _complete(self, completion: Completion, error: BaseException | None = None) -> None:
        """Complete the Pendings of a flush, and queue their callbacks."""
        self._callbacks.extend(completion.settle(error=error))

    def run_callbacks(self) -> None:
        """Run the queued callbacks of completed Pendings. Callers hold no lock."""
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            callback()

    def write(self) -> None:
        """Flush without running callbacks."""
        with self.flush_lock, self.guard:
            lost = self._log.is_ledger_deleted()
            with self._lock:
                dirty = self.is_dirty or lost
                completion = self._completion
                if not dirty:
                    self._new_completion()
            if not dirty:
                # A call that changed nothing during the previous flush holds this completion's Pending.
                self._complete(completion)
                return
            try:
                self._flush_dirty()
            except CursorFencedError as error:
                self.fenced = error
                with self._lock:
                    # Acknowledgments accepted during the flush wait for a flush that will never happen.
                    completion = self._completion
                    self._new_completion()
                self._complete(completion, error)
                raise

    def _flush_dirty(self) -> None:
        if not self._config.enable_lru_cache_max_unacked_ranges:
            self._flush_snapshot()
        elif not self._is_writable or not self._flush_pages():
            self._flush_into_new_ledger()

    @property
    def _is_writable(self) -> bool:
        config = self._config
        return not self._log.is_ledger_deleted() and self._log.is_writable(
            config.max_entries_per_cursor_ledger, config.max_cursor_ledger_age * 1000
        )

    def _capture(self, paged: bool = True) -> _FlushSnapshot:
        """Capture the state for a flush, which completes the current Pending. Callers hold the state's lock."""
        state = self._state
        completion = self._completion
        self._new_completion()
        return _FlushSnapshot(
            state.mark_delete,
            dict(state.properties),
            self._encode_dirty() if paged else {},
            {ledger_id: page.version for ledger_id, page in state.pages.dirty.items()},
            state.version,
            state.resets,
            completion,
        )

    def _encode_dirty(self) -> dict[int, EncodedPage]:
        return {
            ledger_id: self._encode(page, self._state.mark_delete)
            for ledger_id, page in sorted(self._state.pages.dirty.items())
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
        """Append dirty pages, changed index nodes and a marker to the current ledger. Returns False without a change
        after a reset, which needs a new ledger."""
        with self._lock:
            if self._state.resets != self._stored_resets:
                return False
            index = self._state.index
            captured = self._capture()
            entries: list[bytes] = []
            replaced: dict[int, PageRef | None] = {}
            for ledger_id, page in captured.pages.items():
                replaced[ledger_id] = index.get(ledger_id)
                index.set(ledger_id, page.ref(self._log.next_entry + len(entries)))
                entries += page.entries
            first = self._log.next_entry + len(entries)
            encode_error: BaseException | None = None
            try:
                prepared, marker = self._encode_marker(index, captured, first, len(entries), self._marker)
            except BaseException as error:
                if index.is_prepared:
                    index.abort()
                self._restore_index(index, replaced)
                encode_error = error
        if encode_error is not None:
            self._failed(captured, encode_error)
            raise encode_error
        try:
            if self._storage.hooks is not None:
                self._storage.point("cursor.encoded", self._log.path)
            self._log.append(entries + marker, self._config.flush_commit_bytes)
            if self._storage.hooks is not None:
                self._storage.point("cursor.flushed", self._log.path)
        except BaseException as error:
            with self._lock:
                index.abort()
                self._restore_index(index, replaced)
            self._retry_elsewhere(captured, error)
            return True
        with self._lock:
            index.commit()
        self._marker = prepared.marker_entry_id
        size = state_size(prepared, captured.properties)
        self._succeeded(captured, entries + marker, size, prepared.page_bytes)
        self._log.on_state_appended(self._config.retained_cursor_ledgers)
        return True

    def _retry_elsewhere(self, captured: _FlushSnapshot, error: BaseException) -> None:
        """Store the state in the record, or else in a new ledger, after an append has failed."""
        if not isinstance(error, BookstandError):
            self._failed(captured, error)
            raise error
        if not isinstance(error, NoSuchLedgerError):
            try:
                self._store_in_record(captured, error)
                return
            except BookstandError:
                pass
        try:
            self._flush_into_new_ledger()
        except BaseException as second:
            self._failed(captured, second)
            raise
        self._complete(captured.completion)

    def _restore_index(self, index: PageIndex, replaced: dict[int, PageRef | None]) -> None:
        """Undo index changes of a failed flush. Callers hold the state's lock."""
        for ledger_id, ref in replaced.items():
            if ref is None:
                index.remove(ledger_id)
            elif index.get(ledger_id) is not None:
                index.set(ledger_id, ref)

    def _encode_marker(
        self, index: PageIndex, captured: _FlushSnapshot, entry_id: int, page_entries: int, previous: int | None
    ) -> tuple[PreparedIndex, list[bytes]]:
        prepared = index.prepare(entry_id, room_for_nodes(self._name, captured.properties, self._log.entry_limit))
        marker = encode_marker(
            self._name,
            prepared,
            generation=self._generation + 1,
            mark_delete=captured.mark_delete,
            properties=captured.properties,
            time_ms=self._log.client.clock.now(),
            previous=previous,
            page_entries=page_entries,
        )
        return prepared, marker

    def _flush_into_new_ledger(self) -> None:
        """Write dirty pages and copies of all other pages that the index refers to into a new ledger, then make the
        record point at it. Until then the old ledger stays in use."""
        with self._lock:
            captured = self._capture()
            clean = [(one, ref) for one, ref in self._state.index.items() if one not in captured.page_versions]
            old = self._log.handle
        damaged: list[recovery.DamagedPage] = []
        try:
            with self._log.new_ledger(captured.resets != self._stored_resets) as writer:
                copy = self._write_full_state(writer, clean, old, captured, damaged)
                if self._storage.hooks is not None:
                    self._storage.point("cursor.copied", self._log.path)
                self._switch_to(writer, captured, copy.copied)
            if self._storage.hooks is not None:
                self._storage.point("cursor.switched", self._log.path)
        except (CursorFencedError, MetadataVersionError) as error:
            self._failed(captured, error)
            raise
        except BookstandError as error:
            self._fall_back_to_record(captured, error)
            return
        except BaseException as interruption:
            self._failed(captured, interruption)
            raise
        with self._lock:
            self._log.handle = writer
            self._install_index(copy.pages, captured)
        self.report_damage(damaged)
        self._marker = copy.marker
        self._succeeded(captured, copy.entries, copy.size, copy.pages.page_bytes)

    def preview(self) -> FlushStats:
        """Return the size of a flush into a new ledger, which the first flush after opening is, without writing. The
        cursor is read-only and must not be used afterwards."""
        paged = self._config.enable_lru_cache_max_unacked_ranges
        if not paged:
            snapshot = snapshot_form.snapshot(snapshot_form.state_of(self._state), self._config)
            return FlushStats(0, len(snapshot.data), len(snapshot.data))
        with self._lock:
            captured = self._capture()
            clean = [(one, ref) for one, ref in self._state.index.items() if one not in captured.page_versions]
            copy = self._write_full_state(cursor_ledger.DiscardingWriter(), clean, self._log.handle, captured, [])
        return FlushStats(len(captured.pages), sum(map(len, copy.entries)), copy.size)

    def _write_full_state(
        self,
        writer: cursor_ledger.EntrySink,
        clean: Sequence[tuple[int, PageRef]],
        old: LedgerHandle | None,
        captured: _FlushSnapshot,
        damaged: list[recovery.DamagedPage],
    ) -> _LedgerCopy:
        """Write the whole state into an empty ledger. Damaged pages are replaced, and reported in ``damaged``."""
        commit_bytes = self._config.flush_commit_bytes
        refs: dict[int, PageRef] = {}
        buffered: list[bytes] = []
        at = size = 0
        for ledger_id, ref in clean:
            assert old is not None
            try:
                parts = recovery.read_parts(old, ref)
                # Verify again, so that a page that was damaged since its last check is not copied.
                recovery.load_page(self._name, ledger_id, ref, parts, self._log.client.expansion_limits)
            except recovery.DAMAGED as error:
                with self._lock:
                    pages = self._state.pages
                    resident = pages.get(ledger_id) if ledger_id in pages else None
                    older = None if resident is None else resident.copy()
                if older is None:
                    older, report = self._log.replacement(old, ledger_id, ref, error, captured.mark_delete)
                    damaged.append(report)
                if not older:
                    continue
                encoded = self._encode(older, captured.mark_delete)
                parts, ref = encoded.entries, encoded.ref(0)
            refs[ledger_id] = ref._replace(entry_id=at + len(buffered))
            buffered += parts
            size += ref.size
            if size >= commit_bytes:
                cursor_ledger.append(writer, buffered, commit_bytes)
                at += len(buffered)
                buffered, size = [], 0
        for ledger_id, page in captured.pages.items():
            refs[ledger_id] = page.ref(at + len(buffered))
            buffered += page.entries
        index = PageIndex.build(sorted(refs.items()))
        entries = at + len(buffered)
        copied = entries - sum(len(page.entries) for page in captured.pages.values())
        prepared, marker = self._encode_marker(index, captured, entries, entries, None)
        cursor_ledger.append(writer, buffered + marker, commit_bytes)
        index.commit()
        size = state_size(prepared, captured.properties)
        return _LedgerCopy(index, prepared.marker_entry_id, buffered + marker, size, copied)

    def _switch_to(self, writer: LedgerWriter, captured: _FlushSnapshot, copied: int = 0) -> None:
        info = self._log.info
        assert info is not None
        now = self._log.client.clock.now()
        record = snapshot_form.record_pointing_at_ledger(info, captured.mark_delete, captured.properties, now)
        was_reset = captured.resets != self._stored_resets
        self._log.switch(writer, record, self._config.retained_cursor_ledgers, copied, was_reset)

    def _install_index(self, index: PageIndex, captured: _FlushSnapshot) -> None:
        """Install the index of the new ledger, without pages that were dropped since the capture. Callers hold the
        state's lock."""
        state = self._state
        if captured.resets != state.resets:
            index = PageIndex()
        first_ledger = state.mark_delete.ledger_id
        index.remove_below(first_ledger)
        if first_ledger not in state.pages and first_ledger not in state.index:
            index.remove(first_ledger)
        state.index = index

    # -- snapshot form -------------------------------------------------------------------------------------------------

    def _flush_snapshot(self) -> None:
        """Write the whole state as one entry, or into the record if it is too large for an entry."""
        with self._lock:
            captured = self._capture(paged=False)
            state = snapshot_form.state_of(self._state)
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
            elif captured.resets != self._stored_resets or not self._is_writable or not self._append_snapshot(entry):
                with self._log.new_ledger(captured.resets != self._stored_resets) as writer:
                    cursor_ledger.append(writer, [entry], self._config.flush_commit_bytes)
                    self._switch_to(writer, captured)
        except (CursorFencedError, MetadataVersionError) as error:
            self._failed(captured, error)
            raise
        except BookstandError as error:
            self._fall_back_to_record(captured, error)
            return
        except BaseException as interruption:
            self._failed(captured, interruption)
            raise
        self._forget_pages()
        self.left_out_ranges, self.left_out_batches = left_out
        self.is_inline = is_inline
        self._succeeded(captured, [entry], size)

    def _append_snapshot(self, entry: bytes) -> bool:
        """Append to the current ledger. Returns False if it was deleted."""
        try:
            self._log.append([entry], self._config.flush_commit_bytes)
        except NoSuchLedgerError:
            return False
        self._log.on_state_appended(self._config.retained_cursor_ledgers)
        return True

    def snapshot_misfit(self, *, inline: bool) -> str | None:
        """Return the reason why a flush in the snapshot form would truncate the state, all of which is in memory; None
        if it would not. ``inline``: a state that is too large for an entry may be stored in the record."""
        with self._lock:
            state = snapshot_form.state_of(self._state)
        written = snapshot_form.snapshot(state, self._config)
        ranges = len(RangeSet(state.acked))
        if written.ranges_left_out or written.batches_left_out:
            return snapshot_form.misfit(ranges, len(state.batches), self._config)
        size, limit = len(written.data), self._log.entry_limit
        if size <= limit or (inline and not snapshot_form.ranges_not_fitting_inline(state, self._config)):
            return None
        reason = f"takes {size} bytes as a snapshot, but an entry holds at most {limit}"
        if inline:
            max_ranges = self._config.max_unacked_ranges_in_metadata_store
            reason += f", and it has {ranges} ranges, but max_unacked_ranges_in_metadata_store is {max_ranges}"
        return reason

    def try_store_inline(self) -> bool:
        """Move a small state into the record at a clean close in the snapshot form, as Pulsar does. Returns True if
        that was done."""
        with self._lock:
            state = snapshot_form.state_of(self._state)
        if snapshot_form.ranges_not_fitting_inline(state, self._config):
            return False
        self._log.inline(self._inline_info(state))
        return True

    def _inline_info(self, state: AckSnapshot) -> CursorInfo:
        info = self._log.info
        assert info is not None
        return snapshot_form.inline(info, state, self._log.client.clock.now(), self._config)

    def _fall_back_to_record(self, captured: _FlushSnapshot, error: BookstandError) -> None:
        """Store the state in the record after writing a ledger has failed; raise ``error`` if that fails, too."""
        try:
            self._store_in_record(captured, error)
        except BookstandError:
            self._failed(captured, error)
            raise error.with_traceback(None) from None

    def _store_in_record(self, captured: _FlushSnapshot, error: BookstandError) -> None:
        """Store the whole state in the record; raise ``error`` if it is not in memory or too large."""
        with self._lock:
            state = snapshot_form.state_of(self._state) if snapshot_form.is_fully_resident(self._state) else None
            if state is None or snapshot_form.ranges_not_fitting_inline(state, self._config):
                raise error
            # Acknowledgments accepted since the capture are written, too; the next flush completes their Pending.
            captured = captured._replace(mark_delete=self._state.mark_delete)
            if self._config.enable_lru_cache_max_unacked_ranges:
                # Keep all pages in memory, dirty, until the next ledger stores them: their current ledger is deleted.
                captured = captured._replace(page_versions={})
                self._state.write_all_pages()
        self._log.inline(self._inline_info(state))
        logger().warning(
            "topic %s, cursor %s: its state is stored in its record, because no ledger can be written: %s",
            self._log.topic,
            self._name,
            error,
        )
        self._forget_pages()
        self.left_out_ranges = self.left_out_batches = 0
        self.is_inline = True
        self._succeeded(captured, [], snapshot_form.size_inline(state))

    def _forget_pages(self) -> None:
        """Clear the references to stored pages, after the state has been stored as one snapshot."""
        with self._lock:
            self._state.forget_stored_pages()
            self._log.handle = self._log.writer
        self._marker = None

    # -- damage --------------------------------------------------------------------------------------------------------

    def report_damage(self, damaged: Iterable[recovery.DamagedPage]) -> None:
        """Log and count pages that were replaced or dropped while the cursor was open."""
        for page in damaged:
            self.damaged_pages.append(page)
            logger().warning("topic %s, cursor %s: %s", self._log.topic, self._name, page)

    # -- completion of a flush -----------------------------------------------------------------------------------------

    def _succeeded(self, captured: _FlushSnapshot, entries: Sequence[bytes], size: int, page_bytes: int = 0) -> None:
        with self._lock:
            pages = self._state.pages
            # After a reset, another page with the same version may exist, which is not stored.
            page_versions = captured.page_versions if captured.resets == self._state.resets else {}
            for ledger_id, version in page_versions.items():
                page = pages.dirty.get(ledger_id)
                if page is not None and page.version == version:
                    pages.mark_clean(ledger_id)
            self._stored_version = captured.version
            self._stored_resets = captured.resets
            self.durable_mark_delete = captured.mark_delete
            self.flushes += 1
            self.pages_written += len(captured.pages)
            self.bytes_written += sum(map(len, entries))
            self.state_size = size
            self.non_page_bytes = size - page_bytes
            self._stored_properties = captured.properties
            self._min_size = None
        self._generation += 1
        self._complete(captured.completion)

    def _failed(self, captured: _FlushSnapshot, error: BaseException) -> None:
        """Fail the Pendings of a flush. The changes stay in memory, and a later flush writes them."""
        if not isinstance(error, BookstandError):
            error = OutcomeUnknownError(f"a flush of cursor {self._name!r} was interrupted by {error!r}")
        self._complete(captured.completion, error)


class _LedgerCopy(NamedTuple):
    """A complete state in a new ledger."""

    pages: PageIndex
    marker: int
    entries: list[bytes]
    size: int
    copied: int
