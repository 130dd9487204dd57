"""What there is to watch, as plain data: whoever has figures gives samples, and ``bookstand/metrics.py`` shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


class Family(NamedTuple):
    """Figures of one kind: what their name means, and which labels tell them apart, beside ``cluster``."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


class Sample(NamedTuple):
    """One figure. ``name`` is the family's, but where a family has several, such as a histogram's sum and count."""

    family: Family
    name: str
    labels: Mapping[str, str]
    value: float


class MetricSource(Protocol):
    """Has figures as long as it is known to its client."""

    def samples(self) -> Iterable[Sample]: ...
