"""How a bucket is known: by a property of its cursor, and by the custom metadata of the ledger that its snapshot is in.

    property      #pulsar.internal.delayed.bucket_<first ledger>_<last ledger> = <id of the snapshot's ledger>

All numbers are decimal. The ledger's custom metadata has the property's key again, and the names of topic and cursor.
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
    """A property has the name of a bucket, or nearly so, and does not say which one, or not where it is."""


class BucketKey(NamedTuple):
    """The ledgers of a topic whose delayed messages a bucket holds, the last one included."""

    first_ledger: int
    last_ledger: int

    def __str__(self) -> str:
        return f"{PREFIX}_{self.first_ledger}_{self.last_ledger}"


def bucket_key(first_ledger: int, last_ledger: int) -> str:
    """The property's name."""
    if not 0 <= first_ledger <= last_ledger <= _LARGEST:
        raise IncorrectParameterError(
            f"a bucket has ledgers from one id up to another, not {first_ledger}..{last_ledger}"
        )
    return str(BucketKey(first_ledger, last_ledger))


def parse_key(key: str) -> BucketKey | None:
    """None: a property with that name is no bucket's."""
    if not key.startswith(PREFIX):
        return None
    match = _KEY.fullmatch(key)
    if match is None:
        raise MalformedBucketPropertyError(f"property {key!r} is not {PREFIX}_<first ledger>_<last ledger>")
    found = BucketKey(int(match[1]), int(match[2]))
    if not found.first_ledger <= found.last_ledger <= _LARGEST:
        raise MalformedBucketPropertyError(f"property {key!r} names no range of ledgers")
    return found


def parse_bucket_id(key: str, value: str) -> int:
    """The ledger of the snapshot that the property's value names."""
    if _VALUE.fullmatch(value) is None or int(value) > _LARGEST:
        raise MalformedBucketPropertyError(f"property {key!r} should be a ledger id, not {value!r}")
    return int(value)


class BucketProperties(NamedTuple):
    """The buckets among a cursor's properties, and by name the properties that should have been some."""

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
    """What a snapshot's ledger says that it belongs to. The key is the property's name."""

    key: str
    topic: str
    cursor: str


def custom_metadata(labels: BucketLabels) -> dict[str, bytes]:
    for name, label in labels._asdict().items():
        if not isinstance(label, str):
            raise IncorrectParameterError(f"the {name} of a bucket snapshot is a string, not {label!r}")
    return {
        _APPLICATION: _PULSAR,
        _COMPONENT: DELAYED_BUCKET,
        BUCKET_KEY_LABEL: labels.key.encode(),
        BUCKET_TOPIC_LABEL: labels.topic.encode(),
        BUCKET_CURSOR_LABEL: labels.cursor.encode(),
    }


def read_labels(custom: Mapping[str, bytes]) -> BucketLabels | None:
    """None: it does not say that the ledger is a snapshot's."""
    if (custom.get(_APPLICATION), custom.get(_COMPONENT)) != (_PULSAR, DELAYED_BUCKET):
        return None
    labels = BUCKET_KEY_LABEL, BUCKET_TOPIC_LABEL, BUCKET_CURSOR_LABEL
    return BucketLabels(*(custom.get(label, b"").decode(errors="replace") for label in labels))
