"""The table of points is what the store really passes, and a crash at each leaves a store that keeps its promises."""

from __future__ import annotations

import ast
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.hooks import POINTS, Hooks
from bookstand.testing.faults.failpoints import BY_POINT, OPERATIONS
from bookstand.testing.faults.faults import Faults, SimulatedCrash
from tests import kit
from tests.testing.everything import PROGRAM, check, everything

ROOT = Path(__file__).resolve().parents[2]


def call_sites() -> Counter[str]:
    """Every point named in a call of ``point`` in the library."""
    found: Counter[str] = Counter()
    for room in ("storage", "ledger", "managed_ledger", "cursor", "bookstand"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "point":
                    for part in ast.walk(node.args[0]):
                        if isinstance(part, ast.Constant):
                            found[part.value] += 1
    return found


def test_the_table_names_exactly_the_points_in_the_code() -> None:
    assert set(call_sites()) == set(POINTS)
    assert dict(Faults.points()) == POINTS
    assert all(meaning and not meaning.endswith(".") for meaning in POINTS.values())


def test_without_hooks_a_point_costs_one_test() -> None:
    """Each call stands behind a look at the attribute, and so nothing else of a point is reached."""
    for room in ("storage", "ledger", "managed_ledger", "cursor", "bookstand"):
        for path in (ROOT / room).rglob("*.py"):
            tree = ast.parse(path.read_text())
            guarded = {
                call
                for node in ast.walk(tree)
                if isinstance(node, ast.If) and "hooks is not None" in ast.unparse(node.test)
                for statement in node.body
                for call in ast.walk(statement)
            }
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".point"):
                    name = next((part for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)), None)
                    assert name is None or node in guarded, f"{path}:{node.lineno}"


def test_each_point_is_named_at_one_place() -> None:
    assert [name for name, places in call_sites().items() if places > 1] == []


def test_every_operation_meets_rules_somewhere() -> None:
    by_hook_alone = {"append", "read", "read_lac"}
    for name, operation in OPERATIONS.items():
        points = {operation.before, operation.after} - {None}
        assert points <= set(POINTS)
        assert bool(points) != (name in by_hook_alone), name
        assert (operation.after is not None or name == "append") == operation.has_after
    assert set(BY_POINT) == set(POINTS)
    assert set(Faults.operations()) == set(OPERATIONS)


def test_every_point_is_passed(tmp_path: Path) -> None:
    faults = Faults()
    promises: list[tuple[Any, ...]] = []
    everything(tmp_path, faults, lambda *promise: promises.append(promise))
    assert set(faults.passed) == set(POINTS)
    check(tmp_path, promises)


def test_plain_hooks_pass_every_point_too(tmp_path: Path) -> None:
    class Names(Hooks):
        sees_entries = False

        def __init__(self) -> None:
            self.seen: set[str] = set()

        def point(self, name: str) -> None:
            self.seen.add(name)

    names = Names()
    everything(tmp_path, names, lambda *promise: None)
    assert set(POINTS) - names.seen == {"append.before_store", "append.stored"}


def test_what_does_not_see_entries_leaves_the_quick_ways_open(tmp_path: Path) -> None:
    class Count(Hooks):
        sees_entries = False
        commits = 0

        def point(self, name: str) -> None:
            self.commits += name == "commit.after_sync"

        def before_add(self, *_: object) -> bool:
            raise AssertionError("it was not to see entries")

        after_add = before_add

    count = Count()
    with bookstand.open(tmp_path / "store", hooks=count) as store:
        writer, deferred = store.create_ledger(), store.create_ledger(deferred_sync=True)
        before = count.commits
        assert writer.append_many([b"x"] * 1000) == range(1000)
        assert count.commits == before + 1
        assert type(deferred).__name__ == "DeferredLedgerWriter"
        assert [deferred.append(b"x") for _ in range(3)] == [0, 1, 2]
        deferred.force()
        assert deferred.last_add_confirmed == 2


@pytest.mark.parametrize("point", [name for name in POINTS if name.startswith("open.")])
def test_an_opening_that_a_hook_refuses(tmp_path: Path, point: str) -> None:
    """Nothing of it stays open, and the next one finds nothing wrong."""

    class Refuse(Hooks):
        def point(self, name: str) -> None:
            if name == point:
                raise errors.StoreAccessError("not now")

    for _ in range(2):
        if point in ("open.before_rename", "open.created") and (tmp_path / "store" / "data.mdb").exists():
            break
        with pytest.raises(errors.StoreAccessError):
            bookstand.open(tmp_path / "store", hooks=Refuse())
    assert not list((tmp_path / "store").glob("open-*"))
    assert not list((tmp_path / "store").glob("creating-*"))
    with bookstand.open(tmp_path / "store") as store:
        assert store.create_ledger().append(b"x") == 0


@pytest.mark.parametrize("sees_entries", [True, False])
def test_an_interrupted_commit_answers_everybody(tmp_path: Path, sees_entries: bool) -> None:
    """Whoever waits behind the thread that was interrupted must not wait for ever."""

    class Interrupt(Hooks):
        commits = 0

        def point(self, name: str) -> None:
            if name == "commit.before_sync":
                self.commits += 1
                if self.commits == 60:
                    raise KeyboardInterrupt

    hooks = Interrupt()
    hooks.sees_entries = sees_entries
    with bookstand.open(tmp_path / "store", hooks=hooks) as store:
        writers = [store.create_ledger() for _ in range(8)]

        def append(index: int) -> str:
            for _ in range(200):
                try:
                    writers[index].append(b"x")
                except KeyboardInterrupt:
                    return "interrupted"
                except errors.OutcomeUnknownError:
                    return "unknown"
            return "confirmed"

        answers = Counter(kit.in_threads(8, append))
        assert answers["interrupted"] == 1
        assert store.verify().ok


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_simulated_crash_at_each_point(tmp_path: Path, point: str, nth: int) -> None:
    faults = Faults()
    faults.crash(point, nth=nth)
    promises: list[tuple[Any, ...]] = []
    crash: BaseException | None = None
    try:
        everything(tmp_path, faults, lambda *promise: promises.append(promise))
    except (SimulatedCrash, errors.StoreCrashedError) as caught:
        # The latter where it was in the store's own thread.
        crash = caught
    if faults.log or nth == 1:
        assert f"at {point}" in str(crash)
    check(tmp_path, promises)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_point(tmp_path: Path, point: str) -> None:
    faults = Faults(seed=3)
    faults.crash(point, mode="kill")
    with kit.Program(PROGRAM, tmp_path, BOOKSTAND_FAULTS=faults.replay) as program:
        assert program.finish() == -signal.SIGKILL
        promises = [line.split() for line in program.lines]
    check(tmp_path, [(kind, where if kind == "node" else int(where), int(n)) for kind, where, n in promises])
