"""Runs of messages beside a plain sorted list."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.delivery.tracker.bucket import time_sorted
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.time_sorted import TimeSortedBuffer

Message = tuple[int, int, int]
times = st.integers(0, 30)
messages = st.lists(st.tuples(times, st.integers(0, 3), st.integers(0, 5)), max_size=40)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("many"), messages),
        st.tuples(st.just("sorted"), messages),
        st.tuples(st.just("single"), messages.map(lambda some: some[:3])),
        st.tuples(st.just("pop"), times, st.one_of(st.none(), st.integers(0, 50))),
        st.tuples(st.just("has"), times, st.integers(0, 50)),
        st.tuples(st.just("drop"), st.booleans()),
    ),
    max_size=25,
)


def columns(some: list[Message]) -> Indexes:
    return Indexes(*np.array(some, dtype=np.int64).reshape(-1, 3).T)


def rows(found: Indexes) -> list[Message]:
    return [(time, ledger, entry) for time, ledger, entry in found.indexes]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few messages are many."""
    monkeypatch.setattr(time_sorted, "_MERGED_PREFIX", 12)
    monkeypatch.setattr(time_sorted, "_MIN_TAKE", 3)
    monkeypatch.setattr(time_sorted, "_SMALL_RUN", 8)


@given(steps)
def test_they_give_the_earliest_first(steps: list[tuple]) -> None:
    runs = TimeSortedBuffer()
    model: list[Message] = []
    for what, *arguments in steps:
        if what == "many":
            runs.add_many(*columns(arguments[0]))
            model += arguments[0]
        elif what == "sorted":
            runs.add_sorted(columns(sorted(arguments[0])))
            model += arguments[0]
        elif what == "single":
            for one in arguments[0]:
                runs.add(*one)
            model += arguments[0]
        elif what == "has":
            until, amount = arguments
            assert runs.has_at_least(until, amount) is (sum(time <= until for time, _, _ in model) >= amount)
        elif what == "drop":
            if model:
                (first,) = rows(runs.first())
                assert first in model
                assert first[0] == min(model)[0]
                assert runs.lowest_ledger_of_first_time() == min(model)[1]
                if arguments[0]:
                    runs.drop_first()
                    model.remove(first)
        else:
            until, limit = arguments
            found = rows(runs.pop_due(until, limit))
            due = sorted(one for one in model if one[0] <= until)
            expected = due[:limit]
            # Of one time any.
            assert sorted(time for time, _, _ in found) == [time for time, _, _ in expected]
            if limit is not None:
                assert [time for time, _, _ in found] == sorted(time for time, _, _ in found)
            left = Counter(model)
            left.subtract(found)
            assert min(left.values(), default=0) >= 0
            model = list(left.elements())
        assert len(runs) == len(model)
        assert runs.next_time() == min((time for time, _, _ in model), default=None)
    assert sorted(rows(runs.all_rows())) == sorted(model)
    runs.clear()
    assert (len(runs), runs.next_time(), runs.all_rows().size) == (0, None, 0)


def test_little_by_little_makes_no_more_runs_than_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_sorted, "_SMALL_RUN", 1 << 12)
    runs = TimeSortedBuffer()
    for number in range(500):
        runs.add(number % 7, 1, number)
        assert not runs.has_at_least(6, number + 2)
    runs.pop_due(-1, 1)
    assert len([run for _, _, run in runs._heap if run]) <= 12


def test_many_runs_are_few_when_they_are_taken() -> None:
    runs = TimeSortedBuffer()
    for start in range(30):
        runs.add_sorted(columns([(time, start, time) for time in range(start, 3_000 + start)]))
    taken = [runs.pop_due(5_000, 100) for _ in range(900)]
    found = np.concatenate([part.timestamps for part in taken])
    assert len(found) == 90_000
    assert (np.diff(found) >= 0).all()
    assert len(runs) == 0
    assert runs.memory_bytes < 1_000


def test_memory_is_told_of() -> None:
    runs = TimeSortedBuffer()
    runs.add_sorted(columns([(time, 1, time) for time in range(10_000)]))
    assert 240_000 <= runs.memory_bytes < 250_000
