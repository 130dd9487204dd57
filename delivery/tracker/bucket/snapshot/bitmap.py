"""Bitmaps of entry ids in the portable Roaring format: validated decoding, and vectorized encoding.

A bitmap is a list of containers, one for each range of 65536 ids that is not empty. Most bitmaps of a snapshot have one
container. This module encodes those, thousands at a time; pyroaring encodes the others likewise. Little-endian::

    ids           12346 (4) | containers: 1 (4) | high half (2) | ids − 1 (2) | offset: 16 (4) |
                  up to 4096: low halves (2 each); more: a bit for each of 65536 (8192)

    runs          12347 (2) | containers − 1: 0 (2) | 1 (1) | high half (2) | ids − 1 (2) | runs (2) |
                  low half of the first, ids − 1 (2 + 2 each)

The smaller form is used. The 64-bit format has the number of bitmaps (8), then each bitmap after the high half of its
ids (4).
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
_MAX_LISTED = 4096
_BITS = 1 << 16
_EMPTY = b"\x3a\x30\x00\x00\x00\x00\x00\x00"
_ONE_BITMAP_OF_64 = bytes((1, *bytes(11)))


class MalformedBitmapError(MalformedError):
    """The bytes are not a Roaring bitmap of the expected kind."""


def read_bitmap(data: bytes) -> BitMap64:
    """Decode a bitmap in the 32-bit format."""
    if data == _EMPTY:
        return BitMap64()
    return _read(_ONE_BITMAP_OF_64 + data, "32")


def read_bitmap_64(data: bytes) -> BitMap64:
    return _read(data, "64")


def _read(data: bytes, bits: str) -> BitMap64:
    try:
        bitmap = BitMap64.deserialize(data)
    except (ValueError, IndexError) as error:
        raise MalformedBitmapError(f"not a {bits}-bit Roaring bitmap: {error}") from None
    # Decoding ignores some errors, such as wrong counts and offsets, and trailing bytes.
    if bitmap.serialize() != data:
        raise MalformedBitmapError(f"not a valid {bits}-bit Roaring bitmap")
    return bitmap


def write_bitmap(entry_ids: Numbers) -> bytes:
    """Encode ids below 2^32 in the 32-bit format."""
    bitmap = BitMap(array("I", entry_ids.astype(np.uint32).tobytes()))
    bitmap.run_optimize()
    return bitmap.serialize()


def write_bitmap_64(entry_ids: Numbers) -> bytes:
    bitmap = BitMap64(array("Q", entry_ids.astype(np.uint64).tobytes()))
    bitmap.run_optimize()
    return bitmap.serialize()


def write_bitmaps(entry_ids: Numbers, ends: Numbers) -> list[bytes]:
    """Encode one bitmap per range of ids, which must be ascending, below 2^32, and not empty."""
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
    smaller_as_runs = 2 + 4 * runs < np.minimum(2 * counts, _BITS // 8)
    as_runs = np.flatnonzero(one_container & smaller_as_runs)
    as_ids = np.flatnonzero(one_container & ~smaller_as_runs)

    written = [b""] * len(ends)
    if len(as_ids):
        heads = Rows(len(as_ids)).constant(_IDS).fixed(high[as_ids], 2).fixed(counts[as_ids] - 1, 2)
        heads.constant(_IDS_OFFSET)
        lows = entry_ids.astype("<u2")
        listed = lows.tobytes()
        bits = np.zeros(_BITS, dtype=np.bool_)
        places = zip(as_ids.tolist(), heads.split(), starts[as_ids].tolist(), ends[as_ids].tolist(), strict=True)
        for number, head, start, end in places:
            if end - start <= _MAX_LISTED:
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
