"""Snapshot of a store at planning time, for tasks that read it while another process writes.

Closed ledgers do not change. For other ledgers, the plan pins the end; later entries are invisible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

from bookstand.cursor.store.cursor_ledger import extensions_of
from bookstand.delivery.tracker.bucket.key import read_properties
from bookstand.delivery.tracker.reschedule_log import PROPERTY
from bookstand.disk.bookies.ledger_end import LedgerEnd
from bookstand.disk.metadata.dump import DumpNode, MetadataDump
from bookstand.disk.store_source import StoreLedger, StoreSource
from bookstand.disk.topics.cursors import info_of, names_of
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.errors import NoSuchLedgerError
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
from bookstand.pipeline.tables.sources import DataSource, open_source
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.ledger_metadata import CLOSED

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks
    from bookstand.storage.storage import Storage


class SnapshotPins(NamedTuple):
    """Pinned state of a store. ``extents`` has the end of each ledger; None for closed ledgers, whose end is in their
    metadata. ``damaged`` has the paths of unreadable nodes."""

    extents: Mapping[int, LedgerEnd | None]
    nodes: tuple[DumpNode, ...]
    damaged: tuple[str, ...] = ()


class SnapshotStore(StoreSource):
    def __init__(
        self, storage: Storage, passwords: Sequence[bytes], pins: SnapshotPins, limits: ExpansionLimits = DEFAULT
    ) -> None:
        super().__init__(storage, passwords, limits)
        self._pins = pins

    @cached_property
    def ledger_ids(self) -> list[int]:
        return list(self._pins.extents)

    @cached_property
    def dump(self) -> MetadataDump:
        nodes = {node.path: node for node in self._pins.nodes}
        return MetadataDump(nodes, self._tell, damaged=self._pins.damaged, limits=self.limits)

    def ledger(self, ledger_id: int) -> StoreLedger:
        if ledger_id not in self._pins.extents:
            raise NoSuchLedgerError(f"there was no ledger {ledger_id}")
        ledger = super().ledger(ledger_id)
        extent = self._pins.extents[ledger_id]
        if extent is not None:
            ledger.extent = extent
        return ledger


@contextmanager
def pinned(place: DataSource, passwords: Sequence[bytes], pins: SnapshotPins | None) -> Iterator[Disks]:
    """Open a store as it was when it was pinned. Without pins, open the current state. Disks need no pins."""
    with open_source(place, passwords) as source:
        if pins is None:
            yield source
        else:
            yield cast("Disks", SnapshotStore(cast("StoreSource", source).storage, passwords, pins, place.limits))


def pins_of_ledgers(source: Disks, ledger_ids: Iterable[int]) -> SnapshotPins:
    return SnapshotPins(_extents(source, ledger_ids), ())


def pins_of_topics(source: Disks, topics: Iterable[str]) -> SnapshotPins:
    """Pin the records of the topics and their cursors, and the ledgers of cursors, buckets and rescheduled messages."""
    dump = source.dump
    assert dump is not None
    paths: list[str] = []
    wanted: dict[int, None] = {}
    for topic in topics:
        paths.append(node_of(topic))
        wanted.update(dict.fromkeys(ledger.ledger_id for ledger in dump.topic_info(topic).ledgers))
        found = topic_of(source, topic)
        for cursor in names_of(found):
            paths.append(cursor_node_of(topic, cursor))
            info = info_of(found, cursor)
            # If the newest cursor ledger is damaged, the state is read from former ones.
            wanted.update(dict.fromkeys((info.cursor_ledger_id, *extensions_of(info).former)))
            wanted.update(dict.fromkeys(read_properties(info.cursor_properties).buckets.values()))
            rescheduled = dict(info.cursor_properties).get(PROPERTY, "")
            if rescheduled.isascii() and rescheduled.isdecimal():
                wanted[int(rescheduled)] = None
    known = set(source.ledger_ids)
    nodes = tuple(dump.nodes[path] for path in paths if path in dump.nodes)
    damaged = tuple(path for path in paths if path in dump.damaged)
    return SnapshotPins(_extents(source, sorted(known.intersection(wanted))), nodes, damaged)


def _extents(source: Disks, ledger_ids: Iterable[int]) -> dict[int, LedgerEnd | None]:
    found: dict[int, LedgerEnd | None] = {}
    for ledger_id in ledger_ids:
        extent = source.ledger(ledger_id).extent
        found[ledger_id] = None if extent.state == CLOSED else extent
    return found
