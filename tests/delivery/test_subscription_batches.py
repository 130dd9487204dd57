"""Messages of batches and messages by themselves: how many are asked for is counted in messages, not in entries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.managed_ledger.managed_ledger import UnreadableEntryError
from bookstand.managed_ledger.message.format import assemble
from bookstand.managed_ledger.message.metadata import MessageMetadata
from tests.delivery.subscription_kit import MEMORY, MODES, Desk, topic_config, words
from tests.kit import change_entry

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=25)
"""Of batches; 0 for a message by itself."""


def publish(desk: Desk, sizes: list[int]) -> list[str]:
    """Returns the words in the topic's order."""
    numbers = count()
    published = []
    for size in sizes:
        names = [str(next(numbers)) for _ in range(size or 1)]
        if size:
            desk.topic.publish_batch([name.encode() for name in names])
        else:
            desk.publish(*names)
        published += names
    return published


@pytest.mark.slow
@given(SIZES, st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_all_come_once_in_their_order(sizes: list[int], asked_for: list[int]) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder, Desk(Path(folder) / "store") as desk:
        published = publish(desk, sizes)
        found: list[str] = []
        most = cycle(asked_for)
        while some := desk.sub.receive(asking := next(most), timeout=0):
            assert len(some) <= asking
            found += words(some)
            desk.sub.ack_many(some)
        assert found == published
        assert (desk.sub.stats.backlog, desk.sub.stats.out) == (0, 0)
        assert desk.sub.cursor.mark_delete_position == desk.topic.ledger.extent.last


@pytest.mark.slow
@given(SIZES, st.integers(1, 30), st.data())
def test_what_is_not_acknowledged_comes_again(sizes: list[int], most: int, data: st.DataObject) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder, Desk(Path(folder) / "store") as desk:
        published = publish(desk, sizes)
        received = desk.drain(max=most)
        assert words(received) == published
        kept = data.draw(st.sets(st.integers(0, len(published) - 1)))
        done = [message for number, message in enumerate(received) if number not in kept]
        for part in (done[::2], done[1::2]):
            desk.sub.ack_many(part).result()
        assert desk.sub.stats.out == len(kept)
        if data.draw(st.booleans()):
            desk.crash()
        else:
            desk.sub.redeliver_all()
        assert words(desk.drain(max=most)) == [published[number] for number in sorted(kept)]


@pytest.mark.parametrize("mode", MODES)
def test_no_more_entries_are_read_than_hold_what_is_asked_for(store_path: Path, mode: str) -> None:
    with Desk(store_path, topic_config(mode, max_entries_per_ledger=100)) as desk:
        publish(desk, [10] * 40)
        for taken in range(1, 11):
            assert len(desk.sub.receive(20, timeout=0)) == 20
            assert desk.sub.cursor.read_position.entry_id == 2 * taken


def test_of_due_batches_as_many_leave_the_tracker(desk_with_delayed: Desk) -> None:
    desk = desk_with_delayed
    assert desk.sub.receive(20, timeout=0) == []
    desk.pass_time(2_000)
    assert len(desk.sub.receive(20, timeout=0)) == 20
    waiting = desk.sub.tracker.count
    assert len(desk.sub.receive(20, timeout=0)) == 20
    assert waiting - desk.sub.tracker.count == 2


@pytest.fixture
def desk_with_delayed(store_path: Path) -> Iterator[Desk]:
    with Desk(store_path, topic_config(max_entries_per_ledger=100)) as desk:
        for _ in range(30):
            desk.topic.publish_batch([b"x"] * 10, deliver_after=1_000)
        yield desk


# -- what is not as it should be ---------------------------------------------------------------------------------------


def test_a_damaged_entry_that_nobody_wants_is_in_nobodys_way(store_path: Path) -> None:
    """At the very place where reading begins, after a restart."""
    with Desk(store_path, topic_config("buckets")) as desk:
        delayed = [desk.topic.publish(b"delayed", deliver_after=3_600_000) for _ in range(10)]
        desk.publish(*range(20))
        assert len(desk.drain()) == 20
        desk.topic.close()
        desk.store.close()
        change_entry(store_path, *delayed[0], lambda stored: stored[:-1] + b"?")
        desk._open()
        assert words(desk.drain()) == [str(number) for number in range(20)]


def test_the_first_and_the_third_are_delivered_although_the_second_is_damaged(store_path: Path) -> None:
    with Desk(store_path, topic_config(max_entries_per_ledger=100)) as desk:
        second = desk.publish("first", "second", "third")[1]
        desk.topic.close()
        desk.store.close()
        change_entry(store_path, *second, lambda stored: stored[:-1] + b"?")
        desk._open()
        assert words(desk.sub.receive(10, timeout=0)) == ["first", "third"]
        with pytest.raises(UnreadableEntryError, match=f"entry {second}"):
            desk.sub.receive(10, timeout=0)


@pytest.mark.parametrize("claimed", [-5, -1, 0, 1 << 20, (1 << 31) - 1])
def test_a_batch_that_says_what_cannot_be_is_one_message(store_path: Path, claimed: int) -> None:
    with Desk(store_path) as desk:
        metadata = MessageMetadata("p", 0, 1, num_messages_in_batch=claimed)
        for _ in range(3):
            desk.topic.ledger.append_entry(assemble(metadata, b"abc"))
        desk.publish("x", "y")
        found = desk.drain(max=3)
        assert [message.batch_index for message in found] == [-1] * 5
        assert words(found)[3:] == ["x", "y"]
        desk.sub.ack_many(found).result()
        assert (desk.sub.stats.backlog, desk.sub.stats.out) == (0, 0)
