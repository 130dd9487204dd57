"""Runs of adds looked at by the column come to what they come to one by one."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bookstand.server.bookie.add_runs import adds_of
from bookstand.server.bookie.connection import SMALLEST_RUN
from bookstand.server.bookie.protocol import codes
from bookstand.server.bookie.protocol.v3 import varint
from bookstand.server.framing import FrameRun, split
from bookstand.storage.served.replica_operations import highest_lac
from tests.server.bookie import kit

ids = st.integers(-(1 << 63), (1 << 63) - 1)
starts = st.sampled_from([0, 1, 100, 120, 16_300, (1 << 35) - 4, (1 << 63) - 40])


def run_of(frames: list[bytes]) -> FrameRun:
    (run, *_), _, _ = split(b"".join(frames), 5 << 20)
    return run


def naive(frame: bytes) -> tuple[int, bytes, int, bytes]:
    """Ledger, key, entry id and entry of an add of either version, by protobuf and by hand."""
    if frame[:1] == b"\n":
        add = kit.messages.Request.FromString(frame).addRequest
        return add.ledgerId, add.masterKey, add.entryId, add.body
    entry = frame[24:]
    ledger_id, entry_id = struct.unpack_from(">qq", entry)
    return ledger_id, frame[4:24], entry_id, entry


def answers_of(octets: bytes) -> list[Any]:
    runs, end, _ = split(octets, 5 << 20)
    assert end == len(octets)
    told: list[Any] = []
    for run in runs:
        for index in range(run.frames):
            frame = run.frame(index)
            if frame[:1] == b"\n":
                response = kit.messages.Response.FromString(frame)
                added = response.addResponse
                told.append((response.header.txnId, response.status, added.status, added.ledgerId, added.entryId))
            else:
                told.append(struct.unpack(">BBHiqq", frame))
    return told


def check(frames: list[bytes], expected: int) -> None:
    assert check_run(run_of(frames)) == expected


def check_run(run: FrameRun) -> int:
    """Its first adds come to what they come to one by one; how many these are."""
    found = adds_of(run)
    if found is None:
        return 0
    expected = len(found.entry_ids)
    assert len(found.stored) == expected
    singly = [naive(run.frame(index)) for index in range(expected)]
    assert {(found.ledger_id, found.master_key)} == {(ledger, key) for ledger, key, _, _ in singly}
    assert list(found.entry_ids) == [entry_id for _, _, entry_id, _ in singly]
    assert list(found.stored) == [entry for _, _, _, entry in singly]
    assert found.lac == highest_lac(found.stored)
    for code in (codes.OK, codes.FENCED):
        told = answers_of(found.answer(code))
        assert [each[-2:] for each in told] == [(ledger, entry_id) for ledger, _, entry_id, _ in singly]
        if run.frame(0)[:1] == b"\n":
            txns = [kit.messages.Request.FromString(run.frame(index)).header.txnId for index in range(expected)]
            status = codes.STATUS[code]
            assert [each[:3] for each in told] == [(txn, status, status) for txn in txns]
        else:
            assert [each[:4] for each in told] == [(run.frame(index)[0], 1, 0, code) for index in range(expected)]
    return expected


@given(starts, st.integers(1, 30), st.integers(0, 50), st.sampled_from([1, 2]))
def test_version_2(start: int, count: int, size: int, version: int) -> None:
    check([kit.v2_add(kit.stored(7, start + n, bytes(size)), version=version) for n in range(count)], count)


@given(st.lists(ids, min_size=1, max_size=20), st.lists(ids, min_size=20, max_size=20))
def test_version_2_in_any_order(entries: list[int], lacs: list[int]) -> None:
    frames = [kit.v2_add(kit.stored(7, entry, lac=lac)) for entry, lac in zip(entries, lacs, strict=False)]
    check(frames, len(entries))


@given(starts, st.integers(1, 30), st.sampled_from([0, 1, 100, 16_370, 1 << 40]))
def test_version_3(start: int, count: int, txn: int) -> None:
    frames = [kit.v3_add(kit.stored(7, start + n), txn + n) for n in range(count)]
    first = len(frames[0])
    alike = 0
    for n, frame in enumerate(frames):
        # Varints of another length are another layout, though the frames may have one size.
        same = len(varint(txn + n)) == len(varint(txn)) and len(varint(start + n)) == len(varint(start))
        if len(frame) != first or not same:
            break
        alike += 1
    check(frames, alike)


def test_a_run_ends_where_the_ledger_the_key_or_the_flags_change() -> None:
    plain = [kit.v2_add(kit.stored(7, n)) for n in range(5)]
    for other in (
        kit.v2_add(kit.stored(8, 5)),
        kit.v2_add(kit.stored(7, 5), kit.OTHER_KEY),
        kit.v2_add(kit.stored(7, 5), flags=kit.RECOVERY),
        kit.v2_add(kit.stored(7, 5), version=1),
    ):
        check([*plain, other, *plain], 5)
    three = [kit.v3_add(kit.stored(7, n), n) for n in range(5)]
    for other in (kit.v3_add(kit.stored(8, 5), 5), kit.v3_add(kit.stored(7, 5), 5, kit.OTHER_KEY)):
        check([*three, other, *three], 5)


def test_an_add_whose_entry_has_another_id_ends_a_run() -> None:
    three = [kit.v3_add(kit.stored(7, n), n) for n in range(9)]
    body = kit.stored(7, 100)
    liar = kit.v3_request(kit.messages.ADD_ENTRY, 9, "addRequest", ledgerId=7, entryId=9, masterKey=kit.KEY, body=body)
    assert len(liar) == len(three[0])
    check([*three, liar], 9)


def test_what_is_too_short_for_an_entry_is_no_run() -> None:
    assert adds_of(run_of([kit.v2_add(bytes(23))] * 10)) is None
    assert adds_of(run_of([kit.v2_read(1, 1)] * 10)) is None
    assert SMALLEST_RUN > 1
