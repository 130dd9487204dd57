"""Calls in child processes. A call that kills its process, hangs or exhausts memory loses its own outcome and no other.

A child is a fork of this process and makes one call after another. If it ends in the middle of a call, or exceeds the
time limit, another child makes the remaining calls. The children end with this process, however it ends.
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
# Seconds until a process that was killed is abandoned: one that waits for a dead disk does not end.
_KILLED = 5.0


class Limits(NamedTuple):
    """Limits of one call."""

    seconds: float | None = 6 * 3600.0
    """None: no limit."""
    memory: int | None = None
    """Bytes that the call may allocate; more raises ``MemoryError`` in it. None: no limit."""


class Lost(NamedTuple):
    """The reason why a call has no outcome."""

    why: str


def calls(
    do: Callable[[_Item], _Outcome], items: Sequence[_Item], processes: int = 1, limits: Limits | None = None
) -> Iterator[tuple[_Item, _Outcome | Lost]]:
    """Call ``do`` for each item, in up to ``processes`` children at a time; yields in the order in which calls end.

    Only outcomes pass between processes: they are pickled, ``do`` and the items are not. With 0 processes the calls are
    made in this one, without limits.
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
    """Seconds until the first of them."""
    known = [deadline for deadline in deadlines if deadline is not None]
    return max(0.0, min(known) - time.monotonic()) if known else None


class _Child:
    """A child process, which makes one call at a time."""

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
            # Since 3.12, of processes that have threads. The child uses nothing that belongs to one of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            parent = os.getpid()
            self._pid = os.fork()
        if not self._pid:
            # Otherwise the others would not notice the end of this process.
            _serve(theirs, [self.connection, *(other.connection for other in others)], parent, do, items, limits)
        theirs.close()

    def begin(self, index: int) -> bool:
        """Begin the call for an item. False: the child has ended since its last call."""
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
        """Receive the outcome, or find out why there is none."""
        try:
            outcome, modules = self.connection.recv()
        except (EOFError, OSError):
            return Lost(self._end())
        for name in modules:
            # So that the next child need not import it again.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        return outcome

    def kill(self) -> None:
        """End the child and what it has started."""
        if self.is_alive:
            self._signal()
            self._end()

    def _signal(self) -> None:
        for send in (os.killpg, os.kill):
            # Its group does not exist before the child has made it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self._pid, signal.SIGKILL)

    def _end(self) -> str:
        """Wait until the child has ended; returns how."""
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
            # The program ignores SIGCHLD, so that the system has reaped the child.
            return "its process has ended"
        # Processes that it started may remain. Until the child is reaped, no other group has its number.
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
        # Objects of the parent are not collected here: finalizers would use connections that it still uses.
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
    """The item for the next call; None: the parent has ended."""
    try:
        return int(connection.recv())
    except (EOFError, OSError):
        return None


def _end_with(parent: int) -> None:
    """Have the system kill this process when the thread of the parent ends that has forked it."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _be_killed_first() -> None:
    """Where memory is exhausted, the system kills this process rather than the parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


@contextlib.contextmanager
def _memory_limit(allowed: int | None) -> Iterator[None]:
    """Limit private memory; mapped files, such as those of stores, do not count."""
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
    """Bytes that count towards the limit already."""
    found = re.search(r"^VmData:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 0 if found is None else int(found[1]) << 10
