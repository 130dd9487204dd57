"""Cursors. Compared are the mark-delete position by what comes next, the entries that are acknowledged behind it,
batches acknowledged in part, properties, cursor properties, and the backlog, with what the original recovered from a
copy of the disks, plus the batch sets that the cursor's node holds and Pulsar 4.2.4 forgets. The cursor of the
deduplication may have moved on while the topic was loaded: then its properties have to be those that the messages up to
there give. Where recovery may have closed the cursor's ledger at several places, any state there will do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from pyroaring import BitMap64

from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.disk.disks import Disks
from bookstand.disk.topics.cursors import DiskCursor, cursor
from bookstand.storage.format.position import Position
from tests.replay.disk_compare import differs, judged
from tests.replay.disk_ends import CLOSED, Ends, TopicUpTo, bounds
from tests.replay.disk_recordings import Recording
from tests.replay.outcome import Outcome

DEDUPLICATION = "pulsar.dedup"
WORD = 64
MOST_ENDS = 64

Line = dict[str, Any]


class Acks(NamedTuple):
    """What two states are compared by."""

    next: Position
    acked: dict[int, list[int]]
    batches: dict[tuple[int, int], int]


def replay(recording: Recording, disks: Disks, topics: dict[str, TopicUpTo], ends: Ends) -> Iterator[Outcome]:
    for key, after, live in lines_of(recording):
        label = f"{recording.name}/cursors/{key[0]}/{key[1]}"
        yield judged(label, _cursor, recording, disks, topics.get(key[0]), key[1], after, live, ends)


def lines_of(recording: Recording) -> Iterator[tuple[tuple[str, str], Line | None, Line | None]]:
    """Topics and subscriptions; what was recovered of each, and what was in memory before."""
    live = {_key(line): line for line in recording.truth("cursors-live")}
    after = {_key(line): line for line in recording.truth("cursors")}
    for key in dict.fromkeys((*after, *live)):
        # Of a killed broker's memory nobody says what of it had reached the disks.
        if key in after or not recording.was_killed:
            yield key, after.get(key), live.get(key)


def _key(line: Line) -> tuple[str, str]:
    return line["topic"], line["subscription"]


def _cursor(
    recording: Recording,
    disks: Disks,
    topic: TopicUpTo | None,
    name: str,
    after: Line | None,
    live: Line | None,
    ends: Ends,
) -> Iterator[str]:
    if topic is None or name not in topic.cursors():
        yield "there is no such cursor"
        return
    best: list[str] = []
    for candidate in _candidates(disks, topic, name, ends):
        found = list(differences(recording, candidate, after, live))
        if not found:
            return
        best = best or found
    yield from best


def _candidates(disks: Disks, topic: TopicUpTo, name: str, ends: Ends) -> Iterator[DiskCursor]:
    """The cursor as it is on the disks, and as it would be had recovery closed its ledger earlier."""
    ours = cursor(topic, name)
    yield ours
    for end in may_end_elsewhere(disks, ours, ends):
        yield cursor(TopicUpTo(topic, ends, {ours.ledger_id: end}), name)


def may_end_elsewhere(disks: Disks, ours: DiskCursor, ends: Ends) -> list[int]:
    """Where else recovery may have closed the cursor's ledger, if nothing says where it did."""
    ledger = ours.topic.ledger(ours.ledger_id)
    if ledger is None or ledger.metadata is None or ledger.metadata.state == CLOSED or ends.of(ledger.id) is not None:
        return []
    lowest, highest = bounds(disks, ledger.id, ledger.metadata.ack_quorum_size)
    return list(islice(range(highest - 1, lowest - 1, -1), MOST_ENDS))


def differences(recording: Recording, ours: DiskCursor, after: Line | None, live: Line | None) -> Iterator[str]:
    line = after or live
    assert line is not None
    topic = ours.topic
    expected, found = acks_of_line(topic, line), acks_of_state(topic, ours.state)
    properties, backlog = dict(ours.state.properties), ours.backlog
    if ours.name == DEDUPLICATION and expected.next > found.next:
        # The broker has replayed the topic up to there.
        moved = _replayed(ours, expected.next)
        found = Acks(expected.next, {}, {}) if not found.acked else found
        backlog -= len(list(_positions_between(topic, ours.next, expected.next)))
        properties = moved
    yield from _compared(expected, found, _forgotten(ours, expected))
    if properties != line["properties"]:
        yield differs("properties", line["properties"], properties)
    if backlog != line["backlog"]:
        yield differs("backlog", line["backlog"], backlog)
    # What the broker does with them when it loads the topic does not reach the disks that were copied.
    strings = (live or line)["cursor_properties"]
    if ours.cursor_properties != strings:
        yield differs("cursor properties", strings, ours.cursor_properties)
    if live is not None and not recording.was_killed:
        in_memory = acks_of_line(topic, live)
        if in_memory.acked != found.acked:
            yield differs("acknowledged before the stop", in_memory.acked, found.acked)
        for at, bits in found.batches.items():
            if in_memory.batches.get(at) != bits:
                yield differs(f"batch {at} before the stop", in_memory.batches.get(at), bits)


def _compared(expected: Acks, found: Acks, forgotten: dict[tuple[int, int], int]) -> Iterator[str]:
    if found.next != expected.next:
        yield differs("next entry", expected.next, found.next)
    if found.acked != expected.acked:
        yield differs("acknowledged", expected.acked, found.acked)
    batches = {**forgotten, **expected.batches}
    if found.batches != batches:
        yield differs("batches", batches, found.batches)


def _forgotten(ours: DiskCursor, expected: Acks) -> dict[tuple[int, int], int]:
    """Sets in the cursor's node, if that holds the state."""
    if ours.info.cursor_ledger_id >= 0:
        return {}
    sets = {(ledger_id, entry_id): bits for ledger_id, entry_id, bits in ours.info.batches}
    return {at: bits for at, bits in sets.items() if at >= expected.next and at[1] not in expected.acked.get(at[0], ())}


# -- states ----------------------------------------------------------------------------------------------------------


def acks_of_line(topic: TopicUpTo, line: Line) -> Acks:
    first = topic.behind(Position(*line["mark_delete"]))
    acked: dict[int, set[int]] = {}
    counts = topic.entry_counts
    for lower_ledger, lower, upper_ledger, upper in line["individually_deleted"]:
        for ledger_id, count in counts.items():
            if lower_ledger <= ledger_id <= upper_ledger:
                start = lower + 1 if ledger_id == lower_ledger else 0
                stop = upper + 1 if ledger_id == upper_ledger else count
                acked.setdefault(ledger_id, set()).update(range(start, stop))
    batches = {
        (ledger_id, entry_id): sum((word % (1 << WORD)) << (WORD * place) for place, word in enumerate(words))
        for ledger_id, entry_id, words in line["batch_deleted"]
    }
    return _trimmed(first, acked, batches)


def acks_of_state(topic: TopicUpTo, state: AckSnapshot) -> Acks:
    acked = {ledger_id: set(found) for ledger_id, found in state.acked.items()}
    batches = {tuple(at): bits for at, bits in state.batches.items()}
    return _trimmed(topic.behind(state.mark_delete), acked, batches)  # type: ignore[arg-type]


def _trimmed(first: Position, acked: dict[int, set[int]], batches: dict[tuple[int, int], int]) -> Acks:
    """What lies before the next entry says nothing any more, nor do sets of what is acknowledged as a whole."""
    kept = {
        ledger_id: sorted(entry_id for entry_id in acked[ledger_id] if (ledger_id, entry_id) >= first)
        for ledger_id in sorted(acked)
    }
    kept = {ledger_id: ids for ledger_id, ids in kept.items() if ids}
    whole = {ledger_id: BitMap64(ids) for ledger_id, ids in kept.items()}
    left = {
        at: bits for at, bits in sorted(batches.items()) if at >= first and at[1] not in whole.get(at[0], BitMap64())
    }
    return Acks(first, kept, left)


def _positions_between(topic: TopicUpTo, first: Position, end: Position) -> Iterator[Position]:
    for entry in topic.entries(first):
        if (entry.ledger_id, entry.entry_id) >= end:
            return
        yield Position(entry.ledger_id, entry.entry_id)


def _replayed(ours: DiskCursor, end: Position) -> dict[str, int]:
    """The highest sequence ids of the producers, after the messages up to a position."""
    found = dict(ours.state.properties)
    for message in ours.topic.messages(ours.next):
        if message.position >= end:
            break
        metadata = message.metadata
        if metadata is not None:
            last = metadata.sequence_id if metadata.highest_sequence_id is None else metadata.highest_sequence_id
            found[metadata.producer_name] = max(found.get(metadata.producer_name, last), last)
    return found
