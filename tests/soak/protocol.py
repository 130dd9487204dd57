"""The model of the commit protocol: all its states, and what real processes did as ways through it.

``protocol`` enumerates the states, ``protocol_traces`` runs histories of two processes under the shim.
"""

from __future__ import annotations

from tests.soak.kinds import Done, Kind
from tests.soak.victims import shared_library
from tests.storage.protocol.enumeration import enumerate_states
from tests.storage.protocol.histories import run

HISTORIES = 100


def enumeration_round(seed: int) -> Done:
    """All states, without bounds: every seed stands for the same ones."""
    found = enumerate_states()
    problems = [] if found.violation is None else [found.violation]
    return Done(found.states, problems, {"steps": found.steps, "depth": found.depth})


def traces_round(seed: int, histories: int = HISTORIES) -> Done:
    return Done(*run(shared_library(), seed, histories))


KIND = Kind(enumeration_round)
TRACES = Kind(traces_round)
