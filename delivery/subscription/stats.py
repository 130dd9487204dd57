"""Statistics of a subscription."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bookstand.managed_ledger.topic_name import parts_of
from bookstand.storage.metrics import COUNTER, GAUGE, Family, Sample


@dataclass
class Counters:
    """Counters since the subscription was opened. ``delivered`` and ``redelivered`` count messages."""

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
    """Counts of messages by state, and counters since the subscription was opened.

    - ``backlog``: unacknowledged entries in any state.
    - ``delayed``: delayed entries up to the read position, including due ones that have not been received.
    - ``out``: messages in flight.
    - ``waiting``: messages in the replay queue, including the ones held back by a pause.
    - ``nacked``: negatively acknowledged messages.
    - ``unreadable``: unacknowledged damaged entries that were found since the subscription was opened.
    - ``delivered`` to ``skipped`` are counters. ``delivered`` counts messages, the others count entries. ``skipped``
      are damaged entries that were acknowledged without being read.

    ``pause_reasons`` are ``"state_size"`` (the cursor's state is at its limit) and ``"left_out"`` (the limits of the
    old snapshot format exclude ranges or batches). ``entries_to_resume`` is the number of lowest unacknowledged entries
    whose acknowledgment ends the pause once it is written: 0 without a pause, None if no acknowledgment ends it.
    """

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
    "unacknowledged damaged entries that were found since the subscription was opened",
    _LABELS,
)
SKIPPED = Family(
    "bookstand_subscription_skipped_entries_total",
    COUNTER,
    "damaged entries that were acknowledged without being read since the subscription was opened",
    _LABELS,
)


def samples(unreadable: int, skipped: int, topic: str, subscription: str) -> Iterator[Sample]:
    tenant, namespace, _ = parts_of(topic)
    labels = {"namespace": f"{tenant}/{namespace}" if tenant else "", "topic": topic, "subscription": subscription}
    for family, value in ((UNREADABLE, unreadable), (SKIPPED, skipped)):
        yield Sample(family, family.name, labels, float(value))
