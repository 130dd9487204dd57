"""Child process of the demo: one thread publishes, the others consume, until it is killed or no messages remain."""

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

_POLL_INTERVAL = 0.1


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


def work(path: str, messages: int, pipe: PipeWriter) -> None:
    with bookstand.open(path) as store:
        topic = store.topic(workload.TOPIC, topic_config(messages))
        subscription = topic.subscription(workload.SUBSCRIPTION, subscription_config())
        first = next_number(topic)
        pipe.send(PUBLISHED, first)
        pending_acks = PendingAcks(pipe)
        stop = Event()
        with ThreadPoolExecutor(1 + workload.CONSUMERS) as threads:
            publishing = threads.submit(publish, topic, subscription, first, messages, pipe, stop)
            consuming = [
                threads.submit(consume, subscription, pending_acks, pipe, stop) for _ in range(workload.CONSUMERS)
            ]
            try:
                while not publishing.done() or subscription.backlog:
                    for thread in [publishing, *consuming]:
                        if thread.done():
                            thread.result()
                    pending_acks.report_durable()
                    pipe.send(STATE, subscription.stats.delayed)
                    sleep(_POLL_INTERVAL)
                publishing.result()
            finally:
                stop.set()
        topic.close()
        pending_acks.report_durable()
        pipe.send(STATE)


def next_number(topic: Topic) -> int:
    """Return the number after the last message in the topic, so that none is published twice or skipped."""
    last = topic.ledger.last_confirmed
    if last.entry_id < 0:
        return 0
    return workload.number_of(Message(topic.ledger.read_entry(last).data).payload()) + 1


def publish(topic: Topic, subscription: Subscription, first: int, messages: int, pipe: PipeWriter, stop: Event) -> None:
    for batch in workload.batches(first, messages):
        while is_behind(subscription) and not stop.is_set():
            sleep(_POLL_INTERVAL / 10)
        if stop.is_set():
            return
        times = workload.delivery_times(batch, now(), messages)
        pipe.send(PUBLISHING, batch.start, numbers=times)
        topic.publish_many(map(workload.payload, batch), deliver_at=[time or None for time in times.tolist()])
        pipe.send(PUBLISHED, batch.stop)


def is_behind(subscription: Subscription) -> bool:
    stats = subscription.stats
    return stats.backlog - stats.delayed > workload.MAX_READY


def consume(subscription: Subscription, pending_acks: PendingAcks, pipe: PipeWriter, stop: Event) -> None:
    with subscription.consumer() as consumer:
        while not stop.is_set():
            received = consumer.receive(workload.RECEIVE_BATCH_SIZE, timeout=_POLL_INTERVAL)
            if not received:
                continue
            numbers = [workload.number_of(message.payload) for message in received]
            pipe.send(DELIVERED, now(), numbers=numbers)
            handled: list[tuple[ReceivedMessage, int]] = []
            failed: list[tuple[ReceivedMessage, int]] = []
            for message, number in zip(received, numbers, strict=True):
                fails = workload.is_poison(number) or (message.redelivery_count == 0 and workload.fails_once(number))
                (failed if fails else handled).append((message, number))
            if handled:
                numbers = [number for _, number in handled]
                pipe.send(ACKNOWLEDGING, numbers=numbers)
                pending_acks.add(consumer.ack_many(message for message, _ in handled), numbers)
            if failed:
                pipe.send(NACKED, numbers=[number for _, number in failed])
            for message, _ in failed:
                consumer.nack(message)


class PendingAcks:
    """Acknowledgments that are not yet durable."""

    def __init__(self, pipe: PipeWriter) -> None:
        self._pipe = pipe
        self._waiting: deque[tuple[Pending, Sequence[int]]] = deque()

    def add(self, pending: Pending, numbers: Sequence[int]) -> None:
        self._waiting.append((pending, numbers))

    def report_durable(self) -> None:
        """Report acknowledgments that have become durable. Called from one thread only."""
        while self._waiting and self._waiting[0][0].done():
            pending, numbers = self._waiting.popleft()
            pending.result()
            self._pipe.send(DURABLE, numbers=numbers)


def now() -> int:
    return time_ns() // 1_000_000


if __name__ == "__main__":
    _path, _messages, _descriptor = sys.argv[1:]
    try:
        work(_path, int(_messages), PipeWriter(int(_descriptor)))
    except BrokenPipeError:
        sys.exit("the parent process has exited")
    except bookstand.BookstandError as error:
        sys.exit(str(error))
