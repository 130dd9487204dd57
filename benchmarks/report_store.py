"""A store as large as reports have to be quick for: 10 000 ledgers, and a subscription with 5 million holes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pyroaring import BitMap64

import bookstand
from benchmarks.cursor_topics import FIRST_LEDGER, MEASURED, plant
from bookstand.cursor.cursor import Cursor
from bookstand.testing.clock import VirtualClock

LEDGERS = 10_000
HOLES = 5_000_000
_START = 1_800_000_000_000
_TOPIC_LEDGERS = 100
_TOGETHER = 200


def make(path: Path, ledgers: int = LEDGERS, holes: int = HOLES) -> None:
    """Ledgers of an entry each, of all sizes up to 64 KiB, over some weeks; a topic that is there by its record alone,
    of every three entries of which one is acknowledged."""
    chance = np.random.default_rng(5)
    clock = VirtualClock(_START)
    sizes = np.exp2(chance.uniform(0, 16, ledgers)).astype(int)
    with bookstand.open(path, durability="none", clock=clock) as store:
        for start in range(0, ledgers, _TOGETHER):
            with store.transaction() as together:
                for size in sizes[start : start + _TOGETHER].tolist():
                    together.append(together.create_ledger(), chance.bytes(size))
            clock.advance(12 * 3600)
        each = holes // _TOPIC_LEDGERS
        topic = plant(store, "orders", _TOPIC_LEDGERS, 3 * each)
        with Cursor.open(topic, "audit", MEASURED) as cursor:
            _acknowledge(cursor, np.arange(each) * 3 + 1 + chance.integers(0, 2, (_TOPIC_LEDGERS, each)))


def _acknowledge(cursor: Any, ids: np.ndarray) -> None:
    for number, row in enumerate(ids):
        cursor.ack_many(FIRST_LEDGER + number, BitMap64(row.tolist()))
    cursor.flush()
