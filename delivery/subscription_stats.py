"""What there is to know of a subscription at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """What happened since the subscription was opened. ``delivered`` and ``redelivered`` are messages."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    dead_lettered: int = 0


@dataclass(frozen=True)
class SubscriptionStats:
    """``backlog`` counts entries that are not acknowledged, wherever they are; the others say where. ``delayed`` counts
    entries as far as the subscription has read, those that are due included until they are received. From ``delivered``
    on they count what happened since the subscription was opened: messages, and entries for all but that."""

    backlog: int
    delayed: int
    out: int
    waiting: int
    nacked: int
    paused: bool
    delivered: int
    redelivered: int
    acked: int
    expired: int
    dead_lettered: int
