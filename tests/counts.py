"""What the campaigns of a test session have run, by kind: written to ``build/counts.json`` when the session ends.

A test of a kind adds what it ran with the fixture ``counts``. A session in which no such test ran leaves the file as
it is, and one in which only some ran writes just those. A session of all tests fails if a campaign was too small.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.soak.kinds import Kind

REPORT = Path("build/counts.json")

ENOUGH = {
    "crash_states": 30_000,
    "crash_states_observed": 10_000,
    "damaged_files": 2_000,
    "decoder_mutations": 100_000,
    "flipped_bits": 100,
    "forks": 200,
    "histories": 200,
    "io_faults": 2_000,
    "kills": 600,
    "seeded_defects": 20,
}
"""So many cases of a kind there are at least in a session of all tests; or none, where a machine cannot run it."""


class Counts:
    """Kind -> cases, failures, and the seeds (or whatever else repeats it) of each failure."""

    def __init__(self) -> None:
        self.kinds: dict[str, dict[str, Any]] = {}

    def add(self, kind: str, cases: int, failures: int = 0, seeds: Iterable[int | str] = ()) -> None:
        """``cases`` distinct ones, also from those added before."""
        count = self.kinds.setdefault(kind, {"cases": 0, "failures": 0, "seeds": []})
        count["cases"] += cases
        count["failures"] += failures
        count["seeds"] += seeds

    def run(self, name: str, kind: Kind, seeds: Iterable[int], at_once: int = 2) -> tuple[int, list[str]]:
        """Rounds of a kind of campaign; how many cases they had, and what went wrong, each with its seed."""
        seeds = list(seeds)
        with ThreadPoolExecutor(at_once) as threads:
            done = list(zip(seeds, threads.map(kind.round, seeds), strict=True))
        failed = [seed for seed, one in done if one.problems]
        cases = sum(one.cases for _, one in done)
        self.add(name, cases, len(failed), failed)
        return cases, [f"seed {seed}: {problem}" for seed, one in done for problem in one.problems]

    def write(self, file: Path) -> None:
        if self.kinds:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(dict(sorted(self.kinds.items())), indent=2) + "\n")

    def too_few(self) -> list[str]:
        return [
            f"{kind}: {self.kinds[kind]['cases']} cases are too few, there should be {enough}"
            for kind, enough in ENOUGH.items()
            if kind in self.kinds and self.kinds[kind]["cases"] < enough
        ]

    def lines(self) -> list[str]:
        return [f"{name:<24} {one['cases']:>9} {one['failures']:>9}" for name, one in sorted(self.kinds.items())]


_COUNTS = pytest.StashKey[Counts]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_COUNTS] = Counts()


def pytest_sessionfinish(session: pytest.Session) -> None:
    counts = session.config.stash[_COUNTS]
    output = getattr(session.config, "workeroutput", None)
    if output is None:
        counts.write(session.config.rootpath / REPORT)
        if _is_whole(session.config) and counts.too_few():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    else:
        # One of several processes that share the tests: who started it writes the file.
        output["counts"] = counts.kinds


def _is_whole(config: pytest.Config) -> bool:
    """Whether all tests were to run."""
    chosen = config.option.keyword or config.option.markexpr or config.getoption("lf", False)
    return config.args_source == pytest.Config.ArgsSource.TESTPATHS and not chosen


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    counts = node.config.stash[_COUNTS]
    for kind, one in getattr(node, "workeroutput", {}).get("counts", {}).items():
        counts.add(kind, one["cases"], one["failures"], one["seeds"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = terminalreporter.config.stash[_COUNTS].lines()
    if lines:
        terminalreporter.section("campaigns")
        terminalreporter.line(f"{'kind':<24} {'cases':>9} {'failures':>9}")
        for line in lines:
            terminalreporter.line(line)
        if _is_whole(terminalreporter.config):
            for line in terminalreporter.config.stash[_COUNTS].too_few():
                terminalreporter.line(f"FAILED {line}", red=True)


@pytest.fixture(scope="session")
def counts(pytestconfig: pytest.Config) -> Counts:
    return pytestconfig.stash[_COUNTS]
