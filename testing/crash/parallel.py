"""Examination of many cases in forked processes, in which a case that is killed, such as by SIGBUS, is a finding."""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import pickle
import signal
import struct
import tempfile
import traceback
import warnings
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import BinaryIO

# Time limit after which a case counts as hung.
CASE_SECONDS = 120
# Number of cases between two garbage collections.
_COLLECT = 256

_NUMBER = struct.Struct("=q")


class Finding(NamedTuple):
    """Number of a failing case, and its error message."""

    case: int
    message: str


def examine_all(
    count: int, begin: Callable[[], AbstractContextManager[Callable[[int], None]]], processes: int | None = None
) -> tuple[int, Finding | None]:
    """Examine cases 0 to ``count`` - 1; return how many were examined, and the failing case with the lowest number.

    Each process calls ``begin()`` and passes the numbers of its cases, in ascending order, to the result. The search
    stops soon after a failure.
    """
    if processes is not None and processes < 1:
        raise IncorrectParameterError(f"processes is a number from 1 up, not {processes!r}")
    processes = max(1, min(processes or os.cpu_count() or 1, count))
    with mmap.mmap(-1, _NUMBER.size * (1 + 2 * processes)) as shared:
        board = _Board(shared)
        children = [_start(number, processes, count, begin, board) for number in range(processes)]
        findings = [_end(*child, number, board) for number, child in enumerate(children)]
        found = [finding for finding in findings if finding is not None]
        return sum(board.done(number) for number in range(processes)), min(found, default=None)


class _Board:
    """State shared by all processes: the stop flag, and the current case and number of finished cases of each."""

    def __init__(self, shared: mmap.mmap) -> None:
        self._shared = shared

    def stop(self) -> None:
        _NUMBER.pack_into(self._shared, 0, 1)

    @property
    def stopped(self) -> bool:
        return self._shared[0] != 0

    def set(self, process: int, case: int, done: int) -> None:
        _NUMBER.pack_into(self._shared, _NUMBER.size * (1 + 2 * process), case)
        _NUMBER.pack_into(self._shared, _NUMBER.size * (2 + 2 * process), done)

    def at(self, process: int) -> int:
        (case,) = _NUMBER.unpack_from(self._shared, _NUMBER.size * (1 + 2 * process))
        return int(case)

    def done(self, process: int) -> int:
        (done,) = _NUMBER.unpack_from(self._shared, _NUMBER.size * (2 + 2 * process))
        return int(done)


def fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 and later warn about other threads. The child uses nothing that could be locked by one of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _start(
    number: int,
    processes: int,
    count: int,
    begin: Callable[[], AbstractContextManager[Callable[[int], None]]],
    board: _Board,
) -> tuple[int, int, BinaryIO]:
    inlet, outlet = os.pipe()
    # Receives the stack trace of the child if a signal kills it.
    last_words = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed in _end
    child = fork()
    if child:
        os.close(outlet)
        return child, inlet, last_words
    os.close(inlet)
    status = 1
    try:
        # Cases create little garbage that needs collection, which would take a fifth of the time.
        gc.freeze()
        gc.disable()
        faulthandler.enable(last_words)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, last_words, chain=True)
        status = _work(range(number, count, processes), number, begin, board, outlet)
    finally:
        os._exit(status)


def _work(
    cases: range,
    number: int,
    begin: Callable[[], AbstractContextManager[Callable[[int], None]]],
    board: _Board,
    outlet: int,
) -> int:
    case, done = cases.start, 0
    try:
        with begin() as examine:
            for case in cases:
                if board.stopped:
                    break
                board.set(number, case, done)
                signal.alarm(CASE_SECONDS)
                examine(case)
                done += 1
                if done % _COLLECT == 0:
                    gc.collect()
            signal.alarm(0)
            board.set(number, case, done)
        return 0
    except BaseException as error:
        signal.alarm(0)
        board.stop()
        board.set(number, case, done + 1)
        _write_all(outlet, pickle.dumps((case, describe_error(error))))
        return 1


def describe_error(error: BaseException) -> str:
    """Format an error. The trace begins where it leaves this kit, because the rest is the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_of_the_kit(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_of_the_kit(trace: types.TracebackType) -> bool:
    kit = os.path.dirname(os.path.dirname(__file__))
    return trace.tb_frame.f_code.co_filename.startswith(kit + os.sep)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _end(child: int, inlet: int, last_words: BinaryIO, number: int, board: _Board) -> Finding | None:
    with open(inlet, "rb") as describe_error:
        answer = describe_error.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with last_words:
        last_words.seek(0)
        trace = last_words.read().decode(errors="replace")
    if answer:
        return Finding(*pickle.loads(answer))
    if status == 0:
        return None
    board.stop()
    why = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    if status == -signal.SIGALRM:
        why = f"nothing: it took more than {CASE_SECONDS} s"
    board.set(number, board.at(number), board.done(number) + 1)
    return Finding(board.at(number), f"the process that used the store ended with {why}\n{trace}")
