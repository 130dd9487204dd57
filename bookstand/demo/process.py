"""One life of the working process: from its start until it has done its work, or is killed."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
from collections.abc import Callable
from time import monotonic

from bookstand.demo.accounting import Accounting
from bookstand.demo.progress_pipe import DELIVERED, PipeReader

_LOOK_EVERY = 0.1
# After so many seconds without any progress it is taken to hang.
_PATIENCE = 60.0
_PIPE_READ = 1 << 20


class ChildProcess:
    def __init__(self, path: str, books: Accounting) -> None:
        self.books = books
        self.seconds = self.cpu_seconds = 0.0
        self.until_first_delivery: float | None = None
        """Seconds from the start of the process, its imports included."""
        self.peak_memory = 0
        self.memory = 0
        self._arguments = [sys.executable, "-m", "bookstand.demo.worker", path, str(books.messages)]

    def live(self, look: Callable[[ChildProcess], bool]) -> bool:
        """Whether it was killed, which happens as soon as ``look`` says so. It looks some ten times a second. What it
        told before it died is all in the books."""
        started = moved = monotonic()
        cpu_before = _cpu_seconds_of_children()
        self.books.begin_life()
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [*self._arguments, str(writing)], pass_fds=[writing], start_new_session=True, stderr=subprocess.PIPE
        )
        os.close(writing)
        listener = PipeReader()
        killed = False
        looked = 0.0
        try:
            while True:
                ready, _, _ = select.select([reading], [], [], _LOOK_EVERY)
                if ready:
                    data = os.read(reading, _PIPE_READ)
                    if not data:
                        break
                    for told in listener.hear(data):
                        self.books.note(told)
                        if told.kind == DELIVERED:
                            moved = monotonic()
                            if self.until_first_delivery is None:
                                self.until_first_delivery = moved - started
                now = monotonic()
                if now - moved > _PATIENCE:
                    raise SystemExit(f"FAILED: nothing was delivered for {_PATIENCE:.0f} s, and it is not finished.")
                if not killed and now - looked >= _LOOK_EVERY:
                    looked = now
                    self.seconds = now - started
                    self._weigh(process.pid)
                    if look(self):
                        process.kill()
                        killed = True
        finally:
            process.kill()
            _, said = process.communicate()
            code = process.returncode
            os.close(reading)
            self.seconds = monotonic() - started
            self.cpu_seconds = _cpu_seconds_of_children() - cpu_before
        if code and not killed:
            raise SystemExit(f"FAILED: the process that works ended with {code}: {_last_line(said)}")
        return killed

    def _weigh(self, process: int) -> None:
        """Its private memory: what is mapped of the store's file is the kernel's to take back."""
        try:
            with open(f"/proc/{process}/status") as status:
                self.memory = next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))
        except (OSError, StopIteration):
            return
        self.peak_memory = max(self.peak_memory, self.memory)


def _last_line(said: bytes) -> str:
    """Of a traceback, the one that says what it is about."""
    return said.decode(errors="replace").strip().rpartition("\n")[2] or "it said nothing"


def _cpu_seconds_of_children() -> float:
    """Of those that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
