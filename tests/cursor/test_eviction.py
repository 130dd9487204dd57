"""A cache smaller than the state: what is not in memory is read when it is wanted, and nobody else waits for that."""

from __future__ import annotations

import dataclasses
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.errors import BookstandError
from bookstand.storage.format.position import Position
from bookstand.testing import Faults

PATIENCE = 60
PER_LEDGER = 50
LEDGERS = 12
SMALL = CursorConfig(max_individual_ack_cache_bytes=1, flush_interval=1e9)


def topic_of(store: Any) -> tuple[Any, list[Position]]:
    topic = store.managed_ledger("t", max_entries_per_ledger=PER_LEDGER)
    return topic, topic.append_entries([b"."] * (PER_LEDGER * LEDGERS))


def place(position: Position, entries: list[Position]) -> int:
    return entries.index(position)


@pytest.fixture
def faults() -> Faults:
    return Faults(seed=1)


def test_a_page_that_cannot_be_read_is_nobody_elses_business(store_path: Path, faults: Faults) -> None:
    with bookstand.open(store_path, hooks=faults) as store:
        topic, entries = topic_of(store)
        with Cursor.open(topic, "sub", SMALL) as cursor:
            cursor.ack([entries[1], entries[PER_LEDGER * 3 + 1]]).result(PATIENCE)
            cursor.lru_switch(entries[PER_LEDGER * 3].ledger_id)
            rule = faults.fail("read", -1, ledger=cursor._log.handle.id, entry=0, times=None)
            cursor.ack(entries[PER_LEDGER * 3 + 5])
            cursor.ack([entries[PER_LEDGER * 5]])
            assert cursor.is_acked(entries[PER_LEDGER * 3 + 5])
            assert cursor.backlog == len(entries) - 4
            with pytest.raises(BookstandError):
                cursor.is_acked(entries[1])
            with pytest.raises(BookstandError):
                cursor.ack(entries[0])
            faults.remove(rule)
            assert cursor.is_acked(entries[1])
            cursor.ack(entries[0])
            assert cursor.mark_delete_position == entries[1]


def test_others_acknowledge_while_a_page_is_read(store_path: Path, faults: Faults) -> None:
    """The disk stalls under one; the lock is not held meanwhile."""
    with bookstand.open(store_path, hooks=faults) as store:
        topic, entries = topic_of(store)
        with Cursor.open(topic, "sub", SMALL) as cursor:
            cursor.ack([entries[1], entries[PER_LEDGER * 3 + 1]]).result(PATIENCE)
            cursor.lru_switch(entries[PER_LEDGER * 3].ledger_id)
            stall = faults.stall("read", ledger=cursor._log.handle.id, entry=0)
            answers: list[bool] = []
            reader = threading.Thread(target=lambda: answers.append(cursor.is_acked(entries[1])))
            reader.start()
            assert stall.reached(PATIENCE)
            for number in range(10):
                cursor.ack(entries[PER_LEDGER * 3 + 10 + number])
                assert cursor.is_acked(entries[PER_LEDGER * 3 + 10 + number])
            assert not answers
            stall.release()
            reader.join(PATIENCE)
            assert answers == [True]


class Halting(Faults):
    """Whoever passes a point waits there until told to go on."""

    def __init__(self, point: str) -> None:
        super().__init__()
        self._point = point
        self.reached = threading.Event()
        self.release = threading.Event()
        self.armed = False

    def on_failpoint(self, name: str, subject: Any, storage: Any) -> None:
        super().on_failpoint(name, subject, storage)
        if name == self._point and self.armed:
            self.reached.set()
            assert self.release.wait(PATIENCE)


def test_a_page_on_its_way_to_the_disk_is_not_looked_for_there(store_path: Path) -> None:
    """Somebody needed a page; by the time he goes to read it, it is in memory again, and its new place not written."""
    halt = Halting("cursor.encoded")
    with bookstand.open(store_path, hooks=halt) as store:
        topic, entries = topic_of(store)
        with Cursor.open(topic, "sub", SMALL) as cursor:
            # The first flush goes into a new ledger; pages are added to it by the second.
            cursor.ack(entries[1]).result(PATIENCE)
            cursor.ack(entries[3])
            halt.armed = True
            flusher = threading.Thread(target=cursor.flush)
            flusher.start()
            assert halt.reached.wait(PATIENCE)
            cursor._loader.load(entries[1].ledger_id)
            halt.release.set()
            flusher.join(PATIENCE)
            assert cursor.is_acked(entries[3])


def test_a_page_is_read_while_the_ledger_is_changed_for_another(store_path: Path) -> None:
    """Between the commit that deletes the old ledger and the moment when all know the new one."""
    halt = Halting("cursor.switched")
    with bookstand.open(store_path, hooks=halt) as store:
        topic, entries = topic_of(store)
        config = dataclasses.replace(SMALL, max_entries_per_cursor_ledger=3)
        with Cursor.open(topic, "sub", config) as cursor:
            cursor.ack([entries[1], entries[PER_LEDGER * 3 + 1]]).result(PATIENCE)
            cursor.lru_switch(entries[PER_LEDGER * 3].ledger_id)
            cursor.ack(entries[PER_LEDGER * 3 + 5])
            halt.armed = True
            flusher = threading.Thread(target=cursor.flush)
            flusher.start()
            assert halt.reached.wait(PATIENCE)
            answers: list[Any] = []

            def ask() -> None:
                try:
                    answers.append(cursor.is_acked(entries[1]))
                except BookstandError as error:
                    answers.append(error)

            reader = threading.Thread(target=ask)
            reader.start()
            reader.join(0.3)
            halt.release.set()
            flusher.join(PATIENCE)
            reader.join(PATIENCE)
            assert answers == [True]


@pytest.mark.slow
def test_no_answer_is_ever_stale(store_path: Path) -> None:
    """Eight ask and two acknowledge, with room for a page or two: what was accepted is acknowledged from then on."""
    with bookstand.open(store_path, durability="none") as store:
        topic, entries = topic_of(store)
        config = CursorConfig(max_individual_ack_cache_bytes=40_000, flush_interval=0.01)
        with Cursor.open(topic, "sub", config) as cursor:
            acked: list[Position] = []
            wrong: list[Any] = []
            done = threading.Event()

            def acknowledge(seed: int) -> None:
                chance = random.Random(seed)
                mine = entries[seed::2]
                chance.shuffle(mine)
                for position in mine:
                    cursor.ack(position)
                    acked.append(position)

            def ask(seed: int) -> None:
                chance = random.Random(seed)
                try:
                    while not done.is_set():
                        if acked:
                            position = acked[chance.randrange(len(acked))]
                            if not cursor.is_acked(position):
                                wrong.append(position)
                except BaseException as error:
                    wrong.append(error)

            ackers = [threading.Thread(target=acknowledge, args=(seed,)) for seed in range(2)]
            askers = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
            for thread in ackers + askers:
                thread.start()
            for thread in ackers:
                thread.join()
            done.set()
            for thread in askers:
                thread.join()
            assert not wrong
            assert cursor.mark_delete_position == entries[-1]
            assert cursor.backlog == 0


def test_who_says_what_to_skip_may_use_the_cursor(store_path: Path) -> None:
    """A tracker of delayed messages, asked by a reader, may be waiting for somebody who waits for the cursor."""
    with bookstand.open(store_path) as store:
        topic, entries = topic_of(store)
        with Cursor.open(topic, "sub", SMALL) as cursor:
            cursor.ack([entries[1], entries[4]])

            def skip(position: Position) -> bool:
                # In another thread, which would wait for a lock that this one has.
                told: list[bool] = []
                asking = threading.Thread(
                    target=lambda: told.append(cursor.is_acked(position) or cursor.flush() is None)
                )
                asking.start()
                asking.join(PATIENCE)
                assert told == [True]
                return position == entries[2]

            assert [entry.position for entry in cursor.read(4, skip)] == [entries[n] for n in (0, 3, 5, 6)]
            assert cursor.read_position == entries[7]
