"""Power cuts at every moment of a workload, and what the store is worth after each.

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

The workload is run once and its file operations are recorded; then each state that a power cut could have left of them
(``crash_states.py`` says which, and what is assumed of disks) is written to a folder, opened, and checked with what had
been acknowledged by then. What fails is made as small as possible, and told together with a line that repeats it.
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
# How many smaller cases are tried before a failing one is told.
_SHRINKING = 300
# Of how many states one is opened a second time after it was written to.
_TWICE = 8


class Explored(NamedTuple):
    """What was tried, and held."""

    states: int
    """Distinct ones; in the modes "simulated" and "kill" the number of crashes."""
    seconds: float
    recording: Recording | None = None

    @property
    def rate(self) -> float:
        """States a second."""
        return self.states / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return f"{self.states} crashes in {self.seconds:.1f} s, {self.rate:.0f}/s"


class CrashFoundError(BookstandError, AssertionError):
    """A crash after which the store is not what was promised. ``replay`` is the line that repeats it, ``tried`` how
    many states or crashes were tried until it was found."""

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
    """A crash that was repeated as it had been recorded, for the program does other things now: this says nothing of
    the program as it is. ``found`` is what the recorded crash has shown."""

    def __init__(self, recorded: str, found: CrashFoundError) -> None:
        super().__init__(found.problem, found.replay, found.acknowledged, [], found.tried)
        self.found = found
        self.args = (f"{recorded}\n\n{found}",)


class RecordedCrashWarning(UserWarning):
    """A recorded crash was repeated and nothing is wrong with it; the program as it is was not tried."""


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
    """Crash the workload everywhere, and check what is left; raises :class:`CrashFoundError` for what does not hold.

    ``workload(path, acknowledge)`` opens the store at the path itself, and calls ``acknowledge(value)`` after each
    promise that it was given. ``check(store, acknowledged)`` gets the store, opened again with ``open_options``, and
    the values acknowledged before the crash in their order; it raises AssertionError. Then ``verify()`` is run, a
    little is written and read again, unless ``own_checks`` is false. ``limit`` is how many crashes to try at most; of
    more than that, a sample by ``seed``.

    ``mode="images"``: power cuts. The store is checked in child processes, so what ``check`` changes in memory is lost.
    ``"simulated"``: the store crashes in this process at each point that it passes. ``"kill"``: SIGKILL for a child, at
    each file operation with ``recorder="observed"``, otherwise at each point.

    ``recorder="pages"`` watches in this process, everywhere. ``"observed"`` watches from below another process: it
    needs Linux, a C compiler, and a workload that is a function of a module. ``"auto"`` is ``"pages"``.
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
    """The same in steps: record a workload, see the states, explore them. A context manager.

    ``folder`` is where recordings and images are made: in memory where there is such a place, by default.
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
        """A new folder, gone when the block ends."""
        self._count += 1
        place = os.path.join(self.folder, f"{what}-{self._count}-{os.getpid()}")
        os.mkdir(place)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    # -- recordings ------------------------------------------------------------------------------------------------

    def record(self, workload: Workload, recorder: str = "auto") -> Recording:
        """Run the workload once on an empty folder, and write down what it does to its files."""
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
        """The recording in which a crash was found, made again; or the one that was kept, and what there is to say of
        that."""
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
        """Every distinct state that a power cut could leave, in the order of the cuts."""
        return iter(crash_states(recording, self.seed, limit))

    def write(self, recording: Recording, case: Case, folder: str | os.PathLike[str]) -> str:
        """Write one state into a folder; returns the path of the store in it."""
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
        """Check every state; raises :class:`CrashFoundError` with the smallest failing case that was found."""
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
        """Check this one state."""
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
        """The modes "simulated" and "kill" of :func:`every_crash`."""
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
    """One recording and how its states are checked."""

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
        """What is wrong with one state, looked at in a process of its own."""
        self._tried += 1
        acknowledged = len(self._recording.acknowledged_by(case.cut))
        _, finding = self.run([State(case, acknowledged, b"")], 1)
        return finding.message if finding is not None else None

    def shrink(self, case: Case, problem: str) -> tuple[Case, str]:
        """A smaller case that fails as well: fewer writes dropped and torn, and the power gone earlier."""
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
        # Earlier, first by much and then by little.
        earliest = max((*case.dropped, *(tear.operation for tear in case.torn)), default=-1) + 1
        step = (case.cut - earliest) // 2
        while step > 0:
            yield self._waiting(case._replace(cut=case.cut - step))
            step //= 2
        if case.cut > earliest:
            yield self._waiting(case._replace(cut=case.cut - 1))

    def _waiting(self, case: Case) -> Case:
        """Without what is durable by then."""
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
    """Where files live in memory, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def _sectors(mask: int) -> str:
    return ", ".join(str(number) for number in range(mask.bit_length()) if mask >> number & 1) or "none"
