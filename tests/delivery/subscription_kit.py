"""A topic and a subscription in a store of their own, with a clock that stands until a test moves it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.delivery.subscription.subscription import ReceivedMessage, Subscription, SubscriptionConfig
from bookstand.delivery.topic import Topic, TopicConfig
from bookstand.errors import BookstandError
from bookstand.storage.format.position import Position
from bookstand.testing import VirtualClock

TOPIC, SUBSCRIPTION = "persistent://public/default/t", "sub"
START = 1_700_000_000_000
"""When a test begins; a time of its own is in milliseconds from there."""
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
# Written only when somebody asks for it.
CURSOR = CursorConfig(flush_interval=1e9)
NACK_BUCKET = 256
"""By less than this a nacked message comes early."""

_BUCKETS = {
    "delayed_delivery_tracker": "bucket",
    "delayed_delivery_min_index_count_per_bucket": 3,
    "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 0.05,
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment": 2,
    "delayed_delivery_max_num_buckets": 3,
}
MODES: dict[str, dict[str, Any]] = {
    "in memory": {"delayed_delivery_tracker": "in_memory"},
    "buckets": _BUCKETS,
    "shared index": _BUCKETS | {"delayed_delivery_shared_index_enabled": True},
}
"""How delayed messages are kept; buckets and segments as small as can be."""


def topic_config(mode: str = "in memory", **settings: Any) -> TopicConfig:
    """Exact to the millisecond, five entries in a ledger, and nothing deleted, unless it is said."""
    exact = {
        "delayed_delivery_tick_time_millis": 1,
        "is_delayed_delivery_deliver_at_time_strict": True,
        "max_entries_per_ledger": 5,
        "trim_consumed": False,
    }
    return TopicConfig(**(MODES[mode] | exact | settings))


def subscription_config(**settings: Any) -> SubscriptionConfig:
    return SubscriptionConfig(**({"cursor": CURSOR} | settings))


class Desk:
    """``topic`` and ``sub`` are open; times are in milliseconds from when it began."""

    def __init__(
        self,
        path: Path | str,
        config: TopicConfig | None = None,
        sub: SubscriptionConfig | None = None,
        **store_options: Any,
    ) -> None:
        self.path = path
        self.clock = VirtualClock(START)
        self.config = topic_config() if config is None else config
        self.sub_config = subscription_config() if sub is None else sub
        self.store_options = store_options
        self.given_up: list[Any] = []
        self._open()

    def _open(self) -> None:
        self.store = bookstand.open(self.path, clock=self.clock, **self.store_options)
        self.topic: Topic = self.store.topic(TOPIC, self.config)
        self.sub: Subscription = self.topic.subscription(SUBSCRIPTION, self.sub_config)

    # -- starting again ------------------------------------------------------------------------------------------------

    def restart(self, config: TopicConfig | None = None, sub: SubscriptionConfig | None = None) -> Subscription:
        """Everything is closed in good order, and opened again."""
        self.topic.close()
        self.store.close()
        return self._again(config, sub)

    def crash(self, config: TopicConfig | None = None, sub: SubscriptionConfig | None = None) -> Subscription:
        """Another takes the topic over: whoever had it says nothing any more, and what he has not written is gone."""
        self.given_up.append(self.store)
        return self._again(config, sub)

    def _again(self, config: TopicConfig | None, sub: SubscriptionConfig | None) -> Subscription:
        self.config = config or self.config
        self.sub_config = sub or self.sub_config
        self._open()
        return self.sub

    def close(self) -> None:
        with contextlib.suppress(BookstandError):
            self.topic.close()
        for store in [*self.given_up, self.store]:
            with contextlib.suppress(BookstandError):
                store.close()

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.clock.now() - START

    def pass_time(self, millis: int) -> None:
        self.clock.advance(millis / 1000)

    def go_to(self, time: int) -> None:
        assert time >= self.now
        self.pass_time(time - self.now)
        assert self.now == time

    # -- messages ------------------------------------------------------------------------------------------------------

    def publish(self, *names: object, at: int | None = None, **options: Any) -> list[Position]:
        """Messages with these words as their payload."""
        if at is not None:
            options["deliver_at"] = START + at
        return [self.topic.publish(str(name).encode(), **options) for name in names]

    def drain(self, source: Any = None, max: int = 100) -> list[ReceivedMessage]:
        """All that there is now."""
        source = self.sub if source is None else source
        found: list[ReceivedMessage] = []
        while some := source.receive(max, timeout=0):
            assert len(some) <= max
            found += some
        return found

    def read(self, source: Any = None) -> list[str]:
        """The payloads of all that there is now."""
        return words(self.drain(source))

    def consume(self) -> list[str]:
        """All that there is now, acknowledged."""
        found = self.drain()
        self.sub.ack_many(found).result()
        return words(found)

    def run_out(self, *moments: int) -> list[tuple[int, str]]:
        """Each message when it comes, asked for at these moments and one millisecond before each."""
        found = []
        wanted = {*moments, *(moment - 1 for moment in moments)}
        for moment in sorted(one for one in wanted if one >= self.now):
            self.go_to(moment)
            found += [(moment, word) for word in self.consume()]
        return found


def words(messages: Iterable[ReceivedMessage]) -> list[str]:
    return [message.payload.decode() for message in messages]


def positions(messages: Iterable[ReceivedMessage]) -> list[Position]:
    return [message.position for message in messages]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def letters(text: str) -> Sequence[bytes]:
    return [letter.encode() for letter in text]
