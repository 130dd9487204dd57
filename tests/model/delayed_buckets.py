"""A plain model of the tracker of delayed messages on buckets: lists, and the rules for what is sealed, merged, loaded
and told again after a restart.

Calls can be made to fail by kind, a number of times: whatever fails may pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from bookstand.storage.format.position import Position
from tests.model.delayed import LAST, Refused

ATTEMPTS = 4
AHEAD_TICKS = 5
Index = tuple[int, int, int]  # time, ledger, entry


class Figures(NamedTuple):
    """What the recordings name for a tracker on buckets."""

    strict: bool
    tick: int
    minimum: int
    step: int
    most_indexes: int
    most_buckets: int


class Sealed:
    def __init__(self, first: int, last: int, segments: list[list[Index]], loaded: int) -> None:
        self.first = first
        self.last = last
        self.segments = segments
        self.loaded = loaded
        self.readable = len(segments)

    @property
    def next_time(self) -> int | None:
        return self.segments[self.loaded][0][0] if self.loaded < len(self.segments) else None

    def covers(self, ledger: int) -> bool:
        return self.first <= ledger <= self.last


class BucketsModel:
    """``present`` is what waits; ``mutable`` and ``loaded`` are what stands in memory, also of what waits no more."""

    def __init__(self, now: int, figures: Figures) -> None:
        self.now = now
        self.passed = -1
        self.failing: Counter[str] = Counter()
        # Calls that are told that there is no such snapshot.
        self.vanishing: Counter[str] = Counter()
        self.stored: list[Sealed] = []
        # Snapshots that no property names, and properties that name none.
        self.orphans: list[Sealed] = []
        self.dangling: list[str] = []
        self.trackers = 0
        # For each alarm that was cancelled, the tracker whose it was.
        self.cancelled: list[int] = []
        self.open(figures)

    def open(self, figures: Figures) -> None:
        """A tracker begins with what is stored."""
        self.figures, self.tick = figures, figures.tick
        self.trackers += 1
        self.closed = False
        self.present: set[Position] = set()
        self.moved: dict[Position, int] = {}
        self.forgotten: set[Position] = set()
        self.mutable: list[Index] = []
        self.range: tuple[int, int] | None = None
        self.seal_from = figures.minimum
        self.loaded: list[Index] = []
        self.buckets: list[Sealed] = []
        self.left_over = False
        self.timer: int | None = None
        self.timer_for: int | None = None
        self.last_run = 0
        self.earliest: int | None = None
        self.try_again_at: int | None = None
        self._recover()
        self.trim()
        self.update_timer()

    def _recover(self) -> None:
        expired: list[Sealed] = []
        found: list[Sealed] = []
        useless: list[Sealed] = []
        reach = -1
        for bucket in sorted(self.stored, key=lambda one: (one.first, -one.last)):
            if bucket.first <= reach:
                useless.append(bucket)
                continue
            reach = bucket.last
            if self.vanishing["metadata"] > 0:
                self.vanishing["metadata"] -= 1
                useless.append(bucket)
                continue
            self._read_or_refuse("metadata")
            due = 0
            while due < len(bucket.segments) and bucket.segments[due][-1][0] <= self.cutoff():
                due += 1
            if due == len(bucket.segments):
                expired.append(bucket)
                continue
            self._read_or_refuse("length")
            found.append(Sealed(bucket.first, bucket.last, bucket.segments, due))
            found[-1].readable = bucket.readable
        for bucket in found:
            for segment in bucket.segments[bucket.loaded :]:
                self.present |= {Position(ledger, entry) for _, ledger, entry in segment}
            self.buckets.append(bucket)
        self.stored = self.buckets + expired + useless
        # Where something is wrong, what no property names is looked for.
        wrong = useless or self.dangling
        doomed = [*expired, *useless, *(self.orphans if wrong else ())]
        if (doomed or wrong) and self.attempt(["delete"] * len(doomed)):
            self.stored = list(self.buckets)
            if wrong:
                self.orphans, self.dangling = [], []

    def _read_or_refuse(self, kind: str) -> None:
        if not self.attempt([kind]):
            raise Refused("unreadable")

    def attempt(self, kinds: Sequence[str]) -> bool:
        """Calls in a row, all of them tried again if one fails."""
        return any(all(self._call(kind) for kind in kinds) for _ in range(ATTEMPTS))

    def _call(self, kind: str) -> bool:
        if self.failing[kind] <= 0:
            return True
        self.failing[kind] -= 1
        return False

    # -- what is due ---------------------------------------------------------------------------------------------------

    def cutoff(self) -> int:
        return self.now if self.figures.strict else min(self.now + self.tick, LAST)

    def waits(self, index: Index) -> bool:
        position = Position(*index[1:])
        return position in self.present and self.moved.get(position, index[0]) == index[0]

    def _heads(self) -> list[int]:
        """What stands first in memory and waits no more goes."""
        heads = []
        for part in (self.mutable, self.loaded):
            part.sort()
            while part and not self.waits(part[0]):
                del part[0]
            heads += [part[0][0]] if part else []
        return heads

    def next_to_load(self) -> Sealed | None:
        more = [bucket for bucket in self.buckets if bucket.next_time is not None]
        return min(more, key=lambda bucket: bucket.next_time or 0, default=None)

    def next_time(self) -> int | None:
        times = self._heads()
        if (bucket := self.next_to_load()) is not None and bucket.next_time is not None:
            times.append(bucket.next_time)
        return min(times, default=None)

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, position: Position, time: int) -> bool:
        self._check_open()
        if min(position) < 0:
            raise Refused("argument")
        if time < 0 or time <= self.cutoff():
            self._forget(position)
            return False
        if position not in self.present:
            self._track(position, time)
            self.earliest = time if self.earliest is None else min(self.earliest, time)
        self.arm()
        return True

    def add_many(self, messages: Sequence[tuple[Position, int]]) -> list[bool]:
        """In one go: the alarm is set once."""
        tracked = []
        armed, self.arm = self.arm, lambda: None  # type: ignore[method-assign]
        try:
            tracked = [self.add(position, time) for position, time in messages]
        finally:
            self.arm = armed  # type: ignore[method-assign]
        if any(tracked):
            self.arm()
        return tracked

    def _track(self, position: Position, time: int) -> None:
        ledger = position.ledger_id
        covered = any(bucket.covers(ledger) for bucket in self.buckets)
        if not covered:
            self._make_way_for(ledger)
            covered = any(bucket.covers(ledger) for bucket in self.buckets)
        self.present.add(position)
        if position in self.forgotten:
            self.forgotten.discard(position)
            self.moved[position] = time
        if not covered and (self.range is None or ledger >= self.range[1]):
            self.range = (ledger if self.range is None else self.range[0]), ledger
            self.mutable.append((time, *position))
        else:
            self.loaded.append((time, *position))

    def _forget(self, position: Position) -> None:
        if position in self.present:
            self.present.discard(position)
            self.moved.pop(position, None)
            self.forgotten.add(position)

    def _make_way_for(self, ledger: int) -> None:
        if self.range is None or ledger <= self.range[1]:
            return
        if len(self.mutable) >= self.seal_from:
            self.seal()
        if self.range is not None and any(self.range[1] < bucket.first <= ledger for bucket in self.buckets):
            self.loaded += self.mutable
            self._empty_mutable()

    # -- sealing and merging -------------------------------------------------------------------------------------------

    def seal(self) -> None:
        assert self.range is not None
        first, last = self.range
        self.trim()
        indexes = sorted(filter(self.waits, self.mutable))
        if not indexes or last < self.passed:
            self.present -= {Position(*one[1:]) for one in indexes}
            self._empty_mutable()
            return
        new = Sealed(first, last, self._cut(indexes), 1)
        blocks = self._blocks(new, len(indexes))
        blocks.sort(key=lambda block: new in block)
        for block in blocks[:-1]:
            if not self._store(None, [], block):
                self.seal_from = 2 * len(self.mutable)
                return
        if self._store(new, indexes, blocks[-1] if blocks else []):
            self._empty_mutable()
        else:
            self.seal_from = 2 * len(self.mutable)

    def _store(self, new: Sealed | None, indexes: list[Index], block: Sequence[Sealed]) -> bool:
        """Create the new one, and make one of the block."""
        sources: list[Index] = []
        for bucket in block:
            if bucket is new:
                sources += indexes
            elif not self._read_all(bucket, sources):
                return False
        sources = sorted(set(sources))
        doomed = [bucket for bucket in block if bucket is not new]
        created = [] if new is None or new in block else [new]
        if sources:
            created.append(Sealed(block[0].first, block[-1].last, self._cut(sources), 0))
        if not self.attempt([*["delete"] * len(doomed), *["create"] * len(created)]):
            return False
        merged = {one[1:] for one in sources}
        self.loaded = [one for one in self.loaded if one[1:] not in merged]
        self.stored = [bucket for bucket in self.stored if bucket not in doomed] + created
        self.buckets = sorted(
            [*(bucket for bucket in self.buckets if bucket not in doomed), *created], key=lambda bucket: bucket.first
        )
        if new is not None and new not in block:
            self.loaded += new.segments[0]
        return True

    def _read_all(self, bucket: Sealed, found: list[Index]) -> bool:
        found += [one for one in self.loaded if bucket.covers(one[1]) and self.waits(one)]
        if bucket.next_time is None:
            return True
        if not self.attempt(["segments"]):
            return False
        found += [one for segment in bucket.segments[bucket.loaded :] for one in segment if self.waits(one)]
        return True

    def _blocks(self, new: Sealed, size: int) -> list[list[Sealed]]:
        """What is to be one, so that there are no more buckets than there may be: the two adjacent ones with the fewest
        messages, until that is so."""

        def weight(block: list[Sealed]) -> int:
            return sum(
                size if bucket is new else sum(bucket.covers(one.ledger_id) for one in self.present) for bucket in block
            )

        def first_to_load(block: list[Sealed]) -> int:
            return min((bucket.next_time for bucket in block if bucket.next_time is not None), default=LAST)

        blocks = [[bucket] for bucket in sorted([*self.buckets, new], key=lambda bucket: bucket.first)]
        while len(blocks) > self.figures.most_buckets > 0:
            pairs = [[*one, *other] for one, other in pairwise(blocks)]
            at = min(range(len(pairs)), key=lambda place: (weight(pairs[place]), first_to_load(pairs[place])))
            blocks[at : at + 2] = [pairs[at]]
        return [block for block in blocks if len(block) > 1]

    def _cut(self, indexes: Sequence[Index]) -> list[list[Index]]:
        segments: list[list[Index]] = []
        for one in indexes:
            full = segments and len(segments[-1]) == self.figures.most_indexes
            if not segments or full or one[0] > segments[-1][0][0] + self.figures.step - 1:
                segments.append([])
            segments[-1].append(one)
        return segments

    def _empty_mutable(self) -> None:
        self.mutable = []
        self.range = None
        self.seal_from = self.figures.minimum

    def trim(self) -> None:
        passed = [bucket for bucket in self.buckets if bucket.last < self.passed]
        if passed and self._remove(passed):
            self.present = {one for one in self.present if not any(bucket.covers(one.ledger_id) for bucket in passed)}

    def _remove(self, doomed: Sequence[Sealed]) -> bool:
        if not self.attempt(["delete"] * len(doomed)):
            return False
        self.buckets = [bucket for bucket in self.buckets if bucket not in doomed]
        self.stored = [bucket for bucket in self.stored if bucket not in doomed]
        return True

    # -- out -----------------------------------------------------------------------------------------------------------

    def pop_due(self, limit: int) -> list[Position]:
        self._check_open()
        cutoff = self.cutoff()
        self._move_due()
        found: list[Position] = []
        stuck = False
        while len(found) < limit:
            bucket = self.next_to_load()
            until = cutoff if bucket is None else min(cutoff, (bucket.next_time or 0) - 1)
            self.loaded.sort()
            while self.loaded and self.loaded[0][0] <= until and len(found) < limit:
                one = self.loaded.pop(0)
                if self.waits(one):
                    found += self._deliver(Position(*one[1:]))
            if len(found) >= limit or bucket is None or (bucket.next_time or 0) > cutoff:
                break
            if not self._load(bucket):
                stuck = True
                break
        self._remove_emptied()
        bucket = self.next_to_load()
        # What is due by now is loaded when it is asked for.
        if not stuck and bucket is not None and cutoff < (bucket.next_time or 0) <= cutoff + AHEAD_TICKS * self.tick:
            self._load(bucket)
        if not stuck and len(found) < limit:
            self._drop_passed()
            self._remove_emptied()
        self.update_timer()
        return sorted(found)

    def _remove_emptied(self) -> None:
        emptied = [bucket for bucket in self.buckets if not any(bucket.covers(one.ledger_id) for one in self.present)]
        if emptied:
            self._remove(emptied)

    def _move_due(self) -> None:
        cutoff = self.cutoff()
        self.loaded += [one for one in self.mutable if one[0] <= cutoff]
        self.mutable = [one for one in self.mutable if one[0] > cutoff]

    def _drop_passed(self) -> None:
        """As far as nothing comes before it that is not loaded."""
        self.loaded.sort()
        bucket = self.next_to_load()
        until = LAST if bucket is None else bucket.next_time or 0
        while self.loaded and self.loaded[0][0] <= until and self.loaded[0][1] < self.passed:
            one = self.loaded.pop(0)
            if self.waits(one):
                self._deliver(Position(*one[1:]))

    def _deliver(self, position: Position) -> list[Position]:
        """Nothing of ledgers that the cursor has passed."""
        self.present.discard(position)
        if self.moved.pop(position, None) is not None:
            self.forgotten.add(position)
        return [position] if position.ledger_id >= self.passed else []

    def _load(self, bucket: Sealed) -> bool:
        if not self.attempt(["segments"]):
            if (bucket.next_time or 0) <= self.cutoff():
                self.try_again_at = self.now + self.tick
            return False
        self.try_again_at = None
        if bucket.loaded == bucket.readable:
            self._give_up(bucket)
            return True
        self.loaded += filter(self.waits, bucket.segments[bucket.loaded])
        bucket.loaded += 1
        return True

    def _give_up(self, bucket: Sealed) -> None:
        """What is in memory of it is known still."""
        known = {one[1:] for one in self.loaded if self.waits(one)}
        self.present = {one for one in self.present if not bucket.covers(one.ledger_id) or one in known}
        self._remove([bucket])

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.present)

    def has_available(self) -> bool:
        while (time := self.next_time()) is not None and time <= self.cutoff():
            self.earliest = time
            bucket = self.next_to_load()
            if bucket is None or bucket.next_time != time:
                return True
            if not self._load(bucket):
                break
        self.update_timer()
        return False

    def contains(self, position: Position) -> bool:
        return position in self.present

    # -- the timer -----------------------------------------------------------------------------------------------------

    def update_timer(self) -> None:
        self.earliest = self.next_time()
        self.arm()

    def arm(self) -> None:
        time = self.earliest
        if self.try_again_at is not None and time is not None and time <= self.now:
            time = self.try_again_at
        if self.timer is not None and time == self.timer_for:
            return
        if self.timer is not None:
            self.timer = None
            self.cancelled.append(self.trackers)
        if time is not None and time > self.now:
            self.timer_for = time
            self.timer = max(time, min(self.last_run, self.now) + self.tick)

    def fire(self) -> int:
        if self.timer is None or self.timer > self.now:
            return 0
        self.timer = None
        self.last_run = self.now
        self._move_due()
        return 1

    def fire_stale(self) -> tuple[bool, int]:
        """Whether there was one, and how often it woke somebody: never, if its tracker was closed."""
        if not self.cancelled:
            return False, 0
        if self.closed or self.cancelled.pop() != self.trackers:
            return True, 0
        self.last_run = self.now
        self._move_due()
        return True, 1

    # -- life ----------------------------------------------------------------------------------------------------------

    def reset_tick(self, tick: int) -> None:
        self.tick = tick
        self.update_timer()

    def clear(self) -> None:
        self._check_open()
        if self.buckets and not self.attempt(["delete"] * len(self.buckets)):
            raise Refused("unwritable")
        self.stored = [bucket for bucket in self.stored if bucket not in self.buckets]
        self.present, self.moved, self.forgotten = set(), {}, set()
        self.loaded, self.buckets = [], []
        self.try_again_at = self.earliest = None
        self._empty_mutable()
        self.arm()

    def close(self) -> None:
        self.closed = True
        self.present, self.loaded, self.mutable = set(), [], []
        if self.timer is not None:
            self.timer = None
            self.cancelled.append(self.trackers)

    def _check_open(self) -> None:
        if self.closed:
            raise Refused("closed")
