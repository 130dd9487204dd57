"""Changes of several operations are whole or not at all; nodes do as a dictionary with versions would."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import bookstand
from bookstand import errors
from bookstand.storage.commit.entry_operations import AddEntries, Fence
from bookstand.storage.commit.ledger_operations import (
    CreateLedger,
    DeleteLedger,
    ReserveLedger,
    RestartLedgerIds,
    UpdateLedger,
)
from bookstand.storage.commit.node_operations import DeleteNode, PutNode
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import ledger_metadata as metadata_format
from bookstand.storage.format.digest import digest_for, master_key
from tests import kit

PASSWORD = b"secret"
KEY = master_key(PASSWORD)

REFUSED = PutNode("/refused", b"", 7)
"""The node is never there, so that no version is the right one."""


def created(store: Any) -> CreateLedger:
    with store.create_ledger(password=PASSWORD) as template:
        metadata = metadata_format.serialize(template.metadata)
    return CreateLedger(None, KEY, "crc32c", metadata)


def entries(store: Any, writer: Any, payloads: list[bytes]) -> AddEntries:
    """The next entries of a ledger, past its writer."""
    state = store.storage.state(writer.id)
    first, lac = writer.last_add_pushed + 1, writer.last_add_confirmed
    digest = digest_for("crc32c", PASSWORD)
    return AddEntries(writer.id, state.incarnation, KEY, digest, first, lac, writer.length, payloads, True)


def node(store: Any, path: str) -> tuple[bytes, int] | None:
    try:
        return store.nodes.get(path)  # type: ignore[no-any-return]
    except errors.NoSuchNodeError:
        return None


# -- changes ---------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_operations(store: Any) -> None:
    writer = store.create_ledger(password=PASSWORD)
    doomed = store.create_ledger()
    add = entries(store, writer, [b"one", b"two"])
    create = created(store)
    change = WriteBatch(PutNode("/a", b"1", -1), add, create, DeleteLedger(doomed.id, 1), PutNode("/a", b"2", 0))
    version, ids, (ledger_id, incarnation), nothing, later = store.storage.submit(change).result(kit.PATIENCE)
    assert (version, list(ids), nothing, later) == (0, [0, 1], None, 1)
    assert incarnation == store.storage.state(ledger_id).incarnation
    assert node(store, "/a") == (b"2", 1)
    assert [entry.data for entry in writer.read_unconfirmed(0, 1)] == [b"one", b"two"]
    assert ledger_id in store.list_ledgers()
    assert doomed.id not in store.list_ledgers()


@pytest.mark.parametrize("place", range(6))
def test_one_refused_operation_refuses_all(store: Any, place: int) -> None:
    writer = store.create_ledger(password=PASSWORD)
    writer.append(b"before")
    doomed = store.create_ledger()
    store.nodes.put("/old", b"old")
    operations = [
        created(store),
        entries(store, writer, [b"never"]),
        DeleteLedger(doomed.id, 1),
        PutNode("/new", b"new", None),
        DeleteNode("/old", 0),
    ]
    ledgers = list(store.list_ledgers())
    pending = store.storage.submit(WriteBatch(*operations[:place], REFUSED, *operations[place:]))
    assert kit.outcome(pending) == -17
    assert list(store.list_ledgers()) == ledgers
    assert (node(store, "/old"), node(store, "/new"), node(store, "/refused")) == ((b"old", 0), None, None)
    assert writer.append(b"after") == 1
    assert [(entry.data, entry.cumulative_length) for entry in writer.read(0, 1)] == [(b"before", 6), (b"after", 11)]


def test_refusals_do_not_touch_the_other_changes_of_a_commit(store: Any) -> None:
    changes = [WriteBatch(PutNode(f"/{n}", b"", -1), PutNode("/count", b"", n - 1)) for n in range(3)]
    refused = WriteBatch(PutNode("/1", b"", 0), PutNode("/count", b"", 1), REFUSED)
    pendings = [store.storage.submit(change) for change in (changes[0], changes[1], refused, changes[2], changes[0])]
    outcomes = [kit.outcome(pending) for pending in pendings]
    assert outcomes == [("ok", [0, 0]), ("ok", [0, 1]), -17, ("ok", [0, 2]), -17]
    assert node(store, "/1") == (b"", 0)
    assert store.nodes.children("/") == ["0", "1", "2", "count"]


def test_operations_see_those_before_them(store: Any) -> None:
    change = WriteBatch(PutNode("/a", b"1", -1), DeleteNode("/a", 0), PutNode("/a", b"2", -1), PutNode("/a", b"3", 0))
    assert store.storage.submit(change).result(kit.PATIENCE) == [0, None, 0, 1]
    assert node(store, "/a") == (b"3", 1)
    with pytest.raises(errors.NoSuchNodeError):
        store.storage.submit(WriteBatch(DeleteNode("/a", 1), DeleteNode("/a", None))).result(kit.PATIENCE)
    assert node(store, "/a") == (b"3", 1)


def test_a_fence_of_a_refused_change_does_not_hold(store: Any) -> None:
    writer = store.create_ledger(password=PASSWORD)
    assert kit.outcome(store.storage.submit(WriteBatch(Fence(writer.id, KEY), REFUSED))) == -17
    assert writer.append(b"still") == 0
    fenced_first = WriteBatch(Fence(writer.id, KEY), entries(store, writer, [b"never"]), PutNode("/a", b"", -1))
    assert kit.outcome(store.storage.submit(fenced_first)) == -101
    assert node(store, "/a") is None
    assert writer.append(b"still") == 1
    fenced = store.storage.submit(WriteBatch(Fence(writer.id, KEY), PutNode("/a", b"", -1)))
    assert fenced.result(kit.PATIENCE) == [store.storage.state(writer.id).incarnation, 0]
    assert kit.code_of(lambda: writer.append(b"never")) == -101


def test_metadata_of_a_refused_change_keeps_its_version(store: Any) -> None:
    writer = store.create_ledger()
    before = store.ledger_metadata(writer.id)
    changed = metadata_format.serialize(before.replace(custom_metadata={"a": b"b"}))
    assert kit.outcome(store.storage.submit(WriteBatch(UpdateLedger(writer.id, changed, 0), REFUSED))) == -17
    assert store.ledger_metadata(writer.id).version == 0
    assert store.ledger_metadata(writer.id).custom_metadata == {}
    assert store.storage.submit(WriteBatch(UpdateLedger(writer.id, changed, 0))).result(kit.PATIENCE) == [1]
    assert store.ledger_metadata(writer.id).custom_metadata == {"a": b"b"}


@pytest.mark.parametrize("second", [100, 3_000, 5_000, 9_000])
def test_a_smaller_value_in_the_same_commit(open_store: Callable[..., Any], second: int) -> None:
    """It has no more pages than it takes: the file would be refused as damaged."""
    with open_store() as store:
        storage = store.storage
        with storage.committer.paused():
            pending = [storage.submit(WriteBatch(PutNode("/a", bytes(size), None))) for size in (9_000, second)]
        assert [one.result(kit.PATIENCE) for one in pending] == [[0], [1]]
    with open_store(check="full") as store:
        assert store.nodes.get("/a") == (bytes(second), 1)
        assert store.verify().ok


def test_an_empty_change_succeeds(store: Any) -> None:
    assert store.storage.submit(WriteBatch()).result(kit.PATIENCE) == []


# -- nodes -----------------------------------------------------------------------------------------------------------

PATHS = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a-", "/a/é", "/z/deep/er", "/a/0"]
PARENTS = [*PATHS, "/z", "/z/deep", "/none"]
VERSIONS = st.one_of(st.none(), st.integers(-1, 3))


class NodesMachine(RuleBasedStateMachine):
    """``store.nodes`` against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self._cleanup = contextlib.ExitStack()
        self._store = self._cleanup.enter_context(bookstand.temporary())
        self._nodes = self._store.nodes
        self._model: dict[str, tuple[bytes, int]] = {}

    def teardown(self) -> None:
        with self._cleanup:
            assert self._store.verify().ok

    @rule(path=st.sampled_from(PATHS), value=st.binary(max_size=40), expected=VERSIONS)
    def put(self, path: str, value: bytes, expected: int | None) -> None:
        version = self._model[path][1] if path in self._model else -1
        if expected in (None, version):
            assert self._nodes.put(path, value, expected) == version + 1
            self._model[path] = value, version + 1
        else:
            with kit.refused(-17):
                self._nodes.put(path, value, expected)

    @rule(path=st.sampled_from(PATHS), expected=VERSIONS)
    def delete(self, path: str, expected: int | None) -> None:
        if path not in self._model:
            with pytest.raises(errors.NoSuchNodeError):
                self._nodes.delete(path, expected)
        elif expected in (None, self._model[path][1]):
            self._nodes.delete(path, expected)
            del self._model[path]
        else:
            with kit.refused(-17):
                self._nodes.delete(path, expected)

    @rule(parent=st.sampled_from(PARENTS))
    def children(self, parent: str) -> None:
        prefix = parent.rstrip("/") + "/"
        below = [path[len(prefix) :] for path in self._model if path.startswith(prefix) and path != prefix]
        names = sorted({name.split("/")[0] for name in below}, key=str.encode)
        # The order, and the root among its own children, have tests of their own.
        found = self._nodes.children(parent)
        assert len(found) == len(set(found))
        assert sorted((name for name in found if name), key=str.encode) == names

    @invariant()
    def everything_is_there(self) -> None:
        for path in PATHS:
            if path in self._model:
                assert self._nodes.get(path) == self._model[path]
            else:
                with pytest.raises(errors.NoSuchNodeError):
                    self._nodes.get(path)


TestNodesMachine = NodesMachine.TestCase
TestNodesMachine.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_root_is_no_child_of_itself(store: Any) -> None:
    store.nodes.put("/", b"root")
    store.nodes.put("/a", b"")
    assert store.nodes.children("/") == ["a"]


def test_names_are_in_order_whatever_lies_below(store: Any) -> None:
    for path in ("/a/b", "/a-", "/a.b/c", "/ab"):
        store.nodes.put(path, b"")
    assert store.nodes.children("/") == ["a", "a-", "a.b", "ab"]


def test_children_are_listed_in_order_and_once(store: Any) -> None:
    for path in ("/p/b/2", "/p/a", "/p/b/1", "/p/c/x/y", "/p", "/pp/other", "/p/b"):
        store.nodes.put(path, b"")
    assert store.nodes.children("/p") == store.nodes.children("/p/") == ["a", "b", "c"]
    store.nodes.delete("/p/b")
    assert store.nodes.children("/p") == ["a", "b", "c"]
    assert store.nodes.children("/p/a") == []


def test_nodes_outlive_the_store(open_store: Callable[..., Any]) -> None:
    client = open_store()
    client.nodes.put("/a", b"1")
    client.nodes.put("/a", bytes(range(256)) * 100)
    client.close()
    assert open_store(create=False).nodes.get("/a") == (bytes(range(256)) * 100, 1)


@pytest.mark.parametrize("path", [None, b"/a", 1, "", "a", "a/b", "/a\0b", "/\ud800", "/" + "x" * 511, "/" + "é" * 256])
def test_bad_paths(store: Any, path: Any) -> None:
    for call in (
        lambda: store.nodes.get(path),
        lambda: store.nodes.put(path, b""),
        lambda: store.nodes.delete(path),
        lambda: store.nodes.children(path),
    ):
        assert kit.code_of(call) == -14
    assert store.nodes.children("/") == []


def test_the_longest_path(store: Any) -> None:
    path = "/" + "x" * 510
    assert store.nodes.put(path, b"long") == 0
    assert store.nodes.get(path) == (b"long", 0)
    assert store.nodes.children("/") == [path[1:]]
    assert store.nodes.children(path) == []


@pytest.mark.parametrize("value", [None, "text", 1, ["list"]])
def test_bad_values(store: Any, value: Any) -> None:
    assert kit.code_of(lambda: store.nodes.put("/a", value)) == -14
    assert node(store, "/a") is None


@pytest.mark.parametrize("value", [b"", bytearray(b"abc"), memoryview(b"abcdef")[::2], b"x" * 200_000])
def test_good_values(store: Any, value: Any) -> None:
    store.nodes.put("/a", value)
    assert store.nodes.get("/a") == (bytes(value), 0)


@pytest.mark.parametrize("version", [-2, True, "0", 0.0])
def test_bad_versions(store: Any, version: Any) -> None:
    store.nodes.put("/a", b"")
    assert kit.code_of(lambda: store.nodes.put("/a", b"", version)) == -14
    assert kit.code_of(lambda: store.nodes.delete("/a", version)) == -14
    assert node(store, "/a") == (b"", 0)


def test_nodes_of_a_read_only_store(open_store: Callable[..., Any]) -> None:
    client = open_store()
    client.nodes.put("/a", b"1")
    client.close()
    nodes = open_store(read_only=True).nodes
    assert kit.code_of(lambda: nodes.put("/a", b"2")) == -104
    assert kit.code_of(lambda: nodes.delete("/a")) == -104
    assert nodes.get("/a") == (b"1", 0)
    assert nodes.children("/") == ["a"]


# -- several processes -----------------------------------------------------------------------------------------------

_INCREMENT = """
won = []
while len(won) < 60:
    value, version = store.nodes.get("/counter")
    try:
        won.append(store.nodes.put("/counter", b"%d" % (int(value) + 1), version))
    except bookstand.errors.MetadataVersionError:
        pass
"""


def test_increments_of_two_processes_are_all_there(store: Any, child: Callable[..., kit.Child]) -> None:
    store.nodes.put("/counter", b"0")
    children = [child(), child()]
    for process in children:
        process.send(_INCREMENT)
    for process in children:
        process.receive()
    versions = [version for process in children for version in process.run("won")]
    assert sorted(versions) == list(range(1, 121))
    assert store.nodes.get("/counter") == (b"120", 120)


_CREATE = """
ids = []
for turn in range(25):
    ids.append(store.create_ledger().id)
    try:
        with store.transaction() as transaction:
            ids.append(transaction.create_ledger().id)
            if turn % 2:
                raise KeyError
    except KeyError:
        pass
    if turn % 5 == 0:
        # A plain one: those stand at the even places.
        store.delete_ledger(ids[2 * turn])
        store.storage.collect_deleted(1 << 62)
"""


def test_ledger_ids_are_handed_out_once(store: Any, child: Callable[..., kit.Child]) -> None:
    children = [child(), child()]
    for process in children:
        process.send(_CREATE)
    for process in children:
        process.receive()
    ids = [ledger_id for process in children for ledger_id in process.run("ids")]
    for process in children:
        process.close()
    assert len(ids) == 100
    ids.append(store.create_ledger().id)
    assert len(set(ids)) == len(ids)
    assert set(store.list_ledgers()) <= set(ids)


def test_reserved_ids_are_handed_out_once(store: Any) -> None:
    reserve = WriteBatch(ReserveLedger(), ReserveLedger())
    reserved = [ledger_id for _ in range(5) for ledger_id, _ in store.storage.submit(reserve).result(kit.PATIENCE)]
    ids = [*reserved, *(store.create_ledger().id for _ in range(3))]
    assert len(set(ids)) == 13


def test_ledger_ids_restart_in_a_store_without_ledgers(store: Any) -> None:
    writers = [store.create_ledger() for _ in range(3)]
    writers[0].append(b"x")
    assert store.storage.apply(WriteBatch(RestartLedgerIds())) == [False]
    for writer in writers:
        store.delete_ledger(writer.id)
    # In one change: what is staged counts.
    assert store.storage.apply(WriteBatch(CreateLedger(7, None, "", b""), RestartLedgerIds()))[1] is False
    assert store.storage.apply(WriteBatch(DeleteLedger(7, 1), RestartLedgerIds()))[1] is True
    # Ids of deleted ledgers are free for those that say so; others come behind what is not collected.
    ((again, _),) = store.storage.apply(WriteBatch(ReserveLedger(deleted_too=True)))
    assert again == 0
    assert store.create_ledger().id == 3
    for writer in writers:
        store.storage.collect(writer.id)
    store.delete_ledger(3)
    assert store.storage.apply(WriteBatch(RestartLedgerIds())) == [True]
    assert store.create_ledger().id == 0
