"""The area ``bookkeeper``: traces of the client, and samples of entries, metadata and codes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.replay import compare, samples
from tests.replay.backends import StoreBackend
from tests.replay.lockstep import replay as replay_scenario
from tests.replay.outcome import Outcome
from tests.replay.traces import files_of, is_trace, scenarios

FIELDS = f"Traces. {compare.__doc__}\nSamples. {samples.__doc__}"


def replay(paths: list[Path]) -> Iterator[Outcome]:
    files = files_of(paths)
    for path in files:
        if is_trace(path):
            for scenario in scenarios(path):
                yield replay_scenario(scenario, StoreBackend)
    yield from samples.compare_folder(files)
