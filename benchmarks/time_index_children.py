"""Worker processes of the time index benchmarks, in Python and in Java.

A worker runs one round for each line of input, so that the rounds of several workers can alternate while Java's JIT
stays warm.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.maven import classpath
from benchmarks.measure import ROOT, Missing
from benchmarks.time_index_work import Work

JAVA = ("published-java", "pip393-java")

Answer = dict[str, int]


class Child:
    """A worker process that answers each line with a line."""

    def __init__(self, command: list[str], prefix: str = "") -> None:
        self._prefix = prefix
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, work: Work, *, memory: bool = False, drain: str = "all") -> Answer:
        """Run one round; returns total nanoseconds and bytes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{self._prefix}{work.words()} memory={int(memory)} drain={drain}\n")
        answer = self._process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"a child process ended with {self._process.wait()}")
        return {name: int(value) for name, _, value in (word.partition("=") for word in answer)}

    def end(self) -> None:
        self._process.communicate()


@contextmanager
def children(*candidates: str) -> Iterator[dict[str, Child | Missing]]:
    """Start one worker for each candidate. Candidates that cannot run here are :class:`Missing`."""
    with ExitStack() as stack:
        made: dict[str, Child | Missing] = {}
        for candidate in candidates:
            try:
                made[candidate] = child = Child(*_command(candidate))
                stack.callback(child.end)
            except Missing as missing:
                made[candidate] = missing
        yield made


def _command(candidate: str) -> tuple[list[str], str]:
    if candidate not in JAVA:
        return [sys.executable, "-m", "benchmarks.time_index_worker", candidate], ""
    # A preallocated heap, and the collector with the least overhead outside of collections.
    flags = ["-Xms3g", "-Xmx3g", "-XX:+UseSerialGC"]
    structure = candidate.removesuffix("-java")
    return ["java", *flags, "-cp", classpath("pom.xml"), "bookstand.benchmarks.Published"], f"structure={structure} "
