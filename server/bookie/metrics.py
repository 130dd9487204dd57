"""Metrics of a bookie: requests by operation and result, latencies, connections, buffered bytes."""

from __future__ import annotations

from collections.abc import Iterator

from bookstand.server.bookie.protocol import codes
from bookstand.server.framing import BUFFERS, Held
from bookstand.server.request_metrics import RequestFigures
from bookstand.storage.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Sample


def _family(name: str, kind: str, meaning: str, *labels: str) -> Family:
    return Family(f"bookstand_bookie_{name}", kind, meaning, ("bookie", *labels))


REQUESTS = _family("requests_total", COUNTER, "Requests that were answered.", "op", "result")
LATENCY = _family("request_seconds", HISTOGRAM, "From a request's arrival until its answer was queued.", "op")
CONNECTIONS = _family("connections", GAUGE, "Connections that are open.")
ADDS_IN_PROGRESS = _family("adds_in_progress_bytes", GAUGE, "Adds that have arrived and are not answered.")
HELD = _family("held_bytes", GAUGE, "Bytes in the buffers of all connections.", "buffer")
LONG_POLLS = _family("long_polls", GAUGE, "Reads that are waiting for an entry.")
LIMITS = _family("limit_exceeded_total", COUNTER, "Number of times that a limit was exceeded.", "limit")
RECEIVED = _family("received_bytes_total", COUNTER, "Bytes that came.")
SENT = _family("sent_bytes_total", COUNTER, "Bytes that were sent.")
REFUSED = _family("refused_connections_total", COUNTER, "Connections that were closed for what came over them.")
FAMILIES = (REQUESTS, LATENCY, CONNECTIONS, ADDS_IN_PROGRESS, HELD, LONG_POLLS, LIMITS, RECEIVED, SENT, REFUSED)

FRAME, REQUESTS_OF_ONE, ALL, POLLS_OF_ONE, ALL_POLLS = (
    "frame",
    "connection_requests",
    "server_bytes",
    "connection_long_polls",
    "server_long_polls",
)


class Figures:
    """Metrics of one bookie. Updated in the loop's thread, read in any."""

    def __init__(self, bookie: int) -> None:
        self._bookie = str(bookie)
        self._requests: RequestFigures[str] = RequestFigures(REQUESTS, LATENCY)
        self.answered = self._requests.answered
        self.connections = 0
        self.adds_in_progress = 0
        self.held = Held()
        self.long_polls = 0
        self.limits = dict.fromkeys((FRAME, REQUESTS_OF_ONE, ALL, POLLS_OF_ONE, ALL_POLLS), 0)
        self.received = 0
        self.sent = 0
        self.refused = 0

    def samples(self) -> Iterator[Sample]:
        place = {"bookie": self._bookie}
        yield from self._requests.samples(place, str, codes.NAMES.__getitem__)
        for family, value in (
            (CONNECTIONS, self.connections),
            (ADDS_IN_PROGRESS, self.adds_in_progress),
            (LONG_POLLS, self.long_polls),
            (RECEIVED, self.received),
            (SENT, self.sent),
            (REFUSED, self.refused),
        ):
            yield Sample(family, family.name, place, value)
        for buffer in BUFFERS:
            yield Sample(HELD, HELD.name, {**place, "buffer": buffer}, getattr(self.held, buffer))
        for limit, exceeded in self.limits.items():
            yield Sample(LIMITS, LIMITS.name, {**place, "limit": limit}, exceeded)
