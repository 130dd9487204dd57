"""What there is to watch of a bookie: requests by operation and result, how long they took, connections, bytes."""

from __future__ import annotations

from collections.abc import Iterator

from bookstand.server.bookie import codes
from bookstand.server.request_figures import RequestFigures
from bookstand.storage.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Sample


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
        self._requests: RequestFigures[str] = RequestFigures(REQUESTS, LATENCY)
        self.answered = self._requests.answered
        self.connections = 0
        self.adds_in_progress = 0
        self.received = 0
        self.sent = 0
        self.refused = 0

    def samples(self) -> Iterator[Sample]:
        place = {"bookie": self._bookie}
        yield from self._requests.samples(place, str, codes.NAMES.__getitem__)
        for family, value in (
            (CONNECTIONS, self.connections),
            (ADDS_IN_PROGRESS, self.adds_in_progress),
            (RECEIVED, self.received),
            (SENT, self.sent),
            (REFUSED, self.refused),
        ):
            yield Sample(family, family.name, place, value)
