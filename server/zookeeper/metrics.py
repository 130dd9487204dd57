"""What there is to watch of a ZooKeeper state."""

from __future__ import annotations

from bookstand.server.request_figures import RequestFigures
from bookstand.server.zookeeper.protocol import Code, Op
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
}


class Metrics:
    """Counts since the server started, or since somebody reset them."""

    def __init__(self) -> None:
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
        """(least, average, most) in milliseconds."""
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
        }
        for name, family in GAUGES.items():
            yield Sample(family, family.name, {}, figures[name])
