"""Short lives of a store: what processes do to it, each step told as :mod:`tests.soak.promises` wants it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any

import bookstand
from bookstand import errors
from bookstand.storage.storage import open_storage
from tests.soak.promises import ALL_OR_NOTHING, IN_PART, NEEDED, NEW_LEDGER, shown

SMALL_MAP = 1 << 20


class Life:
    """One process's doings with the store at ``path``; ``say`` hears of each step, ``arm`` lets things go wrong."""

    def __init__(self, path: str, seed: int, say: Callable[[dict[str, Any]], None], arm: Callable[[], None]) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.options: dict[str, Any] = {"witness": self.random.random() < 0.5}
        self.arm = arm
        self.say = say
        self.answer = ""
        self._effects: dict[str, Any] = {}
        self._kind = ALL_OR_NOTHING
        self._storage: Any = None
        self.store: Any = None
        self.writers: dict[str, Any] = {}
        self.versions: dict[str, int] = {}

    # -- telling -----------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self, name: str, kind: str = ALL_OR_NOTHING) -> Iterator[None]:
        """Tells how the block was answered, and goes on whatever it was."""
        self._effects = {}
        self._kind = kind
        answer = "ok"
        try:
            yield
        except errors.OutcomeUnknownError:
            answer = "unknown"
        except errors.BookstandError as error:
            answer = f"refused: {type(error).__name__} {error}"
        except BaseException as error:
            answer = f"leaked: {error!r} at {_where(error)}"
        self.answer = answer
        self.say({"step": name, "kind": kind, "answer": answer, "effects": self._effects})

    def will(self, effects: dict[str, Any]) -> None:
        """What the step is about to change; told at once, for the process may not come to tell how it ended."""
        self._effects = effects
        self.say({"step": "unanswered", "kind": self._kind, "answer": None, "effects": effects})

    def did(self, effects: dict[str, Any]) -> None:
        """This much of the step was confirmed."""
        self.say({"step": "part", "kind": self._kind, "answer": "ok", "effects": effects})

    # -- steps -------------------------------------------------------------------------------------------------------

    def open(self, kind: str = ALL_OR_NOTHING, **options: Any) -> None:
        with self.step("open", kind):
            self.store = bookstand.open(self.path, **self.options | options)

    def open_with_a_small_map(self) -> None:
        with self.step("open"):
            self._storage = open_storage(self.path, map_size=SMALL_MAP, witness=self.options["witness"])
            self.store = bookstand.open(self.path, **self.options)

    def close(self) -> None:
        self.writers = {}
        store, self.store = self.store, None
        storage, self._storage = self._storage, None
        for opened in (store, storage):
            if opened is not None:
                with self.step("close"):
                    opened.close()

    def create(self, name: str, kind: str = ALL_OR_NOTHING, **options: Any) -> None:
        with self.step("create", kind):
            self.will({NEW_LEDGER: True})
            self.writers[name] = self.store.create_ledger(**options)
            self._effects = {f"ledger {self.writers[name].id}": True}

    def create_adv(self) -> None:
        ledger_id = 1000 + self.random.randrange(1000)
        with self.step("create adv"):
            self.will({f"ledger {ledger_id}": True})
            self.writers["adv"] = self.store.create_ledger_adv(ledger_id)

    def payload(self) -> bytes:
        return self.random.randbytes(self.random.choice([1, 20, 300, 5000]))

    def append(self, name: str, kind: str = ALL_OR_NOTHING) -> None:
        writer = self.writers.get(name)
        if writer is None:
            return
        data = self.payload()
        with self.step("append", kind):
            entry_id = writer.last_add_pushed + 1
            self.will({f"entry {writer.id}:{entry_id}": shown(data)})
            given = writer.append(data)
            assert given == entry_id, f"{given} instead of {entry_id}"

    def append_many(self, name: str, count: int, size: int = 0) -> None:
        """All at once: in one commit as long as they are few."""
        writer = self.writers.get(name)
        if writer is None:
            return
        payloads = [self.random.randbytes(size) if size else self.payload() for _ in range(count)]
        with self.step("append many", IN_PART):
            first = writer.last_add_pushed + 1
            self.will({f"entry {writer.id}:{first + i}": shown(data) for i, data in enumerate(payloads)})
            writer.append_many(payloads)

    def append_async(self, name: str) -> None:
        writer = self.writers.get(name)
        if writer is None:
            return
        first = writer.last_add_pushed + 1
        payloads = {first + i: self.payload() for i in range(8)}
        self._in_a_window(writer, payloads, lambda entry_id: writer.append_async(payloads[entry_id]))

    def write_out_of_order(self) -> None:
        writer = self.writers.get("adv")
        if writer is None:
            return
        ids = [writer.last_add_pushed + 1 + i for i in range(4)]
        self.random.shuffle(ids)
        payloads = {entry_id: self.payload() for entry_id in ids}
        self._in_a_window(writer, payloads, lambda entry_id: writer.write_async(entry_id, payloads[entry_id]))

    def _in_a_window(self, writer: Any, payloads: dict[int, bytes], send: Callable[[int], Any]) -> None:
        with self.step("window", IN_PART):
            self.will({f"entry {writer.id}:{entry_id}": shown(data) for entry_id, data in payloads.items()})
            pendings = {entry_id: send(entry_id) for entry_id in payloads}
            failures = []
            for entry_id, pending in pendings.items():
                try:
                    pending.result()
                    self.did({f"entry {writer.id}:{entry_id}": shown(payloads[entry_id])})
                except errors.BookstandError as error:
                    failures.append(error)
            if failures:
                raise failures[0]

    def append_deferred(self) -> None:
        """Answered early; promised once forced."""
        writer = self.writers.get("deferred")
        if writer is None:
            return
        first = writer.last_add_pushed + 1
        payloads = [self.payload() for _ in range(3)]
        with self.step("force", IN_PART):
            self.will({f"entry {writer.id}:{first + i}": shown(data) for i, data in enumerate(payloads)})
            for data in payloads:
                writer.append(data)
            writer.force()

    def put_node(self, path: str, kind: str = ALL_OR_NOTHING) -> None:
        value = self.payload()
        version = self.versions.get(path, -1) + 1
        with self.step("put node", kind):
            self.will({f"node {path}": [shown(value), version]})
            self.store.nodes.put(path, value, version - 1)
            self.versions[path] = version

    def delete_node(self, path: str) -> None:
        if path not in self.versions:
            return
        with self.step("delete node"):
            self.will({f"node {path}": None})
            self.store.nodes.delete(path)
            del self.versions[path]

    def transact(self, name: str) -> None:
        writer = self.writers.get(name)
        if writer is None:
            return
        data, path = self.payload(), f"/t/{self.random.randrange(1 << 30)}"
        with self.step("transaction"), self.store.transaction() as together:
            created = together.create_ledger()
            first, added = together.append(created, data), together.append(writer, data)
            together.put_node(path, data)
            self.will(
                {
                    f"ledger {created.id}": True,
                    f"entry {created.id}:{first}": shown(data),
                    f"entry {writer.id}:{added}": shown(data),
                    f"node {path}": [shown(data), 0],
                }
            )

    def close_ledger(self, name: str) -> None:
        writer = self.writers.pop(name, None)
        if writer is None:
            return
        with self.step("close ledger"):
            self.will({f"closed {writer.id}": writer.last_add_confirmed})
            writer.close()

    def recover(self, name: str) -> None:
        """By another client; from here on its writer is fenced."""
        writer = self.writers.pop(name, None)
        if writer is not None:
            self.recover_id(writer.id)

    def recover_id(self, ledger_id: int) -> None:
        with self.step("recover"):
            reader = self.store.open_ledger(ledger_id)
            self._effects = {f"closed {ledger_id}": reader.last_add_confirmed}

    def delete(self, name: str) -> None:
        writer = self.writers.pop(name, None)
        if writer is None:
            return
        with self.step("delete ledger"):
            self.will({f"ledger {writer.id}": None})
            self.store.delete_ledger(writer.id)

    def compact(self) -> None:
        with self.step("compact"):
            self.store.compact()

    def backup(self) -> None:
        """A backup that was confirmed is a store with the same contents."""
        folder = f"{self.path}-backup-{self.random.randrange(1 << 30)}"
        with self.step("backup"):
            self.store.backup(folder)
            self._effects = {f"backup {folder}": True}

    def verify(self) -> None:
        with self.step("verify"):
            report = self.store.verify()
            assert report.ok, report.problems

    def read_all(self) -> None:
        """What is read while things go wrong is right, or an error."""
        with self.step("read"):
            for ledger_id in self.store.list_ledgers():
                reader = self.store.open_ledger(ledger_id, recovery=False)
                for entry in reader:
                    assert reader.read(entry.entry_id, entry.entry_id)[0].data == entry.data
            self.store.nodes.children("/")

    # -- the end -----------------------------------------------------------------------------------------------------

    def use_again(self) -> None:
        """The device is well: so is the store, at once, or once it was opened again if it says so."""
        if self.store is not None:
            self.create("again")
            if self.answer != "unknown":
                self.work("again")
                return
        self.close()
        self.open(NEEDED, read_only=False, check="fast", durability="commit")
        if self.store is not None:
            self.work("once more")
            self.close()

    def work(self, name: str) -> None:
        """What any process can do to a store that is well."""
        self.create(name, NEEDED)
        self.append(name, NEEDED)
        self.put_node(f"/{name}", NEEDED)


# -- lives -----------------------------------------------------------------------------------------------------------


def nothing(life: Life) -> None:
    """Before the life: no store yet."""


def some_ledgers(life: Life) -> None:
    life.open()
    for name in ("a", "b"):
        life.create(name)
        life.append_many(name, 3)
    life.put_node("/n")
    life.close_ledger("a")
    life.close()


def some_ledgers_left_by_a_kill(life: Life) -> None:
    """Its marker stays, and what it was making."""
    life.open()
    for name in ("a", "b"):
        life.create(name)
        life.append_many(name, 3)
    life.append("a")
    life.put_node("/n")
    with open(f"{life.path}/creating-1", "wb") as leftover:
        leftover.write(b"half a file")
    if life.random.random() < 0.5:
        os.unlink(f"{life.path}/lock.mdb")


def creation(life: Life) -> None:
    life.options["durability"] = life.random.choice(["commit", "commit", "none"])
    life.arm()
    life.open()
    if life.store is not None:
        life.create("a")
        life.append("a")
        life.put_node("/n")
    life.close()


def commits(life: Life) -> None:
    life.open()
    for name in ("a", "b", "c", "d"):
        life.create(name)
        life.append(name)
    life.create("deferred", deferred_sync=True)
    life.create_adv()
    life.put_node("/old")
    life.arm()
    steps: list[Callable[[], None]] = [
        lambda: life.append("a"),
        lambda: life.append("b"),
        lambda: life.append_many("b", 20),
        lambda: life.append_async("c"),
        life.write_out_of_order,
        life.append_deferred,
        lambda: life.put_node("/old"),
        lambda: life.put_node("/new"),
        lambda: life.delete_node("/old"),
        lambda: life.transact("a"),
        lambda: life.close_ledger("b"),
        lambda: life.recover("c"),
        lambda: life.delete("d"),
        lambda: life.create("e"),
        lambda: life.append("e"),
        life.read_all,
    ]
    life.random.shuffle(steps)
    for step in steps[:6]:
        step()
    life.close()


def opening(life: Life) -> None:
    life.options["check"] = life.random.choice(["fast", "full"])
    life.arm()
    life.open()
    if life.store is not None:
        life.recover_id(1)
        life.create("x")
        life.append("x")
        life.read_all()
    life.close()


def reading(life: Life) -> None:
    life.arm()
    life.open(read_only=True, witness=False)
    if life.store is not None:
        life.read_all()
        life.verify()
    life.close()


def growth(life: Life) -> None:
    """The map is full again and again."""
    life.open_with_a_small_map()
    life.create("a")
    life.create("b")
    life.arm()
    for size in (150_000, 400_000):
        life.append_many("a", 4, size)
        life.append("b")
    life.read_all()
    life.close()


def upkeep(life: Life) -> None:
    life.open()
    for name in ("a", "b", "c"):
        life.create(name)
        life.append_many(name, 10)
    life.delete("c")
    life.arm()
    steps: list[Callable[[], None]] = [
        lambda: life.delete("b"),
        life.compact,
        life.backup,
        lambda: life.append("a"),
    ]
    life.random.shuffle(steps)
    for step in steps:
        step()
    life.put_node("/kept up")
    life.close()


# Name -> what was before it, and the life.
LIVES: dict[str, tuple[Callable[[Life], None], Callable[[Life], None]]] = {
    "commits": (some_ledgers, commits),
    "creation": (nothing, creation),
    "opening": (some_ledgers, opening),
    "opening after a kill": (some_ledgers_left_by_a_kill, opening),
    "growth": (some_ledgers, growth),
    "upkeep": (some_ledgers, upkeep),
    "reading": (some_ledgers, reading),
}


def _where(error: BaseException) -> str:
    return " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)[:-6:-1]
    )
