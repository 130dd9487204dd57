"""Any order of what is done to a cursor, over restarts and crashes, against plain sets."""

from __future__ import annotations

import copy
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bookstand.errors import BookstandError
from tests.cursor.conftest import MEMORY
from tests.cursor.desk import FORMS, Desk

BATCH = 6
PLACE = st.floats(0, 1, exclude_max=True)
PLACES = st.lists(PLACE, min_size=1, max_size=8)
INDEXES = st.sets(st.integers(0, BATCH - 1), min_size=1)
CACHES = st.sampled_from([1, 1000, 3 << 20])
PROPERTIES = st.dictionaries(st.sampled_from("abc"), st.integers(-5, 5), max_size=2)


class Model:
    """Entries by number; of an entry acknowledged in part, the messages that are."""

    def __init__(self) -> None:
        self.mark_delete = -1
        self.acked: set[int] = set()
        self.parts: dict[int, set[int]] = {}
        self.properties: dict[str, int] = {}

    def settle(self) -> None:
        while self.mark_delete + 1 in self.acked:
            self.mark_delete += 1
        self.parts = {
            number: indexes
            for number, indexes in self.parts.items()
            if number not in self.acked and number > self.mark_delete
        }

    def ack(self, number: int) -> None:
        self.acked.add(number)
        self.settle()

    def ack_part(self, number: int, indexes: set[int]) -> None:
        if number in self.acked:
            return
        part = self.parts.setdefault(number, set())
        part |= indexes
        if len(part) == BATCH:
            self.acked.add(number)
        self.settle()

    def pass_to(self, number: int) -> None:
        self.acked |= set(range(number + 1))
        self.settle()

    def reset(self, number: int) -> None:
        self.acked = set(range(number))
        self.parts = {}
        self.mark_delete = number - 1

    def seen(self) -> tuple[object, ...]:
        parts = {number: frozenset(indexes) for number, indexes in self.parts.items()}
        return (frozenset(self.acked), parts, self.properties)


class CursorMachine(RuleBasedStateMachine):
    @initialize(
        form=st.sampled_from(list(FORMS)),
        per_ledger=st.integers(1, 12),
        entries_per_cursor_ledger=st.sampled_from([1, 3, 50]),
        cache=CACHES,
        commit=st.sampled_from([1, 8 << 20]),
        entries=st.integers(1, 40),
    )
    def begin(
        self, form: str, per_ledger: int, entries_per_cursor_ledger: int, cache: int, commit: int, entries: int
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="bookstand-test-", dir=MEMORY if Path(MEMORY).is_dir() else None)
        self.desk = Desk(
            Path(self.folder) / "store",
            form,
            per_ledger=per_ledger,
            entries=entries,
            max_entries_per_cursor_ledger=entries_per_cursor_ledger,
            max_individual_ack_cache_bytes=cache,
            flush_commit_bytes=commit,
        )
        self.model = Model()
        self.trimmed = 0
        # Whatever may be found after a crash: what was flushed last, and all since.
        self.possible = [copy.deepcopy(self.model)]

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            try:
                self.desk.end()
            finally:
                shutil.rmtree(self.folder)

    def number(self, place: float) -> int:
        return int(place * len(self.desk.p))

    def changed(self) -> None:
        self.possible.append(copy.deepcopy(self.model))

    def durable(self) -> None:
        self.possible = [copy.deepcopy(self.model)]

    # -- acknowledging ------------------------------------------------------------------------------------------------

    @rule(place=PLACE)
    def ack(self, place: float) -> None:
        number = self.number(place)
        self.desk.cursor.ack(self.desk.p[number])
        self.model.ack(number)
        self.changed()

    @rule(places=PLACES)
    def ack_list(self, places: list[float]) -> None:
        numbers = [self.number(place) for place in places]
        self.desk.ack(numbers)
        # Positions of one call become durable in order.
        for number in sorted(numbers):
            self.model.ack(number)
            self.changed()

    @rule(place=PLACE, indexes=INDEXES)
    def ack_batch(self, place: float, indexes: set[int]) -> None:
        number = self.number(place)
        self.desk.cursor.ack_batch(self.desk.p[number], indexes, BATCH)
        self.model.ack_part(number, indexes)
        self.changed()

    @rule(place=PLACE, properties=PROPERTIES)
    def mark_delete(self, place: float, properties: dict[str, int]) -> None:
        number = self.number(place)
        if number == self.model.mark_delete < self.trimmed:
            # After a reset the position may be that, or the place before the first entry that there is.
            return
        if number < self.model.mark_delete:
            with pytest.raises(BookstandError):
                self.desk.cursor.mark_delete(self.desk.p[number], properties)
            return
        self.desk.cursor.mark_delete(self.desk.p[number], properties)
        self.model.pass_to(number)
        self.model.properties = properties
        self.changed()

    @rule(place=PLACE, index=st.integers(0, BATCH - 1))
    def mark_delete_batch(self, place: float, index: int) -> None:
        number = self.number(place)
        if number <= self.model.mark_delete:
            return
        self.desk.cursor.mark_delete_batch(self.desk.p[number], range(index + 1), BATCH)
        self.model.pass_to(number - 1)
        self.model.properties = {}
        self.model.ack_part(number, set(range(index + 1)))
        self.changed()

    @rule(place=PLACE)
    def reset(self, place: float) -> None:
        number = max(self.number(place), self.trimmed)
        self.desk.cursor.reset(self.desk.p[number]).result(60)
        self.model.reset(number)
        # Not asked for: whether a reset keeps them.
        self.model.properties = self.desk.cursor.properties
        self.durable()

    # -- the topic ----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 9))
    def append(self, count: int) -> None:
        self.desk.fill(count)

    @precondition(lambda self: self.model.mark_delete >= 0)
    @rule()
    def trim(self) -> None:
        """What is consumed, and known to be, goes."""
        self.desk.cursor.flush()
        self.durable()
        gone = self.desk.topic.trim(self.desk.cursor.mark_delete_position)
        self.trimmed = max(
            [self.trimmed, *(number + 1 for number, position in enumerate(self.desk.p) if position.ledger_id in gone)]
        )

    # -- storing ------------------------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        self.desk.cursor.flush()
        self.durable()

    @rule(form=st.sampled_from([*FORMS, None]), cache=CACHES)
    def close(self, form: str | None, cache: int) -> None:
        self.desk.restart("close", form=form, max_individual_ack_cache_bytes=cache)
        self.durable()

    @rule(form=st.sampled_from([*FORMS, None]), cache=CACHES)
    def crash(self, form: str | None, cache: int) -> None:
        self.desk.restart("crash", form=form, max_individual_ack_cache_bytes=cache)
        found = self.seen()
        which = [model for model in self.possible if model.seen() == found]
        assert which, f"{found} is none of {[model.seen() for model in self.possible]}"
        self.model = which[-1]
        self.durable()

    @rule(place=PLACE)
    def switch(self, place: float) -> None:
        self.desk.cursor.lru_switch(self.desk.p[self.number(place)].ledger_id)

    # -- looking ------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 20), skipped=st.sets(PLACE, max_size=5))
    def read(self, count: int, skipped: set[float]) -> None:
        numbers = {self.number(place) for place in skipped}
        positions = {self.desk.p[number] for number in numbers}
        self.desk.cursor.rewind()
        found = [entry.position for entry in self.desk.cursor.read(count, skip=positions.__contains__)]
        expected = [number for number in range(len(self.desk.p)) if number not in self.model.acked | numbers][:count]
        assert found == [self.desk.p[number] for number in expected]

    @rule(count=st.integers(1, 20), places=PLACES)
    def read_while_another_acknowledges(self, count: int, places: list[float]) -> None:
        """Each entry comes once: of those that are acknowledged meanwhile, some and each of the others."""
        cursor = self.desk.cursor
        left = [number for number in range(len(self.desk.p)) if number not in self.model.acked]
        numbers = list(map(self.number, places))

        def wanted(ledger_id: int, first: int, last: int) -> range:
            if numbers:
                self.desk.cursor.ack(self.desk.p[numbers[0]])
                self.model.ack(numbers.pop(0))
                self.changed()
            return range(first, last + 1)

        cursor.rewind()
        found = [self.desk.p.index(entry.position) for entry in cursor.read(count, wanted=wanted)]
        assert len(found) <= count
        found += [self.desk.p.index(entry.position) for entry in cursor.read(len(self.desk.p) + 1)]
        assert found == [number for number in left if number in found or number not in self.model.acked]

    def seen(self) -> tuple[object, ...]:
        at = self.desk
        everything = frozenset(range(BATCH))
        parts = {at.p.index(position): everything - set(left) for position, left in at.cursor.partial_batches().items()}
        return (frozenset(at.acked()), parts, at.cursor.properties)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "desk"):
            return
        at = self.desk
        assert self.seen() == self.model.seen()
        assert at.cursor.backlog == len(at.p) - len(self.model.acked)
        beyond = [number for number in sorted(self.model.acked) if number > self.model.mark_delete]
        in_ranges = [
            number
            for number, position in enumerate(at.p)
            if any(one.lower < position <= one.upper for one in at.cursor.acked_ranges())
        ]
        assert in_ranges == beyond


TestCursor = CursorMachine.TestCase
TestCursor.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
