"""The replay queue against a sorted set of messages."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.cursor.dispatch_pause import Admission
from bookstand.delivery.message.message_id import BatchMessageId, position_of
from bookstand.delivery.subscription.replay_queue import ReplayQueue
from bookstand.storage.format.position import Position

POSITIONS = st.builds(Position, st.integers(0, 3), st.integers(0, 5))
MESSAGES = st.one_of(POSITIONS, st.builds(BatchMessageId, st.integers(0, 3), st.integers(0, 5), st.integers(0, 2)))
TAKES = st.tuples(st.integers(1, 6), st.none() | POSITIONS, st.none() | POSITIONS, st.booleans())
STEPS = st.lists(
    st.one_of(st.lists(MESSAGES, max_size=12), st.frozensets(MESSAGES, max_size=4), TAKES),
    max_size=8,
)
"""Lists are added, sets discarded."""


class EvenEntries(Admission):
    def admits(self, position: Position) -> bool:
        return super().admits(position) and position.entry_id % 2 == 0


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_the_lowest_admitted_messages_are_taken_first(steps: list[Any]) -> None:
    queue, model = ReplayQueue(), set[Any]()
    for step in steps:
        if isinstance(step, list):
            queue.add(step)
            model.update(step)
        elif isinstance(step, frozenset):
            queue.discard(step)
            model = {message for message in model if message not in step and position_of(message) not in step}
        else:
            most, upto, last, only_even = step
            admission = None if last is None else (EvenEntries if only_even else Admission)(last)
            expected = [
                message
                for message in sorted(model)
                if (upto is None or position_of(message) <= upto)
                and (admission is None or admission.admits(position_of(message)))
            ][:most]
            assert queue.take(most, admission, upto) == expected
            model.difference_update(expected)
        assert len(queue) == len(model)
        assert all(message in queue for message in model)
        assert queue.has_any([Position(0, 0), BatchMessageId(1, 1, 1)]) == bool(model & {(0, 0), (1, 1, 1)})
    queue.clear()
    assert not queue
