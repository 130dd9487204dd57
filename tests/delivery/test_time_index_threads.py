"""Adders of every kind against a drainer, with threads that change places all the time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bookstand.delivery.time_index import index as time_index
from bookstand.delivery.time_index.index import TimeIndex

EACH = 400


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(time_index, "_MAX_ARRIVALS", 50)
    monkeypatch.setattr(time_index, "_MAX_BITMAPS", 20)
    monkeypatch.setattr(time_index, "_STAGING_CAPACITY", 300)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def singly(index: TimeIndex, ledger: int) -> None:
    for entry in range(EACH):
        index.add(entry % 50, ledger, entry)


def by_handle(index: TimeIndex, ledger: int) -> None:
    handles = [index.handle(time, ledger) for time in range(3)]
    for entry in range(EACH):
        handles[entry % 3](entry)


def by_one_handle_for_all(index: TimeIndex, ledger: int) -> None:
    """The same bitmap in two threads."""
    handle = index.handle(7, 100)
    for entry in range(ledger * EACH, (ledger + 1) * EACH):
        handle(entry)


def in_batches(index: TimeIndex, ledger: int) -> None:
    for first in range(0, EACH, 100):
        entries = np.arange(first, first + 100)
        index.add_many(entries * 37 % 50, ledger, entries)


ADDERS: list[Callable[[TimeIndex, int], None]] = [
    singly,
    singly,
    singly,
    by_handle,
    by_one_handle_for_all,
    by_one_handle_for_all,
    in_batches,
    in_batches,
]


@pytest.mark.parametrize("run", range(20))
def test_nothing_is_lost_and_nothing_comes_twice(run: int) -> None:
    index = TimeIndex()
    wrong: list[BaseException] = []
    begin = threading.Barrier(len(ADDERS) + 1)

    def work(adder: Callable[[TimeIndex, int], None], ledger: int) -> None:
        try:
            begin.wait(60)
            adder(index, ledger)
        except BaseException as error:
            wrong.append(error)

    adders = [threading.Thread(target=work, args=(adder, ledger)) for ledger, adder in enumerate(ADDERS)]
    for thread in adders:
        thread.start()
    begin.wait(60)
    got: list[tuple[int, int]] = []
    while any(thread.is_alive() for thread in adders):
        got += index.pop_due(100, None if run % 2 else 70).positions()
    for thread in adders:
        thread.join()
    got += index.pop_due(100).positions()
    assert wrong == []
    assert len(got) == len(set(got)) == len(ADDERS) * EACH
    assert len(index) == 0
