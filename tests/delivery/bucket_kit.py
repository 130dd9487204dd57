"""A tracker on buckets in a store of its own, which a test starts again, and looks at from outside."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import LEAST_WRITES, DelayedDeliveryConfig
from bookstand.delivery.tracker.bucket.key import BucketKey, BucketLabels, bucket_key, read_properties
from bookstand.delivery.tracker.bucket.registry import CursorBucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.storage.format.position import Position
from tests.delivery.kit import Bench

TOPIC, SUBSCRIPTION = "persistent://public/default/t", "sub"
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# Flushed by hand only.
CURSOR = CursorConfig(flush_interval=1e9)
Message = tuple[int, int, int]


def config_of(
    minimum: int = 5,
    step: int = 10,
    maximum: int = -1,
    buckets: int = -1,
    *,
    strict: bool = True,
    tick: int = 1,
    policy: str = LEAST_WRITES,
) -> DelayedDeliveryConfig:
    """The four figures that the cases name, and what goes with them; ``step`` in milliseconds."""
    return DelayedDeliveryConfig(
        delayed_delivery_tracker="bucket",
        delayed_delivery_tick_time_millis=tick,
        is_delayed_delivery_deliver_at_time_strict=strict,
        delayed_delivery_min_index_count_per_bucket=minimum,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=step / 1000,
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=maximum,
        delayed_delivery_max_num_buckets=buckets,
        delayed_delivery_merge_policy=policy,
    )


def seq(last: int, first: int = 1) -> list[Message]:
    """The messages of most cases: each in a ledger of its own, ten milliseconds apart."""
    return [(number, number, 10 * number) for number in range(first, last + 1)]


def positions(first: int, last: int) -> list[tuple[int, int]]:
    """Those of ``seq``."""
    return [(number, number) for number in range(first, last + 1)]


class StandingHome(CursorBucketRegistry):
    """A cursor that stands where it is told to: the ledgers of the cases are in no topic."""

    stands: Position | None = None

    def mark_delete(self) -> Position:
        return super().mark_delete() if self.stands is None else self.stands


class BucketBench(Bench):
    """``messages`` is what the topic would tell of what was added by :meth:`add`."""

    tracker: BucketDelayedTracker

    def __init__(
        self,
        path: Path | str,
        config: DelayedDeliveryConfig | None = None,
        start: int = 0,
        *,
        rebuild: bool = True,
        **store_options: Any,
    ) -> None:
        self.config = config_of() if config is None else config
        self.messages: dict[tuple[int, int], int] = {}
        self.stands: Position | None = None
        self.rebuilt: list[tuple[int, int]] = []
        self._rebuild = self.read_topic if rebuild else None
        self._path, self._store_options = path, store_options
        self._open_store()
        super().__init__(lambda _: self._begin(), start)

    def _open_store(self) -> None:
        self.store = bookstand.open(self._path, **self._store_options)
        self.topic = self.store.managed_ledger(TOPIC)

    def _begin(self) -> BucketDelayedTracker:
        self.cursor = Cursor.open(self.topic, SUBSCRIPTION, CURSOR)
        self.home = StandingHome(self.cursor)
        self.home.stands = self.stands
        self.storage = BucketSnapshotStorage(self.home.client)
        self.before_tracker()
        return BucketDelayedTracker(
            self.wake, self.home, self.config, rebuild=self._rebuild, clock=self.clock, timer=self.timer
        )

    def before_tracker(self) -> None:
        """The cursor is open; what the tracker will find is there to be looked at."""

    def read_topic(self, first_ledger: int, last_ledger: int) -> Iterator[Indexes]:
        self.rebuilt.append((first_ledger, last_ledger))
        found = [(time, *one) for one, time in self.messages.items() if first_ledger <= one[0] <= last_ledger]
        for start in range(0, len(found), 3):
            yield Indexes.of(*zip(*found[start : start + 3], strict=True))

    def add(self, *messages: Message) -> list[bool]:
        for ledger, entry, time in messages:
            self.messages.setdefault((ledger, entry), time)
        return super().add(*messages)

    def stand(self, ledger_id: int, entry_id: int = 0) -> None:
        self.stands = self.home.stands = Position(ledger_id, entry_id)

    def restart(self) -> BucketDelayedTracker:
        self.tracker.close()
        self.cursor.close()
        self.tracker = self._begin()
        return self.tracker

    def crash(self) -> BucketDelayedTracker:
        """The store has gone with all that was open; only what is on the disk is there now."""
        self.timer.close()
        self.store.close()
        self._open_store()
        self.tracker = self._begin()
        return self.tracker

    def end(self) -> None:
        super().end()
        self.store.close()

    # -- looking at it -------------------------------------------------------------------------------------------------

    @property
    def ranges(self) -> list[tuple[int, int]]:
        return [tuple(bucket.key) for bucket in self.tracker.buckets]

    @property
    def properties(self) -> dict[BucketKey, int]:
        """What stands in the cursor; nothing that should not."""
        found = read_properties(self.cursor.cursor_properties.items())
        assert not found.malformed
        return found.buckets

    @property
    def snapshots(self) -> list[int]:
        """The ledgers in which there are snapshots of this cursor."""
        return sorted(self.storage.list_snapshots(self.home.topic, self.home.cursor))

    def check_stored(self) -> None:
        """Tracker, properties and ledgers tell of the same buckets."""
        known = {bucket.key: bucket.bucket_id for bucket in self.tracker.buckets}
        assert self.properties == known
        assert self.snapshots == sorted(known.values())

    def segments(self, place: int = 0) -> list[list[Message]]:
        """What stands in the snapshot of a bucket: ledger, entry, time."""
        return self.segments_in(self.tracker.buckets[place].bucket_id)

    def segments_in(self, bucket_id: int) -> list[list[Message]]:
        count = len(self.storage.read_metadata(bucket_id).metadata_list)
        read = self.storage.read_segments(bucket_id, 1, count)
        return [[(ledger, entry, time) for time, ledger, entry in segment.indexes] for segment in read]

    def times(self, place: int = 0) -> list[list[int]]:
        return [[time for _, _, time in segment] for segment in self.segments(place)]

    def waiting(self) -> dict[tuple[int, int], int]:
        """All that the tracker holds, with its times, by asking it."""
        found = self.tracker.peek()
        times = {(ledger, entry): time for time, ledger, entry in found.indexes}
        assert len(times) == found.size
        return times

    def drain(self, limit: int | None = None) -> list[tuple[int, int]]:
        """As a dispatcher does: until there is no more."""
        given: list[tuple[int, int]] = []
        while batch := self.tracker.pop_due(limit):
            given.extend(map(tuple, batch))
        return given

    # -- writing behind its back ---------------------------------------------------------------------------------------

    def write_bucket(self, first: int, last: int, messages: Sequence[Message], step: int = 10) -> int:
        """A snapshot and its property, as if another tracker had made them."""
        ordered = sorted((time, ledger, entry) for ledger, entry, time in messages)
        sealed = seal(Indexes.of(*np.array(ordered, dtype=np.int64).T), step)
        labels = BucketLabels(bucket_key(first, last), self.home.topic, self.home.cursor)
        bucket_id = self.storage.create(sealed.entries, labels)
        self.set_property(labels.key, str(bucket_id))
        return bucket_id

    def set_property(self, name: str, value: str) -> None:
        self.home.change(lambda _, properties: properties.__setitem__(name, value))


def in_buckets(bench: Bench, *, tick_time_millis: int = 1000, strict: bool = False) -> BucketDelayedTracker:
    """For the contract suite: so small that all that happens to buckets does."""
    folder = tempfile.TemporaryDirectory(dir=MEMORY)
    store = bookstand.open(Path(folder.name) / "store")
    cursor = Cursor.open(store.managed_ledger(TOPIC), SUBSCRIPTION, CURSOR)
    bench.endings += [store.close, folder.cleanup]
    config = config_of(3, 10, 2, 3, strict=strict, tick=tick_time_millis)
    return BucketDelayedTracker(bench.wake, CursorBucketRegistry(cursor), config, clock=bench.clock, timer=bench.timer)
