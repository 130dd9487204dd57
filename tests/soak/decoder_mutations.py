"""Mutated bytes into everything that reads bytes: the error is ours, or what was read reads the same once rewritten.

Each decoder stands in a table with samples of what it reads. A case is a decoder and an input that no other case of the
round has; the samples are others for each seed. A child runs the cases, with a limit to its memory and one to the time
that any one of them may take.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import bookstand
from bookstand.errors import BookstandError
from bookstand.proto import text_format, wire_format
from bookstand.storage.format import (
    entry_batch,
    entry_codec,
    ledger_metadata,
    ledger_metadata_binary,
    ledger_state,
    schema,
    sealed_record,
)
from bookstand.storage.format.digest import DIGEST_NAMES, digest_for
from bookstand.storage.lmdb.environment import check_format
from bookstand.storage.process import data_files
from bookstand.storage.process.process_markers import OpenProcesses
from bookstand.storage.process.witness import Witness
from tests.kit import own_environment, raw
from tests.soak import disk_decoders, server_decoders, topic_decoders, zookeeper_decoders
from tests.soak.decoder import Decoder
from tests.soak.kinds import Done, Kind

CASES = 22_000
MEMORY = 1 << 30
"""What the child may have of address space above what it begins with: twenty times what it needs."""

SECONDS = 20
"""Of the processor, for one case: a thousand times what it needs."""

# -- mutations -------------------------------------------------------------------------------------------------------


def _flip_bits(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set_bytes(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(changed)


def _truncate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    cut = rng.randrange(len(data) + 1)
    return data[:cut] if rng.random() < 0.8 else data[cut:]


def _insert(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice([rng.randbytes(rng.randrange(1, 20)), bytes(rng.randrange(1, 20))]) + data[at:]


def _remove(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randrange(1, 20) :]


def _repeat(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.randrange(1, 40)]
    return data[:start] + part * rng.choice([2, 3, 50]) + data[start + len(part) :]


def _splice(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _swap_parts(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    first, second, third = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:first] + data[second:third] + data[first:second] + data[third:]


def _varint(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Where a varint may stand: one that is too long, too large, or longer than it need be."""
    at = rng.randrange(len(data) + 1)
    number = rng.choice(
        [
            b"\xff" * rng.randrange(1, 12) + b"\x01",
            b"\x80" * rng.randrange(1, 12) + b"\0",
            b"\xff\xff\xff\xff\x0f",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x80\x80\x80\x80\x10",
        ]
    )
    return data[:at] + number + data[at + rng.randrange(2) :]


_NUMBERS = [0, 1, 2, 31, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1]


def _fixed_number(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Lengths, ids and versions of a fixed size, set to what is at the edge."""
    size = rng.choice([1, 2, 4, 8])
    if len(data) < size:
        return data + b"\xff"
    at = rng.randrange(len(data) - size + 1)
    number = rng.choice(_NUMBERS) & (1 << 8 * size) - 1
    return data[:at] + number.to_bytes(size, rng.choice(["big", "little"])) + data[at + size :]


_WORDS = [
    *(b"%d" % number for number in _NUMBERS),
    *(b"-1", b"-102", b"-9223372036854775809", b"99999999999999999999999999", b"9" * 5000, b"0x", b"0x7f", b"017"),
    *(
        b"{",
        b"}",
        b"<",
        b">",
        b"[",
        b"]",
        b":",
        b'"',
        b"'",
        b"\\",
        b"\\x",
        b"\\777",
        b"\\uD800",
        b"#",
        b"\t",
        b"\n",
        b"\r",
    ),
    *(b"segment {", b"password:", b"state: CLOSED", b"OPEN", b"CLOSED", b"customMetadata <", b"{" * 200, b"[" * 200),
    *(b"\0", b"\xff\xfe", "é".encode(), b"BookieMetadataFormatVersion\t1\n", b"open-", b"read-", b"deleted-", b"/"),
]


def _word(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_WORDS) + data[at + rng.randrange(8) :]


def _noise(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    return rng.randbytes(rng.randrange(80))


MUTATIONS = (
    _flip_bits,
    _set_bytes,
    _truncate,
    _insert,
    _remove,
    _repeat,
    _splice,
    _swap_parts,
    _varint,
    _fixed_number,
    _word,
    _noise,
)


def mutated(rng: random.Random, samples: list[bytes]) -> bytes:
    data = rng.choice(samples)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = rng.choice(MUTATIONS)(rng, data, samples)
    return data


# -- what there is to decode -----------------------------------------------------------------------------------------

LEDGER = 77
ENTRY = 5
PASSWORD = b"password"
KEY = schema.LEDGER_KEY.pack(LEDGER)


def decoders(seed: int, folder: Path) -> dict[str, Decoder]:
    """All of them, with samples by the seed. ``folder`` is for those that read files."""
    rng = random.Random(seed)
    found: dict[str, Decoder] = {}
    for name in DIGEST_NAMES:
        found |= _of_entries(rng, name)
    found |= _of_records(rng) | _of_metadata(rng) | _of_protobuf(rng) | _of_files(rng, folder)
    others = topic_decoders.all_of_them(rng, folder) | disk_decoders.all_of_them(rng, folder)
    for more in (others, server_decoders.all_of_them(rng, folder), zookeeper_decoders.all_of_them(rng, folder)):
        assert not found.keys() & more.keys()
        found |= more
    return found


def _of_entries(rng: random.Random, name: str) -> dict[str, Decoder]:
    digest = digest_for(name, PASSWORD)
    sealed = name != "dummy"
    payloads = [rng.randbytes(size) for size in (0, 1, rng.randrange(2, 60), rng.randrange(60, 400))]
    samples = [entry_codec.encode(digest, LEDGER, ENTRY, 4, 1000, payload) for payload in payloads]

    def encode(value: tuple[int, int, bytes]) -> bytes:
        return entry_codec.encode(digest, LEDGER, ENTRY, *value)

    return {
        f"entry, {name}": Decoder(
            samples, lambda data: entry_codec.decode(digest, LEDGER, ENTRY, data), encode, sealed
        ),
        f"newest entry, {name}": Decoder(
            samples, lambda data: entry_codec.decode_last_confirmed(digest, LEDGER, data), digested=sealed, share=0.4
        ),
        f"batch of entries, {name}": _batch(rng, name, alike=False),
        f"batch of entries of one size, {name}": _batch(rng, name, alike=True),
    }


def _batch(rng: random.Random, name: str, alike: bool) -> Decoder:
    """Many entries of which one is mutated: the way by columns must see all that the plain way sees."""
    digest = digest_for(name, PASSWORD)
    count = entry_batch.SMALLEST_BATCH + 3
    size = rng.randrange(1, 60)
    payloads = [rng.randbytes(size if alike else rng.randrange(60)) for _ in range(count)]
    good = [stored for _, stored in entry_batch.encode_entries(digest, LEDGER, 0, -1, 0, payloads).pairs()]
    place = rng.randrange(count)

    def decode(data: bytes) -> tuple[list[int], list[bytes]]:
        lengths, found = entry_batch.decode_entries(digest, LEDGER, 0, [*good[:place], data, *good[place + 1 :]])
        plain = [entry_codec.decode(digest, LEDGER, place, data)]
        if (lengths[place], found[place]) != plain[0][1:] or list(found[:place]) != payloads[:place]:
            raise AssertionError("a batch reads as something else than its entries")
        return list(lengths), list(found)

    # One sample: what is in this place.
    return Decoder([good[place]], decode, digested=name != "dummy", share=0.03 if name == "mac" else 0.08)


def _of_records(rng: random.Random) -> dict[str, Decoder]:
    bodies = [rng.randbytes(size) for size in (0, 1, 8, rng.randrange(9, 100))]
    sealed = [sealed_record.seal(KEY, body) for body in bodies]
    versioned = [sealed_record.seal_versioned(KEY, version, body) for version, body in enumerate(bodies)]
    states = []
    for number in range(6):
        one = ledger_state.LedgerState(number, rng.choice([None, rng.randbytes(20)]), rng.choice(["", *DIGEST_NAMES]))
        one.fenced, one.in_order = rng.random() < 0.5, rng.random() < 0.5
        one.count, one.last_entry, one.lac = rng.randrange(1 << 40), rng.randrange(-1, 1 << 40), rng.randrange(-1, 99)
        states.append(one.pack())
    return {
        "record": Decoder(
            sealed,
            lambda data: sealed_record.unseal(schema.META, KEY, data),
            lambda body: sealed_record.seal(KEY, body),
            digested=True,
        ),
        "versioned record": Decoder(
            versioned,
            lambda data: sealed_record.unseal_versioned(schema.NODES, KEY, data),
            lambda value: sealed_record.seal_versioned(KEY, value[1], value[0]),
            digested=True,
        ),
        # The seal put on what was mutated: what lies below it must hold by itself.
        "versioned record, sealed again": Decoder(
            [sealed_one[4:] for sealed_one in versioned],
            lambda data: sealed_record.unseal_versioned(schema.NODES, KEY, sealed_record.seal(KEY, data)),
            lambda value: sealed_record.VERSION.pack(value[1]) + value[0],
        ),
        "ledger state": Decoder(
            states,
            lambda data: ledger_state.unpack(LEDGER, data),
            lambda value: value.pack(),
            equal=lambda one, other: one.pack() == other.pack(),
        ),
        "key of an entry": Decoder(
            [schema.ENTRY_KEY.pack(LEDGER, number) for number in (0, 5, schema.MAX_ENTRY_ID)],
            schema.entry_of,
            lambda ids: schema.ENTRY_KEY.pack(*ids),
            share=0.3,
        ),
        "key of a ledger": Decoder(
            [KEY, schema.LEDGER_KEY.pack(schema.MAX_LEDGER_ID)],
            lambda data: schema.ledger_of(schema.STATE, data),
            schema.LEDGER_KEY.pack,
            share=0.3,
        ),
        "key of a node": Decoder([b"/a/node", "/é/𐐀".encode()], schema.path_of, str.encode, share=0.3),
        "format record": Decoder(
            [schema.FORMAT.pack(schema.FORMAT_VERSION)],
            lambda data: check_format("store", data),
            lambda _: schema.FORMAT.pack(schema.FORMAT_VERSION),
            share=0.2,
        ),
    }


def _of_metadata(rng: random.Random) -> dict[str, Decoder]:
    found = {}
    for version in ledger_metadata.FORMATS:
        samples = [ledger_metadata.serialize(_some_metadata(rng, version)) for _ in range(8)]
        found[f"ledger metadata, format {version}"] = Decoder(
            samples, lambda data: ledger_metadata.parse(data, LEDGER, 12345), _rewritten, share=1.5
        )
        if version > 1:
            # What BookKeeper writes behind the header, without it: no mutation is lost on the header.
            start = samples[0].index(b"\n") + 1
            header = samples[0][:start]
            found[f"ledger metadata, body of format {version}"] = Decoder(
                [sample[start:] for sample in samples],
                lambda data, header=header: ledger_metadata.parse(header + data, LEDGER),
                lambda value, start=start: _rewritten(value)[start:],
                share=2,
            )
    messages = [sample[sample.index(b"\n") + 1 :] for sample in samples]
    found["delimited message"] = Decoder(
        messages, lambda data: _parts(ledger_metadata_binary.read_delimited(data, 0)), refusals=ValueError
    )
    return found


def _rewritten(value: ledger_metadata.LedgerMetadata) -> bytes:
    return ledger_metadata.serialize(value)


def _parts(message: ledger_metadata_binary.RawMetadata) -> tuple[Any, ...]:
    return tuple(getattr(message, name) for name in ledger_metadata_binary.RawMetadata.__slots__)


def _some_metadata(rng: random.Random, version: int) -> ledger_metadata.LedgerMetadata:
    size = rng.randrange(1, 4)
    quorum = rng.randrange(1, size + 1)
    bookies = [f"bookie-{number}:3181" for number in range(size)]
    closed = rng.random() < 0.5
    more: dict[str, Any] = {}
    if version > 1:
        more = {
            "digest_type": rng.choice(DIGEST_NAMES),
            "password": rng.randbytes(rng.randrange(12)),
            "ctime": rng.randrange(1 << 42),
            "stores_ctime": rng.random() < 0.5,
            "custom_metadata": {f"key {number}": rng.randbytes(rng.randrange(9)) for number in range(rng.randrange(4))},
        }
    if version == 3:
        more["ctoken"] = rng.randrange(-5, 1 << 62)
    return ledger_metadata.LedgerMetadata(
        LEDGER,
        ensemble_size=size,
        write_quorum_size=quorum,
        ack_quorum_size=quorum if version == 1 else rng.randrange(1, quorum + 1),
        ensembles=[(first, bookies) for first in (0, 17, 1 << 40)[: rng.randrange(1, 4)]],
        state="CLOSED" if closed else rng.choice(["OPEN", "IN_RECOVERY"]),
        last_entry_id=rng.randrange(-1, 1 << 40) if closed else None,
        length=rng.randrange(1 << 40) if closed else None,
        format_version=version,
        **more,
    )


def _of_protobuf(rng: random.Random) -> dict[str, Decoder]:
    """``WireError`` is theirs; it becomes ``MetadataSerializationError`` where ledger metadata is parsed."""
    messages = [_message(_some_metadata(rng, 3)) for _ in range(6)]
    texts = [ledger_metadata.serialize(_some_metadata(rng, 2)).partition(b"\n")[2] for _ in range(6)]
    literals = [text_format.quoted(rng.randbytes(rng.randrange(30))).encode() for _ in range(6)]
    numbers = [b"0", b"-1", b"0x7fffffff", b"017", b"9223372036854775807u", b"18446744073709551615"]
    varints = []
    for number in (0, 1, 127, 128, rng.randrange(1 << 63), -1):
        out = bytearray()
        wire_format.write_varint(out, number)
        varints.append(bytes(out))
    return {
        "fields of a message": Decoder(messages, _fields, _written_fields, refusals=wire_format.WireError),
        "varint": Decoder(
            varints,
            lambda data: wire_format.read_varint(data, 0, len(data))[0],
            _varint_of,
            refusals=wire_format.WireError,
        ),
        "text of any message": Decoder(texts, _skipped, refusals=wire_format.WireError),
        "string in text": Decoder(
            literals,
            lambda data: text_format.TextReader(data).string(),
            lambda value: text_format.quoted(value).encode(),
            refusals=wire_format.WireError,
        ),
        "number in text": Decoder(
            numbers,
            lambda data: text_format.TextReader(data).integer(),
            lambda value: b"%d" % value,
            refusals=wire_format.WireError,
            share=0.4,
        ),
    }


def _message(of: ledger_metadata.LedgerMetadata) -> bytes:
    """The message alone, without header and length."""
    delimited = ledger_metadata.serialize(of).partition(b"\n")[2]
    return delimited[wire_format.read_varint(delimited, 0, len(delimited))[1] :]


def _varint_of(number: int) -> bytes:
    out = bytearray()
    wire_format.write_varint(out, number)
    return bytes(out)


def _fields(data: bytes) -> list[tuple[int, int, bytes]]:
    return list(wire_format.fields(data))


def _written_fields(found: list[tuple[int, int, bytes]]) -> bytes:
    out = bytearray()
    for tag, number, chunk in found:
        kind = tag & 7
        wire_format.write_varint(out, tag)
        if kind == wire_format.VARINT:
            wire_format.write_varint(out, number)
        elif kind == wire_format.BYTES:
            wire_format.write_varint(out, len(chunk))
            out += chunk
        else:
            out += number.to_bytes(8 if kind == wire_format.FIXED64 else 4, "little")
    return bytes(out)


def _skipped(data: bytes) -> None:
    reader = text_format.TextReader(data)
    while not reader.at_end_of_message():
        reader.identifier()
        reader.skip_value()
        reader.end_field()


def _of_files(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    magic, slot = b"bkstwit1", struct.Struct(">Q")

    def slot_of(commit: int) -> bytes:
        number = slot.pack(commit)
        return number + sealed_record.seal(b"", number)[:4]

    witnesses = [magic + slot_of(first) + slot_of(second) for first, second in ((2, 3), (4, 3), (0, 0), (1 << 40, 7))]
    witnesses.append(magic.ljust(32, b"\0"))
    whole = folder / "sample"
    with bookstand.open(whole, durability="none") as store:
        store.create_ledger(password=PASSWORD).append_many([b"entry %d" % number for number in range(20)])
        store.nodes.put("/a/node", b"value")
        deleted = store.create_ledger()
        store.delete_ledger(deleted.id)
    image = (whole / "data.mdb").read_bytes()
    with raw(whole) as databases:
        stored = [
            name + b"|" + key.hex().encode() + b"|" + value
            for name in schema.DATABASES
            for key, value in databases(name).items()
        ]
    return {
        "witness": Decoder(witnesses, _Witnessed(folder / "witnessed"), share=0.4),
        "first header of the data file": Decoder([image[:152]], _Headed(folder / "first", image, 0), share=0.3),
        "second header of the data file": Decoder(
            [image[4096:4248]], _Headed(folder / "second", image, 4096), share=0.3
        ),
        "marker": Decoder(
            # Of such a length that they stand for files: see _Marked.
            [b"open-1234-0a1b2c3d", b"read-199-000000000", b"open-x", b"creating-123"],
            _Marked(folder / "marked"),
            share=0.06,
        ),
        "record in a store": Decoder(stored, _Stored(folder / "stored", whole), share=0.06),
    }


class _Witnessed:
    """What a witness file says of the newest commit, and that it takes a newer one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def __call__(self, data: bytes) -> int:
        (self._folder / "witness").write_bytes(data)
        witness = Witness(str(self._folder))
        try:
            newest = 0

            def is_it(commit: int) -> bool:
                try:
                    witness.check(lambda: commit)
                except bookstand.errors.StoreRolledBackError:
                    return False
                return True

            for bit in reversed(range(64)):
                if not is_it(newest + (1 << bit) - 1):
                    newest += 1 << bit
            if newest < (1 << 64) - 1:
                witness.record_commit(newest + 1)
                if is_it(newest) or not is_it(newest + 1):
                    raise AssertionError(f"commit {newest + 1} was witnessed in vain")
            return newest
        finally:
            witness.close()


class _Headed:
    """The gate before LMDB: it passes or refuses, and never makes a file longer than it may be made."""

    def __init__(self, folder: Path, image: bytes, at: int) -> None:
        self._folder = folder
        self._image = image
        self._at = at
        folder.mkdir()

    def __call__(self, data: bytes) -> bool:
        changed = bytearray(self._image)
        changed[self._at : self._at + 4096] = data[:4096].ljust(4096, b"\0")
        file = self._folder / "data.mdb"
        file.write_bytes(changed)
        gate = data_files.check_file_length(str(self._folder), False)
        if file.stat().st_size > len(self._image):
            raise AssertionError(f"the file was made {file.stat().st_size} bytes long")
        return gate


class _Marked:
    """Names beside the data file: whoever may have left them, a store opens or says why it does not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with bookstand.open(folder, durability="none"):
            pass

    def __call__(self, data: bytes) -> bool:
        name = data.replace(b"/", b"").replace(b"\0", b"")[:200]
        left = os.path.join(os.fsencode(self._folder), name)
        if not name or os.path.lexists(left):
            return False
        kind = len(data) % 3
        if kind == 0:
            Path(os.fsdecode(left)).write_bytes(data)
        elif kind == 1:
            os.mkdir(left)
        else:
            os.symlink("nowhere", left)
        try:
            OpenProcesses(str(self._folder))
            with bookstand.open(self._folder, durability="none") as store:
                return store.verify().ok
        finally:
            if os.path.isdir(left) and not os.path.islink(left):
                os.rmdir(left)
            elif os.path.lexists(left):
                os.unlink(left)


class _Stored:
    """A record of any database under a key and with a value of any kind, found by all who read the store."""

    def __init__(self, folder: Path, whole: Path) -> None:
        self._folder = folder
        self._whole = whole

    def __call__(self, data: bytes) -> None:
        name, _, rest = data.partition(b"|")
        name = name if name in schema.DATABASES else schema.DATABASES[len(data) % len(schema.DATABASES)]
        written_key, _, value = rest.partition(b"|")
        try:
            key = bytes.fromhex(written_key.decode())
        except ValueError:
            key = written_key
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._whole, self._folder)
        key, value = (key or b"\0")[:511], value[:2000]
        sealed_again = len(data) % 2 == 0 and name != schema.ENTRIES and key != schema.META_FORMAT
        if sealed_again:
            # What lies below the seal must hold by itself.
            value = sealed_record.seal(key, value[4:])
        with raw(self._folder, write=True) as databases:
            databases(name)[key] = value
        with bookstand.open(self._folder, durability="none") as store:
            for use in (
                lambda: store.verify(),
                lambda: store.list_ledgers(),
                lambda: self._read(store, False, forged=sealed_again),
                lambda: self._read(store, True, forged=sealed_again),
                lambda: store.nodes.children("/"),
                lambda: store.nodes.children("/a"),
                lambda: store.nodes.get("/a/node"),
                lambda: store.nodes.put("/another", b"value"),
                lambda: store.create_ledger().append(b"entry"),
                lambda: store.create_ledger_adv(1).write(0, b"entry"),
                lambda: store.compact(),
            ):
                try:
                    found = use()
                    if isinstance(found, Iterator):
                        list(found)
                except BookstandError:
                    pass

    @staticmethod
    def _read(store: bookstand.Store, recovery: bool, forged: bool) -> None:
        """Entries are right, unless a ledger's metadata or state was made to say otherwise with a right seal."""
        reader = store.open_ledger(0, recovery=recovery, password=PASSWORD)
        for entry_id in range(21):
            try:
                (found,) = reader.read_unconfirmed(entry_id, entry_id)
            except BookstandError:
                continue
            if found.data != b"entry %d" % entry_id and not forged:
                raise AssertionError(f"entry {entry_id} reads as {found.data!r}")
        list(reader)


# -- running ---------------------------------------------------------------------------------------------------------


class TooLongError(BaseException):
    """One case did not come back."""


class Ran(NamedTuple):
    cases: int
    accepted: dict[str, int]
    refused: dict[str, int]
    problems: list[str]


def run(seed: int, cases: int, folder: Path) -> Ran:
    """All decoders, each with its share of the cases."""
    rng = random.Random(seed)
    table = decoders(seed, folder)
    whole = sum(decoder.share for decoder in table.values())
    accepted: dict[str, int] = {}
    refused: dict[str, int] = {}
    problems: list[str] = []
    done = 0
    for name, decoder in table.items():
        wanted = int(cases * decoder.share / whole) + 1
        seen = set(decoder.samples)
        accepted[name] = refused[name] = 0
        for sample in decoder.samples:
            problem, _ = judge(decoder, sample, mutated=False)
            if problem:
                problems.append(f"{name}: a good sample: {problem}: {sample!r}")
        tries = 0
        while wanted and tries < 50 * cases:
            tries += 1
            data = mutated(rng, decoder.samples)
            if data in seen:
                continue
            seen.add(data)
            wanted -= 1
            done += 1
            problem, taken = judge(decoder, data)
            accepted[name] += taken
            refused[name] += not taken
            if problem and len(problems) < 20:
                problems.append(f"{name}: {problem}: {data!r}")
    return Ran(done, accepted, refused, problems)


def judge(decoder: Decoder, data: bytes, mutated: bool = True) -> tuple[str | None, bool]:
    """What is wrong with what became of it, and whether it was accepted."""
    try:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            value = decoder.decode(data)
        except decoder.refusals as error:
            if not mutated:
                return f"refused with {error!r}", False
            return None, False
        if mutated and decoder.digested:
            return f"an altered payload passed as {value!r}", True
        if decoder.encode is not None:
            try:
                again = decoder.encode(value)
            except BookstandError:
                return None, True
            if not decoder.equal(decoder.decode(again), value):
                return f"it reads as {value!r}, and as {decoder.decode(again)!r} once rewritten", True
        return None, True
    except (Exception, TooLongError) as error:
        return f"{type(error).__name__}: {error}"[:300], False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError(f"no answer after {SECONDS} s of work")


def main(seed: int, cases: int) -> None:
    """In a process of its own."""
    import lmdb.verify
    import numpy

    assert lmdb.verify
    assert numpy
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    # Each store maps a gibibyte of its own.
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY + (1 << 30),) * 2)
    signal.signal(signal.SIGPROF, _too_long)
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="bookstand-mutations-", dir=place) as folder:
        print(json.dumps(run(seed, cases, Path(folder))))


def one_round(seed: int, cases: int = CASES) -> Done:
    ran = in_a_child(seed, cases)
    return Done(ran.cases, ran.problems)


def in_a_child(seed: int, cases: int) -> Ran:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.soak.decoder_mutations", str(seed), str(cases)],
        env=own_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        return Ran(0, {}, {}, [f"the child ended with {ended.returncode}: {ended.stderr[-2000:]}"])
    return Ran(*json.loads(ended.stdout))


KIND = Kind(one_round)

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
