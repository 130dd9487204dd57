"""Buckets that jobs seal, beside those of the tracker, and beside what is known to wait."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.topic_config import TopicConfig
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.disk.topics.delayed import DelayedIndex, delayed, time_of
from bookstand.disk.topics.topics import topics
from bookstand.pipeline.execution.cli import WRONG_USE, main
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.bucket_cutting import CutSettings, coarse
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.jobs.recut import Recut
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source
from bookstand.testing.clock import VirtualClock
from tests.delivery.bucket_kit import MEMORY
from tests.disk.recordings import RECORDINGS, dump_path, truth
from tests.kit import change_entry
from tests.pipeline import kit

HERE = LocalRunner()
T0, T1 = kit.TOPIC.format(0), kit.TOPIC.format(1)
SMALL = CutSettings(least=50, step_millis=100_000, most_in_segment=20)
SLOW = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))


def done(job: Any, runner: Any = HERE, **options: Any) -> Any:
    summary = execute(job, runner, **options)
    assert summary.ok, str(summary)
    return summary


# -- beside the tracker ------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "times": draw(st.lists(st.none() | st.integers(kit.NOW + 1, kit.NOW + 5_000), min_size=1, max_size=150)),
        "per_ledger": draw(st.integers(1, 40)),
        "least": draw(st.integers(1, 30)),
        "step": draw(st.integers(1, 3)),
        "most": draw(st.sampled_from([-1, 1, 7])),
        "acked": draw(st.sets(st.integers(0, 149), max_size=60)),
        "marked": draw(st.integers(-1, 20)),
    }


@SLOW
@given(histories())
def test_the_buckets_are_those_that_the_tracker_seals(made: dict[str, Any]) -> None:
    config = TopicConfig(
        delayed_delivery_tracker="bucket",
        delayed_delivery_tick_time_millis=1,
        is_delayed_delivery_deliver_at_time_strict=True,
        delayed_delivery_min_index_count_per_bucket=made["least"],
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=made["step"],
        delayed_delivery_max_indexes_per_bucket_snapshot_segment=made["most"],
        max_entries_per_ledger=made["per_ledger"],
        trim_consumed=False,
    )
    with TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "store"
        with bookstand.open(path, clock=VirtualClock(kit.NOW)) as store:
            topic = store.topic(T0, config)
            positions = topic.ledger.append_many([b"m"] * len(made["times"]), made["times"])
            with Cursor.open(topic.ledger, "sub") as cursor:
                cursor.ack([positions[at] for at in made["acked"] if at < len(positions)]).result()
                if 0 <= made["marked"] < len(positions) and positions[made["marked"]] > cursor.mark_delete_position:
                    cursor.mark_delete(positions[made["marked"]]).result()
            with topic.subscription("sub") as subscription:
                while subscription.receive(1_000, timeout=0):
                    pass
        tracked = kit.in_buckets(path, T0), kit.entries_of_buckets(path, T0)
        with bookstand.open(path) as store:
            drop_buckets(store, T0, "sub")
        assert not kit.in_buckets(path, T0)
        cut = CutSettings(made["least"], made["step"] * 1000, made["most"])
        done(RebuildDelayed((str(path),), cut, rest=False, due_by=kit.NOW))
        assert (kit.in_buckets(path, T0), kit.entries_of_buckets(path, T0)) == tracked
        before = kit.waiting(path, T0, now=kit.NOW)
        done(RebuildDelayed((str(path),), cut, due_by=kit.NOW))
        assert kit.waiting(path, T0, now=kit.NOW) == before
        assert sorted(chain(*kit.in_buckets(path, T0).values())) == sorted(before)


def drop_buckets(store: bookstand.Store, topic: str, cursor: str) -> None:
    def change(_: object, properties: dict[str, str]) -> None:
        properties.clear()

    with Cursor.open(store.managed_ledger(topic), cursor) as opened_cursor:
        opened_cursor.change_properties(change)


# -- recorded topics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_topics_have_the_index_that_the_original_had(
    name: str, unpacked: Callable[[str], Path], tmp_path: Path
) -> None:
    with Disks.open([unpacked(name)], dump_path(name)) as disks, bookstand.open(tmp_path / "store") as store:
        import_disks(disks, store)
        now = time_of(disks)
        lines = {(line["topic"], line["subscription"]): line["tracker_count"] for line in truth(name, "delayed")}
        wanted: dict[tuple[str, str], set[tuple[int, int, int]]] = {}
        for topic in topics(disks):
            for index in delayed(topic, now):
                rows = [row for some in index.rows() for row in kit.rows(some)]
                key = topic.name, index.cursor.name
                assert lines.get(key, 0) == len(rows)
                # A bucket's segment holds what is acknowledged or due until the last of it is due.
                wanted[key] = {row for row in rows if row[0] > now and not index.cursor.is_acked(kit.position(row))}
    summary = execute(RebuildDelayed((str(tmp_path / "store"),), CutSettings(least=100), due_by=now), HERE)
    assert not summary.failed
    with open_source(DataSource(STORE, (str(tmp_path / "store"),))) as source:
        for topic in topics(source):
            for index in delayed(topic, now):
                found = {row for some in index.rows() for row in kit.rows(some)}
                assert found == wanted.pop((topic.name, index.cursor.name))
                in_buckets = sum(s.indexes.size for bucket in index.buckets for s in bucket.segments())
                assert in_buckets == len(found)
    assert not wanted


# -- several stores, and tables ----------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return kit.fill(tmp_path / "store", topics=2, ledgers=4)


def test_a_topic_in_several_stores(store: Path, tmp_path: Path) -> None:
    done(RebuildDelayed((str(store),), SMALL))
    wanted = kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)
    parts = kit.spread(store, tmp_path, 3)
    summary = done(RebuildDelayed(tuple(map(str, parts)), SMALL, together=True))
    assert summary.counts["messages"] == 2 * 151
    assert (kit.entries_of_buckets(parts[0], T0), kit.entries_of_buckets(parts[0], T1)) == wanted


def test_what_is_damaged_in_one_of_several_stores_is_named(store: Path, tmp_path: Path) -> None:
    parts = kit.spread(store, tmp_path, 3)
    with open_source(DataSource(STORE, (str(parts[1]),))) as disks:
        ledger_id = next(one for one in disks.ledger_ids if disks.ledger(one).extent.last_entry == 59)
    change_entry(parts[1], ledger_id, 31, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))
    summary = execute(RebuildDelayed(tuple(map(str, parts)), SMALL, together=True), HERE)
    assert not summary.failed
    (told,) = [what for result in summary.results for what in result.problems]
    assert f"{ledger_id}:31" in told
    assert str(parts[1]) in told
    assert summary.counts["messages"] == 2 * 151 - 1


def test_a_store_without_the_others_says_what_is_missing(store: Path, tmp_path: Path) -> None:
    parts = kit.spread(store, tmp_path, 2)
    summary = execute(RebuildDelayed((str(parts[0]),), SMALL), HERE)
    assert not summary.failed
    assert any("not to be had" in what for result in summary.results for what in result.problems)


def test_ledgers_of_another_cluster_with_the_same_ids_are_nobodys(store: Path, tmp_path: Path) -> None:
    (first, _) = kit.spread(store, tmp_path, 2)
    other = kit.fill(tmp_path / "other", topics=3, first=7, ledgers=2)
    summary = execute(RebuildDelayed((str(first), str(other)), SMALL, topics=(T0,), together=True), HERE)
    assert summary.counts["messages"] < 151
    assert any("not to be had" in what for result in summary.results for what in result.problems)


def test_a_table_of_messages_tells_the_same(store: Path, tmp_path: Path) -> None:
    done(RebuildDelayed((str(store),), SMALL))
    wanted = kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)
    done(Export((DataSource(STORE, (str(store),)),), str(tmp_path / "out"), ("messages",)))
    files = sorted(map(str, (tmp_path / "out" / "messages").iterdir()))
    assert len(files) == 2
    job = RebuildDelayed((str(store),), SMALL, table=tuple(files))
    assert len(job.plan().units) == 2
    done(job, again=True)
    assert (kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)) == wanted
    mixed = kit.interleaved(files, tmp_path / "mixed.parquet")
    job = RebuildDelayed((str(store),), SMALL, table=(str(mixed),))
    plan = job.plan()
    assert (len(plan.units), len(plan.joined)) == (0, 2)
    assert len(plan.parts) > 1
    done(job)
    assert (kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)) == wanted


def test_a_table_that_is_not_what_its_plan_saw_fails(store: Path, tmp_path: Path) -> None:
    done(Export((DataSource(STORE, (str(store),)),), str(tmp_path / "out"), ("messages",)))
    files = sorted((tmp_path / "out" / "messages").iterdir())
    job = RebuildDelayed((str(store),), SMALL, table=tuple(map(str, files)))
    plan = job.plan()
    files[0].rename(tmp_path / "first")
    files[1].rename(files[0])
    (tmp_path / "first").rename(files[1])
    from bookstand.pipeline.execution.protocol import attempt

    result = attempt(job, plan.units[0], tmp_path)
    assert result.failure is not None
    assert "messages of others" in result.failure


def write_rows(rows: Any, file: Path) -> str:
    import pyarrow.parquet as pq

    pq.write_table(rows, file, row_group_size=100)
    return str(file)


def test_messages_of_a_batch_count_once_wherever_a_table_has_them(store: Path, tmp_path: Path) -> None:
    """Also where a batch is in two row groups, or in two files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done(RebuildDelayed((str(store),), SMALL))
    wanted = kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)
    done(Export((DataSource(STORE, (str(store),)),), str(tmp_path / "out"), ("messages",)))
    files = sorted(map(str, (tmp_path / "out" / "messages").iterdir()))
    whole = pa.concat_tables(pq.read_table(file) for file in files)
    batches = whole.take(pa.array([row for row in range(len(whole)) for _ in range(3)]))
    file = write_rows(batches, tmp_path / "batches.parquet")
    for tables in ((file,), (*files, *files), (file, *files)):
        job = RebuildDelayed((str(store),), SMALL, table=tables)
        assert len(job.plan().joined) == 2
        done(job)
        assert (kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)) == wanted


def test_columns_of_a_table_are_known_by_their_names(store: Path, tmp_path: Path) -> None:
    """A column of Parquet may be several: those of a map have the keys and the values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done(RebuildDelayed((str(store),), SMALL))
    wanted = kit.entries_of_buckets(store, T0)
    done(Export((DataSource(STORE, (str(store),)),), str(tmp_path / "out"), ("messages",), (T0,)))
    (file,) = (tmp_path / "out" / "messages").iterdir()
    rows = pq.read_table(file, columns=["topic", "ledger_id", "entry_id", "deliver_at_ms"])
    properties = pa.array([[("kind", "refund")]] * len(rows), pa.map_(pa.string(), pa.string()))
    job = RebuildDelayed(
        (str(store),), SMALL, table=(write_rows(rows.add_column(0, "properties", properties), tmp_path / "rows"),)
    )
    done(job)
    assert [unit.of["topic"] for unit in job.plan().units] == [T0]
    assert kit.entries_of_buckets(store, T0) == wanted


def test_damaged_rows_of_a_table_are_named(store: Path, tmp_path: Path) -> None:
    """Of some damage nobody knows the topic."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done(RebuildDelayed((str(store),), SMALL))
    wanted = kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)
    done(Export((DataSource(STORE, (str(store),)),), str(tmp_path / "out"), ("messages",)))
    whole = pa.concat_tables(pq.read_table(file) for file in sorted((tmp_path / "out" / "messages").iterdir()))
    damaged = [{"error": "0.log at 5: no entry"}, {"topic": T0, "ledger_id": 1, "entry_id": 3, "error": "no message"}]
    file = write_rows(
        pa.concat_tables([whole, pa.Table.from_pylist(damaged, whole.schema)]), tmp_path / "damaged.parquet"
    )
    summary = execute(RebuildDelayed((str(store),), SMALL, table=(file,)), HERE)
    assert not summary.failed
    assert summary.problems == (f"{file}: 2 rows are damaged, and are taken for messages without delay",)
    assert (kit.entries_of_buckets(store, T0), kit.entries_of_buckets(store, T1)) == wanted


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"topic": [T0.encode()]}, "column topic must be text, not binary"),
        ({"deliver_at_ms": [datetime(2026, 1, 1)]}, r"column deliver_at_ms must be whole numbers, not timestamp\[us\]"),
        ({"ledger_id": [1.0]}, "column ledger_id must be whole numbers, not double"),
        ({"entry_id": None}, "is no table of messages: it has no entry_id"),
        (None, "is no Parquet file"),
    ],
)
def test_a_file_that_is_no_table_of_messages_is_rejected(
    store: Path, tmp_path: Path, columns: Any, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa

    file = tmp_path / "messages.parquet"
    if columns is None:
        file.write_text("topic,ledger_id,entry_id,deliver_at_ms\n")
    else:
        good: dict[str, Any] = {"topic": [T0], "ledger_id": [1], "entry_id": [2], "deliver_at_ms": [kit.NOW]}
        write_rows(pa.table({name: rows for name, rows in {**good, **columns}.items() if rows is not None}), file)
    assert main(["rebuild-delayed", str(store), "--table", str(file)]) == WRONG_USE
    told = capsys.readouterr().err
    assert str(file) in told
    assert re.search(what, told), told


def test_a_table_may_be_given_by_its_address_or_relative_path(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks have another working directory."""
    done(Export((DataSource(STORE, (str(store),)),), str(tmp_path / "out"), ("messages",)))
    files = sorted(map(str, (tmp_path / "out" / "messages").iterdir()))
    kit.interleaved(files, tmp_path / "mixed.parquet")
    monkeypatch.chdir(tmp_path)
    plans = [
        RebuildDelayed((str(store),), SMALL, table=(table,)).plan()
        for table in ("mixed.parquet", f"file://{tmp_path}/mixed.parquet", str(tmp_path / "mixed.parquet"))
    ]
    assert plans[0] == plans[1] == plans[2]
    assert len(plans[0].joined) == 2


# -- recut -------------------------------------------------------------------------------------------------------------


@SLOW
@given(
    st.integers(1, 200),
    st.integers(1_000, 600_000),
    st.sampled_from([-1, 1, 13, 5_000]),
    st.booleans(),
    st.integers(0, 12),
)
def test_recut_keeps_every_row(least: int, step: int, most: int, resize: bool, bits: int) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        path = kit.fill(Path(folder) / "store", topics=1, ledgers=5, per_ledger=30)
        done(RebuildDelayed((str(path),), SMALL))
        before = kit.in_buckets(path, T0)
        done(Recut((str(path),), CutSettings(least, step, most, bits), resize))
        after = kit.in_buckets(path, T0)
        rows = sorted(row for some in before.values() for row in some)
        rounded = [(-(-time // (1 << bits)) << bits, *position) for time, *position in rows]
        assert sorted(row for some in after.values() for row in some) == sorted(rounded)
        if not resize:
            assert after.keys() == before.keys()
        segments = kit.segments(path, T0)
        assert most == -1 or max(map(len, segments)) <= most
        assert all(some[-1][0] - some[0][0] < step for some in segments)
        with bookstand.open(path, read_only=True) as store:
            assert store.verify().ok
            assert not [one for one in store.bucket_snapshots() if one.orphaned or one.problem]


def test_buckets_that_cannot_be_read_stay_as_they_are(store: Path) -> None:
    done(RebuildDelayed((str(store),), SMALL))
    kit.damage_a_bucket(store, T0)
    before = kit.content(store, check=False)
    summary = execute(Recut((str(store),), CutSettings(least=1_000), True), HERE)
    (failed,) = summary.failed
    assert T0 in failed.unit
    assert "cannot be cut anew" in (failed.failure or "")
    after = kit.content(store, check=False)
    name = "/managed-ledgers/acme/orders/persistent/0/sub"
    assert before["nodes"][name] == after["nodes"][name]
    # Rebuilding puts it right.
    done(RebuildDelayed((str(store),), SMALL), again=True, only=[failed.unit])
    done(Recut((str(store),), CutSettings(least=1_000), True))
    assert len(kit.in_buckets(store, T0)) == 1


def test_coarser_times_are_never_earlier() -> None:
    from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes

    largest = (1 << 63) - 1
    rows = Indexes.of([0, 1, 1023, 1024, largest - 1, largest], [1] * 6, range(6))
    assert coarse(rows, 10).timestamps.tolist() == [0, 1024, 1024, 1024, largest - 1, largest]


def test_the_broker_finds_rebuilt_buckets(store: Path) -> None:
    done(RebuildDelayed((str(store),), SMALL))
    wanted = kit.waiting(store, T0)
    with bookstand.open(store, clock=VirtualClock(kit.NOW - 1)) as opened_store:
        config = TopicConfig(delayed_delivery_tracker="bucket", trim_consumed=False)
        with opened_store.topic(T0, config).subscription("sub") as subscription:
            assert sorted(subscription.tracker.peek().indexes) == sorted(wanted)  # type: ignore[union-attr]
            assert not subscription.tracker.problems  # type: ignore[union-attr]


def test_the_index_of_a_topic_without_buckets_is_untouched(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with bookstand.open(path) as store:
        ml = store.managed_ledger(T0)
        ml.append_many([b"x"] * 10)
        Cursor.open(ml, "sub").close()
        node = "/managed-ledgers/acme/orders/persistent/0/sub"
        before = store.nodes.get(node)
    done(RebuildDelayed((str(path),), SMALL))
    with bookstand.open(path) as store:
        assert store.nodes.get(node) == before
    with open_source(DataSource(STORE, (str(path),))) as disks:
        (topic,) = topics(disks)
        assert [DelayedIndex(index.cursor, 0).buckets for index in delayed(topic)] == [[]]
