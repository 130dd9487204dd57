"""Change feed: the nodes and ledgers that were changed lately, so that a server need not scan for changes.

A store that has been served numbers the changes that writers other than its server make to ``nodes`` and ``ledgers``,
and retains the keys of the last :data:`~bookstand.storage.format.schema.CHANGE_FEED_LENGTH`. A server reads the changes
after the last number it knows. If some of them are no longer retained, it scans everything.
"""

from __future__ import annotations

from bookstand.errors import StoreDamagedError
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format import schema, sealed_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Changed = tuple[bytes, bytes]
    """Sub-database and key of a record."""

TOTAL = Layout(
    f"the record `{schema.META_CHANGE_FEED.decode()}` of `meta`", ("changes", "q", "number of changes so far")
)
CHANGE = Layout(
    f"the record `{schema.META_CHANGE_FEED.decode()}-` and the number of a change, in 8 bytes, of `meta`",
    ("sub-database", "B", "0: ledgers; 1: nodes"),
    ("key", "the rest", ""),
)
_TOTAL, _DATABASES = TOTAL.struct, (schema.LEDGERS, schema.NODES)


def key_of(number: int) -> bytes:
    return schema.META_CHANGE_FEED + b"-" + number.to_bytes(schema.COUNTER_BYTES, "big")


def pack_total(total: int) -> bytes:
    return sealed_record.seal(schema.META_CHANGE_FEED, _TOTAL.pack(total))


def decode_count(sealed: bytes) -> int:
    body = sealed_record.unseal(schema.META, schema.META_CHANGE_FEED, sealed)
    if len(body) != _TOTAL.size:
        raise _damaged(schema.META_CHANGE_FEED, body)
    return int(_TOTAL.unpack(body)[0])


def unpack(number: int, sealed: bytes) -> Changed:
    key = key_of(number)
    body = sealed_record.unseal(schema.META, key, sealed)
    if not body or body[0] >= len(_DATABASES):
        raise _damaged(key, body)
    return _DATABASES[body[0]], body[1:]


def append_changes(before: int, changed: Sequence[Changed]) -> Iterator[tuple[bytes, bytes | None]]:
    """Records of ``meta`` to put, or to delete (None), when changes are appended to ``before`` earlier ones."""
    total = before + len(changed)
    oldest = max(1, total - schema.CHANGE_FEED_LENGTH + 1)
    for number in range(max(1, before - schema.CHANGE_FEED_LENGTH + 1), min(before + 1, oldest)):
        yield key_of(number), None
    for number in range(max(before + 1, oldest), total + 1):
        database, name = changed[number - before - 1]
        key = key_of(number)
        yield key, sealed_record.seal(key, bytes([_DATABASES.index(database)]) + name)
    yield schema.META_CHANGE_FEED, pack_total(total)


def _damaged(key: bytes, body: bytes) -> StoreDamagedError:
    return StoreDamagedError(f"{sealed_record.describe(schema.META, key)} is damaged: {body.hex()}")
