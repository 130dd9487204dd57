"""Entries and records beyond the limits on expansion are rows of damage, and hide nothing else."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import ExpansionLimits
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.tracker.bucket.key import read_properties
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger import records
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.pipeline.execution.cli import main, parser
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.execution.summary import Summary
from bookstand.pipeline.tables.query import checked_options, places_of, query
from bookstand.pipeline.tables.record_batches import DamagedDataError
from bookstand.pipeline.tables.sources import STORE, DataSource
from bookstand.pipeline.tables.tables import read
from bookstand.proto.expansion import DEFAULT
from tests.delivery.test_expanding_entries import expanding
from tests.pipeline import kit

TOPIC = "persistent://public/default/t"
COUNT = 70_000
"""Of the messages of a batch that takes a few hundred bytes."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """One message, one batch that expands beyond the limits, one of two messages."""
    with bookstand.open(tmp_path / "store") as made:
        topic = made.topic(TOPIC)
        topic.publish(b"a")
        topic.ledger.append_entry(expanding("ZSTD", COUNT))
        topic.publish_batch([b"b", b"c"])
        topic.subscription("sub").close()
    return tmp_path / "store"


def rows_of(place: DataSource, columns: tuple[str, ...] | None = None, **more: Any) -> list[dict[str, Any]]:
    return [row for batch in read([place], query("messages", columns, **more)) for row in batch.to_pylist()]


@pytest.mark.parametrize("columns", [None, ("payload", "error"), ("entry_id", "batch_index", "error")])
def test_an_entry_beyond_the_limits_is_a_row_that_names_it(store: Path, columns: tuple[str, ...] | None) -> None:
    (place,) = places_of(STORE, {"path": str(store)})
    rows = rows_of(place, columns)
    assert len(rows) == 4
    (wrong,) = [row for row in rows if row["error"]]
    assert "0:1" in wrong["error"]
    assert f"the batch of {COUNT} messages expands to" in wrong["error"]
    assert "raise max_expansion_ratio (1000) to" in wrong["error"]
    if columns is None:
        assert [row["payload"] for row in rows if not row["error"]] == [b"a", b"b", b"c"]
    with pytest.raises(DamagedDataError, match="max_expansion_ratio"):
        rows_of(place, columns, strict=True)


def test_a_record_batch_has_few_bytes_however_its_messages_expand(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as made:
        made.managed_ledger(TOPIC).append_many([bytes(4 << 20)] * 24, compression="ZSTD")
    batches = list(read(str(tmp_path / "store"), query("messages", ("entry_id", "payload"))))
    assert [row for batch in batches for row in batch.column("entry_id").to_pylist()] == list(range(24))
    assert max(batch.nbytes for batch in batches) < 40 << 20


def test_options_raise_the_limits(store: Path) -> None:
    options = {"path": str(store), "Max_Expansion_Ratio": "1000000"}
    (place,) = places_of(STORE, checked_options(STORE, options))
    assert place.limits == ExpansionLimits(max_expansion_ratio=1_000_000)
    for name in ExpansionLimits._fields:
        for wrong in ("0", "many"):
            with pytest.raises(IncorrectParameterError, match=f"option {name}"):
                places_of(STORE, {"path": str(store), name: wrong})


def test_jobs_count_the_entry_and_go_on(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*more: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(["export", str(store), "--output", str(tmp_path / f"out{len(more)}"), "--json", *more])
        return code, json.loads(capsys.readouterr().out)

    code, summary = run("--table", "messages")
    assert code == 1
    assert "max_expansion_ratio" in json.dumps(summary)
    assert run("--table", "messages", "--max-expansion-ratio", "1000000")[0] == 0
    import pyarrow.parquet as pq

    for folder, count in (("out2", 4), ("out4", 3 + COUNT)):
        files = list((tmp_path / folder / "messages").glob("*.parquet"))
        assert sum(pq.read_metadata(file).num_rows for file in files) == count


def test_a_place_keeps_its_limits_on_the_way_to_a_task(store: Path) -> None:
    place = DataSource(STORE, (str(store),), limits=ExpansionLimits(7, 8))
    assert DataSource.of(json.loads(json.dumps(list(place)))) == place
    assert pickle.loads(pickle.dumps(place)) == place
    assert DataSource(STORE, (str(store),)).limits == DEFAULT


@pytest.mark.long
@pytest.mark.parametrize("name", ["rebuild-delayed", "recut"])
def test_jobs_that_change_buckets_have_limits(tmp_path: Path, name: str) -> None:
    """A record beyond them is not read, neither when the job begins nor when it ends."""
    path, topic = kit.fill(tmp_path / "store", topics=1), kit.TOPIC.format(0)
    node = cursor_node_of(topic, "sub")

    def run(command: str, *more: str) -> Summary:
        options = parser().parse_args([command, str(path), *more])
        return execute(options.make(options), LocalRunner(processes=0), again=True)

    assert run("rebuild-delayed", "--least", "50").ok
    with bookstand.open(path) as store:
        stored, version = store.nodes.get(node)
        info = records.decode_cursor_info(stored)
        packed = records.encode_cursor_info(info._replace(properties=(("p", 1),) * 140_000), "ZSTD", 0)
        assert len(packed) < 10_000
        store.nodes.put(node, packed, version)
    assert "max_expansion_ratio (1000) to at least" in run(name, "--least", "20").to_json()
    assert run(name, "--least", "20", "--max-expansion-ratio", "1000000").ok
    with bookstand.open(path) as store:
        found = records.decode_cursor_info(store.nodes.get(node)[0], limits=ExpansionLimits(1 << 40, 1 << 40))
    counts = [len(read_properties(one.cursor_properties).buckets) for one in (info, found)]
    assert counts[0] < counts[1]


def test_spark_reads_what_is_around_it(spark: Any, store: Path) -> None:
    reader = spark.read.format("bookstand").option("table", "messages").option("max_expanded_bytes", 1 << 20)
    rows = reader.load(str(store)).select("ledger_id", "entry_id", "payload", "error").collect()
    assert sorted(bytes(row["payload"]) for row in rows if row["error"] is None) == [b"a", b"b", b"c"]
    (wrong,) = [row for row in rows if row["error"] is not None]
    assert (wrong["ledger_id"], wrong["entry_id"]) == (0, 1)
    assert "max_expanded_bytes (1048576) to" in wrong["error"]


def test_a_cursor_beyond_the_limits_is_left_as_it_is_by_a_migration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "store")
    old = CursorConfig(enable_lru_cache_max_unacked_ranges=False)
    with bookstand.open(path) as store:
        topic = store.managed_ledger(TOPIC)
        positions = topic.append_entries([b"."] * 400)
        with Cursor.open(topic, "sub", old) as cursor:
            cursor.ack(positions[1::2]).result()
    for limits, changed in ((("--max-expanded-bytes", "3000"), False), ((), True)):
        capsys.readouterr()
        code = main(["migrate-cursors", path, "--json", *limits])
        summary = json.loads(capsys.readouterr().out)
        assert (code == 0) == changed
        assert ("max_expanded_bytes (3000) to at least" in json.dumps(summary["problems"])) != changed
        with bookstand.open(path) as store, Cursor.open(store.managed_ledger(TOPIC), "sub") as cursor:
            assert cursor.backlog == 200
