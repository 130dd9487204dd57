"""What the rows about cursors are measured with: baselines that are right, topics that are made by their record."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookstand
from benchmarks import cursor_acking, cursor_cache, cursor_flushes, cursor_opening, rows
from benchmarks.baselines.acks import Sets, SortedRanges
from benchmarks.cursor_legacy import snapshot
from benchmarks.cursor_topics import FIRST_LEDGER, MEASURED, acknowledge, plant
from benchmarks.measure import Sample, Series
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import position_info
from bookstand.storage.format.position import Position

LEDGERS = range(3)
SMALL = CursorConfig(max_individual_ack_cache_bytes=20_000, flush_interval=1e9)
batches = st.lists(
    st.lists(st.tuples(st.sampled_from(LEDGERS), st.integers(0, 40)), min_size=1, max_size=30), max_size=10
)


@given(batches)
def test_the_baselines_hold_what_was_acknowledged(acked: list[list[tuple[int, int]]]) -> None:
    sets, ranges = Sets(LEDGERS), SortedRanges(LEDGERS)
    for batch in acked:
        ranges.ack(batch)
        for position in batch:
            sets.ack(position)
    model = {position for batch in acked for position in batch}
    assert {(ledger, entry) for ledger, entries in sets.sets.items() for entry in entries} == model
    found = [(ledger, first, last) for ledger, some in ranges.ranges.items() for first, last in some.items()]
    assert {(ledger, entry) for ledger, first, last in found for entry in range(first, last + 1)} == model
    assert len(sets) == len(ranges) == len(model)
    # Ranges that touch have become one.
    assert not {(ledger, last + 1) for ledger, _, last in found} & {(ledger, first) for ledger, first, _ in found}


def test_a_topic_made_by_its_record_takes_acknowledgments(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store", durability="none") as store:
        topic = plant(store, "topic", 5, 40)
        assert topic.extent.total == 5 * 40 + 1
        acknowledge(topic, "cursor", range(1, 40, 2), 5)
        with Cursor.open(topic, "cursor", MEASURED) as cursor:
            assert cursor.recovered_from.how == "marker"
            assert cursor.mark_delete_position == Position(FIRST_LEDGER, -1)
            assert cursor.backlog == 5 * 20 + 1


@pytest.mark.parametrize("form", ["ranges", "long_arrays"])
def test_the_snapshot_has_the_same_acknowledgments(form: position_info.Form) -> None:
    state = position_info.read(snapshot(4, range(1, 30, 3), form)).state
    assert {ledger: list(acked) for ledger, acked in state.acked.items()} == {
        FIRST_LEDGER + number: list(range(1, 30, 3)) for number in range(4)
    }


def test_what_comes_back_wrong_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="came back"):
        cursor_opening._check(1)
    with pytest.raises(RuntimeError, match="acknowledged"):
        cursor_acking._check(1)


@pytest.mark.parametrize(("cpu", "sizes", "worse"), [((1, 3), (10, 20), 3), ((1, 1.5), (10, 20), 2)])
def test_growth_is_the_worse_of_bytes_and_cpu(
    cpu: tuple[float, float], sizes: tuple[float, float], worse: float
) -> None:
    flushed = {
        ledgers: cursor_flushes._Flushed(Series([Sample(seconds / 1e6, seconds / 1e6)]), [size])
        for ledgers, seconds, size in zip((100, 1_000), cpu, sizes, strict=True)
    }
    figure = cursor_flushes._growth(rows.BY_NAME["P9"], flushed, "")
    assert figure.value == pytest.approx(worse)
    assert figure.ok is (worse <= 2)


def test_flushes_of_any_size_are_measured(tmp_path: Path) -> None:
    flushed = cursor_flushes._flush(tmp_path, (3, 200), rounds=1)
    assert set(flushed) == {3, 200}
    for one in flushed.values():
        assert one.series.cpu > 0
        assert len(one.sizes) == 1


def test_questions_to_a_small_cache_are_measured_beside_a_large_one(tmp_path: Path) -> None:
    figure = cursor_cache._query_figure(rows.BY_NAME["P27"], tmp_path, 30, 1, SMALL)
    assert set(figure.rounds) == {f"{what} {kind}" for what in ("nth", "skip", "backlog") for kind in ("cold", "warm")}
    assert figure.value is not None
    with pytest.raises(RuntimeError, match="holds all 3 pages"):
        cursor_cache._query_figure(rows.BY_NAME["P27"], tmp_path / "all", 3, 1)


def test_acknowledging_in_cold_ledgers_is_measured_by_the_ledger(tmp_path: Path) -> None:
    figure = cursor_cache._cold(rows.BY_NAME["P28"], tmp_path, (15, 30), 1, SMALL)
    assert figure.ours is not None
    assert figure.baseline is not None
    assert figure.value == pytest.approx(figure.ours / figure.baseline)
    with pytest.raises(RuntimeError, match="in memory"):
        cursor_cache._cold(rows.BY_NAME["P28"], tmp_path / "all", (3, 5), 1)
