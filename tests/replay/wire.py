"""The area ``wire``: what clients sent over the wire, and what the originals' servers answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.replay import wire_bookie, wire_zookeeper
from tests.replay.outcome import Outcome
from tests.replay.traces import files_of
from tests.replay.wire_frames import is_recording

FIELDS = "\n\n".join(str(module.__doc__).strip() for module in (wire_bookie, wire_zookeeper))


def replay(paths: list[Path]) -> Iterator[Outcome]:
    for path in files_of(paths):
        if path.name == wire_bookie.RAW_FRAMES:
            yield from wire_bookie.replay_raw_frames(path)
        elif is_recording(path):
            yield from wire_bookie.replay_recording(path)
            yield from wire_zookeeper.replay_recording(path)
