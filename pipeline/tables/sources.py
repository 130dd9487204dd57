"""Data sources: stores and disks of clusters of bookies, given by path, list of paths, or glob."""

from __future__ import annotations

import glob
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote

from bookstand.disk.bookies.bookie_directory import CURRENT
from bookstand.disk.path_kind import BOOKIE, STORE, Target, classify
from bookstand.errors import IncorrectParameterError, NotAStoreError, StoreNotFoundError
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.lmdb.environment import DATA_FILE
from bookstand.storage.process.data_files import check_local

if TYPE_CHECKING:
    from bookstand.disk.damage import Damage
    from bookstand.disk.disks import Disks
    from bookstand.disk.metadata.dump import MetadataDump

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class DataSource(NamedTuple):
    """Paths of a store or of a cluster's disks. Each task opens the source on the machine on which it runs."""

    kind: str
    """``store`` or ``bookie``."""
    paths: tuple[str, ...]
    """The folder of the store, or the folders of the bookies of a cluster."""
    metadata: str | None = None
    """Path of the metadata dump of a cluster."""
    folders: tuple[str, ...] = ()
    """Journal and ledger folders of the bookies, found when the source was created."""
    limits: ExpansionLimits = DEFAULT
    """Limits on the expansion of compressed entries and records."""

    @property
    def name(self) -> str:
        return ",".join(self.paths)

    @classmethod
    def of(cls, values: Sequence[Any]) -> DataSource:
        """Decode a source from the JSON values of a unit."""
        kind, paths, metadata, folders, limits = values
        return cls(kind, tuple(paths), metadata, tuple(folders), ExpansionLimits(*limits))


def stores(paths: Paths, limits: ExpansionLimits = DEFAULT) -> list[DataSource]:
    """Stores at the given paths or globs. Matches of globs that are not stores are skipped."""
    return [DataSource(STORE, (path,), limits=limits) for path in _folders(paths, STORE)]


def bookies(paths: Paths, metadata: str | None = None, limits: ExpansionLimits = DEFAULT) -> DataSource:
    """The disks at all paths, as one cluster. ``metadata`` is the path of its metadata dump."""
    return _cluster(_folders(paths, BOOKIE), metadata, limits)


def clusters(paths: Paths, metadata: str | None = None, limits: ExpansionLimits = DEFAULT) -> list[DataSource]:
    """The disks at the given paths or globs, grouped by cluster.

    Folders belong to the same cluster if their cookies have the same instance id. Folders of single bookies without
    instance ids belong to the same cluster if they have the same parent. A folder that contains several clusters is
    divided. ``metadata`` is the dump of a single cluster, to which all disks must belong; by default, each cluster uses
    the dump in its folder, if one exists.
    """
    from bookstand.disk.bookies.cluster_directories import ClusterFolders, divided

    groups: list[ClusterFolders] = []
    for folder in _folders(paths, BOOKIE):
        for one in divided(folder):
            group = next((group for group in groups if group.holds(one)), None)
            if group is None:
                groups.append(one)
            else:
                group.add(one)
    if metadata is None:
        return [_cluster(group.folders, group.dump, limits) for group in groups]
    instances = {group.instance for group in groups if group.instance}
    if len(instances) > 1:
        raise IncorrectParameterError(
            f"metadata {metadata} is the dump of one cluster, and the disks are of {len(instances)}: leave it out, and "
            "put each cluster's metadata.jsonl[.gz] into the folder above its bookies"
        )
    return [_cluster([folder for group in groups for folder in group.folders], metadata, limits)]


def places(paths: Paths, metadata: str | None = None, limits: ExpansionLimits = DEFAULT) -> list[DataSource]:
    """Stores and clusters of bookies at the given paths or globs."""
    found: dict[str, list[str]] = {STORE: [], BOOKIE: []}
    for target in _targets(paths, (STORE, BOOKIE)):
        # Match the path literally: it may contain characters of globs.
        found[target.kind].append(glob.escape(_absolute(target.path)))
    return [
        *(stores(found[STORE], limits) if found[STORE] else []),
        *(clusters(found[BOOKIE], metadata, limits) if found[BOOKIE] else []),
    ]


def _cluster(folders: Sequence[str], metadata: str | None, limits: ExpansionLimits) -> DataSource:
    from bookstand.disk.bookies.discovery import find_bookies

    if metadata is not None:
        metadata = local_path(metadata, "metadata")
        if not os.path.exists(metadata):
            raise StoreNotFoundError(f"there is no metadata dump at {metadata}")
    found = find_bookies(folders, lambda damage: None)
    inner = {str(folder) for bookie in found for folder in (*bookie.journal_folders, *bookie.ledger_folders)}
    return DataSource(BOOKIE, tuple(folders), metadata, tuple(sorted(inner)), limits)


def _folders(paths: Paths, kind: str) -> list[str]:
    """Absolute paths of the stores or disks, without duplicates: of several paths to one target, the first."""
    found: dict[str, str] = {}
    for target in _targets(paths, (kind,)):
        found.setdefault(os.path.realpath(target.path), _absolute(target.path))
    return list(found.values())


def _absolute(path: str | os.PathLike[str]) -> str:
    """Absolute path. Links are preserved unless ".." follows one: it refers to the parent of the link's target."""
    plain, real = os.path.abspath(path), os.path.realpath(path)
    return plain if os.path.realpath(plain) == real else real


def _targets(paths: Paths, kinds: Sequence[str]) -> Iterator[Target]:
    """Stores and disks at the paths. Other matches of globs are skipped. Each path must have at least one match."""
    what = " or ".join(_NAMES[kind] for kind in kinds)
    for path in _each(paths):
        found = 0
        for match in _matching(path):
            try:
                target = classify(match)
                if target.kind not in kinds:
                    raise NotAStoreError(f"{match} is a {target.kind}, not {what}")
            except NotAStoreError:
                if match != path:
                    continue
                raise
            found += 1
            yield target
        if not found:
            raise StoreNotFoundError(f"no {what.partition(' ')[2]} matches {path}")


_NAMES = {STORE: "a store", BOOKIE: "a bookie's disk"}


def _matching(path: str) -> list[str]:
    """Expand a glob. An existing path is not expanded, even if its name contains characters of globs."""
    return sorted(glob.glob(path)) if glob.has_magic(path) and not os.path.lexists(path) else [path]


def _each(paths: Paths) -> list[str]:
    several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not several or not all(isinstance(path, str | os.PathLike) and os.fspath(path) for path in several):
        raise IncorrectParameterError(f"paths are given as a path, a glob, or a list of them, not as {paths!r}")
    return [_readable(os.fspath(path)) for path in several]


def _readable(path: str) -> str:
    """Convert ``file:`` URIs, which Spark accepts as paths. Globs and relative paths are returned unchanged."""
    local = local_path(path, "path")
    return local if path.startswith("file:/") else path


def local_path(path: str | os.PathLike[str], what: str) -> str:
    """Convert a path or ``file:`` URI to an absolute local path. Other URIs are rejected; they would be treated as
    relative paths. ``what`` names the path in error messages."""
    text = os.fspath(path)
    if text.startswith("file:/"):
        # As in Hadoop, "?" and "#" are ordinary characters.
        machine, path = "", text.removeprefix("file:")
        if path.startswith("//"):
            machine, slash, path = path.removeprefix("//").partition("/")
            path = slash + path
        if machine not in ("", "localhost"):
            raise IncorrectParameterError(f"{what} must be a path on this machine, not {text!r} on {machine}")
        text = unquote(path)
    else:
        check_local(text, what)
    if not text or "\0" in text:
        raise IncorrectParameterError(f"{what} must be a path, not {text!r}")
    return _absolute(text)


def check_present(place: DataSource) -> None:
    """Raise :class:`StoreNotFoundError` if a path of a source does not exist on this machine. The file system is not
    mounted, or the files were removed; neither is damage."""
    if place.kind == STORE:
        needed = [os.path.join(place.paths[0], DATA_FILE)]
    else:
        needed = [*place.paths, *(os.path.join(folder, CURRENT) for folder in place.folders)]
    for path in [*needed, *([place.metadata] if place.metadata is not None else [])]:
        # Follow links: a link to a file system that is not mounted is dangling.
        if not os.path.lexists(os.path.realpath(path)):
            raise StoreNotFoundError(
                f"{path} was there when the work was planned and is missing on {platform.node()}: every machine that "
                "runs tasks needs the same file systems, mounted at the same paths"
            )


@contextmanager
def open_source(place: DataSource, passwords: Sequence[bytes] = (), check: str = "fast") -> Iterator[Disks]:
    """Open a store or disks read-only with the interface of :class:`Disks`, without fencing or recovery. ``check`` is
    the level of integrity checks when a store is opened."""
    if place.kind == STORE:
        from bookstand.disk.store_source import StoreSource
        from bookstand.storage.storage import open_storage

        storage = open_storage(place.paths[0], create=False, read_only=True, check=check)
        try:
            yield cast("Disks", StoreSource(storage, passwords, place.limits))
        finally:
            storage.close()
    else:
        from bookstand.disk.disks import Disks

        with Disks.open(place.paths, place.metadata, passwords, limits=place.limits) as disks:
            yield disks


@contextmanager
def open_metadata(place: DataSource, passwords: Sequence[bytes] = ()) -> Iterator[tuple[MetadataDump, list[Damage]]]:
    """Open the metadata nodes of a source, with their damage. The disks of bookies are not read."""
    if place.kind == STORE:
        with open_source(place, passwords) as source:
            assert source.dump is not None
            yield source.dump, source.damage
        return
    from bookstand.disk.metadata.dump import MetadataDump

    if place.metadata is None:
        raise without_metadata(place)
    damage: list[Damage] = []
    yield MetadataDump.open(place.metadata, damage.append, place.limits), damage


def without_metadata(place: DataSource) -> IncorrectParameterError:
    return IncorrectParameterError(
        f"{place.name}: topics, cursors and nodes are in the metadata of the cluster: option metadata says where its "
        "dump lies"
    )


__all__ = [
    "BOOKIE",
    "STORE",
    "Paths",
    "DataSource",
    "bookies",
    "check_present",
    "clusters",
    "open_metadata",
    "local_path",
    "open_source",
    "places",
    "stores",
    "without_metadata",
]
