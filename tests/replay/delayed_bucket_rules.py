"""The differences to the recordings of Pulsar's tracker on buckets that are argued.

tests/replay/delayed_original.py does what the original does, and can do without any of its surprises. A recording is
argued only if that gives it to the last field, up to the operation that is different, and if with one of the surprises
mended, and with those that are met only because of that, it gives something else in that operation and in none before:
that is the one it shows. The reasons are in docs/differences.md, under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tests.replay import delayed_surprises as surprises
from tests.replay.delayed_bucket_driver import BucketDriver, recorded
from tests.replay.delayed_lockstep import Line, Rule
from tests.replay.delayed_original_stand import OriginalStand
from tests.replay.delayed_stands import Settings

ADDS = ("add", "add_many")
TAKES = ("get_scheduled", "has_available")
STORED = ("properties", "snapshots")
KNOWN = ("contains", "contains_many")
ALARM = ("fire", "reset_tick")

BUCKET_RULES: tuple[Rule, ...] = (
    Rule(surprises.STAYS_TRACKED, "10", (*ADDS, "reopen")),
    Rule(surprises.CLEAR_LEAVES_TIMER, "12", ("clear", "fire")),
    Rule(surprises.NO_ALARM_AT_FIRST, "timers", ("fire",)),
    Rule(surprises.ALARM_AFTER_CLOSE, "4.2.4 and the later tree", ("fire_stale",)),
    Rule(surprises.IDS_ALONE, "11", (*ADDS, "contains")),
    Rule(surprises.CREATE_THAT_THROWS, "11", ADDS),
    Rule(surprises.TRIMS_WHEN_CROWDED, "5", (*ADDS, *STORED, *TAKES, *KNOWN, "reopen")),
    Rule(surprises.TRIM_FAILS, "5", (*ADDS, *STORED, *TAKES, *KNOWN, "reopen")),
    Rule(surprises.MERGE_FAILS, "5", (*ADDS, *STORED, *TAKES, *KNOWN, "reopen")),
    Rule(surprises.LOAD_FAILS_ALL, "5", (*TAKES, *ALARM)),
    Rule(surprises.CLEAR_FORGETS, "5", ("clear", *STORED, "reopen")),
    Rule(surprises.REMOVAL_IN_TWO, "1", (*ADDS, *STORED, "reopen")),
    Rule(surprises.RECOVERY_FAILS_ALL, "1", ("reopen",)),
    Rule(surprises.CREATE_IN_TWO, "7", (*ADDS, *TAKES, *STORED, *KNOWN, "reopen")),
    Rule(surprises.CALLS_IN_FLIGHT, "6", (*ADDS, *TAKES, *STORED, *KNOWN, *ALARM, "clear", "reopen")),
    Rule(surprises.MERGE_LEAVES_OUT, "2", (*ADDS, *TAKES, *KNOWN, *ALARM, "reopen")),
    Rule(surprises.LOAD_RINGS, "timers", (*ADDS, *TAKES, *ALARM)),
    Rule(surprises.GOES_ONCE_LOADED, "§2", (*ADDS, *TAKES, *STORED, *KNOWN, *ALARM, "reopen")),
    Rule(surprises.HEADS_GONE, "4.2.4 and the later tree", (*ADDS, *TAKES, *ALARM, "reopen")),
    Rule(surprises.MERGE_NEVER, "3, 4", (*ADDS, *TAKES, *STORED, *KNOWN, *ALARM, "reopen")),
    Rule(surprises.MERGE_OF_ITS_OWN, "§2", (*ADDS, *TAKES, *STORED, *KNOWN, *ALARM, "reopen")),
    Rule(surprises.MERGE_FOUR, "§2", (*ADDS, *TAKES, *STORED, *KNOWN, *ALARM, "reopen")),
    Rule(surprises.OVERLAPS, "8", ("reopen", *STORED)),
    Rule(surprises.SEALS_OVER, "8", (*ADDS, *TAKES, *STORED, *KNOWN, "reopen")),
    Rule(surprises.STALE_ALARM, "§5, #25996", (*ADDS, *TAKES, *ALARM)),
    Rule(surprises.PASSED_EARLY, "§2", TAKES),
    Rule(surprises.PASSED_TAIL, "9", (*TAKES, *STORED, *ALARM, "reopen")),
)


def argument(settings: Settings, ops: Sequence[Line]) -> tuple[Rule, ...]:
    """The surprises of either tree that the recording shows in the last operation, which is the first to differ."""
    for later in (False, True):

        def run(mended: Collection[str], later: bool = later) -> tuple[int | None, OriginalStand]:
            stand = OriginalStand(settings, later, mended)
            driver = BucketDriver(stand, settings, singly=True)
            apart = (number for number, op in enumerate(ops) if driver.apply(op) != recorded(op))
            return next(apart, None), stand

        apart, stand = run(())
        if apart is None and (shown := _shown(stand.met, run, len(ops) - 1)):
            return tuple(rule for rule in BUCKET_RULES if rule.name in shown and ops[-1]["op"] in rule.ops)
    return ()


def _shown(
    met: Collection[str], run: Callable[[Collection[str]], tuple[int | None, OriginalStand]], last: int
) -> list[str]:
    """What can be done without is left out, one after the other; the rest is shown where it makes the difference."""
    mended: list[str] = []
    shown: list[str] = []
    waiting = sorted(met)
    while waiting:
        name = waiting.pop(0)
        together = [name]
        apart, stand = run([*mended, *together])
        # Without one it may meet others, which make a difference of their own.
        while apart not in (None, last) and (others := stand.met.difference(met, mended, together)):
            together += sorted(others)
            apart, stand = run([*mended, *together])
        if apart is None:
            mended += together
            waiting[:0] = sorted(stand.met.difference(mended, shown, waiting))
        elif apart == last:
            shown.append(name)
    # Of two surprises of which either hides the other, each is shown by itself.
    return shown or [name for name in sorted(met) if run([name])[0] == last]
