"""Cache counters of running processes, from a page in Prometheus's text format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bookstand.cursor.metrics import FAMILIES
from bookstand.errors import IncorrectParameterError, MissingExtraError, StoreNotFoundError
from bookstand.tools.report.model import CacheCounts

_HITS, _MISSES = FAMILIES["cache_hits"].name, FAMILIES["cache_misses"].name


def read(path: str) -> Mapping[tuple[str, str], CacheCounts]:
    """Read the counters by topic and subscription."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as missing:
        raise MissingExtraError(
            "reading metrics needs prometheus-client: pip install 'bookstand[metrics]'"
        ) from missing
    if not os.path.exists(path):
        raise StoreNotFoundError(f"there is no metrics page at {path}")
    counts: dict[tuple[str, str], dict[str, int]] = {}
    try:
        for family in text_string_to_metric_families(Path(path).read_text()):
            for sample in family.samples:
                if sample.name in (_HITS, _MISSES):
                    of = (sample.labels["topic"], sample.labels["subscription"])
                    found = counts.setdefault(of, {_HITS: 0, _MISSES: 0})
                    found[sample.name] += int(sample.value)
    except (ValueError, KeyError, OverflowError) as error:
        raise IncorrectParameterError(f"{path} is not a metrics page: {error}") from error
    if not counts:
        raise IncorrectParameterError(f"{path} has no {_HITS}: it is not a page of bookstand's metrics")
    return {of: CacheCounts(found[_HITS], found[_MISSES]) for of, found in counts.items()}
