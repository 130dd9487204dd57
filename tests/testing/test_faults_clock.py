"""The clock that stands still until it is told to go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from bookstand.testing.clock import RealClock, VirtualClock
from tests.kit import PATIENCE, refused


def test_what_falls_due_happens_in_order_and_at_its_time() -> None:
    clock = VirtualClock(now=1000)
    seen: list[Any] = []
    for seconds in (3, 1, 2, 1, 9):
        clock.call_later(seconds, lambda seconds=seconds: seen.append((seconds, clock.now())))
    clock.call_later(1, lambda: clock.call_later(0.5, lambda: seen.append(("more", clock.now()))))
    clock.advance(5)
    assert seen == [(1, 2000), (1, 2000), ("more", 2500), (2, 3000), (3, 4000)]
    assert (clock.now(), clock.waiting) == (6000, 1)
    assert clock.advance_to_next()
    assert (clock.now(), clock.waiting) == (10_000, 0)
    assert not clock.advance_to_next()
    assert clock.now() == 10_000


def test_sleepers_wake() -> None:
    clock = VirtualClock()
    woken: list[int] = []

    def sleep(seconds: int) -> None:
        clock.sleep(seconds)
        woken.append(seconds)

    threads = [threading.Thread(target=sleep, args=(seconds,)) for seconds in (1, 2)]
    for thread in threads:
        thread.start()
    assert clock.wait_until_waiting(2)
    clock.advance(1)
    threads[0].join(PATIENCE)
    assert woken == [1]
    clock.advance(1)
    threads[1].join(PATIENCE)
    assert woken == [1, 2]


def test_a_clock_that_moves_itself_lets_nobody_wait() -> None:
    clock = VirtualClock(auto=True)
    clock.sleep(3600)
    done: list[int] = []
    clock.call_later(1, lambda: done.append(1))
    assert (clock.now(), done) == (3_601_000, [1])


def test_the_real_clock_calls_in_order_and_ends_its_thread() -> None:
    clock = RealClock()
    seen: list[int] = []
    done = threading.Event()
    clock.call_later(0.05, done.set)
    for number in (3, 2, 1, 0):
        clock.call_later(number / 100, lambda number=number: seen.append(number))
    assert done.wait(PATIENCE)
    assert seen == [0, 1, 2, 3]
    done.clear()
    clock.call_later(0, done.set)
    assert done.wait(PATIENCE)


@pytest.mark.parametrize("seconds", [-1, "1", None, True, float("nan"), float("inf")])
def test_times_that_are_none(seconds: Any) -> None:
    clock = VirtualClock()
    for call in (clock.advance, clock.sleep, lambda value: clock.call_later(value, list)):
        with refused(-14):
            call(seconds)
    with refused(-14):
        VirtualClock(now=seconds if isinstance(seconds, str | float | bool | None) else 0.5)
