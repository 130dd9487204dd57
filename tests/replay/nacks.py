"""The area ``nacks``: scenarios of negative acknowledgments and goldens; see tests/replay/delayed_lockstep.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bookstand.delivery.time_index.index import TimeIndex
from bookstand.errors import IncorrectParameterError
from tests.model.delayed import Refused
from tests.replay import delayed_lockstep, nacks_driver
from tests.replay.delayed_driver import scenarios
from tests.replay.nacks_driver import Driver, Model, Ours, Refusing, Stand, our_backoff, recorded
from tests.replay.nacks_rules import RULES, TRIM
from tests.replay.outcome import Outcome
from tests.replay.traces import files_of

FIELDS = f"{nacks_driver.__doc__}\n{delayed_lockstep.__doc__}"


def replay(paths: list[Path]) -> Iterator[Outcome]:
    for path in files_of(paths):
        for line in scenarios(path, {"id"}):
            outcome = compare(line)
            if outcome is None:
                break
            yield outcome


def compare(line: dict[str, Any]) -> Outcome | None:
    """None for a line of something else: the other recordings of the same folder have ids, too."""
    if "ops" in line and "tracker" not in line["settings"]:
        return replay_scenario(line)
    if "multiplier" in line:
        return _backoff(line)
    if "trim" in line:
        return _trim(line)
    return None


def replay_scenario(scenario: dict[str, Any], stand: Callable[[dict[str, Any]], Stand] = Ours) -> Outcome:
    settings = scenario["settings"]

    def driver(make: Callable[[], Stand]) -> delayed_lockstep.Driver:
        try:
            return Driver(make())
        except Refused as refused:
            return Refusing(refused.kind)

    def model(surprises: Iterable[str]) -> delayed_lockstep.Driver:
        return driver(lambda: Model(settings, frozenset(surprises)))

    candidate = driver(lambda: stand(settings))
    return delayed_lockstep.replay(scenario["id"], scenario["ops"], recorded, candidate, model, RULES)


def _backoff(line: dict[str, Any]) -> Outcome:
    try:
        backoff = our_backoff(line)
    except IncorrectParameterError as error:
        return Outcome(
            line["id"], "equal" if "throws" in line else "different", f"refused: {error}" * ("throws" not in line)
        )
    if "throws" in line:
        return Outcome(line["id"], "different", f"not refused: {line['throws']}")
    got = [[count, backoff.next(count)] for count, _ in line["next"]]
    wrong = [
        f"next({count}): expected {one}, got {other}"
        for (count, one), (_, other) in zip(line["next"], got, strict=True)
        if one != other
    ]
    return Outcome(line["id"], "different" if wrong else "equal", "; ".join(wrong))


def _trim(line: dict[str, Any]) -> Outcome:
    try:
        index = TimeIndex(line["bits"])
    except IncorrectParameterError as error:
        # What Java's shift by six bits of the number gives: no slip of the recording.
        wrapped = all(trimmed == time & -(1 << line["bits"] % 64) for time, trimmed in line["trim"])
        if not wrapped or 0 <= line["bits"] <= 62:
            return Outcome(line["id"], "different", f"refused: {error}")
        return Outcome(line["id"], "argued", f"{TRIM}: {line['bits']} bits are refused: {error}")
    wrong = [f"{time}: expected {one}, got {index.key(time)}" for time, one in line["trim"] if index.key(time) != one]
    return Outcome(line["id"], "different" if wrong else "equal", "; ".join(wrong))
