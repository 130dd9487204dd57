"""A look at the whole tree: what a server must know when it starts, and what others have written meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from bookstand.errors import StoreDamagedError
from bookstand.server.zookeeper import kept
from bookstand.server.zookeeper.paths import is_path
from bookstand.server.zookeeper.places import path_of
from bookstand.storage import keys, record
from bookstand.storage.log import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.storage import Storage


class Survey(NamedTuple):
    """``sums`` are those of before the look; ``strange`` the paths where others have written, parents first."""

    sums: list[int]
    strange: list[str]
    ephemerals: dict[int, set[str]]
    mortal: set[str]
    znodes: int


def survey(storage: Storage) -> Survey:
    sums = storage.recorded_sums()
    ephemerals: dict[int, set[str]] = {}
    mortal: set[str] = set()
    # What each znode's value was when the server last saw it; 0 where none holds it.
    seals: dict[str, int] = {}
    damaged: set[str] = set()
    for key, sealed in storage.records(keys.META, keys.META_ZNODE):
        path = keys.znode_path(key)
        try:
            znode = kept.unpack_znode(key, sealed)
        except StoreDamagedError as damage:
            # Whoever asks for this one is told; it is no matter to the others.
            logger().error("a znode cannot be served: %s", damage)
            damaged.add(path)
            continue
        seals[path] = znode.seal
        if znode.is_ephemeral:
            ephemerals.setdefault(znode.owner, set()).add(path)
        elif znode.is_mortal:
            mortal.add(path)
    znodes = len(seals) + len(damaged)
    strange = []
    for database in (keys.LEDGERS, keys.NODES):
        for key, sealed in storage.records(database):
            try:
                path = path_of(database, key)
            except StoreDamagedError as damage:
                logger().error("a znode cannot be served: %s", damage)
                continue
            # Nodes may have paths that no znode can have: they are the store's alone.
            if is_path(path) and path not in damaged and seals.pop(path, None) != record.seal_of(sealed):
                strange.append(path)
    strange += [path for path, seal in seals.items() if seal]
    return Survey(sums, sorted(strange), ephemerals, mortal, znodes)
