"""In-memory state of a cursor and its transitions, without I/O.

``mark_delete`` is the last entry of the run of acknowledged entries that begins with the topic. Acknowledgments after
it are stored in pages, one for each ledger of the topic. ``next_unacked`` is the first entry after the mark-delete
position: only its acknowledgment advances that position.

A transition that needs a stored page that is not in memory raises :class:`PageMiss`. The caller reads the page without
holding a lock, then installs it and retries the transition in one critical section (``store/page_loader.py``).
Therefore a transition may need at most one clean page at a time, because two could evict each other forever, and its
changes up to the miss must be idempotent. Only advancing the mark-delete position over acknowledged entries does not
raise: it stops and sets ``blocked_on_page``, and :meth:`CursorState.advance_mark_delete` continues when the page is in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge

from pyroaring import BitMap64

from bookstand.cursor.format.page_index import PageIndex
from bookstand.cursor.state.bitmap_runs import runs
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.state.page_cache import PageCache
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.topic_extent import TopicExtent
from bookstand.storage.format.position import Position
from bookstand.storage.format.schema import MAX_ENTRY_ID

# Fewer entries than this are faster to add one by one than as a bitmap.
_MIN_BULK = 8


class PageMiss(Exception):  # noqa: N818 - a request, not an error
    """The page of a ledger is stored but not in memory."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(ledger_id)
        self.ledger_id = ledger_id


class NoSuchPositionError(IncorrectParameterError):
    """The topic has no entry at the position."""


class MarkDeletingMarkedPositionError(IncorrectParameterError):
    """The position is before the mark-delete position."""


class CursorState:
    """Not thread-safe: guarded by the cursor's lock."""

    def __init__(self, extent: Callable[[], TopicExtent], pages: PageCache, mark_delete: Position) -> None:
        self._extent = extent
        self.pages = pages
        self.index = PageIndex()
        self.mark_delete = mark_delete
        self.properties: dict[str, int] = {}
        # Counts changes other than of page contents: of the mark-delete position and properties, and dropped pages.
        self.version = 0
        self.resets = 0
        self.next_unacked: Position | None = None
        self.blocked_on_page: int | None = None

    # -- pages ---------------------------------------------------------------------------------------------------------

    def page(self, ledger_id: int) -> LedgerAcks | None:
        """Return the page of a ledger; None if it has none. Raises :class:`PageMiss` if it is not in memory."""
        found = self.pages.get(ledger_id)
        if found is None and self.index.get(ledger_id) is not None:
            raise PageMiss(ledger_id)
        return found

    def ledger_ids(self) -> list[int]:
        """Return the ledgers that have a page, ascending."""
        return sorted({*self.pages.ledger_ids(), *(ledger_id for ledger_id, _ in self.index.items())})

    def page_to_change(self, ledger_id: int, limit: int) -> LedgerAcks:
        """Return the page of a ledger, created if missing, and mark it dirty. ``limit`` is the number of entries of the
        ledger."""
        page = self.page(ledger_id)
        if page is None:
            page = LedgerAcks(ledger_id)
        page.limit = max(page.limit, limit)
        self.pages.mark_dirty(page)
        return page

    def install(self, page: LedgerAcks) -> None:
        """Add a page that was read, unless the ledger's page was changed or dropped meanwhile."""
        if page.ledger_id not in self.pages and self.index.get(page.ledger_id) is not None:
            page.limit = self._extent().entries(page.ledger_id) or 0
            self.pages.install(page)

    def replace_page(self, page: LedgerAcks) -> None:
        """Replace a damaged stored page; an empty page removes it."""
        self.index.remove(page.ledger_id)
        self.version += 1
        if page:
            page.drop_up_to(self.mark_delete.entry_id if page.ledger_id == self.mark_delete.ledger_id else -1)
            page.limit = self._extent().entries(page.ledger_id) or 0
            self.pages.mark_dirty(page)

    def forget_stored_pages(self) -> None:
        """Clear the index, after the whole state has been stored as a snapshot. All pages are in memory."""
        self.index = PageIndex()

    def write_all_pages(self) -> None:
        """Mark all pages dirty, so that the next flush writes them."""
        for page in list(self.pages):
            self.pages.mark_dirty(page)

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self, position: Position) -> None:
        page = self._page_for(self._extent(), position)
        if page is not None:
            page.ack(position.entry_id)
            if self._acks_next_unacked(page):
                self.advance_mark_delete()

    def ack_ledger(self, ledger_id: int, entry_ids: list[int]) -> None:
        """Acknowledge entries of one ledger: all of them, or none if one does not exist."""
        if not self._advance_over(ledger_id, entry_ids):
            work = {ledger_id: entry_ids}
            self.check(work)
            self.ack_ledgers(list(work.items()))

    def ack_ledgers(self, work: list[tuple[int, list[int]]]) -> None:
        """Acknowledge existing entries ledger by ledger, from the end of ``work``, and remove it from ``work``. Stops
        after at least one ledger if dirty pages must be flushed first."""
        extent = self._extent()
        reached = False
        try:
            while work:
                ledger_id, entry_ids = work[-1]
                page = self._page_for(extent, Position(ledger_id, max(entry_ids)))
                if page is not None:
                    if len(entry_ids) < _MIN_BULK:
                        for entry_id in entry_ids:
                            page.ack(entry_id)
                    else:
                        page.ack_all(entry_ids)
                    if ledger_id == self.mark_delete.ledger_id:
                        page.drop_up_to(self.mark_delete.entry_id)
                    reached = reached or self._acks_next_unacked(page)
                work.pop()
                if self.pages.over_limit:
                    break
        finally:
            if reached:
                self.advance_mark_delete()

    def check(self, by_ledger: Mapping[int, list[int]]) -> None:
        """Raise :class:`NoSuchPositionError` if one of the entries does not exist."""
        extent = self._extent()
        for ledger_id, entry_ids in by_ledger.items():
            if min(entry_ids) < 0:
                raise NoSuchPositionError(f"ledger {ledger_id} has no entry {min(entry_ids)}")
            self._is_beyond(extent, Position(ledger_id, max(entry_ids)))

    def by_ledger(self, positions: Iterable[Position]) -> tuple[dict[int, list[int]], NoSuchPositionError | None]:
        """Group the positions after the mark-delete position by ledger, up to the first position that does not exist.
        Also returns the error for that position."""
        extent = self._extent()
        found: dict[int, list[int]] = {}
        for position in positions:
            try:
                if self._is_beyond(extent, position):
                    found.setdefault(position.ledger_id, []).append(position.entry_id)
            except NoSuchPositionError as error:
                return found, error
        return found, None

    def _advance_over(self, ledger_id: int, entry_ids: list[int]) -> bool:
        """Advance the mark-delete position without creating a page, if these are the entries that directly follow it
        and their ledger has no page. Returns True if that was done."""
        first = entry_ids[0]
        end = first + len(entry_ids)
        mark_delete = self.mark_delete
        if mark_delete != (ledger_id, first - 1) or entry_ids != list(range(first, end)):
            return False
        entries = self._extent().entries(ledger_id) or 0
        if end > entries or self.page(ledger_id) is not None:
            return False
        self.mark_delete = Position(ledger_id, end - 1)
        self.version += 1
        if end < entries:
            self.next_unacked = Position(ledger_id, end)
        else:
            self.advance_mark_delete()
        return True

    def ack_part(self, position: Position, not_acked: int) -> None:
        """Acknowledge the messages of a batch whose bits are not set in ``not_acked``."""
        page = self._page_for(self._extent(), position)
        if page is None:
            return
        complete = page.ack_part(position.entry_id, not_acked)
        self.pages.mark_dirty(page)
        if complete and self._acks_next_unacked(page):
            self.advance_mark_delete()

    def _acks_next_unacked(self, page: LedgerAcks) -> bool:
        """Return True if the page acknowledges the entry after the mark-delete position."""
        if self.next_unacked is None or self.next_unacked <= self.mark_delete:
            self.next_unacked = self._extent().following(self.mark_delete)
        following = self.next_unacked
        return following is not None and following.ledger_id == page.ledger_id and following.entry_id in page.acked

    def _page_for(self, extent: TopicExtent, position: Position) -> LedgerAcks | None:
        """Return the page that an acknowledgment of the position changes, marked dirty; None if it has no effect."""
        if not self._is_beyond(extent, position):
            return None
        return self.page_to_change(position.ledger_id, extent.entries(position.ledger_id) or 0)

    def _is_beyond(self, extent: TopicExtent, position: Position) -> bool:
        """Return True if the position is an entry after the mark-delete position. False if its acknowledgment has no
        effect: it is not after that position, its ledger was deleted, or it is before a ledger's first entry."""
        if position <= self.mark_delete:
            return False
        ledger_id, entry_id = position
        entries = extent.entries(ledger_id)
        if entries is not None and 0 <= entry_id < entries:
            return True
        last = extent.last
        if last is None or position > last or (entries is not None and entry_id >= 0):
            raise NoSuchPositionError(f"position {position} cannot be acknowledged: the topic has no such entry")
        return False

    def mark_delete_to(self, position: Position, properties: Mapping[str, int]) -> None:
        """Acknowledge everything up to and including the position, and replace the properties."""
        self._check_forward(position, position < self.mark_delete)
        if position != self.mark_delete:
            self._check_within(position)
        self._move_to(self._extent(), position)
        self.properties = dict(properties)
        self.version += 1
        self.advance_mark_delete()

    def mark_delete_before(self, position: Position, properties: Mapping[str, int]) -> None:
        self._check_forward(position, position <= self.mark_delete)
        before = self._extent().preceding(position)
        self.mark_delete_to(self.mark_delete if before is None else max(before, self.mark_delete), properties)

    def mark_delete_in_batch(self, position: Position, not_acked: int, properties: Mapping[str, int]) -> None:
        """Acknowledge everything before the position, and the messages before the lowest bit of ``not_acked``."""
        self._check_forward(position, position <= self.mark_delete)
        extent = self._extent()
        page = self._page_for(extent, position)
        complete = page is not None and page.ack_part_up_to(position.entry_id, not_acked)
        if page is not None:
            self.pages.mark_dirty(page)
        before = position if complete else extent.preceding(position)
        if before is not None and before > self.mark_delete:
            self._move_to(extent, before)
        self.properties = dict(properties)
        self.version += 1
        self.advance_mark_delete()

    def _check_forward(self, position: Position, backward: bool) -> None:
        if backward:
            raise MarkDeletingMarkedPositionError(
                f"position {position} cannot be marked as deleted: everything up to {self.mark_delete} already is"
            )

    def _check_within(self, position: Position) -> None:
        """Raise :class:`NoSuchPositionError` for a position after the topic's last entry. The position before the first
        entry of an empty ledger is valid."""
        extent = self._extent()
        last = extent.last
        entries = extent.entries(position.ledger_id)
        if entries is not None and position.entry_id >= entries:
            raise NoSuchPositionError(
                f"position {position} is after the end of its ledger, which has {entries} entries"
            )
        if entries is None and (last is None or position > last):
            raise NoSuchPositionError(f"position {position} is after the topic's last entry, {last}")

    # -- the mark-delete position --------------------------------------------------------------------------------------

    def advance_mark_delete(self) -> None:
        """Advance the mark-delete position over the acknowledged entries that directly follow it."""
        extent = self._extent()
        reached = self.mark_delete
        following = extent.following(reached)
        self.blocked_on_page = None
        while following is not None:
            ledger_id, entry_id = following
            try:
                page = self.page(ledger_id)
            except PageMiss as miss:
                self.blocked_on_page = miss.ledger_id
                break
            if page is None or entry_id not in page.acked:
                break
            last = (extent.entries(ledger_id) or 0) - 1
            reached = Position(ledger_id, min(page.run_end(entry_id), last))
            following = extent.following(reached)
        if reached != self.mark_delete:
            self._move_to(extent, reached)
        self.next_unacked = following

    def _move_to(self, extent: TopicExtent, position: Position) -> None:
        """Set the mark-delete position, and drop the acknowledgments up to it."""
        ledger_id, entry_id = position
        if entry_id + 1 >= (extent.entries(ledger_id) or 0):
            # The whole ledger is acknowledged, so its page is dropped without being read.
            self._drop(ledger_id)
        else:
            page = self.page(ledger_id)
            if page is not None and page.covers_up_to(entry_id):
                self.pages.mark_dirty(page)
                page.drop_up_to(entry_id)
                if not page:
                    self._drop(ledger_id)
        if ledger_id != self.mark_delete.ledger_id:
            self.pages.drop_below(ledger_id)
            self.index.remove_below(ledger_id)
        self.mark_delete = position
        self.version += 1

    def _drop(self, ledger_id: int) -> None:
        self.pages.drop(ledger_id)
        self.index.remove(ledger_id)

    def reset(self, position: Position) -> None:
        """Make the first entry from ``position`` on the next to be delivered; it and all later entries become
        unacknowledged. Without such an entry, everything is acknowledged."""
        extent = self._extent()
        following = extent.following(position.previous)
        if following is None:
            mark_delete = extent.last or self.mark_delete
        else:
            mark_delete = extent.preceding(following) or Position(following.ledger_id, -1)
        self.pages.clear()
        self.index.remove_below(1 << 63)
        self.mark_delete = mark_delete
        self.properties = {}
        self.version += 1
        self.resets += 1
        self.advance_mark_delete()

    # -- queries -------------------------------------------------------------------------------------------------------

    def is_acked(self, position: Position) -> bool:
        if position <= self.mark_delete:
            return True
        page = self.page(position.ledger_id)
        return page is not None and position.entry_id in page.acked

    def unacked_of(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """Return the unacknowledged entries of a ledger among ``entry_ids``."""
        if ledger_id < self.mark_delete.ledger_id:
            return BitMap64()
        page = self.page(ledger_id)
        found = entry_ids.copy() if page is None else entry_ids - page.acked
        if ledger_id == self.mark_delete.ledger_id:
            found.remove_range(0, self.mark_delete.entry_id + 1)
        return found

    def not_acked_indexes(self, position: Position) -> int | None:
        """Return the bits of the unacknowledged messages of a partially acknowledged batch; None for other entries."""
        page = self.page(position.ledger_id)
        return None if page is None else page.partial.get(position.entry_id)

    def nth_unacked(self, number: int) -> Position | None:
        """Return the ``number``-th unacknowledged entry after the mark-delete position, counted from 1. Lower ledgers
        are counted from the index, without their pages."""
        extent = self._extent()
        start = extent.rank(self.mark_delete)
        acked = 0
        for ledger_id, count in self._acked_counts():
            if number <= extent.rank(Position(ledger_id, MAX_ENTRY_ID)) - start - acked - count:
                before = max(0, extent.rank(Position(ledger_id, -1)) - start) - acked
                if number <= before:
                    break
                page = self.page(ledger_id)
                assert page is not None
                first = self.mark_delete.entry_id + 1 if ledger_id == self.mark_delete.ledger_id else 0
                return Position(ledger_id, page.nth_unacked(first, number - before))
            acked += count
        return extent.at(start + number + acked)

    def unacked_run(self, ledger_id: int, first: int, last: int) -> tuple[int, int] | None:
        """Return the first run of unacknowledged entries from ``first`` to ``last``; None if all are acknowledged."""
        page = self.page(ledger_id)
        if ledger_id < self.mark_delete.ledger_id:
            return None
        if ledger_id == self.mark_delete.ledger_id:
            first = max(first, self.mark_delete.entry_id + 1)
        if page is None:
            return (first, last) if first <= last else None
        first = page.next_unacked(first)
        return (first, page.unacked_run_end(first, last)) if first <= last else None

    def run_end(self, position: Position) -> Position:
        """Return the last entry of the acknowledged run that contains the position; the position itself if it is not
        acknowledged or not after the mark-delete position."""
        page = self.page(position.ledger_id) if position > self.mark_delete else None
        if page is None or position.entry_id not in page.acked:
            return position
        return Position(position.ledger_id, page.run_end(position.entry_id))

    @property
    def first_unacked(self) -> Position | None:
        """Lowest entry that is not completely acknowledged; None if all are."""
        return self._extent().following(self.mark_delete)

    @property
    def highest_acked(self) -> Position:
        """Highest entry that is acknowledged at least partially; the mark-delete position if no later one is."""
        ledger_id = max(self.pages.last_ledger, self.index.last_ledger)
        page = self.page(ledger_id) if ledger_id >= 0 else None
        if page:
            return Position(ledger_id, page.last)
        for ledger_id in reversed(self.ledger_ids()):
            page = self.page(ledger_id)
            if page:
                return Position(ledger_id, page.last)
        return self.mark_delete

    def adds_range(self, position: Position) -> bool:
        """Return True if acknowledging the entry adds a range. All pages are in memory."""
        ledger_id, entry_id = position
        if self.mark_delete == position.previous:
            return False
        page = self.pages.get(ledger_id)
        return page is None or not ((entry_id > 0 and entry_id - 1 in page.acked) or entry_id + 1 in page.acked)

    @property
    def range_count(self) -> int:
        """Number of acknowledged ranges. All pages are in memory."""
        return sum(len(runs(page.acked)[0]) for page in self.pages)

    @property
    def partial_count(self) -> int:
        """Number of partially acknowledged batches. All pages are in memory."""
        return sum(len(page.partial) for page in self.pages)

    @property
    def acked_beyond(self) -> int:
        """Number of acknowledged entries after the mark-delete position, including pages that are not in memory."""
        return self.index.acked + sum(len(page.acked) - self._indexed(page.ledger_id) for page in self._unindexed())

    def _acked_counts(self) -> Iterator[tuple[int, int]]:
        """Yield each ledger that has a page with the number of its acknowledged entries, ascending."""
        changed = {page.ledger_id: len(page.acked) for page in self._unindexed()}
        stored = (one for one in self.index.acked_counts() if one[0] not in changed)
        return merge(stored, sorted(changed.items()))

    def _unindexed(self) -> Iterable[LedgerAcks]:
        """Return the pages whose counts are missing or outdated in the index: dirty pages, or all pages in the snapshot
        form, whose index is empty after the first flush."""
        return self.pages.dirty.values() if self.index else self.pages

    def _indexed(self, ledger_id: int) -> int:
        ref = self.index.get(ledger_id)
        return 0 if ref is None else ref.acked

    @property
    def backlog(self) -> int:
        extent = self._extent()
        last = extent.last
        return 0 if last is None else extent.between(self.mark_delete, last) - self.acked_beyond
