"""Isolated calls in child processes. A call that kills its process, hangs or runs out of memory affects no other call.

A child is a fork of this process and makes one call after another. If it dies during a call or exceeds the time limit,
another child makes the remaining calls. The children die with this process, even if it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
# Seconds to wait for the exit of a child. A process that is blocked on a failed disk does not exit even if killed.
_KILLED = 5.0


class Limits(NamedTuple):
    """Limits of one call."""

    seconds: float | None = 6 * 3600.0
    """None: no limit."""
    memory: int | None = None
    """Bytes that the call may allocate; more raises ``MemoryError`` in it. None: no limit."""


class Lost(NamedTuple):
    """Reason why a call has no outcome."""

    why: str


def calls(
    do: Callable[[_Item], _Outcome], items: Sequence[_Item], processes: int = 1, limits: Limits | None = None
) -> Iterator[tuple[_Item, _Outcome | Lost]]:
    """Call ``do`` for each item in up to ``processes`` children at a time. Yields outcomes in order of completion.

    Outcomes are pickled; ``do`` and the items are inherited by the fork and need not be picklable. With 0 processes,
    the calls are made in this process, without limits.
    """
    if not processes:
        yield from ((item, do(item)) for item in items)
        return
    limits = Limits() if limits is None else limits
    waiting = deque(range(len(items)))
    idle: list[_Child] = []
    busy: list[_Child] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < processes:
                child = idle.pop() if idle else _Child(do, items, limits, busy)
                if child.begin(waiting[0]):
                    waiting.popleft()
                    busy.append(child)
            wait([child.connection for child in busy], _until(child.deadline for child in busy))
            for child in list(busy):
                outcome: _Outcome | Lost
                if child.connection.poll():
                    outcome = child.finish()
                elif child.deadline is not None and child.deadline <= time.monotonic():
                    child.kill()
                    outcome = Lost(f"it did not end within {limits.seconds:g} s")
                else:
                    continue
                busy.remove(child)
                if child.is_alive:
                    idle.append(child)
                yield items[child.index], outcome
    finally:
        for child in (*idle, *busy):
            child.kill()


def _until(deadlines: Iterable[float | None]) -> float | None:
    """Seconds until the earliest deadline; None if there are no deadlines."""
    known = [deadline for deadline in deadlines if deadline is not None]
    return max(0.0, min(known) - time.monotonic()) if known else None


class _Child:
    """A child process that makes one call at a time."""

    def __init__(
        self, do: Callable[[Any], object], items: Sequence[Any], limits: Limits, others: Iterable[_Child]
    ) -> None:
        self.connection, theirs = Pipe()
        self.index = -1
        self.deadline: float | None = None
        self.is_alive = True
        self._limits = limits
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with warnings.catch_warnings():
            # Python 3.12 and later warn about forks of multithreaded processes. The child uses no other thread's state.
            warnings.simplefilter("ignore", DeprecationWarning)
            parent = os.getpid()
            self._pid = os.fork()
        if not self._pid:
            # The child must close the connections: otherwise its siblings would not notice that this process has died.
            _serve(theirs, [self.connection, *(other.connection for other in others)], parent, do, items, limits)
        theirs.close()

    def begin(self, index: int) -> bool:
        """Start the call for an item. Return False if the child has died since its last call."""
        try:
            self.connection.send(index)
        except OSError:
            self.kill()
            return False
        self.index = index
        if self._limits.seconds is not None:
            self.deadline = time.monotonic() + self._limits.seconds
        return True

    def finish(self) -> Any:
        """Receive the outcome, or the reason why the call has no outcome."""
        try:
            outcome, modules = self.connection.recv()
        except (EOFError, OSError):
            return Lost(self._end())
        for name in modules:
            # Children that are forked later inherit the imported modules.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        return outcome

    def kill(self) -> None:
        """Kill the child and the processes that it has started."""
        if self.is_alive:
            self._signal()
            self._end()

    def _signal(self) -> None:
        for send in (os.killpg, os.kill):
            # The process group does not exist until the child has created it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self._pid, signal.SIGKILL)

    def _end(self) -> str:
        """Wait for the exit of the child and return a description of its status."""
        self.is_alive = False
        self.connection.close()
        until = time.monotonic() + _KILLED
        try:
            while os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                if time.monotonic() > until:
                    self._signal()
                    return "its process does not answer"
                time.sleep(0.001)
        except ChildProcessError:
            # The program ignores SIGCHLD, and the kernel has already reaped the child.
            return "its process has ended"
        # Processes that it started may still run. Until the child is reaped, its process group id cannot be reused.
        self._signal()
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if code >= 0:
            return f"its process ended with exit status {code}"
        name = signal.Signals(-code).name
        more = ", as the system kills one when memory is exhausted" if code == -signal.SIGKILL else ""
        return f"its process was killed by {name}{more}"


# -- in the child ------------------------------------------------------------------------------------------------------


def _serve(
    connection: Connection[Any, Any],
    others: Iterable[Connection[Any, Any]],
    parent: int,
    do: Callable[[Any], object],
    items: Sequence[Any],
    limits: Limits,
) -> NoReturn:
    status = 1
    try:
        # Exclude the parent's objects from garbage collection: finalizers could use connections that the parent uses.
        gc.freeze()
        os.setpgid(0, 0)
        _end_with(parent)
        _be_killed_first()
        for other in others:
            other.close()
        while (index := _next(connection)) is not None:
            known = set(sys.modules)
            with _memory_limit(limits.memory):
                outcome = do(items[index])
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            connection.send((outcome, [name for name in sys.modules if name not in known]))
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _next(connection: Connection[Any, Any]) -> int | None:
    """Index of the item for the next call; None if the parent has died."""
    try:
        return int(connection.recv())
    except (EOFError, OSError):
        return None


def _end_with(parent: int) -> None:
    """Let the kernel kill this process when the parent thread that forked it exits."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _be_killed_first() -> None:
    """Let the out-of-memory killer prefer this process over the parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


@contextlib.contextmanager
def _memory_limit(allowed: int | None) -> Iterator[None]:
    """Limit private memory. Memory-mapped files, such as data files of stores, do not count."""
    if allowed is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = _private_memory() + allowed
    if before[0] != resource.RLIM_INFINITY:
        most = min(most, before[0])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _private_memory() -> int:
    found = re.search(r"^VmData:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 0 if found is None else int(found[1]) << 10
