"""The option ``where``: what it accepts, and that it selects the rows that the same conditions select of all rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.disk.metadata.dump import write_dump
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.message.format import encode_message
from bookstand.managed_ledger.records import CursorInfo
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.spark.pushdown import parse
from bookstand.pipeline.tables.predicate import ALL, HIGHEST, LOWEST, Predicate
from bookstand.pipeline.tables.query import query, query_of
from bookstand.pipeline.tables.schemas import CURSORS, ENTRIES, MESSAGES, TABLES, Table
from bookstand.pipeline.tables.sources import STORE, DataSource, bookies, stores
from bookstand.pipeline.tables.tables import plan, read
from bookstand.storage.format.position import Position
from tests.disk.cluster import Cluster
from tests.kit import change_entry
from tests.pipeline import kit

Row = dict[str, Any]
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


# -- conditions, with a model of their own -----------------------------------------------------------------------------


class Condition(NamedTuple):
    column: str
    how: str
    values: tuple[int | str, ...] = ()

    def holds(self, row: Row) -> bool:
        value = row[self.column]
        if value is None:
            return False
        if self.how == "IN":
            return value in self.values
        if self.how == "BETWEEN":
            low, high = self.values
            return bool(low <= value <= high)
        return self.how == "IS NOT NULL" or SIGNS[self.how](value, self.values[0])

    def __str__(self) -> str:
        constants = [str(value) if isinstance(value, int) else quoted(value) for value in self.values]
        if self.how == "IN":
            return f"{self.column} IN ({', '.join(constants)})"
        return f"{self.column} {self.how} {' AND '.join(constants)}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def texts_of(conditions: Iterable[Condition]) -> str:
    return " AND ".join(map(str, conditions))


@st.composite
def conditions_on(draw: st.DrawFn, table: Table, rows: list[Row]) -> list[Condition]:
    """Conditions with constants that are in the rows, or next to them."""
    found = []
    for name in draw(st.lists(st.sampled_from(table.names), min_size=1, max_size=3)):
        column = table[name]
        if column.type not in ("bigint", "int", "string"):
            found.append(Condition(column.name, "IS NOT NULL"))
            continue
        known = sorted({row[column.name] for row in rows if row[column.name] is not None and "\\" not in str(row)})
        if column.type == "string":
            value = st.sampled_from([*known, "", "it's"])
            hows = ["=", "IN", "IS NOT NULL"]
        else:
            value = st.builds(operator.add, st.sampled_from([*known, 0]), st.integers(-1, 1))
            hows = [*SIGNS, "IN", "BETWEEN", "IS NOT NULL"]
        how = draw(st.sampled_from(hows))
        least, most = {"IN": (1, 3), "BETWEEN": (2, 2), "IS NOT NULL": (0, 0)}.get(how, (1, 1))
        found.append(Condition(column.name, how, tuple(draw(st.lists(value, min_size=least, max_size=most)))))
    return found


# -- the language ------------------------------------------------------------------------------------------------------


def test_conditions_restrict_what_is_read() -> None:
    found = parse(
        "Ledger_ID is not null and (ledger_id in (3,5, 9) AND ledger_id>3)\nAND entry_id BETWEEN -1 AND +7 "
        """AND topic = 'it''s' AND producer IN ("a 'b'", '') AND sequence_id <= 4""",
        MESSAGES,
    )
    assert found.range("ledger_id") == (4, 9)
    assert found.given == {"ledger_id"}
    assert found.range("entry_id") == (-1, 7)
    assert found.values["topic"] == {"it's"}
    assert found.values["producer"] == {"a 'b'", ""}
    assert found.range("sequence_id") == (LOWEST, 4)


def test_the_ends_of_64_bits_are_no_exception() -> None:
    for text, holds in (
        (f"size > {HIGHEST}", ()),
        (f"size < {LOWEST}", ()),
        (f"size >= {HIGHEST}", (HIGHEST,)),
        (f"size <= {LOWEST}", (LOWEST,)),
        (f"size < {HIGHEST}", (LOWEST, 0)),
        (f"size > {LOWEST}", (0, HIGHEST)),
    ):
        found = parse(text, ENTRIES)
        assert tuple(one for one in (LOWEST, 0, HIGHEST) if found.has("size", one)) == holds


@pytest.mark.parametrize(
    ("text", "table", "what"),
    [
        ("", ENTRIES, r"must have the name of a column where it ends \(character 1"),
        ("size > 1 OR size < 0", ENTRIES, r"must have AND or the end where it has 'OR' \(character 10 of"),
        ("NOT size = 1", ENTRIES, "must have the name of a column where it has 'NOT'"),
        ("size <> 1", ENTRIES, "cannot be read from '<> 1' on|must have a constant"),
        ("size != 1", ENTRIES, "cannot be read from '!= 1' on"),
        ("size = 1.5", ENTRIES, "cannot be read from '1.5' on"),
        ("size = 1L", ENTRIES, "cannot be read from '1L' on"),
        ("size = '1'", ENTRIES, r"must compare size \(bigint\) with a whole number"),
        ("size = 9223372036854775808", ENTRIES, "numbers of 64 bits"),
        ("size = -99999999999999999999999999", ENTRIES, "numbers of 64 bits"),
        ("size = entry_id", ENTRIES, "must have a constant, a whole number or text in quotes, where it has 'entry_id'"),
        ("size =", ENTRIES, "where it ends"),
        ("size IN ()", ENTRIES, "must have a constant"),
        ("size IN (1", ENTRIES, r"must have \) where it ends"),
        ("size BETWEEN 1", ENTRIES, "must have AND where it ends"),
        ("size IS NULL", ENTRIES, "must have a comparison where it has 'IS'"),
        ("(size = 1", ENTRIES, r"must have \) where it ends"),
        ("size = 1)", ENTRIES, r"must have AND or the end where it has '\)'"),
        ("sise = 1", ENTRIES, "table entries has no column 'sise', but place, ledger_id"),
        ("payload = 'x'", ENTRIES, "cannot compare payload, whose type is binary"),
        ("checked = 1", ENTRIES, "cannot compare checked, whose type is boolean"),
        ("topic < 'x'", CURSORS, r"cannot order topic \(string\)"),
        ("topic BETWEEN 'a' AND 'b'", CURSORS, r"cannot order topic \(string\)"),
        ("topic = 1", CURSORS, r"must compare topic \(string\) with text in quotes"),
        ("topic = 'x", CURSORS, "cannot be read from"),
        (r"topic = 'a\'b'", CURSORS, "cannot be read from"),
        ("topic = 'a' 'b'", CURSORS, "must have AND or the end"),
        ("topic LIKE 'x%'", CURSORS, "must have a comparison where it has 'LIKE'"),
        ("lower(topic) = 'x'", CURSORS, "has no column 'lower'"),
        ("__import__('os')", CURSORS, "has no column '__import__'"),
        ("backlog = 1; DROP TABLE x", CURSORS, "cannot be read from '; DROP"),
    ],
)
def test_an_expression_that_cannot_be_evaluated_is_rejected(text: str, table: Table, what: str) -> None:
    for parsing in (
        lambda: parse(text, table),
        lambda: query(table.name, where=text),
        lambda: query_of({"table": table.name, "where": text}),
    ):
        with pytest.raises(IncorrectParameterError, match=what):
            parsing()


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="az_ '\"()=<>,0129.-\\\n\0éANDIN", max_size=40))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        assert isinstance(parse(text, ENTRIES), Predicate)
    except IncorrectParameterError:
        pass


def test_without_the_option_every_row_is_selected() -> None:
    assert query_of({}).wanted == query("entries").wanted == ALL


# -- rows --------------------------------------------------------------------------------------------------------------


def store_with_damage(folder: Path) -> DataSource:
    """Topics with delayed messages in buckets, one of them damaged, and a damaged message."""
    path = kit.fill(folder / "store", topics=2, ledgers=2, cursors=("sub", "it's"))
    assert execute(RebuildDelayed((str(path),), CutSettings(least=20, step_millis=100_000)), LocalRunner()).ok
    kit.damage_a_bucket(path, kit.TOPIC.format(0))
    change_entry(path, 0, 7, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))
    with bookstand.open(path) as store, store.create_ledger() as writer:
        writer.append_many([b"no message"] * 3)
    (found,) = stores(path)
    return found


def disks_with_damage(folder: Path) -> DataSource:
    made = Cluster(folder / "disks")
    made.topic({one: [encode_message(b"%d" % one, publish_time=one, deliver_at=5 * one)] * 9 for one in (3, 4, 6)})
    made.ledger(6, [b"garbage"] * 4)
    made.cursor("sub", CursorInfo(-1, Position(3, 3), ranges=((3, 4, 3, 6), (4, 0, 4, 2))))
    made.cursor("other", CursorInfo(20, Position(4, 1)))
    sealed = seal(Indexes.of([10, 20, 30, 40], [3, 3, 4, 4], [4, 5, 6, 7]), 1, 1).entries
    made.ledger(30, [*sealed[:2], b"\xff\xff", *sealed[3:]])
    made.cursor("late", CursorInfo(-1, Position(3, -1), cursor_properties=((str(BucketKey(3, 4)), "30"),)))
    made.open().close()
    write_dump(folder / "metadata.jsonl", made.nodes.values())
    return bookies(folder / "disks", str(folder / "metadata.jsonl"))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[DataSource]:
    folder = tmp_path_factory.mktemp("places")
    return [store_with_damage(folder), disks_with_damage(folder)]


def rows_of(place: DataSource, table: str, **more: Any) -> list[Row]:
    return [row for batch in read([place], query(table, unsealed=True, **more)) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def every_row(places: list[DataSource]) -> dict[tuple[int, str], list[Row]]:
    found = {(number, table): rows_of(place, table) for number, place in enumerate(places) for table in TABLES}
    assert all(found.values())
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_where_selects_what_the_conditions_select_of_all_rows(
    places: list[DataSource], every_row: dict[tuple[int, str], list[Row]], data: st.DataObject
) -> None:
    number, table = data.draw(st.sampled_from(sorted(every_row)))
    rows = every_row[number, table]
    conditions = data.draw(conditions_on(TABLES[table], rows))
    some = data.draw(st.lists(st.sampled_from(TABLES[table].names), min_size=1, max_size=2, unique=True))
    chosen = [row for row in rows if all(one.holds(row) for one in conditions)]
    assert sorted(map(repr, rows_of(places[number], table, where=texts_of(conditions)))) == sorted(map(repr, chosen))
    found = rows_of(places[number], table, where=texts_of(conditions), columns=tuple(some))
    assert sorted(map(repr, found)) == sorted(repr({name: row[name] for name in some}) for row in chosen)


def test_missing_entries_are_reported_from_the_first_that_where_selects(tmp_path: Path) -> None:
    """One row has a range of missing entries, so that its entry is the first one of the range that is selected."""
    made = Cluster(tmp_path)
    made.ledger(3, [b"x"] * 9, without=[2, 3, 4, 5])
    made.open(metadata=False).close()
    place = bookies(tmp_path)
    for where, first in (("entry_id >= 0", 2), ("entry_id > 3", 4), ("entry_id <= 2", 2), ("entry_id = 5", 5)):
        (gap,) = [row for row in rows_of(place, "entries", where=where) if row["error"]]
        assert (gap["entry_id"], "entries 2 to 5 are nowhere" in gap["error"]) == (first, True)
    assert not [row for row in rows_of(place, "entries", where="entry_id > 5") if row["error"]]


def test_a_publish_time_beyond_63_bits_is_compared_as_it_is_shown(tmp_path: Path) -> None:
    made = Cluster(tmp_path / "disks")
    made.topic({3: [encode_message(b"x", publish_time=time) for time in (5, (1 << 64) - 5)]})
    made.open().close()
    write_dump(tmp_path / "metadata.jsonl", made.nodes.values())
    place = bookies(tmp_path / "disks", str(tmp_path / "metadata.jsonl"))
    for where, times in (("publish_ms < 0", [-5]), ("publish_ms > 0", [5]), ("publish_ms IN (5, -5)", [5, -5])):
        assert [row["publish_ms"] for row in rows_of(place, "messages", where=where)] == times


def test_what_where_excludes_is_not_read(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as store:
        for _ in range(4):
            with store.create_ledger() as writer:
                writer.append_many([b"x" * 100] * 50)
    place = DataSource(STORE, (str(tmp_path / "store"),))
    parts = plan(place, query("entries", where="ledger_id BETWEEN 1 AND 2 AND entry_id >= 10 AND entry_id < 20"))
    assert [tuple(one)[:3] for part in parts for one in part.work] == [(1, 10, 19), (2, 10, 19)]
    assert plan(place, query("entries", where="place = '/elsewhere'")) == []
