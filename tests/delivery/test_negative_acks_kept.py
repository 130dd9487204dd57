"""Negative acknowledgments that outlive their process: every one that was acknowledged is given back, at least once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any

import numpy as np
import pytest

import bookstand
from bookstand.delivery.nacks.log import delete, node_of
from bookstand.delivery.nacks.record import encode_nacks, nacks_of
from bookstand.delivery.nacks.tracker import NegativeAcks
from bookstand.errors import (
    BookstandError,
    LedgerFencedError,
    WriteOnReadOnlyError,
)
from bookstand.testing import VirtualClock, every_crash
from tests.delivery.kit import Nacks
from tests.kit import Faults

NOW = 1_000_000


class Kept(Nacks):
    """Nacks in a store."""

    def __init__(self, store: Any, start: int = NOW, **settings: Any) -> None:
        self.store = store
        super().__init__(start, **settings)

    def make(self, **settings: Any) -> NegativeAcks:
        options = {"precision_bits": 0, "delay": 1000, **settings}
        return NegativeAcks.open(self.store, "sub", self.redeliver, clock=self.clock, timer=self.timer, **options)


def ledgers(store: Any) -> list[int]:
    return list(store.list_ledgers())


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_restart_forgets_nothing(open_store):
    store = open_store()
    n = Kept(store)
    n.add((1, 1), (1, 2), (2, 7))
    n.add((1, 1), delay=5000)
    n.acks.close()
    store.close()
    n = Kept(open_store(), NOW + 500)
    assert n.acks.buckets() == {NOW + 1000: 3, NOW + 5000: 1}
    assert n.timer.armed == [NOW + 1000]
    n.run_to(NOW + 1000)
    assert n.taken() == [(1, 1), (1, 2), (2, 7)]
    n.run_to(NOW + 5000)
    assert n.taken() == [(1, 1)]


@pytest.mark.parametrize("how", ["close", "crash", "leave"])
def test_what_was_given_back_is_not_again(open_store, how):
    store = open_store()
    n = Kept(store)
    n.add((1, 1), (1, 2))
    n.add((1, 3), delay=3000)
    n.run_to(NOW + 1000)
    n.add((1, 4), delay=100)
    if how == "close":
        n.acks.close()
        store.close()
    elif how == "crash":
        store.storage.crash()
    n = Kept(open_store(), NOW + 1000)
    assert n.acks.buckets() == {NOW + 1100: 1, NOW + 3000: 1}


def test_what_was_due_meanwhile_comes_at_once(open_store):
    store = open_store()
    n = Kept(store)
    n.add((1, 1), (1, 2))
    store.storage.crash()
    n = Kept(open_store(), NOW + 10**9)
    assert n.timer.armed == [NOW + 10**9]
    n.timer.fire()
    assert n.taken() == [(1, 1), (1, 2)]


def test_a_crash_before_it_was_noted_gives_it_again(open_store):
    store = open_store()
    n = Kept(store)
    n.add((1, 1))
    n.acks._redeliver = lambda positions: (n.redeliver(positions), store.storage.crash())
    n.run_to(NOW + 1000)
    assert n.taken() == [(1, 1)]
    n = Kept(open_store(), NOW + 1000)
    n.run_to(NOW + 1000)
    assert n.taken() == [(1, 1)]


def test_what_failed_is_not_noted_as_given(open_store):
    """Nor by the rounds after it, as long as it has not been given."""
    store = open_store()
    n = Kept(store)

    def fail(positions: Any) -> None:
        raise ValueError("away")

    n.acks._redeliver = fail
    n.add((1, 1))
    n.run_to(NOW + 1000)
    n.add((1, 2), delay=100)
    n.run_to(NOW + 1100)
    store.storage.crash()
    n = Kept(open_store(), NOW + 1100)
    assert n.acks.buckets() == {NOW + 1000: 1, NOW + 1100: 1}


def test_what_is_nacked_while_it_is_given_back_stays(open_store):
    """It is due by the time that the round is noted with, and was not in it."""
    store = open_store()
    n = Kept(store)

    def redeliver(positions: Any) -> None:
        n.redeliver(positions)
        if len(n.calls) == 1:
            n.add((9, 9), delay=100)
            n.go_to(NOW + 50_000)

    n.acks._redeliver = redeliver
    n.add((1, 1))
    n.go_to(NOW + 1000)
    n.timer._alarms.pop().fire()
    store.storage.crash()
    n = Kept(open_store(), NOW + 50_000)
    assert n.acks.buckets() == {NOW + 1100: 1}


def test_a_clock_that_goes_back_loses_nothing(open_store):
    store = open_store()
    n = Kept(store, NOW + 10_000)
    n.add((1, 1))
    n.run_to(NOW + 11_000)
    assert n.taken() == [(1, 1)]
    n.acks._clock = VirtualClock(NOW)
    n.add((1, 2))
    store.storage.crash()
    n = Kept(open_store(), NOW)
    assert n.acks.buckets() == {NOW + 1000: 1}


def test_chunks_are_kept(open_store):
    store = open_store()
    n = Kept(store, compact_bytes=1)
    n.add((5, 9), chunks=[(5, 6), (5, 7), (5, 9)], delay=10_000)
    for entry in range(20):
        n.add((6, entry), delay=100)
        n.run_to(n.now + 100)
    n.taken()
    store.storage.crash()
    n = Kept(open_store(), NOW + 5000)
    n.run_to(NOW + 60_000)
    assert n.taken() == [(5, 6), (5, 7), (5, 9)]


def test_another_precision(open_store):
    store = open_store()
    n = Kept(store)
    n.add((1, 1), delay=1000)
    n.add((1, 2), delay=1200)
    n.acks.close()
    n = Kept(store, precision_bits=10)
    ((key, count),) = n.acks.buckets().items()
    assert (key % 1024, count) == (0, 2)
    n.acks.close()
    n = Kept(store, precision_bits=0)
    assert n.acks.buckets() == {key: 2}


def test_names_are_kept_apart_and_forgotten(open_store):
    store = open_store()
    first = NegativeAcks.open(store, "one", print, clock=VirtualClock(NOW))
    other = NegativeAcks.open(store, "other", print, clock=VirtualClock(NOW))
    first.add((1, 1))
    other.add((2, 2))
    other.add((2, 3))
    first.close()
    other.close()
    delete(store, "one")
    delete(store, "one")
    assert store.nodes.children("/negative-acks") == ["other"]
    assert len(ledgers(store)) == 1
    with NegativeAcks.open(store, "one", print, clock=VirtualClock(NOW)) as one:
        assert one.count == 0
    with NegativeAcks.open(store, "other", print, clock=VirtualClock(NOW)) as again:
        assert again.count == 2


# -- compaction --------------------------------------------------------------------------------------------------------


def test_the_log_stays_small(open_store):
    store = open_store(durability="none")
    n = Kept(store, compact_bytes=500)
    for entry in range(200):
        n.add((1, entry), delay=100)
        n.run_to(n.now + 100)
    assert len(n.given) == 200
    (ledger_id,) = ledgers(store)
    assert ledger_id >= 3
    assert store.open_ledger(ledger_id, recovery=False, password=b"").length < 2000
    n.acks.close()


def test_a_large_log_is_not_written_again_and_again(open_store):
    """Writing it anew costs no more than what was written since the last time."""
    store = open_store(durability="none")
    n = Kept(store, compact_bytes=100)
    appended = 0
    anew = []
    for entry in range(0, 2000, 2):
        before = n.acks._log._writer
        n.acks.add_many([(1, entry)], delay=10**6 + entry)
        if n.acks._log._writer is not before:
            anew.append(n.acks._log._writer.length)
            appended += before.length
    assert len(anew) > 2
    assert sum(anew) <= appended
    assert n.acks.count == 1000
    n.acks.close()


def test_entries_keep_to_the_limit_of_the_store(open_store):
    store = open_store(max_entry_bytes=200)
    n = Kept(store)
    n.acks.add_many([(1, entry) for entry in range(0, 1000, 3)])
    n.acks.close()
    store.close()
    n = Kept(open_store(max_entry_bytes=200))
    assert n.acks.count == 334
    n.run_to(NOW + 1000)
    assert n.given == [(1, entry) for entry in range(0, 1000, 3)]


def test_nothing_is_written_anew_while_something_is_in_hand(open_store):
    """It is neither in the index nor given out: a new log would be without it."""
    store = open_store()
    n = Kept(store, compact_bytes=1)

    def redeliver(positions: Any) -> None:
        n.redeliver(positions)
        for entry in range(20):
            n.add((9, entry), delay=10_000)
        store.storage.crash()

    n.add((1, 1))
    n.acks._redeliver = redeliver
    n.run_to(NOW + 1000)
    n = Kept(open_store(), NOW + 1000)
    assert n.acks.buckets() == {NOW + 1000: 1, NOW + 11_000: 20}


def test_where_it_cannot_be_written_anew_the_old_one_goes_on(open_store, caplog):
    store = open_store()
    n = Kept(store, compact_bytes=100)
    n.add((1, 0))
    before = ledgers(store)
    value, _ = store.nodes.get(node_of("sub"))
    store.nodes.put(node_of("sub"), value)
    for entry in range(1, 40):
        n.add((1, entry))
    assert caplog.text.count("were not compacted") in range(1, 5)
    assert ledgers(store) == before
    store.storage.crash()
    n = Kept(open_store())
    assert n.acks.count == 40


# -- others ------------------------------------------------------------------------------------------------------------


def test_whoever_opens_them_takes_them_over(open_store):
    store = open_store()
    old = Kept(store)
    old.add((1, 1))
    new = Kept(store)
    with pytest.raises(BookstandError):
        old.add((1, 2))
    new.add((1, 3))
    old.acks.close()
    new.acks.close()
    assert Kept(store).acks.count == 2


def test_over_two_clients(open_store):
    old = Kept(open_store())
    old.add((1, 1))
    new = Kept(open_store())
    with pytest.raises((LedgerFencedError, BookstandError)):
        old.add((1, 2))
    assert new.acks.count == 1


def damage_of(store):
    """What is reported; the log goes on, and is intact the next time."""
    kept = Kept(store)
    (damage,) = kept.acks.damage
    kept.add((1, 1))
    kept.acks.close()
    again = Kept(store)
    assert (again.acks.count, again.acks.damage) == (1, [])
    again.acks.close()
    assert len(list(store.list_ledgers())) == 1
    return damage


def test_a_node_that_names_nothing(open_store):
    store = open_store()
    store.nodes.put(node_of("sub"), b"what")
    assert "/negative-acks/sub" in damage_of(store)


def test_a_ledger_that_is_missing_is_damage(open_store):
    store = open_store()
    store.nodes.put(node_of("sub"), b"17")
    assert "17" in damage_of(store)


def test_a_damaged_record_is_reported_and_intact_ones_count(open_store, caplog):
    store = open_store()
    (record,) = encode_nacks([nacks_of(NOW + 5000, 1, np.array([1, 2]))], 1000)
    with store.transaction() as t:
        writer = t.create_ledger(digest="crc32c", password=b"")
        t.append(writer, b"\x0a\x05")
        t.append(writer, record)
        t.put_node(node_of("sub"), b"%d" % writer.id)
    n = Kept(store)
    assert n.acks.buckets() == {NOW + 5000: 2}
    (problem,) = n.acks.damage
    assert f"entry {writer.id}:0" in problem
    assert f"entry {writer.id}:0" in caplog.text
    n.acks.close()
    assert Kept(store).acks.damage == []


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_one_damaged_entry_costs_what_it_recorded_and_no_more(open_store, damaged):
    """Its digest does not match."""
    faults = Faults()
    store = open_store(hooks=faults)
    n = Kept(store)
    for entry in range(3):
        n.add((1, entry), delay=5000 + entry)
    (ledger_id,) = ledgers(store)
    n.acks.close()

    def flip(one: int, entry_id: int, stored: bytes | None) -> bytes | None:
        if (one, entry_id) != (ledger_id, damaged) or stored is None:
            return stored
        return stored[:-1] + bytes([stored[-1] ^ 1])

    faults.on_entry = flip
    n = Kept(store)
    faults.on_entry = None
    assert len(n.acks.damage) == 1
    assert n.acks.buckets() == {NOW + 5000 + entry: 1 for entry in range(3) if entry != damaged}


def test_a_store_that_takes_nothing(open_store):
    open_store().close()
    with pytest.raises(WriteOnReadOnlyError):
        Kept(open_store(read_only=True))


def test_with_bookkeepers_defaults(open_store):
    store = open_store(defaults=bookstand.bookkeeper_defaults)
    n = Kept(store)
    n.add((1, 1))
    n.acks.close()
    assert Kept(store).acks.count == 1


def test_many_threads_while_the_log_is_written_anew(open_store):
    store = open_store()
    n = Kept(store, compact_bytes=300)
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for entry in range(40):
                n.acks.add((number, entry))
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert ledgers(store)[0] > 0
    store.storage.crash()
    n = Kept(open_store())
    n.run_to(NOW + 1000)
    assert sorted(n.given) == [(number, entry) for number in range(6) for entry in range(40)]


# -- crashes -----------------------------------------------------------------------------------------------------------

STEPS = 12


def attempt(number: int) -> list[tuple[int, int]]:
    return [(number % 2, 10 * number + extra) for extra in range(1 + number % 3)]


def workload(compact_bytes: int, path: str, acknowledge: Callable[[object], None]) -> None:
    with bookstand.open(path) as store:
        n = Kept(store, compact_bytes=compact_bytes)
        n.acks._redeliver = lambda positions: acknowledge(("given", [tuple(one) for one in positions]))
        for number in range(STEPS):
            if number == STEPS // 2:
                n.acks.close()
                n.acks = n.make(compact_bytes=compact_bytes)
                n.acks._redeliver = lambda positions: acknowledge(("given", [tuple(one) for one in positions]))
            n.acks.add_many(attempt(number), delay=100 + 150 * (number % 4))
            acknowledge(("nacked", attempt(number)))
            n.run_to(n.now + 130)
        n.acks.close()
        acknowledge(("closed",))


def check(store: Any, acknowledged: list[Any]) -> None:
    nacked = {tuple(one) for said in acknowledged if said[0] == "nacked" for one in said[1]}
    given = {tuple(one) for said in acknowledged if said[0] == "given" for one in said[1]}
    n = Kept(store, NOW + 10**6)
    # Nothing is given back here: the same store is looked at twice.
    again = set(n.acks.positions())
    n.acks.close()
    assert nacked <= given | again, sorted(nacked - given - again)
    assert again <= {position for number in range(STEPS) for position in attempt(number)}
    assert store.nodes.children("/negative-acks") == ["sub"]
    assert len(ledgers(store)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("compact_bytes", [1, 1 << 20])
def test_power_cuts(compact_bytes, counts):
    explored = every_crash(partial(workload, compact_bytes), check, limit=120, seed=1)
    assert explored.states > 100
    counts.add("crash_states", explored.states)
