"""The child process of the demo, from its start until it exits or is killed."""

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

_POLL_INTERVAL = 0.1
# Seconds without a delivery after which the process is considered hung.
_PATIENCE = 60.0
_PIPE_READ = 1 << 20


class ChildProcess:
    def __init__(self, path: str, accounting: Accounting) -> None:
        self.accounting = accounting
        self.seconds = self.cpu_seconds = 0.0
        self.until_first_delivery: float | None = None
        """Seconds since the start of the process, including its imports."""
        self.peak_memory = 0
        self.memory = 0
        self._arguments = [sys.executable, "-m", "bookstand.demo.worker", path, str(accounting.messages)]

    def run(self, should_kill: Callable[[ChildProcess], bool]) -> bool:
        """Run the process, and kill it when ``should_kill`` returns True. Return True if it was killed. Everything that
        the process reports before its end is recorded."""
        started = last_delivery = monotonic()
        cpu_before = _cpu_seconds_of_children()
        self.accounting.begin_run()
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [*self._arguments, str(writing)], pass_fds=[writing], start_new_session=True, stderr=subprocess.PIPE
        )
        os.close(writing)
        reader = PipeReader()
        killed = False
        last_poll = 0.0
        try:
            while True:
                ready, _, _ = select.select([reading], [], [], _POLL_INTERVAL)
                if ready:
                    data = os.read(reading, _PIPE_READ)
                    if not data:
                        break
                    for message in reader.feed(data):
                        self.accounting.record(message)
                        if message.kind == DELIVERED:
                            last_delivery = monotonic()
                            if self.until_first_delivery is None:
                                self.until_first_delivery = last_delivery - started
                now = monotonic()
                if now - last_delivery > _PATIENCE:
                    raise SystemExit(f"FAILED: nothing was delivered for {_PATIENCE:.0f} s, but messages remain.")
                if not killed and now - last_poll >= _POLL_INTERVAL:
                    last_poll = now
                    self.seconds = now - started
                    self._measure_memory(process.pid)
                    if should_kill(self):
                        process.kill()
                        killed = True
        finally:
            process.kill()
            _, errors = process.communicate()
            code = process.returncode
            os.close(reading)
            self.seconds = monotonic() - started
            self.cpu_seconds = _cpu_seconds_of_children() - cpu_before
        if code and not killed:
            raise SystemExit(f"FAILED: the child process exited with code {code}: {_last_line(errors)}")
        return killed

    def _measure_memory(self, pid: int) -> None:
        """Measure private memory only: the kernel can reclaim mapped pages of the data file."""
        try:
            with open(f"/proc/{pid}/status") as status:
                self.memory = next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))
        except (OSError, StopIteration):
            return
        self.peak_memory = max(self.peak_memory, self.memory)


def _last_line(errors: bytes) -> str:
    return errors.decode(errors="replace").strip().rpartition("\n")[2] or "no error message"


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
