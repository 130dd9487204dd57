"""Whether operations that overlapped can have happened one after the other: Wing and Gong's search.

An operation is one step or several. Each step takes effect at one moment between its begin and its end; a step that
ended before another began came before it. The search looks for an order in which every step does what it was seen to
do. What has been tried, that is the steps done and the state they left, is not tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

NEVER = 1 << 63
"""The end of what was never seen to end."""

MOST_CONFIGURATIONS = 1_000_000


class UndecidedError(Exception):
    """The search has become too long."""


@dataclass
class Step:
    """``moves`` gives every state that the step may leave of a state, none where it cannot happen there.

    An ``optional`` step may also never happen. ``after`` is the step of the same operation that has to come first.
    """

    begin: int
    end: int
    moves: Callable[[Any], Sequence[Hashable]]
    what: str
    optional: bool = False
    after: Step | None = None


def explain(steps: Sequence[Step], start: Hashable) -> list[str] | None:
    """The steps in an order that explains them, or None if there is none."""
    steps = sorted(steps, key=lambda step: step.begin)
    number = {id(step): bit for bit, step in enumerate(steps)}
    before = [None if step.after is None else number[id(step.after)] for step in steps]
    needed = sum(1 << bit for bit, step in enumerate(steps) if not step.optional)
    seen = {(0, start)}
    stack: list[tuple[int, Any, tuple[int, Any] | None]] = [(0, start, None)]
    while stack:
        done, state, path = stack.pop()
        if done & needed == needed:
            return _told(steps, path)
        for bit in reversed(_next(steps, before, done)):
            for left in steps[bit].moves(state):
                configuration = done | 1 << bit, left
                if configuration not in seen:
                    seen.add(configuration)
                    stack.append((*configuration, (bit, path)))
        if len(seen) > MOST_CONFIGURATIONS:
            raise UndecidedError(f"{len(steps)} steps have more than {MOST_CONFIGURATIONS} configurations")
    return None


def _next(steps: Sequence[Step], before: Sequence[int | None], done: int) -> list[int]:
    """Which may come next: those that begin before any that is still to come has ended."""
    earliest_end = min(
        (step.end for bit, step in enumerate(steps) if not done >> bit & 1 and not step.optional), default=NEVER
    )
    found = []
    for bit, step in enumerate(steps):
        if step.begin > earliest_end:
            break
        first = before[bit]
        if done >> bit & 1 or (first is not None and not done >> first & 1):
            continue
        if step.optional and step.end < max((s.begin for b, s in enumerate(steps) if done >> b & 1), default=0):
            # Nobody waited for it, but its time is over.
            continue
        found.append(bit)
    return found


def _told(steps: Sequence[Step], path: tuple[int, Any] | None) -> list[str]:
    order = []
    while path is not None:
        bit, path = path
        order.append(steps[bit].what)
    return order[::-1]
