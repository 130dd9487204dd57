"""A cache smaller than the state: what is not in memory is read when it is wanted, and nobody else waits for that."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.errors import BookstandError
from bookstand.storage.position import Position
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
