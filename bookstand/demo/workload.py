"""What is published, and what is to become of each message: all follows from its number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MESSAGES = 1_000_000
CONSUMERS = 3
TOPIC, SUBSCRIPTION = "persistent://public/default/orders", "shipping"
MAX_REDELIVERIES = 2
"""A message is delivered so often again, and then goes to the dead-letter topic."""

NACK_DELAY_MILLIS = 500
PUBLISHED_AT_ONCE = 2_000
RECEIVED_AT_ONCE = 1_000
MOST_WAITING = 20_000
"""While so many could be consumed and are not, nothing is published."""

_AT_ONCE_SHARE = 0.75
# The longest delay of a million; fewer messages are done sooner, and wait less, but longer than it takes until the
# first acknowledgments are durable: then the power is cut, however fast the machine is.
_LONGEST_DELAY_MILLIS = 15_000
_SHORTEST_LONGEST_MILLIS = 4_000


def payload(number: int) -> bytes:
    return b"%08d an order that is to be shipped, not too early and not twice" % number


def number_of(payload: bytes) -> int:
    return int(payload[:8])


def is_poison(number: int) -> bool:
    """Nobody can handle it."""
    return number % 1_000 == 503


def fails_at_first(number: int) -> bool:
    """It is handled when it comes again."""
    return number % 50 == 7


def poison(numbers: int) -> set[int]:
    return set(filter(is_poison, range(numbers)))


def batches(first: int, end: int) -> Iterator[range]:
    for start in range(first, end, PUBLISHED_AT_ONCE):
        yield range(start, min(start + PUBLISHED_AT_ONCE, end))


def delivery_times(batch: range, now: int, messages: int) -> np.ndarray:
    """When each is to be delivered, in milliseconds since 1970; 0: at once."""
    longest = max(_SHORTEST_LONGEST_MILLIS, _LONGEST_DELAY_MILLIS * messages // MESSAGES)
    random = np.random.default_rng(batch.start)
    times = now + random.integers(1, longest, len(batch), endpoint=True)
    times[random.random(len(batch)) < _AT_ONCE_SHARE] = 0
    return times


def entries_per_ledger(messages: int) -> int:
    """Some twenty ledgers, whatever the size."""
    return max(100, messages // 20)
