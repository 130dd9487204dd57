"""What there is to watch of a bookie: requests by operation and result, how long they took, connections, bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from bookstand.server.bookie import codes
from bookstand.storage.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Sample

_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


def _family(name: str, kind: str, meaning: str, *labels: str) -> Family:
    return Family(f"bookstand_bookie_{name}", kind, meaning, ("bookie", *labels))


REQUESTS = _family("requests_total", COUNTER, "Requests that were answered.", "op", "result")
LATENCY = _family("request_seconds", HISTOGRAM, "From a request's arrival until its answer was queued.", "op")
CONNECTIONS = _family("connections", GAUGE, "Connections that are open.")
ADDS_IN_PROGRESS = _family("adds_in_progress_bytes", GAUGE, "Adds that have arrived and are not answered.")
RECEIVED = _family("received_bytes_total", COUNTER, "Bytes that came.")
SENT = _family("sent_bytes_total", COUNTER, "Bytes that were sent.")
REFUSED = _family("refused_connections_total", COUNTER, "Connections that were closed for what came over them.")
FAMILIES = (REQUESTS, LATENCY, CONNECTIONS, ADDS_IN_PROGRESS, RECEIVED, SENT, REFUSED)


class Figures:
    """Of one bookie. Counted in the loop's thread, read in any."""

    def __init__(self, bookie: int) -> None:
        self._bookie = str(bookie)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._durations: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self.connections = 0
        self.adds_in_progress = 0
        self.received = 0
        self.sent = 0
        self.refused = 0

    def answered(self, operation: str, code: int, seconds: float, count: int = 1) -> None:
        """``seconds`` is what each of so many took."""
        self._requests[operation, code] += count
        durations = self._durations.get(operation)
        if durations is None:
            durations = self._durations[operation] = [0] * (len(_BOUNDS) + 1)
        durations[bisect_left(_BOUNDS, seconds)] += count
        self._seconds[operation] += seconds * count  # type: ignore[assignment]

    def samples(self) -> Iterator[Sample]:
        place = {"bookie": self._bookie}
        for (operation, code), count in list(self._requests.items()):
            labels = {**place, "op": operation, "result": codes.NAMES[code]}
            yield Sample(REQUESTS, REQUESTS.name, labels, count)
        for operation, durations in list(self._durations.items()):
            labels = {**place, "op": operation}
            bounds = (*map(repr, _BOUNDS), "+Inf")
            for bound, count in zip(bounds, accumulate(durations), strict=True):
                yield Sample(LATENCY, f"{LATENCY.name}_bucket", {**labels, "le": bound}, count)
            yield Sample(LATENCY, f"{LATENCY.name}_count", labels, sum(durations))
            yield Sample(LATENCY, f"{LATENCY.name}_sum", labels, self._seconds[operation])
        for family, value in (
            (CONNECTIONS, self.connections),
            (ADDS_IN_PROGRESS, self.adds_in_progress),
            (RECEIVED, self.received),
            (SENT, self.sent),
            (REFUSED, self.refused),
        ):
            yield Sample(family, family.name, place, value)
