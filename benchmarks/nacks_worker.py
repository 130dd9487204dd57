"""Worker of P26: negatively acknowledges messages one by one, and reports the growth of its private memory.

`python -m benchmarks.nacks_worker ordered|random MESSAGES` prints a line of JSON.

Messages are identified by position, 50,000 per ledger, and do not exist: a negative acknowledgment does not read them.
Each was redelivered once, every tenth one twice, so that it has a redelivery count. Then each is nacked with
`Subscription.nack`, 10,000 per second of the subscription's clock. The delay is fixed or random, and long enough that
none is redelivered before all are nacked.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bookstand
from benchmarks.measure import private_mib
from bookstand.delivery.subscription.subscription import Subscription
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.storage.format.position import Position
from bookstand.testing.clock import VirtualClock

KINDS = ("ordered", "random")
PER_LEDGER = 50_000
PER_SECOND = 10_000
HOUR = 3_600_000
_START = 1_700_000_000_000
_FIRST_LEDGER = 1_000
_WARM_UP = 10_000
_BATCH = 1_000
_SEED = 26


def nack_all(kind: str, messages: int, path: Path) -> dict[str, Any]:
    clock = VirtualClock(_START)
    with bookstand.open(path, clock=clock) as store, store.topic("topic") as topic:
        subscription = topic.subscription("worker", SubscriptionConfig(negative_ack_precision_bits=8))
        # Allocate modules and transient buffers first.
        for _ in range(20):
            _redeliver(subscription, clock, list(_positions(0, _BATCH)))
        _nack(subscription, clock, kind, 0, _WARM_UP)
        first = _FIRST_LEDGER * PER_LEDGER
        gc.collect()
        memory = private_mib()
        for start in range(0, messages, _BATCH):
            batch = list(_positions(first + start, first + min(start + _BATCH, messages)))
            _redeliver(subscription, clock, batch)
            _redeliver(subscription, clock, batch[::10])
        cpu = time.process_time()
        _nack(subscription, clock, kind, first, first + messages)
        cpu = time.process_time() - cpu
        gc.collect()
        grown = private_mib() - memory
        nacked = subscription.stats.nacked - _WARM_UP
        return {"bytes": grown * (1 << 20) / messages, "cpu": cpu / messages, "nacked": nacked}


def _positions(first: int, last: int) -> Iterator[Position]:
    return (Position(1 + number // PER_LEDGER, number % PER_LEDGER) for number in range(first, last))


def _redeliver(subscription: Subscription, clock: VirtualClock, positions: Any) -> None:
    """Redeliver messages once, which creates redelivery counts."""
    subscription.nack_many(positions, delay=0)
    clock.advance(0.1)
    # The messages do not exist, so they are dropped.
    if subscription.stats.nacked % _WARM_UP or subscription.receive(_BATCH, timeout=0) or subscription.stats.waiting:
        raise RuntimeError("messages are still nacked, or were received")


def _nack(subscription: Subscription, clock: VirtualClock, kind: str, first: int, last: int) -> None:
    chance = random.Random(_SEED)
    in_a_milli = PER_SECOND // 1_000
    for number, position in enumerate(_positions(first, last)):
        # One hour, or a random time between one and two hours.
        delay = HOUR if kind == "ordered" else HOUR + int(chance.random() * HOUR)
        subscription.nack(position, delay)
        if number % in_a_milli == 0:
            clock.advance(0.001)


def main(kind: str, messages: str) -> None:
    with TemporaryDirectory(prefix="bookstand-bench-") as folder:
        print(json.dumps(nack_all(kind, int(messages), Path(folder) / "store")))


if __name__ == "__main__":
    main(*sys.argv[1:])
