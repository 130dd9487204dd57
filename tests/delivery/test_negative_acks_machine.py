"""Any order of negative acknowledgments, time and restarts, against buckets that are plain sets."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bookstand
from bookstand.delivery.nacks.tracker import NegativeAcks
from bookstand.storage.format.position import Position
from tests.delivery.kit import NackModel, Nacks

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
POSITIONS = st.builds(
    Position, st.integers(1, 3), st.one_of(st.integers(0, 8), st.integers((1 << 32) - 2, (1 << 32) + 2))
)
DELAYS = st.one_of(st.integers(0, 400), st.integers(0, 5000))


class NackMachine(RuleBasedStateMachine):
    """``redeliver`` fails when it is told to."""

    can_fail = True

    @initialize(bits=st.integers(0, 10))
    def begin(self, bits):
        self.bits = bits
        self.failing = False
        self.nacks = Nacks(precision_bits=bits)
        self.nacks.acks = self.open()
        self.model = NackModel(bits)

    def open(self) -> NegativeAcks:
        n = self.nacks
        return NegativeAcks(self.redeliver, self.bits, clock=n.clock, timer=n.timer)

    def redeliver(self, positions: list[Position]) -> None:
        if self.failing:
            raise ValueError("away")
        self.nacks.redeliver(positions)

    def _added(self, positions, delay):
        deadline = self.nacks.now + max(delay, 100)
        self.model.add(positions, deadline)

    @rule(position=POSITIONS, delay=DELAYS, index=st.integers(-1, 5))
    def add(self, position, delay, index):
        self.nacks.acks.add(position, index, delay)
        self._added([position], delay)

    @rule(positions=st.lists(POSITIONS, min_size=1, max_size=20), delay=DELAYS)
    def add_many(self, positions, delay):
        self.nacks.acks.add_many(positions, delay)
        self._added(positions, delay)

    @rule(millis=st.one_of(st.integers(0, 50), st.integers(0, 1500)))
    def pass_time(self, millis):
        self.nacks.go_to(self.nacks.now + millis)

    @rule(failing=st.booleans())
    def fire(self, failing):
        armed = self.nacks.timer.armed
        rings = bool(armed) and armed[0] <= self.nacks.now
        failing = self.failing = failing and self.can_fail
        self.nacks.timer.fire()
        self.failing = False
        if rings and failing:
            self.model.fail(self.nacks.now)
        self._given(rings and not failing)

    @rule()
    def fire_stale(self):
        self._given(self.nacks.timer.fire_stale())

    def _given(self, rang):
        given = self.nacks.taken()
        assert len(given) == len(set(given))
        assert set(given) == (self.model.pop(self.nacks.now) if rang else set())

    @invariant()
    def the_same_waits(self):
        if hasattr(self, "model"):
            assert self.nacks.acks.buckets() == self.model.counts
            assert self.nacks.acks.count == sum(self.model.counts.values())

    @invariant()
    def one_alarm_early_enough_for_all(self):
        if not hasattr(self, "model"):
            return
        armed = self.nacks.timer.armed
        assert len(armed) == bool(self.model.buckets)
        if armed:
            # Of the first bucket no deadline passes before, but for what failed, which is tried again in a second.
            width = self.model.width
            first = min(self.model.buckets)
            assert armed[0] < max(first + width, self.nacks.now + 1001)

    def teardown(self):
        if hasattr(self, "nacks"):
            self.nacks.acks.close()


class KeptMachine(NackMachine):
    """In a store, over restarts and crashes; after one what failed is in all its buckets again, so nothing fails."""

    can_fail = False

    def open(self) -> NegativeAcks:
        if not hasattr(self, "folder"):
            self.folder = tempfile.mkdtemp(prefix="bookstand-test-", dir=MEMORY)
        self.store: Any = bookstand.open(self.folder)
        n = self.nacks
        return NegativeAcks.open(
            self.store, "sub", self.redeliver, self.bits, clock=n.clock, timer=n.timer, compact_bytes=60
        )

    @precondition(lambda self: hasattr(self, "model"))
    @rule(how=st.sampled_from(["close", "crash", "take over"]))
    def restart(self, how):
        if how == "crash":
            self.store.storage.crash()
        if how != "take over":
            self.nacks.acks.close()
        if how == "close":
            self.store.close()
        before = self.nacks.acks
        self.nacks.acks = self.open()
        before.close()
        # What was cancelled belongs to those before.
        self.nacks.timer._canceled.clear()

    def teardown(self):
        super().teardown()
        if hasattr(self, "folder"):
            self.store.close()
            with bookstand.open(self.folder, create=False) as store:
                report = store.verify()
            shutil.rmtree(self.folder)
            assert report.ok, report.problems


TestNacks = NackMachine.TestCase
TestNacks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestKeptNacks = KeptMachine.TestCase
TestKeptNacks.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
