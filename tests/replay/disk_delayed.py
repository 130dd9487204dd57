"""Delayed indexes. Compared are how many messages the broker's tracker counts, and each bucket: the cursor's property,
ledger and its last entry, and of each segment its entry, times, bitmaps, and rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bookstand.disk.topics.cursors import cursor
from bookstand.disk.topics.delayed import DelayedIndex, DiskSegment
from tests.replay.disk_compare import differs, fields, judged
from tests.replay.disk_ends import TopicUpTo
from tests.replay.disk_recordings import Recording
from tests.replay.outcome import Outcome

Line = dict[str, Any]


def replay(recording: Recording, topics: dict[str, TopicUpTo]) -> Iterator[Outcome]:
    for line in lines_of(recording):
        label = f"{recording.name}/delayed/{line['topic']}/{line['subscription']}"
        yield judged(label, _index, topics.get(line["topic"]), line)


def lines_of(recording: Recording) -> list[Line]:
    """One for each subscription: what was there after a restart, else what was there before."""
    lines = [*recording.truth("delayed-live"), *recording.truth("delayed")]
    return list({(line["topic"], line["subscription"]): line for line in lines}.values())


def _index(topic: TopicUpTo | None, line: Line) -> Iterator[str]:
    if topic is None or line["subscription"] not in topic.cursors():
        yield "there is no such cursor"
        return
    index = DelayedIndex(cursor(topic, line["subscription"]))
    if index.count() != line["tracker_count"]:
        yield differs("count", line["tracker_count"], index.count())
    ours = {bucket.property_name: bucket for bucket in index.buckets}
    truth = {bucket["property"]: bucket for bucket in line["buckets"]}
    if ours.keys() != truth.keys():
        yield differs("buckets", sorted(truth), sorted(ours))
    for name in sorted(ours.keys() & truth.keys()):
        ledger = topic.ledger(ours[name].ledger_id)
        said = {
            "property": name,
            "ledger_id": ours[name].ledger_id,
            "ledger_last_entry": None if ledger is None else ledger.extent.last_entry,
        }
        expected = {field: truth[name][field] for field in said}
        yield from (f"{name}, {what}" for what in fields(expected, said))
        segments = [_segment(segment) for segment in ours[name].segments()]
        if len(segments) != len(truth[name]["segments"]):
            yield differs(f"{name}, segments", len(truth[name]["segments"]), len(segments))
        for one, other in zip(truth[name]["segments"], segments, strict=False):
            yield from (f"{name}, segment {one['entry']}, {what}" for what in fields(one, other))


def _segment(segment: DiskSegment) -> Line:
    rows = segment.indexes
    return {
        "entry": segment.entry,
        "min": segment.min_time,
        "max": segment.max_time,
        "bitmaps": {str(ledger_id): list(bitmap) for ledger_id, bitmap in segment.bitmaps.items()},
        "indexes": [
            list(row)
            for row in zip(rows.timestamps.tolist(), rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True)
        ],
    }
