"""Power cuts everywhere in everything that writes: nothing acknowledged is lost, and nothing is damaged."""

from __future__ import annotations

import pytest

from bookstand.testing.crash import syscall_recorder
from tests.soak import crash_states
from tests.soak.crash_work import STEPS

# One workload for each step, and mixtures.
SEEDS = range(len(STEPS) + 8)
STATES = 1700
OBSERVED_SEEDS = range(len(STEPS))
OBSERVED_STATES = 650


def name_of(seed):
    return crash_states.workload_of(seed).only or f"mixture-{seed}"


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS, ids=name_of)
def test_power_cuts(seed, counts):
    done = crash_states.explore(crash_states.workload_of(seed), "pages", STATES)
    counts.add("crash_states", done.cases, len(done.problems), [seed] if done.problems else [])
    assert not done.problems, "\n".join(done.problems)


@pytest.mark.long
@pytest.mark.parametrize("seed", OBSERVED_SEEDS, ids=name_of)
def test_power_cuts_in_what_was_observed(seed, counts):
    reason = syscall_recorder.missing()
    if reason is not None:
        pytest.skip(reason)
    done = crash_states.explore(crash_states.workload_of(seed), "observed", OBSERVED_STATES)
    counts.add("crash_states_observed", done.cases, len(done.problems), [seed] if done.problems else [])
    assert not done.problems, "\n".join(done.problems)
