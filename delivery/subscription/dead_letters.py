"""Dead letters: messages with too many redeliveries, published to another topic in the format of Pulsar's clients.

They are acknowledged afterwards, so a crash in between publishes them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.received_message import Deliverable, PartialBatch, ReceivedMessage, messages_of
from bookstand.delivery.subscription.acks import AckHandler
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.delivery.subscription.stats import Counters
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.errors import MalformedMessageError, MissingExtraError

if TYPE_CHECKING:
    from bookstand.delivery.topic import Topic

REAL_TOPIC = "REAL_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
"""Pulsar's names of the properties for the origin of a message."""

BROKEN_PAYLOAD = "BOOKSTAND_BROKEN_PAYLOAD"
"""Property of bookstand: the reason why the payload is the undecoded entry."""


def dead_letter_topic_of(topic: str, subscription: str) -> str:
    return f"{topic}-{subscription}-DLQ"


def publish_dead_letters(messages: Iterable[ReceivedMessage], origin: str, target: Topic) -> None:
    """Publish messages to the dead-letter topic, durably on return."""
    for message in messages:
        member = "" if message.batch_index < 0 else f":{message.batch_index}"
        try:
            payload, broken = message.payload, {}
        except (MalformedMessageError, MissingExtraError) as error:
            payload, broken = message.data, {BROKEN_PAYLOAD: str(error)}
        target.publish(
            payload,
            properties={
                **message.properties,
                **broken,
                REAL_TOPIC: origin,
                # Pulsar's ids have a partition between entry and batch index; -1 means none.
                ORIGIN_MESSAGE_ID: f"{message.position}:-1{member}",
            },
            key=message.key,
            event_time=message.event_time,
        )


class DeadLetterRouter:
    """Not thread-safe; callers hold the subscription's lock."""

    def __init__(
        self,
        config: Callable[[], SubscriptionConfig],
        origin: str,
        dead_letter_topic: Callable[[], Topic],
        states: MessageStates,
        batch_filter: BatchFilter,
        acks: AckHandler,
        counters: Counters,
    ) -> None:
        self._config = config
        self._origin = origin
        self._dead_letter_topic = dead_letter_topic
        self._states = states
        self._batch_filter = batch_filter
        self._acks = acks
        self._counters = counters

    def route(self, deliverables: list[Deliverable]) -> list[Deliverable]:
        """Publish and acknowledge messages with too many redeliveries, and return the others."""
        limit, redelivery_counts = self._config().max_redeliveries, self._states.redelivery_counts
        if limit is None or not redelivery_counts:
            return deliverables
        exhausted = [
            message
            for item in deliverables
            for message in messages_of(item)
            if redelivery_counts.of(message.id) > limit
        ]
        if not exhausted:
            return deliverables
        publish_dead_letters(exhausted, self._origin, self._dead_letter_topic())
        self._acks.ack_silently(exhausted).result()
        self._counters.dead_lettered += len(exhausted)
        exhausted_ids = {message.id for message in exhausted}
        remaining: list[Deliverable] = []
        for item in deliverables:
            ids = [message.id for message in messages_of(item) if message.id not in exhausted_ids]
            entry = item.entry if isinstance(item, PartialBatch) else item
            remaining += self._batch_filter.select([entry], ids) if ids else []
        return remaining
