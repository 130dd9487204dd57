"""Whatever is done to the in-memory tracker, against plain dictionaries; and what its dispatcher makes of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bookstand.storage.format.position import Position
from tests.delivery.kit import Bench, InMemoryModel, width_of

TICKS = st.sampled_from([1, 2, 3, 8, 100, 1000])
POSITIONS = st.builds(
    Position, st.integers(1, 3), st.one_of(st.integers(0, 12), st.integers((1 << 32) - 3, (1 << 32) + 3))
)
# Distances from now: some are due, some within a tick, some far.
DELAYS = st.one_of(st.integers(-5, 30), st.integers(0, 3000))


class InMemoryMachine(RuleBasedStateMachine):
    @initialize(tick=TICKS, strict=st.booleans(), lookahead=st.sampled_from([0, 1, 5]))
    def begin(self, tick, strict, lookahead):
        self.model = InMemoryModel(tick, strict, lookahead)
        self.bench = Bench(tick_time_millis=tick, strict=strict, fixed_delay_detection_lookahead=lookahead)
        self.tracker = self.bench.tracker
        self.largest_tick = tick

    @rule(position=POSITIONS, delay=DELAYS)
    def add(self, position, delay):
        time = self.model.now + delay
        assert self.tracker.add(position, time) == self.model.add(position, time)

    @rule(messages=st.lists(st.tuples(POSITIONS, DELAYS), max_size=40), columns=st.booleans())
    def add_many(self, messages, columns):
        positions = [position for position, _ in messages]
        times = [self.model.now + delay for _, delay in messages]
        if columns and messages:
            ledgers, entries = np.array(positions).T
            given = self.tracker.add_many((ledgers, entries), np.array(times))
        else:
            given = self.tracker.add_many(positions, times)
        assert given.tolist() == [
            self.model.add(position, time) for position, time in zip(positions, times, strict=True)
        ]

    @rule(limit=st.one_of(st.none(), st.integers(0, 10)))
    def pop(self, limit):
        assert self.tracker.pop_due(limit) == self.model.pop(limit)

    @rule(position=POSITIONS)
    def cancel(self, position):
        assert self.tracker.cancel(position) == self.model.cancel(position)

    @rule(millis=st.one_of(st.integers(0, 20), st.integers(0, 2000)))
    def pass_time(self, millis):
        self.bench.go_to(self.model.now + millis)
        self.model.now += millis

    @rule(tick=TICKS)
    def reset_tick(self, tick):
        self.tracker.reset_tick(tick)
        self.model.reset_tick(tick)
        self.largest_tick = max(self.largest_tick, tick)

    @rule()
    def clear(self):
        self.tracker.clear()
        self.model.keys.clear()

    @rule()
    def fire(self):
        self.bench.timer.fire()

    @rule()
    def fire_stale(self):
        self.bench.timer.fire_stale()

    @rule()
    def who_finds_nothing_will_be_woken(self):
        available = self.tracker.has_message_available()
        assert available == self.model.available
        if not available and self.model.keys:
            assert self.model.next <= self.tracker.next_wake
            late = (self.bench.woken[-1] if self.bench.woken else 0) + self.largest_tick
            assert self.tracker.next_wake <= max(self.model.next, late)

    @rule(positions=st.lists(POSITIONS, min_size=1, max_size=60))
    def contains(self, positions):
        wanted = [position in self.model.keys for position in positions]
        ledgers, entries = np.array(positions).T
        assert self.tracker.contains_many(ledgers, entries).tolist() == wanted
        assert [self.tracker.contains_message(position) for position in positions] == wanted

    @rule()
    def next(self):
        assert self.tracker.next_delivery() == self.model.next

    @rule()
    def pause(self):
        assert self.tracker.should_pause_all_deliveries() == self.model.pauses

    @invariant()
    def one_alarm_and_the_count(self):
        if hasattr(self, "tracker"):
            assert self.tracker.count == len(self.model.keys)
            armed = self.bench.timer.armed
            assert armed == ([] if self.tracker.next_wake is None else [self.tracker.next_wake])
            assert self.model.keys or not armed

    def teardown(self):
        if hasattr(self, "bench"):
            self.bench.end()


TestInMemory = InMemoryMachine.TestCase
TestInMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Dispatcher:
    """Takes out what there is whenever it is woken, and nothing in between."""

    def __init__(self, tick: int, strict: bool) -> None:
        self.bench = Bench(tick_time_millis=tick, strict=strict)
        self.bench.on_wake = self.serve
        self.delivered: dict[Position, int] = {}

    def serve(self) -> None:
        while self.bench.tracker.has_message_available():
            for position in self.bench.tracker.pop_due(3):
                assert position not in self.delivered
                self.delivered[position] = self.bench.now


@settings(max_examples=60, deadline=None)
@given(
    TICKS,
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 5000)), min_size=1, max_size=40),
)
def test_everything_is_delivered_in_its_time(tick, strict, messages):
    """By alarms alone. Not strict: up to a tick early; strict: never; and late by less than a tick and a bucket."""
    dispatcher = Dispatcher(tick, strict)
    bench = dispatcher.bench
    wanted: dict[Position, int] = {}
    for number, (pause, delay) in enumerate(messages):
        bench.run_to(bench.now + pause)
        time = bench.now + delay
        if bench.tracker.add(Position(1, number), time):
            wanted[Position(1, number)] = time
        # The dispatcher looks after what it has read.
        dispatcher.serve()
    bench.run_to(bench.now + 20_000)
    assert dispatcher.delivered.keys() == wanted.keys()
    for position, time in wanted.items():
        early = 0 if strict else tick
        assert time - early <= dispatcher.delivered[position] < time + tick + width_of(tick)


@settings(max_examples=60, deadline=None)
@given(
    st.booleans(),
    TICKS,
    st.lists(st.tuples(TICKS, st.integers(0, 300), st.integers(1, 5000)), min_size=1, max_size=30),
)
def test_whatever_becomes_of_the_tick_nothing_is_forgotten(strict, tick, messages):
    dispatcher = Dispatcher(tick, strict)
    bench = dispatcher.bench
    wanted: dict[Position, int] = {}
    largest = tick
    for number, (new_tick, pause, delay) in enumerate(messages):
        bench.run_to(bench.now + pause)
        if bench.tracker.add(Position(1, number), bench.now + delay):
            wanted[Position(1, number)] = bench.now + delay
        dispatcher.serve()
        bench.tracker.reset_tick(new_tick)
        dispatcher.serve()
        largest = max(largest, new_tick)
    bench.run_to(bench.now + 20_000)
    assert dispatcher.delivered.keys() == wanted.keys()
    for position, time in wanted.items():
        early = 0 if strict else 2 * largest
        assert time - early <= dispatcher.delivered[position] < time + 2 * largest
