"""A tracker with a clock and a timer that stand still until a test moves them, and the plain models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bookstand.delivery.nacks.tracker import NegativeAcks
from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from bookstand.storage.format.position import Position
from bookstand.testing import VirtualClock
from bookstand.testing.clock import ManualTimer

MakeTracker = Callable[..., Any]


def _in_memory(bench: Bench, **settings: Any) -> InMemoryDelayedTracker:
    return InMemoryDelayedTracker(bench.wake, clock=bench.clock, timer=bench.timer, **settings)


TRACKERS: dict[str, MakeTracker] = {"in memory": _in_memory}
"""What the contract suite runs on, by name: made of a bench, ``tick_time_millis`` and ``strict``. The bench ends them;
who has more to end than ``close()`` appends to ``bench.endings``."""


class Still:
    """Time for one tracker, in milliseconds, and its timer."""

    def __init__(self, start: int = 0) -> None:
        self.clock = VirtualClock(start)
        self.timer = ManualTimer(self.clock)

    @property
    def now(self) -> int:
        return self.clock.now()

    def go_to(self, time: int) -> None:
        """Nothing rings by itself."""
        rest = time - self.clock.now()
        assert rest >= 0
        # In whole seconds first: a large number of them is no exact float.
        self.clock.advance(rest // 1000)
        self.clock.advance(rest % 1000 / 1000)
        assert self.clock.now() == time

    def run_to(self, time: int) -> None:
        """Move the clock, and ring on the way what is due."""
        while (armed := self.timer.armed) and armed[0] <= time:
            self.go_to(max(armed[0], self.now))
            self.timer.fire()
        self.go_to(time)


class Bench(Still):
    """``tracker`` is open; ``woken`` is when its dispatcher was, who does ``on_wake`` then. Where ``own`` is false,
    others have the same index, which has counts and alarms also of what is theirs."""

    own = True

    def __init__(self, make: MakeTracker = _in_memory, start: int = 0, **settings: Any) -> None:
        super().__init__(start)
        self.woken: list[int] = []
        self.on_wake: Callable[[], object] = lambda: None
        self.endings: list[Callable[[], None]] = []
        self.tracker = make(self, **settings)

    def wake(self) -> None:
        self.woken.append(self.now)
        self.on_wake()

    def add(self, *messages: tuple[int, int, int]) -> list[bool]:
        """Ledger, entry, time."""
        return [self.tracker.add(Position(ledger, entry), time) for ledger, entry, time in messages]

    def fire(self) -> int:
        """Ring what is due; how often the dispatcher was woken by that."""
        before = len(self.woken)
        self.timer.fire()
        return len(self.woken) - before

    def end(self) -> None:
        self.tracker.close()
        for ending in self.endings:
            ending()


class Nacks(Still):
    """``calls`` is what ``redeliver`` was called with, ``given`` the same in one list."""

    def __init__(self, start: int = 1_000_000, **settings: Any) -> None:
        super().__init__(start)
        self.calls: list[list[Position]] = []
        self.acks = self.make(**settings)

    def make(self, **settings: Any) -> NegativeAcks:
        return NegativeAcks(self.redeliver, clock=self.clock, timer=self.timer, **settings)

    def redeliver(self, positions: list[Position]) -> None:
        self.calls.append(positions)

    @property
    def given(self) -> list[Position]:
        return [position for call in self.calls for position in call]

    def add(self, *positions: tuple[int, int], **options: Any) -> None:
        for ledger, entry in positions:
            self.acks.add(Position(ledger, entry), **options)

    def taken(self) -> list[Position]:
        """What was given back since this was asked last."""
        given = self.given
        self.calls = []
        return given


# -- models ----------------------------------------------------------------------------------------------------------


def width_of(tick: int) -> int:
    width = 1
    while width * 2 <= tick:
        width *= 2
    return width


class InMemoryModel:
    """The in-memory tracker, one message after the other, in plain dictionaries."""

    def __init__(self, tick: int, strict: bool, lookahead: int) -> None:
        self.tick = tick
        self.strict = strict
        self.lookahead = lookahead
        self.now = 0
        self.keys: dict[Position, int] = {}
        self._start_over()

    def _start_over(self) -> None:
        self.fixed = True
        self.highest = 0

    def key(self, time: int, width: int) -> int:
        return (time + width - 1) // width * width if self.strict else time // width * width

    @property
    def cutoff(self) -> int:
        return self.now if self.strict else self.now + self.tick

    def is_due(self, key: int) -> bool:
        return key <= self.now if self.strict else key + width_of(self.tick) - 1 <= self.now + self.tick

    def add(self, position: Position, time: int) -> bool:
        if time < 0 or time <= self.cutoff:
            self.fixed = False
            self.keys.pop(position, None)
            return False
        if time < self.highest - self.tick:
            self.fixed = False
        self.highest = max(self.highest, time)
        self.keys.setdefault(position, self.key(time, width_of(self.tick)))
        return True

    def pop(self, limit: int | None) -> list[Position]:
        due = sorted((key, position) for position, key in self.keys.items() if self.is_due(key))[:limit]
        for _, position in due:
            del self.keys[position]
        if not self.keys:
            self._start_over()
        return sorted(position for _, position in due)

    @property
    def available(self) -> bool:
        return any(map(self.is_due, self.keys.values()))

    @property
    def pauses(self) -> bool:
        return self.lookahead > 0 and self.fixed and len(self.keys) >= self.lookahead and not self.available

    @property
    def next(self) -> int | None:
        return min(self.keys.values(), default=None)

    def cancel(self, position: Position) -> bool:
        return self.keys.pop(position, None) is not None

    def reset_tick(self, tick: int) -> None:
        self.tick = tick
        self.keys = {position: self.key(key, width_of(tick)) for position, key in self.keys.items()}


class NackModel:
    """Buckets as a dictionary of sets."""

    def __init__(self, bits: int) -> None:
        self.width = 1 << bits
        self.buckets: dict[int, set[Position]] = {}

    def add(self, positions: Iterable[Position], deadline: int) -> None:
        self.buckets.setdefault(deadline // self.width * self.width, set()).update(positions)

    def pop(self, now: int) -> set[Position]:
        due = [key for key in self.buckets if key <= now]
        return set().union(*(self.buckets.pop(key) for key in due))

    def fail(self, now: int) -> None:
        """What is due goes back, each position once, to its first bucket."""
        seen: set[Position] = set()
        for key in sorted(self.buckets):
            if key <= now:
                self.buckets[key] -= seen
                seen |= self.buckets[key]
        self.buckets = {key: positions for key, positions in self.buckets.items() if positions}

    @property
    def counts(self) -> dict[int, int]:
        return {key: len(positions) for key, positions in sorted(self.buckets.items())}
