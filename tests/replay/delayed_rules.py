"""The differences to the recordings of Pulsar's trackers of delayed messages that are argued.

What each stands for is a switch of the plain model, tests/model/delayed.py; a recording is argued only if the model
with that switch gives it to the last field. The reasons are in docs/differences.md, under the same names.
"""

from __future__ import annotations

from tests.model.delayed import (
    CLEAR_LEAVES_TIMER,
    IDS_OF_32_BITS,
    KEY_CAP,
    NEGATIVE_IDS,
    STAYS_TRACKED,
    TWO_KEYS,
    WIDTH_STAYS,
)
from tests.replay.delayed_lockstep import Rule

ADDS = ("add", "add_many")
# A key that is too many or too few shows in counts, in what is given out, in what the alarm is set to, and in whether
# there is anything.
KEYS = (*ADDS, "get_scheduled", "has_available", "should_pause", "fire", "reset_tick")

RULES: tuple[Rule, ...] = (
    Rule(TWO_KEYS, "13", ADDS),
    Rule(STAYS_TRACKED, "10", ADDS),
    Rule(WIDTH_STAYS, "13", KEYS),
    Rule(KEY_CAP, "14", KEYS),
    Rule(CLEAR_LEAVES_TIMER, "12", ("clear",)),
    Rule(NEGATIVE_IDS, "11", ADDS),
    Rule(IDS_OF_32_BITS, "4.2.4 and the later tree", ADDS),
)
