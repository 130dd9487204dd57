"""Protocol of jobs: plan units, run them anywhere and in any order, and commit their output.

``plan`` and ``do`` do not depend on the runner: the same functions run in one process and on Spark. ``do`` writes only
to the folder of its attempt, so that attempts can be repeated and can run concurrently. Only ``commit``, which runs in
the process that started the job, changes anything visible outside of the job.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import uuid
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

from bookstand.errors import DiskFullError, IncorrectParameterError, StoreError, StoreNotFoundError
from bookstand.pipeline.execution.run_directory import run_folder
from bookstand.pipeline.execution.summary import Summary
from bookstand.pipeline.execution.unit import JobPlan, Packed, Part, Result, Unit, fingerprint
from bookstand.pipeline.execution.worker import Limits, Lost, calls

Progress = Callable[[int, int], object]
"""Callback that receives the number of finished units and the total number of units."""


class Job(Protocol):
    """Job. It is serialized and sent to tasks, so it must be small and must not depend on process state."""

    @property
    def name(self) -> str: ...

    def plan(self) -> JobPlan:
        """Plan the units. Must not change anything."""

    def work(self) -> Path | None:
        """Folder for the attempts; None if the job writes no files. All tasks must be able to write to it, and it must
        be on the file system to which :meth:`commit` moves the files."""

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        """Results that an earlier run has committed, by unit name."""

    def preview(self) -> Job:
        """The job for a dry run: it reports the same counts and writes nothing."""

    def do(self, unit: Unit, folder: Path) -> Result:
        """Run a unit. An exception fails this unit only."""

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        """Publish the output of units, each atomically. After a crash, the next run completes an interrupted commit."""


class ShuffleJob(Job, Protocol):
    """Job with units whose input is spread over several places."""

    def read(self, part: Part) -> list[Packed]: ...

    def join(self, unit: Unit, pieces: Sequence[bytes], folder: Path) -> Result:
        """Run a unit on the data that its parts contain for it, in any order."""


class Runner(Protocol):
    """Runner of units. It yields exactly one result for each unit; a failure is a result.

    A result can be marked as crashed. :func:`execute` then runs the unit again, alone.
    """

    def run(self, job: Job, units: Sequence[Unit], work: Path | None) -> Iterator[Result]: ...

    def run_joined(
        self, job: ShuffleJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
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
    """Plan, run and commit a job; a dry run commits nothing. ``only`` selects units by name. ``again`` includes units
    that an earlier run has committed."""
    plan = job.plan()
    known: dict[str, Unit] = {}
    for unit in (*plan.units, *plan.joined):
        # The same place, table or topic may be listed twice in the arguments.
        if known.setdefault(unit.name, unit) != unit:
            raise IncorrectParameterError(
                f"job {job.name} has two different units {unit.name!r}: run it for each alone"
            )
    for name in only:
        if name not in known:
            raise IncorrectParameterError(f"job {job.name} has no unit {name!r}")
    wanted = set(only) or known.keys()
    doing = job.preview() if dry_run else job
    before = {} if again else doing.done([known[name] for name in known if name in wanted])
    units, joined = (
        [known[name] for name in dict.fromkeys(unit.name for unit in some) if name in wanted and name not in before]
        for some in (plan.units, plan.joined)
    )
    summary = Summary(job.name, dry_run, len(wanted), list(before.values()), problems=plan.problems)
    with run_folder(doing.work(), job.name) as folder:
        found: list[tuple[Unit, Result]] = []
        total = len(units) + len(joined)
        # On an interruption, stop all attempts before the folder is removed.
        with closing(_Attempted(doing, runner, plan, folder).results(units, joined)) as results:
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


class _Attempted:
    """Execution of the units of a plan. Units that crash are run once more, one at a time."""

    def __init__(self, job: Job, runner: Runner, plan: JobPlan, folder: Path | None) -> None:
        self._job = job
        self._runner = runner
        self._parts = plan.parts
        self._folder = folder

    def results(self, units: Sequence[Unit], joined: Sequence[Unit]) -> Generator[Result]:
        waiting = {unit.name: unit for unit in (*units, *joined)}
        crashed: dict[str, Result] = {}
        for result in chain(self._run(units), self._run_joined(joined)):
            if waiting.pop(result.unit, None) is None:
                raise StoreError(f"the runner has a second result of unit {result.unit!r}")
            if result.crashed:
                crashed[result.unit] = result
            else:
                yield result
        for name in waiting:
            yield Result(name, failure="the runner has no result of it")
        for done in (self._run, self._run_joined):
            for unit in units if done == self._run else joined:
                if unit.name in crashed:
                    (second,) = done([unit])
                    if second.failure is not None:
                        why = f"{crashed[unit.name].failure}; then, done alone: {second.failure}"
                        second = second._replace(failure=why)
                    yield second

    def _run(self, units: Sequence[Unit]) -> Iterator[Result]:
        return self._runner.run(self._job, units, self._folder)

    def _run_joined(self, units: Sequence[Unit]) -> Iterator[Result]:
        if not units:
            return iter(())
        names = {unit.name for unit in units}
        parts = [part for part in self._parts if names.intersection(part.units)]
        return self._runner.run_joined(cast("ShuffleJob", self._job), units, parts, self._folder)


# -- one attempt -------------------------------------------------------------------------------------------------------


def attempt_each(
    job: Job, units: Sequence[Unit], work: Path | None, tag: str = "", processes: int = 1, limits: Limits | None = None
) -> Iterator[Result]:
    """Run units in child processes, each in a folder unique to the attempt."""
    tag += f"{uuid.uuid4().hex[:12]}-"
    for unit, outcome in calls(lambda unit: attempt(job, unit, work, tag), units, processes, limits):
        yield _crashed(unit, outcome, work, tag) if isinstance(outcome, Lost) else outcome


def join_each(
    job: ShuffleJob,
    units: Sequence[tuple[Unit, Sequence[Packed]]],
    work: Path | None,
    tag: str = "",
    processes: int = 1,
    limits: Limits | None = None,
) -> Iterator[Result]:
    """Join units from their pieces in child processes, like :func:`attempt_each`."""
    tag += f"{uuid.uuid4().hex[:12]}-"
    for (unit, _), outcome in calls(lambda one: attempt_to_join(job, *one, work, tag), units, processes, limits):
        yield _crashed(unit, outcome, work, tag) if isinstance(outcome, Lost) else outcome


def read_each(
    job: ShuffleJob, parts: Sequence[Part], units: Collection[str], processes: int = 1, limits: Limits | None = None
) -> Iterator[Packed]:
    """Read parts in child processes and yield their data for the given units."""
    for part, outcome in calls(lambda part: read_part(job, part, units), parts, processes, limits):
        if isinstance(outcome, Lost):
            why = f"{part.name}: {outcome.why}"
            outcome = [Packed(unit, b"", why, crashed=True) for unit in part.units if unit in units]
        yield from outcome


def _crashed(unit: Unit, lost: Lost, work: Path | None, tag: str) -> Result:
    """Result of a lost attempt, whose files are removed: they may have filled the disk."""
    for folder in () if work is None else work.glob(f"{fingerprint(unit.name)}-{tag}*"):
        shutil.rmtree(folder, ignore_errors=True)
    return Result(unit.name, failure=lost.why, crashed=True)


def attempt(job: Job, unit: Unit, work: Path | None, tag: str = "") -> Result:
    """Run a unit in a folder unique to the attempt."""
    return _attempted(unit.name, work, tag, lambda folder: job.do(unit, folder))


def attempt_to_join(job: ShuffleJob, unit: Unit, pieces: Sequence[Packed], work: Path | None, tag: str = "") -> Result:
    for piece in pieces:
        if piece.failure is not None:
            return Result(unit.name, failure=piece.failure, crashed=piece.crashed)
    data = [piece.data for piece in pieces if piece.problem is None]
    result = _attempted(unit.name, work, tag, lambda folder: job.join(unit, data, folder))
    problems = [piece.problem for piece in pieces if piece.problem is not None]
    return result._replace(problems=(*result.problems, *problems))


def read_part(job: ShuffleJob, part: Part, units: Collection[str]) -> list[Packed]:
    """Read a part for the given units. If it cannot be read, all of its units fail: none is joined without it."""
    try:
        return [packed for packed in job.read(part) if packed.unit in units]
    except Exception as error:
        why = f"{part.name}: {type(error).__name__}: {error}"
        return [Packed(unit, b"", why, crashed=_is_exhaustion(error)) for unit in part.units if unit in units]


_EXHAUSTED = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def _is_exhaustion(error: BaseException | None) -> bool:
    """Return True if memory, disk space or file descriptors ran out. Concurrent units may have used them up."""
    while error is not None:
        if isinstance(error, MemoryError | DiskFullError):
            return True
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return True
        error = error.__cause__ or error.__context__
    return False


def _attempted(unit: str, work: Path | None, tag: str, do: Callable[[Path], Result]) -> Result:
    folder = Path(os.devnull) if work is None else work / f"{fingerprint(unit)}-{tag}{uuid.uuid4().hex[:12]}"
    try:
        if work is not None:
            _make(folder)
        result = do(folder)
    except Exception as error:
        if work is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return Result(unit, failure=f"{type(error).__name__}: {error}", crashed=_is_exhaustion(error))
    return result if work is None else result._replace(staged=str(folder))


def _make(folder: Path) -> None:
    """Create the folder of an attempt, but not its parents: a missing parent means that the run has ended."""
    try:
        folder.mkdir()
    except FileNotFoundError:
        raise StoreNotFoundError(
            f"{folder.parent} is missing on {platform.node()}: the run has ended, or its work folder is not on a file "
            "system that all machines share"
        ) from None
