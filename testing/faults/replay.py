"""Faults of one test, optionally replayed from the environment."""

from __future__ import annotations

from bookstand.testing.clock import VirtualClock
from bookstand.testing.faults.faults import Faults
from bookstand.testing.faults.rules import Rule

BEGINNING = 1_700_000_000_000
"""Initial time of every test's clock, in milliseconds since the epoch; constant across runs."""


def faults_of_a_test(seed: int) -> Faults:
    """Create the faults of a test, on a virtual clock: those in BOOKSTAND_FAULTS if it is set, otherwise none."""
    clock = VirtualClock(BEGINNING, auto=True)
    told = _ToldFaults.from_environment(clock=clock)
    if told is None:
        return Faults(seed, clock)
    told.told = list(told.rules)
    return told


class _ToldFaults(Faults):
    """Replayed rules. When the test creates the same rules again, they replace the replayed ones."""

    told: list[Rule]

    def _add(self, rule: Rule) -> Rule:
        for other in getattr(self, "told", ()):
            if str(other) == str(rule):
                self.told.remove(other)
                self.remove(other)
                break
        return super()._add(rule)
