"""Single values recorded from the original, compared with what bookstand makes of them: stored entries, ledger
metadata, damaged metadata, error codes. One sample is one line (one code, in ``codes.json``)."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bookstand import errors
from bookstand.storage.format import entry_codec
from bookstand.storage.format.digest import Digest, digest_for, master_key
from bookstand.storage.format.ledger_metadata import LedgerMetadata, parse, serialize
from tests.replay.outcome import Outcome

STORE_CTIME = 1234
V2_ADD = 2 << 24 | 1 << 16

CLASS_NAMES = {
    "BKAddEntryQuorumTimeoutException": "AddEntryQuorumTimeoutError",
    "BKBookieException": "NoBookieAvailableError",
    "BKBookieHandleNotAvailableException": "BookieHandleNotAvailableError",
    "BKClientClosedException": "ClientClosedError",
    "BKDataUnknownException": "DataUnknownError",
    "BKDigestMatchException": "DigestMismatchError",
    "BKDigestNotInitializedException": "DigestNotInitializedError",
    "BKDuplicateEntryIdException": "DuplicateEntryIdError",
    "BKIllegalOpException": "IllegalOperationError",
    "BKIncorrectParameterException": "IncorrectParameterError",
    "BKInterruptedException": "InterruptedOperationError",
    "BKLedgerClosedException": "LedgerClosedError",
    "BKLedgerExistException": "LedgerExistsError",
    "BKLedgerFencedException": "LedgerFencedError",
    "BKLedgerIdOverflowException": "LedgerIdOverflowError",
    "BKLedgerRecoveryException": "LedgerRecoveryError",
    "BKMetadataSerializationException": "MetadataSerializationError",
    "BKMetadataVersionException": "MetadataVersionError",
    "BKNoSuchEntryException": "NoSuchEntryError",
    "BKNoSuchLedgerExistsException": "NoSuchLedgerOnBookieError",
    "BKNoSuchLedgerExistsOnMetadataServerException": "NoSuchLedgerError",
    "BKNotEnoughBookiesException": "NotEnoughBookiesError",
    "BKProtocolVersionException": "ProtocolVersionError",
    "BKQuorumException": "QuorumError",
    "BKReadException": "ReadError",
    "BKReplicationException": "ReplicationError",
    "BKSecurityException": "SecurityError",
    "BKTimeoutException": "OperationTimeoutError",
    "BKTooManyRequestsException": "TooManyRequestsError",
    "BKUnauthorizedAccessException": "UnauthorizedAccessError",
    "BKUnclosedFragmentException": "UnclosedFragmentError",
    "BKUnexpectedConditionException": "UnexpectedConditionError",
    "BKWriteException": "WriteError",
    "BKWriteOnReadOnlyBookieException": "WriteOnReadOnlyError",
    "MetaStoreException": "MetaStoreError",
    "ZKException": "MetadataServiceError",
}
"""The original's exception classes and ours."""

LIMBO = "limbo-code: the original's table has -108, its factory answers -999; ours is DataUnknownError"

STRICTER = ("but only", "varint", "field number 0", "codec can't decode")
"""Reasons for which we refuse damaged metadata and the original may not: a part of a message that is longer than the
whole, an endless varint, a field without a number, a name that is no UTF-8 (which it would write back changed)."""


def compare_folder(paths: str | Path | Iterable[str | Path]) -> Iterator[Outcome]:
    """Compare every sample in the given files and folders; a file that holds no samples is passed over."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    for path in map(Path, given):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            compare = COMPARERS.get(file.name.removesuffix(".gz"))
            if compare is not None:
                yield from compare(file)


# -- stored entries --------------------------------------------------------------------------------------------------


def compare_stored_entries(file: Path) -> Iterator[Outcome]:
    for name, sample in _samples(file):
        yield _outcome(name, _entry_differences(sample))


def _entry_differences(sample: dict[str, Any]) -> Iterator[str]:
    password, payload, stored = (_decoded(sample[key]) for key in ("password_b64", "payload_b64", "stored_b64"))
    digest = digest_for(sample["digest"], password)
    ledger_id, entry_id, lac = sample["ledger"], sample["entry"], sample["last_add_confirmed"]
    ours = entry_codec.encode(digest, ledger_id, entry_id, lac, sample["cumulative_length"], payload)
    yield from _unequal("stored bytes", ours, stored)
    key = master_key(password)
    yield from _unequal("master key", key.hex(), sample["master_key_hex"])
    frame = struct.pack(">I", V2_ADD | sample["v2_flags"]) + key + ours
    yield from _unequal("v2 add frame", struct.pack(">I", len(frame)) + frame, _decoded(sample["v2_add_frame_b64"]))
    body = entry_codec.encode_explicit_lac(digest, ledger_id, lac)
    yield from _unequal("explicit LAC body", body, _decoded(sample["explicit_lac_body_b64"]))
    for row in sample["verify"]:
        what = f"{row['what']} {row.get('at', '')}".rstrip()
        data, as_ledger, as_entry = _tampered(stored, row), ledger_id, entry_id
        if row["what"] == "asked for the next entry id":
            as_entry += 1
        if row["what"] == "verified for ledger id xor 1":
            as_ledger ^= 1
        answer, last_confirmed = _verified(digest, as_ledger, as_entry, data)
        yield from _unequal(what, answer, {name: row[name] for name in ("payload_length", "error") if name in row})
        yield from _unequal(f"{what}, last confirmed", last_confirmed, row["last_confirmed"])


def _verified(digest: Digest, ledger_id: int, entry_id: int, data: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """The answers of the two ways to verify an entry: as the one asked for, and as the newest one there is."""

    def whole() -> dict[str, int]:
        return {"payload_length": len(entry_codec.decode(digest, ledger_id, entry_id, data)[2])}

    def last_confirmed() -> dict[str, int]:
        lac, length = entry_codec.decode_last_confirmed(digest, ledger_id, data)
        return {"last_add_confirmed": lac, "length": length}

    return _or_code(whole), _or_code(last_confirmed)


def _tampered(stored: bytes, row: dict[str, Any]) -> bytes:
    at = row.get("at", 0)
    if row["what"] == "byte xor 0x40":
        return stored[:at] + bytes([stored[at] ^ 0x40]) + stored[at + 1 :]
    if row["what"] == "cut to length":
        return stored[:at]
    return stored


def _or_code(call: Callable[[], dict[str, int]]) -> dict[str, int]:
    try:
        return call()
    except errors.LedgerError as error:
        return {"error": error.code}


# -- ledger metadata -------------------------------------------------------------------------------------------------


def compare_metadata(file: Path) -> Iterator[Outcome]:
    for name, sample in _samples(file):
        yield _outcome(name, _metadata_differences(sample))


def compare_malformed_metadata(file: Path) -> Iterator[Outcome]:
    for name, sample in _samples(file):
        data, recorded = _decoded(sample["bytes_b64"]), sample["parsed"]
        refusal = _refusal(data)
        if "value" in recorded and any(reason in refusal for reason in STRICTER):
            yield Outcome(name, "argued", f"stricter-metadata: {refusal}")
        else:
            yield _outcome(name, _parsed_differences(data, 1, None, recorded))


def _refusal(data: bytes) -> str:
    try:
        parse(data, 1)
    except errors.MetadataSerializationError as error:
        return str(error)
    return ""


def _metadata_differences(sample: dict[str, Any]) -> Iterator[str]:
    if "serialized_b64" not in sample:
        yield from _unserializable_differences(sample)
        return
    fields, recorded = sample["fields"], _decoded(sample["serialized_b64"])
    yield from _unequal("bytes", serialize(from_fields(fields, stores_ctime=sample["stores_ctime"])), recorded)
    for key, store_ctime in (("parsed", None), (f"parsed_with_store_ctime_{STORE_CTIME}", STORE_CTIME)):
        for difference in _parsed_differences(recorded, fields["ledger"], store_ctime, sample[key]):
            yield f"{key}: {difference}"


def _unserializable_differences(sample: dict[str, Any]) -> Iterator[str]:
    """The original throws while writing; all of these lack a digest type, and some were recorded without fields."""
    if "fields" in sample:
        given = from_fields(sample["fields"], stores_ctime=bool(sample.get("stores_ctime")))
    else:
        given = LedgerMetadata(
            1, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, ensembles=[(0, ["192.0.2.1:3181"])]
        )
    try:
        yield f"written as {serialize(given)!r} where the original throws {sample['exception']}"
    except errors.MetadataSerializationError:
        pass


def _parsed_differences(data: bytes, ledger_id: int, store_ctime: int | None, recorded: Any) -> Iterator[str]:
    try:
        parsed = parse(data, ledger_id, store_ctime)
    except errors.MetadataSerializationError as error:
        if "value" in recorded:
            yield f"refused ({error}) where the original reads {recorded['value']}"
        return
    if "value" not in recorded:
        yield f"read as {to_fields(parsed)} where the original throws {recorded['exception']}"
        return
    yield from _unequal("value", to_fields(parsed), recorded["value"])
    yield from _unequal("safe string", parsed.to_safe_string(), recorded["to_safe_string"])
    try:
        again: bool | None = serialize(parsed) == data
    except errors.MetadataSerializationError:
        again = None
    yield from _unequal("written again the same", again, recorded.get("written_again_same"))


def from_fields(fields: dict[str, Any], *, stores_ctime: bool) -> LedgerMetadata:
    return LedgerMetadata(
        fields["ledger"],
        format_version=fields["format"],
        ensemble_size=fields["ensemble"],
        write_quorum_size=fields["write_quorum"],
        ack_quorum_size=fields["ack_quorum"],
        state=fields["state"],
        last_entry_id=fields["last_entry"],
        length=fields["length"],
        digest_type=fields["digest"],
        password=_decoded(fields["password_b64"]) if fields["has_password"] else None,
        ctime=fields["ctime"],
        stores_ctime=stores_ctime,
        ctoken=fields["ctoken"],
        custom_metadata={key: _decoded(value) for key, value in fields["custom_metadata_b64"].items()},
        ensembles=[(ensemble["first_entry"], ensemble["bookies"]) for ensemble in fields["ensembles"]],
    )


def to_fields(metadata: LedgerMetadata) -> dict[str, Any]:
    digest = metadata.digest_type
    return {
        "ledger": metadata.ledger_id,
        "format": metadata.format_version,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum_size,
        "ack_quorum": metadata.ack_quorum_size,
        "state": metadata.state,
        "last_entry": metadata.last_entry_id,
        "length": metadata.length,
        "has_password": metadata.has_password,
        "digest": None if digest is None else "MAC" if digest == "hmac" else digest.upper(),
        "password_b64": _encoded(metadata.password) if metadata.has_password else None,
        "ctime": metadata.ctime,
        "ctoken": metadata.ctoken,
        "custom_metadata_b64": {key: _encoded(value) for key, value in metadata.custom_metadata.items()},
        "ensembles": [{"first_entry": first, "bookies": list(bookies)} for first, bookies in metadata.ensembles],
    }


# -- codes -----------------------------------------------------------------------------------------------------------


def compare_codes(file: Path) -> Iterator[Outcome]:
    recorded = json.loads(file.read_bytes())
    for group in ("codes", "unknown_codes"):
        for row in recorded[group]:
            yield _code_outcome(f"{file.name}:{group}:{row['code']}", row)
    for row in recorded["classes"]:
        yield _outcome(f"{file.name}:classes:{row['class']}", _class_differences(row))


def _code_outcome(name: str, row: dict[str, Any]) -> Outcome:
    """What the factory makes of a code."""
    ours = errors.by_code(row["code"])
    expected = (CLASS_NAMES[row["create"]["class"]], row["create"]["code"])
    if row["code"] == -108 and expected[1] == -999 and ours is errors.DataUnknownError and ours.code == -108:
        return Outcome(name, "argued", LIMBO)
    return _outcome(name, _unequal("created", (ours.__name__, ours.code), expected))


def _class_differences(row: dict[str, Any]) -> Iterator[str]:
    """What a class carries, however it came about."""
    ours = getattr(errors, CLASS_NAMES[row["class"]])
    yield from _unequal("code", ours().code, row["code"])
    yield from _unequal("in the family of answers", issubclass(ours, errors.LedgerError), True)


# -- shared ----------------------------------------------------------------------------------------------------------


def _samples(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    data = file.read_bytes()
    lines = (gzip.decompress(data) if file.suffix == ".gz" else data).decode().split("\n")
    for number, line in enumerate(lines):
        if line.strip():
            sample = json.loads(line)
            yield f"{file.name.removesuffix('.gz')}:{sample.get('index', number)}", sample


def _outcome(name: str, differences: Iterable[str]) -> Outcome:
    found = list(differences)
    return Outcome(name, "different", "; ".join(found)) if found else Outcome(name, "equal", "")


def _unequal(what: str, ours: object, recorded: object) -> Iterator[str]:
    if ours != recorded:
        yield f"{what}: {ours!r}, recorded {recorded!r}"


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


COMPARERS: dict[str, Callable[[Path], Iterator[Outcome]]] = {
    "stored_entries.jsonl": compare_stored_entries,
    "ledger_metadata.jsonl": compare_metadata,
    "ledger_metadata_malformed.jsonl": compare_malformed_metadata,
    "codes.json": compare_codes,
}
