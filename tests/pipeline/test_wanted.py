"""The rows that a predicate selects, and how a read is divided."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.tables.partitioning import Range, ReadPart, bin_pack, split
from bookstand.pipeline.tables.predicate import Predicate
from bookstand.pipeline.tables.query import query_of
from bookstand.pipeline.tables.schemas import ENTRIES, TABLES
from bookstand.pipeline.tables.sources import DataSource

NUMBERS = st.none() | st.integers(-3, 3)


@given(st.lists(st.tuples(NUMBERS, st.none() | st.sampled_from("ab"))), st.integers(-3, 3), st.integers(-3, 3), NUMBERS)
def test_rows_are_those_that_the_words_say(
    rows: list[tuple[int | None, str | None]], low: int, high: int, one: int
) -> None:
    batch = pa.record_batch(
        [pa.array([row[0] for row in rows], pa.int64()), pa.array([row[1] for row in rows], pa.string())], ["n", "t"]
    )
    asked = Predicate().between("n", low, high).among("t", {"a"})
    expected = [row for row in rows if row[0] is not None and low <= row[0] <= high and row[1] == "a"]
    if one is not None:
        asked = asked.among("n", {one, 2})
        expected = [row for row in expected if row[0] in (one, 2)]
    found = asked.rows(batch)
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected
    assert all(asked.has("n", row[0]) and asked.has("t", row[1]) for row in expected)  # type: ignore[arg-type]


RANGES = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 1 << 20)), max_size=20)


@given(RANGES, st.integers(1, 9))
def test_ranges_are_cut_and_none_is_lost(sizes: list[tuple[int, int]], parts: int) -> None:
    ranges = [Range(number, 0, count - 1, count * weight) for number, (count, weight) in enumerate(sizes)]
    found = split(ranges, parts)
    assert len(found) <= parts
    every = [(one.ledger_id, entry) for part in found for one in part for entry in range(one.first, one.last + 1)]
    assert every == [(one.ledger_id, entry) for one in ranges for entry in range(one.first, one.last + 1)]
    total = sum(one.weight for one in ranges)
    assert sum(one.weight for part in found for one in part) == total
    largest = max((weight for _, weight in sizes), default=0)
    for part in found:
        assert sum(one.weight for one in part) <= total // parts + 1 + largest + parts


@given(st.lists(st.integers(0, 100)), st.integers(1, 9))
def test_bundles_have_every_part(weights: list[int], count: int) -> None:
    parts = [ReadPart(DataSource("store", ("/s",)), number, weight) for number, weight in enumerate(weights)]
    found = bin_pack(parts, count)
    assert len(found) == min(count, len(parts))
    assert sorted(part.work for bundle in found for part in bundle) == list(range(len(parts)))


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"table": "enties"}, "there is no table 'enties', but ledgers, entries"),
        ({"columns": "ledger_id,payloads"}, "no column 'payloads', but place, ledger_id"),
        ({"columns": "payload,payload"}, "once each"),
        ({"mode": "lenient"}, "permissive or strict"),
        ({"partitions": "0"}, "1 at least"),
        ({"partitions": "many"}, "is a number"),
        ({"unsealed": "perhaps"}, "true or false"),
        ({"check": "full"}, "fast or subprocess"),
        ({"passwords": "[1]"}, "no list of texts"),
        ({"passwords": "[1"}, "no JSON list"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(options: dict[str, str], what: str) -> None:
    with pytest.raises(IncorrectParameterError, match=what):
        query_of(options)


def test_options_say_what_is_asked_for() -> None:
    asked = query_of({"columns": '["payload", "ledger_id"]', "passwords": "a, b", "mode": "strict", "partitions": "7"})
    assert asked.table is ENTRIES
    assert asked.columns == ("payload", "ledger_id")
    assert asked.names == {"payload", "ledger_id", "error"}
    assert (asked.passwords, asked.strict, asked.partitions) == ((b"a", b"b"), True, 7)


def test_every_table_has_place_and_error_and_times_in_ms() -> None:
    for table in TABLES.values():
        assert (table.names[0], table.names[-1]) == ("place", "error")
        assert all(column.meaning for column in table.columns)
        assert table.schema.names == list(table.names)
        for column in table.columns:
            if column.name.endswith("_ms"):
                assert column.type == "bigint"
