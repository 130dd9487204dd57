"""A short campaign beside readers that stall and die, and a defect that it has to find."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.soak import endurance

DEAF = """
import lmdb

class Environment:
    def __init__(self, *arguments, **options):
        self._real = real(*arguments, **options)

    def __getattr__(self, name):
        return getattr(self._real, name)

    def reader_check(self):
        return 0

real, lmdb.open = lmdb.open, Environment
"""


@pytest.mark.long
def test_a_round(counts: Any) -> None:
    done = endurance.one_round(1)
    counts.add("endurance", done.cases, len(done.problems))
    assert done.cases
    assert done.problems == []


@pytest.mark.long
def test_slots_that_dead_readers_keep_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(endurance, "MOST_SLOTS", 2)
    with endurance.campaign(1, endurance.SHORT_BACKLOG) as running:
        rounds = (running.round(seed, 0.5).problems for seed in range(40))
        problems = next(filter(None, rounds), [])
    assert "reader slots" in problems[0]


@pytest.mark.parametrize(
    ("sample", "problem"),
    [({"file_bytes": 201}, "twice|times"), ({"free_pages": 6}, "free pages"), ({"slots": 13}, "reader slots")],
)
def test_each_bound_is_checked(sample: dict[str, int], problem: str) -> None:
    campaign = endurance.Campaign.__new__(endurance.Campaign)
    campaign._backlog = endurance.BACKLOG
    good = {"file_bytes": 200, "live_bytes": 100, "free_pages": 5, "pages": 5, "slots": 12}
    assert campaign._problems(good) == []
    (found,) = campaign._problems(good | sample)
    assert any(word in found for word in problem.split("|"))
