"""Layouts: what a table says is what is packed."""

from __future__ import annotations

import pytest

from bookstand.cursor.format.packed_column import COLUMN, write_column
from bookstand.disk.format import entry_log, index_file, journal
from bookstand.proto.struct_layout import Layout, is_struct_code
from bookstand.storage.format import entry_codec, schema
from bookstand.storage.format.digest import digest_for


def test_the_fields_at_the_beginning_are_packed_as_far_as_their_size_is_fixed() -> None:
    layout = Layout(
        "some", ("magic", "4s", ""), ("number", "q", ""), ("rest", "as many as there are", ""), ("end", "I", "")
    )
    assert layout.struct.format == ">4sq"
    assert layout.struct.pack(b"some", -1) == b"some" + b"\xff" * 8
    assert Layout("words", ("number", "varint", "")).struct.size == 0
    assert Layout("little", ("number", "I", ""), order="<").struct.pack(1) == b"\x01\0\0\0"


@pytest.mark.parametrize("size", ["q", "20s", "16x", "B"])
def test_codes_are_told_from_words(size: str) -> None:
    assert is_struct_code(size)


@pytest.mark.parametrize("size", ["8 bytes", "n bytes", "varint", "16 bytes for each", "the rest", "a column", ""])
def test_words_are_no_codes(size: str) -> None:
    assert not is_struct_code(size)


def test_an_entry_has_its_fields_where_the_layout_has_them() -> None:
    stored = entry_codec.encode(digest_for("crc32c", b""), 1, 2, 3, 4, b"payload")
    assert entry_codec.LAYOUT.struct.unpack_from(stored) == (1, 2, 3, 4)
    assert [name for name, _, _ in entry_codec.LAYOUT.fields] == [
        "ledger id",
        "entry id",
        "LAC",
        "length",
        "digest",
        "payload",
    ]
    assert len(stored) == entry_codec.LAYOUT.struct.size + 4 + len(b"payload")


def test_a_deletion_s_key_begins_with_its_name() -> None:
    key = schema.deletion_key(5, 7)
    assert key.startswith(schema.META_DELETED)
    assert len(key) == schema.DELETION.struct.size
    assert schema.parse_deletion(key) == (5, 7)


def test_a_log_and_a_journal_begin_with_their_headers() -> None:
    assert entry_log.HEADER.struct.unpack_from(entry_log.header(2048, 3)) == (b"BKLO", 1, 2048, 3)
    (record,) = entry_log.map_records({7: 100, 8: 200})
    ids, count = entry_log.MAP.struct.unpack_from(record)
    assert (int.from_bytes(ids[:8], "big", signed=True), count) == (-1, 2)
    assert journal.HEADER.struct.unpack_from(journal.whole([])) == (b"BKLG", 6)
    assert journal.KEY_RECORD.struct.unpack_from(journal.ledger_key(7, bytes(20))) == (7, -0x1000, 20)
    assert journal.FENCE_RECORD.struct.unpack(journal.fence(7)) == (7, -0x2000)
    explicit = journal.explicit_lac(7, digest_for("crc32c", b""), 9)
    assert journal.LAC_RECORD.struct.unpack_from(explicit) == (7, -0x8000, 20)
    assert entry_codec.EXPLICIT_LAC.struct.unpack_from(explicit, journal.LAC_RECORD.struct.size) == (7, 9)


def test_the_index_file_s_first_fields_are_fixed() -> None:
    assert index_file.INDEX.struct.size == 12


def test_a_column_says_its_width() -> None:
    out = bytearray()
    write_column(out, [5, 300])
    assert COLUMN.struct.unpack_from(out) == (2,)
    assert len(out) == COLUMN.struct.size + 1 + 2 * 2
