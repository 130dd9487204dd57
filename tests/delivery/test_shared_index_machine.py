"""Subscriptions of one index, against what each of them should have: all that was published and is due, nothing early,
and nothing twice that was acknowledged."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bookstand.storage.format.position import Position
from tests.delivery.bucket_kit import config_of
from tests.delivery.shared_kit import Desk, Subscriber

NAMES = "abc"
names = st.sampled_from(NAMES)
ticks = st.sampled_from([1, 16, 50])


class SharedIndex(RuleBasedStateMachine):
    @initialize(
        strict=st.booleans(),
        minimum=st.integers(1, 9),
        buckets=st.sampled_from([-1, 2]),
        due_log_limit=st.sampled_from([0, 4, 1000]),
        members=st.sets(names),
        ticks=st.dictionaries(names, ticks),
    )
    def begin(
        self, strict: bool, minimum: int, buckets: int, due_log_limit: int, members: set[str], ticks: dict[str, int]
    ) -> None:
        config = config_of(minimum, 40, 4, buckets, strict=strict)
        self.desk = Desk(
            "".join(sorted(members)), config=config, due_log_limit=due_log_limit, per_ledger=4, ticks=ticks
        )
        self.early = 0 if strict else 1
        self.desk.early = self.early
        # Those that have a cursor and no view at the moment.
        self.away: dict[str, Subscriber] = {}
        self.cancelled: dict[str, set[Position]] = {name: set() for name in NAMES}
        # What each is to get: a cursor that is made later begins with what is there then.
        self.unseen: dict[str, set[Position]] = {name: set() for name in NAMES}

    def sub(self, name: str) -> Subscriber | None:
        return self.desk.subs.get(name)

    @rule(delays=st.lists(st.none() | st.integers(0, 200), min_size=1, max_size=12))
    def publish(self, delays: list[int | None]) -> None:
        self.desk.publish(*(None if delay is None else self.desk.now + delay for delay in delays))

    @rule(millis=st.integers(1, 120), rings=st.booleans())
    def wait(self, millis: int, rings: bool) -> None:
        (self.desk.run_to if rings else self.desk.go_to)(self.desk.now + millis)

    @rule(name=names, count=st.integers(1, 12))
    def read(self, name: str, count: int) -> None:
        if sub := self.sub(name):
            sub.read(count)

    @rule(name=names, limit=st.none() | st.integers(0, 6))
    def take(self, name: str, limit: int | None) -> None:
        if sub := self.sub(name):
            sub.take(limit)

    @rule(name=names, count=st.none() | st.integers(1, 5))
    def ack(self, name: str, count: int | None) -> None:
        if sub := self.sub(name):
            sub.ack(count)

    @rule(name=names, place=st.integers(0, 100))
    def go_back(self, name: str, place: int) -> None:
        sub = self.sub(name)
        acked = [p for p in sorted(sub.given) if p <= sub.cursor.mark_delete_position] if sub else []
        acked = list(filter(self.desk.topic.extent.has, acked))
        if sub and acked:
            position = acked[place % len(acked)]
            again = {one for one in sub.given if one >= position}
            sub.excused.update(again)
            self.cancelled[name] -= {one for one in self.cancelled[name] if one >= position}
            sub.unacked = [one for one in sub.unacked if one < position]
            sub.cursor.reset(position)
            sub.attach()

    @rule(name=names, tick=ticks)
    def change_tick(self, name: str, tick: int) -> None:
        if sub := self.sub(name):
            sub.change_tick(tick)

    @rule(name=names)
    def flush(self, name: str) -> None:
        if sub := self.sub(name):
            sub.cursor.flush()

    @rule(name=names, place=st.integers(0, 100))
    def ack_unread(self, name: str, place: int) -> None:
        """Acknowledged and cancelled, as a message that is given up is."""
        sub = self.sub(name)
        positions = sorted(self.desk.times)
        if sub and positions:
            position = positions[place % len(positions)]
            if self.desk.topic.extent.has(position):
                sub.view.cancel(position)
                sub.cursor.ack(position).result()
                self.cancelled[name].add(position)

    @rule(name=names)
    def come(self, name: str) -> None:
        if name in self.desk.subs:
            return
        if name in self.away:
            sub = self.desk.subs[name] = self.away.pop(name)
            sub.begin()
        else:
            there = set(filter(self.desk.topic.extent.has, self.desk.times))
            self.unseen[name] = set(self.desk.times) - there
            self.desk.join(name)

    @rule(name=names)
    def go(self, name: str) -> None:
        if sub := self.desk.subs.pop(name, None):
            sub.view.close()
            sub.cursor.close()
            self.away[name] = sub

    @rule()
    def trim(self) -> None:
        self.desk.index.trim()
        self.desk.topic.trim_consumed()

    @rule(order=st.permutations(NAMES))
    def restart(self, order: list[str]) -> None:
        self.desk.restart([name for name in order if name in self.desk.subs])

    @rule(order=st.permutations(NAMES), lost=st.none() | st.integers(0, 3))
    def crash(self, order: list[str], lost: int | None) -> None:
        """With a snapshot lost, perhaps."""
        if lost is not None and lost < len(self.desk.snapshots):
            self.desk.topic.client.delete(self.desk.snapshots[lost], False)
        for sub in self.desk.subs.values():
            # Whatever it acknowledged may not have been written.
            sub.unacked = list(sub.given)
        self.desk.crash([name for name in order if name in self.desk.subs])

    @rule(order=st.permutations(NAMES))
    def settle(self, order: list[str]) -> None:
        self.desk.run(order=[name for name in order if name in self.desk.subs])
        for name, sub in self.desk.subs.items():
            due = {p for p, time in self.desk.times.items() if time is None or time <= self.desk.now + self.early}
            expected = due - self.unseen[name] - self.cancelled[name]
            assert set(sub.given) >= expected, (name, expected - set(sub.given))
            # That none is earlier than its tick allows is asserted when it is delivered.
            assert set(sub.given) <= set(self.desk.times) - self.unseen[name]

    @invariant()
    def nothing_comes_again_without_a_reason(self) -> None:
        for sub in self.desk.subs.values():
            assert all(count <= 1 + sub.excused[position] for position, count in sub.given.items())

    @invariant()
    def what_is_stored_is_what_there_is(self) -> None:
        self.desk.check_stored()

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            try:
                self.come_to_an_end()
            finally:
                self.desk.end()

    def come_to_an_end(self) -> None:
        for name in self.away.copy():
            self.come(name)
        end = max((time for time in self.desk.times.values() if time is not None), default=0)
        self.desk.run_to(max(end, self.desk.now))
        self.settle(list(NAMES))
        self.nothing_comes_again_without_a_reason()
        assert self.desk.index.tracker.count == 0 or not self.desk.subs


TestSharedIndex = SharedIndex.TestCase
TestSharedIndex.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
