"""P14: a durable queue end to end (publish, receive and acknowledge), compared with alternatives.

A backlog of 1 KiB messages is published in batches of 100, then received and acknowledged in such batches until the
queue is empty. Each batch is durable before the next one starts. The figure is the CPU time of this process and of the
candidate's server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from benchmarks.baselines.queue_beanstalkd import Beanstalkd, BeanstalkdPiped
from benchmarks.baselines.queue_huey import HueyQueue
from benchmarks.baselines.queue_litequeue import LiteQueue
from benchmarks.baselines.queue_persistqueue import PersistQueue
from benchmarks.baselines.queue_redis import RedisQueue, RedisQueueFastest
from benchmarks.baselines.queue_sqlite import SqliteQueue
from benchmarks.figures import Figure, ratio
from benchmarks.measure import Missing, Sample, Series, interleave, timed
from benchmarks.places import Bench, Place
from benchmarks.queues_ours import TopicQueue
from benchmarks.rows import Row

BATCH = 100
BATCHES = 100
# Candidates that need half a millisecond per message get fewer; for litequeue a long backlog would cost more.
FEWER_BATCHES = 20
PAYLOAD_BYTES = 1 << 10


class Queue(Protocol):
    """A queue that was opened in an empty directory."""

    def publish(self, payloads: list[bytes]) -> None:
        """Publish messages, durably on return."""

    def receive(self, count: int) -> list[Any]:
        """Receive up to `count` available messages, without waiting."""
        ...

    def payloads(self, messages: list[Any]) -> list[bytes]: ...

    def ack(self, messages: list[Any]) -> None:
        """Acknowledge messages, durably on return."""

    def left(self) -> int:
        """Return the number of unacknowledged messages."""
        ...

    def server_cpu(self) -> float:
        """Return the CPU seconds of the queue's server so far; 0 without a server."""
        ...

    def close(self) -> None: ...


CANDIDATES: dict[str, Callable[[Path], Queue]] = {
    "ours": TopicQueue,
    "SQLite by hand": SqliteQueue,
    "Redis": RedisQueue,
    "Redis, fastest": RedisQueueFastest,
    "persist-queue": PersistQueue,
    "litequeue": LiteQueue,
    "huey": HueyQueue,
    "beanstalkd": Beanstalkd,
    "beanstalkd, piped": BeanstalkdPiped,
}

# row -> candidates, of which the fastest is the baseline
_AGAINST = {
    "P14": ("SQLite by hand",),
    "P14-tmpfs": ("SQLite by hand",),
    "P14r": ("Redis",),
    "P14r-tmpfs": ("Redis",),
    "P14r-fast": ("Redis, fastest",),
    "P14q": ("persist-queue", "litequeue", "huey", "beanstalkd", "beanstalkd, piped"),
}


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    in_memory = [row for row in rows if row.row.endswith("-tmpfs")]
    slow = [row for row in rows if row.row == "P14q"]
    others = [row for row in rows if row not in in_memory and row not in slow]
    yield from _measure(others, BATCHES, bench.disk, bench.rounds(5, 11))
    yield from _measure(in_memory, BATCHES, bench.memory(), bench.rounds(5, 11))
    yield from _measure(slow, FEWER_BATCHES, bench.disk, bench.rounds(3, 5))


def _measure(rows: list[Row], batches: int, place: Place, rounds: int) -> Iterator[Figure]:
    if not rows:
        return
    names = ["ours", *sorted({name for row in rows for name in _AGAINST[row.row]})]
    measured = interleave({name: _candidate(CANDIDATES[name], batches, place) for name in names}, rounds)
    for row in rows:
        yield figure(row, measured, _AGAINST[row.row], f"{BATCH * batches:,} messages, on {place.kind}")


def figure(row: Row, measured: Mapping[str, Series | Missing], against: Sequence[str], note: str) -> Figure:
    """Compare with the fastest of `against`; if there are several, the note lists all, including missing ones."""
    found = {name: measured[name] for name in against}
    usable = {name: series for name, series in found.items() if isinstance(series, Series)}
    if len(against) > 1:
        note = "; ".join([*_described(found), note])
    if not usable:
        reasons = "; ".join(str(missing) for missing in found.values())
        return ratio(row, measured["ours"], Missing(reasons), note)
    best = min(usable.values(), key=lambda series: series.cpu)
    return ratio(row, measured["ours"], best, note)


def _described(found: Mapping[str, Series | Missing]) -> Iterable[str]:
    for name, series in found.items():
        yield f"{name} missing: {series}" if isinstance(series, Missing) else f"{name} {series.cpu * 1e6:.0f}"


def _candidate(opened: Callable[[Path], Queue], batches: int, place: Place) -> Callable[[], Sample]:
    def once() -> Sample:
        with place.directory() as directory, closing(opened(directory)) as queue:
            return run(queue, pool(), batches)

    return once


def pool() -> list[bytes]:
    """Return the payloads of a batch."""
    content = random.Random(14).randbytes(BATCH * PAYLOAD_BYTES)
    return [content[start : start + PAYLOAD_BYTES] for start in range(0, len(content), PAYLOAD_BYTES)]


def run(queue: Queue, payloads: list[bytes], batches: int) -> Sample:
    """Pass all messages through the queue once; raises RuntimeError if it does not return all of them."""
    received: list[bytes] = []

    def work() -> None:
        for _ in range(batches):
            queue.publish(payloads)
        while messages := queue.receive(BATCH):
            received.extend(queue.payloads(messages))
            queue.ack(messages)

    count = batches * len(payloads)
    served = queue.server_cpu()
    here = timed(work, count)
    served = queue.server_cpu() - served
    if sorted(received) != sorted(payloads * batches):
        raise RuntimeError(f"{type(queue).__name__} returned {len(received)} of {count} messages, or wrong ones")
    if queue.left():
        raise RuntimeError(f"{type(queue).__name__} still has {queue.left()} messages")
    return Sample(here.cpu + served / count, here.wall)
