"""Server processes of baselines, and their CPU time."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Missing

_PATIENCE = 10.0


class Server:
    """A server process in its own folder, ready when its socket accepts connections. `command(socket)` returns its
    arguments.

    The socket is in a folder with a short path, because socket paths are limited to about a hundred characters.
    """

    def __init__(self, program: str, command: Callable[[str], list[str]], directory: Path) -> None:
        found = shutil.which(program)
        if found is None:
            raise Missing(f"no {program} on the path")
        self._runtime = tempfile.TemporaryDirectory(prefix="bench-")
        self.socket = os.path.join(self._runtime.name, "socket")
        self._process = subprocess.Popen(
            [found, *command(self.socket)], cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._wait()
            self._clock = _cpu_clock(self._process.pid)
        except BaseException:
            self.stop()
            raise

    def cpu(self) -> float:
        """Return the CPU seconds, user and system, of all threads so far."""
        return time.clock_gettime(self._clock)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._runtime.cleanup()

    def _wait(self) -> None:
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise Missing(f"{self._process.args[0]} ended with {self._process.returncode}")  # type: ignore[index]
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(self.socket)
                    return
                except OSError:
                    time.sleep(0.005)
        raise Missing(f"{self._process.args[0]} did not answer within {_PATIENCE:g} s")  # type: ignore[index]


def _cpu_clock(pid: int) -> int:
    """Return the id of another process's CPU-time clock."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise Missing(f"the CPU time of another process cannot be read ({os.strerror(error)})")
    return clock.value
