"""Programs of frames on every Spark there is, classic and through Connect: the kind ``frames``.

Folders with other versions of Spark (``pip install --target FOLDER --no-deps pyspark==4.2.1``) are named, between
colons, by the variable ``BOOKSTAND_SPARKS``.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.kit import ROOT
from tests.pipeline import frames
from tests.soak.kinds import Done, Kind, KindUnavailableError

PROGRAMS = 5
_LONG = 1800


def one_round(seed: int) -> Done:
    """Some programs, on each version and in each mode; a case is a frame that was computed."""
    try:
        import grpc  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise KindUnavailableError(str(error)) from error
    cases = 0
    problems: list[str] = []
    seeds = range(seed * PROGRAMS, (seed + 1) * PROGRAMS)
    for path in ("", *filter(None, os.environ.get("BOOKSTAND_SPARKS", "").split(os.pathsep))):
        for mode in ("classic", "connect"):
            with tempfile.TemporaryDirectory(prefix="bookstand-frames-") as folder:
                command, environment = frames.command(mode, Path(folder), seeds, spark_path=path)
                done = subprocess.run(
                    command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LONG
                )
            if done.returncode:
                problems.append(f"{mode} {path}: it ended with {done.returncode}: {done.stderr[-2000:]}")
                continue
            told = json.loads(done.stdout.splitlines()[-1])
            cases += told["frames"]
            problems += [f"{mode}, Spark {told['version']}: {one}" for one in told["problems"]]
    return Done(cases, problems)


KIND = Kind(one_round)
