"""A process of the kind ``endurance``: ``python -m tests.soak.endurance_process ROLE STORE``.

``writer STORE BACKLOG`` has the topic: for each line of standard input it publishes and consumes for so many seconds,
at a constant backlog, and prints what it measured. ``reader`` reads all entries again and again, until it is killed.
``stalled`` reads a few entries, prints a line, and reads on when standard input ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bookstand
from bookstand import TopicConfig
from bookstand.errors import BookstandError

TOPIC, SUBSCRIPTION = "endurance", "worker"
MESSAGE_BYTES = 1_200
AT_ONCE = 20
PACE = 200.0
"""Messages in a second: what is deleted meanwhile stays in the file until it is collected."""
MESSAGES_OF_A_LEDGER = 1_000
FASTER = 300
"""Seconds of the writer's clock in one second, so that deleted ledgers are collected soon."""


class FastClock:
    def __init__(self) -> None:
        self._start = time.time()

    def now(self) -> int:
        return int((self._start + (time.time() - self._start) * FASTER) * 1_000)


def payload(number: int) -> bytes:
    return b"%d|" % number + bytes((number % 251,)) * (MESSAGE_BYTES - 10)


def number_of(data: bytes) -> int:
    number = int(data.partition(b"|")[0])
    if data != payload(number):
        raise AssertionError(f"message {number} has other bytes: {data[:40]!r}")
    return number


class Writer:
    def __init__(self, path: str, backlog: int) -> None:
        self._store = bookstand.open(path, clock=FastClock())
        config = TopicConfig(max_entries_per_ledger=MESSAGES_OF_A_LEDGER, trim_consumed=True)
        self._topic = self._store.topic(TOPIC, config)
        self._subscription = self._topic.subscription(SUBSCRIPTION)
        self._published = self._consumed = 0
        while self._published < backlog:
            self._publish(1_000)

    def _publish(self, count: int) -> None:
        self._topic.publish_many([payload(self._published + number) for number in range(count)])
        self._published += count

    def run(self, seconds: float) -> dict[str, Any]:
        """Publish and consume, and return what a reader of the figures needs."""
        began = time.monotonic()
        durations = []
        cycles = 0
        while (now := time.monotonic()) < began + seconds:
            self._publish(AT_ONCE)
            durations.append(time.monotonic() - now)
            messages = self._subscription.receive(AT_ONCE, timeout=60)
            for message in messages:
                if number_of(message.payload) != self._consumed:
                    raise AssertionError(f"message {self._consumed} is {message.payload[:20]!r}")
                self._consumed += 1
            self._subscription.ack_many(messages).result()
            cycles += 1
            time.sleep(max(0.0, began + cycles * AT_ONCE / PACE - time.monotonic()))
        durations.sort()
        return {"p99": durations[int(len(durations) * 0.99)], "cycles": cycles} | self._sizes()

    def _sizes(self) -> dict[str, int]:
        environment = self._store.storage._environment  # type: ignore[attr-defined]
        with environment.read() as transaction:
            statistics = [transaction.stat(database) for database in environment.databases.values()]
        env = environment._env
        pages = sum(one["branch_pages"] + one["leaf_pages"] + one["overflow_pages"] for one in statistics)
        file = Path(self._store.path) / "data.mdb"
        return {
            "live_bytes": (self._published - self._consumed) * MESSAGE_BYTES,
            "file_bytes": file.stat().st_blocks * 512,
            "free_pages": env.info()["last_pgno"] + 1 - pages,
            "pages": pages,
            "slots": len(env.readers().splitlines()) - 1,
        }


def write(path: str, backlog: str) -> None:
    writer = Writer(path, int(backlog))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(writer.run(float(line))), flush=True)
    writer._topic.close()
    writer._store.close()


def entries(store: bookstand.Store) -> Iterator[bytes]:
    for ledger_id in list(store.list_ledgers()):
        try:
            reader = store.open_ledger(ledger_id, recovery=False)
            last = reader.last_add_confirmed
            for first in range(0, last + 1, 50):
                yield from (entry.data for entry in reader.read(first, min(first + 49, last)))
        except BookstandError:
            # The ledger was deleted meanwhile.
            continue


def read(path: str) -> None:
    with bookstand.open(path, read_only=True) as store:
        print("ready", flush=True)
        while True:
            for _ in entries(store):
                pass


def stall(path: str) -> None:
    with bookstand.open(path, read_only=True) as store:
        found = entries(store)
        next(found)
        print("ready", flush=True)
        sys.stdin.read()
        print(sum(1 for _ in found), flush=True)


if __name__ == "__main__":
    {"writer": write, "reader": read, "stalled": stall}[sys.argv[1]](*sys.argv[2:])
