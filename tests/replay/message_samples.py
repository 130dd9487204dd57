"""Messages. Compared are the answers in the order in which a consumer asks: the broker's metadata and where it ends,
whether there is a checksum, the stored one, the computed one and whether they are equal, the metadata (every field
that is there), offset, length and unpacked bytes of the payload, and metadata and payload of each message of a batch.
Where a step failed, the same step has to fail; not compared is with which exception. Steps behind it were not recorded.
Each message is then framed anew from its parts, and the bytes are compared.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

from bookstand.errors import MalformedMessageError
from bookstand.managed_ledger.message.compression import NAMES
from bookstand.managed_ledger.message.format import Message, assemble
from tests.replay.outcome import Outcome

BYTES_FIELDS = ("ordering_key", "schema_version", "encryption_param", "schema_id")

STRICTER = ("but only", "varint", "field number 0")
"""Reasons for which we refuse metadata and the original may not: it lets a part end behind the message, and takes a
field without a number."""

SIZE = ("unpacks to", "cannot be unpacked to")
"""Reasons for which we refuse a payload that the original filled up with what lay in its buffer, or cut."""

Answers = dict[str, Any]


def compare_messages(name: str, lines: list[dict[str, Any]]) -> Iterator[Outcome]:
    for number, sample in enumerate(lines):
        data = base64.b64decode(sample["b64"])
        recorded = sample["answers"]
        ours, reason = answers(data)
        found = list(differences(ours, recorded))
        if not found and not any(key.endswith("_error") for key in ours):
            found += _framed_anew(data)
        label = f"{name}:{sample.get('index', number)}"
        rule = _rule(sample, ours, recorded, reason) if found else None
        if rule is not None:
            yield Outcome(label, "argued", f"{rule}: {reason}")
        else:
            yield Outcome(label, "different" if found else "equal", "; ".join(found))


def differences(ours: Answers, recorded: Answers) -> Iterator[str]:
    for key in sorted(ours.keys() | recorded.keys()):
        if key.endswith("_error"):
            if (key in ours) != (key in recorded):
                yield f"{key}: ours {ours.get(key)!r}, recorded {recorded.get(key)!r}"
        elif ours.get(key, "absent") != recorded.get(key, "absent"):
            yield f"{key}: ours {str(ours.get(key, 'absent'))[:200]}, recorded {str(recorded.get(key, 'absent'))[:200]}"


def _rule(sample: dict[str, Any], ours: Answers, recorded: Answers, reason: str) -> str | None:
    """Only damaged entries are argued, and only where we refuse what was read of them."""
    if sample["kind"] != "broken":
        return None
    if "metadata_error" in ours and "metadata" in recorded and any(word in reason for word in STRICTER):
        return "stricter-message"
    if "payload_error" in ours and "payload_b64" in recorded and any(word in reason for word in SIZE):
        return "payload-size"
    return None


def answers(data: bytes) -> tuple[Answers, str]:
    """What we say of an entry, in the recordings' words, and why we stopped if we did."""
    message = Message(data)
    said: Answers = {}
    for step, ask in STEPS:
        try:
            ask(message, said)
        except MalformedMessageError as error:
            said[f"{step}_error"] = type(error).__name__
            return said, str(error)
    return said, ""


def _broker(message: Message, said: Answers) -> None:
    metadata = message.broker_metadata
    said["broker_entry_metadata"] = None if metadata is None else _fields(metadata)
    said["offset_after_broker_entry_metadata"] = message.offset


def _has_checksum(message: Message, said: Answers) -> None:
    said["has_checksum"] = message.has_checksum


def _checksum(message: Message, said: Answers) -> None:
    if message.has_checksum:
        stored, computed = message.stored_checksum, message.computed_checksum
        said |= {"stored_checksum": stored, "computed_checksum": computed, "checksum_ok": stored == computed}


def _metadata(message: Message, said: Answers) -> None:
    said["metadata"] = _fields(message.metadata)
    said["payload_offset"] = message.payload_offset
    said["payload_length"] = len(message.stored_payload)


def _payload(message: Message, said: Answers) -> None:
    said["payload_b64"] = _b64(message.payload())


def _batch(message: Message, said: Answers) -> None:
    if message.is_batch:
        said["batch"] = []
        for one in message.messages():
            said["batch"].append({**_fields(one.metadata), "payload_b64": _b64(one.payload)})


STEPS: tuple[tuple[str, Callable[[Message, Answers], None]], ...] = (
    ("broker_entry_metadata", _broker),
    ("has_checksum", _has_checksum),
    ("checksum", _checksum),
    ("metadata", _metadata),
    ("payload", _payload),
    ("batch", _batch),
)


def _framed_anew(data: bytes) -> Iterator[str]:
    message = Message(data)
    again = assemble(
        message.metadata,
        message.stored_payload,
        message.broker_metadata,
        checksum=message.has_checksum,
    )
    if message.has_checksum and message.stored_checksum != message.computed_checksum:
        at = message.offset + 2
        again = again[:at] + data[at : at + 4] + again[at + 4 :]
    if again != data:
        yield "framed anew it has other bytes"


def _fields(metadata: Any) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for key, value in metadata._asdict().items():
        if value is None or value == () or key == "unknown":
            continue
        if key in BYTES_FIELDS:
            said[f"{key}_b64"] = _b64(value)
        elif key == "compression":
            said[key] = NAMES.get(value, value)
        elif isinstance(value, tuple):
            said[key] = [list(one) if isinstance(one, tuple) else one for one in value]
        else:
            said[key] = value
    return said


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
