"""The tracker on buckets against a plain dictionary, whatever happens in whatever order: buckets and segments as small
as can be, starting again, crashes and failures in the middle, what the topic tells read again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookstand.delivery.config import MERGE_POLICIES
from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.errors import BookieHandleNotAvailableError, NoSuchLedgerError
from bookstand.storage.format.position import Position
from bookstand.testing import Faults, SimulatedCrash
from tests.delivery.bucket_kit import MEMORY, BucketBench, Message, config_of

LEDGERS, ENTRIES = 16, 4
GRID = [(ledger, entry) for ledger in range(LEDGERS + 60) for entry in range(ENTRIES)]
GRID_COLUMNS = tuple(np.array(GRID, dtype=np.int64).T)

configs = st.builds(
    config_of,
    st.integers(1, 5),
    st.sampled_from([1, 10, 1000]),
    st.sampled_from([-1, 1, 2]),
    st.sampled_from([-1, 1, 2, 3]),
    strict=st.booleans(),
    tick=st.sampled_from([1, 7]),
    policy=st.sampled_from(MERGE_POLICIES),
)
delays = st.one_of(st.integers(-3, 60), st.sampled_from([10, 20, 400]))
limits = st.one_of(st.none(), st.integers(0, 6))
messages = st.tuples(st.integers(0, LEDGERS - 1), st.integers(0, ENTRIES - 1), delays)


class Looking(BucketBench):
    """Writes down what is on the disk before a tracker begins with it."""

    def before_tracker(self) -> None:
        self.found: dict[BucketKey, list[list[Message]] | None] = {}
        for key, bucket_id in self.properties.items():
            try:
                self.found[key] = self.segments_in(bucket_id)
            except NoSuchLedgerError:
                self.found[key] = None


class BucketMachine(RuleBasedStateMachine):
    @initialize(config=configs)
    def begin(self, config: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.faults = Faults()
        self.bench = Looking(Path(self.folder.name) / "store", config, hooks=self.faults)
        # Who is woken asks, at least; and whether it has been told that there is something.
        self.bench.on_wake = lambda: self.bench.tracker.has_message_available()
        self.knows = False
        self.tick = config.delayed_delivery_tick_time_millis
        self.strict = config.is_delayed_delivery_deliver_at_time_strict
        # What is to be delivered, and what the topic tells of all that was ever added.
        self.waiting: dict[tuple[int, int], int] = {}
        self.topic = self.bench.messages
        self.times: dict[tuple[int, int], set[int]] = {}
        self.horizon = 0
        self.newest = 0
        self.most = self.bench.config.delayed_delivery_max_num_buckets
        self.known_buckets: set[int] = set()

    # -- the model -----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.bench.now

    @property
    def cutoff(self) -> int:
        return self.now if self.strict else self.now + self.tick

    def takes(self, ledger: int, entry: int, time: int) -> bool:
        if time < 0 or time <= self.cutoff:
            self.waiting.pop((ledger, entry), None)
            return False
        self.waiting.setdefault((ledger, entry), time)
        return True

    def tell(self, ledger: int, entry: int, time: int) -> None:
        """The topic has it, from now on for this time."""
        self.newest = max(self.newest, ledger)
        if (ledger, entry) not in self.waiting:
            self.topic[ledger, entry] = time
        self.times.setdefault((ledger, entry), set()).add(time)

    def due(self) -> list[tuple[int, int]]:
        found = [(time, one) for one, time in self.waiting.items() if time <= self.cutoff and one[0] >= self.horizon]
        return [one for _, one in sorted(found)]

    # -- in ------------------------------------------------------------------------------------------------------------

    def add_one(self, ledger: int, entry: int, time: int) -> None:
        ledger = max(ledger, self.horizon)
        self.tell(ledger, entry, time)
        assert self.bench.tracker.add(Position(ledger, entry), time) is self.takes(ledger, entry, time)

    @rule(message=messages)
    def add(self, message: Message) -> None:
        ledger, entry, delay = message
        self.add_one(ledger, entry, self.now + delay)

    @rule(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, ENTRIES - 1), delays), min_size=1, max_size=12))
    def add_newer(self, steps: list[Message]) -> None:
        """As a cursor reads: ledgers rise."""
        for step, entry, delay in steps:
            self.add_one(min(self.newest + step, LEDGERS + 59), entry, self.now + delay)

    @rule(batch=st.lists(messages, max_size=14), rising=st.booleans())
    def add_many(self, batch: list[Message], rising: bool) -> None:
        self.add_batch(sorted(batch) if rising else batch)

    def rows(self, batch: list[Message]) -> list[Message]:
        """A cursor reads nothing before its mark-delete position."""
        return [(max(ledger, self.horizon), entry, self.now + delay) for ledger, entry, delay in batch]

    def add_batch(self, batch: list[Message]) -> None:
        rows = self.rows(batch)
        wanted = []
        for row in rows:
            self.tell(*row)
            wanted.append(self.takes(*row))
        answers = self.bench.tracker.add_many([row[:2] for row in rows], [row[2] for row in rows])
        assert answers.tolist() == wanted

    @precondition(lambda self: getattr(self, "topic", None))
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.topic)))
        if position[0] >= self.horizon:
            self.add_one(*position, self.topic[position])

    # -- out -----------------------------------------------------------------------------------------------------------

    @rule(millis=st.integers(1, 30))
    def time_passes(self, millis: int) -> None:
        self.bench.run_to(self.now + millis)

    @rule(limit=limits)
    def pop(self, limit: int | None) -> None:
        wanted = self.due()[:limit]
        given = list(map(tuple, self.bench.tracker.pop_due(limit)))
        assert given == sorted(wanted)
        self.gone(given)

    def gone(self, given: list[tuple[int, int]]) -> None:
        for position in given:
            del self.waiting[position]

    @rule(position=st.sampled_from([one for one in GRID if one[0] < LEDGERS]))
    def cancel(self, position: tuple[int, int]) -> None:
        wanted = self.waiting.pop(position, None) is not None
        assert self.bench.tracker.cancel(Position(*position)) is wanted

    @precondition(lambda self: getattr(self, "waiting", None))
    @rule(data=st.data())
    def cancel_one_that_waits(self, data: st.DataObject) -> None:
        self.cancel(data.draw(st.sampled_from(sorted(self.waiting))))

    @rule()
    def clear(self) -> None:
        self.bench.tracker.clear()
        self.waiting.clear()

    @rule(step=st.integers(1, 4))
    def mark_delete_moves(self, step: int) -> None:
        self.horizon = min(self.horizon + step, self.newest)
        self.bench.stand(self.horizon)

    # -- starting again ------------------------------------------------------------------------------------------------

    @rule(most=st.sampled_from([-1, 1, 2, 3]), policy=st.sampled_from(MERGE_POLICIES), read_again=st.booleans())
    def restart_with_another_limit(self, most: int, policy: str, read_again: bool) -> None:
        self.bench.config = replace(
            self.bench.config, delayed_delivery_max_num_buckets=most, delayed_delivery_merge_policy=policy
        )
        self.most = most
        self.restart(crash=False, read_again=read_again)

    @rule(crash=st.booleans(), read_again=st.booleans())
    def restart(self, crash: bool, read_again: bool) -> None:
        if crash:
            self.bench.crash()
        else:
            self.bench.restart()
        self.begun()
        if read_again:
            self.read_topic()

    @precondition(lambda self: hasattr(self, "bench") and self.bench.tracker.buckets)
    @rule(data=st.data())
    def a_snapshot_is_lost(self, data: st.DataObject) -> None:
        """What was in its ledgers the topic tells, when the next tracker begins."""
        self.bench.storage.delete(data.draw(st.sampled_from(self.bench.tracker.buckets)).bucket_id)
        self.bench.restart()
        self.begun()
        self.read_topic()

    def begun(self) -> None:
        """It has what stands in live segments, and what the topic tells of ledgers whose snapshot is lost."""
        # Until the next seal there may be more buckets than the limit, if it was higher before.
        self.known_buckets = {bucket.bucket_id for bucket in self.bench.tracker.buckets}
        recovered = {}
        problems = 0
        for key, segments in self.bench.found.items():
            if segments is None:
                problems += 1
                told = {one: time for one, time in self.topic.items() if one[0] in range(key[0], key[1] + 1)}
                recovered |= {one: time for one, time in told.items() if time > self.cutoff}
                continue
            if key.last_ledger < self.horizon:
                continue
            live = next((n for n, one in enumerate(segments) if one[-1][2] > self.cutoff), len(segments))
            for ledger, entry, time in chain.from_iterable(segments[live:]):
                assert key.first_ledger <= ledger <= key.last_ledger
                assert time in self.times[ledger, entry]
                recovered[ledger, entry] = time
        assert self.bench.waiting() == recovered
        assert len(self.bench.tracker.problems) == problems
        self.waiting = recovered
        # Who begins asks.
        self.knows = True

    def read_topic(self) -> None:
        """As the cursor does that was opened again. Of what is due nothing is to be found any more."""
        for (ledger, entry), time in sorted(self.topic.items()):
            if ledger >= self.horizon:
                assert self.bench.tracker.add(Position(ledger, entry), time) is self.takes(ledger, entry, time)

    @rule(
        batch=st.lists(messages, min_size=1, max_size=14),
        then=st.sampled_from(["pop", "clear", "nothing"]),
        point=st.sampled_from(["commit.before_write", "commit.before_sync", "commit.after_sync"]),
        nth=st.integers(1, 3),
    )
    def power_cut(self, batch: list[Message], then: str, point: str, nth: int) -> None:
        crash = self.faults.crash(point, nth)
        try:
            for row in self.rows(sorted(batch)):
                self.tell(*row)
                self.bench.tracker.add(Position(*row[:2]), row[2])
                self.takes(*row)
            if then == "pop":
                self.pop(None)
            elif then == "clear":
                self.clear()
        except SimulatedCrash:
            event(f"crash in {then}")
            self.bench.crash()
            self.begun()
            self.read_topic()
        finally:
            self.faults.remove(crash)

    @rule(batch=st.lists(messages, min_size=1, max_size=14), times=st.integers(1, 9))
    def commits_fail(self, batch: list[Message], times: int) -> None:
        failure = self.faults.fail("commit", error=BookieHandleNotAvailableError, times=times)
        self.add_batch(sorted(batch))
        self.pop(3)
        try:
            self.bench.tracker.clear()
            self.waiting.clear()
        except BookieHandleNotAvailableError:
            event("clear fails")
        self.faults.remove(failure)

    @rule(times=st.integers(1, 9), limit=limits)
    def reads_fail(self, times: int, limit: int | None) -> None:
        failure = self.faults.fail("read", error=BookieHandleNotAvailableError, times=times)
        wanted = self.due()[:limit]
        given = list(map(tuple, self.bench.tracker.pop_due(limit)))
        # What is due first is there, and what cannot be read holds up what is due later.
        assert given == sorted(wanted[: len(given)])
        if len(given) < len(wanted):
            event("reading fails")
            (armed,) = self.bench.timer.armed
            assert self.now < armed <= self.now + self.tick
        self.faults.remove(failure)
        self.gone(given)

    # -- always --------------------------------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "bench"):
            return
        tracker = self.bench.tracker
        found = self.bench.waiting()
        kept = {one: time for one, time in self.waiting.items() if one[0] >= self.horizon}
        assert {one: time for one, time in found.items() if one[0] >= self.horizon} == kept
        # What the cursor has passed may be there still, or not any more.
        assert found.items() <= self.waiting.items()
        self.waiting = found
        assert tracker.count == len(found)
        assert tracker.contains_many(*GRID_COLUMNS).tolist() == [one in found for one in GRID]
        if found:
            assert (tracker.next_delivery() or 0) <= min(found.values())

    @invariant()
    def stored(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.check_stored()
        ranges = self.bench.ranges
        assert all(first <= last for first, last in ranges)
        assert all(one[1] < other[0] for one, other in pairwise(ranges))
        for bucket in self.bench.tracker.buckets:
            within = [one for one in self.waiting if bucket.key.first_ledger <= one[0] <= bucket.key.last_ledger]
            assert bucket.waiting == len(within)

    @invariant()
    def limit_holds_after_each_seal(self) -> None:
        if not hasattr(self, "bench"):
            return
        buckets = {bucket.bucket_id for bucket in self.bench.tracker.buckets}
        if self.most > 0 and buckets - self.known_buckets:
            assert len(buckets) <= self.most
        self.known_buckets = buckets

    @invariant()
    def somebody_is_woken(self) -> None:
        """In time for the first, unless something is due: of that the dispatcher knows, and asks."""
        if not hasattr(self, "bench") or not self.waiting:
            return
        first = min(self.waiting.values())
        if first <= self.cutoff:
            self.knows = True
            return
        if self.knows:
            assert not self.bench.tracker.has_message_available()
            self.knows = False
        (armed,) = self.bench.timer.armed
        assert armed <= max(first, (self.bench.woken or [0])[-1] + self.tick, self.now)

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            with self.folder:
                try:
                    self.run_out()
                finally:
                    self.bench.end()

    def run_out(self) -> None:
        """Whoever asks when woken gets everything, in time."""
        bench = self.bench
        given: list[tuple[int, int]] = []

        def serve() -> None:
            for position in map(tuple, bench.tracker.pop_due()):
                time = self.waiting[position]
                assert time <= self.cutoff
                assert bench.now <= time + self.tick or position in late
                given.append(position)

        late = {one for one, time in self.waiting.items() if time <= self.now}
        serve()
        bench.on_wake = serve
        bench.run_to(self.now + 1000)
        assert sorted(given) == sorted(one for one in self.waiting if one[0] >= self.horizon)
        assert len(set(given)) == len(given)
        assert bench.tracker.count == 0
        assert (bench.ranges, bench.properties, bench.snapshots) == ([], {}, [])


TestBuckets = BucketMachine.TestCase
TestBuckets.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
