"""The area ``delayed``: scenarios of trackers of delayed messages; see tests/replay/delayed_lockstep.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.replay import delayed_bucket_driver, delayed_driver, delayed_lockstep
from tests.replay.delayed_bucket_driver import BucketDriver, marked
from tests.replay.delayed_bucket_rules import argument
from tests.replay.delayed_bucket_stands import BucketModelStand, BucketStand
from tests.replay.delayed_driver import Driver, goes_singly, recorded, scenarios
from tests.replay.delayed_lockstep import MissingError
from tests.replay.delayed_rules import RULES
from tests.replay.delayed_stands import TRACKERS as IN_MEMORY
from tests.replay.delayed_stands import ModelStand, Settings, Stand
from tests.replay.outcome import Outcome
from tests.replay.traces import files_of

FIELDS = f"{delayed_driver.__doc__}\n{delayed_bucket_driver.__doc__}\n{delayed_lockstep.__doc__}"
TRACKERS: dict[str, Callable[[Settings], Stand]] = {**IN_MEMORY, "bucket": BucketStand}
KEYS = {"id", "settings", "ops", "final_properties"}
ALL_TRACKERS = ("in_memory", "bucket")


def replay(paths: list[Path], tracker: str | None = None) -> Iterator[Outcome]:
    """``tracker``: the scenarios of that one alone."""
    for path in files_of(paths):
        for scenario in scenarios(path, KEYS):
            if tracker in (None, scenario["settings"]["tracker"]):
                yield replay_scenario(path.name.partition(".")[0], scenario)


def replay_scenario(
    file: str, scenario: dict[str, Any], trackers: Mapping[str, Callable[[Settings], Stand]] = TRACKERS
) -> Outcome:
    settings, ops = scenario["settings"], scenario["ops"]
    name = f"{file}:{scenario['id']}"
    tracker = trackers.get(settings["tracker"])
    if tracker is None:
        missing = f"the tracker {settings['tracker']!r} is not there (--tracker in_memory leaves its scenarios out)"
        return Outcome(name, "different", f"missing: {missing}")
    if settings["tracker"] == "bucket":
        return _replay_buckets(name, settings, ops, tracker)
    singly = goes_singly(ops)

    def model(surprises: Iterable[str]) -> Driver:
        return Driver(ModelStand(settings, frozenset(surprises)), singly)

    return delayed_lockstep.replay(name, ops, recorded, Driver(tracker(settings), singly), model, RULES)


def _replay_buckets(
    name: str, settings: Settings, ops: list[dict[str, Any]], tracker: Callable[[Settings], Stand]
) -> Outcome:
    singly = delayed_bucket_driver.goes_singly(ops)
    stand = tracker(settings)
    try:
        candidate = BucketDriver(stand, settings, singly)
        model = BucketDriver(BucketModelStand(settings), settings, singly)
        try:
            lines = marked(ops, settings["max_num_buckets"])
        except MissingError as missing:
            return Outcome(name, "different", f"missing: {missing}")
        argue = partial(argument, settings)
        return delayed_lockstep.compare(name, lines, delayed_bucket_driver.recorded, candidate, model, argue)
    finally:
        if isinstance(stand, BucketStand):
            stand.end()
