"""A look at the whole tree: what a server must know when it starts, and what others have written meanwhile."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from bookstand.errors import StoreDamagedError
from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.protocol.paths import is_path
from bookstand.server.zookeeper.value_location import path_of
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.logger import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bookstand.storage.storage import Storage

T = TypeVar("T")


class TreeScan(NamedTuple):
    """``news`` is how many there were before the look; ``strange`` the paths where others have written, in an order in
    which it can have happened."""

    news: int
    strange: list[str]
    ephemerals: dict[int, set[str]]
    mortal: set[str]
    znodes: int


def survey(storage: Storage) -> TreeScan:
    news = storage.change_count()
    ephemerals: dict[int, set[str]] = {}
    mortal: set[str] = set()
    # What each znode's value was when the server last saw it; 0 where none holds it.
    seals: dict[str, int] = {}
    damaged: set[str] = set()
    for key, sealed in storage.records(schema.META, schema.META_ZNODE):
        path = schema.znode_path(key)
        try:
            znode = persistent_records.unpack_znode(key, sealed)
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
    for database in (schema.LEDGERS, schema.NODES):
        records = storage.records(database)
        for path, sealed in znodes_of((database, key, sealed) for key, sealed in records):
            if path not in damaged and seals.pop(path, None) != sealed_record.checksum_of(sealed):
                strange.append(path)
    gone = [path for path, seal in seals.items() if seal]
    # Parents before what is below them, and where they went, after it.
    return TreeScan(news, sorted(strange) + sorted(gone, reverse=True), ephemerals, mortal, znodes)


def znodes_of(records: Iterable[tuple[bytes, bytes, T]]) -> Iterator[tuple[str, T]]:
    """The paths of the znodes that have these records (sub-database, key, and whatever else) as their values."""
    for database, key, rest in records:
        try:
            path = path_of(database, key)
        except StoreDamagedError as damage:
            logger().error("a znode cannot be served: %s", damage)
            continue
        # Nodes may have paths that no znode can have: they are the store's alone.
        if is_path(path):
            yield path, rest
