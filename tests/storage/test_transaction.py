"""Transactions: appends, created and deleted ledgers and nodes in one commit, or nothing of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import errors
from tests import kit


class DroppedError(Exception):
    """Ends a block."""


@contextlib.contextmanager
def ended_by(error: type[Exception]) -> Iterator[None]:
    with pytest.raises(error):
        yield


def node(store: Any, path: str) -> tuple[bytes, int] | None:
    try:
        return store.nodes.get(path)  # type: ignore[no-any-return]
    except errors.NoSuchNodeError:
        return None


def contents(handle: Any) -> list[tuple[bytes, int]]:
    """Payload and cumulative length of everything that a writer has had confirmed."""
    last = handle.last_add_confirmed
    return [(entry.data, entry.cumulative_length) for entry in handle.read(0, last)] if last >= 0 else []


class Scene:
    """A store with two ledgers of one entry, one to be deleted, and a node; and a transaction that touches all."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.first, self.second = store.create_ledger(), store.create_ledger(digest="hmac", password=b"secret")
        self.doomed = store.create_ledger()
        self.created: Any = None
        self.first.append(b"a")
        self.second.append(b"bb")
        store.nodes.put("/old", b"old")
        self.ledgers = list(store.list_ledgers())

    def fill(self, transaction: Any) -> Any:
        """Stage everything; the Pending of a node."""
        assert transaction.append(self.first, b"1") == 1
        assert transaction.append(self.second, b"22") == 1
        assert transaction.append(self.first, bytearray(b"333")) == 2
        self.created = transaction.create_ledger(custom_metadata={"made": b"together"})
        assert transaction.append(self.created, b"4444") == 0
        transaction.delete_ledger(self.doomed.id)
        transaction.delete_node("/old", 0)
        return transaction.put_node("/new", b"new", -1)

    def assert_nothing_happened(self) -> None:
        store = self.store
        assert list(store.list_ledgers()) == self.ledgers
        assert (node(store, "/old"), node(store, "/new")) == ((b"old", 0), None)
        for writer, length in ((self.first, 1), (self.second, 2)):
            assert (writer.last_add_pushed, writer.last_add_confirmed, writer.length) == (0, 0, length)
            assert kit.code_of(lambda writer=writer: writer.read_unconfirmed(1, 1)) is not None
        assert kit.code_of(lambda: store.open_ledger(self.created.id)) == -25
        assert kit.code_of(lambda: self.created.append(b"never")) is not None
        # The writers go on, with the right ids and lengths.
        assert (self.first.append(b"55555"), self.second.append(b"6")) == (1, 1)
        assert contents(self.first) == [(b"a", 1), (b"55555", 6)]
        assert contents(self.second) == [(b"bb", 2), (b"6", 3)]
        for writer in (self.first, self.second):
            writer.close()
        assert self.doomed.append(b"alive") == 0
        assert contents(store.open_ledger(self.first.id)) == [(b"a", 1), (b"55555", 6)]
        assert store.create_ledger().id not in [*self.ledgers, self.created.id]


@pytest.fixture
def scene(store: Any) -> Scene:
    return Scene(store)


# -- all -------------------------------------------------------------------------------------------------------------


def test_everything_happens(scene: Scene, open_store: Callable[..., Any]) -> None:
    store = scene.store
    with store.transaction() as transaction:
        pending = scene.fill(transaction)
        assert not pending.done()
        other = open_store()
        assert list(other.list_ledgers()) == scene.ledgers
        assert (node(other, "/old"), node(other, "/new")) == ((b"old", 0), None)
    assert pending.result(kit.PATIENCE) == 0
    expected = sorted({*scene.ledgers, scene.created.id} - {scene.doomed.id})
    assert list(store.list_ledgers()) == list(other.list_ledgers()) == expected
    assert (node(other, "/old"), node(other, "/new")) == (None, (b"new", 0))
    assert contents(scene.first) == [(b"a", 1), (b"1", 2), (b"333", 5)]
    assert contents(scene.second) == [(b"bb", 2), (b"22", 4)]
    assert contents(scene.created) == [(b"4444", 4)]
    assert store.ledger_metadata(scene.created.id).custom_metadata == {"made": b"together"}
    # And the writers go on.
    assert [writer.append(b"x") for writer in (scene.first, scene.second, scene.created)] == [3, 2, 1]
    assert [writer.length for writer in (scene.first, scene.second, scene.created)] == [6, 5, 5]
    scene.created.close()
    assert contents(other.open_ledger(scene.created.id)) == [(b"4444", 4), (b"x", 5)]


def test_it_is_one_commit(scene: Scene) -> None:
    transaction = scene.store.transaction()
    with transaction:
        scene.fill(transaction)
        before = scene.store.storage.last_commit
    assert scene.store.storage.last_commit == before + 1


def test_it_outlives_the_store(scene: Scene, open_store: Callable[..., Any]) -> None:
    with scene.store.transaction() as transaction:
        scene.fill(transaction)
    scene.store.close()
    store = open_store(create=False)
    assert contents(store.open_ledger(scene.first.id)) == [(b"a", 1), (b"1", 2), (b"333", 5)]
    second = store.open_ledger(scene.second.id, password=b"secret")
    assert contents(second) == [(b"bb", 2), (b"22", 4)]
    assert contents(store.open_ledger(scene.created.id)) == [(b"4444", 4)]
    assert kit.code_of(lambda: store.open_ledger(scene.doomed.id)) == -25


def test_later_steps_see_earlier_ones(store: Any) -> None:
    with store.transaction() as transaction:
        created = transaction.create_ledger()
        transaction.append(created, b"short-lived")
        pendings = [transaction.put_node("/a", b"1", -1), transaction.put_node("/a", b"2", 0)]
        transaction.delete_node("/a", 1)
        pendings.append(transaction.put_node("/a", b"3", -1))
    assert [pending.result(kit.PATIENCE) for pending in pendings] == [0, 1, 0]
    assert node(store, "/a") == (b"3", 0)
    assert list(store.list_ledgers()) == [created.id]


def test_one_after_the_other(store: Any) -> None:
    first, second = store.create_ledger(), store.create_ledger()
    for turn in range(5):
        with store.transaction() as transaction:
            assert transaction.append(first, b"%d" % turn) == 2 * turn
            assert transaction.append(second, b"%d" % turn) == turn
            transaction.put_node("/turn", b"%d" % turn, turn - 1)
        assert first.append(b"between") == 2 * turn + 1
    assert [data for data, _ in contents(second)] == [b"0", b"1", b"2", b"3", b"4"]
    assert node(store, "/turn") == (b"4", 4)


def test_an_empty_transaction(store: Any) -> None:
    before = store.storage.last_commit
    with store.transaction():
        pass
    assert store.storage.last_commit == before


# -- or nothing ------------------------------------------------------------------------------------------------------


def refuse_put(scene: Scene, transaction: Any) -> None:
    transaction.put_node("/old", b"", 7)


def refuse_put_of_missing(scene: Scene, transaction: Any) -> None:
    transaction.put_node("/missing", b"", 0)


def refuse_delete_of_ledger(scene: Scene, transaction: Any) -> None:
    transaction.delete_ledger(1 << 40)


@pytest.mark.parametrize(
    ("refuse", "code"), [(refuse_put, -17), (refuse_put_of_missing, -17), (refuse_delete_of_ledger, -25)]
)
@pytest.mark.parametrize("early", [False, True])
def test_a_refused_step_leaves_nothing(
    scene: Scene, refuse: Callable[[Scene, Any], None], code: int, early: bool
) -> None:
    with kit.refused(code), scene.store.transaction() as transaction:
        if early:
            refuse(scene, transaction)
        pending = scene.fill(transaction)
        if not early:
            refuse(scene, transaction)
    assert kit.outcome(pending) == code
    scene.assert_nothing_happened()


def test_a_refused_delete_of_a_node_leaves_nothing(scene: Scene) -> None:
    with ended_by(errors.NoSuchNodeError), scene.store.transaction() as transaction:
        scene.fill(transaction)
        transaction.delete_node("/missing")
    scene.assert_nothing_happened()


def test_an_exception_in_the_block_leaves_nothing(scene: Scene) -> None:
    with ended_by(DroppedError), scene.store.transaction() as transaction:
        scene.fill(transaction)
        raise DroppedError
    scene.assert_nothing_happened()


def test_pending_of_a_dropped_transaction_ends(store: Any) -> None:
    with ended_by(DroppedError), store.transaction() as transaction:
        pending = transaction.put_node("/a", b"")
        raise DroppedError
    assert pending.done()
    assert pending.exception(0) is not None


def test_a_fenced_writer_refuses_all(scene: Scene) -> None:
    store = scene.store
    with kit.refused(-101), store.transaction() as transaction:
        pending = scene.fill(transaction)
        reader = store.open_ledger(scene.second.id, recovery=True, password=b"secret")
    assert kit.outcome(pending) == -101
    assert contents(reader) == [(b"bb", 2)]
    assert list(store.list_ledgers()) == scene.ledgers
    assert (node(store, "/old"), node(store, "/new")) == ((b"old", 0), None)
    assert (scene.first.append(b"goes on"), scene.first.length) == (1, 8)
    assert kit.code_of(lambda: scene.second.append(b"never")) == -101


def test_writer_closed_inside_the_block(scene: Scene) -> None:
    store = scene.store
    with kit.refused(-11), store.transaction() as transaction:
        pending = scene.fill(transaction)
        scene.second.close()
    assert list(store.list_ledgers()) == scene.ledgers
    assert (node(store, "/old"), node(store, "/new")) == ((b"old", 0), None)
    assert store.ledger_metadata(scene.second.id).last_entry_id == 0
    assert (scene.first.append(b"goes on"), scene.first.length) == (1, 8)
    assert pending.done()


def test_too_large_an_entry_may_be_caught_inside_the_block(open_store: Callable[..., Any]) -> None:
    store = open_store(max_entry_bytes=1000)
    writer, idle = store.create_ledger(), store.create_ledger()
    with store.transaction() as transaction:
        assert transaction.append(writer, b"one") == 0
        for target in (writer, idle):
            with pytest.raises(errors.EntryTooLargeError):
                transaction.append(target, b"x" * 1000)
        # What was refused at once takes no part.
        assert idle.append(b"free") == 0
        assert transaction.append(writer, b"two") == 1
    assert contents(writer) == [(b"one", 3), (b"two", 6)]
    assert contents(idle) == [(b"free", 4)]


def test_bad_arguments_may_be_caught_inside_the_block(scene: Scene) -> None:
    with scene.store.transaction() as transaction:
        bad: list[Callable[[], Any]] = [
            lambda: transaction.append(scene.first, None),
            lambda: transaction.append(scene.first, "text"),
            lambda: transaction.append(None, b"data"),
            lambda: transaction.append(scene.store.create_ledger_adv(), b"data"),
            lambda: transaction.append(scene.store.open_ledger(scene.first.id, recovery=False), b"data"),
            lambda: transaction.create_ledger(ensemble=0),
            lambda: transaction.create_ledger(digest="none"),
            lambda: transaction.delete_ledger(-1),
            lambda: transaction.delete_ledger(None),
            lambda: transaction.put_node("no/slash", b""),
            lambda: transaction.put_node("/a", "text"),
            lambda: transaction.put_node("/a", b"", -2),
            lambda: transaction.delete_node(""),
        ]
        for number, call in enumerate(bad):
            assert kit.code_of(call) is not None, number
        scene.fill(transaction)
    assert contents(scene.first) == [(b"a", 1), (b"1", 2), (b"333", 5)]
    assert node(scene.store, "/a") is None


# -- who takes part --------------------------------------------------------------------------------------------------


def test_a_writer_takes_no_other_appends_meanwhile(store: Any) -> None:
    writer, other = store.create_ledger(), store.create_ledger()
    with store.transaction() as transaction:
        assert transaction.append(writer, b"inside") == 0
        for call in (
            lambda: writer.append(b"no"),
            lambda: writer.append(bytearray(b"no")),
            lambda: writer.append_many([b"no", b"no"]),
            lambda: writer.append_async(b"no").result(kit.PATIENCE),
        ):
            assert kit.code_of(call) == -100
        # Others may.
        assert other.append(b"other") == 0
        assert transaction.append(writer, b"again") == 1
    assert writer.append(b"after") == 2
    assert contents(writer) == [(b"inside", 6), (b"again", 11), (b"after", 16)]


def test_created_writer_takes_no_other_appends_either(store: Any) -> None:
    with store.transaction() as transaction:
        writer = transaction.create_ledger()
        assert kit.code_of(lambda: writer.append(b"no")) == -100
        assert transaction.append(writer, b"inside") == 0
        assert kit.code_of(lambda: writer.append(b"no")) == -100
    assert writer.append(b"after") == 1
    assert contents(writer) == [(b"inside", 6), (b"after", 11)]


def test_a_writer_takes_part_in_one_transaction_at_a_time(store: Any) -> None:
    writer = store.create_ledger()
    with store.transaction() as transaction:
        transaction.append(writer, b"inside")
        with kit.refused(-100), store.transaction() as second:
            second.put_node("/second", b"")
            second.append(writer, b"no")
        # The second one's end has not let it go.
        assert kit.code_of(lambda: writer.append(b"no")) == -100
    assert node(store, "/second") is None
    with store.transaction() as transaction:
        assert transaction.append(writer, b"later") == 1
    assert contents(writer) == [(b"inside", 6), (b"later", 11)]


def test_appends_under_way_come_first(store: Any) -> None:
    writer = store.create_ledger()
    pendings = [writer.append_async(b"x") for _ in range(3)]
    with store.transaction() as transaction:
        assert transaction.append(writer, b"inside") == 3
    assert [pending.result(kit.PATIENCE) for pending in pendings] == [0, 1, 2]
    assert [data for data, _ in contents(writer)] == [b"x", b"x", b"x", b"inside"]


def test_a_closed_writer_takes_no_part(store: Any) -> None:
    writer = store.create_ledger()
    writer.close()
    with store.transaction() as transaction:
        assert kit.code_of(lambda: transaction.append(writer, b"no")) == -11
        transaction.put_node("/a", b"")
    assert node(store, "/a") == (b"", 0)


def test_a_writer_of_another_store_is_refused(store: Any, open_store: Callable[..., Any], tmp_path: Path) -> None:
    other_client, other_store = open_store(), open_store(path=tmp_path / "other")
    mine = store.create_ledger()
    for stranger in (other_client.create_ledger(), other_store.create_ledger()):
        with store.transaction() as transaction:
            transaction.append(mine, b"mine")
            assert kit.code_of(lambda stranger=stranger: transaction.append(stranger, b"no")) == -14
            assert stranger.append(b"free") == 0
    assert [data for data, _ in contents(mine)] == [b"mine", b"mine"]


def test_a_writer_with_deferred_sync(store: Any) -> None:
    writer = store.create_ledger(deferred_sync=True)
    assert writer.append(b"0") == 0
    with store.transaction() as transaction:
        assert transaction.append(writer, b"11") == 1
        assert kit.code_of(lambda: writer.append(b"no")) == -100
        transaction.put_node("/a", b"", -1)
    with kit.refused(-17), store.transaction() as transaction:
        assert transaction.append(writer, b"never") == 2
        transaction.put_node("/a", b"", -1)
    with ended_by(DroppedError), store.transaction() as transaction:
        assert transaction.append(writer, b"never") == 2
        raise DroppedError
    assert writer.append(b"222") == 2
    writer.force()
    assert writer.last_add_confirmed == 2
    assert contents(writer) == [(b"0", 1), (b"11", 3), (b"222", 6)]
    writer.close()
    assert contents(store.open_ledger(writer.id)) == [(b"0", 1), (b"11", 3), (b"222", 6)]


def test_threads_with_transactions_of_their_own(store: Any) -> None:
    store.nodes.put("/count", b"0")
    writers = [store.create_ledger() for _ in range(3)]

    def work(index: int) -> int:
        refusals = done = 0
        while done < 10:
            value, version = store.nodes.get("/count")
            try:
                with store.transaction() as transaction:
                    transaction.append(writers[index], value)
                    transaction.put_node("/count", b"%d" % (int(value) + 1), version)
                done += 1
            except errors.MetadataVersionError:
                refusals += 1
        return refusals

    kit.in_threads(3, work)
    assert node(store, "/count") == (b"30", 30)
    taken = [[int(data) for data, _ in contents(writer)] for writer in writers]
    assert all(len(numbers) == 10 and numbers == sorted(numbers) for numbers in taken)
    assert sorted(chain.from_iterable(taken)) == list(range(30))


# -- its end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [False, True])
def test_no_use_after_the_end(store: Any, dropped: bool) -> None:
    writer = store.create_ledger()
    transaction = store.transaction()
    try:
        with transaction:
            if dropped:
                raise DroppedError
    except DroppedError:
        pass
    for call in (
        lambda: transaction.append(writer, b"no"),
        lambda: transaction.create_ledger(),
        lambda: transaction.delete_ledger(writer.id),
        lambda: transaction.put_node("/a", b""),
        lambda: transaction.delete_node("/a"),
    ):
        assert kit.code_of(call) == -100
    with kit.refused(-100), transaction:
        pass
    assert list(store.list_ledgers()) == [writer.id]
    assert node(store, "/a") is None
    assert writer.append(b"free") == 0


def test_of_a_read_only_store(open_store: Callable[..., Any]) -> None:
    store = open_store()
    store.close()
    assert kit.code_of(open_store(read_only=True).transaction) == -104


def test_of_a_closed_store(scene: Scene, open_store: Callable[..., Any]) -> None:
    store = scene.store
    with kit.refused(-19), store.transaction() as transaction:
        scene.fill(transaction)
        store.close()
    assert kit.code_of(store.transaction) == -19
    again = open_store(create=False)
    assert list(again.list_ledgers()) == scene.ledgers
    assert (node(again, "/old"), node(again, "/new")) == ((b"old", 0), None)
    assert contents(again.open_ledger(scene.first.id)) == [(b"a", 1)]


# -- a process that is killed ----------------------------------------------------------------------------------------

_TURNS = """
import itertools, sys
import bookstand
store = bookstand.open(sys.argv[1])
run = sys.argv[2]
first, second = store.create_ledger(), store.create_ledger()
print(first.id, second.id, flush=True)
created = None
for turn in itertools.count():
    with store.transaction() as transaction:
        value = b"%d" % turn
        transaction.append(first, value)
        for _ in range(3):
            transaction.append(second, value * 200)
        if created is not None:
            transaction.delete_ledger(created.id)
        created = transaction.create_ledger(custom_metadata={"run": run.encode(), "turn": value})
        transaction.append(created, value)
        transaction.put_node("/" + run, value, turn - 1)
    print(turn, flush=True)
"""


@pytest.mark.slow
def test_a_kill_leaves_whole_transactions(store_path: Path) -> None:
    for run, lines in enumerate((2, 9, 23, 60)):
        with kit.Program(_TURNS, store_path, run) as program:
            program.wait_for_lines(lines)
            told = program.kill()
        first, second = map(int, told[0].split())
        confirmed = len(told) - 1
        assert told[1:] == [str(turn) for turn in range(confirmed)]
        with bookstand.open(store_path, create=False) as store:
            assert store.verify().ok
            found = [int(data) for data, _ in contents(store.open_ledger(first))]
            assert found == list(range(len(found)))
            # The one that was under way is there or not.
            assert len(found) in (confirmed, confirmed + 1)
            last = b"%d" % (len(found) - 1)
            thrice = [data for data, _ in contents(store.open_ledger(second))]
            assert thrice == [b"%d" % turn * 200 for turn in range(len(found)) for _ in range(3)]
            assert node(store, f"/{run}") == (last, len(found) - 1)
            metadata = [store.ledger_metadata(ledger_id) for ledger_id in store.list_ledgers()]
            created = [one for one in metadata if one.custom_metadata.get("run") == b"%d" % run]
            assert [one.custom_metadata["turn"] for one in created] == [last]
            assert contents(store.open_ledger(created[0].ledger_id)) == [(last, len(last))]


def test_a_transaction_of_a_suspended_coroutine_keeps_its_writers(store: Any) -> None:
    writer = store.create_ledger()

    async def take_part() -> None:
        with store.transaction() as transaction:
            transaction.append(writer, b"inside")
            await asyncio.sleep(0)

    async def both() -> None:
        task = asyncio.create_task(take_part())
        await asyncio.sleep(0)
        assert kit.code_of(lambda: writer.append(b"no")) == -100
        await task

    asyncio.run(both())
    assert contents(writer) == [(b"inside", 6)]


def test_a_transaction_that_an_exit_stack_ends_keeps_its_writers(store: Any) -> None:
    writer = store.create_ledger()
    with contextlib.ExitStack() as stack:
        transaction = stack.enter_context(store.transaction())
        entry_id = transaction.append(writer, b"inside")
        assert kit.code_of(lambda: writer.append(b"no")) == -100
    assert writer.read_unconfirmed(entry_id, entry_id)[0].data == b"inside"


def test_a_transaction_that_another_function_begins_keeps_its_writers(store: Any) -> None:
    writer = store.create_ledger()

    def begin() -> Any:
        return store.transaction().__enter__()

    transaction = begin()
    entry_id = transaction.append(writer, b"inside")
    assert kit.code_of(lambda: writer.append(b"no")) == -100
    transaction.__exit__(None, None, None)
    assert writer.read_unconfirmed(entry_id, entry_id)[0].data == b"inside"
