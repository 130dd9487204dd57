"""Which pages stay in memory: the bytes are bounded, dirty ones never leave, one is always there."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.state.page_cache import PageCache

LIMIT = 40_000


def page(ledger_id: int, entries: int, limit: int = 1_000) -> LedgerAcks:
    made = LedgerAcks(ledger_id)
    made.ack_all(random.Random(ledger_id).sample(range(60_000), entries))
    made.limit = limit
    return made


class Pages(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pages = PageCache(LIMIT)
        self.dirty: set[int] = set()

    @rule(ledger_id=st.integers(0, 12), entries=st.sampled_from([1, 500, 3_000, 30_000]))
    def read(self, ledger_id: int, entries: int) -> None:
        if ledger_id not in self.pages:
            self.pages.install(page(ledger_id, entries))

    @rule(ledger_id=st.integers(0, 12), limit=st.sampled_from([10, 70_000, 400_000]))
    def change(self, ledger_id: int, limit: int) -> None:
        found = self.pages.get(ledger_id) or page(ledger_id, 3)
        found.limit = max(found.limit, limit)
        self.pages.mark_dirty(found)
        self.dirty.add(ledger_id)

    @precondition(lambda self: self.dirty)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        ledger_id = data.draw(st.sampled_from(sorted(self.dirty)))
        self.pages.mark_clean(ledger_id)
        self.dirty.discard(ledger_id)

    @rule(ledger_id=st.integers(0, 12))
    def drop(self, ledger_id: int) -> None:
        self.pages.drop(ledger_id)
        self.dirty.discard(ledger_id)
        assert ledger_id not in self.pages

    @rule()
    def clear(self) -> None:
        self.pages.clear()
        self.dirty.clear()
        assert len(self.pages) == 0
        assert self.pages.bytes == 0

    @invariant()
    def holds(self) -> None:
        assert set(self.pages.dirty) == self.dirty
        assert all(ledger_id in self.pages for ledger_id in self.dirty)
        assert self.pages.bytes <= LIMIT or len(self.pages) - len(self.dirty) <= 1
        assert self.pages.over_limit == (self.pages.dirty_bytes > 0.75 * LIMIT and len(self.dirty) > 1)
        assert self.pages.ledger_ids() == sorted(set(self.pages.ledger_ids()))
        real = sum(one.memory for one in self.pages.dirty.values())
        assert self.pages.dirty_bytes >= real * 0.9 - 3_000 * len(self.dirty)


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_the_one_used_longest_ago_leaves() -> None:
    pages = PageCache(3 * page(0, 3_000).memory + 100)
    for ledger_id in range(3):
        pages.install(page(ledger_id, 3_000))
    assert pages.get(0) is not None
    pages.install(page(3, 3_000))
    assert pages.ledger_ids() == [0, 2, 3]
    assert pages.get(1) is None
    assert (pages.hits, pages.misses) == (1, 1)


def test_one_that_was_just_read_stays_beside_dirty_ones() -> None:
    """However many these are: who has read it is about to use it."""
    pages = PageCache(20_000)
    for ledger_id in range(4):
        pages.mark_dirty(page(ledger_id, 10))
    pages.install(page(9, 3_000))
    assert 9 in pages
    assert pages.over_limit


def test_one_that_is_larger_than_the_limit_is_kept() -> None:
    pages = PageCache(1_000)
    pages.install(page(1, 30_000))
    assert pages.ledger_ids() == [1]
    pages.install(page(2, 30_000))
    assert pages.ledger_ids() == [2]
