"""Recorder of a workload's actual file operations: a library between the process and the C library.

The workload runs in a new process with ``syscall_recorder.c`` preloaded. It must be an importable function, and its
changes in memory are not visible here; acknowledged values are sent back. The library is compiled on first use and
cached in a directory for temporary files.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import traceback
from contextlib import contextmanager, suppress
from hashlib import sha256
from threading import Lock

from bookstand.errors import IncorrectParameterError, StoreError
from bookstand.testing.cache_directory import private_folder
from bookstand.testing.crash import recording as kinds
from bookstand.testing.crash.recording import Operation, Recording

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from multiprocessing.connection import Connection
    from typing import Any

    Acknowledge = Callable[[Any], None]
    Workload = Callable[[str, Acknowledge], object]

_SOURCE = os.path.join(os.path.dirname(os.path.realpath(__file__)), "syscall_recorder.c")

_HEADER = struct.Struct("=II QQQ II")
_KINDS = {
    1: kinds.CREATE,
    2: kinds.WRITE,
    3: kinds.TRUNCATE,
    5: kinds.SYNC,
    6: kinds.RENAME,
    7: kinds.UNLINK,
    8: kinds.MKDIR,
    9: kinds.RMDIR,
    10: kinds.ACKNOWLEDGE,
}
_EXTEND = 4

# Operations here are fast; a process that takes longer hangs.
_PATIENCE = 600.0


def missing() -> str | None:
    """Return why recording is impossible on this system; None if it is possible."""
    if not sys.platform.startswith("linux"):
        return f"observing a process from below is for Linux, this is {sys.platform}"
    if _compiler() is None:
        return "there is no C compiler (cc or gcc)"
    return None


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def library() -> str:
    """Return the path of the library; compile it if necessary."""
    reason = missing()
    if reason is not None:
        raise IncorrectParameterError(reason)
    with open(_SOURCE, "rb") as file:
        source = file.read()
    built = os.path.join(private_folder(), f"{sha256(source).hexdigest()[:16]}.so")
    if not os.path.exists(built):
        _compile(built)
    return built


def _compile(built: str) -> None:
    unfinished = f"{built}.{os.getpid()}"
    command = [_compiler() or "cc", "-shared", "-fPIC", "-O1", "-w", "-o", unfinished, _SOURCE, "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StoreError(f"{_SOURCE} cannot be compiled: {done.stderr}")
    os.rename(unfinished, built)


# -- recording -------------------------------------------------------------------------------------------------------


def record(workload: Workload, folder: str, store: str) -> Recording:
    """Run the workload in its own process and record its operations."""
    journal = f"{folder}.journal"
    try:
        acknowledged, _ = _observe(workload, folder, store, journal)
        with open(journal, "rb") as file:
            return parse(file.read(), os.path.realpath(folder), store, acknowledged)
    finally:
        if os.path.exists(journal):
            os.unlink(journal)


def count_operations(workload: Workload, folder: str, store: str) -> int:
    """Count the file operations before which :func:`kills` can kill the workload."""
    _, count = _observe(workload, folder, store, os.devnull)
    return count


def _observe(workload: Workload, folder: str, store: str, journal: str) -> tuple[list[Any], int]:
    with _child(_run_observed, workload, os.path.realpath(folder), store, journal) as answers:
        kind, value, count = _answer(answers)
    if kind == "raised":
        raise StoreError(f"the workload failed while it was observed:\n{value}")
    return value, count


def _run_observed(answers: Connection, workload: Workload, folder: str, store: str, journal: str) -> None:
    observer = ctypes.CDLL(None)
    acknowledged: list[Any] = []
    lock = Lock()

    def acknowledge(value: Any) -> None:
        with lock:
            observer.observer_mark()
            acknowledged.append(value)

    _start(folder, journal)
    try:
        workload(os.path.join(folder, store), acknowledge)
        answer: tuple[str, Any] = "done", acknowledged
    except BaseException:
        answer = "raised", traceback.format_exc()
    observer.observer_count.restype = ctypes.c_long
    count = int(observer.observer_count())
    observer.observer_stop()
    answers.send((*answer, count))


def _start(folder: str, journal: str, end_before: int = 0) -> None:
    ctypes.CDLL(None).observer_start(os.fsencode(folder), os.fsencode(journal), ctypes.c_long(end_before))


@contextmanager
def _child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Start a Python process with the library preloaded, which sends its results through the connection."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=target, args=(there, *arguments), daemon=False)
    preloaded = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = library() if not preloaded else f"{library()}:{preloaded}"
    try:
        child.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise IncorrectParameterError(
            f"a workload that is observed runs in a process of its own, so it must be a function of a module: {error}"
        ) from error
    finally:
        if preloaded is None:
            del os.environ["LD_PRELOAD"]
        else:
            os.environ["LD_PRELOAD"] = preloaded
        there.close()
    try:
        yield here
    finally:
        here.close()
        child.join(_PATIENCE)
        if child.is_alive():
            child.kill()
            child.join()
        child.close()


def _answer(answers: Connection) -> Any:
    if not answers.poll(_PATIENCE):
        raise StoreError("the observed process does not answer")
    try:
        return answers.recv()
    except EOFError:
        raise StoreError(
            "the observed process died; should it have failed to start, note that it imports the main module, whose "
            "own work has to stand behind: if __name__ == '__main__'"
        ) from None


def parse(journal: bytes, folder: str, store: str, acknowledged: list[Any]) -> Recording:
    """Parse the journal that the library has written."""
    recording = Recording(store, "observed", acknowledged=acknowledged)
    parsing = _Parsing(folder)
    position = 0
    while position < len(journal):
        kind, synchronous, inode, offset, size, path_size, target_size = _HEADER.unpack_from(journal, position)
        position += _HEADER.size
        path = parsing.name(journal[position : position + path_size])
        position += path_size
        target = parsing.name(journal[position : position + target_size])
        position += target_size
        data = journal[position : position + size]
        position += size
        operation = parsing.operation(kind, bool(synchronous), inode, offset, path, target, data)
        if operation is not None:
            recording.add(operation)
    return recording


class _Parsing:
    """Mapping from inodes, which are reused, to file numbers."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._numbers: dict[int, int] = {}
        self._named: dict[str, int] = {}
        self._folders = {""}
        self._sizes: dict[int, int] = {}
        self._count = 0

    def name(self, path: bytes) -> str:
        full = os.fsdecode(path).removesuffix(" (deleted)")
        return os.path.relpath(full, self._folder) if full and full != self._folder else ""

    def operation(
        self, kind: int, synchronous: bool, inode: int, offset: int, path: str, target: str, data: bytes
    ) -> Operation | None:
        told = _KINDS.get(kind, kinds.TRUNCATE)
        if told == kinds.CREATE:
            self._count += 1
            self._numbers[inode] = self._named[path] = self._count
            self._sizes[self._count] = 0
        elif told == kinds.MKDIR:
            self._folders.add(path)
        elif told == kinds.RMDIR:
            self._folders.discard(path)
        if told == kinds.SYNC and path in self._folders:
            return Operation(kinds.SYNC_FOLDER, path)
        if told == kinds.RENAME:
            number = self._named.pop(path, 0)
            self._named[target] = number
            return Operation(told, path, number, target=target)
        if told == kinds.UNLINK:
            self._named.pop(path, None)
            return Operation(told, path)
        number = self._numbers.get(inode, 0)
        if told == kinds.WRITE:
            self._sizes[number] = max(self._sizes.get(number, 0), offset + len(data))
        elif kind == _EXTEND:
            if offset <= self._sizes.get(number, 0):
                return None
            self._sizes[number] = offset
        elif told == kinds.TRUNCATE:
            self._sizes[number] = offset
        return Operation(told, path, number, offset, data, synchronous)


# -- kills -----------------------------------------------------------------------------------------------------------


def kills(workload: Workload, folder: str, store: str, numbers: Iterable[int]) -> Generator[tuple[int, str, list[Any]]]:
    """Run the workload once for each number, and kill it before that file operation, counted from 1.

    Yield the number, the directory as the killed process left it, and the acknowledged values. A workload with fewer
    operations is not killed. The directory is removed when the next one is requested.
    """
    with _child(_run_killed, workload, os.path.realpath(folder), store) as answers:
        for number in numbers:
            answers.send(number)
            answer = _answer(answers)
            if answer[0] == "raised":
                raise StoreError(f"the workload failed while it was observed:\n{answer[1]}")
            _, below, acknowledged = answer
            yield number, below, acknowledged
            shutil.rmtree(below, ignore_errors=True)


def _run_killed(answers: Connection, workload: Workload, folder: str, store: str) -> None:
    _import_all()
    while True:
        try:
            number = answers.recv()
        except EOFError:
            # The caller has closed the generator.
            return
        below = os.path.join(folder, f"killed-{number}")
        os.mkdir(below)
        inlet, outlet = os.pipe()
        child = os.fork()
        if not child:
            os.close(inlet)
            _be_killed(workload, below, store, number, outlet)
        os.close(outlet)
        acknowledged = told(inlet)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, -signal.SIGKILL):
            answers.send(("raised", acknowledged[-1] if acknowledged else f"it ended with {status}"))
            return
        answers.send(("killed", below, acknowledged))


def _be_killed(workload: Workload, below: str, store: str, number: int, outlet: int) -> None:
    status = 1
    try:
        _start(below, os.devnull, number)
        workload(os.path.join(below, store), lambda value: tell(outlet, value))
        status = 0
    except BaseException:
        tell(outlet, traceback.format_exc())
    finally:
        os._exit(status)


def tell(outlet: int, value: Any) -> None:
    """Send a value through a pipe before returning, because the process may be killed right after."""
    rest = memoryview(pickle.dumps(value))
    while rest:
        rest = rest[os.write(outlet, rest) :]


def told(inlet: int) -> list[Any]:
    """Receive all values until the pipe is closed; an incomplete one is discarded."""
    values = []
    with open(inlet, "rb") as stream:
        while True:
            try:
                values.append(pickle.load(stream))
            except (EOFError, pickle.UnpicklingError):
                return values


def _import_all() -> None:
    """Import once, rather than in every process that will be killed."""
    from importlib import import_module
    from pkgutil import iter_modules

    from bookstand import ledger, storage

    for package in (storage, ledger):
        for module in iter_modules(package.__path__):
            # Modules that cannot be imported here are not used by the workload.
            with suppress(ImportError):
                if module.name != "probe":
                    import_module(f"{package.__name__}.{module.name}")
