"""What jobs are made of: pieces of work that can be done anywhere, and what came of each.

A unit and a result are small, and can be written as JSON: tasks are told units and tell results. What is large stays in
files.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """``name`` is its own within a job, and what a rerun asks for. ``of`` is everything that doing it takes, and what
    it was planned on: where that is the same, so is the outcome."""

    name: str
    of: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Equal for units that have the same outcome."""
        return fingerprint([self.name, self.of])


class Result(NamedTuple):
    """``staged`` is the folder that an attempt has left, for the commit. ``failure`` says why there is nothing;
    ``problems`` what was damaged or left out."""

    unit: str
    counts: dict[str, int] = {}
    problems: tuple[str, ...] = ()
    failure: str | None = None
    staged: str | None = None
    facts: dict[str, Any] = {}
    crashed: bool = False
    """Whether the failure is one of its process, which was killed, hung or ran out of memory, disk space or files: the
    unit may succeed when it is done alone."""

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Result:
        values = json.loads(text)
        return cls(**{**values, "problems": tuple(values["problems"])})


class Part(NamedTuple):
    """A place where there is something for some units, by their names."""

    name: str
    of: dict[str, Any]
    units: tuple[str, ...]


class JobPlan(NamedTuple):
    """``units`` are done each by itself. ``joined`` are units that several places have a part in, which are read
    first. ``problems`` is what could not be planned."""

    units: list[Unit]
    joined: list[Unit] = []
    parts: list[Part] = []
    problems: tuple[str, ...] = ()


class Packed(NamedTuple):
    """What a part has for a unit, or why that cannot be told."""

    unit: str
    data: bytes
    failure: str | None = None
    problem: str | None = None
    """What of it was damaged, and is not in ``data``."""
    crashed: bool = False
    """As for a :class:`Result`."""


def fingerprint(value: object) -> str:
    """Of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
