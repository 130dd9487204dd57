"""Bitmaps of entry ids in Roaring's portable format: one of them checked and read, thousands of them written.

A bitmap is a list of containers, one for each 65536 ids of which there are some. Most bitmaps of a snapshot have one,
which is written here for all of them at a time; the others are left to pyroaring, which gives the same bytes.
Little-endian::

    ids           12346 (4) | containers: 1 (4) | high half (2) | ids − 1 (2) | offset: 16 (4) |
                  up to 4096: low halves (2 each); more: a bit for each of 65536 (8192)

    runs          12347 (2) | containers − 1: 0 (2) | 1 (1) | high half (2) | ids − 1 (2) | runs (2) |
                  low half of the first, ids − 1 (2 + 2 each)

Runs it is if they take less. In the format for 64 bits these bitmaps follow their number (8) and each the
high half of its ids (4).
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from bookstand.delivery.tracker.bucket.snapshot.rows import Rows
from bookstand.errors import MalformedError

Numbers = NDArray[np.int64]

MAX_32 = (1 << 32) - 1

_IDS = b"\x3a\x30\x00\x00\x01\x00\x00\x00"
_RUNS = b"\x3b\x30\x00\x00\x01"
_IDS_OFFSET = b"\x10\x00\x00\x00"
_MOST_LISTED = 4096
_BITS = 1 << 16
_EMPTY = b"\x3a\x30\x00\x00\x00\x00\x00\x00"
_ONE_BITMAP_OF_64 = bytes((1, *bytes(11)))


class MalformedBitmapError(MalformedError):
    """The bytes are not a Roaring bitmap, or not one of the kind that belongs there."""


def read_bitmap(data: bytes) -> BitMap64:
    """A bitmap in the format for 32 bits."""
    if data == _EMPTY:
        return BitMap64()
    return _read(_ONE_BITMAP_OF_64 + data, "32")


def read_bitmap_64(data: bytes) -> BitMap64:
    """A bitmap in the format for 64 bits."""
    return _read(data, "64")


def _read(data: bytes, bits: str) -> BitMap64:
    try:
        bitmap = BitMap64.deserialize(data)
    except (ValueError, IndexError) as error:
        raise MalformedBitmapError(f"it is no Roaring bitmap of {bits} bits: {error}") from None
    # Not everything that a reader needs no look at is right for that: counts, offsets, what follows the end.
    if bitmap.serialize() != data:
        raise MalformedBitmapError(f"it is no whole Roaring bitmap of {bits} bits")
    return bitmap


def write_bitmap(entry_ids: Numbers) -> bytes:
    """Ids below 2^32, in the format for 32 bits."""
    bitmap = BitMap(array("I", entry_ids.astype(np.uint32).tobytes()))
    bitmap.run_optimize()
    return bitmap.serialize()


def write_bitmap_64(entry_ids: Numbers) -> bytes:
    bitmap = BitMap64(array("Q", entry_ids.astype(np.uint64).tobytes()))
    bitmap.run_optimize()
    return bitmap.serialize()


def write_bitmaps(entry_ids: Numbers, ends: Numbers) -> list[bytes]:
    """One bitmap for each stretch of ids, which ascend in it and are below 2^32; no stretch is empty."""
    starts = np.concatenate(([0], ends[:-1]))
    counts = ends - starts
    new_run = np.empty(len(entry_ids), dtype=np.bool_)
    np.not_equal(entry_ids[1:], entry_ids[:-1] + 1, out=new_run[1:])
    new_run[starts] = True
    run_starts = np.flatnonzero(new_run)
    run_ends = np.searchsorted(run_starts, ends)
    runs = run_ends - np.searchsorted(run_starts, starts)

    high = entry_ids[starts] >> 16
    one_container = entry_ids[ends - 1] >> 16 == high
    less_as_runs = 2 + 4 * runs < np.minimum(2 * counts, _BITS // 8)
    as_runs = np.flatnonzero(one_container & less_as_runs)
    as_ids = np.flatnonzero(one_container & ~less_as_runs)

    written = [b""] * len(ends)
    if len(as_ids):
        heads = Rows(len(as_ids)).constant(_IDS).fixed(high[as_ids], 2).fixed(counts[as_ids] - 1, 2)
        heads.constant(_IDS_OFFSET)
        lows = entry_ids.astype("<u2")
        listed = lows.tobytes()
        bits = np.zeros(_BITS, dtype=np.bool_)
        places = zip(as_ids.tolist(), heads.split(), starts[as_ids].tolist(), ends[as_ids].tolist(), strict=True)
        for number, head, start, end in places:
            if end - start <= _MOST_LISTED:
                written[number] = head + listed[2 * start : 2 * end]
            else:
                bits[:] = False
                bits[lows[start:end]] = True
                written[number] = head + np.packbits(bits, bitorder="little").tobytes()
    if len(as_runs):
        heads = Rows(len(as_runs)).constant(_RUNS).fixed(high[as_runs], 2).fixed(counts[as_runs] - 1, 2)
        heads.fixed(runs[as_runs], 2)
        table = np.empty((len(run_starts), 2), dtype="<u2")
        table[:, 0] = entry_ids[run_starts]
        table[:, 1] = np.diff(run_starts, append=len(entry_ids)) - 1
        pairs = table.tobytes()
        last = run_ends[as_runs]
        places = zip(as_runs.tolist(), heads.split(), (last - runs[as_runs]).tolist(), last.tolist(), strict=True)
        for number, head, start, end in places:
            written[number] = head + pairs[4 * start : 4 * end]
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if not written[number]:
            written[number] = write_bitmap(entry_ids[start:end])
    return written
