"""A round of the liveness campaign, and defects that it has to find."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.dispatch_pause import Admission, DispatchPause, OldFormAdmission
from bookstand.delivery.dispatch.backlog_source import BacklogSource
from bookstand.delivery.dispatch.delayed_source import DelayedSource
from bookstand.delivery.dispatch.redelivery_source import RedeliverySource
from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from tests.soak import liveness

CASES = 10


def test_a_round(counts: Any) -> None:
    done = liveness.one_round(5, CASES)
    counts.add("liveness", done.cases, len(done.problems))
    assert not done.problems, "\n".join(done.problems)
    assert done.figures["paused"] > CASES // 3
    assert done.figures["subscriptions"] == CASES


def found(kind: str, first: int) -> bool:
    """Search the plans from the seed ``first`` on for a problem of that kind."""
    with liveness.bench() as bench:
        for seed in range(first, first + 100):
            case = liveness.run(bench, liveness.random_plan(random.Random(seed)))
            if any(problem.startswith(kind) for problem in case.problems):
                return True
    return False


def test_only_redeliveries_going_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BacklogSource, "queue", lambda *_: False)
    monkeypatch.setattr(DelayedSource, "queue", lambda _: False)
    assert found("stuck", 49)


def test_holding_back_the_lowest_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        DispatchPause, "admission", lambda pause, query, outstanding: Admission(pause._state.highest_acked)
    )
    assert found("stuck", 19)


def test_no_bound_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursor, "admission", lambda *_: None)
    assert found("bound", 7)


def test_redeliveries_above_the_bound_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = RedeliverySource.take
    monkeypatch.setattr(RedeliverySource, "take", lambda again, most, *_: taken(again, most))
    assert found("bound", 49)


def test_a_hole_that_adds_a_range_too_many_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OldFormAdmission, "admits", Admission.admits)
    assert found("bound", 49)


def test_a_message_that_is_dropped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedeliverySource, "take", lambda *_: [])
    assert found("stuck", 2)


def test_an_early_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cutoff = InMemoryDelayedTracker._cutoff
    monkeypatch.setattr(InMemoryDelayedTracker, "_cutoff", lambda tracker: cutoff(tracker) + 1_000)
    assert found("early", 21)


def test_a_count_that_ends_no_pause_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursor, "entries_to_resume", property(lambda _: 0))
    assert found("resume", 37)
