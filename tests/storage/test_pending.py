"""What a submit returns: results, time-outs, callbacks, and ``await``."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from bookstand import errors
from bookstand.storage.commit.futures import Completion, Pending, completed, pending_for
from tests.kit import PATIENCE, Faults, eventually, in_threads, refused

# -- on their own ----------------------------------------------------------------------------------------------------


def test_a_value_known_beforehand_or_brought():
    completion = Completion()
    known, brought = pending_for(completion, 7), pending_for(completion)
    assert not known.done()
    assert repr(known) == "<Pending pending>"
    completion.complete("brought")
    assert known.done()
    assert (known.result(), brought.result()) == (7, "brought")
    assert known.exception() is None
    assert repr(known) == "<Pending done>"


def test_zero_is_a_value():
    assert pending_for(_done(), 0).result() == 0


def _done(value=None, error=None):
    completion = Completion()
    completion.complete(value, error)
    return completion


def test_an_error():
    error = errors.ReadError("no")
    pending = completed(error=error)
    assert pending.exception() is error
    assert repr(pending) == "<Pending failed>"
    for _ in range(3):
        with pytest.raises(errors.ReadError, match="no"):
            pending.result()


def test_the_first_outcome_stands():
    completion = Completion()
    calls = []
    completion.when_done(lambda: calls.append(1))
    completion.complete("first")
    completion.complete("second")
    completion.complete(error=errors.ReadError())
    assert pending_for(completion).result() == "first"
    assert calls == [1]


def test_timeouts():
    completion = Completion()
    pending = pending_for(completion)
    for wait in (pending.result, pending.exception):
        with pytest.raises(errors.OperationTimeoutError):
            wait(0)
        with pytest.raises(TimeoutError):
            wait(0.01)
    assert not pending.done()
    completion.complete(5)
    assert pending.result(0) == 5


def test_many_threads_wait_for_one():
    completion = Completion()
    pending = pending_for(completion)
    waiting = threading.Barrier(9)

    def work(index):
        waiting.wait(PATIENCE)
        if index == 8:
            completion.complete("done")
        return pending.result(PATIENCE)

    assert in_threads(9, work) == ["done"] * 9


def test_callbacks_come_in_the_order_of_their_registration_and_once():
    completion = Completion()
    pending = pending_for(completion, 3)
    calls = []
    for number in range(20):
        pending.add_done_callback(lambda done, number=number: calls.append((number, done.result())))
    assert calls == []
    completion.complete()
    assert calls == [(number, 3) for number in range(20)]
    pending.add_done_callback(lambda done: calls.append("late"))
    assert calls[-1] == "late"
    completion.complete()
    assert len(calls) == 21


def test_a_callback_that_raises_is_logged_and_stops_nobody(caplog):
    completion = Completion()
    pending = pending_for(completion)
    calls = []

    def fail(done):
        raise ZeroDivisionError("from a callback")

    pending.add_done_callback(fail)
    pending.add_done_callback(lambda done: calls.append(done.result()))
    with caplog.at_level(logging.ERROR, "bookstand"):
        completion.complete("value")
        pending.add_done_callback(fail)
    assert calls == ["value"]
    assert [str(record.exc_info[1]) for record in caplog.records] == ["from a callback"] * 2


def test_waiting_and_registering_races_with_completing():
    """Nobody is forgotten, whoever comes first."""
    for _ in range(300):
        completion = Completion()
        pending = pending_for(completion)
        calls = []

        def work(index, completion=completion, pending=pending, calls=calls):
            if index == 0:
                completion.complete("value")
            elif index == 1:
                pending.add_done_callback(lambda done: calls.append(done.result()))
            else:
                assert pending.result(PATIENCE) == "value"

        in_threads(3, work)
        assert calls == ["value"]


# -- of a store ------------------------------------------------------------------------------------------------------


def test_results_of_appends_come_in_order(store):
    writer = store.create_ledger()
    order = []
    pendings = [writer.append_async(b"%d" % i) for i in range(500)]
    for pending in pendings:
        pending.add_done_callback(lambda done: order.append(done.result()))
    assert [pending.result(PATIENCE) for pending in pendings] == list(range(500))
    eventually(lambda: len(order) == 500, "all callbacks")
    assert order == list(range(500))


def test_callbacks_come_without_anybody_waiting(store):
    writer = store.create_ledger()
    called = threading.Event()
    writer.append_async(b"a").add_done_callback(lambda done: called.set())
    assert called.wait(PATIENCE)
    assert writer.last_add_confirmed == 0


def test_a_callback_may_append_and_wait(store):
    """The callback runs in the thread that led the commit, which must be able to lead the next one."""
    writer, other = store.create_ledger(), store.create_ledger()
    results = []
    finished = threading.Event()

    def append_another(done):
        results.append(done.result())
        results.append(other.append(b"waited for"))
        if done.result() < 3:
            writer.append_async(b"next").add_done_callback(append_another)
        else:
            finished.set()

    writer.append_async(b"first").add_done_callback(append_another)
    assert finished.wait(PATIENCE), results
    assert results == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_callback_may_append_in_the_thread_that_waits(store):
    writer = store.create_ledger()
    results = []
    pendings = [writer.append_async(b"x") for _ in range(10)]
    for pending in pendings:
        pending.add_done_callback(lambda done: results.append(writer.append(b"from a callback")))
    assert pendings[-1].result(PATIENCE) == 9
    eventually(lambda: len(results) == 10, "all callbacks")
    assert sorted(results) == list(range(10, 20))
    assert len(writer.read(0, 19)) == 20


def test_a_callback_may_read_write_nodes_and_close(store):
    writer = store.create_ledger()
    seen = []
    finished = threading.Event()

    def use_everything(done):
        try:
            seen.append(writer.read(0, 0)[0].data)
            seen.append(store.nodes.put("/seen", b"1"))
            with store.transaction() as transaction:
                transaction.append(writer, b"b")
            seen.append(writer.last_add_confirmed)
            writer.close()
            seen.append(store.is_closed(writer.id))
        finally:
            finished.set()

    writer.append_async(b"a").add_done_callback(use_everything)
    assert finished.wait(PATIENCE)
    assert seen == [b"a", 0, 1, True]


def test_a_callback_that_raises_does_not_stop_the_store(store, caplog):
    writer = store.create_ledger()

    def fail(done):
        raise RuntimeError("from a callback")

    with caplog.at_level(logging.CRITICAL, "bookstand"):
        pendings = [writer.append_async(b"x") for _ in range(50)]
        for pending in pendings:
            pending.add_done_callback(fail)
        assert [pending.result(PATIENCE) for pending in pendings] == list(range(50))
        assert writer.append(b"y") == 50
        last = writer.append_async(b"z")
        done = threading.Event()
        last.add_done_callback(lambda _: done.set())
        assert done.wait(PATIENCE)


def test_an_error_reaches_all_who_wait(open_store):
    faults = Faults()
    store = open_store(hooks=faults)
    writer = store.create_ledger()
    faults.hold("add")
    pendings = [writer.append_async(b"x") for _ in range(3)]
    called = []
    for pending in pendings:
        pending.add_done_callback(lambda done: called.append(type(done.exception())))
    faults.wait_held(3)
    with pytest.raises(errors.OperationTimeoutError):
        pendings[0].result(0.01)
    faults.release(errors.NotEnoughBookiesError("no disk"))
    for pending in pendings:
        with refused(-6):
            pending.result(PATIENCE)
    assert called == [errors.NotEnoughBookiesError] * 3


@pytest.mark.slow
def test_a_timeout_loses_nothing(store):
    """Who gave up waiting may come again, and the append is made all the same."""
    writer = store.create_ledger()
    timeouts = 0
    for _ in range(200):
        pending = writer.append_async(bytes(1000))
        try:
            pending.result(0)
        except errors.OperationTimeoutError:
            timeouts += 1
    assert pending.result(PATIENCE) == 199
    assert len(writer.read(0, 199)) == 200


# -- await -----------------------------------------------------------------------------------------------------------


def test_await_of_appends(store):
    writer = store.create_ledger()

    async def main():
        first = await writer.append_async(b"a")
        many = await asyncio.gather(*(_as_coroutine(writer.append_async(b"%d" % i)) for i in range(200)))
        return first, many

    assert asyncio.run(main()) == (0, list(range(1, 201)))


async def _as_coroutine(pending):
    return await pending


def test_await_of_one_that_is_done():
    async def main():
        with pytest.raises(errors.ReadError):
            await completed(error=errors.ReadError())
        return await completed("value"), await completed(None)

    assert asyncio.run(main()) == ("value", None)


def test_the_loop_goes_on_meanwhile(open_store):
    faults = Faults()
    store = open_store(hooks=faults)
    writer = store.create_ledger()
    ticks = []

    async def tick():
        while len(ticks) < 20:
            ticks.append(time.monotonic())
            await asyncio.sleep(0)

    async def main():
        faults.hold("ack")
        pending = asyncio.ensure_future(_as_coroutine(writer.append_async(b"a")))
        await tick()
        assert not pending.done()
        faults.release()
        return await asyncio.wait_for(pending, PATIENCE)

    assert asyncio.run(main()) == 0
    assert len(ticks) == 20


def test_await_is_cancelled_but_not_the_append(open_store):
    faults = Faults()
    store = open_store(hooks=faults)
    writer = store.create_ledger()

    async def main():
        faults.hold("ack")
        pending = writer.append_async(b"a")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_as_coroutine(pending), 0.05)
        faults.release()
        return await pending

    assert asyncio.run(main()) == 0


def test_await_by_several_loops(store):
    """Each loop in a thread of its own, all of them waiting for the same append."""
    writer = store.create_ledger()
    pending = writer.append_async(b"a")
    assert in_threads(4, lambda _: asyncio.run(_as_coroutine(pending))) == [0] * 4


def test_a_loop_that_is_gone(open_store):
    faults = Faults()
    store = open_store(hooks=faults)
    writer = store.create_ledger()

    async def main():
        faults.hold("ack")
        pending = writer.append_async(b"a")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_as_coroutine(pending), 0.01)
        return pending

    pending = asyncio.run(main())
    faults.release()
    assert pending.result(PATIENCE) == 0
    assert isinstance(pending, Pending)
