"""Power cuts at every moment of what an index for several subscriptions writes. Whoever begins again where its cursor
stands gets every message that it has not acknowledged, once and not before its time, and no snapshot is left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST
from bookstand.delivery.tracker.bucket.key import read_properties
from bookstand.delivery.tracker.bucket.rebuild import deliver_at_of
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.delivery.tracker.shared_index import BUILDER, SharedDelayedIndex
from bookstand.managed_ledger.message.format import Message
from bookstand.storage.format.position import EARLIEST, Position
from bookstand.testing import every_crash
from tests.delivery.bucket_kit import CURSOR, TOPIC, config_of
from tests.delivery.kit import Still
from tests.delivery.shared_kit import Subscriber

PER_LEDGER = 3
CONFIGS = {
    "merged": config_of(4, 30, 2, 2, policy=TWO_SMALLEST),
    "merged as little as can be": config_of(5, 1000, 3, 2, policy=LEAST_WRITES, tick=10),
    "never merged": config_of(3, 50, -1, -1, strict=False, tick=10),
}
# In the order of the topic: some wait long, some hardly at all, a few not.
TIMES = [None if number % 7 == 3 else 100 + 10 * (7 * number % 31) for number in range(30)]
FIRST = 20
END = 420


class Desk(Still):
    """A topic in a store that is open, its index, and subscriptions; a clock that stands."""

    def __init__(self, store: Any, config: str, now: int = 0, create: bool = True, **options: Any) -> None:
        super().__init__(now)
        self.ticks: dict[str, int] = {}
        self.topic = store.managed_ledger(TOPIC, max_entries_per_ledger=PER_LEDGER, create=create)
        self.config = CONFIGS[config]
        self.early = 0 if self.config.is_delayed_delivery_deliver_at_time_strict else 10
        self.subs: dict[str, Subscriber] = {}
        self.look()
        self.index = SharedDelayedIndex(
            self.topic, self.config, clock=self.clock, timer=self.timer, cursor_config=CURSOR, **options
        )

    def look(self) -> None:
        """What is in the topic: for each message its time, and its number."""
        entries = list(self.topic.entries(EARLIEST))
        self.times = {entry.position: deliver_at_of(entry) for entry in entries}
        self.numbers = {entry.position: int(Message(entry.data).payload()) for entry in entries}

    def join(self, *names: str) -> None:
        for name in names:
            self.subs[name] = Subscriber(self, name)  # type: ignore[arg-type]

    def close(self) -> None:
        for sub in self.subs.values():
            sub.view.close()
            sub.cursor.close()
        self.index.close()

    def check_stored(self) -> None:
        """What the builder's properties name is there, and nothing else."""
        properties = self.index._cursor.cursor_properties
        found = read_properties(properties.items())
        snapshots = BucketSnapshotStorage(self.topic.client).list_snapshots(TOPIC, BUILDER)
        assert not found.malformed
        assert sorted(found.buckets.values()) == sorted(snapshots)
        assert {bucket.key: bucket.bucket_id for bucket in self.index.tracker.buckets} == found.buckets


class Workload:
    def __init__(self, config: str) -> None:
        self.config = config

    def __call__(self, path: str, acknowledge: Callable[[object], None]) -> None:
        with bookstand.open(path) as store:
            topic = store.managed_ledger(TOPIC, max_entries_per_ledger=PER_LEDGER)

            def publish(first: int, end: int) -> None:
                topic.append_entries([topic.framed(b"%d" % number, TIMES[number]) for number in range(first, end)])
                acknowledge(("written", end))

            def join(*names: str) -> None:
                for name in names:
                    desk.join(name)
                    acknowledge(("joined", name))

            def ack(name: str, count: int | None = None) -> None:
                sub = desk.subs[name]
                acked, sub.unacked = sub.unacked[:count], [] if count is None else sub.unacked[count:]
                numbers = [desk.numbers[one] for one in acked]
                acknowledge(("acking", name, desk.now, numbers))
                sub.cursor.ack(acked).result()
                acknowledge(("acked", name, desk.now, numbers))

            publish(0, FIRST)
            desk = Desk(store, self.config, due_log_limit=6)
            join("a", "b")
            desk.subs["a"].read()
            ack("a")
            desk.subs["b"].read(7)
            desk.go_to(150)
            desk.subs["b"].take(3)
            ack("b")
            desk.subs["a"].take()
            ack("a", 2)
            publish(FIRST, len(TIMES))
            desk.look()
            join("late")
            desk.subs["late"].read(12)
            desk.subs["a"].read()
            desk.go_to(200)
            for name in ("a", "late"):
                desk.subs[name].take()
                ack(name)
            # One goes for good, and all that it alone held.
            acknowledge(("leaves", "b"))
            gone = desk.subs.pop("b")
            gone.view.close()
            gone.cursor.delete()
            desk.go_to(250)
            for name in ("late", "a"):
                desk.subs[name].read()
                desk.subs[name].take()
                ack(name)
            desk.index.trim()
            topic.trim_consumed()
            desk.close()
            acknowledge(("closed",))
            desk = Desk(store, self.config, 260, due_log_limit=6)
            desk.join("late", "a")
            desk.subs["late"].read()
            desk.subs["late"].take()
            ack("late")
            desk.go_to(330)
            desk.subs["a"].read()
            desk.subs["a"].take(2)
            ack("a")
            desk.index.trim()
            acknowledge(("trimmed",))
            desk.index.delete()
            acknowledge(("deleted",))


class Check:
    def __init__(self, config: str) -> None:
        self.config = config

    def __call__(self, store: Any, acknowledged: list[Any]) -> None:
        written = max((one[1] for one in acknowledged if one[0] == "written"), default=0)
        if not written:
            return
        joined = {one[1] for one in acknowledged if one[0] == "joined"}
        leaves = {one[1] for one in acknowledged if one[0] == "leaves"}
        now = max((one[2] for one in acknowledged if one[0] == "acking"), default=0)
        acked, acking = (
            {name: {n for one in acknowledged if one[:2] == (kind, name) for n in one[3]} for name in joined}
            for kind in ("acked", "acking")
        )
        desk = Desk(store, self.config, now, create=False)
        # What was cut off is whole or not there at all.
        assert desk.index.tracker.problems == []
        desk.check_stored()
        names = [name for name in desk.topic.cursor_names() if name != BUILDER]
        assert joined - leaves <= set(names) <= joined | {"a", "b", "late"}
        desk.join(*names)
        wanted: dict[str, set[Position]] = {}
        for name, sub in desk.subs.items():
            wanted[name] = {position for position in desk.times if not sub.cursor.is_acked(position)}
            known = {desk.numbers[position] for position in wanted[name]}
            assert not known & acked.get(name, set())
            # What the topic has no more, everybody had.
            if name in joined - leaves:
                assert known >= set(range(written)) - acking[name]
        for time in range(now, END, 25):
            desk.go_to(max(time, desk.now))
            for sub in desk.subs.values():
                # Nothing is acknowledged: the same has to be found here again.
                sub.read()
                sub.take()
        for name, sub in desk.subs.items():
            assert sub.once == wanted[name], name
        if names:
            assert desk.index.tracker.count == 0
            assert desk.index.tracker.buckets == []
        desk.check_stored()
        desk.close()


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS)
def test_power_cuts(config: str, counts: Any) -> None:
    explored = every_crash(Workload(config), Check(config), limit=40, seed=1)
    assert explored.states >= 30
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
    # Where buckets are merged, all of them become part of another before they are emptied.
    assert set(happened) - {"delete"} == {"create", "load"} | ({"merge"} if config.startswith("merged") else set())
    assert config.startswith("merged") or "delete" in happened
