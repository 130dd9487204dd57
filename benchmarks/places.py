"""Locations of measured stores: tmpfs, if available, and disk."""

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
    """A folder for stores, and its kind for notes."""

    folder: Path
    kind: str

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Create a directory, and remove it at the end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix="bookstand-bench-", dir=self.folder)
        try:
            yield Path(made)
        finally:
            shutil.rmtree(made, ignore_errors=True)


@dataclass(frozen=True)
class Bench:
    """Options for the measuring modules: thoroughness and locations."""

    quick: bool
    disk: Place
    tmpfs: Place | None

    def memory(self, free_bytes: int = 1 << 30) -> Place:
        """Return tmpfs if it has room, otherwise the disk."""
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
    """Return the type of the file system that contains `folder`; None without /proc."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    except OSError:
        return None
    longest: tuple[int, str] | None = None
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(point) and (longest is None or len(point) >= longest[0]):
            longest = (len(point), kind)
    return longest[1] if longest else None
