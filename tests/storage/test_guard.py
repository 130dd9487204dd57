"""Tests of interrupt guards: a block that ends normally never counts as interrupted."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator

import pytest

from bookstand.storage.process.interrupt_guard import InterruptGuard
from tests.kit import ROOT

CHECKS = 20_000


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty")
def test_calls_in_progress_and_finished_calls_are_not_interrupted() -> None:
    guard = InterruptGuard(lambda: pytest.fail("repaired"))
    lock = threading.RLock()
    done = threading.Event()
    changed = 0

    def numbers() -> Iterator[int]:
        yield from range(5)

    def change() -> int:
        with lock, guard:
            return sum(number for number in numbers())

    def work() -> None:
        nonlocal changed
        while not done.is_set():
            changed += change() == 10

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert not any(guard.was_interrupted for _ in range(CHECKS))
    finally:
        done.set()
        worker.join()
    assert changed
    assert guard.call is None


def test_an_interrupted_block_is_found_and_repaired_by_the_next_one() -> None:
    repairs: list[str] = []
    guard = InterruptGuard(lambda: repairs.append("repaired"))

    def interrupted() -> None:
        with guard:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert guard.was_interrupted
    with guard:
        assert repairs == ["repaired"]
    assert not guard.was_interrupted


@pytest.mark.slow
def test_no_generator_holds_what_only_its_frame_would_tell_of() -> None:
    """The frame of a generator does not show an interruption, so a transaction in it would remain open."""
    held = []
    for room in ("storage", "ledger", "managed_ledger", "cursor", "delivery"):
        for file in sorted((ROOT / room).rglob("*.py")):
            for function in ast.walk(ast.parse(file.read_text())):
                if isinstance(function, ast.FunctionDef) and _is_generator(function):
                    blocks = [ast.unparse(item) for one in ast.walk(function) for item in getattr(one, "items", [])]
                    held += [(file.name, function.name, one) for one in blocks if "guard" in one or ".read()" in one]
    assert held == []


def _is_generator(function: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(function))
