"""A runner on this machine, without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bookstand.pipeline.execution.protocol import Job, ShuffleJob, attempt_each, join_each, read_each
from bookstand.pipeline.execution.unit import Packed, Part, Result, Unit
from bookstand.pipeline.execution.worker import Limits


class LocalRunner:
    """Runner that uses up to ``processes`` child processes at a time.

    With 0 processes, units run in this process, and a unit that kills its process ends the job.
    """

    def __init__(self, processes: int = 1, limits: Limits | None = None) -> None:
        self._processes = processes
        self._limits = limits

    def run(self, job: Job, units: Sequence[Unit], work: Path | None) -> Iterator[Result]:
        return attempt_each(job, units, work, processes=self._processes, limits=self._limits)

    def run_joined(
        self, job: ShuffleJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
    ) -> Iterator[Result]:
        pieces: dict[str, list[Packed]] = defaultdict(list)
        for packed in read_each(job, parts, {unit.name for unit in units}, self._processes, self._limits):
            pieces[packed.unit].append(packed)
        joined = [(unit, pieces[unit.name]) for unit in units]
        yield from join_each(job, joined, work, processes=self._processes, limits=self._limits)
