"""The page cache: calls end and read what they need however small it is, and it takes the memory that it is given."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.state.cursor_state import NoSuchPositionError
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.state.page_cache import PageCache
from bookstand.storage.format.position import Position
from tests.cursor.desk import NEVER, OLD_FORMS, Desk
from tests.kit import PATIENCE

TINY = 1
PER_LEDGER = 10


def within_patience(store: Any, work: Callable[[], Any]) -> Any:
    """The result of a call that could go on for ever."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if thread.is_alive():
        store.storage.crash()
        thread.join(PATIENCE)
        raise AssertionError(f"no end after {PATIENCE} s")
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


@contextmanager
def counting(cursor: Cursor) -> Iterator[dict[str, int]]:
    """Pages that were looked up, and those of them that were not in memory."""
    before = cursor.stats
    found: dict[str, int] = {}
    yield found
    after = cursor.stats
    found["misses"] = after.cache_misses - before.cache_misses
    found["lookups"] = found["misses"] + after.cache_hits - before.cache_hits


# -- nth and skip ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_nth_skip_and_backlog_answer_as_a_plain_list_does_however_small_the_cache(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["pages", *OLD_FORMS]))
    ledgers = data.draw(st.integers(1, 8))
    count = PER_LEDGER * ledgers
    acked = data.draw(st.sets(st.integers(0, count - 1)))
    late = data.draw(st.sets(st.integers(0, count - 1), max_size=5))
    cache = data.draw(st.sampled_from([TINY, 20_000, 3 << 20]))
    with bookstand.temporary() as store:
        topic = store.managed_ledger("orders", max_entries_per_ledger=PER_LEDGER)
        p = topic.append_entries([b"."] * count)
        config = CursorConfig(
            max_individual_ack_cache_bytes=cache,
            flush_interval=NEVER,
            enable_lru_cache_max_unacked_ranges=form == "pages",
        )
        with Cursor.open(topic, "audit", config) as cursor:
            cursor.ack([p[number] for number in acked])
            cursor.flush()
            cursor.ack([p[number] for number in late])
            left = [number for number in range(count) if number not in acked | late]

            def nth(number: int, of: list[int]) -> Position | None:
                return p[of[number - 1]] if number <= len(of) and number <= len(left) else None

            for number in data.draw(st.lists(st.integers(1, count + 2), max_size=6)):
                behind = list(range(left[0] if left else count, count))
                assert cursor.backlog == len(left)
                assert within_patience(store, lambda number=number: cursor.nth(number)) == nth(number, left)
                assert cursor.nth(number, include_acked=True) == nth(number, behind)
            for number in data.draw(st.lists(st.integers(1, 30), max_size=2)):
                include = data.draw(st.booleans())
                of = list(range(left[0] if left else count, count)) if include else left
                within_patience(store, lambda number=number, include=include: cursor.skip(number, include))
                left = [one for one in left if one > of[number - 1]] if number <= len(of) else []
                assert cursor.backlog == len(left)
                assert [cursor.is_acked(one) for one in p] == [one not in left for one in range(count)]


def holes(at: Desk, ledgers: int) -> None:
    """Every other entry of each ledger is acknowledged, the first one of all is not."""
    for number in range(ledgers):
        ledger_id = at.p[number * PER_LEDGER].ledger_id
        at.cursor.ack_many(ledger_id, range(1, PER_LEDGER, 2))
    at.cursor.flush()


def test_nth_reads_the_page_of_its_answer_and_skip_one_more(desk: Callable[..., Desk]) -> None:
    at = desk(per_ledger=PER_LEDGER, entries=PER_LEDGER * 40, max_individual_ack_cache_bytes=TINY)
    holes(at, 40)
    half = PER_LEDGER // 2
    with counting(at.cursor) as found:
        assert at.cursor.nth(30 * half + 1) == at.p[300]
    assert found["lookups"] <= 2
    with counting(at.cursor) as found:
        assert at.cursor.nth(7, include_acked=True) == at.p[6]
        assert at.cursor.nth(40 * half + 1) is None
        assert at.cursor.backlog == 40 * half
    assert found["lookups"] == 0
    with counting(at.cursor) as found:
        at.cursor.skip(30 * half + 1)
    assert at.cursor.mark_delete_position == at.p[301]
    assert found["misses"] <= 2


def test_nth_between_ledgers_with_pages_reads_none(desk: Callable[..., Desk]) -> None:
    at = desk(per_ledger=PER_LEDGER, entries=PER_LEDGER * 5, max_individual_ack_cache_bytes=TINY)
    at.ack([1, 2, 41, 42])
    at.cursor.flush()
    with counting(at.cursor) as found:
        assert at.cursor.nth(20) == at.p[21]
        assert at.cursor.nth(38) == at.p[39]
    assert found["lookups"] == 0
    assert at.cursor.nth(40) == at.p[43]


def test_threads_that_want_different_pages_of_a_cache_for_one_all_get_on(desk: Callable[..., Desk]) -> None:
    at = desk(per_ledger=PER_LEDGER, entries=PER_LEDGER * 20, max_individual_ack_cache_bytes=TINY)
    holes(at, 20)
    wrong: list[Any] = []

    def look(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            number = chance.randrange(PER_LEDGER * 10)
            if at.cursor.nth(number // 2 + 1) != at.p[number // 2 * 2]:
                wrong.append(number)
            if at.cursor.is_acked(at.p[number]) != bool(number % 2):
                wrong.append(number)

    threads = [threading.Thread(target=look, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


# -- acknowledging in cold ledgers -------------------------------------------------------------------------------------


CALLS: dict[str, Callable[[Cursor, list[Position]], Any]] = {
    "ack": lambda cursor, positions: cursor.ack(positions),
    "ack_entries": lambda cursor, positions: cursor.ack_entries(positions),
    "ack_many": lambda cursor, positions: [cursor.ack_many(*one[:1], [one[1]]) for one in positions][-1],
}


@pytest.mark.parametrize("call", CALLS)
def test_acknowledging_in_cold_ledgers_looks_each_page_up_a_few_times_and_stays_within_the_cache(
    desk: Callable[..., Desk], call: str
) -> None:
    ledgers = 150
    at = desk(per_ledger=PER_LEDGER, entries=PER_LEDGER * ledgers)
    holes(at, ledgers)
    at.restart("crash", max_individual_ack_cache_bytes=100_000)
    positions = at.p[2::PER_LEDGER]
    random.Random(3).shuffle(positions)
    flushes = at.cursor.stats.flushes
    with counting(at.cursor) as found:
        pending = CALLS[call](at.cursor, positions)
    assert found["misses"] <= 2 * ledgers
    assert found["lookups"] <= 5 * ledgers
    # Eight dirty pages are three quarters of the limit.
    assert ledgers // 10 <= at.cursor.stats.flushes - flushes <= ledgers // 7
    assert at.cursor.stats.cache_bytes <= 100_000
    pending.result(PATIENCE)
    at.restart("crash")
    expected = {number for number in range(len(at.p)) if number % 2 or number % PER_LEDGER == 2}
    assert at.acked() == sorted(expected)


@settings(max_examples=30, deadline=None)
@given(
    wanted=st.lists(st.integers(0, 79), max_size=40),
    before=st.sets(st.integers(0, 79), max_size=40),
    cache=st.sampled_from([TINY, 20_000, 3 << 20]),
    bad=st.none() | st.integers(0, 40),
    call=st.sampled_from(["ack", "ack_entries"]),
)
def test_what_comes_before_a_bad_position_in_a_list_stays_and_of_entries_none(
    wanted: list[int], before: set[int], cache: int, bad: int | None, call: str
) -> None:
    """Wherever the mark-delete position is, and whatever is in memory; also after a crash that follows the Pending."""
    with bookstand.temporary() as store:
        topic = store.managed_ledger("orders", max_entries_per_ledger=PER_LEDGER)
        p = topic.append_entries([b"."] * 80)
        config = CursorConfig(max_individual_ack_cache_bytes=cache, flush_interval=NEVER)
        with Cursor.open(topic, "audit", config) as cursor:
            cursor.ack([p[number] for number in before])
            cursor.flush()
            positions = [p[number] for number in wanted]
            done = set(wanted)
            if bad is None:
                CALLS[call](cursor, positions).result(PATIENCE) if positions else None
            else:
                positions.insert(bad, Position(p[-1].ledger_id, PER_LEDGER))
                done = set(wanted[:bad]) if call == "ack" else set()
                with pytest.raises(NoSuchPositionError):
                    CALLS[call](cursor, positions)
                cursor.flush()
            for again in (cursor, Cursor.open(topic, "audit", config, read_only=True)):
                assert {number for number in range(80) if again.is_acked(p[number])} == before | done
            again.close()


# -- statistics --------------------------------------------------------------------------------------------------------


def all_statistics(at: Desk) -> None:
    cursor = at.cursor
    list(cursor.samples())
    _ = cursor.stats, cursor.backlog, cursor.properties
    cursor.acked_ranges()
    cursor.partial_batches()
    cursor.build_individual_deleted_message_ranges()
    (*_, first) = cursor.history()
    cursor.diff(first.marker, None)
    cursor.diff(None, first.marker)
    at.store.metrics()


def test_statistics_leave_the_order_of_the_cache_and_its_counts_as_they_are(desk: Callable[..., Desk]) -> None:
    room = 3 * LedgerAcks(0, BitMap64([1])).memory + 100
    at = desk(
        per_ledger=PER_LEDGER,
        entries=PER_LEDGER * 8,
        max_individual_ack_cache_bytes=room,
        retained_cursor_ledgers=2,
    )
    holes(at, 8)
    ids = at.topic.extent.ledger_ids
    pages = at.cursor._state.pages
    for used in ([0, 1, 2], [2, 0, 1], [5, 3, 4]):
        for number in used:
            at.cursor.lru_switch(ids[number])
        assert pages.ledger_ids() == sorted(ids[number] for number in used)
        before = pages.hits, pages.misses
        all_statistics(at)
        assert (pages.hits, pages.misses) == before
        assert pages.ledger_ids() == sorted(ids[number] for number in used)
        # The one used longest ago leaves first.
        at.cursor.lru_switch(ids[7])
        assert pages.ledger_ids() == sorted(ids[number] for number in (*used[1:], 7))


# -- memory ------------------------------------------------------------------------------------------------------------


_HEAP = """
import ctypes, gc, random, sys, threading

class Usage(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Usage

def heap():
    gc.collect()
    usage = libc.mallinfo2()
    return usage.uordblks + usage.hblkhd
"""

_ONE_CALL = """
import bookstand
from benchmarks.cursor_topics import FIRST_LEDGER, plant
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.storage.format.position import Position

path, kind, ledgers, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(5)
config = CursorConfig(max_individual_ack_cache_bytes=limit, flush_interval=1e9)
with bookstand.open(path, durability="none") as store:
    topic = plant(store, "orders", ledgers, 50_000)
    with Cursor.open(topic, "audit", config) as cursor:
        cursor.ack(Position(FIRST_LEDGER, 1)).result()
        before = heap()
        if kind == "batches":
            for number in range(ledgers):
                for entry_id in range(10, 14):
                    position = Position(FIRST_LEDGER + number, entry_id)
                    cursor.ack_batch(position, [chance.randrange(20_000) for _ in range(50)], 20_000)
        elif kind == "list":
            cursor.ack([Position(FIRST_LEDGER + number, entry_id)
                        for entry_id in range(10, 16, 2) for number in range(ledgers)])
        else:
            cursor.ack_entries([Position(FIRST_LEDGER + number, entry_id)
                                for number in range(ledgers) for entry_id in chance.sample(range(1, 50_000), 40)])
        grown = heap() - before
        stats = cursor.stats
print(grown, stats.cache_bytes, stats.cache_pages)
"""


def measured(script: str, *arguments: object) -> list[int]:
    """What a process prints whose objects are all allocated by malloc, which counts them."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _HEAP + script, *map(str, arguments)],
        env={**os.environ, "PYTHONMALLOC": "malloc"},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 4,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


needs_mallinfo = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(__import__("ctypes").CDLL(None), "mallinfo2"), reason="needs glibc 2.33"
)


@needs_mallinfo
@pytest.mark.parametrize("kind", ["batches", "list", "entries"])
def test_a_call_over_many_ledgers_takes_the_memory_of_the_cache_and_one_page(memory: Path, kind: str) -> None:
    limit = 300_000
    ledgers = 200 if kind == "batches" else 1_000
    # A bitmap of 8 KiB, and four batches of 20,000 bits.
    page = 10_000 + (4 * 2_900 if kind == "batches" else 0)
    grown, charged, pages = measured(_ONE_CALL, memory / "store", kind, ledgers, limit)
    # The index, which has some 15 bytes for a ledger, and what a store keeps for its commits are not of the cache.
    beside = 100 * ledgers + 60_000
    assert grown <= limit + page + beside
    assert charged <= limit + page
    assert pages > 5


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_page_never_takes_more_than_a_dirty_one_is_charged_with(data: st.DataObject) -> None:
    """Also where single entries split runs, of which CRoaring would go on to keep a list of any length."""
    chance = random.Random(data.draw(st.integers(0, 1 << 16)))
    entries = data.draw(st.sampled_from([1_000, 50_000, 150_000]))
    page = LedgerAcks(1)
    page.limit = entries
    for _ in range(data.draw(st.integers(1, 6))):
        first = chance.randrange(entries)
        step = chance.choice((1, 1, 2, 3, 50))
        some = range(first, min(entries, first + chance.choice((10, 5_000, 60_000))), step)
        match data.draw(st.sampled_from(["load", "add", "ack", "ack_all", "part", "drop"])):
            case "load":
                acked = page.acked.copy()
                acked.run_optimize()
                page = LedgerAcks(1, BitMap64.deserialize(acked.serialize()), dict(page.partial))
                page.limit = entries
            case "add" if not page.may_have_runs:
                for entry_id in some:
                    page.acked.add(entry_id)
            case "add" | "ack":
                for entry_id in some:
                    page.ack(entry_id)
            case "ack_all":
                page.ack_all(some)
            case "part":
                for entry_id in some[:20]:
                    page.ack_part(entry_id, chance.getrandbits(chance.choice((5, 60, 9_000))))
            case "drop":
                page.drop_up_to(first // 8)
        assert page.memory <= page.max_memory + 4_096
    assert page.memory == LedgerAcks(1, page.acked, page.partial).memory


@pytest.mark.parametrize("how", ["ack_all", "load"])
def test_single_entries_do_not_split_runs_without_bound(how: str) -> None:
    page = LedgerAcks(1)
    page.ack_all(range(30_000))
    if how == "load":
        page = page.copy()
    page.limit = 65_000
    for entry_id in range(30_000, 65_000, 2):
        if page.may_have_runs:
            page.ack(entry_id)
        else:
            page.acked.add(entry_id)
    assert page.memory <= page.max_memory
    assert not page.may_have_runs


def test_batches_are_charged_what_they_take() -> None:
    pages = PageCache(1 << 20)
    page = LedgerAcks(1)
    pages.mark_dirty(page)
    empty = pages.bytes
    page.ack_part(3, (1 << 80_000) - 1)
    pages.mark_dirty(page)
    assert pages.bytes - empty > 10_000
    page.ack(3)
    pages.mark_dirty(page)
    assert pages.bytes - empty < 1_000


def test_each_thread_in_a_call_adds_a_page_at_most(desk: Callable[..., Desk]) -> None:
    limit, threads, ledgers = 60_000, 6, 60
    at = desk(per_ledger=PER_LEDGER, entries=PER_LEDGER * ledgers, max_individual_ack_cache_bytes=limit)
    holes(at, ledgers)
    page = 9_300
    most = 0
    wrong: list[BaseException] = []
    done = threading.Event()

    def acknowledge(seed: int) -> None:
        try:
            positions = at.p[2 + seed :: PER_LEDGER] if seed % 2 == 0 else at.p[1::PER_LEDGER]
            random.Random(seed).shuffle(positions)
            for first in range(0, len(positions), 7):
                at.cursor.ack(positions[first : first + 7])
        except BaseException as error:
            wrong.append(error)

    def watch() -> None:
        nonlocal most
        while not done.wait(0.0005):
            most = max(most, at.cursor.stats.cache_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    workers = [threading.Thread(target=acknowledge, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    done.set()
    watcher.join()
    assert not wrong
    assert most <= limit + (threads + 1) * page
