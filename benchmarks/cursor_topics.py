"""Topics of many ledgers for cursor benchmarks.

A cursor reads no entries of its topic, so only the record of the topic is created: it lists thousands of nonexistent
closed ledgers. The topic is terminated after its last ledger, which exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.managed_ledger.records import LedgerInfo, ManagedLedgerInfo, encode_ledger_info
from bookstand.managed_ledger.topic_name import node_of
from bookstand.storage.format.position import Position

# Above the ids that a store assigns to ledgers.
FIRST_LEDGER = 1 << 20
NEVER = 1e9
"""Flush interval in seconds, so that flushes happen only on request."""

MEASURED = CursorConfig(flush_interval=NEVER)
"""Settings of measured cursors, with the default cache size."""

_PREPARING = CursorConfig(flush_interval=NEVER, max_individual_ack_cache_bytes=64 << 20)


def plant(store: Any, name: str, ledgers: int, entries: int) -> Any:
    """Create a topic of ``ledgers`` ledgers from FIRST_LEDGER on with ``entries`` entries each, and a last entry."""
    last = store.create_ledger_adv(ledger_id=FIRST_LEDGER + ledgers)
    last.write(0, b".")
    last.close()
    listed = [LedgerInfo(FIRST_LEDGER + number, entries, entries * 100, 1) for number in range(ledgers)]
    info = ManagedLedgerInfo([*listed, LedgerInfo(last.id, 1, 1, 1)], Position(last.id, 0))
    store.nodes.put(node_of(name), encode_ledger_info(info, None), -1)
    return store.managed_ledger(name)


def acknowledge(topic: Any, cursor: str, acked: Iterable[int], ledgers: int) -> None:
    """Acknowledge the same entries of each of the first ledgers, and close the cursor."""
    ids = list(acked)
    with Cursor.open(topic, cursor, _PREPARING) as preparing:
        for ledger_id in islice(topic.extent.ledger_ids, ledgers):
            preparing.ack_many(ledger_id, ids)
