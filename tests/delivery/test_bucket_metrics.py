"""Metrics of delayed messages in buckets, as both exposition formats show them and their own parsers read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import exposition as text
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

import bookstand
from bookstand.delivery.topic_config import TopicConfig
from bookstand.delivery.tracker.bucket.metrics import BOUNDS, FAMILIES, OPERATION_TYPES, STATES, OperationMetrics
from bookstand.delivery.tracker.shared_index import BUILDER
from bookstand.errors import BookieHandleNotAvailableError
from bookstand.testing import Faults
from tests.kit import ROOT

TOPIC = "persistent://tenant/space/orders"
PREFIX = "pulsar_delayed_message_index_"
CONFIG = TopicConfig(
    delayed_delivery_tracker="bucket",
    delayed_delivery_min_index_count_per_bucket=2,
    delayed_delivery_max_num_buckets=2,
    max_entries_per_ledger=2,
)
SHARED = TopicConfig(
    delayed_delivery_shared_index_enabled=True,
    delayed_delivery_min_index_count_per_bucket=2,
    max_entries_per_ledger=2,
)


def in_text(registry: CollectorRegistry) -> Any:
    return text_string_to_metric_families(text.generate_latest(registry).decode())


def in_openmetrics(registry: CollectorRegistry) -> Any:
    return openmetrics_parser.text_string_to_metric_families(openmetrics.generate_latest(registry).decode())


FORMATS = pytest.mark.parametrize("exposed", [in_text, in_openmetrics])


def families(store: Any, exposed: Callable[[CollectorRegistry], Any]) -> dict[str, Any]:
    """By name without the prefix."""
    registry = CollectorRegistry()
    registry.register(store.metrics())
    return {family.name.removeprefix(PREFIX): family for family in exposed(registry) if family.name.startswith(PREFIX)}


def operation_counts(family: Any, subscription: str = "billing") -> dict[tuple[str, str], float]:
    for sample in family.samples:
        assert sample.name == f"{PREFIX}bucket_op_count_total"
    return {
        (sample.labels["type"], sample.labels["state"]): sample.value
        for sample in family.samples
        if sample.labels["subscription"] == subscription
    }


def histogram(family: Any, kind: str) -> tuple[dict[float, float], float, float]:
    """Cumulative counts by upper bound, the sum and the count."""
    samples = [sample for sample in family.samples if sample.labels["type"] == kind]
    buckets = {float(one.labels["le"]): one.value for one in samples if one.name.endswith("_bucket")}
    (total,) = (one.value for one in samples if one.name.endswith("_sum"))
    (count,) = (one.value for one in samples if one.name.endswith("_count"))
    return buckets, total, count


def histogram_quantile(rank: float, buckets: dict[float, float]) -> float:
    """As Prometheus computes it: linear within the bucket of the rank; beyond the last bound, that bound."""
    bounds = sorted(buckets)
    wanted = rank * buckets[float("inf")]
    for below, bound in pairwise([0.0, *bounds]):
        if buckets[bound] >= wanted:
            if bound == float("inf"):
                return below
            before = buckets.get(below, 0.0)
            return below + (bound - below) * (wanted - before) / (buckets[bound] - before)
    raise AssertionError("the bucket without an upper bound has all")


@FORMATS
def test_types_are_those_of_the_pip_in_both_formats(store_path: Path, exposed: Callable[..., Any]) -> None:
    with bookstand.open(store_path) as store, store.topic(TOPIC, CONFIG) as topic:
        topic.subscription("billing")
        found = families(store, exposed)
        assert {name: family.type for name, family in found.items()} == {
            "bucket_total": "gauge",
            "loaded": "gauge",
            "bucket_snapshot_size_bytes": "gauge",
            "bucket_op_count": "counter",
            "bucket_op_latency_ms": "histogram",
        }


@FORMATS
def test_all_series_are_present_from_the_start_with_zero(store_path: Path, exposed: Callable[..., Any]) -> None:
    with bookstand.open(store_path) as store, store.topic(TOPIC, CONFIG) as topic:
        topic.subscription("billing")
        found = families(store, exposed)
        wanted = {(kind, state): 0 for kind in ("create", "load", "delete", "merge") for state in STATES}
        assert operation_counts(found["bucket_op_count"]) == wanted
        assert len(wanted) == 12
        for kind in OPERATION_TYPES:
            buckets, total, count = histogram(found["bucket_op_latency_ms"], kind)
            assert buckets == dict.fromkeys([50, 100, 500, 1000, 5000, 30_000, 60_000, float("inf")], 0)
            assert (total, count) == (0, 0)


@FORMATS
def test_operations_are_counted_by_type_and_state(store_path: Path, exposed: Callable[..., Any]) -> None:
    faults = Faults()
    with bookstand.open(store_path, hooks=faults) as store, store.topic(TOPIC, CONFIG) as topic:
        subscription = topic.subscription("billing")
        for number in range(8):
            topic.publish(b".", deliver_after=86_400_000 + number)
        assert subscription.receive(8, timeout=0) == []
        counts = operation_counts(families(store, exposed)["bucket_op_count"])
        # Three buckets are sealed, and the third does not fit.
        assert counts["merge", "succeed"] == 1
        assert counts["create", "succeed"] == counts["create", "all"] >= 3
        assert counts["create", "failed"] == 0
        found = families(store, exposed)["bucket_op_latency_ms"]
        assert [histogram(found, kind)[2] for kind in OPERATION_TYPES] == [
            counts[kind, "succeed"] for kind in OPERATION_TYPES
        ]
        failure = faults.fail("commit", error=BookieHandleNotAvailableError, times=100)
        with pytest.raises(BookieHandleNotAvailableError):
            subscription.tracker.clear()
        faults.remove(failure)
        after = operation_counts(families(store, exposed)["bucket_op_count"])
        buckets = 1
        assert after["delete", "failed"] == after["delete", "all"] == buckets
        assert after["delete", "succeed"] == 0


@pytest.mark.parametrize("rank", [0.1, 0.5, 0.9, 0.95, 0.999])
def test_a_quantile_computed_from_the_buckets_is_within_one_bucket_of_the_durations(rank: float) -> None:
    durations = [3, 50, 51, 70, 99, 100, 420, 480, 900, 4000, 4500, 20_000, 59_000, 61_000]
    operations = OperationMetrics()
    for millis in durations:
        operations.record_start("load")
        operations.record_success("load", millis)
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in operations.samples({})
        if sample.name.endswith("_bucket") and sample.labels["type"] == "load"
    }
    assert buckets[50] == 2
    assert buckets[100] == 6
    assert buckets[500] == 8
    assert buckets[float("inf")] == len(durations)
    exact = sorted(durations)[min(len(durations) - 1, int(rank * len(durations)))]
    estimate = histogram_quantile(rank, buckets)
    below = max((bound for bound in (0.0, *BOUNDS) if bound < exact), default=0.0)
    above = min((bound for bound in BOUNDS if bound >= exact), default=BOUNDS[-1])
    assert min(below, BOUNDS[-1]) <= estimate <= above
    if rank == 0.5:
        # 7 of 14: the first of the two between 100 and 500.
        assert estimate == 300


@FORMATS
def test_under_a_shared_index_the_figures_are_the_builders_and_count_once(
    store_path: Path, exposed: Callable[..., Any]
) -> None:
    with bookstand.open(store_path) as store, store.topic(TOPIC, SHARED) as topic:
        subscriptions = [topic.subscription(name) for name in ("billing", "shipping")]
        for number in range(5):
            topic.publish(b".", deliver_after=86_400_000 + number)
        for subscription in subscriptions:
            assert subscription.receive(8, timeout=0) == []
        found = families(store, exposed)
        for family in found.values():
            assert {sample.labels["subscription"] for sample in family.samples} == {BUILDER}
        counts = operation_counts(found["bucket_op_count"], BUILDER)
        # Both subscriptions have five messages that are delayed, and the topic has two snapshots.
        assert counts["create", "succeed"] == 2
        assert [sample.value for sample in found["bucket_total"].samples] == [3]
        assert [sample.value for sample in found["loaded"].samples] == [5]


def test_the_documentation_lists_every_metric_with_type_and_labels() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(pulsar_delayed_\w+)` \| (.*?) \|$", page, re.MULTILINE))
    assert rows.keys() == {family.name for family in FAMILIES}
    for family in FAMILIES:
        kind, labels, _ = rows[family.name].split(" | ")
        assert kind == family.kind
        own = [name for name in family.labels if name not in ("namespace", "topic", "subscription")]
        assert re.findall(r"`(\w+)`", labels) == own
    assert BUILDER in page
