"""The differences to the recordings of Pulsar's negative acknowledgments that are argued.

What each stands for is a switch of the plain model, tests/model/nacks.py; a recording is argued only if the model with
that switch gives it to the last field. The reasons are in docs/differences.md, under the same names.
"""

from __future__ import annotations

from tests.model.nacks import ANY_ID, CHUNKS_ASIDE, FAILS_IN_FLIGHT, LATER_WAITS, OPEN_AFTER_CLOSE, SHIFT_WRAPS
from tests.replay.delayed_lockstep import Rule

RULES: tuple[Rule, ...] = (
    Rule(LATER_WAITS, "15", ("nack",)),
    Rule(OPEN_AFTER_CLOSE, "15", ("nack",)),
    Rule(FAILS_IN_FLIGHT, "15", ("fire_stale",)),
    Rule(CHUNKS_ASIDE, "15", ("fire", "fire_stale")),
    # No tracker can be made, so that it shows in whatever comes first.
    Rule(SHIFT_WRAPS, "15", ("nack", "clock", "count", "fire")),
    Rule(ANY_ID, "negative acks", ("nack",)),
)
"""Why each is what it is: docs/differences.md."""

TRIM = "shift-wraps"
"""Of the goldens of buckets: bits outside of 0 to 62."""
