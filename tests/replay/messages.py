"""The area ``messages``: entries of topics, acknowledgments as stored, records of topics and cursors, range sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.replay import ack_samples, message_samples, rangesets
from tests.replay.outcome import Outcome
from tests.replay.traces import SUFFIXES, files_of, open_text

FIELDS = "\n\n".join(str(module.__doc__).strip() for module in (message_samples, ack_samples, rangesets))

Lines = list[dict[str, Any]]

COMPARERS: tuple[tuple[set[str], Callable[[str, Lines], Iterator[Outcome]]], ...] = (
    ({"answers", "b64"}, message_samples.compare_messages),
    ({"truth", "b64", "record"}, ack_samples.compare_records),
    ({"truth", "b64", "form"}, ack_samples.compare_snapshots),
    ({"set", "kind"}, rangesets.compare),
)
"""What a file holds is told by its first line, not by its name."""


def replay(paths: list[Path]) -> Iterator[Outcome]:
    for path in files_of(paths):
        if not path.name.endswith(SUFFIXES):
            continue
        with open_text(path) as text:
            lines = _lines(text)
            first = next(lines, None)
            if first is None:
                continue
            for keys, compare in COMPARERS:
                if keys <= first.keys():
                    name = path.name.removesuffix(".gz").removesuffix(".jsonl")
                    yield from compare(name, [first, *lines])
                    break


def _lines(text: Any) -> Iterator[dict[str, Any]]:
    for line in text:
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError:
                return
            if not isinstance(value, dict):
                return
            yield value
