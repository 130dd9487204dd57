"""What the original reads of exported disks: with its entry logger, and with a bookie that is started on them, its
client, and Pulsar's managed ledgers.

``log`` has the original scan a log. ``start`` and ``stop`` are about the one bookie that ``ledger``, ``topic`` and
``cursor`` ask between them. What was exported stays until the next run, for the questions are answered later.
"""

from __future__ import annotations

import hashlib
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import bookstand
from bookstand import Store
from bookstand.cursor.cursor import Cursor
from bookstand.disk.disks import Disks
from bookstand.disk.exporter.run import export_topics
from bookstand.disk.format.entry_log_writer import EntryLogWriter
from bookstand.disk.importer.run import import_disks
from bookstand.disk.metadata.dump import MetadataDump
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.topic_name import ROOT, node_of
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_metadata import CLOSED, NO_ENTRY
from bookstand.storage.format.position import Position
from tests.disk.full_store import FullStore, stored_entries
from tests.disk.recordings import dump_path, unpack
from tests.interop.java import BUILD, request
from tests.interop.questions import Question

EXPORTED = BUILD / "exported"
DIGESTS = {"crc32": "CRC32", "crc32c": "CRC32C", "hmac": "MAC", "dummy": "DUMMY"}
BOOKIE = "bookie-0"
HEADER_BYTES = 1024
LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")


def folder(name: str) -> Path:
    """An empty place for an export."""
    made = EXPORTED / name
    shutil.rmtree(made, ignore_errors=True)
    return made


class Sum:
    """How many entries, and a digest over their ids, sizes and bytes, as the Java side tells it."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._count = 0

    def add(self, ledger_id: int, entry_id: int, data: bytes) -> None:
        self._digest.update(struct.pack(">qqq", ledger_id, entry_id, len(data)) + data)
        self._count += 1

    def __str__(self) -> str:
        return f"{self._count}:{self._digest.hexdigest()}"


def _joined(words: Iterable[str]) -> str:
    return ",".join(words)


def _as_java_shows(pairs: Mapping[str, Any]) -> str:
    """A sorted map."""
    ordered = sorted(pairs, key=lambda name: name.encode("utf-16-be"))
    return f"{{{', '.join(f'{name}={pairs[name]}' for name in ordered)}}}"


# -- logs ------------------------------------------------------------------------------------------------------------


def logs(rng: random.Random) -> Iterator[Question]:
    yield from _logs_of_a_store(rng, "one-log")
    yield from _logs_of_a_store(rng, "many-logs", log_bytes=20_000)
    yield from _logs_of_a_store(rng, "log-for-each-entry", log_bytes=HEADER_BYTES)
    yield from _log_of_many_ledgers()


def _logs_of_a_store(rng: random.Random, name: str, **options: Any) -> Iterator[Question]:
    with bookstand.temporary() as store:
        FullStore(store, rng)
        report = export_topics(store, folder(name), bookie=BOOKIE, old_form=False, **options)
        entries = [
            (ledger_id, *entry) for ledger_id in store.list_ledgers() for entry in stored_entries(store, ledger_id)
        ]
    yield from _scanned(name, report.bookie / "ledgers", iter(entries))


def _scanned(name: str, ledgers: Path, entries: Iterator[tuple[int, int, bytes]]) -> Iterator[Question]:
    """The entries, in their order, are in the logs one after the other: each goes on where the one before is full."""
    paths = sorted((ledgers / "current").glob("*.log"), key=lambda path: int(path.stem, 16))
    for path in paths:
        taken, found = _records(path), Sum()
        for ledger_id, entry_id, stored in entries:
            found.add(ledger_id, entry_id, stored)
            taken[ledger_id] -= LENGTH.size + len(stored)
            if not any(taken.values()):
                break
        expected = {
            "entries": str(found),
            "map": _joined(f"{ledger_id}:{size}" for ledger_id, size in sorted(_records(path).items())),
        }
        yield Question(f"{name}, {path.name}", request("log", ledgers=ledgers, log=path.stem), expected)
    assert next(entries, None) is None


def _records(path: Path) -> dict[int, int]:
    """How many bytes the records of each ledger take in a log, the map aside."""
    data = path.read_bytes()
    taken: dict[int, int] = {}
    offset = HEADER_BYTES
    while offset < len(data):
        size = LENGTH.size + LENGTH.unpack_from(data, offset)[0]
        ledger_id, _ = IDS.unpack_from(data, offset + LENGTH.size)
        if ledger_id >= 0:
            taken[ledger_id] = taken.get(ledger_id, 0) + size
        offset += size
    return taken


def _log_of_many_ledgers() -> Iterator[Question]:
    """More than one record of a map has room for."""
    ledgers = folder("many-ledgers") / "ledgers"
    (ledgers / "current").mkdir(parents=True)
    digest = digest_for("crc32c", b"")
    entries = [(ledger_id, 0, encode(digest, ledger_id, 0, -1, 1, b"x")) for ledger_id in range(0, 50_002, 2)]
    with EntryLogWriter(ledgers / "current") as written:
        for ledger_id, _, stored in entries:
            written.add(ledger_id, [stored])
    yield from _scanned("many ledgers", ledgers, iter(entries))


# -- bookies ---------------------------------------------------------------------------------------------------------


def everything_of_a_store(rng: random.Random) -> Iterator[Question]:
    with bookstand.temporary() as store:
        FullStore(store, rng)
        yield from _on_a_bookie(store, "everything", log_bytes=30_000)


def some_topics(rng: random.Random) -> Iterator[Question]:
    """Without what belongs to others."""
    with bookstand.temporary() as store:
        full = FullStore(store, rng)
        names = sorted(full.acked)
        chosen = rng.sample(names, 3)
        ledgers = rng.sample(sorted(full.ledgers.values()), 3)
        yield from _on_a_bookie(store, "some-topics", topics=chosen, ledgers=ledgers)


def recorded_disks(rng: random.Random) -> Iterator[Question]:
    """What the original left, after it was imported and exported."""
    for name in ("a", "b", "c", "d", "f"):
        with tempfile.TemporaryDirectory() as scratch, bookstand.temporary() as store:
            with Disks.open([unpack(name, Path(scratch))], dump_path(name)) as disks:
                import_disks(disks, store)
            yield from _on_a_bookie(store, f"recording-{name}")


def moved(rng: random.Random) -> Iterator[Question]:
    """A bookie that is started in another place than its cookies name is refused."""
    with bookstand.temporary() as store:
        store.create_ledger().append(b"x")
        report = export_topics(store, folder("before-it-was-moved"), bookie=BOOKIE)
    target = folder("moved")
    report.metadata.parent.rename(target)
    scratch = folder("moved-scratch")
    scratch.mkdir(parents=True)
    start = request("start", folder=target, bookie=BOOKIE, scratch=scratch)
    yield Question("moved, start", start, {}, "its cookies name another place")


def _on_a_bookie(store: Store, name: str, **options: Any) -> Iterator[Question]:
    report = export_topics(store, folder(name), bookie=BOOKIE, **options)
    assert not report.damage
    scratch = folder(f"{name}-scratch")
    scratch.mkdir(parents=True)
    start = request("start", folder=report.metadata.parent, bookie=BOOKIE, scratch=scratch)
    yield Question(f"{name}, start", start, {"started": "true"})
    exported = MetadataDump.open(report.metadata, lambda damage: None)
    # Opening a topic ends its last ledger, here as there.
    for ledger_id in exported.ledgers:
        if store.storage.metadata(ledger_id) is not None:
            yield _ledger(store, name, ledger_id)
    for topic_name in exported.topics:
        yield from _topic(store, name, topic_name)
    yield Question(f"{name}, stop", request("stop"), {"stopped": "true"})


def _ledger(store: Store, about: str, ledger_id: int) -> Question:
    metadata = store.ledger_metadata(ledger_id)
    closed = metadata.state == CLOSED
    arguments: dict[str, object] = {
        "ledger": ledger_id,
        "digest": DIGESTS[str(metadata.digest_type)],
        "password": metadata.password,
    }
    state = store.storage.state(ledger_id)
    there = NO_ENTRY if state is None else state.unbroken
    arguments["last"] = metadata.last_entry_id if closed else there
    custom = sorted(metadata.custom_metadata.items())
    with store.open_ledger(ledger_id, recovery=False, password=metadata.password) as reader:
        entries = Sum()
        for entry_id in range(int(str(arguments["last"])) + 1):
            entries.add(ledger_id, entry_id, reader.read_unconfirmed(entry_id, entry_id)[0].data)
        known = state is not None and state.heard_of
        expected = {
            # Who builds the index anew fences all ledgers that it finds, for it may have known of others that were.
            "fenced": "true" if known else "unknown",
            "master_key": master_key(metadata.password).hex() if known else "unknown",
            "state": metadata.state,
            "ensembles": f"{{0=[{BOOKIE}]}}",
            "quorums": "1/1/1",
            "custom": _joined(f"{key.encode().hex()}:{value.hex()}" for key, value in custom),
            "lac": str(reader.last_add_confirmed),
            "length": str(reader.length),
            "entries": str(entries),
        }
    if not closed and b"pulsar" not in metadata.custom_metadata.values():
        arguments["recover"] = 1
        with store.open_ledger(ledger_id, recovery=True, password=metadata.password) as reader:
            expected["recovered"] = f"{reader.last_add_confirmed}:{reader.length}"
    return Question(f"{about}, ledger {ledger_id}", request("ledger", **arguments), expected)


def _topic(store: Store, about: str, name: str) -> Iterator[Question]:
    managed = node_of(name).removeprefix(f"{ROOT}/")
    topic = store.managed_ledger(name, create=False)
    entries = Sum()
    for entry in topic.entries(Position(-1, -1)):
        entries.add(*entry.position, entry.data)
    cursors = sorted(topic.cursor_names())
    terminated = topic.terminated
    expected = {
        "entries": str(entries),
        "next": "last" if terminated is None else "none",
        "terminated": "none" if terminated is None else _place(terminated),
        "cursors": _joined(sorted(quote_plus(cursor).encode().hex() for cursor in cursors)),
    }
    yield Question(f"{about}, topic {name}", request("topic", name=managed), expected)
    # The next entry is there by now.
    more = 1 if terminated is None else 0
    for cursor in cursors:
        yield _cursor(topic, about, managed, cursor, more)
    topic.close()


def _cursor(topic: ManagedLedger, about: str, managed: str, name: str, more: int) -> Question:
    with Cursor.open(topic, name, create=False) as cursor:
        batches = cursor.partial_batches()
        sets = {place: sum(1 << index for index in indexes) for place, indexes in batches.items()}
        expected = {
            "backlog": str(cursor.backlog + more),
            "ranges": _joined(f"{_place(one.lower)}..{_place(one.upper)}" for one in cursor.acked_ranges()),
            "sets": _joined(f"{_place(place)}={bits:x}" for place, bits in sets.items()),
            "properties": _as_java_shows(cursor.properties),
            "cursor_properties": _as_java_shows(cursor.cursor_properties),
        }
    arguments = {
        "topic": managed,
        "name": quote_plus(name).encode(),
        "batches": _joined(map(_place, batches)),
    }
    return Question(f"{about}, cursor {name} of {managed}", request("cursor", **arguments), expected)


def _place(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"


GROUPS: dict[str, Callable[[random.Random], Iterator[Question]]] = {
    "exported logs, as the original scans them": logs,
    "a store, exported to a bookie": everything_of_a_store,
    "some topics, exported to a bookie": some_topics,
    "recorded disks, imported and exported to a bookie": recorded_disks,
    "an export that was moved": moved,
}
