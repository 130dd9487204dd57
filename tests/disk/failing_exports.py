"""A program that exports a store again and again, and each time something happens at another file operation.

``python -m tests.disk.failing_exports STORE FOLDER`` runs under the shim of ``tests/storage``. Each line that it reads
is a case, and is answered by a line: how the export ended, and what was wrong with what it left. Whoever exports next
has no part in what happened before, so that each export is that of a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import bookstand
from bookstand.disk.exporter.run import export_topics
from bookstand.disk.exporter.staging import UNFINISHED
from bookstand.errors import BookstandError, DiskFullError
from tests.disk.exports import bytes_below
from tests.disk.full_store import PACKED
from tests.storage import shim

HUNG = 60
"""Seconds after which an export is taken to hang."""


class Case(NamedTuple):
    """See ``shim.arm``."""

    operations: str = shim.CHANGING
    when: int = 0
    answer: int = shim.KILL
    times: int = 1


class Ended(NamedTuple):
    """``how``: killed, ok, or the error's class; ``seen``: how many operations there were, if it was not killed."""

    how: str
    seen: int = 0
    disk_full: bool = False


class Failing:
    def __init__(self, store: str, folder: Path) -> None:
        self._store = store
        # Operations are those below it.
        self._base = folder
        self._target = folder / "export"
        folder.mkdir(exist_ok=True)
        assert self._export(Case()).how == "ok"
        self._whole = bytes_below(self._target)
        shutil.rmtree(self._target)

    def run(self, case: Case) -> tuple[Ended, list[str]]:
        ended = self._export(case)
        problems = self._left_by(ended)
        shutil.rmtree(self._target, ignore_errors=True)
        return ended, problems

    def _left_by(self, ended: Ended) -> list[str]:
        found = bytes_below(self._target)
        left = {path for path in found if "/" not in path}
        whole = "bookie-0" in left
        if whole:
            if {path: found[path] for path in found if path != UNFINISHED} != self._whole:
                return ["a bookie is there, and is not whole"]
        elif ended.how == "ok":
            return ["it ended well, and nothing is there"]
        elif not left <= {UNFINISHED, "metadata.jsonl.gz"} or (left and UNFINISHED not in left):
            return [f"left behind: {left}"]
        if not left:
            return []
        again = self._export(Case())
        if again.how != ("StoreError" if whole else "ok"):
            return [f"the next attempt ended so: {again.how}"]
        if bytes_below(self._target) != self._whole:
            return ["the next attempt gave something else"]
        return []

    def _export(self, case: Case) -> Ended:
        inlet, outlet = os.pipe()
        child = os.fork()
        if not child:
            os.close(inlet)
            signal.alarm(HUNG)
            try:
                os.write(outlet, json.dumps(self._attempt(case)).encode())
            finally:
                os._exit(0)
        os.close(outlet)
        with open(inlet, "rb") as stream:
            told = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -9:
            return Ended("killed")
        return Ended(*json.loads(told)) if told else Ended(f"exit {status}")

    def _attempt(self, case: Case) -> Ended:
        with bookstand.open(self._store, read_only=True) as store:
            shim.arm(str(self._base), *case)
            try:
                export_topics(store, self._target, [PACKED], log_bytes=4_000)
                return Ended("ok", shim.count())
            except BookstandError as error:
                return Ended(type(error).__name__, shim.count(), isinstance(error.__cause__, DiskFullError))
            except BaseException as error:
                return Ended(f"not ours: {error!r}", shim.count())
            finally:
                shim.disarm()


def main(store: str, folder: str) -> None:
    failing = Failing(store, Path(folder))
    for line in sys.stdin:
        print(json.dumps(failing.run(Case(*json.loads(line)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
