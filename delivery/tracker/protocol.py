"""What every tracker of delayed messages does, wherever it keeps them."""

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
    """The tracker was closed: it takes nothing more."""


class DelayedTracker(Protocol):
    """Positions of messages that are to be delivered at a time, in milliseconds of the tracker's clock.

    Not strict, a message may be delivered up to one tick early; strict, never early, and up to one tick late. Ids are
    from 0 up, below 2^63. A position is tracked once, from the first time it is added until it is given out, cancelled,
    or added again when it is due. Methods are safe between threads, and nothing is given out twice.

    ``wake()`` is called, in the timer's thread and without any lock held, when something becomes due. What is due
    already when a method returns is not announced again: whoever asked goes on while there is something available.
    """

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        """Track a message; False if it is due (or its time is negative): it is to be delivered now, and is not tracked.

        True also for a position that is tracked already; it keeps the time that it has.
        """

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        """The same for many, in their order; one time for all, or one for each."""

    def pop_due(self, limit: int | None = None) -> list[Position]:
        """What is due, removed: at most ``limit``, those of the earliest time first. In the order of positions."""

    def has_message_available(self) -> bool:
        """Whether :meth:`pop_due` would give something now."""

    def should_pause_all_deliveries(self) -> bool:
        """Whether reading on makes no sense: all messages have the same delay, and so many wait already."""

    def contains_message(self, position: tuple[int, int]) -> bool:
        """Whether the position is tracked."""

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        """The same for many."""

    def next_delivery(self) -> int | None:
        """The earliest time that something is tracked under, exact to the tick; None if nothing is."""

    def cancel(self, position: tuple[int, int]) -> bool:
        """Stop tracking a message; False if it is not tracked."""

    @property
    def count(self) -> int:
        """How many are tracked; also ``len()``."""

    def __len__(self) -> int:
        """:attr:`count`."""

    def clear(self) -> None:
        """Forget everything."""

    def reset_tick(self, tick_time_millis: int) -> None:
        """Change the tick. What is tracked stays so, within the bounds of the larger of the two."""

    def close(self) -> None:
        """Wake nobody any more. :class:`TrackerClosedError` for what is added from now on."""

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory, bitmaps included."""


# -- arguments -------------------------------------------------------------------------------------------------------


def check_position(position: Any) -> tuple[int, int]:
    try:
        ledger_id, entry_id = position
        # Whatever is no whole number has no such bits.
        if 0 <= ledger_id | entry_id <= LARGEST:
            # numpy's numbers overflow where Python's do not.
            return index(ledger_id), index(entry_id)
    except (TypeError, ValueError):
        pass
    raise IncorrectParameterError(f"a position has two ids from 0 up, below 2^63, unlike {position!r}")


def check_time(time: Any) -> int:
    if type(time) is int and -LARGEST - 1 <= time <= LARGEST:
        return time
    if isinstance(time, np.integer):
        return check_time(int(time))
    raise IncorrectParameterError(f"a time is a number of milliseconds, not {time!r}")


def check_millis(name: str, value: Any, least: int) -> int:
    if type(value) is int and least <= value <= LARGEST:
        return value
    raise IncorrectParameterError(f"{name} is a number from {least} up, not {value!r}")


def columns_of(positions: Positions) -> tuple[Column, Column]:
    """Ledger ids and entry ids, checked."""
    if isinstance(positions, tuple) and len(positions) == 2 and isinstance(positions[0], np.ndarray):
        ledger_ids, entry_ids = as_ids("ledger ids", positions[0]), as_ids("entry ids", positions[1])
    else:
        try:
            listed = list(positions)
            pairs = np.asarray(listed if listed else np.empty((0, 2), dtype=np.int64))
        except (TypeError, ValueError, OverflowError):
            raise IncorrectParameterError("positions are pairs of a ledger id and an entry id") from None
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise IncorrectParameterError("positions are pairs of a ledger id and an entry id")
        ledger_ids, entry_ids = as_ids("ledger ids", pairs[:, 0]), as_ids("entry ids", pairs[:, 1])
    if len(ledger_ids) != len(entry_ids):
        raise IncorrectParameterError(f"there are {len(ledger_ids)} ledger ids and {len(entry_ids)} entry ids")
    return ledger_ids, entry_ids


def positions_of(ledger_ids: Column, entry_ids: Column) -> list[Position]:
    """The other way round."""
    return list(map(_new_position, zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)))


# In C throughout: a call of the class itself is one of Python for each.
_new_position = partial(tuple.__new__, Position)


def as_ids(name: str, ids: Any) -> Column:
    column = _as_numbers(name, ids)
    if len(column) and column.min() < 0:
        raise IncorrectParameterError(f"{name} are from 0 up, not {column.min()}")
    return column


def times_of(times: Any, count: int) -> Column:
    """One time for each of so many."""
    if isinstance(times, int | np.integer):
        return np.full(count, check_time(times), dtype=np.int64)
    column = _as_numbers("times", times)
    if len(column) != count:
        raise IncorrectParameterError(f"there are {len(column)} times for {count} positions")
    return column


def _as_numbers(name: str, numbers: Any) -> Column:
    column = np.asarray(numbers)
    if column.ndim == 1 and not len(column):
        return np.empty(0, dtype=np.int64)
    if column.ndim != 1 or column.dtype.kind not in "iu" or (column.dtype.kind == "u" and column.max() > LARGEST):
        raise IncorrectParameterError(f"{name} are a column of whole numbers of 64 bits")
    return column.astype(np.int64, copy=False)
