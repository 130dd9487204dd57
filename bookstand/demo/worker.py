"""The process that works until it is killed, or until all is done: one thread publishes, others consume."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep, time_ns
from typing import TYPE_CHECKING

import bookstand
from bookstand.demo import workload
from bookstand.demo.progress_pipe import (
    ACKNOWLEDGING,
    DELIVERED,
    DURABLE,
    NACKED,
    PUBLISHED,
    PUBLISHING,
    STATE,
    PipeWriter,
)
from bookstand.managed_ledger.message.format import Message

if TYPE_CHECKING:
    from bookstand.delivery.message.received_message import ReceivedMessage
    from bookstand.delivery.subscription.subscription import Subscription
    from bookstand.delivery.topic import Topic
    from bookstand.storage.commit.futures import Pending

_LOOK_EVERY = 0.1


def topic_config(messages: int) -> bookstand.TopicConfig:
    entries = workload.entries_per_ledger(messages)
    return bookstand.TopicConfig(
        max_entries_per_ledger=entries,
        delayed_delivery_tracker="bucket",
        delayed_delivery_min_index_count_per_bucket=entries // 4,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=1,
        delayed_delivery_tick_time_millis=100,
        is_delayed_delivery_deliver_at_time_strict=True,
    )


def subscription_config() -> bookstand.SubscriptionConfig:
    return bookstand.SubscriptionConfig(
        nack_delay=workload.NACK_DELAY_MILLIS, max_redeliveries=workload.MAX_REDELIVERIES
    )


def work(path: str, messages: int, teller: PipeWriter) -> None:
    with bookstand.open(path) as store:
        topic = store.topic(workload.TOPIC, topic_config(messages))
        subscription = topic.subscription(workload.SUBSCRIPTION, subscription_config())
        first = next_number(topic)
        teller.tell(PUBLISHED, first)
        acknowledged = Acknowledged(teller)
        stop = Event()
        with ThreadPoolExecutor(1 + workload.CONSUMERS) as threads:
            publishing = threads.submit(publish, topic, subscription, first, messages, teller, stop)
            consuming = [
                threads.submit(consume, subscription, acknowledged, teller, stop) for _ in range(workload.CONSUMERS)
            ]
            try:
                while not publishing.done() or subscription.backlog:
                    for thread in [publishing, *consuming]:
                        if thread.done():
                            thread.result()
                    acknowledged.tell_durable()
                    teller.tell(STATE, subscription.stats.delayed)
                    sleep(_LOOK_EVERY)
                publishing.result()
            finally:
                stop.set()
        topic.close()
        acknowledged.tell_durable()
        teller.tell(STATE)


def next_number(topic: Topic) -> int:
    """What follows the last message that is in the topic: so none is published twice, nor left out."""
    last = topic.ledger.last_confirmed
    if last.entry_id < 0:
        return 0
    return workload.number_of(Message(topic.ledger.read_entry(last).data).payload()) + 1


def publish(
    topic: Topic, subscription: Subscription, first: int, messages: int, teller: PipeWriter, stop: Event
) -> None:
    for batch in workload.batches(first, messages):
        while is_behind(subscription) and not stop.is_set():
            sleep(_LOOK_EVERY / 10)
        if stop.is_set():
            return
        times = workload.delivery_times(batch, now(), messages)
        teller.tell(PUBLISHING, batch.start, numbers=times)
        topic.publish_many(map(workload.payload, batch), deliver_at=[time or None for time in times.tolist()])
        teller.tell(PUBLISHED, batch.stop)


def is_behind(subscription: Subscription) -> bool:
    stats = subscription.stats
    return stats.backlog - stats.delayed > workload.MOST_WAITING


def consume(subscription: Subscription, acknowledged: Acknowledged, teller: PipeWriter, stop: Event) -> None:
    with subscription.consumer() as consumer:
        while not stop.is_set():
            received = consumer.receive(workload.RECEIVED_AT_ONCE, timeout=_LOOK_EVERY)
            if not received:
                continue
            numbers = [workload.number_of(message.payload) for message in received]
            teller.tell(DELIVERED, now(), numbers=numbers)
            handled: list[tuple[ReceivedMessage, int]] = []
            failed: list[tuple[ReceivedMessage, int]] = []
            for message, number in zip(received, numbers, strict=True):
                fails = workload.is_poison(number) or (
                    message.redelivery_count == 0 and workload.fails_at_first(number)
                )
                (failed if fails else handled).append((message, number))
            if handled:
                numbers = [number for _, number in handled]
                teller.tell(ACKNOWLEDGING, numbers=numbers)
                acknowledged.add(consumer.ack_many(message for message, _ in handled), numbers)
            if failed:
                teller.tell(NACKED, numbers=[number for _, number in failed])
            for message, _ in failed:
                consumer.nack(message)


class Acknowledged:
    """What was acknowledged, until it is durable."""

    def __init__(self, teller: PipeWriter) -> None:
        self._teller = teller
        self._waiting: deque[tuple[Pending, Sequence[int]]] = deque()

    def add(self, pending: Pending, numbers: Sequence[int]) -> None:
        self._waiting.append((pending, numbers))

    def tell_durable(self) -> None:
        """By one thread."""
        while self._waiting and self._waiting[0][0].done():
            pending, numbers = self._waiting.popleft()
            pending.result()
            self._teller.tell(DURABLE, numbers=numbers)


def now() -> int:
    return time_ns() // 1_000_000


if __name__ == "__main__":
    _path, _messages, _descriptor = sys.argv[1:]
    try:
        work(_path, int(_messages), PipeWriter(int(_descriptor)))
    except BrokenPipeError:
        sys.exit("nobody listens any more")
    except bookstand.BookstandError as error:
        sys.exit(str(error))
