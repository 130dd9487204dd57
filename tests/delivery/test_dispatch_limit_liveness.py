"""Property: a consumer that acknowledges every message drains the backlog, from any state of the cursor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.delivery.subscription_kit import MODES
from tests.soak.liveness import BEGINS, DOINGS, FORMS, Bench, Plan, bench, run

SEEDS = st.integers(0, 1 << 16)
STEPS = st.lists(st.tuples(st.sampled_from(sorted(set(DOINGS))), st.integers(1, 60), SEEDS), max_size=8)
FIRST_STEPS = st.tuples(
    st.tuples(st.just("publish"), st.integers(5, 60), SEEDS),
    st.just(("receive", 100, 0)),
    st.tuples(st.just("ack"), st.integers(10, 60), SEEDS),
)
PLANS = st.builds(
    Plan,
    mode=st.sampled_from(sorted(MODES)),
    kind=st.sampled_from(["shared", "exclusive"]),
    form=st.sampled_from(FORMS),
    per_ledger=st.sampled_from([2, 7, 1_000]),
    margin=st.integers(-5, 300),
    most_ranges=st.sampled_from([1, 2, 4, 10_000]),
    most_batches=st.sampled_from([0, 1, 3, 10_000]),
    most_inline=st.sampled_from([0, 2, 1_000]),
    max_unacked=st.sampled_from([3, 50_000]),
    consumers=st.integers(1, 2),
    steps=st.builds(lambda first, more: (*first, *more), FIRST_STEPS, STEPS),
    begin=st.sampled_from(BEGINS),
    most=st.sampled_from([1, 3, 100]),
    seed=SEEDS,
    waits=st.booleans(),
    restarts=st.integers(0, 3),
    resumes=st.booleans(),
)
# The example of PIP-299, with a restart: messages with long delays are holes between acknowledged ones.
MIXED_DELAYS = Plan(
    mode="in memory",
    kind="shared",
    form="pages",
    per_ledger=7,
    margin=60,
    most_ranges=1,
    most_batches=1,
    most_inline=0,
    max_unacked=50_000,
    consumers=1,
    steps=(
        ("publish", 60, 9),
        ("receive", 100, 0),
        ("ack", 60, 0),
        ("pass", 40, 0),
        ("receive", 100, 0),
        ("ack", 60, 0),
    ),
    begin="crash",
    most=3,
    seed=0,
    waits=True,
    restarts=1,
    resumes=False,
)
# The record has room for more ranges than a snapshot writes.
FEWER_RANGES = Plan(
    mode="in memory",
    kind="shared",
    form="long arrays",
    per_ledger=2,
    margin=13,
    most_ranges=1,
    most_batches=0,
    most_inline=2,
    max_unacked=3,
    consumers=1,
    steps=(("publish", 5, 0), ("receive", 100, 0), ("ack", 10, 0)),
    begin="restart",
    most=1,
    seed=2,
    waits=False,
    restarts=1,
    resumes=False,
)


@pytest.fixture(scope="module")
def shared_bench() -> Iterator[Bench]:
    with bench() as made:
        yield made


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@example(plan=MIXED_DELAYS)
@example(plan=FEWER_RANGES)
@given(plan=PLANS)
def test_a_consumer_that_acknowledges_what_it_gets_drains_the_backlog(shared_bench: Bench, plan: Plan) -> None:
    """Nothing is early, lost or dispatched beyond the bound, and ``entries_to_resume`` entries end the pause."""
    assert run(shared_bench, plan).problems == []
