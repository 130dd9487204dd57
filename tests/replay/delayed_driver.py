"""Recorded scenarios of trackers of delayed messages. Compared are, operation by operation, what it answered (whether
messages are tracked, positions, how many alarms rang and how often the dispatcher was woken), refusals, how many are
tracked, and what time the alarm is set to. Not compared: memory, the alarms within one operation but the last, and
anything of storage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bookstand.storage.format.position import Position
from tests.model.delayed import Refused
from tests.replay.delayed_lockstep import MissingError
from tests.replay.delayed_stands import Messages, Stand
from tests.replay.traces import SUFFIXES, open_text

Line = dict[str, Any]
Answer = dict[str, Any]

KINDS = {"IllegalArgumentException": "argument"}
"""What refuses an argument is an exception of another name here."""


def scenarios(path: Path, keys: set[str]) -> Iterator[Line]:
    """The lines of a file of which the first has these keys; none of any other file."""
    if not path.name.endswith(SUFFIXES):
        return
    with open_text(path) as lines:
        for number, text in enumerate(line for line in lines if line.strip()):
            try:
                value = json.loads(text)
            except ValueError:
                return
            if number == 0 and not (isinstance(value, dict) and keys <= value.keys()):
                return
            yield value


def recorded(op: Line) -> Answer:
    answer: Answer = {name: op[name] for name in ("result", "reads") if name in op and "throws" not in op}
    if "throws" in op:
        answer["refused"] = refusal(op)
    if "state" in op:
        answer["count"], answer["timer"] = op["state"][0], op["state"][2]
    return answer


def refusal(op: Line) -> str:
    first: str = op["throws"].partition(" <- ")[0].partition(":")[0]
    return KINDS.get(first, first)


def goes_singly(ops: list[Line]) -> bool:
    """Whether it matters if messages are added one by one: where a cancelled alarm rings, which a batch may not have
    set, and where a batch is refused, of which the original has added what came before."""
    return any(
        op["op"] in ("fire_stale", "fire_cancelled")
        or "throws" in op
        or any(min(ledger, entry) < 0 for ledger, entry, _ in op.get("messages", ()))
        for op in ops
    )


class Driver:
    """``singly``: batches are added one by one, as in the recording; see :func:`goes_singly`."""

    def __init__(self, stand: Stand, singly: bool) -> None:
        self.stand = stand
        self.singly = singly
        self.closed = False

    def apply(self, op: Line) -> Answer:
        handler = getattr(self, f"_{op['op']}", None)
        if handler is None:
            raise MissingError(f"operation {op['op']}")
        try:
            answer: Answer = handler(op) or {}
        except Refused as refused:
            answer = {"refused": refused.kind}
        if not self.closed:
            answer["count"], answer["timer"] = self.stand.state()
        return answer

    def _open(self, op: Line) -> None:
        """The tracker is there from the start."""

    def _clock(self, op: Line) -> None:
        self.stand.move_clock(op["ms"])

    def _add(self, op: Line) -> Answer:
        return {"result": self.stand.add(Position(op["ledger"], op["entry"]), op["deliver_at"])}

    def _add_many(self, op: Line) -> Answer:
        messages: Messages = [(Position(ledger, entry), time) for ledger, entry, time in op["messages"]]
        if self.singly:
            tracked = [self.stand.add(position, time) for position, time in messages]
        else:
            tracked = self.stand.add_many(messages)
        return {"result": "".join("01"[one] for one in tracked)}

    def _get_scheduled(self, op: Line) -> Answer:
        return {"result": [list(position) for position in self.stand.pop_due(op["max"])]}

    def _has_available(self, op: Line) -> Answer:
        return {"result": self.stand.has_available()}

    def _should_pause(self, op: Line) -> Answer:
        return {"result": self.stand.should_pause()}

    def _fire(self, op: Line) -> Answer:
        rang, woken = self.stand.fire()
        return {"result": rang, "reads": woken}

    def _fire_stale(self, op: Line) -> Answer:
        there, woken = self.stand.fire_stale()
        return {"result": there, "reads": woken}

    def _fire_cancelled(self, op: Line) -> Answer:
        return {"result": self.stand.fire_cancelled(), "reads": 0}

    def _reset_tick(self, op: Line) -> None:
        self.stand.reset_tick(op["ms"])

    def _clear(self, op: Line) -> None:
        self.stand.clear()

    def _close(self, op: Line) -> None:
        self.stand.close()
        self.closed = True
