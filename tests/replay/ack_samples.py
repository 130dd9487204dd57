"""Acknowledgments as stored. Compared are the mark-delete position, the ranges that a cursor gets back from the bytes,
their number, the batch sets behind the mark-delete position and the properties; and what is written of the state,
in the same form, with what was recorded, both read by protobuf: not compared are the order of bit sets and properties,
which is that of a hash map, and zero words at the end. Recorded bytes may have one range more than the limit of that
time; they are read with it.

Records. Compared are all fields of the records of topics and cursors, whether the original could read its own bytes or
not; counts that are absent are 0. A plain record is written again to the same bytes, and a compressed one to a record
that says the same.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

from bookstand.cursor.format import position_info
from bookstand.cursor.state.ranges import RangeSet
from bookstand.errors import MalformedError
from bookstand.managed_ledger import records
from bookstand.proto import ml_data_formats_pb2
from tests.replay.outcome import Outcome

FORMS: dict[str, position_info.Form] = {"ranges": "ranges", "long_array": "long_arrays"}

Words = list[str]


# -- snapshots -------------------------------------------------------------------------------------------------------


def compare_snapshots(name: str, lines: list[dict[str, Any]]) -> Iterator[Outcome]:
    for number, sample in enumerate(lines):
        yield _outcome(f"{name}:{sample.get('index', number)}", _snapshot_differences(sample))


def _snapshot_differences(sample: dict[str, Any]) -> Iterator[str]:
    data, truth = base64.b64decode(sample["b64"]), sample["truth"]
    try:
        state = position_info.read(data).state
    except MalformedError as error:
        yield f"refused: {error}"
        return
    yield from _unequal("mark_delete", list(state.mark_delete), truth["mark_delete"])
    ranges = [[*one.lower, *one.upper] for one in RangeSet(state.acked)]
    yield from _unequal("ranges", ranges, sample.get("recovered", sample.get("held", truth["ranges"])))
    yield from _unequal("n_recovered", len(ranges), sample["n_recovered"])
    batches = {(ledger, entry): words for ledger, entry, words in truth["batch"]}
    behind = {place: _bits(words) for place, words in batches.items() if place > tuple(truth["mark_delete"])}
    yield from _unequal("batch", {tuple(place): bits for place, bits in state.batches.items()}, behind)
    yield from _unequal("properties", state.properties, dict(truth["properties"]))
    again = position_info.write(state, FORMS[sample["form"]]).data
    yield from _unequal("written again", _meaning(again), _meaning(data))


def _bits(words: Words) -> int:
    return sum(int(word, 16) << 64 * place for place, word in enumerate(words))


def _meaning(data: bytes) -> dict[str, Any]:
    info = ml_data_formats_pb2.PositionInfo.FromString(data)
    return {
        "mark_delete": (info.ledgerId, info.entryId),
        "ranges": [one.SerializeToString() for one in info.individualDeletedMessages],
        "properties": {one.name: one.value for one in info.properties},
        "batch": sorted(one.SerializeToString() for one in info.batchedEntryDeletionIndexInfo),
        "long_arrays": {one.key: _without_zeros(one.values) for one in info.individualDeletedMessageRanges},
    }


def _without_zeros(words: Iterable[int]) -> list[int]:
    kept = list(words)
    while kept and not kept[-1]:
        kept.pop()
    return kept


# -- records ---------------------------------------------------------------------------------------------------------


def compare_records(name: str, lines: list[dict[str, Any]]) -> Iterator[Outcome]:
    for number, sample in enumerate(lines):
        compare = {"ManagedLedgerInfo": _ledger_differences, "ManagedCursorInfo": _cursor_differences}
        label = f"{name}:{sample.get('index', number)}"
        try:
            found = list(compare[sample["record"]](sample, base64.b64decode(sample["b64"])))
        except MalformedError as error:
            found = [f"refused: {error}"]
        yield _outcome(label, found)


def _ledger_differences(sample: dict[str, Any], data: bytes) -> Iterator[str]:
    info, truth = records.decode_ledger_info(data), sample["truth"]
    ledgers = [(one.ledger_id, one.entries, one.size, one.timestamp) for one in info.ledgers]
    recorded = [
        tuple(one.get(key, 0) for key in ("ledger", "entries", "size", "timestamp")) for one in truth["ledgers"]
    ]
    yield from _unequal("ledgers", ledgers, recorded)
    yield from _unequal("properties", [list(one) for one in info.properties], truth["properties"])
    terminated = None if info.terminated is None else list(info.terminated)
    yield from _unequal("terminated", terminated, truth.get("terminated"))
    again = records.encode_ledger_info(info, sample["codec"], 0)
    if sample["codec"] == "NONE":
        yield from _unequal("written again", again, data)
    yield from _unequal("read again", records.decode_ledger_info(again), info)


def _cursor_differences(sample: dict[str, Any], data: bytes) -> Iterator[str]:
    info, truth = records.decode_cursor_info(data), sample["truth"]
    said = {
        "cursors_ledger": info.cursor_ledger_id,
        "mark_delete": None if info.mark_delete is None else list(info.mark_delete),
        "ranges": [list(one) for one in info.ranges],
        "properties": [list(one) for one in info.properties],
        "last_active": info.last_active,
        "batch": [[ledger, entry, bits] for ledger, entry, bits in info.batches],
        "cursor_properties": [list(one) for one in info.cursor_properties],
    }
    recorded = {**truth, "batch": [[ledger, entry, _bits(words)] for ledger, entry, words in truth["batch"]]}
    for key in sorted(said.keys() | recorded.keys()):
        yield from _unequal(key, said.get(key), recorded.get(key))
    again = records.encode_cursor_info(info, sample["codec"], 0)
    if sample["codec"] == "NONE":
        yield from _unequal("written again", again, data)
    yield from _unequal("read again", records.decode_cursor_info(again), info)


# -- shared ----------------------------------------------------------------------------------------------------------


def _outcome(name: str, differences: Iterable[str]) -> Outcome:
    found = list(differences)
    return Outcome(name, "different", "; ".join(found)) if found else Outcome(name, "equal", "")


def _unequal(what: str, ours: object, recorded: object) -> Iterator[str]:
    if ours != recorded:
        yield f"{what}: {str(ours)[:200]}, recorded {str(recorded)[:200]}"
