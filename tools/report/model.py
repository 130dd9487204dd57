"""What a report tells: plain values, of a size that does not grow with the number of entries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bookstand.delivery.tracker.shared_index import BUILDER
from bookstand.disk.damage import Damage
from bookstand.disk.metadata.dump import DumpNode
from bookstand.tools.report.histogram import CoverageStrip, Histogram
from bookstand.tools.report.ledgers import Ledgers
from bookstand.tools.view.delayed_summary import DelayedSummary


class Topic(NamedTuple):
    """``cursors``: of all kinds, the broker's own as well."""

    name: str
    ledgers: int
    entries: int
    bytes: int
    cursors: int


class LedgerAcks(NamedTuple):
    """One ledger of a topic as a subscription sees it."""

    ledger: int
    entries: int
    acked: int
    holes: int

    @property
    def left(self) -> int:
        return self.entries - self.acked


class Pages(NamedTuple):
    """The pages of a cursor: one for each ledger in which something is acknowledged singly. ``fit``: how many of them
    are in memory once the cursor is opened, with the cache that cursors have unless told otherwise."""

    number: int
    bytes: int
    fit: int
    limit: int


class CacheCounts(NamedTuple):
    """How often pages were asked for in a running process, and were in memory or not."""

    hits: int
    misses: int

    @property
    def ratio(self) -> float | None:
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass
class Subscription:
    """``holes``: runs of entries that are acknowledged behind the mark-delete position, ``acked`` how many entries are
    in them. ``strip``: all entries of the topic in a line, and which are acknowledged."""

    topic: str
    name: str
    mark_delete: str
    backlog: int
    entries: int
    holes: int
    acked: int
    batches: int
    source: str
    pages: Pages
    asked: CacheCounts | None
    strip: CoverageStrip | None = None
    ledgers: list[LedgerAcks] = field(default_factory=list)
    """In the order of the topic."""


@dataclass
class Delayed:
    """What waits for one subscription, and when all of it is due."""

    waiting: DelayedSummary
    times: Histogram | None


@dataclass
class Report:
    """``damage``: what ``verify`` finds; unless ``verified``, what was met on the way. ``read``: how much was read to
    find it. ``opened``: whether it could be looked at at all."""

    kind: str
    title: str
    path: str
    at: int
    version: str
    opened: bool = True
    verified: bool = True
    names_topics: bool = True
    about: dict[str, Any] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ledgers: Ledgers = field(default_factory=Ledgers)
    topics: list[Topic] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    delayed: list[Delayed] = field(default_factory=list)
    times: Histogram | None = None
    """When all is due that waits, of all subscriptions."""
    nodes: list[DumpNode] = field(default_factory=list)
    """The first by their paths, of so many:"""
    node_count: int | None = None
    """None: there is no metadata."""
    leftover: list[int] = field(default_factory=list)
    """Ledgers of bucket snapshots that no subscription names."""

    @property
    def empty(self) -> bool:
        return not (self.ledgers or self.topics or self.subscriptions or self.node_count)

    @property
    def backlog(self) -> int:
        return sum(one.backlog for one in self.subscriptions)

    @property
    def holes(self) -> int:
        return sum(one.holes for one in self.subscriptions)

    @property
    def waiting(self) -> int:
        # The index that subscriptions share has their messages once more.
        return sum(one.waiting.messages for one in self.delayed if one.waiting.subscription != BUILDER)
