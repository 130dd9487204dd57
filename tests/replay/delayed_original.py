"""What Pulsar's tracker on buckets does, as it was recorded, in version 4.2.4 and in the later tree, surprises and all.

A difference between a recording and the plain model is argued with it: see tests/replay/delayed_bucket_rules.py. The
surprises can be mended, each by itself, so that it is seen which of them a recording cannot do without.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Protocol

from bookstand.delivery.tracker.bucket.key import PREFIX, read_properties
from bookstand.storage.format.position import Position
from tests.model.delayed import LAST, Refused
from tests.replay.delayed_original_buckets import OriginalBucket, Pieces, Place, as_hashed, choose, cut
from tests.replay.delayed_original_storage import (
    DONE,
    Failed,
    Index,
    OriginalStorage,
    Steps,
    Task,
    Thrown,
    Work,
    all_of,
)
from tests.replay.delayed_stands import Settings
from tests.replay.delayed_surprises import (
    CLEAR_FORGETS,
    CLEAR_LEAVES_TIMER,
    CREATE_IN_TWO,
    CREATE_THAT_THROWS,
    GOES_ONCE_LOADED,
    HEADS_GONE,
    IDS_ALONE,
    LOAD_FAILS_ALL,
    LOAD_RINGS,
    MERGE_FAILS,
    MERGE_FOUR,
    MERGE_LEAVES_OUT,
    MERGE_NEVER,
    MERGE_OF_ITS_OWN,
    NO_ALARM_AT_FIRST,
    OVERLAPS,
    PASSED_EARLY,
    PASSED_TAIL,
    RECOVERY_FAILS_ALL,
    REMOVAL_IN_TWO,
    SEALS_OVER,
    STALE_ALARM,
    STAYS_TRACKED,
    TRIM_FAILS,
    TRIMS_WHEN_CROWDED,
)

WINDOW = 4
NO_NUMBER = "NumberFormatException"
BITS = 32


class Surroundings(Protocol):
    """``passed``: the ledger of the cursor's mark-delete position. ``cancelled``: whose each alarm was that is."""

    now: int
    passed: int | None
    later: bool
    storage: OriginalStorage
    cancelled: list[OriginalTracker]

    def meets(self, surprise: str) -> bool:
        """Whether the surprise is not mended; if so, it has been met."""


class OriginalTracker:
    """``mutable`` and ``shared`` are its two heaps, ``tails`` the ends of the segments that are loaded. ``bits`` is
    what waits: in 4.2.4 of what is in no bucket, in the later tree of all."""

    def __init__(self, settings: Settings, around: Surroundings) -> None:
        self.settings = settings
        self.around = around
        self.storage = around.storage
        self.later = around.later
        self.tick = settings["tick_ms"]
        self.count = 0
        self.mutable: list[Index] = []
        self.range = (-1, -1)
        # Where this is mended: those of the mutable bucket that waited no more, and whose messages came again.
        self.superseded: set[Index] = set()
        self.bits: set[Position] = set()
        self.shared: list[Index] = []
        self.buckets = Pieces()
        self.tails: dict[Position, OriginalBucket] = {}
        self.loading = self.trimming = self.last_change = DONE
        self.timer: int | None = None
        self.timer_for = -1
        self.last_run = 0
        self._recover()

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        doomed: dict[Place, OriginalBucket] = {}
        named = self._named()
        overlapping = any(one.place.touches(other.place) for one, other in combinations(named, 2))
        if overlapping and not self.around.meets(OVERLAPS):
            named = _apart(named, doomed)
        for bucket in named:
            self._put_recovered(bucket, doomed)
        recovering = [(place, bucket, Task.following(self._recover_bucket(bucket))) for place, bucket in self.buckets]
        for place, bucket, task in recovering:
            if task.error is not None:
                self._give_up_recovering(place, bucket, task.error)
            elif not task.value:
                doomed[place] = bucket
            else:
                self._has_loaded(bucket, task.value)
        for place, bucket in doomed.items():
            self.buckets.remove(place)
            Task.following(self._delete(bucket, REMOVAL_IN_TWO))
        self.count = sum(bucket.count for bucket in self.buckets.buckets)
        if self.later:
            self.bits = set().union(*(bucket.bits for bucket in self.buckets.buckets))
        if self._passed() and not self.around.meets(TRIMS_WHEN_CROWDED):
            Task.following(self._trim())
        if self.count and not self.around.meets(NO_ALARM_AT_FIRST):
            self.update_timer()

    def _give_up_recovering(self, place: Place, bucket: OriginalBucket, failed: Failed) -> None:
        if self.around.meets(RECOVERY_FAILS_ALL):
            raise Refused(NO_NUMBER if str(failed) == NO_NUMBER else "RecoverDelayedDeliveryTrackerException")
        self.storage.properties.pop(bucket.key)
        self.buckets.remove(place)

    def _has_loaded(self, bucket: OriginalBucket, segment: list[Index]) -> None:
        self.shared += segment
        self.tails[Position(*segment[-1][1:])] = bucket

    def _named(self) -> list[OriginalBucket]:
        """The buckets that properties name."""
        malformed = read_properties(self.storage.properties.items()).malformed
        if malformed and not self.around.meets(RECOVERY_FAILS_ALL):
            for key in malformed:
                del self.storage.properties[key]
        return [OriginalBucket(*_parsed(key), [], 0) for key in self.storage.properties if key.startswith(PREFIX)]

    def _put_recovered(self, bucket: OriginalBucket, doomed: dict[Place, OriginalBucket]) -> None:
        """Of ranges that lie across one another, the order of the properties decides."""
        across = [(place, other) for place, other in self.buckets if place.touches(bucket.place)]
        if self.later:
            inside = [(place, other) for place, other in across if bucket.place.holds(place)]
            if across and not inside:
                return
            doomed.update(inside)
        else:
            doomed.update((place.within(bucket.place), other) for place, other in across)
        self.buckets.put(bucket)

    def _recover_bucket(self, bucket: OriginalBucket) -> Steps:
        bucket_id = self._id_of(bucket)
        segments = yield self.storage.persistently("metadata", lambda: self.storage.read(bucket_id), RECOVERY_FAILS_ALL)
        due = 0
        while due < len(segments) and segments[due][-1][0] <= self.cutoff():
            due += 1
        bucket.starts = [segment[0][0] for segment in segments]
        bucket.bits = {Position(*one[1:]) for segment in segments[due:] for one in segment}
        bucket.count = sum(len({one[1:] for one in segment}) for segment in segments[due:])
        if due == len(segments):
            return []
        (segment,) = yield self.storage.persistently(
            "segments", lambda: self.storage.read_segments(bucket_id, due + 1, due + 1), RECOVERY_FAILS_ALL
        )
        bucket.current = due + 1
        bucket.loaded_early = True
        yield self.storage.persistently("length", lambda: self.storage.read(bucket_id), RECOVERY_FAILS_ALL)
        return segment

    def _id_of(self, bucket: OriginalBucket) -> int:
        """Once it has been created, the property tells."""
        if bucket.bucket_id is None:
            number = _java_long(self.storage.properties.get(bucket.key, ""))
            if number is None:
                raise Failed(NO_NUMBER)
            bucket.bucket_id = number
        return bucket.bucket_id

    # -- what is due ---------------------------------------------------------------------------------------------------

    def cutoff(self) -> int:
        now = self.around.now
        return now if self.settings["strict"] else now + self.tick

    def next_time(self, *, adding: bool = False) -> int:
        """Of what stands first in the heaps, whether it waits or not: in the later tree, what is delivered or was
        refused may stand there again. Where that is mended, it goes when somebody asks, not with the next message."""
        parts = [self.mutable, self.shared]
        gone = not adding and self.later and any(part and not self._waits(min(part)) for part in parts)
        if gone and not self.around.meets(HEADS_GONE):
            for part in parts:
                part[:] = (one for one in part if self._waits(one) or Position(*one[1:]) in self.tails)
            parts = [[one for one in part if self._waits(one)] for part in parts]
        return min((min(part)[0] for part in parts if part), default=LAST)

    def _waits(self, index: Index) -> bool:
        return index not in self.superseded and self.contains(Position(*index[1:]))

    def contains(self, position: Position) -> bool:
        return any(position in bits for bits in self._bits_of(position.ledger_id))

    def _bits_of(self, ledger: int) -> list[set[Position]]:
        bucket = None if self.later else self.buckets.covering(ledger)
        return [self.bits] if bucket is None else [self.bits, bucket.bits]

    def _remove_bit(self, position: Position) -> bool:
        if position in self.bits:
            self.bits.discard(position)
            return True
        bucket = None if self.later else self.buckets.covering(position.ledger_id)
        if bucket is None or position not in bucket.bits:
            return False
        bucket.bits.discard(position)
        bucket.count = max(bucket.count - 1, 0)
        return True

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, position: Position, time: int) -> bool:
        if position.entry_id < 0:
            raise Refused("argument")
        if time < 0 or time <= self.cutoff():
            stays = not self.later and self.contains(position) and self.around.meets(STAYS_TRACKED)
            if not stays and self._remove_bit(position):
                self.count -= 1
            return False
        if self.contains(position):
            return True
        if position.entry_id >> BITS and self.around.meets(IDS_ALONE):
            raise Refused("argument")
        stale = [one for one in self.mutable if one[1:] == position]
        if stale and not self.around.meets(HEADS_GONE):
            self.superseded.update(stale)
        self._part_for(position.ledger_id).append((time, *position))
        self.bits.add(position)
        self.count += 1
        self.update_timer(adding=True)
        return True

    def _part_for(self, ledger: int) -> list[Index]:
        """Where a message of this ledger is to wait."""
        if self.buckets.covering(ledger) is not None:
            return self.shared
        if ledger > self.range[1]:
            self._end_mutable(ledger)
        first, last = self.range
        if ledger < last:
            return self.shared
        self.range = (ledger if first == -1 else first), ledger
        return self.mutable

    def _end_mutable(self, ledger: int) -> None:
        """Before a message of a ledger behind those of the mutable bucket."""
        if len(self.mutable) >= max(self.settings["min_index_count_per_bucket"], 1):
            # Here a seal is one commit with the merge that it makes necessary, and waits for what fails.
            if self._merge_would_fail() and not self.around.meets(REMOVAL_IN_TWO):
                return
            self._make_room()
            if self.mutable:
                self._seal()
            if self._too_many() and self.trimming.done:
                self.trimming = Task.following(self._trim_and_merge())
        elif self._lies_before_another(ledger) and not self.around.meets(SEALS_OVER):
            # Here it ends, however small it is.
            self.shared += self.mutable
            self.mutable, self.range = [], (-1, -1)

    def _lies_before_another(self, ledger: int) -> bool:
        """Sealed later, with this ledger, the mutable bucket would lie across another one."""
        last = self.range[1]
        return last != -1 and any(2 * last < place.first < 2 * ledger for place, _ in self.buckets)

    def _merge_would_fail(self) -> bool:
        return self.storage.will_fail("delete") and 0 < self.settings["max_num_buckets"] <= len(self.buckets)

    def _seal(self) -> None:
        indexes, self.mutable = sorted(self.mutable), []
        waiting = [one for one in indexes if self._waits(one)]
        if len(waiting) < len(indexes) and not (self.later and self.around.meets(HEADS_GONE)):
            indexes = waiting
        if not indexes:
            self.range = (-1, -1)
            return
        if not self.later:
            self.bits -= {Position(*one[1:]) for one in indexes}
        try:
            self._create(*self.range, indexes)
        except Thrown:
            raise Refused("RuntimeException") from None
        self.range = (-1, -1)

    def _create(self, first: int, last: int, indexes: Sequence[Index]) -> OriginalBucket:
        settings = self.settings
        most = settings["max_indexes_per_segment"]
        segments = cut(indexes, settings["time_step_per_segment_ms"], most if most == -1 else max(most, 1))
        self.shared += segments[0]
        bucket = OriginalBucket(first, last, segments, 1)
        saving = Task.following(self._save(bucket, segments))
        if isinstance(saving.error, Thrown):
            raise saving.error
        self.buckets.put(bucket)
        tail = Position(*segments[0][-1][1:])
        self.tails[tail] = bucket
        bucket.creation = Task.following(self._created(bucket, saving, tail, segments[1:]))
        return bucket

    def _save(self, bucket: OriginalBucket, segments: list[list[Index]]) -> Steps:
        throws = any(error.startswith("throw") for error in self.storage.failing.get("create", ()))
        because = CREATE_THAT_THROWS if throws else CREATE_IN_TWO
        bucket_id = yield self.storage.persistently("create", lambda: self.storage.create(segments), because)
        bucket.bucket_id = bucket_id
        try:
            properties = self.storage.properties
            yield self._in_turn("put_property", lambda: properties.update({bucket.key: str(bucket_id)}), CREATE_IN_TWO)
        except Failed:
            """Nobody is told."""
        return bucket_id

    def _created(self, bucket: OriginalBucket, saving: Task, tail: Position, rest: list[list[Index]]) -> Steps:
        """Whether it could be saved. What could not be is in memory."""
        try:
            bucket_id = yield saving
        except Failed:
            self.shared += [one for segment in rest for one in segment]
            bucket.current = bucket.segments
            self.buckets.remove(bucket.place)
            self.tails.pop(tail, None)
            return False
        self.storage.persistently("length", lambda: self.storage.read(bucket_id), CREATE_IN_TWO)
        return True

    # -- trimming and merging ------------------------------------------------------------------------------------------

    def _too_many(self) -> bool:
        most: int = self.settings["max_num_buckets"]
        return 0 < most < len(self.buckets)

    def _passed(self) -> list[tuple[Place, OriginalBucket]]:
        passed = self.around.passed
        return [] if passed is None else as_hashed(piece for piece in self.buckets if piece[0].last < 2 * passed)

    def _make_room(self) -> None:
        """Where this is mended: before a bucket is sealed. What the cursor has passed is not sealed at all."""
        passed = self.around.passed
        gone = passed is not None and self.range[1] < passed
        if (gone or self._passed()) and not self.around.meets(TRIMS_WHEN_CROWDED):
            Task.following(self._trim())
            if gone:
                for _, *position in self.mutable:
                    self.count -= self._remove_bit(Position(*position))
                self.mutable, self.range = [], (-1, -1)

    def _trim_and_merge(self) -> Steps:
        yield Task.following(self._trim())
        if self._too_many() and self.around.meets(MERGE_OF_ITS_OWN):
            as_here = not self.around.meets(MERGE_FOUR)
            yield Task.following(self._merge(self._two_smallest() if as_here else self._choose()))

    def _trim(self) -> Steps:
        for place, bucket in self._passed():
            yield Task.following(self._delete(bucket, TRIM_FAILS))
            self.buckets.remove(place)
            self.tails = {at: one for at, one in self.tails.items() if one is not bucket}
            self.count -= len(self.bits & bucket.bits) if self.later else bucket.count
            self.bits -= bucket.bits
            late = {one for one in self.bits if bucket.first <= one.ledger_id <= bucket.last}
            if late and not self.around.meets(TRIMS_WHEN_CROWDED):
                self.bits -= late
                self.count -= len(late)

    def _merge(self, chosen: list[OriginalBucket]) -> Steps:
        for bucket in chosen:
            bucket.merging = True
        try:
            if chosen:
                yield Task.following(self._merge_them(chosen))
        finally:
            for bucket in chosen:
                bucket.merging = False

    def _two_smallest(self) -> list[OriginalBucket]:
        """As it is done here."""
        pairs = [list(pair) for pair in pairwise(self.buckets.buckets)]
        able = [pair for pair in pairs if not any(one.merging for one in pair)]
        return min(able, key=lambda pair: sum(map(self._waiting_of, pair)), default=[])

    def _choose(self) -> list[OriginalBucket]:
        buckets = self.buckets.buckets
        if not self.later:
            try:
                return self._choose_too_far(buckets)
            except IndexError:
                if self.around.meets(MERGE_NEVER):
                    raise Failed("IndexOutOfBoundsException") from None
        return next((found for width in range(WINDOW, 1, -1) if (found := choose(buckets, width, 1))), [])

    def _choose_too_far(self, buckets: list[OriginalBucket]) -> list[OriginalBucket]:
        """The first time of the segment behind the next one; of windows that are less than all."""
        for width in range(WINDOW, 1, -1):
            if width >= len(buckets):
                raise IndexError
            if found := choose(buckets, width, 2):
                return found
        return []

    def _merge_them(self, sources: list[OriginalBucket]) -> Steps:
        yield Task.following(all_of(one.creation for one in sources))
        if any(one.creation.value is False for one in sources):
            raise Failed("create")
        reading = [Task.following(self._read_rest(one)) for one in sources]
        yield Task.following(all_of(reading))
        indexes = sorted(one for task in reading for one in task.value)
        late = self._late(sources, indexes)
        if late and self.around.meets(MERGE_LEAVES_OUT):
            late = []
        self.shared = [one for one in self.shared if one not in late]
        indexes = sorted(indexes + late)
        waiting = [one for one in indexes if self._waits(one)]
        if self.later and len(waiting) < len(indexes) and not self.around.meets(HEADS_GONE):
            indexes = waiting
        if not indexes:
            return
        if not self.later:
            self.bits -= {Position(*one[1:]) for one in indexes}
        merged = self._create(sources[0].first, sources[-1].last, indexes)
        merged.loaded_early = True
        merged.bits = {Position(*one[1:]) for one in late}.union(*(one.bits for one in sources))
        Task.following(self._remove_sources(merged, sources))
        for one in sources:
            self.buckets.remove(one.place)

    def _late(self, sources: Sequence[OriginalBucket], indexes: Sequence[Index]) -> list[Index]:
        """What waits of these ledgers in memory alone."""
        first, last = sources[0].first, sources[-1].last
        stored = {one[1:] for one in indexes}
        return sorted(
            one for one in set(self.shared) if first <= one[1] <= last and one[1:] not in stored and self._waits(one)
        )

    def _read_rest(self, bucket: OriginalBucket) -> Steps:
        first = 1 if self.later or not self.around.meets(MERGE_LEAVES_OUT) else bucket.current + 1
        bucket_id = self._id_of(bucket)
        segments = yield self.storage.persistently(
            "segments", lambda: self.storage.read_segments(bucket_id, first, bucket.segments), MERGE_FAILS
        )
        return [one for segment in segments for one in segment]

    def _remove_sources(self, merged: OriginalBucket, sources: list[OriginalBucket]) -> Steps:
        """Whatever became of the merged one."""
        yield merged.creation
        yield Task.following(all_of([Task.following(self._delete(one, REMOVAL_IN_TWO)) for one in sources]))

    def _delete(self, bucket: OriginalBucket, because: str) -> Steps:
        bucket_id = self._id_of(bucket)
        yield self.storage.persistently("delete", lambda: self.storage.delete(bucket_id), because)
        yield self._in_turn("remove_property", lambda: self.storage.properties.pop(bucket.key, None), because)

    def _in_turn(self, kind: str, work: Work, because: str) -> Task:
        """Changes of properties wait for one another."""
        self.last_change = Task.following(self._after(self.last_change, kind, work, because))
        return self.last_change

    def _after(self, before: Task, kind: str, work: Work, because: str) -> Steps:
        try:
            yield before
        except Failed:
            """It is over."""
        yield self.storage.persistently(kind, work, because)

    # -- out -----------------------------------------------------------------------------------------------------------

    def pop_due(self, limit: int) -> list[Position]:
        if not self.loading.done:
            return []
        self._move_due()
        found: set[Position] = set()
        while limit > 0 and (head := self._next_out()) is not None:
            self.shared.remove(head)
            if head in self.superseded:
                continue
            position = Position(*head[1:])
            waited = self._remove_bit(position)
            # 4.2.4 does not look whether it waits.
            if self._is_passed(position) or (self.later and not waited):
                self.count -= waited
            else:
                found.add(position)
                limit -= 1
                self.count -= 1
        emptied = [bucket for _, bucket in self.buckets if not self._waiting_of(bucket)]
        if emptied and not self.around.meets(GOES_ONCE_LOADED):
            for bucket in emptied:
                self._drop(bucket)
        self.update_timer()
        return sorted(found)

    def _next_out(self) -> Index | None:
        """What may leave memory next, to be delivered or because the cursor has passed it. Where it ends a segment, the
        one behind that is loaded first."""
        head = min(self.shared, default=None)
        if head is None:
            return None
        position = Position(*head[1:])
        passed = self._is_passed(position)
        if head[0] > self.cutoff() and not (passed and self.around.meets(PASSED_EARLY)):
            return None
        waits = self._ends_segment(position) and not (passed and self.around.meets(PASSED_TAIL))
        return None if waits and not self._loads_behind(position) else head

    def _is_passed(self, position: Position) -> bool:
        return self.around.passed is not None and position.ledger_id < self.around.passed

    def _ends_segment(self, position: Position) -> bool:
        return position in self.tails and self.tails[position] in self.buckets

    def _loads_behind(self, tail: Position) -> bool:
        """Whether what follows the end of a segment is there now."""
        bucket = self.tails[tail]
        if bucket.merging or not bucket.creation.done:
            return False
        self.loading = Task.following(self._load_next(bucket, tail))
        return self.loading.done and self.loading.error is None

    def _waiting_of(self, bucket: OriginalBucket) -> int:
        """What waits of its ledgers, whatever it came with."""
        return sum(
            bucket.first <= one.ledger_id <= bucket.last
            for one in (self.bits if self.later else self.bits | bucket.bits)
        )

    def _drop(self, bucket: OriginalBucket) -> None:
        self.buckets.remove(bucket.place)
        Task.following(self._delete(bucket, REMOVAL_IN_TWO))

    def _move_due(self) -> None:
        cutoff = self.cutoff()
        self.shared += [one for one in self.mutable if one[0] <= cutoff]
        self.mutable = [one for one in self.mutable if one[0] > cutoff]

    def _load_next(self, bucket: OriginalBucket, tail: Position) -> Steps:
        number = bucket.current + 1
        try:
            bucket_id = self._id_of(bucket)
            if number > bucket.segments:
                self.tails.pop(tail, None)
                if self.around.meets(GOES_ONCE_LOADED):
                    self._drop(bucket)
                return
            (segment,) = yield self.storage.persistently(
                "segments", lambda: self.storage.read_segments(bucket_id, number, number), LOAD_FAILS_ALL
            )
        except Failed:
            if self.around.meets(LOAD_FAILS_ALL):
                raise
            # It is given up.
            self.tails.pop(tail)
            self.buckets.remove(bucket.place)
        else:
            bucket.current = number
            self.tails.pop(tail, None)
            self._has_loaded(bucket, segment)
        finally:
            # Somebody is to be told that there may be more.
            if self.around.meets(LOAD_RINGS):
                self.timer_for = -1
                self.set_timer(self.around.now)

    # -- questions -----------------------------------------------------------------------------------------------------

    def has_available(self) -> bool:
        if self.count and self.next_time() <= self.cutoff():
            return True
        self.update_timer()
        return False

    # -- the timer -----------------------------------------------------------------------------------------------------

    def update_timer(self, *, adding: bool = False) -> None:
        now, is_set = self.around.now, self.timer is not None
        time = self.next_time(adding=adding) if self.count else None
        # What an alarm was for that was cancelled is taken for what one is for.
        if time is not None and time == self.timer_for and (is_set or time <= now or self.around.meets(STALE_ALARM)):
            return
        if is_set and (self.later or time is None):
            self.timer_for = -1
        self.set_timer(None)
        if time is not None and time > now:
            self.timer_for = time
            self.set_timer(max(time, self.last_run + self.tick))

    def set_timer(self, target: int | None) -> None:
        if self.timer is not None:
            self.around.cancelled.append(self)
        self.timer = target

    def ring(self) -> None:
        self.timer, self.timer_for = None, -1
        self.ring_late()

    def ring_late(self) -> None:
        """It had been cancelled: another one that is set stays."""
        self._move_due()
        self.last_run = self.around.now

    # -- life ----------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        # What passes when it is tried again passes here.
        because = "" if self.storage.will_fail("delete") else CLEAR_FORGETS
        self.trimming = Task.following(self._clear(self.trimming, because))
        if self.trimming.error is not None and not self.around.meets(CLEAR_FORGETS):
            raise Refused("unwritable")

    def _clear(self, before: Task, because: str) -> Steps:
        try:
            yield before
        except Failed:
            """It is over."""
        pieces = as_hashed(self.buckets) if self.later else list(self.buckets)
        deleting = [Task.following(self._delete_created(bucket, because)) for _, bucket in pieces]
        self.buckets.clear()
        self.shared, self.mutable, self.range = [], [], (-1, -1)
        self.tails, self.bits, self.count = {}, set(), 0
        if self.timer is not None and not self.around.meets(CLEAR_LEAVES_TIMER):
            self.update_timer()
        yield Task.following(all_of(deleting))

    def _delete_created(self, bucket: OriginalBucket, because: str) -> Steps:
        yield bucket.creation
        yield Task.following(self._delete(bucket, because))


def _java_long(text: str) -> int | None:
    """The number that Java reads: with a sign, and of any script's digits."""
    number = int(text) if re.fullmatch(r"[+-]?\d+", text) else None
    return number if number is not None and -LAST - 1 <= number <= LAST else None


def _parsed(key: str) -> tuple[int, int]:
    """The ledgers that a property's name says. Empty parts at its end are none."""
    parts = key.rstrip("_").split("_")
    if len(parts) != 3:
        raise Refused("argument")
    first, last = map(_java_long, parts[1:])
    if first is None or last is None:
        raise Refused(NO_NUMBER)
    if first > last:
        raise Refused("argument")
    return first, last


def _apart(named: Sequence[OriginalBucket], doomed: dict[Place, OriginalBucket]) -> list[OriginalBucket]:
    """As it is done here: what lies across another one that begins before it goes."""
    kept: list[OriginalBucket] = []
    for bucket in sorted(named, key=lambda one: (one.first, -one.last)):
        if kept and bucket.first <= kept[-1].last:
            doomed[bucket.place] = bucket
        else:
            kept.append(bucket)
    return kept
