"""What Pulsar's managed ledger is asked: records of topics and cursors of ours, and the answers they have to get.

``recovered`` has the original open a whole topic of ours, and asks its cursor what it has acknowledged; the other
requests are about one record each.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import position_info
from bookstand.cursor.format.record import MARKER_NAME
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.message.compression import NUMBERS
from bookstand.managed_ledger.records import (
    CursorInfo,
    LedgerInfo,
    ManagedLedgerInfo,
    encode_cursor_info,
    encode_ledger_info,
)
from bookstand.storage.format.position import Position
from tests.interop.java import request
from tests.interop.questions import Question

WORD = 64
LARGEST = (1 << 63) - 1
CODECS = (None, *NUMBERS)
NAMES = ("", "a", "marker", 'üml "k"\n\t\\', "日本", "🐟", "#pulsar.internal.x", "\x00\x7f", "n" * 300)
NUMBERS_AT_THE_EDGE = (0, 1, -1, 127, 128, 1 << 31, LARGEST, -LARGEST - 1)


# -- the Java side's words -------------------------------------------------------------------------------------------


def _joined(words: Iterable[str]) -> str:
    return ",".join(words)


def _position(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"


def _range(ledger: int, lower: int, upper_ledger: int, upper: int) -> str:
    return f"{ledger}:{lower}~{upper_ledger}:{upper}"


def _runs(entries: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Runs of entries as they are told: the last one before the first, and the last."""
    ordered = sorted(entries)
    if not ordered:
        return
    breaks = [(one, other) for one, other in pairwise(ordered) if other != one + 1]
    firsts = [ordered[0], *(other for _, other in breaks)]
    lasts = [*(one for one, _ in breaks), ordered[-1]]
    yield from ((first - 1, last) for first, last in zip(firsts, lasts, strict=True))


def _ranges(acked: Mapping[int, Iterable[int]]) -> str:
    return _joined(
        _range(ledger, lower, ledger, upper) for ledger in sorted(acked) for lower, upper in _runs(acked[ledger])
    )


def _words(bits: int) -> str:
    return ".".join(f"{bits >> at & (1 << WORD) - 1:x}" for at in range(0, bits.bit_length(), WORD))


def _longs(acked: Mapping[int, Iterable[int]]) -> str:
    return _joined(f"{ledger}/{_words(sum(1 << entry for entry in acked[ledger]))}" for ledger in sorted(acked))


def _batches(batches: Mapping[Position, int]) -> str:
    return _joined(f"{_position(place)}/{_words(bits)}" for place, bits in sorted(batches.items()))


def _text(value: str) -> str:
    return value.encode().hex()


def _long_properties(properties: Iterable[tuple[str, int]]) -> str:
    return _joined(f"{_text(name)}={value}" for name, value in properties)


def _string_properties(properties: Iterable[tuple[str, str]], between: str = ",") -> str:
    return between.join(f"{_text(name)}={_text(value)}" for name, value in properties)


# -- snapshots -------------------------------------------------------------------------------------------------------


def _some_entries(rng: random.Random, first: int, last: int) -> set[int]:
    """Scattered, in runs, or next to the edges of words."""
    kind = rng.randrange(4)
    if kind == 0:
        return set(rng.sample(range(first, last + 1), min(rng.randint(1, 40), last + 1 - first)))
    if kind == 1:
        found: set[int] = set()
        for _ in range(rng.randint(1, 5)):
            start = rng.randint(first, last)
            found.update(range(start, min(last, start + rng.randint(0, 300)) + 1))
        return found
    if kind == 2:
        return {entry for at in range(0, last, WORD) for entry in (at - 1, at, at + 1) if first <= entry <= last}
    return set(range(first, min(last, first + 300) + 1, rng.randint(1, 3)))


def _some_bits(rng: random.Random) -> int:
    size = rng.choice((1, 2, 10, 63, 64, 65, 128, 200))
    return rng.choice((1, 1 << size - 1, (1 << size) - 1, rng.getrandbits(size) or 1))


def _some_long_properties(rng: random.Random) -> dict[str, int]:
    return {
        name: rng.choice((*NUMBERS_AT_THE_EDGE, rng.getrandbits(40)))
        for name in rng.sample(NAMES, rng.choice((0, 0, 1, 3, len(NAMES))))
    }


def _some_string_properties(rng: random.Random) -> tuple[tuple[str, str], ...]:
    return tuple((name, rng.choice(NAMES)) for name in rng.sample(NAMES, rng.choice((0, 1, len(NAMES)))))


def _some_state(rng: random.Random) -> AckSnapshot:
    ledgers = sorted({rng.getrandbits(rng.choice((4, 20, 62))) for _ in range(rng.choice((0, 1, 2, 9)))})
    mark_delete = Position(ledgers[0] if ledgers else 7, rng.choice((-1, 0, 63, 64, 500)))
    acked = {}
    for ledger in ledgers:
        first = mark_delete.entry_id + 2 if ledger == mark_delete.ledger_id else 0
        entries = _some_entries(rng, first, first + rng.choice((0, 63, 64, 500, 2000)))
        if entries:
            acked[ledger] = BitMap64(entries)
    batches = {
        Position(ledger, mark_delete.entry_id + 1 + rng.randrange(2000)): _some_bits(rng)
        for ledger in ledgers
        for _ in range(rng.choice((0, 0, 1, 7)))
    }
    return AckSnapshot(mark_delete, acked, batches, _some_long_properties(rng))


def _extreme_states() -> Iterator[AckSnapshot]:
    nothing: dict[Position, int] = {}
    yield AckSnapshot(Position(-1, -1), {}, nothing, {})
    yield AckSnapshot(Position(LARGEST, LARGEST), {}, nothing, {})
    yield AckSnapshot(Position(0, -1), {0: BitMap64([1])}, {Position(0, 0): (1 << 4096) - 1}, {"": -1})
    yield AckSnapshot(Position(3, -1), {LARGEST: BitMap64([0])}, {Position(LARGEST, LARGEST): 1}, {})
    # One word for each 64 entries, however few there are.
    yield AckSnapshot(Position(3, 0), {3: BitMap64([2, 300_000])}, nothing, {})
    yield AckSnapshot(Position(3, 0), {3: BitMap64(range(2, 20_000, 2))}, nothing, {})
    yield AckSnapshot(Position(3, 0), {ledger: BitMap64([ledger % 70 + 2]) for ledger in range(3, 1000)}, nothing, {})


def snapshots(rng: random.Random) -> Iterator[Question]:
    states = [*_extreme_states(), *(_some_state(rng) for _ in range(250))]
    for number, state in enumerate(states):
        acked = {ledger: set(bitmap) for ledger, bitmap in state.acked.items()}
        forms: tuple[position_info.Form, ...] = ("ranges", "long_arrays")
        for form in forms:
            data = position_info.write(state, form).data
            expected = {
                "mark_delete": _position(state.mark_delete),
                "ranges": _ranges(acked) if form == "ranges" else "",
                "longs": _longs(acked) if form == "long_arrays" else "",
                "batches": _batches(state.batches),
                "properties": _long_properties(state.properties.items()),
                "acked": _ranges(acked),
                "again": data.hex(),
            }
            yield Question(f"snapshot {number}, {form}", request("position_info", bytes=data, acked=1), expected)
    # Entries that no set of the original's can hold: it reads what stands there all the same.
    far = AckSnapshot(Position(3, 0), {3: BitMap64([1 << 31, LARGEST])}, {}, {})
    expected = {"ranges": _ranges({3: far.acked[3]}), "longs": ""}
    yield Question("snapshot of far entries", request("position_info", bytes=position_info.write(far).data), expected)


# -- records ---------------------------------------------------------------------------------------------------------


def _some_cursor_info(rng: random.Random) -> CursorInfo:
    state = _some_state(rng)
    inline = rng.random() < 0.7
    return CursorInfo(
        -1 if inline else rng.getrandbits(rng.choice((4, 63))),
        None if rng.random() < 0.05 else state.mark_delete,
        tuple(
            (ledger, lower, ledger, upper) for ledger, bitmap in state.acked.items() for lower, upper in _runs(bitmap)
        )
        if inline
        else (),
        tuple(state.properties.items()),
        rng.choice((None, 0, 1_700_000_000_000)),
        tuple((*place, bits) for place, bits in sorted(state.batches.items())) if inline else (),
        _some_string_properties(rng),
    )


def cursor_records(rng: random.Random) -> Iterator[Question]:
    for number in range(100):
        info = _some_cursor_info(rng)
        plain = encode_cursor_info(info)
        for codec in CODECS:
            data = encode_cursor_info(info, codec, threshold=0)
            expected = {
                "cursor_ledger": str(info.cursor_ledger_id),
                "mark_delete": "none" if info.mark_delete is None else _position(info.mark_delete),
                "ranges": _joined(_range(*one) for one in info.ranges),
                "batches": _batches({Position(ledger, entry): bits for ledger, entry, bits in info.batches}),
                "properties": _long_properties(info.properties),
                "last_active": "none" if info.last_active is None else str(info.last_active),
                "cursor_properties": _string_properties(info.cursor_properties),
                "again": plain.hex(),
                # In a compressed record the original looks for strings when the bytes are gone.
                "whole": str(data == plain or not (info.properties or info.cursor_properties)).lower(),
            }
            yield Question(f"cursor record {number}, {codec}", request("cursor_info", bytes=data), expected)


def _some_ledger_info(rng: random.Random, ledger_id: int) -> LedgerInfo:
    written = rng.random() < 0.8
    return LedgerInfo(
        ledger_id,
        rng.getrandbits(rng.choice((3, 31, 62))) + 1 if written else 0,
        rng.getrandbits(rng.choice((8, 40, 62))) + 1 if written else 0,
        rng.choice((0, 1_700_000_000_000)),
        # OffloadContext: a unique id, and that it is complete.
        bytes.fromhex("08071009 1801".replace(" ", "")) if rng.random() < 0.2 else None,
        _some_string_properties(rng) if rng.random() < 0.3 else (),
    )


def _ledger(info: LedgerInfo) -> str:
    known = bool(info.entries or info.size)
    return "/".join(
        (
            str(info.ledger_id),
            str(info.entries) if known else "none",
            str(info.size) if known else "none",
            str(info.timestamp),
            "none" if info.offload is None else info.offload.hex(),
            _string_properties(info.properties, ";"),
        )
    )


def topic_records(rng: random.Random) -> Iterator[Question]:
    for number in range(60):
        ids = sorted({rng.getrandbits(rng.choice((8, 63))) for _ in range(rng.choice((0, 1, 3, 40)))})
        info = ManagedLedgerInfo(
            [_some_ledger_info(rng, ledger_id) for ledger_id in ids],
            Position(ids[-1], rng.randint(-1, 1 << 40)) if ids and rng.random() < 0.3 else None,
            _some_string_properties(rng),
        )
        plain = encode_ledger_info(info)
        for codec in CODECS:
            data = encode_ledger_info(info, codec, threshold=0)
            expected = {
                "ledgers": _joined(map(_ledger, info.ledgers)),
                "terminated": "none" if info.terminated is None else _position(info.terminated),
                "properties": _string_properties(info.properties),
                "again": plain.hex(),
            }
            yield Question(f"topic record {number}, {codec}", request("ledger_info", bytes=data), expected)


# -- whole cursors ---------------------------------------------------------------------------------------------------

COMPRESSED = b"\x47\x78"
"""How a compressed record begins. One that has strings it has to look at is not read by the original, be it its own."""

PER_LEDGER = 40
LEDGERS = 6


def recovered_cursors(rng: random.Random) -> Iterator[Question]:
    yield from _cursors(rng, 160, paged=False)


def cursors_in_pages(rng: random.Random) -> Iterator[Question]:
    """What an old reader finds in the newest marker, or in the page of a flush that was not finished: a position to go
    on from, behind which everything is delivered again."""
    yield from _cursors(rng, 60, paged=True)


def _cursors(rng: random.Random, count: int, paged: bool) -> Iterator[Question]:
    with tempfile.TemporaryDirectory() as folder, bookstand.open(Path(folder) / "store", durability="none") as store:
        for number in range(count):
            yield _one_cursor(rng, store, number, paged)


def _one_cursor(rng: random.Random, store: Any, number: int, paged: bool) -> Question:
    codec = rng.choice(CODECS)
    name = f"persistent://public/default/t-{paged}-{number}"
    topic = store.managed_ledger(name, max_entries_per_ledger=PER_LEDGER, info_compression=rng.choice(CODECS))
    entries = topic.append_entries([b"."] * rng.randint(1, PER_LEDGER * LEDGERS))
    config = CursorConfig(
        enable_lru_cache_max_unacked_ranges=paged,
        persist_as_long_array=rng.random() < 0.5,
        compression=codec,
        compression_threshold=0,
        flush_interval=1e9,
    )
    properties = {
        name: value for name, value in _some_string_properties(rng) if not name.startswith("#pulsar.internal.")
    }
    cursor = Cursor.open(topic, f"sub {number}", config, cursor_properties=properties)
    for _ in range(rng.randint(1, 6)):
        _acknowledge(rng, cursor, entries)
        if rng.random() < 0.5:
            cursor.flush()
    cursor.flush()
    truth = {
        "mark_delete": cursor.mark_delete_position,
        "acked": cursor.acked_ranges(),
        "batches": cursor.partial_batches(),
        "properties": cursor.properties,
        "backlog": cursor.backlog,
    }
    at_close = rng.random() < 0.5
    if at_close:
        cursor.close()
    question = _question(rng, f"cursor {number}", topic, cursor, truth, properties, paged)
    if not at_close:
        cursor.close()
    topic.close()
    return question


def _acknowledge(rng: random.Random, cursor: Cursor, entries: list[Position]) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        cursor.ack(rng.sample(entries, rng.randint(1, len(entries))))
    elif kind == 1:
        size = rng.choice((2, 10, 64, 65, 130))
        for position in rng.sample(entries, min(len(entries), 5)):
            if not cursor.is_acked(position):
                cursor.ack_batch(position, rng.sample(range(size), rng.randint(1, size - 1)), size)
    elif kind == 2:
        position = entries[rng.randrange(len(entries)) // 3]
        if position > cursor.mark_delete_position:
            cursor.mark_delete(position, _some_long_properties(rng))
    else:
        start = rng.randrange(len(entries))
        cursor.ack(entries[start : start + rng.randint(1, 100)])


def _question(
    rng: random.Random,
    name: str,
    topic: ManagedLedger,
    cursor: Cursor,
    truth: Mapping[str, Any],
    properties: Mapping[str, str],
    paged: bool,
) -> Question:
    record, _ = cursor._log._nodes.get(cursor._log.path)
    topic_record, _ = topic._nodes.get(topic.path)
    info = cursor._log.info
    assert info is not None
    last = topic.ledgers[-1]
    arguments: dict[str, object] = {
        "topic_node": topic.path,
        "cursor_node": cursor._log.path,
        "topic": topic_record,
        "cursor": record,
        "last_ledger": f"{last.ledger_id}:{last.entries}",
        "set": rng.choice(("open", "tree")),
    }
    in_ledger = info.cursor_ledger_id >= 0
    if in_ledger:
        found = cursor._log.entries_of(info.cursor_ledger_id, recovery=False)
        stored = [found.read(entry_id) for entry_id in range(found.last + 1)]
        arguments |= {
            "cursor_ledger": info.cursor_ledger_id,
            "entries": ",".join(entry.hex() for entry in stored),
        }
    batches = {place: sum(1 << index for index in indexes) for place, indexes in truth["batches"].items()}
    expected = {
        "mark_delete": _position(truth["mark_delete"]),
        "acked": _joined(_range(*one.lower, *one.upper) for one in truth["acked"]),
        # Of what stands in a record the original passes the sets of batches over.
        "batches": _batches(batches) if in_ledger else "",
        "properties": _long_properties(_in_java_order(truth["properties"])),
        "cursor_properties": _string_properties(_in_java_order(properties)),
        "backlog": str(truth["backlog"]),
        "last_confirmed": _position(topic.last_confirmed),
    }
    where = "ledger" if in_ledger else "record"
    line = request("recovered", **arguments)
    if record.startswith(COMPRESSED) and (info.cursor_properties or (info.properties and not in_ledger)):
        return Question(f"{name} (compressed {where})", line, {}, "strings in a compressed record")
    if paged and in_ledger:
        behind = [place for ledger in topic.ledgers for place in _places(ledger) if place > truth["mark_delete"]]
        properties_and_name = _in_java_order({**truth["properties"], MARKER_NAME: 1})
        expected |= {
            "acked": "",
            "batches": "",
            "backlog": str(len(behind)),
            "properties": _long_properties(properties_and_name),
        }
    return Question(f"{name} ({where})", line, expected)


def _in_java_order(properties: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(properties.items(), key=lambda pair: pair[0].encode("utf-16-be"))


def _places(ledger: LedgerInfo) -> Iterator[Position]:
    return (Position(ledger.ledger_id, entry_id) for entry_id in range(ledger.entries))


GROUPS: dict[str, Callable[[random.Random], Iterator[Question]]] = {
    "snapshots of cursors": snapshots,
    "records of cursors": cursor_records,
    "records of topics": topic_records,
    "cursors as the original recovers them": recovered_cursors,
    "cursors in pages, for an old reader": cursors_in_pages,
}
