"""Trackers of delayed messages and the plain model behind one interface: the driver does not know which it has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from bookstand.delivery.tracker.protocol import DelayedTracker, TrackerClosedError
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from bookstand.testing.clock import ManualTimer
from tests.model.delayed import DelayedModel, Refused

Settings = dict[str, Any]
Messages = list[tuple[Position, int]]


class Stand(Protocol):
    def move_clock(self, now: int) -> None: ...
    def add(self, position: Position, time: int) -> bool: ...
    def add_many(self, messages: Messages) -> list[bool]: ...
    def pop_due(self, limit: int) -> list[Position]: ...
    def has_available(self) -> bool: ...
    def should_pause(self) -> bool: ...
    def fire(self) -> tuple[int, int]:
        """How many alarms rang, and how often the dispatcher was woken."""

    def fire_stale(self) -> tuple[bool, int]:
        """The newest alarm that was cancelled rings all the same: whether there was one, and how often it woke."""

    def fire_cancelled(self) -> bool:
        """The newest alarm that was cancelled finds out that it was."""

    def reset_tick(self, tick: int) -> None: ...
    def clear(self) -> None: ...
    def close(self) -> None: ...
    def state(self) -> tuple[int, int | None]:
        """The count, and when the alarm is to ring."""


class StandingClock:
    def __init__(self, now: int) -> None:
        self.time = now

    def now(self) -> int:
        return self.time


class TrackerStand:
    """What is the same for both of bookstand's trackers, by the interface that they share."""

    tracker: DelayedTracker

    def __init__(self, settings: Settings) -> None:
        self.clock = StandingClock(settings["start_ms"])
        self.timer = ManualTimer(self.clock)
        self.woken = self.stale = 0

    def _wake(self) -> None:
        self.woken += 1

    def move_clock(self, now: int) -> None:
        self.clock.time = now

    def add(self, position: Position, time: int) -> bool:
        try:
            return self.tracker.add(position, time)
        except TrackerClosedError as error:
            raise Refused("closed") from error
        except IncorrectParameterError as error:
            raise Refused("argument") from error

    def add_many(self, messages: Messages) -> list[bool]:
        try:
            tracked = self.tracker.add_many([at for at, _ in messages], [time for _, time in messages])
        except TrackerClosedError as error:
            raise Refused("closed") from error
        except IncorrectParameterError as error:
            raise Refused("argument") from error
        return tracked.tolist()  # type: ignore[no-any-return]

    def pop_due(self, limit: int) -> list[Position]:
        try:
            return self.tracker.pop_due(limit)
        except TrackerClosedError as error:
            raise Refused("closed") from error

    def has_available(self) -> bool:
        return self.tracker.has_message_available()

    def should_pause(self) -> bool:
        return self.tracker.should_pause_all_deliveries()

    def fire(self) -> tuple[int, int]:
        before = self.woken
        return self.timer.fire(), self.woken - before

    def fire_stale(self) -> tuple[bool, int]:
        before = self.woken
        there = self.timer.fire_stale()
        self.stale += there
        return there, self.woken - before

    def fire_cancelled(self) -> bool:
        """A timer never rings what was cancelled: there is nothing to call, only to say whether there was one."""
        return sum(event[0] == "cancel" for event in self.timer.events) > self.stale

    def reset_tick(self, tick: int) -> None:
        self.tracker.reset_tick(tick)

    def clear(self) -> None:
        self.tracker.clear()

    def close(self) -> None:
        self.tracker.close()

    def state(self) -> tuple[int, int | None]:
        armed = self.timer.armed
        assert len(armed) <= 1, f"alarms for {armed}"
        return self.tracker.count, armed[0] if armed else None


class InMemoryStand(TrackerStand):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.tracker = InMemoryDelayedTracker(
            self._wake,
            tick_time_millis=settings["tick_ms"],
            strict=settings["strict"],
            fixed_delay_detection_lookahead=settings["fixed_delay_detection_lookahead"],
            clock=self.clock,
            timer=self.timer,
        )


class ModelStand:
    def __init__(self, settings: Settings, surprises: Collection[str] = ()) -> None:
        self.model = DelayedModel(
            settings["start_ms"],
            settings["tick_ms"],
            settings["strict"],
            settings["fixed_delay_detection_lookahead"],
            surprises,
        )

    def move_clock(self, now: int) -> None:
        self.model.now = now

    def add(self, position: Position, time: int) -> bool:
        return self.model.add(position, time)

    def add_many(self, messages: Messages) -> list[bool]:
        return [self.model.add(position, time) for position, time in messages]

    def pop_due(self, limit: int) -> list[Position]:
        return self.model.pop_due(limit)

    def has_available(self) -> bool:
        return self.model.has_available()

    def should_pause(self) -> bool:
        return self.model.should_pause()

    def fire(self) -> tuple[int, int]:
        rang = self.model.fire()
        return rang, rang

    def fire_stale(self) -> tuple[bool, int]:
        rang = self.model.fire_stale()
        return rang, int(rang)

    def fire_cancelled(self) -> bool:
        return self.model.cancelled > 0

    def reset_tick(self, tick: int) -> None:
        self.model.reset_tick(tick)

    def clear(self) -> None:
        self.model.clear()

    def close(self) -> None:
        self.model.close()

    def state(self) -> tuple[int, int | None]:
        return self.model.count, self.model.timer


TRACKERS: dict[str, Callable[[Settings], Stand]] = {"in_memory": InMemoryStand}
"""What is under test, by the recordings' name for it."""
