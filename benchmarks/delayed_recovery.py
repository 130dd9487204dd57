"""P11: recovery of 100 buckets of 50 000 delayed messages, compared with reading their times from the topic.

A broker without snapshots reads every message again. The baseline is only a part of that: it reads the entries ledger
by ledger, verifies their digests and extracts the delivery times, without tracking them. Recovery is complete, from the
cursor's properties to a usable tracker. Messages have a payload of one byte, the best case for reading them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from benchmarks.delayed_buckets import NOW, PER_SEAL, TOPIC, Fixture, fixture, settings, spread_over_an_hour
from benchmarks.figures import Figure, best_of
from benchmarks.measure import Sample, Series, child_memory, interleave, timed
from benchmarks.places import Bench, Place
from benchmarks.rows import Row
from bookstand.delivery.tracker.bucket.rebuild import deliver_at_time
from bookstand.managed_ledger.message.format import encode_message
from bookstand.proto import varints

BUCKETS = 100
_ROOM = 4 << 30
_MIB = 1 << 20
_APPENDED = 10_000

_BEGIN = """
from pathlib import Path
from benchmarks.delayed_buckets import fixture, settings
with fixture(Path(sys.argv[1]), settings(), durability="none") as at:
    # All modules have been loaded.
    ready()
    tracker = at.tracker()
    done(str(tracker.count))
    tracker.close()
"""


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as directory:
        path = directory / "store"
        messages = plant(path, BUCKETS, PER_SEAL)
        for row in rows:
            if row.row == "P11":
                yield _times(row, path, messages, place, bench.rounds(3, 7))
            else:
                yield _memory(row, path, messages, bench.rounds(3, 7))


def plant(path: Path, buckets: int, per_seal: int) -> int:
    """Create a topic of ``buckets`` ledgers of ``per_seal`` delayed messages, all sealed. Returns their number."""
    config = settings(delayed_delivery_min_index_count_per_bucket=per_seal)
    with fixture(path, config, durability="none") as at:
        topic = at.store.managed_ledger(TOPIC)
        tracker = at.tracker()
        for number in range(buckets):
            times = spread_over_an_hour(np.random.default_rng(number), per_seal, 0).timestamps
            entries = messages_due(times)
            for start in range(0, per_seal, _APPENDED):
                (*_, last) = topic.append_entries(entries[start : start + _APPENDED])
            topic.roll()
            ids = np.full(per_seal, last.ledger_id), np.arange(per_seal)
            tracker.add_many(ids, times)
        # A message of a newer ledger seals the last bucket.
        tracker.add((last.ledger_id + 1_000, 0), NOW + 5_000)
        if len(tracker.buckets) != buckets:
            raise RuntimeError(f"{len(tracker.buckets)} buckets were sealed, not {buckets}")
        tracker.close()
        topic.close()
    return buckets * per_seal


def messages_due(times: Any) -> list[bytes]:
    """Encode a message for each delivery time; the messages are otherwise equal."""
    due = varints.encode_all(np.ascontiguousarray(times).view(np.uint64))
    size, rest = divmod(len(due), len(times))
    example = int(times[0])
    marked = varints.encode_all(np.array([example], dtype=np.uint64))
    whole = encode_message(b".", publish_time=example - 1, deliver_at=example)
    head, tail = whole[6:].split(marked)
    if rest or len(marked) != size:
        raise RuntimeError("the encoded times differ in length")
    magic, checksum = whole[:2], google_crc32c.value
    bodies = [head + due[at : at + size] + tail for at in range(0, len(due), size)]
    return [magic + checksum(body).to_bytes(4) + body for body in bodies]


def _times(row: Row, path: Path, messages: int, place: Place, rounds: int) -> Figure:
    with fixture(path, settings(), durability="none") as at:
        candidates = {"ours": lambda: recover(at, messages), "topic": lambda: read_times(at, messages)}
        measured = interleave(candidates, rounds)
    ours, topic = measured["ours"], measured["topic"]
    assert isinstance(ours, Series)
    assert isinstance(topic, Series)
    read, recovered = topic.best_cpu / messages * 1e6, ours.best_cpu / messages * 1e9
    note = f"{messages:,} messages; reading one takes {read:.2f} us CPU, recovering one {recovered:.0f} ns"
    return best_of(row, ours, topic, f"{note}; on {place.kind}")


def recover(at: Fixture, messages: int) -> Sample:
    made: list[Any] = []
    sample = timed(lambda: made.append(at.tracker()), 1)
    _check(made[0].count, messages)
    made[0].close()
    return sample


def read_times(at: Fixture, messages: int) -> Sample:
    """Read the delivery times of all delayed messages of the topic."""
    found = 0

    def read() -> None:
        nonlocal found
        for ledger_id in topic.extent.ledger_ids:
            reader = at.store.open_ledger(ledger_id)
            times = list(map(deliver_at_time, reader.payloads()))
            found += len(times) - times.count(None)

    topic = at.store.managed_ledger(TOPIC)
    sample = timed(read, 1)
    _check(found, messages)
    return sample


def _check(found: int, messages: int) -> None:
    if found != messages:
        raise RuntimeError(f"{found} messages came back, not {messages}")


def _memory(row: Row, path: Path, messages: int, rounds: int) -> Figure:
    """Measure the growth of a process that already has store, topic and cursor open."""
    grown, peaks, started = [], [], []
    for _ in range(rounds):
        memory = child_memory(_BEGIN, str(path))
        _check(int(memory.output), messages)
        started.append(memory.start)
        grown.append((memory.end - memory.start) * _MIB / messages)
        peaks.append((memory.peak - memory.start) * _MIB / messages)
    return Figure(
        row,
        value=statistics.median(grown),
        ours=statistics.median(grown),
        note=f"peak {statistics.median(peaks):.2f}; {messages:,} messages; {statistics.median(started):.1f} MiB before",
        rounds={"ours": {"after": grown, "peak": peaks}, "baseline": {"start": started}},
    )
