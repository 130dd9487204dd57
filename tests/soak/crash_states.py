"""Power cuts at every moment of everything that writes: the kinds ``crash_states`` and ``crash_states_observed``."""

from __future__ import annotations

from bookstand.testing.crash import syscall_recorder
from bookstand.testing.crash.lab import CrashFoundError, CrashLab
from tests.soak.crash_promises import check
from tests.soak.crash_work import STEPS, Mixture
from tests.soak.kinds import Done, Kind, KindUnavailableError

# So many states of each workload at most: more workloads find more than more states of one.
STATES = 1500


def explore(workload: Mixture, recorder: str, limit: int = STATES) -> Done:
    with CrashLab(seed=workload.seed) as lab:
        recording = lab.record(workload, recorder)
        try:
            explored = lab.explore(recording, check, limit, {"witness": workload.witness})
        except CrashFoundError as found:
            # To be repeated by the seed; the line that repeats it alone is in the message.
            return Done(found.tried, [str(found)])
    return Done(explored.states, [])


def workload_of(seed: int) -> Mixture:
    """Small seeds stand for one kind of step each, the others for mixtures."""
    names = sorted(STEPS)
    return Mixture(seed, steps=6, only=names[seed]) if seed < len(names) else Mixture(seed)


def round_of(seed: int) -> Done:
    return explore(workload_of(seed), "pages")


def observed_round_of(seed: int) -> Done:
    reason = syscall_recorder.missing()
    if reason is not None:
        raise KindUnavailableError(reason)
    return explore(workload_of(seed), "observed")


KIND = Kind(round_of)
OBSERVED = Kind(observed_round_of)
