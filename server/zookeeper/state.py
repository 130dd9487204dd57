"""State of a server in memory, and its update after commits."""

from __future__ import annotations

from typing import NamedTuple

from bookstand.errors import BookstandError, StoreDamagedError
from bookstand.server.framing import Held
from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.batch import AdoptForeignZnodes, CloseSession, Outcome, Write
from bookstand.server.zookeeper.foreign_writes import ForeignWrites
from bookstand.server.zookeeper.metrics import Metrics
from bookstand.server.zookeeper.protocol.acls import allows
from bookstand.server.zookeeper.protocol.protocol import EventType, Permission
from bookstand.server.zookeeper.read_operations import Tree
from bookstand.server.zookeeper.sessions import Sessions
from bookstand.server.zookeeper.tree_scan import TreeScan, survey
from bookstand.server.zookeeper.watches import Watches
from bookstand.storage.format import schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookstand.server.zookeeper.connection import ZooKeeperConnection
    from bookstand.storage.clock import Clock
    from bookstand.storage.storage import Storage

# Change of the number of znodes by event.
_MORE = {EventType.CREATED: 1, EventType.DELETED: -1}


class RecoveredState(NamedTuple):
    """State of a server as recovered from its store."""

    server: persistent_records.Server
    survey: TreeScan
    sessions: dict[int, persistent_records.Session]


class State:
    """``own_writes``: the server's own writes for the next commit. ``mortal``: containers and znodes with a TTL."""

    def __init__(self, storage: Storage, clock: Clock, tick: int) -> None:
        self.storage = storage
        self.clock = clock
        self.tick = tick
        self.port = 0
        self.watches: Watches[ZooKeeperConnection] = Watches()
        self.tree = Tree(storage, self.watches)
        self.sessions = Sessions(clock, tick)
        self.metrics = Metrics()
        self.connections: dict[ZooKeeperConnection, None] = {}
        # Connections with unsent responses.
        self.unflushed: dict[ZooKeeperConnection, None] = {}
        self.held = Held()
        self.own_writes: list[Write] = []
        self.mortal: set[str] = set()
        self.znodes = 0
        self.others = ForeignWrites(storage, self.tree)

    @property
    def held_bytes(self) -> int:
        """Bytes in the buffers of all connections."""
        return self.held.total

    @property
    def outstanding(self) -> int:
        """Number of waiting requests."""
        return sum(len(connection.frames) for connection in self.connections)

    @property
    def is_usable(self) -> bool:
        try:
            self.storage.check_usable()
        except BookstandError:
            return False
        return True

    def flush(self) -> None:
        unflushed, self.unflushed = self.unflushed, {}
        for connection in unflushed:
            connection.flush()

    @property
    def ephemerals(self) -> int:
        return sum(map(len, list(self.tree.ephemerals.values())))

    def restored(self) -> RecoveredState:
        """Read the state from the store. Slow: scans the whole tree."""
        body = self.storage.meta(schema.META_SERVER)
        if body is None:
            raise StoreDamagedError("the record of the ZooKeeper server is missing")
        sessions = {}
        for key in self.storage.meta_keys(schema.META_SESSION):
            session = self.storage.meta(key)
            if session is not None:
                sessions[persistent_records.session_of(key)] = persistent_records.parse_session(key, session)
        return RecoveredState(persistent_records.parse_server(body), survey(self.storage), sessions)

    def restore(self, left: RecoveredState) -> None:
        """Replace the state by the recovered one. The timeouts of sessions that are not in memory start now."""
        found = left.survey
        self.tree.zxid = left.server.zxid
        self.tree.ephemerals = found.ephemerals
        self.mortal, self.znodes = found.mortal, found.znodes
        for session in list(self.sessions):
            if session.id not in left.sessions:
                self.sessions.remove(session.id)
        for session_id, kept_session in left.sessions.items():
            live = self.sessions.get(session_id) or self.sessions.add(session_id, kept_session)
            live.closing = False
        # Ephemerals without a session should not exist; if there are any, remove them.
        self.own_writes = [CloseSession(owner) for owner in found.ephemerals if owner not in left.sessions]
        self.surveyed(found)

    def surveyed(self, found: TreeScan) -> None:
        """Adopt the foreign writes that a full scan has found, with the next commits."""
        self.others.seen(found.news)
        self._adopt(found.strange)

    def hear_others(self) -> bool:
        """Adopt the foreign writes in the change feed. Return False if a full scan is required."""
        paths = self.others.hear()
        if paths is None:
            return False
        self._adopt(paths)
        return True

    def _adopt(self, paths: Sequence[str]) -> None:
        self.own_writes += [AdoptForeignZnodes([path]) for path in paths]
        self.committed()

    def committed(self) -> None:
        """Mark the change feed as adopted if none of the server's own writes is pending."""
        if not self.own_writes:
            self.others.taken_in()

    def settle(self, outcome: Outcome) -> None:
        """Apply a durable write to the state, and notify watchers."""
        tree = self.tree
        tree.zxid = outcome.zxid
        for change in outcome.changes:
            for watcher, kind, path, acl in self.watches.fire(change):
                if allows(acl, Permission.READ, watcher.identities):
                    watcher.tell(outcome.zxid, kind, path)
                    self.metrics.events += 1
            self.znodes += _MORE.get(change.type, 0)
            if change.type is EventType.DELETED:
                self.mortal.discard(change.path)
        for owner, path, there in outcome.ephemerals:
            owned = tree.ephemerals.setdefault(owner, set())
            (owned.add if there else owned.discard)(path)
            if not owned:
                del tree.ephemerals[owner]
        self.mortal.update(outcome.mortal)
