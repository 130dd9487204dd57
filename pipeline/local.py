"""Units done on this machine without Spark: in this process, or in a few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from bookstand.pipeline.job import Job, JoiningJob, attempt, attempt_to_join, read_part
from bookstand.pipeline.unit import Packed, Part, Result, Unit

_Done = TypeVar("_Done")
# A process that dies takes those beside it along; all of them are tried again.
_ATTEMPTS = 3


class LocalRunner:
    """``processes``: 1 is this one. Others import the program anew, which begins nothing by itself then
    (``if __name__ == "__main__"``). What several places have a part in is joined in this one."""

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes

    def run(self, job: Job, units: Sequence[Unit], work: Path | None) -> Iterator[Result]:
        if self._processes == 1 or len(units) < 2:
            for unit in units:
                yield attempt(job, unit, work)
            return
        waiting = {unit.name: unit for unit in units}
        for number in range(_ATTEMPTS):
            for result in self._each(attempt, [(job, unit, work, f"{number}-") for unit in waiting.values()]):
                del waiting[result.unit]
                yield result
            if not waiting:
                return
        for name in waiting:
            yield Result(name, failure=f"its process died, {_ATTEMPTS} times")

    def run_joined(
        self, job: JoiningJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
    ) -> Iterator[Result]:
        wanted = {unit.name for unit in units}
        pieces: dict[str, list[Packed]] = defaultdict(list)
        for part in parts:
            for packed in read_part(job, part, wanted):
                pieces[packed.unit].append(packed)
        for unit in units:
            yield attempt_to_join(job, unit, pieces[unit.name], work)

    def _each(self, do: Callable[..., _Done], arguments: Sequence[tuple[object, ...]]) -> Iterator[_Done]:
        """What was done before a process died."""
        with ProcessPoolExecutor(self._processes, mp_context=get_context("spawn")) as pool:
            waiting = [pool.submit(do, *some) for some in arguments]
            try:
                for future in as_completed(waiting):
                    yield future.result()
            except BrokenProcessPool:
                for future in waiting:
                    future.cancel()
