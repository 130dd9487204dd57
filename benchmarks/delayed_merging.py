"""P16: write amplification of sealing 200 buckets and merging them to at most 10.

Write amplification is the size of all stored snapshots over the size of the 200 sealed buckets. It is counted rather
than timed, and is the same for every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.delayed_buckets import NOW, fixture, settings, spread_over_an_hour
from benchmarks.figures import Figure
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST
from bookstand.delivery.tracker.bucket.key import BucketLabels
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.ledger.transaction import Transaction

SEALS = 200
BUCKETS = 10
PER_SEAL = 5_000
"""A tenth of the default, which takes a tenth of the time; the ratio is the same."""

_ROOM = 1 << 30


class Written(NamedTuple):
    """Bytes of stored snapshots and of the sealed buckets; CPU seconds; number of stored snapshots."""

    stored: int
    alone: int
    cpu: float
    snapshots: int

    @property
    def amplification(self) -> float:
        return self.stored / self.alone


class _CountingStorage(BucketSnapshotStorage):
    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.stored = 0
        self.snapshots = 0

    def create_in(self, transaction: Transaction, entries: Sequence[bytes], labels: BucketLabels) -> LedgerWriter:
        self.stored += sum(map(len, entries))
        self.snapshots += 1
        return super().create_in(transaction, entries, labels)


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    for row in rows:
        with place.directory() as directory:
            ours = write(directory / "ours", LEAST_WRITES)
            other = write(directory / "other", TWO_SMALLEST)
        yield Figure(
            row,
            value=ours.amplification,
            ours=ours.amplification,
            baseline=other.amplification,
            note=f"{SEALS} seals of {PER_SEAL:,}; {ours.snapshots} snapshots of {ours.stored / 1e6:.0f} MB in "
            f"{ours.cpu:.1f} s CPU, the other {other.snapshots} of {other.stored / 1e6:.0f} MB in {other.cpu:.1f} s",
        )


def write(path: Path, policy: str, seals: int = SEALS, buckets: int = BUCKETS, per_seal: int = PER_SEAL) -> Written:
    config = settings(
        delayed_delivery_min_index_count_per_bucket=per_seal,
        delayed_delivery_max_num_buckets=buckets,
        delayed_delivery_merge_policy=policy,
    )
    chance = np.random.default_rng(1)
    alone = 0
    cpu = 0.0
    with fixture(path, config, durability="none") as at:
        storage = _CountingStorage(at.home.client)
        tracker = at.tracker(storage)
        most = config.delayed_delivery_max_indexes_per_bucket_snapshot_segment
        for number in range(seals):
            indexes = spread_over_an_hour(chance, per_seal, number)
            alone += seal(indexes, config.time_step_millis, most).length
            start = process_time()
            # The first message of a newer ledger seals the previous ones.
            tracker.add_many((indexes.ledger_ids, indexes.entry_ids), indexes.timestamps)
            cpu += process_time() - start
        tracker.add((seals, 0), NOW + 5_000)
        waiting = tracker.count, len(tracker.buckets) <= buckets
        tracker.close()
    if waiting != (seals * per_seal + 1, True):
        raise RuntimeError(f"{waiting[0]} messages are delayed after {seals} seals of {per_seal}")
    return Written(storage.stored, alone, cpu, storage.snapshots)
