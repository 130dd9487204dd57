"""The figures of cursors, as Prometheus gets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.metrics import FAMILIES, CursorStats
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
