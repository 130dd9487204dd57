"""The pages of a cursor that are in memory: bounded in bytes, and never one dropped that is not stored as it is.

A page is *dirty* from its first change until a flush has stored it, and stays; a *clean* page may leave, the one used
longest ago first. Dirty pages are charged with the most that their ledger's bitmap can come to take, so that an
acknowledgment need not measure anything. At least one clean page is always kept, however large.
"""

from __future__ import annotations

from collections.abc import Iterator

from cachetools import LRUCache

from bookstand.cursor.acks import LedgerAcks

_CONTAINER_ENTRIES = 1 << 16
_CONTAINER_BYTES = 8192 + 100
_PARTIAL_BYTES = 150
_DIRTY_SHARE = 0.75


class ResidentPages:
    """Not safe between threads: its cursor's lock guards it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dirty: dict[int, LedgerAcks] = {}
        self.dirty_bytes = 0
        self.hits = 0
        self.misses = 0
        self._charged: dict[int, int] = {}
        # Larger pages than all of the limit are let in too, one at a time.
        self._clean: LRUCache[int, LedgerAcks] = LRUCache(maxsize=1 << 62, getsizeof=lambda page: page.memory)

    def change_limit(self, limit: int) -> None:
        """Replace the limit; clean pages beyond it are dropped."""
        self.limit = limit
        self._make_room()

    def __len__(self) -> int:
        return len(self.dirty) + len(self._clean)

    def __iter__(self) -> Iterator[LedgerAcks]:
        yield from self.dirty.values()
        yield from self._clean.values()

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self.dirty or ledger_id in self._clean

    @property
    def last_ledger(self) -> int:
        """The highest ledger with a page in memory; -1 if there is none."""
        return max(max(self.dirty, default=-1), max(self._clean, default=-1))

    @property
    def bytes(self) -> int:
        """What all of them take, dirty ones at their most."""
        return self.dirty_bytes + int(self._clean.currsize)

    @property
    def over_limit(self) -> bool:
        """Whether dirty pages leave little room for others: they are to be stored before more come in."""
        return self.dirty_bytes > self.limit * _DIRTY_SHARE and len(self.dirty) > 1

    def get(self, ledger_id: int) -> LedgerAcks | None:
        page = self.dirty.get(ledger_id)
        if page is None:
            page = self._clean.get(ledger_id)
        if page is None:
            self.misses += 1
        else:
            self.hits += 1
        return page

    def install(self, page: LedgerAcks) -> None:
        """A page that was read, or stored as it is."""
        self._clean[page.ledger_id] = page
        self._make_room()

    def touch(self, page: LedgerAcks) -> None:
        """The page is about to be changed."""
        ledger_id = page.ledger_id
        most = (page.limit // _CONTAINER_ENTRIES + 1) * _CONTAINER_BYTES + _PARTIAL_BYTES * len(page.partial)
        self.dirty_bytes += most - self._charged.get(ledger_id, 0)
        self._charged[ledger_id] = most
        if ledger_id not in self.dirty:
            self._clean.pop(ledger_id, None)
            self.dirty[ledger_id] = page
        self._make_room()

    def stored(self, ledger_id: int) -> None:
        """What is in memory is what is stored."""
        page = self._forget_dirty(ledger_id)
        if page is not None:
            self.install(page)

    def drop(self, ledger_id: int) -> None:
        """Nothing of the ledger needs to be remembered any more."""
        self._forget_dirty(ledger_id)
        self._clean.pop(ledger_id, None)

    def clear(self) -> None:
        for ledger_id in self.ledger_ids():
            self.drop(ledger_id)

    def ledger_ids(self) -> list[int]:
        return sorted([*self.dirty, *self._clean])

    def _forget_dirty(self, ledger_id: int) -> LedgerAcks | None:
        self.dirty_bytes -= self._charged.pop(ledger_id, 0)
        return self.dirty.pop(ledger_id, None)

    def _make_room(self) -> None:
        # The last one was wanted by somebody, who would have to bring it again.
        while len(self._clean) > 1 and self.bytes > self.limit:
            self._clean.popitem()
