"""Recorded figures of each row with machine and date, in docs/benchmarks.json.

``python -m benchmarks --record`` writes them, including missed goals and rows that could not be measured. Other rows
keep their recorded figures.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.measure import ROOT
from benchmarks.rows import BY_NAME, ROWS

FILE = ROOT / "docs" / "benchmarks.json"
_RECORDED = ("value", "ours", "baseline", "clocks", "note")


def record(figure: Figure, quick: bool, file: Path = FILE) -> None:
    """Replace the recorded figure of a row. Rows that no longer exist are dropped."""
    rows = recorded(file)
    measured = figure.as_json()
    rows[figure.row.row] = {
        **{name: measured[name] for name in _RECORDED},
        "at": datetime.now(UTC).strftime("%Y-%m-%d"),
        "rounds": "fewer" if quick else "all",
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
    }
    ordered = {row.row: rows[row.row] for row in ROWS if row.row in rows}
    temporary = file.with_suffix(".growing")
    temporary.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(file)


def recorded(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """Return the recorded figures by row."""
    if not file.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return {row: figures for row, figures in found.items() if row in BY_NAME}


def machine() -> str:
    """Describe this machine."""
    return f"{_processor()}, {os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
