"""Topics of many ledgers for cursors to be measured on, made by their record alone.

A cursor reads nothing of a topic's entries, so these have none but the last: thousands of ledgers are listed as if they
had been written and closed, and the topic is terminated behind one that is real.
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

# Above what a store gives to ledgers by itself.
FIRST_LEDGER = 1 << 20
NEVER = 1e9
"""Seconds: flushes happen when they are asked for."""

MEASURED = CursorConfig(flush_interval=NEVER)
"""What is measured, with the cache that cursors have unless told otherwise."""

_PREPARING = CursorConfig(flush_interval=NEVER, max_individual_ack_cache_bytes=64 << 20)


def plant(store: Any, name: str, ledgers: int, entries: int) -> Any:
    """A topic of so many ledgers with so many entries each, from FIRST_LEDGER on, and of one more entry behind them."""
    last = store.create_ledger_adv(ledger_id=FIRST_LEDGER + ledgers)
    last.write(0, b".")
    last.close()
    listed = [LedgerInfo(FIRST_LEDGER + number, entries, entries * 100, 1) for number in range(ledgers)]
    info = ManagedLedgerInfo([*listed, LedgerInfo(last.id, 1, 1, 1)], Position(last.id, 0))
    store.nodes.put(node_of(name), encode_ledger_info(info, None), -1)
    return store.managed_ledger(name)


def acknowledge(topic: Any, cursor: str, acked: Iterable[int], ledgers: int) -> None:
    """Acknowledge the same entries of each of the first ledgers, store that and close the cursor."""
    ids = list(acked)
    with Cursor.open(topic, cursor, _PREPARING) as preparing:
        for ledger_id in islice(topic.extent.ledger_ids, ledgers):
            preparing.ack_many(ledger_id, ids)
