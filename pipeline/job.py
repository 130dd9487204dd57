"""A job: it plans units, does them anywhere and in any order, and commits what they have left.

``plan`` and ``do`` are the same functions in one process and on Spark, and know nothing of who runs them. ``do`` writes
to the folder of its own attempt and to nothing else, so that an attempt which is repeated, or runs twice at the same
time, does no harm; only ``commit``, in the process that began the job, touches what others see.
"""

from __future__ import annotations

import os
import platform
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

from bookstand.errors import IncorrectParameterError, StoreNotFoundError
from bookstand.pipeline.run_folder import run_folder
from bookstand.pipeline.summary import Summary
from bookstand.pipeline.unit import Packed, Part, Plan, Result, Unit, fingerprint

Progress = Callable[[int, int], object]
"""Told how many units of how many are done."""


class Job(Protocol):
    """Small, and the same in another process: tasks are told jobs."""

    @property
    def name(self) -> str: ...

    def plan(self) -> Plan:
        """Look, and change nothing."""

    def work(self) -> Path | None:
        """Where attempts have their folders: on the file system that :meth:`commit` puts their files, and where all
        tasks can write. None: nothing is written."""

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        """By name, what an earlier run has committed."""

    def preview(self) -> Job:
        """What a dry run does: the same, with the same numbers, but that nothing is written."""

    def do(self, unit: Unit, folder: Path) -> Result:
        """May raise: then the unit has failed, and the others are done."""

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        """Have others see what units have left, of each all or nothing. Run again after a crash it goes on where it
        was."""


class JoiningJob(Job, Protocol):
    """A job some of whose work several places have a part in."""

    def read(self, part: Part) -> list[Packed]: ...

    def join(self, unit: Unit, pieces: Sequence[bytes], folder: Path) -> Result:
        """``pieces`` are all that its parts have for it, in any order."""


class Runner(Protocol):
    """Does units. Of each exactly one result comes, of whichever attempt; a failure is a result."""

    def run(self, job: Job, units: Sequence[Unit], work: Path | None) -> Iterator[Result]: ...

    def run_joined(
        self, job: JoiningJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
    ) -> Iterator[Result]: ...


def execute(
    job: Job,
    runner: Runner,
    *,
    dry_run: bool = False,
    only: Sequence[str] = (),
    again: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Plan, do, commit; a dry run commits nothing. ``only``: units by their names; ``again``: those too that were
    committed before."""
    plan = job.plan()
    known = {unit.name: unit for unit in (*plan.units, *plan.joined)}
    for name in only:
        if name not in known:
            raise IncorrectParameterError(f"job {job.name} has no unit {name!r}")
    wanted = set(only) or known.keys()
    doing = job.preview() if dry_run else job
    before = {} if again else doing.done([known[name] for name in known if name in wanted])
    units, joined = (
        [unit for unit in some if unit.name in wanted and unit.name not in before] for some in (plan.units, plan.joined)
    )
    summary = Summary(job.name, dry_run, len(wanted), list(before.values()), problems=plan.problems)
    with run_folder(doing.work(), job.name) as folder:
        found: list[tuple[Unit, Result]] = []
        total = len(units) + len(joined)
        results = runner.run(doing, units, folder)
        if joined:
            parts = [part for part in plan.parts if {unit.name for unit in joined}.intersection(part.units)]
            results = chain(results, runner.run_joined(cast("JoiningJob", doing), joined, parts, folder))
        for result in results:
            found.append((known[result.unit], result))
            if progress is not None:
                progress(len(found), total)
        good = [(unit, result) for unit, result in found if result.failure is None]
        summary.results += [result for _, result in found if result.failure is not None]
        if dry_run:
            summary.results += [result for _, result in good]
        elif good:
            summary.results += job.commit(good)
    return summary


# -- one attempt -------------------------------------------------------------------------------------------------------


def attempt(job: Job, unit: Unit, work: Path | None, tag: str = "") -> Result:
    """Do a unit in a folder that no other attempt has."""
    return _attempted(unit.name, work, tag, lambda folder: job.do(unit, folder))


def attempt_to_join(job: JoiningJob, unit: Unit, pieces: Sequence[Packed], work: Path | None, tag: str = "") -> Result:
    for piece in pieces:
        if piece.failure is not None:
            return Result(unit.name, failure=piece.failure)
    data = [piece.data for piece in pieces if piece.problem is None]
    result = _attempted(unit.name, work, tag, lambda folder: job.join(unit, data, folder))
    problems = [piece.problem for piece in pieces if piece.problem is not None]
    return result._replace(problems=(*result.problems, *problems))


def read_part(job: JoiningJob, part: Part, units: Collection[str]) -> list[Packed]:
    """What there is for these units. Those of a part that cannot be read fail; they are not done without it."""
    try:
        return [packed for packed in job.read(part) if packed.unit in units]
    except Exception as error:
        why = f"{part.name}: {type(error).__name__}: {error}"
        return [Packed(unit, b"", why) for unit in part.units if unit in units]


def _attempted(unit: str, work: Path | None, tag: str, do: Callable[[Path], Result]) -> Result:
    folder = Path(os.devnull) if work is None else work / f"{fingerprint(unit)}-{tag}{uuid.uuid4().hex[:12]}"
    try:
        if work is not None:
            _make(folder)
        result = do(folder)
    except Exception as error:
        if work is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return Result(unit, failure=f"{type(error).__name__}: {error}")
    return result if work is None else result._replace(staged=str(folder))


def _make(folder: Path) -> None:
    """Make an attempt's folder, but not its parents: they are gone when the run has ended."""
    try:
        folder.mkdir()
    except FileNotFoundError:
        raise StoreNotFoundError(
            f"{folder.parent} is missing on {platform.node()}: the run has ended, or its work folder is not on a file "
            "system that all machines share"
        ) from None
