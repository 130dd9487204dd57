"""Histories of several processes have an order that explains them, and altered ones have none."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand import errors
from bookstand.testing import model
from tests.counts import Counts
from tests.soak import histories, sequential
from tests.soak.linearizability import NEVER, Step, UndecidedError, explain
from tests.soak.sequential import Operation, check

ROUNDS = 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, ROUNDS + 1))
def test_an_order_explains_what_processes_saw(seed: int, counts: Counts) -> None:
    done = histories.one_round(seed)
    counts.add("histories", done.cases, len(done.problems), [seed] if done.problems else [])
    assert done.cases >= 200 / ROUNDS
    assert not done.problems, "\n".join(done.problems)


# -- the search ------------------------------------------------------------------------------------------------------


def register(begin: int, end: int, write: int | None = None, read: int | None = None, **more: Any) -> Step:
    def moves(state: int) -> list[int]:
        return [write] if write is not None else [state] if state == read else []

    return Step(begin, end, moves, f"write {write}" if write is not None else f"read {read}", **more)


def test_what_overlaps_may_come_in_any_order() -> None:
    steps = [register(0, 10, write=1), register(2, 8, write=2), register(11, 12, read=1)]
    assert explain(steps, 0) == ["write 2", "write 1", "read 1"]
    assert explain([*steps, register(13, 14, read=2)], 0) is None


def test_what_ended_before_came_before() -> None:
    steps = [register(0, 1, write=1), register(2, 3, write=2)]
    assert explain([*steps, register(4, 5, read=2)], 0) is not None
    assert explain([*steps, register(4, 5, read=1)], 0) is None


def test_what_never_ended_may_come_late_or_not_at_all() -> None:
    lost = register(0, NEVER, write=1, optional=True)
    assert explain([lost, register(5, 6, read=0), register(7, 8, read=1)], 0) is not None
    assert explain([lost, register(5, 6, read=0), register(7, 8, read=0)], 0) is not None
    assert explain([lost, register(5, 6, read=1), register(7, 8, read=0)], 0) is None


def test_an_optional_step_comes_in_its_time_or_not_at_all() -> None:
    maybe = register(0, 3, write=1, optional=True)
    assert explain([maybe, register(5, 6, read=1)], 0) is not None
    assert explain([maybe, register(5, 6, read=0), register(7, 8, read=1)], 0) is None


def test_steps_of_one_operation_come_in_their_order() -> None:
    first = register(0, 10, write=1)
    steps = [first, register(0, 10, write=2, after=first), register(11, 12, read=1)]
    assert explain(steps, 0) is None


def test_a_search_that_becomes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.soak.linearizability.MOST_CONFIGURATIONS", 50)
    with pytest.raises(UndecidedError):
        explain([register(0, 10, write=number) for number in range(12)] + [register(11, 12, read=77)], 0)


# -- what may be seen, and what not ------------------------------------------------------------------------------------


class Seen:
    """Writes a history down; time passes with each operation, unless it is said when it was."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._now = 0

    def __call__(
        self, name: str, outcome: list[Any] | None = None, at: tuple[int, int | None] | None = None, **arguments: Any
    ) -> Seen:
        begin, end = (self._now + 1, self._now + 2) if at is None else at
        self._now = max(self._now, begin, end or 0)
        self.operations.append(Operation(0, name, arguments, begin, end, outcome))
        return self

    def create(self, ledger: int = 0, handle: str = "h") -> Seen:
        return self("create", ["ok", ledger], ledger=ledger, handle=handle)

    def append(self, entry: int, outcome: list[Any] | None = None, at: Any = None, ledger: int = 0) -> Seen:
        told = ["ok", entry] if outcome is None else outcome or None
        return self("append", told, at, handle="h", ledger=ledger, entry=entry, tokens=[f"t{entry}"])

    def recover(self, end: int, tokens: list[str] | None = None, at: Any = None) -> Seen:
        tokens = [f"t{entry}" for entry in range(end + 1)] if tokens is None else tokens
        return self("recover", ["ok", end, tokens], at, ledger=0)

    def put(self, version: int, expected: int | None = None, at: Any = None, token: str = "") -> Seen:
        return self("put", ["ok", version], at, path="/a", token=token or f"n{version}", expected=expected)

    def get(self, version: int, at: Any = None) -> Seen:
        return self("get", ["ok", f"n{version}", version], at, path="/a")


DIED: list[Any] = []
"""In place of an outcome: there is none."""


def parts(entry: int, version: int) -> list[dict[str, Any]]:
    return [
        {"kind": "put", "path": "/a", "token": f"n{version}", "expected": None},
        {"kind": "append", "handle": "h", "ledger": 0, "entry": entry, "token": f"t{entry}"},
    ]


POSSIBLE = {
    "an append that overlaps the recovery comes before it": Seen()
    .create()
    .append(0, at=(5, 20))
    .recover(0, at=(6, 19)),
    "an append is refused while a recovery goes on, and the ledger is not closed yet": (
        Seen()
        .create()
        .recover(-1, at=(5, 30))
        .append(0, ["error", -101, -1], at=(6, 7))("is_closed", ["ok", False], (8, 9), ledger=0)
    ),
    "a refused append closes its ledger": (
        Seen().create().append(0, ["error", sequential.REFUSED])("is_closed", ["ok", True], ledger=0).recover(-1)
    ),
    "an append without an outcome is there after its generation": (
        Seen().create().append(0, DIED, at=(5, 10)).recover(0, at=(11, 12))
    ),
    "a crashed append is there": Seen().create().append(0, DIED, at=(5, None)).recover(0, at=(10, 20)),
    "a crashed append is not there": Seen().create().append(0, DIED, at=(5, None)).recover(-1, at=(10, 20)),
    "a crashed recovery has fenced": (
        Seen()
        .create()("recover", None, (5, None), ledger=0)
        .append(0, ["error", -101, -1], at=(10, 11))
        .recover(-1, at=(20, 21))
    ),
    "a crashed transaction has happened": (
        Seen().create()("transaction", None, (5, None), parts=parts(0, 0)).get(0, at=(9, 10)).recover(0, at=(11, 12))
    ),
    "a crashed transaction has not happened": (
        Seen().create()("transaction", None, (5, None), parts=parts(0, 0)).recover(-1, at=(11, 12))
    ),
    "puts that overlap": Seen().put(1, at=(1, 10), token="n1").put(0, at=(2, 9)).get(1, at=(11, 12)),
    "an id that is used again": (
        Seen()("create_adv", ["ok", 5], ledger=5, handle="a")("delete", ["ok", None], ledger=5)(
            "create_adv", ["ok", 5], ledger=5, handle="b"
        )("write", ["error", -101, -1], ledger=5, handle="a", entry=0, tokens=["x"])
    ),
    "a creation that comes too late has collected what was left": (
        Seen()("create_adv", ["ok", 5], ledger=5, handle="a")("delete", ["ok", None], ledger=5)(
            "create_adv", ["error", -20], (10, 30), ledger=5, handle="b"
        )("write", ["error", -101, -1], (12, 13), ledger=5, handle="a", entry=0, tokens=["x"])(
            "create_adv", ["ok", 5], (15, 20), ledger=5, handle="c"
        )
    ),
    "a deleted ledger takes appends": (
        Seen().create()("delete", ["ok", None], ledger=0).append(0)("is_closed", ["error", -25], ledger=0)
    ),
}

IMPOSSIBLE = {
    "an entry that was confirmed is lost": Seen().create().append(0).append(1).recover(0),
    "an append after the fence": Seen().create().recover(-1).append(0),
    "an append is refused without a fence": Seen().create().append(0, ["error", -101, -1]).recover(-1),
    "a closed handle appends no more for no reason": Seen().create().append(0, ["error", -11, -1]),
    "another payload": Seen().create().append(0).recover(0, ["t7"]),
    "two recoveries that do not agree": (
        Seen().create().append(0, DIED, at=(5, None)).recover(-1, at=(6, 10)).recover(0, at=(11, 12))
    ),
    "a ledger is open again": (
        Seen().create().recover(-1)("is_closed", ["ok", True], ledger=0)("is_closed", ["ok", False], ledger=0)
    ),
    "an entry id given twice": Seen().create().append(0).append(0, ["ok", 0]),
    "an entry that was there is missing": (
        Seen().create().append(0)("read", ["ok", "t0"], ledger=0, entry=0)("read", ["error", -13], ledger=0, entry=0)
    ),
    "half of a transaction, without the entry": (
        Seen().create()("transaction", None, (5, None), parts=parts(0, 0)).get(0, at=(9, 10)).recover(-1, at=(11, 12))
    ),
    "half of a transaction, without the node": (
        Seen()
        .create()("transaction", None, (5, None), parts=parts(0, 0))
        .recover(0, at=(11, 12))("get", ["error", "absent"], (13, 14), path="/a")
    ),
    "a transaction that was refused has happened": (
        Seen().create().put(0)("transaction", ["error", -101], parts=parts(0, 1)).recover(0)
    ),
    "two compare-and-sets of one version": (
        Seen().put(0, -1).put(1, 0, at=(5, 20), token="x").put(1, 0, at=(6, 19), token="y")
    ),
    "a refused append": Seen().create().append(0, ["error", sequential.REFUSED]).recover(0),
    "an outcome that appears after its generation": (
        Seen().put(0)("put", None, (5, 10), path="/a", token="n1", expected=0).get(0, at=(11, 12)).get(1, at=(13, 14))
    ),
    "an old value": Seen().put(0).put(1).get(0),
    "a version conflict without another version": (
        Seen().put(0)("put", ["error", -17], path="/a", token="x", expected=0)
    ),
    "a ledger id given twice": (
        Seen()("create_adv", ["ok", 5], ledger=5, handle="a")("create_adv", ["ok", 5], ledger=5, handle="b")
    ),
    "what is left of a deleted ledger is collected by nobody": (
        Seen()("create_adv", ["ok", 5], ledger=5, handle="a")("delete", ["ok", None], ledger=5)(
            "write", ["error", -101, -1], ledger=5, handle="a", entry=0, tokens=["x"]
        )("create_adv", ["ok", 5], ledger=5, handle="c")
    ),
    "deleted twice": Seen().create()("delete", ["ok", None], ledger=0)("delete", ["ok", None], ledger=0),
    "a gap": Seen().create().append(0).append(2),
    "an error that no state gives": Seen().create()("delete", ["error", -6], ledger=0),
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_may_be_seen(name: str) -> None:
    assert check(POSSIBLE[name].operations) == []


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_seen(name: str) -> None:
    assert check(IMPOSSIBLE[name].operations), name


# -- the reference model gives nothing else ---------------------------------------------------------------------------


def from_the_model(seed: int) -> list[Operation]:
    """One operation after the other, by several clients of the plain model."""
    rng = random.Random(seed)
    cluster = model.Cluster()
    clients = [model.Client(cluster) for _ in range(3)]
    writers: list[tuple[str, Any]] = []
    failed: set[str] = set()
    seen = Seen()

    def outcome_of(call: Any) -> list[Any]:
        try:
            return ["ok", call()]
        except errors.LedgerError as error:
            return ["error", error.code]

    for number in range(60):
        client = rng.choice(clients)
        ledgers = list(client.list_ledgers())
        kind = rng.choice(["create", "append", "append", "append", "recover", "read", "is_closed", "close", "delete"])
        if kind == "create" or not writers or not ledgers:
            writer = client.create_ledger(password=b"")
            writers.append((f"h{number}", writer))
            seen.create(writer.id, f"h{number}")
            continue
        handle, writer = rng.choice(writers)
        ledger = rng.choice(ledgers)
        if kind == "append":
            entry = writer.last_add_pushed + 1
            outcome = outcome_of(lambda writer=writer, number=number: writer.append(b"t%d" % number))
            if outcome[0] == "error":
                outcome.append(writer.last_add_confirmed)
                failed.add(handle)
            seen("append", outcome, handle=handle, ledger=writer.id, entry=entry, tokens=[f"t{number}"])
        elif kind == "recover":
            reader = client.open_ledger(ledger, recovery=True)
            end = reader.last_add_confirmed
            tokens = [entry.data.decode() for entry in reader.read(0, end)] if end >= 0 else []
            seen("recover", ["ok", reader.last_add_confirmed, tokens], ledger=ledger)
        elif kind == "read":

            def read(ledger: int = ledger, client: Any = client) -> str:
                return str(client.open_ledger(ledger, recovery=False).read_unconfirmed(0, 0)[0].data.decode())

            seen("read", outcome_of(read), ledger=ledger, entry=0)
        elif kind == "is_closed":
            seen("is_closed", ["ok", client.is_closed(ledger)], ledger=ledger)
        elif kind == "close" and handle not in failed:
            # Closing again, or after a failure, gives the first answer, whatever has become of the ledger meanwhile.
            writers.remove((handle, writer))

            def close(writer: Any = writer) -> int:
                writer.close()
                return int(writer.last_add_confirmed)

            seen("close", outcome_of(close), handle=handle, ledger=writer.id)
        elif kind == "delete" and rng.random() < 0.3:
            seen("delete", outcome_of(lambda client=client, ledger=ledger: client.delete_ledger(ledger)), ledger=ledger)
    return seen.operations


@pytest.mark.parametrize("seed", range(40))
def test_the_specification_and_the_reference_model_agree(seed: int) -> None:
    operations = from_the_model(seed)
    assert check(operations) == []
    refused = 0
    for number, altered in enumerate(alterations(operations)):
        assert check(altered), (number, altered)
        refused += 1
    assert refused


# -- altered histories -----------------------------------------------------------------------------------------------


def alterations(operations: list[Operation]) -> Iterator[list[Operation]]:
    """The same history with one outcome that cannot have been."""
    for number, operation in enumerate(operations):
        for outcome in wrong_outcomes(operation):
            altered = copy.deepcopy(operations)
            altered[number].outcome = outcome
            yield altered


def wrong_outcomes(operation: Operation) -> Iterator[list[Any]]:
    if not operation.ok:
        return
    match operation.name, operation.outcome:
        case "recover", ["ok", end, tokens] if tokens:
            yield ["ok", end - 1, tokens[:-1]]
            yield ["ok", end, [*tokens[:-1], "another"]]
            yield ["ok", end + 1, [*tokens, "another"]]
        case "append", ["ok", entry]:
            yield ["ok", entry + 1]
        case "read", ["ok", _]:
            yield ["ok", "another"]
        case "get", ["ok", token, version]:
            yield ["ok", token, version + 1]
            yield ["ok", "another", version]
        case "put", ["ok", version]:
            yield ["ok", version + 5]
        case "create_adv", ["ok", _]:
            yield ["error", -6]


def test_any_killed_process_may_have_created_a_ledger_without_a_creation() -> None:
    late = Operation(0, "create", {"handle": "0/1"}, 7, 9)
    early = Operation(1, "create", {"handle": "1/1"}, 1, 2)
    seen = [Operation(2, "read", {"ledger": ledger, "entry": 0}, 4, 5, ["error", -7]) for ledger in (5, 6)]
    assert check(histories.with_ledgers([late, early, seen[0]])) == []
    assert check(histories.with_ledgers([late, seen[0]])) != []
    assert check(histories.with_ledgers([early, *seen])) != []


@pytest.mark.long
def test_altered_histories_of_processes_are_refused(memory_path: Path) -> None:
    """What real processes saw, with one lie in it."""
    refused = 0
    for number in range(4):
        operations = recorded(memory_path / str(number), number)
        assert check(operations) == []
        altered = list(alterations(operations))
        for one in random.Random(number).sample(altered, min(len(altered), 30)):
            assert check(one)
            refused += 1
    assert refused > 60


def recorded(folder: Path, seed: int) -> list[Operation]:
    """By a process that may fork."""
    import json
    import subprocess
    import sys

    from tests.kit import own_environment

    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "tests.soak.histories", "record", str(folder), str(seed)],
        env=own_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [Operation(**operation) for operation in json.loads(ended.stdout)]


def test_a_history_can_be_looked_at_again(tmp_path: Path) -> None:
    import json

    for name, expected in ((IMPOSSIBLE, 1), (POSSIBLE, 0)):
        operations = next(iter(name.values())).operations
        kept = tmp_path / "history.json"
        kept.write_text(json.dumps([vars(operation) for operation in operations]))
        assert len(histories.look_again(str(kept))) == expected


def test_every_operation_has_steps() -> None:
    names = {operation.name for seen in (*POSSIBLE.values(), *IMPOSSIBLE.values()) for operation in seen.operations}
    assert all(hasattr(sequential.Steps, f"_{name}") for name in names)
