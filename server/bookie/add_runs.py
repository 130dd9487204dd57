"""Columnar processing of adds: one batch for a run of frames that differ only in their entries.

Only this module of a bookie needs numpy. It is imported with the first run that is large enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any

import numpy as np

from bookstand.server.bookie.add_batches import Adds, Answer
from bookstand.server.bookie.protocol import v2, v3
from bookstand.server.bookie.protocol.versions import FIRST_OCTET_OF_V3
from bookstand.server.framing import LENGTH_BYTES, FrameRun
from bookstand.storage.served.replica_operations import LEAST_ENTRY_BYTES

_LAST_OCTET = 0x80

Rows = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


def adds_of(run: FrameRun) -> Adds | None:
    """Batch of the leading adds of a run that have the same layout; None if its frames must be processed one by one."""
    begin = run.start + LENGTH_BYTES
    if run.size > v2.ENTRY_START and run.data[begin + 1] == v2.ADD and run.data[begin] <= v2.NEWEST:
        return _v2_run(run)
    if run.data[begin : begin + 1] == FIRST_OCTET_OF_V3:
        return _v3_run(run)
    return None


def _v2_run(run: FrameRun) -> Adds | None:
    entry = LENGTH_BYTES + v2.ENTRY_START
    if run.size < v2.ENTRY_START + LEAST_ENTRY_BYTES:
        return None
    rows = run.rows()
    version, _, flags = v2.HEADER.unpack_from(run.data, run.start + LENGTH_BYTES)
    if not v2.OLDEST <= version <= v2.NEWEST:
        return None
    # Header, master key and ledger id must be equal.
    rows = _alike(rows, [slice(LENGTH_BYTES, entry + 8)])
    key = run.data[run.start + LENGTH_BYTES + v2.KEY_START : run.start + entry]
    return _adds(run, rows, entry, key, bool(flags & v2.RECOVERY), partial(_v2_answers, version, rows, entry))


def _v2_answers(version: int, rows: Rows, entry: int, code: int) -> bytes:
    one = v2.answer(version, v2.ADD, code, 0, 0)
    answers = np.empty((len(rows), len(one)), np.uint8)
    answers[:] = np.frombuffer(one, np.uint8)
    answers[:, -16:] = rows[:, entry : entry + 16]
    return answers.tobytes()


def _v3_run(run: FrameRun) -> Adds | None:
    frame = run.frame(0)
    first = v3.match_add(frame)
    if first is None or len(frame) - first.body.start < LEAST_ENTRY_BYTES:
        return None
    rows = run.rows()
    txn, entry_id = _in_row(first.txn), _in_row(first.entry)
    body = LENGTH_BYTES + first.body.start
    # All bytes up to the ledger id in the entry must be equal, except for the transaction id and the entry id.
    same = [slice(LENGTH_BYTES, txn.start), slice(txn.stop, entry_id.start), slice(entry_id.stop, body + 8)]
    rows = _alike(rows, same, varints=[txn, entry_id])
    told = _numbers(rows[:, entry_id])
    rows = rows[: _agree(told == _field(rows, body + 8))]
    answer = partial(_v3_answers, frame, first, rows, txn, entry_id)
    return _adds(run, rows, body, frame[first.key], False, answer)


def _v3_answers(frame: bytes, first: v3.Add, rows: Rows, txn: slice, entry_id: slice, code: int) -> bytes:
    one = v3.answer_add(frame[first.header], code, frame[first.ledger], frame[first.entry])
    answers = np.empty((len(rows), len(one)), np.uint8)
    answers[:] = np.frombuffer(one, np.uint8)
    # The header of the response contains the request's transaction id; its last field is the entry id.
    answers[:, txn] = rows[:, txn]
    answers[:, len(one) - (entry_id.stop - entry_id.start) :] = rows[:, entry_id]
    return answers.tobytes()


def _in_row(part: slice) -> slice:
    return slice(part.start + LENGTH_BYTES, part.stop + LENGTH_BYTES)


def _alike(rows: Rows, same: Sequence[slice], varints: Sequence[slice] = ()) -> Rows:
    """The leading rows that equal the first one in the slices ``same`` and in the lengths of the varints."""
    for part in same:
        rows = rows[: _agree((rows[:, part] == rows[0, part]).all(axis=1))]
    for part in varints:
        ends = rows[:, part] & _LAST_OCTET
        rows = rows[: _agree((ends == ends[0]).all(axis=1))]
    return rows


def _agree(agreeing: Any) -> int:
    """Number of leading true values."""
    other = np.flatnonzero(~agreeing)
    return int(other[0]) if len(other) else len(agreeing)


def _numbers(octets: Rows) -> Any:
    """Decode varints of equal length, one per row, as int64."""
    numbers = np.zeros(len(octets), np.uint64)
    for place in range(octets.shape[1]):
        numbers |= (octets[:, place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    return numbers.view(np.int64)


def _field(rows: Rows, start: int) -> Any:
    """Decode an int64 of each row."""
    return rows[:, start : start + 8].copy().view(">i8")[:, 0].astype(np.int64)


def _adds(run: FrameRun, rows: Rows, entry: int, master_key: bytes, recovery: bool, answer: Answer) -> Adds:
    count = len(rows)
    ids, lacs = _field(rows, entry + 8), _field(rows, entry + 16)
    first = int(ids[0])
    entry_ids: Sequence[int] = range(first, first + count)
    if count > 1 and (np.diff(ids) != 1).any():
        entry_ids = ids.tolist()
    cut = Struct(f"{entry}x{run.stride - entry}s")
    octets = memoryview(run.data)[run.start : run.start + count * run.stride]
    stored = [entry for (entry,) in cut.iter_unpack(octets)]
    ledger_id = int(_field(rows[:1], entry)[0])
    lac = int(lacs.max(initial=-1))
    return Adds(ledger_id, master_key, recovery, entry_ids, stored, lac, answer, len(octets))
