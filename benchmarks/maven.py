"""Programs in Java that are measured, or measure: built by Maven, run by a JDK, missing where either is."""

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
    """Of what a pom of benchmarks/java compiles into the folder ``build`` and of the libraries that it brings."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if absent:
        raise Missing(f"no {' and no '.join(absent)} here")
    command = ["mvn", "-q", "-B", "-f", str(JAVA / pom), "compile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"Maven could not build benchmarks/java/{pom}: {(done.stdout + done.stderr).strip()[-300:]}")
    folder = _BUILD / build
    return f"{folder / 'classes'}:{(folder / 'classpath.txt').read_text().strip()}"
