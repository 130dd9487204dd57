"""Recorded disks of real bookies, and what the original classes said is on them.

They are kept packed below ``tests/data/bookie`` (its README says what each recording is). A folder named by the
environment variable ``BOOKSTAND_RECORDINGS`` may hold more of them, too large to be kept here.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_KEPT = Path(__file__).resolve().parent.parent / "data" / "bookie"
_MORE = os.environ.get("BOOKSTAND_RECORDINGS")
_ROOTS = [_KEPT, *([Path(_MORE)] if _MORE else [])]

RECORDINGS = sorted({dump.parent.name for root in _ROOTS for dump in root.glob("*/metadata.jsonl.gz")})
DAMAGED = "damaged"


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``unpacked(name)`` is the folder with a recording's bookies. All tests of a run share it: do not write to it."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # what all workers share
    folder = base / "recorded-bookies"
    folder.mkdir(exist_ok=True)
    return cache(lambda name: unpack(name, folder))


def unpack(name: str, below: Path) -> Path:
    """Unpacks a recording to ``below/<name>`` unless that was done before, by whichever process."""
    folder = below / name
    with open(below / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            growing = below / f"{name}.growing"
            for archive in sorted(recording(name).glob("*.tar.xz")):
                with tarfile.open(archive) as packed:
                    packed.extractall(growing, filter="data")
            growing.rename(folder)
    return folder


def recording(name: str) -> Path:
    """Where a recording is kept, packed."""
    for root in _ROOTS:
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"there is no recording {name!r}")


def dump_path(name: str) -> Path:
    """The dump of a recording's metadata."""
    return recording(name) / "metadata.jsonl.gz"


def truth(name: str, file: str) -> list[dict[str, Any]]:
    """What the original said, line by line: of ``file`` as in ``truth("a", "ledgers")``, ``truth("damaged",
    "expected")``."""
    for folder in (recording(name) / "truth", recording(name)):
        for suffix, open_text in ((".jsonl.xz", lzma.open), (".jsonl.gz", gzip.open), (".jsonl", open)):
            path = folder / (file + suffix)
            if path.exists():
                with open_text(path, "rt", encoding="utf-8") as lines:  # type: ignore[operator]
                    return [json.loads(line) for line in lines]
    raise FileNotFoundError(f"recording {name!r} has no {file!r}")


def settings(name: str) -> dict[str, str]:
    """The settings of a recording that differ between them."""
    lines = (recording(name) / "settings.properties").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}
