"""Damaged files, each opened, read and written by a process of its own: it may be refused, it may lose entries and say
so, but it never ends a process, never gives a wrong payload, and never takes damage for absence."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import bookstand
from tests.kit import own_environment

PAGE = 4096

SECONDS_OF_WORK = 15
"""Of the processor, for one trial: some hundred times what it needs."""

SECONDS_TO_WAIT = 100

# An edit is ["cut", size], ["write", offset, hex] or ["copy", from page, to page]; a damage is a list of them.
Damage = list[list[Any]]


class Shape(NamedTuple):
    """What a store holds: entries of each ledger, the ledgers whose entries are larger than a page, and nodes.

    The last ledger is written one entry a commit, last of all.
    """

    ledgers: tuple[int, ...]
    large: tuple[int, ...]
    nodes: int
    salt: int = 0

    @classmethod
    def of(cls, seed: int) -> Shape:
        """A small store, another one for each seed."""
        rng = random.Random(seed)
        ledgers = (rng.randrange(50, 110), rng.randrange(10, 30), rng.randrange(1, 4), rng.randrange(2, 5))
        return cls(ledgers, (2, 3) if rng.random() < 0.5 else (2,), rng.randrange(10, 30), seed)

    def payload(self, ledger_id: int, entry_id: int) -> bytes:
        if ledger_id in self.large:
            size = 9_000 + 5_000 * entry_id
        else:
            size = 10 + (37 + self.salt) * entry_id % 300
        return (b"%d:%d:%d/" % (self.salt, ledger_id, entry_id) * (size // 4 + 1))[:size]

    def node(self, number: int) -> tuple[str, bytes]:
        return f"/node/{number}", b"value of node %d" % number

    @property
    def entries(self) -> int:
        return sum(self.ledgers)


SHAPE = Shape((300, 40, 3, 0, 5), (2, 4), 50)
"""Ledger 3 has been deleted."""

LEDGERS = {ledger_id: count for ledger_id, count in enumerate(SHAPE.ledgers) if count}


class Content(NamedTuple):
    """What can be read at one moment: entries of each ledger, which of them are closed, and how many nodes are there.
    Nodes are written in their order, and never again."""

    ledgers: dict[int, int]
    closed: list[int]
    nodes: int


def make(path: Path, shape: Shape = SHAPE, images: list[bytes] | None = None) -> list[Content]:
    """A store with closed and open ledgers, a deleted ledger and some nodes; returns what it held after each step.

    ``images`` takes the data file as it was after each step of the second half.
    """
    now = Content({}, [], 0)
    history = []
    last = len(shape.ledgers) - 1

    def step(more_entries: tuple[int, int] | None = None, closed: int | None = None, nodes: int = 0) -> None:
        nonlocal now
        ledgers = dict(now.ledgers)
        if more_entries is not None:
            ledgers[more_entries[0]] = ledgers.get(more_entries[0], 0) + more_entries[1]
        now = Content(ledgers, now.closed + ([] if closed is None else [closed]), now.nodes + nodes)
        history.append(now)
        if images is not None and len(ledgers) == last + 1:
            images.append((path / "data.mdb").read_bytes())

    with bookstand.open(path, witness=True) as store:
        for ledger_id, count in enumerate(shape.ledgers[:-1]):
            writer = store.create_ledger()
            step((ledger_id, 0))
            for first in range(0, count, 50):
                ids = range(first, min(first + 50, count))
                writer.append_many(shape.payload(ledger_id, entry_id) for entry_id in ids)
                step((ledger_id, len(ids)))
            if not count:
                writer.append_many([b"deleted"] * 20)
                store.delete_ledger(writer.id)
            elif ledger_id != 1:
                writer.close()
                step(closed=ledger_id)
        for number in range(shape.nodes):
            store.nodes.put(*shape.node(number))
            step(nodes=1)
        writer = store.create_ledger()
        assert writer.id == last
        step((last, 0))
        for entry_id in range(shape.ledgers[last]):
            writer.append(shape.payload(last, entry_id))
            step((last, 1))
    return history


def left_by_a_crash(path: Path) -> None:
    """As if the last process that had the store open had died: its marker is there, and nobody holds it."""
    (path / "open-1-00000000").touch()


def trials(
    pristine: Path, damages: Iterable[Damage], folder: Path, shape: Shape = SHAPE, **options: Any
) -> list[dict[str, Any]]:
    """What became of each: see :func:`_examine`; ``signal`` is what ended the process, or 0."""
    damages = list(damages)
    folder.mkdir(exist_ok=True)
    plan = folder / "plan.json"
    told = {"pristine": str(pristine), "damages": damages, "options": options, "shape": shape}
    plan.write_text(json.dumps(told))
    source = "import sys; from tests.storage import trials; trials.run(sys.argv[1])"
    # Every trial ends by itself, however slow the machine is; so does the whole.
    ended = subprocess.run(
        [sys.executable, "-c", source, str(plan)],
        stdout=subprocess.PIPE,
        env=own_environment(PYTHONFAULTHANDLER=""),
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-300:]
    results = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(results) == len(damages)
    return results


def check(
    results: Iterable[dict[str, Any]],
    damages: Iterable[Damage],
    witness: bool = False,
    shape: Shape = SHAPE,
    history: Iterable[Content] | None = None,
) -> list[dict[str, Any]]:
    """None of them may be bad; returns them."""
    bad = []
    results = list(results)
    for result, damage in zip(results, damages, strict=True):
        why = fault(result, witness, shape, history)
        if why is not None:
            bad.append((why, damage, result))
    assert not bad, f"{len(bad)} of {len(results)}: {bad[:5]}"
    return results


def fault(
    result: dict[str, Any], witness: bool = False, shape: Shape = SHAPE, history: Iterable[Content] | None = None
) -> str | None:
    """What was wrong with how the store took its damage; None if nothing was."""
    if result["signal"] in (signal.SIGXCPU, signal.SIGALRM):
        return "no end"
    if result["signal"]:
        return "killed"
    if result["leaked"]:
        return "an error that is not ours"
    if result["wrong"]:
        return "wrong payload"
    if result["spoilt"]:
        return "reading was another after writing"
    if not result["opened"]:
        return None
    if rolled_back(result, shape, history) and not result["problems"]:
        # A whole store, only an earlier one: nothing in the file can tell.
        return "rolled back past the witness" if witness else None
    if {-13, -7} & set(result["codes"]):
        return "absence instead of damage"
    if not result["whole"] and not result["problems"]:
        return "lost without a problem in verify()"
    return None


def rolled_back(result: dict[str, Any], shape: Shape = SHAPE, history: Iterable[Content] | None = None) -> bool:
    """Whether what was read is exactly what the store held some commits ago."""
    if result["whole"] or result["content"] is None:
        return False
    if history is None:
        last = len(shape.ledgers) - 1
        before_last = [*shape.ledgers[:last], shape.ledgers[last] - 1]
        return bool(result["content"]["counts"] == before_last)
    counts, closed, nodes = (result["content"][name] for name in ("counts", "closed", "nodes"))
    for then in history:
        expected = [then.ledgers.get(ledger_id, -1) for ledger_id in range(len(shape.ledgers))]
        # A deleted ledger is not there, whatever it held.
        expected = [-1 if shape.ledgers[n] == 0 else count for n, count in enumerate(expected)]
        found = [-1 if shape.ledgers[n] == 0 else count for n, count in enumerate(counts)]
        if (found, closed, nodes) == (expected, then.closed, then.nodes):
            return True
    return False


def run(plan_file: str) -> None:
    # What every trial needs is loaded before it is forked off.
    import lmdb.verify
    import numpy

    import bookstand.storage.verify

    assert lmdb.verify
    assert numpy
    assert bookstand.storage.verify
    plan = json.loads(Path(plan_file).read_text())
    ledgers, large, nodes, salt = plan["shape"]
    shape = Shape(tuple(ledgers), tuple(large), nodes, salt)
    folder = os.path.dirname(plan_file)
    for number, damage in enumerate(plan["damages"]):
        path = os.path.join(folder, f"trial-{number}")
        shutil.copytree(plan["pristine"], path)
        edit(os.path.join(path, "data.mdb"), damage)
        inlet, outlet = os.pipe()
        child = os.fork()
        if not child:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)
            # Who goes round in circles is ended by SIGXCPU, who waits for ever by SIGALRM.
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_OF_WORK, SECONDS_OF_WORK + 1))
            signal.alarm(SECONDS_TO_WAIT)
            result = _examine(path, shape, plan["options"])
            os.write(outlet, json.dumps(result).encode())
            os._exit(0)
        os.close(outlet)
        with open(inlet, "rb") as stream:
            told = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        result = json.loads(told) if told else dict(_nothing(), leaked=f"exit status {status}" if status >= 0 else "")
        print(json.dumps(result | {"signal": max(0, -status)}))
        shutil.rmtree(path)
    sys.stdout.flush()


def edit(file: str, damage: Damage) -> None:
    with open(file, "r+b") as stream:
        for kind, *arguments in damage:
            if kind == "cut":
                stream.truncate(arguments[0])
            elif kind == "write":
                stream.seek(arguments[0])
                stream.write(bytes.fromhex(arguments[1]))
            else:
                stream.seek(arguments[0] * PAGE)
                page = stream.read(PAGE)
                stream.seek(arguments[1] * PAGE)
                stream.write(page)


def edited(image: bytes, damage: Damage) -> bytes:
    """The same on bytes."""
    changed = bytearray(image)
    for kind, *arguments in damage:
        if kind == "cut":
            del changed[arguments[0] :]
        elif kind == "write":
            new = bytes.fromhex(arguments[1])
            changed[arguments[0] : arguments[0] + len(new)] = new
        else:
            source, target = (number * PAGE for number in arguments)
            changed[target : target + PAGE] = changed[source : source + PAGE]
    return bytes(changed)


def _nothing() -> dict[str, Any]:
    return {
        "opened": False,
        "error": None,
        "right": 0,
        "wrong": 0,
        "lost": 0,
        "whole": False,
        "content": None,
        "codes": [],
        "problems": 0,
        "written": False,
        "spoilt": False,
        "leaked": "",
    }


def _examine(path: str, shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """Open, read everything, verify, and write a little."""
    result = _nothing()
    writing = options.pop("then_write", False)
    try:
        try:
            store = bookstand.open(path, **options)
        except bookstand.BookstandError as error:
            result["error"] = type(error).__name__
            return result
        result["opened"] = True
        found = _Reading(store, shape)
        result |= found.told()
        try:
            result["problems"] = len(store.verify().problems)
        except bookstand.BookstandError as error:
            result["problems"] = 1
            result["error"] = type(error).__name__
        if writing:
            _write(store, shape, found, result)
        store.close()
    except BaseException as error:
        result["leaked"] = repr(error)
    return result


def read(store: bookstand.Store, shape: Shape) -> dict[str, Any]:
    """Everything, as :func:`rolled_back` and :func:`fault` want to be told of it."""
    return _Reading(store, shape).told()


class _Reading:
    """Everything that can be read of a store, and how it compares with what was written."""

    def __init__(self, store: bookstand.Store, shape: Shape) -> None:
        self.right = self.wrong = self.lost = 0
        self.codes: list[int | None] = []
        # Entries that can be read one after the other, -1 where there is no such ledger, None where some are missing
        # before others.
        self.counts: list[int | None] = []
        self.closed: list[int] = []
        self.ends: list[int] = []
        for ledger_id, count in enumerate(shape.ledgers):
            self._read_ledger(store, shape, ledger_id, count)
        self.nodes: int | None = 0
        for number in range(shape.nodes):
            self._read_node(store, shape, number)
        self.whole = not self.lost and not self.wrong

    def told(self) -> dict[str, Any]:
        content = {"counts": self.counts, "closed": self.closed, "nodes": self.nodes}
        return {name: getattr(self, name) for name in ("right", "wrong", "lost", "whole", "codes")} | {
            "content": content
        }

    def _read_ledger(self, store: bookstand.Store, shape: Shape, ledger_id: int, count: int) -> None:
        try:
            reader = store.open_ledger(ledger_id, recovery=False)
        except bookstand.BookstandError as error:
            self.lost += max(count, 1 if count else 0)
            self.counts.append(-1 if count else 0)
            # An absent ledger is what a lost record looks like; verify() has to tell.
            if getattr(error, "code", None) != -25:
                self.codes.append(getattr(error, "code", None))
            return
        if reader.is_closed():
            self.closed.append(ledger_id)
        if reader.is_closed() != (ledger_id not in (1, len(shape.ledgers) - 1)):
            self.lost += 1
        readable = []
        for entry_id in range(count):
            try:
                (entry,) = reader.read_unconfirmed(entry_id, entry_id)
            except bookstand.BookstandError as error:
                self.lost += 1
                code = getattr(error, "code", None)
                if code not in self.codes:
                    self.codes.append(code)
            else:
                good = entry.data == shape.payload(ledger_id, entry_id)
                self.right += good
                self.wrong += not good
                readable.append(entry_id)
        self.counts.append(len(readable) if readable == list(range(len(readable))) else None)

    def _read_node(self, store: bookstand.Store, shape: Shape, number: int) -> None:
        path, value = shape.node(number)
        try:
            found = store.nodes.get(path)
        except bookstand.errors.NoSuchNodeError:
            self.lost += 1
        except bookstand.BookstandError:
            self.lost += 1
            self.nodes = None
        else:
            self.wrong += found != (value, 0)
            if self.nodes is not None:
                self.nodes = self.nodes + 1 if self.nodes == number else None


def _write(store: bookstand.Store, shape: Shape, before: _Reading, result: dict[str, Any]) -> None:
    """Some commits, after which what was written is there, and what could be read is what it was."""
    try:
        writer = store.create_ledger()
        for number in range(4):
            writer.append(b"written %d" % number)
        writer.append_many([b"many" * 300] * 30)
        store.nodes.put("/written", b"as well")
        writer.close()
        reader = store.open_ledger(writer.id)
        written = [entry.data for entry in reader]
        expected = [b"written %d" % number for number in range(4)] + [b"many" * 300] * 30
        result["written"] = True
        if written != expected or store.nodes.get("/written")[0] != b"as well":
            result["spoilt"] = True
    except bookstand.BookstandError as error:
        result["error"] = type(error).__name__
    after = _Reading(store, shape)
    result["wrong"] += after.wrong
    if before.whole and not after.whole and not result["problems"]:
        result["spoilt"] = True
