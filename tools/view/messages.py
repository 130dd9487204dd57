"""Conversion of entries to messages for printing."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from bookstand.disk.bookies.disk_ledger import StoredEntry
from bookstand.disk.damage import Report
from bookstand.disk.topics.messages import DiskMessage, read
from bookstand.managed_ledger.message.metadata import MessageMetadata, SingleMessageMetadata
from bookstand.proto.expansion import ExpansionLimits
from bookstand.tools.cli.output import iso, readable

_MAGICS = (b"\x0e\x01", b"\x0e\x02")
_TIMES = frozenset({"publish_time", "event_time", "deliver_at_time", "broker_timestamp"})


def is_message(payload: bytes) -> bool:
    """Return True if the payload has the magic number of a message; it may still be something else."""
    return payload.startswith(_MAGICS)


def message_of(entry: StoredEntry, topic: str, report: Report, limits: ExpansionLimits) -> DiskMessage | None:
    return read(topic, entry, report, limits) if is_message(entry.payload) else None


def metadata_facts(metadata: MessageMetadata | SingleMessageMetadata | None) -> dict[str, Any]:
    """Convert the fields that are set to text, numbers and times in UTC."""
    if metadata is None:
        return {}
    found: dict[str, Any] = {}
    for name, value in metadata._asdict().items():
        if value is None or value == () or value == b"":
            continue
        if name in ("properties",):
            found[name] = dict(value)
        elif name in _TIMES:
            found[name] = iso(value)
        elif name == "encryption_keys":
            found[name] = [key.key for key in value]
        elif isinstance(value, bytes):
            found[name] = readable(value)
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def message_facts(message: DiskMessage) -> dict[str, Any]:
    """Return the facts in front of the payload."""
    broker = message.broker_metadata
    facts: dict[str, Any] = {
        "checksum": "right" if message.has_checksum and not message.wrong else "none" if not message.wrong else "wrong",
        "compression": message.compression,
        "messages": message.count,
        **metadata_facts(message.metadata),
    }
    facts["compression"] = message.compression
    if broker is not None:
        facts["broker"] = {"timestamp": iso(broker.broker_timestamp), "index": broker.index}
    if message.wrong:
        facts["wrong"] = list(message.wrong)
    return facts


def value_facts(message: DiskMessage) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each message of the entry: its uncompressed payload and its own metadata."""
    for value in message.values():
        yield value.payload, metadata_facts(value.metadata)


def payload_facts(payload: bytes) -> Mapping[str, Any]:
    """Return the payload for JSON: as text if it is UTF-8, otherwise in base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}
