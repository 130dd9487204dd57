"""Reading trace files: one JSON object per line, a line with ``scenario`` begins a new one. Plain or gzip."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SUFFIXES = (".jsonl", ".jsonl.gz")


class Scenario(NamedTuple):
    name: str
    header: dict[str, Any]
    lines: list[dict[str, Any]]


def open_text(path: Path) -> Any:
    """By what the file begins with rather than by its name: a decompressed copy may have kept the old name."""
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if packed else open(path, encoding="utf-8")


def is_trace(path: Path) -> bool:
    if not path.name.endswith(SUFFIXES):
        return False
    with open_text(path) as lines:
        first = next((line for line in lines if line.strip()), "")
    try:
        value = json.loads(first)
    except ValueError:
        return False
    return isinstance(value, dict) and "scenario" in value


def scenarios(path: Path) -> Iterator[Scenario]:
    current: Scenario | None = None
    with open_text(path) as lines:
        for text in lines:
            if not text.strip():
                continue
            value = json.loads(text)
            if "scenario" in value:
                if current is not None:
                    yield current
                current = Scenario(value["scenario"], value, [])
            elif current is not None:
                current.lines.append(value)
    if current is not None:
        yield current


def files_of(paths: list[Path]) -> list[Path]:
    """The files that the arguments name, folders opened, in a stable order; what does not exist is skipped."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found.extend(sorted(entry for entry in path.rglob("*") if entry.is_file()))
        elif path.is_file():
            found.append(path)
    return found
