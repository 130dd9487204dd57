"""The tracker on buckets, and its plain model, behind the interface that the driver knows.

bookstand's is on a store of its own, with a cursor that stands where the recording says. Calls that a recording had
fail, fail here where the tracker makes them.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.bucket_key import BucketLabels, read_properties
from bookstand.delivery.bucket_tracker import BucketDelayedTracker
from bookstand.delivery.indexes import Indexes
from bookstand.delivery.snapshot import SnapshotMetadata
from bookstand.delivery.snapshot_storage import BucketSnapshotStorage
from bookstand.delivery.timer import ManualTimer
from bookstand.errors import IncorrectParameterError, ReadError, WriteError
from bookstand.ledger.transaction import Transaction
from bookstand.ledger.writer import LedgerWriter
from bookstand.storage.position import Position
from tests.delivery.bucket_kit import CURSOR, SUBSCRIPTION, TOPIC, StandingHome, config_of
from tests.model.delayed import Refused
from tests.model.delayed_buckets import BucketsModel, Figures, Sealed
from tests.replay.delayed_stands import Settings, TrackerStand

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class FailingStorage(BucketSnapshotStorage):
    failing: Counter[str]

    def _call(self, kind: str) -> None:
        if self.failing[kind] > 0:
            self.failing[kind] -= 1
            error = WriteError if kind in ("create", "delete") else ReadError
            raise error(f"{kind} is to fail")

    def create_in(self, transaction: Transaction, entries: Sequence[bytes], labels: BucketLabels) -> LedgerWriter:
        self._call("create")
        return super().create_in(transaction, entries, labels)

    def delete_in(self, transaction: Transaction, bucket_id: int) -> bool:
        self._call("delete")
        return super().delete_in(transaction, bucket_id)

    def read_metadata(self, bucket_id: int) -> SnapshotMetadata:
        self._call("metadata")
        return super().read_metadata(bucket_id)

    def read_segments(self, bucket_id: int, first: int, last: int) -> list[Indexes]:
        self._call("segments")
        return super().read_segments(bucket_id, first, last)

    def read_length(self, bucket_id: int) -> int:
        self._call("length")
        return super().read_length(bucket_id)


class BucketStand(TrackerStand):
    """With a store of its own, and what recordings do behind the tracker's back."""

    tracker: BucketDelayedTracker

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.store = bookstand.open(Path(self.folder.name) / "store", durability="none")
        self.cursor = Cursor.open(self.store.managed_ledger(TOPIC), SUBSCRIPTION, CURSOR)
        self.home = StandingHome(self.cursor)
        self.storage = FailingStorage(self.home.client)
        self.storage.failing = Counter()
        try:
            self._begin(settings)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def _begin(self, settings: Settings) -> None:
        figures = figures_of(settings)
        config = config_of(
            figures.minimum,
            figures.step,
            figures.most_indexes,
            figures.most_buckets,
            strict=figures.strict,
            tick=figures.tick,
            policy="two-smallest",
        )
        try:
            self.tracker = BucketDelayedTracker(
                self._wake, self.home, config, storage=self.storage, clock=self.clock, timer=self.timer
            )
        except ReadError as error:
            raise Refused("unreadable") from error

    def contains(self, position: Position) -> bool:
        try:
            return self.tracker.contains_message(position)
        except IncorrectParameterError as error:
            raise Refused("argument") from error

    def clear(self) -> None:
        try:
            self.tracker.clear()
        except (WriteError, ReadError) as error:
            raise Refused("unwritable") from error

    def mark_delete(self, position: Position) -> None:
        self.home.stands = position

    def fail(self, call: str, times: int) -> None:
        self.storage.failing[call] += times

    def heal(self) -> None:
        self.storage.failing.clear()

    def reopen(self, settings: Settings, crash: bool) -> None:
        """What is on the disk is there at once: who crashes writes as much as who closes."""
        self.tracker.close()
        if crash:
            self.timer = ManualTimer(self.clock)
            self.stale = 0
        self._begin(settings)

    def ranges(self) -> list[tuple[int, int]]:
        return sorted(
            (key.first_ledger, key.last_ledger) for key in read_properties(self.home.properties().items()).buckets
        )

    def snapshots(self) -> int:
        return len(self.storage.list_snapshots(self.home.topic, self.home.cursor))


class BucketModelStand:
    def __init__(self, settings: Settings, surprises: Collection[str] = ()) -> None:
        self.model = BucketsModel(settings["start_ms"], figures_of(settings), surprises)

    def __getattr__(self, name: str) -> Any:
        """add, add_many, pop_due, has_available, contains, fire_..., reset_tick, clear and close are the model's."""
        return getattr(self.model, name)

    def end(self) -> None:
        """Nothing is on any disk."""

    def move_clock(self, now: int) -> None:
        self.model.now = now

    def should_pause(self) -> bool:
        return False

    def fire(self) -> tuple[int, int]:
        rang = self.model.fire()
        return rang, rang

    def fire_cancelled(self) -> bool:
        return bool(self.model.cancelled)

    def mark_delete(self, position: Position) -> None:
        self.model.passed = position.ledger_id

    def fail(self, call: str, times: int) -> None:
        self.model.failing[call] += times

    def heal(self) -> None:
        self.model.failing.clear()

    def reopen(self, settings: Settings, crash: bool) -> None:
        self.model.close()
        if crash:
            self.model.cancelled.clear()
        self.model.open(figures_of(settings))

    def ranges(self) -> list[tuple[int, int]]:
        return sorted((bucket.first, bucket.last) for bucket in self._stored)

    def snapshots(self) -> int:
        return len(self._stored)

    @property
    def _stored(self) -> list[Sealed]:
        return self.model.stored

    def state(self) -> tuple[int, int | None]:
        return self.model.count, self.model.timer


def figures_of(settings: Settings) -> Figures:
    """Of none wanted, the original makes one; and no limit, of no bucket at all. Those are refused here."""
    return Figures(
        settings["strict"],
        settings["tick_ms"],
        max(settings["min_index_count_per_bucket"], 1),
        max(settings["time_step_per_segment_ms"], 1),
        settings["max_indexes_per_segment"] or 1,
        settings["max_num_buckets"] or -1,
    )
