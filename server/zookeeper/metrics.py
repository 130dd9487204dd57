"""Metrics of a ZooKeeper server."""

from __future__ import annotations

from bookstand.server.framing import BUFFERS
from bookstand.server.request_metrics import RequestFigures
from bookstand.server.zookeeper.protocol.protocol import Code, Op
from bookstand.storage.metrics import COUNTER, GAUGE, HISTOGRAM, Family, Sample

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookstand.server.zookeeper.state import State

_PREFIX = "bookstand_zookeeper_"
REQUESTS = Family(
    f"{_PREFIX}requests_total", COUNTER, "requests answered, by what they were answered", ("op", "result")
)
SECONDS = Family(
    f"{_PREFIX}request_seconds", HISTOGRAM, "from when a request was taken until its answer was queued", ("op",)
)
EVENTS = Family(f"{_PREFIX}events_total", COUNTER, "events that watchers were told of", ())
EXPIRED = Family(
    f"{_PREFIX}expired_sessions_total", COUNTER, "sessions that ended because nothing was heard of them", ()
)
GAUGES = {
    "connections": Family(f"{_PREFIX}connections", GAUGE, "connections that are open", ()),
    "sessions": Family(f"{_PREFIX}sessions", GAUGE, "sessions that live", ()),
    "ephemerals": Family(f"{_PREFIX}ephemerals", GAUGE, "znodes that end with a session", ()),
    "watches": Family(f"{_PREFIX}watches", GAUGE, "watches that are set", ()),
    "znodes": Family(f"{_PREFIX}znodes", GAUGE, "znodes in the tree", ()),
    "watch_bytes": Family(f"{_PREFIX}watch_bytes", GAUGE, "what watches take in memory", ()),
}
HELD = Family(f"{_PREFIX}held_bytes", GAUGE, "bytes in the buffers of all connections", ("buffer",))
LIMITS = Family(f"{_PREFIX}limit_exceeded_total", COUNTER, "how often a limit was exceeded", ("limit",))
FRAME, REQUESTS_OF_ONE, UNREAD, ALL, ANSWER, WATCHES, IDENTITIES = (
    "frame",
    "connection_requests",
    "connection_unread",
    "server_bytes",
    "answer",
    "watches",
    "identities",
)
_LIMITS = (FRAME, REQUESTS_OF_ONE, UNREAD, ALL, ANSWER, IDENTITIES)


class Metrics:
    """Counts since the start of the server, or since the last reset. Limit counters are not reset."""

    def __init__(self) -> None:
        self.limits = dict.fromkeys(_LIMITS, 0)
        self.reset()

    def reset(self) -> None:
        self._requests: RequestFigures[Op] = RequestFigures(REQUESTS, SECONDS)
        self._least = self._most = 0.0
        self.events = self.expired = 0

    def answered(self, op: Op, code: int, seconds: float) -> None:
        self._least = min(self._least, seconds) if self.answers else seconds
        self._most = max(self._most, seconds)
        self._requests.answered(op, code, seconds)

    @property
    def answers(self) -> int:
        return self._requests.count

    def latency(self) -> tuple[float, float, float]:
        """Return (minimum, average, maximum) in milliseconds."""
        return self._least * 1000, self._requests.seconds / max(1, self.answers) * 1000, self._most * 1000

    def samples(self, state: State) -> Iterator[Sample]:
        yield from self._requests.samples({}, lambda op: op.name.lower(), lambda code: Code(code).name.lower())
        yield Sample(EVENTS, EVENTS.name, {}, self.events)
        yield Sample(EXPIRED, EXPIRED.name, {}, self.expired)
        figures = {
            "connections": len(state.connections),
            "sessions": len(state.sessions),
            "ephemerals": state.ephemerals,
            "watches": state.watches.counts()[2],
            "znodes": state.znodes,
            "watch_bytes": state.watches.bytes,
        }
        for buffer in BUFFERS:
            yield Sample(HELD, HELD.name, {"buffer": buffer}, getattr(state.held, buffer))
        for limit, exceeded in {**self.limits, WATCHES: state.watches.refused}.items():
            yield Sample(LIMITS, LIMITS.name, {"limit": limit}, exceeded)
        for name, family in GAUGES.items():
            yield Sample(family, family.name, {}, figures[name])
