"""Our protobuf encodings against the protobuf runtime's."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bookstand.proto import text_format, wire_format
from bookstand.proto.ledger_metadata_pb2 import LedgerMetadataFormat

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def fields_of(data: bytes) -> list[tuple[int, int, bytes]]:
    return list(wire_format.fields(data))


@given(INT64)
def test_a_varint_reads_back_and_is_as_long_as_protobufs(number: int) -> None:
    out = bytearray()
    wire_format.write_varint(out, number)
    value, end = wire_format.read_varint(bytes(out), 0, len(out))
    assert (wire_format.int64(value), end) == (number, len(out))
    message = LedgerMetadataFormat(cToken=number)
    assert message.SerializePartialToString() == bytes([wire_format.tag(12, wire_format.VARINT)]) + bytes(out)


@given(st.integers(0, (1 << 64) - 1))
def test_int32_is_the_low_half_of_a_varint(number: int) -> None:
    out = bytearray()
    wire_format.write_varint_field(out, 1, number)
    assert LedgerMetadataFormat.FromString(bytes(out) + REQUIRED).quorumSize == wire_format.int32(number)


REQUIRED = bytes.fromhex("100018002801")
"""ensembleSize, length and state, without which the runtime takes no message."""


@given(st.integers(1, (1 << 29) - 1), st.binary(max_size=40), INT64)
def test_fields_come_back_as_written(field: int, chunk: bytes, number: int) -> None:
    out = bytearray()
    wire_format.write_bytes_field(out, field, chunk)
    wire_format.write_varint_field(out, field, number)
    assert fields_of(bytes(out)) == [
        (wire_format.tag(field, wire_format.BYTES), 0, chunk),
        (wire_format.tag(field, wire_format.VARINT), number & (1 << 64) - 1, b""),
    ]


def test_fixed_width_fields_are_little_endian() -> None:
    data = bytes(
        [
            wire_format.tag(15, wire_format.FIXED32),
            1,
            2,
            3,
            4,
            wire_format.tag(1, wire_format.FIXED64),
            1,
            0,
            0,
            0,
            0,
            0,
            0,
            128,
        ]
    )
    assert fields_of(data) == [
        (wire_format.tag(15, wire_format.FIXED32), 0x04030201, b""),
        (wire_format.tag(1, wire_format.FIXED64), (1 << 63) + 1, b""),
    ]


def test_only_the_given_stretch_is_read() -> None:
    data = b"\xff" + bytes([wire_format.tag(2, wire_format.VARINT), 7]) + b"\xff"
    assert list(wire_format.fields(data, 1, 3)) == [(wire_format.tag(2, wire_format.VARINT), 7, b"")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("80", "ends inside the varint"),
        ("08", "ends inside the varint"),
        ("08" + "ff" * 10 + "01", "longer than ten bytes"),
        ("0a0561", "has 5 bytes, but only 1 remain"),
        ("0affffffffffffffffff01", "has 18446744073709551615 bytes"),
        ("0d000000", "has 4 bytes, but only 3 remain"),
        ("09", "has 8 bytes, but only 0 remain"),
        ("0b0c", "unknown type 3"),
        ("0f", "unknown type 7"),
        ("0001", "field number 0"),
        ("808080801001", "field number 536870912"),
    ],
)
def test_damage_is_named(data: str, reason: str) -> None:
    with pytest.raises(wire_format.WireError, match=reason):
        fields_of(bytes.fromhex(data))


def test_what_protobuf_refuses_is_refused() -> None:
    """To Empty every field is an unknown one: its parser judges the encoding alone. Ours refuses two things more:
    groups, and the field number 0, which zeroed bytes would be full of."""
    rng = random.Random(7)
    verdicts = Counter[str]()
    for _ in range(20_000):
        data = bytes(
            rng.choice((0x08, 0x0A, 0x15, 0x19, 0x80, 0xFF, rng.randrange(256))) for _ in range(rng.randint(1, 14))
        )
        try:
            fields_of(data)
            refusal = ""
        except wire_format.WireError as error:
            refusal = str(error)
        try:
            Empty.FromString(data)
        except DecodeError:
            assert refusal, data.hex()
            verdicts["both refuse"] += 1
        else:
            stricter = "unknown type 3" in refusal or "field number 0 " in refusal
            assert stricter or not refusal, (data.hex(), refusal)
            verdicts["stricter" if stricter else "both take"] += 1
    assert verdicts["both refuse"] > 1000
    assert verdicts["both take"] > 1000


def test_the_schema_has_a_package_of_its_own() -> None:
    assert LedgerMetadataFormat.DESCRIPTOR.full_name == "bookstand.bookkeeper.LedgerMetadataFormat"
    assert LedgerMetadataFormat.DESCRIPTOR.file.name == "bookstand/proto/ledger_metadata.proto"
    assert LedgerMetadataFormat.__module__ == "bookstand.proto.ledger_metadata_pb2"
    kinds = {field.name: field.type for field in LedgerMetadataFormat.DESCRIPTOR.fields}
    assert kinds["password"] == FieldDescriptorProto.TYPE_BYTES


# -- text ------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=60))
def test_a_quoted_string_reads_back(data: bytes) -> None:
    literal = text_format.quoted(data)
    assert literal.isascii()
    assert literal.isprintable()
    assert text_format.TextReader(literal.encode()).string() == data


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r'"\a\b\f\n\r\t\v\\\'\"\?"', b"\a\b\f\n\r\t\v\\'\"?"),
        ("""'it'  's' "'" """, b"its'"),
        (r'"\0\18\101\377"', b"\x00\x018A\xff"),
        (r'"\x41\xfg\X0A"', b"A\x0fg\n"),
        (r'"\u00e9\U0001F600"', "é😀".encode()),
        ('"a" # comment "no"\n "b"', b"ab"),
    ],
)
def test_string_literals(literal: str, value: bytes) -> None:
    assert text_format.TextReader(literal.encode()).string() == value


@pytest.mark.parametrize(
    "literal", ["", "a", '"', '"\\', '"\\"', '"\\x"', '"\\u12"', '"\\ud800"', '"\\U00110000"', '"\\q"']
)
def test_strings_that_are_none(literal: str) -> None:
    with pytest.raises(wire_format.WireError):
        text_format.TextReader(literal.encode()).string()


@pytest.mark.parametrize(
    ("literal", "number"),
    [
        ("0", 0),
        (" -1,", -1),
        ("+7", 7),
        ("0x1F", 31),
        ("-0x1f", -31),
        ("017", 15),
        ("089", 89),
        ("12uL", 12),
        ("9223372036854775807", (1 << 63) - 1),
        ("18446744073709551615", -1),
        ("-9223372036854775808", -(1 << 63)),
    ],
)
def test_numbers(literal: str, number: int) -> None:
    assert text_format.TextReader(literal.encode()).integer() == number


@pytest.mark.parametrize(
    "literal", ["", "-", "x", "0x", "0x0x1", "1e5", "1.5", "--1", "18446744073709551616", "9" * 5000]
)
def test_numbers_that_are_none(literal: str) -> None:
    with pytest.raises(wire_format.WireError):
        text_format.TextReader(literal.encode()).integer()


@pytest.mark.parametrize(
    "value",
    [": 1 ", "{ a: 1 b { c: 'x', d: [1, -2] } e <f: g>; }", ': "x" "y"', ": [{a: 1}, <>]", ": word", ": []", ""],
)
def test_unknown_values_are_skipped(value: str) -> None:
    reader = text_format.TextReader(value.encode())
    reader.skip_value()
    assert reader.at_end_of_message()


@pytest.mark.parametrize("value", [": )", "{ a: 1", ": [1", "{ 1: 2 }", "{" * 10, "{a" * 100_000])
def test_unknown_values_that_are_damaged(value: str) -> None:
    with pytest.raises(wire_format.WireError):
        text_format.TextReader(value.encode()).skip_value()
