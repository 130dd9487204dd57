"""Trackers of delayed messages on buckets to be measured, and what the original took for the same (recorded)."""

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
"""Milliseconds: what is delayed by less is due at once, with a tick of a second."""

PER_SEAL = 50_000
"""The default of Pulsar's setting."""

TOPIC, CURSOR = "persistent://public/default/benchmark", "cursor"
_RECORDED = Path(__file__).resolve().parent / "delayed_original.json"
_FLUSHED_BY_HAND = CursorConfig(flush_interval=1e9)


def settings(**changes: Any) -> DelayedDeliveryConfig:
    """The defaults, on buckets, and what is said."""
    return DelayedDeliveryConfig(delayed_delivery_tracker="bucket", **changes)


class Stand(NamedTuple):
    """A tracker, its store and the clock that it goes by."""

    store: Any
    home: CursorBucketRegistry
    clock: VirtualClock
    config: DelayedDeliveryConfig

    def tracker(self, storage: BucketSnapshotStorage | None = None) -> BucketDelayedTracker:
        timer = ManualTimer(self.clock)
        return BucketDelayedTracker(_nobody, self.home, self.config, storage=storage, clock=self.clock, timer=timer)


@contextmanager
def stand(path: Path, config: DelayedDeliveryConfig, now: int = NOW, **store_options: Any) -> Iterator[Stand]:
    with (
        bookstand.open(path, **store_options) as store,
        Cursor.open(store.managed_ledger(TOPIC), CURSOR, _FLUSHED_BY_HAND) as cursor,
    ):
        yield Stand(store, CursorBucketRegistry(cursor), VirtualClock(now), config)


def _nobody() -> None:
    """Is woken up."""


def spread_over_an_hour(chance: np.random.Generator, count: int, first_ledger: int, ledgers: int = 1) -> Indexes:
    """So many messages, the same number in each ledger, with any delay up to an hour."""
    times = NOW + chance.integers(FIRST_DELAY, HOUR + 1, count)
    each = count // ledgers
    return Indexes.of(times, first_ledger + np.arange(count) // each, np.arange(count) % each)


def in_order(count: int, first_ledger: int, ledgers: int = 1) -> Indexes:
    """The same, due one after the other."""
    each = count // ledgers
    numbers = np.arange(count)
    return Indexes.of(NOW + FIRST_DELAY + numbers * HOUR // count, first_ledger + numbers // each, numbers % each)


@cache
def _recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_RECORDED.read_text(encoding="ascii"))
    return found


def original(workload: str, figure: str, which: str = "min", *, later_tree: bool = False) -> float:
    """What the original took: the lowest figure of the recording, or its ``median``."""
    results = _recorded()["results_later_tree" if later_tree else "results"]
    return float(results[workload][figure][which])
