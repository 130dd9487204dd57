"""The tracker on buckets, and its plain model, behind the interface that the driver knows.

bookstand's is on a store of its own, with a cursor that stands where the recording says. Calls that a recording had
fail, fail here where the tracker makes them.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.tracker.bucket.key import BucketKey, BucketLabels, read_properties
from bookstand.delivery.tracker.bucket.snapshot.codec import SnapshotMetadata
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.errors import IncorrectParameterError, NoSuchEntryError, NoSuchLedgerError, ReadError, WriteError
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.ledger.transaction import Transaction
from bookstand.storage.format.position import Position
from bookstand.testing.clock import ManualTimer
from tests.delivery.bucket_kit import CURSOR, SUBSCRIPTION, TOPIC, StandingHome, config_of
from tests.model.delayed import Refused
from tests.model.delayed_buckets import BucketsModel, Figures, Sealed
from tests.replay.delayed_lockstep import Line
from tests.replay.delayed_stands import Settings, TrackerStand

NO_RECOVERY = "RecoverDelayedDeliveryTrackerException"
VANISHED = "not_exist"
"""A failure that says that what was asked for is not there."""

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class FailingStorage(BucketSnapshotStorage):
    """``vanishing``: calls that say that there is no such ledger; ``left``: how many segments of some can be read."""

    failing: Counter[str]
    vanishing: Counter[str]
    left: dict[int, int]

    def _call(self, kind: str) -> None:
        if self.vanishing[kind] > 0:
            self.vanishing[kind] -= 1
            raise NoSuchLedgerError(f"{kind} is to find nothing")
        if self.failing[kind] > 0:
            self.failing[kind] -= 1
            error = WriteError if kind in ("create", "delete") else ReadError
            raise error(f"{kind} is to fail")

    def create_in(self, transaction: Transaction, entries: Sequence[bytes], labels: BucketLabels) -> LedgerWriter:
        self._call("create")
        return super().create_in(transaction, entries, labels)

    def delete_in(self, transaction: Transaction, bucket_id: int) -> bool:
        self._call("delete")
        return super().delete_in(transaction, bucket_id)

    def read_metadata(self, bucket_id: int) -> SnapshotMetadata:
        self._call("metadata")
        return super().read_metadata(bucket_id)

    def read_segments(self, bucket_id: int, first: int, last: int) -> list[Indexes]:
        self._call("segments")
        if last > self.left.get(bucket_id, last):
            raise NoSuchEntryError(f"segment {last} is to be missing")
        return super().read_segments(bucket_id, first, last)

    def read_length(self, bucket_id: int) -> int:
        self._call("length")
        return super().read_length(bucket_id)


class NothingInFlight:
    """Where no call is ever on its way, none can be held back."""

    def hold(self, calls: Sequence[str]) -> None: ...
    def unhold(self) -> None: ...
    def release(self, count: int | None, kind: str | None) -> None: ...


class BucketStand(NothingInFlight, TrackerStand):
    """With a store of its own, and what recordings do behind the tracker's back."""

    tracker: BucketDelayedTracker

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY)
        self.store = bookstand.open(Path(self.folder.name) / "store", durability="none")
        self.cursor = Cursor.open(self.store.managed_ledger(TOPIC), SUBSCRIPTION, CURSOR)
        self.home = StandingHome(self.cursor)
        self.storage = FailingStorage(self.home.client)
        self.storage.failing = Counter()
        self.storage.vanishing = Counter()
        self.storage.left = {}
        # By the name of the property that a snapshot was made for, and by the id that a recording gives to one.
        self.made: dict[str, int] = {}
        self.put: dict[str, int] = {}
        try:
            self._begin(settings)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        self.store.close()
        self.folder.cleanup()

    def _begin(self, settings: Settings) -> None:
        config = config_of(
            settings["min_index_count_per_bucket"],
            settings["time_step_per_segment_ms"],
            settings["max_indexes_per_segment"],
            settings["max_num_buckets"],
            strict=settings["strict"],
            tick=settings["tick_ms"],
            policy="two-smallest",
        )
        try:
            self.tracker = BucketDelayedTracker(
                self._wake, self.home, config, storage=self.storage, clock=self.clock, timer=self.timer
            )
        except ReadError as error:
            raise Refused(NO_RECOVERY) from error

    def contains(self, position: Position) -> bool:
        try:
            return self.tracker.contains_message(position)
        except IncorrectParameterError as error:
            raise Refused("argument") from error

    def clear(self) -> None:
        try:
            self.tracker.clear()
        except (WriteError, ReadError) as error:
            raise Refused("unwritable") from error

    def mark_delete(self, position: Position) -> None:
        self.home.stands = position

    def fail(self, call: str, error: str, times: int) -> None:
        (self.storage.vanishing if error == VANISHED else self.storage.failing)[call] += times

    def heal(self) -> None:
        self.storage.failing.clear()
        self.storage.vanishing.clear()

    def set_property(self, op: Line) -> None:
        """The id that a recording gives to a snapshot is not the one it has here."""
        made = {**self.made, **self._named()}.get(op["about"], self.put.get(op["value"]))
        self._change(op["key"], op["value"] if made is None else str(made))

    def remove_property(self, op: Line) -> None:
        self.made.update(self._named())
        self._change(op["key"], None)

    def move_property(self, op: Line) -> None:
        """Properties have no order."""

    def put_snapshot(self, op: Line) -> None:
        entries = [base64.b64decode(one) for one in op["entries"]]
        self.put[str(op["id"])] = self.storage.create(entries, BucketLabels("", "", ""))

    def drop_snapshot(self, op: Line) -> None:
        self.storage.delete(self._named()[op["about"]])

    def truncate_snapshot(self, op: Line) -> None:
        """The first of the entries that are kept is no segment."""
        self.storage.left[self._named()[op["about"]]] = op["keep"] - 1

    def _named(self) -> dict[str, int]:
        return {str(key): one for key, one in read_properties(self.home.properties().items()).buckets.items()}

    def _change(self, name: str, value: str | None) -> None:
        def change(_: Transaction, properties: dict[str, str]) -> None:
            properties.pop(name, None)
            if value is not None:
                properties[name] = value

        self.home.change(change)

    def reopen(self, settings: Settings, crash: bool) -> None:
        """What is on the disk is there at once: who crashes writes as much as who closes."""
        self.tracker.close()
        if crash:
            self.timer = ManualTimer(self.clock)
            self.stale = 0
        self._begin(settings)

    def property_names(self) -> list[str]:
        return list(self.home.properties())

    def snapshots(self) -> int:
        return len(self.storage.list_snapshots(self.home.topic, self.home.cursor))


class BucketModelStand(NothingInFlight):
    def __init__(self, settings: Settings) -> None:
        self.model = BucketsModel(settings["start_ms"], figures_of(settings))

    def __getattr__(self, name: str) -> Any:
        """add, add_many, pop_due, has_available, contains, fire_..., reset_tick, clear and close are the model's."""
        return getattr(self.model, name)

    def end(self) -> None:
        """Nothing is on any disk."""

    def move_clock(self, now: int) -> None:
        self.model.now = now

    def should_pause(self) -> bool:
        return False

    def fire(self) -> tuple[int, int]:
        rang = self.model.fire()
        return rang, rang

    def fire_cancelled(self) -> bool:
        return bool(self.model.cancelled)

    def mark_delete(self, position: Position) -> None:
        self.model.passed = position.ledger_id

    def fail(self, call: str, error: str, times: int) -> None:
        (self.model.vanishing if error == VANISHED else self.model.failing)[call] += times

    def heal(self) -> None:
        self.model.failing.clear()
        self.model.vanishing.clear()

    def set_property(self, op: Line) -> None:
        model, found = self.model, self._snapshot(op["about"])
        if found is not None and str(BucketKey(found.first, found.last)) == op["key"]:
            model.orphans.remove(found)
            model.stored.append(found)
        else:
            self.remove_property(op)
            model.dangling.append(op["key"])

    def remove_property(self, op: Line) -> None:
        model, found = self.model, self._snapshot(op["key"])
        model.dangling = [name for name in model.dangling if name != op["key"]]
        if found in model.stored:
            model.stored.remove(found)
            model.orphans.append(found)

    def move_property(self, op: Line) -> None:
        """Properties have no order."""

    def put_snapshot(self, op: Line) -> None:
        """Of no bucket that anybody knows."""

    def drop_snapshot(self, op: Line) -> None:
        self.model.stored.remove(self._snapshot_of(op["about"]))
        self.model.dangling.append(op["about"])

    def truncate_snapshot(self, op: Line) -> None:
        """The first of the entries that are kept is no segment."""
        self._snapshot_of(op["about"]).readable = op["keep"] - 1

    def _snapshot_of(self, name: str) -> Sealed:
        found = self._snapshot(name)
        assert found is not None
        return found

    def _snapshot(self, name: str | None) -> Sealed | None:
        found = [*self.model.stored, *self.model.orphans]
        return next((one for one in found if str(BucketKey(one.first, one.last)) == name), None)

    def reopen(self, settings: Settings, crash: bool) -> None:
        self.model.close()
        if crash:
            self.model.cancelled.clear()
        try:
            self.model.open(figures_of(settings))
        except Refused:
            raise Refused(NO_RECOVERY) from None

    def property_names(self) -> list[str]:
        return [*self.model.dangling, *(str(BucketKey(bucket.first, bucket.last)) for bucket in self.model.stored)]

    def snapshots(self) -> int:
        return len(self.model.stored) + len(self.model.orphans)

    def state(self) -> tuple[int, int | None]:
        return self.model.count, self.model.timer


def figures_of(settings: Settings) -> Figures:
    """In the model's words: of none wanted one is made, and no bucket at all is no limit."""
    return Figures(
        settings["strict"],
        settings["tick_ms"],
        max(settings["min_index_count_per_bucket"], 1),
        max(settings["time_step_per_segment_ms"], 1),
        settings["max_indexes_per_segment"] or 1,
        settings["max_num_buckets"] or -1,
    )
