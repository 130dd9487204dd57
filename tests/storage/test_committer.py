"""Group commit: everything exactly once, many in one, and nobody forgotten, whatever happens to a leader."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from time import monotonic

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.commit.futures import pending_for
from bookstand.storage.commit.group_commit import CommitRequest, GroupCommitter
from bookstand.storage.hooks import Hooks
from tests.kit import PATIENCE, eventually, in_threads, refused


class Log:
    """A commit function that writes down what it is given, and can be stopped or made to fail."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.threads: list[str] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.failure: BaseException | None = None
        self.refusals: dict[str, BaseException] = {}
        self._inside = threading.Lock()

    def __call__(self, submissions):
        assert self._inside.acquire(False), "two commits at a time"
        try:
            self.entered.release()
            assert self.go.wait(PATIENCE)
            self.batches.append([submission.operations[0] for submission in submissions])
            self.threads.append(threading.current_thread().name)
            failure, self.failure = self.failure, None
            if failure is not None:
                raise failure
            return [
                (None, self.refusals[name]) if name in self.refusals else (name.upper(), None)
                for name in self.batches[-1]
            ]
        finally:
            self._inside.release()


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def committer(log):
    made = GroupCommitter(log)
    yield made
    log.go.set()
    made.stop()


def submit(committer, name, awaited=True):
    submission = CommitRequest(committer, [name])
    committer.submit(submission, awaited)
    return pending_for(submission)


def count_waiting(log, committer, wanted):
    """Wait until so many submissions are queued."""
    eventually(lambda: committer._open is not None and len(committer._open.requests) >= wanted, "submissions")


# -- exactly once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 8, 32])
def test_every_submission_is_committed_exactly_once(committer, log, threads):
    each = 4000 // threads

    def work(index):
        for number in range(each):
            name = f"{index}-{number}"
            assert submit(committer, name).result(PATIENCE) == name.upper()

    in_threads(threads, work)
    committed = Counter(name for batch in log.batches for name in batch)
    assert set(committed.values()) == {1}
    assert len(committed) == threads * each
    assert all(log.batches)


def test_a_thread_sees_its_own_submissions_in_order(committer, log):
    def work(index):
        pendings = [submit(committer, f"{index}-{number}") for number in range(300)]
        for pending in pendings[::7] + pendings:
            pending.result(PATIENCE)

    in_threads(8, work)
    order = [name for batch in log.batches for name in batch]
    for index in range(8):
        mine = [name for name in order if name.startswith(f"{index}-")]
        assert mine == [f"{index}-{number}" for number in range(300)]


def test_a_lone_submission_is_committed_by_its_own_thread(committer, log):
    assert submit(committer, "a").result() == "A"
    assert log.threads == [threading.current_thread().name]


def answered_and_not_back_yet(committer, for_so_long):
    """As when a commit is over, and a thread that waited for it has not woken up."""
    committer._last_batch.waiting.add(-1)
    committer._grace_ends = monotonic() + for_so_long


@pytest.mark.parametrize("threads", [3, 30])
def test_those_who_were_answered_are_waited_for(committer, log, threads):
    answered_and_not_back_yet(committer, PATIENCE)
    assert committer.run_exclusive(lambda: True) is None
    results = []
    waiting = [
        threading.Thread(target=lambda i=i: results.append(submit(committer, f"b{i}").result())) for i in range(threads)
    ]
    for thread in waiting:
        thread.start()
    count_waiting(log, committer, threads)
    assert not log.batches
    committer._last_batch.waiting.clear()
    committer._wake_open_batch()
    for thread in waiting:
        thread.join(PATIENCE)
    assert sorted(results) == sorted(f"B{i}" for i in range(threads))
    assert len(log.batches) == 1


def test_the_last_who_was_answered_lets_the_next_batch_go(committer, log, monkeypatch):
    monkeypatch.setattr(bookstand.storage.commit.group_commit, "FOLLOWER_GRACE", PATIENCE)
    monkeypatch.setattr(bookstand.storage.commit.group_commit, "FOLLOWER_GRACE_MIN_COMMIT", -1.0)
    in_threads(12, lambda index: [submit(committer, f"{index}-{number}").result() for number in range(50)])
    assert Counter(name for batch in log.batches for name in batch).total() == 600
    assert not committer._last_batch.waiting


def test_who_does_not_come_back_holds_nobody_up_for_long(committer, log):
    answered_and_not_back_yet(committer, 0.05)
    results = []
    thread = threading.Thread(target=lambda: results.append(submit(committer, "a").result()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert results == ["A"]


@pytest.mark.parametrize("leaves", [False, True])
def test_nor_those_who_came_before_he_was_answered(committer, log, monkeypatch, leaves):
    """Whether the first of them goes on waiting, or has no time for that."""
    monkeypatch.setattr(bookstand.storage.commit.group_commit, "FOLLOWER_GRACE_MIN_COMMIT", -1.0)
    log.go.clear()
    results = []

    def work(name, timeout=None):
        with contextlib.suppress(errors.OperationTimeoutError):
            results.append(submit(committer, name).result(timeout))

    leader = threading.Thread(target=work, args=("first",), daemon=True)
    leader.start()
    assert log.entered.acquire(timeout=PATIENCE)
    waiting = []
    for number in range(3):
        timeout = 0.2 if leaves and not number else None
        thread = threading.Thread(target=work, args=(f"b{number}", timeout), daemon=True)
        thread.start()
        waiting.append(thread)
        eventually(lambda: committer._open is not None and len(committer._open.waiting) > number, "it waits")  # noqa: B023
    if leaves:
        waiting[0].join(PATIENCE)
    # Nobody wakes them.
    gathered = committer._open
    monkeypatch.setattr(committer, "_wake_open_batch", lambda: None)
    committer._grace_ends = 0.0
    log.go.set()
    for thread in [leader, *waiting]:
        thread.join(PATIENCE)
    assert gathered.committed
    assert {"FIRST", "B1", "B2"} <= set(results)


def test_a_callback_of_who_waited_and_then_led_may_wait_for_another_commit(committer, log, monkeypatch):
    monkeypatch.setattr(bookstand.storage.commit.group_commit, "FOLLOWER_GRACE", 2 * PATIENCE)
    monkeypatch.setattr(bookstand.storage.commit.group_commit, "FOLLOWER_GRACE_MIN_COMMIT", -1.0)
    log.go.clear()
    results = []

    def work(name):
        pending = submit(committer, name)
        pending.add_done_callback(lambda _: results.append(submit(committer, name + "2").result()))
        results.append(pending.result())

    first = threading.Thread(target=lambda: submit(committer, "first").result(), daemon=True)
    first.start()
    assert log.entered.acquire(timeout=PATIENCE)
    others = [threading.Thread(target=work, args=(f"b{i}",), daemon=True) for i in range(3)]
    for thread in others:
        thread.start()
    count_waiting(log, committer, 3)
    eventually(lambda: len(committer._open.waiting) == 3, "all wait")
    log.go.set()
    for thread in [first, *others]:
        thread.join(PATIENCE)
    # Another thread may call back.
    eventually(lambda: len(results) == 6, "all callbacks have returned")
    assert sorted(results) == ["B0", "B02", "B1", "B12", "B2", "B22"]


def test_one_commit_covers_all_that_came_meanwhile(committer, log):
    log.go.clear()
    results = []
    first = threading.Thread(target=lambda: results.append(submit(committer, "first").result(PATIENCE)))
    first.start()
    assert log.entered.acquire(timeout=PATIENCE)
    others = [
        threading.Thread(target=lambda i=i: results.append(submit(committer, f"b{i}").result(PATIENCE)))
        for i in range(20)
    ]
    for thread in others:
        thread.start()
    count_waiting(log, committer, 20)
    log.go.set()
    for thread in (first, *others):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(results) == sorted(["FIRST", *(f"B{i}" for i in range(20))])
    assert [len(batch) for batch in log.batches] == [1, 20]


def test_with_a_store_one_commit_covers_the_appends_of_many_threads(open_store):
    """64 appends that wait while a commit is under way travel together in the next one."""
    gate = Gate()
    store = open_store(hooks=gate)
    writers = [store.create_ledger() for _ in range(65)]
    before = store.storage.last_commit
    gate.shut()
    pendings = [writers[0].append_async(b"holds the others up")]
    gate.wait_until_reached()
    threads = [threading.Thread(target=lambda w=w: pendings.append(w.append_async(b"x"))) for w in writers[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    gate.open()
    for pending in pendings:
        assert pending.result(PATIENCE) == 0
    assert store.storage.last_commit - before <= 3


class Gate(Hooks):
    """Stops commits before they write, and makes them fail there."""

    def __init__(self, point: str = "commit.before_write") -> None:
        self.name = point
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        self.failure: BaseException | None = None
        self.threads: list[threading.Thread] = []

    def shut(self) -> None:
        self._reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE), "no commit came to the point"

    def point(self, name: str) -> None:
        if name == self.name:
            self.threads.append(threading.current_thread())
            self._reached.set()
            assert self._open.wait(PATIENCE)
            if self.failure is not None:
                failure, self.failure = self.failure, None
                raise failure


# -- errors of a leader ----------------------------------------------------------------------------------------------


def test_refusals_reach_who_submitted_what_was_refused(committer, log):
    log.refusals["bad"] = errors.ReadError("refused")
    pendings = {name: submit(committer, name) for name in ("a", "bad", "b")}
    assert pendings["b"].result(PATIENCE) == "B"
    assert pendings["a"].result(0) == "A"
    with refused(-1):
        pendings["bad"].result(0)
    assert len(log.batches) == 1


@pytest.mark.parametrize("failure", [RuntimeError("no"), MemoryError(), KeyboardInterrupt()])
def test_an_interrupted_commit_leaves_nobody_waiting(committer, log, failure):
    """The leader gets what interrupted it; for the others it is unknown whether the commit took effect."""
    log.go.clear()
    outcomes = {}

    def wait_for(name):
        try:
            outcomes[name] = submit(committer, name).result(PATIENCE)
        except BaseException as error:
            outcomes[name] = type(error)

    leader = threading.Thread(target=wait_for, args=("leader",))
    leader.start()
    assert log.entered.acquire(timeout=PATIENCE)
    committer.lock.acquire()
    committer.lock.release()
    followers = [submit(committer, f"f{i}") for i in range(3)]
    log.failure = failure
    log.go.set()
    leader.join(PATIENCE)
    assert outcomes["leader"] in (type(failure), errors.OutcomeUnknownError)
    # Those that came meanwhile are another batch, which somebody leads.
    assert [follower.result(PATIENCE) for follower in followers] == ["F0", "F1", "F2"]
    assert submit(committer, "later").result(PATIENCE) == "LATER"


def test_followers_of_an_interrupted_commit_are_told(committer, log):
    pendings = [submit(committer, f"f{i}") for i in range(3)]
    log.failure = RuntimeError("interrupted")
    with pytest.raises((RuntimeError, errors.OutcomeUnknownError)):
        pendings[0].result(PATIENCE)
    for pending in pendings:
        with pytest.raises(errors.OutcomeUnknownError, match="interrupted"):
            pending.result(0)
    assert submit(committer, "later").result(PATIENCE) == "LATER"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("failure", [RuntimeError("no"), MemoryError()])
def test_the_background_goes_on_after_an_interrupted_commit(committer, log, failure):
    log.failure = failure
    failed = submit(committer, "failed", awaited=False)
    eventually(failed.done, "the background's commit")
    with pytest.raises(errors.OutcomeUnknownError):
        failed.result(0)
    later = submit(committer, "later", awaited=False)
    eventually(later.done, "the background's next commit", timeout=20)
    assert later.result(0) == "LATER"


def test_a_commit_that_is_refused_by_a_hook_can_be_tried_again(open_store):
    gate = Gate()
    store = open_store(hooks=gate)
    store.nodes.put("/a", b"1")
    gate.failure = errors.WriteError("by a test")
    with refused(-12):
        store.nodes.put("/a", b"2")
    assert store.nodes.get("/a") == (b"1", 0)
    assert store.nodes.put("/a", b"3") == 1


class Caller(Hooks):
    """Uses the store from inside a commit, once."""

    def __init__(self, point: str, sees_entries: bool) -> None:
        self.sees_entries = sees_entries
        self.calls_at: str | None = None
        self.call = lambda: None
        self._point = point
        self.refusal: BaseException | None = None

    def arm(self, call) -> None:
        self.call, self.calls_at = call, self._point

    def point(self, name: str) -> None:
        if name == self.calls_at:
            self.calls_at = None
            try:
                self.call()
            except errors.BookstandError as refusal:
                self.refusal = refusal


@pytest.mark.parametrize("how", ["append", "append_many", "append_async"])
@pytest.mark.parametrize("sees_entries", [True, False])
@pytest.mark.parametrize("point", ["commit.before_write", "commit.before_sync", "commit.after_sync"])
def test_a_hook_that_waits_for_a_commit_from_inside_one_is_refused(open_store, point, sees_entries, how):
    """And nothing else is: the commit that it is called from goes on, and what it has submitted is committed later."""
    hooks = Caller(point, sees_entries)
    store = open_store(hooks=hooks)
    writer, other = store.create_ledger(), store.create_ledger()
    hooks.arm(lambda: other.append(b"from inside"))
    if how == "append":
        assert writer.append(b"a") == 0
    elif how == "append_many":
        assert list(writer.append_many([b"a"])) == [0]
    else:
        assert writer.append_async(b"a").result() == 0
    assert isinstance(hooks.refusal, errors.IllegalOperationError)
    assert writer.append(b"b") == 1
    assert other.append(b"c") == 1
    assert [entry.data for entry in other.read(0, 1)] == [b"from inside", b"c"]


# -- the background --------------------------------------------------------------------------------------------------


def test_the_background_commits_what_nobody_waits_for(committer, log):
    pendings = [submit(committer, f"n{i}", awaited=False) for i in range(100)]
    eventually(lambda: all(pending.done() for pending in pendings), "the background")
    assert sum(map(len, log.batches)) == 100
    assert threading.current_thread().name not in log.threads


def test_the_background_is_not_started_without_need(committer):
    before = threading.active_count()
    for i in range(100):
        submit(committer, str(i)).result()
    assert threading.active_count() == before


def test_a_callback_is_enough_for_the_background_to_commit(committer):
    called = threading.Event()
    submit(committer, "a").add_done_callback(lambda _: called.set())
    assert called.wait(PATIENCE)


def test_a_stored_change_needs_nobody_to_wait_for_it(open_store):
    """``submit`` alone is enough, whoever asks for the result and when."""
    from bookstand.storage.commit.node_operations import PutNode
    from bookstand.storage.commit.operations import WriteBatch

    store = open_store()
    pending = store.storage.submit(WriteBatch(PutNode("/a", b"1", None)))
    eventually(pending.done, "the change", timeout=20)
    assert pending.result() == [0]


def test_waiting_with_a_timeout_hands_over(committer, log):
    """Who gives up leaves its submission to others."""
    log.go.clear()
    leader = threading.Thread(target=lambda: submit(committer, "leader").result(PATIENCE))
    leader.start()
    assert log.entered.acquire(timeout=PATIENCE)
    impatient = submit(committer, "impatient", awaited=False)
    with pytest.raises(errors.OperationTimeoutError):
        impatient.result(0.01)
    log.go.set()
    leader.join(PATIENCE)
    eventually(impatient.done, "the submission that nobody waits for any more")
    assert impatient.result() == "IMPATIENT"


# -- flush, pause and stop -------------------------------------------------------------------------------------------


def test_flush_commits_what_was_submitted(committer, log):
    pendings = [submit(committer, f"f{i}") for i in range(10)]
    committer.flush()
    assert all(pending.done() for pending in pendings)
    committer.flush()
    assert committer.idle
    assert len(log.batches) == 1


def test_flush_waits_for_the_commit_under_way(committer, log):
    log.go.clear()
    leader = threading.Thread(target=lambda: submit(committer, "leader").result(PATIENCE))
    leader.start()
    assert log.entered.acquire(timeout=PATIENCE)
    flushed = threading.Event()

    def flush():
        committer.flush()
        flushed.set()

    flusher = threading.Thread(target=flush)
    flusher.start()
    assert not flushed.wait(0.1)
    log.go.set()
    assert flushed.wait(PATIENCE)
    leader.join(PATIENCE)
    flusher.join(PATIENCE)


def test_nothing_is_committed_in_a_pause(committer, log):
    with committer.paused():
        pendings = [submit(committer, "waited"), submit(committer, "not waited", awaited=False)]
        with pytest.raises(errors.OperationTimeoutError):
            in_threads(1, lambda _: pendings[0].result(0.1))
        assert log.batches == []
    eventually(lambda: all(pending.done() for pending in pendings), "what waited for the end of the pause")


def test_stop_commits_what_is_queued(log):
    # Of whatever ran before in this process.
    others = set(threading.enumerate())
    committer = GroupCommitter(log)
    pendings = [submit(committer, f"f{i}", awaited=bool(i % 2)) for i in range(10)]
    committer.stop()
    assert all(pending.done() for pending in pendings)
    assert sum(map(len, log.batches)) == 10
    eventually(
        lambda: "bookstand-commit" not in [one.name for one in set(threading.enumerate()) - others],
        "the end of the background",
    )


@pytest.mark.parametrize("how", ["append_async", "many threads"])
def test_closing_a_store_commits_what_is_queued(store_path, how):
    store = bookstand.open(store_path)
    writer = store.create_ledger()
    if how == "append_async":
        pendings = [writer.append_async(b"%d" % i) for i in range(1000)]
    else:
        pendings = [
            p for part in in_threads(4, lambda _: [writer.append_async(b"x") for _ in range(250)]) for p in part
        ]
    store.close()
    confirmed = []
    for pending in pendings:
        assert pending.done()
        with contextlib.suppress(errors.ClientClosedError):
            confirmed.append(pending.result())
    with bookstand.open(store_path) as store:
        assert store.open_ledger(writer.id).last_add_confirmed == 999
        assert store.verify().ok
    assert sorted(confirmed) == list(range(1000))


@pytest.mark.parametrize("what", ["handle", "store"])
def test_closing_waits_for_the_commit_under_way(store_path, what):
    """An append that the background is just committing is queued, as far as its user can know, and so is confirmed."""
    gate = Gate()
    store = bookstand.open(store_path, hooks=gate)
    writer = store.create_ledger()
    gate.shut()
    pending = writer.append_async(b"x")
    gate.wait_until_reached()
    closed = threading.Thread(target=writer.close if what == "handle" else store.close)
    closed.start()
    closed.join(0.2)
    gate.open()
    closed.join(PATIENCE)
    assert not closed.is_alive()
    try:
        assert pending.result(PATIENCE) == 0
    finally:
        store.close()
    with bookstand.open(store_path) as store:
        assert [entry.data for entry in store.open_ledger(writer.id)] == [b"x"]


def test_opening_while_another_closes(store_path):
    """Whoever opens the store while its last user is closing it gets one that works, background included."""
    gate = Gate()
    first = bookstand.open(store_path, hooks=gate)
    gate.shut()
    putting = threading.Thread(target=lambda: first.nodes.put("/a", b"1"))
    putting.start()
    gate.wait_until_reached()
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(0.2)
    with bookstand.open(store_path) as second:
        gate.open()
        closing.join(PATIENCE)
        putting.join(PATIENCE)
        called = threading.Event()
        second.create_ledger().append_async(b"x").add_done_callback(lambda _: called.set())
        assert called.wait(20), "an append was never committed"
        assert second.nodes.get("/a") == (b"1", 0)
