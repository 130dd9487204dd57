"""The kind ``eviction``: it finds nothing, and would find what it looks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookstand.cursor.format.ack_page import PageRef
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.state.page_cache import PageCache
from bookstand.cursor.store import flusher, recovery
from bookstand.cursor.store.page_loader import PageLoader
from bookstand.errors import BookstandError
from bookstand.ledger.handles.handle import LedgerHandle
from tests.counts import Counts
from tests.soak import eviction

TRIES = 15
"""Seeds until a defect must have been noticed; nearly all need the first."""


def test_few_pages_and_many_threads(counts: Counts) -> None:
    cases, problems = counts.run("eviction", eviction.KIND, (7, 9, 16), at_once=1)
    assert cases == 3
    assert not problems, "\n".join(problems)


def dirty_pages_leave(patch: pytest.MonkeyPatch) -> None:
    make_room = PageCache._make_room

    def instead(pages: PageCache) -> None:
        if len(pages.dirty) > 2:
            pages._forget_dirty(next(iter(pages.dirty)))
        make_room(pages)

    patch.setattr(PageCache, "_make_room", instead)


def what_changed_during_a_flush_counts_as_stored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerAcks, "version", (0, 0))


def a_page_stays_behind_in_the_old_ledger(patch: pytest.MonkeyPatch) -> None:
    fill = flusher.Flusher._write_full_state

    def instead(self, writer, clean, *others):  # type: ignore[no-untyped-def]
        return fill(self, writer, clean[1:], *others)

    patch.setattr(flusher.Flusher, "_write_full_state", instead)


def pages_are_read_from_the_old_ledger(patch: pytest.MonkeyPatch) -> None:
    """The new ledger's index is taken over, and its handle is not."""
    first: dict[int, LedgerHandle] = {}

    def instead(
        loader: PageLoader, ledger_id: int, ref: PageRef | None, handle: LedgerHandle | None
    ) -> tuple[PageRef, LedgerAcks] | None:
        if ref is None or handle is None:
            return None
        old = first.setdefault(id(loader), handle)
        try:
            return ref, recovery.load_page(loader._name, ledger_id, ref, recovery.read_parts(old, ref))
        except BookstandError:
            return ref, LedgerAcks(ledger_id)

    patch.setattr(PageLoader, "_read", instead)


def a_part_of_a_batch_is_the_whole(patch: pytest.MonkeyPatch) -> None:
    ack_part = LedgerAcks.ack_part

    def instead(page: LedgerAcks, entry_id: int, not_acked: int) -> bool:
        return ack_part(page, entry_id, not_acked if len(page.partial) < 2 else 0)

    patch.setattr(LedgerAcks, "ack_part", instead)


@pytest.mark.long
@pytest.mark.parametrize(
    "defect",
    [
        dirty_pages_leave,
        what_changed_during_a_flush_counts_as_stored,
        a_page_stays_behind_in_the_old_ledger,
        pages_are_read_from_the_old_ledger,
        a_part_of_a_batch_is_the_whole,
    ],
)
def test_it_would_notice(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "PATIENCE", 5)
    defect(monkeypatch)
    assert any(eviction.one_round(seed).problems for seed in range(TRIES))
