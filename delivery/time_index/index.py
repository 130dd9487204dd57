"""Index of delayed messages by delivery time: time bucket -> ledger -> entries.

A message is in one of four tiers and moves to the next one in batches::

    add, handle ──► arrivals ──┐
                               ├──► bitmap rows (bitmap_rows.py) ─┐
    add_many, add_range ───────┤                                  ├──► sealed parts (sealed_part.py)
                               └──► staging (staging_buffer.py) ──┘

* Arrivals are packed triples added by single calls, and the entries added through each handle. Only arrivals change
  without the lock, and only by operations that the interpreter performs atomically: an addition appends, and the thread
  that moves arrivals copies a prefix and then removes a prefix of that length.
* The bitmap rows and the sealed parts are disjoint, so their counts add up to the number of messages.
* Staging may repeat messages of any tier. It is sealed before messages are counted, searched or removed.

Ordered messages form long runs of entries in few buckets and go to the bitmap rows; messages with random times go to
staging.
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
from bookstand.delivery.time_index.composite_key import encoding_for, sort, within_pages
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

Candidate = tuple[BitmapRows | SealedPart, list[Rows]]

MAX_ID = (1 << 63) - 1
MAX_RANGE = 1 << 31

_NEGATIVE_IDS = "ledger ids and entry ids must be non-negative"
# Packing rejects negative ids; ids above the maximum unpack as negative numbers. The native long is the fastest type to
# pack where it has 64 bits.
_pack = struct.Struct("lLL" if struct.calcsize("l") == 8 else "qQQ").pack
_triple = struct.Struct("qqq")
_SINGLE_MOVE_LIMIT = 16
"""Up to this many arrivals are moved one by one, which is faster than through columns."""
_MAX_ARRIVALS = 4096
"""Packed triples that trigger a move; few enough for their memory to be reused."""
_ARRIVAL_BYTES = 64
_STAGING_CAPACITY = 1 << 18
"""Rows that are sealed together. More would save no space, and fewer would leave more parts to search."""
_MAX_BITMAPS = 4096
"""Bitmaps that trigger a seal. A bitmap with a single run takes about 400 bytes, a sealed run only a few."""
_COMPACT_STAGING_CAPACITY, _COMPACT_MAX_BITMAPS = 1 << 16, 256
_MIN_MEAN_RUN = 32
"""Minimum mean run length for rows that go to the bitmap rows; sealing is cheaper for shorter runs."""
_MAX_SHORT_RUNS = 64
"""Up to this many runs go to the bitmap rows, however short they are."""
_MIN_SAMPLED_BATCH = 1024
_SAMPLE_SIZE = 16
"""Larger batches are sampled first: if most sampled rows differ in bucket, the search for runs is skipped."""
_TIER_FANOUT = 8
"""Number of sealed parts in a size tier that are merged into one; tiers are powers of this number."""
_COMPARE_CHUNK = 1 << 20
"""Approximate number of entries that are compared with a sealed part at a time."""
_MIN_HANDLE_SWEEP = 64
"""Handles after which unreferenced ones are dropped, unless twice the number in use at the last sweep is more."""


class TimeIndex(ProcessBound):
    """Thread-safe index of (timestamp, ledger, entry) triples."""

    def __init__(
        self,
        precision_bits: int = 0,
        *,
        round_up: bool = False,
        precision: Precision | None = None,
        compact: bool = False,
    ) -> None:
        """A bucket is a timestamp rounded down, or up, to a multiple of ``2**precision_bits``, or by ``precision``.

        ``compact`` packs fewer messages at a time, which saves working memory and costs CPU.
        """
        if precision is not None and (precision_bits or round_up):
            raise IncorrectParameterError("pass precision_bits and round_up, or precision, but not both")
        self._precision = PowerOfTwoPrecision(precision_bits, round_up) if precision is None else precision
        self._max_bitmaps = _COMPACT_MAX_BITMAPS if compact else _MAX_BITMAPS
        self._lock = RLock()
        self._arrivals: list[bytes] = []
        self._handles: dict[tuple[int, int], array[int]] = {}
        self._handle_sweep_at = _MIN_HANDLE_SWEEP
        self._staging = Staging(_COMPACT_STAGING_CAPACITY if compact else _STAGING_CAPACITY)
        self._bitmap_rows = BitmapRows()
        self._sealed: list[SealedPart] = []
        # Every (ledger, entry) after this one is in no sealed part.
        self._last_sealed = (-1, -1)

    # -- adding -------------------------------------------------------------------------------------------------------

    def key(self, timestamp: int) -> int:
        """Return the bucket of a timestamp."""
        return self._precision.key(_time(timestamp))

    def add(self, timestamp: int, ledger_id: int, entry_id: int) -> None:
        """Add one message without taking the lock.

        Precisions that depend on the clock are applied when the message is moved to the next tier. An id above the
        maximum is rejected then, by the call that moves it.
        """
        arrivals = self._arrivals
        try:
            arrivals.append(_pack(timestamp, ledger_id, entry_id))
        except (struct.error, TypeError):
            raise _invalid_triple(timestamp, ledger_id, entry_id) from None
        if len(arrivals) >= _MAX_ARRIVALS:
            with self._lock:
                self._move_arrivals()

    def handle(self, timestamp: int, ledger_id: int) -> Callable[[int], None]:
        """Return a function that adds entries of one ledger to the bucket of one timestamp.

        The bucket is computed now, so do not keep a handle if the precision depends on the clock. The handle raises the
        interpreter's errors: OverflowError for a negative entry, TypeError for a non-integer. An entry above the
        maximum is rejected by the next call of the index. Until that call an entry takes eight bytes.
        """
        group = self.key(timestamp), _id("ledger", ledger_id)
        with self._lock:
            entries = self._handles.get(group)
            if entries is None:
                if len(self._handles) >= self._handle_sweep_at:
                    if (error := self._move_handles()) is not None:
                        raise error
                    self._handle_sweep_at = max(_MIN_HANDLE_SWEEP, 2 * len(self._handles))
                entries = self._handles[group] = array("Q")
            return entries.append

    def add_range(self, timestamp: int, ledger_id: int, first: int, last: int) -> None:
        key = self.key(timestamp)
        ledger_id, first, last = _id("ledger", ledger_id), _id("entry", first), _id("entry", last)
        if not 0 < last - first + 1 <= MAX_RANGE:
            raise IncorrectParameterError(
                f"a range must have 1 to {MAX_RANGE} entries, not those from {first} to {last}"
            )
        with self._lock:
            self._add_runs([(key, ledger_id, first, last - first + 1)])

    def add_many(self, timestamps: Columnlike | int, ledger_ids: Columnlike | int, entry_ids: Columnlike) -> None:
        """Add columns of messages; a scalar timestamp or ledger id applies to every entry."""
        entries = _column("entry ids", entry_ids)
        times = _column("timestamps", timestamps, len(entries))
        ledgers = _column("ledger ids", ledger_ids, len(entries))
        if not len(entries):
            return
        with self._lock:
            if not self._add_ordered_runs(times, ledgers, entries):
                self._add_columns(self._precision.keys(times), ledgers, entries)

    # -- queries ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of messages; a message added to its bucket twice counts once."""
        with self._lock:
            self._flush()
            return self._bitmap_rows.count + sum(part.count for part in self._sealed)

    def next_time(self) -> int | None:
        """The earliest bucket, or None if the index is empty."""
        with self._lock:
            self._move_arrivals()
            keys = [self._bitmap_rows.next_key, self._staging.next_key, *(part.next_key for part in self._sealed)]
            return min((key for key in keys if key is not None), default=None)

    def contains(self, timestamp: int, ledger_id: int, entry_id: int) -> bool:
        keys = self._precision.possible_keys(_time(timestamp))
        ledger_id, entry_id = _id("ledger", ledger_id), _id("entry", entry_id)
        with self._lock:
            self._flush()
            if any(self._bitmap_rows.contains(key, ledger_id, entry_id) for key in keys):
                return True
            columns = [
                np.array(column, dtype=np.int64) for column in (keys, [ledger_id] * len(keys), [entry_id] * len(keys))
            ]
            return any(part.contains(*columns).any() for part in self._sealed)

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> DueBatch:
        """Messages with buckets from ``first`` to ``last``, in the order of ``pop_due``; nothing is removed."""
        limit = _limit(limit)
        first, last = (None if time is None else _integer("times", time) for time in (first, last))
        with self._lock:
            self._flush()
            return DueBatch(_merge(self._candidates(first, last, limit), limit))

    @property
    def memory_bytes(self) -> int:
        """Memory taken by all tiers."""
        with self._lock:
            return (
                sys.getsizeof(self._arrivals)
                + len(self._arrivals) * _ARRIVAL_BYTES
                + sum(sys.getsizeof(entries) + 200 for entries in self._handles.values())
                + self._staging.nbytes
                + self._bitmap_rows.nbytes
                + sum(part.nbytes for part in self._sealed)
            )

    # -- removing -----------------------------------------------------------------------------------------------------

    def pop_due(self, now: int, limit: int | None = None) -> DueBatch:
        """Remove and return up to ``limit`` messages with buckets up to ``now``, by bucket, ledger and entry."""
        limit = _limit(limit)
        now = _integer("times", now)
        with self._lock:
            self._flush()
            candidates = self._candidates(None, now, limit)
            due = _merge(candidates, limit)
            if not len(due.keys):
                return DueBatch(due)
            last = int(due.keys[-1]), int(due.ledgers[-1]), int(due.lasts[-1])
            for part, rows in candidates:
                part.drop_to(*last, sum(piece.count_to(*last) for piece in rows))
            self._sealed = [part for part in self._sealed if part.count]
            return DueBatch(due)

    def discard(self, timestamp: int, ledger_id: int, entry_id: int) -> bool:
        """Remove one message; return False if it is missing."""
        keys = self._precision.possible_keys(_time(timestamp))
        ledger_id, entry_id = _id("ledger", ledger_id), _id("entry", entry_id)
        found = False
        with self._lock:
            self._flush()
            for key in keys:
                found |= self._bitmap_rows.discard(key, ledger_id, entry_id)
                for part in self._sealed:
                    found |= part.discard(key, ledger_id, entry_id)
            if found:
                rewrite = [part for part in self._sealed if part.needs_rewrite]
                self._sealed = [part for part in self._sealed if not part.needs_rewrite]
                for part in rewrite:
                    if part.count:
                        self._sealed.extend(seal(part.all_rows()))
        return found

    def clear(self) -> None:
        with self._lock:
            self._move_arrivals()
            self._staging.free()
            self._bitmap_rows = BitmapRows()
            self._sealed = []
            self._last_sealed = (-1, -1)

    # -- moves between tiers; callers hold the lock -------------------------------------------------------------------

    def _move_arrivals(self) -> None:
        error = self._move_singles() if self._arrivals else None
        if self._handles:
            error = self._move_handles() or error
        if error is not None:
            raise error

    def _move_singles(self) -> BookstandError | None:
        packed = b"".join(self._arrivals)
        length = len(packed) // _triple.size
        del self._arrivals[:length]
        if length <= _SINGLE_MOVE_LIMIT:
            key = self._precision.key
            triples = list(_triple.iter_unpack(packed))
            self._add_runs([(key(time), ledger, entry, 1) for time, ledger, entry in triples if ledger >= 0 <= entry])
            invalid = [triple for triple in triples if triple[1] < 0 or triple[2] < 0]
            return _invalid_triple(*invalid[0]) if invalid else None
        times, ledgers, entries = np.frombuffer(packed, dtype=np.int64).reshape(-1, 3).T
        if self._add_ordered_runs(times, ledgers, entries):
            return None
        keys = self._precision.keys
        valid = (ledgers | entries) >= 0
        if valid.all():
            self._add_columns(keys(times), ledgers, entries)
            return None
        self._add_columns(keys(times[valid]), ledgers[valid], entries[valid])
        return _invalid_triple(*(int(column[~valid][0]) for column in (times, ledgers, entries)))

    def _move_handles(self) -> BookstandError | None:
        """Move the entries added through handles, and drop unreferenced handles."""
        unreferenced = []
        error = None
        for group in self._handles:
            # The dictionary and the call hold one reference each; a live handle would hold a third.
            if sys.getrefcount(self._handles[group]) == 2:
                unreferenced.append(group)
            collected = self._handles[group]
            if not collected:
                continue
            moved = collected[:]
            del collected[: len(moved)]
            entries = np.frombuffer(moved, dtype=np.int64)
            if is_run(entries):
                self._add_runs([(*group, entries.item(0), len(entries))])
                continue
            valid = entries >= 0
            if not valid.all():
                error = _invalid_triple(*group, max(moved))
                entries = entries[valid]
            if len(entries):
                keys, ledgers = (np.full(len(entries), number, dtype=np.int64) for number in group)
                self._add_columns(keys, ledgers, entries)
        for group in unreferenced:
            del self._handles[group]
        return error

    def _add_ordered_runs(self, times: Column, ledgers: Column, entries: Column) -> bool:
        """Add rows to the bitmap rows if they are ordered; return False otherwise."""
        rows = None
        if isinstance(self._precision, PowerOfTwoPrecision):
            rows = runs_in_order(self._precision, times, ledgers, entries)
        if rows is not None:
            self._add_runs(rows)
        return rows is not None

    def _add_columns(self, keys: Column, ledgers: Column, entries: Column) -> None:
        if len(keys) > _MIN_SAMPLED_BATCH and len(set(keys[:_SAMPLE_SIZE].tolist())) > _SAMPLE_SIZE // 2:
            self._stage(keys, ledgers, entries)
            return
        starts = starts_of_runs(keys, ledgers, entries)
        if len(starts) <= _MAX_SHORT_RUNS or len(starts) * _MIN_MEAN_RUN <= len(entries):
            begins = starts.tolist()
            counts = map(sub, [*begins[1:], len(entries)], begins)
            columns = (column[starts].tolist() for column in (keys, ledgers, entries))
            rows = list(zip(*columns, counts, strict=True))
            # Consecutive differences are also 1 across int64 overflow.
            if any(ledger < 0 or first < 0 or first + count > MAX_ID + 1 for _, ledger, first, count in rows):
                raise IncorrectParameterError(_NEGATIVE_IDS)
            self._add_runs(rows)
            return
        self._stage(keys, ledgers, entries)

    def _stage(self, keys: Column, ledgers: Column, entries: Column) -> None:
        if int(entries.min()) < 0 or int(ledgers.min()) < 0:
            raise IncorrectParameterError(_NEGATIVE_IDS)
        at = 0
        while at < len(keys):
            at += self._staging.add(keys[at:], ledgers[at:], entries[at:])
            if self._staging.full:
                self._seal()

    def _add_runs(self, rows: list[Run]) -> None:
        """Add runs to the bitmap rows, without entries that a sealed part contains."""
        if self._sealed and rows and min((ledger, entry) for _, ledger, entry, _ in rows) <= self._last_sealed:
            columns = [from_tuples(rows)]
            rows = [row for part in self._without_sealed(columns, KeyBounds(columns)) for row in part.tuples()]
        for row in rows:
            self._bitmap_rows.add(*row)
        if self._bitmap_rows.bitmaps >= self._max_bitmaps:
            self._seal()

    def _flush(self) -> None:
        """Empty arrivals and staging."""
        self._move_arrivals()
        if self._staging.count:
            self._seal()

    def _seal(self) -> None:
        rows = [part for part in (self._staging.rows(), self._bitmap_rows.rows()) if len(part.keys)]
        self._bitmap_rows = BitmapRows()
        parts: list[SealedPart] = []
        if rows:
            # The bounds of all rows are also bounds of the rows that remain.
            bounds = KeyBounds(rows)
            rows = self._without_sealed(rows, bounds)
            self._last_sealed = max(self._last_sealed, bounds.last_id)
            parts = seal(rows, bounds) if rows else []
        self._staging.empty()
        while len(parts) == 1 and (tier := _tier(parts[0].run_count)) < _tier(_STAGING_CAPACITY):
            same = [part for part in self._sealed if part.is_complete and _tier(part.run_count) == tier]
            if len(same) + 1 < _TIER_FANOUT:
                break
            self._sealed = [part for part in self._sealed if part not in same]
            parts = seal([rows for part in (*same, *parts) for rows in part.all_rows()])
        self._sealed.extend(parts)

    def _without_sealed(self, rows: list[Rows], bounds: KeyBounds) -> list[Rows]:
        if bounds.first_id <= self._last_sealed:
            for part in self._sealed:
                if not part.bounds.is_disjoint(bounds):
                    rows = [piece for candidate in rows for piece in _not_in(candidate, part)]
        return rows

    def _candidates(self, first: int | None, last: int | None, limit: int | None) -> list[Candidate]:
        """Sorted rows of the bitmap rows and of each sealed part, between two keys and up to the limit each."""
        candidates: list[Candidate] = [(self._bitmap_rows, [self._bitmap_rows.rows(first, last, limit)])]
        for part in self._sealed:
            if (last is None or part.next_key <= last) and (first is None or part.bounds.last_key >= first):
                candidates.append((part, part.peek(first, last, limit)))
        return candidates


def _not_in(rows: Rows, part: SealedPart) -> Iterator[Rows]:
    suspect = part.bounds.may_contain(rows)
    if not suspect.any():
        yield rows
        return
    if not suspect.all():
        yield rows.pick(~suspect)
    for piece in within_pages(rows.pick(suspect)).pieces(_COMPARE_CHUNK):
        columns = piece.columns()
        fresh = ~part.contains(*columns)
        if fresh.all():
            yield piece
        elif fresh.any():
            yield singles(*(column[fresh] for column in columns))


def _tier(weight: int) -> int:
    return (weight.bit_length() - 1) // (_TIER_FANOUT.bit_length() - 1)


def _merge(candidates: list[Candidate], limit: int | None) -> Rows:
    """Merge the sorted rows of disjoint parts into sorted rows."""
    filled = [rows for _, rows in candidates if any(len(piece.keys) for piece in rows)]
    parts = [piece for rows in filled for piece in rows if len(piece.keys)]
    if len(filled) < 2 or sum(len(piece.keys) for piece in parts) < _STAGING_CAPACITY:
        # A copy of this size is cheap, and a single part is cheaper for the code below.
        parts = [concatenate(parts)]
    if len(filled) < 2:
        rows = parts[0]
    else:
        rows = _sort(parts)
    return rows if limit is None else rows.limit(limit)


def _sort(parts: list[Rows]) -> Rows:
    firsts = [singles(piece.keys, piece.ledgers, piece.firsts) for piece in parts]
    encoding = encoding_for(firsts)
    if encoding is None:
        rows = concatenate(parts)
        return rows.pick(np.lexsort((rows.firsts, rows.ledgers, rows.keys)))
    numbers = encoding.encode(firsts)
    if all(piece.single for piece in parts):
        return singles(*encoding.columns(sort(numbers, encoding.limit)))
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
        raise IncorrectParameterError(f"{what} must be 64-bit integers") from None
    if length is not None and column.ndim == 0:
        return np.full(length, column, dtype=np.int64)
    if column.ndim != 1 or length not in (None, len(column)):
        raise IncorrectParameterError(f"{what} must be a column as long as the others, not of shape {column.shape}")
    return column


def _time(timestamp: int) -> int:
    if not MIN_TIME <= (number := _integer("times", timestamp)) <= MAX_TIME:
        raise IncorrectParameterError(f"times must be 64-bit integers, not {timestamp}")
    return number


def _id(what: str, number: int) -> int:
    if not 0 <= (number := _integer(f"{what} ids", number)) <= MAX_ID:
        raise IncorrectParameterError(f"{what} ids must be from 0 to {MAX_ID}, not {number}")
    return number


def _integer(what: str, number: int) -> int:
    try:
        return index(number)
    except TypeError:
        raise IncorrectParameterError(f"{what} must be integers, not {number!r}") from None


def _invalid_triple(timestamp: int, ledger_id: int, entry_id: int) -> IncorrectParameterError:
    return IncorrectParameterError(
        f"times must be 64-bit integers, ledger and entry ids from 0 to {MAX_ID}, not"
        f" {timestamp!r}, {ledger_id!r}, {entry_id!r}"
    )


def _limit(limit: int | None) -> int | None:
    if limit is not None and (limit := _integer("limits", limit)) < 0:
        raise IncorrectParameterError(f"limit must be non-negative, not {limit}")
    return limit
