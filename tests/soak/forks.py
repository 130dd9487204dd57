"""Forks of a process whose threads use a store in all ways.

A case is one fork: by ``os.fork`` in the main thread, by ``multiprocessing``, or in the handler of a signal that
interrupts a call of the main thread. The child uses every public method and attribute of every object that the parent
has open, and results that the parent waits for; leaves ``with`` blocks that the parent entered; in some cases opens the
parent's store for itself; and exits in one of several ways. The campaign reports

- *hang*: a child that does not exit within ``PATIENCE`` seconds;
- *answer*: a use of an inherited object that does not raise ``ForkedStoreError``, or an end of a ``with`` block that
  replaces the exception which ends the block;
- *inherited*: a child that keeps a lock of the parent;
- *own store*: a child that cannot use the store that it opened;
- *harm*: an error in the parent, or a parent's store that does not verify or lost confirmed entries or messages.

``python -m tests.soak.forks FOLDER SEED COUNT PATIENCE [DEFECT]`` is the parent's process.
"""

from __future__ import annotations

import faulthandler
import gc
import inspect
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import bookstand
from bookstand import errors
from bookstand.cursor.config import CursorConfig
from bookstand.delivery.topic_config import SubscriptionConfig, TopicConfig
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.storage import storage
from bookstand.storage.commit import futures as pending
from bookstand.storage.lmdb import environment
from bookstand.storage.process import fork_guard, process_markers
from tests.kit import own_environment
from tests.soak.kinds import Done, Kind

CASES = 100
"""Number of forks in a round."""
PATIENCE = 30.0
MOST_OF_A_CHILD = 5
"""Problems that are reported of one child."""

PAUSES = {"_keep": 0.05, "_append_many": 0.01}
"""Seconds between the steps of a thread, if not 0.003."""

# -- defects that undo parts of the cure -------------------------------------------------------------------------------


def _replace(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _nothing(*_arguments: Any) -> None:
    pass


def _remove_from(actions: list[Any], action: Any) -> Callable[[], None]:
    return lambda: actions.remove(action)


DEFECTS: dict[str, Callable[[], None]] = {
    "inherited objects are used": _replace(fork_guard, "_disabled", lambda kind, _: kind),
    "folders' locks remain": _replace(process_markers.FolderLock, "_forked", _nothing),
    "markers remain locked": _replace(process_markers._LockedFile, "_forked", _nothing),
    "temporary folders are removed": _replace(bookstand.temporary, "_forked", _nothing),
    "inherited environments are open": _remove_from(fork_guard._in_child, environment._allow_reopening_in_child),
    "inherited stores are open": _remove_from(fork_guard._in_child, storage._forget_parents),
    "locks of the module remain": _remove_from(fork_guard._in_child, pending._renew),
}

# -- the parent's objects ----------------------------------------------------------------------------------------------

_ARGUMENTS: dict[str, Any] = {
    "destination": "/dev/null/nowhere",
    "ledger_id": 0,
    "entry_id": 0,
    "name": "name",
    "path": "/node",
    "data": b"x",
    "value": b"x",
    "payload": b"x",
    "payloads": [b"x"],
    "entries": [b"x"],
    "first": 0,
    "last": 0,
    "start": 0,
    "max_count": 1,
    "max_size": 1,
    "version": 0,
    "count": 1,
    "number": 1,
    "callback": _nothing,
}
"""Arguments of methods by name; None for the others."""
_VALUES = {"path", "name", "id"}
"""Attributes that a child may read."""
_CONSTANT = {"should_pause_all_deliveries", "hurry"}
"""Methods that use nothing of their object, which they can be called with if they were bound before the fork."""
_RELEASING = {"close", "stop"}
"""Methods that do nothing in a child, except those of writers."""


_BAD_ARGUMENTS = (errors.IncorrectParameterError, errors.IllegalOperationError, TypeError, AttributeError)
"""What a method raises that checks its arguments first."""


def _arguments(method: Any) -> list[Any]:
    required = [
        parameter.name
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)
    ]
    return [_ARGUMENTS.get(name) for name in required]


def _finish(found: Any) -> None:
    """Begin what a call has only prepared."""
    if inspect.isgenerator(found):
        next(found)
    elif inspect.iscoroutine(found):
        found.send(None)


class Use:
    """Use of one public method, bound in the parent, or of one public attribute."""

    def __init__(self, owner: Any, kind: str, name: str) -> None:
        self.what = f"{kind}.{name}"
        self._owner = owner
        self._name = name
        found = inspect.getattr_static(type(owner), name)
        self._bound = None
        if callable(found) or isinstance(found, classmethod | staticmethod):
            self._bound = getattr(owner, name)
            self._given = _arguments(self._bound)
        releases = name in _RELEASING and not isinstance(owner, LedgerWriter) and "Writer" not in kind
        self._allowed = releases or name in _VALUES

    def problem(self) -> str | None:
        """Use it by its name, as a child does, and as it was bound before the fork."""
        if not self._allowed:
            try:
                found = getattr(self._owner, self._name)
                if self._bound is not None:
                    _finish(found(*self._given))
            except errors.ForkedStoreError:
                pass
            except BaseException as error:
                return f"answer: {self.what} raised {error!r}"
            else:
                return f"answer: {self.what} did not raise"
        return None if self._bound is None else self._problem_bound(self._bound)

    def _problem_bound(self, bound: Any) -> str | None:
        try:
            found = bound(*self._given)
            _finish(found)
            if isinstance(found, bookstand.Pending):
                found.result()
        except (errors.ForkedStoreError, *_BAD_ARGUMENTS):
            return None
        except BaseException as error:
            return f"answer: {self.what}, bound before the fork, raised {error!r}"
        allowed = self._allowed or self._name in _CONSTANT
        return None if allowed else f"answer: {self.what}, bound before the fork, did not raise"


def _uses_of(kind: str, owner: Any) -> list[Use]:
    return [Use(owner, kind, name) for name in dir(type(owner)) if not name.startswith("_")]


class Parent:
    """Process with an open store that its threads use. Only the main thread forks."""

    def __init__(self, folder: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.path = os.path.join(folder, "store")
        self.failures: list[str] = []
        self.stopping = threading.Event()
        self.blocks = ExitStack()
        """``with`` blocks that a child leaves. They end in the parent, too."""
        self.throw_away = self.blocks.enter_context(bookstand.temporary())
        self.store = self.blocks.enter_context(bookstand.open(self.path))
        self._open_ledgers()
        self._open_topics()
        self._serve(seed)
        self.uses = [use for kind, owner in self._objects().items() for use in _uses_of(kind, owner)]
        self.confirmed: dict[int, int] = {}
        self.acked: set[tuple[str, int, int]] = set()
        self.published: set[tuple[str, int, int]] = set()

    def _open_ledgers(self) -> None:
        store, enter = self.store, self.blocks.enter_context
        self.writer = enter(store.create_ledger())
        self.adv = enter(store.create_ledger_adv())
        self.deferred = enter(store.create_ledger(deferred_sync=True))
        self.closed = store.create_ledger()
        self.closed.append_many([b"%d" % number for number in range(100)])
        self.closed.close()
        self.reader = enter(store.open_ledger(self.closed.id))
        self.following = store.open_ledger(self.writer.id, recovery=False)
        self.transaction = store.transaction()
        self.never = self.transaction.put_node("/in/transaction", b"1")

    def _open_topics(self) -> None:
        store, enter = self.store, self.blocks.enter_context
        buckets = TopicConfig(delayed_delivery_tracker="bucket", delayed_delivery_min_index_count_per_bucket=20)
        shared = TopicConfig(delayed_delivery_shared_index_enabled=True)
        memory = TopicConfig(delayed_delivery_tracker="in_memory")
        self.topics = {
            name: enter(store.topic(name, config))
            for name, config in {"buckets": buckets, "shared": shared, "memory": memory}.items()
        }
        cursor = CursorConfig(throttle_mark_delete=20)
        self.subscriptions = {
            name: enter(topic.subscription("workers", SubscriptionConfig(type="shared", cursor=cursor, nack_delay=10)))
            for name, topic in self.topics.items()
        }
        self.consumer = enter(self.subscriptions["memory"].consumer("one"))

    def _serve(self, seed: int) -> None:
        self.server = None
        if seed % 2:
            from bookstand.server import serve

            self.server = self.blocks.enter_context(serve(self.store, metrics="0"))

    def _objects(self) -> dict[str, Any]:
        topic, subscription = self.topics["buckets"], self.subscriptions["buckets"]
        shared = self.topics["shared"]
        found = {
            "Store": self.store,
            "Store without durability": self.throw_away,
            "Nodes": self.store.nodes,
            "Writer": self.writer,
            "Writer with chosen ids": self.adv,
            "Writer with deferred sync": self.deferred,
            "Writer of a closed ledger": self.closed,
            "Reader": self.reader,
            "Reader without recovery": self.following,
            "Transaction": self.transaction,
            "Topic": topic,
            "Subscription": subscription,
            "Consumer": self.consumer,
            "Cursor": subscription.cursor,
            "ManagedLedger": topic.ledger,
            "Tracker with buckets": subscription.tracker,
            "Tracker in memory": self.subscriptions["memory"].tracker,
            "Shared index": shared.shared_index,
            "View of a shared index": self.subscriptions["shared"].tracker,
            "Metrics": self.store.metrics(),
            "Storage": self.store.storage,
        }
        return found if self.server is None else found | {"Server": self.server}

    # -- threads -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        steps = [
            self._append,
            self._append_many,
            self._append_async,
            self._change_nodes,
            self._open_and_close,
            self._keep,
            *(lambda name=name: self._work_on(name) for name in self.topics),  # type: ignore[misc]
        ]
        self._threads = [threading.Thread(target=self._repeat, args=(step,), daemon=True) for step in steps]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE * 2)
            if thread.is_alive():
                self.failures.append("harm: a thread of the parent hangs")

    def _repeat(self, step: Callable[[], Any]) -> None:
        try:
            for _ in iter(step, "over"):
                if self.stopping.wait(PAUSES.get(step.__name__, 0.003)):
                    return
        except BaseException as error:
            self.failures.append(f"harm: {error!r} in a thread of the parent")

    def _append(self) -> None:
        self.confirmed[self.writer.id] = self.writer.append(b"one")

    def _append_many(self) -> None:
        if self.server is None:
            self.throw_away.create_ledger().append_many([b"many"] * 300)
        else:
            self.following.read_last_confirmed()

    def _append_async(self) -> None:
        with self.store.create_ledger() as writer:
            waiting = [writer.append_async(b"queued") for _ in range(20)]
            waiting[0].add_done_callback(_nothing)
            self.confirmed[writer.id] = waiting[-1].result(PATIENCE * 2)

    def _change_nodes(self) -> None:
        store = self.store
        with store.transaction() as transaction:
            transaction.put_node("/node", b"value")
        store.nodes.get("/node")
        list(self.reader)

    def _open_and_close(self) -> None:
        with bookstand.open(os.path.join(self.folder, "another")) as another:
            another.nodes.put("/node", b"value")

    def _keep(self) -> None:
        # No backup: with or without forks, py-lmdb may wait in it for an abort that waits for the backup.
        if random.randrange(2):
            self.throw_away.compact()
        else:
            self.store.verify()

    def _work_on(self, name: str) -> None:
        topic, subscription = self.topics[name], self.subscriptions[name]
        position = topic.publish(b"now")
        self.published.add((name, *position))
        topic.publish(b"delayed", deliver_after=10**9)
        for number, message in enumerate(subscription.receive(5, timeout=0)):
            if number == 4:
                subscription.nack(message)
            else:
                subscription.ack(message).result(PATIENCE * 2)
                self.acked.add((name, *message.position))

    # -- forks -------------------------------------------------------------------------------------------------------

    def child(self, number: int, queued: list[Any]) -> list[str]:
        """Problems that a child finds."""
        uses = self.uses[number % 4 :: 4]
        problems = [problem for use in uses if (problem := use.problem()) is not None]
        waiting = {"queued": queued[0], "queued last": queued[-1], "of a transaction": self.never}
        for what, one in waiting.items():
            problems += self._wait_in_child(what, one)
        problems += self._inherited()
        problems += self._leave_blocks(number)
        if number % 3 == 0:
            problems += self._own_store()
        if number % 25 == 8:
            gc.collect()
        return problems

    @staticmethod
    def _wait_in_child(what: str, one: Any) -> Iterator[str]:
        # One that is done gives its result; none completes in the child.
        if one.done():
            return
        uses: dict[str, Callable[[], Any]] = {
            "result()": one.result,
            "result(60)": lambda: one.result(60),
            "exception()": one.exception,
            "add_done_callback()": lambda: one.add_done_callback(_nothing),
        }
        for use, call in uses.items():
            try:
                call()
            except errors.ForkedStoreError:
                continue
            except BaseException as error:
                yield f"answer: {use} of a result {what} raised {error!r}"
            else:
                yield f"answer: {use} of a result {what} did not raise"

    def _inherited(self) -> Iterator[str]:
        """Locks of the parent that the child would keep after the parent is killed."""
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{descriptor}")
                if name.startswith(self.folder) and "FLOCK" in Path(f"/proc/self/fdinfo/{descriptor}").read_text():
                    yield f"inherited: the lock of {os.path.basename(name)}"

    def _leave_blocks(self, number: int) -> Iterator[str]:
        """The blocks of a child end normally, or by the exception that ends the child."""
        blocks = self.blocks.pop_all()
        if number % 2:
            try:
                with blocks:
                    raise SystemExit(7)
            except SystemExit:
                return
            except BaseException as error:
                yield f"answer: {error!r} replaces the exception that ends a block"
        # The ends of writers are durable: these raise.
        with suppress(errors.ForkedStoreError):
            blocks.close()

    def _own_store(self) -> Iterator[str]:
        try:
            with bookstand.open(self.store.path) as own:
                writer = own.create_ledger()
                called = threading.Event()
                pending = writer.append_async(b"of the child")
                pending.add_done_callback(lambda _: called.set())
                assert called.wait(60)
                assert (writer.append(b"of the child"), own.open_ledger(self.closed.id).last_add_confirmed) == (1, 99)
                with own.transaction() as transaction:
                    version = transaction.put_node(f"/child/{os.getpid()}", b"1")
                    version.add_done_callback(_nothing)
                assert version.result() == 0
                topic = own.topic(f"of child {os.getpid()}")
                topic.subscription("workers")
                topic.publish(b"of the child")
                topic.delete()
        except BaseException as error:
            yield f"own store: {error!r}"

    def _queue(self) -> list[Any]:
        """Results that are not there yet."""
        return [self.deferred.append_async(b"queued"), *(self.writer.append_async(b"queued") for _ in range(3))]

    def fork(self, number: int, queued: list[Any]) -> Callable[[], None]:
        """Fork; the returned function waits for the child."""
        outlet, inlet = os.pipe()

        def work() -> None:
            signal.alarm(int(PATIENCE) + 5)
            os.close(outlet)
            with open(inlet, "wb", buffering=0) as stream:
                stream.write(json.dumps(self.child(number, queued)).encode())

        process = None
        child = 0
        if number % 4 == 1:
            process = multiprocessing.get_context("fork").Process(target=work)
            process.start()
        else:
            child = os.fork()
            if child == 0:
                self._run_child(work, number)
        os.close(inlet)

        def finish() -> None:
            if process is None:
                status = self._await(child)
            else:
                process.join(self.patience)
                status = process.exitcode
                if status is None:
                    process.kill()
                    process.join()
            with open(outlet, "rb") as stream:
                found = stream.read()
            if status is None:
                self.failures.append(f"hang: child {number}")
            elif not found:
                self.failures.append(f"answer: child {number} ended with {status}")
            self.failures += json.loads(found or b"[]")[:MOST_OF_A_CHILD]

        return finish

    @staticmethod
    def _run_child(work: Callable[[], None], number: int) -> None:
        status = 9
        try:
            work()
            status = 0
        finally:
            # An exit like that of any program runs exit handlers and frees objects.
            if number % 20 != 2:
                os._exit(status)
        raise SystemExit(status)

    def _await(self, child: int) -> int | None:
        until = time.monotonic() + self.patience
        dumped = False
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until - self.patience / 2 and not dumped:
                for process in (os.getpid(), child):
                    os.kill(process, signal.SIGUSR2)
                dumped = True
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            time.sleep(0.001)

    patience = PATIENCE

    def run(self, count: int) -> int:
        number = 0
        while number < count and not self.failures:
            if number % 4 == 3:
                self._fork_in_handler(number)
            else:
                time.sleep(self.chance.random() * 0.003)
                self.fork(number, self._queue())()
            number += 1
        return number

    def _fork_in_handler(self, number: int) -> None:
        """Fork in the middle of a call of the main thread."""
        forked: list[Callable[[], None]] = []
        # Not in the handler, which may have interrupted a call that holds a lock of the store.
        queued = self._queue()

        def handle(*_: Any) -> None:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            forked.append(self.fork(number, queued))

        signal.signal(signal.SIGUSR1, handle)
        sender = threading.Timer(self.chance.random() * 0.003, os.kill, (os.getpid(), signal.SIGUSR1))
        sender.start()
        steps = [self._append, self._change_nodes, self._append_async, lambda: self._work_on("memory")]
        while not forked:
            self.chance.choice(steps)()
        forked[0]()
        sender.join()

    # -- afterwards --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self.stop()
        if not self.store.verify().ok:
            self.failures.append("harm: the store does not verify")
        for store in (self.store, self.throw_away):
            if not os.path.exists(store.path):
                self.failures.append(f"harm: {store.path} was removed")
        with suppress(errors.ForkedStoreError, FileNotFoundError):
            self.blocks.close()
        if os.path.exists(self.throw_away.path):
            self.failures.append("harm: the temporary store remains")
        self.failures += self._lost()

    def _lost(self) -> Iterator[str]:
        with bookstand.open(self.path, check="full") as store:
            for ledger, last in self.confirmed.items():
                if store.open_ledger(ledger).last_add_confirmed < last:
                    yield f"harm: confirmed entries of ledger {ledger} are lost"
            for name in self.topics:
                subscription = store.topic(name).subscription("workers")
                found = set()
                while messages := subscription.receive(100, timeout=0.2):
                    found |= {(name, *message.position) for message in messages}
                published = {one for one in self.published if one[0] == name}
                if lost := published - self.acked - found:
                    yield f"harm: {len(lost)} messages of topic {name} are lost"
                if repeated := found & self.acked:
                    yield f"harm: {len(repeated)} acknowledged messages of topic {name} are redelivered"
        if left := [name for name in os.listdir(self.path) if name.startswith(("open-", "read-", "serve-"))]:
            yield f"harm: the markers {left} remain"


def main(folder: str, seed: str, count: str, patience: str, defect: str = "") -> int:
    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-4)
    if defect:
        DEFECTS[defect]()
    # Where this process, or a child, hangs.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    parent = Parent(folder, int(seed))
    parent.patience = float(patience)
    parent.start()
    forks = parent.run(int(count))
    if not defect or not parent.failures:
        parent.close()
    print(json.dumps({"forks": forks, "problems": parent.failures}), flush=True)
    # Threads that a defect left hanging would keep the process.
    os._exit(0)


# -- the campaign ------------------------------------------------------------------------------------------------------


@contextmanager
def _place() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="bookstand-forks-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(seed: int, count: int, defect: str = "", patience: float = PATIENCE) -> Done:
    with _place() as folder:
        environment = own_environment() | {"TMPDIR": folder}
        arguments = [folder, str(seed), str(count), str(patience), *([defect] if defect else [])]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.forks", *arguments],
            stdout=subprocess.PIPE,
            env=environment,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=120 + count)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGUSR2)
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Done(count, [f"hang: the parent, seed {seed}"])
    if process.returncode or not output:
        return Done(count, [f"harm: the parent ended with {process.returncode}, seed {seed}"])
    told = json.loads(output.splitlines()[-1])
    kinds = Counter(problem.partition(":")[0] for problem in told["problems"])
    names = ("hang", "answer", "inherited", "own store", "harm")
    return Done(told["forks"], told["problems"], Counter({name: kinds[name] for name in names}))


KIND = Kind(lambda seed: run(seed, CASES))

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
