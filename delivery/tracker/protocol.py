"""Interface of the trackers of delayed messages, and validation of its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import index
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bookstand.errors import IllegalOperationError, IncorrectParameterError
from bookstand.storage.format.position import Position

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]
Positions = Iterable[tuple[int, int]] | tuple[Column, Column]
"""Positions one by one, or a pair of columns: ledger ids and entry ids."""

LARGEST = (1 << 63) - 1


class TrackerClosedError(IllegalOperationError):
    """The tracker is closed and rejects further messages."""


class DelayedTracker(Protocol):
    """Tracker of the positions of messages that are delivered at a given time, in milliseconds of the tracker's clock.

    In strict mode a message is never early and up to one tick late; otherwise it may be up to one tick early. Ids are
    from 0 to 2^63 - 1. A position stays tracked from the first :meth:`add` until it is popped, cancelled, or added
    again when it is due. All methods are thread-safe, and no message is popped twice.

    ``wake()`` is called in the timer's thread, without any lock held, when a message becomes due. Messages that were
    already due when a method returned are not signaled again: callers pop until no message is available.
    """

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        """Track a message; return False if it is due or its time is negative: deliver it now, it is not tracked.

        A position that is already tracked keeps its time, and the result is True.
        """

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        """Add several messages in order, with one time for all or one for each."""

    def pop_due(self, limit: int | None = None) -> list[Position]:
        """Remove up to ``limit`` due messages, the earliest first, and return them sorted by position."""

    def has_message_available(self) -> bool:
        """Return True if :meth:`pop_due` would return a message now."""

    def should_pause_all_deliveries(self) -> bool:
        """Return True if reading ahead is useless: all messages have the same delay, and enough of them are tracked."""

    def contains_message(self, position: tuple[int, int]) -> bool:
        """Return True if the position is tracked."""

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        """Return the mask of the tracked positions."""

    def next_delivery(self) -> int | None:
        """The earliest time of a tracked message, rounded to the tick; None if no message is tracked."""

    def cancel(self, position: tuple[int, int]) -> bool:
        """Stop tracking a message; return False if it is not tracked."""

    @property
    def count(self) -> int:
        """Number of tracked messages; also ``len()``."""

    def __len__(self) -> int:
        """Return :attr:`count`."""

    def clear(self) -> None:
        """Stop tracking every message."""

    def reset_tick(self, tick_time_millis: int) -> None:
        """Change the tick. Messages stay tracked, within the tolerance of the larger of the two ticks."""

    def close(self) -> None:
        """Stop calling ``wake()``. Later additions raise :class:`TrackerClosedError`."""

    @property
    def memory_bytes(self) -> int:
        """Memory taken by the tracker, bitmaps included."""


def check_position(position: Any) -> tuple[int, int]:
    try:
        ledger_id, entry_id = position
        # Operands that are not integers do not support this operation.
        if 0 <= ledger_id | entry_id <= LARGEST:
            # Convert numpy integers, which overflow where Python's do not.
            return index(ledger_id), index(entry_id)
    except (TypeError, ValueError):
        pass
    raise IncorrectParameterError(f"position must be a pair of ids from 0 to 2^63 - 1, not {position!r}")


def check_time(time: Any) -> int:
    if type(time) is int and -LARGEST - 1 <= time <= LARGEST:
        return time
    if isinstance(time, np.integer):
        return check_time(int(time))
    raise IncorrectParameterError(f"time must be a 64-bit integer (milliseconds), not {time!r}")


def check_millis(name: str, value: Any, minimum: int) -> int:
    if type(value) is int and minimum <= value <= LARGEST:
        return value
    raise IncorrectParameterError(f"{name} must be an integer of {minimum} or more, not {value!r}")


def columns_of(positions: Positions) -> tuple[Column, Column]:
    if isinstance(positions, tuple) and len(positions) == 2 and isinstance(positions[0], np.ndarray):
        ledger_ids, entry_ids = as_ids("ledger ids", positions[0]), as_ids("entry ids", positions[1])
    else:
        try:
            items = list(positions)
            pairs = np.asarray(items if items else np.empty((0, 2), dtype=np.int64))
        except (TypeError, ValueError, OverflowError):
            raise IncorrectParameterError("positions must be pairs of a ledger id and an entry id") from None
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise IncorrectParameterError("positions must be pairs of a ledger id and an entry id")
        ledger_ids, entry_ids = as_ids("ledger ids", pairs[:, 0]), as_ids("entry ids", pairs[:, 1])
    if len(ledger_ids) != len(entry_ids):
        raise IncorrectParameterError(
            f"ledger ids and entry ids must have equal length, not {len(ledger_ids)} and {len(entry_ids)}"
        )
    return ledger_ids, entry_ids


def positions_of(ledger_ids: Column, entry_ids: Column) -> list[Position]:
    return list(map(_new_position, zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)))


# Runs in C entirely; calling the class would run Python code for each position.
_new_position = partial(tuple.__new__, Position)


def as_ids(name: str, ids: Any) -> Column:
    column = _as_numbers(name, ids)
    if len(column) and column.min() < 0:
        raise IncorrectParameterError(f"{name} must be non-negative, not {column.min()}")
    return column


def times_of(times: Any, count: int) -> Column:
    if isinstance(times, int | np.integer):
        return np.full(count, check_time(times), dtype=np.int64)
    column = _as_numbers("times", times)
    if len(column) != count:
        raise IncorrectParameterError(f"times must have one element for each of {count} positions, not {len(column)}")
    return column


def _as_numbers(name: str, numbers: Any) -> Column:
    column = np.asarray(numbers)
    if column.ndim == 1 and not len(column):
        return np.empty(0, dtype=np.int64)
    if column.ndim != 1 or column.dtype.kind not in "iu" or (column.dtype.kind == "u" and column.max() > LARGEST):
        raise IncorrectParameterError(f"{name} must be a column of 64-bit integers")
    return column.astype(np.int64, copy=False)
