"""What all kinds of campaigns have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class KindUnavailableError(Exception):
    """A round of the kind cannot be run on this machine; the message says what it needs."""


class Done(NamedTuple):
    """One round: how many cases it had, and what went wrong in them."""

    cases: int
    problems: list[str]


class Kind(NamedTuple):
    """``round`` runs the cases that a seed stands for, the same ones each time."""

    round: Callable[[int], Done]


@dataclass
class Tally:
    cases: int = 0
    rounds: int = 0
    seconds: float = 0.0
    seeds: list[int] = field(default_factory=list)
    skipped: str = ""

    def add(self, seed: int, done: Done) -> None:
        self.cases += done.cases
        if done.problems:
            self.seeds.append(seed)

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "cases": self.cases,
            "failures": len(self.seeds),
            "seeds": self.seeds,
            "seconds": round(self.seconds, 1),
        }
        return told | {"skipped": self.skipped} if self.skipped else told
