"""Ledgers, topics and cursors in a dump of the metadata store, without their entries.

:mod:`bookstand.disk.metadata.dump_file` reads the lines. An unreadable record is reported and affects only its ledger,
topic or cursor. Node paths are defined in :mod:`bookstand.ledger.cluster.ledger_path` for ledgers, and in
:mod:`bookstand.managed_ledger.topic_name` for topics and cursors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from bookstand.disk.damage import Damage, Report
from bookstand.disk.metadata.dump_file import DumpLine, DumpNode, object_of, read_nodes, write_dump
from bookstand.errors import MalformedError, MetadataSerializationError, NoSuchNodeError
from bookstand.ledger.cluster.ledger_path import ROOT as LEDGERS_ROOT
from bookstand.ledger.cluster.ledger_path import ledger_id_of, ledger_path
from bookstand.managed_ledger import topic_name
from bookstand.managed_ledger.records import CursorInfo, ManagedLedgerInfo, decode_cursor_info, decode_ledger_info
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format import ledger_metadata
from bookstand.storage.format.ledger_metadata import LedgerMetadata

__all__ = ["MetadataDump", "DumpNode", "ledger_id_of", "ledger_path", "write_dump"]

_Record = TypeVar("_Record", ManagedLedgerInfo, CursorInfo)

_COOKIES = "/ledgers/cookies/"
_PARTITIONED = "/admin/partitioned-topics/"


class MetadataDump:
    """Nodes of a dump and the records in them. Records are decoded on first access; a damaged one is reported then,
    once."""

    def __init__(
        self,
        nodes: Mapping[str, DumpNode],
        report: Report,
        sources: Mapping[str, DumpLine] | None = None,
        damaged: Iterable[str] = (),
        limits: ExpansionLimits = DEFAULT,
    ) -> None:
        """``damaged`` lists the paths of nodes with unreadable values."""
        self._limits = limits
        self.nodes = nodes
        self.damaged = tuple(damaged)
        self._report = report
        self._sources = sources or {}

    @classmethod
    def open(cls, path: str | os.PathLike[str], report: Report, limits: ExpansionLimits = DEFAULT) -> MetadataDump:
        """Read the dump at ``path``: a file, or a folder of several files."""
        nodes: dict[str, DumpNode] = {}
        sources: dict[str, DumpLine] = {}
        for source, node in read_nodes(Path(path), report):
            before = nodes.get(node.path)
            if before is not None:
                first = sources[node.path]
                what = f"line {source.line}: node {node.path} is in line {first.line} of {first.file}, too"
                report(Damage(source.file, source.offset, f"{what}; the newer one counts"))
                if (node.version, node.mtime) <= (before.version, before.mtime):
                    continue
            nodes[node.path] = node
            sources[node.path] = source
        return cls(nodes, report, sources, limits=limits)

    ledger_path = staticmethod(ledger_path)
    ledger_id_of = staticmethod(ledger_id_of)

    # -- ledgers and bookies -----------------------------------------------------------------------------------------

    @cached_property
    def ledgers(self) -> Mapping[int, LedgerMetadata]:
        """Metadata of the ledgers by id, ascending."""
        found: dict[int, LedgerMetadata] = {}
        for node in self.nodes.values():
            ledger_id = ledger_id_of(node.path)
            if ledger_id is None:
                if node.path.startswith(LEDGERS_ROOT) and node.value and re.search(r"/L[0-9]+$", node.path):
                    self._report(self._damage(node, "it is called like a ledger's node, but has no ledger's id"))
                continue
            if ledger_id in found and node.path != ledger_path(ledger_id):
                self._report(self._damage(node, "the ledger has another node, which counts", ledger_id))
                continue
            try:
                read = ledger_metadata.parse(node.value, ledger_id, node.ctime or None, node.version)
            except MetadataSerializationError as error:
                self._report(self._damage(node, str(error), ledger_id))
                continue
            if ledger_id in found:
                self._report(self._damage(node, "the ledger has another node, which does not count", ledger_id))
            found[ledger_id] = read
        return dict(sorted(found.items()))

    @cached_property
    def bookies(self) -> list[str]:
        """Names of the bookies with a cookie in the metadata store."""
        return sorted(path.removeprefix(_COOKIES) for path in self.nodes if path.startswith(_COOKIES))

    # -- topics and cursors ------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[str]:
        """Names of the topics with readable records."""
        return [name for name, info in self._topics.items() if info is not None]

    @property
    def unreadable_topics(self) -> list[str]:
        """Names of the topics with damaged records; their cursors may be readable."""
        return [name for name, info in self._topics.items() if info is None]

    def topic_info(self, name: str) -> ManagedLedgerInfo:
        info = self._topics.get(name)
        if info is None:
            raise NoSuchNodeError(f"there is no topic {name!r} in the dump whose record can be read")
        return info

    def cursors(self, name: str) -> list[str]:
        """Return the names of a topic's cursors with readable records."""
        return list(self._cursors.get(name, ()))

    def unreadable_cursors(self, name: str) -> list[str]:
        """Return the names of a topic's cursors with damaged records."""
        readable = self._cursors.get(name, {})
        found = set()
        for path in (*self.nodes, *self.damaged):
            above, _, last = path.rpartition("/")
            if self._topic_at.get(above) == name:
                found.add(topic_name.cursor_of(last))
        return sorted(found.difference(readable))

    def cursor_info(self, name: str, cursor: str) -> CursorInfo:
        info = self._cursors.get(name, {}).get(cursor)
        if info is None:
            raise NoSuchNodeError(f"there is no cursor {cursor!r} of {name!r} in the dump whose record can be read")
        return info

    def place_of(self, path: str) -> tuple[str, str | None] | None:
        """Return the topic, or the topic and cursor, with a node at ``path``; None for any other node."""
        topic = self._topic_at.get(path)
        if topic is not None:
            return topic, None
        above, _, last = path.rpartition("/")
        topic = self._topic_at.get(above)
        return None if topic is None else (topic, topic_name.cursor_of(last))

    @cached_property
    def _topics(self) -> dict[str, ManagedLedgerInfo | None]:
        """Topic records by name; None for a damaged record."""
        return {
            name: self._decoded(self.nodes[path], decode_ledger_info, f"the record of the topic {name}")
            for name, path in sorted(self._topic_nodes.items())
        }

    @cached_property
    def _cursors(self) -> dict[str, dict[str, CursorInfo]]:
        """Readable cursor records by topic and cursor."""
        found: dict[str, dict[str, CursorInfo]] = {}
        for path in sorted(self.nodes):
            above, _, last = path.rpartition("/")
            topic = self._topic_at.get(above)
            if topic is None:
                if self.nodes[path].value and path not in self._topic_at and path.startswith(topic_name.ROOT + "/"):
                    self._report(self._damage(self.nodes[path], "it is neither a topic's node nor below one's"))
                continue
            cursor = topic_name.cursor_of(last)
            what = f"the record of the cursor {cursor} of {topic}"
            info = self._decoded(self.nodes[path], decode_cursor_info, what)
            if info is not None:
                found.setdefault(topic, {})[cursor] = info
        return found

    @cached_property
    def _topic_nodes(self) -> dict[str, str]:
        """Node paths by topic name."""
        found: dict[str, str] = {}
        for path, node in self.nodes.items():
            name = _name_below(topic_name.ROOT + "/", path, node.value)
            if name is None:
                continue
            if name in found:
                self._report(self._damage(node, f"the topic {name} has another node, which counts"))
            found.setdefault(name, path)
        return found

    @cached_property
    def _topic_at(self) -> dict[str, str]:
        """Topic names by node path."""
        return {path: name for name, path in self._topic_nodes.items()}

    @cached_property
    def partitioned(self) -> Mapping[str, int]:
        """Numbers of partitions by name of the partitioned topic."""
        found: dict[str, int] = {}
        for path, node in sorted(self.nodes.items()):
            name = _name_below(_PARTITIONED, path)
            if name is None:
                continue
            partitions = object_of(node.value).get("partitions")
            if type(partitions) is not int or partitions < 0:
                self._report(self._damage(node, "it does not say how many partitions the topic has"))
            else:
                found[name] = partitions
        return found

    def _decoded(
        self, node: DumpNode, decode: Callable[[bytes, str, ExpansionLimits], _Record], what: str
    ) -> _Record | None:
        try:
            return decode(node.value, what, self._limits)
        except MalformedError as error:
            self._report(self._damage(node, str(error)))
            return None

    def _damage(self, node: DumpNode, what: str, ledger_id: int = -1) -> Damage:
        file, line, offset = self._sources.get(node.path, DumpLine("metadata", 0, 0))
        return Damage(file, offset, f"line {line}: node {node.path}: {what}", ledger_id)


def _name_below(root: str, path: str, value: bytes = b"") -> str | None:
    """Return the name of the topic with a node at ``path`` below ``root``. A one-level name, which Pulsar does not use,
    is distinguished from a tenant by its value: nodes of tenants are empty."""
    encoded = path.removeprefix(root)
    if encoded == path or "//" in encoded:
        return None
    tenant, namespace, topic = topic_name.parts_of(encoded)
    if tenant:
        return f"persistent://{tenant}/{namespace}/{topic}"
    return topic_name.cursor_of(encoded) if value and "/" not in encoded else None
