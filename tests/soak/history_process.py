"""One process of a history: does what its seed says with a store that others have open too, and notes all of it.

A note is a line of JSON in a file: ``["begin", number, name, arguments, time]`` before an operation, and
``["end", number, outcome, time]`` after it; ``["ok", …]`` or ``["error", code, …]``. The clock is the machine's, the
same for all processes. Entries and nodes hold a token that no other operation writes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import bookstand
from bookstand import errors
from bookstand.storage.hooks import Hooks
from tests.soak.sequential import ABSENT

PATHS = ("/a", "/b/c", "/b/d")
ADV_LEDGERS = (1000, 1001)
PADDING = 40
OF_DEVICE = (errors.StoreError, errors.WriteError, errors.ReadError, errors.NotEnoughBookiesError)
"""Errors that a failing device causes."""


class DieAt(Hooks):
    """Ends the process at the n-th point that the store passes."""

    sees_entries = False

    def __init__(self, passes: int) -> None:
        self._left = passes

    def point(self, name: str) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


class Process:
    """``dies_at``: the number of the point at which the process ends itself, 0 for none."""

    def __init__(self, number: int, path: str, notes: str, seed: int, dies_at: int = 0) -> None:
        self.number = number
        self.random = random.Random(seed)
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._operations = 0
        self._tokens = 0
        hooks = DieAt(dies_at) if dies_at else None
        # Nothing is to depend on how fast the others are.
        self.store = bookstand.open(path, add_quorum_timeout=None, hooks=hooks)
        self.writers: dict[str, Any] = {}
        self.adv: dict[str, Any] = {}
        self.next_adv: dict[str, int] = {}
        self.versions: dict[str, int] = {}

    # -- notes -------------------------------------------------------------------------------------------------------

    def begin(self, name: str, **arguments: Any) -> int:
        self._operations += 1
        self._note("begin", self._operations, name, arguments, time.monotonic_ns())
        return self._operations

    def end(self, operation: int, outcome: list[Any]) -> None:
        self._note("end", operation, outcome, time.monotonic_ns())

    def _note(self, *what: Any) -> None:
        os.write(self._notes, json.dumps(what).encode() + b"\n")

    def noted(self, name: str, call: Callable[[], Any], **arguments: Any) -> list[Any]:
        operation = self.begin(name, **arguments)
        outcome = outcome_of(call)
        self.end(operation, outcome)
        return outcome

    def token(self) -> str:
        self._tokens += 1
        return f"{self.number}:{self._tokens}"

    # -- what it does ------------------------------------------------------------------------------------------------

    def run(self, operations: int) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self.append, 6),
            (self.append_many, 2),
            (self.append_async, 3),
            (self.write, 3),
            (self.transaction, 4),
            (self.recover, 2),
            (self.read, 4),
            (self.is_closed, 1),
            (self.close, 1),
            (self.delete, 1),
            (self.get, 3),
            (self.put, 4),
            (self.delete_node, 1),
        ]
        choices = [step for step, weight in steps for _ in range(weight)]
        for _ in range(operations):
            try:
                self.random.choice(choices)()
            except errors.BookstandError as error:
                # The device failed under something that is not noted, or whose outcome is not needed.
                if not is_of_device(error):
                    raise
        with suppress(*OF_DEVICE):
            self.store.close()

    def writer(self) -> tuple[str, Any]:
        if not self.writers or (len(self.writers) < 3 and self.random.random() < 0.2):
            handle = f"{self.number}/{self._operations}"
            operation = self.begin("create", handle=handle)
            writer = self.store.create_ledger()
            self.end(operation, ["ok", writer.id])
            self.writers[handle] = writer
        handle = self.random.choice(list(self.writers))
        return handle, self.writers[handle]

    def append(self) -> None:
        handle, writer = self.writer()
        tokens = [self.token()]
        entry = writer.last_add_pushed + 1
        operation = self.begin("append", handle=handle, ledger=writer.id, entry=entry, tokens=tokens)
        self._appended(operation, handle, writer, lambda: writer.append(payload(tokens[0])))

    def append_many(self) -> None:
        handle, writer = self.writer()
        tokens = [self.token() for _ in range(self.random.randrange(2, 6))]
        entry = writer.last_add_pushed + 1
        operation = self.begin("append_many", handle=handle, ledger=writer.id, entry=entry, tokens=tokens)
        self._appended(operation, handle, writer, lambda: writer.append_many(map(payload, tokens))[-1])

    def append_async(self) -> None:
        handle, writer = self.writer()
        under_way = []
        for _ in range(self.random.randrange(2, 5)):
            tokens = [self.token()]
            entry = writer.last_add_pushed + 1
            operation = self.begin("append", handle=handle, ledger=writer.id, entry=entry, tokens=tokens)
            under_way.append((operation, writer.append_async(payload(tokens[0]))))
        for operation, pending in under_way:
            self._appended(operation, handle, writer, pending.result)

    def _appended(self, operation: int, handle: str, writer: Any, call: Callable[[], Any]) -> None:
        outcome = outcome_of(call)
        if outcome[0] == "error":
            # Where a handle that failed has closed its ledger.
            outcome.append(writer.last_add_confirmed)
            self.writers.pop(handle, None)
            self.adv.pop(handle, None)
        self.end(operation, outcome)

    def write(self) -> None:
        """To a ledger whose id several processes want, and whose entries come in any order."""
        if not self.adv or self.random.random() < 0.2:
            handle = f"{self.number}/{self._operations}"
            ledger = self.random.choice(ADV_LEDGERS)
            operation = self.begin("create_adv", handle=handle, ledger=ledger)
            try:
                self.adv[handle] = self.store.create_ledger_adv(ledger)
            except errors.LedgerExistsError as error:
                self.end(operation, ["error", error.code])
                return
            self.end(operation, ["ok", ledger])
            self.next_adv[handle] = 0
        handle = self.random.choice(list(self.adv))
        writer = self.adv[handle]
        first = self.next_adv[handle]
        entries = list(range(first, first + self.random.randrange(1, 4)))
        self.next_adv[handle] = entries[-1] + 1
        self.random.shuffle(entries)
        under_way = []
        for entry in entries:
            tokens = [self.token()]
            operation = self.begin("write", handle=handle, ledger=writer.id, entry=entry, tokens=tokens)
            under_way.append((operation, writer.write_async(entry, payload(tokens[0]))))
        for operation, pending in under_way:
            self._appended(operation, handle, writer, pending.result)

    def transaction(self) -> None:
        parts: list[dict[str, Any]] = []
        made: list[Any] = []
        handles = []
        if self.random.random() < 0.8:
            handle, _ = self.writer()
            handles = [handle]
            if len(self.writers) > 1 and self.random.random() < 0.5:
                handles = self.random.sample(list(self.writers), 2)
        operation = None
        new = None
        try:
            with self.store.transaction() as together:
                if self.random.random() < 0.2:
                    new = together.create_ledger()
                    name = f"{self.number}/{self._operations}"
                    parts.append({"kind": "create", "handle": name, "ledger": new.id})
                    made.append(None)
                for path in self.random.sample(PATHS, self.random.randrange(0 if handles else 1, 3)):
                    token, expected = self.token(), self._expected(path)
                    made.append(together.put_node(path, payload(token), expected))
                    parts.append({"kind": "put", "path": path, "token": token, "expected": expected})
                if self.random.random() < 0.1 and (some := self._some_ledger()) is not None:
                    together.delete_ledger(some)
                    parts.append({"kind": "delete", "ledger": some})
                    made.append(None)
                for handle in handles:
                    token = self.token()
                    part = {"kind": "append", "handle": handle, "ledger": self.writers[handle].id, "token": token}
                    try:
                        part["entry"] = together.append(self.writers[handle], payload(token))
                    except errors.LedgerError:
                        # Of a handle that has closed itself: nothing of the transaction happens.
                        self.writers.pop(handle)
                        raise
                    parts.append(part)
                    made.append(None)
                operation = self.begin("transaction", parts=parts)
        except (errors.LedgerError, errors.StoreError) as error:
            if operation is not None:
                self.end(operation, outcome_of_error(error))
            return
        self.end(operation, ["ok", [None if version is None else version.result() for version in made]])
        for part, version in zip(parts, made, strict=True):
            if part["kind"] == "put":
                self.versions[part["path"]] = version.result()
        if new is not None:
            self.writers[parts[0]["handle"]] = new

    def _some_ledger(self) -> int | None:
        ledgers = list(self.store.list_ledgers())
        return self.random.choice(ledgers) if ledgers else None

    def recover(self) -> None:
        if (ledger := self._some_ledger()) is not None:
            self.noted("recover", lambda: recovery(self.store, ledger), ledger=ledger)

    def read(self) -> None:
        if (ledger := self._some_ledger()) is not None:
            entry = self.random.randrange(5)

            def read() -> str:
                (found,) = self.store.open_ledger(ledger, recovery=False).read_unconfirmed(entry, entry)
                return token_of(found.data)

            self.noted("read", read, ledger=ledger, entry=entry)

    def is_closed(self) -> None:
        if (ledger := self._some_ledger()) is not None:
            self.noted("is_closed", lambda: self.store.is_closed(ledger), ledger=ledger)

    def close(self) -> None:
        """One of its own, which is not used again."""
        for writers in (self.writers, self.adv):
            if writers and self.random.random() < 0.5:
                handle = self.random.choice(list(writers))
                writer = writers.pop(handle)

                def close(writer: Any = writer) -> int:
                    writer.close()
                    return int(writer.last_add_confirmed)

                self.noted("close", close, handle=handle, ledger=writer.id)

    def delete(self) -> None:
        ledger = self._some_ledger()
        if ledger is not None and (ledger in ADV_LEDGERS or self.random.random() < 0.3):
            self.noted("delete", lambda: self.store.delete_ledger(ledger), ledger=ledger)

    def _expected(self, path: str) -> int | None:
        return self.random.choice([None, self.versions.get(path, -1), self.versions.get(path, -1)])

    def get(self) -> None:
        path = self.random.choice(PATHS)
        outcome = self.noted("get", lambda: found_in(self.store, path), path=path)
        self.versions[path] = outcome[1][1] if outcome[0] == "ok" else -1

    def put(self) -> None:
        path, token = self.random.choice(PATHS), self.token()
        expected = self._expected(path)
        put = lambda: self.store.nodes.put(path, payload(token), expected)  # noqa: E731
        outcome = self.noted("put", put, path=path, token=token, expected=expected)
        if outcome[0] == "ok":
            self.versions[path] = outcome[1]

    def delete_node(self) -> None:
        path = self.random.choice(PATHS)
        expected = self._expected(path)
        self.noted("delete_node", lambda: self.store.nodes.delete(path, expected), path=path, expected=expected)


def outcome_of(call: Callable[[], Any]) -> list[Any]:
    try:
        return ["ok", call()]
    except errors.NoSuchNodeError:
        return ["error", ABSENT]
    except (errors.LedgerError, errors.StoreError) as error:
        return outcome_of_error(error)


def outcome_of_error(error: errors.LedgerError | errors.StoreError) -> list[Any]:
    if is_unknown(error):
        return ["unknown"]
    if isinstance(error, errors.LedgerError) and not is_of_device(error):
        return ["error", error.code]
    return ["refused"]


def is_unknown(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, errors.OutcomeUnknownError) or is_unknown(error.__cause__))


def is_of_device(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, OF_DEVICE) or is_of_device(error.__cause__))


def payload(token: str) -> bytes:
    return token.encode().ljust(PADDING, b".")


def token_of(data: bytes) -> str:
    return data.rstrip(b".").decode()


def found_in(store: bookstand.Store, path: str) -> tuple[str, int]:
    value, version = store.nodes.get(path)
    return token_of(value), version


def recovery(store: bookstand.Store, ledger: int) -> tuple[int, list[str] | None]:
    """Where it ends, and its entries; those of an id that is used again may be another's by the time they are read."""
    reader = store.open_ledger(ledger)
    end = reader.last_add_confirmed
    return end, None if ledger in ADV_LEDGERS else [token_of(entry.data) for entry in reader]


def observe(path: str, notes: str) -> list[str]:
    """When all is over: what there is; returns what ``verify()`` finds."""
    process = Process(-1, path, notes, 0)
    store = process.store
    problems = [problem.message for problem in store.verify().problems]
    for ledger in list(store.list_ledgers()):
        process.noted("recover", lambda ledger=ledger: all_of(store, ledger), ledger=ledger)
        process.noted("is_closed", lambda ledger=ledger: store.is_closed(ledger), ledger=ledger)
    for path_ in PATHS:
        process.noted("get", lambda path_=path_: found_in(store, path_), path=path_)
    problems += [f"after recovery: {problem.message}" for problem in store.verify().problems]
    store.close()
    return problems


def all_of(store: bookstand.Store, ledger: int) -> tuple[int, list[str]]:
    reader = store.open_ledger(ledger)
    return reader.last_add_confirmed, [token_of(entry.data) for entry in reader]
