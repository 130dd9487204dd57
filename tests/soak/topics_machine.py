"""The machine that compares a subscription with a plain model, with other examples for each seed, and longer ones."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.delivery.test_subscription_model import MACHINES
from tests.soak.kinds import Done, Kind

EXAMPLES = 10
_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=80,
    deadline=None,
    database=None,
    # A failure is told as it was found; the seed finds it again.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def one_round(seed: int, examples: int = EXAMPLES) -> Done:
    """One machine after the other has its turn."""
    machine = MACHINES[seed % len(MACHINES)]
    told = io.StringIO()
    try:
        with redirect_stdout(told):
            run_state_machine_as_test(
                hypothesis.seed(seed)(machine), settings=settings(_SETTINGS, max_examples=examples)
            )
    except Exception as error:
        steps = "\n".join(getattr(error, "__notes__", [])) or told.getvalue()
        return Done(examples, [f"{machine.__name__}: {error!r}\n{steps}"])
    return Done(examples, [])


KIND = Kind(one_round)
