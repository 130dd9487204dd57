"""Metrics for Prometheus: a collector that gives what a store's open cursors and trackers tell at that moment.

Names and labels are Pulsar's where it has the figure; nothing is renamed on the way, so that dashboards made for the
one work with the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookstand.errors import MissingExtraError
from bookstand.ledger.client import Client
from bookstand.storage.metrics import COUNTER, Family

try:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
except ImportError as missing:
    raise MissingExtraError("metrics need prometheus-client: pip install 'bookstand[metrics]'") from missing


class StoreCollector(Collector):
    """``prometheus_client.REGISTRY.register(store.metrics())``"""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        found: dict[Family, Metric] = {}
        for source in self._client.metric_sources():
            for family, name, labels, value in source.samples():
                metric = found.get(family)
                if metric is None:
                    metric = found[family] = _metric(family)
                metric.add_sample(name, {"cluster": self._cluster, **labels}, value)
        yield from found.values()


def _metric(family: Family) -> Metric:
    """Metric family for prometheus-client, which takes the name of a counter without the suffix of its samples."""
    name = family.name.removesuffix("_total") if family.kind == COUNTER else family.name
    return Metric(name, family.help, family.kind)
