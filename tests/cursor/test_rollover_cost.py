"""What a cursor's ledger begins with does not make it full."""

from __future__ import annotations

from pathlib import Path

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor

LEDGERS = 40
LIMIT = 10


def test_a_state_larger_than_a_ledger_is_not_copied_with_each_flush(store_path: Path) -> None:
    config = CursorConfig(max_entries_per_cursor_ledger=LIMIT, flush_interval=1e9)
    with bookstand.open(store_path) as store:
        topic = store.managed_ledger("t", max_entries_per_ledger=10)
        entries = topic.append_entries([b"."] * (10 * LEDGERS))
        with Cursor.open(topic, "sub", config) as cursor:
            cursor.ack(entries[1::10]).result()
            # The pages are more than a ledger takes, so that the next flush copies them.
            cursor.ack(entries[2]).result()
            ledger = cursor._log.handle.id
            written = []
            for entry in entries[3:9] + entries[13:19]:
                cursor.ack(entry)
                before = cursor.stats.bytes_written
                cursor.flush()
                written.append(cursor.stats.bytes_written - before)
            assert cursor._log.handle.id == ledger
            assert max(written) < 2_000
            # But not for ever.
            for entry in entries[23:29] + entries[33:39] + entries[43:49] + entries[53:59]:
                cursor.ack(entry).result()
            assert cursor._log.handle.id != ledger
            acked = {one for one in entries if cursor.is_acked(one)}
        with Cursor.open(topic, "sub", config) as cursor:
            assert {one for one in entries if cursor.is_acked(one)} == acked


def test_the_last_pages_are_in_memory_after_opening(store_path: Path) -> None:
    """As many as there is room for, and no other was decoded for nothing."""
    with bookstand.open(store_path) as store:
        topic = store.managed_ledger("t", max_entries_per_ledger=2_000)
        entries = topic.append_entries([b"."] * 20_000)
        with Cursor.open(topic, "sub") as cursor:
            for first in range(0, 20_000, 2_000):
                cursor.ack_many(entries[first].ledger_id, range(1, 2_000, 2))
            cursor.flush()
            page = cursor.stats.cache_bytes // cursor.stats.cache_pages
        config = CursorConfig(max_individual_ack_cache_bytes=3 * page + page // 2)
        with Cursor.open(topic, "sub", config) as cursor:
            assert cursor.stats.cache_bytes <= config.max_individual_ack_cache_bytes
            # The first one was wanted for the mark-delete position.
            first, *_, one, other, _ = topic.extent.ledger_ids
            assert cursor._state.pages.ledger_ids() == [first, one, other]
