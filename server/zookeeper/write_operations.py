"""Write requests: their effects on the tree, with checks in ZooKeeper's order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.protocol.acls import Identity, check_allowed, fix_acl
from bookstand.server.zookeeper.protocol.paths import QUOTAS, ROOT, check_path, parent_of
from bookstand.server.zookeeper.protocol.protocol import (
    ANY_VERSION,
    EPHEMERAL_MODES,
    SEQUENTIAL_MODES,
    TTL_MODES,
    Code,
    CreateMode,
    Op,
    Permission,
    ZooKeeperError,
)
from bookstand.server.zookeeper.protocol.records import Check, Create, CreateTtl, Delete, Failed, SetAcl, SetData, Stat
from bookstand.server.zookeeper.transaction import Transaction, ZnodeVersion
from bookstand.server.zookeeper.value_location import LEDGER_IDS
from bookstand.storage.commit.ledger_operations import ReserveLedger, RestartLedgerIds


class ClientIdentity(NamedTuple):
    """Client of a request: its session, and the authenticated identities of its connection."""

    session_id: int
    identities: Sequence[Identity]


def create(transaction: Transaction, writer: ClientIdentity, request: Create | CreateTtl) -> str:
    return _create(transaction, writer, request)[0]


def create_with_stat(transaction: Transaction, writer: ClientIdentity, request: Create | CreateTtl) -> tuple[str, Stat]:
    path, found = _create(transaction, writer, request)
    return path, found.stat


def create_container(transaction: Transaction, writer: ClientIdentity, request: Create) -> tuple[str, Stat]:
    if request.mode != CreateMode.CONTAINER:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"{request.path!r}: a container has no mode {request.mode}")
    return create_with_stat(transaction, writer, request)


def _create(transaction: Transaction, writer: ClientIdentity, request: Create | CreateTtl) -> tuple[str, ZnodeVersion]:
    mode = _mode_of(request)
    sequential = mode in SEQUENTIAL_MODES
    path = check_path(request.path, sequential)
    acl = fix_acl(path, request.acl, writer.identities)
    if path == ROOT and not sequential:
        raise ZooKeeperError(Code.NODE_EXISTS, "the root znode exists")
    _check_quota(path)
    above = parent_of(path)
    parent = transaction.get(above).znode
    check_allowed(above, parent.acl, Permission.CREATE, writer.identities)
    if sequential:
        path += f"{_next_number(transaction, above, parent.creates):010d}"
    if transaction.find(path) is not None:
        raise ZooKeeperError(Code.NODE_EXISTS, f"there is a znode {path!r}")
    if parent.is_ephemeral:
        raise ZooKeeperError(Code.NO_CHILDREN_FOR_EPHEMERALS, f"{above!r} is ephemeral: it has no children")
    owner = 0
    if mode in EPHEMERAL_MODES:
        owner = writer.session_id
    elif mode is CreateMode.CONTAINER:
        owner = persistent_records.CONTAINER_OWNER
    elif isinstance(request, CreateTtl):
        owner = persistent_records.ttl_owner(request.ttl)
    znode = persistent_records.new_znode(transaction.zxid, transaction.now, owner, acl)
    return path, transaction.add(path, request.data, znode)


def _check_quota(path: str) -> None:
    """Reject quotas, which would be neither counted nor enforced."""
    if path.startswith(f"{QUOTAS}/"):
        raise ZooKeeperError(Code.UNIMPLEMENTED, f"{path!r}: quotas are not supported")


def _mode_of(request: Create | CreateTtl) -> CreateMode:
    try:
        mode = CreateMode(request.mode)
    except ValueError:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"{request.path!r}: there is no mode {request.mode}") from None
    if (mode in TTL_MODES) != isinstance(request, CreateTtl):
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"{request.path!r}: mode {mode.name} and a time to live go together")
    if isinstance(request, CreateTtl) and not 0 < request.ttl <= persistent_records.MAX_TTL:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"{request.path!r}: {request.ttl} ms is not a valid time to live")
    return mode


def _next_number(transaction: Transaction, parent: str, creates: int) -> int:
    """Number of a sequential child. Children of LEDGER_IDS get ledger ids of the store, to be unique among all
    clients."""
    if parent != LEDGER_IDS:
        return creates
    ledger_id, _ = ReserveLedger(deleted_too=True).apply(transaction.staging)
    return ledger_id


def delete(transaction: Transaction, writer: ClientIdentity, request: Delete) -> None:
    path = check_path(request.path)
    if path == ROOT:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, "the root cannot be deleted")
    above = parent_of(path)
    found = transaction.get(path)
    check_allowed(path, transaction.get(above).znode.acl, Permission.DELETE, writer.identities)
    _check_version(path, request.version, found.version)
    if found.znode.children:
        raise ZooKeeperError(Code.NOT_EMPTY, f"{path!r} has {found.znode.children} children")
    transaction.remove(path, found)
    if path == LEDGER_IDS:
        # Formatting a cluster deletes this node after the ledgers, and expects ids to restart at 0.
        RestartLedgerIds().apply(transaction.staging)


def delete_if_unused(transaction: Transaction, path: str) -> None:
    """Delete a container that has lost all its children, or an expired znode, unless it is in use again."""
    found = transaction.find(path)
    if found is None or not is_unused(found.znode, transaction.now):
        raise ZooKeeperError(Code.BAD_VERSION, f"{path!r} is in use")
    transaction.remove(path, found)


def is_unused(znode: persistent_records.Znode, now: int) -> bool:
    if znode.children:
        return False
    ttl = znode.ttl
    if ttl is not None:
        return znode.mtime + ttl < now
    return znode.is_container and znode.creates > 0


def set_data(transaction: Transaction, writer: ClientIdentity, request: SetData) -> Stat:
    path = check_path(request.path)
    _check_quota(path)
    found = transaction.get(path)
    check_allowed(path, found.znode.acl, Permission.WRITE, writer.identities)
    _check_version(path, request.version, found.version)
    return transaction.set_value(path, found, request.data).stat


def set_acl(transaction: Transaction, writer: ClientIdentity, request: SetAcl) -> Stat:
    path = check_path(request.path)
    acl = fix_acl(path, request.acl, writer.identities)
    found = transaction.get(path)
    check_allowed(path, found.znode.acl, Permission.ADMIN, writer.identities)
    _check_version(path, request.version, found.znode.aversion)
    znode = found.znode._replace(acl=acl, aversion=persistent_records.next_version(found.znode.aversion))
    transaction.save(path, znode)
    return found._replace(znode=znode).stat


def check(transaction: Transaction, writer: ClientIdentity, request: Check) -> None:
    path = check_path(request.path)
    found = transaction.get(path)
    check_allowed(path, found.znode.acl, Permission.READ, writer.identities)
    _check_version(path, request.version, found.version)


def _check_version(path: str, expected: int, found: int) -> None:
    if expected not in (ANY_VERSION, found):
        raise ZooKeeperError(Code.BAD_VERSION, f"{path!r} has version {found}, not {expected}")


Apply = Callable[[Transaction, ClientIdentity, Any], Any]

WRITES: dict[Op, Apply] = {
    Op.CREATE: create,
    Op.CREATE2: create_with_stat,
    Op.CREATE_CONTAINER: create_container,
    Op.CREATE_TTL: create_with_stat,
    Op.DELETE: delete,
    Op.SET_DATA: set_data,
    Op.SET_ACL: set_acl,
    Op.CHECK: check,
}


MULTI_BYTES = 64 << 20
"""What the operations of a multi may read, see :func:`kept.cost_of`: no client is served meanwhile."""


class TooMuchReadError(ZooKeeperError):
    """A multi reads more than it may. It is refused as a whole, with the code by which Pulsar's brokers send the
    operations of a batch one by one."""

    def __init__(self) -> None:
        super().__init__(Code.CONNECTION_LOSS, f"the operations of a multi read at most {MULTI_BYTES} bytes")


class MultiRefusedError(Exception):
    """A multi failed as a whole; ``results`` has the error of each operation."""

    def __init__(self, results: list[tuple[Op, Any]]) -> None:
        super().__init__(results)
        self.results = results


def multi(
    transaction: Transaction, writer: ClientIdentity, operations: Iterable[tuple[Op, Any]]
) -> list[tuple[Op, Any]]:
    """Apply all operations, or none."""
    pending = list(operations)
    results: list[tuple[Op, Any]] = []
    for number, (op, request) in enumerate(pending):
        if transaction.read_bytes > MULTI_BYTES:
            raise TooMuchReadError
        try:
            results.append((op, WRITES[op](transaction, writer, request)))
        except ZooKeeperError as error:
            refused: list[tuple[Op, Any]] = [(Op.ERROR, Failed(Code.OK))] * number
            refused.append((Op.ERROR, Failed(error.code)))
            rest = len(pending) - number - 1
            raise MultiRefusedError(refused + [(Op.ERROR, Failed(Code.RUNTIME_INCONSISTENCY))] * rest) from error
    return results
