"""Random subscriptions at their cursor's size limit: a consumer that acknowledges every message drains the backlog.

A case is one subscription with a plan: its configuration, steps that lead to some state, mostly a paused one, and a way
to drain the backlog. Each case checks:

- *stuck*: the backlog is drained from any state, with restarts and crashes. Time passes while nothing is delivered.
- *lost*: every message was delivered, or acknowledged by its position.
- *early*: no delayed message is delivered before its time, and no acknowledged message is redelivered.
- *bound*: during a pause nothing above the highest acknowledged position is dispatched except the lowest message. That
  position rises only to messages that were in flight when the pause began, or to the lowest message. In the old form
  the number of ranges stays within its limit, or within what the messages in flight when the pause began can add.
- *resume*: acknowledging the lowest ``entries_to_resume`` entries ends the pause.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.delivery.subscription.subscription import ReceivedMessage
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.errors import BookstandError
from bookstand.storage.format.position import Position
from bookstand.testing import VirtualClock
from tests.delivery.subscription_kit import MEMORY, MODES, START, topic_config
from tests.soak.kinds import Done, Kind

LIMIT = 1 << 10
LONGEST_DELAY = 5_000
PATIENCE = 60
"""Seconds of the store's clock without a delivery after which a subscription is stuck."""
FORMS = ("pages", "long arrays", "ranges")
CASES = 25
"""Number of cases in a round, which share a store."""

COUNTED = ("stuck", "lost", "early", "bound", "resume", "subscriptions", "paused", "messages")

Id = tuple[int, int, int]
Step = tuple[str, int, int]
"""Action, its size, and the seed of its random choices."""

DOINGS = ("publish", "receive", "ack", "ack", "nack", "pass", "flush", "restart", "crash", "give back", "ack unseen")


@dataclass(frozen=True)
class Plan:
    mode: str
    kind: str
    form: str
    per_ledger: int
    margin: int
    """Bytes of the limit that properties leave free; if it is not positive, properties alone reach the limit."""
    most_ranges: int
    most_batches: int
    most_inline: int
    max_unacked: int
    consumers: int
    steps: Sequence[Step]
    begin: str
    """First step of draining: the fate of the messages in flight."""
    most: int
    seed: int
    waits: bool
    """The draining consumer waits for each acknowledgment to be durable."""
    restarts: int
    """Number of times the subscription is reopened while it is drained."""
    resumes: bool
    """Before draining, ``entries_to_resume`` entries are acknowledged and the pause has to end."""


BEGINS = ("restart", "crash", "give back", "acknowledge late")


def random_plan(chance: random.Random) -> Plan:
    count = chance.randrange(3, 12)
    steps: list[Step] = [("publish", chance.randrange(5, 60), chance.randrange(1 << 16)), ("receive", 100, 0)]
    if chance.random() < 0.7:
        steps.append(("ack", chance.randrange(10, 80), chance.randrange(1 << 16)))
    steps += [(chance.choice(DOINGS), chance.randrange(1, 60), chance.randrange(1 << 16)) for _ in range(count)]
    return Plan(
        mode=chance.choice(list(MODES)),
        kind=chance.choice(["shared", "shared", "exclusive"]),
        form=chance.choice(["pages", *FORMS]),
        per_ledger=chance.choice([2, 7, 1_000]),
        margin=chance.choice([-1, 20, 60, 90, 110, 130, 160, 300]),
        most_ranges=chance.choice([1, 2, 4, 10_000]),
        most_batches=chance.choice([0, 1, 3, 10_000]),
        most_inline=chance.choice([0, 2, 1_000]),
        max_unacked=chance.choice([3, 50_000, 50_000]),
        consumers=chance.choice([1, 2]),
        steps=tuple(steps),
        begin=chance.choice(BEGINS),
        most=chance.choice([1, 3, 100]),
        seed=chance.randrange(1 << 16),
        waits=chance.random() < 0.7,
        restarts=chance.choice([0, 0, 1, 3]),
        resumes=chance.random() < 0.3,
    )


class Bench:
    """Store shared by cases, with its clock."""

    def __init__(self, folder: str) -> None:
        self.path = str(Path(folder, "store"))
        self.clock = VirtualClock(START)
        self.store = bookstand.open(self.path, clock=self.clock)
        self._given_up: list[Any] = []
        self.cases = 0

    def crash(self) -> None:
        """Take the topic over from a second store, so that unwritten acknowledgments are lost."""
        self._given_up.append(self.store)
        self.store = bookstand.open(self.path, clock=self.clock)

    def close(self) -> None:
        for store in [*self._given_up, self.store]:
            with suppress(BookstandError):
                store.close()


@contextmanager
def bench() -> Iterator[Bench]:
    folder = tempfile.mkdtemp(prefix="bookstand-liveness-", dir=MEMORY)
    made = Bench(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


class Case:
    def __init__(self, bench: Bench, plan: Plan) -> None:
        bench.cases += 1
        self.bench = bench
        self.plan = plan
        self.clock = bench.clock
        self.name = f"persistent://public/default/t{bench.cases}"
        paged = plan.form == "pages"
        cursor = CursorConfig(
            flush_interval=1e9,
            max_per_cursor_metadata_size_in_bytes=LIMIT,
            enable_lru_cache_max_unacked_ranges=paged,
            persist_as_long_array=plan.form == "long arrays",
            max_unacked_ranges_to_persist=plan.most_ranges,
            max_batch_deleted_index_to_persist=plan.most_batches,
            max_unacked_ranges_in_metadata_store=plan.most_inline,
        )
        self.config = SubscriptionConfig(
            type=plan.kind, cursor=cursor, nack_delay=300, max_unacked_messages=plan.max_unacked
        )
        self.paged = paged
        self.times: dict[Id, int] = {}
        """Delivery time of each published message."""
        self.entries: dict[Position, list[Id]] = {}
        self.acked: set[Id] = set()
        self.durable: set[Id] = set()
        self.seen: set[Id] = set()
        self.held: dict[Id, ReceivedMessage] = {}
        self.problems: list[str] = []
        self.was_paused = False
        self.pauses = 0
        self._pause_began: tuple[Position, int, int] | None = None
        self._out_then: set[Position] = set()
        self._turn = 0
        self._open()
        self.sub.cursor.put_property("p" * (LIMIT - plan.margin - 10), 1)
        self.sub.cursor.flush()

    def _open(self) -> None:
        self.topic = self.bench.store.topic(
            self.name, topic_config(self.plan.mode, max_entries_per_ledger=self.plan.per_ledger)
        )
        self.sub = self.topic.subscription("s", self.config)
        shared = self.plan.kind == "shared" and self.plan.consumers == 2
        self.consumers = [self.sub.consumer(), self.sub.consumer()] if shared else [self.sub]

    def problem(self, what: str) -> None:
        self.problems.append(f"{what} (case {self.name}, {self.plan})")

    # -- the model -----------------------------------------------------------------------------------------------------

    @property
    def first_open(self) -> Position | None:
        return next((one for one, ids in self.entries.items() if not self.acked.issuperset(ids)), None)

    @property
    def highest_acked(self) -> Position:
        return max((Position(*one[:2]) for one in self.acked), default=Position(-1, -1))

    @property
    def ceiling(self) -> Position:
        first = self.first_open
        return self.highest_acked if first is None else max(self.highest_acked, first)

    def look(self) -> None:
        """Track the begin and end of pauses, and check the bound."""
        if not self.sub.cursor.paused:
            self._pause_began = None
            return
        ranges, batches = len(self.sub.cursor.acked_ranges()), len(self.sub.cursor.partial_batches())
        if self._pause_began is None:
            self.pauses += 1
            out = self.sub._states.unacked.all()
            self._out_then = {Position(*one[:2]) for one in out}
            highest = max(self._out_then | {self.highest_acked})
            self._pause_began = (
                highest,
                max(self.plan.most_ranges, ranges + len(out)),
                max(self.plan.most_batches, batches + len(out)) + 1,
            )
        highest, most_ranges, most_batches = self._pause_began
        first = self.first_open
        if first is not None and self.highest_acked > max(highest, first):
            self.problem(f"bound: {self.highest_acked} is acknowledged above {highest}")
        if not self.paged and (ranges > most_ranges or batches > most_batches):
            self.problem(f"bound: {ranges} ranges and {batches} batches, at most {most_ranges} and {most_batches}")

    # -- doing ---------------------------------------------------------------------------------------------------------

    def publish(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        delayed = chance.choice([0.0, 0.0, 0.3, 0.6])
        batched = chance.choice([0.0, 0.0, 0.3])
        now = self.clock.now()
        plain: list[int | None] = []

        def publish_plain() -> None:
            positions = self.topic.publish_many([b"."] * len(plain), deliver_at=list(plain)) if plain else []
            for position, time in zip(positions, plain, strict=True):
                self.entries[position] = [(*position, -1)]
                self.times[*position, -1] = time or 0
            plain.clear()

        for _ in range(count):
            time = now + chance.randrange(1, LONGEST_DELAY) if chance.random() < delayed else None
            if chance.random() >= batched:
                plain.append(time)
                continue
            publish_plain()
            size = chance.randrange(2, 5)
            position = self.topic.publish_batch([b"."] * size, deliver_at=time)
            self.entries[position] = [(*position, index) for index in range(size)]
            self.times |= dict.fromkeys(self.entries[position], time or 0)
        publish_plain()

    def receive(self, most: int) -> list[ReceivedMessage]:
        self.look()
        paused, ceiling = self.sub.cursor.paused, self.ceiling
        consumer = self.consumers[self._turn % len(self.consumers)]
        self._turn += 1
        found = consumer.receive(most, timeout=0)
        for message in found:
            id_ = (*message.position, message.batch_index)
            if self.times[id_] > self.clock.now():
                self.problem(f"early: {id_} at {self.clock.now()}, not before {self.times[id_]}")
            if id_ in self.acked:
                self.problem(f"early: {id_} is acknowledged and comes again")
            if id_ in self.held and self.plan.kind == "shared":
                # An exclusive subscription redelivers all messages in flight along with any one of them.
                self.problem(f"early: {id_} is out and comes again")
            if paused and message.position > ceiling and message.position not in self._out_then:
                self.problem(f"bound: {id_} goes out during a pause, above {ceiling}")
            self.seen.add(id_)
            self.held[id_] = message
        return found

    def ack(self, messages: Sequence[ReceivedMessage], durably: bool) -> None:
        if not messages:
            return
        ids = [(*message.position, message.batch_index) for message in messages]
        pending = self.sub.ack_many(messages)
        self.acked.update(ids)
        for id_ in ids:
            self.held.pop(id_, None)
        if durably:
            pending.result()
            self.durable = set(self.acked)
        self.look()

    def some_held(self, percent: int, seed: int) -> list[ReceivedMessage]:
        chance = random.Random(seed)
        held = [self.held[id_] for id_ in sorted(self.held)]
        return [message for message in held if chance.random() * 60 < percent]

    def step(self, what: str, much: int, seed: int) -> None:
        if what == "publish":
            self.publish(much, seed)
        elif what == "receive":
            self.receive(much)
        elif what == "ack":
            self.ack(self.some_held(much, seed), durably=seed % 3 > 0)
        elif what == "nack":
            some = self.some_held(much, seed)
            self.sub.nack_many(some, delay=seed % 1_000)
            for message in some:
                del self.held[*message.position, message.batch_index]
        elif what == "pass":
            self.clock.advance(much / 20)
        elif what == "flush":
            self.flush()
        elif what == "give back":
            self.sub.redeliver_all()
            self.held.clear()
        elif what == "ack unseen":
            self.ack_unseen(seed)
        else:
            self.open_again(crash=what == "crash")
        self.look()

    def flush(self) -> None:
        self.sub.cursor.flush()
        self.durable = set(self.acked)

    def ack_unseen(self, seed: int) -> None:
        """Acknowledge a random entry by its position, in any state."""
        if self.entries:
            position = random.Random(seed).choice(list(self.entries))
            self.sub.ack(position).result()
            self.acked.update(self.entries[position])
            self.seen.update(self.entries[position])
            self.durable = set(self.acked)
            for id_ in self.entries[position]:
                self.held.pop(id_, None)
            # The bound is on dispatch; this acknowledgment may lie anywhere.
            self._pause_began = None

    def open_again(self, crash: bool) -> None:
        if crash:
            self.bench.crash()
        else:
            self.topic.close()
            self.durable = set(self.acked)
        self._open()
        self.held.clear()
        self._pause_began = None
        self._out_then = set()
        cursor = self.sub.cursor
        stored = {
            id_
            for position, ids in self.entries.items()
            for id_ in ids
            if cursor.is_acked(position) or (id_[2] >= 0 and id_[2] not in cursor.unacked_of_batch(position, len(ids)))
        }
        if not stored <= self.acked:
            self.problem(f"lost: {sorted(stored - self.acked)} were not acknowledged")
        if self.paged and not self.durable <= stored:
            self.problem(f"lost acknowledgments: {sorted(self.durable - stored)}")
        self.acked, self.durable = stored, set(stored)

    # -- draining ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        plan = self.plan
        chance = random.Random(plan.seed)
        if plan.begin == "acknowledge late":
            # In descending order, so that each acknowledgment leaves holes below it.
            late = [self.held[id_] for id_ in sorted(self.held, reverse=True)]
            for message in late[:20]:
                self.ack([message], durably=False)
            self.ack(late[20:], durably=True)
        else:
            self.step(plan.begin, 0, 0)
        self.flush()
        self.look()
        if plan.resumes:
            self.resume()
        restarts = plan.restarts
        idle = 0
        while idle < PATIENCE:
            some = self.receive(plan.most)
            if some:
                idle = 0
                if chance.random() < 0.5:
                    chance.shuffle(some)
                    for message in some[1:]:
                        self.ack([message], durably=plan.waits)
                    some = some[:1]
                self.ack(some, durably=plan.waits)
            elif not self.sub.backlog:
                break
            else:
                idle += 1
                self.clock.advance(1)
            if restarts and chance.random() < 0.2:
                restarts -= 1
                self.open_again(crash=chance.random() < 0.3)
        self.finish()

    def resume(self) -> None:
        """Acknowledge the lowest ``entries_to_resume`` entries and check that the pause ends."""
        count = self.sub.stats.entries_to_resume
        if count is None:
            if self.plan.margin > 30:
                self.problem("resume: no acknowledgment ends the pause, although properties leave room")
            return
        lowest = [position for position, ids in self.entries.items() if not self.acked.issuperset(ids)][:count]
        self.sub.ack_many(lowest).result()
        for position in lowest:
            self.acked.update(self.entries[position])
            self.seen.update(self.entries[position])
            for id_ in self.entries[position]:
                self.held.pop(id_, None)
        self.flush()
        if self.sub.stats.paused:
            self.problem(f"resume: {count} entries are acknowledged, {len(lowest)} were there, and {self.sub.stats}")
        self._pause_began = None

    def finish(self) -> None:
        self.flush()
        stats = self.sub.stats
        if stats.backlog or self.first_open is not None:
            self.problem(f"stuck at {self.first_open}: {stats}")
        elif not self.seen.issuperset(self.times):
            self.problem(f"lost: {sorted(self.times.keys() - self.seen)}")
        elif stats.paused is not (self.sub.cursor.cursor_metadata_size_in_bytes >= LIMIT):
            self.problem(f"all is acknowledged, and {stats}")
        self.topic.close()


def run(bench: Bench, plan: Plan) -> Case:
    case = Case(bench, plan)
    for step in plan.steps:
        case.step(*step)
    case.drain()
    return case


def one_round(seed: int, cases: int = CASES) -> Done:
    chance = random.Random(seed)
    problems: list[str] = []
    counted: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
    with bench() as made:
        for _ in range(cases):
            plan = random_plan(chance)
            try:
                case = run(made, plan)
            except Exception as error:
                problems.append(f"{error!r}: {plan}")
                continue
            problems += case.problems
            counted.update(one.partition(":")[0].partition(" ")[0] for one in case.problems)
            counted["subscriptions"] += 1
            counted["paused"] += case.pauses > 0
            counted["messages"] += len(case.times)
    return Done(cases, problems[:20], counted)


KIND = Kind(one_round)
