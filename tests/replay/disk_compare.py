"""Comparing what the disks say with the truth, field by field."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from tests.replay.outcome import Outcome

SHOWN_DIFFERENCES = 5
SHOWN_CHARACTERS = 200


class EntryOf(NamedTuple):
    """An entry, however it was read."""

    entry_id: int
    cumulative_length: int
    payload: bytes


def judged(name: str, compare: Callable[..., Iterable[str]], *arguments: Any) -> Outcome:
    """What fails is different, too: nothing that lies on a disk may make a reader fail."""
    try:
        found = list(islice(compare(*arguments), SHOWN_DIFFERENCES))
    except Exception as error:
        found = [f"{type(error).__name__}: {error}"]
    return Outcome(name, "different" if found else "equal", "; ".join(found))


def fields(truth: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """Both have to have the same fields, with the same values."""
    for name in sorted(truth.keys() | ours.keys()):
        if truth.get(name, "absent") != ours.get(name, "absent"):
            yield differs(name, truth.get(name, "absent"), ours.get(name, "absent"))


def differs(what: str, truth: Any, ours: Any) -> str:
    return f"{what}: truth {_short(truth)}, disk {_short(ours)}"


def entries(
    truth: Iterable[Mapping[str, Any]], ours: Iterable[EntryOf], *, more_behind: int | None = None
) -> Iterator[str]:
    """Entries by their ids. ``more_behind``: the disks may have others behind this one."""
    expected = {line["entry"]: line for line in truth}
    for entry in ours:
        line = expected.pop(entry.entry_id, None)
        if line is None:
            if more_behind is None or entry.entry_id <= more_behind:
                yield f"entry {entry.entry_id}: not in the truth"
        elif "error" not in line:
            yield from (f"entry {entry.entry_id}: {what}" for what in _entry(line, entry))
    for entry_id, line in expected.items():
        if "error" not in line:
            yield f"entry {entry_id}: not on the disks"


def _entry(line: Mapping[str, Any], entry: EntryOf) -> Iterator[str]:
    if entry.cumulative_length != line["cumulative_length"]:
        yield differs("cumulative length", line["cumulative_length"], entry.cumulative_length)
    if (len(entry.payload), sha256(entry.payload)) != (line["len"], line["sha256"]):
        yield f"its payload of {len(entry.payload)} bytes is not that of {line['len']}"
    if "payload" in line and base64.b64decode(line["payload"]) != entry.payload:
        yield "its payload is another one"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
