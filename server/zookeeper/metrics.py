"""What there is to watch of a ZooKeeper state."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

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

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    """Counts since the server started, or since somebody reset them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._requests: Counter[tuple[Op, int]] = Counter()
        self._times: dict[Op, list[int]] = {}
        self._seconds: Counter[Op] = Counter()
        self._least = self._most = 0.0
        self.events = self.expired = 0

    def answered(self, op: Op, code: int, seconds: float) -> None:
        self._requests[op, code] += 1
        self._times.setdefault(op, [0] * (len(_BUCKETS) + 1))[bisect_left(_BUCKETS, seconds)] += 1
        # A Counter of floats: typeshed only knows those of integers.
        self._seconds[op] += seconds  # type: ignore[assignment]
        self._least = min(self._least, seconds) if self.answers > 1 else seconds
        self._most = max(self._most, seconds)

    @property
    def answers(self) -> int:
        return self._requests.total()

    def latency(self) -> tuple[float, float, float]:
        """(least, average, most) in milliseconds."""
        average = sum(self._seconds.values()) / max(1, self.answers)
        return self._least * 1000, average * 1000, self._most * 1000

    def samples(self, state: State) -> Iterator[Sample]:
        for (op, code), count in self._requests.items():
            labels = {"op": op.name.lower(), "result": Code(code).name.lower()}
            yield Sample(REQUESTS, REQUESTS.name, labels, count)
        for op, counts in self._times.items():
            total = 0
            for bound, count in zip((*map(str, _BUCKETS), "+Inf"), counts, strict=True):
                total += count
                yield Sample(SECONDS, f"{SECONDS.name}_bucket", {"op": op.name.lower(), "le": bound}, total)
            yield Sample(SECONDS, f"{SECONDS.name}_count", {"op": op.name.lower()}, total)
            yield Sample(SECONDS, f"{SECONDS.name}_sum", {"op": op.name.lower()}, self._seconds[op])
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
