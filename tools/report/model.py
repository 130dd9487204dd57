"""Contents of a report as plain values, whose size does not depend on the number of entries."""

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
    """Summary of a topic. ``cursors`` includes the broker's own."""

    name: str
    ledgers: int
    entries: int
    bytes: int
    cursors: int


class LedgerAcks(NamedTuple):
    """Acknowledgments of a subscription in one ledger of its topic."""

    ledger: int
    entries: int
    acked: int
    holes: int

    @property
    def left(self) -> int:
        return self.entries - self.acked


class Pages(NamedTuple):
    """Acknowledgment pages of a cursor: one for each ledger with individual acknowledgments. ``fit`` is the number that
    an opened cursor loads with the default cache size."""

    number: int
    bytes: int
    fit: int
    limit: int


class CacheCounts(NamedTuple):
    """Cache hits and misses of a cursor in a running process."""

    hits: int
    misses: int

    @property
    def ratio(self) -> float | None:
        asked = self.hits + self.misses
        return self.hits / asked if asked else None


@dataclass
class Subscription:
    """Acknowledgment state of a subscription. ``holes`` counts the runs of acknowledged entries after mark-delete, and
    ``acked`` the entries in them. ``strip`` is the map of acknowledged entries over the whole topic."""

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
    """Delayed messages of one subscription, and the distribution of their due times."""

    waiting: DelayedSummary
    times: Histogram | None


@dataclass
class Report:
    """All facts of a report. ``damage`` has the findings of verify or, unless ``verified``, the damage met while
    collecting. ``read`` counts what verify has read. ``opened`` is False if the store could not be opened."""

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
    """Due times of the delayed messages of all subscriptions."""
    nodes: list[DumpNode] = field(default_factory=list)
    """The first nodes by path."""
    node_count: int | None = None
    """Total number of nodes; None without metadata."""
    leftover: list[int] = field(default_factory=list)
    """Ledgers of bucket snapshots that no subscription refers to."""

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
        # The shared index contains the messages of the subscriptions again.
        return sum(one.waiting.messages for one in self.delayed if one.waiting.subscription != BUILDER)
