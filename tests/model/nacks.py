"""A plain model of negative acknowledgments: a dict of buckets, and one alarm.

``surprises`` turns on what the original does and bookstand does not, each by itself, so that a recording can be told to
be exactly that: see tests/replay/nacks_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from bookstand.storage.format.position import Position
from tests.model.delayed import Refused

SHORTEST = 100

LATER_WAITS = "later-waits"
OPEN_AFTER_CLOSE = "open-after-close"
FAILS_IN_FLIGHT = "fails-in-flight"
CHUNKS_ASIDE = "chunks-aside"
SHIFT_WRAPS = "shift-wraps"
ANY_ID = "any-id"
SURPRISES = (LATER_WAITS, OPEN_AFTER_CLOSE, FAILS_IN_FLIGHT, CHUNKS_ASIDE, SHIFT_WRAPS, ANY_ID)


class NacksModel:
    def __init__(
        self,
        now: int,
        precision_bits: int,
        delay: int,
        backoff: Callable[[int], int] | None,
        surprises: Collection[str] = frozenset(),
    ) -> None:
        self.surprises = frozenset(surprises)
        if SHIFT_WRAPS in self.surprises:
            precision_bits %= 64
        elif not 0 <= precision_bits <= 62:
            raise Refused("argument")
        self.now = now
        self.width = 1 << precision_bits
        self.delay = delay
        self.backoff = backoff
        self.buckets: dict[int, set[Position]] = {}
        self.chunks: dict[tuple[int, Position], list[Position]] = {}
        self.timer: int | None = None
        self.cancelled = 0
        self.closed = False

    def add(self, position: Position, redelivery_count: int = 0, chunks: Sequence[Position] = ()) -> None:
        together = {position, *chunks}
        if ANY_ID not in self.surprises and min(min(one) for one in together) < 0:
            raise Refused("argument")
        if self.closed and OPEN_AFTER_CLOSE not in self.surprises:
            raise Refused("closed")
        self.closed = False
        wait = self.backoff(redelivery_count) if self.backoff is not None else max(self.delay, SHORTEST)
        deadline = self.now + wait
        key = deadline - deadline % self.width
        self.buckets.setdefault(key, set()).add(position)
        if chunks:
            self.chunks[self._place(key), position] = list(chunks)
        if self.timer is None or (deadline < self.timer and LATER_WAITS not in self.surprises):
            self._arm(deadline)

    def _arm(self, at: int) -> None:
        if self.timer is not None:
            self.cancelled += 1
        self.timer = at

    def fire(self) -> tuple[int, list[Position]]:
        """How many alarms rang, and what was given back."""
        if self.timer is None or self.timer > self.now:
            return 0, []
        self.timer = None
        return 1, self._ring()

    def fire_stale(self) -> tuple[bool, list[Position]]:
        """An alarm rings that was cancelled: whether there was one."""
        if not self.cancelled:
            return False, []
        self.cancelled -= 1
        if self.closed:
            if FAILS_IN_FLIGHT in self.surprises:
                raise Refused("NullPointerException")
            return True, []
        return True, self._ring()

    def _ring(self) -> list[Position]:
        due: set[Position] = set()
        for key in sorted(self.buckets):
            if key <= self.now:
                for position in self.buckets.pop(key):
                    due |= {position, *self.chunks.pop((self._place(key), position), [])}
        if self.buckets and self.timer is None:
            self.timer = max(min(self.buckets), self.now)
        return sorted(due)

    def _place(self, key: int) -> int:
        """Where chunks are looked for: under the bucket, or in one place for all."""
        return 0 if CHUNKS_ASIDE in self.surprises else key

    @property
    def count(self) -> int:
        return sum(map(len, self.buckets.values()))

    def close(self) -> None:
        self.closed = True
        self.buckets.clear()
        self.chunks.clear()
        if self.timer is not None:
            self.timer = None
            self.cancelled += 1
