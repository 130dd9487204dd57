"""Who waits for an acknowledgment to be durable is told, whatever else happens meanwhile; and what is acknowledged of
many ledgers at once is so as a whole."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.state.cursor_state import NoSuchPositionError
from bookstand.cursor.store import flush_scheduler as throttle_module
from bookstand.cursor.store.cursor_ledger import CursorFencedError
from bookstand.cursor.store.flush_scheduler import FlushScheduler
from bookstand.errors import BookstandError, ReadError, StoreCrashedError
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.storage.format.position import Position
from bookstand.store import Store
from bookstand.testing import Faults
from tests.kit import PATIENCE

NEVER_BY_ITSELF = CursorConfig(flush_interval=3_600)


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def store(faults: Faults) -> Iterator[Store]:
    with bookstand.temporary(hooks=faults) as opened:
        yield opened


@pytest.fixture
def topic(store: Store) -> ManagedLedger:
    return store.managed_ledger("t", max_entries_per_ledger=10)


def test_one_who_changed_nothing_is_told(topic: ManagedLedger, faults: Faults) -> None:
    positions = topic.append_entries([b"x"] * 5)
    with Cursor.open(topic, "c", NEVER_BY_ITSELF) as cursor:
        cursor.ack(positions[4]).result()
        pendings: list[bookstand.Pending] = []
        encode = cursor._flusher._capture

        def begin(*arguments: bool) -> object:
            moment = encode(*arguments)
            # Accepted while the flush is under way, under the lock that acknowledgments take otherwise.
            pendings.append(cursor._flusher.pending)
            return moment

        cursor._flusher._capture = begin  # type: ignore[method-assign, assignment]
        cursor.ack(positions[2])
        cursor.flush()
        del cursor._flusher._capture

        async def wait() -> None:
            await asyncio.wait_for(_awaited(pendings[0]), 60)

        asyncio.run(wait())


async def _awaited(pending: bookstand.Pending) -> None:
    await pending


def test_many_ledgers_at_once(topic: ManagedLedger) -> None:
    positions = topic.append_entries([b"x"] * 35)
    with Cursor.open(topic, "c") as cursor:
        cursor.ack_entries(positions[3:33:2]).result()
        assert [cursor.is_acked(position) for position in positions] == [
            3 <= number < 33 and number % 2 == 1 for number in range(35)
        ]
        assert cursor.ack_entries([]).done()
    with Cursor.open(topic, "c") as cursor:
        assert cursor.backlog == 20


def test_all_of_them_or_none(topic: ManagedLedger) -> None:
    positions = topic.append_entries([b"x"] * 25)
    with Cursor.open(topic, "c") as cursor:
        for wrong in (positions[-1].next, Position(positions[0].ledger_id, -2)):
            with pytest.raises(NoSuchPositionError):
                cursor.ack_entries([*positions[:20], wrong])
            assert cursor.backlog == 25


def test_what_was_read_before_damage_is_given_out(topic: ManagedLedger, faults: Faults) -> None:
    """The read position is behind it already: an error in its stead would lose it."""
    positions = topic.append_entries([b"%d" % number for number in range(25)])
    with Cursor.open(topic, "c") as cursor:
        faults.fail("read", ledger=positions[10].ledger_id, error=ReadError("no"))
        assert [entry.position for entry in cursor.read(25)] == positions[:10]
        assert [entry.position for entry in cursor.read(25)] == positions[10:]


def test_unacked_entries_from_anywhere(topic: ManagedLedger) -> None:
    positions = topic.append_entries([b"x"] * 25)
    with Cursor.open(topic, "c") as cursor:
        cursor.ack([*positions[:3], *positions[8:12]])
        cursor.read(20)
        assert [entry.position for entry in cursor.unacked()] == [*positions[3:8], *positions[12:]]
        assert [entry.position for entry in cursor.unacked(start=positions[14])] == positions[14:]
        odd = cursor.unacked(lambda _, first, last: [one for one in range(first, last + 1) if one % 2])
        assert [entry.position for entry in odd] == [
            one for one in [*positions[3:8], *positions[12:]] if one.entry_id % 2
        ]


def test_one_that_was_never_written_is_taken_over(store: Store, topic: ManagedLedger) -> None:
    """It has no ledger that could be fenced."""
    (position,) = topic.append_entries([b"x"])
    cursor = Cursor.open(topic, "c")
    cursor.ack(position)
    other = Cursor.open(topic, "c")
    with pytest.raises(CursorFencedError):
        cursor.flush()
    assert not cursor.usable
    other.ack(position).result()
    cursor.close()
    other.close()


def test_one_of_a_topic_that_another_has_cannot_be_written(store: Store, topic: ManagedLedger) -> None:
    """Not even where it was deleted and begun anew, and its record has the same version by chance."""
    (position,) = topic.append_entries([b"x"])
    cursor = Cursor.open(topic, "c")
    with bookstand.open(store.path, durability="none") as elsewhere:
        theirs = elsewhere.managed_ledger("t")
        Cursor.open(theirs, "c").delete()
        new = Cursor.open(theirs, "c")
        cursor.ack(position)
        with pytest.raises(CursorFencedError):
            cursor.flush()
        new.ack(position).result()
        new.close()
    cursor.close()


def test_those_who_wait_are_told_of_the_fence(topic: ManagedLedger) -> None:
    positions = topic.append_entries([b"x"] * 5)
    cursor = Cursor.open(topic, "c", NEVER_BY_ITSELF)
    other = Cursor.open(topic, "c", NEVER_BY_ITSELF)
    told: list[BaseException | None] = []
    cursor.ack(positions[3])
    cursor.ack(positions[2]).add_done_callback(lambda pending: told.append(pending.exception()))
    with pytest.raises(CursorFencedError):
        cursor.flush()
    assert [type(error) for error in told] == [CursorFencedError]
    with pytest.raises(CursorFencedError):
        cursor.ack(positions[4])
    cursor.close()
    other.close()


def test_a_marker_that_does_not_fit_is_told(topic: ManagedLedger) -> None:
    """And what was acknowledged is written once it fits again."""
    with bookstand.temporary(max_entry_bytes=4_096) as store:
        small = store.managed_ledger("t")
        positions = small.append_entries([b"x"] * 5)
        with Cursor.open(small, "c", NEVER_BY_ITSELF) as cursor:
            cursor.ack(positions[1]).result()
            pending = cursor.ack(positions[3])
            names = [f"property {number} with a long name" for number in range(200)]
            for name in names:
                cursor.put_property(name, 1 << 60)
            with pytest.raises(BookstandError):
                cursor.flush()
            assert pending.exception(0) is not None
            for name in names:
                cursor.remove_property(name)
            cursor.ack(positions[4]).result()
        with Cursor.open(small, "c") as cursor:
            assert [cursor.is_acked(position) for position in positions] == [False, True, False, True, True]


def test_no_more_is_taken_than_a_ledger_has_room_for(store: Store) -> None:
    topic = store.managed_ledger("narrow", max_bytes_per_ledger=10_000)
    ledgers: list[int] = []

    def entries() -> Iterator[bytes]:
        for _ in range(40):
            ledgers.append(len(topic.ledgers))
            yield bytes(1_000)

    assert len(topic.append_entries(entries())) == 40
    assert ledgers[-1] >= 3


@pytest.mark.slow
def test_a_cursor_whose_store_has_crashed_does_not_go_on_trying(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = bookstand.open(tmp_path / "store")
    topic = store.managed_ledger("crashing")
    position = topic.append(b"x")
    tried, crashed = threading.Event(), threading.Event()
    with caplog.at_level(logging.WARNING, "bookstand"), pytest.MonkeyPatch.context() as patch:
        flush = Cursor.flush

        def flushed(flusher: Cursor) -> None:
            # Cursors that earlier tests have left behind may have writes pending.
            if flusher.topic is not topic:
                flush(flusher)
                return
            assert crashed.wait(PATIENCE)
            try:
                flush(flusher)
            finally:
                tried.set()

        patch.setattr(Cursor, "flush", flushed)
        cursor = Cursor.open(topic, "c", CursorConfig(flush_interval=0.3))
        pending = cursor.ack(position)
        store.storage.crash()
        crashed.set()
        assert tried.wait(PATIENCE)
        tried.clear()
        # It would have tried some times by then.
        assert not tried.wait(1.5)
    assert not [message for message in caplog.messages if "of topic crashing" in message]
    with pytest.raises(StoreCrashedError):
        pending.result()


def test_an_acknowledgment_does_not_postpone_a_write_that_was_hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two, the background has not made the write yet."""
    writes: list[None] = []
    added: list[float] = []

    class Background:
        def add(self, due: float, _: FlushScheduler) -> None:
            added.append(due)

    class Owner:
        def flush(self) -> None:
            writes.append(None)

    monkeypatch.setattr(throttle_module, "_background", Background)
    owner = Owner()
    throttle = FlushScheduler(None, 1_000.0, owner.flush)
    throttle.request_flush()
    hurried = throttle._due
    time.sleep(0.001)
    throttle.on_change()
    assert throttle._due == hurried
    assert added == [hurried]
    # A write that is overdue for long was lost with an interrupted call.
    monkeypatch.setattr(throttle_module, "_LOST_AFTER", 0.0)
    throttle.on_change()
    assert added == [hurried, hurried]
