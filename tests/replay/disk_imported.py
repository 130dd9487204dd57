"""After an import into a store. Compared are, with the classes of a store: ledgers (metadata, entries, LAC before
recovery; where recovery closes those that were open), deleted ledgers, topics (record, cursors, entries and messages),
entries of topics as above, cursors as above, and how many delayed messages a tracker on buckets finds. In what several
bookies left, recovery here closes ledgers at the end of the gapless run: compared is what there is up to the end that
the original chose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.delivery.topic_config import TopicConfig
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import import_disks
from bookstand.disk.topics.cursors import cursor
from bookstand.disk.topics.delayed import time_of
from bookstand.disk.topics.messages import DiskMessage
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import NoSuchEntryError, NoSuchLedgerError
from bookstand.ledger.handles.reader import LedgerReader
from bookstand.managed_ledger.records import decode_cursor_info, decode_ledger_info
from bookstand.managed_ledger.topic_name import cursor_node_of, cursor_of, node_of
from bookstand.storage.format.ledger_metadata import LedgerMetadata
from bookstand.storage.format.position import Position
from bookstand.store import Store
from bookstand.testing.clock import VirtualClock
from tests.replay import disk_cursors, disk_delayed, disk_topics
from tests.replay.disk_compare import EntryOf, differs, entries, fields, judged
from tests.replay.disk_ends import AFTER_RESTART, CLOSED, Ends, TopicUpTo, bounds
from tests.replay.disk_ledgers import OF_THE_END, metadata_differences
from tests.replay.disk_recordings import Recording
from tests.replay.outcome import Outcome

# Nothing is sealed, merged or trimmed by looking at it.
LOOKED_AT = TopicConfig(delayed_delivery_tracker="bucket", trim_consumed=False)
READ_AT_ONCE = 256

Line = dict[str, Any]


def replay(
    recording: Recording, disks: Disks, topics: dict[str, TopicUpTo], ends: Ends, folder: Path
) -> Iterator[Outcome]:
    """With the names that the same samples have straight on the disks."""
    name = recording.name
    # To the broker's trackers it was as late as it was then.
    with bookstand.open(folder / "store", durability="none", clock=VirtualClock(time_of(disks))) as store:
        import_disks(disks, store)
        deleted = [line for group in recording.truth("deleted") for line in group["ledgers"]]
        unlisted = {line["ledger_id"] for line in deleted}.difference(store.list_ledgers())
        import_disks(disks, store, ledgers=unlisted.intersection(disks.ledger_ids))
        for line in recording.truth("ledgers"):
            if not recording.is_of_restart(line["ledger_id"]):
                yield judged(f"{name}/ledgers/{line['ledger_id']}", _ledger, disks, store, line)
        for line in deleted:
            yield judged(f"{name}/deleted/{line['ledger_id']}", _deleted, store, line)
        yield from _topics(recording, store, topics)
        yield from _cursors(recording, disks, store, topics, ends)
        for line in disk_delayed.lines_of(recording):
            label = f"{name}/delayed/{line['topic']}/{line['subscription']}"
            yield judged(label, _delayed, store, topics.get(line["topic"]), line)
    # Whoever opens a cursor may replace its ledger: where recovery closes ledgers is looked at in another store.
    known = {} if disks.dump is None else disks.dump.ledgers
    with bookstand.open(folder / "recovered", durability="none") as store:
        import_disks(disks, store, ledgers=[ledger_id for ledger_id in known if known[ledger_id].state != CLOSED])
        for stem in AFTER_RESTART:
            for line in recording.truth(stem):
                if ends.of(line["ledger_id"]) is not None and line["state"] == CLOSED:
                    yield judged(f"{name}/{stem}/{line['ledger_id']}", _closed, disks, store, line)
        for line in recording.truth("acked"):
            if "ledger" in line:
                yield judged(f"{name}/acked/{line['ledger']}:{line['entry']}", _acked, store, line)


# -- ledgers ---------------------------------------------------------------------------------------------------------


def _ledger(disks: Disks, store: Store, line: Line) -> Iterator[str]:
    truth = line["metadata"]
    metadata = store.ledger_metadata(line["ledger_id"])
    closed_later = metadata.state != CLOSED == truth["state"]
    yield from metadata_differences(truth, metadata, OF_THE_END if closed_later else ())
    with _reader(store, metadata) as reader:
        if not closed_later and reader.last_add_confirmed != line["lac"]:
            yield differs("lac", line["lac"], reader.last_add_confirmed)
        if metadata.state == CLOSED:
            last = metadata.last_entry_id
        else:
            last = truth["last_entry"] if closed_later else disks.ledger(metadata.ledger_id).extent.highest
        yield from entries(line["entries"], _read(reader, last))


def _deleted(store: Store, line: Line) -> Iterator[str]:
    try:
        metadata = store.ledger_metadata(line["ledger_id"])
    except NoSuchLedgerError:
        if line["entries"] or line.get("still_in_metadata"):
            yield "it is not there"
        return
    last = max((entry["entry"] for entry in line["entries"]), default=-1)
    with _reader(store, metadata) as reader:
        yield from entries(line["entries"], _read(reader, last))


def _reader(store: Store, metadata: LedgerMetadata, recovery: bool = False) -> LedgerReader:
    return store.open_ledger(metadata.ledger_id, recovery=recovery, password=metadata.password)


def _read(reader: LedgerReader, last: int) -> Iterator[EntryOf]:
    """What there is up to an entry."""
    for first in range(0, last + 1, READ_AT_ONCE):
        behind = min(first + READ_AT_ONCE, last + 1)
        try:
            found = reader.read_unconfirmed(first, behind - 1)
        except NoSuchEntryError:
            found = []
            for entry_id in range(first, behind):
                try:
                    found += reader.read_unconfirmed(entry_id, entry_id)
                except NoSuchEntryError:
                    continue
        yield from (EntryOf(entry.entry_id, entry.cumulative_length, entry.data) for entry in found)


def _closed(disks: Disks, store: Store, line: Line) -> Iterator[str]:
    """Where recovery closes it here."""
    metadata = store.ledger_metadata(line["ledger_id"])
    lowest, highest = bounds(disks, metadata.ledger_id, metadata.ack_quorum_size)
    with _reader(store, metadata, recovery=True) as reader:
        if not lowest <= line["last_entry"] <= reader.last_add_confirmed == highest:
            yield differs("end", line["last_entry"], reader.last_add_confirmed)
        if line["last_entry"] >= 0:
            (entry,) = reader.read(line["last_entry"], line["last_entry"])
            if entry.cumulative_length != line["length"]:
                yield differs("length", line["length"], entry.cumulative_length)
        if line["last_entry"] == highest and reader.length != line["length"]:
            yield differs("length", line["length"], reader.length)


def _acked(store: Store, line: Line) -> Iterator[str]:
    with _reader(store, store.ledger_metadata(line["ledger"]), recovery=True) as reader:
        if not reader.read(line["entry"], line["entry"]):
            yield "it is not there"


# -- topics ----------------------------------------------------------------------------------------------------------


def _topics(recording: Recording, store: Store, topics: dict[str, TopicUpTo]) -> Iterator[Outcome]:
    name = recording.name
    messages = disk_topics.by_topic(
        line for line in recording.truth("messages") if not recording.is_of_restart(line["ledger"])
    )
    acked = disk_topics.by_topic(line for line in recording.truth("acked") if "topic" in line)
    records = {line["topic"]: line for line in recording.truth("topics")}
    for topic_name in dict.fromkeys((*records, *messages, *acked)):
        topic = topics.get(topic_name)
        read: dict[Any, DiskMessage] = {}
        # Up to a failure, entries are compared with what has been read.
        found = judged(f"{name}/topics/{topic_name}", _topic, recording, store, topic, records.get(topic_name), read)
        if topic_name in records:
            yield found
        mine = messages.get(topic_name, []), acked.get(topic_name, [])
        yield from disk_topics.replay_messages(name, *mine, read)


class _StoredTopic(TopicUpTo):
    """A topic by the record and the cursors that a store has."""

    def __init__(self, topic: TopicUpTo, record: bytes, cursors: list[str]) -> None:
        super().__init__(DiskTopic(topic.disks, topic.name, decode_ledger_info(record)), topic.ends)
        self._cursors = cursors

    def cursors(self) -> list[str]:
        return self._cursors


def _topic(
    recording: Recording,
    store: Store,
    topic: TopicUpTo | None,
    line: Line | None,
    read: dict[Any, DiskMessage],
) -> Iterator[str]:
    """Reads its messages into ``read``, and compares it if there is a line of truth for it."""
    if topic is None:
        yield "there is no such topic"
        return
    node = node_of(topic.name)
    # As they were imported: a topic that is opened gets a new ledger.
    record, cursors = store.nodes.get(node)[0], [cursor_of(name) for name in store.nodes.children(node)]
    counts = topic.entry_counts
    managed = store.managed_ledger(topic.name, create=False)
    for entry in managed.entries(Position(next(iter(counts), 0), 0)):
        ledger_id, entry_id = entry.position
        if entry_id < counts.get(ledger_id, 0):
            read[ledger_id, entry_id] = DiskMessage(topic.name, entry.position, entry.data, topic.tell)
    if line is not None:
        stored = _StoredTopic(topic, record, cursors)
        yield from disk_topics.topic_differences(recording, stored, line, read)


# -- cursors ---------------------------------------------------------------------------------------------------------


def _cursors(
    recording: Recording, disks: Disks, store: Store, topics: dict[str, TopicUpTo], ends: Ends
) -> Iterator[Outcome]:
    for key, after, live in disk_cursors.lines_of(recording):
        label = f"{recording.name}/cursors/{key[0]}/{key[1]}"
        yield judged(label, _cursor, recording, disks, store, topics.get(key[0]), key[1], after, live, ends)


def _cursor(
    recording: Recording,
    disks: Disks,
    store: Store,
    topic: TopicUpTo | None,
    name: str,
    after: Line | None,
    live: Line | None,
    ends: Ends,
) -> Iterator[str]:
    if topic is None:
        yield "there is no such topic"
        return
    on_disks = cursor(topic, name)
    record, _ = store.nodes.get(cursor_node_of(topic.name, name))
    managed = store.managed_ledger(topic.name, create=False)
    opened = Cursor.open(managed, name, create=False)
    try:
        stored = on_disks._replace(
            info=decode_cursor_info(record), state=_state_of(opened), cursor_properties=opened.cursor_properties
        )
        # Behind the end that the original chose nothing is acknowledged.
        counts = topic.entry_counts.items()
        beyond = sum((managed.extent.entries(ledger_id) or 0) - count for ledger_id, count in counts)
        if opened.backlog != stored.backlog + beyond:
            yield differs("backlog", stored.backlog + beyond, opened.backlog)
    finally:
        opened.close()
    if disk_cursors.may_end_elsewhere(disks, on_disks, ends):
        # Recovery here takes the last state there is; whether the original's is among them was looked at on the disks.
        ours, theirs = (disk_cursors.acks_of_state(topic, one.state) for one in (stored, on_disks))
        yield from fields(theirs._asdict(), ours._asdict())
    else:
        yield from disk_cursors.differences(recording, stored, after, live)


def _state_of(opened: Cursor) -> AckSnapshot:
    acked: dict[int, BitMap64] = {}
    for lower, upper in opened.acked_ranges():
        acked.setdefault(lower.ledger_id, BitMap64()).add_range(lower.entry_id + 1, upper.entry_id + 1)
    batches = {at: sum(1 << index for index in indexes) for at, indexes in opened.partial_batches().items()}
    return AckSnapshot(opened.mark_delete_position, acked, batches, opened.properties)


# -- delayed messages ------------------------------------------------------------------------------------------------


def _delayed(store: Store, topic: TopicUpTo | None, line: Line) -> Iterator[str]:
    if topic is None:
        yield "there is no such topic"
        return
    opened = store.topic(topic.name, LOOKED_AT)
    with opened.subscription(line["subscription"]) as subscription:
        counts = topic.entry_counts
        waiting = {at for _, at in subscription.peek_delayed() if at.entry_id < counts.get(at.ledger_id, 0)}
    if len(waiting) != line["tracker_count"]:
        yield differs("count", line["tracker_count"], len(waiting))
