"""Embedded durable delay queue: delays, retries with backoff, dead letters, and a restart.

``python delayed_queue.py`` sends reminders at their delivery times. The mail server rejects Bob's reminder twice, and
one reminder has an unknown recipient.
"""

from __future__ import annotations

import sys
import tempfile
import time

import bookstand

QUEUE = bookstand.TopicConfig(
    delayed_delivery_tracker="bucket",  # delayed messages are indexed on disk, not in memory
    delayed_delivery_tick_time_millis=10,
    is_delayed_delivery_deliver_at_time_strict=True,  # never deliver early
)
WORKERS = bookstand.SubscriptionConfig(
    nack_backoff=bookstand.MultiplierRedeliveryBackoff(min=100, max=5_000),
    max_redeliveries=3,
    dead_letter_topic="reminders-undeliverable",
)


class MailServer:
    """Mail server that rejects the first two mails to Bob, and every mail to an unknown address."""

    def __init__(self):
        self.sent = []
        self.rejections = 2

    def send(self, to, text):
        if to == "nobody":
            raise ConnectionError("no such address")
        if to == "bob" and self.rejections:
            self.rejections -= 1
            raise ConnectionError("busy")
        self.sent.append((to, text))


def schedule(path):
    """Publish reminders, as a web application would. They are durable when ``publish`` returns."""
    with bookstand.open(path) as store:
        reminders = store.topic("reminders", QUEUE)
        reminders.publish(b"your order has arrived", properties={"to": "ann"})
        reminders.publish(b"your trial ends", deliver_after=600, properties={"to": "carl"})
        reminders.publish(b"your table is booked", deliver_after=300, properties={"to": "bob"})
        reminders.publish(b"are you there?", deliver_after=200, properties={"to": "nobody"})
        too_soon = reminders.publish(b"happy new year", deliver_after=400, properties={"to": "dora"})

        workers = reminders.subscription("workers", WORKERS)
        workers.receive(timeout=0)  # not acknowledged, so it is redelivered
        assert workers.reschedule(too_soon, deliver_after=800)
        assert workers.stats.delayed == 4


def work(path, server):
    """Consume the reminders, as another process would, possibly after a crash of the first one."""
    with bookstand.open(path) as store:
        workers = store.topic("reminders", QUEUE).subscription("workers", WORKERS)
        while workers.backlog:
            for message in workers.receive(max=10, timeout=0.1):
                late = time.time_ns() // 1_000_000 - (message.deliver_at or message.publish_time)
                assert message.deliver_at is None or late >= 0 or message.properties["to"] == "dora"
                try:
                    server.send(message.properties["to"], message.payload.decode())
                except ConnectionError as error:
                    print(f"{message.properties['to']}: {error} (try {message.redelivery_count + 1})")
                    workers.nack(message)
                else:
                    print(f"{message.properties['to']}: {message.payload.decode()}")
                    workers.ack(message)

        dead = store.topic("reminders-undeliverable").subscription("operator")
        for message in dead.receive(max=10, timeout=0):
            print(f"undeliverable: {message.payload.decode()!r} to {message.properties['to']}")
            dead.ack(message)


def main():
    server = MailServer()
    with tempfile.TemporaryDirectory() as path:
        schedule(path)
        work(path, server)
    assert [to for to, _ in server.sent] in (["ann", "bob", "carl", "dora"], ["ann", "carl", "bob", "dora"])


if __name__ == "__main__":
    sys.exit(main())
