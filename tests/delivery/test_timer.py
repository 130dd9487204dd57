"""Timers: on a thread, on a clock that tests move, and by hand."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from threading import Event, Thread
from typing import Any

import pytest

from bookstand.delivery import timer as timers
from bookstand.delivery.timer import Alarm, ClockTimer, ThreadTimer, timer_for
from bookstand.delivery.tracker.wakeup import alarm_time
from bookstand.storage.clock import SystemClock
from bookstand.testing import VirtualClock
from bookstand.testing.clock import ManualTimer

PATIENCE = 30.0


class Rung:
    """What rang, in order, and a way to wait for it."""

    def __init__(self) -> None:
        self.alarms: list[Alarm] = []
        self.events: dict[int, Event] = {}

    def __call__(self, alarm: Alarm) -> None:
        self.alarms.append(alarm)
        self.events.setdefault(alarm.at, Event()).set()

    def wait(self, alarm: Alarm) -> None:
        assert self.events.setdefault(alarm.at, Event()).wait(PATIENCE)


@pytest.fixture
def thread_timer() -> Iterator[ThreadTimer]:
    timer = ThreadTimer(SystemClock())
    yield timer
    timer.close()
    timer.join()


# -- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("next_delivery", "now", "last_run", "tick", "expected"),
    [
        (60_416, 0, 0, 1000, 60_416),
        (100, 100, 0, 1, None),
        (99, 100, 0, 1, None),
        (10_001, 10_000, 10_000, 1000, 11_000),
        (10_001, 10_900, 10_000, 1000, None),
        (10_950, 10_900, 10_000, 1000, 11_000),
        (64, 10, 0, 100, 100),
    ],
)
def test_alarm_time(next_delivery, now, last_run, tick, expected):
    assert alarm_time(next_delivery, now, last_run, tick) == expected


# -- on a thread -----------------------------------------------------------------------------------------------------


def test_it_rings_and_not_before(thread_timer):
    clock = SystemClock()
    rang: list[int] = []
    done = Event()

    def ring(alarm: Alarm) -> None:
        rang.append(clock.now())
        done.set()

    alarm = thread_timer.arm(clock.now() + 30, ring)
    assert alarm.live
    assert done.wait(PATIENCE)
    assert rang[0] >= alarm.at
    assert not alarm.live


def test_the_earliest_first_whatever_the_order_of_arming(thread_timer):
    rung = Rung()
    now = SystemClock().now()
    late = thread_timer.arm(now + 40, rung)
    early = thread_timer.arm(now + 20, rung)
    past = thread_timer.arm(now - 1000, rung)
    rung.wait(late)
    assert rung.alarms == [past, early, late]


def test_a_later_alarm_does_not_hold_up_an_earlier_one(thread_timer):
    rung = Rung()
    never = thread_timer.arm(SystemClock().now() + 10**9, rung)
    soon = thread_timer.arm(SystemClock().now() + 5, rung)
    rung.wait(soon)
    assert rung.alarms == [soon]
    assert never.live


def test_cancelled_it_does_not_ring(thread_timer):
    rung = Rung()
    now = SystemClock().now()
    cancelled = thread_timer.arm(now + 20, rung)
    last = thread_timer.arm(now + 30, rung)
    cancelled.cancel()
    cancelled.cancel()
    rung.wait(last)
    assert rung.alarms == [last]


def test_an_action_may_arm_and_cancel(thread_timer):
    rung = Rung()
    doomed = thread_timer.arm(SystemClock().now() + 10**6, rung)
    after: list[Alarm] = []

    def ring(alarm: Alarm) -> None:
        doomed.cancel()
        after.append(thread_timer.arm(alarm.at + 1, rung))
        rung(alarm)

    first = thread_timer.arm(SystemClock().now(), ring)
    rung.wait(first)
    rung.wait(after[0])
    assert rung.alarms == [first, after[0]]


def test_what_fails_is_logged_and_the_next_one_rings(thread_timer, caplog):
    rung = Rung()

    def fail(alarm: Alarm) -> None:
        raise ValueError("no good")

    thread_timer.arm(0, fail)
    rung.wait(thread_timer.arm(1, rung))
    assert "no good" in caplog.text


def test_closed_nothing_rings(thread_timer):
    rung = Rung()
    alarms = [thread_timer.arm(SystemClock().now() + 20, rung) for _ in range(3)]
    thread_timer.close()
    thread_timer.join()
    assert not any(alarm.live for alarm in alarms)
    assert not thread_timer.arm(0, rung).live
    alarms[0].cancel()
    assert rung.alarms == []


def test_close_from_an_action(thread_timer):
    done = Event()

    def ring(alarm: Alarm) -> None:
        thread_timer.close()
        thread_timer.join()
        done.set()

    thread_timer.arm(0, ring)
    assert done.wait(PATIENCE)


def test_a_thread_that_has_nothing_to_do_ends_and_another_begins(thread_timer, monkeypatch):
    monkeypatch.setattr(timers, "_IDLE_SECONDS", 0.01)
    rung = Rung()
    rung.wait(thread_timer.arm(0, rung))
    first = thread_timer._thread
    if first is not None:
        first.join(PATIENCE)
    assert thread_timer._thread is None
    rung.wait(thread_timer.arm(1, rung))


def test_a_clock_that_is_set_forward_is_noticed(thread_timer, monkeypatch):
    monkeypatch.setattr(timers, "_CLOCK_POLL_SECONDS", 0.01)

    class Settable:
        time = 0

        def now(self) -> int:
            return self.time

    clock = Settable()
    timer = ThreadTimer(clock)
    rung = Rung()
    alarm = timer.arm(10**9, rung)
    clock.time = 2 * 10**9
    rung.wait(alarm)
    timer.close()


def test_alarms_that_were_cancelled_do_not_pile_up(thread_timer):
    far = SystemClock().now() + 10**9
    for number in range(10_000):
        thread_timer.arm(far - number, print).cancel()
    kept = thread_timer.arm(far, print)
    assert len(thread_timer._alarms) < 100
    assert thread_timer._alarms.first() is kept


def test_canceled_alarms_of_a_virtual_clock_take_no_memory():
    """While a later alarm is set again after each earlier one, as a subscription does."""
    clock = VirtualClock()
    timer = ClockTimer(clock)
    rung: list[int] = []
    last = timer.arm(10**9, lambda alarm: rung.append(clock.now()))
    for number in range(1_000):
        last.cancel()
        timer.arm(clock.now() + 10, lambda alarm: rung.append(clock.now()))
        clock.advance(0.01)
        last = timer.arm(10**9 + number, lambda alarm: rung.append(clock.now()))
    assert clock.waiting == 1
    assert len(timer._alarms) < 100
    clock.advance(10**6)
    assert rung == [*range(10, 10_010, 10), 10**9 + 999]


def test_an_action_that_fails_on_a_virtual_clock_leaves_the_next_alarm_set():
    clock = VirtualClock()
    timer = ClockTimer(clock)
    rung: list[int] = []
    timer.arm(10, lambda alarm: 1 / 0)
    timer.arm(10, lambda alarm: rung.append(1))
    timer.arm(20, lambda alarm: rung.append(2))
    with pytest.raises(ZeroDivisionError):
        clock.advance(1)
    clock.advance(1)
    assert rung == [1, 2]


def _use_in_child(timer: ThreadTimer, told: Any) -> None:
    rung = Rung()
    alarm = timer.arm(0, rung)
    rung.wait(alarm)
    told.send(len(rung.alarms))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork_nothing_is_armed_and_the_timer_works(thread_timer):
    rung = Rung()
    inherited = thread_timer.arm(SystemClock().now() + 10**9, rung)
    hears, tells = multiprocessing.Pipe()
    # The lock is held by another thread when the child gets its copy.
    holding, forked = Event(), Event()

    def hold() -> None:
        with thread_timer._changed:
            holding.set()
            forked.wait(PATIENCE)

    holder = Thread(target=hold)
    holder.start()
    assert holding.wait(PATIENCE)
    child = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(thread_timer, tells))
    child.start()
    forked.set()
    holder.join()
    assert hears.poll(PATIENCE)
    assert hears.recv() == 1
    child.join(PATIENCE)
    assert child.exitcode == 0
    assert inherited.live


EXITING = """
import atexit, sys
from bookstand.delivery.timer import ThreadTimer
from bookstand.storage.clock import SystemClock
clock = SystemClock()
timer, other = ThreadTimer(clock), ThreadTimer(clock)
timer.arm(clock.now() + 10**9, print)
timer.arm(clock.now(), lambda alarm: timer.arm(clock.now(), lambda alarm: print("rang", flush=True)))

class Last:
    def __del__(self):
        other.arm(clock.now(), print)

last = Last()
atexit.register(lambda: other.arm(clock.now() + 10**9, print))
"""


def test_an_armed_timer_does_not_keep_the_interpreter(thread_timer):
    process = subprocess.run([sys.executable, "-W", "error", "-c", EXITING], capture_output=True, text=True, timeout=60)
    assert process.returncode == 0
    assert process.stderr == ""


# -- on a clock that is moved ----------------------------------------------------------------------------------------


def test_the_clock_decides_which_timer():
    assert isinstance(timer_for(VirtualClock()), ClockTimer)
    assert isinstance(timer_for(SystemClock()), ThreadTimer)


def test_on_a_virtual_clock():
    clock = VirtualClock(1000)
    timer = ClockTimer(clock)
    rung: list[tuple[int, int]] = []
    note: Callable[[Alarm], None] = lambda alarm: rung.append((alarm.at, clock.now()))  # noqa: E731
    timer.arm(3000, note)
    timer.arm(2000, note)
    timer.arm(2500, note).cancel()
    timer.arm(500, note)
    assert rung == []
    clock.advance(1.5)
    assert rung == [(500, 1000), (2000, 2000)]
    clock.advance(1)
    assert rung[2:] == [(3000, 3000)]
    timer.arm(4000, note)
    timer.close()
    assert not timer.arm(5000, note).live
    clock.advance(10)
    assert len(rung) == 3


def test_on_a_virtual_clock_far_away():
    start = 4_102_444_800_123
    clock = VirtualClock(start)
    rung: list[int] = []
    ClockTimer(clock).arm(start + 10**13 + 1, lambda alarm: rung.append(clock.now()))
    clock.advance(10**10)
    assert rung == []
    clock.advance(0.002)
    assert len(rung) == 1
    assert rung[0] >= start + 10**13 + 1


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_by_hand():
    clock = VirtualClock(100)
    timer = ManualTimer(clock)
    rung: list[int] = []
    note: Callable[[Alarm], None] = lambda alarm: rung.append(alarm.at)  # noqa: E731
    timer.arm(130, note)
    timer.arm(120, note)
    gone = timer.arm(110, note)
    gone.cancel()
    gone.cancel()
    assert timer.armed == [120, 130]
    assert timer.fire() == 0
    clock.advance(0.030)
    assert timer.fire() == 2
    assert rung == [120, 130]
    assert timer.fire_stale()
    assert rung == [120, 130, 110]
    assert not timer.fire_stale()
    assert timer.events == [("arm", 30, 130), ("arm", 20, 120), ("arm", 10, 110), ("cancel", 110)]
    timer.arm(200, note)
    timer.close()
    assert timer.armed == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_is_begun_again():
    timer = ThreadTimer(SystemClock())
    rung = Event()

    def end(_):
        raise SystemExit

    timer.arm(0, end)
    timer._thread.join(PATIENCE)
    timer.arm(0, lambda _: rung.set())
    assert rung.wait(PATIENCE)
    timer.close()


def test_a_clock_that_was_set_back_wakes_nobody_later():
    assert alarm_time(2_000, 1_000, 3_600_000, 1_000) == 2_000
