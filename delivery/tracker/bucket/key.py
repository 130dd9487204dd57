"""Identification of a bucket: a cursor property, and custom metadata of the snapshot's ledger.

    property      #pulsar.internal.delayed.bucket_<first ledger>_<last ledger> = <id of the snapshot's ledger>

All numbers are decimal. The custom metadata repeats the property's key, and names the topic and the cursor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bookstand.cursor.store.property_ledgers import DELAYED_PREFIX
from bookstand.errors import IncorrectParameterError, MalformedError
from bookstand.managed_ledger.topic_name import (
    BUCKET_CURSOR_LABEL,
    BUCKET_KEY_LABEL,
    BUCKET_TOPIC_LABEL,
    DELAYED_BUCKET,
)

PREFIX = f"{DELAYED_PREFIX}bucket"

_NUMBER = "0|[1-9][0-9]{0,18}"
_KEY = re.compile(f"{re.escape(PREFIX)}_({_NUMBER})_({_NUMBER})")
_VALUE = re.compile(_NUMBER)
_LARGEST = (1 << 63) - 1

_APPLICATION, _COMPONENT = "application", "component"
_PULSAR = b"pulsar"


class MalformedBucketPropertyError(MalformedError):
    """A property looks like a bucket's, but its key or value is malformed."""


class BucketKey(NamedTuple):
    """First and last ledger of the topic whose delayed messages a bucket holds."""

    first_ledger: int
    last_ledger: int

    def __str__(self) -> str:
        return f"{PREFIX}_{self.first_ledger}_{self.last_ledger}"


def bucket_key(first_ledger: int, last_ledger: int) -> str:
    """Return the name of the property."""
    if not 0 <= first_ledger <= last_ledger <= _LARGEST:
        raise IncorrectParameterError(
            f"a bucket must have ledgers from one id to the same or a higher one, not {first_ledger}..{last_ledger}"
        )
    return str(BucketKey(first_ledger, last_ledger))


def parse_key(key: str) -> BucketKey | None:
    """Parse the name of a property; return None if it is not a bucket's."""
    if not key.startswith(PREFIX):
        return None
    match = _KEY.fullmatch(key)
    if match is None:
        raise MalformedBucketPropertyError(f"property {key!r} must be {PREFIX}_<first ledger>_<last ledger>")
    found = BucketKey(int(match[1]), int(match[2]))
    if not found.first_ledger <= found.last_ledger <= _LARGEST:
        raise MalformedBucketPropertyError(f"property {key!r} is not a valid range of ledgers")
    return found


def parse_bucket_id(key: str, value: str) -> int:
    """Parse the ledger id in the value of a property."""
    if _VALUE.fullmatch(value) is None or int(value) > _LARGEST:
        raise MalformedBucketPropertyError(f"property {key!r} must be a ledger id, not {value!r}")
    return int(value)


class BucketProperties(NamedTuple):
    """The buckets among a cursor's properties, and errors of malformed ones by property name."""

    buckets: dict[BucketKey, int]
    malformed: dict[str, MalformedBucketPropertyError]


def read_properties(properties: Iterable[tuple[str, str]]) -> BucketProperties:
    found = BucketProperties({}, {})
    for key, value in properties:
        try:
            bucket = parse_key(key)
            if bucket is not None:
                found.buckets[bucket] = parse_bucket_id(key, value)
        except MalformedBucketPropertyError as error:
            found.malformed[key] = error
    return found


class BucketLabels(NamedTuple):
    """Labels of a snapshot's ledger. The key is the name of the property."""

    key: str
    topic: str
    cursor: str


def custom_metadata(labels: BucketLabels) -> dict[str, bytes]:
    for name, label in labels._asdict().items():
        if not isinstance(label, str):
            raise IncorrectParameterError(f"the {name} of a bucket snapshot must be a string, not {label!r}")
    return {
        _APPLICATION: _PULSAR,
        _COMPONENT: DELAYED_BUCKET,
        BUCKET_KEY_LABEL: labels.key.encode(),
        BUCKET_TOPIC_LABEL: labels.topic.encode(),
        BUCKET_CURSOR_LABEL: labels.cursor.encode(),
    }


def read_labels(custom: Mapping[str, bytes]) -> BucketLabels | None:
    """Return the labels of a ledger; None if it is not labelled as a snapshot."""
    if (custom.get(_APPLICATION), custom.get(_COMPONENT)) != (_PULSAR, DELAYED_BUCKET):
        return None
    labels = BUCKET_KEY_LABEL, BUCKET_TOPIC_LABEL, BUCKET_CURSOR_LABEL
    return BucketLabels(*(custom.get(label, b"").decode(errors="replace") for label in labels))
