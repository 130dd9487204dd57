"""What Pulsar's tracker of delayed messages is asked: snapshots of buckets of ours, and the answers they have to get.

``metadata`` and ``segment`` are about one entry each, ``labels`` about what a snapshot's ledger says of itself. For
``sealed`` the original's tracker seals the same messages, and has to store the same bytes. For ``recovered`` it begins
with all snapshots of a cursor, and delivers what is in them. What to expect is worked out from what was put in, by
plain loops.
"""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST, DelayedDeliveryConfig
from bookstand.delivery.tracker.bucket.key import BucketLabels, bucket_key
from bookstand.delivery.tracker.bucket.registry import CursorBucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.codec import UNLIMITED, decode_metadata, seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.ledger.transaction import Transaction
from bookstand.testing import VirtualClock
from bookstand.testing.clock import ManualTimer
from tests.interop.java import request
from tests.interop.questions import Question

Index = tuple[int, int, int]
"""Time, ledger, entry."""
Position = tuple[int, int]

LARGEST = (1 << 63) - 1
MOST_32 = (1 << 32) - 1
NAMES = ("sub", 'üml "k"\n', "日本 🐟", "a/b%2Fc", "")


class Shape(NamedTuple):
    """A bucket's indexes in their order, and how they are cut: by the settings as they are given, sensible or not."""

    indexes: Sequence[Index]
    step: int
    most: int = UNLIMITED

    @property
    def limit(self) -> int:
        return self.most if self.most == UNLIMITED else max(1, self.most)

    @property
    def segments(self) -> list[list[Index]]:
        found: list[list[Index]] = []
        for one in self.indexes:
            if not found or one[0] - found[-1][0][0] >= self.step or len(found[-1]) == self.limit:
                found.append([])
            found[-1].append(one)
        return found

    @property
    def columns(self) -> Indexes:
        return Indexes.of(*zip(*self.indexes, strict=True))


# -- the Java side's words -------------------------------------------------------------------------------------------


def _row(index: Index) -> str:
    return ":".join(map(str, index))


def _position(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def _rows(indexes: Iterable[Index]) -> str:
    return ",".join(map(_row, indexes))


def _positions(positions: Iterable[Position]) -> str:
    return ",".join(map(_position, positions))


def _ranges(entries: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for entry in sorted(entries):
        if ranges and entry == ranges[-1][1] + 1:
            ranges[-1][1] = entry
        else:
            ranges.append([entry, entry])
    return ",".join(f"{first}-{last}" for first, last in ranges)


def _described(segments: Iterable[Sequence[Index]]) -> str:
    """What entry 0 tells of them."""
    words = []
    for segment in segments:
        ledgers = defaultdict(set)
        for _, ledger, entry in segment:
            if entry <= MOST_32:
                ledgers[ledger].add(entry)
        bitmaps = [f"{ledger}:{_ranges(ledgers[ledger])}" for ledger in sorted(ledgers)]
        words.append("/".join([f"{segment[-1][0]}~{segment[0][0]}", *bitmaps]))
    return ";".join(words)


# -- shapes ----------------------------------------------------------------------------------------------------------


def _some_entries(rng: random.Random, largest: int) -> list[int]:
    """In runs, scattered, so many that a container is a bitmap, around the ends of containers, or few and large."""
    kind = rng.randrange(6)
    if kind == 0:
        start = rng.randrange(1 << 17)
        return list(range(start, start + rng.randint(1, 500)))
    if kind == 1:
        return rng.sample(range(1 << rng.choice((8, 16, 20, 32))), rng.randint(1, 100))
    if kind == 2:
        return sorted(rng.sample(range(1 << 16), rng.choice((4095, 4096, 4097, 6000))))
    if kind == 3:
        return [(at << 16) + beside for at in range(1, 5) for beside in (-1, 0, 1)]
    if kind == 4:
        return sorted({largest - rng.getrandbits(rng.choice((1, 8, 17))) for _ in range(20)})
    return sorted({run + one for run in rng.sample(range(0, 1 << 18, 64), 60) for one in range(rng.randint(1, 60))})


def _some_times(rng: random.Random) -> Callable[[], int]:
    kind = rng.randrange(4)
    if kind == 0:
        base = rng.getrandbits(rng.choice((1, 8, 40)))
        return lambda: base + 1
    if kind == 1:
        return lambda: 1_700_000_000_000 + rng.randrange(86_400_000)
    if kind == 2:
        return lambda: rng.randint(1, 100)
    return lambda: 1 + rng.getrandbits(rng.choice((1, 7, 14, 35, 62)))


def _some_indexes(rng: random.Random, largest_entry: int = MOST_32) -> list[Index]:
    time = _some_times(rng)
    count = rng.choice((1, 2, 3, 11, 12, 13, 40))
    near = rng.getrandbits(20)
    ledgers = rng.choice(
        (
            range(near, near + count),
            [rng.getrandbits(62) for _ in range(count)],
            # All in one bin of a hash table.
            [near + (number << 16) for number in range(count)],
        )
    )
    if len(ledgers) > 3:
        found = [(time(), ledger, entry) for ledger in ledgers for entry in rng.sample(range(50), rng.randint(1, 20))]
    else:
        found = [(time(), ledger, entry) for ledger in ledgers for entry in _some_entries(rng, largest_entry)]
    return sorted({(ledger, entry): (when, ledger, entry) for when, ledger, entry in found}.values())


def _shapes(rng: random.Random) -> Iterator[Shape]:
    week = 7 * 86_400_000
    yield Shape([(1000, 1, 2)], 300_000)
    yield Shape([(1, 0, 0)], 1)
    yield Shape([(LARGEST - 1, LARGEST - 1, MOST_32)], 1)
    yield Shape([(10 * n, n, n) for n in range(1, 6)], 10)
    # All of one time, one segment.
    yield Shape([(5000, n // 3000, n % 3000) for n in range(20_000)], 1, UNLIMITED)
    # Whole ledgers, as a run each, in many segments of the size that is usual.
    yield Shape(sorted((1 + rng.randrange(week), 1 + n // 5000, n % 5000) for n in range(20_000)), week, 5000)
    for _ in range(120):
        step = rng.choice((1, 10, 1000, 300_000, 1 << 40))
        yield Shape(_some_indexes(rng), step, rng.choice((UNLIMITED, 1, 7, 100, 5000)))
    for step, most in ((0, UNLIMITED), (-1000, UNLIMITED), (1 << 40, 0), (1 << 40, -2), (0, 0)):
        yield Shape(sorted((1 + rng.randrange(10), 1 + n % 3, n) for n in range(20)), step, most)


def snapshots(rng: random.Random) -> Iterator[Question]:
    for number, shape in enumerate(_shapes(rng)):
        yield from _entries_of(f"snapshot {number}", shape, seal(shape.columns, shape.step, shape.limit).entries)


def _entries_of(name: str, shape: Shape, entries: Sequence[bytes]) -> Iterator[Question]:
    segments = shape.segments
    first, *others = entries
    expected = {"segments": _described(segments), "again": first.hex()}
    yield Question(f"{name}, metadata", request("metadata", bytes=first), expected)
    if len(others) != len(segments):
        raise AssertionError(f"{name}: {len(others)} segments, not {len(segments)}")
    for at, (entry, segment) in enumerate(zip(others, segments, strict=True), 1):
        # Many small ones are alike.
        if at <= 30:
            expected = {"indexes": _rows(segment), "again": entry.hex()}
            yield Question(f"{name}, segment {at}", request("segment", bytes=entry), expected)


def sealed_by_the_original(rng: random.Random) -> Iterator[Question]:
    for number, shape in enumerate(_shapes(rng)):
        entries = seal(shape.columns, shape.step, shape.limit).entries
        yield _sealed(f"sealed bucket {number}", shape, entries)


def _sealed(name: str, shape: Shape, entries: Sequence[bytes]) -> Question:
    ledgers = [ledger for _, ledger, _ in shape.indexes]
    in_order = sorted(shape.indexes, key=lambda index: index[1:])
    line = request("sealed", rows=_rows(in_order), step=shape.step, most=shape.most)
    expected = {"key": bucket_key(min(ledgers), max(ledgers)), "entries": ",".join(entry.hex() for entry in entries)}
    return Question(name, line, expected)


def what_only_bookstand_has(rng: random.Random) -> Iterator[Question]:
    """Entry ids that no bitmap of 32 bits has, and metadata that goes on in other entries: who does not know them reads
    the rest as it stands."""
    for number in range(20):
        shape = Shape(_some_indexes(rng, 1 << rng.choice((33, 62))), rng.choice((10, 1 << 40)), 100)
        first, *others = seal(shape.columns, shape.step, shape.limit).entries
        segments = shape.segments
        line = request("metadata", bytes=first)
        yield Question(f"far entries {number}, metadata", line, {"segments": _described(segments)})
        for entry, segment in zip(others, islice(segments, 30), strict=False):
            yield Question(f"far entries {number}", request("segment", bytes=entry), {"indexes": _rows(segment)})
    for number in range(10):
        shape = Shape(sorted((1 + rng.randrange(1000), n % 7, n) for n in range(500)), 10, 50)
        snapshot = seal(shape.columns, shape.step, shape.limit, 1500)
        first, *others = (snapshot.entries[0], *snapshot.entries[1 + snapshot.segment_count :])
        told = len(decode_metadata(first).metadata_list)
        assert 0 < told < len(shape.segments)
        for name, data, segments in (
            ("entry 0", first, shape.segments[:told]),
            ("what follows", b"".join(others), shape.segments[told:]),
        ):
            line = request("metadata", bytes=data)
            yield Question(f"long metadata {number}, {name}", line, {"segments": _described(segments)})


# -- buckets of a tracker --------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A snapshot that a tracker made of what was to be in it."""

    labels: BucketLabels
    shape: Shape


class NotingStorage(BucketSnapshotStorage):
    """Asks what is to be in a snapshot when one is made."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.cursor.topic.client)
        self._desk = desk

    def create_in(self, transaction: Transaction, entries: Sequence[bytes], labels: BucketLabels) -> LedgerWriter:
        writer = super().create_in(transaction, entries, labels)
        self._desk.stored[writer.id] = Stored(labels, self._desk.shape_of(labels.key))
        return writer


class Desk:
    """A tracker, and beside it a plain account of what waits."""

    def __init__(self, rng: random.Random, folder: str, number: int) -> None:
        self.rng = rng
        self.store = bookstand.open(Path(folder) / f"store {number}", durability="none")
        self.topic = f"persistent://public/default/t {number}"
        self.name = rng.choice(NAMES[:-1])
        self.cursor = Cursor.open(self.store.managed_ledger(self.topic), self.name, CursorConfig(flush_interval=1e9))
        self.config = DelayedDeliveryConfig(
            delayed_delivery_tracker="bucket",
            delayed_delivery_tick_time_millis=1,
            is_delayed_delivery_deliver_at_time_strict=True,
            delayed_delivery_min_index_count_per_bucket=rng.choice((5, 40, 300)),
            delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=rng.choice((0.01, 0.1, 1000)),
            delayed_delivery_max_indexes_per_bucket_snapshot_segment=rng.choice((UNLIMITED, 4, 50)),
            delayed_delivery_max_num_buckets=rng.choice((UNLIMITED, 1, 2, 3)),
            delayed_delivery_merge_policy=rng.choice((LEAST_WRITES, TWO_SMALLEST)),
        )
        self.clock = VirtualClock(0)
        self.stored: dict[int, Stored] = {}
        self.storage = NotingStorage(self)
        self.waiting: dict[Position, int] = {}
        self.moved: set[Position] = set()
        self.ledger = rng.getrandbits(rng.choice((4, 40)))
        self.tracker = BucketDelayedTracker(
            lambda: None,
            CursorBucketRegistry(self.cursor),
            self.config,
            storage=self.storage,
            clock=self.clock,
            timer=ManualTimer(self.clock),
        )

    def shape_of(self, key: str) -> Shape:
        """What is to be in a bucket that comes into being: what waits. Only what was given another time before it was
        sealed for the first time stays in memory, until buckets are merged."""
        first, last = map(int, key.rsplit("_", 2)[1:])
        before = [bucket.key for bucket in self.tracker.buckets]
        indexes = sorted(
            (time, *position)
            for position, time in self.waiting.items()
            if first <= position[0] <= last
            if position not in self.moved or any(one.first_ledger <= position[0] <= one.last_ledger for one in before)
        )
        config = self.config
        return Shape(indexes, config.time_step_millis, config.delayed_delivery_max_indexes_per_bucket_snapshot_segment)

    def work(self) -> None:
        rng = self.rng
        for _ in range(rng.choice((6, 12))):
            for _ in range(rng.randint(1, 6)):
                self.add(rng.randint(1, 60))
            self.change(self.cancel)
            self.change(self.reschedule)
            if rng.random() < 0.2:
                self.clock.advance(rng.randint(1, 100) / 1000)
                for position in self.tracker.pop_due():
                    del self.waiting[position]

    def add(self, count: int) -> None:
        """The messages of a ledger; the first may make a bucket of those before."""
        rng = self.rng
        entries = rng.choice((range(count), rng.sample(range(1 << rng.choice((8, 31))), count)))
        for entry in entries:
            time = self.clock.now() + rng.randint(1, rng.choice((10, 1000)))
            assert self.tracker.add((self.ledger, entry), time)
            self.waiting[self.ledger, entry] = time
        self.ledger += rng.choice((1, 1, 20))

    def change(self, change: Callable[[Position], None]) -> None:
        for position in self.rng.sample(sorted(self.waiting), min(len(self.waiting), self.rng.choice((0, 0, 1, 9)))):
            change(position)

    def cancel(self, position: Position) -> None:
        assert self.tracker.cancel(position)
        del self.waiting[position]

    def reschedule(self, position: Position) -> None:
        time = self.clock.now() + self.rng.randint(1, 2000)
        assert self.tracker.reschedule(position, time)
        self.waiting[position] = time
        self.moved.add(position)

    def entries(self, ledger_id: int) -> list[bytes]:
        handle = self.store.open_ledger(ledger_id, password=b"")
        return [entry.data for entry in handle.read(0, handle.last_add_confirmed)]

    def close(self) -> None:
        self.tracker.close()
        self.cursor.close()
        self.store.close()


def _desks(rng: random.Random) -> Iterator[tuple[str, Desk]]:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(25):
            desk = Desk(rng, folder, number)
            desk.work()
            yield f"tracker {number}", desk
            desk.close()


def buckets_of_trackers(rng: random.Random) -> Iterator[Question]:
    """Sealed, merged, after messages were cancelled, rescheduled and delivered."""
    for name, desk in _desks(rng):
        for bucket in desk.tracker.buckets:
            labels, shape = desk.stored[bucket.bucket_id]
            entries = desk.entries(bucket.bucket_id)
            about = f"{name}, bucket {bucket.name}"
            yield from _entries_of(about, shape, entries)
            yield _sealed(f"{about}, sealed by the original", shape, entries)
            yield _labels(about, desk, bucket.bucket_id, labels, sum(map(len, entries)))


def _labels(name: str, desk: Desk, ledger_id: int, labels: BucketLabels, length: int) -> Question:
    data, _ = desk.store.storage.metadata(ledger_id) or (b"", 0)
    custom = {
        "application": b"pulsar",
        "component": b"delayed-index-bucket",
        "pulsar/delayedIndexBucketKey": labels.key.encode(),
        "pulsar/delayedIndexTopic": desk.topic.encode(),
        "pulsar/delayedIndexCursor": desk.name.encode(),
    }
    words = ",".join(f"{key.encode().hex()}={custom[key].hex()}" for key in sorted(custom))
    line = request(
        "labels",
        bytes=data,
        ledger=ledger_id,
        key=labels.key,
        topic=desk.topic.encode(),
        cursor=desk.name.encode(),
    )
    expected = {
        "custom": words,
        "written": words,
        "state": "CLOSED",
        "last_entry": str(len(desk.stored[ledger_id].shape.segments)),
        "length": str(length),
    }
    return Question(f"{name}, labels", line, expected)


def recovered_by_the_original(rng: random.Random) -> Iterator[Question]:
    """It knows nothing of what was cancelled or given another time later than a bucket was sealed."""
    for name, desk in _desks(rng):
        shapes = {bucket: desk.stored[bucket.bucket_id].shape for bucket in desk.tracker.buckets}
        if not shapes:
            continue
        everything = [index for shape in shapes.values() for index in shape.indexes]
        last = max(time for time, _, _ in everything)
        now = rng.choice((0, desk.clock.now(), rng.randint(0, last)))
        there = [index for shape in shapes.values() for segment in _alive(shape.segments, now) for index in segment]
        asked = sorted({index[1:] for index in everything})
        asked += [(ledger, entry + 1) for ledger, entry in asked[:100]]
        times = sorted({now, *(rng.randint(now, max(now, last)) for _ in range(4)), max(now, last)})
        line = request(
            "recovered",
            now=now,
            buckets=";".join(
                f"{bucket.name}={bucket.bucket_id}={','.join(entry.hex() for entry in desk.entries(bucket.bucket_id))}"
                for bucket in shapes
            ),
            ask=_positions(asked),
            times=",".join(map(str, times)),
        )
        positions = {index[1:] for index in there}
        expected = {
            "count": str(len(there)),
            "contained": "".join("01"[one in positions] for one in asked),
            "delivered": ";".join(_delivered(there, times)),
            "left": "0",
        }
        yield Question(f"{name}, recovered at {now}", line, expected)


def _alive(segments: Sequence[Sequence[Index]], now: int) -> Sequence[Sequence[Index]]:
    """From the first on that is not due as a whole."""
    first = next((number for number, segment in enumerate(segments) if segment[-1][0] > now), len(segments))
    return segments[first:]


def _delivered(indexes: Collection[Index], times: Sequence[int]) -> Iterator[str]:
    before = -1
    for time in times:
        yield _positions(sorted(index[1:] for index in indexes if before < index[0] <= time))
        before = time


GROUPS: dict[str, Callable[[random.Random], Iterator[Question]]] = {
    "snapshots of delayed messages": snapshots,
    "what the original seals of the same messages": sealed_by_the_original,
    "snapshots with what only bookstand has": what_only_bookstand_has,
    "buckets of trackers": buckets_of_trackers,
    "buckets as the original recovers them": recovered_by_the_original,
}
