"""Accounting of the demo: each kind of error is detected."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import pytest

from bookstand.demo import workload
from bookstand.demo.accounting import Accounting
from bookstand.demo.check import StoreCounts, problems
from bookstand.demo.progress_pipe import (
    ACKNOWLEDGING,
    DELIVERED,
    DURABLE,
    NACKED,
    PUBLISHED,
    PUBLISHING,
    PipeMessage,
    PipeReader,
    PipeWriter,
)
from bookstand.storage.verify import Report

MESSAGES = 10
NOW = 1_700_000_000_000


class Story:
    """The reports of a child process."""

    def __init__(self, messages: int = MESSAGES) -> None:
        self.books = Accounting(messages)
        self.books.begin_run()

    def tell(self, kind: int, first: int = 0, numbers: Iterable[int] = ()) -> Story:
        self.books.record(PipeMessage(kind, first, np.array([*numbers], np.int64)))
        return self

    def publish(self, times: dict[int, int] | None = None) -> Story:
        """Publish all messages, some of them delayed."""
        self.tell(PUBLISHING, 0, [(times or {}).get(number, 0) for number in range(self.books.messages)])
        return self.tell(PUBLISHED, self.books.messages)

    def deliver(self, *numbers: int, at: int = NOW) -> Story:
        return self.tell(DELIVERED, at, numbers)

    def acknowledge(self, *numbers: int, durably: bool = True) -> Story:
        self.tell(ACKNOWLEDGING, numbers=numbers)
        return self.tell(DURABLE, numbers=numbers) if durably else self

    def nack(self, *numbers: int) -> Story:
        return self.tell(NACKED, numbers=numbers)

    def cut(self) -> Story:
        self.books.begin_run()
        return self

    def problems(self, dead_letters: Iterable[int] = (), backlog: int = 0, report: Report | None = None) -> list[str]:
        return problems(self.books, StoreCounts([*dead_letters], backlog, report or Report()))


ALL = range(MESSAGES)


def test_all_is_well() -> None:
    story = Story().publish({3: NOW}).deliver(*ALL).nack(4).acknowledge(0, 1, 2, 3, 5, 6).deliver(4)
    story.acknowledge(7, durably=False).cut().deliver(4, 7, 8, 9).acknowledge(4, 7, 8, 9)
    assert story.problems() == []
    before, after = story.books.runs
    assert (before.published, before.delivered, before.redelivered, before.durable) == (10, 11, 1, 6)
    assert (after.published, after.delivered, after.redelivered, after.durable) == (0, 4, 4, 4)
    assert (story.books.delivered, story.books.acknowledged) == (10, 10)
    assert story.books.total().delivered == 15


def test_what_is_acknowledged_may_be_durable_before_that_is_told() -> None:
    assert Story().publish().deliver(*ALL).acknowledge(*ALL, durably=False).cut().problems() == []


def test_lost_before_it_was_delivered() -> None:
    assert Story().publish().deliver(*ALL[1:]).acknowledge(*ALL[1:]).problems() == ["1 are lost"]


def test_lost_while_it_was_out() -> None:
    """It was delivered and never acknowledged, and yet the subscription has nothing left."""
    assert Story().publish().deliver(*ALL).acknowledge(*ALL[2:]).cut().problems() == ["2 are lost"]


def test_lost_after_it_had_failed() -> None:
    assert Story().publish().deliver(*ALL).nack(5).acknowledge(*ALL[:5], *ALL[6:]).problems() == ["1 are lost"]


def test_what_was_not_confirmed_may_be_lost() -> None:
    story = Story()
    story.tell(PUBLISHING, 0, [0] * MESSAGES).tell(PUBLISHED, 8).deliver(*ALL[:8]).acknowledge(*ALL[:8])
    assert story.problems() == ["2 were not published"]


@pytest.mark.parametrize(("late", "found"), [(-1, ["1 were delivered early"]), (0, []), (1, [])])
def test_early(late: int, found: list[str]) -> None:
    story = Story().publish({3: NOW}).deliver(*ALL, at=NOW + late).acknowledge(*ALL)
    assert story.problems() == found


def test_again_while_it_is_out() -> None:
    story = Story().publish().deliver(*ALL).deliver(3).acknowledge(*ALL)
    assert story.problems() == ["1 were redelivered unexpectedly"]


def test_twice_at_once() -> None:
    assert Story().publish().deliver(*ALL, 3, 3).acknowledge(*ALL).problems() == ["2 were redelivered unexpectedly"]


def test_again_after_it_was_durably_acknowledged() -> None:
    story = Story().publish().deliver(*ALL).acknowledge(*ALL).cut().deliver(6)
    assert story.problems() == ["1 were redelivered unexpectedly"]


def test_what_nobody_published() -> None:
    story = Story().deliver(3)
    assert "1 were redelivered unexpectedly" in story.problems()


def test_failed_once_comes_once_more() -> None:
    story = Story().publish().deliver(*ALL).nack(3).deliver(3).deliver(3).acknowledge(*ALL)
    assert story.problems() == ["1 were redelivered unexpectedly"]


def test_dead_letters() -> None:
    messages = 1_000
    (poison,) = workload.poison_numbers(messages)
    others = [number for number in range(messages) if number != poison]
    story = Story(messages).publish().deliver(*range(messages)).acknowledge(*others).nack(poison)
    assert story.problems([poison]) == []
    assert story.problems([poison, poison]) == [], "the power went while it was moved"
    assert story.problems([]) == ["1 are lost", "1 are missing from the dead-letter topic, or should not be in it"]
    assert story.problems([poison, 5]) == ["1 are missing from the dead-letter topic, or should not be in it"]


def test_what_is_left_and_what_does_not_verify() -> None:
    report = Report()
    report.add("an entry is missing", 1, 2)
    story = Story().publish().deliver(*ALL).acknowledge(*ALL)
    assert story.problems(backlog=7, report=report) == ["7 remain in the backlog", "1 problems were found by verify"]


# -- the pipe ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def told() -> bytes:
    reading, writing = os.pipe()
    writer = PipeWriter(writing)
    writer.send(PUBLISHED, 7)
    writer.send(DELIVERED, NOW, numbers=[3, 4, 1 << 40])
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read()


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_frames_arrive_in_any_pieces(told: bytes, step: int) -> None:
    reader = PipeReader()
    heard = [one for at in range(0, len(told), step) for one in reader.feed(told[at : at + step])]
    assert [(one.kind, one.first, one.numbers.tolist()) for one in heard] == [
        (PUBLISHED, 7, []),
        (DELIVERED, NOW, [3, 4, 1 << 40]),
    ]


def test_a_frame_that_is_cut_off_does_not_count(told: bytes) -> None:
    assert [one.kind for one in PipeReader().feed(told[:-1])] == [PUBLISHED]
