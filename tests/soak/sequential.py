"""What ledgers and nodes do if one operation happens after the other, and how an operation of a history becomes steps.

An operation as it was seen: its name, its arguments, when it began and ended, and its outcome, which is ``None`` where
the process died before it had one. See :mod:`tests.soak.history_process` for what the names stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.soak.linearizability import NEVER, Step, UndecidedError, explain

FENCED, CLOSED, NO_LEDGER, EXISTS, VERSION, RECOVERY = -101, -11, -25, -20, -17, -10
MISSING = (-13, -7)
ABSENT = "absent"
REFUSED = "refused"
"""Outcome of an append that failed because of the device, and that certainly did not happen."""
APPENDS = ("append", "append_many", "write")


@dataclass
class Operation:
    process: int
    name: str
    arguments: dict[str, Any]
    begin: int
    end: int | None = None
    outcome: Any = None

    @property
    def ok(self) -> bool:
        return self.outcome is not None and self.outcome[0] == "ok"

    @property
    def code(self) -> Any:
        return self.outcome[1] if self.outcome is not None and self.outcome[0] == "error" else None

    def __str__(self) -> str:
        return f"{self.process}: {self.name} {self.arguments} -> {self.outcome}"


class Ledger(NamedTuple):
    """``owner`` is the handle that may append; none once a deleted ledger's entries are collected."""

    live: bool = False
    created: bool = False
    owner: str | None = None
    entries: tuple[str | None, ...] = ()
    fenced: bool = False
    end: int | None = None

    @property
    def prefix(self) -> int:
        """The last entry before the first gap."""
        return (self.entries.index(None) if None in self.entries else len(self.entries)) - 1

    def takes(self, handle: str) -> bool:
        return self.owner == handle and not self.fenced

    def with_entry(self, entry: int, token: str) -> Ledger:
        entries = list(self.entries) + [None] * (entry + 1 - len(self.entries))
        entries[entry] = token
        return self._replace(entries=tuple(entries))


class Node(NamedTuple):
    token: str | None = None
    version: int = -1


Object = Ledger | Node
State = tuple[Object, ...]
Change = Callable[[Any], Iterable[Object]]


# -- parts of operations, on one object ------------------------------------------------------------------------------


def appended(handle: str, first: int, tokens: Sequence[str]) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if ledger.takes(handle) and len(ledger.entries) == first:
            yield ledger._replace(entries=ledger.entries + tuple(tokens))

    return change


def written(handle: str, entry: int, token: str) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if ledger.takes(handle) and (len(ledger.entries) <= entry or ledger.entries[entry] is None):
            yield ledger.with_entry(entry, token)

    return change


def refused(handle: str) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if not ledger.takes(handle):
            yield ledger

    return change


def closed_by_failure(handle: str, lac: int | None, confirmed: int, by_fence: bool = True) -> Change:
    """A handle whose append failed closes its ledger at its last-add-confirmed; ``lac`` is None if it is not known."""

    def change(ledger: Ledger) -> Iterator[Ledger]:
        if ledger.live and ledger.owner == handle and ledger.end is None and (ledger.fenced or not by_fence):
            for end in range(confirmed, len(ledger.entries)) if lac is None else [lac]:
                yield ledger._replace(end=end)

    return change


def created(handle: str, again: bool = False) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if not ledger.live and (again or not ledger.created):
            yield Ledger(live=True, created=True, owner=handle)

    return change


def collected(ledger: Ledger) -> Iterator[Ledger]:
    if ledger.created and not ledger.live:
        yield Ledger(created=True)


def is_live(ledger: Ledger) -> Iterator[Ledger]:
    if ledger.live:
        yield ledger


def is_gone(ledger: Ledger) -> Iterator[Ledger]:
    if not ledger.live:
        yield ledger


def deleted(ledger: Ledger) -> Iterator[Ledger]:
    if ledger.live:
        yield ledger._replace(live=False)


def fenced(ledger: Ledger) -> Iterator[Ledger]:
    """Also one that was deleted since: what is left of it takes no more appends. One that is closed need not be."""
    if ledger.end is not None or ledger.owner is None:
        yield ledger
    if ledger.created:
        yield ledger._replace(fenced=True)


def recovered(end: int | None, tokens: Sequence[str] | None) -> Change:
    """Closed where the entries end, unless somebody else closed it; ``end`` is None if it was not told."""

    def change(ledger: Ledger) -> Iterator[Ledger]:
        if not ledger.live or (ledger.end is None and not ledger.fenced):
            return
        found = ledger.prefix if ledger.end is None else ledger.end
        if end is not None and found != end:
            return
        if tokens is not None and tuple(tokens) != ledger.entries[: found + 1]:
            return
        yield ledger._replace(end=found)

    return change


def closed(handle: str, lac: int | None) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if ledger.live and ledger.owner == handle:
            end = ledger.prefix if ledger.end is None else ledger.end
            if lac in (None, end):
                yield ledger._replace(end=end)

    return change


def closed_elsewhere(handle: str) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if ledger.end is not None or ledger.owner != handle:
            yield ledger

    return change


def not_to_be_closed(handle: str) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if not ledger.live or ledger.owner != handle:
            yield ledger

    return change


def has(entry: int, token: str | None) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if (ledger.entries[entry] if entry < len(ledger.entries) else None) == token:
            yield ledger

    return change


def is_closed(value: bool) -> Change:
    def change(ledger: Ledger) -> Iterator[Ledger]:
        if ledger.live and (ledger.end is not None) == value:
            yield ledger

    return change


def holds(token: str | None, version: int) -> Change:
    def change(node: Node) -> Iterator[Node]:
        if node == (token, version):
            yield node

    return change


def put(token: str, expected: int | None, version: int | None) -> Change:
    def change(node: Node) -> Iterator[Node]:
        if expected in (None, node.version) and version in (None, node.version + 1):
            yield Node(token, node.version + 1)

    return change


def removed(expected: int | None) -> Change:
    def change(node: Node) -> Iterator[Node]:
        if node.version >= 0 and expected in (None, node.version):
            yield Node()

    return change


def has_another_version(expected: int | None) -> Change:
    def change(node: Node) -> Iterator[Node]:
        if expected is not None and expected != node.version:
            yield node

    return change


# -- operations ------------------------------------------------------------------------------------------------------


class UnexplainableError(Exception):
    """An outcome that no state gives."""


class Steps:
    """The steps of all operations on some objects that are joined by transactions."""

    def __init__(self, objects: Sequence[str], operations: Sequence[Operation]) -> None:
        self._place = {name: place for place, name in enumerate(objects)}
        self.start: State = tuple(Ledger() if name.startswith("ledger") else Node() for name in objects)
        self.steps: list[Step] = []
        self._failed: dict[str, int] = {}
        self._confirmed: dict[str, int] = {}
        for operation in operations:
            for handle in handles_of(operation):
                if operation.name == "close" or (not operation.ok and operation.code != CLOSED):
                    self._failed.setdefault(handle, operation.begin)
                elif operation.name in APPENDS:
                    last = operation.outcome[1]
                    self._confirmed[handle] = max(self._confirmed.get(handle, -1), last)
        for operation in operations:
            getattr(self, f"_{operation.name}")(operation)

    def _step(
        self,
        operation: Operation,
        name: str,
        change: Change,
        optional: bool = False,
        after: Step | None = None,
        for_ever: bool = False,
    ) -> Step:
        place = self._place[name]

        def moves(state: State) -> list[State]:
            return [(*state[:place], new, *state[place + 1 :]) for new in change(state[place])]

        return self._add(operation, moves, optional, after, for_ever)

    def _add(
        self,
        operation: Operation,
        moves: Callable[[State], list[State]],
        optional: bool = False,
        after: Step | None = None,
        for_ever: bool = False,
    ) -> Step:
        # Without an outcome it may have happened or not: by the end of the generation of its process, if that is known.
        unfinished = operation.outcome is None
        end = NEVER if for_ever or operation.end is None else operation.end
        step = Step(operation.begin, end, moves, str(operation), optional or unfinished, after)
        self.steps.append(step)
        return step

    def _cannot(self, operation: Operation) -> UnexplainableError:
        return UnexplainableError(f"no state explains {operation}")

    # Every name of an operation has a method.

    def _create(self, operation: Operation) -> None:
        if operation.code is not None:
            raise self._cannot(operation)
        self._step(operation, ledger_of(operation), created(operation.arguments["handle"]))

    def _create_adv(self, operation: Operation) -> None:
        name = ledger_of(operation)
        # What is left of a deleted ledger is collected first, in commits of its own; also by who then comes too late.
        self._step(operation, name, collected, optional=True)
        if operation.code == EXISTS:
            self._step(operation, name, is_live)
        elif operation.code is not None:
            raise self._cannot(operation)
        else:
            self._step(operation, name, created(operation.arguments["handle"], again=True))

    def _append(self, operation: Operation) -> None:
        arguments = operation.arguments
        change = appended(arguments["handle"], arguments["entry"], arguments["tokens"])
        if operation.ok and operation.outcome[1] != arguments["entry"] + len(arguments["tokens"]) - 1:
            raise self._cannot(operation)
        self._adding(operation, change)

    _append_many = _append

    def _write(self, operation: Operation) -> None:
        arguments = operation.arguments
        if operation.ok and operation.outcome[1] != arguments["entry"]:
            raise self._cannot(operation)
        self._adding(operation, written(arguments["handle"], arguments["entry"], arguments["tokens"][0]))

    def _adding(self, operation: Operation, change: Change) -> None:
        handle, name = operation.arguments["handle"], ledger_of(operation)
        if operation.ok:
            self._step(operation, name, change)
        elif operation.outcome is None:
            self._step(operation, name, change)
            self._step(operation, name, closed_by_failure(handle, None, self._confirmed.get(handle, -1)))
        elif operation.code == REFUSED:
            change = closed_by_failure(handle, None, self._confirmed.get(handle, -1), by_fence=False)
            self._step(operation, name, change, optional=True, for_ever=True)
        elif operation.code == FENCED:
            told = self._step(operation, name, refused(handle))
            lac = operation.outcome[2]
            self._step(operation, name, closed_by_failure(handle, lac, -1), optional=True, after=told, for_ever=True)
        elif not self._was_closed(operation, handle):
            raise self._cannot(operation)

    def _was_closed(self, operation: Operation, handle: str) -> bool:
        """Whether the handle had a reason to refuse by itself."""
        return operation.code == CLOSED and self._failed.get(handle, NEVER) <= (operation.end or NEVER)

    def _recover(self, operation: Operation) -> None:
        name = ledger_of(operation)
        if operation.code in (NO_LEDGER, RECOVERY):
            found = self._step(operation, name, is_live, optional=True)
            self._step(operation, name, fenced, optional=True, after=found)
            self._step(operation, name, is_gone)
        elif operation.code is not None:
            raise self._cannot(operation)
        else:
            end, tokens = operation.outcome[1:] if operation.ok else (None, None)
            found = self._step(operation, name, is_live)
            stopped = self._step(operation, name, fenced, after=found)
            self._step(operation, name, recovered(end, tokens), after=stopped)

    def _read(self, operation: Operation) -> None:
        name = ledger_of(operation)
        if operation.code == NO_LEDGER:
            self._step(operation, name, is_gone)
            return
        opened = self._step(operation, name, is_live)
        if operation.ok:
            self._step(operation, name, has(operation.arguments["entry"], operation.outcome[1]), after=opened)
        elif operation.code in MISSING:
            self._step(operation, name, has(operation.arguments["entry"], None), after=opened)
        elif operation.outcome is not None:
            raise self._cannot(operation)

    def _is_closed(self, operation: Operation) -> None:
        if operation.ok:
            self._step(operation, ledger_of(operation), is_closed(operation.outcome[1]))
        elif operation.code == NO_LEDGER:
            self._step(operation, ledger_of(operation), is_gone)
        elif operation.outcome is not None:
            raise self._cannot(operation)

    def _close(self, operation: Operation) -> None:
        handle, name = operation.arguments["handle"], ledger_of(operation)
        if operation.code == VERSION:
            self._step(operation, name, closed_elsewhere(handle))
        elif operation.code in (NO_LEDGER, FENCED):
            self._step(operation, name, not_to_be_closed(handle))
        elif operation.code is not None:
            raise self._cannot(operation)
        else:
            self._step(operation, name, closed(handle, operation.outcome[1] if operation.ok else None))

    def _delete(self, operation: Operation) -> None:
        if operation.code not in (None, NO_LEDGER):
            raise self._cannot(operation)
        self._step(operation, ledger_of(operation), is_gone if operation.code else deleted)

    def _get(self, operation: Operation) -> None:
        if operation.code not in (None, ABSENT):
            raise self._cannot(operation)
        if operation.outcome is not None:
            token, version = operation.outcome[1:] if operation.ok else (None, -1)
            self._step(operation, operation.arguments["path"], holds(token, version))

    def _put(self, operation: Operation) -> None:
        path, token, expected = (operation.arguments[name] for name in ("path", "token", "expected"))
        if operation.code == VERSION:
            self._step(operation, path, has_another_version(expected))
        elif operation.code is not None:
            raise self._cannot(operation)
        else:
            self._step(operation, path, put(token, expected, operation.outcome[1] if operation.ok else None))

    def _delete_node(self, operation: Operation) -> None:
        path, expected = operation.arguments["path"], operation.arguments["expected"]
        if operation.code == VERSION:
            self._step(operation, path, has_another_version(expected))
        elif operation.code == ABSENT:
            self._step(operation, path, holds(None, -1))
        elif operation.code is not None:
            raise self._cannot(operation)
        else:
            self._step(operation, path, removed(expected))

    def _transaction(self, operation: Operation) -> None:
        parts = [self._part(part, number, operation) for number, part in enumerate(operation.arguments["parts"])]
        if operation.code is None:

            def all_of_it(state: State) -> list[State]:
                states = [state]
                for place, change, _ in parts:
                    states = [(*s[:place], new, *s[place + 1 :]) for s in states for new in change(s[place])]
                return states

            self._add(operation, all_of_it)
            return

        def none_of_it(state: State) -> list[State]:
            refusing = (code == operation.code and any(refusal(state[place])) for place, _, (code, refusal) in parts)
            return [state] if any(refusing) else []

        closed_by_themselves = any(self._was_closed(operation, handle) for handle in handles_of(operation))
        if not closed_by_themselves:
            self._add(operation, none_of_it)

    def _part(
        self, part: dict[str, Any], number: int, operation: Operation
    ) -> tuple[int, Change, tuple[int | str, Callable[[Any], Iterable[bool]]]]:
        """Where it happens, what it does, and with which code it is refused by what it finds."""

        def if_any(change: Change) -> Callable[[Any], Iterable[bool]]:
            return lambda found: (True for _ in change(found))

        match part["kind"]:
            case "append":
                place = self._place[f"ledger {part['ledger']}"]
                change = appended(part["handle"], part["entry"], [part["token"]])
                return place, change, (FENCED, if_any(refused(part["handle"])))
            case "create":
                return self._place[f"ledger {part['ledger']}"], created(part["handle"]), (EXISTS, if_any(is_live))
            case "delete":
                return self._place[f"ledger {part['ledger']}"], deleted, (NO_LEDGER, if_any(is_gone))
            case "put":
                version = operation.outcome[1][number] if operation.ok else None
                change = put(part["token"], part["expected"], version)
                refusal = if_any(has_another_version(part["expected"]))
                return self._place[part["path"]], change, (VERSION, refusal)
        raise self._cannot(operation)


def ledger_of(operation: Operation) -> str:
    return f"ledger {operation.arguments['ledger']}"


def handles_of(operation: Operation) -> list[str]:
    parts = operation.arguments.get("parts", [operation.arguments])
    return [part["handle"] for part in parts if "handle" in part]


def objects_of(operation: Operation) -> list[str]:
    found = []
    for part in operation.arguments.get("parts", [operation.arguments]):
        if "ledger" in part:
            found.append(f"ledger {part['ledger']}")
        if "path" in part:
            found.append(part["path"])
    return found


def check(operations: Sequence[Operation]) -> list[str]:
    """What cannot have happened, one line for each group of objects that transactions join."""
    problems = []
    group: dict[str, str] = {}

    def root(name: str) -> str:
        while group.setdefault(name, name) != name:
            name = group[name]
        return name

    told = [operation for operation in operations if objects_of(operation)]
    for operation in told:
        first, *others = objects_of(operation)
        for other in others:
            group[root(other)] = root(first)
        root(first)
    for name in sorted({root(name) for name in group}):
        some = [operation for operation in told if root(objects_of(operation)[0]) == name]
        objects = sorted({joined for operation in some for joined in objects_of(operation)})
        try:
            steps = Steps(objects, some)
            found = explain(steps.steps, steps.start)
        except (UnexplainableError, UndecidedError) as error:
            problems.append(str(error))
            continue
        if found is None:
            lines = "\n    ".join(f"{o.begin} {o.end} {o}" for o in sorted(some, key=lambda o: o.begin))
            problems.append(f"no order explains what happened to {', '.join(objects)}:\n    {lines}")
    return problems
