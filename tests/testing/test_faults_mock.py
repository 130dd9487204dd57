"""What Pulsar's mock of BookKeeper can do, done to a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bookstand import errors
from bookstand.testing.clock import VirtualClock
from bookstand.testing.faults.faults import Faults
from tests.kit import PATIENCE, code_of, corrupted, eventually, outcome, refused


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def faults(clock: VirtualClock) -> Iterator[Faults]:
    with Faults(seed=7, clock=clock) as given:
        yield given


@pytest.fixture
def store(faults: Faults, open_store: Callable[..., Any]) -> Any:
    return open_store(hooks=faults)


# The codes that Pulsar's own tests inject.
CODES = (-6, -3, -8, -7, -101, -1, -10, -17)


@pytest.mark.parametrize("code", CODES)
def test_fail_now(faults: Faults, store: Any, code: int) -> None:
    writer = store.create_ledger()
    faults.fail_now(code)
    with refused(code) as caught:
        writer.append(b"x")
    assert caught.type is errors.by_code(code)


def test_failures_are_of_one_operation_each(faults: Faults, store: Any) -> None:
    faults.fail_now(-6)
    faults.fail_now(-9, operation="create")
    faults.fail_now(-8, operation="create")
    assert [code_of(store.create_ledger) for _ in range(2)] == [-9, -8]
    writer = store.create_ledger()
    with refused(-6):
        writer.append(b"x")


def test_fail_after(faults: Faults, store: Any) -> None:
    faults.fail_after(2, -6)
    faults.add_entry_fail_after(4, -8, ledger=1)
    writer, other = store.create_ledger(), store.create_ledger()
    assert [code_of(lambda: writer.append(b"x")) for _ in range(4)] == [None, None, -6, -11]
    assert [code_of(lambda: other.append(b"x")) for _ in range(6)] == [None] * 4 + [-8, -11]


def test_delays_queue_up(faults: Faults, store: Any, clock: VirtualClock) -> None:
    writers = [store.create_ledger() for _ in range(4)]
    faults.set_default_add_delay(9)
    faults.add_delay(1)
    faults.add_delay(2)
    pending = [writer.append_async(b"x") for writer in writers]
    for seconds, done in ((1, 1), (1, 2), (6, 2), (1, 4)):
        clock.advance(seconds)
        for one in pending[:done]:
            one.result(PATIENCE)
        assert [one.done() for one in pending] == [True] * done + [False] * (4 - done)
    faults.set_default_add_delay(0)
    assert writers[0].append(b"y") == 1


def test_a_delayed_response(faults: Faults, store: Any, clock: VirtualClock) -> None:
    writer = store.create_ledger()
    faults.response_delay(3)
    pending = writer.append_async(b"x")
    eventually(lambda: code_of(lambda: writer.read_unconfirmed(0, 0)) is None)
    assert clock.wait_until_waiting()
    assert not pending.done()
    clock.advance(3)
    assert pending.result(PATIENCE) == 0


def test_default_read_delay(faults: Faults, open_store: Callable[..., Any]) -> None:
    clock = VirtualClock(auto=True)
    slow = Faults(clock=clock)
    store = open_store(hooks=slow)
    writer = store.create_ledger()
    writer.append_many([b"x"] * 5)
    slow.set_default_read_delay(0.001)
    writer.read(0, 4)
    assert clock.now() == 5
    slow.set_default_read_delay(0)
    writer.read(0, 4)
    assert clock.now() == 5
    slow.check()


def test_promise_after(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    promise = faults.promise_after(1)
    broken = faults.promise_after(0, operation="nodes.put")
    pending = [writer.append_async(b"x") for _ in range(3)]
    assert pending[0].result(PATIENCE) == 0
    assert promise.reached()
    assert not pending[1].done()
    promise.release()
    assert [outcome(one) for one in pending] == [("ok", 0), ("ok", 1), ("ok", 2)]
    broken.release(errors.MetadataServiceError())
    with refused(-9):
        store.nodes.put("/a", b"")


def test_an_empty_ledger(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    writer.append_many([b"x"] * 3)
    writer.close()
    faults.return_empty_ledger_after(1)
    assert store.open_ledger(writer.id).last_add_confirmed == 2
    empty = store.open_ledger(writer.id)
    assert (empty.last_add_confirmed, empty.last_add_pushed, empty.length) == (-1, -1, 0)
    assert empty.read_last_confirmed() == -1
    assert list(empty) == []
    with refused(-13):
        empty.read_last_entry()
    with refused(-1):
        empty.read(0, 0)
    assert len(list(store.open_ledger(writer.id))) == 3


def test_a_ledger_that_is_not_closed_may_seem_empty(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    writer.append_many([b"x"] * 3)
    faults.return_empty_ledger_after(0, ledger=writer.id)
    empty = store.open_ledger(writer.id, recovery=False)
    writer.append(b"y")
    assert (empty.last_add_confirmed, empty.is_closed()) == (-1, True)


def test_reads_are_intercepted(faults: Faults, store: Any) -> None:
    writer = store.create_ledger()
    writer.append_many([b"a", b"b", b"c"])
    seen: list[tuple[int, int]] = []

    def intercept(ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        seen.append((ledger_id, entry_id))
        if entry_id == 1:
            return None
        if entry_id == 2:
            return corrupted(ledger_id, entry_id, stored)
        return stored

    faults.intercept_reads(intercept)
    assert writer.read(0, 0)[0].data == b"a"
    with refused(-13):
        writer.read(1, 1)
    with refused(-5):
        writer.read(2, 2)
    faults.intercept_reads(None)
    assert [entry.data for entry in writer] == [b"a", b"b", b"c"]
    assert seen == [(writer.id, number) for number in range(3)]
