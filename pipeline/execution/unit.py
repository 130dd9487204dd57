"""Units of work of a job, and their results.

Units are sent to tasks, and results are sent back. Both are small and can be encoded as JSON; bulk data is in files.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """A unit of work. ``name`` is unique within a job and selects the unit in a rerun. ``of`` has all inputs of the
    unit and the state on which it was planned: equal values give equal results."""

    name: str
    of: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """Hash of the name and the inputs. Units with equal fingerprints have equal results."""
        return fingerprint([self.name, self.of])


class Result(NamedTuple):
    """Result of a unit. ``staged`` is the folder of the attempt, for the commit. ``failure`` is the reason why the unit
    failed. ``problems`` lists damaged and skipped items."""

    unit: str
    counts: dict[str, int] = {}
    problems: tuple[str, ...] = ()
    failure: str | None = None
    staged: str | None = None
    facts: dict[str, Any] = {}
    crashed: bool = False
    """True if the process was killed, hung, or ran out of memory, disk space or file descriptors. The unit may succeed
    if it runs alone."""

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Result:
        values = json.loads(text)
        return cls(**{**values, "problems": tuple(values["problems"])})


class Part(NamedTuple):
    """A place that contains input of several units, which ``units`` lists by name."""

    name: str
    of: dict[str, Any]
    units: tuple[str, ...]


class JobPlan(NamedTuple):
    """Plan of a job. ``units`` run independently. ``joined`` units need input from several places; ``parts`` of these
    are read first. ``problems`` lists what could not be planned."""

    units: list[Unit]
    joined: list[Unit] = []
    parts: list[Part] = []
    problems: tuple[str, ...] = ()


class Packed(NamedTuple):
    """Data of a part for a unit, or the reason why the part could not be read."""

    unit: str
    data: bytes
    failure: str | None = None
    problem: str | None = None
    """Damage in the part. ``data`` is not used then."""
    crashed: bool = False
    """See :attr:`Result.crashed`."""


def fingerprint(value: object) -> str:
    """Hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
