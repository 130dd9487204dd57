"""Metrics of a tracker on buckets, with the names and labels of PIP-195.

Two differ from the table in the PIP. The samples of the counter end in ``_total``, as OpenMetrics requires. The
histogram has cumulative buckets labelled ``le``, as ``histogram_quantile`` requires, with the bounds of the PIP; the
label ``quantile`` is absent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from bookstand.managed_ledger.topic_name import parts_of
from bookstand.storage.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Sample

CREATE, LOAD, DELETE, MERGE = "create", "load", "delete", "merge"
OPERATION_TYPES = (CREATE, LOAD, DELETE, MERGE)
STATES = ALL, SUCCEED, FAILED = "all", "succeed", "failed"
_PLACE = ("namespace", "topic", "subscription")
BOUNDS = (50.0, 100.0, 500.0, 1000.0, 5000.0, 30_000.0, 60_000.0)
"""Upper bounds of the histogram's buckets, in milliseconds."""


def _family(name: str, kind: str, meaning: str, *labels: str) -> Family:
    return Family(f"pulsar_delayed_message_index_{name}", kind, meaning, (*_PLACE, *labels))


BUCKETS = _family(
    "bucket_total", GAUGE, "The number of delayed message index buckets (immutable buckets + LastMutableBucket )"
)
LOADED = _family("loaded", GAUGE, "The total number of delayed message indexes for in the memory.")
SIZE = _family(
    "bucket_snapshot_size_bytes", GAUGE, "The total size of delayed message index bucket snapshot (in bytes)."
)
OPERATIONS = _family(
    "bucket_op_count_total",
    COUNTER,
    "The total number of operate delayed message index bucket snapshot.",
    "state",
    "type",
)
LATENCY = _family(
    "bucket_op_latency_ms",
    HISTOGRAM,
    "The latency of successful delayed message index bucket snapshot operations, in milliseconds.",
    "type",
)
FAMILIES = (BUCKETS, LOADED, SIZE, OPERATIONS, LATENCY)


class Gauges(NamedTuple):
    buckets: int
    loaded: int
    snapshot_bytes: int


class OperationMetrics:
    """Counts and durations of snapshot operations. Not thread-safe: callers hold the tracker's lock."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._durations = {kind: [0] * (len(BOUNDS) + 1) for kind in OPERATION_TYPES}
        self._sums = dict.fromkeys(OPERATION_TYPES, 0.0)

    def record_start(self, kind: str, count: int = 1) -> None:
        self._counts[ALL, kind] += count

    def record_failure(self, kind: str, count: int = 1) -> None:
        self._counts[FAILED, kind] += count

    def record_success(self, kind: str, millis: float, count: int = 1) -> None:
        """Record ``count`` operations that took ``millis`` each."""
        self._counts[SUCCEED, kind] += count
        # A bucket includes its upper bound.
        self._durations[kind][bisect_left(BOUNDS, millis)] += count
        self._sums[kind] += millis * count

    def count(self, state: str, kind: str) -> int:
        return self._counts[state, kind]

    def samples(self, place: dict[str, str]) -> Iterator[Sample]:
        """One sample per state and type, and one histogram per type, zeros included."""
        for kind in OPERATION_TYPES:
            for state in STATES:
                labels = {**place, "state": state, "type": kind}
                yield Sample(OPERATIONS, OPERATIONS.name, labels, float(self._counts[state, kind]))
        for kind in OPERATION_TYPES:
            labels = {**place, "type": kind}
            # OpenMetrics requires the buckets of a histogram to be contiguous and ascending, with their sum and count.
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), accumulate(self._durations[kind]), strict=True):
                yield Sample(LATENCY, f"{LATENCY.name}_bucket", {**labels, "le": bound}, float(count))
            yield Sample(LATENCY, f"{LATENCY.name}_count", labels, float(sum(self._durations[kind])))
            yield Sample(LATENCY, f"{LATENCY.name}_sum", labels, self._sums[kind])


def samples(gauges: Gauges, operations: OperationMetrics, topic: str, subscription: str) -> Iterator[Sample]:
    tenant, namespace, _ = parts_of(topic)
    place = {"namespace": f"{tenant}/{namespace}" if tenant else "", "topic": topic, "subscription": subscription}
    for family, value in zip((BUCKETS, LOADED, SIZE), gauges, strict=True):
        yield Sample(family, family.name, place, float(value))
    yield from operations.samples(place)
