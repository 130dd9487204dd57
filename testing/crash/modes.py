"""Crashes without a recording: the store crashes in this process, or a child is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import traceback
from contextlib import closing, nullcontext
from typing import TypeVar

from bookstand.errors import IncorrectParameterError, StoreCrashedError, StoreError
from bookstand.storage.hooks import Hooks, SimulatedCrash
from bookstand.testing.crash import syscall_recorder
from bookstand.testing.crash.open_hook import watched_openings
from bookstand.testing.crash.parallel import describe_error, examine_all, fork

_T = TypeVar("_T")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    Acknowledge = Callable[[Any], None]
    Workload = Callable[[str, Acknowledge], object]
    # Location of the crash, remaining directory, acknowledged values.
    Crash = tuple[str, str, list[Any]]


def killed_at_operations(
    workload: Workload, folder: str, store: str, limit: int | None, chance: random.Random, only: str | None
) -> Generator[Crash]:
    """Kill a child before each file operation, or before a sample of ``limit`` operations."""
    if only is not None:
        if not only.isdigit():
            raise IncorrectParameterError(f"{only!r} is no number of a file operation")
        numbers = [int(only)]
    else:
        counted = os.path.join(folder, "counted")
        os.mkdir(counted)
        numbers = list(range(1, syscall_recorder.count_operations(workload, counted, store) + 1))
        shutil.rmtree(counted)
        numbers = _sample(numbers, limit, chance)
    with closing(syscall_recorder.kills(workload, folder, store, numbers)) as killed:
        for number, below, acknowledged in killed:
            yield str(number), below, acknowledged


def _sample(given: list[_T], limit: int | None, chance: random.Random) -> list[_T]:
    if limit is None or len(given) <= limit:
        return given
    return [given[number] for number in sorted(chance.sample(range(len(given)), limit))]


class _Points(Hooks):
    """Records the points that the store passes, and crashes it at one of them."""

    sees_entries = False

    def __init__(self, at: tuple[str, int] | None = None, mode: str = "simulated") -> None:
        self.passed: list[tuple[str, int]] = []
        self._counts: dict[str, int] = {}
        self._at = at
        self._mode = mode

    def point(self, name: str) -> None:
        here = name, self._counts.get(name, 0) + 1
        self._counts[name] = here[1]
        self.passed.append(here)
        if here == self._at:
            if self._mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise SimulatedCrash(name)


def crashed_at_points(
    workload: Workload,
    folder: str,
    store: str,
    mode: str,
    limit: int | None,
    chance: random.Random,
    only: str | None,
) -> Generator[Crash]:
    """Crash at each passing of each point, or at a sample of ``limit`` passings."""
    if only is not None:
        name, _, times = only.partition("#")
        if not times.isdigit():
            raise IncorrectParameterError(f"{only!r} names no passing of a point")
        points = [(name, int(times))]
    else:
        points = _sample(_points_of(workload, folder, store), limit, chance)
    for number, point in enumerate(points):
        place = os.path.join(folder, f"crash-{number}")
        os.mkdir(place)
        run = _run_and_die if mode == "kill" else _run_and_crash
        yield f"{point[0]}#{point[1]}", place, run(workload, place, store, point)
        shutil.rmtree(place, ignore_errors=True)


def _points_of(workload: Workload, folder: str, store: str) -> list[tuple[str, int]]:
    place = os.path.join(folder, "points")
    os.mkdir(place)
    points = _Points()
    with watched_openings(place, _giving(points)):
        workload(os.path.join(place, store), lambda value: None)
    shutil.rmtree(place)
    return points.passed


def _giving(points: _Points) -> Callable[[str, dict[str, Any]], None]:
    def give(path: str, options: dict[str, Any]) -> None:
        if options.get("hooks") is not None:
            raise IncorrectParameterError('a workload that brings hooks of its own is for mode="images"')
        options["hooks"] = points

    return give


def _run_and_crash(workload: Workload, place: str, store: str, point: tuple[str, int]) -> list[Any]:
    """Crash in this process. The workload may handle or ignore the crash."""
    acknowledged: list[Any] = []
    points = _Points(point)
    with watched_openings(place, _giving(points)):
        try:
            workload(os.path.join(place, store), acknowledged.append)
        except (SimulatedCrash, StoreCrashedError):
            pass
        except BaseException:
            if point not in points.passed:
                raise
    return acknowledged


def _run_and_die(workload: Workload, place: str, store: str, point: tuple[str, int]) -> list[Any]:
    inlet, outlet = os.pipe()
    child = fork()
    if not child:
        os.close(inlet)
        status = 1
        try:
            with watched_openings(place, _giving(_Points(point, "kill"))):
                workload(os.path.join(place, store), lambda value: syscall_recorder.tell(outlet, value))
            status = 0
        except BaseException:
            syscall_recorder.tell(outlet, traceback.format_exc())
        finally:
            os._exit(status)
    os.close(outlet)
    acknowledged = syscall_recorder.told(inlet)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise StoreError(f"the workload failed:\n{acknowledged[-1] if acknowledged else status}")
    return acknowledged


def problem_of(examine: Callable[[], None], in_child: bool) -> str | None:
    """Return the failure of an examination, run in this process or in a child."""
    if in_child:
        _, finding = examine_all(1, lambda: nullcontext(lambda case: examine()))
        return finding.message if finding is not None else None
    try:
        examine()
    except Exception as error:
        return describe_error(error)
    return None
