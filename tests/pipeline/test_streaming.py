"""Ledgers and topics as streams: nothing twice and nothing lost, whoever stops when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import bookstand
from bookstand.delivery.topic_config import TopicConfig
from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.spark.streaming import LedgerStream, streamed
from bookstand.pipeline.tables.query import query_of
from bookstand.storage.format.position import Position

Positions = list[tuple[int, int]]


def stream(path: Path, **options: str) -> LedgerStream:
    table = "messages" if options.get("stream") == "topic" else "entries"
    return streamed({"path": str(path), **options}, query_of(options, table))


def read_between(of: LedgerStream, start: Any, end: Any) -> Positions:
    rows = [
        row
        for part in of.partitions(start, end)
        for batch in of.read(part)
        for row in batch.to_pylist()  # type: ignore[attr-defined]
    ]
    assert not [row for row in rows if row["error"]]
    return [(row["ledger_id"], row["entry_id"]) for row in rows]


def publish(store: bookstand.Store, count: int, start: int = 0) -> None:
    topic = store.topic("orders", TopicConfig(max_entries_per_ledger=7, trim_consumed=False))
    for number in range(start, start + count):
        topic.publish(b"%d" % number)


# -- without Spark -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with ledger 0 of 60 entries, and a topic of 50 in ledgers of 7."""
    path = tmp_path_factory.mktemp("streamed") / "store"
    with bookstand.open(path) as store:
        with store.create_ledger() as writer:
            writer.append_many([b"x"] * 60)
        publish(store, 50)
    return path


@settings(max_examples=25)
@given(limits=st.lists(st.integers(1, 30), max_size=12), kind=st.sampled_from(["ledger", "topic"]))
def test_pieces_of_any_size_are_the_whole(made: Path, limits: list[int], kind: str) -> None:
    of = stream(made, stream=kind, ledger="0", topic="orders")
    at = of.initialOffset()
    whole = read_between(of, at, of.latestOffset(at, ReadAllAvailable()))
    found: Positions = []
    for limit in [*limits, 1000]:
        end = of.latestOffset(at, ReadMaxRows(limit))
        piece = read_between(of, at, end)
        assert len(piece) == min(limit, len(whole) - len(found))
        found += piece
        at = end
    assert found == whole
    assert len(whole) == (50 if kind == "topic" else 60)
    assert of.latestOffset(at, ReadMaxRows(5)) == at
    assert of.partitions(at, at) == []


def test_where_selects_rows_of_a_stream_and_moves_no_offset(made: Path) -> None:
    of = stream(made, stream="ledger", ledger="0", where="entry_id BETWEEN 10 AND 12")
    first = of.initialOffset()
    middle = of.latestOffset(first, ReadMaxRows(12))
    assert middle["entry"] == 12
    assert read_between(of, first, middle) == [(0, 10), (0, 11)]
    assert read_between(of, middle, of.latestOffset(middle, ReadAllAvailable())) == [(0, 12)]


def test_what_was_between_two_offsets_stays(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as store:
        publish(store, 10)
        of = stream(tmp_path / "store", stream="topic", topic="orders")
        start = of.initialOffset()
        end = of.latestOffset(start, ReadAllAvailable())
        before = read_between(of, start, end)
        publish(store, 30, 10)
        assert read_between(of, start, end) == before
        assert len(before) == 10
        assert len(read_between(of, end, of.latestOffset(end, ReadAllAvailable()))) == 30


def test_where_a_stream_begins(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as store:
        publish(store, 10)
        path = tmp_path / "store"
        first, second = sorted({ledger for ledger, _ in every(path)})
        latest = stream(path, stream="topic", topic="orders", start="latest").initialOffset()
        assert (latest["ledger"], latest["entry"]) == (second, 3)
        given_place = stream(path, stream="topic", topic="orders", start=f"{first}:5").initialOffset()
        assert (given_place["ledger"], given_place["entry"]) == (first, 5)
        nothing = stream(path, stream="topic", topic="others")
        begin = nothing.initialOffset()
        assert nothing.latestOffset(begin, ReadAllAvailable()) == begin
        store.topic("others").publish(b"x")
        assert len(read_between(nothing, begin, nothing.latestOffset(begin, ReadAllAvailable()))) == 1


def every(path: Path) -> Positions:
    of = stream(path, stream="topic", topic="orders")
    begin = of.initialOffset()
    return read_between(of, begin, of.latestOffset(begin, ReadAllAvailable()))


def test_available_now_ends_where_it_began_to_read(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as store:
        publish(store, 10)
        of = stream(tmp_path / "store", stream="topic", topic="orders", max_entries="4")
        of.prepareForTriggerAvailableNow()
        publish(store, 20, 10)
        limit = of.getDefaultReadLimit()
        at, sizes = of.initialOffset(), []
        while (end := of.latestOffset(at, limit)) != at:
            sizes.append(len(read_between(of, at, end)))
            at = end
        assert sizes == [4, 4, 2]


def test_what_is_gone_before_it_was_read_is_told(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as store:
        writer = store.create_ledger()
        writer.append_many([b"x"] * 5)
        writer.close()
        of = stream(tmp_path / "store", stream="ledger", ledger=str(writer.id))
        end = of.latestOffset(of.initialOffset(), ReadAllAvailable())
        store.delete_ledger(writer.id)
        store.compact()
        assert "5 entries of the stream are gone" in only_error(of, of.initialOffset(), end)


def only_error(of: LedgerStream, start: Any, end: Any) -> str:
    rows = [row for part in of.partitions(start, end) for batch in of.read(part) for row in batch.to_pylist()]  # type: ignore[attr-defined]
    (error,) = [row["error"] for row in rows if row["error"]]
    return str(error)


def test_ledgers_that_are_trimmed(tmp_path: Path) -> None:
    """Those that were read to their end are not missed; others are."""
    path = tmp_path / "store"
    with bookstand.open(path) as store:
        publish(store, 24)
        ledgers = sorted({ledger for ledger, _ in every(path)})
        assert len(ledgers) == 4
        of = stream(path, stream="topic", topic="orders")
        start = of.initialOffset()
        whole, part = of.latestOffset(start, ReadMaxRows(7)), of.latestOffset(start, ReadMaxRows(10))
        end = of.latestOffset(part, ReadAllAvailable())
        assert (whole["done"], part["done"]) == (1, 0)
        store.topic("orders").ledger.trim(Position(ledgers[2], 0))
        store.compact()
        assert min(ledger for ledger, _ in every(path)) == ledgers[2]
        # What has come since the offset was written down.
        again = of.latestOffset(whole, ReadAllAvailable())
        assert read_between(of, whole, again) == every(path)
        assert "4 entries of the stream are gone" in only_error(of, part, end)
        assert "is not known" in only_error(of, part, of.latestOffset(part, ReadAllAvailable()))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "option stream is ledger or topic"),
        ({"stream": "ledger"}, "option ledger says which"),
        ({"stream": "ledger", "ledger": "x"}, "is the id of a ledger"),
        ({"stream": "ledger", "ledger": "1", "table": "messages"}, "as table entries"),
        ({"stream": "topic", "topic": "t", "table": "cursors"}, "entries or messages"),
        ({"stream": "topic", "topic": "t", "max_entries": "0"}, "number from 1 on"),
    ],
)
def test_what_cannot_be_streamed_is_refused(tmp_path: Path, options: dict[str, str], what: str) -> None:
    bookstand.open(tmp_path / "store").close()
    with pytest.raises(IncorrectParameterError, match=what):
        stream(tmp_path / "store", **options)


# -- with Spark --------------------------------------------------------------------------------------------------------


class Kept:
    """What batches had, one after the other, as a sink keeps it."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}

    def take(self, frame: Any, number: int) -> None:
        self.batches[number] = [bytes(row["payload"]) for row in frame.select("payload").collect()]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches.values()]

    @property
    def values(self) -> list[int]:
        return [int(value) for batch in self.batches.values() for value in batch]


def run(spark: Any, path: Path, checkpoint: Path, kept: Kept, **options: str) -> None:
    """All that is there, and no more."""
    frame = spark.readStream.format("bookstand").options(**options).load(str(path))
    query = (
        frame.writeStream.foreachBatch(kept.take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_a_topic_from_checkpoint_to_checkpoint(spark: Any, tmp_path: Path) -> None:
    options = {"stream": "topic", "topic": "orders", "max_entries": "8"}
    path, checkpoint = tmp_path / "store", tmp_path / "checkpoint"
    kept = Kept()
    with bookstand.open(path) as store:
        publish(store, 20)
        run(spark, path, checkpoint, kept, **options)
        assert kept.sizes == [8, 8, 4]
        publish(store, 9, 20)
        run(spark, path, checkpoint, kept, **options)
    assert sorted(kept.values) == list(range(29))
    assert max(kept.sizes) == 8


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_a_batch_that_failed_comes_again_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    options = {"stream": "topic", "topic": "orders", "max_entries": "5"}
    path, checkpoint = tmp_path / "store", tmp_path / "checkpoint"

    class Failing(Kept):
        def take(self, frame: Any, number: int) -> None:
            if number == 1:
                raise RuntimeError("the sink is full")
            super().take(frame, number)

    with bookstand.open(path) as store:
        publish(store, 15)
        first, second = Failing(), Kept()
        with pytest.raises(Exception, match="the sink is full"):
            run(spark, path, checkpoint, first, **options)
        publish(store, 5, 15)
        run(spark, path, checkpoint, second, **options)
    assert first.values == list(range(5))
    assert second.values == list(range(5, 20))
    assert next(iter(second.batches)) == 1
