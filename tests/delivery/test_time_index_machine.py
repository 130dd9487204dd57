"""Everything that can be done with a time index, in any order, against a sorted set of triples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bookstand.delivery.time_index import index, sealed_part
from bookstand.delivery.time_index.index import TimeIndex
from tests.delivery.time_model import TimeModel, Triple, batches, entries, ledgers, near, times

limits = st.one_of(st.none(), st.integers(0, 12))
nows = st.one_of(near, times)


class Machine(RuleBasedStateMachine):
    @initialize(bits=st.sampled_from([0, 0, 3, 40]), up=st.booleans())
    def start(self, bits: int, up: bool) -> None:
        self.index = TimeIndex(bits, round_up=up)
        self.model = TimeModel(self.index.key)
        self.handles: list[tuple[int, int, Any]] = []

    @rule(time=times, ledger=ledgers, entry=entries)
    def add(self, time: int, ledger: int, entry: int) -> None:
        self.index.add(time, ledger, entry)
        self.model.add([(time, ledger, entry)])

    @rule(rows=batches)
    def add_singly(self, rows: list[Triple]) -> None:
        for row in rows:
            self.index.add(*row)
        self.model.add(rows)

    @rule(rows=batches, order=st.booleans())
    def add_many(self, rows: list[Triple], order: bool) -> None:
        if order:
            rows = sorted(rows)
        columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        self.index.add_many(*columns)
        self.model.add(rows)

    @rule(time=times, ledger=ledgers, ids=st.lists(entries))
    def add_many_to_one_bucket(self, time: int, ledger: int, ids: list[int]) -> None:
        self.index.add_many(time, ledger, ids)
        self.model.add((time, ledger, entry) for entry in ids)

    @rule(time=times, ledger=ledgers, first=entries, count=st.integers(1, 50))
    def add_range(self, time: int, ledger: int, first: int, count: int) -> None:
        last = min(first + count - 1, (1 << 63) - 1)
        self.index.add_range(time, ledger, first, last)
        self.model.add((time, ledger, entry) for entry in range(first, last + 1))

    @rule(time=near, ledger=ledgers)
    def make_handle(self, time: int, ledger: int) -> None:
        self.handles.append((time, ledger, self.index.handle(time, ledger)))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), ids=st.lists(entries))
    def use_handle(self, data: st.DataObject, ids: list[int]) -> None:
        time, ledger, handle = data.draw(st.sampled_from(self.handles))
        for entry in ids:
            handle(entry)
        self.model.add((time, ledger, entry) for entry in ids)

    @precondition(lambda self: self.handles)
    @rule()
    def drop_handle(self) -> None:
        self.handles.pop()

    @rule(now=nows, limit=limits)
    def pop(self, now: int, limit: int | None) -> None:
        drained = self.index.pop_due(now, limit)
        assert drained.triples() == self.model.pop(now, limit)

    @rule(first=st.one_of(st.none(), nows), last=st.one_of(st.none(), nows), limit=limits)
    def peek(self, first: int | None, last: int | None, limit: int | None) -> None:
        drained = self.index.peek(first, last, limit)
        expected = self.model.peek(first, last, limit)
        assert len(drained) == len(expected)
        assert [
            (segment.key, segment.ledger_id, entry) for segment in drained for entry in segment.entry_ids.tolist()
        ] == expected
        assert drained.triples() == expected

    @rule(data=st.data(), time=times, ledger=ledgers, entry=entries)
    def discard(self, data: st.DataObject, time: int, ledger: int, entry: int) -> None:
        if self.model.triples and data.draw(st.booleans()):
            time, ledger, entry = data.draw(st.sampled_from(sorted(self.model.triples)))
        keys = [self.index.key(time)]
        there = (keys[0], ledger, entry) in self.model.triples
        assert self.index.contains(time, ledger, entry) == there
        assert self.index.discard(time, ledger, entry) == there
        self.model.discard(keys, ledger, entry)

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.model.triples.clear()

    @rule()
    def count(self) -> None:
        assert len(self.index) == len(self.model.triples)

    @invariant()
    def next_time(self) -> None:
        if hasattr(self, "index"):
            assert self.index.next_time() == min((key for key, _, _ in self.model.triples), default=None)

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.count()
            self.peek(None, None, None)


def small(monkeypatch: pytest.MonkeyPatch, hot: int, few: int) -> None:
    """Thresholds that so few messages as here reach."""
    monkeypatch.setattr(sealed_part, "_BLOCK", 4)
    monkeypatch.setattr(index, "_MAX_BITMAPS", hot)
    monkeypatch.setattr(index, "_STAGING_CAPACITY", 32)
    monkeypatch.setattr(index, "_MAX_SHORT_RUNS", few)
    monkeypatch.setattr(index, "_TIER_FANOUT", 2)
    monkeypatch.setattr(index, "_MAX_ARRIVALS", 20)
    monkeypatch.setattr(index, "_COMPARE_CHUNK", 7)
    monkeypatch.setattr(index, "_MIN_HANDLE_SWEEP", 2)
    monkeypatch.setattr(index, "_SINGLE_MOVE_LIMIT", 3)
    monkeypatch.setattr(index, "_MIN_SAMPLED_BATCH", 8)
    monkeypatch.setattr(index, "_SAMPLE_SIZE", 4)


@pytest.mark.slow
@pytest.mark.parametrize(("hot", "few"), [(1, 0), (4, 3), (4096, 64)], ids=["sealed", "mixed", "hot"])
def test_any_order(monkeypatch: pytest.MonkeyPatch, hot: int, few: int) -> None:
    small(monkeypatch, hot, few)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
