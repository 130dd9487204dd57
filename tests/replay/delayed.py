"""The area ``delayed``: scenarios of trackers of delayed messages; see tests/replay/delayed_lockstep.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.replay import delayed_driver, delayed_lockstep
from tests.replay.delayed_driver import Driver, goes_singly, recorded, scenarios
from tests.replay.delayed_rules import RULES
from tests.replay.delayed_stands import TRACKERS, ModelStand, Settings, Stand
from tests.replay.outcome import Outcome
from tests.replay.traces import files_of

FIELDS = f"{delayed_driver.__doc__}\n{delayed_lockstep.__doc__}"
KEYS = {"id", "settings", "ops", "final_properties"}
ALL_TRACKERS = ("in_memory", "bucket")


def replay(paths: list[Path], tracker: str | None = None) -> Iterator[Outcome]:
    """``tracker``: the scenarios of that one alone."""
    for path in files_of(paths):
        for scenario in scenarios(path, KEYS):
            if tracker in (None, scenario["settings"]["tracker"]):
                yield replay_scenario(path.name.partition(".")[0], scenario)


def replay_scenario(
    file: str, scenario: dict[str, Any], trackers: dict[str, Callable[[Settings], Stand]] = TRACKERS
) -> Outcome:
    settings, ops = scenario["settings"], scenario["ops"]
    name = f"{file}:{scenario['id']}"
    tracker = trackers.get(settings["tracker"])
    if tracker is None:
        missing = f"the tracker {settings['tracker']!r} is not there (--tracker in_memory leaves its scenarios out)"
        return Outcome(name, "different", f"missing: {missing}")
    singly = goes_singly(ops)

    def model(surprises: Iterable[str]) -> Driver:
        return Driver(ModelStand(settings, frozenset(surprises)), singly)

    return delayed_lockstep.replay(name, ops, recorded, Driver(tracker(settings), singly), model, RULES)
