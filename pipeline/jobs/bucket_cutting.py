"""Cutting of delayed messages into buckets, by the rules of the tracker.

Messages are in the order of the topic's ledgers. A bucket ends with the ledger in which it reaches its minimum size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.delivery.tracker.bucket.snapshot.codec import Snapshot, seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, Numbers, concatenate
from bookstand.errors import IncorrectParameterError, StoreDamagedError

_LONGEST_STEP = (1 << 53) // 1000
"""In seconds."""


def step_millis(seconds: float) -> int:
    """Convert the maximum time span of a segment from seconds to milliseconds."""
    # NaN fails every comparison.
    if not 0.001 <= seconds <= _LONGEST_STEP:
        raise IncorrectParameterError(f"a segment has the times of 0.001 to {_LONGEST_STEP} seconds, not of {seconds}")
    return round(seconds * 1000)


class CutSettings(NamedTuple):
    """Sizes of buckets and segments. The settings correspond to the tracker's."""

    least: int = 50_000
    """Minimum number of messages in a bucket. The last bucket may have fewer."""
    step_millis: int = 300_000
    most_in_segment: int = 5_000
    precision_bits: int = 0
    """Number of low bits by which delivery times are rounded. They are rounded up: no message is delivered early."""

    def check(self) -> None:
        if self.least < 1 or self.step_millis < 1 or self.precision_bits not in range(63):
            raise IncorrectParameterError(
                f"buckets have at least one message, segments at least 1 ms, times from 0 to 62 bits less: not {self}"
            )
        if self.most_in_segment < 1 and self.most_in_segment != -1:
            raise IncorrectParameterError(
                f"a segment has from 1 message up, or any number (-1), not {self.most_in_segment}"
            )

    def seal(self, indexes: Indexes, entry_limit: int) -> Snapshot:
        return seal(coarse(indexes, self.precision_bits), self.step_millis, self.most_in_segment, entry_limit)


class Bucket(NamedTuple):
    key: BucketKey
    indexes: Indexes
    complete: bool
    """False for the last bucket of :func:`cut`, which may have fewer messages than the minimum."""


def coarse(indexes: Indexes, bits: int) -> Indexes:
    if not bits:
        return indexes
    below = (1 << bits) - 1
    times = indexes.timestamps
    # Do not round times whose rounded value would overflow int64.
    rounded = np.where(times <= np.iinfo(np.int64).max - below, (times + below) & ~below, times)
    return indexes._replace(timestamps=rounded)


def cut(parts: Iterable[Indexes], least: int, *, first_ledger: int | None = None) -> Iterator[Bucket]:
    """Cut messages into buckets. The messages must be in ascending order of ledgers. Memory is bounded by the size of
    one bucket. ``first_ledger`` is the first ledger of the first bucket, even if it has no delayed messages."""
    held: list[Indexes] = []
    count = 0
    first = last = -1
    for part in parts:
        if not part.size:
            continue
        lowest, highest = int(part.ledger_ids.min()), int(part.ledger_ids.max())
        if lowest < last:
            raise StoreDamagedError(f"messages of ledger {lowest} come behind those of ledger {last}")
        for ledger_id, rows in _by_ledger(part, lowest, highest):
            if count >= max(1, least) and ledger_id > last:
                yield Bucket(BucketKey(first, last), concatenate(held), True)
                held, count = [], 0
            if not held:
                first = ledger_id if first_ledger is None else first_ledger
                first_ledger = None
            held.append(rows)
            count += rows.size
            last = ledger_id
    if held:
        yield Bucket(BucketKey(first, last), concatenate(held), False)


def _by_ledger(part: Indexes, lowest: int, highest: int) -> Iterator[tuple[int, Indexes]]:
    if lowest == highest:
        yield lowest, part
        return
    if (part.ledger_ids[1:] < part.ledger_ids[:-1]).any():
        order = np.argsort(part.ledger_ids, kind="stable")
        part = Indexes(*(column[order] for column in part))
    ends = [*(np.flatnonzero(np.diff(part.ledger_ids)) + 1).tolist(), part.size]
    start = 0
    for end in ends:
        yield int(part.ledger_ids[start]), part.part(start, end)
        start = end


def check_bucket(bucket: Bucket) -> None:
    """Raise :class:`StoreDamagedError` if a bucket has messages of ledgers outside the range of its key."""
    ledgers: Numbers = bucket.indexes.ledger_ids
    if ledgers.min() < bucket.key.first_ledger or ledgers.max() > bucket.key.last_ledger:
        found = f"{ledgers.min()} to {ledgers.max()}"
        raise StoreDamagedError(f"bucket {bucket.key} would have messages of ledgers {found}")
