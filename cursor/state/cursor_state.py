"""A cursor's state in memory, and its transitions. No I/O: a page that would have to be read is asked for.

``mark_delete`` is the last entry of the unbroken run of acknowledged ones from the topic's beginning; what is
acknowledged beyond it stands in pages, one for each ledger of the topic. ``frontier`` is the first entry behind the
mark-delete position: acknowledging it, and nothing else, moves that position.

A transition that needs a page which is stored but not in memory raises :class:`PageMiss`; its caller reads the page
without holding any lock, and installs it and tries again in one hold of the lock (``bringing.py``). So a transition
needs at most one clean page at a time: with two, each could evict the other forever. What it has changed by then may be
changed again. Only moving the mark-delete position over acknowledged entries does not raise: it stops there, ``wanted``
is the ledger of the page, and :meth:`CursorState.close_holes` continues when the page is in memory.
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

# Adding entries one by one is faster than building a bitmap of them.
_FEW = 8


class PageMiss(Exception):  # noqa: N818 - a request, not an error
    """The page of this ledger is stored, but not in memory."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(ledger_id)
        self.ledger_id = ledger_id


class NoSuchPositionError(IncorrectParameterError):
    """The topic has no entry there yet."""


class MarkDeletingMarkedPositionError(IncorrectParameterError):
    """Everything up to there, and more, is marked as deleted already."""


class CursorState:
    """Not thread-safe: guarded by the cursor's lock."""

    def __init__(self, extent: Callable[[], TopicExtent], pages: PageCache, mark_delete: Position) -> None:
        self._extent = extent
        self.pages = pages
        self.index = PageIndex()
        self.mark_delete = mark_delete
        self.properties: dict[str, int] = {}
        # Counts what changed besides pages: the mark-delete position, properties, pages that are gone.
        self.moves = 0
        self.resets = 0
        self.frontier: Position | None = None
        self.wanted: int | None = None

    # -- pages ---------------------------------------------------------------------------------------------------------

    def page(self, ledger_id: int) -> LedgerAcks | None:
        """The ledger's page; None where nothing of it is acknowledged."""
        found = self.pages.get(ledger_id)
        if found is None and self.index.get(ledger_id) is not None:
            raise PageMiss(ledger_id)
        return found

    def ledger_ids(self) -> list[int]:
        """The ledgers that have a page."""
        return sorted({*self.pages.ledger_ids(), *(ledger_id for ledger_id, _ in self.index.items())})

    def page_to_change(self, ledger_id: int, limit: int) -> LedgerAcks:
        """The same, made if need be, and dirty from now on. ``limit`` is the number of entries the ledger has."""
        page = self.page(ledger_id)
        if page is None:
            page = LedgerAcks(ledger_id)
        page.limit = max(page.limit, limit)
        self.pages.touch(page)
        return page

    def install(self, page: LedgerAcks) -> None:
        """Add a page that was read, unless it has been changed or dropped since."""
        if page.ledger_id not in self.pages and self.index.get(page.ledger_id) is not None:
            page.limit = self._extent().entries(page.ledger_id) or 0
            self.pages.install(page)

    def replace_page(self, page: LedgerAcks) -> None:
        """Have this page instead of the stored one, which is damaged; of an empty page nothing is acknowledged."""
        self.index.remove(page.ledger_id)
        self.moves += 1
        if page:
            page.drop_up_to(self.mark_delete.entry_id if page.ledger_id == self.mark_delete.ledger_id else -1)
            page.limit = self._extent().entries(page.ledger_id) or 0
            self.pages.touch(page)

    def forget_stored_pages(self) -> None:
        """No page is stored by itself any more; all are in memory."""
        self.index = PageIndex()

    def write_all_pages(self) -> None:
        """Each is to be stored anew, whether it changes or not."""
        for page in list(self.pages):
            self.pages.touch(page)

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self, position: Position) -> None:
        """Acknowledge one entry."""
        page = self._page_for(self._extent(), position)
        if page is not None:
            page.ack(position.entry_id)
            if self._reaches_frontier(page):
                self.close_holes()

    def ack_ledger(self, ledger_id: int, entry_ids: list[int]) -> None:
        """Acknowledge many entries of one ledger: all of them, or none if the topic has no such entry."""
        if not self._advance_over(ledger_id, entry_ids):
            work = {ledger_id: entry_ids}
            self.check(work)
            self.ack_ledgers(list(work.items()))

    def ack_ledgers(self, work: list[tuple[int, list[int]]]) -> None:
        """Acknowledge entries that exist, by ledger, from the end of ``work``, and remove what is done. Stop when dirty
        pages must be flushed first; at least one ledger is done."""
        extent = self._extent()
        reached = False
        try:
            while work:
                ledger_id, entry_ids = work[-1]
                page = self._page_for(extent, Position(ledger_id, max(entry_ids)))
                if page is not None:
                    if len(entry_ids) < _FEW:
                        for entry_id in entry_ids:
                            page.ack(entry_id)
                    else:
                        page.ack_all(entry_ids)
                    if ledger_id == self.mark_delete.ledger_id:
                        page.drop_up_to(self.mark_delete.entry_id)
                    reached = reached or self._reaches_frontier(page)
                work.pop()
                if self.pages.over_limit:
                    break
        finally:
            if reached:
                self.close_holes()

    def check(self, by_ledger: Mapping[int, list[int]]) -> None:
        """Raise :class:`NoSuchPositionError` if the topic does not have all of the entries."""
        extent = self._extent()
        for ledger_id, entry_ids in by_ledger.items():
            if min(entry_ids) < 0:
                raise NoSuchPositionError(f"ledger {ledger_id} has no entry {min(entry_ids)}")
            self._is_beyond(extent, Position(ledger_id, max(entry_ids)))

    def by_ledger(self, positions: Iterable[Position]) -> tuple[dict[int, list[int]], NoSuchPositionError | None]:
        """Group the positions that are beyond the mark-delete position, up to the first that the topic does not have;
        return the error of that one, too."""
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
        """Where these are the entries that follow the mark-delete position, in their order, and nothing else of their
        ledger is acknowledged, move the position without making a page; returns whether that is so."""
        first = entry_ids[0]
        end = first + len(entry_ids)
        mark_delete = self.mark_delete
        if mark_delete != (ledger_id, first - 1) or entry_ids != list(range(first, end)):
            return False
        entries = self._extent().entries(ledger_id) or 0
        if end > entries or self.page(ledger_id) is not None:
            return False
        self.mark_delete = Position(ledger_id, end - 1)
        self.moves += 1
        if end < entries:
            self.frontier = Position(ledger_id, end)
        else:
            self.close_holes()
        return True

    def ack_part(self, position: Position, not_acked: int) -> None:
        """Some indexes of a batch: those whose bits are not in ``not_acked``."""
        page = self._page_for(self._extent(), position)
        if page is None:
            return
        complete = page.ack_part(position.entry_id, not_acked)
        self.pages.touch(page)
        if complete and self._reaches_frontier(page):
            self.close_holes()

    def _reaches_frontier(self, page: LedgerAcks) -> bool:
        """Whether the mark-delete position moves by what the page says."""
        if self.frontier is None or self.frontier <= self.mark_delete:
            self.frontier = self._extent().following(self.mark_delete)
        frontier = self.frontier
        return frontier is not None and frontier.ledger_id == page.ledger_id and frontier.entry_id in page.acked

    def _page_for(self, extent: TopicExtent, position: Position) -> LedgerAcks | None:
        """Return the page that an acknowledgment of the position changes, dirty; None if it changes nothing."""
        if not self._is_beyond(extent, position):
            return None
        return self.page_to_change(position.ledger_id, extent.entries(position.ledger_id) or 0)

    def _is_beyond(self, extent: TopicExtent, position: Position) -> bool:
        """Return True if the position is an entry beyond the mark-delete position. False if it is not, or of a ledger
        that has been deleted, or before a first entry: acknowledging it changes nothing."""
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
        """Everything up to the position; the properties replace those there were."""
        self._check_forward(position, position < self.mark_delete)
        if position != self.mark_delete:
            self._check_within(position)
        self._move_to(self._extent(), position)
        self.properties = dict(properties)
        self.moves += 1
        self.close_holes()

    def mark_delete_before(self, position: Position, properties: Mapping[str, int]) -> None:
        """Everything before the position, and nothing of it."""
        self._check_forward(position, position <= self.mark_delete)
        before = self._extent().preceding(position)
        self.mark_delete_to(self.mark_delete if before is None else max(before, self.mark_delete), properties)

    def mark_delete_in_batch(self, position: Position, not_acked: int, properties: Mapping[str, int]) -> None:
        """Everything before the position, and of its batch what is before the first bit of ``not_acked``."""
        self._check_forward(position, position <= self.mark_delete)
        extent = self._extent()
        page = self._page_for(extent, position)
        complete = page is not None and page.ack_part_up_to(position.entry_id, not_acked)
        if page is not None:
            self.pages.touch(page)
        before = position if complete else extent.preceding(position)
        if before is not None and before > self.mark_delete:
            self._move_to(extent, before)
        self.properties = dict(properties)
        self.moves += 1
        self.close_holes()

    def _check_forward(self, position: Position, backward: bool) -> None:
        if backward:
            raise MarkDeletingMarkedPositionError(
                f"position {position} cannot be marked as deleted: everything up to {self.mark_delete} is already"
            )

    def _check_within(self, position: Position) -> None:
        """Positions up to the last entry are; and those before the first one of a ledger that has none yet."""
        extent = self._extent()
        last = extent.last
        entries = extent.entries(position.ledger_id)
        if entries is not None and position.entry_id >= entries:
            raise NoSuchPositionError(
                f"position {position} is behind the end of its ledger, which has {entries} entries"
            )
        if entries is None and (last is None or position > last):
            raise NoSuchPositionError(f"position {position} is behind the topic's last entry, {last}")

    # -- the mark-delete position --------------------------------------------------------------------------------------

    def close_holes(self) -> None:
        """Move the mark-delete position over all entries that are acknowledged without a gap behind it."""
        extent = self._extent()
        reached = self.mark_delete
        following = extent.following(reached)
        self.wanted = None
        while following is not None:
            ledger_id, entry_id = following
            try:
                page = self.page(ledger_id)
            except PageMiss as needed:
                self.wanted = needed.ledger_id
                break
            if page is None or entry_id not in page.acked:
                break
            last = (extent.entries(ledger_id) or 0) - 1
            reached = Position(ledger_id, min(page.run_end(entry_id), last))
            following = extent.following(reached)
        if reached != self.mark_delete:
            self._move_to(extent, reached)
        self.frontier = following

    def _move_to(self, extent: TopicExtent, position: Position) -> None:
        """Move the mark-delete position, and drop what it passes."""
        ledger_id, entry_id = position
        if entry_id + 1 >= (extent.entries(ledger_id) or 0):
            # Nothing of the ledger remains, whatever its page has: it is not read.
            self._drop(ledger_id)
        else:
            page = self.page(ledger_id)
            if page is not None and page.reaches(entry_id):
                self.pages.touch(page)
                page.drop_up_to(entry_id)
                if not page:
                    self._drop(ledger_id)
        if ledger_id != self.mark_delete.ledger_id:
            self.pages.drop_below(ledger_id)
            self.index.remove_below(ledger_id)
        self.mark_delete = position
        self.moves += 1

    def _drop(self, ledger_id: int) -> None:
        self.pages.drop(ledger_id)
        self.index.remove(ledger_id)

    def reset(self, position: Position) -> None:
        """The first entry from ``position`` on is the next to be delivered: it and all behind it are as if they had
        never been acknowledged. Where there is none, everything is."""
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
        self.moves += 1
        self.resets += 1
        self.close_holes()

    # -- questions -----------------------------------------------------------------------------------------------------

    def is_acked(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged."""
        if position <= self.mark_delete:
            return True
        page = self.page(position.ledger_id)
        return page is not None and position.entry_id in page.acked

    def unacked_of(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """Entries of a ledger, out of those given, that are not acknowledged as a whole."""
        if ledger_id < self.mark_delete.ledger_id:
            return BitMap64()
        page = self.page(ledger_id)
        found = entry_ids.copy() if page is None else entry_ids - page.acked
        if ledger_id == self.mark_delete.ledger_id:
            found.remove_range(0, self.mark_delete.entry_id + 1)
        return found

    def not_acked_indexes(self, position: Position) -> int | None:
        """The bits of a batch that are not acknowledged yet; None where none of them is."""
        page = self.page(position.ledger_id)
        return None if page is None else page.partial.get(position.entry_id)

    def nth_open(self, number: int) -> Position | None:
        """Return the ``number``-th entry beyond the mark-delete position that is not acknowledged, from 1 on. Ledgers
        before that entry's are counted by the index."""
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
                return Position(ledger_id, page.nth_open(first, number - before))
            acked += count
        return extent.at(start + number + acked)

    def open_run(self, ledger_id: int, first: int, last: int) -> tuple[int, int] | None:
        """The first run of entries of a ledger, between the two, that are not acknowledged; None if all are."""
        page = self.page(ledger_id)
        if ledger_id < self.mark_delete.ledger_id:
            return None
        if ledger_id == self.mark_delete.ledger_id:
            first = max(first, self.mark_delete.entry_id + 1)
        if page is None:
            return (first, last) if first <= last else None
        first = page.next_open(first)
        return (first, page.open_end(first, last)) if first <= last else None

    def run_end(self, position: Position) -> Position:
        """The last entry of the run of acknowledged ones beyond the mark-delete position that this one is in; itself
        where it is in none."""
        page = self.page(position.ledger_id) if position > self.mark_delete else None
        if page is None or position.entry_id not in page.acked:
            return position
        return Position(position.ledger_id, page.run_end(position.entry_id))

    @property
    def first_open(self) -> Position | None:
        """The lowest entry that is not acknowledged as a whole; None if there is none."""
        return self._extent().following(self.mark_delete)

    @property
    def highest_acked(self) -> Position:
        """The highest entry that is acknowledged, whole or in part; the mark-delete position if none is beyond it."""
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
        """Return True if acknowledging the entry adds a range beyond mark-delete; all pages are in memory."""
        ledger_id, entry_id = position
        if self.mark_delete == position.previous:
            return False
        page = self.pages.get(ledger_id)
        return page is None or not ((entry_id > 0 and entry_id - 1 in page.acked) or entry_id + 1 in page.acked)

    @property
    def range_count(self) -> int:
        """The number of acknowledged ranges; all pages are in memory."""
        return sum(len(runs(page.acked)[0]) for page in self.pages)

    @property
    def partial_count(self) -> int:
        """The number of batches that are acknowledged in part; all pages are in memory."""
        return sum(len(page.partial) for page in self.pages)

    @property
    def acked_beyond(self) -> int:
        """Number of entries that are acknowledged beyond the mark-delete position, their pages in memory or not."""
        return self.index.acked + sum(len(page.acked) - self._indexed(page.ledger_id) for page in self._unindexed())

    def _acked_counts(self) -> Iterator[tuple[int, int]]:
        """Yield each ledger that has a page, and the number of its acknowledged entries, in ascending order."""
        changed = {page.ledger_id: len(page.acked) for page in self._unindexed()}
        stored = (one for one in self.index.acked_counts() if one[0] not in changed)
        return merge(stored, sorted(changed.items()))

    def _unindexed(self) -> Iterable[LedgerAcks]:
        """Return the pages whose counts the index may not have: dirty ones; all in the old form, which has no index
        after its first flush."""
        return self.pages.dirty.values() if self.index else self.pages

    def _indexed(self, ledger_id: int) -> int:
        ref = self.index.get(ledger_id)
        return 0 if ref is None else ref.acked

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        extent = self._extent()
        last = extent.last
        return 0 if last is None else extent.between(self.mark_delete, last) - self.acked_beyond
