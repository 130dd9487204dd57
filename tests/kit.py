"""What tests of a store share: refusals, faults by hook, damage to a closed store, children that can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb
import pytest

from bookstand import errors
from bookstand.storage.hooks import Hooks

PATIENCE = 60.0
"""Seconds after which something that has to happen is taken not to happen; nothing depends on how fast it does."""

HEADER = struct.Struct(">qqqq")
"""Ledger id, entry id, last-add-confirmed and cumulative length at the front of every stored entry."""

DIGEST_SIZES = {"crc32": 8, "crc32c": 4, "hmac": 20, "dummy": 0}


# -- refusals --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def refused(*codes: int) -> Iterator[pytest.ExceptionInfo[errors.BookstandError]]:
    """The block has to raise an error of ours with one of the codes."""
    with pytest.raises(errors.BookstandError) as caught:
        yield caught
    assert getattr(caught.value, "code", None) in codes, repr(caught.value)


def code_of(call: Callable[[], Any]) -> int | None:
    """The code that the call is refused with, None when it succeeds; whatever is not ours passes through."""
    try:
        call()
    except errors.LedgerError as error:
        return error.code
    return None


def outcome(pending: Any, timeout: float = PATIENCE) -> Any:
    """``("ok", value)`` or the code of what a pending operation ended with."""
    try:
        return "ok", pending.result(timeout)
    except errors.LedgerError as error:
        assert pending.done(), "a timeout of result() itself is no outcome"
        return error.code


def eventually(condition: Callable[[], Any], what: str = "the condition", timeout: float = PATIENCE) -> Any:
    """Poll until the condition gives something true, and return that."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        time.sleep(0.005)


def stored_by(handle: Any, entry_id: int) -> None:
    """Wait until an entry whose acknowledgment may have to wait lies in the store."""
    eventually(lambda: code_of(lambda: handle.read_unconfirmed(entry_id, entry_id)) is None, f"entry {entry_id} stored")


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(index)`` in so many threads at once; what they returned, or the first error that one raised."""
    results: list[Any] = [None] * count
    failures: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            barrier.wait(PATIENCE)
            results[index] = work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread did not come back"
    if failures:
        raise failures[0]
    return results


def until_full(call: Callable[[], Any], limit: int = 5000) -> list[Any]:
    """Call until the disk is full, and see that this is said as it should be; what the calls before gave."""
    results: list[Any] = []

    def work() -> None:
        while len(results) < limit:
            results.append(call())

    with refused(-6) as caught:
        work()
    assert isinstance(caught.value.__cause__, errors.DiskFullError)
    return results


def fill(writer: Any) -> int:
    """Append until the disk is full; the number of entries acknowledged."""
    numbers = iter(range(10_000))
    acknowledged = until_full(lambda: writer.append(bytes([next(numbers) % 251]) * 3000))
    assert acknowledged == list(range(len(acknowledged)))
    return len(acknowledged)


# -- faults ----------------------------------------------------------------------------------------------------------


class Faults(Hooks):
    """Holds adds before they are stored or before they are acknowledged, and puts faults into reads and fences."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._mode: str | None = None
        self._held: list[Callable[..., None]] = []
        self.on_entry: Callable[[int, int, bytes | None], bytes | None] | None = None
        self.fence_error: errors.LedgerError | None = None
        self.lac_error: errors.LedgerError | None = None
        self.fences: list[int] = []
        self.when_fenced: Callable[[int], None] | None = None

    def hold(self, mode: str) -> None:
        """From now on hold adds: ``"add"`` before the fence check and storing, ``"ack"`` once stored and synced."""
        with self._changed:
            self._mode = mode

    def wait_held(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._held) >= count, PATIENCE), "the adds never reached the hook"

    def release(self, error: errors.LedgerError | None = None) -> None:
        """Let the held adds go on, or fail, and hold no more."""
        with self._changed:
            self._mode = None
            held, self._held = self._held, []
        for proceed in held:
            if error is None:
                proceed()
            else:
                proceed(error)

    def _take(self, mode: str, proceed: Callable[..., None]) -> bool:
        with self._changed:
            if self._mode != mode:
                return False
            self._held.append(proceed)
            self._changed.notify_all()
            return True

    def before_add(self, ledger_id: int, entry_id: int, proceed: Callable[..., None]) -> bool:
        return self._take("add", proceed)

    def after_add(self, ledger_id: int, entry_id: int, proceed: Callable[..., None]) -> bool:
        return self._take("ack", proceed)

    def on_read(self, ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        return stored if self.on_entry is None else self.on_entry(ledger_id, entry_id, stored)

    def on_fence(self, ledger_id: int) -> None:
        self.fences.append(ledger_id)
        if self.when_fenced is not None:
            self.when_fenced(ledger_id)
        if self.fence_error is not None:
            raise self.fence_error

    def on_read_lac(self, ledger_id: int) -> None:
        if self.lac_error is not None:
            raise self.lac_error

    def mend(self) -> None:
        """No more faults."""
        self.on_entry = None
        self.fence_error = None
        self.lac_error = None
        self.when_fenced = None


def failing(error: type[errors.LedgerError]) -> Callable[[int, int, bytes | None], bytes | None]:
    """A fault for every read of an entry."""

    def fault(ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        raise error

    return fault


def corrupted(ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
    return None if stored is None else stored[:-1] + bytes((stored[-1] ^ 1,))


def cut_short(ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
    return None if stored is None else stored[:20]


def absent(ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
    return None


# -- the file of a closed store --------------------------------------------------------------------------------------


def data_file(path: Path) -> Path:
    """The file that holds a store's data, wherever in its directory it lies."""
    if path.is_file():
        return path
    files = [file for file in path.rglob("*") if file.is_file() and "lock" not in file.name]
    return max(files, key=lambda file: file.stat().st_size)


@contextlib.contextmanager
def raw(path: Path, *, write: bool = False) -> Iterator[Callable[[bytes], Any]]:
    """One transaction on a closed store, past bookstand; gives a function from a sub-database's name to its handle."""
    file = data_file(path)
    subdir = file.name == "data.mdb"
    environment = lmdb.open(str(file.parent if subdir else file), subdir=subdir, max_dbs=32, lib_version=0)
    try:
        with environment.begin(write=write) as transaction:

            def database(name: bytes) -> Any:
                return _Database(transaction, environment.open_db(name, txn=transaction, create=False))

            yield database
    finally:
        environment.close()


class _Database:
    def __init__(self, transaction: Any, handle: Any) -> None:
        self._transaction = transaction
        self._handle = handle

    def __getitem__(self, key: bytes) -> bytes:
        value = self._transaction.get(key, db=self._handle)
        if value is None:
            raise KeyError(key)
        return bytes(value)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._transaction.put(key, value, db=self._handle)

    def __delitem__(self, key: bytes) -> None:
        if not self._transaction.delete(key, db=self._handle):
            raise KeyError(key)

    def drop(self) -> None:
        self._transaction.drop(self._handle)

    def items(self) -> list[tuple[bytes, bytes]]:
        return [(bytes(key), bytes(value)) for key, value in self._transaction.cursor(db=self._handle)]


def entry_key(ledger_id: int, entry_id: int) -> bytes:
    return struct.pack(">QQ", ledger_id, entry_id)


def stored_entries(path: Path, ledger_id: int) -> dict[int, bytes]:
    """What lies in a closed store for a ledger, byte for byte."""
    with raw(path) as database:
        entries = database(b"entries").items()
    unpacked = ((struct.unpack(">QQ", key), value) for key, value in entries)
    return {entry_id: value for (owner, entry_id), value in unpacked if owner == ledger_id}


def change_entry(path: Path, ledger_id: int, entry_id: int, change: Callable[[bytes], bytes | None]) -> None:
    """Replace the bytes of one entry of a closed store, or drop them where ``change`` gives None."""
    with raw(path, write=True) as database:
        entries = database(b"entries")
        changed = change(entries[entry_key(ledger_id, entry_id)])
        if changed is None:
            del entries[entry_key(ledger_id, entry_id)]
        else:
            entries[entry_key(ledger_id, entry_id)] = changed


# -- other processes -------------------------------------------------------------------------------------------------

_SERVE = """
import json, os, sys, threading
import bookstand
names = {"bookstand": bookstand, "os": os, "path": sys.argv[1], "threading": threading}
for line in sys.stdin:
    source = json.loads(line)
    try:
        try:
            program = compile(source, "<child>", "eval")
        except SyntaxError:
            exec(compile(source, "<child>", "exec"), names)
            reply = {"value": None}
        else:
            reply = {"value": eval(program, names)}
    except bookstand.BookstandError as error:
        reply = {"refused": getattr(error, "code", None), "class": type(error).__name__, "message": str(error)}
    except BaseException as error:
        reply = {"raised": repr(error)}
    print(json.dumps(reply, default=repr), flush=True)
"""


class ChildRefusedError(Exception):
    def __init__(self, reply: dict[str, Any]) -> None:
        super().__init__(f"{reply['class']}: {reply['message']}")
        self.code = reply["refused"]
        self.name = reply["class"]


class Child:
    """A process with a store of its own, to which Python source is sent line by line, and which may be killed."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(line)
        self._replies.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, source: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(source) + "\n")
        self._process.stdin.flush()

    def receive_raw(self) -> Any:
        """The next line of JSON, the answer to a request or not."""
        line = self._replies.get(timeout=PATIENCE)
        assert line is not None, f"the child died with {self._process.wait(PATIENCE)}"
        return json.loads(line)

    def receive(self) -> Any:
        reply = self.receive_raw()
        if "refused" in reply:
            raise ChildRefusedError(reply)
        assert "raised" not in reply, reply["raised"]
        return reply["value"]

    def run(self, source: str) -> Any:
        self.send(source)
        return self.receive()

    def code_of(self, source: str) -> int | None:
        try:
            self.run(source)
        except ChildRefusedError as refusal:
            return refusal.code
        return None

    def kill(self) -> None:
        """SIGKILL: nothing of the process runs any more."""
        self._process.kill()
        self._process.wait(PATIENCE)

    def close(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reader.join(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_python(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A program of its own, for what may end the process; the caller judges how it ended."""
    return subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=False,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
    )


ROOT = Path(__file__).resolve().parent.parent


def own_environment(**variables: object) -> dict[str, str]:
    """For programs of a test's own: they find the tests, and say where they were when a signal ends them."""
    return {
        **os.environ,
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        **{name: str(value) for name, value in variables.items()},
    }


class Program:
    """A program that runs on its own, tells what it does line by line, and may be killed at any moment."""

    def __init__(self, source: str, *arguments: object, **environment: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", source, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own_environment(**environment),
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # The last line of one that was killed may be half a line.
            if line.endswith(b"\n"):
                with self._changed:
                    self.lines.append(line[:-1].decode())
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_lines(self, count: int) -> list[str]:
        """Until it has told so much."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= count or self._ended, PATIENCE)
            assert len(self.lines) >= count, f"it ended after {self.lines} with {self._process.wait(PATIENCE)}"
            return list(self.lines)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> list[str]:
        """SIGKILL; everything it has told."""
        self._process.kill()
        self.finish()
        return self.lines

    def finish(self) -> int:
        """Wait for its end, and return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            status = self._process.wait(PATIENCE * 2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        self._reader.join(PATIENCE)
        self._process.stdout.close()
        return status

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.finish()


def copied_tree(to: Path) -> Path:
    """What git knows and what is new, without what earlier builds left."""
    ignored = shutil.ignore_patterns(".venv", ".git", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "data")
    shutil.copytree(ROOT, to, symlinks=True, ignore=ignored)
    return to
