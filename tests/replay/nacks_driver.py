"""Recorded scenarios of negative acknowledgments. Compared are, operation by operation, refusals, how many alarms rang,
which positions were given back, how many there are, what time the alarm is set to, how many alarms there are, and how
many positions there are in each bucket of time. Not compared: partitions, indexes in batches, kinds of ids and the
interceptor's call, which have no place here, and into how many calls the positions are cut.

The goldens: each golden is one sample, of a backoff (what it answers, or that it is refused) or of a bucket of time.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from bookstand.delivery.nacks.tracker import NegativeAcks
from bookstand.delivery.subscription.backoff import MultiplierRedeliveryBackoff
from bookstand.delivery.tracker.protocol import TrackerClosedError
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from bookstand.testing.clock import ManualTimer
from tests.model.delayed import Refused
from tests.model.nacks import NacksModel
from tests.replay.delayed_driver import refusal
from tests.replay.delayed_lockstep import MissingError
from tests.replay.delayed_stands import StandingClock

Line = dict[str, Any]
Answer = dict[str, Any]
Settings = dict[str, Any]

DELAY_MICROS = 60_000_000
PRECISION_BITS = 8


class Stand(Protocol):
    def move_clock(self, now: int) -> None: ...
    def add(self, position: Position, batch_index: int, redelivery_count: int, chunks: list[Position]) -> None: ...
    def fire(self) -> tuple[int, list[Position]]: ...
    def fire_stale(self) -> tuple[bool, list[Position]]: ...
    def count(self) -> int: ...
    def close(self) -> None: ...
    def state(self) -> tuple[int | None, int]:
        """What the alarm is set to, and how many there are."""

    def buckets(self) -> list[list[int]]: ...


def recorded(op: Line) -> Answer:
    answer: Answer = {}
    if "throws" in op:
        answer["refused"] = refusal(op)
    elif "result" in op:
        answer["result"] = op["result"]
    if "state" not in op:
        return answer
    calls = [call["ids"] for call in op.get("calls", ()) if call["call"] == "redeliver"]
    given = {(ledger, entry) for ids in calls for ledger, entry, *_ in ids}
    answer["given"] = [list(position) for position in sorted(given)]
    answer["count"], answer["timer"], answer["alarms"] = op["state"]
    answer["buckets"] = op["buckets"]
    return answer


class Refusing:
    """What could not be made: it has nothing, and refuses everything for the same reason."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def apply(self, op: Line) -> Answer:
        return {"refused": self.kind}


class Driver:
    def __init__(self, stand: Stand) -> None:
        self.stand = stand

    def apply(self, op: Line) -> Answer:
        handler = getattr(self, f"_{op['op']}", None)
        if handler is None:
            raise MissingError(f"operation {op['op']}")
        try:
            answer: Answer = handler(op) or {}
        except Refused as refused:
            answer = {"refused": refused.kind}
        answer.setdefault("given", [])
        answer["count"] = self.stand.count()
        answer["timer"], answer["alarms"] = self.stand.state()
        answer["buckets"] = self.stand.buckets()
        return answer

    def _open(self, op: Line) -> None:
        """They are there from the start."""

    def _nack(self, op: Line) -> None:
        position = Position(op["ledger"], op["entry"])
        chunks = [Position(*chunk) for chunk in op.get("chunks", ())]
        self.stand.add(position, op.get("batch", -1), op.get("redelivery_count", 0), chunks)

    def _clock(self, op: Line) -> None:
        self.stand.move_clock(op["ms"])

    def _fire(self, op: Line) -> Answer:
        rang, given = self.stand.fire()
        return {"result": rang, "given": [list(position) for position in given]}

    def _fire_stale(self, op: Line) -> Answer:
        there, given = self.stand.fire_stale()
        return {"result": there, "given": [list(position) for position in given]}

    def _count(self, op: Line) -> Answer:
        return {"result": self.stand.count()}

    def _close(self, op: Line) -> None:
        self.stand.close()


class Ours:
    def __init__(self, settings: Settings) -> None:
        self.clock = StandingClock(settings["start_ms"])
        self.timer = ManualTimer(self.clock)
        self.given: list[Position] = []
        backoff = settings.get("backoff")
        try:
            self.acks = NegativeAcks(
                self.given.extend,
                precision_bits=settings.get("precision_bits", PRECISION_BITS),
                delay=settings.get("delay_us", DELAY_MICROS) // 1000,
                backoff=None if backoff is None else our_backoff(backoff),
                clock=self.clock,
                timer=self.timer,
            )
        except IncorrectParameterError as error:
            raise Refused("argument") from error

    def move_clock(self, now: int) -> None:
        self.clock.time = now

    def add(self, position: Position, batch_index: int, redelivery_count: int, chunks: list[Position]) -> None:
        try:
            self.acks.add(position, batch_index, redelivery_count=redelivery_count, chunks=chunks)
        except TrackerClosedError as error:
            raise Refused("closed") from error
        except IncorrectParameterError as error:
            raise Refused("argument") from error

    def fire(self) -> tuple[int, list[Position]]:
        rang = self.timer.fire()
        return rang, self._taken()

    def fire_stale(self) -> tuple[bool, list[Position]]:
        there = self.timer.fire_stale()
        return there, self._taken()

    def _taken(self) -> list[Position]:
        given = sorted(self.given)
        self.given.clear()
        return given

    def count(self) -> int:
        return self.acks.count

    def close(self) -> None:
        self.acks.close()

    def state(self) -> tuple[int | None, int]:
        armed = self.timer.armed
        return (armed[0] if armed else None), len(armed)

    def buckets(self) -> list[list[int]]:
        return [[time, count] for time, count in sorted(self.acks.buckets().items())]


class Model:
    def __init__(self, settings: Settings, surprises: Collection[str] = ()) -> None:
        backoff = settings.get("backoff")
        self.model = NacksModel(
            settings["start_ms"],
            settings.get("precision_bits", PRECISION_BITS),
            settings.get("delay_us", DELAY_MICROS) // 1000,
            None if backoff is None else lambda count: plain_backoff(backoff, count),
            surprises,
        )

    def move_clock(self, now: int) -> None:
        self.model.now = now

    def add(self, position: Position, batch_index: int, redelivery_count: int, chunks: list[Position]) -> None:
        self.model.add(position, redelivery_count, chunks)

    def fire(self) -> tuple[int, list[Position]]:
        return self.model.fire()

    def fire_stale(self) -> tuple[bool, list[Position]]:
        return self.model.fire_stale()

    def count(self) -> int:
        return self.model.count

    def close(self) -> None:
        self.model.close()

    def state(self) -> tuple[int | None, int]:
        return self.model.timer, int(self.model.timer is not None)

    def buckets(self) -> list[list[int]]:
        return [[key, len(bucket)] for key, bucket in sorted(self.model.buckets.items()) if bucket]


def our_backoff(settings: Settings) -> MultiplierRedeliveryBackoff:
    return MultiplierRedeliveryBackoff(settings["min_ms"], settings["max_ms"], settings["multiplier"])


def plain_backoff(settings: Settings, count: int) -> int:
    """Multiplied step by step, in floating point."""
    shortest, longest = int(settings["min_ms"]), int(settings["max_ms"])
    if count <= 0 or not shortest:
        return shortest
    try:
        return min(int(shortest * float(settings["multiplier"]) ** count), longest)
    except OverflowError:
        return longest
