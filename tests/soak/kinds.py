"""What all kinds of campaigns have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class KindUnavailableError(Exception):
    """A round of the kind cannot be run on this machine; the message says what it needs."""


class Done(NamedTuple):
    """One round: how many cases it had, and what went wrong in them."""

    cases: int
    problems: list[str]
    figures: dict[str, Any] = {}
    """What else there is to report of it; counts in a ``Counter`` are added up over the rounds."""


class Lasting(Protocol):
    """Rounds of one long campaign, which know of each other."""

    def round(self, seed: int) -> Done: ...

    def end(self) -> Done:
        """What is to be said of all of them."""


class Kind(NamedTuple):
    """``round`` runs the cases that a seed stands for, the same ones each time. ``lasting``, for so many seconds, gives
    what runs the rounds instead; or None, where it is not worth it."""

    round: Callable[[int], Done]
    lasting: Callable[[float], AbstractContextManager[Lasting | None]] | None = None


@dataclass
class Tally:
    cases: int = 0
    rounds: int = 0
    seconds: float = 0.0
    seeds: list[int] = field(default_factory=list)
    skipped: str = ""
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, seed: int, done: Done) -> None:
        self.cases += done.cases
        if done.problems:
            self.seeds.append(seed)
        if isinstance(done.figures, Counter):
            self.figures = {name: self.figures.get(name, 0) + count for name, count in done.figures.items()}
        else:
            self.figures |= done.figures

    def as_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "cases": self.cases,
            "failures": len(self.seeds),
            "seeds": self.seeds,
            "seconds": round(self.seconds, 1),
        }
        told |= {"figures": self.figures} if self.figures else {}
        return told | {"skipped": self.skipped} if self.skipped else told
