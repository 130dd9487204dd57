"""Calls that are interrupted at points spread evenly over them, each with what another thread does next.

Random calls in a random state, as in ``interrupts_process.py``, hardly ever meet a point that harms others only until
the next call of the same thread.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import bookstand
from bookstand import TopicConfig
from bookstand.errors import BookstandError, InterruptedOperationError
from bookstand.storage.format import schema
from tests.soak.interruption import Interruption

Do = Callable[[str, Callable[[], object]], object]
"""Has another thread do something, and waits for it."""

Sweep = Callable[[str, Do], Iterator[tuple[Callable[[], object], Callable[[BaseException | None], object]]]]
"""Gives, again and again, a call to be interrupted, and what is done after it."""


class LostError(Exception):
    """Something that was confirmed is missing."""


def reading(path: str, do: Do) -> Iterator[Any]:
    """A read; then another thread closes the store."""
    while True:
        store = bookstand.open(path)
        store.nodes.put("/a", b"1")

        def after(_: object, store: Any = store) -> None:
            do("close", store.close)

        yield lambda store=store: store.nodes.get("/a"), after


def closing_a_ledger(path: str, do: Do) -> Iterator[Any]:
    """The end of a ledger; then another thread closes it."""
    with bookstand.open(path) as store:
        while True:
            writer = store.create_ledger()
            writer.append(b"1")

            def after(_: object, writer: Any = writer) -> None:
                do("close a ledger", writer.close)
                if not store.is_closed(writer.id):
                    raise LostError("the ledger is not closed")

            yield writer.close, after


def closing_a_store(path: str, do: Do) -> Iterator[Any]:
    """The end of a store; then another thread opens it."""
    while True:
        store = bookstand.open(path)
        store.nodes.put("/a", b"1")
        store.create_ledger().append_async(b"2")

        def after(_: object, store: Any = store) -> None:
            def use() -> None:
                with bookstand.open(path) as again:
                    again.nodes.put("/a", b"2")

            do("open", use)
            store.close()
            do("open", use)

        yield store.close, after


def receiving(path: str, do: Do) -> Iterator[Any]:
    """Messages; then all are delivered that were not returned, without reopening anything."""
    with bookstand.open(path) as store:
        number = 0
        while True:
            number += 1
            topic = store.topic(f"t{number}", TopicConfig())
            sub = topic.subscription("s")
            sent = set(topic.publish_many([b"%d" % one for one in range(10)]))
            got: list[Any] = []

            def call(sub: Any = sub, got: list[Any] = got) -> None:
                got += sub.receive(5, timeout=0)

            def after(_: object, topic: Any = topic, sub: Any = sub, sent: Any = sent, got: list[Any] = got) -> None:
                while messages := sub.receive(100, timeout=0):
                    got += messages
                if {message.position for message in got} != sent or len(got) != len(sent):
                    raise LostError(f"{len(got)} messages were delivered, not {len(sent)}")
                topic.close()

            yield call, after


def rolling(path: str, do: Do) -> Iterator[Any]:
    """An entry that fills its ledger; then the next ones are added, and all that were confirmed are there."""
    with bookstand.open(path) as store:
        ledger = store.managed_ledger("t", max_entries_per_ledger=1)
        confirmed: dict[Any, bytes] = {}
        number = 0

        def append() -> None:
            nonlocal number
            number += 1
            data = b"%d" % number
            confirmed[ledger.append_entry(data)] = data

        def after(_: object) -> None:
            do("append", append)
            append()
            for position, data in list(confirmed.items())[-4:]:
                if ledger.read_entry(position).data != data:
                    raise LostError(f"{position} is another entry")
            # With each ledger that is listed a call takes longer.
            ledger.trim(ledger.last_confirmed)
            confirmed.clear()

        while True:
            yield append, after


def compacting(path: str, do: Do) -> Iterator[Any]:
    """The file is replaced; then it is replaced by another thread."""
    with bookstand.open(path) as store:
        while True:

            def after(_: object) -> None:
                do("compact", store.compact)
                store.nodes.put("/a", b"1")

            yield store.compact, after


def acknowledging(path: str, do: Do) -> Iterator[Any]:
    """Acknowledgments are written; then the cursor goes on, or says that it must be opened again, and what was durable
    is."""
    with bookstand.open(path) as store:
        topic = store.topic("t", TopicConfig(max_entries_per_ledger=7))
        cursor = topic.cursor("c")
        durable: list[Any] = []

        def acknowledge() -> None:
            (position,) = topic.publish_many([b"1"])
            # Not all, so that holes stay.
            if position.entry_id % 3:
                cursor.ack(position).result()
                durable.append(position)

        def after(_: object) -> None:
            nonlocal cursor
            if not cursor.usable:
                cursor = topic.cursor("c")
            try:
                do("acknowledge", acknowledge)
            except InterruptedOperationError as error:
                if "open it again" not in str(error):
                    raise
                cursor = topic.cursor("c")
                do("acknowledge", acknowledge)
            if not all(map(cursor.is_acked, durable[-20:])):
                raise LostError("a durable acknowledgment is missing")

        while True:
            yield acknowledge, after


def opening(path: str, do: Do) -> Iterator[Any]:
    """The beginning of a store, with a witness; then another thread opens it, and nobody else has it open."""
    while True:
        opened: list[Any] = []

        def call(opened: list[Any] = opened) -> None:
            opened.append(bookstand.open(path, witness=True))

        def after(_: object, opened: list[Any] = opened) -> None:
            for store in opened:
                store.close()

            def use() -> None:
                with bookstand.open(path, witness=True) as store:
                    store.nodes.put("/a", b"1")
                    if store.storage.other_processes().writers:
                        raise LostError("the marker of the interrupted call remains locked")

            do("open", use)

        yield call, after


def looking_at_all_records(path: str, do: Do) -> Iterator[Any]:
    """A look at all records of a kind; then another thread reopens the environment."""
    with bookstand.open(path) as store:
        writer = store.create_ledger()
        writer.append_many([b"1"] * 9)

        def look() -> None:
            list(store.storage.records(schema.LEDGERS))
            list(store.storage.runs(writer.id, 8))

        while True:
            yield look, lambda _: do("reopen", store.storage._environment.reopen)


SWEEPS: list[Sweep] = [
    *(reading, closing_a_ledger, closing_a_store, receiving, rolling, compacting, acknowledging, opening),
    looking_at_all_records,
]


def sweep(one: Sweep, points: int, offset: float, do: Do, kind: type[BaseException] = KeyboardInterrupt) -> int:
    """Interrupt the call at so many points; returns at how many it was. ``offset``: of a point's distance from the next
    one, from 0 to 1."""
    met = 0
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        turns = one(f"{folder}/store", do)
        stack.callback(turns.close)  # type: ignore[attr-defined]
        length = 0
        for _ in range(2):
            # The first call makes what the others find.
            call, after = next(turns)
            with Interruption(0) as counting:
                call()
            after(None)
            length = counting.instructions
        for number in range(points):
            call, after = next(turns)
            interruption = Interruption(1 + int((number + offset) * length / points), kind)
            raised: BaseException | None = None
            try:
                with interruption:
                    call()
            except (kind, BookstandError) as error:
                raised = error
            place = interruption.place
            met += place is not None
            if place is not None and raised is None and f"{os.sep}bookstand{os.sep}" in place[0].co_filename:
                raise LostError(f"the exception did not leave the call: it was raised in {place[0].co_qualname}")
            after(raised)
            del raised
    return met
