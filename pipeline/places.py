"""Where there is something to read: stores and bookies' disks, one or many, by path, list or glob."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from bookstand.disk.target import BOOKIE, STORE, find
from bookstand.errors import IncorrectParameterError, NotAStoreError, StoreNotFoundError

if TYPE_CHECKING:
    from bookstand.disk.damage import Damage
    from bookstand.disk.disks import Disks
    from bookstand.disk.metadata_dump import MetadataDump

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Place(NamedTuple):
    """Small, and the same wherever it is opened: tasks are told places, and open them themselves."""

    kind: str
    """``store`` or ``bookie``."""
    paths: tuple[str, ...]
    """One folder, or those of the bookies that are read together."""
    metadata: str | None = None
    """Of bookies: where the dump lies."""

    @property
    def name(self) -> str:
        return ",".join(self.paths)


def stores(paths: Paths) -> list[Place]:
    """Each path is a store, or a glob of some; what a glob finds that is no store is passed over."""
    found: dict[str, Place] = {}
    for path in _each(paths):
        matches = _matching(path)
        taken = 0
        for match in matches:
            try:
                target = find(match)
            except NotAStoreError:
                if match != path:
                    continue
                raise
            if target.kind != STORE:
                if match != path:
                    continue
                raise NotAStoreError(f"{match} is a {target.kind}, not a store")
            taken += 1
            place = os.path.abspath(target.path)
            found.setdefault(place, Place(STORE, (place,)))
        if not taken:
            raise StoreNotFoundError(f"no store matches {path}")
    return list(found.values())


def bookies(paths: Paths, metadata: str | None = None) -> Place:
    """All of the paths are disks of one cluster, and read together. ``metadata`` is where the dump lies."""
    folders: list[str] = []
    for path in _each(paths):
        matches = _matching(path)
        if not matches:
            raise StoreNotFoundError(f"nothing matches {path}")
        for match in matches:
            target = find(match)
            if target.kind != BOOKIE:
                raise NotAStoreError(f"{match} is a {target.kind}, not a bookie's disk")
            folders.append(os.path.abspath(target.path))
    if metadata is not None and not os.path.exists(metadata):
        raise StoreNotFoundError(f"there is no metadata dump at {metadata}")
    return Place(BOOKIE, tuple(dict.fromkeys(folders)), None if metadata is None else os.path.abspath(metadata))


def _matching(path: str) -> list[str]:
    """A folder may have a name that looks like a glob."""
    return sorted(glob.glob(path)) if glob.has_magic(path) and not os.path.lexists(path) else [path]


def _each(paths: Paths) -> list[str]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several or not all(isinstance(path, str | os.PathLike) and os.fspath(path) for path in several):
        raise IncorrectParameterError(f"paths are given as a path, a glob, or a list of them, not as {paths!r}")
    return [_readable(os.fspath(path)) for path in several]


def _readable(path: str) -> str:
    """Patterns and relative paths stay as they are. Spark takes paths as addresses, too."""
    local = local_path(path, "path")
    return local if path.startswith("file:/") else path


# One letter alone is no scheme.
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | os.PathLike[str], what: str) -> str:
    """An absolute path of this machine's file system; ``file:`` addresses are such. Others are rejected, which would be
    relative paths otherwise. ``what``: for the message."""
    text = os.fspath(path)
    if text.startswith("file:/"):
        address = urlsplit(text)
        if address.netloc not in ("", "localhost"):
            raise IncorrectParameterError(f"{what} must be a path on this machine, not {text!r} on {address.netloc}")
        text = unquote(address.path)
    elif _ADDRESS.match(text):
        raise IncorrectParameterError(
            f"{what} must be a local path, or that of a mounted file system, not the address {text!r} "
            f"(./{text} is a local folder of that name)"
        )
    if not text or "\0" in text:
        raise IncorrectParameterError(f"{what} must be a path, not {text!r}")
    return os.path.abspath(text)


@contextmanager
def opened(place: Place, passwords: Sequence[bytes] = (), check: str = "fast") -> Iterator[Disks]:
    """Its ledgers and nodes as :class:`Disks` has them, whatever it is; nothing is fenced, recovered or written.
    ``check``: how closely a store's file is looked at first."""
    if place.kind == STORE:
        from bookstand.disk.store_source import StoreSource
        from bookstand.storage.storage import open_storage

        storage = open_storage(place.paths[0], create=False, read_only=True, check=check)
        try:
            yield cast("Disks", StoreSource(storage, passwords))
        finally:
            storage.close()
    else:
        from bookstand.disk.disks import Disks

        with Disks.open(place.paths, place.metadata, passwords) as disks:
            yield disks


@contextmanager
def dump_of(place: Place, passwords: Sequence[bytes] = ()) -> Iterator[tuple[MetadataDump, list[Damage]]]:
    """Its nodes, and what is damaged among them; of disks nothing else is read."""
    if place.kind == STORE:
        with opened(place, passwords) as source:
            assert source.dump is not None
            yield source.dump, source.damage
        return
    from bookstand.disk.metadata_dump import MetadataDump

    if place.metadata is None:
        raise without_metadata(place)
    damage: list[Damage] = []
    yield MetadataDump.open(place.metadata, damage.append), damage


def without_metadata(place: Place) -> IncorrectParameterError:
    return IncorrectParameterError(
        f"{place.name}: topics, cursors and nodes are in the metadata of the cluster: option metadata says where its "
        "dump lies"
    )


__all__ = ["BOOKIE", "STORE", "Paths", "Place", "bookies", "dump_of", "opened", "stores", "without_metadata"]
