"""A subscription and its consumers against plain dictionaries, whatever happens in whatever order, and also in the
middle of something else, however delayed messages are kept: nothing is lost, nothing early, nothing out twice,
nothing again that was acknowledged, and nobody asks in vain for what could be given."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.subscription.consumer import Consumer
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.storage.format.position import EARLIEST, Position
from tests.delivery.subscription_kit import MEMORY, MODES, Desk, subscription_config, topic_config
from tests.kit import Faults

NACK_DELAY = 700
SHORTEST_NACK = 100
FIRST, AGAIN, OUT, ACKED = "first", "again", "out", "acked"
CONSUMERS = 3
Key = tuple[Position, int]
Mixture = list[tuple[int, bool]]

whoever = st.integers(0, CONSUMERS - 1)
sizes = st.sampled_from([1, 1, 2, 3, 5, 100])
delays = st.one_of(st.just(0), st.integers(1, 60), st.sampled_from([10, 20, 400, 2_000]))
few = st.lists(st.integers(0, 20), max_size=2)
many = st.one_of(few, st.just(list(range(20))))
waits = st.sampled_from([0, 0, 0, 1, 60, 500, 3_000])
bits = st.sampled_from([0, 5, 8, 11])
mixtures = st.lists(st.tuples(st.just(0) | delays, st.booleans()), min_size=1, max_size=12)


@dataclass
class Item:
    """What the model knows of a message: it may come from ``earliest`` on, and has to come from ``latest`` on."""

    payload: bytes
    delayed: bool
    earliest: int
    latest: int
    state: str = FIRST
    count: int | None = 0
    """How often it was given again; None where that is not said."""
    unsure: bool = False
    """Acknowledged, but not durably when everything crashed: comes again, or does not."""
    is_nacked: bool = False
    """To be redelivered at the time of its nack."""
    is_recorded: bool = False
    """It was nacked while nacks were durable: a restart keeps the time of the nack, and its count."""
    noted_until: int = 0
    """Until when a nack of it may be recorded, although it was reset or acknowledged since."""
    soonest: int = 0
    last: int = 0
    """Between them are all the times that it was ever to be delivered at."""

    def __post_init__(self) -> None:
        self.soonest, self.last = self.earliest, self.latest

    def move(self, earliest: int, latest: int) -> None:
        self.earliest, self.latest = earliest, latest
        self.soonest, self.last = min(self.soonest, earliest), max(self.last, latest)


class Consuming(RuleBasedStateMachine):
    """The model, and what happens most: several receive in turns, and acknowledge while others do. So few rules that
    they meet one another."""

    mode = "in memory"
    interrupted = True
    """Whether something can happen while entries are read: then they are read one by one, and else many at a time."""

    @initialize(
        strict=st.booleans(), tick=st.sampled_from([1, 8, 100]), durable=st.booleans(), bits=bits, mixed=mixtures
    )
    def begin(self, strict: bool, tick: int, durable: bool, bits: int, mixed: Mixture) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.settings = {
            "delayed_delivery_tick_time_millis": tick,
            "is_delayed_delivery_deliver_at_time_strict": strict,
            "max_entries_per_ledger": 4,
        }
        self.early, self.late = (0, tick) if strict else (tick, 0)
        self.durable_nacks = durable
        self.nack_bucket = 1 << bits
        self.faults = Faults()
        self.desk = Desk(
            Path(self.folder.name) / "store",
            topic_config(self.mode, **self.settings),
            self.sub_config(durable, bits),
            hooks=self.faults if self.interrupted else None,
        )
        self.consumers: dict[int, Consumer] = {}
        self.items: dict[Key, Item] = {}
        self.out: dict[Key, ReceivedMessage] = {}
        self.holders: dict[Key, int] = {}
        # Acknowledged since everything was last known to be written.
        self.accepted: set[Key] = set()
        self.sizes: dict[Position, int] = {}
        self.last_new: dict[int, Position] = {}
        self.publish(mixed)

    def sub_config(self, durable: bool, bits: int) -> SubscriptionConfig:
        return subscription_config(nack_delay=NACK_DELAY, durable_nacks=durable, negative_ack_precision_bits=bits)

    # -- the model -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.desk.now

    def window(self, delay: int) -> tuple[int, int]:
        time = self.now + delay
        return time - self.early, time + self.late if delay else time

    def names(self, count: int) -> list[bytes]:
        return [b"%d" % number for number in range(len(self.items), len(self.items) + count)]

    def published(self, position: Position, payloads: list[bytes], delay: int, batch: bool = False) -> None:
        assert not self.sizes or position > max(self.sizes)
        self.sizes[position] = len(payloads) if batch else 0
        for index, payload in enumerate(payloads):
            self.items[position, index if batch else -1] = Item(payload, delay > 0, *self.window(delay))

    def of(self, position: Position) -> list[Item]:
        return [item for key, item in self.items.items() if key[0] == position]

    def consumer(self, who: int) -> Consumer:
        if who not in self.consumers:
            self.consumers[who] = self.desk.sub.consumer()
        return self.consumers[who]

    def received(self, message: ReceivedMessage, who: int) -> None:
        key = (message.position, message.batch_index)
        item = self.items[key]
        assert key not in self.out
        assert item.state in (FIRST, AGAIN) or item.unsure
        assert message.payload == item.payload
        assert message.batch_size == self.sizes[message.position]
        if item.unsure:
            event("an ack that was not written is none")
            item.unsure = False
        else:
            assert self.now >= item.earliest
            if item.count is not None:
                assert message.redelivery_count == item.count
            if item.state == FIRST and not item.delayed and item.count == 0:
                assert message.position >= self.last_new.get(who, EARLIEST)
                self.last_new[who] = message.position
        item.state, item.count, item.noted_until, item.is_nacked = OUT, message.redelivery_count, 0, False
        self.out[key] = message
        self.holders[key] = who

    def again(self, key: Key, earliest: int, latest: int, nacked: bool = False) -> None:
        item = self.items[key]
        item.state, item.earliest, item.latest, item.is_nacked = AGAIN, earliest, latest, nacked
        item.count = (item.count or 0) + 1
        if nacked:
            item.noted_until, item.is_recorded = latest, self.durable_nacks

    def acknowledged(self, *keys: Key, durable: bool) -> None:
        for key in keys:
            item = self.items[key]
            self.out.pop(key, None)
            item.state, item.unsure = ACKED, False
        self.accepted.update(keys)
        if durable:
            self.accepted.clear()

    def nothing_is_left(self, of_batches: bool = True) -> None:
        """What is left of a batch may be with another consumer."""
        for key, item in self.items.items():
            if self.sizes[key[0]] and not of_batches:
                continue
            assert item.state not in (FIRST, AGAIN) or item.latest > self.now, (key, item, self.now)

    # -- in and out ----------------------------------------------------------------------------------------------------

    @rule(mixed=mixtures)
    def publish(self, mixed: Mixture) -> None:
        """Some are acknowledged before they came."""
        for delay, unseen in mixed:
            (name,) = self.names(1)
            position = self.desk.topic.publish(name, deliver_after=delay or None)
            self.published(position, [name], delay)
            if unseen:
                self.desk.sub.ack(position).result()
                self.acknowledged((position, -1), durable=True)

    @rule(turns=st.lists(st.tuples(sizes, whoever, many, few, waits), min_size=1, max_size=5))
    def consume_in_turns(self, turns: list[tuple[int, int, list[int], list[int], int]]) -> None:
        for size, who, meanwhile, afterwards, wait in turns:
            self.receive(size, who, self.chosen(meanwhile))
            self.ack_these(self.chosen(afterwards))
            self.desk.pass_time(wait)

    def chosen(self, numbers: list[int]) -> set[Key]:
        out = sorted(self.out)
        return {out[number % len(out)] for number in numbers} if out else set()

    def ack_these(self, keys: set[Key]) -> None:
        self.desk.sub.ack_many([self.out[key] for key in keys])
        self.acknowledged(*keys, durable=False)

    def receive(self, size: int, who: int, meanwhile: set[Key]) -> None:
        """``meanwhile``: which of those that are out are acknowledged while entries are being read."""
        if meanwhile:
            self.faults.on_entry = partial(self.while_an_entry_is_read, meanwhile)
        part = self.consumer(who).receive(size, timeout=0)
        self.faults.mend()
        assert len(part) <= size
        for message in part:
            self.received(message, who)
        if not part:
            self.nothing_is_left(of_batches=len(self.consumers) == 1)

    def while_an_entry_is_read(
        self, keys: set[Key], ledger_id: int, entry_id: int, stored: bytes | None
    ) -> bytes | None:
        self.faults.mend()
        event("acknowledged while others are read")
        self.ack_these(keys)
        return stored

    def receive_all(self, who: int) -> None:
        for one in {who, *self.consumers}:
            while part := self.consumer(one).receive(7, timeout=0):
                for message in part:
                    self.received(message, one)
        self.nothing_is_left()

    @precondition(lambda self: getattr(self, "consumers", None))
    @rule(who=whoever)
    def leave(self, who: int) -> None:
        """Whatever it has comes again."""
        if who not in self.consumers:
            return
        self.consumers.pop(who).close()
        for key in [key for key in self.out if self.holders[key] == who]:
            self.again(key, 0, self.now)
            del self.out[key]
        self.last_new.clear()

    # -- back ----------------------------------------------------------------------------------------------------------

    @precondition(lambda self: getattr(self, "out", None))
    @rule(data=st.data(), delay=st.sampled_from([None, 0, 300, 2_000]))
    def nack(self, data: st.DataObject, delay: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.out)))
        self.desk.sub.nack(self.out.pop(key), delay=delay)
        wait = NACK_DELAY if delay is None else delay
        self.again(key, self.now + wait - self.nack_bucket + 1, self.now + max(wait, SHORTEST_NACK), nacked=True)

    def redeliver_all(self) -> None:
        self.desk.sub.redeliver_all()
        for key in self.out:
            self.again(key, 0, self.now)
        self.out.clear()
        self.last_new.clear()

    # -- beginning again -----------------------------------------------------------------------------------------------

    @rule(crash=st.booleans(), mode=st.sampled_from([None, None, *MODES]), bits=bits, durable=st.booleans())
    def restart(self, crash: bool, mode: str | None, bits: int, durable: bool) -> None:
        """With another precision, and with durable nacks or without: recorded nacks keep their times."""
        config = None if mode is None else topic_config(mode, **self.settings)
        sub = self.sub_config(durable, bits)
        if crash:
            self.desk.crash(config, sub)
            for key in self.accepted:
                self.items[key].unsure = True
        else:
            self.desk.restart(config, sub)
        self.durable_nacks, self.nack_bucket = durable, 1 << bits
        for item in self.items.values():
            if not item.is_recorded:
                item.noted_until = 0
            if item.state == ACKED:
                continue
            if item.is_nacked and item.is_recorded:
                event("a nack outlives a restart")
                if item.earliest <= self.now:
                    # Its time may have passed: the log has neither the nack nor the count of a message that is due.
                    item.count = None
                item.earliest = min(item.earliest, item.latest - self.nack_bucket + 1)
                continue
            item.count = None if item.noted_until else 0
            if item.state != FIRST or item.noted_until:
                # What came at an earlier time than its own, which it had been given, has its own again.
                item.state, item.earliest, item.is_nacked = FIRST, 0, False
                item.latest = max(self.now, item.last, item.noted_until)
        self.out.clear()
        self.accepted.clear()
        self.consumers.clear()
        self.last_new.clear()

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def figures(self) -> None:
        if not hasattr(self, "desk"):
            return
        stats = self.desk.sub.stats
        assert stats.out == len(self.out)
        left = {key[0] for key, item in self.items.items() if item.state != ACKED}
        perhaps = {key[0] for key, item in self.items.items() if item.unsure}
        assert len(left) <= stats.backlog <= len(left | perhaps)
        assert not stats.paused

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            with self.folder:
                try:
                    self.run_out()
                finally:
                    self.desk.close()

    def run_out(self) -> None:
        """Everything that is not acknowledged comes, in the end; then there is nothing."""
        self.redeliver_all()
        for millis in (1, 50, 200, 1_000, 5_000):
            self.desk.pass_time(millis)
            self.receive_all(0)
        wanted = {key for key, item in self.items.items() if item.state != ACKED}
        assert self.out.keys() == wanted
        self.desk.sub.ack_many(self.out.values()).result()
        assert self.desk.sub.stats.backlog == 0
        assert self.desk.sub.stats.delayed == 0
        self.desk.restart()
        self.desk.pass_time(10**7)
        assert self.desk.sub.receive(10, timeout=0) == []


class Everything(Consuming):
    interrupted = False

    # -- in and out ----------------------------------------------------------------------------------------------------

    @rule(delay=delays, count=st.integers(1, 5))
    def publish_many(self, delay: int, count: int) -> None:
        names = self.names(count)
        given = self.desk.topic.publish_many(names, deliver_after=delay or None)
        for name, position in zip(names, given, strict=True):
            self.published(position, [name], delay)

    @rule(delay=delays, count=st.integers(1, 4))
    def publish_batch(self, delay: int, count: int) -> None:
        names = self.names(count)
        position = self.desk.topic.publish_batch(names, deliver_after=delay or None)
        self.published(position, names, delay, batch=True)

    @rule(who=whoever)
    def receive_everything(self, who: int) -> None:
        self.receive_all(who)

    @rule(millis=st.one_of(st.integers(1, 30), st.sampled_from([100, 500, 3_000])))
    def time_passes(self, millis: int) -> None:
        self.desk.pass_time(millis)

    # -- back ----------------------------------------------------------------------------------------------------------

    @rule()
    def redeliver_everything(self) -> None:
        self.redeliver_all()

    @precondition(lambda self: getattr(self, "out", None))
    @rule(data=st.data(), wait=st.booleans())
    def ack(self, data: st.DataObject, wait: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.out)))
        pending = self.desk.sub.ack(self.out[key])
        if wait:
            pending.result()
        self.acknowledged(key, durable=wait)

    @precondition(lambda self: getattr(self, "out", None))
    @rule(data=st.data())
    def ack_many(self, data: st.DataObject) -> None:
        keys = data.draw(st.lists(st.sampled_from(sorted(self.out)), min_size=1, unique=True, max_size=8))
        self.desk.sub.ack_many([self.out[key] for key in keys]).result()
        self.acknowledged(*keys, durable=True)

    @precondition(lambda self: getattr(self, "items", None))
    @rule(data=st.data())
    def ack_everything_up_to(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.sizes)))
        if position <= self.desk.sub.cursor.mark_delete_position:
            return
        self.desk.sub.ack_cumulative(position).result()
        self.acknowledged(*(key for key in self.items if key[0] <= position), durable=True)

    # -- other times ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: getattr(self, "items", None))
    @rule(data=st.data(), delay=delays)
    def reschedule(self, data: st.DataObject, delay: int) -> None:
        position = data.draw(st.sampled_from(sorted(self.sizes)))
        answer = self.desk.sub.reschedule(position, deliver_after=delay)
        items = self.of(position)
        if all(item.state == FIRST and item.delayed and self.now < item.earliest for item in items):
            assert answer
        if all((item.state in (OUT, ACKED) and not item.unsure) or not item.delayed for item in items):
            assert not answer
        if answer:
            event("rescheduled")
            for item in items:
                earliest, latest = self.window(delay)
                if item.state == AGAIN:
                    # It comes as a nack, or with the rest of its batch.
                    earliest, latest = min(earliest, item.earliest), max(latest, item.latest)
                item.move(earliest, latest)

    @precondition(lambda self: getattr(self, "items", None))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.sizes)))
        if any(item.state != FIRST or not item.delayed for item in self.of(position)):
            return
        event("cancelled")
        self.desk.sub.cancel(position).result()
        self.acknowledged(*(key for key in self.items if key[0] == position), durable=True)

    # -- beginning again -----------------------------------------------------------------------------------------------

    @precondition(lambda self: getattr(self, "items", None))
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.sizes)))
        self.desk.sub.reset(position)
        self.acknowledged(*(key for key in self.items if key[0] < position), durable=True)
        for key, item in self.items.items():
            if key[0] >= position:
                # Whether it keeps a time that it was given, nobody says.
                item.move(item.soonest, max(item.last, item.latest, item.noted_until))
                item.state, item.count, item.unsure, item.is_nacked = FIRST, None, False, False
        self.out.clear()
        self.last_new.clear()


def _settings() -> Any:
    return settings(
        max_examples=30,
        stateful_step_count=25,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


MACHINES: list[Any] = [
    type(f"{rules.__name__} {mode}", (rules,), {"mode": mode}) for rules in (Consuming, Everything) for mode in MODES
]
for machine in MACHINES:
    machine.TestCase.settings = _settings()
    globals()[f"Test {machine.__name__}".title().replace(" ", "")] = machine.TestCase
