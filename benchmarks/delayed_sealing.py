"""P8: sealing 50 000 delayed messages, compared with protobuf, which only encodes them, and with recorded figures of
Pulsar.

Ours is the complete call: it takes the messages out of the mutable bucket, sorts, splits and encodes them and their
bitmaps, and durably commits ledger and property. Delays are spread over an hour, as in the recording, in one ledger and
in ten; the row has the worse of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.baselines.snapshot_messages import SnapshotMessages
from benchmarks.delayed_buckets import (
    NOW,
    PER_SEAL,
    Fixture,
    fixture,
    in_order,
    original,
    settings,
    spread_over_an_hour,
)
from benchmarks.figures import Figure, best_of
from benchmarks.measure import Sample, Series, interleave, timed
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.delivery.tracker.bucket.snapshot.codec import encode_segments, seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes

LEDGERS = (1, 10)
# Number of messages per add_many(), like the reads of a dispatcher.
_READ = 1_000
_ROOM = 1 << 30


class Shape(NamedTuple):
    delays: str
    ledgers: int

    def indexes(self, count: int, first_ledger: int) -> Indexes:
        if self.delays == "random":
            return spread_over_an_hour(np.random.default_rng(first_ledger), count, first_ledger, self.ledgers)
        return in_order(count, first_ledger, self.ledgers)


RANDOM = tuple(Shape("random", ledgers) for ledgers in LEDGERS)
IN_ORDER = tuple(Shape("in_order", ledgers) for ledgers in LEDGERS)


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as directory:
        measured = seals(directory, PER_SEAL, bench.rounds(31, 61))
    for row in rows:
        yield _WRITTEN[row.row](row, measured, f"on {place.kind}")


def seals(directory: Path, count: int, rounds: int) -> dict[str, Series]:
    """Measure one snapshot of ``count`` messages with every candidate."""
    with ExitStack() as stack:
        candidates: dict[str, Callable[[], Sample]] = {}
        for shape in (*RANDOM, *IN_ORDER):
            name = f"{shape.delays} {shape.ledgers}"
            at = stack.enter_context(fixture(directory / name, _settings(count)))
            candidates[f"ours {name}"] = Sealer(at, shape, count).round
        for shape in RANDOM:
            candidates |= _encoders(shape, count)
        measured = interleave(candidates, rounds)
    found = {}
    for name, series in measured.items():
        if isinstance(series, Series):
            found[name] = series
        else:
            raise series
    return found


def _settings(count: int) -> Any:
    return settings(delayed_delivery_min_index_count_per_bucket=count)


class Sealer:
    """Fills the mutable bucket, and measures the call that seals it."""

    def __init__(self, at: Fixture, shape: Shape, count: int) -> None:
        self._tracker = at.tracker()
        self._shape, self._count = shape, count
        self._ledger = 1 << 20

    def round(self) -> Sample:
        tracker, count = self._tracker, self._count
        indexes = self._shape.indexes(count, self._ledger)
        newer = self._ledger + self._shape.ledgers
        for start in range(0, count, _READ):
            part = indexes.part(start, start + _READ)
            tracker.add_many((part.ledger_ids, part.entry_ids), part.timestamps)
        sample = timed(lambda: tracker.add((newer, 0), NOW + 5_000), 1)
        (bucket,) = tracker.buckets
        if (bucket.waiting, tracker.mutable_count) != (count, 1):
            raise RuntimeError(f"{bucket} was sealed, not a bucket of {count} messages")
        tracker.clear()
        self._ledger = newer + 1
        return sample


def _encoders(shape: Shape, count: int) -> dict[str, Callable[[], Sample]]:
    """Return candidates that encode the snapshot with protobuf, and only its segments with both encoders."""
    config = _settings(count)
    most = config.delayed_delivery_max_indexes_per_bucket_snapshot_segment
    snapshot = seal(shape.indexes(count, 1 << 20), config.time_step_millis, most)
    messages = SnapshotMessages(snapshot)
    if messages.encode_segments() != snapshot.entries[1:] or messages.encode()[1:] != snapshot.entries[1:]:
        raise RuntimeError("protobuf encodes the segments differently")
    encoders: dict[str, Callable[[], object]] = {
        "segments": lambda: encode_segments(snapshot.indexes, snapshot.ends),
        "upb": messages.encode,
        "upb segments": messages.encode_segments,
        "upb serialize": messages.serialize_made,
    }
    return {
        f"{name} {shape.delays} {shape.ledgers}": lambda encode=encode: timed(encode, 1)  # type: ignore[misc]
        for name, encode in encoders.items()
    }


# -- rows --------------------------------------------------------------------------------------------------------------


def _worse(row: Row, measured: dict[str, Series], ours: str, baseline: str, note: str) -> Figure:
    figures = {
        shape: best_of(row, measured[f"{ours} {_name(shape)}"], measured[f"{baseline} {_name(shape)}"])
        for shape in RANDOM
    }
    worse = min(figures, key=lambda shape: figures[shape].value or 0)
    notes = [f"{_ledgers(shape)} {figure.value:.2f}" for shape, figure in figures.items()]
    figure = figures[worse]
    figure.note = "; ".join([*notes, note])
    return figure


def _name(shape: Shape) -> str:
    return f"{shape.delays} {shape.ledgers}"


def _ledgers(shape: Shape) -> str:
    return f"{shape.ledgers} ledger{'s' if shape.ledgers > 1 else ''}"


def _against_upb(row: Row, measured: dict[str, Series], place: str) -> Figure:
    made = measured[f"upb serialize {_name(RANDOM[0])}"].best_cpu * 1e3
    note = f"upb takes {made:.2f} ms to serialize prepared messages; {place}"
    return _worse(row, measured, "ours", "upb", note)


def _segments(row: Row, measured: dict[str, Series], place: str) -> Figure:
    return _worse(row, measured, "segments", "upb segments", "best round of each")


def _against_original(row: Row, measured: dict[str, Series], place: str) -> Figure:
    figure = Figure(row)
    notes = []
    for shape in (*RANDOM, *IN_ORDER):
        ours = measured[f"ours {_name(shape)}"]
        recorded = original("bucket_seal_50000", f"seal_ms_{shape.delays}_{shape.ledgers}_ledgers")
        value = recorded / (ours.best_cpu * 1e3)
        notes.append(f"{shape.delays.replace('_', ' ')}, {_ledgers(shape)}: {value:.2f} (of {recorded:.1f} ms)")
        if shape in RANDOM and (figure.value is None or value < figure.value):
            figure.value, figure.ours, figure.baseline = value, ours.best_cpu * 1e3, recorded
    for shape in RANDOM:
        series = measured[f"ours {_name(shape)}"]
        figure.rounds[f"ours, {_ledgers(shape)}"] = {
            "cpu": [round(sample.cpu * 1e3, 3) for sample in series.samples],
            "wall": [round(sample.wall * 1e3, 3) for sample in series.samples],
        }
    figure.note = f"lowest recorded figure of Pulsar 4.2.4, {'; '.join(notes)}; {place}"
    return figure


_WRITTEN: dict[str, Callable[[Row, dict[str, Series], str], Figure]] = {
    "P8": _against_upb,
    "P8p": _segments,
    "P8j": _against_original,
}
