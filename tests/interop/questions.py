"""What the Java side is asked, as a table: for each group, samples of ours and the answers they have to get.

To extend it, add a generator to ``GROUPS`` and, where it needs a new kind of request, a row to the table in
``Interop.java``.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import bookstand
from bookstand.errors import MetadataSerializationError
from bookstand.storage.format.digest import DIGEST_NAMES, digest_for, master_key
from bookstand.storage.format.entry_codec import encode, encode_explicit_lac
from bookstand.storage.format.ledger_metadata import CLOSED, STATES, LedgerMetadata, parse, serialize
from bookstand.storage.storage import Storage, open_storage
from tests.interop.java import request
from tests.replay.samples import STRICTER

JAVA_DIGESTS = {"crc32": "CRC32", "crc32c": "CRC32C", "hmac": "HMAC", "dummy": "DUMMY"}
PASSWORDS = (b"", b"password", bytes(range(256)), "pässwörd".encode())
KEYS = (
    *(f"key {number}" for number in range(12)),
    "application",
    "component",
    'üml "k"\n\t\\\'',
    "",
    "pulsar/managed-ledger",
    "\x00\x07\x0b\x7f",
    "日本",
)


class Asked(Protocol):
    """Something that the Java side is asked."""

    @property
    def name(self) -> str: ...

    @property
    def request(self) -> str: ...

    @property
    def remark(self) -> str:
        """What is to be told of it, once it is answered; empty where there is nothing."""
        ...

    def difference(self, answer: dict[str, str]) -> str:
        """Empty when the answer is as it should be. To be called once for each, in the order of the questions."""
        ...


class Question(NamedTuple):
    name: str
    request: str
    expected: dict[str, str]
    """What the answer has to contain; empty when the original has to refuse."""
    refusal: str = ""
    """Where we refuse: why. For some reasons the original need not."""
    remark: str = ""

    def difference(self, answer: dict[str, str]) -> str:
        """Empty when the answer is as it should be."""
        if self.expected:
            return ", ".join(
                f"{name}: {answer.get(name, answer.get('error'))!r}, not {value!r}"
                for name, value in self.expected.items()
                if answer.get(name) != value
            )
        if "error" in answer or any(reason in self.refusal for reason in STRICTER):
            return ""
        return f"read as {answer}, which we refuse: {self.refusal}"


def stored_entries(rng: random.Random) -> Iterator[Question]:
    for number in range(200):
        digest_name, password = rng.choice(DIGEST_NAMES), rng.choice(PASSWORDS)
        ledger_id, entry_id = rng.getrandbits(rng.choice((8, 32, 63))), rng.getrandbits(rng.choice((8, 40, 63)))
        payload = rng.randbytes(rng.choice((0, 1, 3, 31, 32, 200, 5000)))
        lac, length = rng.randint(-1, entry_id), rng.randint(len(payload), 1 << 62)
        digest = digest_for(digest_name, password)
        stored = encode(digest, ledger_id, entry_id, lac, length, payload)
        arguments = {
            "digest": JAVA_DIGESTS[digest_name],
            "password": password,
            "ledger": ledger_id,
            "entry": entry_id,
        }
        name = f"{digest_name} entry {number}"
        expected = {
            "payload": payload.hex(),
            "lac": str(lac),
            "length": str(length),
            "master_key": master_key(password).hex(),
        }
        yield Question(name, request("entry", **arguments, stored=stored), expected)
        body = encode_explicit_lac(digest, ledger_id, lac)
        yield Question(f"{name}, explicit LAC", request("explicit_lac", **arguments, body=body), {"lac": str(lac)})


def described(metadata: LedgerMetadata) -> dict[str, str]:
    """The Java side's words for metadata."""
    digest = "MAC" if metadata.digest_type == "hmac" else str(metadata.digest_type).upper()
    custom = sorted((key.encode().hex(), value.hex()) for key, value in metadata.custom_metadata.items())
    try:
        again = serialize(metadata).hex()
    except MetadataSerializationError:
        again = "refused"
    return {
        "format": str(metadata.format_version),
        "ensemble": str(metadata.ensemble_size),
        "write_quorum": str(metadata.write_quorum_size),
        "ack_quorum": str(metadata.ack_quorum_size),
        "state": metadata.state,
        "last_entry": str(metadata.last_entry_id),
        "length": str(metadata.length),
        "has_password": str(metadata.has_password).lower(),
        "digest": digest if metadata.has_password else "null",
        "password": metadata.password.hex(),
        "ctime": str(metadata.ctime),
        "ctoken": str(metadata.ctoken),
        "custom": ",".join(f"{key}:{value}" for key, value in custom),
        "ensembles": ";".join(f"{first}:{','.join(bookies)}" for first, bookies in metadata.ensembles),
        "string": str(metadata).encode().hex(),
        "safe_string": metadata.to_safe_string().encode().hex(),
        "again": again,
    }


def random_metadata(rng: random.Random) -> LedgerMetadata:
    size = rng.randint(1, 5)
    write_quorum = rng.randint(1, size)
    state = rng.choice(STATES)
    first_entries = sorted(rng.sample(range(1, 5000), rng.randint(0, 3)))
    host = rng.choice(("192.0.2.{0}:3181", "bookie-{0}.example.org:3181", "B_{0}"))
    closed = state == CLOSED
    protected = rng.random() < 0.9
    return LedgerMetadata(
        rng.getrandbits(rng.choice((4, 31, 63))),
        format_version=rng.choice((1, 2, 3)) if protected else 1,
        ensemble_size=size,
        write_quorum_size=write_quorum,
        ack_quorum_size=rng.randint(0, write_quorum),
        ensembles=[(first, [host.format(rng.randint(0, 255)) for _ in range(size)]) for first in (0, *first_entries)],
        state=state,
        last_entry_id=rng.randint(-1, 1 << rng.choice((8, 40))) if closed else None,
        length=rng.getrandbits(rng.choice((8, 33, 63))) if closed else None,
        digest_type=rng.choice(DIGEST_NAMES) if protected else None,
        password=rng.choice((*PASSWORDS, rng.randbytes(12))) if protected else None,
        ctime=rng.choice((-1, 0, 1700000000123)),
        stores_ctime=rng.random() < 0.5,
        ctoken=rng.getrandbits(64) - (1 << 63) if rng.random() < 0.5 else 0,
        custom_metadata={
            key: rng.randbytes(rng.choice((0, 1, 40))) for key in rng.sample(KEYS, rng.randint(0, len(KEYS)))
        },
    )


def metadata(rng: random.Random) -> Iterator[Question]:
    for number in range(300):
        given = random_metadata(rng)
        data = serialize(given)
        store_ctime = rng.choice((None, 1234))
        expected = described(parse(data, given.ledger_id, store_ctime))
        arguments = {} if store_ctime is None else {"store_ctime": store_ctime}
        line = request("metadata", ledger=given.ledger_id, bytes=data, **arguments)
        yield Question(f"metadata {number} of format {given.format_version}", line, expected)


def mutated(rng: random.Random, data: bytes) -> bytes:
    kind = rng.randrange(6)
    at = rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data + rng.randbytes(rng.randint(1, 4))
    if kind == 2:
        return data[:at] + rng.randbytes(1) + data[at:]
    if kind == 3:
        return data[:at] + data[at + 1 :]
    if kind == 4:
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    return data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :]


def damaged_metadata(rng: random.Random) -> Iterator[Question]:
    for number in range(3000):
        given = random_metadata(rng)
        data = mutated(rng, serialize(given))
        expected, refusal = {}, ""
        try:
            expected = described(parse(data, given.ledger_id))
        except MetadataSerializationError as error:
            refusal = str(error)
        line = request("metadata", ledger=given.ledger_id, bytes=data)
        yield Question(f"damaged metadata {number} of format {given.format_version}: {data!r}", line, expected, refusal)


def whole_store(rng: random.Random) -> Iterator[Question]:
    """Ledgers written by the front door, and what then lies in the store."""
    for format_version in (1, 2, 3):
        with tempfile.TemporaryDirectory() as folder:
            with bookstand.open(Path(folder) / "store", durability="none", metadata_format=format_version) as store:
                written = [ledger for digest in DIGEST_NAMES for ledger in _write_ledgers(rng, store, digest)]
            storage = open_storage(Path(folder) / "store", create=False, read_only=True)
            try:
                for ledger in written:
                    yield from _stored_ledger(storage, ledger, f"format {format_version}")
            finally:
                storage.close()


class Written(NamedTuple):
    ledger_id: int
    digest: str
    password: bytes
    payloads: list[bytes]
    in_order: bool


def _write_ledgers(rng: random.Random, store: Any, digest: str) -> Iterator[Written]:
    for how in ("append", "append_many", "write", "recovered"):
        password = rng.choice(PASSWORDS)
        # Several hundred together take another way through the digests.
        count = 300 if how == "append_many" else 6
        payloads = [rng.randbytes(rng.choice((0, 1, 77, 3000))) for _ in range(count)]
        options = {"digest": digest, "password": password, "ensemble": 3, "write_quorum": 2, "ack_quorum": 2}
        if rng.random() < 0.5:
            options["custom_metadata"] = {key: rng.randbytes(9) for key in rng.sample(KEYS, rng.randint(0, len(KEYS)))}
        if how == "write":
            writer = store.create_ledger_adv(**options)
            pending = [writer.write_async(entry_id, payloads[entry_id]) for entry_id in rng.sample(range(count), count)]
            for each in pending:
                each.result()
        else:
            writer = store.create_ledger(**options)
            if how == "append_many":
                writer.append_many(payloads)
            else:
                for payload in payloads:
                    writer.append(payload)
        if how == "recovered":
            store.open_ledger(writer.id, recovery=True, password=password).close()
        else:
            writer.close()
        yield Written(writer.id, digest, password, payloads, how in ("append", "append_many"))


def _stored_ledger(storage: Storage, written: Written, about: str) -> Iterator[Question]:
    ledger_id = written.ledger_id
    data, _ = storage.metadata(ledger_id) or (b"", 0)
    state = storage.state(ledger_id)
    metadata = parse(data, ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (CLOSED, len(written.payloads) - 1)
    line = request("metadata", ledger=ledger_id, bytes=data)
    yield Question(f"{about}, ledger {ledger_id}", line, described(metadata) | {"again": data.hex()})
    length = 0
    for entry_id, payload in enumerate(written.payloads):
        stored = storage.entry_as_stored(ledger_id, entry_id) or b""
        length += len(payload)
        line = request(
            "entry",
            digest=JAVA_DIGESTS[written.digest],
            password=written.password,
            ledger=ledger_id,
            entry=entry_id,
            stored=stored,
        )
        expected = {"payload": payload.hex()}
        if written.in_order:
            expected["length"] = str(length)
        if state is not None and state.master_key is not None:
            expected["master_key"] = state.master_key.hex()
        yield Question(f"{about}, {written.digest} entry {ledger_id}:{entry_id}", line, expected)


GROUPS: dict[str, Callable[[random.Random], Iterator[Question]]] = {
    "stored entries and explicit LACs": stored_entries,
    "ledger metadata": metadata,
    "damaged ledger metadata": damaged_metadata,
    "what a store holds": whole_store,
}
