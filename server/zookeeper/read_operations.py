"""Read requests: their results from the tree, and the watches that they set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bookstand.errors import BookstandError
from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.batch import code_of
from bookstand.server.zookeeper.protocol.acls import Identity, allows, check_allowed, without_secrets
from bookstand.server.zookeeper.protocol.paths import check_path, distinct
from bookstand.server.zookeeper.protocol.protocol import (
    Code,
    EventType,
    Op,
    Permission,
    WatcherType,
    WatchMode,
    ZooKeeperError,
)
from bookstand.server.zookeeper.protocol.records import (
    Acl,
    Failed,
    PathAndNumber,
    PathAndWatch,
    SetWatches,
    SetWatches2,
    Stat,
)
from bookstand.server.zookeeper.value_location import place_of
from bookstand.server.zookeeper.watches import Watches
from bookstand.storage.format import schema, sealed_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from bookstand.storage.storage import Storage

    class Reader(Protocol):
        """Client of a read: a connection."""

        @property
        def session_id(self) -> int: ...

        identities: list[Identity]

        def tell(self, zxid: int, kind: EventType, path: str) -> None: ...


ANSWER_BYTES = 16 << 20
"""Maximum size of a response. Pulsar's clients accept responses of 10 MiB."""
_NAME_BYTES = 16
"""Charge for a name besides its characters."""


class TooLargeError(ZooKeeperError):
    """The response exceeds the limit. The code is the one that a client itself produces for such a response: it closes
    its connection on a response over its ``jute.maxbuffer``. Pulsar's brokers then retry the operations of a batch one
    by one."""

    def __init__(self, size: int) -> None:
        super().__init__(
            Code.CONNECTION_LOSS, f"an answer, and what is read for it, has at most {ANSWER_BYTES} bytes, not {size}"
        )


class ForeignZnodeError(Exception):
    """The znode has a foreign write, which must be adopted into the tree before the znode is read."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class ZnodeData(NamedTuple):
    """A znode with its value."""

    znode: persistent_records.Znode
    value: bytes
    version: int

    @property
    def stat(self) -> Stat:
        return self.znode.stat(self.version, len(self.value))

    @property
    def data(self) -> bytes | None:
        return None if self.znode.null_value else self.value


class Tree:
    """The tree after the last commit. ``zxid``: that of the last write; ``ephemerals``: paths by session."""

    def __init__(self, storage: Storage, watches: Watches[Any]) -> None:
        self._storage = storage
        self.watches = watches
        self.ephemerals: dict[int, set[str]] = {}
        self.zxid = 0
        self.read_bytes = 0
        """What reading has cost so far, see :func:`kept.cost_of`."""

    def find(self, path: str) -> ZnodeData | None:
        key = schema.znode_key(path)
        place = place_of(path)
        sealed = self._storage.sealed(schema.META, key)
        value = self._storage.sealed(place.database, place.key)
        self.read_bytes += persistent_records.cost_of(sealed, value)
        if sealed is None:
            if value is None:
                return None
            place.unseal(value)
            raise ForeignZnodeError(path)
        znode = persistent_records.unpack_znode(key, sealed)
        looked = ZnodeData(znode, b"", 0) if value is None else ZnodeData(znode, *place.unseal(value))
        if znode.has_record != (value is not None) or znode.seal != sealed_record.checksum_of(value):
            raise ForeignZnodeError(path)
        return looked

    def get(self, path: str | None, reader: Reader, wanted: Permission | None = Permission.READ) -> ZnodeData:
        path = check_path(path)
        found = self.find(path)
        if found is None:
            raise ZooKeeperError(Code.NO_NODE, f"there is no znode {path!r}")
        if wanted is not None:
            check_allowed(path, found.znode.acl, wanted, reader.identities)
        return found

    def names_below(self, path: str) -> list[str]:
        names = self._storage.child_names(schema.META, path)
        self.read_bytes += sum(map(len, names)) + _NAME_BYTES * len(names)
        return names

    def count_below(self, path: str) -> int:
        """Number of descendants."""
        prefix = schema.child_prefix(schema.META, path)
        return sum(key != prefix for key in self._storage.meta_keys(prefix))


# -- requests ----------------------------------------------------------------------------------------------------------


def exists(tree: Tree, reader: Reader, request: PathAndWatch) -> Stat:
    path = check_path(request.path)
    found = tree.find(path)
    if request.watch:
        tree.watches.watch_data(path, reader)
    if found is None:
        raise ZooKeeperError(Code.NO_NODE, f"there is no znode {path!r}")
    return found.stat


def get_data(tree: Tree, reader: Reader, request: PathAndWatch) -> tuple[bytes | None, Stat]:
    found = tree.get(request.path, reader)
    if request.watch:
        tree.watches.watch_data(check_path(request.path), reader)
    return found.data, found.stat


def get_children(tree: Tree, reader: Reader, request: PathAndWatch) -> list[str]:
    return get_children2(tree, reader, request)[0]


def get_children2(tree: Tree, reader: Reader, request: PathAndWatch) -> tuple[list[str], Stat]:
    found = tree.get(request.path, reader)
    path = check_path(request.path)
    if request.watch:
        tree.watches.watch_children(path, reader)
    return tree.names_below(path) if found.znode.children else [], found.stat


def get_acl(tree: Tree, reader: Reader, request: str | None) -> tuple[Sequence[Acl], Stat]:
    found = tree.get(request, reader, Permission.READ | Permission.ADMIN)
    acl = found.znode.acl
    return acl if allows(acl, Permission.ADMIN, reader.identities) else without_secrets(acl), found.stat


def sync(tree: Tree, reader: Reader, request: str | None) -> str:
    """Return the path. The single server has already adopted earlier writes when it serves a sync."""
    return check_path(request)


def get_ephemerals(tree: Tree, reader: Reader, request: str | None) -> list[str]:
    prefix = request or "/"
    return sorted(path for path in tree.ephemerals.get(reader.session_id, ()) if path.startswith(prefix))


def get_all_children_number(tree: Tree, reader: Reader, request: str | None) -> int:
    tree.get(request, reader)
    return tree.count_below(check_path(request))


def who_am_i(tree: Tree, reader: Reader, request: None) -> list[tuple[str, str]]:
    return [(scheme, name.partition(":")[0] if scheme == "digest" else name) for scheme, name in reader.identities]


# -- watches -----------------------------------------------------------------------------------------------------------


def add_watch(tree: Tree, reader: Reader, request: PathAndNumber) -> int:
    path = check_path(request.path)
    if request.number == WatchMode.PERSISTENT:
        tree.watches.watch_persistently(path, reader)
    elif request.number == WatchMode.PERSISTENT_RECURSIVE:
        tree.watches.watch_recursively(path, reader)
    else:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"{path!r}: there is no way {request.number} to watch")
    return int(Code.OK)


def remove_watches(tree: Tree, reader: Reader, request: PathAndNumber) -> None:
    path = check_path(request.path)
    if not tree.watches.remove(path, reader, _watcher_type(request)):
        raise ZooKeeperError(Code.NO_WATCHER, f"{path!r} is not watched")


def check_watches(tree: Tree, reader: Reader, request: PathAndNumber) -> None:
    path = check_path(request.path)
    if not tree.watches.has(path, reader, _watcher_type(request)):
        raise ZooKeeperError(Code.NO_WATCHER, f"{path!r} is not watched")


def _watcher_type(request: PathAndNumber) -> WatcherType:
    try:
        return WatcherType(request.number)
    except ValueError:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"there are no watches of type {request.number}") from None


def set_watches2(tree: Tree, reader: Reader, request: SetWatches2) -> None:
    set_watches(tree, reader, SetWatches(*request[:4]))
    for path in distinct(request.persistent):
        tree.watches.watch_persistently(path, reader)
    for path in distinct(request.recursive):
        tree.watches.watch_recursively(path, reader)


def set_watches(tree: Tree, reader: Reader, request: SetWatches) -> None:
    """Restore watches after a reconnect, and send the events that the client has missed."""
    seen = request.relative_zxid
    data, exist, children = map(distinct, (request.data, request.exist, request.children))
    # Look up all paths before sending any event: a foreign znode makes this request start again.
    found = {path: tree.find(path) for path in (*data, *exist, *children)}
    for path in data:
        looked = found[path]
        if looked is None or _may_read(looked, reader):
            changed = None if looked is None else looked.znode.mzxid
            _tell_or_watch(tree, reader, path, changed, seen, EventType.DATA_CHANGED, tree.watches.watch_data)
        else:
            tree.watches.watch_data(path, reader)
    for path in exist:
        looked = found[path]
        if looked is None:
            tree.watches.watch_data(path, reader)
        elif _may_read(looked, reader):
            reader.tell(looked.znode.czxid, EventType.CREATED, path)
    for path in children:
        looked = found[path]
        if looked is None or _may_read(looked, reader):
            changed = None if looked is None else looked.znode.pzxid
            _tell_or_watch(tree, reader, path, changed, seen, EventType.CHILDREN_CHANGED, tree.watches.watch_children)
        else:
            tree.watches.watch_children(path, reader)


def _may_read(looked: ZnodeData, reader: Reader) -> bool:
    return allows(looked.znode.acl, Permission.READ, reader.identities)


def _tell_or_watch(
    tree: Tree,
    reader: Reader,
    path: str,
    changed: int | None,
    seen: int,
    kind: EventType,
    watch: Callable[[str, Reader], None],
) -> None:
    """``changed``: zxid of the last change; None for a deleted znode."""
    if changed is None:
        reader.tell(tree.zxid, EventType.DELETED, path)
    elif changed > seen:
        reader.tell(changed, kind, path)
    else:
        watch(path, reader)


def multi_read(tree: Tree, reader: Reader, operations: Sequence[tuple[Op, Any]]) -> list[tuple[Op, Any]]:
    """Return an outcome for each operation, except that a response over the limit fails as a whole. Data read for
    results that are errors counts as well."""
    results: list[tuple[Op, Any]] = []
    begin = tree.read_bytes
    for op, request in operations:
        size = tree.read_bytes - begin
        if size > ANSWER_BYTES:
            raise TooLargeError(size)
        try:
            results.append((op, READS[op](tree, reader, request)))
        except ZooKeeperError as error:
            results.append((Op.ERROR, Failed(error.code)))
        except BookstandError as error:
            results.append((Op.ERROR, Failed(code_of(error))))
    return results


Read = Callable[[Tree, Any, Any], Any]

READS: dict[Op, Read] = {
    Op.EXISTS: exists,
    Op.GET_DATA: get_data,
    Op.GET_ACL: get_acl,
    Op.GET_CHILDREN: get_children,
    Op.GET_CHILDREN2: get_children2,
    Op.SYNC: sync,
    Op.GET_EPHEMERALS: get_ephemerals,
    Op.GET_ALL_CHILDREN_NUMBER: get_all_children_number,
    Op.WHO_AM_I: who_am_i,
    Op.ADD_WATCH: add_watch,
    Op.REMOVE_WATCHES: remove_watches,
    Op.CHECK_WATCHES: check_watches,
    Op.SET_WATCHES: set_watches,
    Op.SET_WATCHES2: set_watches2,
    Op.MULTI_READ: multi_read,
}
