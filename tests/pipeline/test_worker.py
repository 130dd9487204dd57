"""Calls in child processes: whatever ends a child costs one outcome, and no child outlives the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.pipeline.execution.worker import Limits, Lost, calls
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.tables import read
from tests.kit import Program, eventually
from tests.soak.dying_units import WAYS, is_alive

QUICK = Limits(seconds=1, memory=64 << 20)


def outcomes(do: Callable[[Any], Any], items: list[Any], processes: int = 1, limits: Limits | None = None) -> Any:
    return dict(calls(do, items, processes, limits))


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_every_item_has_its_outcome(processes: int) -> None:
    assert outcomes(lambda number: (number**2, "x" * 100_000 * number), list(range(7)), processes) == {
        number: (number**2, "x" * 100_000 * number) for number in range(7)
    }
    assert outcomes(abs, [], processes) == {}


def test_calls_are_made_at_the_same_time_and_in_few_processes() -> None:
    barrier = os.pipe(), os.pipe()

    def meet(number: int) -> int:
        os.write(barrier[number][1], b"x")
        os.read(barrier[1 - number][0], 1)
        return os.getpid()

    assert len(set(outcomes(meet, [0, 1], 2).values()) - {os.getpid()}) == 2
    assert len(set(outcomes(lambda _: os.getpid(), list(range(9)), 2).values())) <= 2
    for end in (*barrier[0], *barrier[1]):
        os.close(end)


@pytest.mark.parametrize("way", ["killed", "aborted", "segmentation_fault", "exits"])
def test_a_call_that_ends_its_process_costs_its_own_outcome(way: str, capfd: pytest.CaptureFixture[str]) -> None:
    def do(number: int) -> int:
        if number == 2:
            WAYS[way].die()
        return number

    for processes in (1, 2):
        found = outcomes(do, [0, 1, 2, 3, 4], processes)
        assert WAYS[way].says in found.pop(2).why
        assert found == {number: number for number in (0, 1, 3, 4)}


def test_what_raises_in_a_call_is_shown_and_ends_its_process(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(number: int) -> int:
        return 1 // number

    assert outcomes(fail, [1, 0]) == {1: 1, 0: Lost("its process ended with exit status 1")}
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_calls_that_hang_end_at_the_limit_with_what_they_started() -> None:
    notes, notes_end = os.pipe()

    def hang(way: str) -> None:
        child = subprocess.Popen(["sleep", "600"])
        os.write(notes_end, f"{os.getpid()} {child.pid}\n".encode())
        WAYS[way].die()

    found = outcomes(hang, ["hangs", "loops", "stopped"], 3, QUICK)
    assert {one.why for one in found.values()} == {"it did not end within 1 s"}
    processes = [int(one) for one in os.read(notes, 1000).split()]
    assert len(processes) == 6
    eventually(lambda: not any(map(is_alive, processes)), "the end of all processes")
    os.close(notes)
    os.close(notes_end)


def test_memory_is_limited_and_stores_do_not_count(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store", durability="none") as store, store.create_ledger() as writer:
        writer.append_many([b"x" * (1 << 20)] * 80)

    def stored(much: int) -> int:
        """More is mapped than may be allocated."""
        with bookstand.open(tmp_path / "store", read_only=True) as store:
            found = sum(len(next(iter(store.open_ledger(0).read(entry, entry))).data) for entry in range(80))
            try:
                return found + len(bytes(much))
            except MemoryError:
                return -1

    assert outcomes(stored, [1 << 20, 100 << 20, 1 << 20], 1, QUICK._replace(seconds=None)) == {
        1 << 20: 81 << 20,
        100 << 20: -1,
    }


def test_children_end_when_the_caller_wants_no_more() -> None:
    notes, notes_end = os.pipe()

    def do(number: int) -> None:
        os.write(notes_end, f"{os.getpid()}\n".encode())
        time.sleep(600 * number)

    found = calls(do, [0, 1, 2], 3)
    next(found)
    processes: list[int] = []
    while len(processes) < 3:
        processes += map(int, os.read(notes, 1000).split())
    found.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    os.close(notes)
    os.close(notes_end)


_KILLED = """
import os, sys, time
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.tables import read
from bookstand.pipeline.execution.worker import calls
for _ in calls(lambda number: (os.write(1, b"%d\\n" % os.getpid()), time.sleep(600)), [1, 2], 2):
    pass
"""


def test_children_end_with_a_parent_that_is_killed() -> None:
    with Program(_KILLED) as program:
        processes = [int(line) for line in program.wait_for_lines(2)]
        program.kill()
    eventually(lambda: not any(map(is_alive, processes)), "the end of the children")


def test_an_open_store_and_threads_of_the_parent_are_no_obstacle(tmp_path: Path) -> None:
    """The parent has the same store open, and writes to it."""
    over = threading.Event()
    with bookstand.open(tmp_path / "store") as store:
        writer = store.create_ledger()
        writer.append(b"first")

        def write() -> None:
            while not over.is_set():
                writer.append(b"more")

        def count(_: int) -> bool:
            batches = read(str(tmp_path / "store"), query("entries", ("payload",), where="entry_id = 0"))
            return [row["payload"] for batch in batches for row in batch.to_pylist()] == [b"first"]

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for processes in (1, 2):
                found = outcomes(count, list(range(4)), processes)
                assert found == dict.fromkeys(range(4), True)
        finally:
            over.set()
            thread.join()
        assert writer.append(b"last") > 0


def test_modules_that_a_child_imports_are_known_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_in_a_child.py").write_text("import os\nPROCESS = os.getpid()\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def use(_: int) -> int:
        import imported_in_a_child  # type: ignore[import-not-found]

        return int(imported_in_a_child.PROCESS)

    try:
        first = outcomes(use, [0])[0]
        assert first != os.getpid()
        assert outcomes(use, [0])[0] == os.getpid()
    finally:
        sys.modules.pop("imported_in_a_child", None)


def test_a_child_that_ended_between_calls_is_replaced() -> None:
    found = calls(lambda _: os.getpid(), [0, 1, 2])
    _, process = next(found)
    assert isinstance(process, int)
    os.kill(process, signal.SIGKILL)
    eventually(lambda: not is_alive(process), "its end")
    others = {one for _, one in found}
    assert len(others) == 1
    assert not others & {process, Lost("its process ended")}


def test_a_program_that_ignores_the_end_of_children_has_every_outcome() -> None:
    """The system reaps its children then; programs inherit it from those that start them."""

    def do(number: int) -> int:
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        for processes in (1, 2):
            found = outcomes(do, [0, 1, 2], processes)
            assert "its process has ended" in found.pop(1).why
            assert found == {0: 0, 2: 2}
    finally:
        signal.signal(signal.SIGCHLD, before)
