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

    @property
    def settled_unseen(self) -> int:
        """Number of messages that were acknowledged without being dispatched."""
        return self.expired + self.dead_lettered


@dataclass(frozen=True)
class SubscriptionStats:
    """``backlog`` counts entries that are not acknowledged, wherever they are; the others say where, and ``waiting``
    includes what a pause of dispatch holds back. From ``delivered`` on they count what happened since the subscription
    was opened: messages, and entries for all but that.

    ``pause_reasons`` are ``"state_size"`` (the cursor's state is at its limit) and ``"left_out"`` (the limits of the
    old form leave ranges or batches out). ``entries_to_resume`` is a number of entries, the lowest that are not
    acknowledged, whose acknowledgment ends the pause once it is written: 0 without a pause, None where no
    acknowledgment ends it."""

    backlog: int
    delayed: int
    out: int
    waiting: int
    nacked: int
    paused: bool
    pause_reasons: tuple[str, ...]
    entries_to_resume: int | None
    delivered: int
    redelivered: int
    acked: int
    expired: int
    dead_lettered: int
