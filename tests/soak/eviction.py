"""A cursor with room for few of its pages: eight ask what is acknowledged while two acknowledge and flushes go on.

What was accepted is acknowledged from then on, what nobody acknowledged is not, nobody gets an error, and what is left
in the end is right and the same once the store is opened again. A case is one cursor with its threads; the seed says
what they do, and the machine who comes first.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.state.cursor_state import MarkDeletingMarkedPositionError
from bookstand.storage.format.position import Position
from tests.kit import PATIENCE
from tests.soak.kinds import Done, Kind

ASKERS, ACKERS = 8, 2
PER_LEDGER, LEDGERS = 25, 10
BATCH = 10
PAGES = 4
PAGE_BYTES = (1_050, 9_200)
"""What a page takes that is stored, and what one takes that is not: the limit is four of the one or of the other."""

SHOWN = 5


class Ledger:
    """Who has said what: nothing is struck out, so that looking into it needs no lock."""

    def __init__(self, rng: random.Random, entries: list[Position]) -> None:
        self.entries = entries
        kinds = random.Random(rng.random())
        half = len(entries) // 2
        # Nobody acknowledges these; all but the first half stays beyond the mark-delete position for that.
        self.never = set(kinds.sample(entries[half:], 10))
        self.in_parts = sorted(set(kinds.sample(entries, 12)) - self.never)
        self.attempted: set[Position] = set()
        self.accepted: set[Position] = set()
        self.known: list[Position] = []
        self.accepted_parts: dict[Position, set[int]] = {position: set() for position in self.in_parts}

    @property
    def whole(self) -> list[Position]:
        """The entries that are acknowledged as such."""
        return [one for one in self.entries if one not in self.never and one not in self.accepted_parts]

    def up_to(self, position: Position) -> list[Position]:
        return [one for one in self.entries if one <= position]

    @contextmanager
    def acknowledging(self, positions: list[Position]) -> Iterator[None]:
        self.attempted.update(positions)
        yield
        self.accepted.update(positions)
        self.known += positions


class Case:
    def __init__(self, cursor: Cursor, ledger: Ledger, seed: int) -> None:
        self.cursor = cursor
        self.ledger = ledger
        self.seed = seed
        self.problems: list[str] = []
        self._done = threading.Event()

    def run(self) -> bool:
        """Whether all threads have come to their end."""
        ackers = [self._thread(self._acknowledge, number) for number in range(ACKERS)]
        askers = [self._thread(self._ask, number) for number in range(ASKERS)]
        for thread in ackers + askers:
            thread.start()
        for thread in ackers:
            thread.join(PATIENCE)
        self._done.set()
        for thread in askers:
            thread.join(PATIENCE)
        waiting = [thread.name for thread in ackers + askers if thread.is_alive()]
        if waiting:
            self.problems.append(f"no end after {PATIENCE} s: {', '.join(waiting)}")
        return not waiting

    def _thread(self, work: Callable[[random.Random, int], None], number: int) -> threading.Thread:
        def do_it() -> None:
            try:
                work(random.Random(f"{self.seed} {work.__name__} {number}"), number)
            except Exception as error:
                self.problems.append(f"{work.__name__}: {type(error).__name__}: {error}")

        return threading.Thread(target=do_it, name=f"{work.__name__} {number}", daemon=True)

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def _acknowledge(self, rng: random.Random, number: int) -> None:
        whole = self.ledger.whole[number::ACKERS]
        parts = [(position, index) for position in self.ledger.in_parts[number::ACKERS] for index in range(BATCH - 1)]
        rng.shuffle(whole)
        rng.shuffle(parts)
        while whole or parts:
            chance = rng.random()
            if parts and (chance < 0.3 or not whole):
                self._ack_part(*parts.pop())
            elif chance < 0.8:
                self._ack([whole.pop()], rng)
            elif chance < 0.95:
                some = whole[-rng.randint(1, 12) :]
                del whole[-len(some) :]
                self._ack(some, rng)
            elif chance < 0.97:
                self._mark_delete(self.ledger.entries[rng.randrange(len(self.ledger.entries) // 2)])
            else:
                self.cursor.flush()

    def _ack(self, positions: list[Position], rng: random.Random) -> None:
        with self.ledger.acknowledging(positions):
            if len(positions) == 1:
                pending = self.cursor.ack(positions[0])
            elif rng.random() < 0.5:
                pending = self.cursor.ack(positions)
            else:
                by_ledger: dict[int, list[int]] = {}
                for ledger_id, entry_id in positions:
                    by_ledger.setdefault(ledger_id, []).append(entry_id)
                for ledger_id, entry_ids in by_ledger.items():
                    pending = self.cursor.ack_many(ledger_id, entry_ids)
        if rng.random() < 0.05:
            pending.result(PATIENCE)

    def _ack_part(self, position: Position, index: int) -> None:
        self.cursor.ack_batch(position, [index], BATCH)
        self.ledger.accepted_parts[position].add(index)

    def _mark_delete(self, position: Position) -> None:
        with self.ledger.acknowledging(self.ledger.up_to(position)):
            try:
                self.cursor.mark_delete(position)
            except MarkDeletingMarkedPositionError:
                if self.cursor.mark_delete_position < position:
                    raise

    # -- asking --------------------------------------------------------------------------------------------------------

    def _ask(self, rng: random.Random, number: int) -> None:
        ledger = self.ledger
        highest = self.cursor.mark_delete_position
        while not self._done.is_set():
            chance = rng.random()
            if chance < 0.6 and ledger.known:
                self._ask_of(ledger.known[rng.randrange(len(ledger.known))])
            elif chance < 0.8:
                self._ask_of(rng.choice(ledger.entries))
            elif chance < 0.95:
                self._ask_of_parts(rng.choice(ledger.in_parts))
            elif chance < 0.99:
                before, highest = highest, self.cursor.mark_delete_position
                if highest < before:
                    self.problems.append(f"the mark-delete position went from {before} back to {highest}")
            else:
                self._ask_for_all()

    def _ask_of(self, position: Position) -> None:
        accepted = position in self.ledger.accepted
        said = self.cursor.is_acked(position)
        if accepted and not said:
            self.problems.append(f"{position} was accepted, and is said not to be acknowledged")
        if said and position not in self.ledger.attempted:
            self.problems.append(f"nobody acknowledged {position}, and it is said to be")

    def _ask_of_parts(self, position: Position) -> None:
        accepted = set(self.ledger.accepted_parts[position])
        left = self.cursor.unacked_in_batch(position)
        if position in self.ledger.attempted:
            # As a whole: it need not be told in parts.
            return
        forgotten = accepted if left is None else accepted & set(left)
        if forgotten:
            self.problems.append(f"of {position} the indexes {sorted(forgotten)} were accepted, and are said not to be")

    def _ask_for_all(self) -> None:
        accepted = set(self.ledger.accepted)
        told = {
            Position(one.lower.ledger_id, entry_id)
            for one in self.cursor.acked_ranges()
            for entry_id in range(one.lower.entry_id + 1, one.upper.entry_id + 1)
        }
        # What the mark-delete position has passed is not told; it only moves on.
        passed = self.cursor.mark_delete_position
        missing = {one for one in accepted - told if one > passed}
        if missing:
            self.problems.append(f"{len(missing)} accepted entries are in no range, {min(missing)} the first")
        if told - self.ledger.attempted:
            self.problems.append(f"a range holds {min(told - self.ledger.attempted)}, which nobody acknowledged")

    # -- the end -------------------------------------------------------------------------------------------------------

    def check(self, cursor: Cursor, when: str) -> None:
        """All that was accepted, and nothing else, is acknowledged."""
        ledger = self.ledger
        wrong = [one for one in ledger.entries if cursor.is_acked(one) != (one in ledger.accepted)]
        if wrong:
            self.problems.append(f"{when}: {len(wrong)} entries are not as they should be, {wrong[0]} the first")
        first_open = next(place for place, one in enumerate(ledger.entries) if one not in ledger.accepted)
        consumed = ledger.entries[first_open - 1] if first_open else ledger.entries[0].previous
        parts = {one: [BATCH - 1] for one in ledger.in_parts if one not in ledger.accepted}
        for name, found, expected in (
            ("the mark-delete position", cursor.mark_delete_position, consumed),
            ("the backlog", cursor.backlog, len(set(ledger.entries) - ledger.accepted)),
            ("batches acknowledged in part", cursor.partial_batches(), parts),
        ):
            if found != expected:
                self.problems.append(f"{when}: {name}: {found}, not {expected}")


class _Complaints(logging.Handler):
    """What is written to the log about one topic: errors that nobody was there to be told of."""

    def __init__(self, topic: str) -> None:
        super().__init__(logging.WARNING)
        self._topic = topic
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self._topic in text:
            self.found.append(f"in the log: {text}")


@contextmanager
def _listening(topic: str) -> Iterator[list[str]]:
    handler = _Complaints(topic)
    logger = logging.getLogger("bookstand")
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)


def one_round(seed: int) -> Done:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="bookstand-eviction-", dir=place))
    interval = sys.getswitchinterval()
    try:
        return _run(seed, folder / "store")
    finally:
        sys.setswitchinterval(interval)
        shutil.rmtree(folder, ignore_errors=True)


def _run(seed: int, path: Path) -> Done:
    rng = random.Random(seed)
    name = f"eviction-{seed}"
    config = CursorConfig(
        max_individual_ack_cache_bytes=PAGES * rng.choice(PAGE_BYTES),
        flush_interval=rng.choice((0.001, 0.01, 0.1)),
        max_entries_per_cursor_ledger=rng.choice((4, 10, 40, 200)),
        retained_cursor_ledgers=rng.choice((0, 0, 1)),
        flush_commit_bytes=rng.choice((200, 8 << 20)),
    )
    # How often threads take turns, wherever they are.
    sys.setswitchinterval(rng.choice((1e-5, 1e-4, 5e-3)))
    store = bookstand.open(path, durability="none")
    topic = store.managed_ledger(name, max_entries_per_ledger=PER_LEDGER)
    entries = topic.append_entries([b"."] * (PER_LEDGER * LEDGERS))
    cursor = Cursor.open(topic, "sub", config)
    case = Case(cursor, Ledger(rng, entries), seed)
    with _listening(name) as complaints:
        ended = case.run()
    case.problems += complaints
    if ended:
        # Otherwise who hangs may hold what closing the store waits for.
        try:
            case.check(cursor, "in the end")
            if rng.random() < 0.5:
                cursor.close()
            else:
                cursor.flush()
            store.close()
            with bookstand.open(path, durability="none") as again:
                topic = again.managed_ledger(name, max_entries_per_ledger=PER_LEDGER)
                with Cursor.open(topic, "sub", config) as cursor:
                    case.check(cursor, "opened again")
                if not again.verify().ok:
                    case.problems.append(f"the store is damaged: {again.verify()}")
        except Exception as error:
            case.problems.append(f"in the end: {type(error).__name__}: {error}")
            # Else its cursor would go on trying to write.
            store.storage.crash()
    return Done(1, case.problems[:SHOWN])


KIND = Kind(one_round)
