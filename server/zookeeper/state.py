"""What a server holds in memory, and what a commit does to it."""

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

# How a change changes the number of znodes.
_MORE = {EventType.CREATED: 1, EventType.DELETED: -1}


class RecoveredState(NamedTuple):
    """What a server has left in its store."""

    server: persistent_records.Server
    survey: TreeScan
    sessions: dict[int, persistent_records.Session]


class State:
    """``own_writes`` are the server's: they go into the next commit. ``mortal`` znodes go by themselves one day."""

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
        # Those with answers that are not sent yet.
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
        """Requests that wait for their turn."""
        return sum(len(connection.frames) for connection in self.connections)

    @property
    def is_usable(self) -> bool:
        """Whether the store is still there."""
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
        """What the store holds, however that came about. Takes its time."""
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
        """Go on from what the store holds. Sessions that are new here live from now on for as long as they said."""
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
        # Of sessions that are not there any more, should there be such.
        self.own_writes = [CloseSession(owner) for owner in found.ephemerals if owner not in left.sessions]
        self.surveyed(found)

    def surveyed(self, found: TreeScan) -> None:
        """There was a look at everything: where others have written becomes part of the tree with the next commits."""
        self.others.seen(found.news)
        self._adopt(found.strange)

    def hear_others(self) -> bool:
        """The same by what they have left word of; False: only a look at everything can tell."""
        paths = self.others.hear()
        if paths is None:
            return False
        self._adopt(paths)
        return True

    def _adopt(self, paths: Sequence[str]) -> None:
        self.own_writes += [AdoptForeignZnodes([path]) for path in paths]
        self.committed()

    def committed(self) -> None:
        """There is no commit under way."""
        if not self.own_writes:
            self.others.taken_in()

    def settle(self, outcome: Outcome) -> None:
        """A write is on the disk: those who watch what it changed are told."""
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
