"""Request counts and latencies. Updated in the loop's thread, read in any."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Generic, TypeVar

from bookstand.storage.metrics import Family, Sample

_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

Op = TypeVar("Op")


class RequestFigures(Generic[Op]):
    """A counter with the labels ``op`` and ``result``, and a latency histogram with the label ``op``."""

    def __init__(self, requests: Family, seconds: Family) -> None:
        self._families = requests, seconds
        self._requests: Counter[tuple[Op, int]] = Counter()
        self._durations: dict[Op, list[int]] = {}
        self._seconds: Counter[Op] = Counter()

    def answered(self, op: Op, code: int, seconds: float, count: int = 1) -> None:
        """Record ``count`` responses that took ``seconds`` each."""
        self._requests[op, code] += count
        durations = self._durations.get(op)
        if durations is None:
            durations = self._durations[op] = [0] * (len(_BOUNDS) + 1)
        durations[bisect_left(_BOUNDS, seconds)] += count
        # typeshed declares the values of a Counter as int.
        self._seconds[op] += seconds * count  # type: ignore[assignment]

    @property
    def count(self) -> int:
        return self._requests.total()

    @property
    def seconds(self) -> float:
        """Total time of all requests."""
        return float(self._seconds.total())

    def samples(
        self, place: Mapping[str, str], op_name: Callable[[Op], str], result_name: Callable[[int], str]
    ) -> Iterator[Sample]:
        """``place``: labels that are added to every sample."""
        requests, seconds = self._families
        for (op, code), count in list(self._requests.items()):
            labels = {**place, "op": op_name(op), "result": result_name(code)}
            yield Sample(requests, requests.name, labels, count)
        for op, durations in list(self._durations.items()):
            labels = {**place, "op": op_name(op)}
            for bound, count in zip((*map(repr, _BOUNDS), "+Inf"), accumulate(durations), strict=True):
                yield Sample(seconds, f"{seconds.name}_bucket", {**labels, "le": bound}, count)
            yield Sample(seconds, f"{seconds.name}_count", labels, sum(durations))
            yield Sample(seconds, f"{seconds.name}_sum", labels, self._seconds[op])
