"""Power cuts everywhere in everything that writes: nothing acknowledged is lost, and nothing is damaged."""

from __future__ import annotations

import pytest

from bookstand.testing import observer
from tests.soak import crash_states
from tests.soak.crash_work import STEPS

# All in one process, that the last of them can count.
pytestmark = pytest.mark.xdist_group("crash campaign")

# One workload for each step, and mixtures.
SEEDS = range(len(STEPS) + 8)
STATES = 1700
OBSERVED_SEEDS = range(len(STEPS))
OBSERVED_STATES = 650
ENOUGH, ENOUGH_OBSERVED = 30_000, 10_000


@pytest.fixture(scope="session")
def explored():
    """States by recorder and seed."""
    return {"pages": {}, "observed": {}}


def name_of(seed):
    return crash_states.workload_of(seed).only or f"mixture-{seed}"


@pytest.mark.parametrize("seed", SEEDS, ids=name_of)
def test_power_cuts(seed, counts, explored):
    done = crash_states.explore(crash_states.workload_of(seed), "pages", STATES)
    counts.add("crash_states", done.cases, len(done.problems), [seed] if done.problems else [])
    assert not done.problems, "\n".join(done.problems)
    explored["pages"][seed] = done.cases


@pytest.mark.parametrize("seed", OBSERVED_SEEDS, ids=name_of)
def test_power_cuts_in_what_was_observed(seed, counts, explored):
    reason = observer.missing()
    if reason is not None:
        pytest.skip(reason)
    done = crash_states.explore(crash_states.workload_of(seed), "observed", OBSERVED_STATES)
    counts.add("crash_states_observed", done.cases, len(done.problems), [seed] if done.problems else [])
    assert not done.problems, "\n".join(done.problems)
    explored["observed"][seed] = done.cases


@pytest.mark.parametrize(
    ("recorder", "seeds", "enough"), [("pages", SEEDS, ENOUGH), ("observed", OBSERVED_SEEDS, ENOUGH_OBSERVED)]
)
def test_there_were_enough(recorder, seeds, enough, explored):
    if explored[recorder].keys() != set(seeds):
        pytest.skip("not all of them ran")
    assert sum(explored[recorder].values()) >= enough
