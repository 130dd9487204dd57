"""Page cache of a cursor, bounded in bytes.

A page is *dirty* from its first change until a flush has stored it, and is not evicted; *clean* pages are evicted in
LRU order. A clean page is charged with its measured size, a dirty page with the maximum size of its ledger's bitmap, so
that an acknowledgment measures nothing. One clean page is always retained, however large.

With one thread the bound is the limit plus one page. Each further thread inside a call of the cursor can add one page,
which it has read and is about to use, or has changed and is about to flush.
"""

from __future__ import annotations

from collections.abc import Iterator

from cachetools import Cache, LRUCache

from bookstand.cursor.state.ledger_acks import LedgerAcks

_DIRTY_SHARE = 0.75


class PageCache:
    """Not thread-safe: guarded by the cursor's lock. Iterating, counting and :meth:`peek` do not affect the LRU order
    or the hit and miss counts."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dirty: dict[int, LedgerAcks] = {}
        self.dirty_bytes = 0
        self.hits = 0
        self.misses = 0
        self._charged: dict[int, int] = {}
        # Unbounded, because one page larger than the limit is admitted; _make_room() enforces the limit.
        self._clean: LRUCache[int, LedgerAcks] = LRUCache(maxsize=1 << 62, getsizeof=lambda page: page.memory)

    def change_limit(self, limit: int) -> None:
        self.limit = limit
        self._make_room()

    def __len__(self) -> int:
        return len(self.dirty) + len(self._clean)

    def __iter__(self) -> Iterator[LedgerAcks]:
        yield from self.dirty.values()
        for ledger_id in self._clean:
            yield Cache.__getitem__(self._clean, ledger_id)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self.dirty or ledger_id in self._clean

    @property
    def last_ledger(self) -> int:
        """Highest ledger with a page in memory; -1 without pages."""
        return max(max(self.dirty, default=-1), max(self._clean, default=-1))

    @property
    def bytes(self) -> int:
        """Bytes charged for all pages."""
        return self.dirty_bytes + int(self._clean.currsize)

    @property
    def over_limit(self) -> bool:
        """True if dirty pages exceed their share of the limit and must be flushed before more pages are changed."""
        return self.dirty_bytes > self.limit * _DIRTY_SHARE and len(self.dirty) > 1

    def peek(self, ledger_id: int) -> LedgerAcks | None:
        """Return the page without affecting the LRU order."""
        page = self.dirty.get(ledger_id)
        if page is None and ledger_id in self._clean:
            page = Cache.__getitem__(self._clean, ledger_id)
        return page

    def get(self, ledger_id: int) -> LedgerAcks | None:
        """Return the page, and make it the most recently used."""
        page = self.dirty.get(ledger_id)
        if page is None:
            page = self._clean.get(ledger_id)
        if page is None:
            self.misses += 1
        else:
            self.hits += 1
        return page

    def install(self, page: LedgerAcks) -> None:
        """Add a clean page."""
        self._clean[page.ledger_id] = page
        self._make_room()

    def mark_dirty(self, page: LedgerAcks) -> None:
        """Mark a page dirty before it is changed. Call again after a change that added a batch."""
        ledger_id = page.ledger_id
        charge = page.max_memory
        self.dirty_bytes += charge - self._charged.get(ledger_id, 0)
        self._charged[ledger_id] = charge
        if ledger_id not in self.dirty:
            self._clean.pop(ledger_id, None)
            self.dirty[ledger_id] = page
        self._make_room()

    def mark_clean(self, ledger_id: int) -> None:
        """Mark a page clean whose current contents have been stored."""
        page = self._forget_dirty(ledger_id)
        if page is not None:
            page.compact()
            self.install(page)

    def drop(self, ledger_id: int) -> None:
        self._forget_dirty(ledger_id)
        self._clean.pop(ledger_id, None)

    def drop_below(self, ledger_id: int) -> None:
        for lower in [one for one in (*self.dirty, *self._clean) if one < ledger_id]:
            self.drop(lower)

    def clear(self) -> None:
        for ledger_id in self.ledger_ids():
            self.drop(ledger_id)

    def ledger_ids(self) -> list[int]:
        return sorted([*self.dirty, *self._clean])

    def _forget_dirty(self, ledger_id: int) -> LedgerAcks | None:
        self.dirty_bytes -= self._charged.pop(ledger_id, 0)
        return self.dirty.pop(ledger_id, None)

    def _make_room(self) -> None:
        # Keep the most recent page: the thread that installed it is about to use it.
        while len(self._clean) > 1 and self.bytes > self.limit:
            self._clean.popitem()
