"""The two older encodings of ledger metadata: lines of text (format 1) and protobuf's text format (format 2)."""

from __future__ import annotations

from bookstand.proto.text_format import TextReader, quoted
from bookstand.proto.wire_format import WireError, int32
from bookstand.storage.format.ledger_metadata import CLOSED, IN_RECOVERY, OPEN, STATES
from bookstand.storage.format.ledger_metadata_binary import RawMetadata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bookstand.storage.format.ledger_metadata import LedgerMetadata

_INT32_FIELDS = frozenset({"quorumSize", "ensembleSize", "ackQuorumSize"})
_INT64_FIELDS = frozenset({"length", "lastEntryId", "ctime", "cToken"})
_DIGESTS = {"CRC32": "crc32", "HMAC": "hmac", "CRC32C": "crc32c", "DUMMY": "dummy"}
_DIGEST_WORDS = {name: word for word, name in _DIGESTS.items()}

_CLOSED_WORD = "CLOSED"
_IN_RECOVERY_ENTRY = -102


def read_message(data: bytes) -> RawMetadata:
    """Decode protobuf's text format. As in BookKeeper, text after an unmatched closing brace is ignored."""
    reader = TextReader(data)
    message = RawMetadata()
    closer = reader.open_message()
    while not reader.at_end_of_message():
        name = reader.identifier()
        if name in _INT32_FIELDS or name in _INT64_FIELDS:
            reader.separator()
            number = reader.integer()
            message.numbers[name] = int32(number) if name in _INT32_FIELDS else number
        elif name == "state":
            reader.separator()
            message.state = _one_of(STATES, reader.identifier())
        elif name == "digestType":
            reader.separator()
            message.digest_type = _DIGESTS[_one_of(_DIGESTS, reader.identifier())]
        elif name == "password":
            reader.separator()
            message.password = reader.string()
        elif name == "segment":
            message.segments.append(_read_segment(reader))
        elif name == "customMetadata":
            key, value = _read_custom(reader)
            message.custom[key] = value
        else:
            reader.skip_value()
        reader.end_field()
    reader.close_message(closer)
    return message


def _one_of(known: Any, word: str) -> str:
    if word not in known:
        raise WireError(f"{word!r} is not one of {', '.join(known)}")
    return word


def _read_segment(reader: TextReader) -> tuple[int | None, list[bytes]]:
    reader.accept(":")
    closer = reader.open_message()
    first_entry: int | None = None
    members: list[bytes] = []
    while not reader.at_end_of_message():
        name = reader.identifier()
        if name == "ensembleMember":
            reader.separator()
            members += reader.strings()
        elif name == "firstEntryId":
            reader.separator()
            first_entry = reader.integer()
        else:
            reader.skip_value()
        reader.end_field()
    reader.close_message(closer)
    return first_entry, members


def _read_custom(reader: TextReader) -> tuple[str, bytes]:
    reader.accept(":")
    closer = reader.open_message()
    key = value = b""
    while not reader.at_end_of_message():
        name = reader.identifier()
        if name == "key":
            reader.separator()
            key = reader.string()
        elif name == "value":
            reader.separator()
            value = reader.string()
        else:
            reader.skip_value()
        reader.end_field()
    reader.close_message(closer)
    return key.decode(), value


def write_message(metadata: LedgerMetadata) -> bytes:
    # BookKeeper froze the fields of this format, so it has no cToken.
    lines = [
        f"quorumSize: {metadata.write_quorum_size}",
        f"ensembleSize: {metadata.ensemble_size}",
        f"length: {metadata.length}",
        f"lastEntryId: {metadata.last_entry_id}",
        f"state: {metadata.state}",
    ]
    for first_entry, bookies in metadata.ensembles:
        members = [f"  ensembleMember: {quoted(bookie.encode())}" for bookie in bookies]
        lines += ["segment {", *members, f"  firstEntryId: {first_entry}", "}"]
    if metadata.digest_type is not None:
        lines.append(f"digestType: {_DIGEST_WORDS[metadata.digest_type]}")
    lines += [f"password: {quoted(metadata.password)}", f"ackQuorumSize: {metadata.ack_quorum_size}"]
    if metadata.stores_ctime:
        lines.append(f"ctime: {metadata.ctime}")
    for key, value in metadata.custom_metadata.items():
        lines += ["customMetadata {", f"  key: {quoted(key.encode())}", f"  value: {quoted(value)}", "}"]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def read_lines(data: bytes) -> dict[str, Any]:
    """Decode format 1 into arguments of :class:`~bookstand.storage.format.ledger_metadata.LedgerMetadata`."""
    lines = data.splitlines()
    if len(lines) < 3:
        raise WireError("the lines of quorum size, ensemble size and length are incomplete")
    quorum, ensemble_size = _number(lines[0], 31), _number(lines[1], 31)
    length = _number(lines[2], 63)
    arguments: dict[str, Any] = {
        "ensemble_size": ensemble_size,
        "write_quorum_size": quorum,
        "ack_quorum_size": quorum,
        "state": OPEN,
    }
    ensembles = []
    for line in lines[3:]:
        first, *words = line.rstrip(b"\t").split(b"\t")
        if not words:
            raise WireError(f"the line {line!r} has no bookie")
        if words[0] == _CLOSED_WORD.encode():
            entry = _number(first, 63)
            if entry == _IN_RECOVERY_ENTRY:
                arguments["state"] = IN_RECOVERY
            else:
                arguments |= {"state": CLOSED, "last_entry_id": entry, "length": length}
            break
        ensembles.append((_number(first, 63), [word.decode() for word in words]))
    arguments["ensembles"] = ensembles
    return arguments


def _number(word: bytes, bits: int) -> int:
    digits = word[1:] if word[:1] in (b"+", b"-") else word
    if not digits.isdigit():
        raise WireError(f"{word!r} is not a number")
    number = int(word)
    if not -1 << bits <= number < 1 << bits:
        raise WireError(f"the number {number} is out of range")
    return number


def write_lines(metadata: LedgerMetadata) -> bytes:
    lines = [str(metadata.write_quorum_size), str(metadata.ensemble_size), str(metadata.length)]
    for first_entry, bookies in metadata.ensembles:
        if bookies and bookies[0] == _CLOSED_WORD:
            raise WireError("format 1 would read a first bookie named CLOSED as the end of the ledger")
        lines.append("\t".join((str(first_entry), *bookies)))
    text = "".join(f"{line}\n" for line in lines)
    if metadata.state == CLOSED and metadata.last_entry_id == _IN_RECOVERY_ENTRY:
        raise WireError(f"format 1 would read the last entry {_IN_RECOVERY_ENTRY} as a ledger in recovery")
    if metadata.state != OPEN:
        entry = metadata.last_entry_id if metadata.state == CLOSED else _IN_RECOVERY_ENTRY
        text += f"{entry}\t{_CLOSED_WORD}"
    return text.encode("ascii")
