"""Full scan of the tree, at the start of a server and after a gap in the change feed."""

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
    """``news``: total of the change feed before the scan. ``strange``: paths that other writers have changed, in a
    possible order of the changes."""

    news: int
    strange: list[str]
    ephemerals: dict[int, set[str]]
    mortal: set[str]
    znodes: int


def survey(storage: Storage) -> TreeScan:
    news = storage.change_count()
    ephemerals: dict[int, set[str]] = {}
    mortal: set[str] = set()
    # Seal of each znode's value as the server last saw it; 0 for a znode without a value record.
    seals: dict[str, int] = {}
    damaged: set[str] = set()
    for key, sealed in storage.records(schema.META, schema.META_ZNODE):
        path = schema.znode_path(key)
        try:
            znode = persistent_records.unpack_znode(key, sealed)
        except StoreDamagedError as damage:
            # A damaged znode fails its own readers only; the other znodes are still served.
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
    # Created znodes come after their parents, deleted ones before them.
    return TreeScan(news, sorted(strange) + sorted(gone, reverse=True), ephemerals, mortal, znodes)


def znodes_of(records: Iterable[tuple[bytes, bytes, T]]) -> Iterator[tuple[str, T]]:
    """Yield the paths of the znodes whose values are these records (sub-database, key, and any third element)."""
    for database, key, rest in records:
        try:
            path = path_of(database, key)
        except StoreDamagedError as damage:
            logger().error("a znode cannot be served: %s", damage)
            continue
        # Nodes whose paths are invalid in ZooKeeper are visible through the store's API only.
        if is_path(path):
            yield path, rest
