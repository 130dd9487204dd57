"""The model of the commit protocol: all its states, and recorded operations of real processes as ways through it."""

from __future__ import annotations

from tests.soak.kinds import Done, Kind
from tests.storage.protocol.enumeration import enumerate_states


def enumeration_round(seed: int) -> Done:
    """All states, without bounds: every seed stands for the same ones."""
    found = enumerate_states()
    problems = [] if found.violation is None else [found.violation]
    return Done(found.states, problems, {"steps": found.steps, "depth": found.depth})


KIND = Kind(enumeration_round)
