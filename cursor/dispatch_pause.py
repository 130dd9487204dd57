"""The limit of PIP-299: dispatch pauses while a cursor's state, as it was last written, is at the limit.

A pause holds back what lies above the highest acknowledged position. Acknowledgments at or below that position fill
holes, so the state stays bounded by what lies below it, and the pause ends when the holes are filled. The lowest entry
that is not acknowledged is never held back: its acknowledgment moves the mark-delete position and adds no range.

In the old form, where the number of ranges and of batches in part is limited as well, an acknowledgment in the middle
of a run of unacknowledged entries adds a range. There an entry goes out only if the worst order of acknowledgments
leaves no more ranges, and no more batches in part, than the limits allow.
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
"""Reasons for a pause: the size of the state; ranges or batches that the limits of the old form leave out."""

Ask = Callable[[Callable[[], Any]], Any]
"""Asks the live state, under its lock."""


class Admission:
    """Entries that may be dispatched during a pause: all up to ``last``."""

    def __init__(self, last: Position) -> None:
        self.last = last

    def admits(self, position: Position) -> bool:
        """Return True if the entry may be dispatched. In the old form it then counts against the limits."""
        return position <= self.last


class OldFormAdmission(Admission):
    """Admission within the limits of the old form, which leave room for ``ranges`` more ranges and ``batches`` more
    batches in part."""

    def __init__(self, last: Position, first: Position, live: CursorState, ask: Ask, ranges: int, batches: int) -> None:
        super().__init__(last)
        self._first = first
        self._live = live
        self._ask = ask
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
        return self._live.adds_range(position), self._live.not_acked_indexes(position) is None


class DispatchPause:
    """``max_per_cursor_metadata_size_in_bytes`` is the limit in bytes; below 1 nothing pauses."""

    def __init__(self, live: CursorState, flushing: Flusher, config: CursorConfig) -> None:
        self._live = live
        self._flushing = flushing
        self._config = config
        self._limit = config.max_per_cursor_metadata_size_in_bytes
        # The state that dispatchers were last notified of.
        self._told = self.paused
        self.on_pause: list[Callable[[], object]] = []
        self.on_resume: list[Callable[[], object]] = []

    def change_config(self, config: CursorConfig) -> None:
        """Use these limits, and report a pause that begins or ends by them."""
        self._config = config
        self._limit = config.max_per_cursor_metadata_size_in_bytes
        self.tell()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons of the current pause; empty without one."""
        if self._limit < 1:
            return ()
        left_out = (LEFT_OUT,) if self._flushing.left_out else ()
        return (STATE_SIZE, *left_out) if self._flushing.state_size >= self._limit else left_out

    @property
    def paused(self) -> bool:
        """True while the state is at the limit, or the limits of the old form leave a part of it out."""
        return self._limit >= 1 and (self._flushing.left_out or self._flushing.state_size >= self._limit)

    def tell(self) -> None:
        """Notify dispatchers if the last write of the state begins or ends a pause."""
        paused = self.paused
        if paused != self._told:
            self._told = paused
            for callback in self.on_pause if paused else self.on_resume:
                callback()

    # -- what goes out during a pause ----------------------------------------------------------------------------------

    def admission(self, ask: Ask, outstanding: int) -> Admission:
        """Entries that may be dispatched now. Each of the ``outstanding`` messages in flight may still add a range or a
        batch in part. Callers hold the state's lock."""
        live = self._live
        highest, first = live.highest_acked, live.first_open
        last = max(highest, first) if first is not None else highest
        if self._config.enable_lru_cache_max_unacked_ranges:
            return Admission(last)
        most_ranges, most_batches = self._old_form_limits()
        ranges = 0 if self._flushing.left_out_ranges else most_ranges - live.range_count - outstanding
        batches = 0 if self._flushing.left_out_batches else most_batches - live.partial_count - outstanding
        return OldFormAdmission(last, last if first is None else first, live, ask, ranges, batches)

    def _old_form_limits(self) -> tuple[int, int]:
        """Maximum numbers of ranges and batches in part that are written to the place of the last write: a snapshot or
        the record."""
        config = self._config
        if not self._flushing.is_inline:
            return config.max_unacked_ranges_to_persist, config.max_batch_deleted_index_to_persist
        most = config.max_unacked_ranges_in_metadata_store
        most_batches = config.max_batch_deleted_index_to_persist if most else 0
        return min(most, config.max_unacked_ranges_to_persist), most_batches

    # -- the end of a pause --------------------------------------------------------------------------------------------

    def entries_to_resume(self, extent: TopicExtent) -> int | None:
        """Number of lowest unacknowledged entries whose acknowledgment ends the pause once it is written; 0 without a
        pause, None if no acknowledgment ends it. Callers hold the state's lock.

        The number is an upper bound. It is exact for the limits of the old form; for the size of the state it is
        rounded up to all holes in one ledger of the topic.
        """
        if not self.paused:
            return 0
        if self._limit <= self._flushing.least_size:
            return None
        if self._config.enable_lru_cache_max_unacked_ranges:
            return self._open_entries(extent, self._reach_of_pages(extent))
        state = snapshot_form.state_of(self._live)
        reach = max(self._reach_of_limits(state), self._reach_of_size(state))
        acked = sum(
            bitmap.rank(reach.entry_id) if ledger_id == reach.ledger_id else len(bitmap)
            for ledger_id, bitmap in state.acked.items()
            if (ledger_id, 0) <= reach
        )
        return extent.between(state.mark_delete, reach) - acked

    def _reach_of_pages(self, extent: TopicExtent) -> Position:
        """The mark-delete position at which the pages that are stored beyond it are small enough."""
        live = self._live
        in_memory = {page.ledger_id: page for page in live.pages}
        size = self._flushing.size_beside_pages + live.index.page_bytes
        reach: int | None = None
        if size >= self._limit:
            for ledger_id, ref in live.index.items():
                reach = ledger_id
                size -= ref.size
                if size < self._limit:
                    break
            else:
                reach = max([live.pages.last_ledger, live.index.last_ledger])
        if reach is None or reach < 0:
            return live.mark_delete
        page = in_memory.get(reach)
        last = (extent.entries(reach) or 0) - 1 if page is None else page.last
        return Position(reach, last)

    def _open_entries(self, extent: TopicExtent, upto: Position) -> int:
        """The number of entries up to there that are not acknowledged, by pages in memory and the index."""
        live = self._live
        acked = {ledger_id: ref.acked for ledger_id, ref in live.index.items() if ledger_id <= upto.ledger_id}
        acked |= {page.ledger_id: len(page.acked) for page in live.pages if page.ledger_id <= upto.ledger_id}
        return max(0, extent.between(live.mark_delete, upto) - sum(acked.values()))

    def _reach_of_limits(self, state: AckSnapshot) -> Position:
        """The mark-delete position beyond which there are no more ranges and batches in part than are written."""
        most_ranges, most_batches = self._old_form_limits()
        reach = state.mark_delete
        excess = sum(len(runs(bitmap)[0]) for bitmap in state.acked.values()) - most_ranges
        for ledger_id, bitmap in sorted(state.acked.items()):
            if excess <= 0:
                break
            lasts = runs(bitmap)[1]
            reach = Position(ledger_id, int(lasts[min(excess, len(lasts)) - 1]))
            excess -= len(lasts)
        if len(state.batches) > most_batches:
            reach = max(reach, sorted(state.batches)[len(state.batches) - most_batches - 1])
        return reach

    def _reach_of_size(self, state: AckSnapshot) -> Position:
        """The mark-delete position beyond which the snapshot of what is acknowledged is small enough."""
        reach = state.mark_delete
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
            reach = max([Position(ledger_id, last), *batches])
        return reach
