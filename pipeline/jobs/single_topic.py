"""Access to one topic of a store. A unit must not read the records of all topics: a store may have thousands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, cast

from bookstand.disk.metadata.dump import DumpNode, MetadataDump
from bookstand.disk.store_source import StoreSource
from bookstand.disk.topics.topics import DiskTopic
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.errors import StoreDamagedError
from bookstand.managed_ledger.topic_name import node_of
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.storage import Storage, open_storage

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks


class _OneTopic(StoreSource):
    """A store with all of its ledgers, and with the metadata nodes of one topic and its cursors."""

    def __init__(self, storage: Storage, topic: str, limits: ExpansionLimits) -> None:
        super().__init__(storage, (), limits)
        self._of_topic = storage
        self._name = topic

    @cached_property
    def dump(self) -> MetadataDump:
        node = node_of(self._name)
        nodes: dict[str, DumpNode] = {}
        damaged: list[str] = []
        for path in (node, *self._of_topic.node_paths(f"{node}/")):
            try:
                found = self._of_topic.node(path)
            except StoreDamagedError as error:
                self.report(str(error))
                damaged.append(path)
                continue
            if found is not None:
                nodes[path] = DumpNode(path, *found)
        return MetadataDump(nodes, self._tell, damaged=damaged, limits=self.limits)


@contextmanager
def opened_topic(store: str, name: str, limits: ExpansionLimits = DEFAULT) -> Iterator[tuple[DiskTopic, MetadataDump]]:
    """Open a topic read-only, without fencing or recovery. Damage is collected in ``topic.disks.damage``."""
    storage = open_storage(store, create=False, read_only=True)
    try:
        source = _OneTopic(storage, name, limits)
        yield topic_of(cast("Disks", source), name), source.dump
    finally:
        storage.close()
