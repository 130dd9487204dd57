"""Figures of a subscription at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bookstand.managed_ledger.topic_name import parts_of
from bookstand.storage.metrics import COUNTER, GAUGE, Family, Sample


@dataclass
class Counters:
    """What happened since the subscription was opened. ``delivered`` and ``redelivered`` are messages."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    dead_lettered: int = 0
    skipped: int = 0

    @property
    def acked_undelivered(self) -> int:
        """Number of messages that were acknowledged without being dispatched."""
        return self.expired + self.dead_lettered + self.skipped


@dataclass(frozen=True)
class SubscriptionStats:
    """``backlog`` counts entries that are not acknowledged, wherever they are; the others say where. ``delayed``
    counts entries as far as the subscription has read, those that are due included until they are received;
    ``waiting`` includes what a pause of dispatch holds back; ``unreadable`` are damaged entries that were met since
    the subscription was opened and are not acknowledged. From ``delivered`` on they count what happened since the
    subscription was opened: messages, and entries for all but that; ``skipped`` are damaged entries that were
    acknowledged unread.

    ``pause_reasons`` are ``"state_size"`` (the cursor's state is at its limit) and ``"left_out"`` (the limits of the
    old form leave ranges or batches out). ``entries_to_resume`` is a number of entries, the lowest that are not
    acknowledged, whose acknowledgment ends the pause once it is written: 0 without a pause, None where no
    acknowledgment ends it."""

    backlog: int
    delayed: int
    out: int
    waiting: int
    nacked: int
    unreadable: int
    paused: bool
    pause_reasons: tuple[str, ...]
    entries_to_resume: int | None
    delivered: int
    redelivered: int
    acked: int
    expired: int
    dead_lettered: int
    skipped: int


_LABELS = ("namespace", "topic", "subscription")
UNREADABLE = Family(
    "bookstand_subscription_unreadable_entries",
    GAUGE,
    "damaged entries that were met since the subscription was opened and are not acknowledged",
    _LABELS,
)
SKIPPED = Family(
    "bookstand_subscription_skipped_entries_total",
    COUNTER,
    "damaged entries that were acknowledged unread since the subscription was opened",
    _LABELS,
)


def samples(unreadable: int, skipped: int, topic: str, subscription: str) -> Iterator[Sample]:
    tenant, namespace, _ = parts_of(topic)
    labels = {"namespace": f"{tenant}/{namespace}" if tenant else "", "topic": topic, "subscription": subscription}
    for family, value in ((UNREADABLE, unreadable), (SKIPPED, skipped)):
        yield Sample(family, family.name, labels, float(value))
