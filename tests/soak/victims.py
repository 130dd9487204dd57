"""Lives of stores under the shim: each in a child of its own, at one of whose file operations something happens.

``Victims`` starts ``python -m tests.soak.victims FOLDER`` under the shim, which has everything loaded, and forks a
child for each case that it is told, line by line: that is what makes thousands of them quick.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import bookstand
from tests.kit import own_environment
from tests.soak import lives, promises
from tests.soak.kinds import KindUnavailableError
from tests.storage import shim

ROOT = Path(__file__).resolve().parents[2]
HUNG = 120
"""Seconds after which a child is taken to hang."""


class Case(NamedTuple):
    """The ``when``-th of the operations meets with ``answer``; 0 only counts them. See ``shim.arm``."""

    life: str
    seed: int
    operations: str = shim.CHANGING
    when: int = 0
    answer: int = 0
    times: int = 1
    survivor: bool = False
    """Another process has the store open all the time, and goes on writing."""


class Outcome(NamedTuple):
    met: bool
    """Whether it came to the operation at all."""
    seen: int
    """How many of the operations there were, 0 where the process was killed."""
    problems: list[str]


class Victims:
    """The program under the shim. :class:`KindUnavailableError` where there is no C compiler."""

    def __init__(self) -> None:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="bookstand-victims-", dir=memory)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.victims", self._folder.name],
                cwd=ROOT,
                env=own_environment(LD_PRELOAD=shared_library()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        except BaseException:
            self._folder.cleanup()
            raise

    def run(self, case: Case) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the program under the shim ended in {case}"
        return Outcome(*json.loads(answer))

    def __enter__(self) -> Victims:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


@functools.cache
def shared_library() -> Path:
    """The shim, for as long as this process lives."""
    folder = tempfile.mkdtemp(prefix="bookstand-shim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = shim.build(Path(folder))
    if library is None:
        raise KindUnavailableError("failing file operations needs a C compiler")
    return library


# -- in the program under the shim -----------------------------------------------------------------------------------


class Child:
    """A fork that runs ``work(say)``; what it said, and how it ended."""

    def __init__(self, work: Callable[[Callable[[dict[str, Any]], None]], None]) -> None:
        inlet, outlet = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(inlet)
            signal.alarm(HUNG)
            try:
                work(lambda one: _write_all(outlet, json.dumps(one).encode() + b"\n"))
            except BaseException as error:
                _write_all(outlet, json.dumps({"broken": repr(error)}).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(outlet)
        self._inlet = inlet

    def first(self) -> dict[str, Any]:
        """Wait for the first thing that it says."""
        line = b""
        while not line.endswith(b"\n"):
            read = os.read(self._inlet, 1)
            assert read, "the child ended without a word"
            line += read
        return dict(json.loads(line))

    def rest(self) -> tuple[list[dict[str, Any]], int]:
        """All else, to the last whole line, and the signal that it ended with, or 0."""
        with open(self._inlet, "rb") as stream:
            said = [json.loads(line) for line in stream if line.endswith(b"\n")]
        return said, -os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _write_all(outlet: int, data: bytes) -> None:
    while data:
        data = data[os.write(outlet, data) :]


class Laboratory:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._prepared: dict[tuple[str, int], tuple[str, promises.Told]] = {}

    def run(self, case: Case) -> Outcome:
        template, before = self._prepare(case)
        with self._copy(template) as path:
            survivor = _Survivor(path, case.seed) if case.survivor and os.path.exists(path) else None
            said, ended = Child(lambda say: _live(case, path, say)).rest()
            problems = [one["broken"] for one in said if "broken" in one]
            seen = sum(one.get("seen", 0) for one in said)
            told = [before, [one for one in said if "answer" in one]]
            if survivor is not None:
                continued, how = survivor.go_on()
                told.append(continued)
                problems += [f"the survivor ended with signal {how}"] if how else []
            if ended and (case.answer != shim.KILL or ended != signal.SIGKILL):
                problems.append(f"ended with signal {ended}")
            checked, how = Child(lambda say: say({"problems": _check(case, path, told)})).rest()
            if how:
                problems.append(f"the check ended with signal {how}")
            for one in checked:
                problems += one.get("problems", []) or ([one["broken"]] if "broken" in one else [])
            return Outcome(bool(ended) or seen >= case.when, seen, problems)

    def _prepare(self, case: Case) -> tuple[str, promises.Told]:
        """A store as it is before the life, made once, and what was told of it."""
        key = case.life, case.seed
        if key not in self._prepared:
            path = os.path.join(self._folder, f"before-{len(self._prepared)}", "store")
            before, _ = lives.LIVES[case.life]
            said, ended = Child(lambda say: before(lives.Life(path, case.seed, say, lambda: None))).rest()
            assert not ended
            assert not [one for one in said if one.get("answer") not in ("ok", None)], said
            self._prepared[key] = path, said
        return self._prepared[key]

    @contextmanager
    def _copy(self, template: str) -> Iterator[str]:
        folder = os.path.join(self._folder, "case")
        path = os.path.join(folder, "store")
        os.mkdir(folder)
        try:
            if os.path.exists(template):
                shutil.copytree(template, path)
            yield path
        finally:
            shutil.rmtree(folder)


def _live(case: Case, path: str, say: Callable[[dict[str, Any]], None]) -> None:
    def arm() -> None:
        shim.arm(os.path.dirname(path), case.operations, case.when, case.answer, case.times)

    life = lives.Life(path, case.seed, say, arm)
    _, live = lives.LIVES[case.life]
    live(life)
    say({"seen": shim.count()})
    shim.disarm()
    life.use_again()


class _Survivor:
    """A process that has the store open while another one dies."""

    def __init__(self, path: str, seed: int) -> None:
        go, self._go = os.pipe()

        def work(say: Callable[[dict[str, Any]], None]) -> None:
            life = lives.Life(path, seed, say, lambda: None)
            life.open_with_a_small_map()
            os.read(go, 1)
            life.work("survivor")
            life.read_all()
            life.close()

        self._child = Child(work)
        os.close(go)
        self._opened = self._child.first()

    def go_on(self) -> tuple[promises.Told, int]:
        os.write(self._go, b"!")
        os.close(self._go)
        said, ended = self._child.rest()
        return [self._opened, *said], ended


def _check(case: Case, path: str, told: list[promises.Told]) -> list[str]:
    options = lives.Life(path, case.seed, lambda _: None, lambda: None).options
    with bookstand.open(path, witness=options["witness"]) as store:
        problems = [f"verify: {problem.message}" for problem in store.verify().problems]
        problems += promises.judge(told, promises.observe(store))
    left = set(os.listdir(path)) - {"data.mdb", "lock.mdb", "witness"}
    if left:
        problems.append(f"left behind: {sorted(left)}")
    for backup in promises.backups(told):
        with bookstand.open(backup, create=False) as store:
            problems += [f"backup: {problem.message}" for problem in store.verify().problems]
    return problems


def main(folder: str) -> None:
    # What the children would each load for themselves is loaded by one who does it all.
    with bookstand.open(os.path.join(folder, "warm")) as store:
        life = lives.Life(os.path.join(folder, "warm"), 0, lambda _: None, lambda: None)
        life.store = store
        life.work("warm")
        promises.observe(store)
        life.backup()
        store.compact()
    # Children then have nothing of ours to write to, and share its memory.
    gc.collect()
    gc.freeze()
    laboratory = Laboratory(folder)
    for line in sys.stdin:
        print(json.dumps(laboratory.run(Case(*json.loads(line)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
