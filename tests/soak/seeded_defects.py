"""Whether the other campaigns and tests would notice if the library were broken: the kind ``seeded_defects``.

``defects.py`` has the ways to break it, none of which any of these suites was written for. Each defect meets the suites
assigned to it, the cheapest first, until one of them catches it, each time in a process of its own: one that hangs, or
is ended by a signal, has caught it. The same suites, of the same sizes, pass without a defect.

``python -m tests.soak.seeded_defects [DEFECT...]`` prints the table of what was caught by what.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit import ROOT, own_environment
from tests.soak import defects
from tests.soak.kinds import Done, Kind, KindUnavailableError

HUNG = 280
"""Seconds after which a suite is taken to hang; those that notice it themselves are quicker."""

RECORDINGS = ROOT / "tests" / "data" / "bookkeeper"


class Found(NamedTuple):
    """What a suite came to: how many cases it ran (states, tests, scenarios, …), and the first problem."""

    cases: int
    problem: str | None = None


class Suite(NamedTuple):
    unit: str
    run: Callable[[], Found]


# -- suites ----------------------------------------------------------------------------------------------------------


STATES = 300
"""Of the crash campaign, for each suite of it."""


def _done(done: Done) -> Found:
    return Found(done.cases, done.problems[0] if done.problems else None)


def _replayed(name: str) -> Found:
    from tests.replay.backends import StoreBackend
    from tests.replay.lockstep import replay
    from tests.replay.traces import scenarios

    count = 0
    for scenario in scenarios(RECORDINGS / f"{name}.jsonl.gz"):
        count += 1
        outcome = replay(scenario, StoreBackend)
        if outcome.verdict == "different":
            return Found(count, f"{outcome.name}: {outcome.detail}")
    return Found(count)


def _pytest(file: str, without: str = "", only: str = "") -> Found:
    import pytest

    class Counting:
        tests = 0
        problem: str | None = None

        def pytest_runtest_logreport(self, report: Any) -> None:
            self.tests += report.when == "call"
            if report.failed and self.problem is None:
                self.problem = f"{report.nodeid}: {report.longreprtext[-1500:]}"

    counting = Counting()
    with _place() as folder:
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder}/tests"]
        # Hypothesis was loaded before pytest could rewrite it, which nothing here needs.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-k", only or f"not {without}"] if only or without else []
        status = pytest.main([*options, str(ROOT / "tests" / file)], plugins=[counting])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit(f"pytest ended with {status}")
    if not counting.tests:
        raise KindUnavailableError(f"the tests of {file} are skipped here")
    return Found(counting.tests, counting.problem)


def _crash_states(step: str, recorder: str = "pages", witness: bool = False, states: int = STATES) -> Found:
    from bookstand.testing.crash import syscall_recorder
    from tests.soak import crash_states
    from tests.soak.crash_work import STEPS, Mixture

    if recorder == "observed" and (reason := syscall_recorder.missing()) is not None:
        raise KindUnavailableError(reason)
    workload = Mixture(sorted(STEPS).index(step), steps=6, only=step, witness=witness)
    return _done(crash_states.explore(workload, recorder, states))


def _machine(examples: int) -> Found:
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    from bookstand.testing import LedgerMachine

    count = 0
    with _place() as folder:

        class Counted(LedgerMachine):
            def make_folder(self) -> Path:
                nonlocal count
                count += 1
                return Path(tempfile.mkdtemp(dir=folder))

        some = settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(Counted, settings=some)
        except Exception as error:
            return Found(count, repr(error))
    return Found(count)


def _histories(seed: int, rounds: int, each: int = 4) -> Found:
    from tests.soak import histories

    # What it keeps of a failure goes with the folder of this fork.
    histories._place = tempfile.gettempdir
    count = 0
    for number in range(rounds):
        done = histories.run(seed + number, each)
        count += done.cases
        if done.problems:
            return Found(count, done.problems[0])
    return Found(count)


def _damaged_files(seed: int, rounds: int, each_kind: int, *kinds: str) -> Found:
    """Round after round, until one finds something: what the damage hits differs from store to store."""
    from tests.soak import damaged_files

    count = 0
    for number in range(rounds):
        done = damaged_files.one_round(seed + number, each_kind, kinds or tuple(damaged_files.KINDS))
        count += done.cases
        if done.problems:
            return Found(count, done.problems[0])
    return Found(count)


def _io_faults(seed: int, limit: int) -> Found:
    from tests.soak import io_faults
    from tests.soak.victims import Victims

    with Victims() as victims:
        cases = io_faults.choose(list(io_faults.all_cases(victims, seed)), seed, limit)
        return _first(cases, victims)


def _kills(seed: int, limit: int) -> Found:
    from tests.soak import kills
    from tests.soak.victims import Victims

    with Victims() as victims:
        cases = list(kills.all_cases(victims, seed))
        return _first(random.Random(seed).sample(cases, min(limit, len(cases))), victims)


def _first(cases: Iterable[Any], victims: Any) -> Found:
    count = 0
    for case in cases:
        outcome = victims.run(case)
        count += outcome.met
        if outcome.problems:
            return Found(count, f"{case}: {outcome.problems[0]}")
    return Found(count)


def _random_kills(seed: int) -> Found:
    from tests.soak import random_kills

    random_kills._place = tempfile.gettempdir
    return _done(random_kills.one_round(seed))


# The cheapest first: in this order a defect meets those that are assigned to it.
SUITES: dict[str, Suite] = {
    "recorded traces": Suite("scenarios", lambda: _replayed("random-v3")),
    **{
        f"crash states: {step}": Suite("states", partial(_crash_states, step))
        for step in (
            "put_node",
            "defer_and_force",
            "append",
            "transaction",
            "recover",
            "backup",
            "compact",
            "create_again",
            "append_many",
            "grow",
        )
    },
    "crash states: append, with a witness": Suite(
        "states", lambda: _crash_states("append", witness=True, states=1_000)
    ),
    "ledger cases": Suite("tests", lambda: _pytest("ledger/test_cases_create.py")),
    "kills": Suite("kills", lambda: _kills(5, 12)),
    "model machine": Suite("runs", lambda: _machine(30)),
    "crash states: append, observed": Suite("states", lambda: _crash_states("append", "observed")),
    "histories": Suite("histories", lambda: _histories(0, 5)),
    "damaged files": Suite("files", lambda: _damaged_files(1, 4, 6)),
    "damaged headers": Suite("files", lambda: _damaged_files(3, 4, 24, "damaged meta")),
    "I/O faults": Suite("faults", lambda: _io_faults(0, 60)),
    "random kills": Suite("kills", lambda: _random_kills(1)),
    "verify()": Suite("tests", lambda: _pytest("storage/test_verify.py", without="thread")),
    "durable names": Suite("tests", lambda: _pytest("storage/test_durable_names.py")),
    "full disk": Suite("tests", lambda: _pytest("storage/test_disk_full.py", only="opening_on_a_full_disk")),
}
IN_CAMPAIGNS_ONLY = {"durable names", "full disk"}
"""Suites that catch a single defect in seconds each, which is too much for the tests."""

ASSIGNED: dict[str, set[str]] = {
    "no sync": {"crash states: append, observed"},
    "no sync of the header": {"crash states: append, observed"},
    "header before data": {"crash states: append, observed"},
    "a dropped page": {"crash states: append"},
    "acknowledged early": {"crash states: append"},
    "force does not wait": {"crash states: defer_and_force"},
    "an entry of a batch is lost": {"crash states: append_many", "recorded traces"},
    "a batch that grew the map is lost": {"crash states: grow"},
    "a full disk is swallowed": {"I/O faults"},
    "an unknown outcome is answered": {"I/O faults"},
    "stale states": {"histories", "random kills"},
    "states do not count": {"crash states: put_node", "model machine"},
    "sums of seals stand still": {"crash states: put_node", "model machine"},
    "a transaction in two commits": {"crash states: transaction"},
    "a new data file is not synced": {"crash states: put_node"},
    "a backup is not synced": {"crash states: backup"},
    "a compacted file is not synced": {"crash states: compact"},
    "folders are not synced": {"crash states: put_node", "crash states: backup"},
    "a backup's name is not synced": {"crash states: backup"},
    "names of parent folders are not synced": {"durable names"},
    "a reader needs room for a lock file": {"full disk"},
    "a data file is made in its place": {"crash states: put_node"},
    "a short file is believed": {"damaged headers"},
    "trees are not looked at": {"damaged files"},
    "no marker": {"kills"},
    "the witness is not written": {"damaged files"},
    "the witness is made in its place": {"crash states: append, with a witness"},
    "compaction asks nobody": {"kills"},
    "compaction goes on with the old file": {"crash states: compact", "model machine"},
    "a fence is not looked at": {"recorded traces"},
    "recovery does not fence": {"recorded traces"},
    "an incarnation is not looked at": {"crash states: create_again", "ledger cases"},
    "entries carry a wrong LAC": {"recorded traces"},
    "entries carry a wrong length": {"recorded traces", "model machine"},
    "recovery ends one too high": {"recorded traces", "crash states: recover"},
    "recovery reads one entry too few": {"recorded traces"},
    "an explicit LAC of an earlier ledger": {"crash states: create_again"},
    "entries of a deleted ledger reappear": {"crash states: create_again", "ledger cases", "model machine"},
    "a digest is not looked at": {"damaged files"},
    "damage is told as absence": {"damaged files"},
    "loss is told as absence": {"verify()"},
    "metadata without compare-and-set": {"recorded traces"},
    "a close of an earlier ledger": {"crash states: create_again", "ledger cases"},
    "nodes without versions": {"histories"},
    "nodes are removed without versions": {"histories"},
    "seals are not looked at": {"verify()"},
}


@contextlib.contextmanager
def _place() -> Iterator[str]:
    """In memory where that is possible: nothing here is about the disk."""
    folder = tempfile.mkdtemp(prefix="bookstand-defects-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- one suite, in a process of its own ------------------------------------------------------------------------------


class Result(NamedTuple):
    cases: int
    problem: str | None
    """Why the suite failed; None if it passed."""
    hit: bool
    """Whether the defect was reached at all."""
    seconds: float
    unavailable: str = ""
    """Why the suite cannot be run on this machine."""


def run_suite(suite: Suite, name: str | None) -> Result:
    """Run it in a fork, with the defect of that name or with none. Only from a process without threads."""
    began = time.monotonic()
    with _place() as folder:
        hits = defects.Hits(os.path.join(folder, "hits"))
        inlet, outlet = os.pipe()
        child = os.fork()
        if not child:
            os.close(inlet)
            _be_suite(suite, name, folder, hits, outlet)
        os.close(outlet)
        with open(inlet, "rb") as stream:
            told = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            # What it has started, and did not come to end: all of that is in the group which it leads.
            os.killpg(child, signal.SIGKILL)
        seconds = time.monotonic() - began
        if not told:
            why = "it hung" if status == -signal.SIGALRM else f"it ended with {status}"
            return Result(
                0, f"{why}: {Path(folder, 'output').read_text(errors='replace')[-1500:]}", hits.any(), seconds
            )
        answer = json.loads(told)
        return Result(answer["cases"], answer["problem"], hits.any(), seconds, answer["unavailable"])


def _be_suite(suite: Suite, name: str | None, folder: str, hits: defects.Hits, outlet: int) -> None:
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HUNG)
        output = os.open(os.path.join(folder, "output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        os.chdir(ROOT)
        answer: dict[str, Any] = {"cases": 0, "problem": None, "unavailable": ""}
        with contextlib.ExitStack() as stack:
            if name is not None:
                os.environ.update(defects.environment_of(name, os.path.join(folder, "hits")))
                stack.enter_context(defects.switched_on(name, hits))
            try:
                found = suite.run()
                answer |= {"cases": found.cases, "problem": found.problem}
            except KindUnavailableError as reason:
                answer["unavailable"] = str(reason)
            except Exception as error:
                answer["problem"] = f"it ended with {error!r}"
        with open(outlet, "w") as stream:
            json.dump(answer, stream)
    finally:
        os._exit(0)


# -- all that is to be examined ----------------------------------------------------------------------------------------


class Examined(NamedTuple):
    """A defect, or ``None`` for one of the suites without any, and what became of it."""

    defect: str | None
    results: list[tuple[str, Result]]
    """By suite, in their order, up to the first that caught it."""

    @property
    def last(self) -> Result:
        return self.results[-1][1]

    @property
    def unavailable(self) -> str:
        """Why nothing can be said of it here: no suite could be run."""
        return "" if any(not one.unavailable for _, one in self.results) else self.last.unavailable

    @property
    def caught(self) -> bool:
        return self.last.problem is not None and self.last.hit

    @property
    def fault(self) -> str | None:
        """What is wrong with the suites; None if nothing is."""
        if self.unavailable:
            return None
        if self.defect is None:
            ((suite, result),) = self.results
            return result.problem and f"{suite} fails without a defect: {result.problem}"
        if self.caught:
            return None
        missed = ", ".join(f"{suite} ({result.cases} {SUITES[suite].unit})" for suite, result in self.results)
        why = "was missed by" if any(result.hit for _, result in self.results) else "was not even reached by"
        return f"{self.defect} ({defects.DEFECTS[self.defect].breaks}) {why} {missed}"

    def row(self) -> str:
        suite, result = self.results[-1]
        unit = SUITES[suite].unit
        seconds = sum(one.seconds for _, one in self.results)
        by = self.unavailable or (suite if self.defect is None or self.caught else "NOTHING")
        name = self.defect or "(none)"
        area = defects.DEFECTS[self.defect].area if self.defect else ""
        return f"{name:<38} {area:<9} {by:<37} {result.cases:>5} {unit:<10} {seconds:>6.1f}"


UNITS: list[tuple[str | None, list[str]]] = [
    *((name, [suite for suite in SUITES if suite in ASSIGNED[name]]) for name in defects.DEFECTS),
    *((None, [suite]) for suite in SUITES),
]
CONTROLS = range(len(defects.DEFECTS), len(UNITS))
IN_TESTS = [number for number, (_, suites) in enumerate(UNITS) if not IN_CAMPAIGNS_ONLY.issuperset(suites)]


def examine_here(number: int) -> Examined:
    """Only from a process without threads."""
    name, suites = UNITS[number]
    examined = Examined(name, [])
    for suite in suites:
        examined.results.append((suite, run_suite(SUITES[suite], name)))
        if examined.caught:
            break
    return examined


def examine(numbers: Iterable[int]) -> list[Examined]:
    """Some of the units, in a process of their own, which may fork."""
    wanted = list(numbers)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.soak.seeded_defects", "--numbers", *map(str, wanted)],
        cwd=ROOT,
        env=own_environment(),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    examined = []
    for line in ended.stdout.splitlines():
        defect, results = json.loads(line)
        examined.append(Examined(defect, [(suite, Result(*result)) for suite, result in results]))
    if ended.returncode or len(examined) != len(wanted):
        raise RuntimeError(f"of {len(wanted)} units {len(examined)} were examined, and it ended: {ended.returncode}")
    return examined


def table(examined: Iterable[Examined]) -> str:
    head = f"{'defect':<38} {'area':<9} {'caught by':<37} {'after':<16} {'seconds':>7}"
    return "\n".join([head, *(one.row() for one in examined)])


def one_round(seed: int) -> Done:
    """One defect, or one suite without any, which is no case."""
    (one,) = examine([seed % len(UNITS)])
    return Done(int(one.defect is not None and one.caught), [one.fault] if one.fault else [])


KIND = Kind(one_round)


def load_all() -> None:
    """What many of the forks would each load for themselves."""
    import hypothesis.stateful
    import lmdb.verify
    import numpy
    import pytest

    import bookstand.testing.machine
    from tests.replay import lockstep
    from tests.soak import crash_states, histories

    assert hypothesis.stateful
    assert lmdb.verify
    assert numpy
    assert pytest
    assert bookstand.testing.machine
    assert lockstep
    assert crash_states
    histories.load_all()
    gc.collect()
    gc.freeze()


def main(arguments: list[str]) -> int:
    load_all()
    if arguments[:1] == ["--numbers"]:
        for number in map(int, arguments[1:]):
            print(json.dumps(examine_here(number)), flush=True)
        return 0
    unknown = set(arguments) - defects.DEFECTS.keys()
    if unknown:
        print(f"there is no defect {', '.join(sorted(unknown))}; there are: {', '.join(defects.DEFECTS)}")
        return 2
    wanted = [number for number, (name, _) in enumerate(UNITS) if not arguments or name in arguments]
    examined = []
    print(table([]))
    for number in wanted:
        examined.append(examine_here(number))
        print(examined[-1].row(), flush=True)
    faults = [one.fault for one in examined if one.fault]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
