"""Calls that are interrupted by an exception between any two steps. More of them: ``python -m tests.soak --kind
interrupts``; all defects: ``--kind interrupts_defects``."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time

import pytest

import bookstand
from bookstand import TopicConfig
from bookstand.errors import InterruptedOperationError
from bookstand.storage.format import schema
from tests.kit import PATIENCE, in_threads, own_environment
from tests.soak import interrupts
from tests.soak.interruption import Interruption


def test_interrupted_calls_lose_nothing_and_hold_up_no_other(counts):
    cases, problems = counts.run("interrupts", interrupts.KIND, [1, 2])
    assert not problems, "\n".join(problems)
    assert cases >= 2 * interrupts.POINTS


def test_the_campaign_notices_that_a_message_is_lost():
    done = interrupts.run(1, 1000, defect="lose what was taken")
    assert "messages were delivered" in done.problems[0]


def in_the_middle_of_a_commit(call, monkeypatch, kind=KeyboardInterrupt):
    """Interrupt the call between the beginning of LMDB's transaction and its commit."""
    from bookstand.storage.commit.executor import WriteTransaction

    def stop(self):
        monkeypatch.undo()
        raise kind("raised in the middle of a call")

    monkeypatch.setattr(WriteTransaction, "write_derived", stop)
    with pytest.raises(kind) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("kind", [KeyboardInterrupt, MemoryError, TimeoutError])
def test_an_exception_that_is_retained_holds_no_lock_of_lmdb(store, monkeypatch, kind):
    store.nodes.put("/a", b"1")
    retained = in_the_middle_of_a_commit(lambda: store.nodes.put("/a", b"2"), monkeypatch, kind)
    source = "import sys, bookstand; s = bookstand.open(sys.argv[1]); s.nodes.put('/b', b'1'); s.close()"
    subprocess.run([sys.executable, "-c", source, store.path], env=own_environment(), timeout=PATIENCE, check=True)
    assert store.nodes.get("/a") == (b"1", 0)
    assert store.nodes.put("/a", b"3") == 1
    assert retained.__traceback__ is not None


def test_a_ledger_whose_closing_was_interrupted_is_closed_by_the_next_call(store, monkeypatch):
    writer = store.create_ledger()
    writer.append(b"1")
    in_the_middle_of_a_commit(writer.close, monkeypatch)
    in_threads(2, lambda _: writer.close())
    assert store.ledger_metadata(writer.id).last_entry_id == 0


def test_a_topic_goes_on_after_an_interrupted_roll_over(store, monkeypatch):
    topic = store.topic("t", TopicConfig(max_entries_per_ledger=2))
    topic.publish(b"1")
    in_the_middle_of_a_commit(topic.ledger.roll, monkeypatch)
    topic.publish(b"2")
    sub = topic.subscription("s")
    assert [message.payload for message in sub.receive(9, timeout=0)] == [b"1", b"2"]
    assert topic.usable


def test_a_store_whose_closing_was_interrupted_can_be_opened_and_closed(store_path, monkeypatch):
    store = bookstand.open(store_path)
    store.nodes.put("/a", b"1")
    store.create_ledger().append_async(b"1")
    in_the_middle_of_a_commit(store.close, monkeypatch)

    def use(_):
        with bookstand.open(store_path) as again:
            assert again.nodes.get("/a")[0] == b"1"

    in_threads(1, use)
    store.close()
    in_threads(1, use)


def interrupt_a_change(cursor):
    def change():
        with cursor._lock, cursor._lifecycle.guard:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change()
    assert cursor.was_interrupted


def test_a_cursor_that_was_interrupted_in_a_change_says_to_open_it_again(store):
    topic = store.topic("t")
    positions = topic.publish_many([b"1"] * 9)
    cursor = topic.cursor("c")
    cursor.ack(positions[0]).result()
    interrupt_a_change(cursor)
    assert not cursor.usable
    with pytest.raises(InterruptedOperationError, match="open it again"):
        cursor.ack(positions[3])
    cursor = topic.cursor("c")
    assert cursor.mark_delete_position == positions[0]
    cursor.ack(positions[1]).result()


def test_a_subscription_opens_its_interrupted_cursor_again(store):
    topic = store.topic("t")
    topic.publish_many([b"%d" % number for number in range(6)])
    sub = topic.subscription("s")
    first, second = sub.receive(2, timeout=0)
    sub.ack(first).result()
    interrupt_a_change(sub.cursor)
    # What was delivered is still in flight.
    assert [message.payload for message in sub.receive(9, timeout=0)] == [b"2", b"3", b"4", b"5"]
    sub.ack(second).result()
    assert topic.subscription("s") is sub
    assert sub.backlog == 4


def test_other_consumers_keep_what_they_hold_after_an_interruption(store):
    topic = store.topic("t")
    topic.publish_many([b"%d" % number for number in range(20)])
    sub = topic.subscription("s")
    with sub.consumer() as other:
        held = {message.payload for message in other.receive(5, timeout=0)}
        got: list[bytes] = []

        def receive():
            got.extend(message.payload for message in sub.receive(3, timeout=0))

        with Interruption(0) as counting:
            receive()
        for number in range(1, counting.instructions, 97):
            try:
                with Interruption(number):
                    receive()
            except KeyboardInterrupt:
                pass
        while messages := sub.receive(9, timeout=0):
            got += [message.payload for message in messages]
        assert held.isdisjoint(got)
        assert held | set(got) == {b"%d" % number for number in range(20)}


def test_a_cancelled_task_loses_no_message(store):
    import asyncio

    topic = store.topic("t")
    sub = topic.subscription("s")
    got = []

    async def cancel_some():
        for number in range(20):
            task = asyncio.ensure_future(sub.receive_async(2))
            await asyncio.sleep(0)
            topic.publish(b"%d" % number)
            if number % 2:
                task.cancel()
            try:
                got.extend(await task)
            except asyncio.CancelledError:
                continue

    asyncio.run(cancel_some())
    got += sub.receive(99, timeout=0)
    assert sorted(message.payload for message in got) == sorted(b"%d" % number for number in range(20))


def test_an_interrupted_leader_answers_those_who_wait(store, monkeypatch):
    """Another thread's append travels in the batch of the call that is interrupted."""
    ledgers = [store.create_ledger() for _ in range(3)]
    committer = store.storage.committer
    with committer.paused():
        pendings = [ledger.append_async(b"1") for ledger in ledgers]
        results: list[object] = []
        waiting = [
            threading.Thread(target=lambda one=one: results.append(one.exception(PATIENCE)), daemon=True)
            for one in pendings
        ]
        for thread in waiting:
            thread.start()
    in_the_middle_of_a_commit_or_after(lambda: store.nodes.put("/a", b"1"), monkeypatch)
    for thread in waiting:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert store.nodes.put("/b", b"1") == 0


def in_the_middle_of_a_commit_or_after(call, monkeypatch):
    """Interrupt the leader of a batch, once."""
    from bookstand.storage.commit.executor import WriteTransaction

    real, count = WriteTransaction.write_derived, iter(range(99))

    def stop(self):
        if not next(count):
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(WriteTransaction, "write_derived", stop)
    try:
        call()
    except (KeyboardInterrupt, bookstand.BookstandError):
        pass


def at_points(call, step, kind=KeyboardInterrupt, before=lambda: None):
    """Interrupt the call again and again, ``step`` instructions later each time; give the place, if it is in the
    library, and what the call raised, which is retained."""
    before()
    with Interruption(0) as counting:
        call()
    for number in range(1, counting.instructions + 1, step):
        interruption, raised = Interruption(number, kind), None
        before()
        try:
            with interruption:
                call()
        except BaseException as error:
            raised = error
        if interruption.place is not None and os.sep + "bookstand" + os.sep in interruption.place[0].co_filename:
            yield interruption.place, raised


def test_an_interrupted_read_of_all_records_holds_up_no_other(store):
    store.nodes.put("/a", b"1")
    met = 0
    for _ in at_points(lambda: list(store.storage.records(schema.NODES)), 9):
        met += 1
        in_threads(1, lambda _: store.storage._environment.reopen())
    assert met > 20


def left_by_openings(path):
    return [name for name in os.listdir(path) if name.startswith(("open-", "read-", "serve-"))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("kind", "step"), [(KeyboardInterrupt, 11), (TimeoutError, 37)])
def test_an_interrupted_opening_can_be_repeated(store_path, kind, step):
    """The exception is retained meanwhile; nothing of the store remains open. Files without a lock may be closed by the
    collection of garbage."""
    path = store_path
    bookstand.open(path).close()
    opened = []

    def open_it():
        opened.append(bookstand.open(path))

    met = 0
    for place, raised in at_points(open_it, step, kind):
        while opened:
            opened.pop().close()
        assert isinstance(raised, kind), place
        assert not held_by_others(path), place
        with bookstand.open(path) as store:
            store.nodes.put("/a", b"1")
            assert store.storage.other_processes().writers == 0, place
        assert left_by_openings(path) == [], place
        met += 1
    assert met > 20


def held_by_others(path):
    """Return True if another descriptor of this file cannot be locked."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_an_interrupted_commit_leaves_the_witness_to_other_processes(store_path):
    path = store_path
    met = 0
    with bookstand.open(path, witness=True) as store:
        for place, raised in at_points(lambda: store.nodes.put("/a", b"1"), 7):
            assert isinstance(raised, KeyboardInterrupt)
            assert not held_by_others(path / "witness"), place
            met += 1
    assert met > 100


@pytest.mark.parametrize("call", ["take", "resign"])
def test_a_role_that_was_interrupted_can_be_taken_again(store, call):
    storage, roles = store.storage, []

    def end():
        # What was not returned is not held, either.
        for role in roles:
            storage.release_role(role)
        roles.clear()

    def serve():
        end()
        roles.append(storage.acquire_role("bookies"))

    met = 0
    for place, raised in at_points(serve if call == "take" else end, 3, before=end if call == "take" else serve):
        assert isinstance(raised, KeyboardInterrupt), place
        end()
        in_threads(1, lambda _: (serve(), end()))
        met += 1
    assert met > 50


@pytest.mark.parametrize("call", ["put", "grow", "compact"])
def test_an_exception_of_a_timeout_reaches_the_caller(store, call):
    """It is an ``OSError``, but not one of the operating system."""
    calls = {
        "put": lambda: store.nodes.put("/a", b"1"),
        "grow": store.storage._environment.grow,
        "compact": store.compact,
    }
    calls[call]()
    for place, raised in at_points(calls[call], 41 if call == "compact" else 7, TimeoutError):
        assert isinstance(raised, TimeoutError), (place, raised)
    store.nodes.put("/a", b"2")


def test_a_call_that_waits_for_readers_can_be_interrupted(store):
    """The map changes when the reads of other threads are over."""
    environment = store.storage._environment
    readers = []

    def read(inside):
        reading = environment.begin_read()
        inside.set()
        time.sleep(0.004)
        environment.end_read(reading)

    def begin_to_read():
        inside = threading.Event()
        readers.append(threading.Thread(target=read, args=(inside,)))
        readers[-1].start()
        inside.wait(PATIENCE)

    for place, raised in at_points(environment.grow, 3, before=begin_to_read):
        readers.pop().join()
        assert isinstance(raised, KeyboardInterrupt), (place, raised)


def test_a_leader_that_is_interrupted_twice_holds_up_no_other(store, monkeypatch):
    """The second exception comes while the first one is dealt with: when there is no memory, say."""
    from bookstand.storage.commit import group_commit
    from bookstand.storage.commit.executor import WriteTransaction

    real, batches, waiting, answers = group_commit._complete_all, [], [], []
    writer = store.create_ledger()
    pending = writer.append_async(b"1")

    def wait():
        answers.append(pending.exception(PATIENCE))

    def stop(self):
        monkeypatch.setattr(WriteTransaction, "write_derived", write_derived)
        waiting.append(threading.Thread(target=wait, daemon=True))
        waiting[0].start()
        raise MemoryError

    def tell(batch, later):
        batches.append(batch)
        if len(batches) == 1:
            raise MemoryError
        return real(batch, later)

    write_derived = WriteTransaction.write_derived
    monkeypatch.setattr(WriteTransaction, "write_derived", stop)
    monkeypatch.setattr(group_commit, "_complete_all", tell)
    with pytest.raises((MemoryError, bookstand.BookstandError)):
        pending.result(PATIENCE)
    waiting[0].join(10)
    assert not waiting[0].is_alive()
    assert isinstance(answers[0], bookstand.errors.OutcomeUnknownError)
    assert store.nodes.put("/b", b"1") == 0
