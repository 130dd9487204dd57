"""Properties of buckets and labels of their ledgers are read strictly, and written as Pulsar does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.delivery.tracker.bucket.key import (
    BucketKey,
    BucketLabels,
    MalformedBucketPropertyError,
    bucket_key,
    custom_metadata,
    parse_bucket_id,
    parse_key,
    read_labels,
    read_properties,
)
from bookstand.errors import IncorrectParameterError

LARGEST = (1 << 63) - 1
LEDGERS = st.tuples(st.integers(0, LARGEST), st.integers(0, LARGEST)).map(sorted)


def test_the_key_is_pulsars() -> None:
    assert bucket_key(10, 14) == "#pulsar.internal.delayed.bucket_10_14"


@given(LEDGERS)
def test_a_key_is_read_as_it_was_written(ledgers: list[int]) -> None:
    assert parse_key(bucket_key(*ledgers)) == BucketKey(*ledgers)
    assert str(BucketKey(*ledgers)) == bucket_key(*ledgers)


@pytest.mark.parametrize(
    "key", ["", "mine", "#pulsar.internal.", "#pulsar.internal.delayed", "x#pulsar.internal.delayed.bucket_1_2"]
)
def test_other_properties_are_none(key: str) -> None:
    assert parse_key(key) is None


MALFORMED = (
    *("", "_", "_1", "_1_", "__1", "_1_2_", "_1_2_3", "s_1_2", "1_2"),
    *("_a_2", "_1_b", "_-1_2", "_+1_2", "_1_ 2", "_01_2", "_1_2\n", "_٣_٤"),
    *("_2_1", f"_1_{LARGEST + 1}", "_1_99999999999999999999"),
)


@pytest.mark.parametrize("rest", MALFORMED)
def test_a_malformed_key_is_refused_by_name(rest: str) -> None:
    key = f"#pulsar.internal.delayed.bucket{rest}"
    with pytest.raises(MalformedBucketPropertyError) as caught:
        parse_key(key)
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize("value", ["", "a", "-1", "+1", " 1", "1 ", "01", "1.0", "0x1", "1_0", "١", str(LARGEST + 1)])
def test_a_malformed_value_is_refused_by_name(value: str) -> None:
    with pytest.raises(MalformedBucketPropertyError, match="bucket_1_2") as caught:
        parse_bucket_id(bucket_key(1, 2), value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("number", [0, 7, LARGEST])
def test_a_value_is_a_ledger_id(number: int) -> None:
    assert parse_bucket_id("key", str(number)) == number


def test_buckets_are_told_from_other_properties_and_from_broken_ones() -> None:
    broken = {"#pulsar.internal.delayed.bucket_x_2": "5", bucket_key(30, 31): "five"}
    found = read_properties([("mine", "1"), (bucket_key(1, 9), "77"), *broken.items(), (bucket_key(10, 10), "0")])
    assert found.buckets == {BucketKey(1, 9): 77, BucketKey(10, 10): 0}
    assert found.malformed.keys() == broken.keys()
    assert all(key in str(error) for key, error in found.malformed.items())


@pytest.mark.parametrize("ledgers", [(-1, 2), (3, 2), (0, LARGEST + 1)])
def test_there_are_no_such_buckets(ledgers: tuple[int, int]) -> None:
    with pytest.raises(IncorrectParameterError):
        bucket_key(*ledgers)


LABELS = BucketLabels(bucket_key(1, 2), "persistent://a/b/c", "sub/ü")


def test_labels_are_pulsars() -> None:
    assert custom_metadata(LABELS) == {
        "application": b"pulsar",
        "component": b"delayed-index-bucket",
        "pulsar/delayedIndexBucketKey": b"#pulsar.internal.delayed.bucket_1_2",
        "pulsar/delayedIndexTopic": b"persistent://a/b/c",
        "pulsar/delayedIndexCursor": "sub/ü".encode(),
    }
    assert read_labels(custom_metadata(LABELS)) == LABELS


@pytest.mark.parametrize("change", [{"component": b"managed-ledger"}, {"application": b"other"}])
def test_other_labels_are_none(change: dict[str, bytes]) -> None:
    assert read_labels(custom_metadata(LABELS) | change) is None
    assert read_labels({}) is None


def test_labels_are_strings() -> None:
    with pytest.raises(IncorrectParameterError, match="cursor"):
        custom_metadata(LABELS._replace(cursor=None))  # type: ignore[arg-type]
