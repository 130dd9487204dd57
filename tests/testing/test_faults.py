"""What each kind of rule does to a store, to its callers and to what lies on the disk."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import errors
from bookstand.testing.clock import VirtualClock
from bookstand.testing.faults.faults import Faults, SimulatedCrash, UnfiredFaultsError
from tests.kit import PATIENCE, code_of, eventually, in_threads, outcome, refused


@pytest.fixture
def faults() -> Iterator[Faults]:
    """Every rule of a test has to have happened at its end, unless the test says otherwise."""
    with Faults(seed=7) as given:
        yield given


@pytest.fixture
def store(faults: Faults, open_store: Callable[..., Any]) -> Any:
    return open_store(hooks=faults)


@pytest.fixture
def other(store: Any, open_store: Callable[..., Any]) -> Any:
    return open_store()


# -- failing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["append", "append_async", "append_many"])
def test_an_append_that_fails_closes_the_ledger_before_it(faults: Faults, store: Any, other: Any, how: str) -> None:
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    rule = faults.fail("append", -12, ledger=writer.id, entry=2)
    assert writer.append(b"b") == 1
    with refused(-12) as caught:
        if how == "append":
            writer.append(b"c")
        elif how == "append_async":
            writer.append_async(b"c").result(PATIENCE)
        else:
            writer.append_many([b"c", b"d"])
    assert str(rule) in str(caught.value)
    assert writer.is_closed()
    assert (writer.last_add_confirmed, writer.length) == (1, 2)
    with refused(-11):
        writer.append(b"e")
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", 1, 2)
    assert faults.log[0][1:4] == ("append", writer.id, 2)


def test_a_failure_takes_all_with_it_that_is_under_way(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    stall = faults.stall("append", entry=0, after=True)
    faults.fail("append", -6, entry=2)
    pending = [writer.append_async(b"%d" % number) for number in range(3)]
    assert [outcome(one) for one in pending] == [-6] * 3
    assert stall.reached()
    assert writer.is_closed()
    stall.release()


def test_failing_a_write_of_chosen_ids(faults: Faults, store: Any) -> None:
    writer = store.create_ledger_adv()
    faults.fail("append", -6, entry=5)
    assert writer.write(0, b"a") == 0
    with refused(-6):
        writer.write(5, b"b")
    assert writer.is_closed()


def test_an_append_that_fails_after_storing_is_behind_the_end(faults: Faults, store: Any, other: Any) -> None:
    writer = store.create_ledger()
    writer.append(b"a")
    faults.fail("append", -23, after=True)
    with refused(-23):
        writer.append(b"b")
    reader = other.open_ledger(writer.id)
    assert reader.last_add_confirmed == 0
    assert reader.read_unconfirmed(0, 1)[1].data == b"b"


def test_a_lost_acknowledgment(faults: Faults, store: Any, other: Any) -> None:
    writer = store.create_ledger()
    faults.lose_ack(nth=2)
    assert writer.append(b"a") == 0
    with pytest.raises(errors.OutcomeUnknownError):
        writer.append(b"b")
    assert [entry.data for entry in other.open_ledger(writer.id).read_unconfirmed(0, 1)] == [b"a", b"b"]


def test_a_failure_while_nobody_waits_shows_in_await(faults: Faults, store: Any) -> None:
    faults.fail("append", -8, nth=3)
    writer = store.create_ledger()

    async def main() -> list[Any]:
        pending = [writer.append_async(b"x") for _ in range(3)]
        return await asyncio.gather(*(_awaited(one) for one in pending), return_exceptions=True)

    answers = asyncio.run(main())
    assert getattr(answers[2], "code", None) == -8
    assert all(answer in (0, 1) or answer.code == -8 for answer in answers[:2])


async def _awaited(pending: Any) -> Any:
    return await pending


_LEDGER = {
    "create": lambda store, writer: store.create_ledger(),
    "open": lambda store, writer: store.open_ledger(writer.id, recovery=False),
    "recover": lambda store, writer: store.open_ledger(writer.id),
    "force": lambda store, writer: writer.force(),
    "close": lambda store, writer: writer.close(),
    "delete": lambda store, writer: store.delete_ledger(writer.id),
    "metadata": lambda store, writer: store.write_ledger_metadata(store.ledger_metadata(writer.id)),
    "nodes.put": lambda store, writer: store.nodes.put("/a", b""),
    "nodes.delete": lambda store, writer: store.nodes.delete("/b"),
    "commit": lambda store, writer: store.nodes.put("/a", b""),
    "read": lambda store, writer: writer.read(0, 0),
    "read_lac": lambda store, writer: writer.read_last_confirmed(),
}


@pytest.mark.parametrize("operation", _LEDGER)
def test_failing_before_and_trying_again(faults: Faults, store: Any, operation: str) -> None:
    writer = store.create_ledger()
    writer.append(b"a")
    store.nodes.put("/b", b"")
    ledgers = list(store.list_ledgers())
    faults.fail(operation, -9)
    with refused(-9):
        _LEDGER[operation](store, writer)
    assert list(store.list_ledgers()) == ledgers
    assert code_of(lambda: store.nodes.get("/b")) is None
    assert not writer.is_closed()
    _LEDGER[operation](store, writer)


@pytest.mark.parametrize("operation", [name for name in _LEDGER if not name.startswith("read")])
def test_failing_after(faults: Faults, store: Any, other: Any, operation: str) -> None:
    """It has happened, and its caller is told that it failed."""
    writer = store.create_ledger()
    writer.append(b"a")
    store.nodes.put("/b", b"")
    faults.fail(operation, -9, after=True)
    with refused(-9):
        _LEDGER[operation](store, writer)
    happened = {
        "create": lambda: list(other.list_ledgers()) == [writer.id, writer.id + 1],
        "open": lambda: True,
        "recover": lambda: other.is_closed(writer.id),
        "force": lambda: True,
        "close": lambda: other.is_closed(writer.id),
        "delete": lambda: list(other.list_ledgers()) == [],
        "metadata": lambda: other.ledger_metadata(writer.id).version == 1,
        "nodes.put": lambda: other.nodes.get("/a")[1] == 0,
        "nodes.delete": lambda: other.nodes.children("/") == [],
        "commit": lambda: other.nodes.get("/a")[1] == 0,
    }
    assert happened[operation]()
    if operation == "close":
        writer.close()


def test_a_fence_that_fails(faults: Faults, store: Any, other: Any) -> None:
    writer = store.create_ledger()
    writer.append(b"a")
    faults.fail("fence", -8)
    with refused(-10):
        other.open_ledger(writer.id)
    assert writer.append(b"b") == 1
    faults.fail("fence", -8, after=True)
    with refused(-10):
        other.open_ledger(writer.id)
    with refused(-101):
        writer.append(b"c")


def test_an_error_that_a_test_brings_itself(faults: Faults, store: Any) -> None:
    mine = errors.StoreAccessError("mine")
    faults.fail("nodes.put", error=mine, path="/a")
    store.nodes.put("/b", b"")
    with pytest.raises(errors.StoreAccessError) as caught:
        store.nodes.put("/a", b"")
    assert caught.value is mine


# -- which ones --------------------------------------------------------------------------------------------------------


def test_nth_and_times(faults: Faults, store: Any) -> None:
    rule = faults.fail("nodes.put", nth=3, times=2)
    codes = [code_of(lambda: store.nodes.put("/a", b"")) for _ in range(6)]
    assert codes == [None, None, -6, -6, None, None]
    assert (rule.seen, rule.fired) == (6, 2)
    faults.fail("nodes.put", -9, times=None)
    assert {code_of(lambda: store.nodes.put("/a", b"")) for _ in range(9)} == {-9}


def test_rules_of_one_kind_queue_up(faults: Faults, store: Any) -> None:
    faults.fail("nodes.put", -100, times=None)
    faults.fail("nodes.put", -9)
    faults.fail("nodes.put", -8)
    assert [code_of(lambda: store.nodes.put("/a", b"")) for _ in range(3)] == [-9, -8, -100]


def test_only_what_a_rule_names(faults: Faults, store: Any) -> None:
    one, two = store.create_ledger(), store.create_ledger()
    faults.fail("append", ledger=two.id, entry=1)
    faults.fail("close", -9, ledger=one.id)
    assert [one.append(b"x") for _ in range(3)] == [0, 1, 2]
    assert two.append(b"x") == 0
    with refused(-6):
        two.append(b"x")
    with refused(-9):
        one.close()
    one.close()


def hits_of(path: Path, seed: int, threads: int) -> list[tuple[int | None, int | None]]:
    with Faults(seed=seed) as faults, bookstand.open(path, hooks=faults, durability="none") as store:
        writers = [store.create_ledger() for _ in range(4)]
        faults.fail("read", -8, probability=0.3, times=None)
        for writer in writers:
            writer.append_many([b"x"] * 25)

        def read(index: int) -> None:
            for writer in writers[index::threads]:
                for entry in range(25):
                    code_of(lambda writer=writer, entry=entry: writer.read(entry, entry))

        in_threads(threads, read)
        return sorted((fired.ledger, fired.entry) for fired in faults.log)


def test_chance_depends_on_the_seed_and_not_on_threads(tmp_path: Path) -> None:
    first = hits_of(tmp_path / "a", 1, 1)
    assert 10 < len(first) < 60
    assert hits_of(tmp_path / "b", 1, 4) == first
    assert hits_of(tmp_path / "c", 2, 1) != first


def test_appends_of_a_transaction_are_part_of_a_commit(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    unfired = faults.fail("append", times=None)
    with store.transaction() as transaction:
        transaction.append(writer, b"a")
        transaction.append(writer, b"b")
    assert writer.last_add_confirmed == 1
    faults.remove(unfired)
    faults.fail("commit", -9)
    with refused(-9), store.transaction() as transaction:
        transaction.append(writer, b"c")
    assert writer.append(b"c") == 2


# -- delays ------------------------------------------------------------------------------------------------------------


def test_a_delay_by_a_virtual_clock(open_store: Callable[..., Any]) -> None:
    clock = VirtualClock(now=1000)
    with Faults(clock=clock) as faults:
        store = open_store(hooks=faults, clock=clock)
        slow, quick = store.create_ledger(), store.create_ledger()
        faults.delay("append", 5, ledger=slow.id)
        pending = slow.append_async(b"a")
        assert quick.append(b"b") == 0
        clock.advance(4.9)
        assert not pending.done()
        clock.advance(0.1)
        assert pending.result(PATIENCE) == 0
        assert clock.now() == 6000
        assert store.ledger_metadata(slow.id).ctime == 1000


def test_a_delayed_acknowledgment_is_stored_before(open_store: Callable[..., Any]) -> None:
    clock = VirtualClock()
    with Faults(clock=clock) as faults:
        store = open_store(hooks=faults)
        writer = store.create_ledger()
        faults.delay("append", 5, after=True, times=1)
        pending = [writer.append_async(b"a"), writer.append_async(b"b")]
        eventually(lambda: code_of(lambda: writer.read_unconfirmed(0, 1)) is None)
        assert not pending[0].done()
        assert not pending[1].done()
        clock.advance(5)
        assert [one.result(PATIENCE) for one in pending] == [0, 1]


def test_a_clock_that_moves_itself(open_store: Callable[..., Any]) -> None:
    clock = VirtualClock(auto=True)
    with Faults(seed=1, clock=clock) as faults:
        store = open_store(hooks=faults, clock=clock)
        faults.delay("append", (1, 3))
        faults.delay("nodes.put", 10)
        writer = store.create_ledger()
        assert [writer.append(b"x") for _ in range(10)] == list(range(10))
        assert 10_000 < clock.now() < 30_000
        before = clock.now()
        store.nodes.put("/a", b"")
        assert clock.now() == before + 10_000
        assert clock.waiting == 0


def test_delays_of_operations_that_wait_in_their_thread(open_store: Callable[..., Any]) -> None:
    clock = VirtualClock()
    with Faults(clock=clock) as faults:
        store = open_store(hooks=faults)
        faults.delay("nodes.put", 60)
        thread = threading.Thread(target=store.nodes.put, args=("/a", b""))
        thread.start()
        assert clock.wait_until_waiting()
        assert code_of(lambda: store.create_ledger()) is None
        assert store.nodes.children("/") == []
        clock.advance(60)
        thread.join(PATIENCE)
        assert store.nodes.children("/") == ["a"]


def test_delays_that_really_last(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    faults.delay("append", (0.01, 0.02))
    faults.delay("append", 0.01, after=True)
    faults.delay("read", 0.01, times=2)
    assert writer.append_many([b"x"] * 20) == range(20)
    assert len(writer.read(0, 19)) == 20


# -- stalls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_a_stalled_append_holds_up_nobody_else(faults: Faults, store: Any, other: Any, after: bool) -> None:
    stalled, free = store.create_ledger(), store.create_ledger()
    stall = faults.stall("append", ledger=stalled.id, after=after)
    pending = [stalled.append_async(b"a"), stalled.append_async(b"b")]
    assert [free.append(b"x") for _ in range(20)] == list(range(20))
    assert free.append_async(b"y").result(PATIENCE) == 20
    assert stall.reached()
    assert stall.held == 1
    assert not pending[0].done()
    eventually(lambda: code_of(lambda: stalled.read_unconfirmed(1, 1)) is None)
    assert not pending[1].done(), "answers come in order"
    assert code_of(lambda: stalled.read_unconfirmed(0, 0)) == (None if after else -13)
    stall.release()
    assert [one.result(PATIENCE) for one in pending] == [0, 1]
    assert stalled.append(b"c") == 2


def test_a_stall_that_ends_in_an_error(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    stall = faults.stall("append", times=None)
    pending = [writer.append_async(b"x") for _ in range(3)]
    assert stall.reached_by(3)
    stall.release(errors.BookieHandleNotAvailableError())
    assert [outcome(one) for one in pending] == [-8] * 3
    assert writer.is_closed()


def test_appends_in_threads_wait_in_a_stall(faults: Faults, store: Any) -> None:
    writers = [store.create_ledger() for _ in range(8)]
    stall = faults.stall("append", times=None)

    def append(index: int) -> Any:
        if index == 8:
            assert stall.reached_by(8, PATIENCE)
            stall.release()
            return None
        return writers[index].append(b"x")

    assert in_threads(9, append) == [0] * 8 + [None]


@pytest.mark.parametrize("operation", ["read", "recover", "close", "delete", "nodes.put", "commit"])
def test_other_operations_wait_in_their_thread(faults: Faults, store: Any, operation: str) -> None:
    writer = store.create_ledger()
    writer.append(b"a")
    stall = faults.stall(operation)
    thread = threading.Thread(target=_LEDGER[operation], args=(store, writer))
    thread.start()
    assert stall.reached(PATIENCE)
    assert thread.is_alive()
    stall.release()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_handle_and_a_store_can_be_closed_while_an_append_is_stalled(
    faults: Faults, open_store: Callable[..., Any]
) -> None:
    store = open_store(hooks=faults)
    one, two = store.create_ledger(), store.create_ledger()
    stall = faults.stall("append", times=None, after=True)
    first, second = one.append_async(b"x"), two.append_async(b"x")
    assert stall.reached_by(2)
    one.close()
    assert outcome(first) == -11
    store.close()
    assert outcome(second) == -19
    stall.release()


def test_a_stall_released_beforehand_stops_nothing(faults: Faults, store: Any) -> None:
    stall = faults.stall("append")
    assert not stall.reached(0)
    stall.release()
    assert store.create_ledger().append(b"x") == 0


# -- conflicts ---------------------------------------------------------------------------------------------------------


def test_a_close_meets_a_conflict_and_goes_on(faults: Faults, store: Any, other: Any) -> None:
    writer = store.create_ledger()
    writer.append(b"a")
    faults.conflict("close", times=3)
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.version) == ("CLOSED", 0, 4)


def test_a_recovery_meets_a_conflict_and_goes_on(faults: Faults, store: Any, other: Any) -> None:
    writer = store.create_ledger()
    writer.append(b"a")
    faults.conflict("recover")
    assert other.open_ledger(writer.id).last_add_confirmed == 0
    assert other.ledger_metadata(writer.id).version == 3


def test_writes_with_a_version_meet_a_conflict(faults: Faults, store: Any) -> None:
    ledger_id = store.create_ledger().id
    faults.conflict("metadata")
    with refused(-17):
        store.write_ledger_metadata(store.ledger_metadata(ledger_id), 0)
    faults.conflict("nodes.put", path="/a", times=2)
    assert store.nodes.put("/b", b"", -1) == 0
    with refused(-17):
        store.nodes.put("/a", b"mine", -1)
    assert store.nodes.get("/a") == (b"", 0)
    with refused(-17):
        store.nodes.put("/a", b"mine", 0)
    assert store.nodes.put("/a", b"mine", 1) == 2
    faults.conflict("nodes.delete")
    with refused(-17):
        store.nodes.delete("/a", 2)
    store.nodes.delete("/a", 3)


# -- a full disk -------------------------------------------------------------------------------------------------------


def test_a_full_disk(faults: Faults, store: Any) -> None:
    writer, doomed = store.create_ledger(), store.create_ledger()
    doomed.append(b"x")
    faults.disk_full(after=2)
    assert [writer.append(b"x") for _ in range(2)] == [0, 1]
    with refused(-6) as caught:
        writer.append(b"x")
    assert isinstance(caught.value.__cause__, errors.DiskFullError)
    assert writer.is_closed(), "closing takes no space"
    for _ in range(3):
        for call in (store.create_ledger, lambda: store.nodes.put("/a", b"")):
            with refused(-6) as caught:
                call()
            assert isinstance(caught.value.__cause__, errors.DiskFullError)
    assert [entry.data for entry in writer.read(0, 1)] == [b"x"] * 2
    assert store.open_ledger(doomed.id).last_add_confirmed == 0
    store.delete_ledger(doomed.id)
    faults.free_space()
    assert store.create_ledger().append(b"x") == 0
    faults.disk_full()
    with refused(-6):
        store.create_ledger()
    faults.free_space()


def test_a_disk_that_is_full_until(faults: Faults, store: Any) -> None:
    space = threading.Event()
    faults.disk_full_until(space.is_set)
    for _ in range(3):
        with refused(-6):
            store.nodes.put("/a", b"")
    space.set()
    assert store.nodes.put("/a", b"") == 0


# -- flipped bits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bit", ["random", 0, 100, 300])
def test_a_flipped_bit_is_noticed(faults: Faults, store: Any, other: Any, bit: Any) -> None:
    writer = store.create_ledger()
    writer.append_many([b"payload"] * 5)
    faults.flip(writer.id, 2, bit)
    for handle in (writer, other.open_ledger(writer.id, recovery=False)):
        for _ in range(2):
            with refused(-5):
                handle.read_unconfirmed(2, 2)
    assert writer.read(3, 4)[0].data == b"payload"
    with refused(-10):
        other.open_ledger(writer.id)
    assert store.verify().ok


def test_a_bit_flipped_once(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    writer.append(b"x")
    faults.flip(writer.id, 0, times=1)
    with refused(-5):
        writer.read(0, 0)
    assert writer.read(0, 0)[0].data == b"x"


# -- crashes -----------------------------------------------------------------------------------------------------------


def test_a_crash_poisons_every_handle_and_the_path_opens_again(
    faults: Faults, open_store: Callable[..., Any], store_path: Path
) -> None:
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    reader = other.open_ledger(writer.id, recovery=False)
    markers = set(store_path.glob("open-*"))
    faults.crash("commit.before_sync")
    with pytest.raises(SimulatedCrash, match=r"commit\.before_sync"):
        writer.append(b"b")
    for call in (
        lambda: writer.append(b"c"),
        lambda: writer.append_async(b"c").result(PATIENCE),
        lambda: writer.append_many([b"c"]),
        lambda: writer.read(0, 0),
        lambda: reader.read_unconfirmed(0, 0),
        lambda: reader.read_last_confirmed(),
        lambda: store.create_ledger(),
        lambda: other.open_ledger(writer.id),
        lambda: other.list_ledgers(),
        lambda: other.nodes,
        lambda: store.transaction(),
        lambda: other.verify(),
        lambda: store.compact(),
    ):
        with pytest.raises(errors.StoreCrashedError):
            call()
    assert set(store_path.glob("open-*")) == markers, "a dead process leaves its marker"
    with bookstand.open(store_path) as again:
        assert not markers & set(store_path.glob("open-*")), "and the next one removes it"
        assert [entry.data for entry in again.open_ledger(writer.id)] == [b"a"]
    store.close()
    other.close()


def test_blocks_let_a_crash_pass(faults: Faults, store_path: Path) -> None:
    faults.crash("append.stored")
    with pytest.raises(SimulatedCrash), bookstand.open(store_path, hooks=faults) as store:  # noqa: SIM117
        with store.create_ledger() as writer:
            writer.append(b"x")
    with bookstand.open(store_path) as store:
        assert [entry.data for entry in store.open_ledger(writer.id)] == [b"x"]


@pytest.mark.parametrize("point", ["commit.before_write", "commit.after_sync", "append.stored", "append.before_store"])
def test_a_crash_reaches_everybody_who_waits(faults: Faults, store_path: Path, point: str) -> None:
    store = bookstand.open(store_path, hooks=faults)
    writers = [store.create_ledger() for _ in range(8)]
    confirmed: list[tuple[int, int]] = []
    faults.crash(point, nth=40)

    def append(index: int) -> str:
        for number in range(1000):
            try:
                writers[index].append(b"%d" % number)
            except SimulatedCrash:
                return "crash"
            except errors.StoreCrashedError:
                return "told"
            confirmed.append((writers[index].id, number))
        return "never"

    answers = in_threads(8, append)
    assert answers.count("crash") == 1
    assert answers.count("told") == 7
    store.close()
    with bookstand.open(store_path) as again:
        for ledger_id, number in confirmed:
            assert again.open_ledger(ledger_id).read(number, number)[0].data == b"%d" % number
        assert again.verify().ok


def test_a_crash_in_the_background(faults: Faults, store_path: Path) -> None:
    """Nobody waits in a thread: the store's own one commits, and those who await are told."""
    store = bookstand.open(store_path, hooks=faults)
    writer = store.create_ledger()
    faults.crash("commit.before_sync")

    async def main() -> list[Any]:
        pending = [writer.append_async(b"x") for _ in range(50)]
        return await asyncio.gather(*map(_awaited, pending), return_exceptions=True)

    assert {type(answer) for answer in asyncio.run(main())} == {errors.StoreCrashedError}
    store.close()
    with bookstand.open(store_path) as again:
        assert again.open_ledger(writer.id).last_add_confirmed == -1


def test_a_crash_lets_go_of_what_is_held(store_path: Path) -> None:
    clock = VirtualClock()
    faults = Faults(clock=clock)
    store = bookstand.open(store_path, hooks=faults)
    one, two, three = (store.create_ledger() for _ in range(3))
    stall = faults.stall("append", ledger=one.id)
    faults.delay("append", 5, ledger=two.id, after=True)
    faults.stall("nodes.put")
    pending = [one.append_async(b"x"), two.append_async(b"x")]
    codes: list[Any] = []

    def put() -> None:
        try:
            store.nodes.put("/a", b"")
        except errors.StoreCrashedError as error:
            codes.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    assert stall.reached()
    assert faults.stalls[1].reached()
    assert clock.wait_until_waiting()
    faults.crash("append.before_store")
    with pytest.raises(SimulatedCrash):
        three.append(b"x")
    for one_pending in pending:
        with pytest.raises(errors.StoreCrashedError):
            one_pending.result(PATIENCE)
    thread.join(PATIENCE)
    assert len(codes) == 1
    clock.advance(10)
    faults.release()
    store.close()
    faults.check()
    with bookstand.open(store_path) as again:
        assert again.open_ledger(one.id).last_add_confirmed == -1
        assert again.nodes.children("/") == []
        assert again.verify().ok


def test_a_crash_reaches_who_waits_for_what_comes_before(store_path: Path) -> None:
    """An entry that is stored and not in turn is answered by the crash, not by the client's end."""
    store = bookstand.open(store_path, hooks=Faults())
    writer = store.create_ledger_adv()
    waiting = writer.write_async(3, b"after a gap")
    store.storage.flush()
    answers: list[BaseException | None] = []
    waiter = threading.Thread(target=lambda: answers.append(waiting.exception()))
    waiter.start()
    store.storage.crash()
    waiter.join(60)
    assert [type(answer) for answer in answers] == [errors.StoreCrashedError]
    store.close()


def test_a_crash_while_closing(faults: Faults, store_path: Path) -> None:
    store = bookstand.open(store_path, hooks=faults)
    writer = store.create_ledger()
    stall = faults.stall("commit")
    pending = writer.append_async(b"x")
    assert stall.reached()
    late = writer.append_async(b"y")
    faults.crash("commit.before_sync")
    threading.Timer(0.05, stall.release).start()
    try:
        store.close()
    except SimulatedCrash:
        pass
    for one in (pending, late):
        assert isinstance(one.exception(PATIENCE), errors.StoreCrashedError)
    store.close()
    with bookstand.open(store_path) as again:
        assert again.open_ledger(writer.id).last_add_confirmed == -1


def test_a_storage_can_be_crashed_at_any_moment(open_store: Callable[..., Any], store_path: Path) -> None:
    store = bookstand.open(store_path)
    writer = store.create_ledger()
    assert writer.append(b"x") == 0
    pending = [writer.append_async(b"y") for _ in range(100)]
    store.storage.crash()
    store.storage.crash()
    for one in pending:
        assert isinstance(one.exception(PATIENCE), errors.StoreCrashedError | None)
    with pytest.raises(errors.StoreCrashedError):
        writer.append(b"z")
    again = open_store()
    assert again.open_ledger(writer.id).read(0, 0)[0].data == b"x"
    store.close()
    assert again.create_ledger().append(b"x") == 0


def test_crashes_while_threads_use_the_store(tmp_path: Path) -> None:
    """Wherever the others are: everybody comes back, and what was confirmed is there."""
    for turn in range(12):
        path = tmp_path / str(turn)
        store = bookstand.open(path, durability="none" if turn % 2 else "commit")
        writers = [store.create_ledger(deferred_sync=number == 2) for number in range(3)]
        confirmed: list[int] = []

        def work(
            index: int, store: Any = store, writers: Any = writers, confirmed: list[int] = confirmed, turn: int = turn
        ) -> None:
            try:
                for number in itertools.count():
                    if index == 3:
                        for _ in range(turn * 3):
                            store.nodes.put("/a", b"%d" % number)
                        store.storage.crash()
                        return
                    if index == 1:
                        writers[1].append_many([b"x"] * 10)
                        list(writers[0])
                    else:
                        writers[index].append(b"%d" % number)
                        if index == 0:
                            confirmed.append(number)
            except errors.StoreCrashedError:
                return

        in_threads(4, work)
        store.close()
        with bookstand.open(path, durability="none") as again:
            last = again.open_ledger(writers[0].id).last_add_confirmed
            assert last >= len(confirmed) - 1
            assert again.verify().ok


# -- what is told ------------------------------------------------------------------------------------------------------


def test_a_rule_that_never_happened_fails_the_test(open_store: Callable[..., Any]) -> None:
    faults = Faults(seed=5)
    store = open_store(hooks=faults)
    faults.fail("append", nth=3)
    faults.crash("compact.before")
    faults.fail("create")
    store.nodes.put("/a", b"")
    with refused(-6):
        store.create_ledger()
    assert [str(rule) for rule in faults.unfired()] == ["fail@append#3=-6", "crash@compact.before"]
    with pytest.raises(UnfiredFaultsError) as caught:
        faults.check()
    assert faults.replay_line in str(caught.value)
    assert "fail@append#3=-6 (met 0 operations)" in str(caught.value)
    with pytest.raises(AssertionError), faults:
        pass


def test_what_fails_in_a_block_is_told_how_to_replay(tmp_path: Path) -> None:
    faults = Faults(seed=5)
    faults.fail("append")
    with pytest.raises(ZeroDivisionError) as caught, faults:
        raise ZeroDivisionError
    assert caught.value.__notes__ == ['to replay the faults: BOOKSTAND_FAULTS="v1:seed=5;fail@append=-6"']


def test_several_stores_and_the_same_faults(tmp_path: Path) -> None:
    with Faults() as faults:
        stores = [bookstand.open(tmp_path / name, hooks=faults) for name in "ab"]
        writers = [store.create_ledger() for store in stores]
        faults.fail("append", -9, nth=2)
        assert writers[0].append(b"x") == 0
        with refused(-9):
            writers[1].append(b"x")
        faults.crash("commit.after_sync")
        with pytest.raises(SimulatedCrash):
            writers[0].append(b"x")
        assert stores[1].nodes.put("/a", b"") == 0, "only the store that passed the point has crashed"
        for store in stores:
            store.close()
