"""Ledger metadata: its rules, and its bytes as the original writes and reads them."""

from __future__ import annotations

import base64
import copy
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from bookstand.errors import IncorrectParameterError, MetadataSerializationError
from bookstand.proto.ledger_metadata_pb2 import LedgerMetadataFormat
from bookstand.storage.format.ledger_metadata import STATES, LedgerMetadata, parse, serialize
from tests.replay.outcome import Outcome
from tests.replay.samples import compare_folder

RECORDED = Path(__file__).resolve().parent.parent / "data" / "bookkeeper"
HEADER = b"BookieMetadataFormatVersion\t%d\n"


def make(**changes: Any) -> LedgerMetadata:
    arguments: dict[str, Any] = {
        "ledger_id": 7,
        "ensemble_size": 3,
        "write_quorum_size": 2,
        "ack_quorum_size": 1,
        "ensembles": [(0, ["192.0.2.1:1234", "192.0.2.2:1234", "192.0.2.3:1234"])],
        "digest_type": "crc32c",
        "password": b"checkMe",
    }
    return LedgerMetadata(**(arguments | changes))


# -- recorded --------------------------------------------------------------------------------------------------------


def outcomes(name: str) -> list[Outcome]:
    return list(compare_folder(RECORDED / name))


@pytest.mark.parametrize(
    ("name", "count"), [("ledger_metadata.jsonl.gz", 36), ("ledger_metadata_malformed.jsonl.gz", 93)]
)
def test_recorded_samples(name: str, count: int) -> None:
    found = outcomes(name)
    assert [outcome for outcome in found if outcome.verdict != "equal"] == []
    assert len(found) == count


# -- rules -----------------------------------------------------------------------------------------------------------


def test_case_73_the_safe_string_omits_the_password_and_the_string_shows_it_in_base64() -> None:
    metadata = make(custom_metadata={"application": b"pulsar"})
    shown = base64.b64encode(b"checkMe").decode()
    assert f"password=base64:{shown}" in str(metadata)
    for safe in (metadata.to_safe_string(), repr(metadata)):
        assert shown not in safe
        assert "checkMe" not in safe
        assert "password=OMITTED" in safe
    assert str(metadata).replace(f"base64:{shown}", "OMITTED") == metadata.to_safe_string()
    assert metadata.to_safe_string() == (
        "LedgerMetadata{formatVersion=3, ensembleSize=3, writeQuorumSize=2, ackQuorumSize=1, state=OPEN, "
        "digestType=CRC32C, password=OMITTED, ensembles={0=[192.0.2.1:1234, 192.0.2.2:1234, 192.0.2.3:1234]}, "
        "customMetadata={application=base64:cHVsc2Fy}}"
    )


def test_case_74_defaults() -> None:
    metadata = make()
    assert (metadata.ctime, metadata.last_entry_id, metadata.length) == (-1, -1, 0)
    assert (metadata.state, metadata.format_version, metadata.ctoken, metadata.version) == ("OPEN", 3, 0, 0)
    assert dict(metadata.custom_metadata) == {}
    assert metadata.ensemble_at(99) == metadata.ensemble_at(0) == metadata.ensembles[0][1]


def test_case_71_the_version_does_not_make_metadata_differ() -> None:
    assert make(version=3) == make(version=4)
    assert hash(make(version=3)) == hash(make(version=4))
    assert serialize(make(version=3)) == serialize(make())


def test_ensemble_at_finds_the_stretch_an_entry_lies_in() -> None:
    metadata = make(ensemble_size=1, write_quorum_size=1, ensembles=[(2, ["a"]), (5, ["b"]), (9, ["c"])])
    assert [metadata.ensemble_at(entry)[0] for entry in (2, 4, 5, 8, 9, 1 << 60)] == list("aabbcc")
    with pytest.raises(IncorrectParameterError, match="ledger 7 begins with entry 2"):
        metadata.ensemble_at(1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ledger_id": -1}, "ledger id"),
        ({"ledger_id": 1 << 63}, "ledger id"),
        ({"format_version": 0}, "format must be 1, 2 or 3"),
        ({"format_version": 4}, "format must be 1, 2 or 3"),
        ({"write_quorum_size": 4}, "3, 4 and 1"),
        ({"ack_quorum_size": 3}, "3, 2 and 3"),
        ({"ack_quorum_size": -1}, "3, 2 and -1"),
        ({"state": "DELETED"}, "DELETED"),
        ({"state": "CLOSED"}, "must have a length and a last entry"),
        ({"state": "CLOSED", "length": 1}, "must have a length and a last entry"),
        ({"state": "CLOSED", "last_entry_id": 1}, "must have a length and a last entry"),
        ({"state": "OPEN", "last_entry_id": 0}, "neither last entry nor length"),
        ({"state": "IN_RECOVERY", "length": 1}, "neither last entry nor length"),
        ({"password": None}, "both or neither"),
        ({"digest_type": None}, "both or neither"),
        ({"digest_type": "md5"}, "md5"),
        ({"ensembles": []}, "at least one ensemble"),
        ({"ensembles": [(0, ["a", "b"])]}, "has 2 bookies, not 3"),
        ({"ensembles": [(0, "abc"), (0, "abc")]}, "must begin after"),
        ({"ensembles": [(3, "abc"), (2, "abc")]}, "must begin after"),
        ({"ensembles": [(1 << 63, "abc")]}, "64 bits"),
        ({"ensembles": [(0, ["a", "b", ""])]}, "valid bookie id"),
        ({"ensembles": [(0, ["a", "b", "c/d"])]}, "valid bookie id"),
        ({"ensembles": [(0, ["a", "b", "ReadOnly"])]}, "valid bookie id"),
        ({"ctime": 1 << 63}, "ctime"),
        ({"ctoken": -(1 << 63) - 1}, "ctoken"),
        ({"custom_metadata": {"key": "text"}}, "str to bytes"),
        ({"custom_metadata": {1: b""}}, "str to bytes"),
        ({"custom_metadata": {"key": 3}}, "cannot be stored"),
        ({"custom_metadata": {"\ud800": b""}}, "cannot be stored"),
    ],
)
def test_what_no_metadata_may_be(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(IncorrectParameterError, match=reason):
        make(**changes)


def test_replace_keeps_the_rest_and_checks_again() -> None:
    closed = make(version=1).replace(state="CLOSED", last_entry_id=4, length=9, version=2)
    assert (closed.state, closed.last_entry_id, closed.length, closed.version) == ("CLOSED", 4, 9, 2)
    assert closed.password == b"checkMe"
    assert closed.replace(ctoken=5).last_entry_id == 4
    with pytest.raises(IncorrectParameterError, match="neither last entry nor length"):
        closed.replace(state="IN_RECOVERY")
    assert closed.replace(state="IN_RECOVERY", last_entry_id=None, length=None).last_entry_id == -1


def test_metadata_cannot_be_changed_in_place() -> None:
    metadata = make(custom_metadata={"a": bytearray(b"1")})
    for change in (
        lambda: setattr(metadata, "state", "CLOSED"),
        lambda: setattr(metadata, "anything", 1),
        lambda: delattr(metadata, "state"),
    ):
        with pytest.raises(AttributeError, match="immutable"):
            change()
    with pytest.raises(TypeError):
        metadata.custom_metadata["a"] = b"2"  # type: ignore[index]
    assert metadata.custom_metadata == {"a": b"1"}


def test_metadata_compares_hashes_copies_and_pickles() -> None:
    metadata = make(custom_metadata={"a": b"1"}, state="CLOSED", last_entry_id=1, length=2, version=6)
    for other in (copy.copy(metadata), copy.deepcopy(metadata), pickle.loads(pickle.dumps(metadata))):
        assert other == metadata
        assert hash(other) == hash(metadata)
        assert other.version == 6
    for changes in ({"ledger_id": 8}, {"password": b""}, {"custom_metadata": {}}, {"ctime": 5}, {"stores_ctime": True}):
        assert metadata.replace(**changes) != metadata
    assert metadata != "metadata"


@pytest.mark.parametrize(("given", "kept"), [("CRC32", "crc32"), ("MAC", "hmac"), ("hmac", "hmac"), ("Dummy", "dummy")])
def test_digest_names_are_kept_in_one_spelling(given: str, kept: str) -> None:
    assert make(digest_type=given).digest_type == kept


def test_custom_metadata_stands_in_the_originals_order() -> None:
    """As recorded: the order of a Java HashMap."""
    keys = ["application", "component", 'üml "k"']
    for order in (keys, keys[::-1]):
        metadata = make(custom_metadata=dict.fromkeys(order, b""))
        assert list(metadata.custom_metadata) == ["component", "application", 'üml "k"']


# -- the bytes -------------------------------------------------------------------------------------------------------

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
BOOKIES = st.text("abcXYZ019:_.-", min_size=1, max_size=12).filter(lambda name: name not in ("CLOSED", "readonly"))
TEXTS = st.text(max_size=12)


@st.composite
def metadata_of(draw: st.DrawFn, *formats: int) -> LedgerMetadata:
    size = draw(st.integers(0, 4))
    write_quorum = draw(st.integers(0, size))
    state = draw(st.sampled_from(STATES))
    closed = state == "CLOSED"
    first_entries = draw(st.lists(NUMBERS, min_size=1, max_size=3, unique=True).map(sorted))
    return LedgerMetadata(
        draw(st.integers(0, (1 << 63) - 1)),
        format_version=draw(st.sampled_from(formats)),
        ensemble_size=size,
        write_quorum_size=write_quorum,
        ack_quorum_size=draw(st.integers(0, write_quorum)),
        ensembles=[(first, draw(st.lists(BOOKIES, min_size=size, max_size=size))) for first in first_entries],
        state=state,
        last_entry_id=draw(NUMBERS) if closed else None,
        length=draw(NUMBERS) if closed else None,
        digest_type=draw(st.sampled_from(["crc32", "crc32c", "hmac", "dummy"])),
        password=draw(st.binary(max_size=24)),
        ctime=draw(NUMBERS),
        stores_ctime=draw(st.booleans()),
        ctoken=draw(NUMBERS),
        custom_metadata=draw(st.dictionaries(TEXTS, st.binary(max_size=24), max_size=4)),
    )


def as_message(metadata: LedgerMetadata, *, with_token: bool) -> LedgerMetadataFormat:
    """The same through the protobuf runtime."""
    message = LedgerMetadataFormat(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=metadata.state,
        digestType=str(metadata.digest_type).upper(),
        password=metadata.password,
        ackQuorumSize=metadata.ack_quorum_size,
    )
    for first_entry, bookies in metadata.ensembles:
        message.segment.add(firstEntryId=first_entry, ensembleMember=bookies)
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    if metadata.stores_ctime:
        message.ctime = metadata.ctime
    if with_token:
        message.cToken = metadata.ctoken
    return message


def kept(metadata: LedgerMetadata) -> LedgerMetadata:
    """What the bytes of formats 2 and 3 say of it."""
    return metadata.replace(
        ctime=metadata.ctime if metadata.stores_ctime else -1,
        ctoken=metadata.ctoken if metadata.format_version == 3 else 0,
    )


@given(metadata_of(3))
def test_format_3_is_what_protobuf_writes(metadata: LedgerMetadata) -> None:
    body = as_message(metadata, with_token=True).SerializeToString(deterministic=True)
    data = serialize(metadata)
    start = len(HEADER % 3) + (1 if len(body) < 128 else 2)
    assert data.startswith(HEADER % 3)
    assert data[start:] == body
    assert parse(data, metadata.ledger_id) == kept(metadata)


@given(metadata_of(2))
def test_format_2_is_protobufs_text(metadata: LedgerMetadata) -> None:
    message = as_message(metadata, with_token=False)
    data = serialize(metadata)
    assert text_format.Parse(data.removeprefix(HEADER % 2).decode("ascii"), LedgerMetadataFormat()) == message
    for as_one_line in (False, True):
        for as_utf8 in (False, True):
            theirs = text_format.MessageToString(message, as_one_line=as_one_line, as_utf8=as_utf8)
            assert parse(HEADER % 2 + theirs.encode(), metadata.ledger_id) == kept(metadata)
    assert parse(data, metadata.ledger_id) == kept(metadata)


@given(metadata_of(1).filter(lambda metadata: metadata.ensemble_size > 0 and metadata.last_entry_id != -102))
def test_format_1_keeps_what_it_can(metadata: LedgerMetadata) -> None:
    expected = metadata.replace(
        digest_type=None,
        password=None,
        ctime=-1,
        stores_ctime=False,
        ctoken=0,
        custom_metadata={},
        ack_quorum_size=metadata.write_quorum_size,
    )
    assert parse(serialize(metadata), metadata.ledger_id) == expected


def test_the_stores_creation_time_counts_where_the_bytes_have_none() -> None:
    for format_version in (2, 3):
        data = serialize(make(format_version=format_version))
        assert parse(data, 7).ctime == -1
        assert parse(data, 7, store_ctime=1234).ctime == 1234
        assert not parse(data, 7, store_ctime=1234).stores_ctime
        data = serialize(make(format_version=format_version, ctime=99, stores_ctime=True))
        assert parse(data, 7, store_ctime=1234).ctime == 99
    assert parse(serialize(make(format_version=1)), 7, store_ctime=1234).ctime == -1


@pytest.mark.parametrize("format_version", [2, 3])
def test_protobuf_formats_need_a_digest_type(format_version: int) -> None:
    with pytest.raises(MetadataSerializationError, match=r"ledger 7: .*without a digest type"):
        serialize(make(format_version=format_version, digest_type=None, password=None))


def test_format_1_refuses_what_it_would_read_as_something_else() -> None:
    with pytest.raises(MetadataSerializationError, match=r"ledger 7: .*-102"):
        serialize(make(format_version=1, state="CLOSED", last_entry_id=-102, length=0))
    with pytest.raises(MetadataSerializationError, match=r"ledger 7: .*CLOSED"):
        serialize(make(format_version=1, ensembles=[(0, ["CLOSED", "b", "c"])]))


def test_a_key_beyond_the_basic_plane_survives_every_format_that_has_keys() -> None:
    for format_version in (2, 3):
        metadata = make(format_version=format_version, custom_metadata={"\U0001f600": b"1"})
        assert parse(serialize(metadata), 7) == metadata


def test_the_message_names_ledger_and_damage() -> None:
    with pytest.raises(
        MetadataSerializationError, match=r"metadata of ledger 42: .*should have 70 bytes, there are 3"
    ) as it:
        parse(HEADER % 3 + b"F\x08\x01\x10", 42)
    assert it.value.code == -107


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        HEADER % 3 + b"\xff\xff\xff\xff\x7f",
        HEADER % 3 + b"\xff\xff\xff\xff\xff\x01",
        HEADER % 2 + b"a" + b"{a" * 5000,
        HEADER % 2 + b"quorumSize: " + b"9" * 5000,
        HEADER % 2 + b'password: "' + b"\\" * 999,
        HEADER % 2 + "quorumSize\N{NO-BREAK SPACE}: 1".encode(),
        HEADER % 1 + b"1\n1\n" + b"9" * 30,
        HEADER % 1 + "1\n1\n٣\n0\tb1\n".encode(),
        HEADER % 1 + b"1\n1\n0\n0\tb\xff\n",
        HEADER % 1 + b"1\n1\n0\n\n",
    ],
)
def test_odd_damage(data: bytes) -> None:
    with pytest.raises(MetadataSerializationError):
        parse(data, 1)


def mutated(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out))
        kind = rng.randrange(5)
        if kind == 0:
            del out[at + 1 :]
        elif kind == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            out.insert(at, rng.randrange(256))
        elif kind == 3:
            out[at:at] = out[rng.randrange(len(out)) :]
        else:
            out[at : at + rng.randint(1, 8)] = rng.randbytes(rng.randint(0, 4))
        out = out or bytearray(b"\n")
    return bytes(out)


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_damage_gives_our_error_or_metadata_that_keeps_the_rules(format_version: int) -> None:
    rng = random.Random(format_version)
    good = [
        serialize(
            make(format_version=format_version, custom_metadata={"a": b"1", "ü": b'"'}, ctime=5, stores_ctime=True)
        ),
        serialize(make(format_version=format_version, state="CLOSED", last_entry_id=300, length=1 << 40)),
        serialize(make(format_version=format_version, state="IN_RECOVERY", ensembles=[(0, "abc"), (77, "abd")])),
    ]
    refusals = []
    for _ in range(3000):
        data = mutated(rng, rng.choice(good))
        try:
            metadata = parse(data, 1)
        except MetadataSerializationError as error:
            refusals.append(str(error))
        else:
            assert metadata == metadata.replace()
    assert 500 < len(refusals) < 3000
    assert all(refusal.startswith("metadata of ledger 1: ") for refusal in refusals)


def test_the_protobuf_runtime_is_not_imported() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import bookstand.storage.format.ledger_metadata as m\n"
        "d = m.serialize(m.LedgerMetadata(1, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,"
        " ensembles=[(0, ['b'])], digest_type='crc32', password=b''))\n"
        "str(m.parse(d, 1))\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "bookstand.proto.wire_format" in loaded
    assert not {"google.protobuf", "dataclasses", "bookstand.storage.format.ledger_metadata_text"} & set(loaded)
