"""What becomes of a message that was delivered again too often: it is published to another topic, as Pulsar's clients
do, and then acknowledged. A crash in between publishes it twice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.errors import MalformedMessageError, MissingExtraError

if TYPE_CHECKING:
    from bookstand.delivery.topic import Topic

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""Pulsar's names for the properties that say where a message comes from."""

BROKEN = "BOOKSTAND_BROKEN_PAYLOAD"
"""Ours: why the payload cannot be had. The dead letter has the bytes of the entry in its place."""


def dead_letter_topic_of(topic: str, subscription: str) -> str:
    return f"{topic}-{subscription}-DLQ"


def publish_dead_letters(messages: Iterable[ReceivedMessage], origin: str, target: Topic) -> None:
    """Durable on return."""
    for message in messages:
        member = "" if message.batch_index < 0 else f":{message.batch_index}"
        try:
            payload, broken = message.payload, {}
        except (MalformedMessageError, MissingExtraError) as error:
            payload, broken = message.data, {BROKEN: str(error)}
        target.publish(
            payload,
            properties={
                **message.properties,
                **broken,
                REAL_TOPIC: origin,
                # Pulsar's ids name a partition between entry and member; -1 is none.
                ORIGIN_MESSAGE_ID: f"{message.position}:-1{member}",
            },
            key=message.key,
            event_time=message.event_time,
        )
