"""Calls of a store that are interrupted at random points, by Ctrl-C, a timeout's handler or ``MemoryError``.

A case is a point; ``interrupts_process.py`` says what is checked after each. A process that neither ends nor reports a
point for long hangs, and its threads' stacks are part of the report.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter

from tests.kit import PATIENCE, ROOT, own_environment
from tests.soak.kinds import Done, Kind

POINTS = 500
"""Of each round."""

COUNTED = ("points", "places", "rejected")
CRASHES = 1
"""How often a round that ended with SIGSEGV is repeated at most. CPython 3.11 itself crashes at times where a signal's
handler raises at the entry of a traced function: about once in 10,000 points."""


def run(seed: int, points: int = POINTS, defect: str = "") -> Done:
    """One process, which has the ``defect`` of ``interrupts_defects.py``, if one is given."""
    module = "tests.soak.interrupts_defects" if defect else "tests.soak.interrupts_process"
    crashes = 0
    while True:
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", module, str(seed), str(points), *([defect] if defect else [])],
            cwd=ROOT,
            env=own_environment(),
            capture_output=True,
            text=True,
            check=False,
            # The process notices by itself that it hangs, call by call.
            timeout=points * PATIENCE,
        )
        if ended.returncode != -signal.SIGSEGV or crashes == CRASHES:
            break
        crashes += 1
    lines = ended.stdout.splitlines()
    met = max((int(line) for line in lines if line.isdigit()), default=0)
    if ended.returncode or not lines or not lines[-1].startswith("done"):
        problems = [line for line in lines if line.startswith("problem: ")]
        problem = problems[-1] if problems else f"it ended with {ended.returncode}"
        return Done(met, [f"after {met} points: {problem}\n{ended.stderr[-6000:]}"])
    figures = Counter(dict(zip(COUNTED, map(int, lines[-1].split()[1:]), strict=True)))
    return Done(met, [], Counter(figures | {"crashes": crashes}))


KIND = Kind(run)
