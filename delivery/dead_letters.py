"""What becomes of a message that was delivered again too often: it is published to another topic, as Pulsar's clients
do, and then acknowledged. A crash in between publishes it twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bookstand.delivery.received import ReceivedMessage

if TYPE_CHECKING:
    from bookstand.delivery.topic import Topic

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""Pulsar's names for the properties that say where a message comes from."""


def dead_letter_topic_of(topic: str, subscription: str) -> str:
    return f"{topic}-{subscription}-DLQ"


def publish_dead_letters(messages: Iterable[ReceivedMessage], origin: str, target: Topic) -> None:
    """Durable on return."""
    for message in messages:
        member = "" if message.batch_index < 0 else f":{message.batch_index}"
        target.publish(
            message.payload,
            properties={
                **message.properties,
                REAL_TOPIC: origin,
                # Pulsar's ids name a partition between entry and member; -1 is none.
                ORIGIN_MESSAGE_ID: f"{message.position}:-1{member}",
            },
            key=message.key,
            event_time=message.event_time,
        )
