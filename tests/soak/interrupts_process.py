"""One process of the kind ``interrupts``: it interrupts its own calls, and looks after each what became of the store.

``python -m tests.soak.interrupts_process FOLDER SEED POINTS`` prints a line for each point, so that whoever started it
notices when it hangs. Each point is a random call that is interrupted by a random kind of exception somewhere inside.
The exception is retained while the process looks, as in an ``except`` block or at a prompt:

- *a thread* of this process publishes to the same topic, writes a node, and acknowledges;
- *another process* writes a node: LMDB's lock of writers is free;
- *this thread* makes the same kind of call again, which works, or is rejected with an error that says to open again;
- *every message* whose publication was confirmed, and whose acknowledgment was not, is delivered by the same
  subscription; none is delivered whose acknowledgment was durable.

At the end the store is closed, which is interrupted as well, opened again, verified, and read.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import random
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import bookstand
from bookstand import SubscriptionConfig, TopicConfig
from bookstand.errors import BookstandError, InterruptedOperationError, OutcomeUnknownError
from bookstand.storage.format.position import Position
from tests.kit import PATIENCE
from tests.soak.interruption import Interruption
from tests.soak.interrupts_sweeps import SWEEPS, sweep

KINDS = (KeyboardInterrupt, MemoryError, TimeoutError)

NEIGHBOR = """
import sys, bookstand
with bookstand.open(sys.argv[1]) as store:
    print("open", flush=True)
    for number, line in enumerate(sys.stdin):
        store.nodes.put("/neighbor", b"%d" % number)
        print(number, flush=True)
"""

CHECK_EVERY = 8
"""After so many points the topic is drained; all other checks are made at each."""


patience = PATIENCE
"""Seconds after which what another thread or process does is taken to hang; and a call, after four times as many."""


class BrokenPromiseError(Exception):
    """A promise was broken."""


class Beside:
    """A thread of the same process, which does what it is told to."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._answers: SimpleQueue[BaseException | None] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (action := self._asked.get()) is not None:
            try:
                action()
                self._answers.put(None)
            except BaseException as error:
                self._answers.put(error)

    def begin(self, action: Callable[[], object]) -> None:
        self._asked.put(action)

    def do(self, what: str, action: Callable[[], object]) -> None:
        self.begin(action)
        self.end(what)

    def end(self, what: str) -> None:
        try:
            error = self._answers.get(timeout=patience)
        except Exception:
            faulthandler.dump_traceback()
            raise BrokenPromiseError(f"another thread hangs: {what}") from None
        if error is not None:
            raise error


class Neighbor:
    """Another process that has the store open and writes to it."""

    def __init__(self, path: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NEIGHBOR, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._expect()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _expect(self) -> None:
        try:
            self._lines.get(timeout=patience)
        except Exception:
            raise BrokenPromiseError("another process cannot write") from None

    def write(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._expect()

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)


class Session:
    """The store under test, what was confirmed to its users, and their calls."""

    def __init__(self, path: str, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.config = TopicConfig(
            max_entries_per_ledger=self.random.choice([3, 10, 1000]),
            delayed_delivery_tracker=self.random.choice(["in_memory", "bucket"]),
        )
        self.sub_config = SubscriptionConfig(nack_delay=100, durable_nacks=self.random.random() < 0.5)
        self.numbers = iter(range(1 << 40))
        self.published: dict[bytes, None] = {}
        """Confirmed, and not acknowledged for certain."""
        self.acked: set[bytes] = set()
        """Durably."""
        self.maybe_acked: set[bytes] = set()
        self.nodes: dict[str, set[bytes | None]] = {}
        """What each node may hold."""
        self.entries: dict[int, dict[int, bytes]] = {}
        """Confirmed entries of ledgers."""
        self.held: list[Any] = []
        self.writer: Any = None
        self.rejections = 0
        self.open()

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.store = bookstand.open(self.path)
        self.open_topic()

    def open_topic(self) -> None:
        self.held = []
        self.topic = self.store.topic("t", self.config)
        self.sub = self.topic.subscription("s", self.sub_config)
        self.cursor = self.topic.cursor("plain")
        self.consumer = self.sub.consumer()

    # -- calls ---------------------------------------------------------------------------------------------------------

    def payload(self) -> bytes:
        return b"%d" % next(self.numbers)

    def publish(self) -> None:
        payload = self.payload()
        self.topic.publish(payload)
        self.published[payload] = None

    def publish_async(self) -> None:
        payloads = [self.payload() for _ in range(3)]
        for pending in [self.topic.publish_async(payload) for payload in payloads]:
            pending.result(PATIENCE)
        self.published.update(dict.fromkeys(payloads))

    def publish_awaited(self) -> None:
        payload = self.payload()

        async def publish() -> None:
            await self.topic.publish_async(payload)

        asyncio.run(publish())
        self.published[payload] = None

    def publish_many(self) -> None:
        payloads = [self.payload() for _ in range(self.random.randint(1, 6))]
        self.topic.publish_many(payloads)
        self.published.update(dict.fromkeys(payloads))

    def publish_batch(self) -> None:
        payloads = [self.payload() for _ in range(3)]
        self.topic.publish_batch(payloads)
        self.published.update(dict.fromkeys(payloads))

    def publish_delayed(self) -> None:
        payload = self.payload()
        self.topic.publish(payload, deliver_after=1)
        self.published[payload] = None

    def receive(self) -> None:
        self.held += self.sub.receive(self.random.randint(1, 5), timeout=0)

    def receive_as_consumer(self) -> None:
        self.held += self.consumer.receive(self.random.randint(1, 5), timeout=0)

    def receive_waiting(self) -> None:
        self.held += self.sub.receive(self.random.randint(1, 5), timeout=0.002)

    def receive_awaited(self) -> None:
        self.held += asyncio.run(self.sub.receive_async(2, timeout=0.001))

    def receive_cancelled(self) -> None:
        async def receive() -> None:
            task = asyncio.ensure_future(self.sub.receive_async(2))
            for _ in range(self.random.randint(0, 3)):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                self.held += await task

        asyncio.run(receive())

    def take_held(self) -> list[Any]:
        if not self.held:
            self.held += self.sub.receive(3, timeout=0)
        count = self.random.randint(0, len(self.held))
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    def acked_durably(self, messages: list[Any]) -> None:
        for message in messages:
            payload = message.payload
            self.acked.add(payload)
            self.published.pop(payload, None)

    def ack(self) -> None:
        messages = self.take_held()
        self.maybe_acked.update(message.payload for message in messages)
        for message in messages:
            self.sub.ack(message).result(PATIENCE)
            self.acked_durably([message])

    def ack_many(self) -> None:
        messages = self.take_held()
        self.maybe_acked.update(message.payload for message in messages)
        self.sub.ack_many(messages).result(PATIENCE)
        self.acked_durably(messages)

    def ack_unflushed(self) -> None:
        messages = self.take_held()
        self.maybe_acked.update(message.payload for message in messages)
        for message in messages:
            self.consumer.ack(message)

    def nack(self) -> None:
        self.sub.nack_many(self.take_held())

    def redeliver_all(self) -> None:
        self.held = []
        self.sub.redeliver_all()

    def look(self) -> None:
        stats = self.sub.stats
        if min(stats.backlog, stats.delayed, stats.out, stats.waiting, stats.nacked) < 0:
            raise BrokenPromiseError(f"negative counts: {stats}")
        self.sub.peek_delayed(limit=3)

    def change_consumer(self) -> None:
        self.consumer.close()
        self.consumer = self.sub.consumer()

    def reset(self) -> None:
        """To the mark-delete position, which moves nothing that was acknowledged durably and in turn."""
        self.held = []
        ledger_id, entry_id = self.sub.cursor.mark_delete_position
        mark_delete = ledger_id, max(0, entry_id)
        self.maybe_acked |= self.acked
        self.published.update(dict.fromkeys(self.acked, None))
        self.forgotten = True
        self.acked.clear()
        self.sub.reset(mark_delete)

    def trim(self) -> None:
        self.topic.trim()

    def roll(self) -> None:
        self.topic.ledger.roll()

    def change_config(self) -> None:
        self.topic.change_config(self.config)
        self.sub.change_config(self.sub_config)

    def close_topic(self) -> None:
        self.topic.close()
        self.open_topic()

    def close_store(self) -> None:
        self.store.close()
        self.open()

    def use_cursor(self) -> None:
        for entry in self.cursor.read(3):
            self.cursor.ack(entry.position)
        self.cursor.flush()

    def read_topic(self) -> None:
        extent = self.topic.ledger.extent
        if extent.ledger_ids:
            self.topic.ledger.read(Position(extent.ledger_ids[0], 0), 5)

    def put_node(self) -> None:
        path = f"/n{self.random.randrange(4)}"
        value = self.payload()
        self.nodes.setdefault(path, {None}).add(value)
        self.store.nodes.put(path, value)
        self.nodes[path] = {value}

    def delete_node(self) -> None:
        path = f"/n{self.random.randrange(4)}"
        known = self.nodes.setdefault(path, {None})
        known.add(None)
        with suppress(bookstand.errors.NoSuchNodeError):
            self.store.nodes.delete(path)
        self.nodes[path] = {None}

    def read_node(self) -> None:
        path = f"/n{self.random.randrange(4)}"
        self.check_node(path)

    def check_node(self, path: str) -> None:
        try:
            value = self.store.nodes.get(path)[0]
        except bookstand.errors.NoSuchNodeError:
            value = None
        if value not in self.nodes.get(path, {None}):
            raise BrokenPromiseError(f"node {path} is {value!r}, not one of {self.nodes.get(path)}")

    def usable_writer(self) -> Any:
        if self.writer is None or self.writer.is_closing or self.writer.client.closed:
            self.writer = self.store.create_ledger()
        # An interruption may have come between the two.
        self.entries.setdefault(self.writer.id, {})
        return self.writer

    def append(self) -> None:
        writer, payload = self.usable_writer(), self.payload()
        self.entries[writer.id][writer.append(payload)] = payload

    def append_async(self) -> None:
        writer = self.usable_writer()
        payloads = [self.payload() for _ in range(3)]
        pendings = [writer.append_async(payload) for payload in payloads]
        for pending, payload in zip(pendings, payloads, strict=True):
            self.entries[writer.id][pending.result(PATIENCE)] = payload

    def append_many(self) -> None:
        writer = self.usable_writer()
        payloads = [self.payload() for _ in range(3)]
        for entry_id, payload in zip(writer.append_many(payloads), payloads, strict=True):
            self.entries[writer.id][entry_id] = payload

    def transaction(self) -> None:
        writer, payload = self.usable_writer(), self.payload()
        self.nodes.setdefault("/t", {None}).add(payload)
        with self.store.transaction() as transaction:
            entry_id = transaction.append(writer, payload)
            transaction.put_node("/t", payload)
        self.entries[writer.id][entry_id] = payload
        self.nodes["/t"] = {payload}

    def close_writer(self) -> None:
        self.usable_writer().close()

    def read_ledger(self) -> None:
        if self.entries:
            self.check_ledger(self.random.choice(list(self.entries)), recovery=False)

    def check_ledger(self, ledger_id: int, recovery: bool) -> None:
        reader = self.store.open_ledger(ledger_id, recovery)
        for entry_id, payload in self.entries[ledger_id].items():
            (found,) = reader.read_unconfirmed(entry_id, entry_id)
            if found.data != payload:
                raise BrokenPromiseError(f"entry {ledger_id}:{entry_id} is {found.data!r}, not {payload!r}")

    def recover_ledger(self) -> None:
        if self.entries:
            ledger_id = self.random.choice(list(self.entries))
            self.check_ledger(ledger_id, recovery=True)
            if self.writer is not None and self.writer.id == ledger_id:
                self.writer = None

    def delete_ledger(self) -> None:
        if self.entries:
            ledger_id = self.random.choice(list(self.entries))
            del self.entries[ledger_id]
            self.writer = None
            self.store.delete_ledger(ledger_id, missing_ok=True)

    def compact(self) -> None:
        self.store.compact()

    # -- what is to be true --------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """What is not acknowledged is delivered, by the subscription that was interrupted."""
        self.held = []
        missing = set(self.published) - self.maybe_acked
        self.sub.redeliver_all()
        seen = set()
        for _ in range(2000):
            messages = self.sub.receive(100, timeout=0 if missing <= seen else 1.0)
            if not messages and missing <= seen:
                break
            if not messages:
                # Nacks and delays are over by now.
                self.misses += 1
                if self.misses > 5:
                    break
            for message in messages:
                if message.payload in self.acked:
                    raise BrokenPromiseError(
                        f"delivered again: {message.payload!r} at {message.id}, whose acknowledgment was durable"
                    )
                seen.add(message.payload)
            if messages:
                self.misses = 0
                self.sub.ack_many(messages).result(PATIENCE)
                self.acked_durably(messages)
        if missing - seen:
            raise BrokenPromiseError(f"not delivered: {sorted(missing - seen)[:5]} of {len(missing)}; {self.sub.stats}")

    misses = 0


CALLS: list[Callable[[Session], None]] = [
    *(Session.publish, Session.publish_async, Session.publish_awaited, Session.publish_many, Session.publish_batch),
    *(Session.publish_delayed, Session.receive, Session.receive_as_consumer, Session.receive_waiting),
    *(Session.receive_awaited, Session.receive_cancelled, Session.ack, Session.ack_many, Session.ack_unflushed),
    *(Session.nack, Session.redeliver_all, Session.look, Session.change_consumer, Session.reset, Session.trim),
    *(Session.roll, Session.change_config, Session.close_topic, Session.close_store, Session.use_cursor),
    *(Session.read_topic, Session.put_node, Session.delete_node, Session.read_node, Session.append),
    *(Session.append_async, Session.append_many, Session.transaction, Session.close_writer, Session.read_ledger),
    *(Session.recover_ledger, Session.delete_ledger, Session.compact),
]


class Round:
    def __init__(self, folder: str, seed: int) -> None:
        self.random = random.Random(seed ^ 0x5EED)
        self.session = Session(f"{folder}/store", seed)
        self.beside = Beside()
        self.neighbor = Neighbor(self.session.path)
        self.lengths: dict[str, int] = {}
        self.places: set[Any] = set()
        self.met = 0

    def run(self, points: int) -> None:
        for one in SWEEPS:
            faulthandler.dump_traceback_later(8 * patience, exit=True)
            try:
                self.met += sweep(one, points // 20, self.random.random(), self.beside.do, self.random.choice(KINDS))
            except Exception as error:
                raise BrokenPromiseError(f"{one.__name__}: {type(error).__name__}: {error}") from error
            print(self.met, flush=True)
        calls = list(CALLS)
        while self.met < points:
            # What hangs says where.
            faulthandler.dump_traceback_later(4 * patience, exit=True)
            self.one(self.random.choice(calls))
            print(self.met, flush=True)
        self.end()

    def one(self, call: Callable[[Session], None]) -> None:
        session, name = self.session, call.__name__
        number = self.random.randint(1, self.lengths.setdefault(name, 20_000))
        kind = self.random.choice(KINDS)
        interruption = Interruption(number, kind)
        raised: BaseException | None = None
        self.beside.begin(self.meanwhile)
        try:
            with interruption:
                call(session)
        except KINDS as error:
            raised = error
        except BookstandError as error:
            # What an earlier interruption left; or the interruption is the reason.
            raised = error
            self.session.rejections += 1
        except RuntimeError as error:
            raised = error
            if not isinstance(error.__context__, KINDS):
                # Else it is of the Condition of a Thread that is being started, which does not bear an interruption.
                raise
        except TypeError as error:
            raised = error
            if "'traceback' object is not callable" not in str(error):
                # CPython 3.11 makes this of an exception that is raised at the entry of a traced function, at times.
                raise
        if interruption.place is None:
            self.lengths[name] = interruption.instructions
        elif number > 0.9 * self.lengths[name]:
            # It may take longer by now.
            self.lengths[name] = number * 3 // 2
        if interruption.place is not None:
            self.met += 1
            code, at = interruption.place
            self.places.add((code.co_filename, code.co_qualname, at))
        where = f"{name} interrupted by {kind.__name__} in {interruption.place and interruption.place[0].co_qualname}"
        try:
            self.beside.end("what was begun before the interruption")
            self.look(call)
        except BrokenPromiseError:
            raise
        except BaseException as error:
            raise BrokenPromiseError(f"after {where}: {type(error).__name__}: {error}") from error
        del raised

    def look(self, call: Callable[[Session], None]) -> None:
        """With the exception at hand."""
        session = self.session
        self.neighbor.write()
        if call is Session.close_store:
            # Whatever became of the call, closing works now, in any thread, and so does opening.
            self.beside.do("close", session.store.close)
            session.open()
        elif not session.topic.usable:
            session.open_topic()
        self.beside.do("put a node", lambda: session.store.nodes.put("/beside", b"1"))
        self.beside.do("publish", self.publish_beside)
        self.again(call)
        if self.met % CHECK_EVERY == 0:
            session.drain()

    def meanwhile(self) -> None:
        """What another thread does during the call. It may be told that the call was interrupted, or has closed what it
        uses; but it ends."""
        store, topic = self.session.store, self.session.topic
        with suppress(BookstandError):
            for _ in range(2):
                store.nodes.put("/meanwhile", b"1")
                payload = self.session.payload()
                topic.publish(payload)
                self.session.published[payload] = None

    def publish_beside(self) -> None:
        self.session.publish()

    def again(self, call: Callable[[Session], None]) -> None:
        """The same call works, if need be after what the error says is done."""
        session = self.session
        try:
            call(session)
        except InterruptedOperationError as error:
            if "open it again" not in str(error):
                raise
            session.rejections += 1
            session.cursor = session.topic.cursor("plain")
            call(session)
        except OutcomeUnknownError:
            session.rejections += 1
            call(session)

    def end(self) -> None:
        session = self.session
        session.drain()
        for _ in range(self.random.randint(0, 2)):
            with suppress(*KINDS), Interruption(self.random.randint(1, 20_000)):
                session.store.close()
        session.store.close()
        gc.collect()
        self.neighbor.leave()
        session.store = bookstand.open(session.path, check="full")
        report = session.store.verify()
        if not report.ok:
            raise BrokenPromiseError(f"verify: {report.problems[:3]}")
        for path in session.nodes:
            session.check_node(path)
        for ledger_id in session.entries:
            session.check_ledger(ledger_id, recovery=True)
        session.open_topic()
        session.drain()
        session.store.close()


def main(seed: int, points: int) -> int:
    faulthandler.enable()
    logging.getLogger("bookstand").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        one = Round(folder, seed)
        print("ready", flush=True)
        try:
            one.run(points)
        except BrokenPromiseError as problem:
            print(f"problem: {problem}", flush=True)
            traceback.print_exc()
            return 1
        print(f"done {one.met} {len(one.places)} {one.session.rejections}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
