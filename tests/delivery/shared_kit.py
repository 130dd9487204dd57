"""A topic with one index and several subscriptions, each with a cursor of its own and a simple dispatcher."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.tracker.bucket.key import read_properties
from bookstand.delivery.tracker.bucket.rebuild import deliver_at_of
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.shared_index import BUILDER, SharedDelayedIndex, SubscriptionView
from bookstand.storage.format.position import EARLIEST, LATEST, Position
from tests.delivery.bucket_kit import CURSOR, MEMORY, TOPIC, config_of
from tests.delivery.kit import Bench, Still

PER_LEDGER = 5


class Subscriber:
    """``given`` is how often each position was delivered to it, in all its life; ``excused`` is how often it may be
    once more, for it was not acknowledged, or that was lost."""

    def __init__(self, desk: Desk, name: str) -> None:
        self.desk = desk
        self.name = name
        self.given: Counter[Position] = Counter()
        self.excused: Counter[Position] = Counter()
        self.unacked: list[Position] = []
        self.woken = 0
        self.tick = desk.ticks.get(name)
        """Its own; None: that of the index."""
        self.begin()

    def begin(self) -> None:
        self.excused.update(self.unacked)
        self.unacked = []
        self.cursor = Cursor.open(self.desk.topic, self.name, CURSOR)
        self.attach()

    def attach(self) -> None:
        self.view = self.desk.index.view(
            self.name,
            self.wake,
            mark_delete=lambda: self.cursor.mark_delete_position,
            read_position=lambda: self.cursor.read_position,
            is_acked=self.cursor.is_acked,
            tick=self.tick,
        )
        self.largest_tick = self.view.tick

    def change_tick(self, tick: int) -> None:
        self.tick = tick
        self.largest_tick = max(tick, self.largest_tick)
        self.view.reset_tick(tick)

    def wake(self) -> None:
        self.woken += 1

    def deliver(self, positions: Iterable[Position]) -> None:
        for position in positions:
            time = self.desk.times[position]
            early = self.desk.early and self.largest_tick
            assert time is None or time <= self.desk.now + early
            self.given[position] += 1
            self.unacked.append(position)

    def read(self, count: int = 100) -> None:
        """One look at the topic."""
        for entry in self.cursor.read(count, self.view.contains_message):
            time = deliver_at_of(entry)
            if time is None or not self.view.add(entry.position, time):
                self.deliver([entry.position])

    def take(self, limit: int | None = None) -> None:
        positions = self.view.pop_due(limit)
        assert limit is None or len(positions) <= limit
        assert [entry.position for entry in self.cursor.replay(positions)] == positions
        self.deliver(positions)
        if self.view.must_rewind:
            self.view.must_rewind = False
            self.excused.update(self.unacked)
            self.cursor.rewind()

    def ack(self, count: int | None = None) -> None:
        acked, self.unacked = self.unacked[:count], [] if count is None else self.unacked[count:]
        self.cursor.ack(acked)

    def run(self) -> None:
        """As far as it goes, all acknowledged."""
        while True:
            before = self.given.total(), self.cursor.read_position
            self.read()
            self.take()
            self.ack()
            if (self.given.total(), self.cursor.read_position) == before and not self.view.has_message_available():
                return

    @property
    def once(self) -> set[Position]:
        """What was delivered to it; nothing twice."""
        assert set(self.given.values()) <= {1}, self.given
        return set(self.given)


class Desk(Still):
    def __init__(
        self,
        names: str = "",
        *,
        config: DelayedDeliveryConfig | None = None,
        start: int = 0,
        per_ledger: int = PER_LEDGER,
        ticks: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(start)
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self._config = config_of(8, 50) if config is None else config
        self._options = options
        self._per_ledger = per_ledger
        self.ticks = ticks or {}
        self.early = 0
        """Whether messages may be early, by the tick of the subscription; strict, none may."""
        self.times: dict[Position, int | None] = {}
        self._open()
        self.subs = {name: Subscriber(self, name) for name in names}

    def _open(self) -> None:
        self.store = bookstand.open(self._folder.name)
        self.topic = self.store.managed_ledger(TOPIC, max_entries_per_ledger=self._per_ledger)
        self._begin()

    def _begin(self) -> None:
        self.index = SharedDelayedIndex(
            self.topic, self._config, clock=self.clock, timer=self.timer, cursor_config=CURSOR, **self._options
        )

    def __getitem__(self, name: str) -> Subscriber:
        return self.subs[name]

    def publish(self, *times: int | None) -> list[Position]:
        entries = [self.topic.framed(b"%d" % number, time) for number, time in enumerate(times)]
        positions = self.topic.append_entries(entries)
        self.times.update(zip(positions, times, strict=True))
        return positions

    def join(self, name: str) -> Subscriber:
        self.subs[name] = Subscriber(self, name)
        return self.subs[name]

    def run(self, *times: int, order: Iterable[str] | None = None) -> None:
        """Everybody runs at these times."""
        for time in times or (self.now,):
            self.run_to(time)
            for name in self.subs if order is None else order:
                self.subs[name].run()

    def restart(self, order: Iterable[str] | None = None) -> None:
        """Everything is closed, and opened again."""
        for sub in self.subs.values():
            sub.view.close()
            sub.cursor.close()
        self.index.close()
        self._begin()
        self._rejoin(order)

    def crash(self, order: Iterable[str] | None = None) -> None:
        """What was not on the disk has gone."""
        self.timer.close()
        self.store.close()
        self._open()
        self._rejoin(order)

    def _rejoin(self, order: Iterable[str] | None) -> None:
        for name in self.subs if order is None else order:
            self.subs[name].begin()

    # -- looking at it -------------------------------------------------------------------------------------------------

    @property
    def published(self) -> set[Position]:
        return set(self.times)

    def builder_properties(self) -> dict[Any, int]:
        with_builder = BUILDER in self.topic.cursor_names()
        return read_properties(self.index._cursor.cursor_properties.items()).buckets if with_builder else {}

    @property
    def snapshots(self) -> list[int]:
        return sorted(BucketSnapshotStorage(self.topic.client).list_snapshots(TOPIC, BUILDER))

    def check_stored(self) -> None:
        known = {bucket.key: bucket.bucket_id for bucket in self.index.tracker.buckets}
        assert self.builder_properties() == known
        assert self.snapshots == sorted(known.values())

    def end(self) -> None:
        self.store.close()
        self._folder.cleanup()


def in_shared_index(bench: Bench, *, tick_time_millis: int = 1000, strict: bool = False) -> SubscriptionView:
    """For the contract suite: the one subscription of an index, which has read whatever the suite adds."""
    folder = tempfile.TemporaryDirectory(dir=MEMORY)
    store = bookstand.open(folder.name)
    config = config_of(3, 10, 2, 3, strict=strict, tick=tick_time_millis)
    index = SharedDelayedIndex(
        store.managed_ledger(TOPIC), config, clock=bench.clock, timer=bench.timer, cursor_config=CURSOR
    )
    bench.own = False
    bench.endings += [index.close, store.close, folder.cleanup]
    return index.view("sub", bench.wake, mark_delete=lambda: EARLIEST, read_position=lambda: LATEST)
