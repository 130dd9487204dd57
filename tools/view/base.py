"""Common view of stores and bookies' disks.

Both have ledgers with metadata, nodes with the records of topics and cursors, and damage. The readers of
:mod:`bookstand.disk` need nothing else, so they also read topics, cursors and buckets from stores. Damage to one part
never hides the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

from bookstand.disk.bookies.disk_ledger import StoredEntry
from bookstand.disk.bookies.ledger_end import LedgerEnd
from bookstand.disk.damage import Damage
from bookstand.disk.metadata.dump import DumpNode, MetadataDump
from bookstand.disk.topics import ledger_kind as contents
from bookstand.disk.topics.cursors import DiskCursor, LedgerState, in_ledger
from bookstand.disk.topics.cursors import cursors as cursors_of
from bookstand.disk.topics.delayed import DelayedIndex
from bookstand.disk.topics.delayed import delayed as delayed_of
from bookstand.disk.topics.ledger_kind import Group, LedgerKind
from bookstand.disk.topics.topics import DiskTopic, grouped
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.errors import IncorrectParameterError, NoSuchEntryError, NoSuchNodeError
from bookstand.managed_ledger.records import CursorInfo
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.format.ledger_metadata import LedgerMetadata
from bookstand.storage.format.position import Position
from bookstand.tools.cli.damage_report import DamageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bookstand.disk.disks import Disks


class Ledger(Protocol):
    """Ledger of a store or of disks. Each entry is read from one copy; damaged entries are reported instead of
    returned."""

    @property
    def id(self) -> int: ...
    @property
    def metadata(self) -> LedgerMetadata | None: ...
    @property
    def extent(self) -> LedgerEnd: ...
    @property
    def fenced(self) -> bool: ...
    @property
    def master_key(self) -> bytes | None: ...
    @property
    def digest_name(self) -> str | None: ...
    def entries(self, first: int = 0, last: int | None = None, *, beyond: bool = False) -> Iterator[StoredEntry]: ...


class Source(Protocol):
    """Source of ledgers and nodes."""

    damage: list[Damage]
    limits: ExpansionLimits

    @property
    def dump(self) -> MetadataDump | None: ...
    @property
    def ledger_ids(self) -> list[int]: ...
    def ledger(self, ledger_id: int) -> Ledger: ...


class LedgerFacts(NamedTuple):
    ledger: int
    kind: str
    topic: str
    cursor: str
    state: str
    entries: int
    bytes: int
    last_entry: int
    ensemble_size: int | None
    write_quorum: int | None
    ack_quorum: int | None
    ensemble: list[str]
    digest: str | None
    created: int | None
    fenced: bool
    damage: list[str]


class VerifyResult(NamedTuple):
    """Result of a verification. ``findings`` are damage; ``notes`` are remarks about other conditions."""

    findings: list[Damage]
    notes: list[str]
    counts: dict[str, int]


class View(ABC):
    """Context manager for inspecting a store or disks."""

    kind: str
    """``store`` or ``bookie``."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path = path
        self.source = source
        self.notes: list[str] = []
        """Remarks for the user that are not damage."""
        self.suspects: set[int] = set()
        """Ledgers in which damage was found."""
        self._contents: dict[int, LedgerKind] = {}
        # The disk readers only use what the Source protocol has.
        self._disks = cast("Disks", source)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    # -- overview ------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def title(self) -> str:
        """Return a one-line description of the store or disks."""

    @property
    def hint(self) -> str | None:
        """Option that would give more information."""
        return None

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return the facts about the store or disks as a whole."""

    @abstractmethod
    def files(self) -> list[dict[str, Any]]:
        """Return the files."""

    @property
    def damage(self) -> list[Damage]:
        """Damage found so far, without duplicates."""
        return list(dict.fromkeys(self.source.damage))

    # -- ledgers -------------------------------------------------------------------------------------------------------

    def ledger_ids(self) -> list[int]:
        return self.source.ledger_ids

    def ledger(self, ledger_id: int) -> Ledger:
        return self.source.ledger(ledger_id)

    @cached_property
    def _known(self) -> set[int]:
        return set(self.source.ledger_ids)

    def content(self, ledger: Ledger) -> LedgerKind:
        """Return what the ledger contains, such as a topic's messages or a cursor's states."""
        found = self._contents.get(ledger.id)
        if found is None:
            # Without labels, this reads entries of the ledger.
            found = contents.content_of(cast("Any", ledger), self._known.__contains__)
            self._contents[ledger.id] = found
        return found

    def describe(self, ledger_id: int) -> LedgerFacts:
        ledger = self.ledger(ledger_id)
        what, metadata, extent = self.content(ledger), ledger.metadata, ledger.extent
        return LedgerFacts(
            ledger_id,
            what.kind,
            what.topic,
            what.cursor,
            self.state_of(ledger),
            extent.last_entry + 1 - (extent.missing.ids if len(extent.missing) else 0),
            extent.length,
            extent.last_entry,
            None if metadata is None else metadata.ensemble_size,
            None if metadata is None else metadata.write_quorum_size,
            None if metadata is None else metadata.ack_quorum_size,
            [] if metadata is None else list(metadata.ensembles[-1][1]),
            ledger.digest_name,
            None if metadata is None or metadata.ctime <= 0 else metadata.ctime,
            ledger.fenced,
            self.marks(ledger),
        )

    def state_of(self, ledger: Ledger) -> str:
        return ledger.extent.state

    def marks(self, ledger: Ledger) -> list[str]:
        """Return the known damage of a ledger, without reading it."""
        found = self._marks(ledger)
        if found:
            self.suspects.add(ledger.id)
        return found

    @abstractmethod
    def _marks(self, ledger: Ledger) -> list[str]: ...

    def entries(self, ledger: Ledger, first: int, last: int | None, beyond: bool = False) -> Iterator[StoredEntry]:
        """Yield entries of a ledger. Lost entries are reported as damage, or noted if they may exist elsewhere."""
        return ledger.entries(first, last, beyond=beyond)

    @abstractmethod
    def payload_sizes(self, ledger_id: int) -> Iterator[NDArray[np.int64]]:
        """Yield the payload sizes of a ledger's entries, in chunks."""

    @abstractmethod
    def copies(self, ledger_id: int, entry_id: int) -> list[dict[str, Any]]:
        """Return the locations of an entry's copies."""

    def entry(self, ledger_id: int, entry_id: int) -> StoredEntry:
        """Return one entry, also after the ledger's end."""
        ledger = self.ledger(ledger_id)
        for entry in self.entries(ledger, entry_id, entry_id, beyond=True):
            return entry
        reported = [one.what for one in self.damage if (one.ledger_id, one.entry_id) == (ledger_id, entry_id)]
        if reported:
            raise DamageError(f"entry {ledger_id}:{entry_id} cannot be read: {reported[0]}")
        if any(first <= entry_id <= last for first, last in ledger.extent.missing):
            raise DamageError(f"entry {ledger_id}:{entry_id} is lost: no copy was found")
        raise NoSuchEntryError(f"ledger {ledger_id} has no entry {entry_id}; it ends at {ledger.extent.last_entry}")

    # -- topics --------------------------------------------------------------------------------------------------------

    @property
    def names_topics(self) -> bool:
        """True if there is metadata; names of topics and cursors are only stored there."""
        return self.source.dump is not None

    @cached_property
    def _groups(self) -> dict[str, Group]:
        found = contents.groups(self._disks)
        return {grouped(self._disks, group).name: group for group in found}

    def topics(self) -> list[str]:
        """Return the names of topics; without metadata, of groups of ledgers that belong together."""
        return self.source.dump.topics if self.source.dump is not None else list(self._groups)

    def find_topic(self, wanted: str) -> str:
        """Return the full name of a topic, given that name or an unambiguous suffix."""
        names = self.topics()
        if wanted in names:
            return wanted
        like = [name for name in names if name.endswith(f"/{wanted}")]
        if len(like) == 1:
            return like[0]
        if like:
            raise IncorrectParameterError(f"several topics are called {wanted!r}: {', '.join(like)}")
        if self.source.dump is None:
            raise NoSuchNodeError(f"without metadata the names of topics are unknown, including {wanted!r}")
        raise NoSuchNodeError(f"there is no topic {wanted!r}")

    def topic(self, name: str) -> DiskTopic:
        """Return a topic by its full name."""
        if self.source.dump is None:
            return grouped(self._disks, self._groups[name])
        return topic_of(self._disks, name)

    # -- cursors -------------------------------------------------------------------------------------------------------

    def cursors(self, name: str) -> Iterator[DiskCursor]:
        """Yield the cursors of a topic; without metadata, those recognized in ledgers."""
        topic = self.topic(name)
        if self.source.dump is not None:
            yield from cursors_of(topic)
            return
        for ledger_id in self._groups[name].cursors:
            ledger = topic.ledger(ledger_id)
            found = None if ledger is None else in_ledger(ledger, topic.entry_counts, limits=self.source.limits)
            if isinstance(found, LedgerState):
                info = CursorInfo(ledger_id)
                yield DiskCursor(topic, f"ledger {ledger_id}", info, found.state, found.source, ledger_id, {})

    def delayed(self, name: str, now: int | None = None) -> Iterator[DelayedIndex]:
        """Yield the delayed messages of each subscription of a topic. ``now`` is in ms and defaults to
        :attr:`default_now`."""
        if self.source.dump is None:
            raise IncorrectParameterError(
                "without metadata it is unknown which buckets are in use: pass the dump with --metadata"
            )
        yield from delayed_of(self.topic(name), self.default_now if now is None else now)

    @property
    @abstractmethod
    def default_now(self) -> int:
        """Default time, in ms, for deciding which messages are delayed."""

    def leftover_buckets(self) -> list[int]:
        """Return ledgers of bucket snapshots that no cursor refers to: merged into others, or orphaned."""
        named: set[int] = set()
        for name in self.topics():
            for index in self.delayed(name, 0):
                named.update(bucket.ledger_id for bucket in index.buckets)
        return [
            ledger_id
            for ledger_id in self.ledger_ids()
            if ledger_id not in named and self.content(self.ledger(ledger_id)).kind == contents.BUCKET
        ]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @property
    def node_count(self) -> int | None:
        """Number of nodes; None without metadata."""
        return None if self.source.dump is None else len(self.source.dump.nodes)

    def nodes(self) -> Iterator[DumpNode]:
        """Return all nodes, sorted by path."""
        return map(itemgetter(1), sorted(self._dump.nodes.items()))

    @property
    def _dump(self) -> MetadataDump:
        if self.source.dump is None:
            raise IncorrectParameterError("nodes are in the metadata: pass the dump with --metadata")
        return self.source.dump

    def node(self, path: str) -> dict[str, Any]:
        dump = self._dump
        node = dump.nodes.get(path)
        below = sorted(set(_children(dump, path)))
        if node is None and not below:
            raise NoSuchNodeError(f"there is no node {path}")
        facts: dict[str, Any] = {"path": path, "children": below}
        if node is not None:
            facts |= {"version": node.version, "created": node.ctime, "changed": node.mtime, "value": node.value}
        return facts

    # -- verification --------------------------------------------------------------------------------------------------

    @abstractmethod
    def verify(self, messages: bool = False) -> VerifyResult:
        """Read and check everything. ``messages``: also check the messages' own checksums."""

    def _verify_topics(self, messages: bool) -> dict[str, int]:
        """Check topics, cursors and buckets; damage is reported to the source. Return the number of objects read."""
        counts = {"topics": 0, "cursors": 0, "buckets": 0}
        for name in self.topics():
            topic = self.topic(name)
            counts["topics"] += 1
            for info in topic.info.ledgers:
                if info.entries and topic.ledger(info.ledger_id) is None:
                    topic.report(f"its {info.entries} entries are unavailable", info.ledger_id)
            if messages:
                counts["messages"] = counts.get("messages", 0) + sum(one.count for one in topic.messages())
            counts["cursors"] += sum(1 for _ in self.cursors(name))
            if not self.names_topics:
                continue
            for index in self.delayed(name, 0):
                for bucket in index.buckets:
                    counts["buckets"] += 1
                    for _ in bucket.segments():
                        pass
        return counts


def _children(dump: MetadataDump, path: str) -> Iterator[str]:
    prefix = path.rstrip("/") + "/"
    for name in dump.nodes:
        if name.startswith(prefix) and name != prefix:
            yield name[len(prefix) :].partition("/")[0]


def position_of(text: str) -> Position | None:
    """Parse ``ledger:entry``; return None for other text."""
    ledger_id, colon, entry_id = text.partition(":")
    if colon and ledger_id.isdecimal() and entry_id.isdecimal() and text.isascii():
        return Position(int(ledger_id), int(entry_id))
    return None


def ledger_of(text: str) -> int | None:
    return int(text) if text.isdecimal() and text.isascii() else None
