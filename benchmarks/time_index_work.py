"""Workloads of the time index benchmarks: exactly the same messages as in benchmarks/java."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]

CHUNK = 1_000_000
START = 1_700_000_000_000
FIRST_LEDGER = 10_000
PER_LEDGER = 50_000
HOUR = 3_600_000
END_OF_TIME = (1 << 63) - 1


class Columns(NamedTuple):
    times: Column
    ledgers: Column
    entries: Column


@dataclass(frozen=True)
class Work:
    """``per_milli`` messages per millisecond, of which ``percent`` percent are delayed; ``bits`` is the precision.

    ``ordered`` messages have equal delays, so that delivery times ascend. ``random`` messages have delays of up to an
    hour.
    """

    workload: str
    per_milli: int
    bits: int
    messages: int = 10_000_000
    percent: int = 100

    def sized(self, messages: int) -> Work:
        return replace(self, messages=messages)

    @property
    def step(self) -> int:
        """Time between drains: about 100 000 messages, and at least one bucket."""
        return max(100_000 // self.per_milli, 1 << self.bits)

    @property
    def end(self) -> int:
        """Time at which all messages are due."""
        return START + self.messages // self.per_milli + 1 + (HOUR if self.workload == "random" else 0)

    @property
    def buckets(self) -> int:
        """Number of buckets of ordered messages."""
        return (START + 1 + (self.messages - 1) // self.per_milli >> self.bits) - (START + 1 >> self.bits) + 1

    def words(self) -> str:
        return (
            f"workload={self.workload} per_milli={self.per_milli} bits={self.bits}"
            f" messages={self.messages} percent={self.percent}"
        )

    def chunks(self) -> Iterator[Columns]:
        """Yield CHUNK messages at a time in the same three arrays, without allocations in between."""
        size = min(CHUNK, self.messages)
        numbers, columns, randomly, scratch, delayed = _buffers(size)
        for first in range(0, self.messages, CHUNK):
            count = min(CHUNK, self.messages - first)
            numbers[:] = _COUNTING[:size]
            numbers += first
            times, ledgers, entries = (column[:count] for column in columns)
            now = numbers[:count]
            if self.workload == "random":
                _mix(now.view(np.uint64), randomly[:count], scratch[:count])
                randomly %= np.uint64(HOUR)
            elif self.percent < 100:
                np.invert(now, out=entries)
                _mix(entries.view(np.uint64), randomly[:count], scratch[:count])
                randomly %= np.uint64(100)
                np.less(randomly, np.uint64(self.percent), out=delayed)
                count = int(np.count_nonzero(delayed[:count]))
                np.compress(delayed[: len(now)], now, out=entries[:count])
                now[:count] = entries[:count]
                times, ledgers, entries, now = times[:count], ledgers[:count], entries[:count], now[:count]
            np.floor_divide(now, self.per_milli, out=times)
            times += START + 1
            if self.workload == "random":
                times += randomly.view(np.int64)[:count]
            np.floor_divide(now, PER_LEDGER, out=ledgers)
            ledgers += FIRST_LEDGER
            np.remainder(now, PER_LEDGER, out=entries)
            yield Columns(times, ledgers, entries)


@cache
def _buffers(
    size: int,
) -> tuple[Column, Columns, NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_]]:
    """Return arrays that are never freed, so that they do not affect measurements of memory."""
    columns = Columns(*(np.zeros(size, np.int64) for _ in range(3)))
    wide = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
    return np.zeros(size, np.int64), columns, *wide, np.zeros(size, np.bool_)


_COUNTING = np.arange(CHUNK, dtype=np.int64)


def _mix(numbers: NDArray[np.uint64], out: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """Write a random number for each number to ``out`` (SplitMix64)."""
    np.multiply(numbers, np.uint64(0x9E3779B97F4A7C15), out=out)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(out, np.uint64(shift), out=scratch)
        np.bitwise_xor(out, scratch, out=out)
        np.multiply(out, np.uint64(factor), out=out)


def checksum(columns: Columns) -> int:
    """Return a 64-bit checksum that does not depend on the order."""
    return int((columns.times * 3 + columns.ledgers * 5 + columns.entries * 7).sum())
