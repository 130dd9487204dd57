"""The area ``disk``: the disks of real bookies, read with the room of that name, and what the originals said of them.

A sample is one ledger, topic, entry of a topic, cursor, delayed index, acknowledged record, or damaged file. It is
looked at twice, straight on the disks and after an import into a store, and is equal if it is so both times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from bookstand.disk.disks import Disks
from tests.replay import disk_cursors, disk_damaged, disk_delayed, disk_imported, disk_ledgers, disk_topics
from tests.replay.disk_ends import Ends
from tests.replay.disk_recordings import DamagedFiles, Recording, find
from tests.replay.outcome import Outcome

FIELDS = "\n\n".join(
    str(module.__doc__).strip()
    for module in (disk_ledgers, disk_topics, disk_cursors, disk_delayed, disk_damaged, disk_imported)
)


def replay(paths: list[Path]) -> Iterator[Outcome]:
    for found in find(paths):
        with TemporaryDirectory(prefix="bookstand-replay-") as folder:
            below = Path(folder) / "disks"
            below.mkdir()
            try:
                if isinstance(found, DamagedFiles):
                    yield from disk_damaged.replay(found, below)
                else:
                    yield from _replay_recording(found, found.disks(below), Path(folder))
            except Exception as error:
                yield Outcome(found.name, "different", f"{type(error).__name__}: {error}")


def _replay_recording(recording: Recording, folders: list[Path], scratch: Path) -> Iterator[Outcome]:
    if not folders:
        yield Outcome(recording.name, "different", "there are no disks of bookies")
        return
    with Disks.open(folders, recording.dump) as disks:
        ends = Ends(recording, disks)
        topics = disk_topics.topics_of(disks, ends)
        straight = chain(
            disk_ledgers.replay(recording, disks),
            disk_topics.replay(recording, topics),
            disk_cursors.replay(recording, disks, topics, ends),
            disk_delayed.replay(recording, topics),
            disk_ledgers.replay_acked(recording, disks),
        )
        outcomes = {outcome.name: outcome for outcome in straight}
        if recording.dump is not None:
            for outcome in disk_imported.replay(recording, disks, topics, ends, scratch):
                before = outcomes.get(outcome.name)
                if before is None or (before.verdict == "equal" and outcome.verdict != "equal"):
                    outcomes[outcome.name] = outcome._replace(detail=f"imported: {outcome.detail}")
    yield from outcomes.values()
