"""``python -m tests.soak.topics_process``: takes a topic when it is told to, works on it in all ways, and tells.

Commands come as lines of JSON: ``{"take": life, "path": …, "seed": …, "mode": …, "settings": {…}, "pace": …}`` to take
the topic from whoever has it, ``"leave"`` to close it in good order. A life ends with that, or when another process
takes the topic, or by a kill. ``pace``: how many messages a publisher has for each second, or null.

Each line on standard output is ``[life, what, stamp, …]``. Stamps are of a clock that all processes share. What is told
*before* has an end in -ing and may have happened if the process dies now; what is told *after* is promised.

``publishing [name, …] deliver_at``     ``deliver_at`` is 0 for at once; a batch is told as its entry's names
``published [[ledger, entry, index, name, deliver_at], …]``
``received began now sub [[ledger, entry, index, name], …]``     what came of a call that began then
``acking sub ids``, ``acked sub ids``   the index of an id is -1 for a whole entry
``acking_up_to sub position``, ``acked_up_to sub position``
``giving_back sub ids until``           they are to come again; no ids: all that is out. ``until``: not before, or None
``rescheduling sub position time``, ``rescheduled sub position time answer``
``found sub where skipped``              what a cursor began with, and what was newer and could not be used
``warned text``                         what was written to the log
``ready``, ``taking shared_index``, ``refused why``, ``taken``, ``lost why where``, ``stumbled error where``,
``ended how``, ``problem text``
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import bookstand
import bookstand.delivery.topic

# Before anybody waits for it.
import bookstand.delivery.tracker.bucket.tracker
from bookstand.delivery.topic_config import SubscriptionConfig, TopicConfig
from bookstand.errors import BookstandError, LedgerClosedError, LedgerFencedError
from tests.kit import PATIENCE

TOPIC = "persistent://public/default/soaked"
DEAD_LETTERS = "persistent://public/default/dead"
MOST_REDELIVERIES = 2
OWN_TICK = 5
NACK_DELAY = 300
SHORTEST_NACK = 100

_BUCKETS: dict[str, Any] = {
    "delayed_delivery_tracker": "bucket",
    "delayed_delivery_min_index_count_per_bucket": 20,
    "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 0.1,
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": 8,
    "delayed_delivery_max_num_buckets": 4,
}
MODES: dict[str, dict[str, Any]] = {
    "in memory": {"delayed_delivery_tracker": "in_memory"},
    "buckets": _BUCKETS,
    "shared index": _BUCKETS | {"delayed_delivery_shared_index_enabled": True},
}
SUBSCRIPTIONS: dict[str, SubscriptionConfig] = {
    "shared": SubscriptionConfig(durable_nacks=True, nack_delay=NACK_DELAY),
    "exclusive": SubscriptionConfig(type="exclusive", nack_delay=NACK_DELAY),
    "dead": SubscriptionConfig(
        durable_nacks=True,
        nack_delay=SHORTEST_NACK,
        max_redeliveries=MOST_REDELIVERIES,
        dead_letter_topic=DEAD_LETTERS,
    ),
    "deadline": SubscriptionConfig(ack_deadline=250, delayed_delivery_tick_time_millis=OWN_TICK),
}
CONSUMERS = {"shared": 2, "exclusive": 1, "dead": 1, "deadline": 1}
NACKED = {"shared": 0.1, "exclusive": 0.02, "dead": 0.25, "deadline": 0.05}
"""How much of what a consumer has it gives back."""

MOST_REFUSALS = 20

# More than so many entries that are not acknowledged, and publishers wait for consumers.
_BACKLOG = 1_000

# What a publisher that keeps to a pace has at once.
_HEAD_START = 60


def config_of(mode: str, settings: dict[str, Any]) -> TopicConfig:
    return TopicConfig(**(MODES[mode] | {"max_entries_per_ledger": 40} | settings))


def take(store: Any, config: TopicConfig, refused: Callable[[str], object]) -> tuple[Any, dict[str, Any]]:
    """The topic, taken from whoever has it, with its subscriptions. Whoever has it may write its record at the very
    moment that we take it, and then we are refused; nobody else takes it, so that this cannot go on for ever."""
    last: LedgerFencedError | None = None
    for _ in range(MOST_REFUSALS):
        try:
            topic = store.topic(TOPIC, config)
            return topic, {name: topic.subscription(name, one) for name, one in SUBSCRIPTIONS.items()}
        except LedgerFencedError as error:
            refused(str(error))
            last = error
    raise AssertionError(f"the topic could not be taken in {MOST_REFUSALS} attempts") from last


class Mouth:
    """Whole lines, whichever thread they are from."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def say(self, *what: Any) -> None:
        line = json.dumps(what).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(1, line) :]


class Warnings(logging.Handler):
    """What the store writes to its log is told as well."""

    def __init__(self, mouth: Mouth) -> None:
        super().__init__(logging.WARNING)
        self._mouth = mouth

    def emit(self, record: logging.LogRecord) -> None:
        self._mouth.say(0, "warned", time.monotonic_ns(), record.getMessage())


class Life:
    """From taking the topic to losing it."""

    def __init__(self, mouth: Mouth, command: dict[str, Any]) -> None:
        self.path: str = command["path"]
        self.mouth = mouth
        self.number: int = command["take"]
        self.seed: int = command["seed"]
        self.pace: float | None = command["pace"]
        self.config = config_of(command["mode"], command["settings"])
        self.over = threading.Event()
        self.leaving = False
        self.runner = threading.Thread(target=self.run, name="runner")
        self.runner.start()

    def leave(self) -> None:
        self.leaving = True
        self.over.set()

    def tell(self, what: str, *more: Any) -> None:
        self.mouth.say(self.number, what, time.monotonic_ns(), *more)

    def run(self) -> None:
        self.tell("taking", self.config.delayed_delivery_shared_index_enabled)
        store = None
        ended = "closed"
        try:
            store = bookstand.open(self.path, add_quorum_timeout=None)
            self.work(store)
            if self.leaving:
                self.topic.close()
            else:
                ended = "lost"
        except LedgerFencedError:
            ended = "lost"
        except BaseException:
            ended = "failed"
            self.tell("problem", traceback.format_exc()[-3000:])
        if store is not None:
            if ended != "closed" and hasattr(self, "topic"):
                with suppress(BookstandError):
                    self.topic.close()
            with suppress(BookstandError):
                store.close()
        self.tell("ended", ended)

    def work(self, store: Any) -> None:
        self.store = store
        self.clock = store._client.clock
        self.topic, self.subs = take(store, self.config, lambda why: self.tell("refused", why))
        for name, sub in self.subs.items():
            self.tell("found", name, str(sub.cursor.recovered_from), sub.cursor.recovered_from.skipped)
        self.tell("taken")
        threads = [self.thread(Publisher(self, number).step, number) for number in range(2)]
        threads.append(self.thread(Manager(self).step, 2))
        for name, count in CONSUMERS.items():
            threads += [self.thread(Consuming(self, name, number).step, number) for number in range(count)]
        for thread in threads:
            thread.start()
        self.over.wait()
        for thread in threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                raise AssertionError(f"{thread.name} did not come to an end in {PATIENCE} s")

    def has_lost_it(self) -> bool:
        try:
            self.topic.ledger.check_owned()
        except LedgerFencedError:
            return True
        return False

    def random(self, *of: object) -> random.Random:
        return random.Random(" ".join(map(str, (self.seed, *of))))

    def thread(self, step: Callable[[], None], number: int) -> threading.Thread:
        def go_on() -> None:
            try:
                while not self.over.is_set():
                    step()
            except (LedgerFencedError, LedgerClosedError) as error:
                # Who takes the topic closes its last ledger first, and may die before it says that the topic is its.
                self.tell("lost", str(error), "".join(traceback.format_tb(error.__traceback__)[-2:]))
            except BookstandError as error:
                # Who takes the topic closes and deletes ledgers; where nobody took it, and it was not closed, this
                # should not have happened.
                where = "".join(traceback.format_tb(error.__traceback__)[-3:])
                self.tell("stumbled", type(error).__name__, where)
                if not self.over.is_set() and not self.has_lost_it():
                    self.tell("problem", traceback.format_exc()[-3000:])
            except BaseException:
                self.tell("problem", traceback.format_exc()[-3000:])
            finally:
                self.over.set()

        return threading.Thread(target=go_on, name=f"{step.__qualname__} {number}", daemon=True)


class Publisher:
    def __init__(self, life: Life, number: int) -> None:
        self.life = life
        self.random = life.random("publisher", number)
        self.prefix = f"{life.seed}.{life.number}.{number}"
        self.count = 0
        self.began = time.monotonic()

    def step(self) -> None:
        if self.is_ahead() or any(self.life.subs[name].backlog > _BACKLOG for name in ("dead", "shared")):
            self.life.over.wait(0.02)
            return
        self.random.choice([self.one, self.one, self.window, self.many, self.batch])()
        self.life.over.wait(self.random.random() * 0.02)

    def is_ahead(self) -> bool:
        pace = self.life.pace
        return pace is not None and self.count > _HEAD_START + pace * (time.monotonic() - self.began)

    def names(self, most: int) -> list[str]:
        first, self.count = self.count, self.count + self.random.randint(1, most)
        return [f"{self.prefix}.{number}" for number in range(first, self.count)]

    def time(self) -> int:
        if self.random.random() < 0.5:
            return 0
        return int(self.life.clock.now()) + self.random.choice([1, 20, 100, 400, self.random.randint(1, 1_500)])

    def payload(self, name: str) -> bytes:
        return name.encode() + b"|" + b"." * self.random.choice([0, 10, 300])

    def one(self) -> None:
        (name,), deliver_at = self.names(1), self.time()
        self.life.tell("publishing", [name], deliver_at)
        position = self.life.topic.publish(self.payload(name), deliver_at=deliver_at or None)
        self.life.tell("published", [[*position, -1, name, deliver_at]])

    def window(self) -> None:
        pendings = []
        for name in self.names(12):
            deliver_at = self.time()
            self.life.tell("publishing", [name], deliver_at)
            pending = self.life.topic.publish_async(self.payload(name), deliver_at=deliver_at or None)
            pendings.append((pending, name, deliver_at))
        for pending, name, deliver_at in pendings:
            self.life.tell("published", [[*pending.result(), -1, name, deliver_at]])

    def many(self) -> None:
        names, deliver_at = self.names(30), self.time()
        self.life.tell("publishing", names, deliver_at)
        positions = self.life.topic.publish_many(map(self.payload, names), deliver_at=deliver_at or None)
        placed = [[*position, -1, name, deliver_at] for position, name in zip(positions, names, strict=True)]
        self.life.tell("published", placed)

    def batch(self) -> None:
        names, deliver_at = self.names(6), self.time()
        self.life.tell("publishing", names, deliver_at)
        position = self.life.topic.publish_batch(map(self.payload, names), deliver_at=deliver_at or None)
        self.life.tell("published", [[*position, index, name, deliver_at] for index, name in enumerate(names)])


def ids_of(messages: list[Any]) -> list[list[int]]:
    return [[*message.position, message.batch_index] for message in messages]


class Consuming:
    def __init__(self, life: Life, name: str, number: int) -> None:
        self.life = life
        self.name = name
        self.sub = life.subs[name]
        self.random = life.random("consumer", name, number)
        self.consumer = self.sub.consumer()
        self.held: list[Any] = []
        self.pendings: deque[tuple[Any, list[list[int]]]] = deque()

    def step(self) -> None:
        self.receive()
        self.answer()
        while self.pendings and (len(self.pendings) > 5 or self.pendings[0][0].done()):
            self.confirm()
        if self.random.random() < 0.02:
            self.life.tell("giving_back", self.name, ids_of(self.held), None)
            self.held = []
            self.consumer.close()
            self.consumer = self.sub.consumer()

    def receive(self) -> None:
        most = self.random.choice([1, 3, 10, 50])
        began = time.monotonic_ns()
        messages = self.consumer.receive(most, timeout=0.03)
        now = self.life.clock.now()
        if messages:
            shown = [
                [*message.position, message.batch_index, message.payload.partition(b"|")[0].decode()]
                for message in messages
            ]
            self.life.tell("received", began, now, self.name, shown)
            self.held += messages

    def answer(self) -> None:
        """Most is acknowledged, some given back, and some kept for the next time; one forgets some."""
        acks, nacks, kept = [], [], []
        for message in self.held:
            chance = self.random.random()
            if chance < NACKED[self.name]:
                nacks.append(message)
            elif chance < 0.9:
                acks.append(message)
            elif self.name != "deadline":
                kept.append(message)
        self.held = kept
        if nacks:
            self.give_back(nacks)
        if acks and self.name == "exclusive" and self.random.random() < 0.03:
            self.ack_up_to(min(acks, key=lambda message: message.position))
        elif acks:
            self.ack(acks)

    def ack(self, messages: list[Any]) -> None:
        ids = ids_of(messages)
        self.life.tell("acking", self.name, ids)
        if self.random.random() < 0.7:
            self.pendings.append((self.sub.ack_many(messages), ids))
        else:
            self.pendings += [(self.sub.ack(message), [one]) for message, one in zip(messages, ids, strict=True)]
        if self.random.random() < 0.3:
            while self.pendings:
                self.confirm()

    def confirm(self) -> None:
        pending, ids = self.pendings.popleft()
        pending.result()
        self.life.tell("acked", self.name, ids)

    def ack_up_to(self, message: Any) -> None:
        """All before it, too; of its own entry at least it itself."""
        before = [*message.position]
        self.life.tell("acking_up_to", self.name, before)
        self.sub.ack_cumulative(message.position).result()
        self.life.tell("acked_up_to", self.name, before)

    def give_back(self, messages: list[Any]) -> None:
        delay = self.random.choice([None, None, SHORTEST_NACK, 700])
        wait = SUBSCRIPTIONS[self.name].nack_delay if delay is None else delay
        until = self.life.clock.now() + wait
        ids = ids_of(messages)
        self.life.tell("giving_back", self.name, ids, until)
        self.sub.nack_many(messages, delay=delay)


class Manager:
    """What is neither publishing nor consuming."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.random = life.random("manager")

    def step(self) -> None:
        steps = [self.reschedule] * 6 + [self.cancel] * 2 + [self.redeliver_all, self.trim, self.look]
        self.random.choice(steps)()
        self.life.over.wait(self.random.random() * 0.04)

    def choose(self) -> tuple[str, Any]:
        name = self.random.choice(list(SUBSCRIPTIONS))
        waiting = self.life.subs[name].peek_delayed(limit=30)
        return name, self.random.choice(waiting)[1] if waiting else None

    def reschedule(self) -> None:
        name, position = self.choose()
        if position is not None:
            time = self.life.clock.now() + self.random.choice([0, 1, 50, 300, 1_500])
            self.life.tell("rescheduling", name, position, time)
            answer = self.life.subs[name].reschedule(position, deliver_at=time)
            self.life.tell("rescheduled", name, position, time, answer)

    def cancel(self) -> None:
        name, position = self.choose()
        if position is not None:
            self.life.tell("acking", name, [[*position, -1]])
            self.life.subs[name].cancel(position).result()
            self.life.tell("acked", name, [[*position, -1]])

    def redeliver_all(self) -> None:
        name = self.random.choice(["exclusive", "deadline"])
        self.life.tell("giving_back", name, [], None)
        self.life.subs[name].redeliver_all()

    def trim(self) -> None:
        self.life.topic.trim()

    def look(self) -> None:
        for sub in self.life.subs.values():
            stats = sub.stats
            assert min(stats.backlog, stats.delayed, stats.out, stats.waiting, stats.nacked) >= 0, stats


def main() -> None:
    mouth = Mouth()
    logging.getLogger("bookstand").addHandler(Warnings(mouth))
    life = None
    mouth.say(0, "ready", time.monotonic_ns())
    for line in sys.stdin:
        command = json.loads(line)
        if command == "leave":
            if life is not None:
                life.leave()
        else:
            if life is not None:
                life.runner.join()
            life = Life(mouth, command)
    if life is not None:
        life.leave()


if __name__ == "__main__":
    main()
