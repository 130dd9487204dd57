"""The writes of one commit, applied in order. Each has its own zxid and succeeds or fails individually."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bookstand.errors import (
    BookstandError,
    LedgerExistsError,
    MetadataVersionError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StoreDamagedError,
)
from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.protocol.protocol import Code, Op, ZooKeeperError
from bookstand.server.zookeeper.protocol.records import Failed
from bookstand.server.zookeeper.transaction import Change, Transaction
from bookstand.server.zookeeper.write_operations import (
    WRITES,
    ClientIdentity,
    MultiRefusedError,
    delete_if_unused,
    multi,
)
from bookstand.storage.commit import change_feed
from bookstand.storage.commit.operations import ConsumesSpace, WriteSet
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.logger import logger


class Outcome(NamedTuple):
    """Outcome of a write. A refused write also has a zxid, but no changes."""

    zxid: int
    result: Any
    changes: Sequence[Change] = ()
    ephemerals: Sequence[tuple[int, str, bool]] = ()
    mortal: Sequence[str] = ()


class OpenSession(NamedTuple):
    """Create a session; result: (id, :class:`persistent_records.Session`)."""

    session: persistent_records.Session


class CloseSession(NamedTuple):
    """Remove a session and its ephemerals."""

    session_id: int


class RemoveExpired(NamedTuple):
    """Remove a container that has lost all its children, or an expired znode."""

    path: str


class AdoptForeignZnodes(NamedTuple):
    """Look up znodes with foreign writes, to adopt them into the tree."""

    paths: Sequence[str]


class Request(NamedTuple):
    """Write request of a client."""

    op: Op
    body: Any
    writer: ClientIdentity


Write = OpenSession | CloseSession | RemoveExpired | AdoptForeignZnodes | Request

# Paths of the ephemerals of each session, as of the last commit.
Ephemerals = Mapping[int, Collection[str]]


# Requests that a full store accepts, because they free space.
_MAKE_ROOM = frozenset({Op.DELETE, Op.CHECK})


def _takes_space(write: Write) -> bool:
    if not isinstance(write, Request):
        return isinstance(write, OpenSession)
    operations = write.body if write.op is Op.MULTI else [(write.op, write.body)]
    return any(op not in _MAKE_ROOM for op, _ in operations)


def batch_of(writes: Sequence[Write], now: int, ephemerals: Ephemerals) -> Batch:
    kind = _GrowingBatch if any(map(_takes_space, writes)) else Batch
    return kind(writes, now, ephemerals)


class Batch:
    """A store operation that returns the outcome of each write. It may be applied again if its commit fails."""

    __slots__ = ("_ephemerals", "_now", "writes")

    def __init__(self, writes: Sequence[Write], now: int, ephemerals: Ephemerals) -> None:
        self.writes = writes
        self._now = now
        self._ephemerals = ephemerals

    def apply(self, staging: WriteSet) -> list[Outcome]:
        staging.is_published = False
        sealed = staging.get(schema.META, schema.META_SERVER)
        if sealed is None:
            raise StoreDamagedError("the record of the ZooKeeper server is missing")
        server = persistent_records.parse_server(sealed_record.unseal(schema.META, schema.META_SERVER, sealed))
        running = _Running(staging, server, self._now, self._ephemerals)
        outcomes = [running.outcome(write) for write in self.writes]
        staging.put(schema.META, schema.META_SERVER, persistent_records.pack_server(running.server))
        return outcomes


class _GrowingBatch(Batch, ConsumesSpace):
    """A batch that a full store refuses."""

    __slots__ = ()


class InitializeTree:
    """Initialize a store for its first server: the server's record, the built-in znodes, and the change feed."""

    __slots__ = ("_first_session",)

    def __init__(self, first_session: int) -> None:
        self._first_session = first_session

    def apply(self, staging: WriteSet) -> None:
        if staging.get(schema.META, schema.META_SERVER) is None:
            staging.put(
                schema.META,
                schema.META_SERVER,
                persistent_records.pack_server(persistent_records.Server(0, self._first_session)),
            )
            for path, znode in persistent_records.BUILT_IN.items():
                key = schema.znode_key(path)
                staging.put(schema.META, key, persistent_records.pack_znode(key, znode))
        if staging.get(schema.META, schema.META_CHANGE_FEED) is None:
            staging.put(schema.META, schema.META_CHANGE_FEED, change_feed.pack_total(0))


class _Running:
    """One application of a batch."""

    def __init__(self, staging: WriteSet, server: persistent_records.Server, now: int, ephemerals: Ephemerals) -> None:
        self.server = server
        self._staging = staging
        self._now = now
        self._ephemerals = ephemerals
        # Changes of ephemerals by this batch: (session, path) -> False if removed.
        self._owned: dict[tuple[int, str], bool] = {}

    def outcome(self, write: Write) -> Outcome:
        zxid = self.server.zxid + 1
        server = self.server = self.server._replace(zxid=zxid)
        inner = WriteSet(self._staging)
        transaction = Transaction(inner, zxid, self._now)
        try:
            result = _DO[type(write)](self, transaction, write)
        except ZooKeeperError as error:
            self.server = server
            return Outcome(zxid, Failed(error.code))
        except MultiRefusedError as refused:
            self.server = server
            return Outcome(zxid, refused.results)
        except BookstandError as error:
            self.server = server
            logger().error("a write through ZooKeeper's protocol failed: %s", error)
            return Outcome(zxid, Failed(code_of(error)))
        self._staging.merge(inner)
        for session_id, path, there in transaction.ephemerals:
            self._owned[session_id, path] = there
        return Outcome(zxid, result, transaction.changes, transaction.ephemerals, transaction.mortal)

    def _request(self, transaction: Transaction, request: Request) -> Any:
        self._check_session(transaction, request.writer.session_id)
        if request.op is Op.MULTI:
            return multi(transaction, request.writer, request.body)
        return WRITES[request.op](transaction, request.writer, request.body)

    def _check_session(self, transaction: Transaction, session_id: int) -> None:
        """Raise if an earlier write has closed the session."""
        if transaction.staging.get(schema.META, persistent_records.session_key(session_id)) is None:
            raise ZooKeeperError(Code.SESSION_EXPIRED, f"session {session_id:#x} is over")

    def _open_session(self, transaction: Transaction, write: OpenSession) -> tuple[int, persistent_records.Session]:
        session_id = self.server.next_session
        self.server = self.server._replace(next_session=session_id + 1)
        key = persistent_records.session_key(session_id)
        transaction.staging.put(schema.META, key, persistent_records.pack_session(key, write.session))
        return session_id, write.session

    def _close_session(self, transaction: Transaction, write: CloseSession) -> int:
        session_id = write.session_id
        transaction.staging.put(schema.META, persistent_records.session_key(session_id), None)
        owned = dict.fromkeys(self._ephemerals.get(session_id, ()), True)
        owned |= {path: there for (owner, path), there in self._owned.items() if owner == session_id}
        for path in sorted(path for path, there in owned.items() if there):
            found = transaction.find(path)
            if found is not None and found.znode.owner == session_id:
                transaction.remove(path, found)
        return session_id

    def _remove_unused(self, transaction: Transaction, write: RemoveExpired) -> None:
        delete_if_unused(transaction, write.path)

    def _adopt(self, transaction: Transaction, write: AdoptForeignZnodes) -> None:
        for path in write.paths:
            transaction.find(path)


_DO: dict[type, Callable[[_Running, Transaction, Any], Any]] = {
    Request: _Running._request,
    OpenSession: _Running._open_session,
    CloseSession: _Running._close_session,
    RemoveExpired: _Running._remove_unused,
    AdoptForeignZnodes: _Running._adopt,
}


# Result codes of the store's errors. Damage is never reported as absence.
_CODES: tuple[tuple[type[BookstandError], Code], ...] = (
    (StoreDamagedError, Code.DATA_INCONSISTENCY),
    (MetadataVersionError, Code.BAD_VERSION),
    (NoSuchNodeError, Code.NO_NODE),
    (NoSuchLedgerError, Code.NO_NODE),
    (LedgerExistsError, Code.NODE_EXISTS),
)


def code_of(error: BookstandError) -> Code:
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.SYSTEM_ERROR)
