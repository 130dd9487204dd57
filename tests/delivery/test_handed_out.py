"""What is out, told by several threads: some settle messages of a batch while others of it go out."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest

from bookstand.delivery.message.message_id import members_of
from bookstand.delivery.subscription.unacked import UnackedMessages
from bookstand.storage.format.position import Position

BATCH = Position(3, 7)
CONSUMER: Any = object()


def test_a_batch_is_settled_as_a_whole() -> None:
    out = UnackedMessages()
    first, second = members_of(BATCH, range(2)), members_of(BATCH, range(2, 4))
    out.add(CONSUMER, [*first, Position(3, 8)], None)
    out.remove_members(BATCH, first)
    out.add(CONSUMER, second, None)
    assert (len(out), out.has_any_of(BATCH, first), out.has_any_of(BATCH, second)) == (3, False, True)
    out.remove(BATCH)
    assert out.all() == [Position(3, 8)]


def test_a_batch_that_is_known_to_be_one_is_told_as_any() -> None:
    out, known = UnackedMessages(), UnackedMessages()
    members = members_of(BATCH, range(3))
    for some in members[:2], members[1:]:
        out.add(CONSUMER, some, 7)
        known.add(CONSUMER, some, 7, BATCH)
    for one in out, known:
        one.remove(members[0])
        assert (one.all(), one.has_any_of(BATCH, members[:1])) == (members[1:], False)
        one.remove(BATCH)
        assert (len(one), one.has_any_of(BATCH, members)) == (0, False)


def test_two_batches_that_go_out_mixed() -> None:
    """What comes again precedes what is new, and may be of the same batch."""
    out = UnackedMessages()
    members, others = members_of(BATCH, range(2)), members_of(Position(3, 8), range(1))
    out.add(CONSUMER, [members[0], *others, members[1]], 7)
    assert out.has_any_of(Position(3, 8), others)
    out.remove(BATCH)
    assert (out.all(), len(out), out.pop_overdue(8)) == (others, 1, others)
    out.remove_members(Position(3, 8), others)
    assert len(out) == 0


@pytest.mark.parametrize("one_by_one", [False, True])
def test_others_of_a_batch_go_out_meanwhile(one_by_one: bool) -> None:
    out = UnackedMessages()
    barrier = Barrier(2)
    rounds = 2_000
    first, second = members_of(BATCH, range(2)), members_of(BATCH, range(2, 4))

    def remove() -> None:
        for _ in range(rounds):
            barrier.wait()
            if one_by_one:
                for member in first:
                    out.remove(member)
            else:
                out.remove_members(BATCH, first)
            barrier.wait()

    thread = Thread(target=remove)
    thread.start()
    left = 0
    for _ in range(rounds):
        out.add(CONSUMER, first, None)
        barrier.wait()
        out.add(CONSUMER, second, None)
        barrier.wait()
        out.remove(BATCH)
        left += len(out)
        out.clear()
    thread.join()
    assert left == 0
