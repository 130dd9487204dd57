"""Power cuts at every moment of a topic's life, and kills: nothing that was published durably is lost, nothing comes
early, and only what was not acknowledged durably comes again."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.delivery.subscription.subscription import ReceivedMessage, Subscription
from bookstand.delivery.topic import Topic
from bookstand.delivery.tracker.bucket.key import read_properties
from bookstand.storage.format.position import Position
from bookstand.testing import VirtualClock, every_crash
from tests.delivery.subscription_kit import MEMORY, MODES, START, SUBSCRIPTION, TOPIC, subscription_config, topic_config
from tests.kit import Program

# When each message is to be delivered, in the order of the topic; 0: at once.
FIRST_TIMES = [(100 + 10 * (7 * number % 31)) * (number % 4 != 0) for number in range(24)]
BATCH_TIMES = [0, 130]
MANY_TIMES = [250] * 4
LAST_TIMES = [0, 550, 0, 600]
TIMES = [*FIRST_TIMES, *BATCH_TIMES, *MANY_TIMES, *LAST_TIMES]
BATCHES = range(len(FIRST_TIMES), len(FIRST_TIMES) + len(BATCH_TIMES))
BATCH_SIZE = 3
END = 1_000

SETTINGS = {"max_entries_per_ledger": 3, "trim_consumed": True}
SUB = subscription_config(nack_delay=200, durable_nacks=True)
Key = tuple[int, int]
"""Which entry, and which message of its batch."""


def keys_of(number: int) -> list[Key]:
    return [(number, index) for index in range(BATCH_SIZE)] if number in BATCHES else [(number, -1)]


def open_topic(store: Any, mode: str) -> tuple[Topic, Subscription]:
    topic = store.topic(TOPIC, topic_config(mode, **SETTINGS))
    return topic, topic.subscription(SUBSCRIPTION, SUB)


class Workload:
    """Tells the laboratory what it is about to do, and what it was promised."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __call__(self, path: str, acknowledge: Callable[[object], None]) -> None:
        clock = VirtualClock(START)
        places: list[Position] = []

        def go_to(time: int) -> None:
            clock.advance((START + time - clock.now()) / 1000)

        def published(*positions: Position) -> None:
            places.extend(positions)
            acknowledge(("published", len(places)))

        def options(time: int) -> dict[str, Any]:
            return {"deliver_at": START + time} if time else {}

        def ack(messages: list[ReceivedMessage]) -> None:
            keys = [(int(message.payload), message.batch_index) for message in messages]
            acknowledge(("acking", clock.now() - START, keys))
            sub.ack_many(messages).result()
            acknowledge(("acked", clock.now() - START, keys))

        def reschedule(number: int, time: int) -> None:
            acknowledge(("rescheduling", number, time))
            assert sub.reschedule(places[number], deliver_at=START + time)
            acknowledge(("rescheduled", number, time))

        with bookstand.open(path, clock=clock) as store:
            topic, sub = open_topic(store, self.mode)
            for number, time in enumerate(FIRST_TIMES):
                published(topic.publish(b"%d" % number, **options(time)))
            for number, time in zip(BATCHES, BATCH_TIMES, strict=True):
                published(topic.publish_batch([b"%d" % number] * BATCH_SIZE, **options(time)))
            received = sub.receive(100, timeout=0)
            ack([*received[1:4], received[-1]])
            sub.nack_many([received[0], received[5]])
            reschedule(1, 350)
            reschedule(5, 50)
            acknowledge(("acking", 0, [(7, -1)]))
            sub.cancel(places[7]).result()
            acknowledge(("acked", 0, [(7, -1)]))
            go_to(170)
            ack(sub.receive(100, timeout=0))
            topic.close()
            topic, sub = open_topic(store, self.mode)
            names = [b"%d" % (len(places) + number) for number in range(len(MANY_TIMES))]
            published(*topic.publish_many(names, **options(MANY_TIMES[0])))
            received = sub.receive(100, timeout=0)
            ack(received[::2])
            sub.nack_many(received[1::2])
            go_to(380)
            while part := sub.receive(4, timeout=0):
                ack(part)
            topic.trim()
            for time in LAST_TIMES:
                published(topic.publish(b"%d" % len(places), **options(time)))
            topic.close()


class Check:
    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __call__(self, store: Any, told: list[Any]) -> None:
        published = max((value for what, value, *_ in told if what == "published"), default=0)
        acking = {key for what, *values in told if what == "acking" for key in values[1]}
        acked = {key for what, *values in told if what == "acked" for key in values[1]}
        begun = max((values[0] for what, *values in told if what in ("acking", "acked")), default=0)
        times = {number: [time] for number, time in enumerate(TIMES)}
        for what, *values in told:
            if what == "rescheduling":
                times[values[0]].append(values[1])
            elif what == "rescheduled":
                times[values[0]] = [values[1]]
        clock = VirtualClock(START + begun)
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            # What is acknowledged here is not to be acknowledged in the store.
            store.backup(f"{folder}/store")
            self.consume(f"{folder}/store", clock, begun, published, acking, acked, times)

    def consume(
        self,
        path: str,
        clock: VirtualClock,
        begun: int,
        published: int,
        acking: set[Key],
        acked: set[Key],
        times: dict[int, list[int]],
    ) -> None:
        with bookstand.open(path, clock=clock) as mine:
            topic, sub = open_topic(mine, self.mode)
            given: Counter[Key] = Counter()
            for moment in [*range(begun, 650, 7), END]:
                clock.advance((START + moment - clock.now()) / 1000)
                while part := sub.receive(5, timeout=0):
                    for message in part:
                        number = int(message.payload)
                        assert moment >= min(times[number]), f"{number} came at {moment}"
                        given[number, message.batch_index] += 1
                    sub.ack_many(part).result()
            assert max(given.values(), default=1) == 1
            assert not given.keys() & acked, "what was acknowledged came again"
            wanted = {key for number in range(published) for key in keys_of(number)}
            assert not wanted - given.keys() - acking, "something is lost"
            assert sub.stats.backlog == sub.stats.delayed == 0
            assert read_properties(sub.cursor.cursor_properties.items()).buckets == {}
            topic.close()


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_power_cuts(mode: str, counts: Any) -> None:
    explored = every_crash(Workload(mode), Check(mode), limit=40, seed=2)
    assert explored.states > 30
    counts.add("crash_states", explored.states)


@pytest.mark.parametrize("mode", MODES)
def test_all_of_it_happens(mode: str, tmp_path: Path) -> None:
    """Else the power cuts would be about nothing: without one, too, all is as the check wants it; some is acknowledged,
    and some is trimmed."""
    told: list[Any] = []
    Workload(mode)(str(tmp_path / "store"), told.append)
    assert sum(len(values[1]) for what, *values in told if what == "acked") > 20
    with bookstand.open(tmp_path / "store") as store:
        Check(mode)(store, told)
        first = store.managed_ledger(TOPIC).ledgers[0].ledger_id
        assert first > 0


# -- kills -------------------------------------------------------------------------------------------------------------

LOOP = """
import sys
import bookstand
from bookstand.delivery.subscription.subscription import SubscriptionConfig
from tests.delivery.subscription_kit import topic_config

path, mode, number = sys.argv[1], sys.argv[2], int(sys.argv[3])

def tell(*words):
    print(*words, flush=True)

with bookstand.open(path) as store:
    topic = store.topic("t", topic_config(mode, max_entries_per_ledger=4, trim_consumed=True))
    sub = topic.subscription("s", SubscriptionConfig(nack_delay=100, durable_nacks=True))
    tell("begun")
    while True:
        delay = number * 7 % 31 if number % 3 else None
        topic.publish(b"%d" % number, deliver_after=delay)
        tell("published", number)
        number += 1
        for message in sub.receive(3, timeout=0.002):
            if message.deliver_at is not None and store._client.clock.now() < message.deliver_at:
                tell("early", message.payload.decode())
            if message.redelivery_count == 0 and int(message.payload) % 5 == 2:
                sub.nack(message)
                continue
            tell("acking", message.payload.decode())
            sub.ack(message).result()
            tell("acked", message.payload.decode())
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_kills(store_path: Path, mode: str, counts: Any) -> None:
    """One life after the other, each ended in the middle."""
    lines: list[list[str]] = []
    lives = (40, 90, 61)
    for count in lives:
        number = 1 + max((int(words[1]) for words in lines if words[0] == "published"), default=-1)
        # What it published last it may not have told.
        with Program(LOOP, store_path, mode, number + 1) as program:
            program.wait_for_lines(count)
            lines += [line.split() for line in program.kill()]
    assert not [words for words in lines if words[0] == "early"]
    of = {what: [int(words[1]) for words in lines if words[0] == what] for what in ("published", "acking", "acked")}
    # Acknowledged is acknowledged, in every later life.
    assert max(Counter(of["acked"]).values()) == 1
    clock = VirtualClock(4 * START)
    with bookstand.open(store_path, clock=clock) as store:
        topic = store.topic("t", topic_config(mode))
        sub = topic.subscription("s", subscription_config(durable_nacks=True))
        # What was negatively acknowledged is long due; this clock rings when it moves.
        clock.advance(1)
        left: list[int] = []
        while part := sub.receive(100, timeout=0):
            left += [int(message.payload) for message in part]
        assert len(set(left)) == len(left)
        assert not set(left) & set(of["acked"])
        assert set(of["published"]) <= set(left) | set(of["acking"])
        assert store.verify().ok
    counts.add("kills", len(lives))
