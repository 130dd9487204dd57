"""Prometheus collector for the metrics of a store's open cursors, subscriptions and trackers.

Metrics that Pulsar has too keep Pulsar's names and labels, so that Pulsar's dashboards work unchanged.
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
    """Collector of a store, for ``prometheus_client.REGISTRY.register(store.metrics())``."""

    def __init__(self, client: Client, cluster: str) -> None:
        self._client = client
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        metrics: dict[Family, Metric] = {}
        for source in self._client.metric_sources():
            for family, name, labels, value in source.samples():
                metric = metrics.get(family)
                if metric is None:
                    metric = metrics[family] = _metric(family)
                metric.add_sample(name, {"cluster": self._cluster, **labels}, value)
        yield from metrics.values()


def _metric(family: Family) -> Metric:
    # prometheus-client expects the name of a counter without the suffix "_total".
    name = family.name.removesuffix("_total") if family.kind == COUNTER else family.name
    return Metric(name, family.help, family.kind)
