"""Recorded disks of real bookies, imported and exported again, against what the original said of the recorded ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import bookstand
from bookstand.disk.disks import Disks
from bookstand.disk.exporter.run import ExportReport, export_topics
from bookstand.disk.importer.run import import_disks
from bookstand.disk.topics import cursors, topics
from tests.disk.exports import opened
from tests.disk.recordings import RECORDINGS, dump_path, recording
from tests.replay import disk_cursors, disk_delayed, disk_ledgers, disk_topics
from tests.replay.disk_ends import Ends
from tests.replay.disk_recordings import Recording
from tests.replay.outcome import Outcome

OF_BOOKIES = tuple(f"metadata, {field}: " for field in ("ensemble_size", "write_quorum", "ack_quorum", "ensembles"))
ENDED = re.compile(r"recovery closed it at ([0-9]+), which is not from ([0-9]+) to ([0-9]+)")


class Exported(NamedTuple):
    recording: Recording
    # Cursors whose sets of batch indexes are in their records, where the original passes them over.
    with_sets: set[str]
    as_it_is: ExportReport
    old_form: ExportReport


@pytest.fixture(scope="module", params=RECORDINGS)
def exported(
    request: pytest.FixtureRequest, unpacked: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    with bookstand.open(folder / "store", durability="none") as store:
        with Disks.open([unpacked(name)], dump_path(name)) as disks:
            import_disks(disks, store)
            with_sets = {
                f"{name}/cursors/{topic.name}/{one.name}"
                for topic in topics.topics(disks)
                for one in cursors.cursors(topic)
                if one.info.cursor_ledger_id < 0 and one.info.batches
            }
        reports = [export_topics(store, folder / str(old), old_form=old, log_bytes=1 << 20) for old in (False, True)]
    assert [report.damage for report in reports] == [[], []]
    return Exported(Recording(recording(name)), with_sets, *reports)


def is_of_bookies(difference: str) -> bool:
    """All of them are one now. What recovery may have dropped, for there was too little of it on each of them, is there
    for whoever recovers it on this one."""
    ended = ENDED.fullmatch(difference)
    if ended is None:
        return difference.startswith(OF_BOOKIES)
    last, lowest, highest = map(int, ended.groups())
    return last < lowest == highest


def replayed(exported: Exported, report: ExportReport) -> Iterator[Outcome]:
    """Of all but what was deleted before, which no store takes."""
    of = exported.recording
    with opened(report) as disks:
        ends = Ends(of, disks)
        found = disk_topics.topics_of(disks, ends)
        yield from disk_topics.replay(of, found)
        yield from disk_cursors.replay(of, disks, found, ends)
        yield from disk_delayed.replay(of, found)
        yield from disk_ledgers.replay_acked(of, disks)
        for outcome in disk_ledgers.replay(of, disks):
            if "/deleted/" not in outcome.name:
                others = [part for part in outcome.detail.split("; ") if not is_of_bookies(part)]
                yield outcome._replace(verdict=outcome.verdict if any(others) else "equal", detail="; ".join(others))
        assert disks.damage == []


def different(exported: Exported, report: ExportReport) -> set[str]:
    outcomes = list(replayed(exported, report))
    assert len(outcomes) > 1000
    return {outcome.name for outcome in outcomes if outcome.verdict != "equal"}


def test_everything_is_what_the_original_said(exported: Exported) -> None:
    assert different(exported, exported.as_it_is) == set()


def test_cursors_in_the_old_form(exported: Exported) -> None:
    """The same, but that what the original would have passed over is where it reads it."""
    assert different(exported, exported.old_form) == exported.with_sets
    assert exported.old_form.cursors == len(exported.with_sets)
    with opened(exported.as_it_is) as one, opened(exported.old_form) as other:
        for topic in topics.topics(one):
            for cursor in cursors.cursors(topic):
                assert cursors.cursor(topics.topic(other, topic.name), cursor.name).state == cursor.state
