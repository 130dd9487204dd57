"""Rounds of the campaign of forks, and defects that it has to find."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.soak import forks
from tests.soak.kinds import Done

FOUND_AS = {
    "inherited objects are used": {"hang", "answer"},
    "folders' locks remain": {"inherited"},
    "markers remain locked": {"inherited"},
    "temporary folders are removed": {"harm"},
    "inherited environments are open": {"own store"},
    "inherited stores are open": {"hang", "own store"},
    "locks of the module remain": {"hang", "own store"},
}
"""Kind of the problems that show a defect."""


def test_no_child_hangs_or_harms_its_parent(counts: Any) -> None:
    """With a server in the parent, and without."""
    cases, problems = counts.run("forks", forks.KIND, range(2))
    assert not problems, "\n".join(problems)
    assert cases == 2 * forks.CASES


@pytest.mark.long
def test_every_defect_is_found() -> None:
    def run(defect: str) -> Done:
        return forks.run(0, forks.CASES, defect, patience=5)

    assert FOUND_AS.keys() == forks.DEFECTS.keys()
    with ThreadPoolExecutor(2) as threads:
        for (defect, kinds), done in zip(FOUND_AS.items(), threads.map(run, FOUND_AS), strict=True):
            assert {problem.partition(":")[0] for problem in done.problems} & kinds, (defect, done.problems)
