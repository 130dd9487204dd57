"""What clients wrote through the wire is in the store for all who use the store, and the other way round."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.server import BookieServer
from bookstand.storage.commit.ledger_operations import CreateLedger, UpdateLedger
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_metadata import CLOSED, LedgerMetadata, serialize
from bookstand.storage.format.ledger_state import NO_HOME_YET
from tests.kit import refused
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire

PASSWORD = b"secret"
BOOKIES = ["one:3181", "two:3181", "three:3181"]


def create(store: Any, ledger_id: int, digest: str) -> LedgerMetadata:
    """A ledger's metadata as a client writes it to the metadata service."""
    metadata = LedgerMetadata(
        ledger_id,
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        ensembles=[(0, BOOKIES)],
        digest_type=digest,
        password=PASSWORD,
    )
    operation = CreateLedger(ledger_id, master_key(PASSWORD), digest, serialize(metadata), home=NO_HOME_YET)
    store.storage.apply(WriteBatch(operation))
    return metadata


def entries(ledger_id: int, digest: str, count: int) -> list[bytes]:
    made, length = [], 0
    for number in range(count):
        payload = b"entry %d" % number
        length += len(payload)
        made.append(encode(digest_for(digest, PASSWORD), ledger_id, number, number - 1, length, payload))
    return made


def write_striped(wires: list[Wire], frames: list[bytes]) -> None:
    """Each entry to two of three bookies, as a client with this quorum does."""
    for number, frame in enumerate(frames):
        for bookie in (number % 3, (number + 1) % 3):
            assert wires[bookie].v2(kit.v2_add(frame, master_key(PASSWORD))).code == 0


@pytest.fixture
def wires(serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any) -> list[Wire]:
    server = serve(3, store=store)
    return [connect(server, bookie) for bookie in (1, 2, 3)]


@pytest.mark.parametrize("digest", ["crc32", "crc32c", "hmac", "dummy"])
def test_a_ledger_written_by_a_client_is_the_stores(store: Any, wires: list[Wire], digest: str) -> None:
    metadata = create(store, 7, digest)
    made = entries(7, digest, 10)
    write_striped(wires, made)
    length = struct.unpack_from(">q", made[-1], 24)[0]
    closed = metadata.replace(state=CLOSED, last_entry_id=9, length=length)
    store.storage.apply(WriteBatch(UpdateLedger(7, serialize(closed), 0)))
    assert list(store.list_ledgers()) == [7]
    with refused(-102):
        store.open_ledger(7, password=b"wrong")
    reader = store.open_ledger(7, password=PASSWORD)
    assert [entry.data for entry in reader] == [b"entry %d" % number for number in range(10)]
    assert reader.length == length
    report = store.verify()
    assert report.ok
    assert report.entries == 10


def test_the_store_recovers_a_ledger_whose_client_died(store: Any, wires: list[Wire]) -> None:
    create(store, 7, "crc32c")
    write_striped(wires, entries(7, "crc32c", 10))
    reader = store.open_ledger(7, recovery=True, password=PASSWORD)
    assert reader.last_add_confirmed == 9
    assert store.ledger_metadata(7).state == CLOSED
    late = entries(7, "crc32c", 11)[10]
    assert [wire.v2(kit.v2_add(late, master_key(PASSWORD))).code for wire in wires] == [104] * 3


def test_clients_read_what_the_store_wrote(store: Any, wires: list[Wire]) -> None:
    writer = store.create_ledger(password=PASSWORD)
    writer.append_many([b"one", b"two", b"three"])
    for wire in wires:
        answers = [wire.v2(kit.v2_read(writer.id, number)) for number in range(3)]
        assert [answer.body[36:] for answer in answers] == [b"one", b"two", b"three"]
        assert wire.v3(kit.v3_read(writer.id, -1)).readResponse.maxLAC == -1


def test_a_client_that_recovers_stops_a_writer_of_the_store(store: Any, wires: list[Wire]) -> None:
    writer = store.create_ledger(password=PASSWORD)
    writer.append(b"one")
    response = wires[1].v3(kit.v3_fence(writer.id, key=master_key(PASSWORD)))
    assert response.status == messages.EOK
    with refused(-101):
        writer.append(b"two")


def test_a_deleted_ledger_is_served_until_it_is_collected(store: Any, wires: list[Wire]) -> None:
    create(store, 7, "crc32c")
    write_striped(wires, entries(7, "crc32c", 3))
    store.delete_ledger(7)
    assert wires[0].v2(kit.v2_read(7, 0)).code == 0
    store.compact()
    assert [wire.v2(kit.v2_read(7, 0)).code for wire in wires] == [1, 1, 1]
