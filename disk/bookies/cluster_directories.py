"""Folders of bookie clusters, several of which may be side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bookstand.disk.bookies.bookie_directory import CURRENT
from bookstand.disk.bookies.discovery import BookieDisk, find_bookies
from bookstand.disk.path_kind import dump_in


@dataclass
class ClusterFolders:
    """Folders that belong to one cluster according to their cookies and paths."""

    folders: list[str]
    instance: str
    """Instance id in the cookies; empty if they have none."""
    bookies: set[str]
    own: bool
    """True for bookies' own folders, False for folders above bookies."""

    @property
    def dump(self) -> str | None:
        """Metadata dump in the folder above the bookies."""
        for folder in self.folders:
            found = dump_in(Path(folder)) or (dump_in(Path(folder).resolve().parent) if self.own else None)
            if found is not None:
                return str(found)
        return None

    def holds(self, other: ClusterFolders) -> bool:
        """Return True if the other folders belong to this cluster. Copies of the same bookies do not."""
        if self.own and other.own:
            if self.instance and other.instance:
                return self.instance == other.instance
            return self._parents & other._parents != set()
        return bool(self.instance) and self.instance == other.instance and self.bookies.isdisjoint(other.bookies)

    @property
    def _parents(self) -> set[Path]:
        return {Path(folder).resolve().parent for folder in self.folders}

    def add(self, other: ClusterFolders) -> None:
        """Add the folders of another group to this one."""
        self.folders += other.folders
        self.instance = self.instance or other.instance
        self.bookies |= other.bookies
        self.own = self.own and other.own


def divided(folder: str) -> Iterator[ClusterFolders]:
    """Yield the clusters at or below a folder, which differ in their cookies or have several dumps."""
    found = _bookies(folder)
    instances = {bookie.cookie.instance_id for bookie in found if bookie.cookie and bookie.cookie.instance_id}
    here = Path(folder).resolve()
    if not (here / CURRENT).is_dir():
        below = [one.path for one in sorted(os.scandir(folder), key=lambda one: one.name) if one.is_dir()]
        if len(instances) > 1 or sum(dump_in(Path(one)) is not None for one in below) > 1:
            inner = [one for one in below if _bookies(one)]
            if len(inner) > 1:
                for one in inner:
                    yield from divided(one)
                return
    own = any(here == bookie.folder or here.is_relative_to(bookie.folder) for bookie in found)
    yield ClusterFolders([folder], next(iter(sorted(instances)), ""), {bookie.name for bookie in found}, own)


def _bookies(folder: str) -> Sequence[BookieDisk]:
    return find_bookies([folder], lambda damage: None)
