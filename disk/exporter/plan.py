"""Export plan: the nodes and ledgers that belong to topics of a store, and the conversion of their cursors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from bookstand.cursor.store.cursor_ledger import extensions_of
from bookstand.cursor.validation import INTERNAL_PREFIX
from bookstand.delivery.nacks import log
from bookstand.disk.damage import Damage, Report
from bookstand.disk.exporter.cursors import OldForm, SnapshotLedger, StoredTopic, in_old_form
from bookstand.disk.metadata.dump import DumpNode, MetadataDump
from bookstand.disk.stored_ledger import StoredLedger
from bookstand.disk.topics.ledger_kind import SCHEMA, by_labels
from bookstand.errors import (
    IncorrectParameterError,
    MetadataSerializationError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StoreDamagedError,
    StoreInUseError,
)
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of, parts_of
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.format import schema
from bookstand.storage.storage import Storage

# Nodes about topics that are not below the topics' own nodes.
_CLUSTERS, _POLICIES, _LOCAL, _PARTITIONED, _SCHEMAS = (
    "/admin/clusters",
    "/admin/policies",
    "/admin/local-policies",
    "/admin/partitioned-topics",
    "/schemas",
)
_PARTITION = re.compile(r"-partition-[0-9]+$")


class Plan:
    """Topics, ledgers and nodes to export, and the converted cursors."""

    def __init__(self, storage: Storage, report: Report, limits: ExpansionLimits) -> None:
        self._storage = storage
        self._limits = limits
        self._report = report
        self._told: set[Damage] = set()
        self._nodes = self._read_nodes()
        self._dump = MetadataDump(self._nodes, self._tell, limits=limits)
        # Node paths by topic name.
        self.topics: dict[str, str] = {}
        self.nodes: dict[str, DumpNode] = {}
        self._asked: set[int] = set()
        self.ledgers: set[int] = set()
        self.snapshots: dict[int, SnapshotLedger] = {}
        self.converted = 0

    def _read_nodes(self) -> dict[str, DumpNode]:
        """Read all nodes except those below ``/ledgers``; a store holds the metadata of ledgers elsewhere."""
        found: dict[str, DumpNode] = {}
        for path in self._storage.node_paths("/"):
            if _is_below(path, "/ledgers"):
                continue
            try:
                node = self._storage.node(path)
            except StoreDamagedError as error:
                self._tell(Damage("", -1, f"node {path}: {error}"))
                continue
            if node is not None:
                found[path] = DumpNode(path, *node)
        return found

    def _tell(self, damage: Damage) -> None:
        """Report damage from the dump, which has no file here."""
        self._tell_once(damage._replace(file=self._storage.path, offset=-1, what=damage.what.removeprefix("line 0: ")))

    def _tell_once(self, damage: Damage) -> None:
        """Report damage only the first time it is found."""
        if damage not in self._told:
            self._told.add(damage)
            self._report(damage)

    def ledger(self, ledger_id: int) -> StoredLedger | None:
        try:
            return StoredLedger.find(self._storage, ledger_id)
        except (MetadataSerializationError, StoreDamagedError) as error:
            self._tell(Damage("", -1, str(error), ledger_id))
            return None

    def _is_there(self, ledger_id: int) -> bool:
        """Return True if the ledger exists, readable or not."""
        if not 0 <= ledger_id <= schema.MAX_LEDGER_ID:
            return False
        try:
            return self._storage.metadata(ledger_id) is not None
        except StoreDamagedError:
            return True

    # -- choosing ----------------------------------------------------------------------------------------------------

    def choose(self, topics: Iterable[str] | None, ledgers: Iterable[int] | None) -> None:
        if topics is None and ledgers is None:
            # Records at other paths are not topics of a store.
            self.topics = {name: path for name in self._dump.topics if (path := node_of(name)) in self._nodes}
            self.nodes = dict(self._nodes)
            self.ledgers = set(self._storage.ledger_ids())
            for name in self.topics:
                self._choose_named(name)
            return
        for ledger_id in ledgers or ():
            if not self._is_there(ledger_id):
                raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
            self._asked.add(ledger_id)
        self.ledgers |= self._asked
        for name in topics or ():
            for partition in self._partitions(_full_name(name)):
                self.topics[partition] = node_of(partition)
        if self.topics:
            self._choose_nodes()
            for name in self.topics:
                self._choose_named(name)
            self._choose_labelled()

    def _partitions(self, name: str) -> list[str]:
        if node_of(name) in self._nodes:
            return [name]
        if name not in self._dump.partitioned:
            raise NoSuchNodeError(f"there is no topic {name!r}")
        names = [f"{name}-partition-{number}" for number in range(self._dump.partitioned[name])]
        # Partitions that were never written to do not exist yet.
        return [one for one in names if node_of(one) in self._nodes]

    def _choose_nodes(self) -> None:
        paths = set(self.topics.values())
        about = {path for name in self.topics for path in _about(name)}
        for path, node in self._nodes.items():
            of_topic = path in paths or path.rpartition("/")[0] in paths
            if of_topic or path in about or _is_below(path, _CLUSTERS):
                self.nodes[path] = node

    def _named_by_cursor(self, name: str, cursor: str) -> set[int]:
        info = self._dump.cursor_info(name, cursor)
        named = {info.cursor_ledger_id, *extensions_of(info).former}
        for key, value in info.cursor_properties:
            if key.startswith(INTERNAL_PREFIX) and value.isascii() and value.isdecimal():
                named.add(int(value))
        nacks = self._nodes.get(log.node_of(log.nack_name(name, cursor)))
        if nacks is not None:
            self.nodes[nacks.path] = nacks
            if nacks.value.isdigit():
                named.add(int(nacks.value))
        return named

    def _choose_named(self, name: str) -> None:
        """Choose the ledgers that a topic's records name."""
        if name in self._dump.unreadable_topics:
            return
        named = {ledger.ledger_id for ledger in self._dump.topic_info(name).ledgers}
        for cursor in self._dump.cursors(name):
            named |= self._named_by_cursor(name, cursor)
        for ledger_id in sorted(named):
            if self._is_there(ledger_id):
                self.ledgers.add(ledger_id)
            elif ledger_id >= 0:
                self._tell_once(Damage(name, -1, "a ledger of it does not exist", ledger_id))

    def _choose_labelled(self) -> None:
        """Choose the ledgers with labels of the topics, including ledgers that no record names."""
        paths = set(self.topics.values())
        schemas = {node_of(_base(name)) for name in self.topics}
        for ledger_id in self._storage.ledger_ids():
            ledger = self.ledger(ledger_id)
            content = None if ledger is None else by_labels(ledger.metadata.custom_metadata)
            if content is None or not content.topic:
                continue
            is_schema = content.kind == SCHEMA
            name = f"persistent://{content.topic}" if is_schema else content.topic
            try:
                path = node_of(name)
            except IncorrectParameterError:
                continue
            if path in (schemas if is_schema else paths):
                self.ledgers.add(ledger_id)

    # -- cursors -----------------------------------------------------------------------------------------------------

    def use_old_form(self) -> None:
        """Convert the records of cursors, and drop the ledgers that only they need."""
        new_ids = self._new_ledger_ids()
        for name in self.topics:
            if name in self._dump.unreadable_topics:
                continue
            topic = StoredTopic(name, self._dump.topic_info(name), self.ledger, self._tell_once, self._limits)
            for cursor in self._dump.cursors(name):
                info = self._dump.cursor_info(name, cursor)
                path = cursor_node_of(name, cursor)
                # Records at other paths are not cursors that a store can open.
                if path in self._nodes:
                    self._convert(path, in_old_form(topic, cursor, info, lambda: next(new_ids)))

    def _convert(self, path: str, converted: OldForm) -> None:
        self.nodes[path] = self._nodes[path]._replace(value=converted.record)
        self.ledgers -= converted.superseded - self._asked
        if converted.superseded or converted.ledger is not None:
            self.converted += 1
        if converted.ledger is not None:
            self.snapshots[converted.ledger.id] = converted.ledger

    def _new_ledger_ids(self) -> Iterator[int]:
        following = self._storage.meta(schema.META_NEXT_LEDGER)
        ledger_id = int.from_bytes(following or b"", "big")
        while True:
            if not self._is_there(ledger_id):
                yield ledger_id
            ledger_id += 1

    # -- the end -----------------------------------------------------------------------------------------------------

    def check_unchanged(self) -> None:
        """Raise :class:`StoreInUseError` if exported nodes or ledgers changed during the export."""
        for path in self.nodes:
            node = self._nodes[path]
            # Compare values too: a node that was deleted and created again has the same version.
            if self._storage.node(path) != (node.value, node.version):
                raise StoreInUseError(f"node {path} changed while it was exported: export a backup of the store")
        for ledger_id in self.ledgers:
            if not self._is_there(ledger_id):
                raise StoreInUseError(f"ledger {ledger_id} was deleted while it was exported: export a backup")


def _is_below(path: str, root: str) -> bool:
    """Return True for the root itself and for paths below it."""
    return path == root or path.startswith(f"{root}/")


def _full_name(name: str) -> str:
    """Return the name as the dump has it."""
    tenant, namespace, topic = parts_of(name)
    return f"persistent://{tenant}/{namespace}/{topic}" if tenant else topic


def _base(name: str) -> str:
    """Return the partitioned topic of a partition, otherwise the topic itself."""
    return _PARTITION.sub("", name)


def _about(name: str) -> Iterator[str]:
    """Yield the paths of nodes about a topic that are not below its own node."""
    tenant, namespace, _ = parts_of(name)
    if tenant:
        for root in (_POLICIES, _LOCAL):
            yield f"{root}/{tenant}"
            yield f"{root}/{tenant}/{namespace}"
        topic = node_of(_base(name)).rpartition("/")[2]
        yield f"{_PARTITIONED}/{tenant}/{namespace}/persistent/{topic}"
        yield f"{_SCHEMAS}/{tenant}/{namespace}/{topic}"
