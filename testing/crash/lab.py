"""Power cuts at every point of a workload, and checks of the store after each.

::

    def workload(path, acknowledge):
        with bookstand.open(path) as store:
            writer = store.create_ledger()
            for n in range(10):
                acknowledge((writer.id, writer.append(b"%d" % n)))

    def check(store, acknowledged):
        for ledger_id, entry_id in acknowledged:
            reader = store.open_ledger(ledger_id, recovery=False)
            assert reader.read_unconfirmed(entry_id, entry_id)[0].data == b"%d" % entry_id

    every_crash(workload, check)

The workload runs once, and its file operations are recorded. Then each state in which a power cut could leave the disk
(``states.py`` defines them, and the assumptions about disks) is written to a directory. The store is opened there and
checked against the values acknowledged before the cut. Failures are minimized and reported with a line that repeats
them.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import warnings
from contextlib import closing, contextmanager
from functools import partial
from time import monotonic
from typing import NamedTuple

from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.testing.crash import modes, syscall_recorder
from bookstand.testing.crash import replay as crash_replay
from bookstand.testing.crash.check import Images, examine_store
from bookstand.testing.crash.parallel import Finding, examine_all
from bookstand.testing.crash.python_recorder import PageRecorder
from bookstand.testing.crash.recording import Recording
from bookstand.testing.crash.replay import ATTEMPTS, PowerCut
from bookstand.testing.crash.states import Case, State, Walk, crash_states

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Self

    from bookstand.testing.crash.check import Check

    Acknowledge = Callable[[Any], None]
    Workload = Callable[[str, Acknowledge], object]

MODES = ("images", "simulated", "kill")
RECORDERS = ("auto", "pages", "observed")
_STORE = "store"
# Maximum number of smaller cases to try before a failure is reported.
_SHRINKING = 300
# One state in this many is opened a second time after writing to it.
_TWICE = 8


class Explored(NamedTuple):
    """Result of an exploration without failures."""

    states: int
    """Number of distinct states, or of crashes in the modes "simulated" and "kill"."""
    seconds: float
    recording: Recording | None = None

    @property
    def rate(self) -> float:
        """States per second."""
        return self.states / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return f"{self.states} crashes in {self.seconds:.1f} s, {self.rate:.0f}/s"


class CrashFoundError(BookstandError, AssertionError):
    """A crash after which the store breaks a promise. ``replay`` is the line that repeats it; ``tried`` is the number
    of states or crashes until it was found."""

    def __init__(self, problem: str, replay: str, acknowledged: list[Any], details: list[str], tried: int) -> None:
        self.problem = problem
        self.tried = tried
        self.replay = replay
        self.acknowledged = acknowledged
        count = len(acknowledged)
        told = f"{count} values, the last ones {acknowledged[-3:]!r}" if count else "nothing"
        lines = [problem.rstrip(), "", *details, f"acknowledged by then: {told}", f"repeat it with: {replay}"]
        super().__init__("\n".join(lines))


class RecordedCrashError(CrashFoundError):
    """Failure of a recorded crash that the current program cannot reproduce. It says nothing about the current program;
    ``found`` is the failure of the recorded crash."""

    def __init__(self, recorded: str, found: CrashFoundError) -> None:
        super().__init__(found.problem, found.replay, found.acknowledged, [], found.tried)
        self.found = found
        self.args = (f"{recorded}\n\n{found}",)


class RecordedCrashWarning(UserWarning):
    """A recorded crash was repeated without a failure; the current program was not tested."""


def every_crash(
    workload: Workload,
    check: Check,
    limit: int | None = None,
    seed: int = 0,
    mode: str = "images",
    recorder: str = "auto",
    open_options: Mapping[str, Any] | None = None,
    *,
    own_checks: bool = True,
    processes: int | None = None,
) -> Explored:
    """Crash the workload everywhere and check the results; raise :class:`CrashFoundError` for a failure.

    ``workload(path, acknowledge)`` opens the store at the path, and calls ``acknowledge(value)`` after each promise
    that it received. ``check(store, acknowledged)`` gets the store, reopened with ``open_options``, and the values
    acknowledged before the crash, in order; it raises AssertionError. Then, unless ``own_checks`` is false,
    ``verify()`` is run, and some entries are written and read. ``limit`` is the maximum number of crashes; if there are
    more, ``seed`` determines the sample.

    ``mode="images"``: power cuts. The store is checked in child processes, so changes that ``check`` makes in memory
    are lost. ``"simulated"``: the store crashes in this process at each point that it passes. ``"kill"``: a child is
    killed with SIGKILL at each file operation with ``recorder="observed"``, otherwise at each point.

    ``recorder="pages"`` records within this process, on every platform. ``"observed"`` records another process from
    below; it requires Linux, a C compiler, and a workload that is a module-level function. ``"auto"`` is ``"pages"``.
    """
    __tracebackhide__ = True
    if mode not in MODES:
        raise IncorrectParameterError(f"mode must be one of {MODES}, not {mode!r}")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise IncorrectParameterError(f"limit is a number of crashes from 1 up, or None, not {limit!r}")
    with CrashLab(seed=seed) as lab:
        options = dict(open_options or {})
        if mode == "images":
            return _images(lab, workload, check, limit, recorder, options, own_checks, processes)
        _check_recorder(recorder)
        return lab.crash_in_place(workload, check, limit, mode, recorder == "observed", options, own_checks)


def _images(
    lab: CrashLab,
    workload: Workload,
    check: Check,
    limit: int | None,
    recorder: str,
    open_options: dict[str, Any],
    own_checks: bool,
    processes: int | None,
) -> Explored:
    __tracebackhide__ = True
    replay = crash_replay.wanted_cut()
    if replay is None:
        recording = lab.record(workload, recorder)
        return lab.explore(recording, check, limit, open_options, own_checks=own_checks, processes=processes)
    recording, changed = lab.record_again(workload, replay)
    try:
        explored = lab.try_case(recording, replay.case, check, open_options, own_checks=own_checks)
    except CrashFoundError as found:
        if changed is None:
            raise
        raise RecordedCrashError(changed, found) from None
    if changed is not None:
        warnings.warn(f"nothing is wrong with the recorded crash. {changed}", RecordedCrashWarning, stacklevel=3)
    return explored


class CrashLab:
    """The steps of :func:`every_crash`: record a workload, list the states, explore them. A context manager.

    ``folder`` is the directory for recordings and images; the default is in memory if possible.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, seed: int = 0) -> None:
        if not isinstance(seed, int):
            raise IncorrectParameterError(f"a seed is an integer, not {seed!r}")
        parent = os.fspath(folder) if folder is not None else _memory()
        if parent is not None and not os.path.isdir(parent):
            raise IncorrectParameterError(f"{parent} is no folder")
        self.seed = seed
        self.folder = tempfile.mkdtemp(prefix="bookstand-crash-", dir=parent)
        self._count = 0

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _place(self, what: str) -> Iterator[str]:
        """Provide a new directory that is removed at the end of the block."""
        self._count += 1
        place = os.path.join(self.folder, f"{what}-{self._count}-{os.getpid()}")
        os.mkdir(place)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    # -- recordings ------------------------------------------------------------------------------------------------

    def record(self, workload: Workload, recorder: str = "auto") -> Recording:
        """Run the workload once on an empty directory and record its file operations."""
        __tracebackhide__ = True
        _check_recorder(recorder)
        if not callable(workload):
            raise IncorrectParameterError(f"a workload is a function of a path and acknowledge, not {workload!r}")
        with self._place("recording") as place:
            if recorder == "observed":
                return syscall_recorder.record(workload, place, _STORE)
            with PageRecorder(place, _STORE) as watching:
                workload(os.path.join(place, _STORE), watching.acknowledge)
            return watching.recording

    def record_again(self, workload: Workload, replay: PowerCut) -> tuple[Recording, str | None]:
        """Repeat the recording of a crash. If that fails, return the saved recording, with a message that says so."""
        __tracebackhide__ = True
        counts = set()
        for _ in range(ATTEMPTS):
            recording = self.record(workload, replay.recorder)
            if recording.shape == replay.shape:
                return recording, None
            counts.add(len(recording.operations))
        return crash_replay.kept_recording(replay.shape, counts)

    # -- states ----------------------------------------------------------------------------------------------------

    def states(self, recording: Recording, limit: int | None = None) -> Iterator[State]:
        """Iterate over the distinct states after a power cut, in the order of the cuts."""
        return iter(crash_states(recording, self.seed, limit))

    def write(self, recording: Recording, case: Case, folder: str | os.PathLike[str]) -> str:
        """Write one state into a directory; return the path of its store."""
        walk = Walk(recording)
        walk.advance_to(case.cut)
        Images(os.fspath(folder)).put(walk.image(case))
        return os.path.join(folder, recording.store)

    def explore(
        self,
        recording: Recording,
        check: Check,
        limit: int | None = None,
        open_options: Mapping[str, Any] | None = None,
        *,
        own_checks: bool = True,
        processes: int | None = None,
    ) -> Explored:
        """Check every state; raise :class:`CrashFoundError` with the smallest failing case found."""
        __tracebackhide__ = True
        began = monotonic()
        states = crash_states(recording, self.seed, limit)
        exploration = _Exploration(self, recording, check, open_options or {}, own_checks)
        done, finding = exploration.run(states, processes)
        if finding is not None:
            state = states[finding.case]
            case, problem = exploration.shrink(state.case, finding.message)
            how = f"found in state {done} of {len(states)}, seed {self.seed}"
            raise self._found(recording, case, problem, how, done)
        return Explored(done, monotonic() - began, recording)

    def try_case(
        self,
        recording: Recording,
        case: Case,
        check: Check,
        open_options: Mapping[str, Any] | None = None,
        *,
        own_checks: bool = True,
    ) -> Explored:
        """Check a single case."""
        __tracebackhide__ = True
        began = monotonic()
        problem = _Exploration(self, recording, check, open_options or {}, own_checks).problem_of(case)
        if problem is not None:
            raise self._found(recording, case, problem, "repeated", 1)
        return Explored(1, monotonic() - began, recording)

    def _found(self, recording: Recording, case: Case, problem: str, how: str, tried: int) -> CrashFoundError:
        crash_replay.keep(recording)
        operations = recording.operations
        details = [f"the power goes after {case.cut} of {len(operations)} file operations ({how})"]
        if case.cut:
            details.append(f"the last one: {operations[case.cut - 1]}")
        details += [f"never on the disk: {operations[number]}" for number in case.dropped[:20]]
        if len(case.dropped) > 20:
            details.append(f"… and {len(case.dropped) - 20} more")
        for tear in case.torn:
            part = f"the first {tear.part} bytes" if tear.unit == "b" else f"sectors {_sectors(tear.part)} of its page"
            details.append(f"on the disk in part: {operations[tear.operation]}: {part}")
        replay = str(PowerCut(recording.recorder, recording.shape, case))
        return CrashFoundError(problem, replay, recording.acknowledged_by(case.cut), details, tried)

    # -- crashes without images --------------------------------------------------------------------------------------

    def crash_in_place(
        self,
        workload: Workload,
        check: Check,
        limit: int | None,
        mode: str,
        observed: bool,
        open_options: dict[str, Any],
        own_checks: bool,
    ) -> Explored:
        """Run the modes "simulated" and "kill" of :func:`every_crash`."""
        __tracebackhide__ = True
        began = monotonic()
        only = crash_replay.wanted_in_place(mode)
        count = 0
        with self._place(mode) as place:
            chance = random.Random(self.seed)
            if mode == "kill" and observed:
                crashes = modes.killed_at_operations(workload, place, _STORE, limit, chance, only)
            else:
                crashes = modes.crashed_at_points(workload, place, _STORE, mode, limit, chance, only)
            with closing(crashes):
                for where, folder, acknowledged in crashes:
                    examine = partial(
                        examine_store, os.path.join(folder, _STORE), check, acknowledged, open_options, own_checks
                    )
                    problem = modes.problem_of(examine, in_child=mode == "kill")
                    if problem is not None:
                        replay = crash_replay.line_in_place(mode, where)
                        raise CrashFoundError(
                            problem, replay, acknowledged, [f"crashed ({mode}) at {where}"], count + 1
                        )
                    count += 1
        return Explored(count, monotonic() - began)


class _Exploration:
    """A recording, and how to check its states."""

    def __init__(
        self, lab: CrashLab, recording: Recording, check: Check, open_options: Mapping[str, Any], own_checks: bool
    ) -> None:
        self._lab = lab
        self._recording = recording
        self._check = check
        self._open_options = open_options
        self._own_checks = own_checks
        self._tried = 0

    def run(self, states: Sequence[State], processes: int | None) -> tuple[int, Finding | None]:
        @contextmanager
        def begin() -> Iterator[Callable[[int], None]]:
            with self._lab._place("states") as place:
                images = Images(place)
                walk = Walk(self._recording)
                path = os.path.join(place, self._recording.store)

                def examine(number: int) -> None:
                    state = states[number]
                    walk.advance_to(state.case.cut)
                    images.put(walk.image(state.case))
                    acknowledged = self._recording.acknowledged[: state.acknowledged]
                    twice = not state.digest or state.digest[0] % _TWICE == 0
                    examine_store(path, self._check, acknowledged, self._open_options, self._own_checks, twice)

                yield examine

        return examine_all(len(states), begin, processes)

    def problem_of(self, case: Case) -> str | None:
        """Check one case in a child process; return the failure."""
        self._tried += 1
        acknowledged = len(self._recording.acknowledged_by(case.cut))
        _, finding = self.run([State(case, acknowledged, b"")], 1)
        return finding.message if finding is not None else None

    def shrink(self, case: Case, problem: str) -> tuple[Case, str]:
        """Minimize a failing case: drop and tear fewer writes, and cut earlier."""
        smaller = True
        while smaller and self._tried < _SHRINKING:
            smaller = False
            for candidate in self._smaller(case):
                found = self.problem_of(candidate)
                if found is not None:
                    case, problem, smaller = candidate, found, True
                    break
                if self._tried >= _SHRINKING:
                    break
        return case, problem

    def _smaller(self, case: Case) -> Iterator[Case]:
        if case.torn:
            yield case._replace(torn=())
        for count in (len(case.dropped), len(case.dropped) // 2):
            if count > 1:
                yield case._replace(dropped=case.dropped[count:])
                yield case._replace(dropped=case.dropped[:-count])
        for number in case.dropped if len(case.dropped) > 1 else ():
            yield case._replace(dropped=tuple(other for other in case.dropped if other != number))
        if case.dropped:
            yield case._replace(dropped=())
        # Cut earlier: first in large steps, then in small ones.
        earliest = max((*case.dropped, *(tear.operation for tear in case.torn)), default=-1) + 1
        step = (case.cut - earliest) // 2
        while step > 0:
            yield self._waiting(case._replace(cut=case.cut - step))
            step //= 2
        if case.cut > earliest:
            yield self._waiting(case._replace(cut=case.cut - 1))

    def _waiting(self, case: Case) -> Case:
        """Remove operations that are durable at the cut from the case."""
        walk = Walk(self._recording)
        walk.advance_to(case.cut)
        waiting = set(walk.waiting)
        return case._replace(
            dropped=tuple(number for number in case.dropped if number in waiting),
            torn=tuple(tear for tear in case.torn if tear.operation in waiting),
        )


def _check_recorder(recorder: str) -> None:
    if recorder not in RECORDERS:
        raise IncorrectParameterError(f"recorder must be one of {RECORDERS}, not {recorder!r}")


def _memory() -> str | None:
    """Return a directory in memory, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def _sectors(mask: int) -> str:
    return ", ".join(str(number) for number in range(mask.bit_length()) if mask >> number & 1) or "none"
