"""Recordings of disks: which there are, and what lies in them.

A recording is a folder with the disks of bookies (``bookie-<i>.tar.xz``, or the same unpacked), a dump of the metadata,
settings, and the truth about them; one of damaged files has cases and what was expected of them. Any file of truth may
be absent, and be plain or packed.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import tarfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

TRUTH, EXPECTED, DUMP = "truth", "expected", "metadata"
PACKED = (".jsonl", ".jsonl.gz", ".jsonl.xz")
_DUMPS = PACKED[:2]
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ"
_DIGITS = re.compile(r"[0-9]+")

Lines = list[dict[str, Any]]


class Recording:
    """The disks of bookies, and what the originals said of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name
        self._truth: dict[str, Lines] = {}

    @cached_property
    def settings(self) -> dict[str, str]:
        path = self.folder / "settings.properties"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    @property
    def was_killed(self) -> bool:
        """What was in memory before the stop is not what the disks have."""
        return self.settings.get("stop", "graceful") != "graceful"

    @property
    def dump(self) -> Path | None:
        return _first(self.folder, DUMP, _DUMPS)

    def has(self, stem: str) -> bool:
        return _first(self.folder / TRUTH, stem, PACKED) is not None

    def truth(self, stem: str) -> Lines:
        """The lines of a file of truth; none, if it is absent."""
        if stem not in self._truth:
            path = _first(self.folder / TRUTH, stem, PACKED)
            self._truth[stem] = [] if path is None else list(read_lines(path))
        return self._truth[stem]

    @cached_property
    def dumped_ledgers(self) -> set[int]:
        """The ledgers that have a node in the dump, by its lines alone."""
        if self.dump is None:
            return set()
        paths = (str(line.get("path")) for line in read_lines(self.dump))
        nodes = (path for path in paths if path.startswith("/ledgers/0") and "/L" in path)
        return {int("".join(_DIGITS.findall(node))) for node in nodes}

    def is_of_restart(self, ledger_id: int) -> bool:
        """Whether the truth has a ledger that was created after the disks had been taken."""
        return ledger_id not in self.dumped_ledgers and ledger_id > max(
            (known for known in self.dumped_ledgers if known < 1 << 31), default=1 << 63
        )

    def disks(self, below: Path) -> list[Path]:
        """The folders of the bookies; what is packed is unpacked below a folder."""
        return unpacked(self.folder, "bookie-*.tar*", below)


class DamagedFiles:
    """Damaged logs and journals, a folder each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.name

    def expected(self) -> Lines:
        path = _first(self.folder, EXPECTED, PACKED)
        return [] if path is None else list(read_lines(path))

    def cases(self, below: Path) -> Path:
        """The folder that the kinds of cases are in."""
        if any((self.folder / kind).is_dir() for kind in ("entrylog", "journal")):
            return self.folder
        for archive in sorted(self.folder.glob("*.tar*")):
            _unpack(archive, below)
        return below


def find(paths: list[Path]) -> Iterator[Recording | DamagedFiles]:
    """The recordings at or below the paths, each once."""
    seen: set[Path] = set()
    for path in paths:
        for top, folders, files in os.walk(path):
            folder = Path(top).resolve()
            folders.sort()
            is_damaged = _first(folder, EXPECTED, PACKED) is not None
            is_recording = (folder / TRUTH).is_dir() or any(name.startswith(f"{DUMP}.jsonl") for name in files)
            if is_damaged or is_recording:
                folders.clear()
                if folder not in seen:
                    seen.add(folder)
                    yield DamagedFiles(folder) if is_damaged else Recording(folder)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as raw:
        magic = raw.read(len(_XZ))
    opened = lzma.open if magic.startswith(_XZ) else gzip.open if magic.startswith(_GZIP) else open
    with opened(path, "rt", encoding="utf-8") as text:  # type: ignore[operator]
        for line in text:
            if line.strip():
                yield json.loads(line)


def unpacked(folder: Path, pattern: str, below: Path) -> list[Path]:
    """The folders of bookies in a recording, those of archives unpacked unless they lie beside them."""
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name != TRUTH)
    names = {entry.name for entry in found}
    for archive in sorted(folder.glob(pattern)):
        if archive.name.split(".")[0] not in names:
            _unpack(archive, below)
    return [*found, *([below] if any(below.iterdir()) else [])]


def _unpack(archive: Path, below: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(below, filter="data")


def _first(folder: Path, stem: str, suffixes: tuple[str, ...]) -> Path | None:
    return next((path for path in (folder / f"{stem}{suffix}" for suffix in suffixes) if path.is_file()), None)
