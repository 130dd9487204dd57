"""Entries by the column: never another byte than one by one, and nothing wrong goes unnoticed."""

from __future__ import annotations

import random
import struct

import numpy
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bookstand.errors import DigestMismatchError
from bookstand.storage.format import entry_codec
from bookstand.storage.format.digest import DIGEST_NAMES, digest_for
from bookstand.storage.format.entry_batch import (
    LARGEST_COMMON_SIZE,
    LARGEST_SLICE,
    SMALLEST_BATCH,
    PayloadSizes,
    decode_entries,
    encode_entries,
)
from bookstand.storage.format.schema import ENTRY_KEY

COUNTS = [
    1,
    2,
    SMALLEST_BATCH - 1,
    SMALLEST_BATCH,
    SMALLEST_BATCH + 1,
    LARGEST_SLICE - 1,
    LARGEST_SLICE,
    LARGEST_SLICE + 1,
    2 * LARGEST_SLICE + 3,
]
PASSWORD = b"a secret"


def one_by_one(name, ledger, first, lac, length, payloads):
    digest = digest_for(name, PASSWORD)
    keys, stored = [], []
    for entry_id, payload in enumerate(payloads, first):
        length += len(payload)
        keys.append(ENTRY_KEY.pack(ledger, entry_id))
        stored.append(entry_codec.encode(digest, ledger, entry_id, lac, length, payload))
    return keys, stored


def stored_bytes(encoded):
    return [stored for _, stored in encoded.pairs()]


def check_both_ways(name, ledger, first, lac, length, payloads):
    digest = digest_for(name, PASSWORD)
    encoded = encode_entries(digest, ledger, first, lac, length, payloads)
    keys, stored = zip(*encoded.pairs(), strict=True)
    packed = PayloadSizes(list(map(len, payloads)))
    packed.pack(digest, payloads)
    assert list(encode_entries(digest, ledger, first, lac, length, payloads, packed).pairs()) == list(encoded.pairs())
    assert list(encoded.pairs()) == list(zip(keys, stored, strict=True))
    assert (encoded.count, encoded.first_key, encoded.largest) == (len(keys), keys[0], max(map(len, stored)))
    assert (list(keys), list(stored)) == one_by_one(name, ledger, first, lac, length, payloads)
    assert all(type(key) is bytes for key in keys)
    assert all(type(one) is bytes for one in stored)
    lengths, decoded = decode_entries(digest, ledger, first, stored)
    assert list(decoded) == list(payloads)
    expected = []
    for payload in payloads:
        length += len(payload)
        expected.append(length)
    assert list(lengths) == expected
    assert all(type(one) is int for one in lengths)


def some_payloads(kind, count):
    rng = random.Random(f"{kind}:{count}")
    if kind == "equal":
        return [rng.randbytes(33) for _ in range(count)]
    if kind == "empty":
        return [b""] * count
    if kind == "one empty":
        return [b"" if i == count // 2 else rng.randbytes(20) for i in range(count)]
    return [rng.randbytes(rng.choice([0, 1, 3, 8, 17, 100])) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", ["equal", "empty", "one empty", "varied"])
@pytest.mark.parametrize("name", DIGEST_NAMES)
def test_the_same_bytes_as_one_by_one(name, kind, count):
    check_both_ways(name, 3, 0, -1, 0, some_payloads(kind, count))


@pytest.mark.parametrize("size", [LARGEST_COMMON_SIZE - 1, LARGEST_COMMON_SIZE, LARGEST_COMMON_SIZE + 1])
@pytest.mark.parametrize("name", ["crc32", "crc32c"])
def test_sizes_around_the_largest_common_one(name, size):
    rng = random.Random(size)
    check_both_ways(name, 3, 10, 9, 1000, [rng.randbytes(size) for _ in range(SMALLEST_BATCH + 5)])


@pytest.mark.parametrize("bit", range(8, 61, 4))
@pytest.mark.parametrize("name", ["crc32", "crc32c"])
def test_ids_and_lengths_that_carry_far(name, bit):
    """Only the low bits of a batch's header fields vary, unless a carry runs through all of them."""
    edge = 1 << bit
    payloads = some_payloads("varied", SMALLEST_BATCH)
    check_both_ways(name, edge - 1, edge - 100, edge - 101, edge - 50, payloads)
    check_both_ways(name, edge, edge - 1, edge - 2, edge - 1, some_payloads("equal", SMALLEST_BATCH))


@pytest.mark.parametrize("name", ["crc32", "crc32c"])
def test_entries_that_carry_any_last_add_confirmed(name, monkeypatch):
    """Read together, though stored by many batches, the first of which confirmed nothing; and not by the plain way,
    which is for what is damaged."""
    digest = digest_for(name, PASSWORD)
    payloads = some_payloads("equal", SMALLEST_BATCH)
    lacs = [-1, 0, 1, (1 << 60) - 1, (1 << 63) - 1]
    stored = [
        entry_codec.encode(digest, 3, entry_id, lacs[entry_id % len(lacs)], 33 * (entry_id + 1), payload)
        for entry_id, payload in enumerate(payloads)
    ]
    monkeypatch.setattr(entry_codec, "decode", None)
    assert list(decode_entries(digest, 3, 0, stored)[1]) == payloads


def test_the_largest_ids():
    top = (1 << 63) - 1
    for name in DIGEST_NAMES:
        payloads = some_payloads("varied", SMALLEST_BATCH)
        check_both_ways(name, top, top - SMALLEST_BATCH + 1, top - SMALLEST_BATCH, 1 << 60, payloads)


BATCHES = st.lists(st.binary(max_size=12), min_size=1, max_size=8).flatmap(
    lambda kinds: st.tuples(st.just(kinds), st.integers(1, 450), st.randoms(use_true_random=False))
)


@given(
    name=st.sampled_from(DIGEST_NAMES),
    ledger=st.integers(0, (1 << 63) - 1),
    first=st.integers(0, 1 << 40) | st.integers(0, 70_000),
    lag=st.integers(1, 5000),
    length=st.integers(0, 1 << 50),
    batch=BATCHES,
)
@example("crc32c", 0, 65_400, 1, 65_000, ([b"ab"], 300, random.Random(1)))
@settings(max_examples=150, deadline=None)
def test_any_batch(name, ledger, first, lag, length, batch):
    kinds, count, rng = batch
    payloads = [rng.choice(kinds) for _ in range(count)]
    check_both_ways(name, ledger, first, max(-1, first - lag), length, payloads)


def test_what_is_packed():
    many = some_payloads("equal", LARGEST_SLICE + 1)
    sizes = PayloadSizes([33] * len(many))
    assert sizes.pack(digest_for("crc32c", b""), many)
    assert [len(column.rows) for column in sizes.columns] == [LARGEST_SLICE, 1]


@pytest.mark.parametrize(
    ("name", "payloads"),
    [
        ("crc32c", [b"x"] * (SMALLEST_BATCH - 1)),
        ("crc32c", [b"x"] * SMALLEST_BATCH + [b"xy"]),
        ("crc32c", [b"x" * (LARGEST_COMMON_SIZE + 1)] * SMALLEST_BATCH),
        # These would take what is not bytes.
        *((name, [b"x"] * SMALLEST_BATCH) for name in DIGEST_NAMES if name != "crc32c"),
    ],
)
def test_what_is_not_packed(name, payloads):
    sizes = PayloadSizes(list(map(len, payloads)))
    assert not sizes.pack(digest_for(name, b""), payloads)
    assert sizes.columns == ()


@pytest.mark.parametrize("payload", [bytearray(1), memoryview(b"x"), numpy.zeros(1, numpy.uint8), "x", [1], None])
def test_nothing_but_bytes_is_packed(payload):
    payloads = [b"x"] * SMALLEST_BATCH + [payload]
    sizes = PayloadSizes([1] * len(payloads))
    with pytest.raises((TypeError, struct.error)):
        sizes.pack(digest_for("crc32c", b""), payloads)


def test_nothing():
    assert [list(part) for part in decode_entries(digest_for("crc32c", b""), 1, 0, [])] == [[], []]


@pytest.mark.parametrize("kind", ["equal", "varied", "empty"])
@pytest.mark.parametrize("name", ["crc32", "crc32c", "hmac"])
def test_every_flipped_bit_is_found(name, kind):
    digest = digest_for(name, PASSWORD)
    payloads = some_payloads(kind, SMALLEST_BATCH)
    if kind == "varied":
        payloads[SMALLEST_BATCH // 2] = b"not the others' size"
    stored = stored_bytes(encode_entries(digest, 5, 100, 99, 0, payloads))
    number = SMALLEST_BATCH // 2
    good = stored[number]
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        stored[number] = bytes(flipped)
        with pytest.raises(DigestMismatchError, match=f"5:{100 + number}"):
            decode_entries(digest, 5, 100, stored)


@pytest.mark.parametrize("number", [0, 1, SMALLEST_BATCH - 1])
@pytest.mark.parametrize("name", ["crc32", "crc32c"])
def test_flips_in_the_first_and_the_last_entry(name, number):
    """The first entry is what all others are compared to."""
    digest = digest_for(name, PASSWORD)
    stored = stored_bytes(encode_entries(digest, 5, 100, 99, 0, some_payloads("equal", SMALLEST_BATCH)))
    stored = list(stored)
    good = stored[number]
    for bit in range(8 * len(good)):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        stored[number] = bytes(flipped)
        with pytest.raises(DigestMismatchError, match=f"5:{100 + number}"):
            decode_entries(digest, 5, 100, stored)


def accepted(digest, stored) -> bool:
    try:
        decode_entries(digest, 5, 100, stored)
    except DigestMismatchError:
        return False
    return True


@pytest.mark.parametrize("name", DIGEST_NAMES)
def test_other_damage(name):
    digest = digest_for(name, PASSWORD)
    stored = stored_bytes(encode_entries(digest, 5, 100, 99, 0, some_payloads("equal", SMALLEST_BATCH)))
    good = list(stored)
    another = entry_codec.encode(digest, 6, 150, 99, 3, b"x" * 33)
    changes = {
        "swapped": lambda some: [*some[:50], some[51], some[50], *some[52:]],
        "missing": lambda some: some[:50] + some[51:],
        "twice": lambda some: [*some[:50], some[49], *some[50:]],
        "of another ledger": lambda some: [*some[:50], another, *some[51:]],
        "empty": lambda some: [*some[:50], b"", *some[51:]],
        "header only": lambda some: [*some[:50], some[50][:31], *some[51:]],
        "first empty": lambda some: [b"", *some[1:]],
        "all empty": lambda some: [b""] * len(some),
        "all cut": lambda some: [one[:20] for one in some],
    }
    if name != "dummy":
        changes["cut"] = lambda some: [*some[:50], some[50][:-1], *some[51:]]
        changes["longer"] = lambda some: [*some[:50], some[50] + b"\0", *some[51:]]
        changes["first longer"] = lambda some: [some[0] + b"\0", *some[1:]]
    for what, change in changes.items():
        assert not accepted(digest, change(good)), what
    assert list(decode_entries(digest, 5, 100, good)[1]) == some_payloads("equal", SMALLEST_BATCH)


def test_two_errors_that_would_cancel_out():
    """CRCs are linear: the same flip in two entries leaves the XOR of all sums as it was."""
    for name in ("crc32", "crc32c"):
        digest = digest_for(name, b"")
        stored = stored_bytes(encode_entries(digest, 5, 0, -1, 0, [bytes(16)] * SMALLEST_BATCH))
        for number in (3, 4):
            stored[number] = stored[number][:-1] + b"\x01"
        with pytest.raises(DigestMismatchError, match="5:3"):
            decode_entries(digest, 5, 0, stored)
