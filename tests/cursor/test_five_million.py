"""Five million holes: a cursor keeps all of them in pages, where the snapshot form keeps a hundred and fifty thousand.

The topic's ledgers are listed as if they had been written, for a cursor looks at no entry of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyroaring import BitMap64

import bookstand
from benchmarks.cursor_topics import FIRST_LEDGER, NEVER, plant
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import position_info
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.storage.format.position import Position

LEDGERS = 100
RANGES = 50_000
ENTRIES = 3 * RANGES
START = Position(FIRST_LEDGER, -1)
OLD_LIMIT = 150_000
PAGES = CursorConfig(flush_interval=NEVER)
OLD = CursorConfig(
    flush_interval=NEVER,
    enable_lru_cache_max_unacked_ranges=False,
    persist_as_long_array=False,
    max_unacked_ranges_to_persist=OLD_LIMIT,
)


@pytest.fixture(scope="module")
def acked() -> dict[int, BitMap64]:
    """Of every three entries the first or the second: each is a range of its own, and nobody knows which it is. The
    very first entry is open, so that the mark-delete position stays before everything."""
    chance = np.random.default_rng(5_000_000)
    ids = np.arange(RANGES) * 3 + chance.integers(0, 2, (LEDGERS, RANGES))
    ids[0, 0] = 1
    return {FIRST_LEDGER + number: BitMap64(row.tolist()) for number, row in enumerate(ids)}


@pytest.fixture
def topic(memory: Path) -> Iterator[Any]:
    with bookstand.open(memory / "store", durability="none") as store:
        yield plant(store, "orders", LEDGERS, ENTRIES)


def flushed(topic: Any, config: CursorConfig, acked: dict[int, BitMap64]) -> Cursor:
    """A cursor that acknowledged all of it and wrote that. It is not closed: the next one opens as after a crash."""
    cursor = Cursor.open(topic, "audit", config)
    for ledger_id, entry_ids in acked.items():
        cursor.ack_many(ledger_id, entry_ids)
    cursor.flush()
    return cursor


def held(cursor: Cursor) -> dict[int, BitMap64]:
    return {page.ledger_id: page.acked for page in cursor._loader.pages()}


@pytest.mark.slow
def test_all_of_them_come_back_from_pages(topic: Any, acked: dict[int, BitMap64]) -> None:
    flushed(topic, PAGES, acked)
    with Cursor.open(topic, "audit", PAGES) as cursor:
        assert cursor.recovered_from.how == "marker"
        assert cursor.mark_delete_position == START
        assert cursor.backlog == LEDGERS * ENTRIES + 1 - LEDGERS * RANGES
        assert held(cursor) == acked
        assert not cursor.paused
        assert cursor.stats.cache_bytes <= PAGES.max_individual_ack_cache_bytes


@pytest.mark.slow
def test_the_old_form_keeps_the_lowest_and_says_that_it_does_not_keep_all(
    topic: Any, acked: dict[int, BitMap64]
) -> None:
    assert flushed(topic, OLD, acked).paused
    with Cursor.open(topic, "audit", OLD) as cursor:
        whole = OLD_LIMIT // RANGES
        assert held(cursor) == {ledger_id: acked[ledger_id] for ledger_id in sorted(acked)[:whole]}


def test_as_ranges_they_are_too_large_for_any_entry(topic: Any, acked: dict[int, BitMap64]) -> None:
    state = AckSnapshot(START, acked, {}, {})
    kept = position_info.write(state, "ranges", OLD_LIMIT)
    assert kept.ranges_left_out == LEDGERS * RANGES - OLD_LIMIT
    limit = topic.client.max_entry_bytes
    assert len(kept.data) < limit < 2 * len(kept.data)
