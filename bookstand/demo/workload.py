"""Workload of the demo: payload, delay and outcome of each message, derived from its number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MESSAGES = 1_000_000
CONSUMERS = 3
TOPIC, SUBSCRIPTION = "persistent://public/default/orders", "shipping"
MAX_REDELIVERIES = 2
"""Number of redeliveries before a message is moved to the dead-letter topic."""

NACK_DELAY_MILLIS = 500
PUBLISH_BATCH_SIZE = 2_000
RECEIVE_BATCH_SIZE = 1_000
MAX_READY = 20_000
"""Number of deliverable messages in the backlog above which publishing pauses."""

_UNDELAYED_SHARE = 0.75
# The maximum delay is proportional to the number of messages. Its lower bound exceeds the time until the first
# acknowledgments are durable, so that messages remain when the power is cut, even on a fast machine.
_MAX_DELAY_MILLIS = 15_000
_MIN_MAX_DELAY_MILLIS = 4_000


def payload(number: int) -> bytes:
    return b"%08d an order that is to be shipped, not too early and not twice" % number


def number_of(payload: bytes) -> int:
    return int(payload[:8])


def is_poison(number: int) -> bool:
    """Return True for messages that always fail."""
    return number % 1_000 == 503


def fails_once(number: int) -> bool:
    """Return True for messages that fail at their first delivery only."""
    return number % 50 == 7


def poison_numbers(numbers: int) -> set[int]:
    return set(filter(is_poison, range(numbers)))


def batches(first: int, end: int) -> Iterator[range]:
    for start in range(first, end, PUBLISH_BATCH_SIZE):
        yield range(start, min(start + PUBLISH_BATCH_SIZE, end))


def delivery_times(batch: range, now: int, messages: int) -> np.ndarray:
    """Return the delivery time of each message in milliseconds since 1970; 0: no delay."""
    max_delay = max(_MIN_MAX_DELAY_MILLIS, _MAX_DELAY_MILLIS * messages // MESSAGES)
    random = np.random.default_rng(batch.start)
    times = now + random.integers(1, max_delay, len(batch), endpoint=True)
    times[random.random(len(batch)) < _UNDELAYED_SHARE] = 0
    return times


def entries_per_ledger(messages: int) -> int:
    """Return a limit that results in about twenty ledgers."""
    return max(100, messages // 20)
