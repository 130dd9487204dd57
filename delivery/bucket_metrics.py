"""What there is to watch of a tracker on buckets, under the names and labels of PIP-195."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from bookstand.ledger.topic_name import parts_of
from bookstand.storage.metrics import COUNTER, GAUGE, Family, Sample

CREATE, LOAD, DELETE, MERGE = "create", "load", "delete", "merge"
_STATES = ALL, SUCCEED, FAILED = "all", "succeed", "failed"
_PLACE = ("namespace", "topic", "subscription")
_BOUNDS = (50, 100, 500, 1000, 5000, 30_000, 60_000)
_QUANTILES = (*map(str, _BOUNDS), "overflow")


def _family(name: str, kind: str, meaning: str, *labels: str) -> Family:
    return Family(f"pulsar_delayed_message_index_{name}", kind, meaning, (*_PLACE, *labels))


BUCKETS = _family(
    "bucket_total",
    GAUGE,
    "The number of delayed message index buckets (immutable buckets + LastMutableBucket )",
)
LOADED = _family("loaded", GAUGE, "The total number of delayed message indexes for in the memory.")
SIZE = _family(
    "bucket_snapshot_size_bytes", GAUGE, "The total size of delayed message index bucket snapshot (in bytes)."
)
OPERATIONS = _family(
    "bucket_op_count",
    COUNTER,
    "The total number of operate delayed message index bucket snapshot.",
    "state",
    "type",
)
LATENCY = _family(
    "bucket_op_latency_ms",
    COUNTER,
    "The latency of delayed message index bucket snapshot operation with a given quantile (threshold).",
    "type",
    "quantile",
)
FAMILIES = (BUCKETS, LOADED, SIZE, OPERATIONS, LATENCY)


class Gauges(NamedTuple):
    buckets: int
    loaded: int
    snapshot_bytes: int


class Operations:
    """Counts what is done to snapshots, and how long it takes. Not safe between threads."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._latencies: Counter[tuple[str, str]] = Counter()
        self._sums: dict[str, float] = {}

    def began(self, kind: str, count: int = 1) -> None:
        self._add(ALL, kind, count)

    def failed(self, kind: str, count: int = 1) -> None:
        self._add(FAILED, kind, count)

    def succeeded(self, kind: str, millis: float, count: int = 1) -> None:
        """``millis`` is what each of so many took."""
        if count:
            self._add(SUCCEED, kind, count)
            # Between two bounds, the upper one included.
            self._latencies[kind, _QUANTILES[bisect_left(_BOUNDS, millis)]] += count
            self._sums[kind] = self._sums.get(kind, 0.0) + millis * count

    def _add(self, state: str, kind: str, count: int) -> None:
        if count:
            self._counts[state, kind] += count

    def count(self, state: str, kind: str) -> int:
        return self._counts[state, kind]

    def samples(self, place: dict[str, str]) -> Iterator[Sample]:
        """Without those that are zero."""
        for (state, kind), count in sorted(self._counts.items()):
            yield Sample(OPERATIONS, OPERATIONS.name, {**place, "state": state, "type": kind}, float(count))
        for (kind, quantile), count in sorted(self._latencies.items()):
            yield Sample(LATENCY, LATENCY.name, {**place, "type": kind, "quantile": quantile}, float(count))
        for kind, total in sorted(self._sums.items()):
            labels = {**place, "type": kind}
            yield Sample(LATENCY, f"{LATENCY.name}_count", labels, float(self._counts[SUCCEED, kind]))
            yield Sample(LATENCY, f"{LATENCY.name}_sum", labels, float(total))


def samples(gauges: Gauges, operations: Operations, topic: str, subscription: str) -> Iterator[Sample]:
    tenant, namespace, _ = parts_of(topic)
    place = {"namespace": f"{tenant}/{namespace}" if tenant else "", "topic": topic, "subscription": subscription}
    for family, value in zip((BUCKETS, LOADED, SIZE), gauges, strict=True):
        yield Sample(family, family.name, place, float(value))
    yield from operations.samples(place)
