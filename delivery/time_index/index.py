"""The time index: time bucket -> ledger -> entries, for messages that wait for their time.

A message is in one of four places, and moves from one to the next when there is enough to make it worth while::

    add, handle ──► arrivals ──┐
                               ├──► hot (hot.py) ──────────┐
    add_many, add_range ───────┤                           ├──► sealed (sealed.py)
                               └──► staging (staging.py) ──┘

* Arrivals are what single calls have left: packed triples, and the entries of every handle. This is all that changes
  without the lock, and only by operations that the interpreter does not interrupt: an addition goes to the end, and
  whoever moves the arrivals on takes a copy of the front and then removes as much.
* No message is in two of hot and the sealed parts; so their counts add up to what there is.
* Staging may hold what is there, or in hot, already. It is sealed before anything is counted, looked for or given out.

Ordered messages are runs of entries in few buckets, which go to hot; messages with random times go to staging.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import index, sub
from threading import RLock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.time_index.bitmap_rows import BitmapRows
from bookstand.delivery.time_index.composite_key import codes_for, sort, within_pages
from bookstand.delivery.time_index.due_batch import DueBatch, Segment
from bookstand.delivery.time_index.precision import MAX_TIME, MIN_TIME, PowerOfTwoPrecision, Precision, relative
from bookstand.delivery.time_index.rows import Column, Rows, Run, concatenate, from_tuples, singles, starts_of_runs
from bookstand.delivery.time_index.run_detection import is_run, runs_in_order
from bookstand.delivery.time_index.sealed_part import KeyBounds, SealedPart, seal
from bookstand.delivery.time_index.staging_buffer import Staging
from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.storage.process.fork_guard import ProcessBound

__all__ = ["DueBatch", "Precision", "Segment", "TimeIndex", "relative"]

Columnlike = Sequence[int] | NDArray[np.integer[Any]]

Offer = tuple[BitmapRows | SealedPart, list[Rows]]

MAX_ID = (1 << 63) - 1
MAX_RANGE = 1 << 31

_NO_IDS = "ledger ids and entry ids are not negative"
# Packing refuses what is negative; what is too large reads as negative. Where C's longs have as many bits they are the
# fastest to pack.
_pack = struct.Struct("lLL" if struct.calcsize("l") == 8 else "qQQ").pack
_triple = struct.Struct("qqq")
_HANDFUL = 16
"""As many arrivals are faster moved one by one than as columns."""
_MAX_ARRIVALS = 4096
"""So many packed triples an addition moves on; few enough for memory that is at hand already."""
_BYTES_OF_ARRIVAL = 64
_STAGED = 1 << 18
"""Rows that are sealed together: more take no less space, and fewer make more parts to look into."""
_HOT_BITMAPS = 4096
"""A bitmap of a single run takes some four hundred bytes, a sealed run a few."""
_COMPACT_STAGED, _COMPACT_HOT_BITMAPS = 1 << 16, 256
_LONG_RUNS = 32
"""Rows that are runs of this length on the average go to hot; sealing more, shorter ones is cheaper."""
_FEW = 64
"""As many runs go to hot however short they are."""
_SAMPLED = 1024
_SAMPLE = 16
"""In a batch of so many rows, so many are looked at first: if most have a bucket of their own, runs are not sought."""
_TIER = 8
"""So many sealed parts of about one size become one; about: by powers of it."""
_PIECE = 1 << 20
"""Runs are compared with sealed parts entry by entry, no more than about so many at a time."""
_HANDLES = 64
"""After so many, and after twice as many as were in use then, one looks for handles that nobody has any more."""


class TimeIndex(ProcessBound):
    """All methods are safe between threads; nothing is lost, and nothing given out twice."""

    def __init__(
        self,
        precision_bits: int = 0,
        *,
        round_up: bool = False,
        precision: Precision | None = None,
        compact: bool = False,
    ) -> None:
        """A bucket is a timestamp rounded down, or up, to a multiple of ``2**precision_bits``, or by ``precision``.

        ``compact``: pack fewer messages at a time, which takes less memory beside what is packed, and more CPU.
        """
        if precision is not None and (precision_bits or round_up):
            raise IncorrectParameterError("the precision is a number of bits, or an object, and not both")
        self._precision = PowerOfTwoPrecision(precision_bits, round_up) if precision is None else precision
        self._hot_bitmaps = _COMPACT_HOT_BITMAPS if compact else _HOT_BITMAPS
        self._lock = RLock()
        self._arrivals: list[bytes] = []
        self._handles: dict[tuple[int, int], array[int]] = {}
        self._many_handles = _HANDLES
        self._staging = Staging(_COMPACT_STAGED if compact else _STAGED)
        self._hot = BitmapRows()
        self._sealed: list[SealedPart] = []
        # What is behind this (ledger, entry) is in no sealed part.
        self._last_sealed = (-1, -1)

    # -- adding --------------------------------------------------------------------------------------------------------

    def key(self, timestamp: int) -> int:
        """The bucket that a timestamp goes to."""
        return self._precision.key(_time(timestamp))

    def add(self, timestamp: int, ledger_id: int, entry_id: int) -> None:
        """Add one message, without the lock. A precision that asks for the time does so when it is moved on, and an id
        above the highest one is refused then, by whatever call does that."""
        arrivals = self._arrivals
        try:
            arrivals.append(_pack(timestamp, ledger_id, entry_id))
        except (struct.error, TypeError):
            raise _wrong(timestamp, ledger_id, entry_id) from None
        if len(arrivals) >= _MAX_ARRIVALS:
            with self._lock:
                self._move_arrivals()

    def handle(self, timestamp: int, ledger_id: int) -> Callable[[int], None]:
        """A function that adds entries of one ledger to the bucket of one timestamp, for as long as it is kept.

        The bucket is that of now: with a precision that asks for the time, a handle is not for keeping.

        It refuses with the interpreter's errors: OverflowError for a negative entry, TypeError for what is no integer.
        An entry above the highest one it cannot tell from others; the next call of the index refuses it. Until that
        call an entry takes eight bytes.
        """
        group = self.key(timestamp), _id("ledger", ledger_id)
        with self._lock:
            entries = self._handles.get(group)
            if entries is None:
                if len(self._handles) >= self._many_handles:
                    if (refused := self._move_handles()) is not None:
                        raise refused
                    self._many_handles = max(_HANDLES, 2 * len(self._handles))
                entries = self._handles[group] = array("Q")
            return entries.append

    def add_range(self, timestamp: int, ledger_id: int, first: int, last: int) -> None:
        """The entries from the first to the last."""
        key = self.key(timestamp)
        ledger_id, first, last = _id("ledger", ledger_id), _id("entry", first), _id("entry", last)
        if not 0 < last - first + 1 <= MAX_RANGE:
            raise IncorrectParameterError(
                f"a range has from 1 to {MAX_RANGE} entries, not those from {first} to {last}"
            )
        with self._lock:
            self._heat([(key, ledger_id, first, last - first + 1)])

    def add_many(self, timestamps: Columnlike | int, ledger_ids: Columnlike | int, entry_ids: Columnlike) -> None:
        """Columns; a single timestamp or ledger id stands for a column of it."""
        entries = _column("entry ids", entry_ids)
        times = _column("timestamps", timestamps, len(entries))
        ledgers = _column("ledger ids", ledger_ids, len(entries))
        if not len(entries):
            return
        with self._lock:
            if not self._heat_in_order(times, ledgers, entries):
                self._take_in(self._precision.keys(times), ledgers, entries)

    # -- asking --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many messages there are; one that was added to its bucket again counts once."""
        with self._lock:
            self._settle()
            return self._hot.count + sum(part.count for part in self._sealed)

    def next_time(self) -> int | None:
        """The earliest bucket; None if there is nothing."""
        with self._lock:
            self._move_arrivals()
            keys = [self._hot.next_key, self._staging.next_key, *(part.next_key for part in self._sealed)]
            return min((key for key in keys if key is not None), default=None)

    def contains(self, timestamp: int, ledger_id: int, entry_id: int) -> bool:
        keys = self._precision.possible_keys(_time(timestamp))
        ledger_id, entry_id = _id("ledger", ledger_id), _id("entry", entry_id)
        with self._lock:
            self._settle()
            if any(self._hot.holds(key, ledger_id, entry_id) for key in keys):
                return True
            columns = [
                np.array(column, dtype=np.int64) for column in (keys, [ledger_id] * len(keys), [entry_id] * len(keys))
            ]
            return any(part.holds(*columns).any() for part in self._sealed)

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> DueBatch:
        """What has buckets from the first to the last, as ``pop_due`` would give it."""
        limit = _limit(limit)
        first, last = (None if time is None else _integer("times", time) for time in (first, last))
        with self._lock:
            self._settle()
            return DueBatch(_merge(self._offers(first, last, limit), limit))

    @property
    def memory_bytes(self) -> int:
        """What all parts take, those included that are only waiting to be moved on."""
        with self._lock:
            return (
                sys.getsizeof(self._arrivals)
                + len(self._arrivals) * _BYTES_OF_ARRIVAL
                + sum(sys.getsizeof(entries) + 200 for entries in self._handles.values())
                + self._staging.nbytes
                + self._hot.nbytes
                + sum(part.nbytes for part in self._sealed)
            )

    # -- removing ------------------------------------------------------------------------------------------------------

    def pop_due(self, now: int, limit: int | None = None) -> DueBatch:
        """Remove and return what has buckets up to ``now``, by bucket, ledger and entry; at most ``limit`` messages."""
        limit = _limit(limit)
        now = _integer("times", now)
        with self._lock:
            self._settle()
            offers = self._offers(None, now, limit)
            due = _merge(offers, limit)
            if not len(due.keys):
                return DueBatch(due)
            last = int(due.keys[-1]), int(due.ledgers[-1]), int(due.lasts[-1])
            for part, rows in offers:
                part.drop_to(*last, sum(some.count_to(*last) for some in rows))
            self._sealed = [part for part in self._sealed if part.count]
            return DueBatch(due)

    def discard(self, timestamp: int, ledger_id: int, entry_id: int) -> bool:
        """Remove one message; False if it is not there."""
        keys = self._precision.possible_keys(_time(timestamp))
        ledger_id, entry_id = _id("ledger", ledger_id), _id("entry", entry_id)
        found = False
        with self._lock:
            self._settle()
            for key in keys:
                found |= self._hot.discard(key, ledger_id, entry_id)
                for part in self._sealed:
                    found |= part.discard(key, ledger_id, entry_id)
            if found:
                worn = [part for part in self._sealed if part.worn]
                self._sealed = [part for part in self._sealed if not part.worn]
                for part in worn:
                    if part.count:
                        self._sealed.extend(seal(part.everything()))
        return found

    def clear(self) -> None:
        with self._lock:
            self._move_arrivals()
            self._staging.free()
            self._hot = BitmapRows()
            self._sealed = []
            self._last_sealed = (-1, -1)

    # -- from one place to the next, all with the lock -----------------------------------------------------------------

    def _move_arrivals(self) -> None:
        """Arrivals to hot or to staging."""
        refused = self._move_singles() if self._arrivals else None
        if self._handles:
            refused = self._move_handles() or refused
        if refused is not None:
            raise refused

    def _move_singles(self) -> BookstandError | None:
        taken = b"".join(self._arrivals)
        many = len(taken) // _triple.size
        del self._arrivals[:many]
        if many <= _HANDFUL:
            key = self._precision.key
            triples = list(_triple.iter_unpack(taken))
            self._heat([(key(time), ledger, entry, 1) for time, ledger, entry in triples if ledger >= 0 <= entry])
            wrong = [triple for triple in triples if triple[1] < 0 or triple[2] < 0]
            return _wrong(*wrong[0]) if wrong else None
        times, ledgers, entries = np.frombuffer(taken, dtype=np.int64).reshape(-1, 3).T
        if self._heat_in_order(times, ledgers, entries):
            return None
        keys = self._precision.keys
        good = (ledgers | entries) >= 0
        if good.all():
            self._take_in(keys(times), ledgers, entries)
            return None
        self._take_in(keys(times[good]), ledgers[good], entries[good])
        return _wrong(*(int(column[~good][0]) for column in (times, ledgers, entries)))

    def _move_handles(self) -> BookstandError | None:
        """What handles have collected to hot; and forget the handles that nobody has any more."""
        idle = []
        refused = None
        for group in self._handles:
            # The dictionary has it, and the call; a handle would be one more.
            if sys.getrefcount(self._handles[group]) == 2:
                idle.append(group)
            collected = self._handles[group]
            if not collected:
                continue
            taken = collected[:]
            del collected[: len(taken)]
            entries = np.frombuffer(taken, dtype=np.int64)
            if is_run(entries):
                self._heat([(*group, entries.item(0), len(entries))])
                continue
            good = entries >= 0
            if not good.all():
                refused = _wrong(*group, max(taken))
                entries = entries[good]
            if len(entries):
                keys, ledgers = (np.full(len(entries), number, dtype=np.int64) for number in group)
                self._take_in(keys, ledgers, entries)
        for group in idle:
            del self._handles[group]
        return refused

    def _heat_in_order(self, times: Column, ledgers: Column, entries: Column) -> bool:
        """Whether they come in order, and are in hot now."""
        rows = None
        if isinstance(self._precision, PowerOfTwoPrecision):
            rows = runs_in_order(self._precision, times, ledgers, entries)
        if rows is not None:
            self._heat(rows)
        return rows is not None

    def _take_in(self, keys: Column, ledgers: Column, entries: Column) -> None:
        if len(keys) > _SAMPLED and len(set(keys[:_SAMPLE].tolist())) > _SAMPLE // 2:
            self._stage(keys, ledgers, entries)
            return
        starts = starts_of_runs(keys, ledgers, entries)
        if len(starts) <= _FEW or len(starts) * _LONG_RUNS <= len(entries):
            begins = starts.tolist()
            counts = map(sub, [*begins[1:], len(entries)], begins)
            columns = (column[starts].tolist() for column in (keys, ledgers, entries))
            rows = list(zip(*columns, counts, strict=True))
            # Numbers follow one another beyond the highest one, too, where the lowest one is next.
            if any(ledger < 0 or first < 0 or first + count > MAX_ID + 1 for _, ledger, first, count in rows):
                raise IncorrectParameterError(_NO_IDS)
            self._heat(rows)
            return
        self._stage(keys, ledgers, entries)

    def _stage(self, keys: Column, ledgers: Column, entries: Column) -> None:
        if int(entries.min()) < 0 or int(ledgers.min()) < 0:
            raise IncorrectParameterError(_NO_IDS)
        at = 0
        while at < len(keys):
            at += self._staging.add(keys[at:], ledgers[at:], entries[at:])
            if self._staging.full:
                self._seal()

    def _heat(self, rows: list[Run]) -> None:
        """Runs to hot, without what is in a sealed part."""
        if self._sealed and rows and min((ledger, entry) for _, ledger, entry, _ in rows) <= self._last_sealed:
            some = [from_tuples(rows)]
            rows = [row for fresh in self._fresh(some, KeyBounds(some)) for row in fresh.tuples()]
        for row in rows:
            self._hot.add(*row)
        if self._hot.bitmaps >= self._hot_bitmaps:
            self._seal()

    def _settle(self) -> None:
        """Leave nothing in front of hot."""
        self._move_arrivals()
        if self._staging.count:
            self._seal()

    def _seal(self) -> None:
        """Seal staging and hot."""
        rows = [part for part in (self._staging.rows(), self._hot.rows()) if len(part.keys)]
        self._hot = BitmapRows()
        parts: list[SealedPart] = []
        if rows:
            # That of all rows is one of the fresh ones, too.
            extent = KeyBounds(rows)
            rows = self._fresh(rows, extent)
            self._last_sealed = max(self._last_sealed, extent.last_id)
            parts = seal(rows, extent) if rows else []
        self._staging.empty()
        while len(parts) == 1 and (tier := _tier(parts[0].weight)) < _tier(_STAGED):
            same = [part for part in self._sealed if part.whole and _tier(part.weight) == tier]
            if len(same) + 1 < _TIER:
                break
            self._sealed = [part for part in self._sealed if part not in same]
            parts = seal([rows for part in (*same, *parts) for rows in part.everything()])
        self._sealed.extend(parts)

    def _fresh(self, rows: list[Rows], extent: KeyBounds) -> list[Rows]:
        """The rows without the entries that are in sealed parts."""
        if extent.first_id <= self._last_sealed:
            for part in self._sealed:
                if not part.extent.apart(extent):
                    rows = [fresh for some in rows for fresh in _without(some, part)]
        return rows

    def _offers(self, first: int | None, last: int | None, limit: int | None) -> list[Offer]:
        """What hot, and every sealed part, have between two keys, in order, up to the limit each."""
        offers: list[Offer] = [(self._hot, [self._hot.rows(first, last, limit)])]
        for part in self._sealed:
            if (last is None or part.next_key <= last) and (first is None or part.extent.last_key >= first):
                offers.append((part, part.offer(first, last, limit)))
        return offers


def _without(rows: Rows, part: SealedPart) -> Iterator[Rows]:
    """The rows without the entries that are in the part."""
    suspect = part.extent.may_hold(rows)
    if not suspect.any():
        yield rows
        return
    if not suspect.all():
        yield rows.pick(~suspect)
    for piece in within_pages(rows.pick(suspect)).pieces(_PIECE):
        columns = piece.columns()
        fresh = ~part.holds(*columns)
        if fresh.all():
            yield piece
        elif fresh.any():
            yield singles(*(column[fresh] for column in columns))


def _tier(weight: int) -> int:
    return (weight.bit_length() - 1) // (_TIER.bit_length() - 1)


def _merge(offers: list[Offer], limit: int | None) -> Rows:
    """Sorted rows of several parts, which have no entry in common, as sorted rows."""
    filled = [rows for _, rows in offers if any(len(some.keys) for some in rows)]
    parts = [some for rows in filled for some in rows if len(some.keys)]
    if len(filled) < 2 or sum(len(some.keys) for some in parts) < _STAGED:
        # Not so much that a copy would matter; and then it is one part for all that follows.
        parts = [concatenate(parts)]
    if len(filled) < 2:
        rows = parts[0]
    else:
        rows = _sort(parts)
    return rows if limit is None else rows.limit(limit)


def _sort(parts: list[Rows]) -> Rows:
    firsts = [singles(some.keys, some.ledgers, some.firsts) for some in parts]
    codes = codes_for(firsts)
    if codes is None:
        rows = concatenate(parts)
        return rows.pick(np.lexsort((rows.firsts, rows.ledgers, rows.keys)))
    numbers = codes.of(firsts)
    if all(some.single for some in parts):
        return singles(*codes.columns(sort(numbers, codes.limit)))
    return concatenate(parts).pick(np.argsort(numbers))


def _column(what: str, values: Columnlike | int, length: int | None = None) -> Column:
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        column = cast(Column, values)
        if length in (None, len(column)):
            return column
    try:
        column = np.asarray(values)
        if column.dtype.kind not in "iu" and column.size:
            raise TypeError
        if column.dtype == np.uint64 and column.size and int(column.max()) > MAX_ID:
            raise OverflowError
        column = column.astype(np.int64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise IncorrectParameterError(f"{what} are integers of 64 bits, and these are not") from None
    if length is not None and column.ndim == 0:
        return np.full(length, column, dtype=np.int64)
    if column.ndim != 1 or length not in (None, len(column)):
        raise IncorrectParameterError(f"{what} are a column as long as the others, not of shape {column.shape}")
    return column


def _time(timestamp: int) -> int:
    if not MIN_TIME <= (number := _integer("times", timestamp)) <= MAX_TIME:
        raise IncorrectParameterError(f"times are integers of 64 bits, unlike {timestamp}")
    return number


def _id(what: str, number: int) -> int:
    if not 0 <= (number := _integer(f"{what} ids", number)) <= MAX_ID:
        raise IncorrectParameterError(f"{what} ids are from 0 to {MAX_ID}, unlike {number}")
    return number


def _integer(what: str, number: int) -> int:
    try:
        return index(number)
    except TypeError:
        raise IncorrectParameterError(f"{what} are integers, unlike {number!r}") from None


def _wrong(timestamp: int, ledger_id: int, entry_id: int) -> IncorrectParameterError:
    return IncorrectParameterError(
        f"times are integers of 64 bits, ledger and entry ids from 0 to {MAX_ID}, unlike"
        f" {timestamp!r}, {ledger_id!r}, {entry_id!r}"
    )


def _limit(limit: int | None) -> int | None:
    if limit is not None and (limit := _integer("limits", limit)) < 0:
        raise IncorrectParameterError(f"a limit is not negative, unlike {limit}")
    return limit
