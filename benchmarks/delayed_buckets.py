"""Fixtures for benchmarks of the bucket tracker, and recorded figures of Pulsar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.tracker.bucket.registry import CursorBucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.testing import VirtualClock
from bookstand.testing.clock import ManualTimer

NOW = 1_700_000_000_000
HOUR = 3_600_000
FIRST_DELAY = 1_001
"""Milliseconds; with a tick of a second, a message with a shorter delay is due immediately."""

PER_SEAL = 50_000
"""Default of Pulsar's setting."""

TOPIC, CURSOR = "persistent://public/default/benchmark", "cursor"
_RECORDED = Path(__file__).resolve().parent / "delayed_original.json"
_NO_FLUSHES = CursorConfig(flush_interval=1e9)


def settings(**changes: Any) -> DelayedDeliveryConfig:
    """Return the default settings for buckets with ``changes``."""
    return DelayedDeliveryConfig(delayed_delivery_tracker="bucket", **changes)


class Fixture(NamedTuple):
    """A store with a cursor for trackers, and their clock."""

    store: Any
    home: CursorBucketRegistry
    clock: VirtualClock
    config: DelayedDeliveryConfig

    def tracker(self, storage: BucketSnapshotStorage | None = None) -> BucketDelayedTracker:
        timer = ManualTimer(self.clock)
        return BucketDelayedTracker(_do_nothing, self.home, self.config, storage=storage, clock=self.clock, timer=timer)


@contextmanager
def fixture(path: Path, config: DelayedDeliveryConfig, now: int = NOW, **store_options: Any) -> Iterator[Fixture]:
    with (
        bookstand.open(path, **store_options) as store,
        Cursor.open(store.managed_ledger(TOPIC), CURSOR, _NO_FLUSHES) as cursor,
    ):
        yield Fixture(store, CursorBucketRegistry(cursor), VirtualClock(now), config)


def _do_nothing() -> None:
    """Ignore a wake-up."""


def spread_over_an_hour(chance: np.random.Generator, count: int, first_ledger: int, ledgers: int = 1) -> Indexes:
    """Create messages with random delays of up to an hour, equally many in each ledger."""
    times = NOW + chance.integers(FIRST_DELAY, HOUR + 1, count)
    each = count // ledgers
    return Indexes.of(times, first_ledger + np.arange(count) // each, np.arange(count) % each)


def in_order(count: int, first_ledger: int, ledgers: int = 1) -> Indexes:
    """Create messages whose delivery times ascend with their positions, equally many in each ledger."""
    each = count // ledgers
    numbers = np.arange(count)
    return Indexes.of(NOW + FIRST_DELAY + numbers * HOUR // count, first_ledger + numbers // each, numbers % each)


@cache
def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_RECORDED.read_text(encoding="ascii"))
    return found


def original(workload: str, figure: str, which: str = "min", *, later_tree: bool = False) -> float:
    """Return a recorded figure of Pulsar: the lowest one, or its ``median``."""
    results = _recorded()["results_later_tree" if later_tree else "results"]
    return float(results[workload][figure][which])
