"""Java programs of the benchmarks, built by Maven. They are missing without Maven or a JDK."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from benchmarks.measure import ROOT, Missing

JAVA = Path(__file__).resolve().parent / "java"
_BUILD = ROOT / "build" / "benchmarks"


@cache
def classpath(pom: str, build: str = "") -> str:
    """Compile a pom of benchmarks/java into the folder ``build``, and return the class path with its libraries."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if absent:
        raise Missing(f"{' and '.join(absent)} not installed")
    command = ["mvn", "-q", "-B", "-f", str(JAVA / pom), "compile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"Maven could not build benchmarks/java/{pom}: {(done.stdout + done.stderr).strip()[-300:]}")
    folder = _BUILD / build
    return f"{folder / 'classes'}:{(folder / 'classpath.txt').read_text().strip()}"
