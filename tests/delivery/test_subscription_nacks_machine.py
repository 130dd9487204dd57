"""Nacks of messages and of whole batches, acknowledgments, time, restarts and other settings in any order, against
plain dictionaries: each message returns at the time of its last nack, never late, and early by less than the
precision."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.storage.format.position import Position
from tests.delivery.subscription_kit import MEMORY, Desk, subscription_config, topic_config

SHORTEST = 100
FRACTION = 0.05
Key = tuple[Position, int]

delays = st.sampled_from([0, 150, 1_000, 1_000, 1_500, 2_500, 6_000])
# Bits, or None for a relative precision.
precisions = st.sampled_from([0, 0, 6, 11, None])
numbers = st.integers(0, 50)


@dataclass
class Nack:
    """A nack that ends between two moments. ``is_recorded`` is None where it replaced one that may have been."""

    earliest: int
    latest: int
    is_recorded: bool | None


@dataclass
class Item:
    is_acked: bool = False
    is_out: bool = False
    is_due: bool = False
    nack: Nack | None = None
    count: int = 0


@dataclass
class Entry:
    """``count`` is None where that of its messages is not predicted."""

    items: dict[int, Item] = field(default_factory=dict)
    nack: Nack | None = None
    count: int | None = 0


class NackingMachine(RuleBasedStateMachine):
    @initialize(bits=precisions, durable=st.booleans(), sizes=st.lists(st.integers(0, 20), min_size=2, max_size=4))
    def begin(self, bits: int | None, durable: bool, sizes: list[int]) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.bits, self.durable = bits, durable
        self.desk = Desk(Path(self.folder.name) / "store", topic_config(), self.config())
        self.entries: dict[Position, Entry] = {}
        self.messages: dict[Key, ReceivedMessage] = {}
        for size in sizes:
            names = [b"%d" % number for number in range(max(size, 1))]
            position = self.desk.topic.publish_batch(names) if size else self.desk.topic.publish(names[0])
            items = {index: Item() for index in range(size)} or {-1: Item()}
            self.entries[position] = Entry(items)
        self.drain()

    def config(self) -> SubscriptionConfig:
        precision: dict[str, Any] = {"negative_ack_precision_bits": self.bits}
        if self.bits is None:
            precision = {"negative_ack_relative_precision": FRACTION}
        return subscription_config(durable_nacks=self.durable, **precision)

    # -- the model -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.desk.now

    def width(self, wait: int) -> float:
        return FRACTION * wait if self.bits is None else (1 << self.bits) - 1

    def nack_for(self, delay: int, *replaced: Nack | None) -> Nack:
        latest = self.now + max(delay, SHORTEST)
        is_recorded = self.durable or (None if any(replaced) else False)
        return Nack(int(latest - self.width(max(delay, SHORTEST))), latest, is_recorded)

    def chosen(self, number: int) -> Key:
        keys = sorted(self.messages)
        return keys[number % len(keys)]

    def item(self, key: Key) -> Item:
        return self.entries[key[0]].items[key[1]]

    def drain(self) -> None:
        self.is_right, now = False, self.now
        for entry in self.entries.values():
            if entry.nack is not None and entry.nack.latest <= now:
                self.ended(entry)
        for message in self.desk.drain():
            entry = self.entries[message.position]
            item = entry.items[message.batch_index]
            assert not item.is_acked
            assert not item.is_out
            if item.nack is not None:
                assert item.nack.earliest <= now
                item.nack = None
                item.count += 1
            elif entry.nack is not None and not item.is_due:
                assert entry.nack.earliest <= now
                self.ended(entry)
            if entry.count is not None:
                assert message.redelivery_count == item.count + entry.count
            item.is_out, item.is_due = True, False
            self.messages[message.position, message.batch_index] = message
        for entry in self.entries.values():
            for item in entry.items.values():
                if item.is_acked:
                    continue
                assert item.nack is None or item.nack.latest > now, (item, now)
                assert item.is_out or item.nack is not None or entry.nack is not None
        self.is_right = True

    def ended(self, entry: Entry) -> None:
        """The nack of the whole entry; it may have ended before one could see it."""
        entry.nack = None
        # A message that returns together with its entry counts once.
        is_together = any(item.nack is not None and item.nack.earliest <= self.now for item in entry.items.values())
        entry.count = None if entry.count is None or is_together or self.width(1) else entry.count + 1

    # -- what happens --------------------------------------------------------------------------------------------------

    @rule(which=st.lists(numbers, min_size=1, max_size=8), delay=delays)
    def nack(self, which: list[int], delay: int) -> None:
        """Some may be nacked already."""
        keys = {self.chosen(number) for number in which}
        self.desk.sub.nack_many([self.messages[key] for key in keys], delay=delay)
        # One call is recorded as a whole.
        replaced = [nack for key in keys for nack in (self.item(key).nack, self.entries[key[0]].nack)]
        for key in keys:
            if self.item(key).nack is not None:
                event("nacked again")
            item, entry = self.item(key), self.entries[key[0]]
            if not all(one.is_acked for one in entry.items.values()):
                item.nack, item.is_out = self.nack_for(delay, *replaced), False

    @rule(which=numbers, delay=delays)
    def nack_whole(self, which: int, delay: int) -> None:
        position = self.chosen(which)[0]
        entry = self.entries[position]
        self.desk.sub.nack(position, delay=delay)
        if all(item.is_acked for item in entry.items.values()):
            return
        if -1 in entry.items:
            item = entry.items[-1]
            item.nack, item.is_out = self.nack_for(delay, item.nack), False
            return
        entry.nack = self.nack_for(delay, entry.nack, *(item.nack for item in entry.items.values()))
        for item in entry.items.values():
            item.nack, item.is_out = None, False

    @rule(which=numbers)
    def ack(self, which: int) -> None:
        """In flight, or nacked."""
        key = self.chosen(which)
        self.desk.sub.ack(self.messages[key]).result()
        self.item(key).is_acked = True

    @rule(millis=st.one_of(st.integers(1, 120), st.sampled_from([500, 1_000, 2_500])))
    def time_passes(self, millis: int) -> None:
        self.desk.pass_time(millis)
        self.drain()

    @rule(crash=st.booleans(), bits=precisions, durable=st.booleans())
    def restart(self, crash: bool, bits: int | None, durable: bool) -> None:
        self.bits, self.durable = bits, durable
        (self.desk.crash if crash else self.desk.restart)(sub=self.config())
        for entry in self.entries.values():
            kept = [nack for nack in (entry.nack, *(item.nack for item in entry.items.values())) if nack is not None]
            # What is recorded of counts depends on what is nacked: the entry, or its messages.
            if entry.count or any(nack.is_recorded is None for nack in kept):
                entry.count = None
            for nack in kept:
                if nack.is_recorded:
                    event("a nack outlives a restart")
                    nack.earliest = min(nack.earliest, int(nack.latest - self.width(nack.latest - self.now)))
                elif nack.is_recorded is None:
                    nack.earliest = 0
            if entry.nack is not None and entry.nack.is_recorded is False:
                entry.nack = None
            for item in entry.items.values():
                item.is_out = False
                if item.nack is None or item.nack.is_recorded is False:
                    item.nack, item.count = None, 0
        self.drain()

    @precondition(lambda self: getattr(self, "messages", None))
    @rule()
    def redeliver_all(self) -> None:
        self.desk.sub.redeliver_all()
        for entry in self.entries.values():
            for item in entry.items.values():
                if item.is_out and not item.is_acked:
                    item.is_out, item.is_due, item.count = False, True, item.count + 1
        self.drain()

    def teardown(self) -> None:
        if not hasattr(self, "desk"):
            return
        with self.folder:
            try:
                if self.is_right:
                    self.run_out()
            finally:
                self.desk.close()

    def run_out(self) -> None:
        self.desk.pass_time(10_000)
        self.drain()
        left = {key for key in self.messages if not self.item(key).is_acked}
        assert all(self.item(key).is_out for key in left)
        assert self.desk.sub.stats.nacked == 0
        self.desk.sub.ack_many([self.messages[key] for key in left]).result()
        assert self.desk.sub.stats.backlog == 0


TestNacking = NackingMachine.TestCase
TestNacking.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
