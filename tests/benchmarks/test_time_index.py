"""The workloads of the time index, and that all candidates do the same with them; no test here judges a time."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from benchmarks import maven
from benchmarks.measure import Missing
from benchmarks.published import PUBLISHED_BUCKETS
from benchmarks.time_index_children import children
from benchmarks.time_index_work import FIRST_LEDGER, HOUR, PER_LEDGER, START, Columns, Work
from benchmarks.time_index_worker import CANDIDATES, run

ORDERED = Work("ordered", 8, 10, 60_000)
RANDOM = Work("random", 10, 10, 60_000)
HALF = Work("ordered", 8, 10, 60_000, percent=50)


def laid_out(work: Work) -> Columns:
    chunks = [[column.copy() for column in chunk] for chunk in work.chunks()]
    return Columns(*(np.concatenate(parts) for parts in zip(*chunks, strict=True)))


def test_messages_come_in_order_and_ledgers_change() -> None:
    times, ledgers, entries = laid_out(Work("ordered", 4, 10, 1_100_000))
    numbers = (ledgers - FIRST_LEDGER) * PER_LEDGER + entries
    assert numbers.tolist() == list(range(1_100_000))
    assert np.array_equal(times, START + 1 + numbers // 4)


def test_some_of_the_ids() -> None:
    times, ledgers, entries = laid_out(HALF)
    numbers = (ledgers - FIRST_LEDGER) * PER_LEDGER + entries
    assert 29_000 < len(numbers) < 31_000
    assert (np.diff(numbers) > 0).all()
    assert np.array_equal(times, START + 1 + numbers // 8)


def test_random_delays_are_spread_over_an_hour() -> None:
    times, _, entries = laid_out(RANDOM)
    delays = times - START - 1 - np.arange(60_000) // 10
    assert entries.tolist() == [number % PER_LEDGER for number in range(60_000)]
    assert delays.min() < HOUR / 100
    assert delays.max() > HOUR * 0.99
    assert abs(delays.mean() - HOUR / 2) < HOUR / 50


@pytest.mark.parametrize(("per_milli", "bits"), PUBLISHED_BUCKETS)
def test_there_are_as_many_buckets_as_were_published(per_milli: int, bits: int) -> None:
    assert abs(Work("ordered", per_milli, bits).buckets - PUBLISHED_BUCKETS[per_milli, bits]) <= 1


@pytest.mark.long
@pytest.mark.parametrize("work", [ORDERED, RANDOM, HALF], ids=lambda work: f"{work.workload}-{work.percent}")
def test_all_candidates_give_the_same_back(work: Work) -> None:
    answers = [run(make, work, "all", measured=False) for make in CANDIDATES.values()]
    assert len({(answer["added"], answer["drained"], answer["checksum"]) for answer in answers}) == 1
    assert answers[0]["drained"] == answers[0]["added"] == len(laid_out(work).times)


def test_a_part_can_be_drained() -> None:
    answer = run(CANDIDATES["batches"], ORDERED.sized(300_000), "50000", measured=True)
    assert 50_000 <= answer["drained"] < 200_000


def test_without_java_the_structure_is_missing_and_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    maven.classpath.cache_clear()
    with children("published-java") as made:
        found = made["published-java"]
    assert isinstance(found, Missing)
    assert "java and mvn not installed" in str(found)
