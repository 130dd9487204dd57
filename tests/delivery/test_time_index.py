"""The time index by example: the cases of the reference table, wrong arguments, memory, cost."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bookstand.delivery.time_index import block_codec, sealed_part
from bookstand.delivery.time_index import index as time_index
from bookstand.delivery.time_index.index import Segment, TimeIndex
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position

MAX = (1 << 63) - 1
START = 1_700_000_000_000


def ordered(per_milli: int, first: int, count: int) -> tuple[np.ndarray, ...]:
    """Messages as a topic gets them: so many each millisecond, fifty thousand to a ledger."""
    message = np.arange(first, first + count)
    return START + message // per_milli, 10_000 + message // 50_000, message % 50_000


def scattered(first: int, count: int, seed: int = 7) -> tuple[np.ndarray, ...]:
    """The same with delays of up to an hour."""
    times, ledger_ids, entry_ids = ordered(10, first, count)
    return times + np.random.default_rng(seed).integers(0, 3_600_000, count), ledger_ids, entry_ids


def triples(*columns: np.ndarray) -> list[tuple[int, int, int]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


# -- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "bucket"), [(8, 1059840), (0, 1060000)])
def test_trimming_case_2(bits: int, bucket: int) -> None:
    index = TimeIndex(bits)
    assert index.key(1060000) == bucket
    index.add(1060000, 3, 1)
    assert index.next_time() == bucket
    assert index.pop_due(bucket - 1).triples() == []
    assert index.pop_due(bucket).triples() == [(bucket, 3, 1)]


def test_only_what_is_due_case_17() -> None:
    index = TimeIndex()
    for time in (20, 10, 30, 50, 40):
        index.add(time, 1, time)
    assert index.pop_due(15).triples() == [(10, 1, 10)]
    assert len(index) == 4
    assert [time for time, _, _ in index.pop_due(50).triples()] == [20, 30, 40, 50]
    assert index.next_time() is None


def test_partial_pops_case_21() -> None:
    index = TimeIndex()
    index.add_many(1000, [1, 1, 2, 2, 2, 2, 2], [0, 1, 0, 1, 2, 3, 4])
    assert index.pop_due(1000, 4).positions() == [Position(1, 0), Position(1, 1), Position(2, 0), Position(2, 1)]
    assert index.pop_due(1000, 2).positions() == [Position(2, 2), Position(2, 3)]
    assert index.pop_due(1000, 10).positions() == [Position(2, 4)]
    assert len(index) == 0


def test_the_same_message_counts_once_case_22() -> None:
    index = TimeIndex(8)
    for _ in range(3):
        index.add(1000, 1, 1)
    assert len(index) == 1
    index.add(1001, 1, 1)
    assert len(index) == 1, "in its bucket it was already"
    index.add(2000, 1, 1)
    assert len(index) == 2, "another bucket is another time"
    assert len(index.pop_due(5000)) == 2


def test_ledgers_ascend_case_23() -> None:
    index = TimeIndex()
    for ledger in (3, 5, 1, 4, 2):
        index.add(1000, ledger, 0)
    assert [index.pop_due(1000, 1).positions() for _ in range(5)] == [[Position(ledger, 0)] for ledger in range(1, 6)]


# -- what is given out -----------------------------------------------------------------------------------------------


def test_segments_are_views_of_one_column() -> None:
    index = TimeIndex(10)
    index.add_many([0, 0, 1, 5000], [1, 1, 2, 2], [7, 8, 3, MAX])
    drained = index.peek()
    assert [(key, ledger, ids.tolist()) for key, ledger, ids in drained] == [
        (0, 1, [7, 8]),
        (0, 2, [3]),
        (4096, 2, [MAX]),
    ]
    first, second, _ = drained
    assert isinstance(first, Segment)
    assert first.entry_ids.base is not None
    assert first.entry_ids.base is second.entry_ids.base
    columns = drained.columns()
    assert [column.dtype for column in columns] == [np.int64] * 3
    assert triples(*columns) == drained.triples() == [(0, 1, 7), (0, 1, 8), (0, 2, 3), (4096, 2, MAX)]
    assert len(drained) == 4


def test_peek_takes_nothing_and_keeps_to_its_times() -> None:
    index = TimeIndex()
    index.add_many([1, 2, 3, 4], 1, [1, 2, 3, 4])
    assert [time for time, _, _ in index.peek(2, 3).triples()] == [2, 3]
    assert [time for time, _, _ in index.peek(first=3).triples()] == [3, 4]
    assert [time for time, _, _ in index.peek(limit=1).triples()] == [1]
    assert index.peek(5, 4).triples() == []
    assert len(index) == 4


def test_a_column_may_be_changed_after_it_was_added() -> None:
    index = TimeIndex()
    columns = scattered(0, 1000)
    expected = sorted(triples(*columns))
    index.add_many(*columns)
    for column in columns:
        column[:] = 0
    assert index.peek().triples() == expected


@pytest.mark.parametrize("round_up", [False, True])
def test_columns_go_where_single_ones_go(round_up: bool) -> None:
    times = [-MAX - 1, -1025, -1, 0, 1, 1023, 1024, MAX - 1024, MAX - 1023, MAX]
    index, single = TimeIndex(10, round_up=round_up), TimeIndex(10, round_up=round_up)
    index.add_many(times, 1, range(len(times)))
    for entry, time in enumerate(times):
        single.add(time, 1, entry)
        assert index.contains(time, 1, entry)
    assert index.peek().triples() == single.peek().triples()
    assert all((index.key(time) >= time) == round_up or index.key(time) == time for time in times)


# -- sealed parts ----------------------------------------------------------------------------------------------------


def test_many_random_times() -> None:
    index = TimeIndex(10)
    count = 600_000
    for first in range(0, count, 10_000):
        index.add_many(*scattered(first, 10_000, first))
    times, ledger_ids, entry_ids = (
        np.concatenate(column)
        for column in zip(*(scattered(first, 10_000, first) for first in range(0, count, 10_000)), strict=True)
    )
    order = np.lexsort((entry_ids, ledger_ids, times & -1024))
    expected = ((times & -1024)[order], ledger_ids[order], entry_ids[order])
    assert len(index) == count
    index.add_many(times[:300_000], ledger_ids[:300_000], entry_ids[:300_000])
    assert len(index) == count, "twice in one bucket is once"
    some = index.pop_due(START + 1_800_000, 1000)
    rest = index.pop_due(MAX)
    for column, one, other in zip(expected, some.columns(), rest.columns(), strict=True):
        assert np.array_equal(column, np.concatenate((one, other)))
    assert len(index) == 0
    assert index.next_time() is None


def test_what_has_no_short_code() -> None:
    """Times, ledgers and entries from everywhere, some of them twice."""
    random = np.random.default_rng(5)
    columns = tuple(random.integers(0, MAX, 30_000) for _ in range(3))
    columns[0][::2] -= MAX
    index = TimeIndex()
    index.add_many(*columns)
    index.add_many(*(column[:10_000] for column in columns))
    assert len(index) == 30_000
    assert index.pop_due(0).triples() == sorted(row for row in triples(*columns) if row[0] <= 0)
    assert index.peek().triples() == sorted(row for row in triples(*columns) if row[0] > 0)


def test_much_is_discarded() -> None:
    index = TimeIndex(10)
    columns = scattered(0, 1000)
    index.add_many(*columns)
    rows = triples(*columns)
    assert len(index) == 1000
    for row in rows[:950]:
        assert index.discard(*row)
        assert not index.discard(*row)
    assert len(index) == 50
    assert index.peek().triples() == sorted((time & -1024, ledger, entry) for time, ledger, entry in rows[950:])
    assert not any(part.needs_rewrite for part in index._sealed), "what is left was sealed anew"
    index.add(*rows[0])
    assert index.contains(*rows[0])
    assert len(index) == 51


def test_long_ranges() -> None:
    index = TimeIndex()
    index.add_range(5, 1, MAX - 4, MAX)
    index.add_range(5, 1, (1 << 20) - 10, (3 << 20) + 10)
    index.add_range(5, 1, 0, 9)
    index.add_many(*scattered(0, 5000))
    assert len(index) == 5 + (2 << 20) + 21 + 10 + 5000
    assert index.memory_bytes < 1 << 20
    popped = index.pop_due(5).columns()[2]
    assert popped[:10].tolist() == list(range(10))
    assert popped[-5:].tolist() == list(range(MAX - 4, MAX + 1))
    assert np.array_equal(popped[10:-5], np.arange((1 << 20) - 10, (3 << 20) + 11))


# -- wrong arguments -------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, Any]] = [
    ("negative entry", lambda index: index.add(0, 0, -1)),
    ("negative ledger", lambda index: index.add(0, -1, 0)),
    ("more bits than there are", lambda index: index.add(0, 0, 1 << 64)),
    ("time too high", lambda index: index.add(MAX + 1, 0, 0)),
    ("no number", lambda index: index.add("1", 0, 0)),
    ("half a number", lambda index: index.add(0, 0, 1.5)),
    ("half a ledger of a handle", lambda index: index.handle(0, 1.5)),
    ("half a time", lambda index: index.contains(0.5, 1, 1)),
    ("a word for an entry", lambda index: index.discard(0, 1, "1")),
    ("half a limit", lambda index: index.pop_due(0, 0.5)),
    ("a column's negative entry", lambda index: index.add_many([0, 0], [1, 1], [3, -4])),
    ("many negative entries", lambda index: index.add_many(range(200), 1, range(150, -50, -1))),
    ("negative ledgers in columns", lambda index: index.add_many(0, -1, [1, 2])),
    ("a column's entry too high", lambda index: index.add_many(0, 0, [MAX + 1])),
    ("entries beyond the highest", lambda index: index.add_many(0, 0, np.array([MAX, -MAX - 1]))),
    ("a column of halves", lambda index: index.add_many(0, 0, [0.5])),
    ("columns of two lengths", lambda index: index.add_many([0, 1], 0, [1, 2, 3])),
    ("columns of two dimensions", lambda index: index.add_many(0, 0, [[1, 2], [3, 4]])),
    ("a range backwards", lambda index: index.add_range(0, 0, 5, 4)),
    ("a range of nearly everything", lambda index: index.add_range(0, 0, 0, MAX)),
    ("a range from below", lambda index: index.add_range(0, 0, -1, 4)),
    ("a handle of a negative ledger", lambda index: index.handle(0, -1)),
    ("a handle of no time", lambda index: index.handle(MAX + 1, 0)),
    ("a negative limit", lambda index: index.pop_due(0, -1)),
    ("a negative limit of a peek", lambda index: index.peek(limit=-1)),
]


@pytest.mark.parametrize("call", [call for _, call in WRONG], ids=[name for name, _ in WRONG])
def test_wrong_arguments(call: Any) -> None:
    index = TimeIndex()
    with pytest.raises(IncorrectParameterError):
        call(index)
    assert len(index) == 0
    assert index.next_time() is None


def test_what_a_handle_refuses() -> None:
    index = TimeIndex()
    handle = index.handle(5, 1)
    with pytest.raises(OverflowError):
        handle(-1)
    with pytest.raises(TypeError):
        handle("1")  # type: ignore[arg-type]
    handle(7)
    handle(MAX + 1)
    with pytest.raises(IncorrectParameterError):
        len(index)
    assert index.peek().triples() == [(5, 1, 7)], "the others are none the worse"


@pytest.mark.parametrize("options", [{"precision_bits": -1}, {"precision_bits": 63}, {"precision_bits": True}])
def test_wrong_precision(options: dict[str, Any]) -> None:
    with pytest.raises(IncorrectParameterError):
        TimeIndex(**options)


def test_handles_go_when_nobody_has_them() -> None:
    index = TimeIndex()
    kept = index.handle(1, 1)
    for ledger in range(1000):
        index.handle(2, ledger)(5)
    assert len(index) == 1000
    assert len(index) == 1000
    kept(9)
    assert index.contains(1, 1, 9)
    assert len(index._handles) == 1


# -- space and cost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("per_milli", "bits", "published"), [(1, 10, 25.0), (4, 10, 20.48), (8, 10, 11.0), (8, 15, 2.25)]
)
def test_space_of_ordered_messages(per_milli: int, bits: int, published: float) -> None:
    """At most a fifth of the megabytes published for ten million of them."""
    index = TimeIndex(bits)
    count = 3_000_000
    for first in range(0, count, 50_000):
        index.add_many(*ordered(per_milli, first, 50_000))
    assert len(index) == count
    assert index.memory_bytes < 0.2 * published * 2**20 * count / 10_000_000


def test_space_of_random_times() -> None:
    index = TimeIndex(10)
    for first in range(0, 1 << 18, 1 << 14):
        index.add_many(*scattered(first, 1 << 14, first))
    assert len(index) == 1 << 18
    packed = sum(part.nbytes for part in index._sealed)
    assert packed < 2.6 * (1 << 18)


def test_half_of_all_entries_takes_bits() -> None:
    index = TimeIndex(10)
    for first in range(0, 400_000, 10_000):
        columns = ordered(8, first, 10_000)
        half = np.random.default_rng(first).random(10_000) < 0.5
        index.add_many(*(column[half] for column in columns))
    count = len(index)
    assert sum(part.nbytes for part in index._sealed) < 0.35 * count


CHILD = """
import ctypes, gc, sys
import numpy as np
from bookstand.delivery.time_index.index import TimeIndex

def private():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))

def scattered(index):
    random = np.random.default_rng(3)
    for first in range(0, 1_000_000, 20_000):
        message = np.arange(first, first + 20_000)
        times = 1_700_000_000_000 + message // 10 + random.integers(0, 3_600_000, 20_000)
        index.add_many(times, message // 50_000, message % 50_000)

def far(index):
    random = np.random.default_rng(4)
    for _ in range(10):
        index.add_many(*(random.integers(0, 1 << 62, 20_000) for _ in range(3)))

def hot(index):
    for bucket in range(4000):
        index.add_range(bucket << 10, bucket // 50, 100 * bucket, 100 * bucket + 50)

def single(index):
    for bucket in range(40_000):
        index.add(bucket << 10, bucket // 50, bucket)

fill = globals()[sys.argv[1]]
warm = TimeIndex(10)
fill(warm)
len(warm)
warm.clear()
del warm
before = private()
index = TimeIndex(10)
fill(index)
if sys.argv[1] != "single":
    len(index)
print(private() - before, index.memory_bytes)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the system for the memory of a process")
@pytest.mark.parametrize("what", ["scattered", "far", "hot", "single"])
def test_memory_is_told_as_the_system_sees_it(what: str) -> None:
    child = subprocess.run([sys.executable, "-c", CHILD, what], capture_output=True, text=True, check=True)
    seen, told = map(int, child.stdout.split())
    assert abs(told - seen) < 0.25 * seen + (1 << 19)


def test_a_pop_opens_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_part, "_BLOCK", 256)
    monkeypatch.setattr(time_index, "_STAGING_CAPACITY", 1 << 14)
    index = TimeIndex(10)
    for first in range(0, 1 << 16, 1 << 12):
        index.add_many(*scattered(first, 1 << 12, first))
    assert len(index) == 1 << 16
    assert sum(len(part._data) for part in index._sealed) >= 256
    opened: list[bytes] = []
    decode = block_codec.decode
    monkeypatch.setattr(block_codec, "decode", lambda data: opened.append(data) or decode(data))
    assert index.pop_due(START - 1024).triples() == []
    assert opened == []
    for second in range(20):
        index.pop_due(START + 1024 * second)
    assert len(opened) <= 2 * len(index._sealed), "the first blocks of each part, and no others"


def test_clear() -> None:
    index = TimeIndex(10)
    handle = index.handle(1, 1)
    index.add_many(*scattered(0, 5000))
    index.add_range(1, 1, 0, 100)
    index.add(1, 1, 200)
    handle(300)
    assert len(index) > 0
    index.add(1, 1, 200)
    handle(300)
    index.clear()
    assert len(index) == 0
    assert index.next_time() is None
    assert index.memory_bytes < 4096
    handle(400)
    assert index.peek().triples() == [(0, 1, 400)]


@pytest.mark.parametrize("good", [2, 2_000])
@pytest.mark.parametrize("wrong", [(0, 0, MAX + 1), (0, MAX + 1, 0)])
def test_an_id_that_is_too_high_is_refused_when_it_is_met_and_takes_no_other_with_it(
    good: int, wrong: tuple[int, int, int]
) -> None:
    index = TimeIndex()
    for entry in range(good):
        index.add(1, 2, entry)
    index.add(*wrong)
    for entry in range(good, 2 * good):
        index.add(1, 2, entry)
    with pytest.raises(IncorrectParameterError, match="from 0 to"):
        len(index)
    assert len(index) == 2 * good
    assert index.pop_due(5).triples() == [(1, 2, entry) for entry in range(2 * good)]


def test_the_next_time_is_that_of_something_that_is_there() -> None:
    """Scattered entries again, and others of them under a later time: sealed, what was there already is left out."""
    scattered = np.random.default_rng(1).permutation(5000) * 2
    index = TimeIndex()
    index.add_many(1000, 1, scattered)
    assert len(index) == 5000
    index.add_many(1000, 1, scattered)
    index.add_many(2000, 1, scattered)
    assert len(index) == 10_000
    assert len(index.pop_due(1500)) == 5000
    assert index.next_time() == 2000


def test_buckets_that_come_and_go_leave_nothing_behind() -> None:
    index = TimeIndex()
    index.add(0, 1, 1)
    assert len(index) == 1
    before = index.memory_bytes
    for _ in range(2000):
        index.add(1000, 1, 2)
        assert index.discard(1000, 1, 2)
    assert index.memory_bytes < before + 20_000
    assert index.next_time() == 0


@pytest.mark.parametrize("wrong", [None, 1.5, "soon"])
def test_a_time_that_is_none_is_refused(wrong: Any) -> None:
    index = TimeIndex()
    index.add(1, 1, 1)
    with pytest.raises(IncorrectParameterError):
        index.pop_due(wrong)
    if wrong is not None:
        with pytest.raises(IncorrectParameterError):
            index.peek(first=wrong)
    assert len(index) == 1


def test_compact_gives_the_same_for_less_room():
    rng = np.random.default_rng(5)
    times, entries = rng.integers(0, 1 << 20, 150_000), np.arange(150_000)
    plain, compact = TimeIndex(8), TimeIndex(8, compact=True)
    for index in (plain, compact):
        for start in range(0, 150_000, 10_000):
            index.add_many(times[start : start + 10_000], 7, entries[start : start + 10_000])
    assert compact.memory_bytes < plain.memory_bytes / 2
    for until in (1 << 19, 1 << 20):
        assert compact.pop_due(until).triples() == plain.pop_due(until).triples()
    assert len(compact) == len(plain) == 0
