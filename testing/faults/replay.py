"""The faults of one test, which may be told from outside."""

from __future__ import annotations

from bookstand.testing.clock import VirtualClock
from bookstand.testing.faults.faults import Faults
from bookstand.testing.faults.rules import Rule

BEGINNING = 1_700_000_000_000
"""Where the clock of every test stands at first, in milliseconds since the epoch: the same in every run."""


def faults_of_a_test(seed: int) -> Faults:
    """Faults whose delays cost no time: those of BOOKSTAND_FAULTS where that is set, and otherwise none yet."""
    clock = VirtualClock(BEGINNING, auto=True)
    told = _ToldFaults.from_environment(clock=clock)
    if told is None:
        return Faults(seed, clock)
    told.told = list(told.rules)
    return told


class _ToldFaults(Faults):
    """Rules from a replay of the same test, which will make them again: those must not happen twice."""

    told: list[Rule]

    def _add(self, rule: Rule) -> Rule:
        for other in getattr(self, "told", ()):
            if str(other) == str(rule):
                self.told.remove(other)
                self.remove(other)
                break
        return super()._add(rule)
