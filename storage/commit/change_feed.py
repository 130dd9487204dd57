"""What was changed lately of nodes and ledgers, for the server of a store to find without looking at all of them.

A store that was ever served numbers the changes that others than its server make to records of ``nodes`` and
``ledgers``, and keeps the names of the last few. A server that has heard of so many finds by these what is new; one
that has missed more than are kept has to look at everything.
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

TOTAL = Layout(f"what is under `{schema.META_CHANGE_FEED.decode()}` in `meta`", ("changes", "q", "how many there were"))
CHANGE = Layout(
    f"what is under `{schema.META_CHANGE_FEED.decode()}-` and the number of a change, in 8 bytes, in `meta`",
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


def told(before: int, changed: Sequence[Changed]) -> Iterator[tuple[bytes, bytes | None]]:
    """Records of ``meta`` to put, or to delete (None), where so many changes come after those ``before``."""
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
