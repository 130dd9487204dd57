"""Calls of other threads while a flush writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.subscription.subscription import SubscriptionConfig
from bookstand.errors import WriteOnReadOnlyError
from bookstand.testing import Faults
from tests.cursor.desk import NEVER, SUBSCRIPTION, Desk
from tests.cursor.flips import flip_entry
from tests.kit import PATIENCE


class AtPoint(Faults):
    """Calls ``work`` once, when a point is passed that has been passed ``skipped`` times since ``work`` was set."""

    def __init__(self, point: str, skipped: int = 0) -> None:
        super().__init__()
        self._point = point
        self._skipped = skipped
        self.work: Callable[[], None] | None = None

    def on_failpoint(self, name: str, subject: Any, storage: Any) -> None:
        super().on_failpoint(name, subject, storage)
        if name != self._point or self.work is None:
            return
        if self._skipped:
            self._skipped -= 1
            return
        work, self.work = self.work, None
        work()


def begin(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


@pytest.mark.parametrize("point", ["cursor.encoded", "cursor.copied"])
def test_an_acknowledgment_after_a_reset_during_a_flush_is_stored(desk: Callable[..., Desk], point: str) -> None:
    """The page that it begins has as many changes and entries as the one before the reset."""
    hooks = AtPoint(point)
    at = desk(per_ledger=10, entries=40, opening={"hooks": hooks})
    if point == "cursor.encoded":
        at.ack((31,)).result(PATIENCE)
    at.cursor.ack(at.p[5])
    resets: list[threading.Thread] = []
    acknowledged = []

    def reset_and_acknowledge() -> None:
        resets.append(begin(lambda: at.cursor.reset(at.p[1])))
        wait_until(lambda: at.cursor.backlog == 39)
        acknowledged.append(at.cursor.ack(at.p[7]))

    hooks.work = reset_and_acknowledge
    at.cursor.flush()
    resets[0].join(PATIENCE)
    acknowledged[0].result(PATIENCE)
    at.opening = {}
    at.restart("crash")
    assert at.acked() == [0, 7]


def test_no_page_is_evicted_while_the_state_is_written_into_the_record(desk: Callable[..., Desk]) -> None:
    """A page that becomes dirty meanwhile is charged so much that the clean ones no longer fit into the cache."""
    # The first commit after the failed append closes the ledger, the second one writes the record.
    hooks = AtPoint("commit.before_write", skipped=1)
    at = desk(per_ledger=10, entries=40, opening={"hooks": hooks}, max_individual_ack_cache_bytes=12_500)
    at.ack((1, 11, 21)).result(PATIENCE)
    hooks.fail("append", -6, ledger=at.record.cursor_ledger_id)
    at.ack((23,))
    others: list[threading.Thread] = []

    def acknowledge() -> None:
        backlog = at.cursor.backlog
        others.append(begin(lambda: at.ack((33,))))
        wait_until(lambda: at.cursor.backlog < backlog)

    hooks.work = acknowledge
    at.cursor.flush()
    others[0].join(PATIENCE)
    assert at.acked() == [1, 11, 21, 23, 33]
    at.cursor.flush()
    at.opening = {}
    at.restart("crash")
    assert at.acked() == [1, 11, 21, 23, 33]


def test_a_callback_may_use_the_subscription_whose_settings_another_thread_changes(memory: Path) -> None:
    config = SubscriptionConfig(cursor=CursorConfig(flush_interval=NEVER))
    with bookstand.open(memory / "store") as store:
        topic = store.topic("orders")
        topic.ledger.append_entries([b"."] * 3)
        subscription = topic.subscription(SUBSCRIPTION, config)
        first, second, _ = subscription.receive(3)
        inside, change, returned = threading.Event(), threading.Event(), threading.Event()

        def callback(_: object) -> None:
            inside.set()
            change.wait(PATIENCE)
            subscription.nack(second)
            returned.set()

        subscription.ack(first).add_done_callback(callback)
        assert inside.wait(PATIENCE)
        changing = begin(lambda: subscription.change_config(replace(config, max_unacked_messages=77)))
        # It returns, or holds the subscription's lock and waits for the flush.
        changing.join(0.2)
        change.set()
        ended = returned.wait(PATIENCE)
        if not ended:
            store.storage.crash()
        assert ended
        changing.join(PATIENCE)
        assert subscription.config.max_unacked_messages == 77


def test_waiting_for_a_result_reports_that_a_pause_begins_and_ends(desk: Callable[..., Desk]) -> None:
    at = desk(per_ledger=10_000, entries=20_000, max_per_cursor_metadata_size_in_bytes=1024)
    calls: list[str] = []
    at.cursor.on_pause(lambda: calls.append("pause"))
    at.cursor.on_resume(lambda: calls.append("resume"))
    at.ack(range(1, 20_000, 2)).result(PATIENCE)
    assert at.cursor.paused
    assert calls == ["pause"]
    at.cursor.mark_delete(at.p[19_990]).result(PATIENCE)
    assert not at.cursor.paused
    assert calls == ["pause", "resume"]


def test_a_read_only_cursor_stores_nothing_in_place_of_a_damaged_page(memory: Path) -> None:
    at = Desk(memory / "store", per_ledger=10, entries=40)
    at.ack((1, 11)).result(PATIENCE)
    at.ack((3,)).result(PATIENCE)
    page = at.refs()[at.p[0].ledger_id].entry_id
    flip_entry(at.store, at.record.cursor_ledger_id, page, 777)
    before = at.record
    with Cursor.open(at.topic, SUBSCRIPTION, at.config(), read_only=True) as reader:
        assert len(reader.damaged_pages) == 1
        with pytest.raises(WriteOnReadOnlyError):
            reader.flush()
    assert at.record == before
    # The owner has the page in memory, and stores it with the next change.
    at.ack((5,)).result(PATIENCE)
    at.restart("crash")
    assert at.acked() == [1, 3, 5, 11]
    at.store.close()


@pytest.mark.parametrize("error", [MemoryError, ValueError])
def test_cursors_are_written_in_the_background_after_the_write_of_one_failed(
    memory: Path, error: type[Exception]
) -> None:
    """One thread writes all cursors of the process."""
    hooks = AtPoint("cursor.encoded")
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        raise error

    with bookstand.open(memory / "store", hooks=hooks) as store:
        topic = store.topic("t")
        first, position = topic.publish_many([b"1", b"2"])
        config = CursorConfig(flush_interval=0.005)
        one, other = topic.cursor("one", config), topic.cursor("other", config)
        for cursor in (one, other):
            cursor.ack(first).result()
        hooks.work = fail
        one.ack(position)
        wait_until(failed.is_set)
        other.ack(position)
        wait_until(lambda: other.durable_mark_delete_position == position)
