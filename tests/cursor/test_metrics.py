"""The figures of cursors, as Prometheus gets them."""

from __future__ import annotations

import re
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families
from pyroaring import BitMap64

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import position_info
from bookstand.cursor.metrics import FAMILIES, CursorStats
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from tests.kit import ROOT

TOPIC = "persistent://tenant/space/orders"


def told(store: Any) -> dict[tuple[str, str], float]:
    """By name and subscription."""
    registry = CollectorRegistry()
    registry.register(store.metrics())
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            assert sample.labels["cluster"] == "here"
            found[sample.name, sample.labels["subscription"]] = sample.value
    return found


def test_the_size_that_limits_dispatching_has_the_name_and_labels_of_pip_299(store_path: Path) -> None:
    with bookstand.open(store_path, cluster="here") as store:
        topic = store.managed_ledger(TOPIC)
        entries = topic.append_entries([b"."] * 10)
        registry = CollectorRegistry()
        registry.register(store.metrics())
        with Cursor.open(topic, "billing") as cursor:
            cursor.ack(entries[5]).result()
            size = cursor.cursor_metadata_size_in_bytes
            assert size > 0
            lines = generate_latest(registry).decode().splitlines()
            (line,) = [line for line in lines if line.startswith("pulsar_cursor_metadata_size_bytes")]
            assert line == (
                'pulsar_cursor_metadata_size_bytes{cluster="here",namespace="tenant/space",subscription="billing",'
                f'topic="{TOPIC}"}} {float(size)}'
            )
            assert "# TYPE pulsar_cursor_metadata_size_bytes gauge" in lines
        # A cursor that is closed has no figures.
        assert not generate_latest(registry).decode()


def test_figures_follow_what_happens(store_path: Path) -> None:
    with bookstand.open(store_path, cluster="here") as store:
        topic = store.managed_ledger(TOPIC, max_entries_per_ledger=5)
        entries = topic.append_entries([b"."] * 20)
        small = CursorConfig(max_individual_ack_cache_bytes=1)
        with Cursor.open(topic, "a", small) as one, Cursor.open(topic, "b") as other:
            before = told(store)
            assert before["bookstand_cursor_backlog_entries", "a"] == 20
            assert before["bookstand_cursor_flushes_total", "a"] == 0
            one.ack([entries[0], entries[7], entries[13]])
            other.ack(entries[3])
            assert told(store)["bookstand_cursor_dirty_pages", "b"] == 1
            one.flush()
            assert one.is_acked(entries[7])
            assert one.is_acked(entries[13])
            after = told(store)
            stats = one.stats
            for figure, family in FAMILIES.items():
                assert after[family.name, "a"] == float(getattr(stats, figure)), figure
            assert (stats.paused, stats.entries_to_resume) == (False, 0)
            assert after["bookstand_cursor_backlog_entries", "a"] == 17
            assert after["bookstand_cursor_flushed_bytes_total", "a"] > 0
            assert after["bookstand_cursor_cache_misses_total", "a"] > 0
            assert 0 < after["bookstand_cursor_cache_hit_ratio", "a"] < 1
            assert after["bookstand_cursor_backlog_entries", "b"] == other.backlog == 19


def test_what_the_old_form_leaves_out_is_counted(store_path: Path) -> None:
    old = CursorConfig(
        enable_lru_cache_max_unacked_ranges=False, max_unacked_ranges_to_persist=2, max_batch_deleted_index_to_persist=1
    )
    with bookstand.open(store_path, cluster="here") as store:
        topic = store.managed_ledger(TOPIC)
        entries = topic.append_entries([b"."] * 20)
        with Cursor.open(topic, "old", old) as cursor:
            cursor.ack(entries[1:12:2])
            for entry in entries[12:18:2]:
                cursor.ack_batch(entry, [1], 3)
            cursor.flush()
            assert (cursor.stats.left_out_ranges, cursor.stats.left_out_batches) == (4, 2)
            assert cursor.paused
            found = told(store)
            assert found["bookstand_cursor_left_out_ranges", "old"] == 4
            assert found["bookstand_cursor_left_out_batches", "old"] == 2
            assert found["bookstand_cursor_paused", "old"] == 1
            assert found["bookstand_cursor_paused_by_left_out", "old"] == 1
            assert found["bookstand_cursor_paused_by_state_size", "old"] == 0
            # Six entries up to the fourth range, which is the last one too many; three more up to the second batch.
            assert found["bookstand_cursor_entries_to_resume", "old"] == cursor.entries_to_resume == 9
            cursor.ack(entries[:12])
            cursor.flush()
            assert told(store)["bookstand_cursor_left_out_ranges", "old"] == 0


def test_a_topic_without_a_full_name_has_no_namespace(store_path: Path) -> None:
    with bookstand.open(store_path) as store, Cursor.open(store.managed_ledger("plain"), "s") as cursor:
        labels = {tuple(sample.labels.items()) for sample in cursor.samples()}
        assert labels == {(("namespace", ""), ("topic", "plain"), ("subscription", "s"))}


def test_every_figure_is_shown_and_stands_in_the_docs() -> None:
    assert set(FAMILIES) == {*CursorStats._fields, "hit_ratio"}
    page = (ROOT / "docs" / "metrics.md").read_text()
    table = page[page.index("## Cursors") : page.index("### What to alert on")]
    assert sorted(re.findall(r"`((?:pulsar|bookstand)_\w+)`", table)) == sorted(one.name for one in FAMILIES.values())


def test_the_program_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(compile(program, "docs/metrics.md", "exec"), {})
    assert 'bookstand_cursor_backlog_entries{cluster="test",namespace="tenant/namespace"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("generate", "parse"),
    [(generate_latest, text_string_to_metric_families), (generate_open_metrics, open_metrics_families)],
    ids=["text", "OpenMetrics"],
)
def test_both_formats_say_why_dispatch_is_paused(store_path: Path, generate: Any, parse: Any) -> None:
    with bookstand.open(store_path, cluster="here") as store:
        topic = store.managed_ledger(TOPIC)
        entries = topic.append_entries([b"."] * 100)
        config = CursorConfig(max_per_cursor_metadata_size_in_bytes=1 << 10)
        with Cursor.open(topic, "s", config) as cursor:
            registry = CollectorRegistry()
            registry.register(store.metrics())

            def shown() -> list[float]:
                values = {one.name: one.samples[0].value for one in parse(generate(registry).decode())}
                suffixes = "paused", "paused_by_state_size", "paused_by_left_out", "entries_to_resume"
                return [values[f"bookstand_cursor_{suffix}"] for suffix in suffixes]

            assert shown() == [0, 0, 0, 0]
            cursor.put_property("p" * 900, 1)
            cursor.ack(entries[1::2])
            cursor.flush()
            assert shown() == [1, 1, 0, 50]
            cursor.put_property("q" * 1_000, 1)
            cursor.flush()
            *pauses, entries_to_resume = shown()
            assert pauses == [1, 1, 0]
            assert isnan(entries_to_resume)


SIZE = "pulsar_cursor_metadata_size_bytes"


@pytest.mark.parametrize("paged", [True, False], ids=["pages", "snapshot form"])
def test_the_size_gauge_is_right_also_when_the_state_is_stored_in_the_record(store_path: Path, paged: bool) -> None:
    """No entry of the cursor's ledger holds so many properties."""
    config = CursorConfig(enable_lru_cache_max_unacked_ranges=paged, max_per_cursor_metadata_size_in_bytes=4_000)
    properties = {f"property-{number:05}": number for number in range(300)}
    with bookstand.open(store_path, cluster="here", max_entry_bytes=2_000) as store:
        topic = store.managed_ledger(TOPIC)
        entries = topic.append_entries([b"."] * 20)
        with Cursor.open(topic, "s", config) as cursor:
            assert told(store)[SIZE, "s"] == 0
            cursor.mark_delete(entries[0], properties)
            cursor.ack(entries[5])
            cursor.flush()
            state = AckSnapshot(entries[0], {entries[5].ledger_id: BitMap64([entries[5].entry_id])}, {}, properties)
            size = len(position_info.write(state).data)
            assert size > 6_000
            assert told(store)[SIZE, "s"] == cursor.stats.metadata_size == size
            # No acknowledgment makes properties smaller.
            assert cursor.pause_reasons == ("state_size",)
            assert cursor.entries_to_resume is None
            assert isnan(told(store)["bookstand_cursor_entries_to_resume", "s"])
        with Cursor.open(topic, "s", config) as cursor:
            assert cursor.recovered_from.how == "record"
            assert told(store)[SIZE, "s"] == size
            cursor.mark_delete(entries[6], {})
            cursor.flush()
            assert told(store)[SIZE, "s"] < 100
            assert not cursor.paused


def test_the_size_gauge_counts_the_properties_that_a_new_cursor_is_given(store_path: Path) -> None:
    with bookstand.open(store_path, cluster="here") as store:
        topic = store.managed_ledger(TOPIC)
        with Cursor.open(topic, "s", properties={"property": 7}):
            size = told(store)[SIZE, "s"]
            assert size > len("property")
        with Cursor.open(topic, "s"):
            assert told(store)[SIZE, "s"] == size


def test_what_the_record_has_no_room_for_is_counted(store_path: Path) -> None:
    """A snapshot larger than an entry goes into the record, which takes fewer ranges."""
    old = CursorConfig(enable_lru_cache_max_unacked_ranges=False, max_unacked_ranges_in_metadata_store=10)
    with bookstand.open(store_path, cluster="here", max_entry_bytes=2_000) as store:
        topic = store.managed_ledger(TOPIC)
        entries = topic.append_entries([b"."] * 20_000)
        with Cursor.open(topic, "old", old) as cursor:
            # Holes of all lengths, so that the long arrays are long.
            acked = [entry for number, entry in enumerate(entries) if 1 + number % 97 <= number % 89]
            cursor.ack(acked)
            ranges = len(cursor.acked_ranges())
            cursor.flush()
            assert cursor.stats.left_out_ranges == ranges - 10
            assert cursor.paused
