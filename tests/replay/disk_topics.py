"""Topics. Compared are the record (ledgers with entries, size and time, last position of a terminated topic,
properties), the names of the cursors, and the numbers of entries and messages. Of each entry: position, length, the
broker's metadata, checksum, every field of the message's metadata, stored payload, and after unpacking each message
with the metadata that it has in a batch. Of what producers had been told: that the message is there, and its
payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bookstand.disk.disks import Disks
from bookstand.disk.topics.cursors import cursors
from bookstand.disk.topics.messages import DiskMessage
from bookstand.disk.topics.topics import DiskTopic, topics
from bookstand.managed_ledger.message.compression import NAMES
from bookstand.managed_ledger.topic_name import cursor_of
from bookstand.storage.format.position import Position
from tests.replay.disk_compare import base64_of, differs, fields, judged, sha256
from tests.replay.disk_ends import Ends, TopicUpTo
from tests.replay.disk_recordings import Recording
from tests.replay.outcome import Outcome

OF_BATCHED = ("partition_key", "sequence_id", "event_time", "null_value", "properties")

Line = dict[str, Any]
Read = Mapping[Any, DiskMessage]
"""The messages of a topic by their positions."""


def topics_of(disks: Disks, ends: Ends) -> dict[str, TopicUpTo]:
    return {topic.name: TopicUpTo(topic, ends) for topic in topics(disks)}


def replay(recording: Recording, found: dict[str, TopicUpTo]) -> Iterator[Outcome]:
    name = recording.name
    records = {line["topic"]: line for line in recording.truth("topics")}
    messages = by_topic(line for line in recording.truth("messages") if not recording.is_of_restart(line["ledger"]))
    acked = by_topic(line for line in recording.truth("acked") if "topic" in line)
    for topic_name in dict.fromkeys((*records, *messages, *acked)):
        topic = found.get(topic_name)
        read = {} if topic is None else {tuple(message.position): message for message in topic.messages()}
        if topic_name in records:
            yield judged(f"{name}/topics/{topic_name}", topic_differences, recording, topic, records[topic_name], read)
        yield from replay_messages(name, messages.get(topic_name, []), acked.get(topic_name, []), read)


def by_topic(lines: Iterable[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["topic"], []).append(line)
    return found


def replay_messages(name: str, messages: list[Line], acked: list[Line], read: Read) -> Iterator[Outcome]:
    for line in messages:
        position = line["ledger"], line["entry"]
        label = f"{name}/messages/{line['topic']}/{position[0]}:{position[1]}"
        yield judged(label, _message, line, read.get(position))
    for line in acked:
        yield judged(f"{name}/acked/{line['topic']}/{line['id']}", _acked, line, read)


# -- the record ------------------------------------------------------------------------------------------------------


def topic_differences(recording: Recording, topic: DiskTopic | None, line: Line, read: Read) -> Iterator[str]:
    if topic is None:
        yield "there is no such topic"
        return
    later = any(recording.is_of_restart(ledger["ledger_id"]) for ledger in line["ledgers"])
    ledgers = [ledger for ledger in line["ledgers"] if not recording.is_of_restart(ledger["ledger_id"])]
    info = topic.info
    if later:
        gone = set(topic.ledgers()) - {ledger["ledger_id"] for ledger in ledgers}
        yield from _removed_by_restart(topic, gone)
        info = info._replace(ledgers=[ledger for ledger in info.ledgers if ledger.ledger_id not in gone])
        read = {position: message for position, message in read.items() if position[0] not in gone}
    ids = [ledger.ledger_id for ledger in info.ledgers]
    if ids != [ledger["ledger_id"] for ledger in ledgers]:
        yield differs("ledgers", line["ledgers"], ids)
        return
    for truth, ours in zip(ledgers, info.ledgers, strict=True):
        said = {"ledger_id": ours.ledger_id, "entries": ours.entries, "size": ours.size, "timestamp": ours.timestamp}
        expected = {"entries": 0, "size": 0, "timestamp": 0, **truth}
        if later and not ours.entries:
            # The restart counted what recovery left.
            ledger = topic.ledger(ours.ledger_id)
            assert ledger is not None
            last = list(ledger.entries(expected["entries"] - 1)) if expected["entries"] else []
            said["entries"] = ledger.extent.last_entry + 1
            said["size"] = last[-1].cumulative_length if last else 0
            said["timestamp"] = expected["timestamp"]
        yield from (f"ledger {ours.ledger_id}, {what}" for what in fields(expected, said))
    ours_as = {
        "managed_ledger": topic.managed_ledger,
        "terminated_position": None if info.terminated is None else list(info.terminated),
        "properties": dict(info.properties),
        "cursors": sorted(topic.cursors()),
        "entries": len(read),
        "messages": sum(message.count for message in read.values()),
    }
    expected = {name: line.get(name) for name in ours_as}
    expected["cursors"] = sorted(map(cursor_of, line["cursors"]))
    expected["properties"] = line.get("properties", {})
    if later and "index" in expected["properties"]:
        # The index of the last message, which a broker that loads the topic looks up.
        last_index = _last_index(read)
        if last_index is not None:
            ours_as["properties"]["index"] = str(last_index)
    yield from fields(expected, ours_as)


def _removed_by_restart(topic: DiskTopic, ledger_ids: set[int]) -> Iterator[str]:
    """A broker that loads a topic removes ledgers that are empty, and that nobody needs any more."""
    needed = min((cursor.next for cursor in cursors(topic)), default=Position(-1, 0))
    for ledger_id in ledger_ids:
        ledger = topic.ledger(ledger_id)
        if ledger is not None and ledger.extent.last_entry >= 0 and needed.ledger_id <= ledger_id:
            yield f"ledger {ledger_id} has entries, and is not in the truth"


def _last_index(read: Read) -> int | None:
    indexes = [message.broker_metadata.index for message in read.values() if message.broker_metadata is not None]
    return max((index for index in indexes if index is not None), default=None)


# -- entries ---------------------------------------------------------------------------------------------------------


def _message(line: Line, message: DiskMessage | None) -> Iterator[str]:
    if message is None:
        yield "it is not there"
        return
    values = list(message.values())
    broker, payload = message.broker_metadata, message.stored_payload
    ours = {
        "topic": message.topic,
        "ledger": message.ledger_id,
        "entry": message.entry_id,
        "entry_len": len(message.data),
        "has_checksum": message.has_checksum,
        "metadata": None if message.metadata is None else as_truth(message.metadata),
        "payload_len": None if payload is None else len(payload),
        "payload_sha256": None if payload is None else sha256(payload),
        "messages": [_value(value.payload, value.metadata) for value in values],
    }
    if broker is not None:
        ours["broker_entry_metadata"] = as_truth(broker)
    if message.has_checksum:
        ours["checksum"] = message.checksum
    yield from fields({name: value for name, value in line.items() if value is not None}, ours)
    yield from (f"said to be wrong: {what}" for what in message.wrong)


def as_truth(metadata: Any) -> Line:
    """The fields that are set, in the truth's words."""
    found: Line = {}
    for name, value in metadata._asdict().items():
        if value is None or value == () or name == "unknown":
            continue
        if name == "compression":
            found[name] = NAMES.get(value, str(value))
        elif isinstance(value, bytes):
            found[name] = base64_of(value)
        elif isinstance(value, tuple):
            found[name] = [list(one) if isinstance(one, tuple) else one for one in value]
        else:
            found[name] = value
    return found


def _value(payload: bytes, metadata: Any) -> Line:
    found: Line = {"len": len(payload), "sha256": sha256(payload)}
    if metadata is not None:
        said = as_truth(metadata)
        found |= {name: said[name] for name in OF_BATCHED if name in said}
    return found


def _acked(line: Line, read: Read) -> Iterator[str]:
    ledger_id, entry_id, *rest = map(int, line["id"].split(":"))
    message = read.get((ledger_id, entry_id))
    if message is None:
        yield "it is not there"
        return
    values = list(message.values())
    # An id ends in partition, or in partition and place in the batch.
    place = rest[1] if len(rest) > 1 and rest[1] >= 0 else 0
    if place >= len(values) or sha256(values[place].payload) != line["sha256"]:
        yield f"message {place} of {len(values)} is another one"
