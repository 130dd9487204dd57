"""Metric samples as plain data. Sources provide them; ``bookstand/metrics.py`` exports them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


class Family(NamedTuple):
    """A metric family: its name, kind, help text and labels, besides ``cluster``."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


class Sample(NamedTuple):
    """One sample. ``name`` differs from the family's for a histogram's sum, count and buckets."""

    family: Family
    name: str
    labels: Mapping[str, str]
    value: float


class MetricSource(Protocol):
    """An object that provides samples while it is registered with its client."""

    def samples(self) -> Iterable[Sample]: ...
