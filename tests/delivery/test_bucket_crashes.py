"""Power cuts at every moment of what a tracker on buckets writes. Who opens the topic again, reads it past what the
tracker knows, and asks when time passes, gets every message that is not acknowledged, and none before its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST
from bookstand.delivery.tracker.bucket.key import BucketLabels, read_properties
from bookstand.delivery.tracker.bucket.rebuild import topic_rebuilder
from bookstand.delivery.tracker.bucket.registry import CursorBucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.errors import NoSuchNodeError
from bookstand.managed_ledger.message.format import Message
from bookstand.storage.format.position import EARLIEST, Position
from bookstand.testing import VirtualClock, every_crash
from bookstand.testing.clock import ManualTimer
from tests.delivery.bucket_kit import CURSOR, SUBSCRIPTION, TOPIC, config_of

PER_LEDGER = 3
CONFIGS = {
    "merged": config_of(4, 30, 2, 2, policy=TWO_SMALLEST),
    "merged as little as can be": config_of(5, 1000, 3, 2, policy=LEAST_WRITES, tick=10),
    "never merged": config_of(3, 50, -1, -1, strict=False, tick=10),
}
# Of messages in the order of the topic: some wait long, some hardly at all.
TIMES = [100 + 10 * (7 * number % 31) for number in range(30)]
END = max(TIMES)


class Dispatcher:
    """Topic, cursor and tracker, and a clock that stands."""

    def __init__(self, store: Any, config: str, now: int = 0, create: bool = True) -> None:
        self.topic = store.managed_ledger(TOPIC, max_entries_per_ledger=PER_LEDGER, create=create)
        self.cursor = Cursor.open(self.topic, SUBSCRIPTION, CURSOR, create=create)
        self.clock = VirtualClock(now)
        self.tracker = BucketDelayedTracker(
            lambda: None,
            CursorBucketRegistry(self.cursor),
            CONFIGS[config],
            rebuild=topic_rebuilder(self.topic),
            clock=self.clock,
            timer=ManualTimer(self.clock),
        )
        self.early = 0 if self.tracker.config.is_delayed_delivery_deliver_at_time_strict else 10

    def read(self) -> list[Position]:
        """What the tracker does not know; what of that is due already is given."""
        given = []
        while entries := self.cursor.read(4, self.tracker.contains_message):
            for entry in entries:
                time = Message(entry.data).metadata.deliver_at_time
                assert time is not None
                if not self.tracker.add(entry.position, time):
                    assert time <= self.clock.now() + self.early
                    given.append(entry.position)
        return given

    def ask(self, now: int, limit: int | None = None) -> list[Position]:
        """What is due then and not acknowledged yet."""
        self.clock.advance((now - self.clock.now()) / 1000)
        entries = self.cursor.replay(self.tracker.pop_due(limit))
        for entry in entries:
            assert (Message(entry.data).metadata.deliver_at_time or 0) <= now + self.early
        return [entry.position for entry in entries]

    def close(self) -> None:
        self.tracker.close()
        self.cursor.close()

    def check_stored(self) -> None:
        found = read_properties(self.cursor.cursor_properties.items())
        snapshots = BucketSnapshotStorage(self.cursor.topic.client).list_snapshots(TOPIC, SUBSCRIPTION)
        assert not found.malformed
        assert sorted(found.buckets.values()) == sorted(snapshots)


class Workload:
    def __init__(self, config: str) -> None:
        self.config = config

    def __call__(self, path: str, acknowledge: Callable[[object], None]) -> None:
        with bookstand.open(path) as store:
            topic = store.managed_ledger(TOPIC, max_entries_per_ledger=PER_LEDGER)
            entries = [topic.framed(b"%d" % number, time) for number, time in enumerate(TIMES)]
            positions = topic.append_entries(entries)
            numbers = {position: number for number, position in enumerate(positions)}
            acknowledge(("written",))

            def ack(now: int, given: Iterable[Position]) -> None:
                given = list(given)
                desk.cursor.ack(given).result()
                acknowledge(("acked", now, [numbers[one] for one in given]))

            desk = Dispatcher(store, self.config)
            acknowledge(("cursor",))
            ack(0, desk.read())
            for number in (3, 17, 18):
                desk.tracker.cancel(positions[number])
            ack(150, desk.ask(150, 3))
            ack(200, desk.ask(200))
            desk.close()
            topic.trim_consumed()
            desk = Dispatcher(store, self.config, 210)
            ack(210, desk.read())
            ack(300, desk.ask(300))
            desk.cursor.mark_delete(positions[12]).result()
            acknowledge(("acked", 300, list(range(13))))
            ack(310, desk.ask(310, 1))
            desk.tracker.clear()
            acknowledge(("cleared", 310))
            desk.cursor.rewind()
            ack(310, desk.read())
            desk.close()
            acknowledge(("closed",))


class Check:
    def __init__(self, config: str) -> None:
        self.config = config

    def __call__(self, store: Any, acknowledged: list[Any]) -> None:
        said = {one[0] for one in acknowledged}
        acked = {number for one in acknowledged if one[0] == "acked" for number in one[2]}
        now = max((one[1] for one in acknowledged if one[0] == "acked"), default=0)
        try:
            desk = Dispatcher(store, self.config, now, create=False)
        except NoSuchNodeError:
            assert "cursor" not in said
            return
        # What was cut off is whole or not there at all: nothing is damaged, nothing is left over.
        assert desk.tracker.problems == []
        desk.check_stored()
        known = {entry.position: int(Message(entry.data).payload()) for entry in desk.topic.entries(EARLIEST)}
        assert set(known.values()) >= set(range(len(TIMES))) - acked or "written" not in said
        wanted = {number for position, number in known.items() if not desk.cursor.is_acked(position)}
        assert not wanted & acked
        given = desk.read()
        for time in range(now + 10, END + 20, 20):
            given += desk.ask(time, 4)
            given += desk.ask(time)
        assert sorted(known[one] for one in given) == sorted(wanted)
        assert desk.tracker.count == 0
        desk.check_stored()
        assert desk.tracker.buckets == []
        desk.close()


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS)
def test_power_cuts(config: str, counts: Any) -> None:
    explored = every_crash(Workload(config), Check(config), limit=80, seed=1)
    assert explored.states > 60
    counts.add("crash_states", explored.states)


@pytest.mark.parametrize("config", CONFIGS)
def test_all_of_it_happens(config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the power cuts would be about nothing."""
    happened: Counter[str] = Counter()
    close = BucketDelayedTracker.close

    def close_and_count(tracker: BucketDelayedTracker) -> None:
        for sample in tracker.samples():
            if sample.labels.get("state") == "succeed" and sample.value:
                happened[sample.labels["type"]] += int(sample.value)
        close(tracker)

    monkeypatch.setattr(BucketDelayedTracker, "close", close_and_count)
    Workload(config)(str(tmp_path / "store"), lambda _: None)
    assert set(happened) == {"create", "load", "delete"} | ({"merge"} if config.startswith("merged") else set())


# -- damage ----------------------------------------------------------------------------------------------------------

BEFORE, AFTER = 90, 330


def damaging(path: str, acknowledge: Callable[[object], None]) -> None:
    """Of some buckets one loses its ledger, and another all of its segments but the first."""
    with bookstand.open(path) as store:
        topic = store.managed_ledger(TOPIC, max_entries_per_ledger=PER_LEDGER)
        topic.append_entries([topic.framed(b"%d" % number, time) for number, time in enumerate(TIMES)])
        desk = Dispatcher(store, "never merged", BEFORE)
        desk.read()
        missing, short = desk.tracker.buckets[1], desk.tracker.buckets[3]
        storage = BucketSnapshotStorage(topic.client)
        whole = store.open_ledger(short.bucket_id, password=b"")
        entries = [entry.data for entry in whole.read(0, 1)]
        cut = storage.create(entries, BucketLabels(short.name, TOPIC, SUBSCRIPTION))
        desk.cursor.change_properties(lambda _, properties: properties.update({short.name: str(cut)}))
        storage.delete(short.bucket_id)
        storage.delete(missing.bucket_id)
        desk.close()
        acknowledge(("damaged",))
        desk = Dispatcher(store, "never merged", BEFORE)
        assert len(desk.tracker.problems) == 1
        acknowledge(("rebuilt", 1))
        desk.ask(AFTER)
        assert len(desk.tracker.problems) == 2
        acknowledge(("rebuilt", 2))
        desk.close()


def check_damaged(store: Any, acknowledged: list[Any]) -> None:
    """What was rebuilt is sealed, or will be at this start; whatever it is, all messages come once, and in time."""
    if ("damaged",) not in acknowledged:
        return
    rebuilt = sum(one[0] == "rebuilt" for one in acknowledged)
    desk = Dispatcher(store, "never merged", BEFORE, create=False)
    assert len(desk.tracker.problems) <= (0 if rebuilt else 1)
    desk.check_stored()
    given = desk.read()
    for time in range(BEFORE + 10, END + 20, 20):
        given += desk.ask(time)
    assert len(desk.tracker.problems) <= 2 - rebuilt
    assert sorted(given) == [entry.position for entry in desk.topic.entries(EARLIEST)]
    assert desk.tracker.count == 0
    desk.check_stored()
    desk.close()


@pytest.mark.slow
def test_power_cuts_when_what_is_damaged_is_rebuilt(counts: Any) -> None:
    explored = every_crash(damaging, check_damaged, limit=60, seed=1)
    assert explored.states >= 50
    counts.add("crash_states", explored.states)
