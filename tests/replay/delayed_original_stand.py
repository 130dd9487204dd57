"""The original's tracker on buckets behind the interface that the driver knows, and what a recording does to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bookstand.storage.format.position import Position
from tests.model.delayed import Refused
from tests.replay.delayed_lockstep import Line
from tests.replay.delayed_original import BITS, OriginalTracker
from tests.replay.delayed_original_storage import OriginalStorage
from tests.replay.delayed_stands import Messages, Settings
from tests.replay.delayed_surprises import ALARM_AFTER_CLOSE, IDS_ALONE


class OriginalStand:
    """``mended``: the surprises that it is without. ``met``: those that it has met."""

    def __init__(self, settings: Settings, later: bool, mended: Collection[str] = ()) -> None:
        self.later = later
        self.mended = frozenset(mended)
        self.met: set[str] = set()
        self.now = settings["start_ms"]
        self.passed: int | None = None
        self.cancelled: list[OriginalTracker] = []
        self.storage = OriginalStorage(settings["first_bucket_id"], self.meets)
        self.tracker: OriginalTracker | None = OriginalTracker(settings, self)

    def meets(self, surprise: str) -> bool:
        if surprise in self.mended:
            return False
        self.met.add(surprise)
        return True

    @property
    def open(self) -> OriginalTracker:
        if self.tracker is None:
            raise Refused("closed")
        return self.tracker

    # -- what is asked of a tracker ------------------------------------------------------------------------------------

    def move_clock(self, now: int) -> None:
        self.now = now

    def add(self, position: Position, time: int) -> bool:
        return self.open.add(position, time)

    def add_many(self, messages: Messages) -> list[bool]:
        return [self.open.add(position, time) for position, time in messages]

    def pop_due(self, limit: int) -> list[Position]:
        return self.open.pop_due(limit)

    def has_available(self) -> bool:
        return self.open.has_available()

    def should_pause(self) -> bool:
        return False

    def contains(self, position: Position) -> bool:
        """4.2.4 asks for a range of 32 bits that ends behind the entry."""
        waits = self.open.contains(position)
        if position.entry_id + 1 >> BITS and not self.later and self.meets(IDS_ALONE):
            if position.entry_id >> BITS:
                raise Refused("argument")
            return False
        return waits

    def fire(self) -> tuple[int, int]:
        tracker, rang = self.open, 0
        while tracker.timer is not None and tracker.timer <= self.now:
            tracker.ring()
            rang += 1
        return rang, rang

    def fire_stale(self) -> tuple[bool, int]:
        if not self.cancelled:
            return False, 0
        tracker = self.cancelled.pop()
        if tracker is self.tracker:
            tracker.ring_late()
            return True, 1
        if tracker.mutable and self.meets(ALARM_AFTER_CLOSE):
            raise Refused("closed")
        return True, 0

    def fire_cancelled(self) -> bool:
        return bool(self.cancelled)

    def reset_tick(self, tick: int) -> None:
        self.open.tick = tick

    def clear(self) -> None:
        self.open.clear()

    def close(self) -> None:
        if self.tracker is not None:
            self.tracker.set_timer(None)
        self.tracker = None

    def state(self) -> tuple[int, int | None]:
        return self.open.count, self.open.timer

    # -- what is done behind its back ----------------------------------------------------------------------------------

    def mark_delete(self, position: Position) -> None:
        self.passed = position.ledger_id

    def set_property(self, op: Line) -> None:
        self.storage.properties[op["key"]] = op["value"]

    def remove_property(self, op: Line) -> None:
        self.storage.properties.pop(op["key"], None)

    def move_property(self, op: Line) -> None:
        self.storage.properties[op["key"]] = self.storage.properties.pop(op["key"])

    def put_snapshot(self, op: Line) -> None:
        """Whatever recordings put there is damaged."""
        self.storage.snapshots[op["id"]] = []

    def drop_snapshot(self, op: Line) -> None:
        del self.storage.snapshots[op["id"]]

    def truncate_snapshot(self, op: Line) -> None:
        """The first of the entries that are kept is no segment."""
        self.storage.left[op["id"]] = op["keep"] - 1

    def fail(self, call: str, error: str, times: int) -> None:
        self.storage.fail(call, error, times)

    def heal(self) -> None:
        self.storage.failing.clear()

    def hold(self, calls: Sequence[str]) -> None:
        self.storage.holding.update(calls)

    def unhold(self) -> None:
        self.storage.release_all()

    def release(self, count: int | None, kind: str | None) -> None:
        self.storage.release(count, kind)

    def reopen(self, settings: Settings, crash: bool) -> None:
        self.close()
        if crash:
            self.storage.held.clear()
            self.cancelled.clear()
        self.storage.release_all()
        self.tracker = OriginalTracker(settings, self)

    def property_names(self) -> list[str]:
        return list(self.storage.properties)

    def snapshots(self) -> int:
        return len(self.storage.snapshots)
