"""Dispatch pause of PIP-299: dispatch pauses while the stored state of a cursor is at its size limit.

A pause excludes the entries above the highest acknowledged position from dispatch. Acknowledgments at or below that
position fill holes, so the state stays bounded, and the pause ends when enough holes are filled. The lowest
unacknowledged entry is never excluded: its acknowledgment advances the mark-delete position and adds no range.

The snapshot form also limits the numbers of ranges and of partially acknowledged batches, and an acknowledgment in the
middle of a run of unacknowledged entries adds a range. There an entry is dispatched only if the limits hold for any
order of the outstanding acknowledgments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import position_info, snapshot_form
from bookstand.cursor.state.bitmap_runs import runs
from bookstand.cursor.state.cursor_state import CursorState
from bookstand.cursor.store.flusher import Flusher
from bookstand.storage.format.position import Position

if TYPE_CHECKING:
    from bookstand.cursor.state.ack_snapshot import AckSnapshot
    from bookstand.managed_ledger.topic_extent import TopicExtent

STATE_SIZE, LEFT_OUT = "state_size", "left_out"
"""Reasons for a pause: the size of the state; ranges or batches that the limits of the snapshot form exclude."""

Query = Callable[[Callable[[], Any]], Any]
"""Evaluates a query of the state under its lock, loading pages as needed."""


class Admission:
    """Entries that may be dispatched during a pause: all up to ``last``."""

    def __init__(self, last: Position) -> None:
        self.last = last

    def admits(self, position: Position) -> bool:
        """Return True if the entry may be dispatched. In the snapshot form it then counts against the limits."""
        return position <= self.last


class OldFormAdmission(Admission):
    """Admission within the limits of the snapshot form, which allow ``ranges`` more ranges and ``batches`` more
    partially acknowledged batches."""

    def __init__(
        self, last: Position, first: Position, state: CursorState, query: Query, ranges: int, batches: int
    ) -> None:
        super().__init__(last)
        self._first = first
        self._state = state
        self._ask = query
        self._ranges = ranges
        self._batches = batches

    def admits(self, position: Position) -> bool:
        if position > self.last:
            return False
        if position == self._first:
            return True
        adds_range, adds_batch = self._ask(partial(self._additions, position))
        if (adds_range and self._ranges < 1) or (adds_batch and self._batches < 1):
            return False
        self._ranges -= adds_range
        self._batches -= adds_batch
        return True

    def _additions(self, position: Position) -> tuple[bool, bool]:
        return self._state.adds_range(position), self._state.not_acked_indexes(position) is None


class DispatchPause:
    """Dispatch pause of one cursor. With ``max_per_cursor_metadata_size_in_bytes`` below 1 there is no limit and no
    pause."""

    def __init__(self, state: CursorState, flusher: Flusher, config: CursorConfig) -> None:
        self._state = state
        self._flusher = flusher
        self._config = config
        self._limit = config.max_per_cursor_metadata_size_in_bytes
        # Value of ``paused`` that dispatchers were last notified of.
        self._notified = self.paused
        self.on_pause: list[Callable[[], object]] = []
        self.on_resume: list[Callable[[], object]] = []

    def change_config(self, config: CursorConfig) -> None:
        """Replace the limits, and notify dispatchers of a pause that begins or ends because of them."""
        self._config = config
        self._limit = config.max_per_cursor_metadata_size_in_bytes
        self.notify()

    @property
    def reasons(self) -> tuple[str, ...]:
        if self._limit < 1:
            return ()
        left_out = (LEFT_OUT,) if self._flusher.left_out else ()
        return (STATE_SIZE, *left_out) if self._flusher.state_size >= self._limit else left_out

    @property
    def paused(self) -> bool:
        """True while the state is at the size limit, or the limits of the snapshot form exclude a part of it."""
        return self._limit >= 1 and (self._flusher.left_out or self._flusher.state_size >= self._limit)

    def notify(self) -> None:
        """Notify dispatchers if the last write of the state begins or ends a pause."""
        paused = self.paused
        if paused != self._notified:
            self._notified = paused
            for callback in self.on_pause if paused else self.on_resume:
                callback()

    # -- dispatch during a pause ---------------------------------------------------------------------------------------

    def admission(self, query: Query, outstanding: int) -> Admission:
        """Return the entries that may be dispatched. Each of the ``outstanding`` messages in flight may still add a
        range or a partially acknowledged batch. Callers hold the state's lock."""
        state = self._state
        highest, first = state.highest_acked, state.first_unacked
        last = max(highest, first) if first is not None else highest
        if self._config.enable_lru_cache_max_unacked_ranges:
            return Admission(last)
        max_ranges, max_batches = self._snapshot_limits()
        ranges = 0 if self._flusher.left_out_ranges else max_ranges - state.range_count - outstanding
        batches = 0 if self._flusher.left_out_batches else max_batches - state.partial_count - outstanding
        return OldFormAdmission(last, last if first is None else first, state, query, ranges, batches)

    def _snapshot_limits(self) -> tuple[int, int]:
        """Return the maximum numbers of ranges and of partially acknowledged batches that can be stored in the snapshot
        or the record, depending on the last flush."""
        config = self._config
        if not self._flusher.is_inline:
            return config.max_unacked_ranges_to_persist, config.max_batch_deleted_index_to_persist
        max_inline = config.max_unacked_ranges_in_metadata_store
        max_batches = config.max_batch_deleted_index_to_persist if max_inline else 0
        return min(max_inline, config.max_unacked_ranges_to_persist), max_batches

    # -- the end of a pause --------------------------------------------------------------------------------------------

    def entries_to_resume(self, extent: TopicExtent) -> int | None:
        """Number of lowest unacknowledged entries whose acknowledgment ends the pause once it is written; 0 without a
        pause, None if no acknowledgment ends it. Callers hold the state's lock.

        The number is an upper bound. It is exact for the limits of the snapshot form; for the size of the state it is
        rounded up to all holes in one ledger of the topic.
        """
        if not self.paused:
            return 0
        if self._limit <= self._flusher.min_size:
            return None
        if self._config.enable_lru_cache_max_unacked_ranges:
            return self._count_unacked(extent, self._target_for_pages(extent))
        state = snapshot_form.state_of(self._state)
        target = max(self._target_for_limits(state), self._target_for_size(state))
        acked = sum(
            bitmap.rank(target.entry_id) if ledger_id == target.ledger_id else len(bitmap)
            for ledger_id, bitmap in state.acked.items()
            if (ledger_id, 0) <= target
        )
        return extent.between(state.mark_delete, target) - acked

    def _target_for_pages(self, extent: TopicExtent) -> Position:
        """Return the mark-delete position at which the remaining stored pages are below the size limit."""
        state = self._state
        in_memory = {page.ledger_id: page for page in state.pages}
        size = self._flusher.non_page_bytes + state.index.page_bytes
        target: int | None = None
        if size >= self._limit:
            for ledger_id, ref in state.index.items():
                target = ledger_id
                size -= ref.size
                if size < self._limit:
                    break
            else:
                target = max([state.pages.last_ledger, state.index.last_ledger])
        if target is None or target < 0:
            return state.mark_delete
        page = in_memory.get(target)
        last = (extent.entries(target) or 0) - 1 if page is None else page.last
        return Position(target, last)

    def _count_unacked(self, extent: TopicExtent, upto: Position) -> int:
        """Return the number of unacknowledged entries up to a position, from the index and the pages in memory."""
        state = self._state
        acked = {ledger_id: ref.acked for ledger_id, ref in state.index.items() if ledger_id <= upto.ledger_id}
        acked |= {page.ledger_id: len(page.acked) for page in state.pages if page.ledger_id <= upto.ledger_id}
        return max(0, extent.between(state.mark_delete, upto) - sum(acked.values()))

    def _target_for_limits(self, state: AckSnapshot) -> Position:
        """Return the mark-delete position after which the remaining ranges and batches are within the limits."""
        max_ranges, max_batches = self._snapshot_limits()
        target = state.mark_delete
        excess = sum(len(runs(bitmap)[0]) for bitmap in state.acked.values()) - max_ranges
        for ledger_id, bitmap in sorted(state.acked.items()):
            if excess <= 0:
                break
            lasts = runs(bitmap)[1]
            target = Position(ledger_id, int(lasts[min(excess, len(lasts)) - 1]))
            excess -= len(lasts)
        if len(state.batches) > max_batches:
            target = max(target, sorted(state.batches)[len(state.batches) - max_batches - 1])
        return target

    def _target_for_size(self, state: AckSnapshot) -> Position:
        """Return the mark-delete position after which the remaining snapshot is below the size limit."""
        target = state.mark_delete
        nothing = state._replace(acked={}, batches={})
        form = snapshot_form.form_of(self._config)
        empty = len(position_info.write(nothing, form).data)
        size = len(position_info.write(state, form).data)
        for ledger_id in sorted({*state.acked, *(position.ledger_id for position in state.batches)}):
            if size < self._limit:
                break
            bitmap = state.acked.get(ledger_id)
            batches = {one: bits for one, bits in state.batches.items() if one.ledger_id == ledger_id}
            part = nothing._replace(acked={} if bitmap is None else {ledger_id: bitmap}, batches=batches)
            size -= len(position_info.write(part, form).data) - empty
            last = -1 if not bitmap else int(bitmap.max())
            target = max([Position(ledger_id, last), *batches])
        return target
