"""Any sequence of requests, over real sockets, against a plain model: results, counts, zxids and events are its own."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bookstand
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import CreateMode, Op, WatchMode
from bookstand.testing import VirtualClock
from tests.server.zookeeper.kit import Client, Serving, eventually
from tests.server.zookeeper.model import Model, Refused, Watcher

PATHS = ("/a", "/a/b", "/a/b/c", "/a-b", "/a/n-", "/b", "/b/c")
CLIENTS = 3

paths = st.sampled_from(PATHS)
values = st.none() | st.binary(max_size=3)
versions = st.sampled_from((-1, -1, 0, 1, 2))
modes = st.sampled_from(
    (
        CreateMode.PERSISTENT,
        CreateMode.EPHEMERAL,
        CreateMode.PERSISTENT_SEQUENTIAL,
        CreateMode.EPHEMERAL_SEQUENTIAL,
    )
)
which = st.integers(0, CLIENTS - 1)
operations = st.lists(
    st.one_of(
        st.tuples(st.just(Op.CREATE), st.tuples(paths, values, modes)),
        st.tuples(st.just(Op.DELETE), st.tuples(paths, versions)),
        st.tuples(st.just(Op.SET_DATA), st.tuples(paths, values, versions)),
        st.tuples(st.just(Op.CHECK), st.tuples(paths, versions)),
    ),
    min_size=1,
    max_size=4,
)


def request_of(op: Op, arguments: tuple[Any, ...]) -> Any:
    if op is Op.CREATE:
        path, data, mode = arguments
        return records.Create(path, data, OPEN_ACL, mode)
    return {Op.DELETE: records.Delete, Op.SET_DATA: records.SetData, Op.CHECK: records.Check}[op](*arguments)


class ZooKeeper(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="zookeeper-machine-")
        self.clock = VirtualClock(now=1_700_000_000_000)
        self.store = bookstand.open(self.folder, durability="none")
        self.serving = Serving(self.store.storage, self.clock).__enter__()
        self.model = Model()
        self.clients = [Client(self.serving.port).connect() for _ in range(CLIENTS)]
        self.watchers = [Watcher() for _ in range(CLIENTS)]

    # -- writes ------------------------------------------------------------------------------------------------------

    def agree(self, client: Client, op: Op, *arguments: Any) -> None:
        """Ask the server, and then the model with the zxid that the answer has."""
        answer = client.call(op, request_of(op, arguments))
        change = {Op.CREATE: self.model.create, Op.DELETE: self.model.delete, Op.SET_DATA: self.model.set}[op]
        more = (client.session_id,) if op is Op.CREATE else ()
        refusal = None
        try:
            expected = change(client.zxid, *arguments, *more)  # type: ignore[operator]
        except Refused as refused:
            refusal = refused.code
        if refusal is None and op is Op.SET_DATA:
            self.compare(answer, arguments[0])
        else:
            assert answer == (expected if refusal is None else refusal)

    @rule(number=which, path=paths, data=values, mode=modes)
    def create(self, number: int, path: str, data: bytes | None, mode: int) -> None:
        self.agree(self.clients[number], Op.CREATE, path, data, mode)

    @rule(number=which, path=paths, version=versions)
    def delete(self, number: int, path: str, version: int) -> None:
        self.agree(self.clients[number], Op.DELETE, path, version)

    @rule(number=which, path=paths, data=values, version=versions)
    def set(self, number: int, path: str, data: bytes | None, version: int) -> None:
        self.agree(self.clients[number], Op.SET_DATA, path, data, version)

    @rule(number=which, rows=operations)
    def multi(self, number: int, rows: list[tuple[Op, tuple[Any, ...]]]) -> None:
        client = self.clients[number]
        answers = client.multi(*[(op, request_of(op, arguments)) for op, arguments in rows])
        expected = self.model.multi(client.zxid, rows, client.session_id)
        assert len(answers) == len(expected)
        for answer, wanted in zip(answers, expected, strict=True):
            assert wanted is None or answer == wanted

    # -- reads -------------------------------------------------------------------------------------------------------

    def compare(self, stat: records.Stat, path: str) -> None:
        counts = stat.version, stat.cversion, stat.ephemeral_owner, stat.data_length, stat.children
        assert (stat.czxid, stat.mzxid, stat.pzxid, *counts) == self.model.nodes[path].stat

    @rule(number=which, path=paths, watch=st.booleans())
    def look(self, number: int, path: str, watch: bool) -> None:
        answer = self.clients[number].exists(path, watch)
        if watch:
            self.watchers[number].data.add(path)
        assert isinstance(answer, int) == (path not in self.model.nodes)

    @rule(number=which, path=st.sampled_from(("/", *PATHS)), watch=st.booleans())
    def list(self, number: int, path: str, watch: bool) -> None:
        answer = self.clients[number].children(path, watch)
        if path not in self.model.nodes:
            assert answer == -101
            return
        assert answer == sorted(self.model.nodes[path].children)
        if watch:
            self.watchers[number].children.add(path)

    @rule(number=which, path=st.sampled_from(("/", *PATHS)), recursive=st.booleans())
    def watch_on(self, number: int, path: str, recursive: bool) -> None:
        mode = WatchMode.PERSISTENT_RECURSIVE if recursive else WatchMode.PERSISTENT
        assert self.clients[number].call(Op.ADD_WATCH, records.PathAndNumber(path, mode)) == 0
        watcher = self.watchers[number]
        (watcher.recursive if recursive else watcher.persistent).add(path)

    # -- sessions and servers ----------------------------------------------------------------------------------------

    @rule(number=which)
    def end_session(self, number: int) -> None:
        client = self.clients[number]
        client.call(Op.CLOSE_SESSION)
        self.model.end_session(client.zxid, client.session_id)
        self.begin_anew(number)

    @rule(number=which)
    def expire(self, number: int) -> None:
        client, other = self.clients[number], self.clients[number - 1]
        assert self.serving.do(self.serving.server.expire, client.session_id)
        eventually(lambda: client.session_id not in self.serving.do(self.serving.server.sessions))
        other.ping()
        self.model.end_session(other.zxid, client.session_id)
        self.begin_anew(number)

    def begin_anew(self, number: int) -> None:
        self.clients[number].close()
        self.clients[number] = Client(self.serving.port).connect()
        self.watchers[number] = Watcher()

    @rule()
    def restart(self) -> None:
        """Sessions go on; what was watched is set again by those who watch, here by nobody."""
        self.tell_all()
        self.serving.__exit__()
        self.serving = Serving(self.store.storage, self.clock).__enter__()
        for number, client in enumerate(self.clients):
            client.close()
            again = Client(self.serving.port)
            again.connect(session_id=client.session_id, password=client.password, seen=client.zxid)
            assert again.session_id == client.session_id
            self.clients[number], self.watchers[number] = again, Watcher()

    # -- the store's own users ---------------------------------------------------------------------------------------

    @rule(path=st.sampled_from([path for path in PATHS if path != "/a/n-"]), data=st.binary(max_size=3))
    def put_by_others(self, path: str, data: bytes) -> None:
        node = self.model.nodes.get(path)
        if node is not None and not node.recorded and node.version:
            return
        self.store.nodes.put(path, data)
        self.model.put_by_others(self.sync(), path, data)

    @precondition(lambda self: any(node.recorded for node in self.model.nodes.values()))
    @rule(data=st.data())
    def delete_by_others(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(path for path, node in self.model.nodes.items() if node.recorded)))
        self.store.nodes.delete(path)
        self.model.delete_by_others(self.sync(), path)

    def sync(self) -> int:
        client = self.clients[0]
        client.call(Op.SYNC, "/")
        return client.zxid

    # -- after each step ---------------------------------------------------------------------------------------------

    def tell_all(self) -> None:
        for change in self.model.changes:
            for watcher in self.watchers:
                watcher.see(change)
        self.model.changes.clear()
        for client, watcher in zip(self.clients, self.watchers, strict=True):
            client.ping()
            assert client.events == watcher.told
            client.events.clear()
            watcher.told.clear()

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        if not hasattr(self, "model"):
            return
        self.tell_all()
        client = self.clients[0]
        for path, node in self.model.nodes.items():
            data, stat = client.get(path)
            assert data == node.data
            self.compare(stat, path)

    def teardown(self) -> None:
        if hasattr(self, "serving"):
            for client in self.clients:
                client.close()
            self.serving.__exit__()
            report = self.store.verify()
            self.store.close()
            shutil.rmtree(self.folder)
            assert report.ok, str(report)


ZooKeeper.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_zookeeper = ZooKeeper.TestCase
