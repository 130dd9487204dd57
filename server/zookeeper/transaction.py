"""One write within a commit: its view of the tree, and its staged changes.

Nodes and ledgers can also be written without a server, through the store's API in any process. Such a foreign write
differs from the seal in the znode's record. Each lookup here adopts it into the tree, with the zxid and events of this
transaction, so all checks apply to the current state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bookstand.errors import MetadataSerializationError, StoreDamagedError
from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.persistent_records import Znode
from bookstand.server.zookeeper.protocol.paths import ROOT, parent_of
from bookstand.server.zookeeper.protocol.protocol import Code, EventType, ZooKeeperError
from bookstand.server.zookeeper.value_location import Place, place_of
from bookstand.storage.commit.entry_operations import DeleteEntries
from bookstand.storage.commit.ledger_operations import CreateLedger, DeleteLedger, UpdateLedger
from bookstand.storage.commit.operations import WriteSet
from bookstand.storage.format import ledger_metadata, schema, sealed_record
from bookstand.storage.format.digest import master_key
from bookstand.storage.format.ledger_state import NO_HOME_YET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.protocol.records import Acl, Stat


class Change(NamedTuple):
    """Change of a znode, with the ACLs that decide which watchers of the znode and of its parent are notified."""

    type: EventType
    path: str
    acl: Sequence[Acl] = persistent_records.OPEN_ACL
    parent_acl: Sequence[Acl] = persistent_records.OPEN_ACL


class ZnodeVersion(NamedTuple):
    """A znode with the version and size of its value."""

    znode: Znode
    version: int
    size: int

    @property
    def stat(self) -> Stat:
        return self.znode.stat(self.version, self.size)


class Transaction:
    """``ephemerals``: changes of ephemerals as (session, path, False if removed). ``mortal``: new containers and znodes
    with a TTL."""

    def __init__(self, staging: WriteSet, zxid: int, now: int) -> None:
        self.staging = staging
        self.zxid = zxid
        self.now = now
        self.changes: list[Change] = []
        self.ephemerals: list[tuple[int, str, bool]] = []
        self.mortal: list[str] = []
        self.read_bytes = 0
        """What looking up znodes has cost so far, see :func:`kept.cost_of`."""

    # -- lookup ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> ZnodeVersion | None:
        """Look up a znode, and adopt a foreign write to it."""
        key = schema.znode_key(path)
        place = place_of(path)
        sealed = self.staging.get(schema.META, key)
        value = self.staging.get(place.database, place.key)
        self.read_bytes += persistent_records.cost_of(sealed, value)
        seal = sealed_record.checksum_of(value)
        if sealed is None:
            if value is None:
                return None
            return self._adopt_new(path, place, value)
        znode = persistent_records.unpack_znode(key, sealed)
        if znode.has_record == (value is not None) and znode.seal == seal:
            if value is None:
                return ZnodeVersion(znode, 0, 0)
            return _found(znode, place, value)
        return self._adopt_change(path, znode, place, value)

    def get(self, path: str) -> ZnodeVersion:
        found = self.find(path)
        if found is None:
            raise ZooKeeperError(Code.NO_NODE, f"there is no znode {path!r}")
        return found

    def save(self, path: str, znode: Znode) -> None:
        key = schema.znode_key(path)
        self.staging.put(schema.META, key, persistent_records.pack_znode(key, znode))

    # -- foreign writes ----------------------------------------------------------------------------------------------

    def _adopt_new(self, path: str, place: Place, value: bytes) -> ZnodeVersion:
        znode = persistent_records.new_znode(self.zxid, self.now)._replace(
            has_record=True, seal=sealed_record.checksum_of(value)
        )
        self._link(path, znode)
        return _found(znode, place, value)

    def _adopt_change(self, path: str, znode: Znode, place: Place, value: bytes | None) -> ZnodeVersion | None:
        if value is None and not znode.children and path != ROOT:
            self._unlink(path, znode)
            return None
        changed = znode._replace(
            has_record=value is not None,
            null_value=False,
            seal=sealed_record.checksum_of(value),
            mzxid=self.zxid,
            mtime=self.now,
        )
        self.save(path, changed)
        self.changes.append(Change(EventType.DATA_CHANGED, path, changed.acl))
        return ZnodeVersion(changed, 0, 0) if value is None else _found(changed, place, value)

    # -- changes -----------------------------------------------------------------------------------------------------

    def _link(self, path: str, znode: Znode) -> None:
        """Add a new znode to the tree, after its missing ancestors."""
        parent_acl: Sequence[Acl] = persistent_records.OPEN_ACL
        if path != ROOT:
            above = parent_of(path)
            if self.find(above) is None:
                self._link(above, persistent_records.new_znode(self.zxid, self.now))
            parent = self.get(above).znode
            more = parent._replace(children=parent.children + 1, creates=parent.creates + 1, pzxid=self.zxid)
            self.save(above, more)
            parent_acl = parent.acl
        self.save(path, znode)
        self.changes.append(Change(EventType.CREATED, path, znode.acl, parent_acl))
        if znode.is_ephemeral:
            self.ephemerals.append((znode.owner, path, True))
        elif znode.is_mortal:
            self.mortal.append(path)

    def _unlink(self, path: str, znode: Znode) -> None:
        self.staging.put(schema.META, schema.znode_key(path), None)
        above = parent_of(path)
        parent = self._as_kept(above)
        self.changes.append(Change(EventType.DELETED, path, znode.acl, parent.acl))
        if znode.is_ephemeral:
            self.ephemerals.append((znode.owner, path, False))
        self.save(above, parent._replace(children=parent.children - 1, pzxid=self.zxid))

    def _as_kept(self, path: str) -> Znode:
        """Read the record of a parent without adopting a foreign write. A deletion of the parent, which must follow the
        deletions of its children, is adopted after them."""
        key = schema.znode_key(path)
        sealed = self.staging.get(schema.META, key)
        if sealed is None:
            raise StoreDamagedError(f"the record of znode {path!r} is missing, but its children exist")
        return persistent_records.unpack_znode(key, sealed)

    def add(self, path: str, data: bytes | None, znode: Znode) -> ZnodeVersion:
        """Create a znode below an existing one."""
        seal = self._create_value(path, data)
        new = znode._replace(has_record=True, null_value=data is None, seal=seal)
        self._link(path, new)
        return ZnodeVersion(new, 0, len(data or b""))

    def remove(self, path: str, found: ZnodeVersion) -> None:
        """Delete a znode without children."""
        if found.znode.has_record:
            place = place_of(path)
            if place.ledger_id is None:
                self.staging.put(place.database, place.key, None)
            else:
                DeleteLedger(place.ledger_id, self.now).apply(self.staging)
        self._unlink(path, found.znode)

    def set_value(self, path: str, found: ZnodeVersion, data: bytes | None) -> ZnodeVersion:
        version = persistent_records.next_version(found.version)
        if found.znode.has_record:
            seal = self._update_value(path, data, version)
        else:
            seal = self._create_value(path, data, version)
        znode = found.znode._replace(
            has_record=True, null_value=data is None, seal=seal, mzxid=self.zxid, mtime=self.now
        )
        self.save(path, znode)
        self.changes.append(Change(EventType.DATA_CHANGED, path, znode.acl))
        return ZnodeVersion(znode, version, len(data or b""))

    # -- values ------------------------------------------------------------------------------------------------------

    def _create_value(self, path: str, data: bytes | None, version: int = 0) -> int:
        place = place_of(path)
        if place.ledger_id is None:
            self._put_node(place, data, version)
        else:
            self._create_ledger(path, place.ledger_id, data)
        return sealed_record.checksum_of(self.staging.get(place.database, place.key))

    def _update_value(self, path: str, data: bytes | None, version: int) -> int:
        place = place_of(path)
        if place.ledger_id is None:
            self._put_node(place, data, version)
        else:
            _check_metadata(path, place.ledger_id, data)
            UpdateLedger(place.ledger_id, data or b"", None).apply(self.staging)
        return sealed_record.checksum_of(self.staging.get(place.database, place.key))

    def _put_node(self, place: Place, data: bytes | None, version: int) -> None:
        self.staging.put(place.database, place.key, sealed_record.seal_versioned(place.key, version, data or b""))

    def _create_ledger(self, path: str, ledger_id: int, data: bytes | None) -> None:
        found = _check_metadata(path, ledger_id, data)
        known = self.staging.state(ledger_id)
        if known is not None and known.deleted_at:
            # The id is reused: remove the deleted ledger's entries first, as the bookies' garbage collection would.
            DeleteEntries(ledger_id, limit=None).apply(self.staging)
        key = master_key(found.password) if found.has_password else None
        CreateLedger(ledger_id, key, found.digest_type or "", data or b"", home=NO_HOME_YET).apply(self.staging)


def _check_metadata(path: str, ledger_id: int, data: bytes | None) -> ledger_metadata.LedgerMetadata:
    """Parse the value of a ledger's znode; reject a value that is not valid ledger metadata."""
    try:
        return ledger_metadata.parse(data or b"", ledger_id)
    except MetadataSerializationError as error:
        raise ZooKeeperError(Code.BAD_ARGUMENTS, f"{path!r} is ledger {ledger_id}: {error}") from error


def _found(znode: Znode, place: Place, value: bytes) -> ZnodeVersion:
    data, version = place.unseal(value)
    return ZnodeVersion(znode, version, len(data))
