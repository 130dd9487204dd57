"""Negative acknowledgments (PIP-393). Cases are those of the reference page for the time index.

Case 11 (the ack-timeout tracker) and 16 (interceptors over several topics) are about a client's other parts, which a
store does not have. Cases 5 to 7 stand in ``test_backoff.py``, 17 to 23, of delayed messages, in ``test_in_memory.py``.
"""

from __future__ import annotations

from threading import Event, Lock, Thread

import numpy as np
import pytest

from bookstand.delivery.nacks.tracker import MAX_BATCH, RETRY_MILLIS, NegativeAcks
from bookstand.delivery.subscription.backoff import MultiplierRedeliveryBackoff
from bookstand.delivery.tracker.protocol import TrackerClosedError
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from bookstand.testing import VirtualClock
from tests.delivery.kit import Nacks

NOW = 1_000_000
LARGEST = (1 << 63) - 1


# -- buckets and delays ------------------------------------------------------------------------------------------------


def test_case_1_messages_of_one_entry_in_one_bucket_count_once():
    n = Nacks(delay=3000)
    for index in range(3):
        n.add((3, 1), batch_index=index)
    assert n.acks.count == len(n.acks) == 1
    n.run_to(NOW + 3000)
    assert n.calls == [[(3, 1)]]
    assert n.acks.count == 0
    n.run_to(NOW + 100_000)
    assert len(n.calls) == 1


def test_case_2_the_lower_bits_are_trimmed():
    n = Nacks()
    n.add((1, 1), (1, 2))
    assert n.acks.buckets() == {1_059_840: 2}
    assert n.acks.next_redelivery == NOW + 60_000
    n = Nacks(precision_bits=0)
    n.add((1, 1))
    assert n.acks.buckets() == {NOW + 60_000: 1}


@pytest.mark.parametrize("bits", range(13))
def test_case_3_early_by_less_than_the_bucket_and_never_late(bits):
    n = Nacks(precision_bits=bits, delay=2000)
    wanted: dict[tuple[int, int], int] = {}
    given: dict[tuple[int, int], int] = {}
    n.acks._redeliver = lambda positions: given.update(dict.fromkeys(positions, n.now))
    for entry in range(60):
        n.run_to(n.now + 37)
        n.add((1, entry))
        wanted[1, entry] = n.now + 2000
    n.run_to(n.now + 5000)
    assert given.keys() == wanted.keys()
    assert all(wanted[position] - (1 << bits) < time <= wanted[position] for position, time in given.items())


@pytest.mark.parametrize(("delay", "real"), [(0, 100), (99, 100), (100, 100), (101, 101)])
def test_case_4_no_delay_below_100_ms(delay, real):
    n = Nacks(precision_bits=0, delay=delay)
    n.add((1, 1))
    assert n.acks.next_redelivery == NOW + real
    n = Nacks(precision_bits=0)
    n.add((1, 1), delay=delay)
    assert n.acks.next_redelivery == NOW + real


def test_case_4_but_for_what_a_backoff_says():
    n = Nacks(precision_bits=0, delay=5000, backoff=MultiplierRedeliveryBackoff(1, 1000, 2))
    n.add((1, 1), redelivery_count=3)
    assert n.acks.next_redelivery == NOW + 8
    n.add((1, 2))
    assert n.acks.next_redelivery == NOW + 1
    n.add((1, 3), delay=50)
    assert n.acks.buckets() == {NOW + 1: 1, NOW + 8: 1, NOW + 100: 1}


def test_cases_5_and_6_the_backoff_replaces_the_delay():
    n = Nacks(precision_bits=0, backoff=MultiplierRedeliveryBackoff(1000, 600_000, 2))
    for entry, count in enumerate((0, 1, 4, 100)):
        n.add((1, entry), redelivery_count=count)
    assert list(n.acks.buckets()) == [NOW + wait for wait in (1000, 2000, 16_000, 600_000)]


def test_case_8_the_same_entry_at_two_times():
    n = Nacks(precision_bits=0, delay=3000)
    n.add((1, 1), batch_index=0)
    n.run_to(NOW + 2000)
    n.add((1, 1), batch_index=1)
    assert n.acks.buckets() == {NOW + 3000: 1, NOW + 5000: 1}
    n.run_to(NOW + 2999)
    assert n.calls == []
    n.run_to(NOW + 3000)
    assert n.taken() == [(1, 1)]
    n.run_to(NOW + 4999)
    assert n.calls == []
    n.run_to(NOW + 5000)
    assert n.taken() == [(1, 1)]


def test_case_9_in_two_buckets_that_are_both_due_it_comes_once():
    n = Nacks(precision_bits=0, delay=3000)
    n.add((1, 1), (2, 2))
    n.go_to(NOW + 2000)
    n.add((1, 1), (1, 0))
    n.go_to(NOW + 9000)
    assert n.timer.fire() == 1
    assert n.calls == [[(1, 1), (2, 2), (1, 0)]]
    assert n.acks.count == 0
    assert n.timer.armed == []


def test_case_10_all_of_them_and_then_nothing():
    n = Nacks(delay=1000)
    positions = [(1 + entry // 7, entry) for entry in range(20)]
    n.add(*positions)
    n.run_to(NOW + 1000)
    assert n.taken() == positions
    n.run_to(NOW + 100_000)
    assert n.calls == []
    assert n.timer.armed == []


def test_case_12_every_chunk_comes_again():
    n = Nacks(precision_bits=0, delay=1000)
    chunks = [(5, 6), (5, 7), (5, 9)]
    n.add((5, 9), chunks=chunks)
    n.run_to(NOW + 500)
    n.add((5, 9), chunks=chunks)
    n.add((6, 9), chunks=[(6, 1), (6, 9)])
    assert n.acks.buckets() == {NOW + 1000: 1, NOW + 1500: 2}
    n.run_to(NOW + 1000)
    assert sorted(n.taken()) == chunks
    n.run_to(NOW + 1500)
    assert sorted(n.taken()) == [*chunks, (6, 1), (6, 9)]
    assert n.acks.count == 0


def test_case_12_chunks_that_are_nacked_by_themselves_too_come_once():
    n = Nacks(precision_bits=0, delay=1000)
    n.add((5, 9), chunks=[(5, 6), (5, 9)])
    n.add((5, 6))
    n.run_to(NOW + 2000)
    assert sorted(n.given) == [(5, 6), (5, 9)]


# -- alarms ------------------------------------------------------------------------------------------------------------


def test_case_14_a_shorter_delay_does_not_wait_for_a_longer_one():
    n = Nacks(precision_bits=0, backoff=MultiplierRedeliveryBackoff(1000, 600_000, 600))
    n.add((1, 1), redelivery_count=1)
    assert n.timer.armed == [NOW + 600_000]
    n.add((1, 2))
    assert n.timer.armed == [NOW + 1000]
    n.run_to(NOW + 1000)
    assert n.taken() == [(1, 2)]
    assert n.timer.armed == [NOW + 600_000]
    n.run_to(NOW + 600_000)
    assert n.taken() == [(1, 1)]


def test_there_is_one_alarm():
    n = Nacks(delay=1000)
    for entry, delay in enumerate((5000, 300, 400, 200, 60_000)):
        n.add((1, entry), delay=delay)
        assert n.timer.armed == [n.acks.next_redelivery]
    assert n.acks.next_redelivery == NOW + 200


def test_case_24_a_stale_alarm_leaves_the_newer_one():
    n = Nacks(precision_bits=0)
    n.add((1, 1), delay=5000)
    n.add((1, 2), delay=1000)
    n.go_to(NOW + 500)
    assert n.timer.fire_stale()
    assert n.calls == []
    assert n.timer.armed == [NOW + 1000]
    n.go_to(NOW + 1000)
    assert n.timer.fire() == 1
    assert n.taken() == [(1, 2)]
    assert n.timer.armed == [NOW + 5000]


def test_a_stale_alarm_gives_what_is_due():
    n = Nacks(precision_bits=0)
    n.add((1, 1), delay=5000)
    n.add((1, 2), delay=1000)
    n.go_to(NOW + 2000)
    assert n.timer.fire_stale()
    assert n.taken() == [(1, 2)]
    assert n.timer.fire() == 1
    assert n.calls == []
    assert n.timer.armed == [NOW + 5000]


# -- closing -----------------------------------------------------------------------------------------------------------


def test_case_13_closed_nothing_comes():
    n = Nacks(delay=1000)
    n.add((1, 1))
    n.acks.close()
    n.acks.close()
    assert n.timer.armed == []
    assert n.acks.count == 0
    n.go_to(NOW + 5000)
    # A timer that had begun to ring when it was cancelled.
    assert n.timer.fire_stale()
    assert n.calls == []


def test_case_13_closed_it_takes_nothing():
    n = Nacks(delay=1000)
    with n.acks:
        n.add((1, 1))
    with pytest.raises(TrackerClosedError, match="closed"):
        n.add((1, 2))
    with pytest.raises(TrackerClosedError, match="closed"):
        n.acks.add_many([(1, 2)])
    assert n.acks.count == 0
    assert n.timer.armed == []


# -- the callback ------------------------------------------------------------------------------------------------------


def test_case_15_redeliver_may_add_and_close():
    n = Nacks(precision_bits=0, delay=1000)
    seen: list[list[Position]] = []

    def redeliver(positions: list[Position]) -> None:
        seen.append(positions)
        if len(seen) < 3:
            n.add(*positions)
        else:
            n.acks.close()

    n.acks._redeliver = redeliver
    n.add((1, 1))
    n.run_to(NOW + 10_000)
    assert seen == [[(1, 1)]] * 3
    assert n.timer.armed == []


def test_case_15_close_ends_the_round():
    n = Nacks(delay=1000)
    n.acks.add_many([(1, entry) for entry in range(3 * MAX_BATCH)])
    n.acks._redeliver = lambda positions: (n.redeliver(positions), n.acks.close())
    n.run_to(NOW + 1000)
    assert len(n.given) == MAX_BATCH


def test_case_15_no_lock_is_held_in_redeliver():
    """It waits for a thread that adds, and that would wait for the lock."""
    n = Nacks(precision_bits=0, delay=1000)
    added = Event()

    def add() -> None:
        n.add((9, 9))
        added.set()

    def redeliver(positions: list[Position]) -> None:
        n.redeliver(positions)
        if len(n.calls) == 1:
            Thread(target=add, daemon=True).start()
            assert added.wait(20)

    n.acks._redeliver = redeliver
    n.add((1, 1))
    n.run_to(NOW + 5000)
    assert n.given == [(1, 1), (9, 9)]


def test_a_thousand_at_a_time():
    n = Nacks(delay=1000)
    positions = [(1, entry) for entry in range(2500)]
    n.acks.add_many(positions)
    n.run_to(NOW + 1000)
    assert list(map(len, n.calls)) == [1000, 1000, 500]
    assert n.given == positions


def test_an_alarm_that_rings_while_one_is_at_it_is_not_lost():
    n = Nacks(precision_bits=0, delay=1000)
    begun, go_on = Event(), Event()

    def redeliver(positions: list[Position]) -> None:
        n.redeliver(positions)
        if len(n.calls) == 1:
            begun.set()
            assert go_on.wait(20)

    n.acks._redeliver = redeliver
    n.add((1, 1))
    n.add((1, 2), delay=1500)
    n.go_to(NOW + 1000)
    first = Thread(target=n.timer.fire)
    first.start()
    assert begun.wait(20)
    n.go_to(NOW + 1500)
    (armed,) = n.timer.armed
    assert armed == NOW + 1500
    alarm = n.acks._alarm
    n.timer._alarms.remove(alarm)
    alarm.fire()
    # One call at a time.
    assert n.given == [(1, 1)]
    go_on.set()
    first.join(20)
    n.timer.fire()
    assert n.given == [(1, 1), (1, 2)]


def test_what_failed_comes_again(caplog):
    n = Nacks(precision_bits=0, delay=1000)
    failing = [False, True, False, True]

    def redeliver(positions: list[Position]) -> None:
        if failing.pop(0):
            raise ValueError("the consumer is away")
        n.redeliver(positions)

    n.acks._redeliver = redeliver
    n.acks.add_many([(1, entry) for entry in range(2500)])
    n.run_to(NOW + 1000)
    assert "the consumer is away" in caplog.text
    assert n.given == [(1, entry) for entry in range(1000)]
    assert n.acks.count == 1500
    assert n.timer.armed == [NOW + 1000 + RETRY_MILLIS]
    failing.append(False)
    n.run_to(NOW + 1000 + RETRY_MILLIS)
    assert len(n.given) == 2000
    n.run_to(NOW + 1000 + 2 * RETRY_MILLIS)
    assert n.given == [(1, entry) for entry in range(2500)]
    assert n.acks.count == 0


def test_after_a_failure_a_shorter_delay_is_kept():
    n = Nacks(precision_bits=0, delay=1000)
    failing = [True]

    def redeliver(positions: list[Position]) -> None:
        if failing:
            failing.pop()
            raise ValueError
        n.redeliver(positions)

    n.acks._redeliver = redeliver
    n.add((1, 1))
    n.run_to(NOW + 1000)
    n.add((1, 2), delay=200)
    assert n.timer.armed == [NOW + 1200]
    n.run_to(NOW + 1200)
    assert n.given == [(1, 1), (1, 2)]


# -- many --------------------------------------------------------------------------------------------------------------


def test_columns_and_positions_are_the_same():
    for given in ([(2, 5), (1, 7), (2, 5)], (np.array([2, 1, 2]), np.array([5, 7, 5]))):
        n = Nacks(precision_bits=0)
        n.acks.add_many(given, delay=500)
        assert n.acks.buckets() == {NOW + 500: 2}
        n.run_to(NOW + 500)
        assert n.given == [(1, 7), (2, 5)]
    n.acks.add_many([])
    assert n.acks.count == 0
    assert n.timer.armed == []


def test_ids_of_64_bits():
    n = Nacks(precision_bits=0)
    positions = [(1, (1 << 32) - 1), (1, 1 << 32), (1, LARGEST), (LARGEST, 0), (LARGEST, LARGEST)]
    n.add(*positions)
    assert n.acks.count == 5
    n.run_to(NOW + 60_000)
    assert n.given == positions
    assert all(isinstance(position, Position) for position in n.given)


def test_a_deadline_beyond_the_end_of_time():
    n = Nacks(precision_bits=0)
    n.add((1, 1), delay=LARGEST)
    assert n.acks.next_redelivery == LARGEST


def test_memory():
    n = Nacks(delay=10_000)
    for start in range(0, 100_000, 10_000):
        n.acks.add_many((np.full(10_000, 3), np.arange(start, start + 10_000)))
    assert n.acks.count == 100_000
    assert n.acks.memory_bytes < 100_000


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"position": (-1, 0)},
        {"position": (1, -1)},
        {"position": (1, 1 << 63)},
        {"position": None},
        {"position": (1, 1), "batch_index": -2},
        {"position": (1, 1), "batch_index": "1"},
        {"position": (1, 1), "delay": -1},
        {"position": (1, 1), "delay": 1.5},
        {"position": (1, 1), "redelivery_count": 1.5},
        {"position": (1, 1), "chunks": [(1, -1)]},
    ],
)
def test_what_makes_no_sense_is_refused(arguments):
    n = Nacks()
    with pytest.raises(IncorrectParameterError):
        n.acks.add(**arguments)
    assert n.acks.count == 0
    assert n.timer.armed == []


@pytest.mark.parametrize(
    "settings", [{"delay": -1}, {"delay": 1.5}, {"precision_bits": -1}, {"precision_bits": 64}, {"precision_bits": 65}]
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(IncorrectParameterError):
        Nacks(**settings)


def test_a_backoff_that_makes_no_sense():
    class Backwards:
        def next(self, redelivery_count: int) -> int:
            return -5

    n = Nacks(backoff=Backwards())
    with pytest.raises(IncorrectParameterError, match="backoff"):
        n.add((1, 1))
    assert n.acks.count == 0


# -- time and threads --------------------------------------------------------------------------------------------------


def test_on_a_virtual_clock_it_needs_no_timer():
    clock = VirtualClock(NOW)
    given: list[Position] = []
    with NegativeAcks(given.extend, precision_bits=0, delay=2000, clock=clock) as acks:
        acks.add((1, 1))
        acks.add((1, 2), delay=500)
        clock.advance(1)
        assert given == [(1, 2)]
        clock.advance(1)
        assert given == [(1, 2), (1, 1)]
        assert repr(acks) == "<NegativeAcks: 0 waiting>"


def test_in_the_machines_time():
    given: list[Position] = []
    done = Event()

    def redeliver(positions: list[Position]) -> None:
        given.extend(positions)
        if len(given) == 20:
            done.set()

    with NegativeAcks(redeliver, precision_bits=0, delay=100) as acks:
        for entry in range(20):
            acks.add((1, entry))
        assert done.wait(30)
    assert sorted(given) == [(1, entry) for entry in range(20)]


def test_many_threads(counts):
    """Everything that is added comes once for each bucket; time passes meanwhile."""
    n = Nacks(precision_bits=0, delay=1000)
    lock = Lock()
    each, writers = 400, 8
    errors: list[BaseException] = []
    left = list(range(writers))

    def redeliver(positions: list[Position]) -> None:
        with lock:
            n.calls.append(positions)

    n.acks._redeliver = redeliver

    def write(number: int) -> None:
        try:
            for entry in range(each):
                if entry % 4 == 0:
                    n.acks.add_many([(number, 10_000 + entry + extra) for extra in range(4)], delay=150)
                n.acks.add((number, entry), delay=100 + entry % 7)
        except BaseException as error:
            errors.append(error)
        finally:
            left.remove(number)

    threads = [Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    while left:
        n.go_to(n.now + 1)
        n.timer.fire()
    for thread in threads:
        thread.join(60)
    n.run_to(n.now + 1000)
    assert not errors
    wanted = [(number, base + entry) for number in range(writers) for base in (0, 10_000) for entry in range(each)]
    assert sorted(n.given) == sorted(wanted)
    assert n.acks.count == 0
    counts.add("nacks_between_threads", len(wanted))


def test_what_is_added_while_the_alarm_begins_to_ring_delays_no_other():
    n = Nacks(precision_bits=0)
    n.add((1, 1), delay=100)
    n.add((1, 2), delay=400)
    # It is about to ring, and waits for the lock that the next call has.
    (ringing,) = n.timer._alarms
    ringing.live = False
    n.add((1, 3), delay=60_000)
    assert n.acks._alarm.at <= NOW + 400
    n.run_to(NOW + 400)
    assert sorted(n.given) == [(1, 1), (1, 2)]
    n.run_to(NOW + 60_000)
    assert sorted(n.given) == [(1, 1), (1, 2), (1, 3)]
