"""Where stores are put while they are measured: memory (tmpfs) where there is one, and the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import ROOT

_TMPFS_CANDIDATES = ("/dev/shm", "/run/user/{uid}", "/tmp")


@dataclass(frozen=True)
class Place:
    """A folder to put stores in, and what to call it."""

    folder: Path
    kind: str

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """A new empty directory, removed at the end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix="bookstand-bench-", dir=self.folder)
        try:
            yield Path(made)
        finally:
            shutil.rmtree(made, ignore_errors=True)


@dataclass(frozen=True)
class Bench:
    """What a measuring module is told: how thorough to be, and where to put things."""

    quick: bool
    disk: Place
    tmpfs: Place | None

    def memory(self, free_bytes: int = 1 << 30) -> Place:
        """tmpfs if there is one with room, else the disk."""
        if self.tmpfs is not None and shutil.disk_usage(self.tmpfs.folder).free >= free_bytes:
            return self.tmpfs
        return self.disk

    def rounds(self, quick: int, full: int) -> int:
        return quick if self.quick else full


def bench(quick: bool, disk: str | None = None) -> Bench:
    folder = Path(disk) if disk else ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    kind = "tmpfs" if _file_system(folder) == "tmpfs" else "disk"
    return Bench(quick, Place(folder, kind), _tmpfs())


def _tmpfs() -> Place | None:
    for candidate in _TMPFS_CANDIDATES:
        folder = Path(candidate.format(uid=os.getuid()))
        if _file_system(folder) == "tmpfs" and os.access(folder, os.W_OK | os.X_OK):
            return Place(folder, "tmpfs")
    return None


def _file_system(folder: Path) -> str | None:
    """The type of the file system that holds `folder`, where /proc tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    except OSError:
        return None
    holds: tuple[int, str] | None = None
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(point) and (holds is None or len(point) >= holds[0]):
            holds = (len(point), kind)
    return holds[1] if holds else None
