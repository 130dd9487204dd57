"""A plain model of the in-memory tracker of delayed messages: one dict, and the rules for its timer.

``surprises`` turns on what the original does and bookstand does not, each by itself, so that a recording can be told to
be exactly that: see tests/replay/delayed_rules.py.
"""

from __future__ import annotations

from collections.abc import Collection

from bookstand.storage.format.position import Position

LAST = (1 << 63) - 1

TWO_KEYS = "two-keys"
STAYS_TRACKED = "stays-tracked"
WIDTH_STAYS = "width-stays"
KEY_CAP = "key-cap"
CLEAR_LEAVES_TIMER = "clear-leaves-timer"
NEGATIVE_IDS = "negative-ids"
IDS_OF_32_BITS = "ids-of-32-bits"
SURPRISES = (TWO_KEYS, STAYS_TRACKED, WIDTH_STAYS, KEY_CAP, CLEAR_LEAVES_TIMER, NEGATIVE_IDS, IDS_OF_32_BITS)


class Refused(Exception):  # noqa: N818 - what an operation answers, not what went wrong in the model
    """``kind`` is a word that tells why."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class DelayedModel:
    """``keys`` has a set for each position, of one key but for the surprise of two."""

    def __init__(
        self, now: int, tick: int, strict: bool, lookahead: int, surprises: Collection[str] = frozenset()
    ) -> None:
        self.now = now
        self.tick = tick
        self.strict = strict
        self.lookahead = lookahead
        self.surprises = frozenset(surprises)
        self.width = width_of(tick)
        self.keys: dict[Position, set[int]] = {}
        self.closed = False
        self.fixed = True
        self.highest = 0
        self.timer: int | None = None
        self.timer_for: int | None = None
        self.cancelled = 0
        self.last_run = 0

    # -- what is due ---------------------------------------------------------------------------------------------------

    def cutoff(self) -> int:
        return self.now if self.strict else self.now + self.tick

    def key_cutoff(self) -> int:
        return self.cutoff() if self.strict else self.cutoff() - self.width + 1

    def key(self, time: int) -> int:
        if not self.strict:
            return time - time % self.width
        up = -(-time // self.width) * self.width
        if up <= LAST:
            return up
        return up - self.width if KEY_CAP in self.surprises else LAST

    def next_key(self) -> int | None:
        return min((min(keys) for keys in self.keys.values()), default=None)

    def available(self) -> bool:
        key = self.next_key()
        return key is not None and key <= self.key_cutoff()

    # -- in and out ----------------------------------------------------------------------------------------------------

    def add(self, position: Position, time: int) -> bool:
        """Whether it is tracked."""
        if self.closed:
            raise Refused("closed")
        if NEGATIVE_IDS not in self.surprises and min(position) < 0:
            raise Refused("argument")
        if time < 0 or time <= self.cutoff():
            self.fixed = False
            if STAYS_TRACKED not in self.surprises and self.keys.pop(position, set()):
                self.update_timer()
            return False
        if IDS_OF_32_BITS in self.surprises and position.entry_id >> 32:
            raise Refused("argument")
        if time < self.highest - self.tick:
            self.fixed = False
        self.highest = max(self.highest, time)
        keys = self.keys.setdefault(position, set())
        if not keys or TWO_KEYS in self.surprises:
            keys.add(self.key(time))
        self.update_timer()
        return True

    def pop_due(self, limit: int) -> list[Position]:
        cutoff = self.key_cutoff()
        due = [(key, position) for position, keys in self.keys.items() for key in keys if key <= cutoff]
        given = sorted(due, key=lambda one: (one[0], *(number % (1 << 64) for number in one[1])))[:limit]
        for key, position in given:
            self.keys[position].discard(key)
            if not self.keys[position]:
                del self.keys[position]
        if not self.keys:
            self.fixed, self.highest = True, 0
        self.update_timer()
        return sorted({position for _, position in given})

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return sum(map(len, self.keys.values()))

    def has_available(self) -> bool:
        available = self.available()
        if not available:
            self.update_timer()
        return available

    def should_pause(self) -> bool:
        return self.lookahead > 0 and self.fixed and self.count >= self.lookahead and not self.available()

    # -- the timer -----------------------------------------------------------------------------------------------------

    def update_timer(self) -> None:
        key = self.next_key()
        if self.timer is not None and key == self.timer_for:
            return
        if self.timer is not None:
            self.timer = None
            self.cancelled += 1
        if key is not None and key > self.now:
            self.timer_for = key
            self.timer = max(key, self.last_run + self.tick)

    def fire(self) -> int:
        """How many rang."""
        if self.timer is None or self.timer > self.now:
            return 0
        self.timer = None
        self.last_run = self.now
        return 1

    def fire_stale(self) -> bool:
        if not self.cancelled:
            return False
        self.cancelled -= 1
        self.last_run = self.now
        return True

    # -- life ----------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """The original leaves its timer as it is, until somebody asks what is due."""
        self.keys.clear()
        if CLEAR_LEAVES_TIMER not in self.surprises:
            self.update_timer()

    def reset_tick(self, tick: int) -> None:
        self.tick = tick
        if WIDTH_STAYS in self.surprises:
            return
        self.width = width_of(tick)
        self.keys = {position: {self.key(key) for key in keys} for position, keys in self.keys.items()}
        self.update_timer()

    def close(self) -> None:
        self.closed = True
        self.keys.clear()
        self.timer = None


def width_of(tick: int) -> int:
    """The largest power of two that is not above the tick."""
    return 1 << (tick.bit_length() - 1)
