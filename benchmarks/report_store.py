"""A large store for report benchmarks: 10 000 ledgers, and a subscription with 5 million holes."""

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
_LEDGERS_PER_COMMIT = 200


def make(path: Path, ledgers: int = LEDGERS, holes: int = HOLES) -> None:
    """Create ledgers with one entry of up to 64 KiB each, over some weeks, and a topic that consists only of its
    record, with one of every three entries acknowledged."""
    chance = np.random.default_rng(5)
    clock = VirtualClock(_START)
    sizes = np.exp2(chance.uniform(0, 16, ledgers)).astype(int)
    with bookstand.open(path, durability="none", clock=clock) as store:
        for start in range(0, ledgers, _LEDGERS_PER_COMMIT):
            with store.transaction() as transaction:
                for size in sizes[start : start + _LEDGERS_PER_COMMIT].tolist():
                    transaction.append(transaction.create_ledger(), chance.bytes(size))
            clock.advance(12 * 3600)
        each = holes // _TOPIC_LEDGERS
        topic = plant(store, "orders", _TOPIC_LEDGERS, 3 * each)
        with Cursor.open(topic, "audit", MEASURED) as cursor:
            _acknowledge(cursor, np.arange(each) * 3 + 1 + chance.integers(0, 2, (_TOPIC_LEDGERS, each)))


def _acknowledge(cursor: Any, ids: np.ndarray) -> None:
    for number, row in enumerate(ids):
        cursor.ack_many(FIRST_LEDGER + number, BitMap64(row.tolist()))
    cursor.flush()
