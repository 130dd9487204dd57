"""Workers of P17: they fill a store, open it to the first delivery, or read the topic's entries.

`python -m benchmarks.queues_restart_worker fill|deliver|read plain|delayed PATH MESSAGES` prints a line of JSON. The
measurement starts after the modules have been loaded; `whole` is the CPU time of the whole process.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bookstand
from bookstand.delivery.topic import Topic
from bookstand.delivery.topic_config import TopicConfig
from bookstand.proto import delayed_bucket_metadata_pb2  # noqa: F401 - otherwise loaded on first use
from bookstand.testing.clock import VirtualClock

PAYLOAD_BYTES = 128
TICK_MILLIS = 1_000
START = 1_700_000_000_000
HOUR = 3_600_000
# Half of the delayed messages are due by then.
RESTART = {"plain": START + HOUR, "delayed": START + HOUR + HOUR // 2}
_TOPIC, _SUBSCRIPTION = "topic", "worker"
_COMMIT = 1_000
_SEED = 17


def delays(messages: int) -> list[int]:
    """Return random delays in milliseconds, from the second hour after START."""
    chance = random.Random(_SEED)
    return [chance.randrange(HOUR, 2 * HOUR) for _ in range(messages)]


def acknowledged(messages: int) -> list[int]:
    """Return a tenth of the messages in random order."""
    return random.Random(_SEED + 1).sample(range(messages), messages // 10)


def fill(kind: str, path: Path, messages: int) -> dict[str, Any]:
    """Publish all messages, track the delayed ones, and acknowledge a tenth."""
    with bookstand.open(path, clock=VirtualClock(START)) as store, _opened(store, kind, messages) as topic:
        subscription = topic.subscription(_SUBSCRIPTION)
        times = [START + delay for delay in delays(messages)]
        positions = []
        for first in range(0, messages, _COMMIT):
            numbers = range(first, min(first + _COMMIT, messages))
            payloads = [number.to_bytes(8) + bytes(PAYLOAD_BYTES - 8) for number in numbers]
            due = times[first : first + _COMMIT] if kind == "delayed" else None
            positions += topic.publish_many(payloads, deliver_at=due)
        if kind == "delayed":
            if subscription.receive(1, timeout=0):
                raise RuntimeError("a message was delivered before its delivery time")
            if subscription.stats.delayed != messages:
                raise RuntimeError(f"{subscription.stats.delayed} messages are delayed, not {messages}")
        numbers_acked = acknowledged(messages)
        for first in range(0, len(numbers_acked), _COMMIT):
            subscription.ack_many([positions[number] for number in numbers_acked[first : first + _COMMIT]])
        return {"backlog": subscription.stats.backlog}


def deliver(kind: str, path: Path, messages: int) -> dict[str, Any]:
    """Measure from `bookstand.open` to the first delivered message."""
    wall, cpu = time.perf_counter(), time.process_time()
    store = bookstand.open(path, clock=VirtualClock(RESTART[kind]))
    topic = _opened(store, kind, messages)
    subscription = topic.subscription(_SUBSCRIPTION)
    (message,) = subscription.receive(1, timeout=0)
    number = int.from_bytes(message.payload[:8])
    answer = {**_since(cpu, wall), "number": number, "backlog": subscription.stats.backlog}
    store.close()
    return answer


def read(kind: str, path: Path, messages: int) -> dict[str, Any]:
    """Read all entries of the topic with verified digests, the fastest way: payloads ledger by ledger."""
    with bookstand.open(path, read_only=True) as store:
        ledgers = [info.ledger_id for info in store.managed_ledger(_TOPIC).ledgers if info.entries]
        wall, cpu = time.perf_counter(), time.process_time()
        count = 0
        for ledger_id in ledgers:
            for _ in store.open_ledger(ledger_id, recovery=False).payloads():
                count += 1
        return {**_since(cpu, wall), "count": count}


def _since(cpu: float, wall: float) -> dict[str, float]:
    now = time.process_time()
    return {"cpu": now - cpu, "wall": time.perf_counter() - wall, "whole": now}


def _opened(store: bookstand.Store, kind: str, messages: int) -> Topic:
    """Open the topic with the default of 50 000 messages per ledger and bucket, or fewer for small benchmarks."""
    limit = min(50_000, messages // 20)
    config = TopicConfig(
        delayed_delivery_tracker="bucket" if kind == "delayed" else "in_memory",
        delayed_delivery_tick_time_millis=TICK_MILLIS,
        delayed_delivery_min_index_count_per_bucket=limit,
        max_entries_per_ledger=limit,
    )
    return store.topic(_TOPIC, config)


_ACTIONS: dict[str, Callable[[str, Path, int], dict[str, Any]]] = {"fill": fill, "deliver": deliver, "read": read}


def main(action: str, kind: str, path: str, messages: str) -> None:
    print(json.dumps(_ACTIONS[action](kind, Path(path), int(messages))))


if __name__ == "__main__":
    main(*sys.argv[1:])
