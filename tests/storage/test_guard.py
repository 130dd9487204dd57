"""A block that ends in good order is never taken for an interrupted one, whoever looks when."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from bookstand.storage.process.interrupt_guard import InterruptGuard

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
