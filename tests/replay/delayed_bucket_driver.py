"""Recorded scenarios of trackers on buckets: beside what is compared of all trackers, what ``contains`` says, which
ranges of ledgers the cursor's properties name, and how many snapshots there are. Which buckets become one, and when, is
a policy: once some have to, these are not compared, nor what the alarm is set to, which is for what was loaded, but
whether it rings is. Not compared either: futures, metrics, what is done to calls in flight, of which there are none
here, and the alarm where nothing waits, or since a restart as long as the original has not been asked for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bookstand.delivery.tracker.bucket.key import MalformedBucketPropertyError, parse_key
from bookstand.storage.format.position import Position
from tests.replay.delayed_driver import Driver
from tests.replay.delayed_driver import goes_singly as goes_singly_of_all
from tests.replay.delayed_driver import recorded as recorded_of_all
from tests.replay.delayed_lockstep import MissingError
from tests.replay.delayed_stands import Settings

Line = dict[str, Any]
Answer = dict[str, Any]

UNTOLD = ("hold", "unhold", "release", "future", "heal", "fail", "metrics", "reopen")
"""Operations that are answered by nothing to be compared but the state."""

_RULE = re.compile(r"\[\[(\d+) \+ i // (\d+), i % (\d+), (\d+) \+ \(i \* (\d+)\) % (\d+)\] for i in range\((\d+)\)\]")
"""How a recording tells of so many messages that it does not list them."""


CLOSED = ("IllegalReferenceCountException", "NullPointerException")
"""What refuses after a close is an exception of another name here."""

TOUCH_THE_ALARM = ("get_scheduled", "has_available", "reset_tick")


class _Anything:
    """What is not compared."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "anything"


ANYTHING = _Anything()


def goes_singly(ops: list[Line]) -> bool:
    """Also where something may be trimmed within a batch, of which what waits already is found out before."""
    return goes_singly_of_all(ops) or any(op["op"] == "mark_delete" for op in ops)


def marked(ops: list[Line], most_buckets: int) -> list[Line]:
    """The operations, and of each whether the original has had as many buckets as there may be, ``crowded``; whether
    the alarm means something, which it does until then, but not after a restart, when the original sets none until it
    is asked for something; and where a snapshot is named by its id, the property that it was created for, ``about``."""
    meaningful, crowded, buckets, found = True, False, 0, []
    names: dict[str, str] = {}
    for op in map(_spelled_out, ops):
        names.update(
            {str(one["id"]): one["key"] for one in op.get("io", ()) if one["call"] == "create" and "id" in one}
        )
        # Some may have become one before the operation ends.
        created = sum(one["call"] == "create" for one in op.get("io", ()))
        crowded = crowded or 0 < most_buckets <= buckets + created
        buckets = len(op.get("buckets", range(buckets)))
        if op["op"] == "reopen":
            meaningful = False
        elif "timer" in op or op["op"] in TOUCH_THE_ALARM:
            meaningful = True
        about = names.get(str(op.get("id", op.get("value"))))
        found.append({**op, "alarm": meaningful and not crowded, "crowded": crowded, "about": about})
    return found


def _spelled_out(op: Line) -> Line:
    if "messages_rule" not in op:
        return op
    match = _RULE.fullmatch(op["messages_rule"])
    if match is None:
        raise MissingError(f"messages by the rule {op['messages_rule']}")
    ledger, each, entries, time, stride, span, count = map(int, match.groups())
    messages = [[ledger + i // each, i % entries, time + i * stride % span] for i in range(count)]
    result = op["result"]
    return {**op, "messages": messages, "result": "1" * count if result == "all 1" else result}


def recorded(op: Line) -> Answer:
    answer = recorded_of_all(op)
    if answer.get("refused") in CLOSED:
        answer["refused"] = "closed"
    if "timer" in answer and not (answer["count"] and op.get("alarm", True)):
        answer["timer"] = ANYTHING
    if op["op"] in ("properties", "snapshots") and op.get("crowded"):
        # Which buckets become one, and when, is a policy.
        answer["result"] = ANYTHING
    elif op["op"] in UNTOLD:
        answer.pop("result", None)
    elif op["op"] == "properties":
        answer["result"] = buckets_named(op["result"])
    elif op["op"] == "snapshots":
        answer["result"] = len(op["result"])
    return answer


def buckets_named(names: Iterable[str]) -> list[list[int] | str]:
    """Sort the ranges of ledgers that properties name, and after them the malformed names as they are."""
    ranges: list[list[int]] = []
    malformed: list[str] = []
    for name in names:
        try:
            key = parse_key(name)
        except MalformedBucketPropertyError:
            malformed.append(name)
        else:
            if key is not None:
                ranges.append(list(key))
    return [*sorted(ranges), *sorted(malformed)]


class BucketDriver(Driver):
    def __init__(self, stand: Any, settings: Settings, singly: bool) -> None:
        super().__init__(stand, singly)
        self.buckets = stand
        self.settings = settings

    def _contains(self, op: Line) -> Answer:
        return {"result": self.buckets.contains(Position(op["ledger"], op["entry"]))}

    def _contains_many(self, op: Line) -> Answer:
        found = [self.buckets.contains(Position(*one)) for one in op["positions"]]
        return {"result": "".join("01"[one] for one in found)}

    def _mark_delete(self, op: Line) -> None:
        self.buckets.mark_delete(Position(op["ledger"], op["entry"]))

    def _properties(self, op: Line) -> Answer:
        return {"result": buckets_named(self.buckets.property_names())}

    def _snapshots(self, op: Line) -> Answer:
        return {"result": self.buckets.snapshots()}

    def _reopen(self, op: Line) -> None:
        settings = {**self.settings, **op.get("settings", {})}
        self.closed = True
        self.buckets.reopen(settings, op["mode"] == "crash")
        self.closed = False

    def _fail(self, op: Line) -> None:
        self.buckets.fail(op["call"], op["error"], op["times"])

    def _heal(self, op: Line) -> None:
        self.buckets.heal()

    def _hold(self, op: Line) -> None:
        self.buckets.hold(op["calls"])

    def _unhold(self, op: Line) -> None:
        self.buckets.unhold()

    def _release(self, op: Line) -> None:
        self.buckets.release(op.get("n"), op.get("call"))

    def _behind(self, op: Line) -> None:
        getattr(self.buckets, op["op"])(op)

    _set_property = _remove_property = _move_property = _behind
    _put_snapshot = _drop_snapshot = _truncate_snapshot = _behind

    def _untold(self, op: Line) -> None:
        """What is not compared is not asked for."""

    _future = _metrics = _untold
